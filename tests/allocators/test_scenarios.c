/* How systems of this kind failed, case by case, and what is right instead. Elsewhere:
 *
 *   prompts of 17 tokens in pages of 16; offsets of pages past 2^31   test_allocators.c
 *   last_page_len above the page size                                 core/test_kv_view.c
 *   page sizes of manager and kernel that differ; NaN in free slots
 * decoder/test_engine_allocators.c preempted and resumed without end harness/test_serve.c */
#include "tests/test.h"

#include "allocators/paged_internal.h"

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
    assert_ok(a->init(state, config));
    return state;
}

static kvl_ledger ledger_of(const kvl_allocator *a, const void *state, int64_t wanted) {
    kvl_ledger l;
    char why[200];
    if (!a->is_valid(state, why, sizeof why)) fail_msg("%s", why);
    a->stats(state, wanted, &l);
    assert_int_equal(l.live + l.reserved + l.internal + l.cached + l.padding + l.free, l.pool);
    return l;
}

/* One request above the whole pool is refused for good, with the numbers; one that fits an empty
 * pool but not this one may come again. */
static void what_never_fits(void **unused) {
    for (size_t i = 0; i < kvl_allocator_count(); i++) {
        const kvl_allocator *a = kvl_allocator_at(i);
        const kvl_allocator_config config = {.pool_tokens = 1000,
                                             .page_tokens = 10,
                                             .max_seq_tokens = 2000,
                                             .max_seqs = 4,
                                             .reserve = KVL_RESERVE_ORACLE};
        void *state = make(a, &config);
        kvl_seq seq, other;
        kvl_ledger before = ledger_of(a, state, 0), after;
        assert_refused(a->reserve(state, 1001, 0, &seq), KVL_ERR_INPUT, "pool has 100");
        assert_refused(a->reserve(state, 2001, 0, &seq), KVL_ERR_INPUT,
                       "longest that fits is 2000");
        after = ledger_of(a, state, 0);
        assert_memory_equal(&before, &after, sizeof after);
        assert_ok(a->reserve(state, 500, 0, &seq));
        assert_refused(a->reserve(state, 510, 0, &other), KVL_ERR_OOM, "longest that fits is");
        free(state);
    }
}

/* 384 asked, 330 free in one piece and 402 in holes: out of space, and the ledger says why. */
static void free_but_out_of_space(void **unused) {
    for (int fit = KVL_FIT_BEST; fit <= KVL_FIT_FIRST; fit++) {
        const kvl_allocator *a = module("contiguous");
        const kvl_allocator_config config = {.pool_tokens = 10 + 201 + 10 + 201 + 10 + 330,
                                             .max_seq_tokens = 762,
                                             .max_seqs = 9,
                                             .reserve = KVL_RESERVE_ORACLE,
                                             .fit = fit};
        void *state = make(a, &config);
        kvl_seq holes[2], seq;
        for (int i = 0; i < 2; i++) {
            assert_ok(a->reserve(state, 10, 0, &seq));
            assert_ok(a->reserve(state, 201, 0, &holes[i]));
        }
        assert_ok(a->reserve(state, 10, 0, &seq));
        for (int i = 0; i < 2; i++) assert_ok(a->release(state, holes[i]));
        assert_refused(a->reserve(state, 384, 0, &seq), KVL_ERR_OOM,
                       "needs a slab of 384 tokens, pool has 732 free of 762, longest that fits is "
                       "330");
        kvl_ledger l = ledger_of(a, state, 384);
        assert_int_equal(l.free, 732);
        assert_int_equal(l.largest_admissible, 330);
        assert_int_equal(l.external, 732);
        assert_int_equal(ledger_of(a, state, 330).external, 402); /* the holes still cannot */
        assert_ok(a->reserve(state, 330, 0, &seq));
        free(state);
    }
}

/* What no request can ever use for its size is neither free nor in use: a column of its own. */
static void what_alignment_loses_is_padding(void **unused) {
    static const struct {
        const char *name;
        int64_t page_tokens, padding;
    } cases[] = {
        {"paged", 16, 1000 % 16},     {"paged", 768, 1000 - 768}, {"contiguous", 1, 1000 % 300},
        {"virtual", 768, 1000 - 768}, {"growing", 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kvl_allocator *a = module(cases[i].name);
        const kvl_allocator_config config = {.pool_tokens = 1000,
                                             .page_tokens = cases[i].page_tokens,
                                             .max_seq_tokens = 300,
                                             .max_seqs = 3};
        void *state = make(a, &config);
        kvl_seq seq;
        kvl_ledger l = ledger_of(a, state, 0);
        assert_int_equal(l.padding, cases[i].padding);
        assert_int_equal(l.free, 1000 - cases[i].padding);
        assert_ok(a->reserve(state, 300, 0, &seq));
        assert_ok(a->append(state, seq, 300));
        assert_int_equal(ledger_of(a, state, 0).padding, cases[i].padding);
        free(state);
    }
}

/* A page size that one check lets through and another does not: there is one check, and what it
 * passes works, 768 and sizes that are no power of two included. */
static void one_rule_for_page_sizes(void **unused) {
    static const int64_t sizes[] = {-1, 0, 1, 15, 16, 100, 768, 1000, 1001, INT64_MAX};
    for (size_t i = 0; i < kvl_allocator_count(); i++) {
        const kvl_allocator *a = kvl_allocator_at(i);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const kvl_allocator_config config = {
                .pool_tokens = 1000, .page_tokens = sizes[s], .max_seq_tokens = 300, .max_seqs = 3};
            uint64_t bytes;
            static char memory[1 << 20] __attribute__((aligned(64)));
            char why[200];
            kvl_seq seq;
            kvl_status status = a->state_bytes(&config, &bytes);
            snprintf(why, sizeof why, "%s", status == KVL_OK ? "" : kvl_message());
            if (status == KVL_OK) assert_true(bytes <= sizeof memory);
            assert_int_equal(a->init(memory, &config), status);
            if (status != KVL_OK) {
                assert_string_equal(kvl_message(), why);
                continue;
            }
            assert_ok(a->reserve(memory, 250, 50, &seq));
            assert_ok(a->append(memory, seq, 300));
            assert_int_equal(ledger_of(a, memory, 0).live, 300);
        }
    }
}

/* Prompt of 100, output of 25: what each policy sets aside, and where the ledger puts it. */
static void reserve_policies(void **unused) {
    static const struct {
        const char *name;
        kvl_reserve_policy policy;
        int64_t internal;
    } cases[] = {
        {"contiguous", KVL_RESERVE_MAX, 300 - 125}, {"contiguous", KVL_RESERVE_POW2, 7},
        {"contiguous", KVL_RESERVE_ORACLE, 0},      {"buddy", KVL_RESERVE_MAX, 512 - 125},
        {"buddy", KVL_RESERVE_POW2, 256 - 125}, /* 132 rounded up */
        {"buddy", KVL_RESERVE_ORACLE, 128 - 125},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kvl_allocator *a = module(cases[i].name);
        const kvl_allocator_config config = {
            .pool_tokens = 3000, .max_seq_tokens = 300, .max_seqs = 4, .reserve = cases[i].policy};
        void *state = make(a, &config);
        kvl_seq seq;
        assert_ok(a->reserve(state, 100, 25, &seq));
        assert_ok(a->append(state, seq, 100));
        kvl_ledger l = ledger_of(a, state, 0);
        assert_int_equal(l.live, 100);
        assert_int_equal(l.reserved, 25);
        assert_int_equal(l.internal, cases[i].internal);
        free(state);
    }
    kvl_reserve_policy policy;
    assert_ok(kvl_reserve_policy_parse("pow2", &policy));
    assert_int_equal(policy, KVL_RESERVE_POW2);
    assert_refused(kvl_reserve_policy_parse("orcale", &policy), KVL_ERR_INPUT,
                   "did you mean 'oracle'?");
}

/* Slots past 2^31 in one sequence after another: addresses are 64 bits everywhere. */
static void slabs_past_32_bits(void **unused) {
    static const char *const names[] = {"contiguous", "buddy", "growing", "virtual"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const kvl_allocator *a = module(names[i]);
        const int64_t longest = INT64_C(1) << 30;
        const kvl_allocator_config config = {.pool_tokens = longest * 32,
                                             .page_tokens = 1 << 20,
                                             .max_seq_tokens = longest,
                                             .max_seqs = 16,
                                             .reserve = KVL_RESERVE_ORACLE};
        void *state = make(a, &config);
        kvl_seq seq;
        int64_t slab, most = 0;
        for (int k = 0; k < 8; k++) {
            assert_ok(a->reserve(state, longest, 0, &seq));
            assert_ok(a->append(state, seq, longest));
            a->pages(state, seq, &slab);
            if (slab > most) most = slab;
        }
        assert_int_equal(ledger_of(a, state, 0).live, longest * 8);
        assert_true(most >= longest * 7);
        free(state);
    }
}

/* ---- prefix cache --------------------------------------------------------------------------- */

enum { PAGE = 4 };

static void *make_cache(const kvl_allocator *a, int64_t n_pages) {
    const kvl_allocator_config config = {.pool_tokens = n_pages * PAGE,
                                         .page_tokens = PAGE,
                                         .max_seq_tokens = 100,
                                         .max_seqs = 8,
                                         .prefix = KVL_PREFIX_TOKENS};
    return make(a, &config);
}

/* Admits ids[n], writes what was not found, and returns how many tokens were. */
static int64_t admit(const kvl_allocator *a, void *state, const int32_t *ids, int64_t n,
                     bool readmitted, kvl_seq *seq) {
    const kvl_request r = {.n_prompt = n, .tokens = ids, .max_cached = n, .readmitted = readmitted};
    kvl_admission out;
    assert_ok(kvl_allocator_admit(a, state, &r, &out));
    assert_ok(a->append(state, out.seq, n - out.n_cached));
    *seq = out.seq;
    return out.n_cached;
}

/* 32 % "hits" on random prompts: those were recomputed tokens. */
static void recomputing_is_no_hit(void **unused) {
    const kvl_allocator *a = module("paged");
    void *state = make_cache(a, 16);
    int32_t ids[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    kvl_seq seq, other;
    assert_int_equal(admit(a, state, ids, 12, false, &seq), 0);
    assert_ok(a->release(state, seq)); /* preempted */
    assert_int_equal(admit(a, state, ids, 12, true, &seq), 12);
    kvl_ledger l = ledger_of(a, state, 0);
    assert_int_equal(l.hit_tokens, 0);
    assert_int_equal(l.asked_tokens, 12);
    assert_int_equal(l.recompute_tokens, 12);
    assert_int_equal(admit(a, state, ids, 12, false, &other), 12); /* this one is */
    l = ledger_of(a, state, 0);
    assert_int_equal(l.hit_tokens, 12);
    assert_int_equal(l.hit_pages, 3);
    assert_int_equal(l.asked_pages, 6);
    assert_int_equal(l.recompute_tokens, 12);
    assert_int_equal(l.shared_saved, 12);
    free(state);
}

/* The second page has the same tokens after another first page; then keys collide on purpose. */
static void a_hit_is_equal_token_by_token(void **unused) {
    const kvl_allocator *a = module("paged");
    void *state = make_cache(a, 16);
    kvl_paged *p = state;
    int32_t one[8] = {1, 1, 1, 1, 7, 7, 7, 7}, two[8] = {2, 2, 2, 2, 7, 7, 7, 7};
    kvl_seq first, second;
    assert_int_equal(admit(a, state, one, 8, false, &first), 0);
    assert_int_equal(admit(a, state, two, 8, false, &second), 0);
    assert_ok(a->release(state, second));
    assert_int_equal(admit(a, state, two, 8, false, &second), 8);
    assert_ok(a->release(state, second));
    const int32_t *pages = kvl_paged_table(p, kvl_paged_find(p, first));
    int32_t *ids = p->page_ids + pages[0] * PAGE;
    ids[3] = 9; /* as if another prefix had this key */
    assert_int_equal(admit(a, state, one, 8, false, &second), 0);
    assert_ok(a->release(state, second));
    free(state);
    state = make_cache(a, 16);
    p = state;
    admit(a, state, one, 8, false, &first);
    pages = kvl_paged_table(p, kvl_paged_find(p, first));
    p->keys[pages[1]].parent++; /* the same tokens and key, but after another prefix */
    assert_int_equal(admit(a, state, one, 8, false, &second), 4);
    free(state);
}

/* The page cached longest goes first, and of one sequence the last page: the beginning is worth
 * most. */
static void lru_gives_up_tails_first(void **unused) {
    const kvl_allocator *a = module("paged");
    void *state = make_cache(a, 6);
    int32_t old[12], young[8], fresh[8];
    kvl_seq seq, other;
    for (int i = 0; i < 12; i++) old[i] = i;
    for (int i = 0; i < 8; i++) young[i] = 100 + i, fresh[i] = 200 + i;
    admit(a, state, old, 12, false, &seq);
    assert_ok(a->release(state, seq));
    admit(a, state, young, 8, false, &seq);
    assert_ok(a->release(state, seq));
    kvl_ledger l = ledger_of(a, state, 0);
    assert_int_equal(l.cached, 5 * PAGE);
    assert_int_equal(l.largest_admissible, 6 * PAGE); /* cached pages are to be had */
    admit(a, state, fresh, 8, false, &seq);           /* a free page, and the tail of `old` */
    assert_int_equal(ledger_of(a, state, 0).evicted_pages, 1);
    assert_int_equal(admit(a, state, young, 8, false, &other), 8);
    assert_ok(a->release(state, other));
    assert_int_equal(admit(a, state, old, 12, false, &other), 8);
    free(state);
}

/* A page that was copied, since a hit ended inside it, was used: others go first. */
static void a_copied_page_is_young_again(void **unused) {
    const kvl_allocator *a = module("paged");
    void *state = make_cache(a, 6);
    int32_t old[8], young[8], fresh[16];
    kvl_seq seq;
    kvl_admission out;
    kvl_order order;
    for (int i = 0; i < 8; i++) old[i] = i, young[i] = 100 + i;
    for (int i = 0; i < 16; i++) fresh[i] = 200 + i;
    admit(a, state, old, 8, false, &seq);
    assert_ok(a->release(state, seq));
    admit(a, state, young, 8, false, &seq);
    assert_ok(a->release(state, seq));
    const kvl_request r = {.n_prompt = 8, .tokens = old, .max_cached = 7};
    assert_ok(kvl_allocator_admit(a, state, &r, &out));
    assert_int_equal(out.n_cached, 7);
    assert_int_equal(a->take_orders(state, &order, 1), 1);
    assert_ok(a->append(state, out.seq, 1));
    assert_ok(a->release(state, out.seq));
    admit(a, state, fresh, 16, false, &seq); /* two free pages, and two of `young` */
    assert_int_equal(ledger_of(a, state, 0).evicted_pages, 2);
    assert_int_equal(a->match_prefix(state, &r), 7);
    free(state);
}

/* Keys that nobody can have: more than the prompt has pages. */
static void keys_are_checked(void **unused) {
    const kvl_allocator *a = module("paged");
    const kvl_allocator_config config = {.pool_tokens = 512 * 8,
                                         .page_tokens = 512,
                                         .max_seq_tokens = 4096,
                                         .max_seqs = 4,
                                         .prefix = KVL_PREFIX_KEYS};
    void *state = make(a, &config);
    const uint64_t keys[3] = {5, 6, 7};
    kvl_request r = {.n_prompt = 1024, .keys = keys, .n_keys = 3, .max_cached = 1024};
    kvl_admission out;
    assert_refused(kvl_allocator_admit(a, state, &r, &out), KVL_ERR_INPUT,
                   "3 keys: a prompt of 1024 tokens has 2 pages of 512 tokens");
    r.n_prompt = 1025;
    r.max_cached = -1;
    assert_refused(kvl_allocator_admit(a, state, &r, &out), KVL_ERR_INPUT, "max_cached -1");
    r.max_cached = 1025;
    assert_ok(kvl_allocator_admit(a, state, &r, &out));
    assert_ok(a->append(state, out.seq, 1025));
    assert_int_equal(a->match_prefix(state, &r), 1025); /* the last page holds one token */
    r.n_prompt = 1026;
    assert_int_equal(a->match_prefix(state, &r), 1024); /* its key stands for one token only */
    free(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_alignment_loses_is_padding),
        cmocka_unit_test(one_rule_for_page_sizes),
        cmocka_unit_test(what_never_fits),
        cmocka_unit_test(free_but_out_of_space),
        cmocka_unit_test(reserve_policies),
        cmocka_unit_test(slabs_past_32_bits),
        cmocka_unit_test(recomputing_is_no_hit),
        cmocka_unit_test(a_hit_is_equal_token_by_token),
        cmocka_unit_test(lru_gives_up_tails_first),
        cmocka_unit_test(keys_are_checked),
        cmocka_unit_test(a_copied_page_is_young_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
