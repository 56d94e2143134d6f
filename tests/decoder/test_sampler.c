/* The sampler against plain oracles: sets of allowed tokens, frequencies, rules. */
#include "decoder/sampler.h"

#include <math.h>
#include <stdbool.h>

#include "core/rng.h"
#include "tests/test.h"

enum { VOCAB = 200, CHI_VOCAB = 12, CHI_DRAWS = 60000 };

static kvl_sampler *make(kvl_sampler_options options, int32_t vocab) {
    kvl_sampler *sampler = NULL;
    assert_ok(kvl_sampler_create(&options, vocab, &sampler));
    return sampler;
}

static int32_t pick(kvl_sampler *sampler, const float *logits) {
    int32_t id = -1;
    assert_ok(kvl_sampler_pick(sampler, logits, &id));
    return id;
}

static void test_argmax(void **state) {
    const float ties[] = {1, 3, 2, 3, 3}, lone[] = {-INFINITY}, inf[] = {1, INFINITY, INFINITY};
    float nan_last[] = {5, 1, NAN}, nan_first[] = {NAN, 1, 2};
    assert_int_equal(kvl_argmax(ties, 5), 1);
    assert_int_equal(kvl_argmax(lone, 1), 0);
    assert_int_equal(kvl_argmax(inf, 3), 1);
    assert_int_equal(kvl_argmax(nan_last, 3), -1);
    assert_int_equal(kvl_argmax(nan_first, 3), -1);
    /* Every place of a long row, whole lanes and tail: the first of equals, and any NaN. */
    enum { N = 53 };
    float row[N];
    for (int at = 0; at < N; at++) {
        for (int i = 0; i < N; i++) row[i] = -(float)(i % 5) - 1;
        row[at] = 0;
        row[N - 1] = 0;
        assert_int_equal(kvl_argmax(row, N), at);
        row[at] = NAN;
        assert_int_equal(kvl_argmax(row, N), -1);
        row[at] = -INFINITY;
        assert_int_equal(kvl_argmax(row, N), at == N - 1 ? 0 : N - 1);
    }
    for (int i = 0; i < N; i++) row[i] = -INFINITY;
    assert_int_equal(kvl_argmax(row, N), 0);
}

static void test_greedy(void **state) {
    const float logits[] = {0, 2, 7, 7, 1};
    kvl_sampler *sampler = make(kvl_sampler_defaults(), 5);
    for (int i = 0; i < 3; i++) assert_int_equal(pick(sampler, logits), 2);
    kvl_sampler_free(sampler);
}

static void test_bad_logits(void **state) {
    const float nan_row[] = {0, NAN, 1}, none[] = {-INFINITY, -INFINITY, -INFINITY};
    const float lone[] = {-INFINITY, 4, -INFINITY};
    float hot[] = {1, INFINITY, INFINITY};
    for (int t = 0; t < 2; t++) {
        kvl_sampler_options options = kvl_sampler_defaults();
        options.temperature = (float)t;
        kvl_sampler *sampler = make(options, 3);
        int32_t id = 77;
        assert_refused(kvl_sampler_pick(sampler, nan_row, &id), KVL_ERR_INTERNAL, "NaN");
        assert_refused(kvl_sampler_pick(sampler, none, &id), KVL_ERR_INTERNAL, "-inf");
        assert_int_equal(id, 77);
        assert_int_equal(pick(sampler, lone), 1);
        for (int i = 0; i < 20; i++) assert_true(pick(sampler, hot) >= 1);
        kvl_sampler_free(sampler);
    }
}

/* ---- the allowed set, by definition ------------------------------------------------------------
 */

typedef struct entry {
    int32_t id;
    double p;
} entry;

static int by_p(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->p != y->p) return x->p > y->p ? -1 : 1;
    return x->id - y->id;
}

static void normalise(entry *e, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += e[i].p;
    for (int i = 0; i < n; i++) e[i].p /= sum;
}

/* Sorted probabilities after temperature, top-k, top-p, min-p; returns how many stay. */
static int oracle(const kvl_sampler_options *o, const float *logits, int n, entry *e) {
    for (int i = 0; i < n; i++)
        e[i] = (entry){i, exp(((double)logits[i] - 10.0) / (double)o->temperature)};
    normalise(e, n);
    qsort(e, (size_t)n, sizeof *e, by_p);
    if (o->top_k > 0 && o->top_k < n) n = o->top_k;
    normalise(e, n);
    double sum = 0;
    for (int i = 0; i < n && o->top_p < 1; i++)
        if ((sum += e[i].p) >= (double)o->top_p) n = i + 1;
    while (n > 1 && e[n - 1].p < (double)o->min_p * e[0].p) n--;
    normalise(e, n);
    return n;
}

static void test_sets(void **state) {
    static const kvl_sampler_options cases[] = {
        {.temperature = 1, .top_p = 1, .top_k = 7, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 0.9f, .repetition_penalty = 1},
        {.temperature = 2.5f, .top_p = 0.35f, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1, .min_p = 0.2f, .repetition_penalty = 1},
        {.temperature = 0.7f, .top_p = 0.8f, .top_k = 20, .min_p = 0.05f, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 0.001f, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1, .top_k = 100000, .min_p = 0.5f, .repetition_penalty = 1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        float logits[VOCAB];
        entry e[VOCAB];
        bool allowed[VOCAB] = {false}, met[VOCAB] = {false};
        kvl_rng_fill_normal(11, c, 2, logits, VOCAB);
        for (int i = 0; i < VOCAB; i += 3) logits[i] = floorf(logits[i]); /* ties */
        int n = oracle(&cases[c], logits, VOCAB, e), n_met = 0;
        for (int i = 0; i < n; i++) allowed[e[i].id] = true;
        kvl_sampler *sampler = make(cases[c], VOCAB);
        for (int i = 0; i < 20000; i++) {
            int32_t id = pick(sampler, logits);
            if (!allowed[id]) fail_msg("case %d: token %d is not in the set", (int)c, id);
            n_met += !met[id];
            met[id] = true;
        }
        /* Whoever is likely enough to be met at least 10 times on average has been met. */
        for (int i = 0; i < n; i++)
            if (e[i].p * 20000 >= 30 && !met[e[i].id])
                fail_msg("case %d: token %d with p = %g was never drawn", (int)c, e[i].id, e[i].p);
        assert_true(n_met >= 1);
        kvl_sampler_free(sampler);
    }
}

/* Pearson's chi-square with 11 degrees of freedom: above 31.3 only once in 1,000 seeds, and the
 * seed is fixed. */
static void test_frequencies(void **state) {
    for (int c = 0; c < 3; c++) {
        kvl_sampler_options options = {
            .temperature = 0.8f, .top_p = 1, .repetition_penalty = 1, .seed = 5 + (uint64_t)c};
        if (c == 1) options.top_p = 0.9999f; /* the sorted path, with nobody dropped */
        if (c == 2) options.top_k = CHI_VOCAB - 1;
        float logits[CHI_VOCAB];
        entry e[CHI_VOCAB];
        double counts[CHI_VOCAB] = {0}, chi = 0;
        for (int i = 0; i < CHI_VOCAB; i++) logits[i] = 0.2f * (float)((i * 5) % CHI_VOCAB);
        int n = oracle(&options, logits, CHI_VOCAB, e);
        assert_int_equal(n, c == 2 ? CHI_VOCAB - 1 : CHI_VOCAB);
        kvl_sampler *sampler = make(options, CHI_VOCAB);
        for (int i = 0; i < CHI_DRAWS; i++) counts[pick(sampler, logits)]++;
        for (int i = 0; i < n; i++) {
            double want = e[i].p * CHI_DRAWS, off = counts[e[i].id] - want;
            chi += off * off / want;
        }
        print_message("case %d: chi-square %.1f\n", c, chi);
        assert_true(chi < 31.3);
        kvl_sampler_free(sampler);
    }
}

/* The same (seed, step, logits) gives the same token; another seed another sequence; a step counts
 * whether or not its logits left a choice. */
static void test_seeds(void **state) {
    float logits[VOCAB], lone[VOCAB];
    kvl_rng_fill_normal(3, 0, 1, logits, VOCAB);
    for (int i = 0; i < VOCAB; i++) lone[i] = i == 9 ? 50 : -INFINITY;
    kvl_sampler_options options = {
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7};
    kvl_sampler *a = make(options, VOCAB), *b = make(options, VOCAB);
    options.seed = 8;
    kvl_sampler *other = make(options, VOCAB);
    int n_equal = 0;
    for (int i = 0; i < 100; i++) {
        int32_t id = pick(a, logits);
        bool forced = i % 10 == 4;
        assert_int_equal(pick(b, forced ? lone : logits), forced ? 9 : id);
        n_equal += pick(other, logits) == id;
    }
    assert_true(n_equal < 20);
    kvl_sampler_free(a);
    kvl_sampler_free(b);
    kvl_sampler_free(other);
}

/* CTRL: positive logits are divided, negative ones multiplied, once however often a token came. */
static void test_repetition(void **state) {
    const float logits[] = {4, 3, -1, -1.5f};
    kvl_sampler_options options = kvl_sampler_defaults();
    options.repetition_penalty = 2;
    kvl_sampler *sampler = make(options, 4);
    kvl_sampler_accept(sampler, -1);
    kvl_sampler_accept(sampler, 4);
    assert_int_equal(pick(sampler, logits), 0);
    kvl_sampler_accept(sampler, 0);
    assert_int_equal(pick(sampler, logits), 1); /* 2 < 3 */
    kvl_sampler_accept(sampler, 1);
    kvl_sampler_accept(sampler, 1);
    assert_int_equal(pick(sampler, logits), 0); /* 2 > 1.5 */
    kvl_sampler_free(sampler);
    const float negative[] = {-1, -1.5f};
    sampler = make(options, 2);
    kvl_sampler_accept(sampler, 0);
    assert_int_equal(pick(sampler, negative), 1); /* -2 < -1.5 */
    kvl_sampler_free(sampler);
}

static void test_options(void **state) {
    static const struct {
        kvl_sampler_options options;
        const char *part;
    } cases[] = {
        {{.temperature = -0.1f, .top_p = 1, .repetition_penalty = 1}, "temperature -0.1"},
        {{.temperature = NAN, .top_p = 1, .repetition_penalty = 1}, "temperature"},
        {{.temperature = INFINITY, .top_p = 1, .repetition_penalty = 1}, "temperature inf"},
        {{.top_p = 0, .repetition_penalty = 1}, "top_p 0: above 0, at most 1"},
        {{.top_p = 1.01f, .repetition_penalty = 1}, "top_p 1.01"},
        {{.top_p = 1, .min_p = -1, .repetition_penalty = 1}, "min_p -1"},
        {{.top_p = 1, .min_p = 2, .repetition_penalty = 1}, "min_p 2"},
        {{.top_p = 1, .top_k = -1, .repetition_penalty = 1}, "top_k -1"},
        {{.top_p = 1, .repetition_penalty = 0}, "repetition_penalty 0"},
    };
    kvl_sampler *sampler = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(kvl_sampler_create(&cases[i].options, 4, &sampler), KVL_ERR_INPUT,
                       cases[i].part);
    kvl_sampler_options good = kvl_sampler_defaults();
    assert_refused(kvl_sampler_create(&good, 0, &sampler), KVL_ERR_INPUT, "vocab_size 0");
    assert_null(sampler);
    assert_ok(kvl_sampler_check(&good));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_argmax),      cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_bad_logits),  cmocka_unit_test(test_sets),
        cmocka_unit_test(test_frequencies), cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_repetition),  cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
