/* Contiguous: each sequence owns one slab of max_seq_tokens slots from admission to release.
 *
 * The pool is cut into floor(pool_tokens / max_seq_tokens) slabs; what is left over is padding.
 * Sequence handle and slab number are one and the same, so the only bookkeeping is a list of free
 * handles. Nothing ever moves, no table is read, and a short sequence wastes the rest of its slab:
 * this is the baseline that paging is measured against.
 */
#include <stdint.h>
#include <stdio.h>

#include "allocators/common.h"
#include "core/checked.h"

enum { DEAD = -1, END = -1 };

typedef struct sequence {
    int64_t length;    /* tokens held; DEAD when the slab is free */
    int64_t need;      /* declared: prompt + max_new */
    int32_t next_free; /* while dead: next free handle, or END */
} sequence;

/* Law: pool = live + reserved + internal + padding + (n_slabs - n_alive) * slab, where every live
 * sequence adds slab = length + max(need - length, 0) + (slab - max(need, length)). */
typedef struct contiguous {
    kvl_allocator_config config;
    int64_t n_slabs;   /* slabs in the pool */
    int32_t n_handles; /* min(n_slabs, max_seqs): slabs that can be in use at once */
    int32_t n_alive, first_free;
    int64_t live, reserved, internal, live_peak, used_peak, state_bytes;
    sequence seqs[]; /* [n_handles] */
} contiguous;

static int32_t handles_of(const kvl_allocator_config *config) {
    int64_t n_slabs = config->pool_tokens / config->max_seq_tokens;
    return n_slabs < config->max_seqs ? (int32_t)n_slabs : config->max_seqs;
}

static kvl_status state_bytes(const kvl_allocator_config *config, uint64_t *bytes) {
    KVL_TRY(kvl_allocator_check_config(config));
    if (config->pool_tokens < config->max_seq_tokens)
        return kvl_fail(KVL_ERR_INPUT, "pool_tokens %lld: less than one slab of %lld tokens",
                        (long long)config->pool_tokens, (long long)config->max_seq_tokens);
    /* At most 2^31 records of 24 bytes: no overflow. */
    *bytes = sizeof(contiguous) + (uint64_t)handles_of(config) * sizeof(sequence);
    return KVL_OK;
}

static kvl_status init(void *state, const kvl_allocator_config *config) {
    uint64_t bytes = 0;
    KVL_TRY(state_bytes(config, &bytes));
    contiguous *c = state;
    *c = (contiguous){.config = *config,
                      .n_slabs = config->pool_tokens / config->max_seq_tokens,
                      .n_handles = handles_of(config),
                      .state_bytes = (int64_t)bytes};
    for (int32_t i = 0; i < c->n_handles; i++)
        c->seqs[i] = (sequence){DEAD, 0, i + 1 < c->n_handles ? i + 1 : END};
    c->used_peak = config->pool_tokens - c->n_slabs * config->max_seq_tokens; /* padding */
    return KVL_OK;
}

/* Adds (sign 1) or takes back (sign -1) what a sequence contributes to the ledger. */
static void account(contiguous *c, const sequence *s, int64_t sign) {
    int64_t reserved = s->need > s->length ? s->need - s->length : 0;
    c->live += sign * s->length;
    c->reserved += sign * reserved;
    c->internal += sign * (c->config.max_seq_tokens - s->length - reserved);
}

static int64_t padding_of(const contiguous *c) {
    return c->config.pool_tokens - c->n_slabs * c->config.max_seq_tokens;
}

static int64_t free_of(const contiguous *c) {
    return (c->n_slabs - c->n_alive) * c->config.max_seq_tokens;
}

static void set_length(contiguous *c, sequence *s, int64_t length) {
    account(c, s, -1);
    s->length = length;
    account(c, s, 1);
    kvl_allocator_peaks(c->live, c->config.pool_tokens - free_of(c), &c->live_peak, &c->used_peak);
}

static sequence *find(const void *state, kvl_seq seq) {
    contiguous *c = (contiguous *)state;
    return seq >= 0 && seq < c->n_handles && c->seqs[seq].length != DEAD ? &c->seqs[seq] : NULL;
}

static kvl_status dead(kvl_seq seq) {
    return kvl_fail(KVL_ERR_INPUT, "sequence %d is not alive", seq);
}

static kvl_status reserve(void *state, int64_t n_prompt, int64_t max_new, kvl_seq *seq) {
    contiguous *c = state;
    int64_t need;
    KVL_TRY(kvl_allocator_need(&c->config, n_prompt, max_new, &need));
    if (c->first_free == END)
        return kvl_fail(KVL_ERR_OOM,
                        "needs 1 slab of %lld tokens, pool has 0 free of %d (pool_tokens %lld, "
                        "max_seqs %d)",
                        (long long)c->config.max_seq_tokens, c->n_handles,
                        (long long)c->config.pool_tokens, c->config.max_seqs);
    *seq = c->first_free;
    sequence *s = &c->seqs[*seq];
    c->first_free = s->next_free;
    c->n_alive++;
    *s = (sequence){0, need, END};
    account(c, s, 1);
    set_length(c, s, 0);
    return KVL_OK;
}

static kvl_status append(void *state, kvl_seq seq, int64_t n_tokens) {
    contiguous *c = state;
    sequence *s = find(c, seq);
    if (!s) return dead(seq);
    KVL_TRY(kvl_allocator_check_append(&c->config, s->length, n_tokens));
    set_length(c, s, s->length + n_tokens);
    return KVL_OK;
}

static kvl_status fork_sequence(void *state, kvl_seq seq, kvl_seq *child) {
    if (!find(state, seq)) return dead(seq);
    return kvl_fail(KVL_ERR_UNSUPPORTED,
                    "allocator contiguous: a slab belongs to one sequence, forks need 'paged'");
}

static kvl_status truncate(void *state, kvl_seq seq, int64_t n_tokens) {
    contiguous *c = state;
    sequence *s = find(c, seq);
    if (!s) return dead(seq);
    if (n_tokens < 0 || n_tokens > s->length)
        return kvl_fail(KVL_ERR_INPUT, "truncate to %lld tokens: sequence %d has %lld",
                        (long long)n_tokens, seq, (long long)s->length);
    set_length(c, s, n_tokens);
    return KVL_OK;
}

static kvl_status release(void *state, kvl_seq seq) {
    contiguous *c = state;
    sequence *s = find(c, seq);
    if (!s) return dead(seq);
    account(c, s, -1);
    *s = (sequence){DEAD, 0, c->first_free};
    c->first_free = seq;
    c->n_alive--;
    return KVL_OK;
}

static int64_t length(const void *state, kvl_seq seq) {
    const sequence *s = find(state, seq);
    return s ? s->length : -1;
}

static const int32_t *pages(const void *state, kvl_seq seq, int64_t *slab_slot) {
    const contiguous *c = state;
    *slab_slot = find(c, seq) ? seq * c->config.max_seq_tokens : -1;
    return NULL;
}

static void placement(const void *state, kvl_placement *out) {
    const contiguous *c = state;
    *out = (kvl_placement){.page_tokens = c->config.max_seq_tokens,
                           .address_slots = c->config.pool_tokens};
}

static void walk(const void *state, kvl_slot_visit visit, void *user) {
    const contiguous *c = state;
    int64_t slab = c->config.max_seq_tokens;
    for (int32_t i = 0; i < c->n_handles; i++) {
        bool alive = c->seqs[i].length != DEAD;
        const kvl_slot_run run = {.slot = i * slab,
                                  .n_slots = slab,
                                  .n_live = alive ? c->seqs[i].length : 0,
                                  .refs = alive,
                                  .owner = alive ? i : -1};
        visit(user, &run);
    }
    const kvl_slot_run rest = {.slot = c->n_handles * slab,
                               .n_slots = c->config.pool_tokens - c->n_handles * slab,
                               .owner = -1};
    if (rest.n_slots) visit(user, &rest);
}

static int32_t take_orders(void *state, kvl_order *orders, int32_t capacity) {
    return 0; /* slabs never move */
}

static void stats(const void *state, int64_t largest_wanted, kvl_ledger *ledger) {
    const contiguous *c = state;
    int64_t admissible = c->first_free == END ? 0 : c->config.max_seq_tokens;
    *ledger = (kvl_ledger){.pool = c->config.pool_tokens,
                           .live = c->live,
                           .reserved = c->reserved,
                           .internal = c->internal,
                           .padding = padding_of(c),
                           .free = free_of(c),
                           .external = largest_wanted > admissible ? free_of(c) : 0,
                           .largest_admissible = admissible,
                           .live_peak = c->live_peak,
                           .used_peak = c->used_peak,
                           .metadata_bytes = c->state_bytes};
}

static bool invalid(char *why, size_t why_bytes, const char *what, int64_t value, int64_t want) {
    snprintf(why, why_bytes, "contiguous: %s is %lld, not %lld", what, (long long)value,
             (long long)want);
    return false;
}

static bool is_valid(const void *state, char *why, size_t why_bytes) {
    const contiguous *c = state;
    int64_t slab = c->config.max_seq_tokens, live = 0, reserved = 0, n_alive = 0, n_free = 0;
    for (int32_t i = 0; i < c->n_handles; i++) {
        const sequence *s = &c->seqs[i];
        if (s->length == DEAD) continue;
        if (s->length < 0 || s->length > slab)
            return invalid(why, why_bytes, "a sequence's length", s->length, slab);
        if (s->need < 0 || s->need > slab)
            return invalid(why, why_bytes, "a sequence's need", s->need, slab);
        n_alive++;
        live += s->length;
        reserved += s->need > s->length ? s->need - s->length : 0;
    }
    /* A list that is no longer than the dead handles and visits only dead ones has no cycle. */
    for (int32_t i = c->first_free; i != END && n_free <= c->n_handles; i = c->seqs[i].next_free) {
        if (i < 0 || i >= c->n_handles || c->seqs[i].length != DEAD)
            return invalid(why, why_bytes, "an entry of the free list", i, END);
        n_free++;
    }
    if (n_alive != c->n_alive) return invalid(why, why_bytes, "n_alive", c->n_alive, n_alive);
    if (n_free != c->n_handles - n_alive)
        return invalid(why, why_bytes, "the free list's length", n_free, c->n_handles - n_alive);
    if (live != c->live) return invalid(why, why_bytes, "live", c->live, live);
    if (reserved != c->reserved) return invalid(why, why_bytes, "reserved", c->reserved, reserved);
    int64_t sum = c->live + c->reserved + c->internal + padding_of(c) + free_of(c);
    if (sum != c->config.pool_tokens)
        return invalid(why, why_bytes, "the ledger's sum", sum, c->config.pool_tokens);
    return true;
}

const kvl_allocator kvl_allocator_contiguous = {
    .name = "contiguous",
    .summary = "one slab of the longest length per sequence; no table, no sharing",
    .uses_pages = false,
    .state_bytes = state_bytes,
    .init = init,
    .reserve = reserve,
    .append = append,
    .fork = fork_sequence,
    .truncate = truncate,
    .release = release,
    .length = length,
    .pages = pages,
    .placement = placement,
    .take_orders = take_orders,
    .stats = stats,
    .walk = walk,
    .is_valid = is_valid,
};
