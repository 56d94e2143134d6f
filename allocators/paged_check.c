/* What `paged` tells of itself: its ledger, a map of the pool, and whether its books are right. */
#include <stdio.h>

#include "allocators/paged_internal.h"

/* ---- ledger and map ------------------------------------------------------------------------- */

void kvl_paged_stats(const void *state, int64_t largest_wanted, kvl_ledger *ledger) {
    const kvl_paged *p = state;
    int64_t slots = p->config.page_tokens, held = p->n_held * slots, cached = p->n_cached * slots;
    int64_t admissible =
        p->n_alive == p->config.max_seqs ? 0 : kvl_paged_longest(p, kvl_paged_available(p));
    *ledger = p->counters;
    ledger->live = p->live;
    ledger->reserved = p->reserved;
    ledger->internal = p->internal;
    ledger->cached = cached;
    ledger->shared_saved = p->tokens - p->live;
    ledger->largest_admissible = admissible;
    ledger->metadata_bytes = p->state_bytes;
    ledger->pool = held + cached;
    if (p->config.unlimited) {
        ledger->metadata_bytes -= (p->n_pages - p->n_touched) * p->page_bytes;
        return;
    }
    ledger->pool = p->config.pool_tokens;
    ledger->padding = p->config.pool_tokens - p->n_pages * slots;
    ledger->free = (p->n_pages - p->n_held - p->n_cached) * slots;
    ledger->external = largest_wanted > admissible ? ledger->free : 0;
}

void kvl_paged_walk(const void *state, kvl_slot_visit visit, void *user) {
    const kvl_paged *p = state;
    int64_t slots = p->config.page_tokens;
    memset(p->scratch, 0xff, (size_t)p->n_touched * sizeof *p->scratch); /* owners, -1 = none */
    for (int32_t i = p->n_touched_seqs - 1; i >= 0; i--) {
        const kvl_paged_seq *s = &p->seqs[i];
        for (int64_t k = s->first_page; k < s->n_pages; k++)
            p->scratch[kvl_paged_table(p, s)[k]] = i;
    }
    for (int64_t i = 0; i < p->n_touched; i++) {
        const kvl_page *g = &p->pages[i];
        const kvl_slot_run run = {.slot = i * slots,
                                  .n_slots = slots,
                                  .n_live = g->refs ? g->fill : 0,
                                  .refs = g->refs,
                                  .owner = p->scratch[i],
                                  .cached = !g->refs && p->keys && p->keys[i].indexed};
        visit(user, &run);
    }
    const kvl_slot_run rest = {.slot = p->n_touched * slots,
                               .n_slots = p->config.pool_tokens - p->n_touched * slots,
                               .owner = -1};
    if (rest.n_slots && !p->config.unlimited) visit(user, &rest);
}

/* ---- invariants ----------------------------------------------------------------------------- */

typedef struct report {
    char *why;
    size_t bytes;
} report;

static bool invalid(const report *r, const char *what, int64_t where, int64_t value, int64_t want) {
    snprintf(r->why, r->bytes, "paged: %s (%lld) is %lld, not %lld", what, (long long)where,
             (long long)value, (long long)want);
    return false;
}

static bool is_indexed(const kvl_paged *p, int64_t id) {
    return p->keys && p->keys[id].indexed;
}

/* The free lists visit free things only, and as many as there are: so they have no cycle. */
static bool free_lists_valid(const kvl_paged *p, const report *r) {
    int64_t n = 0, n_free = p->n_touched - p->n_held - p->n_cached;
    for (int32_t i = p->first_free; i != KVL_PAGE_NONE && n <= n_free; i = p->pages[i].next, n++) {
        if (i < 0 || i >= p->n_touched || p->pages[i].refs || p->pages[i].fill || is_indexed(p, i))
            return invalid(r, "entry of the free list", n, i, KVL_PAGE_NONE);
    }
    if (n != n_free) return invalid(r, "length of the free list", 0, n, n_free);
    int64_t n_free_seqs = p->n_touched_seqs - p->n_alive;
    n = 0;
    for (int32_t i = p->first_free_seq; i != KVL_SEQ_END && n <= n_free_seqs;
         i = p->seqs[i].next_free, n++) {
        if (i < 0 || i >= p->n_touched_seqs || p->seqs[i].next_free == KVL_SEQ_ALIVE)
            return invalid(r, "free handle", n, i, KVL_SEQ_END);
    }
    return n == n_free_seqs || invalid(r, "number of free handles", 0, n, n_free_seqs);
}

static bool lru_valid(const kvl_paged *p, const report *r) {
    int64_t n = 0;
    int32_t prev = KVL_PAGE_NONE;
    for (int32_t i = p->oldest; i != KVL_PAGE_NONE && n <= p->n_cached; i = p->pages[i].next, n++) {
        if (i < 0 || i >= p->n_touched || p->pages[i].refs || !is_indexed(p, i))
            return invalid(r, "entry of the LRU list", n, i, KVL_PAGE_NONE);
        if (p->keys[i].prev != prev)
            return invalid(r, "older neighbour of page", i, p->keys[i].prev, prev);
        prev = i;
    }
    if (n != p->n_cached) return invalid(r, "length of the LRU list", 0, n, p->n_cached);
    return prev == p->youngest || invalid(r, "youngest cached page", 0, p->youngest, prev);
}

/* Every indexed page stands in a bucket once, with a key, a content number and enough tokens. */
static bool index_valid(const kvl_paged *p, const report *r) {
    int64_t in_buckets = 0, indexed = 0;
    for (int64_t b = 0; b < p->n_buckets; b++) {
        for (int32_t i = p->buckets[b]; i != KVL_PAGE_NONE; i = p->keys[i].chain) {
            if (i < 0 || i >= p->n_touched || !p->keys[i].indexed || ++in_buckets > p->n_touched)
                return invalid(r, "entry of bucket", b, i, KVL_PAGE_NONE);
        }
    }
    for (int64_t i = 0; i < p->n_touched && p->keys; i++) {
        const kvl_page_key *k = &p->keys[i];
        if (!k->indexed) continue;
        indexed++;
        if (!k->content || k->content > p->last_content || k->key_fill < 1)
            return invalid(r, "content of indexed page", i, (int64_t)k->content, k->key_fill);
        if (p->pages[i].refs && p->pages[i].fill < k->key_fill)
            return invalid(r, "fill of indexed page", i, p->pages[i].fill, k->key_fill);
    }
    return in_buckets == indexed || invalid(r, "pages in buckets", 0, in_buckets, indexed);
}

/* One sequence's table; counts its references in scratch. */
static bool sequence_valid(const kvl_paged *p, const kvl_paged_seq *s, const report *r) {
    int64_t id = s - p->seqs;
    const int32_t *table = kvl_paged_table(p, s);
    if (s->n_pages < kvl_paged_pages_of(p, s->length) || s->n_pages > p->table_stride)
        return invalid(r, "pages of sequence", id, s->n_pages, kvl_paged_pages_of(p, s->length));
    if (s->length > p->config.max_seq_tokens || (s->next_free != KVL_SEQ_ALIVE && s->n_pages))
        return invalid(r, "length of sequence", id, s->length, 0);
    if (s->first_page < 0 || s->first_page * p->config.page_tokens > s->length)
        return invalid(r, "pages before the window of sequence", id, s->first_page, s->n_pages);
    for (int64_t i = 0; i < s->n_pages; i++) {
        if (i < s->first_page) {
            if (table[i] != KVL_PAGE_NONE)
                return invalid(r, "returned table entry", i, table[i], KVL_PAGE_NONE);
            continue;
        }
        if (table[i] < 0 || table[i] >= p->n_touched)
            return invalid(r, "table entry", i, table[i], p->n_touched);
        const kvl_page *g = &p->pages[table[i]];
        int32_t fill = kvl_paged_within(p, s->length, i), need = kvl_paged_within(p, s->need, i);
        p->scratch[table[i]]++;
        if (need > (int32_t)g->need || (!g->uneven && need != (int32_t)g->need))
            return invalid(r, "need of page", table[i], g->need, need);
        if (fill > g->fill || (!g->uneven && fill != g->fill))
            return invalid(r, "fill of page", table[i], g->fill, fill);
        if (fill == 0 && g->refs != 1)
            return invalid(r, "references of unwritten page", table[i], g->refs, 1);
    }
    return true;
}

/* Fill and need of an uneven page are those of some holder. */
static bool uneven_valid(const kvl_paged *p, const report *r) {
    memset(p->scratch, 0, (size_t)p->n_touched * sizeof *p->scratch);
    for (int32_t i = 0; i < p->n_touched_seqs; i++) {
        const kvl_paged_seq *s = &p->seqs[i];
        for (int64_t k = s->first_page; k < s->n_pages; k++) {
            int32_t id = kvl_paged_table(p, s)[k];
            if (kvl_paged_within(p, s->length, k) == p->pages[id].fill) p->scratch[id] |= 1;
            if (kvl_paged_within(p, s->need, k) == (int32_t)p->pages[id].need) p->scratch[id] |= 2;
        }
    }
    for (int64_t i = 0; i < p->n_touched; i++) {
        if (p->pages[i].refs && p->scratch[i] != 3)
            return invalid(r, "fill of uneven page", i, p->pages[i].fill, p->scratch[i]);
    }
    return true;
}

/* Counts that are kept up to date are those that the pages add up to. */
static bool sums_valid(const kvl_paged *p, const report *r) {
    int64_t slots = p->config.page_tokens, live = 0, reserved = 0, internal = 0, held = 0;
    for (int64_t i = 0; i < p->n_touched; i++) {
        const kvl_page *g = &p->pages[i];
        int64_t need = g->need;
        if (p->scratch[i] != g->refs) return invalid(r, "references", i, g->refs, p->scratch[i]);
        if (!g->refs) continue;
        held++;
        live += g->fill;
        reserved += kvl_max64(need - g->fill, 0);
        internal += slots - kvl_max64(g->fill, need);
    }
    if (held != p->n_held) return invalid(r, "held pages", 0, p->n_held, held);
    if (live != p->live) return invalid(r, "live", 0, p->live, live);
    if (reserved != p->reserved) return invalid(r, "reserved", 0, p->reserved, reserved);
    return internal == p->internal || invalid(r, "internal", 0, p->internal, internal);
}

bool kvl_paged_is_valid(const void *state, char *why, size_t why_bytes) {
    const kvl_paged *p = state;
    const report r = {why, why_bytes};
    int64_t tokens = 0;
    if (p->n_touched < 0 || p->n_touched > p->n_pages)
        return invalid(&r, "touched pages", 0, p->n_touched, p->n_pages);
    if (!free_lists_valid(p, &r) || !lru_valid(p, &r) || !index_valid(p, &r)) return false;
    memset(p->scratch, 0, (size_t)p->n_touched * sizeof *p->scratch);
    for (int32_t i = 0; i < p->n_touched_seqs; i++) {
        if (!sequence_valid(p, &p->seqs[i], &r)) return false;
        tokens += p->seqs[i].length - p->seqs[i].first_page * p->config.page_tokens;
    }
    if (tokens != p->tokens) return invalid(&r, "tokens", 0, p->tokens, tokens);
    if (p->n_orders < 0 || p->n_orders > p->max_orders)
        return invalid(&r, "orders", 0, p->n_orders, p->max_orders);
    return sums_valid(p, &r) && uneven_valid(p, &r);
}
