/* The prefix cache of `paged`: full pages of prompts (and of answers whose ids were learned) stay
 * findable by all tokens from the sequence's start to the page's end.
 *
 * A page's key is xxhash (XXH3, 64 bits) of its token ids, seeded with the key of the page before
 * it, so it stands for the whole prefix. A key alone is no proof: on a hit the ids themselves are
 * compared, and the page before must have the same *content number*. Content numbers are handed out
 * once for each distinct prefix, so by induction a hit is equal token by token from the start.
 * Pages filled at the same time with the same prefix are doubles: one is findable, the others share
 * its content number. With KVL_PREFIX_KEYS the caller's keys are taken at their word.
 *
 * A page whose last holder leaves stays cached until its slots are needed; the one cached longest
 * goes first. Pages are dropped from a sequence's end, so a prefix outlives what follows it.
 */
#include <xxhash.h>

#include "allocators/paged_internal.h"

static uint64_t mix(uint64_t x) { /* splitmix64's finaliser: callers' keys may be small numbers */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int32_t *bucket_of(const kvl_paged *p, uint64_t key) {
    return &p->buckets[mix(key) & (uint64_t)(p->n_buckets - 1)];
}

static int32_t *ids_of(const kvl_paged *p, int32_t id) {
    return p->page_ids + id * p->config.page_tokens;
}

static uint64_t chain_key(const kvl_paged *p, uint64_t before, const int32_t *ids) {
    return XXH3_64bits_withSeed(ids, (size_t)p->config.page_tokens * sizeof *ids, before);
}

/* ---- pages in and out of the index and the LRU list ----------------------------------------- */

void kvl_paged_reset_key(kvl_paged *p, int32_t id) {
    p->keys[id] = (kvl_page_key){.chain = KVL_PAGE_NONE, .prev = KVL_PAGE_NONE};
}

static void unindex(kvl_paged *p, int32_t id) {
    kvl_page_key *k = &p->keys[id];
    int32_t *link = bucket_of(p, k->key);
    while (*link != id) link = &p->keys[*link].chain;
    *link = k->chain;
    k->indexed = 0;
}

void kvl_paged_forget(kvl_paged *p, int32_t id) {
    if (p->keys[id].indexed) unindex(p, id);
    kvl_paged_reset_key(p, id);
}

bool kvl_paged_keep(kvl_paged *p, int32_t id) {
    kvl_page_key *k = &p->keys[id];
    if (!k->indexed) return false;
    kvl_page *g = &p->pages[id];
    *g = (kvl_page){.next = KVL_PAGE_NONE};
    k->prev = p->youngest;
    if (p->youngest != KVL_PAGE_NONE)
        p->pages[p->youngest].next = id;
    else
        p->oldest = id;
    p->youngest = id;
    p->n_cached++;
    return true;
}

/* Takes a cached page out of the LRU list. */
static void unlist(kvl_paged *p, int32_t id) {
    int32_t prev = p->keys[id].prev, next = p->pages[id].next;
    *(prev != KVL_PAGE_NONE ? &p->pages[prev].next : &p->oldest) = next;
    *(next != KVL_PAGE_NONE ? &p->keys[next].prev : &p->youngest) = prev;
    p->n_cached--;
}

int32_t kvl_paged_evict(kvl_paged *p) {
    int32_t id = p->oldest;
    unlist(p, id);
    unindex(p, id);
    p->counters.evicted_pages++;
    return id;
}

/* The indexed page of this prefix, or KVL_PAGE_NONE. `ids` as in kvl_request, of this page. */
static int32_t look_up(const kvl_paged *p, uint64_t key, uint64_t parent, int32_t fill,
                       const int32_t *ids) {
    for (int32_t id = *bucket_of(p, key); id != KVL_PAGE_NONE; id = p->keys[id].chain) {
        const kvl_page_key *k = &p->keys[id];
        if (k->key != key || k->key_fill != fill || k->parent != parent) continue;
        if (!p->page_ids || memcmp(ids_of(p, id), ids, (size_t)fill * sizeof *ids) == 0) return id;
    }
    return KVL_PAGE_NONE;
}

/* Content of the page before `index`; false when it is not known, so that nothing can follow. */
static bool parent_of(const kvl_paged *p, const kvl_paged_seq *s, int64_t index, uint64_t *key,
                      uint64_t *content) {
    *key = *content = 0;
    if (index == 0) return true;
    int32_t before = kvl_paged_table(p, s)[index - 1];
    if (before == KVL_PAGE_NONE) return false;
    *key = p->keys[before].key;
    *content = p->keys[before].content;
    return *content != 0;
}

void kvl_paged_filled(kvl_paged *p, const kvl_paged_seq *s, int64_t index) {
    int32_t id = kvl_paged_table(p, s)[index];
    kvl_page_key *k = &p->keys[id];
    if (!k->key_fill || k->content || p->pages[id].fill < k->key_fill) return;
    uint64_t parent_key, parent = 0;
    if (p->page_ids && !parent_of(p, s, index, &parent_key, &parent)) return;
    int32_t other = look_up(p, k->key, parent, k->key_fill, p->page_ids ? ids_of(p, id) : NULL);
    k->parent = parent;
    k->content = other != KVL_PAGE_NONE ? p->keys[other].content : ++p->last_content;
    if (other != KVL_PAGE_NONE) return;
    int32_t *bucket = bucket_of(p, k->key);
    k->chain = *bucket;
    k->indexed = 1;
    *bucket = id;
}

/* ---- a request's prefix --------------------------------------------------------------------- */

typedef struct match {
    int64_t n_pages;  /* found, a last one that is only used in part included: ids in scratch */
    int64_t n_asked;  /* pages with a key */
    int64_t n_tokens; /* found and wanted */
} match;

static int64_t asked_pages(const kvl_paged *p, const kvl_request *r) {
    if (p->config.prefix == KVL_PREFIX_TOKENS)
        return r->tokens ? r->n_prompt / p->config.page_tokens : 0;
    return p->config.prefix == KVL_PREFIX_KEYS && r->keys ? r->n_keys : 0;
}

static match find_prefix(const kvl_paged *p, const kvl_request *r) {
    match m = {.n_asked = asked_pages(p, r)};
    int64_t slots = p->config.page_tokens, limit = kvl_min64(r->max_cached, r->n_prompt);
    uint64_t key = 0, content = 0;
    while (m.n_pages < m.n_asked && m.n_tokens < limit) {
        const int32_t *ids = p->page_ids ? r->tokens + m.n_pages * slots : NULL;
        int32_t fill = kvl_paged_within(p, r->n_prompt, m.n_pages);
        key = p->page_ids ? chain_key(p, key, ids) : r->keys[m.n_pages];
        int32_t id = look_up(p, key, content, fill, ids);
        if (id == KVL_PAGE_NONE) break;
        if (p->page_ids) content = p->keys[id].content;
        p->scratch[m.n_pages++] = id;
        m.n_tokens = kvl_min64(m.n_tokens + fill, limit);
    }
    return m;
}

static kvl_status check_request(const kvl_paged *p, const kvl_request *r, int64_t *need) {
    KVL_TRY(kvl_allocator_need(&p->config, r->n_prompt, r->max_new, need));
    if (r->max_cached < 0)
        return kvl_fail(KVL_ERR_INPUT, "max_cached %lld: at least 0", (long long)r->max_cached);
    if (r->n_keys < 0 || (r->keys && r->n_keys > kvl_paged_pages_of(p, r->n_prompt)))
        return kvl_fail(
            KVL_ERR_INPUT, "%lld keys: a prompt of %lld tokens has %lld pages of %lld tokens",
            (long long)r->n_keys, (long long)r->n_prompt,
            (long long)kvl_paged_pages_of(p, r->n_prompt), (long long)p->config.page_tokens);
    return kvl_paged_check_need(p, r->n_prompt, *need);
}

int64_t kvl_paged_match_prefix(const void *state, const kvl_request *request) {
    const kvl_paged *p = state;
    int64_t need;
    return check_request(p, request, &need) == KVL_OK ? find_prefix(p, request).n_tokens : 0;
}

/* ---- admission ------------------------------------------------------------------------------ */

/* s becomes a holder of a page that was found. */
static void share_page(kvl_paged *p, kvl_paged_seq *s, int64_t index, int32_t id) {
    kvl_page *g = &p->pages[id];
    uint32_t need = (uint32_t)kvl_paged_within(p, s->need, index);
    if (g->refs++ == 0) {
        unlist(p, id);
        p->n_held++;
        *g = (kvl_page){.refs = 1, .next = KVL_PAGE_NONE, .fill = p->keys[id].key_fill};
        g->need = need;
        kvl_paged_account(p, g, 1);
    } else if (g->need != need) {
        kvl_paged_account(p, g, -1);
        if (need > g->need) g->need = need;
        g->uneven = 1;
        kvl_paged_account(p, g, 1);
    }
    kvl_paged_table(p, s)[index] = id;
}

/* Keys (and ids) of the pages that the prompt will fill; they are findable once it has. */
static void note_prompt(kvl_paged *p, kvl_paged_seq *s, const kvl_request *r, int64_t n_asked) {
    int64_t slots = p->config.page_tokens;
    const int32_t *table = kvl_paged_table(p, s);
    if (p->page_ids && r->tokens) {
        for (int64_t i = s->length / slots; i < s->n_pages; i++)
            memcpy(ids_of(p, table[i]), r->tokens + i * slots,
                   (size_t)kvl_paged_within(p, r->n_prompt, i) * sizeof *r->tokens);
        s->known = r->n_prompt;
    }
    uint64_t key = 0;
    for (int64_t i = 0; i < n_asked; i++) {
        kvl_page_key *k = &p->keys[table[i]];
        if (!k->key_fill) {
            k->key = p->page_ids ? chain_key(p, key, ids_of(p, table[i])) : r->keys[i];
            k->key_fill = kvl_paged_within(p, r->n_prompt, i);
        }
        key = k->key;
    }
}

static void count(kvl_paged *p, const kvl_request *r, const match *m) {
    kvl_ledger *c = &p->counters;
    if (r->readmitted) {
        c->recompute_tokens += m->n_tokens;
        return;
    }
    c->asked_tokens += r->n_prompt;
    c->asked_pages += m->n_asked;
    c->hit_tokens += m->n_tokens;
    c->hit_pages += m->n_pages;
}

kvl_status kvl_paged_admit(void *state, const kvl_request *r, kvl_admission *out) {
    kvl_paged *p = state;
    int64_t need, slots = p->config.page_tokens;
    KVL_TRY(check_request(p, r, &need));
    match m = find_prefix(p, r);
    /* A page used in part is copied, as its other tokens are another's; without room for the order
     * it is left. */
    if (m.n_tokens % slots && p->n_orders == p->max_orders) {
        m.n_tokens -= m.n_tokens % slots;
        m.n_pages = m.n_tokens / slots;
    }
    int64_t n_shared = m.n_tokens / slots, n_idle = 0, n_pages = kvl_paged_pages_of(p, r->n_prompt);
    for (int64_t i = 0; i < n_shared; i++) n_idle += p->pages[p->scratch[i]].refs == 0;
    KVL_TRY(kvl_paged_check_available(p, n_pages - n_shared, kvl_paged_available(p) - n_idle));
    KVL_TRY(kvl_paged_take_handle(p, &out->seq));
    kvl_paged_seq *s = &p->seqs[out->seq];
    s->need = need;
    s->n_pages = s->promised_pages = n_pages;
    s->length = out->n_cached = m.n_tokens;
    p->tokens += m.n_tokens;
    for (int64_t i = 0; i < n_shared; i++) share_page(p, s, i, p->scratch[i]);
    for (int64_t i = n_shared; i < n_pages; i++) {
        int32_t from = i < m.n_pages ? p->scratch[i] : KVL_PAGE_NONE, n = 0;
        if (from != KVL_PAGE_NONE && p->pages[from].refs == 0) { /* used: no longer the oldest */
            unlist(p, from);
            kvl_paged_keep(p, from);
        }
        kvl_page *g = kvl_paged_take_page(p, s, i);
        if (i == n_shared && m.n_tokens % slots) n = (int32_t)(m.n_tokens % slots);
        kvl_paged_set_fill(p, g, n);
        /* The page taken may be the one found, when it was the last to be had. */
        if (n && kvl_paged_table(p, s)[i] != from)
            kvl_paged_order_copy(p, from, kvl_paged_table(p, s)[i], n);
    }
    if (p->keys) note_prompt(p, s, r, m.n_asked);
    count(p, r, &m);
    kvl_paged_peaks(p);
    return KVL_OK;
}

/* ---- what comes after the prompt ------------------------------------------------------------ */

void kvl_paged_copy_ids(kvl_paged *p, int32_t from, int32_t to, int64_t n) {
    if (p->page_ids) memcpy(ids_of(p, to), ids_of(p, from), (size_t)n * sizeof(int32_t));
}

/* Parent and child may go on differently: what the prompt announced beyond their common tokens is
 * forgotten. */
void kvl_paged_forked(kvl_paged *p, kvl_paged_seq *s, kvl_paged_seq *child) {
    s->known = child->known = kvl_min64(s->known, s->length);
    for (int64_t i = s->length / p->config.page_tokens; i < s->n_pages; i++) {
        int32_t id = kvl_paged_table(p, s)[i];
        if (!p->keys[id].content) kvl_paged_reset_key(p, id);
    }
}

kvl_status kvl_paged_learn(void *state, kvl_seq seq, const int32_t *tokens, int64_t n_tokens) {
    kvl_paged *p = state;
    kvl_paged_seq *s = kvl_paged_find(p, seq);
    int64_t slots = p->config.page_tokens;
    if (!s) return kvl_paged_dead(seq);
    if (n_tokens < 0 || (n_tokens && n_tokens > s->length - s->known))
        return kvl_fail(KVL_ERR_INPUT, "ids of %lld tokens: sequence %d has %lld, %lld are known",
                        (long long)n_tokens, seq, (long long)s->length, (long long)s->known);
    if (!p->page_ids) return KVL_OK;
    while (n_tokens > 0) {
        int64_t index = s->known / slots, at = s->known % slots;
        int64_t n = kvl_min64(n_tokens, slots - at);
        int32_t id = kvl_paged_table(p, s)[index];
        uint64_t key, content;
        s->known += n;
        if (id != KVL_PAGE_NONE) {
            memcpy(ids_of(p, id) + at, tokens, (size_t)n * sizeof *tokens);
            if (at + n == slots && !p->keys[id].key_fill &&
                parent_of(p, s, index, &key, &content)) {
                p->keys[id].key = chain_key(p, key, ids_of(p, id));
                p->keys[id].key_fill = (int32_t)slots;
                kvl_paged_filled(p, s, index);
            }
        }
        tokens += n;
        n_tokens -= n;
    }
    return KVL_OK;
}
