/* A small model that any allocator is checked against, operation by operation: by
 * test_allocator_model.c with random operations, by tests/fuzz/fuzz_allocators.c with a fuzzer's
 * bytes.
 *
 * The model knows of each sequence its token ids only. Its memory has one number a slot: writing
 * token t stores a hash of tokens 0 .. t, as K and V of a token depend on all before it, so a
 * prefix wrongly shared shows even where the token itself is the same. Orders are carried out on
 * that memory; what the allocator says is free is poisoned at once. MODEL_FAIL(format, ...) is
 * given by the includer. */
#ifndef KVL_TESTS_ALLOCATORS_MODEL_H
#define KVL_TESTS_ALLOCATORS_MODEL_H

#include <stdlib.h>
#include <string.h>

#include "allocators/allocator.h"
#include "core/rng.h"

enum { MODEL_SEQS = 6, MODEL_TOKENS = 400 };
static const uint64_t MODEL_POISON = 0xdeaddeaddeaddeadu;

typedef struct model {
    const kvl_allocator *a;
    void *state;
    kvl_allocator_config config;
    kvl_placement placement;
    uint64_t *memory; /* [address_slots] */
    uint8_t *mapped;  /* [address_slots * slot bytes]; NULL where memory is always there */
    uint8_t *owned;   /* [address_slots], scratch */
    struct {
        int alive;
        int64_t length;
        int32_t ids[MODEL_TOKENS];
    } seqs[MODEL_SEQS];
    int64_t copied, slot_bytes, walk_live, walk_held, walk_cached, walk_free;
    int64_t n_ok, n_refused, n_denied, n_found; /* what happened, so that tests can demand it */
    const uint8_t *bytes;                       /* operations: a fuzzer's, or NULL */
    size_t n_bytes;
    kvl_rng rng;
    int deny_in_16;           /* refusals injected: of 16 reservations */
    int64_t deny_at, n_asked; /* or of the deny_at-th alone, counted from 1; reservations so far */
    int denied;               /* the last call was refused by the injector */
} model;

static uint64_t model_pick(model *m, uint64_t n) {
    if (!m->bytes) return kvl_rng_below(&m->rng, n);
    if (!m->n_bytes) return 0;
    m->n_bytes--;
    return *m->bytes++ % n;
}

static bool model_deny(void *user) {
    model *m = user;
    m->denied =
        ++m->n_asked == m->deny_at || (m->deny_in_16 && (int)model_pick(m, 16) < m->deny_in_16);
    return m->denied;
}

static uint64_t model_value(const model *m, int s, int64_t t) {
    uint64_t hash = 1;
    for (int64_t i = 0; i <= t; i++)
        hash = (hash ^ (uint64_t)m->seqs[s].ids[i]) * 0x9e3779b97f4a7c15u + (hash >> 29);
    return hash;
}

/* Slot of token t, -1 where a window has let it go. */
static int64_t model_slot(const model *m, int s, int64_t t) {
    int64_t slab, size = m->placement.page_tokens;
    const int32_t *pages = m->a->pages(m->state, s, &slab);
    if (!pages) return slab + t;
    return pages[t / size] < 0 ? -1 : pages[t / size] * size + t % size;
}

static void model_write(model *m, int s, int64_t first, int64_t end) {
    for (int64_t t = first; t < end; t++) {
        int64_t slot = model_slot(m, s, t);
        if (slot < 0 || slot >= m->placement.address_slots)
            MODEL_FAIL("sequence %d, token %lld: slot %lld", s, (long long)t, (long long)slot);
        m->memory[slot] = model_value(m, s, t);
    }
}

static void model_map(model *m, const kvl_order *order) {
    int map = order->kind == KVL_ORDER_MAP;
    for (int64_t b = order->src_slot; b < order->src_slot + order->n_slots; b++) {
        if (m->mapped[b] == map) MODEL_FAIL("byte %lld is mapped twice or never", (long long)b);
        m->mapped[b] = (uint8_t)map;
        m->memory[b / m->slot_bytes] = MODEL_POISON;
    }
}

static void model_orders(model *m) {
    kvl_order orders[3];
    int32_t n;
    while ((n = m->a->take_orders(m->state, orders, 3)) > 0) {
        for (int32_t i = 0; i < n; i++) {
            if (orders[i].kind != KVL_ORDER_COPY_SLOTS) {
                model_map(m, &orders[i]);
                continue;
            }
            memmove(m->memory + orders[i].dst_slot, m->memory + orders[i].src_slot,
                    (size_t)orders[i].n_slots * sizeof *m->memory);
            m->copied += orders[i].n_slots;
        }
    }
}

/* ---- checks --------------------------------------------------------------------------------- */

static void model_visit(void *user, const kvl_slot_run *run) {
    model *m = user;
    if (run->slot < 0 || run->n_slots < 1 || run->n_live > run->n_slots ||
        run->slot > m->placement.address_slots - run->n_slots)
        MODEL_FAIL("run of %lld slots from %lld", (long long)run->n_slots, (long long)run->slot);
    for (int64_t i = run->slot; i < run->slot + run->n_slots; i++) {
        if (m->owned[i]++) MODEL_FAIL("slot %lld is visited twice", (long long)i);
        if (!run->cached && i >= run->slot + run->n_live) m->memory[i] = MODEL_POISON;
    }
    if (run->refs && (run->owner < 0 || !m->seqs[run->owner].alive))
        MODEL_FAIL("slot %lld belongs to sequence %d", (long long)run->slot, run->owner);
    m->walk_live += run->n_live;
    *(run->refs ? &m->walk_held : run->cached ? &m->walk_cached : &m->walk_free) += run->n_slots;
}

static void model_ledger(model *m, kvl_ledger *l) {
    m->a->stats(m->state, (int64_t)model_pick(m, 200), l);
    if (l->pool != l->live + l->reserved + l->internal + l->cached + l->padding + l->free)
        MODEL_FAIL("the ledger does not add up to %lld", (long long)l->pool);
    if (l->live < 0 || l->reserved < 0 || l->internal < 0 || l->cached < 0 || l->padding < 0 ||
        l->free < 0 || l->external < 0 || l->external > l->free || l->shared_saved < 0)
        MODEL_FAIL("a column of the ledger is negative, or external above free %lld",
                   (long long)l->free);
    if (l->live_peak < l->live || l->used_peak < l->pool - l->free - l->cached)
        MODEL_FAIL("a high-water mark is below what is used: %lld", (long long)l->live_peak);
    if (!m->config.unlimited && l->pool != m->config.pool_tokens)
        MODEL_FAIL("the pool has %lld slots", (long long)l->pool);
    if (l->copied_slots != m->copied) MODEL_FAIL("copied %lld", (long long)l->copied_slots);
}

/* Every walk poisons what holds no token: then every token must still be there. */
static void model_check(model *m) {
    char why[200];
    kvl_ledger l;
    if (!m->a->is_valid(m->state, why, sizeof why)) MODEL_FAIL("%s", why);
    memset(m->owned, 0, (size_t)m->placement.address_slots);
    m->walk_live = m->walk_held = m->walk_cached = m->walk_free = 0;
    m->a->walk(m->state, model_visit, m);
    model_ledger(m, &l);
    if (m->walk_live != l.live || m->walk_held != l.live + l.reserved + l.internal ||
        m->walk_cached != l.cached)
        MODEL_FAIL("the walk saw %lld live, the ledger says %lld", (long long)m->walk_live,
                   (long long)l.live);
    if (!m->mapped && !m->config.unlimited && m->walk_free != l.free + l.padding)
        MODEL_FAIL("the walk saw %lld free", (long long)m->walk_free);
    int64_t window = m->config.window_tokens, tokens = 0;
    for (int s = 0; s < MODEL_SEQS; s++) {
        int64_t length = m->a->length(m->state, s);
        if (length != (m->seqs[s].alive ? m->seqs[s].length : -1))
            MODEL_FAIL("sequence %d has %lld tokens", s, (long long)length);
        for (int64_t t = 0; t < length; t++) {
            int64_t slot = model_slot(m, s, t);
            tokens += slot >= 0;
            if (window && t < length - window + 1) continue; /* no later query sees it */
            if (slot < 0 || m->memory[slot] != model_value(m, s, t))
                MODEL_FAIL("sequence %d, token %lld: slot %lld holds another", s, (long long)t,
                           (long long)slot);
            if (m->mapped && !m->mapped[slot * m->slot_bytes + m->slot_bytes - 1])
                MODEL_FAIL("slot %lld is not mapped", (long long)slot);
        }
    }
    if (tokens - l.live != l.shared_saved)
        MODEL_FAIL("shared_saved is %lld", (long long)l.shared_saved);
}

/* ---- operations ----------------------------------------------------------------------------- */

/* A refused call changed nothing: lengths are checked by model_check, the ledger here. */
static int model_done(model *m, kvl_status status, const kvl_ledger *before) {
    kvl_ledger after;
    if (status == KVL_OK) {
        if (m->denied) MODEL_FAIL("%s", "a refusal of the injector was passed over");
        m->n_ok++;
        return 1;
    }
    m->n_refused++;
    m->n_denied += m->denied;
    if (m->denied && status != KVL_ERR_OOM) MODEL_FAIL("denied, but status %d", (int)status);
    if (status == KVL_ERR_INTERNAL) MODEL_FAIL("%s", kvl_message());
    m->a->stats(m->state, 0, &after);
    if (memcmp(before, &after, sizeof after) != 0)
        MODEL_FAIL("a refused call changed the ledger: %s", kvl_message());
    m->denied = 0;
    return 0;
}

/* Prompts start with one of two texts and soon differ, so that prefixes are shared in part. */
static void model_prompt(model *m, int32_t *ids, int64_t n) {
    int32_t text = (int32_t)model_pick(m, 2), at = (int32_t)model_pick(m, 120);
    for (int64_t t = 0; t < n; t++) ids[t] = t < at ? text : (int32_t)(2 + t % 3 + text);
}

static void model_admit(model *m) {
    static int32_t ids[MODEL_TOKENS];
    static uint64_t keys[MODEL_TOKENS];
    kvl_ledger before;
    kvl_admission out = {-7, 0};
    int64_t half = m->config.max_seq_tokens / 2, page = m->config.page_tokens;
    kvl_request r = {.n_prompt = (int64_t)model_pick(m, (uint64_t)half + 1),
                     .max_new = (int64_t)model_pick(m, (uint64_t)half + 1)};
    model_prompt(m, ids, r.n_prompt);
    r.readmitted = model_pick(m, 4) == 0;
    if (model_pick(m, 8)) r.tokens = ids;
    if (model_pick(m, 8)) r.max_cached = model_pick(m, 2) ? r.n_prompt : (r.n_prompt + 1) / 2;
    for (int64_t i = 0, t = 0; m->config.prefix == KVL_PREFIX_KEYS && t < r.n_prompt; i++) {
        uint64_t key = i ? keys[i - 1] : 7; /* equal keys, equal prefixes: and equal lengths */
        for (; t < (i + 1) * page && t < r.n_prompt; t++)
            key = (key ^ (uint64_t)ids[t]) * 0x9e3779b97f4a7c15u + (key >> 31);
        keys[i] = t % page ? key + (uint64_t)t : key;
        r.keys = keys;
        r.n_keys = i + 1;
    }
    m->a->stats(m->state, 0, &before);
    int64_t found = m->a->match_prefix ? m->a->match_prefix(m->state, &r) : 0;
    if (!model_done(m, kvl_allocator_admit(m->a, m->state, &r, &out), &before)) return;
    if (out.seq < 0 || out.seq >= MODEL_SEQS || m->seqs[out.seq].alive)
        MODEL_FAIL("handle %d is not free", out.seq);
    if (out.n_cached != found || found > r.max_cached || found > r.n_prompt)
        MODEL_FAIL("found %lld of %lld tokens", (long long)out.n_cached, (long long)found);
    m->n_found += found > 0;
    m->seqs[out.seq].alive = 1;
    m->seqs[out.seq].length = out.n_cached;
    memcpy(m->seqs[out.seq].ids, ids, sizeof ids);
}

static void model_append(model *m, int s) {
    kvl_ledger before;
    int64_t old = m->seqs[s].length, n = 1 + (int64_t)model_pick(m, model_pick(m, 4) ? 2 : 60);
    if (old + n > MODEL_TOKENS) return;
    m->a->stats(m->state, 0, &before);
    if (!model_done(m, m->a->append(m->state, s, n), &before)) return;
    /* The prompt announced is what is written, then come answers that differ. */
    if (old == 0 && !m->a->admit) model_prompt(m, m->seqs[s].ids, n);
    model_orders(m);
    m->seqs[s].length += n;
    model_write(m, s, old, old + n);
}

static void model_fork(model *m, int s) {
    kvl_ledger before;
    kvl_seq child = -7;
    m->a->stats(m->state, 0, &before);
    if (!model_done(m, m->a->fork(m->state, s, &child), &before)) return;
    if (child < 0 || child >= MODEL_SEQS || m->seqs[child].alive)
        MODEL_FAIL("handle %d is not free", child);
    m->seqs[child] = m->seqs[s];
    /* They go on differently, and so does the parent from what it announced. */
    for (int64_t t = m->seqs[s].length; t < MODEL_TOKENS; t++) {
        m->seqs[child].ids[t] = 90 + (int32_t)model_pick(m, 3);
        m->seqs[s].ids[t] = 95 + (int32_t)model_pick(m, 3);
    }
}

static void model_truncate(model *m, int s) {
    kvl_ledger before;
    int64_t n = m->seqs[s].length - (int64_t)model_pick(m, (uint64_t)m->seqs[s].length + 1);
    m->a->stats(m->state, 0, &before);
    if (!model_done(m, m->a->truncate(m->state, s, n), &before)) return;
    m->seqs[s].length = n;
    for (int64_t t = n; t < MODEL_TOKENS; t++) m->seqs[s].ids[t] = 70 + (int32_t)(t % 2);
}

static void model_learn(model *m, int s) {
    int64_t known = 0;
    if (!m->a->learn) return;
    /* Ids may be given from where the allocator knows them on; it says where by refusing. */
    while (known < m->seqs[s].length &&
           m->a->learn(m->state, s, m->seqs[s].ids + known, m->seqs[s].length - known) != KVL_OK)
        known++;
}

/* What the ledger calls admissible is admitted, and no more. */
static void model_admissible(model *m) {
    kvl_ledger l;
    kvl_seq seq;
    m->a->stats(m->state, 0, &l);
    int64_t most = l.largest_admissible;
    if (m->deny_in_16 || m->deny_at || most == 0) return;
    if (most < m->config.max_seq_tokens && m->a->reserve(m->state, most + 1, 0, &seq) == KVL_OK)
        MODEL_FAIL("%lld tokens were admitted, one more than admissible", (long long)most + 1);
    if (m->a->reserve(m->state, most, 0, &seq) != KVL_OK)
        MODEL_FAIL("%lld tokens are admissible, but: %s", (long long)most, kvl_message());
    if (m->a->release(m->state, seq) != KVL_OK) MODEL_FAIL("%s", kvl_message());
    model_orders(m);
}

static void model_step(model *m) {
    int s = (int)model_pick(m, MODEL_SEQS), what = (int)model_pick(m, 100);
    if (!m->seqs[s].alive) {
        if (m->a->append(m->state, s, 1) == KVL_OK || m->a->release(m->state, s) == KVL_OK ||
            m->a->truncate(m->state, s, 0) == KVL_OK)
            MODEL_FAIL("sequence %d is dead, but does something", s);
        if (what < 60) model_admit(m);
    } else if (what < 60) {
        model_append(m, s);
    } else if (what < 68) {
        model_fork(m, s);
    } else if (what < 75) {
        model_truncate(m, s);
    } else if (what < 80) {
        model_learn(m, s);
    } else if (what < 86) {
        model_admit(m);
    } else if (what < 89) {
        model_admissible(m);
    } else {
        if (m->a->release(m->state, s) != KVL_OK) MODEL_FAIL("release: %s", kvl_message());
        m->seqs[s].alive = 0;
    }
    model_orders(m);
    model_check(m);
}

/* ---- life ----------------------------------------------------------------------------------- */

/* Fields a, config, bytes or rng, deny_in_16 are set. */
static void model_open(model *m) {
    uint64_t bytes;
    m->config.max_seqs = MODEL_SEQS;
    m->config.deny = model_deny;
    m->config.deny_user = m;
    if (m->a->state_bytes(&m->config, &bytes) != KVL_OK) MODEL_FAIL("%s", kvl_message());
    m->state = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(m->state, 0xa5, bytes); /* init must not rely on zeros */
    if (m->a->init(m->state, &m->config) != KVL_OK) MODEL_FAIL("%s", kvl_message());
    m->a->placement(m->state, &m->placement);
    m->slot_bytes = m->config.slot_bytes ? m->config.slot_bytes : 1;
    size_t slots = (size_t)m->placement.address_slots;
    m->memory = calloc(slots, sizeof *m->memory);
    m->owned = calloc(slots, 1);
    if (m->placement.mapped) m->mapped = calloc(slots, (size_t)m->slot_bytes);
    model_check(m);
}

/* Everything released leaves nothing behind. */
static void model_close(model *m) {
    kvl_ledger l;
    for (int s = 0; s < MODEL_SEQS; s++) {
        if (m->seqs[s].alive && m->a->release(m->state, s) != KVL_OK)
            MODEL_FAIL("release: %s", kvl_message());
        m->seqs[s].alive = 0;
    }
    model_check(m);
    model_ledger(m, &l);
    if (l.live || l.reserved || l.internal) MODEL_FAIL("%lld slots leak", (long long)l.live);
    free(m->state);
    free(m->memory);
    free(m->owned);
    free(m->mapped);
}

#endif
