/* What the files of `paged` share: paged.c (pages and sequences), paged_prefix.c (the prefix
 * cache), paged_check.c (ledger, map, invariants).
 *
 * A page is in one of three states:
 *   held    refs > 0: in the tables of refs sequences, at the same index in each
 *   cached  refs == 0 and indexed: in the LRU list, found by its key, reclaimed when needed
 *   free    refs == 0 and not indexed: in the free list, or never touched (id >= n_touched)
 *
 * Three facts keep the books simple. Whoever shares a page (by fork or by prefix) has it at the
 * same index. Holders of a page fill it equally far and need it equally far, unless one was
 * truncated inside it or declared a shorter request: such a page is marked uneven, and only then
 * are all sequences asked. A shared page is never written: who goes on in it takes a copy first.
 */
#ifndef KVL_ALLOCATORS_PAGED_INTERNAL_H
#define KVL_ALLOCATORS_PAGED_INTERNAL_H

#include <string.h>

#include "allocators/common.h"

enum { KVL_PAGE_NONE = -1 };

/* A held page adds page_tokens = fill + max(need - fill, 0) + (page_tokens - max(fill, need)). */
typedef struct kvl_page {
    int32_t refs;        /* sequences that hold it */
    int32_t next;        /* free: next free page; cached: next younger one */
    int32_t fill;        /* slots that hold a token of some holder, from the page's start */
    uint32_t need : 31;  /* slots within some holder's declared need, from the page's start */
    uint32_t uneven : 1; /* holders differ in fill or need */
} kvl_page;

/* What the prefix cache knows of a page; there is none without the cache. */
typedef struct kvl_page_key {
    uint64_t key;     /* of the prefix that ends in this page */
    uint64_t content; /* same number, same prefix, token by token; 0: not known (yet) */
    uint64_t parent;  /* content of the page before it; 0: it is the first, or keys are given */
    int32_t key_fill; /* slots the key stands for; 0: no key */
    int32_t chain;    /* indexed: next page of the bucket */
    int32_t prev;     /* cached: next older one */
    int32_t indexed;  /* found by its key; else at most a double of one that is */
} kvl_page_key;

typedef struct kvl_paged_seq {
    int32_t next_free; /* while dead: next free handle; KVL_SEQ_ALIVE while alive */
    int64_t length, need;
    int64_t first_page;     /* pages before it were returned (window) */
    int64_t n_pages;        /* entries of its table in use, those returned included */
    int64_t promised_pages; /* pages of the prompt, taken at admission and kept by truncate() */
    int64_t known;          /* tokens whose ids are in the pages, from the start */
} kvl_paged_seq;

enum { KVL_SEQ_END = -1, KVL_SEQ_ALIVE = -2 };

/* Law: pool = live + reserved + internal + n_cached * page_tokens + padding + n_free * page_tokens.
 */
typedef struct kvl_paged {
    kvl_allocator_config config;
    int64_t n_pages, table_stride; /* pages in the pool; entries a table has */
    int64_t n_touched;             /* pages ever taken: the others need no record yet */
    int64_t n_held, n_cached;      /* the other pages are free */
    int32_t first_free;            /* page, or KVL_PAGE_NONE */
    int32_t oldest, youngest;      /* cached pages, or KVL_PAGE_NONE */
    int32_t first_free_seq, n_touched_seqs, n_alive;
    int64_t live, reserved, internal, tokens; /* tokens: held by sequences, shared ones repeated */
    uint64_t last_content;
    kvl_ledger counters; /* peaks, copies, hits: those that only rise */
    int64_t state_bytes, page_bytes;
    int32_t n_orders, max_orders;
    int64_t n_buckets; /* a power of two */

    kvl_page *pages;     /* [n_pages] */
    kvl_paged_seq *seqs; /* [max_seqs] */
    kvl_order *orders;   /* [max_orders]: an admission and an append for each sequence */
    int32_t *tables;     /* [max_seqs][table_stride] */
    int32_t *scratch;    /* [n_pages]: of match, is_valid and walk */
    kvl_page_key *keys;  /* [n_pages], NULL without a prefix cache */
    int32_t *page_ids;   /* [n_pages][page_tokens] token ids, with KVL_PREFIX_TOKENS */
    int32_t *buckets;    /* [n_buckets] first page, or KVL_PAGE_NONE */
} kvl_paged;

static inline int64_t kvl_ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}
static inline int64_t kvl_min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t kvl_max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline int64_t kvl_paged_pages_of(const kvl_paged *p, int64_t tokens) {
    return kvl_ceil_div(tokens, p->config.page_tokens);
}

static inline int32_t *kvl_paged_table(const kvl_paged *p, const kvl_paged_seq *s) {
    return p->tables + (s - p->seqs) * p->table_stride;
}

/* How many of `tokens` (a length or a need) lie in the page at `index`. */
static inline int32_t kvl_paged_within(const kvl_paged *p, int64_t tokens, int64_t index) {
    int64_t slots = p->config.page_tokens;
    return (int32_t)kvl_min64(kvl_max64(tokens - index * slots, 0), slots);
}

/* Pages that a call may take: free ones, and cached ones that are given up for it. */
static inline int64_t kvl_paged_available(const kvl_paged *p) {
    return p->n_pages - p->n_held;
}

/* ---- paged.c: used by the prefix cache ------------------------------------------------------ */

kvl_paged_seq *kvl_paged_find(const void *state, kvl_seq seq);
kvl_status kvl_paged_dead(kvl_seq seq);

/* Refuses what the empty pool could not hold, and `n_pages` that are not `available` now. */
kvl_status kvl_paged_check_need(const kvl_paged *p, int64_t n_prompt, int64_t need);
kvl_status kvl_paged_check_available(const kvl_paged *p, int64_t n_pages, int64_t available);
long long kvl_paged_longest(const kvl_paged *p, int64_t n_pages);

kvl_status kvl_paged_take_handle(kvl_paged *p, kvl_seq *seq);
/* Takes a page (the caller made sure there is one) for the table entry at `index` of s. */
kvl_page *kvl_paged_take_page(kvl_paged *p, kvl_paged_seq *s, int64_t index);
void kvl_paged_set_fill(kvl_paged *p, kvl_page *g, int32_t fill);
void kvl_paged_account(kvl_paged *p, const kvl_page *g, int64_t sign);
void kvl_paged_peaks(kvl_paged *p);
void kvl_paged_order_copy(kvl_paged *p, int32_t from, int32_t to, int64_t n_slots);

/* ---- paged_prefix.c ------------------------------------------------------------------------- */

kvl_status kvl_paged_admit(void *state, const kvl_request *request, kvl_admission *out);
int64_t kvl_paged_match_prefix(const void *state, const kvl_request *request);
kvl_status kvl_paged_learn(void *state, kvl_seq seq, const int32_t *tokens, int64_t n_tokens);

/* The page at `index` of s was filled further: enters the index once its key is covered. */
void kvl_paged_filled(kvl_paged *p, const kvl_paged_seq *s, int64_t index);
/* The page's tokens are about to change or to be forgotten. */
void kvl_paged_forget(kvl_paged *p, int32_t id);
/* A page that nobody holds any more is kept when it can be found; false: it is free. */
bool kvl_paged_keep(kvl_paged *p, int32_t id);
/* Gives up the page cached longest (there is one) and returns it. */
int32_t kvl_paged_evict(kvl_paged *p);
/* A page of a new owner starts without a key. */
void kvl_paged_reset_key(kvl_paged *p, int32_t id);
/* s and a child share all pages that hold a token; what is written next may differ. */
void kvl_paged_forked(kvl_paged *p, kvl_paged_seq *s, kvl_paged_seq *child);
/* Token ids of the first n slots go along with a copy. */
void kvl_paged_copy_ids(kvl_paged *p, int32_t from, int32_t to, int64_t n);

/* ---- paged_check.c -------------------------------------------------------------------------- */

void kvl_paged_stats(const void *state, int64_t largest_wanted, kvl_ledger *ledger);
void kvl_paged_walk(const void *state, kvl_slot_visit visit, void *user);
bool kvl_paged_is_valid(const void *state, char *why, size_t why_bytes);

#endif
