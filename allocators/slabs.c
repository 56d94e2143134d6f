#include "allocators/slabs.h"

#include <stdio.h>

/* ---- layout --------------------------------------------------------------------------------- */

typedef struct layout {
    int64_t usable;
    uint64_t seqs, orders, space, bytes; /* offsets; total */
} layout;

/* While a sequence moves, it has two slabs. */
static int64_t max_blocks(const kvl_allocator_config *config) {
    return (int64_t)config->max_seqs + 1;
}

static kvl_status lay_out(const kvl_slab_rules *rules, const kvl_allocator_config *config,
                          layout *l) {
    KVL_TRY(kvl_allocator_check_config(config));
    if (config->reserve > KVL_RESERVE_ORACLE || config->fit > KVL_FIT_FIRST)
        return kvl_fail(KVL_ERR_INPUT, "reserve policy %d, fit %d: unknown", (int)config->reserve,
                        (int)config->fit);
    l->usable = rules->usable(config);
    if (l->usable < 1)
        return kvl_fail(KVL_ERR_INPUT, "pool_tokens %lld: less than one slab of %lld tokens",
                        (long long)config->pool_tokens, (long long)config->max_seq_tokens);
    uint64_t n_seqs = (uint64_t)config->max_seqs, space_bytes, space;
    l->bytes = sizeof(kvl_slabs);
    if (!kvl_place(&l->bytes, n_seqs, sizeof(kvl_slab_seq), &l->seqs) ||
        !kvl_place(&l->bytes, n_seqs, sizeof(kvl_order), &l->orders) ||
        !rules->space->bytes(l->usable, max_blocks(config), &space_bytes) ||
        !kvl_place(&l->bytes, 1, space_bytes, &space) || l->bytes > INT64_MAX)
        return kvl_fail(KVL_ERR_INPUT, "max_seqs %d: records of slabs overflow", config->max_seqs);
    l->space = space;
    return KVL_OK;
}

kvl_status kvl_slabs_state_bytes(const kvl_slab_rules *rules, const kvl_allocator_config *config,
                                 uint64_t *bytes) {
    layout l = {0};
    KVL_TRY(lay_out(rules, config, &l));
    *bytes = l.bytes;
    return KVL_OK;
}

static int64_t padding_of(const kvl_slabs *s) {
    return s->config.unlimited ? 0 : s->config.pool_tokens - s->usable;
}

static void peaks(kvl_slabs *s) {
    kvl_allocator_peaks(s->live, s->used + padding_of(s), &s->counters.live_peak,
                        &s->counters.used_peak);
}

kvl_status kvl_slabs_init(const kvl_slab_rules *rules, void *state,
                          const kvl_allocator_config *config) {
    layout l = {0};
    KVL_TRY(lay_out(rules, config, &l));
    uint8_t *base = state;
    kvl_slabs *s = state;
    *s = (kvl_slabs){.config = *config,
                     .rules = rules,
                     .usable = l.usable,
                     .first_free = KVL_SLAB_END,
                     .state_bytes = (int64_t)l.bytes,
                     .seqs = (kvl_slab_seq *)(base + l.seqs),
                     .orders = (kvl_order *)(base + l.orders),
                     .space = base + l.space};
    rules->space->init(s->space, l.usable, max_blocks(config), config->fit);
    peaks(s);
    return KVL_OK;
}

/* ---- books ---------------------------------------------------------------------------------- */

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t reserved_of(const kvl_slab_seq *q) {
    int64_t needed = min64(q->need, q->n_slots);
    return needed > q->length ? needed - q->length : 0;
}

/* Adds (sign 1) or takes back (sign -1) what a sequence contributes to the ledger. */
static void account(kvl_slabs *s, const kvl_slab_seq *q, int64_t sign) {
    int64_t reserved = reserved_of(q);
    s->used += sign * q->n_slots;
    s->live += sign * q->length;
    s->reserved += sign * reserved;
    s->internal += sign * (q->n_slots - q->length - reserved);
}

static void set_length(kvl_slabs *s, kvl_slab_seq *q, int64_t length) {
    account(s, q, -1);
    q->length = length;
    account(s, q, 1);
    peaks(s);
}

static kvl_slab_seq *find(const void *state, kvl_seq seq) {
    const kvl_slabs *s = state;
    bool alive = seq >= 0 && seq < s->n_touched && s->seqs[seq].next_free == KVL_SLAB_ALIVE;
    return alive ? &s->seqs[seq] : NULL;
}

static kvl_status dead(kvl_seq seq) {
    return kvl_fail(KVL_ERR_INPUT, "sequence %d is not alive", seq);
}

/* Cuts a slab of `n` slots (0: none). */
static kvl_status take_slab(kvl_slabs *s, int64_t n, int64_t *slot, int32_t *block) {
    *slot = 0;
    *block = 0;
    if (n == 0) return KVL_OK;
    if (s->rules->space->largest(s->space) < n)
        return kvl_fail(KVL_ERR_OOM,
                        "needs a slab of %lld tokens, pool has %lld free of %lld, longest that "
                        "fits is %lld tokens",
                        (long long)n, (long long)(s->usable - s->used), (long long)s->usable,
                        (long long)s->rules->space->largest(s->space));
    KVL_TRY(kvl_allocator_deny(&s->config));
    if (!s->rules->space->take(s->space, n, slot, block))
        return kvl_fail(KVL_ERR_INTERNAL, "%s: no hole for %lld slots", s->rules->name,
                        (long long)n);
    return KVL_OK;
}

/* ---- sequences ------------------------------------------------------------------------------ */

kvl_status kvl_slabs_reserve(void *state, int64_t n_prompt, int64_t max_new, kvl_seq *seq) {
    kvl_slabs *s = state;
    int64_t need, slot;
    int32_t block;
    KVL_TRY(kvl_allocator_need(&s->config, n_prompt, max_new, &need));
    int64_t ever = s->rules->ever(&s->config, n_prompt, max_new);
    if (ever > s->usable)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: needs %lld slots for %lld tokens, pool has %lld of %lld usable",
                        s->rules->name, (long long)ever, (long long)need, (long long)s->usable,
                        (long long)s->config.pool_tokens);
    if (s->n_alive == s->config.max_seqs)
        return kvl_fail(KVL_ERR_OOM, "all %d sequences are alive (max_seqs)", s->config.max_seqs);
    int64_t n = s->rules->at_admission(&s->config, n_prompt, max_new);
    if (n) n = s->rules->space->rounded(n);
    KVL_TRY(take_slab(s, n, &slot, &block));
    *seq = s->first_free;
    if (*seq != KVL_SLAB_END)
        s->first_free = s->seqs[*seq].next_free;
    else
        *seq = s->n_touched++;
    s->n_alive++;
    s->seqs[*seq] = (kvl_slab_seq){
        .next_free = KVL_SLAB_ALIVE, .block = block, .need = need, .slot = slot, .n_slots = n};
    account(s, &s->seqs[*seq], 1);
    peaks(s);
    return KVL_OK;
}

/* Moves a sequence to a slab of `n` slots. The old one is given back at once: orders run one after
 * another, so its tokens are copied before anybody writes there. */
static kvl_status move(kvl_slabs *s, kvl_slab_seq *q, int64_t n) {
    int64_t slot, old = q->slot, old_slots = q->n_slots;
    int32_t block, old_block = q->block;
    if (q->length && s->n_orders == s->config.max_seqs)
        return kvl_fail(KVL_ERR_INTERNAL, "%d orders wait to be taken before the next append",
                        s->n_orders);
    KVL_TRY(take_slab(s, n, &slot, &block));
    s->used += old_slots; /* both exist while the copy runs */
    account(s, q, -1);
    q->slot = slot;
    q->n_slots = n;
    q->block = block;
    account(s, q, 1);
    peaks(s);
    s->used -= old_slots;
    if (old_slots) s->rules->space->give(s->space, old, old_slots, old_block);
    if (q->length == 0) return KVL_OK;
    s->orders[s->n_orders++] = (kvl_order){KVL_ORDER_COPY_SLOTS, old, slot, q->length};
    s->counters.copied_slots += q->length;
    return KVL_OK;
}

kvl_status kvl_slabs_append(void *state, kvl_seq seq, int64_t n_tokens) {
    kvl_slabs *s = state;
    kvl_slab_seq *q = find(s, seq);
    if (!q) return dead(seq);
    KVL_TRY(kvl_allocator_check_append(&s->config, q->length, n_tokens));
    int64_t length = q->length + n_tokens;
    if (length > q->n_slots) {
        if (!s->rules->grows)
            return kvl_fail(
                KVL_ERR_INPUT,
                "append of %lld tokens to %lld: the slab of sequence %d has %lld slots, "
                "set aside at admission (reserve policy %s)",
                (long long)n_tokens, (long long)q->length, seq, (long long)q->n_slots,
                kvl_reserve_policy_name(s->config.reserve));
        if (length > s->usable)
            return kvl_fail(KVL_ERR_INPUT, "append of %lld tokens to %lld: pool has %lld slots",
                            (long long)n_tokens, (long long)q->length, (long long)s->usable);
        KVL_TRY(move(s, q, s->rules->space->rounded(length)));
    }
    set_length(s, q, length);
    return KVL_OK;
}

kvl_status kvl_slabs_fork(void *state, kvl_seq seq, kvl_seq *child) {
    const kvl_slabs *s = state;
    if (!find(state, seq)) return dead(seq);
    return kvl_fail(KVL_ERR_UNSUPPORTED,
                    "allocator %s: a slab belongs to one sequence, forks need 'paged'",
                    s->rules->name);
}

kvl_status kvl_slabs_truncate(void *state, kvl_seq seq, int64_t n_tokens) {
    kvl_slabs *s = state;
    kvl_slab_seq *q = find(s, seq);
    if (!q) return dead(seq);
    if (n_tokens < 0 || n_tokens > q->length)
        return kvl_fail(KVL_ERR_INPUT, "truncate to %lld tokens: sequence %d has %lld",
                        (long long)n_tokens, seq, (long long)q->length);
    set_length(s, q, n_tokens);
    return KVL_OK;
}

kvl_status kvl_slabs_release(void *state, kvl_seq seq) {
    kvl_slabs *s = state;
    kvl_slab_seq *q = find(s, seq);
    if (!q) return dead(seq);
    account(s, q, -1);
    if (q->n_slots) s->rules->space->give(s->space, q->slot, q->n_slots, q->block);
    *q = (kvl_slab_seq){.next_free = s->first_free};
    s->first_free = seq;
    s->n_alive--;
    return KVL_OK;
}

/* ---- questions ------------------------------------------------------------------------------ */

int64_t kvl_slabs_length(const void *state, kvl_seq seq) {
    const kvl_slab_seq *q = find(state, seq);
    return q ? q->length : -1;
}

const int32_t *kvl_slabs_pages(const void *state, kvl_seq seq, int64_t *slab_slot) {
    const kvl_slab_seq *q = find(state, seq);
    *slab_slot = q ? q->slot : -1;
    return NULL;
}

void kvl_slabs_placement(const void *state, kvl_placement *out) {
    const kvl_slabs *s = state;
    *out = (kvl_placement){.page_tokens = s->config.max_seq_tokens,
                           .address_slots = s->config.pool_tokens,
                           .slabs_vary = true};
}

int32_t kvl_slabs_take_orders(void *state, kvl_order *orders, int32_t capacity) {
    kvl_slabs *s = state;
    return kvl_allocator_take_orders(s->orders, &s->n_orders, orders, capacity);
}

/* Longest request, all of it prompt, whose slab fits now. */
static int64_t admissible(const kvl_slabs *s) {
    if (s->n_alive == s->config.max_seqs) return 0;
    int64_t longest = min64(s->rules->space->largest(s->space), s->config.max_seq_tokens);
    int64_t asked = s->rules->at_admission(&s->config, longest, 0);
    return s->rules->space->rounded(asked) <= s->rules->space->largest(s->space) ? longest : 0;
}

void kvl_slabs_stats(const void *state, int64_t largest_wanted, kvl_ledger *ledger) {
    const kvl_slabs *s = state;
    *ledger = s->counters;
    ledger->live = s->live;
    ledger->reserved = s->reserved;
    ledger->internal = s->internal;
    ledger->pool = s->used;
    ledger->metadata_bytes = s->state_bytes;
    ledger->largest_admissible = admissible(s);
    if (s->config.unlimited) return;
    ledger->pool = s->config.pool_tokens;
    ledger->padding = padding_of(s);
    ledger->free = s->usable - s->used;
    if (largest_wanted <= 0) return;
    int64_t slab = s->rules->at_admission(&s->config, largest_wanted, 0);
    ledger->external = largest_wanted > s->config.max_seq_tokens || s->n_alive == s->config.max_seqs
                           ? ledger->free
                           : s->rules->space->holes_below(s->space, slab);
}

typedef struct hole_walk {
    const kvl_slabs *slabs;
    kvl_slot_visit visit;
    void *user;
} hole_walk;

static void visit_hole(void *user, int64_t slot, int64_t n) {
    const hole_walk *w = user;
    if (w->slabs->config.unlimited && slot + n == w->slabs->usable) return;
    const kvl_slot_run run = {.slot = slot, .n_slots = n, .owner = -1};
    w->visit(w->user, &run);
}

void kvl_slabs_walk(const void *state, kvl_slot_visit visit, void *user) {
    const kvl_slabs *s = state;
    for (int32_t i = 0; i < s->n_touched; i++) {
        const kvl_slab_seq *q = &s->seqs[i];
        if (q->next_free != KVL_SLAB_ALIVE || q->n_slots == 0) continue;
        const kvl_slot_run run = {
            .slot = q->slot, .n_slots = q->n_slots, .n_live = q->length, .refs = 1, .owner = i};
        visit(user, &run);
    }
    hole_walk walk = {s, visit, user};
    s->rules->space->holes(s->space, visit_hole, &walk);
    const kvl_slot_run rest = {.slot = s->usable, .n_slots = padding_of(s), .owner = -1};
    if (rest.n_slots) visit(user, &rest);
}

static bool invalid(const kvl_slabs *s, char *why, size_t why_bytes, const char *what,
                    int64_t value, int64_t want) {
    snprintf(why, why_bytes, "%s: %s is %lld, not %lld", s->rules->name, what, (long long)value,
             (long long)want);
    return false;
}

bool kvl_slabs_is_valid(const void *state, char *why, size_t why_bytes) {
    const kvl_slabs *s = state;
    int64_t n_alive = 0, n_free = 0, used = 0, live = 0, reserved = 0;
    for (int32_t i = 0; i < s->n_touched; i++) {
        const kvl_slab_seq *q = &s->seqs[i];
        if (q->next_free != KVL_SLAB_ALIVE) continue;
        if (q->length < 0 || q->length > q->n_slots)
            return invalid(s, why, why_bytes, "length of a sequence", q->length, q->n_slots);
        if (q->n_slots && (q->slot < 0 || q->slot > s->usable - q->n_slots))
            return invalid(s, why, why_bytes, "start of a slab", q->slot, s->usable);
        n_alive++;
        used += q->n_slots;
        live += q->length;
        reserved += reserved_of(q);
    }
    for (int32_t i = s->first_free; i != KVL_SLAB_END; i = s->seqs[i].next_free) {
        if (i < 0 || i >= s->n_touched || ++n_free > s->n_touched)
            return invalid(s, why, why_bytes, "free handle", i, s->n_touched);
    }
    if (n_alive != s->n_alive) return invalid(s, why, why_bytes, "alive", s->n_alive, n_alive);
    if (n_free != s->n_touched - n_alive)
        return invalid(s, why, why_bytes, "free handles", n_free, s->n_touched - n_alive);
    if (used != s->used) return invalid(s, why, why_bytes, "used", s->used, used);
    if (live != s->live) return invalid(s, why, why_bytes, "live", s->live, live);
    if (reserved != s->reserved)
        return invalid(s, why, why_bytes, "reserved", s->reserved, reserved);
    if (used - live - reserved != s->internal)
        return invalid(s, why, why_bytes, "internal", s->internal, used - live - reserved);
    if (s->n_orders < 0 || s->n_orders > s->config.max_seqs)
        return invalid(s, why, why_bytes, "orders", s->n_orders, s->config.max_seqs);
    return s->rules->space->is_valid(s->space, s->usable - used, why, why_bytes);
}
