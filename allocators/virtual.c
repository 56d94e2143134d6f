/* Virtual: every handle has a slab of address space for the longest sequence; memory is mapped into
 * it as the sequence grows. Kernels see plain contiguous slabs, and waste is less than a physical
 * page a sequence, as in paging. Source of the scheme: Prabhu et al., "vAttention: Dynamic Memory
 * Management for Serving LLMs without PagedAttention", 2024.
 *
 * A physical page has map_bytes in each pool (K or V of one layer) and holds map_bytes / slot_bytes
 * slots, which need not be whole: k pages hold floor(k * map_bytes / slot_bytes). What the floors
 * lose is padding.
 *
 * Pages of a released sequence stay mapped (their release is deferred): the next request gets the
 * handle released last and finds them. They are spare, count as free, and are unmapped when others
 * need memory, those of the handle that became spare first to begin with.
 */
#include <stdio.h>

#include "allocators/common.h"

enum { NONE = -1 };

typedef struct sequence {
    bool alive;
    int32_t next_dead;  /* while dead: released before it */
    int32_t prev, next; /* while it has spare pages: neighbours in the list of those */
    int64_t length, need;
    int64_t n_promised;       /* pages of the prompt */
    int64_t n_held, n_mapped; /* pages that it owns; that are mapped: n_held <= n_mapped */
} sequence;

/* Law: n_pages = sum of n_held + free pages, sum of n_mapped <= n_pages; a handle stands in the
 * list of spares exactly when n_held < n_mapped. */
typedef struct virtual {
    kvl_allocator_config config;
    int64_t slot_bytes, map_bytes;
    int64_t n_pages, slab_slots,
        slab_pages;           /* physical pages; slots and pages of a slab's addresses */
    int64_t n_held, n_mapped; /* sums over handles */
    int64_t live, reserved, internal;
    int32_t n_alive, n_touched, last_dead;
    int32_t first_spare, last_spare, n_spare;
    int32_t n_orders, max_orders;
    int64_t state_bytes;
    kvl_ledger counters;
    sequence *seqs;    /* [max_seqs] */
    kvl_order *orders; /* [max_orders] */
}
virtual;

/* ---- layout --------------------------------------------------------------------------------- */

typedef struct layout {
    int64_t slot_bytes, map_bytes, n_pages, slab_slots;
    uint64_t seqs, orders, bytes; /* offsets; total */
} layout;

static int64_t max_orders(const kvl_allocator_config *config) {
    return 4 * (int64_t)config->max_seqs + 4;
}

static int64_t gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Slot and page sizes, and a slab that starts at a page whatever its number. */
static kvl_status measure(const kvl_allocator_config *config, layout *l) {
    bool by_bytes = config->slot_bytes || config->map_bytes;
    l->slot_bytes = by_bytes ? config->slot_bytes : 1;
    l->map_bytes = by_bytes ? config->map_bytes : config->page_tokens;
    if (l->slot_bytes < 1 || l->map_bytes < l->slot_bytes)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s %lld: a physical page holds at least one token of %lld bytes",
                        by_bytes ? "map_bytes" : "page_tokens", (long long)l->map_bytes,
                        (long long)l->slot_bytes);
    int64_t unit = l->map_bytes / gcd(l->map_bytes, l->slot_bytes), pool_bytes, slab_bytes;
    int64_t units = config->max_seq_tokens / unit + (config->max_seq_tokens % unit != 0);
    if (!kvl_mul_i64(config->pool_tokens, l->slot_bytes, &pool_bytes) ||
        !kvl_mul_i64(units, unit, &l->slab_slots) ||
        !kvl_mul_i64(l->slab_slots, l->slot_bytes, &slab_bytes) ||
        !kvl_mul_i64(slab_bytes, config->max_seqs, &slab_bytes))
        return kvl_fail(KVL_ERR_INPUT,
                        "pool_tokens %lld, max_seqs %d x max_seq_tokens %lld of %lld bytes: "
                        "addresses overflow 64 bits",
                        (long long)config->pool_tokens, config->max_seqs,
                        (long long)config->max_seq_tokens, (long long)l->slot_bytes);
    l->n_pages = pool_bytes / l->map_bytes;
    if (l->n_pages < 1)
        return kvl_fail(KVL_ERR_INPUT, "pool_tokens %lld: less than one page of %lld bytes",
                        (long long)config->pool_tokens, (long long)l->map_bytes);
    return KVL_OK;
}

static kvl_status lay_out(const kvl_allocator_config *config, layout *l) {
    KVL_TRY(kvl_allocator_check_config(config));
    KVL_TRY(measure(config, l));
    l->bytes = sizeof(virtual);
    if (max_orders(config) > INT32_MAX ||
        !kvl_place(&l->bytes, (uint64_t)config->max_seqs, sizeof(sequence), &l->seqs) ||
        !kvl_place(&l->bytes, (uint64_t)max_orders(config), sizeof(kvl_order), &l->orders) ||
        l->bytes > INT64_MAX)
        return kvl_fail(KVL_ERR_INPUT, "max_seqs %d: records of slabs overflow", config->max_seqs);
    return KVL_OK;
}

/* Each sequence rounded up to pages, and back to slots. */
static bool full_pool(const kvl_allocator_config *config, int64_t *pool_tokens) {
    bool by_bytes = config->slot_bytes || config->map_bytes;
    int64_t slot = by_bytes ? config->slot_bytes : 1, bytes;
    int64_t map = by_bytes ? config->map_bytes : config->page_tokens;
    if (slot < 1 || map < slot || !kvl_mul_i64(config->max_seq_tokens, slot, &bytes)) return false;
    int64_t pages = bytes / map + (bytes % map != 0);
    if (!kvl_mul_i64(pages, config->max_seqs, &pages) || !kvl_mul_i64(pages, map, &bytes))
        return false;
    *pool_tokens = bytes / slot + (bytes % slot != 0);
    return true;
}

static kvl_status state_bytes(const kvl_allocator_config *config, uint64_t *bytes) {
    layout l = {0};
    KVL_TRY(lay_out(config, &l));
    *bytes = l.bytes;
    return KVL_OK;
}

/* ---- books ---------------------------------------------------------------------------------- */

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Slots of `pages` pages: bytes fit 64 bits, as those of the pool and of all slabs do. */
static int64_t slots_of(const virtual *v, int64_t pages) {
    return pages * v->map_bytes / v->slot_bytes;
}

static int64_t pages_of(const virtual *v, int64_t tokens) {
    int64_t bytes = tokens * v->slot_bytes;
    return bytes / v->map_bytes + (bytes % v->map_bytes != 0);
}

static int64_t free_pages(const virtual *v) {
    return v->n_pages - v->n_held;
}

static int64_t reserved_of(const virtual *v, const sequence *s) {
    return max64(min64(s->need, slots_of(v, s->n_held)) - s->length, 0);
}

/* Adds (sign 1) or takes back (sign -1) what a sequence contributes to the ledger. */
static void account(virtual *v, const sequence *s, int64_t sign) {
    int64_t reserved = reserved_of(v, s);
    v->n_held += sign * s->n_held;
    v->live += sign * s->length;
    v->reserved += sign * reserved;
    v->internal += sign * (slots_of(v, s->n_held) - s->length - reserved);
}

static int64_t padding_of(const virtual *v) {
    if (v->config.unlimited) return 0;
    return v->config.pool_tokens - v->live - v->reserved - v->internal - slots_of(v, free_pages(v));
}

static void peaks(virtual *v) {
    int64_t used = v->live + v->reserved + v->internal + padding_of(v);
    kvl_allocator_peaks(v->live, used, &v->counters.live_peak, &v->counters.used_peak);
}

static kvl_status init(void *state, const kvl_allocator_config *config) {
    layout l = {0};
    KVL_TRY(lay_out(config, &l));
    uint8_t *base = state;
    virtual *v = state;
    *v = (virtual){.config = *config,
                   .slot_bytes = l.slot_bytes,
                   .map_bytes = l.map_bytes,
                   .n_pages = l.n_pages,
                   .slab_slots = l.slab_slots,
                   .slab_pages = l.slab_slots * l.slot_bytes / l.map_bytes,
                   .last_dead = NONE,
                   .first_spare = NONE,
                   .last_spare = NONE,
                   .max_orders = (int32_t)max_orders(config),
                   .state_bytes = (int64_t)l.bytes,
                   .seqs = (sequence *)(base + l.seqs),
                   .orders = (kvl_order *)(base + l.orders)};
    peaks(v);
    return KVL_OK;
}

/* ---- physical pages ------------------------------------------------------------------------- */

static void add_order(virtual *v, kvl_order_kind kind, int32_t seq, int64_t page, int64_t n) {
    int64_t slab_bytes = v->slab_slots * v->slot_bytes;
    v->orders[v->n_orders++] =
        (kvl_order){kind, seq * slab_bytes + page * v->map_bytes, 0, n * v->map_bytes};
    *(kind == KVL_ORDER_MAP ? &v->counters.mapped_pages : &v->counters.unmapped_pages) += n;
    v->n_mapped += kind == KVL_ORDER_MAP ? n : -n;
}

static void unlist_spare(virtual *v, int32_t seq) {
    const sequence *s = &v->seqs[seq];
    *(s->prev != NONE ? &v->seqs[s->prev].next : &v->first_spare) = s->next;
    *(s->next != NONE ? &v->seqs[s->next].prev : &v->last_spare) = s->prev;
    v->n_spare--;
}

static void list_spare(virtual *v, int32_t seq) {
    sequence *s = &v->seqs[seq];
    s->prev = v->last_spare;
    s->next = NONE;
    *(s->prev != NONE ? &v->seqs[s->prev].next : &v->first_spare) = seq;
    v->last_spare = seq;
    v->n_spare++;
}

/* Changes how many pages a handle owns and has mapped, and with it its place in the list. */
static void set_pages(virtual *v, int32_t seq, int64_t n_held, int64_t n_mapped) {
    sequence *s = &v->seqs[seq];
    bool was_spare = s->n_held < s->n_mapped;
    s->n_held = n_held;
    s->n_mapped = n_mapped;
    if (was_spare && n_held == n_mapped) unlist_spare(v, seq);
    if (!was_spare && n_held < n_mapped) list_spare(v, seq);
}

/* Unmaps spare pages of other handles until `n` physical pages are mapped nowhere. */
static void steal(virtual *v, int64_t n) {
    while (v->n_pages - v->n_mapped < n) {
        int32_t seq = v->first_spare;
        sequence *s = &v->seqs[seq];
        int64_t missing = n - (v->n_pages - v->n_mapped);
        int64_t some = min64(missing, s->n_mapped - s->n_held);
        add_order(v, KVL_ORDER_UNMAP, seq, s->n_mapped - some, some);
        set_pages(v, seq, s->n_held, s->n_mapped - some);
    }
}

/* Checks that `seq` (or a new handle with n_mapped pages) can own `pages` pages. */
static kvl_status check_pages(const virtual *v, int64_t held, int64_t pages) {
    int64_t more = pages - held;
    if (more <= 0) return KVL_OK;
    if (more > free_pages(v))
        return kvl_fail(KVL_ERR_OOM,
                        "needs %lld pages of %lld bytes, pool has %lld free of %lld, longest that "
                        "fits is %lld tokens",
                        (long long)more, (long long)v->map_bytes, (long long)free_pages(v),
                        (long long)v->n_pages, (long long)slots_of(v, held + free_pages(v)));
    if (v->n_spare + 2 > v->max_orders - v->n_orders)
        return kvl_fail(KVL_ERR_INTERNAL, "%d orders wait to be taken before the next append",
                        v->n_orders);
    return kvl_allocator_deny(&v->config);
}

/* The handle owns `pages` pages from now on (checked): maps what is missing. */
static void own_pages(virtual *v, int32_t seq, int64_t pages) {
    sequence *s = &v->seqs[seq];
    int64_t mapped = s->n_mapped;
    set_pages(v, seq, min64(pages, mapped), mapped); /* its own spare pages are not up for others */
    if (pages <= mapped) return;
    steal(v, pages - mapped);
    add_order(v, KVL_ORDER_MAP, seq, mapped, pages - mapped);
    set_pages(v, seq, pages, pages);
}

/* ---- sequences ------------------------------------------------------------------------------ */

static sequence *find(const void *state, kvl_seq seq) {
    const virtual *v = state;
    return seq >= 0 && seq < v->n_touched && v->seqs[seq].alive ? &v->seqs[seq] : NULL;
}

static kvl_status dead(kvl_seq seq) {
    return kvl_fail(KVL_ERR_INPUT, "sequence %d is not alive", seq);
}

static kvl_status check_ever(const virtual *v, int64_t tokens) {
    if (pages_of(v, tokens) > v->n_pages)
        return kvl_fail(KVL_ERR_INPUT,
                        "needs %lld pages of %lld bytes, pool has %lld, longest that fits is %lld "
                        "tokens",
                        (long long)pages_of(v, tokens), (long long)v->map_bytes,
                        (long long)v->n_pages, (long long)slots_of(v, v->n_pages));
    return KVL_OK;
}

static kvl_status reserve(void *state, int64_t n_prompt, int64_t max_new, kvl_seq *seq) {
    virtual *v = state;
    int64_t need;
    KVL_TRY(kvl_allocator_need(&v->config, n_prompt, max_new, &need));
    KVL_TRY(check_ever(v, need));
    if (v->n_alive == v->config.max_seqs)
        return kvl_fail(KVL_ERR_OOM, "all %d sequences are alive (max_seqs)", v->config.max_seqs);
    int64_t pages = pages_of(v, n_prompt);
    KVL_TRY(check_pages(v, 0, pages));
    *seq = v->last_dead;
    if (*seq == NONE) {
        *seq = v->n_touched++;
        v->seqs[*seq] = (sequence){.prev = NONE, .next = NONE};
    } else {
        v->last_dead = v->seqs[*seq].next_dead;
    }
    sequence *s = &v->seqs[*seq];
    s->alive = true;
    s->length = 0;
    s->need = need;
    s->n_promised = pages;
    v->n_alive++;
    own_pages(v, *seq, pages);
    account(v, s, 1);
    peaks(v);
    return KVL_OK;
}

static kvl_status append(void *state, kvl_seq seq, int64_t n_tokens) {
    virtual *v = state;
    sequence *s = find(v, seq);
    if (!s) return dead(seq);
    KVL_TRY(kvl_allocator_check_append(&v->config, s->length, n_tokens));
    int64_t length = s->length + n_tokens, pages = max64(pages_of(v, length), s->n_held);
    KVL_TRY(check_ever(v, length));
    KVL_TRY(check_pages(v, s->n_held, pages));
    account(v, s, -1);
    if (pages > s->n_held) own_pages(v, seq, pages);
    s->length = length;
    account(v, s, 1);
    peaks(v);
    return KVL_OK;
}

static kvl_status fork_sequence(void *state, kvl_seq seq, kvl_seq *child) {
    if (!find(state, seq)) return dead(seq);
    return kvl_fail(KVL_ERR_UNSUPPORTED,
                    "allocator virtual: a slab belongs to one sequence, forks need 'paged'");
}

static kvl_status truncate(void *state, kvl_seq seq, int64_t n_tokens) {
    virtual *v = state;
    sequence *s = find(v, seq);
    if (!s) return dead(seq);
    if (n_tokens < 0 || n_tokens > s->length)
        return kvl_fail(KVL_ERR_INPUT, "truncate to %lld tokens: sequence %d has %lld",
                        (long long)n_tokens, seq, (long long)s->length);
    account(v, s, -1);
    s->length = n_tokens;
    set_pages(v, seq, min64(s->n_held, max64(pages_of(v, n_tokens), s->n_promised)), s->n_mapped);
    account(v, s, 1);
    return KVL_OK;
}

static kvl_status release(void *state, kvl_seq seq) {
    virtual *v = state;
    sequence *s = find(v, seq);
    if (!s) return dead(seq);
    account(v, s, -1);
    s->alive = false;
    s->length = s->need = 0;
    s->next_dead = v->last_dead;
    v->last_dead = seq;
    v->n_alive--;
    set_pages(v, seq, 0, s->n_mapped);
    return KVL_OK;
}

/* ---- questions ------------------------------------------------------------------------------ */

static int64_t length(const void *state, kvl_seq seq) {
    const sequence *s = find(state, seq);
    return s ? s->length : -1;
}

static const int32_t *pages(const void *state, kvl_seq seq, int64_t *slab_slot) {
    const virtual *v = state;
    *slab_slot = find(state, seq) ? seq * v->slab_slots : -1;
    return NULL;
}

static void placement(const void *state, kvl_placement *out) {
    const virtual *v = state;
    *out = (kvl_placement){.page_tokens = v->slab_slots,
                           .address_slots = v->slab_slots * v->config.max_seqs,
                           .slabs_vary = true,
                           .mapped = true};
}

static int32_t take_orders(void *state, kvl_order *orders, int32_t capacity) {
    virtual *v = state;
    return kvl_allocator_take_orders(v->orders, &v->n_orders, orders, capacity);
}

static void stats(const void *state, int64_t largest_wanted, kvl_ledger *ledger) {
    const virtual *v = state;
    bool full = v->n_alive == v->config.max_seqs;
    *ledger = v->counters;
    ledger->live = v->live;
    ledger->reserved = v->reserved;
    ledger->internal = v->internal;
    ledger->padding = padding_of(v);
    ledger->free = v->config.unlimited ? 0 : slots_of(v, free_pages(v));
    ledger->pool = v->live + v->reserved + v->internal + ledger->padding + ledger->free;
    ledger->largest_admissible =
        full ? 0 : min64(slots_of(v, free_pages(v)), v->config.max_seq_tokens);
    ledger->external = largest_wanted > ledger->largest_admissible ? ledger->free : 0;
    ledger->metadata_bytes = v->state_bytes;
}

static void walk(const void *state, kvl_slot_visit visit, void *user) {
    const virtual *v = state;
    for (int32_t i = 0; i < v->n_touched; i++) {
        const sequence *s = &v->seqs[i];
        int64_t held = slots_of(v, s->n_held), mapped = slots_of(v, s->n_mapped);
        kvl_slot_run run = {
            .slot = i * v->slab_slots, .n_slots = held, .n_live = s->length, .refs = 1, .owner = i};
        if (held) visit(user, &run);
        run =
            (kvl_slot_run){.slot = i * v->slab_slots + held, .n_slots = mapped - held, .owner = -1};
        if (run.n_slots) visit(user, &run);
    }
}

static bool invalid(char *why, size_t why_bytes, const char *what, int64_t at, int64_t value,
                    int64_t want) {
    snprintf(why, why_bytes, "virtual: %s (%lld) is %lld, not %lld", what, (long long)at,
             (long long)value, (long long)want);
    return false;
}

static bool lists_valid(const virtual *v, int64_t n_spare, char *why, size_t why_bytes) {
    int32_t n = 0, prev = NONE, n_dead = v->n_touched - v->n_alive;
    for (int32_t i = v->first_spare; i != NONE; prev = i, i = v->seqs[i].next, n++) {
        if (i < 0 || i >= v->n_touched || n >= n_spare || v->seqs[i].prev != prev ||
            v->seqs[i].n_held >= v->seqs[i].n_mapped)
            return invalid(why, why_bytes, "entry of the spare list", n, i, prev);
    }
    if (n != n_spare || n != v->n_spare || v->last_spare != prev)
        return invalid(why, why_bytes, "spare handles", v->n_spare, n, n_spare);
    n = 0;
    for (int32_t i = v->last_dead; i != NONE; i = v->seqs[i].next_dead, n++) {
        if (i < 0 || i >= v->n_touched || n >= n_dead || v->seqs[i].alive)
            return invalid(why, why_bytes, "free handle", n, i, NONE);
    }
    return n == n_dead || invalid(why, why_bytes, "free handles", 0, n, n_dead);
}

static bool is_valid(const void *state, char *why, size_t why_bytes) {
    const virtual *v = state;
    int64_t held = 0, mapped = 0, live = 0, reserved = 0, slots = 0, n_spare = 0;
    for (int32_t i = 0; i < v->n_touched; i++) {
        const sequence *s = &v->seqs[i];
        if (s->n_held < 0 || s->n_held > s->n_mapped || s->n_mapped > v->slab_pages)
            return invalid(why, why_bytes, "pages of sequence", i, s->n_held, s->n_mapped);
        if (s->length < 0 || s->length > slots_of(v, s->n_held) || (!s->alive && s->n_held))
            return invalid(why, why_bytes, "length of sequence", i, s->length, s->n_held);
        held += s->n_held;
        mapped += s->n_mapped;
        live += s->length;
        slots += slots_of(v, s->n_held);
        if (s->alive) reserved += reserved_of(v, s);
        n_spare += s->n_held < s->n_mapped;
    }
    if (held != v->n_held) return invalid(why, why_bytes, "held pages", 0, v->n_held, held);
    if (mapped != v->n_mapped || mapped > v->n_pages)
        return invalid(why, why_bytes, "mapped pages", v->n_pages, v->n_mapped, mapped);
    if (live != v->live) return invalid(why, why_bytes, "live", 0, v->live, live);
    if (reserved != v->reserved)
        return invalid(why, why_bytes, "reserved", 0, v->reserved, reserved);
    if (slots - live - reserved != v->internal)
        return invalid(why, why_bytes, "internal", 0, v->internal, slots - live - reserved);
    /* The floors lose less than a slot each: of every sequence, of the free pages, of the pool. */
    if (!v->config.unlimited &&
        (padding_of(v) < 0 || padding_of(v) > v->n_alive + 2 + v->map_bytes / v->slot_bytes))
        return invalid(why, why_bytes, "padding", v->n_alive, padding_of(v), 0);
    if (v->n_orders < 0 || v->n_orders > v->max_orders)
        return invalid(why, why_bytes, "orders", 0, v->n_orders, v->max_orders);
    return lists_valid(v, n_spare, why, why_bytes);
}

const kvl_allocator kvl_allocator_virtual = {
    .name = "virtual",
    .summary = "slabs of address space, memory mapped as sequences grow, as vAttention",
    .maps_memory = true,
    .full_pool = full_pool,
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
