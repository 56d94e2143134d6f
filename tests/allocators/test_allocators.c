#include "tests/test.h"

#include "allocators/allocator.h"
#include "core/rng.h"

/* ---- helpers -------------------------------------------------------------------------------- */

static const kvl_allocator *module(const char *name) {
    const kvl_allocator *out;
    assert_ok(kvl_allocator_find(name, &out));
    return out;
}

static void *make(const kvl_allocator *a, const kvl_allocator_config *config) {
    uint64_t bytes;
    assert_ok(a->state_bytes(config, &bytes));
    void *state = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(state);
    memset(state, 0xa5, bytes); /* init must not rely on zeros */
    assert_ok(a->init(state, config));
    return state;
}

static void assert_valid(const kvl_allocator *a, const void *state) {
    char why[200];
    if (!a->is_valid(state, why, sizeof why)) fail_msg("%s", why);
}

static kvl_ledger ledger_of(const kvl_allocator *a, const void *state, int64_t wanted) {
    kvl_ledger l;
    a->stats(state, wanted, &l);
    assert_int_equal(l.live + l.reserved + l.internal + l.cached + l.padding + l.free, l.pool);
    assert_true(l.live >= 0 && l.reserved >= 0 && l.internal >= 0 && l.padding >= 0 && l.free >= 0);
    return l;
}

static int64_t page_tokens_of(const kvl_allocator *a, const void *state) {
    kvl_placement placement;
    a->placement(state, &placement);
    return placement.page_tokens;
}

static int64_t slot_of(const kvl_allocator *a, const void *state, kvl_seq seq, int64_t token) {
    int64_t slab, size = page_tokens_of(a, state);
    const int32_t *pages = a->pages(state, seq, &slab);
    return pages ? pages[token / size] * size + token % size : slab + token;
}

/* ---- a small model: tokens per sequence, and a memory that only orders and writes change
 * --------- */

enum { MAX_SEQS = 6, MAX_POOL = 4096, NO_TOKEN = -1 };

typedef struct model {
    const kvl_allocator *a;
    void *state;
    kvl_allocator_config config;
    int paged;
    int32_t memory[MAX_POOL]; /* token id in each slot */
    struct {
        int alive;
        int64_t length, need, held; /* held: pages in its table, promised ones included */
        int64_t promised;
        int32_t tokens[MAX_POOL];
    } seqs[MAX_SEQS];
    int32_t next_token;
    int64_t copied;
    kvl_rng rng;
} model;

static int64_t pages_for(const model *m, int64_t tokens) {
    return (tokens + m->config.page_tokens - 1) / m->config.page_tokens;
}

/* Holders of each page, counted from the tables that the allocator shows. */
static void count_refs(const model *m, int *refs) {
    memset(refs, 0, MAX_POOL * sizeof *refs);
    for (int s = 0; s < MAX_SEQS; s++) {
        if (!m->seqs[s].alive) continue;
        int64_t slab;
        const int32_t *pages = m->a->pages(m->state, s, &slab);
        for (int64_t i = 0; i < m->seqs[s].held; i++) {
            assert_in_range(pages[i], 0, m->config.pool_tokens / m->config.page_tokens - 1);
            refs[pages[i]]++;
        }
    }
}

static int64_t free_pages(const model *m) {
    int refs[MAX_POOL];
    count_refs(m, refs);
    int64_t n = m->config.pool_tokens / m->config.page_tokens, n_free = 0;
    for (int64_t i = 0; i < n; i++) n_free += refs[i] == 0;
    return n_free;
}

/* The ledger from its definitions: sets of slots. */
static void check_ledger(const model *m) {
    static uint8_t kind[MAX_POOL]; /* 1 handed out, 2 needed, 4 written */
    memset(kind, 0, sizeof kind);
    int64_t tokens = 0, n_alive = 0, size = page_tokens_of(m->a, m->state);
    for (int s = 0; s < MAX_SEQS; s++) {
        if (!m->seqs[s].alive) continue;
        int64_t slots = m->paged ? m->seqs[s].held * size : size;
        for (int64_t t = 0; t < slots; t++) {
            int64_t slot = slot_of(m->a, m->state, s, t);
            assert_in_range(slot, 0, m->config.pool_tokens - 1);
            if (!m->paged) assert_false(kind[slot]);
            kind[slot] |= (uint8_t)(1 | (t < m->seqs[s].need) << 1 | (t < m->seqs[s].length) << 2);
        }
        tokens += m->seqs[s].length;
        n_alive++;
    }
    int64_t live = 0, reserved = 0, internal = 0, used = 0;
    for (int64_t i = 0; i < m->config.pool_tokens; i++) {
        used += kind[i] != 0;
        live += kind[i] >> 2 & 1;
        reserved += kind[i] == 3;
        internal += kind[i] == 1;
    }
    int64_t padding = m->config.pool_tokens % size, wanted = (int64_t)m->next_token % 200;
    kvl_ledger l = ledger_of(m->a, m->state, wanted);
    assert_int_equal(l.pool, m->config.pool_tokens);
    assert_int_equal(l.live, live);
    assert_int_equal(l.reserved, reserved);
    assert_int_equal(l.internal, internal);
    assert_int_equal(l.padding, padding);
    assert_int_equal(l.free, m->config.pool_tokens - padding - used);
    assert_int_equal(l.shared_saved, tokens - live);
    assert_int_equal(l.copied_slots, m->copied);
    assert_true(l.live_peak >= live && l.used_peak >= l.pool - l.free);
    int64_t fits = n_alive == MAX_SEQS ? 0 : l.free;
    if (fits > m->config.max_seq_tokens) fits = m->config.max_seq_tokens;
    assert_int_equal(l.largest_admissible, fits);
    assert_int_equal(l.external, wanted > fits ? l.free : 0);
}

static void check_contents(const model *m) {
    for (int s = 0; s < MAX_SEQS; s++) {
        int64_t length = m->a->length(m->state, s);
        assert_int_equal(length, m->seqs[s].alive ? m->seqs[s].length : -1);
        for (int64_t t = 0; t < length; t++) {
            int32_t got = m->memory[slot_of(m->a, m->state, s, t)];
            if (got != m->seqs[s].tokens[t])
                fail_msg("sequence %d, token %lld: slot holds %d, not %d", s, (long long)t, got,
                         m->seqs[s].tokens[t]);
        }
    }
}

static void run_orders(model *m) {
    kvl_order orders[2];
    int32_t n;
    while ((n = m->a->take_orders(m->state, orders, 2)) > 0) {
        for (int32_t i = 0; i < n; i++) {
            assert_int_equal(orders[i].kind, KVL_ORDER_COPY_SLOTS);
            memcpy(m->memory + orders[i].dst_slot, m->memory + orders[i].src_slot,
                   (size_t)orders[i].n_slots * sizeof *m->memory);
            m->copied += orders[i].n_slots;
        }
    }
}

static int alive_count(const model *m) {
    int n = 0;
    for (int s = 0; s < MAX_SEQS; s++) n += m->seqs[s].alive;
    return n;
}

static void do_reserve(model *m) {
    int64_t n_prompt = (int64_t)kvl_rng_below(&m->rng, (uint64_t)m->config.max_seq_tokens / 2);
    int64_t max_new = (int64_t)kvl_rng_below(&m->rng, (uint64_t)m->config.max_seq_tokens / 2);
    int fits = alive_count(m) < MAX_SEQS;
    if (m->paged) fits = fits && pages_for(m, n_prompt) <= free_pages(m);
    kvl_seq seq = -7;
    kvl_status status = m->a->reserve(m->state, n_prompt, max_new, &seq);
    if (!fits) {
        assert_int_equal(status, KVL_ERR_OOM);
        return;
    }
    assert_int_equal(status, KVL_OK);
    assert_in_range(seq, 0, MAX_SEQS - 1);
    assert_false(m->seqs[seq].alive);
    m->seqs[seq].alive = 1;
    m->seqs[seq].length = 0;
    m->seqs[seq].need = n_prompt + max_new;
    m->seqs[seq].held = m->seqs[seq].promised = pages_for(m, n_prompt);
}

static void do_append(model *m, kvl_seq seq) {
    int64_t old = m->seqs[seq].length, held = m->seqs[seq].held, size = m->config.page_tokens;
    int64_t n = 1 + (int64_t)(kvl_rng_below(&m->rng, 3) ? 0 : kvl_rng_below(&m->rng, 40));
    kvl_status want = KVL_OK;
    if (old + n > m->config.max_seq_tokens) want = KVL_ERR_INPUT;
    if (m->paged && want == KVL_OK) {
        int refs[MAX_POOL];
        int64_t slab, more = pages_for(m, old + n) - held;
        count_refs(m, refs);
        const int32_t *pages = m->a->pages(m->state, seq, &slab);
        int copies = old % size != 0 && refs[pages[old / size]] > 1;
        if (more < 0) more = 0;
        if (more + copies > free_pages(m)) want = KVL_ERR_OOM;
        if (want == KVL_OK) m->seqs[seq].held += more;
    }
    assert_int_equal(m->a->append(m->state, seq, n), want);
    run_orders(m);
    if (want != KVL_OK) return;
    m->seqs[seq].length += n;
    for (int64_t t = old; t < old + n; t++) {
        m->seqs[seq].tokens[t] = ++m->next_token;
        m->memory[slot_of(m->a, m->state, seq, t)] = m->next_token;
    }
}

static void do_fork(model *m, kvl_seq seq) {
    kvl_seq child = -7;
    kvl_status status = m->a->fork(m->state, seq, &child);
    if (!m->paged) {
        assert_int_equal(status, KVL_ERR_UNSUPPORTED);
        return;
    }
    assert_int_equal(status, alive_count(m) < MAX_SEQS ? KVL_OK : KVL_ERR_OOM);
    if (status != KVL_OK) return;
    assert_false(m->seqs[child].alive);
    m->seqs[child] = m->seqs[seq];
    m->seqs[child].held = pages_for(m, m->seqs[seq].length);
    m->seqs[child].promised = 0;
}

static void do_truncate(model *m, kvl_seq seq) {
    int64_t n = (int64_t)kvl_rng_below(&m->rng, (uint64_t)m->seqs[seq].length + 1);
    if (m->paged) { /* unshared pages that were promised to the prompt stay */
        int refs[MAX_POOL];
        int64_t slab, used = pages_for(m, n), held = m->seqs[seq].held;
        count_refs(m, refs);
        const int32_t *pages = m->a->pages(m->state, seq, &slab);
        int keeps = used < held && refs[pages[used]] == 1 && m->seqs[seq].promised > used;
        int64_t kept = m->seqs[seq].promised < held ? m->seqs[seq].promised : held;
        m->seqs[seq].held = keeps ? kept : used;
    }
    assert_ok(m->a->truncate(m->state, seq, n));
    m->seqs[seq].length = n;
}

static void random_operations(const char *name, int64_t pool, int64_t page, int64_t longest,
                              uint64_t seed) {
    static model m;
    memset(&m, 0, sizeof m);
    m.a = module(name);
    m.config = (kvl_allocator_config){
        .pool_tokens = pool, .page_tokens = page, .max_seq_tokens = longest, .max_seqs = MAX_SEQS};
    m.state = make(m.a, &m.config);
    m.paged = strcmp(name, "paged") == 0;
    m.rng = kvl_rng_make(seed, (uint64_t)page);
    for (int op = 0; op < 100000; op++) {
        kvl_seq seq = (kvl_seq)kvl_rng_below(&m.rng, MAX_SEQS);
        int what = (int)kvl_rng_below(&m.rng, 100);
        if (!m.seqs[seq].alive) {
            kvl_seq child;
            assert_int_equal(m.a->append(m.state, seq, 1), KVL_ERR_INPUT);
            assert_int_equal(m.a->release(m.state, seq), KVL_ERR_INPUT);
            assert_int_equal(m.a->truncate(m.state, seq, 0), KVL_ERR_INPUT);
            assert_int_equal(m.a->fork(m.state, seq, &child), KVL_ERR_INPUT);
            if (what < 60) do_reserve(&m);
        } else if (what < 75) {
            do_append(&m, seq);
        } else if (what < 83) {
            do_fork(&m, seq);
        } else if (what < 92) {
            do_truncate(&m, seq);
        } else if (what < 96) {
            do_reserve(&m);
        } else {
            assert_ok(m.a->release(m.state, seq));
            m.seqs[seq].alive = 0;
        }
        assert_valid(m.a, m.state);
        check_ledger(&m);
        check_contents(&m);
    }
    assert_int_equal(m.copied > 0, m.paged && page > 1); /* a page of one slot is never half full */
    for (kvl_seq s = 0; s < MAX_SEQS; s++) {
        if (m.seqs[s].alive) assert_ok(m.a->release(m.state, s));
    }
    kvl_ledger l = ledger_of(m.a, m.state, 0);
    assert_int_equal(l.free + l.padding, pool);
    free(m.state);
}

static void random_contiguous(void **state) {
    random_operations("contiguous", 6 * 90 + 17, 1, 90, 1);
}
static void random_paged_1(void **state) {
    random_operations("paged", 150, 1, 90, 2);
}
static void random_paged_16(void **state) {
    random_operations("paged", 16 * 13 + 5, 16, 100, 3);
}
static void random_paged_17(void **state) {
    random_operations("paged", 17 * 12 + 16, 17, 100, 4);
}
static void random_paged_256(void **state) {
    random_operations("paged", 256 * 7 + 1, 256, 700, 5);
}

/* ---- scenarios ------------------------------------------------------------------------------ */

/* A gauge of used pages alone says 66.7 %; 36.5 % of the slots hold tokens. The ledger has both. */
static void prompts_of_17_in_pages_of_16(void **unused) {
    const kvl_allocator *a = module("paged");
    const kvl_allocator_config config = {
        .pool_tokens = 96, .page_tokens = 16, .max_seq_tokens = 64, .max_seqs = 4};
    void *state = make(a, &config);
    kvl_seq first, second;
    assert_ok(a->reserve(state, 17, 1, &first));
    assert_ok(a->reserve(state, 17, 1, &second));
    kvl_ledger l = ledger_of(a, state, 0);
    assert_int_equal(l.live, 0);
    assert_int_equal(l.reserved, 36); /* 2 x (17 + 1) */
    assert_int_equal(l.internal, 28);
    assert_ok(a->append(state, first, 17));
    assert_ok(a->append(state, second, 17));
    assert_ok(a->append(state, second, 1));
    l = ledger_of(a, state, 40);
    assert_int_equal(l.pool - l.free, 64); /* 66.7 % of 96 */
    assert_int_equal(l.live, 35);          /* 36.5 % */
    assert_int_equal(l.reserved, 1);
    assert_int_equal(l.internal, 28);
    assert_int_equal(l.external, 32); /* 32 slots are free, none for a request of 40 */
    assert_int_equal(l.largest_admissible, 32);
    assert_int_equal(ledger_of(a, state, 32).external, 0);
    free(state);
}

static void refusals_of_paged(void **unused) {
    const kvl_allocator *a = module("paged");
    const kvl_allocator_config config = {
        .pool_tokens = 16 * 10 + 3, .page_tokens = 16, .max_seq_tokens = 1000, .max_seqs = 3};
    void *state = make(a, &config);
    kvl_seq seq, other, child;
    assert_refused(a->reserve(state, 100, 100, &seq), KVL_ERR_INPUT,
                   "needs 13 pages of 16 tokens, pool has 10, longest that fits is 160 tokens");
    assert_refused(a->reserve(state, 1001, 0, &seq), KVL_ERR_INPUT, "1000 tokens");
    assert_refused(a->reserve(state, INT64_MAX, INT64_MAX, &seq), KVL_ERR_INPUT, "longest");
    assert_refused(a->reserve(state, -1, 5, &seq), KVL_ERR_INPUT, "at least 0");
    assert_ok(a->reserve(state, 65, 10, &seq));
    assert_refused(a->reserve(state, 81, 0, &other), KVL_ERR_OOM,
                   "needs 6 pages of 16 tokens, pool has 5 free of 10, longest that fits is 80");
    kvl_ledger before = ledger_of(a, state, 81), after;
    assert_int_equal(before.external, before.free);
    assert_ok(a->append(state, seq, 70));
    assert_ok(a->append(state, seq, 90));
    before = ledger_of(a, state, 0);
    assert_refused(a->append(state, seq, 1), KVL_ERR_INPUT, "needs 11 pages");
    assert_refused(a->append(state, seq, 841), KVL_ERR_INPUT, "longest sequence is 1000");
    assert_refused(a->append(state, seq, -1), KVL_ERR_INPUT, "at least 0");
    assert_refused(a->truncate(state, seq, 161), KVL_ERR_INPUT, "has 160");
    assert_refused(a->truncate(state, seq, -1), KVL_ERR_INPUT, "truncate to -1");
    assert_ok(a->append(state, seq, 0));
    after = ledger_of(a, state, 0);
    assert_memory_equal(&before, &after, sizeof after);
    assert_ok(a->reserve(state, 0, 10, &other)); /* takes nothing yet */
    assert_refused(a->append(state, other, 1), KVL_ERR_OOM, "0 free of 10");
    assert_ok(a->fork(state, seq, &child));
    assert_refused(a->fork(state, seq, &child), KVL_ERR_OOM, "max_seqs");
    assert_refused(a->reserve(state, 0, 1, &child), KVL_ERR_OOM, "all 3 sequences");
    const kvl_seq bad[] = {-1, 3, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        int64_t slab;
        assert_refused(a->release(state, bad[i]), KVL_ERR_INPUT, "not alive");
        assert_int_equal(a->length(state, bad[i]), -1);
        assert_null(a->pages(state, bad[i], &slab));
    }
    assert_ok(a->release(state, seq));
    assert_refused(a->release(state, seq), KVL_ERR_INPUT, "not alive");
    assert_valid(a, state);
    free(state);
}

static void refusals_of_contiguous(void **unused) {
    const kvl_allocator *a = module("contiguous");
    const kvl_allocator_config config = {
        .pool_tokens = 250, .page_tokens = 1, .max_seq_tokens = 100, .max_seqs = 8};
    void *state = make(a, &config);
    kvl_seq seq, other, third;
    int64_t slab;
    assert_refused(a->reserve(state, 60, 41, &seq), KVL_ERR_INPUT, "longest that fits is 100");
    assert_ok(a->reserve(state, 17, 3, &seq));
    assert_ok(a->reserve(state, 100, 0, &other));
    assert_refused(a->reserve(state, 1, 1, &third), KVL_ERR_OOM, "0 free of 2");
    kvl_ledger l = ledger_of(a, state, 1);
    assert_int_equal(l.reserved, 120);
    assert_int_equal(l.internal, 80);
    assert_int_equal(l.padding, 50);
    assert_int_equal(l.largest_admissible, 0);
    assert_ok(a->append(state, seq, 17));
    assert_refused(a->append(state, seq, 84), KVL_ERR_INPUT, "longest sequence is 100");
    assert_refused(a->fork(state, seq, &third), KVL_ERR_UNSUPPORTED, "paged");
    assert_null(a->pages(state, other, &slab));
    assert_int_equal(slab, 100);
    assert_int_equal(page_tokens_of(a, state), 100);
    assert_ok(a->release(state, other));
    assert_refused(a->release(state, other), KVL_ERR_INPUT, "not alive");
    l = ledger_of(a, state, 101);
    assert_int_equal(l.external, 100); /* free, but no slab is that long */
    assert_int_equal(l.live_peak, 17);
    assert_int_equal(l.used_peak, 250); /* both slabs and the padding */
    free(state);
}

static void configs_refused(void **unused) {
    const int64_t most = INT64_MAX;
    const struct {
        int64_t pool_tokens, page_tokens, max_seq_tokens;
        int32_t max_seqs;
        const char *names, *part;
    } cases[] = {
        {0, 16, 10, 1, "both", "pool_tokens 0"},      {-5, 16, 10, 1, "both", "pool_tokens -5"},
        {100, 0, 10, 1, "paged", "page_tokens 0"},    {100, -1, 10, 1, "paged", "page_tokens -1"},
        {100, 101, 10, 1, "paged", "one page"},       {100, 16, 0, 1, "both", "max_seq_tokens 0"},
        {100, 16, 101, 1, "contiguous", "one slab"},  {100, 16, 10, 0, "both", "max_seqs 0"},
        {100, 16, most, 1, "both", "max_seq_tokens"}, {100, 16, 10, -3, "both", "max_seqs -3"},
        {most, 1, 10, 1, "paged", "pages, at most"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kvl_allocator_config config = {.pool_tokens = cases[i].pool_tokens,
                                             .page_tokens = cases[i].page_tokens,
                                             .max_seq_tokens = cases[i].max_seq_tokens,
                                             .max_seqs = cases[i].max_seqs};
        for (size_t m = 0; m < kvl_allocator_count(); m++) {
            const kvl_allocator *a = kvl_allocator_at(m);
            uint64_t bytes;
            if (strcmp(cases[i].names, "both") && strcmp(cases[i].names, a->name)) continue;
            assert_refused(a->state_bytes(&config, &bytes), KVL_ERR_INPUT, cases[i].part);
        }
    }
}

/* 65,536 blocks whose slots lie past 2^31: page ids stay small, slots do not fit 32 bits. */
static void slots_past_32_bits(void **unused) {
    const kvl_allocator *a = module("paged");
    const int64_t page = 1 << 20, n_pages = 65536;
    const kvl_allocator_config config = {.pool_tokens = page * n_pages,
                                         .page_tokens = page,
                                         .max_seq_tokens = INT32_MAX,
                                         .max_seqs = 64};
    void *state = make(a, &config);
    kvl_seq seq, child;
    for (int64_t left = n_pages - 2; left > 0; left -= 2047) {
        int64_t take = left < 2047 ? left : 2047;
        assert_ok(a->reserve(state, take * page, 0, &seq));
        assert_ok(a->append(state, seq, take * page));
    }
    assert_ok(a->reserve(state, 5, 10, &seq));
    assert_ok(a->append(state, seq, 5));
    assert_ok(a->fork(state, seq, &child));
    assert_ok(a->append(state, child, 1));
    kvl_order order;
    assert_int_equal(a->take_orders(state, &order, 1), 1);
    assert_true(order.src_slot == (n_pages - 2) * page && order.dst_slot == (n_pages - 1) * page);
    assert_int_equal(order.n_slots, 5);
    assert_int_equal(a->take_orders(state, &order, 1), 0);
    kvl_ledger l = ledger_of(a, state, 0);
    assert_int_equal(l.live, (n_pages - 2) * page + 11);
    assert_int_equal(l.copied_slots, 5);
    assert_valid(a, state);

    const kvl_allocator *c = module("contiguous");
    const kvl_allocator_config slabs = {
        .pool_tokens = 1LL << 40, .page_tokens = 1, .max_seq_tokens = 1 << 30, .max_seqs = 64};
    void *other = make(c, &slabs);
    int64_t slab;
    for (int i = 0; i < 10; i++) assert_ok(c->reserve(other, 1, 1, &seq));
    c->pages(other, seq, &slab);
    assert_true(slab == 9LL << 30);
    assert_valid(c, other);
    free(other);
    free(state);
}

/* Orders not taken: refused before anything changes, never dropped. */
static void orders_wait(void **unused) {
    const kvl_allocator *a = module("paged");
    const kvl_allocator_config config = {
        .pool_tokens = 64, .page_tokens = 4, .max_seq_tokens = 16, .max_seqs = 3};
    void *state = make(a, &config);
    kvl_seq parent, child;
    kvl_order orders[8];
    assert_ok(a->reserve(state, 2, 2, &parent));
    assert_ok(a->append(state, parent, 2));
    for (int i = 0; i < 6; i++) {
        assert_ok(a->fork(state, parent, &child));
        assert_ok(a->append(state, child, 1));
        assert_ok(a->release(state, child));
    }
    assert_ok(a->fork(state, parent, &child));
    assert_refused(a->append(state, child, 1), KVL_ERR_INTERNAL, "6 orders");
    assert_int_equal(a->length(state, child), 2);
    assert_int_equal(a->take_orders(state, orders, 0), 0);
    assert_int_equal(a->take_orders(state, orders, 8), 6);
    assert_ok(a->append(state, child, 1));
    assert_valid(a, state);
    free(state);
}

/* is_valid notices damage: state bytes are flipped one at a time, and enough of them are caught. */
static void damage_is_noticed(void **unused) {
    for (size_t m = 0; m < kvl_allocator_count(); m++) {
        const kvl_allocator *a = kvl_allocator_at(m);
        const kvl_allocator_config config = {
            .pool_tokens = 64, .page_tokens = 4, .max_seq_tokens = 16, .max_seqs = 3};
        void *state = make(a, &config);
        kvl_seq first, second;
        assert_ok(a->reserve(state, 6, 2, &first));
        assert_ok(a->append(state, first, 6));
        assert_ok(a->reserve(state, 3, 9, &second));
        kvl_ledger l = ledger_of(a, state, 0);
        char why[200] = "";
        /* `live` stands in the state as an int64; whatever copy is_valid trusts must be checked. */
        uint64_t bytes;
        assert_ok(a->state_bytes(&config, &bytes));
        int found = 0;
        for (uint64_t at = sizeof config; at + 8 <= bytes && !found; at += 8) {
            int64_t *word = (int64_t *)((char *)state + at);
            if (*word != l.live) continue;
            (*word)++;
            found = !a->is_valid(state, why, sizeof why) && strlen(why) > 0;
            (*word)--;
        }
        assert_true(found);
        assert_valid(a, state);
        free(state);
    }
}

static void registry(void **unused) {
    const kvl_allocator *a;
    assert_ok(kvl_allocator_find("contiguous", &a));
    assert_string_equal(a->name, "contiguous");
    assert_ok(kvl_allocator_find("paged", &a));
    assert_string_equal(a->name, "paged");
    assert_true(kvl_allocator_count() >= 2);
    assert_null(kvl_allocator_at(kvl_allocator_count()));
    assert_refused(kvl_allocator_find("pagd", &a), KVL_ERR_INPUT, "did you mean 'paged'?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_contiguous), cmocka_unit_test(random_paged_1),
        cmocka_unit_test(random_paged_16),   cmocka_unit_test(random_paged_17),
        cmocka_unit_test(random_paged_256),  cmocka_unit_test(prompts_of_17_in_pages_of_16),
        cmocka_unit_test(refusals_of_paged), cmocka_unit_test(refusals_of_contiguous),
        cmocka_unit_test(configs_refused),   cmocka_unit_test(slots_past_32_bits),
        cmocka_unit_test(orders_wait),       cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(registry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
