/* Allocators: seeded random walks beside a small model that knows only lengths and which sequences
 * share what. After every operation: is_valid, the ledger sums to the pool, lengths are the
 * model's, no slot of a live token belongs to two sequences unless one was forked from the other,
 * and a refused operation changed nothing.
 *
 *   alloc/<name>/page<tokens>/pool<tokens>/seqs<n>/steps<n>/seed<n> */
#include "allocators/allocator.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/rng.h"
#include "harness/verify/family.h"
#include "harness/verify/oracle.h"

enum { MAX_SEQS = 64 };

typedef struct walk {
    const kvl_allocator *allocator;
    kvl_allocator_config config;
    int64_t n_steps;
    uint64_t seed;
    void *state;
    uint64_t state_bytes;
    int64_t lengths[MAX_SEQS]; /* the model: tokens of a live handle, -1 of a free one */
    int32_t family[MAX_SEQS];  /* forks of one another have the same number */
    int32_t next_family;
    int64_t n_slots; /* slot numbers are below it */
    int32_t *owner;  /* [n_slots]: scratch for the slot check */
    kvl_rng rng;
    kvl_verify_result *result;
} walk;

/* Slot of token t of a sequence. */
static int64_t slot_of(const walk *w, kvl_seq seq, int64_t t) {
    int64_t slab = 0, page = w->config.page_tokens;
    const int32_t *pages = w->allocator->pages(w->state, seq, &slab);
    return pages ? pages[t / page] * page + t % page : slab + t;
}

static void check_slots(walk *w) {
    memset(w->owner, 0, (size_t)w->n_slots * sizeof *w->owner);
    for (int32_t s = 0; s < w->config.max_seqs; s++) {
        for (int64_t t = 0; t < w->lengths[s]; t++) {
            int64_t slot = slot_of(w, s, t);
            if (slot < 0 || slot >= w->n_slots) {
                kvl_verify_failed(w->result, "sequence %d token %" PRId64 ": slot %" PRId64, s, t,
                                  slot);
                return;
            }
            int32_t other = w->owner[slot];
            if (other && other != w->family[s])
                kvl_verify_failed(w->result,
                                  "slot %" PRId64 " belongs to two sequences that share nothing",
                                  slot);
            w->owner[slot] = w->family[s];
        }
    }
}

static void check_state(walk *w, const char *what) {
    kvl_ledger l;
    char why[160] = "";
    int64_t tokens = 0, slots = 0;
    w->allocator->stats(w->state, 0, &l);
    if (l.pool != l.live + l.reserved + l.internal + l.cached + l.padding + l.free)
        kvl_verify_failed(
            w->result,
            "%s: pool %" PRId64 " is not live %" PRId64 " + reserved %" PRId64
            " + internal %" PRId64 " + cached %" PRId64 " + padding %" PRId64 " + free %" PRId64,
            what, l.pool, l.live, l.reserved, l.internal, l.cached, l.padding, l.free);
    if (!w->allocator->is_valid(w->state, why, sizeof why))
        kvl_verify_failed(w->result, "%s: not valid: %s", what, why);
    for (int32_t s = 0; s < w->config.max_seqs; s++) {
        int64_t length = w->allocator->length(w->state, s);
        if (length != w->lengths[s])
            kvl_verify_failed(w->result, "%s: sequence %d has %" PRId64 " tokens, not %" PRId64,
                              what, s, length, w->lengths[s]);
        if (w->lengths[s] > 0) tokens += w->lengths[s];
    }
    check_slots(w);
    for (int64_t i = 0; i < w->n_slots; i++) slots += w->owner[i] != 0;
    if (w->result->state == KVL_VERIFY_PASS &&
        (l.live != slots || l.shared_saved != tokens - slots))
        kvl_verify_failed(w->result,
                          "%s: live %" PRId64 " and shared_saved %" PRId64 ", %" PRId64
                          " slots hold %" PRId64 " tokens",
                          what, l.live, l.shared_saved, slots, tokens);
}

static void take_orders(walk *w) {
    kvl_order orders[8];
    while (w->allocator->take_orders(w->state, orders, 8) > 0) {
    }
}

static void step_reserve(walk *w) {
    kvl_seq seq = -1;
    int64_t limit = w->config.max_seq_tokens;
    int64_t prompt = 1 + (int64_t)kvl_rng_below(&w->rng, (uint64_t)limit);
    int64_t more = (int64_t)kvl_rng_below(&w->rng, (uint64_t)(limit - prompt) + 1);
    if (w->allocator->reserve(w->state, prompt, more, &seq) != KVL_OK) return;
    if (seq < 0 || seq >= w->config.max_seqs || w->lengths[seq] >= 0) {
        kvl_verify_failed(w->result, "reserve gave handle %d, which is not free", seq);
        return;
    }
    w->lengths[seq] = 0;
    w->family[seq] = ++w->next_family;
}

static void step_on(walk *w, kvl_seq seq, uint64_t action) {
    int64_t *length = &w->lengths[seq];
    if (action < 5) {
        int64_t n = 1 + (int64_t)kvl_rng_below(&w->rng, action ? 3 : 40);
        if (w->allocator->append(w->state, seq, n) == KVL_OK) *length += n;
        if (*length > w->config.max_seq_tokens)
            kvl_verify_failed(w->result, "sequence %d grew to %" PRId64 " of %" PRId64 " tokens",
                              seq, *length, w->config.max_seq_tokens);
    } else if (action == 5) {
        kvl_seq child = -1;
        if (w->allocator->fork(w->state, seq, &child) != KVL_OK) return;
        if (child < 0 || child >= w->config.max_seqs || w->lengths[child] >= 0) {
            kvl_verify_failed(w->result, "fork gave handle %d, which is not free", child);
            return;
        }
        w->lengths[child] = *length;
        w->family[child] = w->family[seq];
    } else if (action == 6) {
        int64_t n = (int64_t)kvl_rng_below(&w->rng, (uint64_t)*length + 1);
        if (w->allocator->truncate(w->state, seq, n) == KVL_OK)
            *length = n;
        else
            kvl_verify_failed(w->result, "truncate: %s", kvl_message());
    } else if (w->allocator->release(w->state, seq) == KVL_OK) {
        *length = -1;
    } else {
        kvl_verify_failed(w->result, "release: %s", kvl_message());
    }
}

static void walk_steps(walk *w) {
    static const char *const names[] = {"append", "append", "append",   "append",
                                        "append", "fork",   "truncate", "release"};
    for (int64_t i = 0; i < w->n_steps && w->result->state == KVL_VERIFY_PASS; i++) {
        uint64_t action = kvl_rng_below(&w->rng, 10);
        kvl_seq seq = (kvl_seq)kvl_rng_below(&w->rng, (uint64_t)w->config.max_seqs);
        char what[48];
        bool live = w->lengths[seq] >= 0;
        if (!live || action >= 8)
            step_reserve(w);
        else
            step_on(w, seq, action);
        snprintf(what, sizeof what, "step %" PRId64 " (%s)", i,
                 !live || action >= 8 ? "reserve" : names[action]);
        take_orders(w);
        check_state(w, what);
        w->result->n_rows++;
    }
}

static kvl_status run_walk(walk *w) {
    for (int32_t s = 0; s < MAX_SEQS; s++) w->lengths[s] = -1;
    KVL_TRY(w->allocator->state_bytes(&w->config, &w->state_bytes));
    KVL_TRY(kvl_mem_alloc(w->state_bytes, &w->state));
    KVL_TRY(w->allocator->init(w->state, &w->config));
    kvl_placement placement;
    w->allocator->placement(w->state, &placement);
    w->n_slots = placement.address_slots;
    w->owner = calloc((size_t)w->n_slots, sizeof *w->owner);
    if (!w->owner) return kvl_fail(KVL_ERR_OOM, "out of memory for an allocator case");
    check_state(w, "init");
    walk_steps(w);
    return KVL_OK;
}

/* ---- the family -------------------------------------------------------------------------------
 */

static bool list(const kvl_verify_scope *scope, kvl_verify_visit visit, void *user) {
    static const int64_t shapes[][3] = {{1, 200, 5}, {16, 1024, 9}, {17, 500, 7}, {64, 3000, 12}};
    int64_t n_steps = scope->level == KVL_VERIFY_QUICK ? 1000 : 5000;
    int n_seeds = scope->level == KVL_VERIFY_FULL ? 100 : 1;
    char id[KVL_VERIFY_ID_BYTES];
    for (size_t a = 0; a < kvl_allocator_count(); a++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            for (int seed = 1; seed <= n_seeds; seed++) {
                snprintf(id, sizeof id,
                         "alloc/%s/page%" PRId64 "/pool%" PRId64 "/seqs%" PRId64 "/steps%" PRId64
                         "/seed%d",
                         kvl_allocator_at(a)->name, shapes[i][0], shapes[i][1], shapes[i][2],
                         n_steps, seed);
                if (!visit(user, id)) return false;
            }
        }
    }
    return true;
}

static kvl_status run(const kvl_verify_scope *scope, const char *id, kvl_verify_result *result) {
    walk w = {.result = result};
    char name[32];
    int end = 0;
    int n = sscanf(id,
                   "alloc/%31[^/]/page%" SCNd64 "/pool%" SCNd64 "/seqs%" SCNd32 "/steps%" SCNd64
                   "/seed%" SCNu64 "%n",
                   name, &w.config.page_tokens, &w.config.pool_tokens, &w.config.max_seqs,
                   &w.n_steps, &w.seed, &end);
    if (n != 6 || id[end] || w.config.page_tokens < 1 || w.config.pool_tokens < 8 ||
        w.config.pool_tokens > 1 << 24 || w.config.max_seqs < 1 || w.config.max_seqs > MAX_SEQS)
        return kvl_fail(KVL_ERR_INPUT,
                        "case '%s': must be alloc/<name>/page<n>/pool<8 or more>/seqs<1 to 64>/"
                        "steps<n>/seed<n>",
                        id);
    if (kvl_allocator_find(name, &w.allocator) != KVL_OK)
        return kvl_fail_prefix(KVL_ERR_INPUT, "case id");
    /* The pool is tight: a third of it for the longest sequence. */
    w.config.max_seq_tokens = w.config.pool_tokens / 3;
    w.rng = kvl_rng_make(w.seed, 5);
    kvl_status status = run_walk(&w);
    if (status == KVL_ERR_OOM || status == KVL_ERR_UNSUPPORTED)
        kvl_verify_skipped(result, kvl_message());
    else if (status != KVL_OK)
        kvl_verify_failed(result, "%s", kvl_message());
    kvl_mem_free(w.state, w.state_bytes);
    free(w.owner);
    return KVL_OK;
}

const kvl_verify_family kvl_verify_family_allocator = {"alloc/", list, run};
