/* Paged: the pool is cut into pages of page_tokens slots; a sequence owns a table of pages.
 *
 * Admission takes the pages of the prompt, append() takes more as they are needed, so a sequence
 * wastes less than a page. A fork shares every page that holds a token and raises its count of
 * references. A shared page is never written: whoever appends into one that is partly filled takes
 * a new page and orders a copy of its own tokens (copy-on-write). With a window, pages that no
 * later query sees are returned. Source of the scheme: Kwon et al., "Efficient Memory Management
 * for Large Language Model Serving with PagedAttention", 2023.
 */
#include <stdint.h>

#include "allocators/paged_internal.h"
#include "core/checked.h"

enum { MAX_BUCKETS = 1 << 24 };

/* ---- layout --------------------------------------------------------------------------------- */

typedef struct layout {
    int64_t n_pages, table_stride, n_buckets;
    uint64_t pages, seqs, orders, tables, scratch, keys, page_ids, buckets, bytes; /* offsets */
} layout;

static kvl_status check_config(const kvl_allocator_config *config, int64_t *n_pages) {
    KVL_TRY(kvl_allocator_check_config(config));
    if (config->page_tokens < 1 || config->page_tokens > INT32_MAX)
        return kvl_fail(KVL_ERR_INPUT, "page_tokens %lld: at least 1, at most %d",
                        (long long)config->page_tokens, INT32_MAX);
    if (config->window_tokens < 0)
        return kvl_fail(KVL_ERR_INPUT, "window_tokens %lld: at least 1, or 0 for none",
                        (long long)config->window_tokens);
    *n_pages = config->pool_tokens / config->page_tokens;
    if (*n_pages < 1)
        return kvl_fail(KVL_ERR_INPUT, "pool_tokens %lld: less than one page of %lld tokens",
                        (long long)config->pool_tokens, (long long)config->page_tokens);
    if (*n_pages > INT32_MAX)
        return kvl_fail(KVL_ERR_INPUT, "pool_tokens %lld in pages of %lld: %lld pages, at most %d",
                        (long long)config->pool_tokens, (long long)config->page_tokens,
                        (long long)*n_pages, INT32_MAX);
    return KVL_OK;
}

/* The arrays of the prefix cache come last: without it they have no bytes. */
static bool place_prefix(const kvl_allocator_config *config, layout *l) {
    bool on = config->prefix != KVL_PREFIX_OFF, ids = config->prefix == KVL_PREFIX_TOKENS;
    uint64_t n_pages = on ? (uint64_t)l->n_pages : 0, n_ids;
    for (l->n_buckets = on; l->n_buckets < l->n_pages && l->n_buckets < MAX_BUCKETS && on;)
        l->n_buckets *= 2;
    return kvl_mul_u64(ids ? n_pages : 0, (uint64_t)config->page_tokens, &n_ids) &&
           kvl_place(&l->bytes, n_pages, sizeof(kvl_page_key), &l->keys) &&
           kvl_place(&l->bytes, n_ids, sizeof(int32_t), &l->page_ids) &&
           kvl_place(&l->bytes, (uint64_t)l->n_buckets, sizeof(int32_t), &l->buckets);
}

static kvl_status lay_out(const kvl_allocator_config *config, layout *l) {
    KVL_TRY(check_config(config, &l->n_pages));
    l->table_stride =
        kvl_min64(kvl_ceil_div(config->max_seq_tokens, config->page_tokens), l->n_pages);
    /* With a window a sequence may have been longer than the pool is. */
    if (config->window_tokens)
        l->table_stride = kvl_ceil_div(config->max_seq_tokens, config->page_tokens);
    uint64_t n_pages = (uint64_t)l->n_pages, n_seqs = (uint64_t)config->max_seqs, entries;
    l->bytes = sizeof(kvl_paged);
    if (!kvl_place(&l->bytes, n_pages, sizeof(kvl_page), &l->pages) ||
        !kvl_place(&l->bytes, n_seqs, sizeof(kvl_paged_seq), &l->seqs) ||
        !kvl_place(&l->bytes, 2 * n_seqs, sizeof(kvl_order), &l->orders) ||
        !kvl_mul_u64(n_seqs, (uint64_t)l->table_stride, &entries) ||
        !kvl_place(&l->bytes, entries, sizeof(int32_t), &l->tables) ||
        !kvl_place(&l->bytes, n_pages, sizeof(int32_t), &l->scratch) || !place_prefix(config, l) ||
        l->bytes > INT64_MAX)
        return kvl_fail(KVL_ERR_INPUT, "max_seqs %d x %lld pages: page tables overflow",
                        config->max_seqs, (long long)l->table_stride);
    return KVL_OK;
}

static bool full_pool(const kvl_allocator_config *config, int64_t *pool_tokens) {
    int64_t pages = kvl_ceil_div(config->max_seq_tokens, config->page_tokens);
    return kvl_mul_i64(pages, config->page_tokens, pool_tokens) &&
           kvl_mul_i64(*pool_tokens, config->max_seqs, pool_tokens);
}

static kvl_status state_bytes(const kvl_allocator_config *config, uint64_t *bytes) {
    layout l = {0};
    KVL_TRY(lay_out(config, &l));
    *bytes = l.bytes;
    return KVL_OK;
}

static kvl_status init(void *state, const kvl_allocator_config *config) {
    layout l = {0};
    KVL_TRY(lay_out(config, &l));
    bool on = config->prefix != KVL_PREFIX_OFF, ids = config->prefix == KVL_PREFIX_TOKENS;
    uint8_t *base = state;
    kvl_paged *p = state;
    *p = (kvl_paged){.config = *config,
                     .n_pages = l.n_pages,
                     .table_stride = l.table_stride,
                     .first_free = KVL_PAGE_NONE,
                     .oldest = KVL_PAGE_NONE,
                     .youngest = KVL_PAGE_NONE,
                     .first_free_seq = KVL_SEQ_END,
                     .state_bytes = (int64_t)l.bytes,
                     .page_bytes = (int64_t)(sizeof(kvl_page) + sizeof(int32_t)),
                     .max_orders = 2 * config->max_seqs,
                     .n_buckets = l.n_buckets,
                     .pages = (kvl_page *)(base + l.pages),
                     .seqs = (kvl_paged_seq *)(base + l.seqs),
                     .orders = (kvl_order *)(base + l.orders),
                     .tables = (int32_t *)(base + l.tables),
                     .scratch = (int32_t *)(base + l.scratch),
                     .keys = on ? (kvl_page_key *)(base + l.keys) : NULL,
                     .page_ids = ids ? (int32_t *)(base + l.page_ids) : NULL,
                     .buckets = (int32_t *)(base + l.buckets)};
    if (on) p->page_bytes += (int64_t)sizeof(kvl_page_key);
    if (ids) p->page_bytes += config->page_tokens * (int64_t)sizeof(int32_t);
    for (int64_t i = 0; i < l.n_buckets; i++) p->buckets[i] = KVL_PAGE_NONE;
    kvl_paged_peaks(p);
    return KVL_OK;
}

/* ---- pages and their books ------------------------------------------------------------------ */

/* Adds (sign 1) or takes back (sign -1) what a held page contributes to the ledger. */
void kvl_paged_account(kvl_paged *p, const kvl_page *g, int64_t sign) {
    int64_t need = g->need, reserved = need > g->fill ? need - g->fill : 0;
    p->live += sign * g->fill;
    p->reserved += sign * reserved;
    p->internal += sign * (p->config.page_tokens - g->fill - reserved);
}

void kvl_paged_set_fill(kvl_paged *p, kvl_page *g, int32_t fill) {
    kvl_paged_account(p, g, -1);
    g->fill = fill;
    kvl_paged_account(p, g, 1);
}

void kvl_paged_peaks(kvl_paged *p) {
    int64_t slots = p->config.page_tokens, held = p->n_held * slots;
    int64_t padding = p->config.unlimited ? 0 : p->config.pool_tokens - p->n_pages * slots;
    kvl_allocator_peaks(p->live, held + padding, &p->counters.live_peak, &p->counters.used_peak);
}

kvl_page *kvl_paged_take_page(kvl_paged *p, kvl_paged_seq *s, int64_t index) {
    int32_t id = p->first_free;
    if (id != KVL_PAGE_NONE)
        p->first_free = p->pages[id].next;
    else if (p->n_touched < p->n_pages)
        id = (int32_t)p->n_touched++;
    else
        id = kvl_paged_evict(p);
    kvl_page *g = &p->pages[id];
    *g = (kvl_page){
        .refs = 1, .next = KVL_PAGE_NONE, .need = (uint32_t)kvl_paged_within(p, s->need, index)};
    if (p->keys) kvl_paged_reset_key(p, id);
    p->n_held++;
    kvl_paged_account(p, g, 1);
    kvl_paged_table(p, s)[index] = id;
    return g;
}

/* Finds an uneven page's fill and need again after one of its holders changed. */
static void refill(kvl_paged *p, int32_t id, int64_t index) {
    kvl_page *g = &p->pages[id];
    int32_t fill = 0, least_fill = INT32_MAX, need = 0, least_need = INT32_MAX;
    for (int32_t i = 0; i < p->n_touched_seqs; i++) {
        const kvl_paged_seq *s = &p->seqs[i];
        if (s->next_free != KVL_SEQ_ALIVE || index < s->first_page || index >= s->n_pages ||
            kvl_paged_table(p, s)[index] != id)
            continue;
        int32_t filled = kvl_paged_within(p, s->length, index);
        int32_t needed = kvl_paged_within(p, s->need, index);
        if (filled > fill) fill = filled;
        if (filled < least_fill) least_fill = filled;
        if (needed > need) need = needed;
        if (needed < least_need) least_need = needed;
    }
    /* What nobody holds is not found either, though its slots were not written again yet. */
    if (p->keys && fill < p->keys[id].key_fill && p->keys[id].content) kvl_paged_forget(p, id);
    kvl_paged_account(p, g, -1);
    g->fill = fill;
    g->need = (uint32_t)need;
    g->uneven = fill != least_fill || need != least_need;
    kvl_paged_account(p, g, 1);
}

/* Takes the table entry at `index` from s; a page that nobody else holds is cached or free then. */
static void drop_page(kvl_paged *p, kvl_paged_seq *s, int64_t index) {
    int32_t *entry = &kvl_paged_table(p, s)[index], id = *entry;
    kvl_page *g = &p->pages[id];
    *entry = KVL_PAGE_NONE;
    if (--g->refs > 0) {
        if (g->uneven) refill(p, id, index);
        return;
    }
    kvl_paged_account(p, g, -1);
    p->n_held--;
    if (p->keys && kvl_paged_keep(p, id)) return;
    *g = (kvl_page){.next = p->first_free};
    p->first_free = id;
}

/* ---- sequences ------------------------------------------------------------------------------ */

kvl_paged_seq *kvl_paged_find(const void *state, kvl_seq seq) {
    const kvl_paged *p = state;
    bool alive = seq >= 0 && seq < p->n_touched_seqs && p->seqs[seq].next_free == KVL_SEQ_ALIVE;
    return alive ? &p->seqs[seq] : NULL;
}

kvl_status kvl_paged_dead(kvl_seq seq) {
    return kvl_fail(KVL_ERR_INPUT, "sequence %d is not alive", seq);
}

kvl_status kvl_paged_take_handle(kvl_paged *p, kvl_seq *seq) {
    if (p->n_alive == p->config.max_seqs)
        return kvl_fail(KVL_ERR_OOM, "all %d sequences are alive (max_seqs)", p->config.max_seqs);
    *seq = p->first_free_seq;
    if (*seq != KVL_SEQ_END)
        p->first_free_seq = p->seqs[*seq].next_free;
    else
        *seq = p->n_touched_seqs++;
    p->seqs[*seq] = (kvl_paged_seq){.next_free = KVL_SEQ_ALIVE};
    p->n_alive++;
    return KVL_OK;
}

long long kvl_paged_longest(const kvl_paged *p, int64_t n_pages) {
    return kvl_min64(n_pages * p->config.page_tokens, p->config.max_seq_tokens);
}

static kvl_status check_fits_pool(const kvl_paged *p, int64_t n_pages) {
    if (n_pages > p->n_pages)
        return kvl_fail(KVL_ERR_INPUT,
                        "needs %lld pages of %lld tokens, pool has %lld, longest that fits is %lld "
                        "tokens",
                        (long long)n_pages, (long long)p->config.page_tokens, (long long)p->n_pages,
                        kvl_paged_longest(p, p->n_pages));
    return KVL_OK;
}

kvl_status kvl_paged_check_need(const kvl_paged *p, int64_t n_prompt, int64_t need) {
    int64_t n_pages = kvl_paged_pages_of(p, need);
    /* A window's worth of tokens lies in one page more than it fills, at most. */
    if (p->config.window_tokens) {
        int64_t window = kvl_paged_pages_of(p, p->config.window_tokens) + 1;
        n_pages = kvl_min64(n_pages, kvl_max64(kvl_paged_pages_of(p, n_prompt), window));
    }
    return check_fits_pool(p, n_pages);
}

kvl_status kvl_paged_check_available(const kvl_paged *p, int64_t n_pages, int64_t available) {
    if (n_pages > available)
        return kvl_fail(KVL_ERR_OOM,
                        "needs %lld pages of %lld tokens, pool has %lld free of %lld, longest that "
                        "fits is %lld tokens",
                        (long long)n_pages, (long long)p->config.page_tokens, (long long)available,
                        (long long)p->n_pages, kvl_paged_longest(p, available));
    return n_pages ? kvl_allocator_deny(&p->config) : KVL_OK;
}

static kvl_status reserve(void *state, int64_t n_prompt, int64_t max_new, kvl_seq *seq) {
    kvl_paged *p = state;
    int64_t need;
    KVL_TRY(kvl_allocator_need(&p->config, n_prompt, max_new, &need));
    KVL_TRY(kvl_paged_check_need(p, n_prompt, need));
    int64_t n_pages = kvl_paged_pages_of(p, n_prompt);
    KVL_TRY(kvl_paged_check_available(p, n_pages, kvl_paged_available(p)));
    KVL_TRY(kvl_paged_take_handle(p, seq));
    kvl_paged_seq *s = &p->seqs[*seq];
    s->need = need;
    s->n_pages = s->promised_pages = n_pages;
    for (int64_t i = 0; i < n_pages; i++) kvl_paged_take_page(p, s, i);
    kvl_paged_peaks(p);
    return KVL_OK;
}

void kvl_paged_order_copy(kvl_paged *p, int32_t from, int32_t to, int64_t n_slots) {
    int64_t slots = p->config.page_tokens;
    p->orders[p->n_orders++] = (kvl_order){KVL_ORDER_COPY_SLOTS, from * slots, to * slots, n_slots};
    p->counters.copied_slots += n_slots;
}

/* Gives s a page of its own in place of the shared, partly filled one at `index`. */
static void copy_on_write(kvl_paged *p, kvl_paged_seq *s, int64_t index) {
    int32_t n = kvl_paged_within(p, s->length, index), old = kvl_paged_table(p, s)[index];
    drop_page(p, s, index);
    kvl_paged_set_fill(p, kvl_paged_take_page(p, s, index), n);
    int32_t own = kvl_paged_table(p, s)[index];
    kvl_paged_order_copy(p, old, own, n);
    if (p->keys) kvl_paged_copy_ids(p, old, own, n);
}

/* First page that a query at position `length` sees. */
static int64_t first_seen(const kvl_paged *p, int64_t length) {
    int64_t window = p->config.window_tokens;
    return window && length >= window ? (length - window + 1) / p->config.page_tokens : 0;
}

/* Pages that append() may return before it takes any, since its first query does not see them. */
static int64_t returnable(const kvl_paged *p, const kvl_paged_seq *s, int64_t first) {
    int64_t n = 0;
    for (int64_t i = s->first_page; i < first; i++)
        n += p->pages[kvl_paged_table(p, s)[i]].refs == 1;
    return n;
}

static void return_pages(kvl_paged *p, kvl_paged_seq *s, int64_t first) {
    for (; s->first_page < first; s->first_page++) {
        drop_page(p, s, s->first_page);
        p->tokens -= p->config.page_tokens;
        p->counters.windowed_pages++;
    }
}

static kvl_status append(void *state, kvl_seq seq, int64_t n_tokens) {
    kvl_paged *p = state;
    kvl_paged_seq *s = kvl_paged_find(p, seq);
    if (!s) return kvl_paged_dead(seq);
    KVL_TRY(kvl_allocator_check_append(&p->config, s->length, n_tokens));
    if (n_tokens == 0) return KVL_OK;
    int64_t length = s->length + n_tokens, used = kvl_paged_pages_of(p, length);
    int64_t n_pages = kvl_max64(used, s->n_pages), at = s->length / p->config.page_tokens;
    int64_t seen = first_seen(p, s->length);
    bool copies = at < s->n_pages && p->pages[kvl_paged_table(p, s)[at]].refs > 1;
    int64_t wanted = n_pages - s->n_pages + copies;
    if (wanted) {
        KVL_TRY(check_fits_pool(p, n_pages - seen));
        int64_t available = kvl_paged_available(p) + returnable(p, s, seen);
        KVL_TRY(kvl_paged_check_available(p, wanted, available));
        if (copies && p->n_orders == p->max_orders)
            return kvl_fail(KVL_ERR_INTERNAL, "%d orders wait to be taken before the next append",
                            p->n_orders);
    }
    return_pages(p, s, seen);
    if (copies) copy_on_write(p, s, at);
    for (int64_t i = s->n_pages; i < n_pages; i++) kvl_paged_take_page(p, s, i);
    s->n_pages = n_pages;
    p->tokens += n_tokens;
    s->length = length;
    for (int64_t i = at; i < used; i++) {
        kvl_paged_set_fill(p, &p->pages[kvl_paged_table(p, s)[i]], kvl_paged_within(p, length, i));
        if (p->keys) kvl_paged_filled(p, s, i);
    }
    kvl_paged_peaks(p);
    return KVL_OK;
}

static kvl_status fork_sequence(void *state, kvl_seq seq, kvl_seq *child) {
    kvl_paged *p = state;
    kvl_paged_seq *s = kvl_paged_find(p, seq);
    if (!s) return kvl_paged_dead(seq);
    KVL_TRY(kvl_paged_take_handle(p, child));
    kvl_paged_seq *c = &p->seqs[*child];
    c->length = s->length;
    c->need = s->need;
    c->first_page = s->first_page;
    c->n_pages = kvl_paged_pages_of(p, s->length); /* pages without a token stay the parent's own */
    for (int64_t i = c->first_page; i < c->n_pages; i++) {
        int32_t id = kvl_paged_table(p, s)[i];
        kvl_paged_table(p, c)[i] = id;
        p->pages[id].refs++;
    }
    for (int64_t i = 0; i < c->first_page; i++) kvl_paged_table(p, c)[i] = KVL_PAGE_NONE;
    p->tokens += c->length - c->first_page * p->config.page_tokens;
    if (p->keys) kvl_paged_forked(p, s, c);
    return KVL_OK;
}

/* The last page of s, at `index`, after its length fell. */
static void shorten(kvl_paged *p, const kvl_paged_seq *s, int64_t index) {
    int32_t id = kvl_paged_table(p, s)[index], fill = kvl_paged_within(p, s->length, index);
    if (p->pages[id].refs > 1) {
        refill(p, id, index);
        return;
    }
    if (p->keys && fill < p->keys[id].key_fill) kvl_paged_forget(p, id);
    kvl_paged_set_fill(p, &p->pages[id], fill);
}

/* Rejected tokens are no prefix of anything: pages cut off are free, not cached. */
static void cut_page(kvl_paged *p, kvl_paged_seq *s, int64_t index) {
    int32_t id = kvl_paged_table(p, s)[index];
    if (p->keys && p->pages[id].refs == 1) kvl_paged_forget(p, id);
    drop_page(p, s, index);
}

static kvl_status check_truncate(const kvl_paged *p, kvl_seq seq, const kvl_paged_seq *s,
                                 int64_t n_tokens) {
    if (n_tokens < 0 || n_tokens > s->length)
        return kvl_fail(KVL_ERR_INPUT, "truncate to %lld tokens: sequence %d has %lld",
                        (long long)n_tokens, seq, (long long)s->length);
    if (n_tokens && first_seen(p, n_tokens) < s->first_page)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "truncate to %lld tokens: sequence %d has returned the %lld before its "
                        "window of %lld",
                        (long long)n_tokens, seq,
                        (long long)(s->first_page * p->config.page_tokens),
                        (long long)p->config.window_tokens);
    return KVL_OK;
}

static kvl_status truncate(void *state, kvl_seq seq, int64_t n_tokens) {
    kvl_paged *p = state;
    kvl_paged_seq *s = kvl_paged_find(p, seq);
    if (!s) return kvl_paged_dead(seq);
    KVL_TRY(check_truncate(p, seq, s, n_tokens));
    int64_t used = kvl_paged_pages_of(p, n_tokens), keep = used;
    /* Pages promised to the prompt stay, so that it can be written again; shared ones cannot be
     * written. */
    while (keep >= s->first_page && keep < kvl_min64(s->promised_pages, s->n_pages) &&
           p->pages[kvl_paged_table(p, s)[keep]].refs == 1)
        keep++;
    p->tokens -= s->length - kvl_max64(n_tokens, s->first_page * p->config.page_tokens);
    s->length = n_tokens;
    s->known = kvl_min64(s->known, n_tokens);
    while (s->n_pages > kvl_max64(keep, s->first_page)) cut_page(p, s, --s->n_pages);
    if (n_tokens == 0 && s->first_page) s->n_pages = s->first_page = 0; /* starts anew */
    for (int64_t i = used; i < s->n_pages; i++) {
        if (p->keys) kvl_paged_forget(p, kvl_paged_table(p, s)[i]);
        kvl_paged_set_fill(p, &p->pages[kvl_paged_table(p, s)[i]], 0);
    }
    if (used > s->first_page) shorten(p, s, used - 1);
    return KVL_OK;
}

static kvl_status release(void *state, kvl_seq seq) {
    kvl_paged *p = state;
    kvl_paged_seq *s = kvl_paged_find(p, seq);
    if (!s) return kvl_paged_dead(seq);
    p->tokens -= s->length - s->first_page * p->config.page_tokens;
    int64_t n_pages = s->n_pages;
    s->next_free = p->first_free_seq; /* dead before its pages go: refill() asks the others */
    p->first_free_seq = seq;
    p->n_alive--;
    while (n_pages > s->first_page) drop_page(p, s, --n_pages);
    s->length = s->n_pages = s->first_page = 0;
    return KVL_OK;
}

static int64_t length(const void *state, kvl_seq seq) {
    const kvl_paged_seq *s = kvl_paged_find(state, seq);
    return s ? s->length : -1;
}

static const int32_t *pages(const void *state, kvl_seq seq, int64_t *slab_slot) {
    const kvl_paged_seq *s = kvl_paged_find(state, seq);
    *slab_slot = -1;
    return s ? kvl_paged_table(state, s) : NULL;
}

static void placement(const void *state, kvl_placement *out) {
    const kvl_paged *p = state;
    *out = (kvl_placement){.page_tokens = p->config.page_tokens,
                           .address_slots = p->config.pool_tokens};
}

static int32_t take_orders(void *state, kvl_order *orders, int32_t capacity) {
    kvl_paged *p = state;
    return kvl_allocator_take_orders(p->orders, &p->n_orders, orders, capacity);
}

const kvl_allocator kvl_allocator_paged = {
    .name = "paged",
    .summary = "pages of any size, forks and equal prefixes share them, copy-on-write",
    .uses_pages = true,
    .full_pool = full_pool,
    .state_bytes = state_bytes,
    .init = init,
    .reserve = reserve,
    .admit = kvl_paged_admit,
    .match_prefix = kvl_paged_match_prefix,
    .learn = kvl_paged_learn,
    .append = append,
    .fork = fork_sequence,
    .truncate = truncate,
    .release = release,
    .length = length,
    .pages = pages,
    .placement = placement,
    .take_orders = take_orders,
    .stats = kvl_paged_stats,
    .walk = kvl_paged_walk,
    .is_valid = kvl_paged_is_valid,
};
