/* Paged: the pool is cut into pages of page_tokens slots; a sequence owns a table of pages.
 *
 * reserve() takes the pages of the prompt, append() takes more as they are needed, so a sequence
 * wastes less than a page. A fork shares every page that holds a token and raises its count of
 * references. A shared page is never written: whoever appends into one that is partly filled takes
 * a new page and orders a copy of its own tokens (copy-on-write). Source of the scheme: Kwon et
 * al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023.
 *
 * Two facts keep the books simple. Sharing comes from forks only, so all holders of a page have it
 * at the same index, with the same declared need, and the shared pages of a sequence come before
 * its own. And holders of one page fill it equally far, unless one of them was truncated inside it:
 * such a page is marked uneven, and only then must its fill be found by asking all sequences.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "allocators/common.h"
#include "core/checked.h"

enum { END = -1, NO_PAGE = -1 };

typedef struct page {
    int32_t refs;      /* sequences that hold it; 0: free */
    int32_t next_free; /* while free: next free page, or END */
    int64_t fill;      /* slots that hold a token of some holder, from the page's start */
    int64_t need;      /* slots within the holders' declared need, from the page's start */
    bool uneven;       /* holders fill it differently far */
} page;

typedef struct sequence {
    bool alive;
    int32_t next_free;      /* while dead: next free handle, or END */
    int64_t length, need;   /* tokens held; declared prompt + max_new */
    int64_t n_pages;        /* entries of its table in use */
    int64_t promised_pages; /* pages of the prompt, taken by reserve() and kept by truncate() */
} sequence;

/* Law: pool = live + reserved + internal + padding + n_free * page_tokens. A held page adds
 * page_tokens = fill + max(need - fill, 0) + (page_tokens - max(fill, need)). */
typedef struct paged {
    kvl_allocator_config config;
    int64_t n_pages, table_stride; /* pages in the pool; entries a table has */
    int64_t n_free;
    int32_t first_free, first_free_seq, n_alive;
    int64_t live, reserved, internal, tokens; /* tokens: sum of lengths, shared ones repeated */
    int64_t live_peak, used_peak, copied_slots, state_bytes;
    int32_t n_orders;
    page *pages;       /* [n_pages] */
    sequence *seqs;    /* [max_seqs] */
    kvl_order *orders; /* [max_seqs]: each sequence may append once before the engine takes them */
    int32_t *tables;   /* [max_seqs][table_stride], NO_PAGE past n_pages */
    int32_t *marks;    /* [n_pages], scratch of is_valid */
} paged;

/* ---- layout --------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

typedef struct layout {
    int64_t n_pages, table_stride;
    uint64_t pages, seqs, orders, tables, marks, bytes; /* offsets; total */
} layout;

/* Places an array of n x elem_bytes at the next 64-byte boundary of *end. */
static bool place(uint64_t *end, uint64_t n, uint64_t elem_bytes, uint64_t *offset) {
    uint64_t bytes;
    return kvl_align_u64(*end, 64, offset) && kvl_mul_u64(n, elem_bytes, &bytes) &&
           kvl_add_u64(*offset, bytes, end);
}

static kvl_status lay_out(const kvl_allocator_config *config, layout *l) {
    KVL_TRY(kvl_allocator_check_config(config));
    if (config->page_tokens < 1)
        return kvl_fail(KVL_ERR_INPUT, "page_tokens %lld: at least 1",
                        (long long)config->page_tokens);
    l->n_pages = config->pool_tokens / config->page_tokens;
    if (l->n_pages < 1)
        return kvl_fail(KVL_ERR_INPUT, "pool_tokens %lld: less than one page of %lld tokens",
                        (long long)config->pool_tokens, (long long)config->page_tokens);
    if (l->n_pages > INT32_MAX)
        return kvl_fail(KVL_ERR_INPUT, "pool_tokens %lld in pages of %lld: %lld pages, at most %d",
                        (long long)config->pool_tokens, (long long)config->page_tokens,
                        (long long)l->n_pages, INT32_MAX);
    l->table_stride = min64(ceil_div(config->max_seq_tokens, config->page_tokens), l->n_pages);
    uint64_t n_pages = (uint64_t)l->n_pages, n_seqs = (uint64_t)config->max_seqs, entries;
    l->bytes = sizeof(paged);
    if (!place(&l->bytes, n_pages, sizeof(page), &l->pages) ||
        !place(&l->bytes, n_seqs, sizeof(sequence), &l->seqs) ||
        !place(&l->bytes, n_seqs, sizeof(kvl_order), &l->orders) ||
        !kvl_mul_u64(n_seqs, (uint64_t)l->table_stride, &entries) ||
        !place(&l->bytes, entries, sizeof(int32_t), &l->tables) ||
        !place(&l->bytes, n_pages, sizeof(int32_t), &l->marks) || l->bytes > INT64_MAX)
        return kvl_fail(KVL_ERR_INPUT, "max_seqs %d x %lld pages: page tables overflow",
                        config->max_seqs, (long long)l->table_stride);
    return KVL_OK;
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
    uint8_t *base = state;
    paged *p = state;
    *p = (paged){.config = *config,
                 .n_pages = l.n_pages,
                 .table_stride = l.table_stride,
                 .n_free = l.n_pages,
                 .state_bytes = (int64_t)l.bytes,
                 .pages = (page *)(base + l.pages),
                 .seqs = (sequence *)(base + l.seqs),
                 .orders = (kvl_order *)(base + l.orders),
                 .tables = (int32_t *)(base + l.tables),
                 .marks = (int32_t *)(base + l.marks)};
    for (int64_t i = 0; i < l.n_pages; i++)
        p->pages[i] = (page){.next_free = i + 1 < l.n_pages ? (int32_t)(i + 1) : END};
    for (int32_t i = 0; i < config->max_seqs; i++)
        p->seqs[i] = (sequence){.next_free = i + 1 < config->max_seqs ? i + 1 : END};
    memset(p->tables, 0xff, (size_t)config->max_seqs * (size_t)l.table_stride * sizeof(int32_t));
    p->used_peak = config->pool_tokens - l.n_pages * config->page_tokens; /* padding */
    return KVL_OK;
}

/* ---- pages and their books ------------------------------------------------------------------ */

static int64_t pages_of(const paged *p, int64_t tokens) {
    return ceil_div(tokens, p->config.page_tokens);
}

static int32_t *table_of(const paged *p, const sequence *s) {
    return p->tables + (s - p->seqs) * p->table_stride;
}

/* How many of `tokens` (a length or a need) lie in the page at `index`. */
static int64_t within(const paged *p, int64_t tokens, int64_t index) {
    return min64(max64(tokens - index * p->config.page_tokens, 0), p->config.page_tokens);
}

/* Adds (sign 1) or takes back (sign -1) what a held page contributes to the ledger. */
static void account(paged *p, const page *g, int64_t sign) {
    int64_t reserved = max64(g->need - g->fill, 0);
    p->live += sign * g->fill;
    p->reserved += sign * reserved;
    p->internal += sign * (p->config.page_tokens - g->fill - reserved);
}

static void set_fill(paged *p, page *g, int64_t fill) {
    account(p, g, -1);
    g->fill = fill;
    account(p, g, 1);
}

static void peaks(paged *p) {
    int64_t used = p->config.pool_tokens - p->n_free * p->config.page_tokens;
    kvl_allocator_peaks(p->live, used, &p->live_peak, &p->used_peak);
}

/* Takes a free page (the caller made sure there is one) for the table entry at `index` of s. */
static page *take_page(paged *p, sequence *s, int64_t index) {
    int32_t id = p->first_free;
    page *g = &p->pages[id];
    p->first_free = g->next_free;
    p->n_free--;
    *g = (page){.refs = 1, .next_free = END, .need = within(p, s->need, index)};
    account(p, g, 1);
    table_of(p, s)[index] = id;
    return g;
}

/* Finds an uneven page's fill again after one of its holders changed. */
static void refill(paged *p, int32_t id, int64_t index) {
    page *g = &p->pages[id];
    int64_t most = 0, least = p->config.page_tokens;
    for (int32_t i = 0; i < p->config.max_seqs; i++) {
        const sequence *s = &p->seqs[i];
        if (!s->alive || index >= s->n_pages || table_of(p, s)[index] != id) continue;
        int64_t fill = within(p, s->length, index);
        most = max64(most, fill);
        least = min64(least, fill);
    }
    set_fill(p, g, most);
    g->uneven = most != least;
}

/* Takes the table entry at `index` from s, and frees the page when nobody else holds it. */
static void drop_page(paged *p, sequence *s, int64_t index) {
    int32_t *entry = &table_of(p, s)[index], id = *entry;
    page *g = &p->pages[id];
    *entry = NO_PAGE;
    if (--g->refs > 0) {
        if (g->uneven) refill(p, id, index);
        return;
    }
    account(p, g, -1);
    *g = (page){.next_free = p->first_free};
    p->first_free = id;
    p->n_free++;
}

/* ---- sequences ------------------------------------------------------------------------------ */

static sequence *find(const void *state, kvl_seq seq) {
    const paged *p = state;
    return seq >= 0 && seq < p->config.max_seqs && p->seqs[seq].alive ? &p->seqs[seq] : NULL;
}

static kvl_status dead(kvl_seq seq) {
    return kvl_fail(KVL_ERR_INPUT, "sequence %d is not alive", seq);
}

static kvl_status take_handle(paged *p, kvl_seq *seq) {
    if (p->first_free_seq == END)
        return kvl_fail(KVL_ERR_OOM, "all %d sequences are alive (max_seqs)", p->config.max_seqs);
    *seq = p->first_free_seq;
    p->first_free_seq = p->seqs[*seq].next_free;
    p->seqs[*seq] = (sequence){.alive = true, .next_free = END};
    p->n_alive++;
    return KVL_OK;
}

/* Longest sequence that `n_pages` hold. */
static long long longest(const paged *p, int64_t n_pages) {
    return min64(n_pages * p->config.page_tokens, p->config.max_seq_tokens);
}

/* `tokens` could be held by the pool if it were empty. */
static kvl_status check_fits_pool(const paged *p, int64_t tokens) {
    if (pages_of(p, tokens) > p->n_pages)
        return kvl_fail(KVL_ERR_INPUT,
                        "needs %lld pages of %lld tokens, pool has %lld, longest that fits is %lld "
                        "tokens",
                        (long long)pages_of(p, tokens), (long long)p->config.page_tokens,
                        (long long)p->n_pages, longest(p, p->n_pages));
    return KVL_OK;
}

static kvl_status check_free(const paged *p, int64_t n_pages) {
    if (n_pages > p->n_free)
        return kvl_fail(KVL_ERR_OOM,
                        "needs %lld pages of %lld tokens, pool has %lld free of %lld, longest that "
                        "fits is %lld tokens",
                        (long long)n_pages, (long long)p->config.page_tokens, (long long)p->n_free,
                        (long long)p->n_pages, longest(p, p->n_free));
    return KVL_OK;
}

static kvl_status reserve(void *state, int64_t n_prompt, int64_t max_new, kvl_seq *seq) {
    paged *p = state;
    int64_t need;
    KVL_TRY(kvl_allocator_need(&p->config, n_prompt, max_new, &need));
    KVL_TRY(check_fits_pool(p, need));
    int64_t n_pages = pages_of(p, n_prompt);
    KVL_TRY(check_free(p, n_pages));
    KVL_TRY(take_handle(p, seq));
    sequence *s = &p->seqs[*seq];
    s->need = need;
    s->n_pages = s->promised_pages = n_pages;
    for (int64_t i = 0; i < n_pages; i++) take_page(p, s, i);
    peaks(p);
    return KVL_OK;
}

/* Gives s a page of its own in place of the shared, partly filled one at `index`. */
static void copy_on_write(paged *p, sequence *s, int64_t index) {
    int64_t slots = p->config.page_tokens, n = within(p, s->length, index);
    int32_t old = table_of(p, s)[index];
    drop_page(p, s, index);
    page *g = take_page(p, s, index);
    set_fill(p, g, n);
    p->orders[p->n_orders++] =
        (kvl_order){KVL_ORDER_COPY_SLOTS, old * slots, table_of(p, s)[index] * slots, n};
    p->copied_slots += n;
}

static kvl_status append(void *state, kvl_seq seq, int64_t n_tokens) {
    paged *p = state;
    sequence *s = find(p, seq);
    if (!s) return dead(seq);
    KVL_TRY(kvl_allocator_check_append(&p->config, s->length, n_tokens));
    if (n_tokens == 0) return KVL_OK;
    int64_t length = s->length + n_tokens, n_pages = max64(pages_of(p, length), s->n_pages);
    int64_t first = s->length / p->config.page_tokens;
    bool copies = first < s->n_pages && p->pages[table_of(p, s)[first]].refs > 1;
    KVL_TRY(check_fits_pool(p, length));
    KVL_TRY(check_free(p, n_pages - s->n_pages + copies));
    if (copies && p->n_orders == p->config.max_seqs)
        return kvl_fail(KVL_ERR_INTERNAL, "%d orders wait to be taken before the next append",
                        p->n_orders);
    if (copies) copy_on_write(p, s, first);
    for (int64_t i = s->n_pages; i < n_pages; i++) take_page(p, s, i);
    s->n_pages = n_pages;
    p->tokens += n_tokens;
    s->length = length;
    for (int64_t i = first; i < pages_of(p, length); i++)
        set_fill(p, &p->pages[table_of(p, s)[i]], within(p, length, i));
    peaks(p);
    return KVL_OK;
}

static kvl_status fork_sequence(void *state, kvl_seq seq, kvl_seq *child) {
    paged *p = state;
    sequence *s = find(p, seq);
    if (!s) return dead(seq);
    KVL_TRY(take_handle(p, child));
    sequence *c = &p->seqs[*child];
    c->length = s->length;
    c->need = s->need;
    c->n_pages = pages_of(p, s->length); /* pages without a token stay the parent's own */
    for (int64_t i = 0; i < c->n_pages; i++) {
        int32_t id = table_of(p, s)[i];
        table_of(p, c)[i] = id;
        p->pages[id].refs++;
    }
    p->tokens += c->length;
    return KVL_OK;
}

/* The last page of s, at `index`, after its length fell. */
static void shorten(paged *p, const sequence *s, int64_t index) {
    int32_t id = table_of(p, s)[index];
    if (p->pages[id].refs > 1) {
        refill(p, id, index);
    } else {
        set_fill(p, &p->pages[id], within(p, s->length, index));
    }
}

static kvl_status truncate(void *state, kvl_seq seq, int64_t n_tokens) {
    paged *p = state;
    sequence *s = find(p, seq);
    if (!s) return dead(seq);
    if (n_tokens < 0 || n_tokens > s->length)
        return kvl_fail(KVL_ERR_INPUT, "truncate to %lld tokens: sequence %d has %lld",
                        (long long)n_tokens, seq, (long long)s->length);
    int64_t used = pages_of(p, n_tokens), keep = used;
    /* Pages promised to the prompt stay, so that it can be written again; shared ones cannot be
     * written, and all of a sequence's own pages come after its shared ones. */
    if (used < s->n_pages && p->pages[table_of(p, s)[used]].refs == 1)
        keep = max64(used, min64(s->promised_pages, s->n_pages));
    p->tokens -= s->length - n_tokens;
    s->length = n_tokens;
    while (s->n_pages > keep) drop_page(p, s, --s->n_pages);
    for (int64_t i = used; i < keep; i++) set_fill(p, &p->pages[table_of(p, s)[i]], 0);
    if (used > 0) shorten(p, s, used - 1);
    return KVL_OK;
}

static kvl_status release(void *state, kvl_seq seq) {
    paged *p = state;
    sequence *s = find(p, seq);
    if (!s) return dead(seq);
    p->tokens -= s->length;
    s->alive = false;
    while (s->n_pages > 0) drop_page(p, s, --s->n_pages);
    *s = (sequence){.next_free = p->first_free_seq};
    p->first_free_seq = seq;
    p->n_alive--;
    return KVL_OK;
}

static int64_t length(const void *state, kvl_seq seq) {
    const sequence *s = find(state, seq);
    return s ? s->length : -1;
}

static const int32_t *pages(const void *state, kvl_seq seq, int64_t *slab_slot) {
    const sequence *s = find(state, seq);
    *slab_slot = -1;
    return s ? table_of(state, s) : NULL;
}

static void placement(const void *state, kvl_placement *out) {
    const paged *p = state;
    *out = (kvl_placement){.page_tokens = p->config.page_tokens,
                           .address_slots = p->config.pool_tokens};
}

static void walk(const void *state, kvl_slot_visit visit, void *user) {
    const paged *p = state;
    int64_t slots = p->config.page_tokens;
    memset(p->marks, 0xff, (size_t)p->n_pages * sizeof *p->marks); /* owners, -1 = none */
    for (int32_t i = 0; i < p->config.max_seqs; i++) {
        for (int64_t k = 0; k < p->seqs[i].n_pages; k++) p->marks[table_of(p, &p->seqs[i])[k]] = i;
    }
    for (int64_t i = 0; i < p->n_pages; i++) {
        const kvl_slot_run run = {.slot = i * slots,
                                  .n_slots = slots,
                                  .n_live = p->pages[i].fill,
                                  .refs = p->pages[i].refs,
                                  .owner = p->marks[i]};
        visit(user, &run);
    }
    const kvl_slot_run rest = {.slot = p->n_pages * slots,
                               .n_slots = p->config.pool_tokens - p->n_pages * slots,
                               .owner = -1};
    if (rest.n_slots) visit(user, &rest);
}

static int32_t take_orders(void *state, kvl_order *orders, int32_t capacity) {
    paged *p = state;
    int32_t n = p->n_orders < capacity ? p->n_orders : capacity;
    if (n <= 0) return 0;
    memcpy(orders, p->orders, (size_t)n * sizeof *orders);
    p->n_orders -= n;
    memmove(p->orders, p->orders + n, (size_t)p->n_orders * sizeof *orders);
    return n;
}

static void stats(const void *state, int64_t largest_wanted, kvl_ledger *ledger) {
    const paged *p = state;
    int64_t slots = p->config.page_tokens, free = p->n_free * slots;
    int64_t admissible = p->first_free_seq == END ? 0 : longest(p, p->n_free);
    *ledger = (kvl_ledger){.pool = p->config.pool_tokens,
                           .live = p->live,
                           .reserved = p->reserved,
                           .internal = p->internal,
                           .padding = p->config.pool_tokens - p->n_pages * slots,
                           .free = free,
                           .external = largest_wanted > admissible ? free : 0,
                           .largest_admissible = admissible,
                           .shared_saved = p->tokens - p->live,
                           .live_peak = p->live_peak,
                           .used_peak = p->used_peak,
                           .copied_slots = p->copied_slots,
                           .metadata_bytes = p->state_bytes};
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

/* Both free lists visit free things only, and as many as there are: so they have no cycle. */
static bool free_lists_valid(const paged *p, const report *r) {
    int64_t n = 0, n_free_seqs = p->config.max_seqs - p->n_alive;
    for (int32_t i = p->first_free; i != END && n <= p->n_free; i = p->pages[i].next_free, n++) {
        if (i < 0 || i >= p->n_pages || p->pages[i].refs || p->pages[i].fill)
            return invalid(r, "entry of the free list", n, i, END);
    }
    if (n != p->n_free) return invalid(r, "length of the free list", 0, n, p->n_free);
    n = 0;
    for (int32_t i = p->first_free_seq; i != END && n <= n_free_seqs;
         i = p->seqs[i].next_free, n++) {
        if (i < 0 || i >= p->config.max_seqs || p->seqs[i].alive)
            return invalid(r, "free handle", n, i, END);
    }
    return n == n_free_seqs || invalid(r, "number of free handles", 0, n, n_free_seqs);
}

/* One sequence's table; counts its references in marks. */
static bool sequence_valid(const paged *p, const sequence *s, const report *r) {
    int64_t id = s - p->seqs;
    const int32_t *table = table_of(p, s);
    if (s->n_pages < pages_of(p, s->length) || s->n_pages > p->table_stride)
        return invalid(r, "pages of sequence", id, s->n_pages, pages_of(p, s->length));
    if (s->length > p->config.max_seq_tokens || (!s->alive && s->n_pages))
        return invalid(r, "length of sequence", id, s->length, 0);
    for (int64_t i = 0; i < p->table_stride; i++) {
        if (i >= s->n_pages ? table[i] != NO_PAGE : table[i] < 0 || table[i] >= p->n_pages)
            return invalid(r, "table entry", i, table[i], NO_PAGE);
        if (i >= s->n_pages) continue;
        const page *g = &p->pages[table[i]];
        int64_t fill = within(p, s->length, i);
        p->marks[table[i]]++;
        if (g->need != within(p, s->need, i))
            return invalid(r, "need of page", table[i], g->need, within(p, s->need, i));
        if (fill > g->fill || (!g->uneven && fill != g->fill))
            return invalid(r, "fill of page", table[i], g->fill, fill);
        if (fill == 0 && g->refs != 1)
            return invalid(r, "references of unwritten page", table[i], g->refs, 1);
    }
    return true;
}

/* The fill of an uneven page is that of its fullest holder. */
static bool fills_valid(const paged *p, const report *r) {
    memset(p->marks, 0, (size_t)p->n_pages * sizeof *p->marks);
    for (int32_t i = 0; i < p->config.max_seqs; i++) {
        const sequence *s = &p->seqs[i];
        for (int64_t k = 0; k < s->n_pages; k++) {
            int32_t id = table_of(p, s)[k];
            if (within(p, s->length, k) == p->pages[id].fill) p->marks[id] = 1;
        }
    }
    for (int64_t i = 0; i < p->n_pages; i++) {
        if (p->pages[i].refs && !p->marks[i])
            return invalid(r, "fill of uneven page", i, p->pages[i].fill, 0);
    }
    return true;
}

static bool is_valid(const void *state, char *why, size_t why_bytes) {
    const paged *p = state;
    const report r = {why, why_bytes};
    int64_t slots = p->config.page_tokens, live = 0, reserved = 0, internal = 0, tokens = 0,
            held = 0;
    if (!free_lists_valid(p, &r)) return false;
    memset(p->marks, 0, (size_t)p->n_pages * sizeof *p->marks);
    for (int32_t i = 0; i < p->config.max_seqs; i++) {
        if (!sequence_valid(p, &p->seqs[i], &r)) return false;
        tokens += p->seqs[i].length;
    }
    for (int64_t i = 0; i < p->n_pages; i++) {
        const page *g = &p->pages[i];
        if (p->marks[i] != g->refs) return invalid(&r, "references", i, g->refs, p->marks[i]);
        if (!g->refs) continue;
        held++;
        live += g->fill;
        reserved += max64(g->need - g->fill, 0);
        internal += slots - max64(g->fill, g->need);
    }
    if (held + p->n_free != p->n_pages)
        return invalid(&r, "held and free pages", 0, held + p->n_free, p->n_pages);
    if (live != p->live) return invalid(&r, "live", 0, p->live, live);
    if (reserved != p->reserved) return invalid(&r, "reserved", 0, p->reserved, reserved);
    if (internal != p->internal) return invalid(&r, "internal", 0, p->internal, internal);
    if (tokens != p->tokens) return invalid(&r, "tokens", 0, p->tokens, tokens);
    if (p->n_orders < 0 || p->n_orders > p->config.max_seqs)
        return invalid(&r, "orders", 0, p->n_orders, p->config.max_seqs);
    return fills_valid(p, &r);
}

const kvl_allocator kvl_allocator_paged = {
    .name = "paged",
    .summary = "pages of any size, per-sequence tables, forks share pages, copy-on-write",
    .uses_pages = true,
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
