/* Warm-up by change points, the machine's noise, and when a trial has been measured enough, on
 * series whose answer is known. */
#include "tests/test.h"

#include <math.h>

#include "core/rng.h"
#include "harness/sweep/settle.h"
#include "harness/trial/noise.h"
#include "harness/trial/steady.h"

static double x[KVL_STEADY_WINDOW * 4];

/* x[from..to) = level with normal noise. */
static void fill(kvl_rng *rng, size_t from, size_t to, double level, double spread) {
    for (size_t i = from; i < to; i++) x[i] = level * (1 + spread * (double)kvl_rng_normal(rng));
}

/* First number of steps at which warm-up ends; 0: not within n. */
static size_t ends_at(size_t n) {
    for (size_t i = 1; i <= n; i++)
        if (kvl_is_steady(x, i)) return i;
    return 0;
}

static void a_level_series_ends_at_once(void **state) {
    size_t late = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        kvl_rng rng = kvl_rng_make(seed, 1);
        fill(&rng, 0, 64, 10, 0.02);
        late += ends_at(64) > KVL_STEADY_STEPS + 4;
    }
    assert_true(late <= 20); /* noise may look like a change now and then: it costs a few steps */
    for (size_t i = 0; i < 64; i++) x[i] = 10; /* a clock that ticks coarsely */
    assert_int_equal(ends_at(64), KVL_STEADY_STEPS);
}

static void slow_first_steps_are_left_behind(void **state) {
    (void)state;
    for (size_t n_slow = 1; n_slow <= 20; n_slow++) {
        for (uint64_t seed = 0; seed < 50; seed++) {
            kvl_rng rng = kvl_rng_make(seed, n_slow);
            fill(&rng, 0, n_slow, 14, 0.005);
            fill(&rng, n_slow, 64, 10, 0.005);
            /* Enough slow steps look steady themselves: nobody can know better. */
            if (n_slow >= KVL_STEADY_STEPS) {
                assert_true(kvl_steady_from(x, n_slow + 8) >= n_slow);
                continue;
            }
            size_t end = ends_at(64);
            assert_true(end >= n_slow + KVL_STEADY_STEPS);
            assert_true(end <= n_slow + KVL_STEADY_STEPS + 6);
        }
    }
}

static void a_ramp_is_not_steady_until_it_ends(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        kvl_rng rng = kvl_rng_make(seed, 2);
        fill(&rng, 0, 64, 10, 0.003);
        for (size_t i = 0; i < 24; i++)
            x[i] *= 1 + 0.02 * (double)(24 - i); /* a clock that rises */
        size_t end = ends_at(64);
        assert_true(end >= 24);
        assert_true(end <= 24 + 2 * KVL_STEADY_STEPS);
    }
}

static void an_outlier_is_no_change(void **state) {
    (void)state;
    for (size_t at = 2; at < 14; at++) {
        kvl_rng rng = kvl_rng_make(at, 3);
        fill(&rng, 0, 16, 10, 0.01);
        x[at] = 90;
        assert_int_equal(kvl_steady_from(x, 16), 0);
    }
    /* Two levels that alternate are one state of the machine. */
    for (size_t i = 0; i < 64; i++) x[i] = i % 2 ? 10 : 11;
    assert_true(ends_at(64) > 0 && ends_at(64) <= 12);
}

static void a_change_below_one_per_cent_does_not_matter(void **state) {
    (void)state;
    for (size_t i = 0; i < 32; i++) x[i] = i < 16 ? 10.08 : 10;
    assert_int_equal(kvl_steady_from(x, 32), 0);
    for (size_t i = 0; i < 32; i++) x[i] = i < 16 ? 10.2 : 10;
    assert_int_equal(kvl_steady_from(x, 32), 16);
}

static void a_long_series_is_judged_by_its_end(void **state) {
    kvl_rng rng = kvl_rng_make(4, 4);
    (void)state;
    fill(&rng, 0, 100, 20, 0.005);
    fill(&rng, 100, 200, 10, 0.005);
    assert_false(kvl_is_steady(x, 104));
    assert_true(kvl_is_steady(x, 120));
    assert_true(kvl_is_steady(x, 200));
}

static void noise_is_what_is_added(void **state) {
    double equal[] = {5, 5, 5, 5}, slower[] = {10, 10, 10, 10, 10, 10, 10, 10, 10, 20};
    (void)state;
    assert_true(kvl_noise_of(equal, 4) == 0);
    assert_true(fabs(kvl_noise_of(slower, 10) - 10) < 1e-9);
    assert_true(kvl_noise_of(NULL, 0) == 0);
    double now = kvl_noise_measure();
    assert_true(isfinite(now) && now >= 0);
    assert_string_equal(kvl_noise_grade(0.4), "quiet");
    assert_string_equal(kvl_noise_grade(2), "fair");
    assert_string_equal(kvl_noise_grade(10), "noisy");
    assert_string_equal(kvl_noise_grade(10.1), "loud");
}

static void add(json_t *rows, const char *trial, const char *outcome, double prefill,
                double tok_s) {
    json_t *metrics = json_pack("{s:f}", "decode_tok_s", tok_s);
    json_object_set_new(metrics, "prefill_tok_s", prefill ? json_real(prefill) : json_null());
    json_array_append_new(
        rows, json_pack("{s:s,s:s,s:o}", "trial", trial, "outcome", outcome, "metrics", metrics));
}

static void narrow_intervals_settle_a_trial(void **state) {
    const kvl_workload_kind *kind = &kvl_workload_decode;
    json_t *rows = json_array();
    (void)state;
    assert_false(kvl_trial_is_settled(kind, rows, "a", 5));
    for (int i = 0; i < 5; i++) add(rows, "a", "ok", 0, 100 + i % 2);
    assert_false(kvl_trial_is_settled(kind, rows, "a", 5)); /* too few */
    add(rows, "a", "ok", 0, 100);
    for (int i = 0; i < 6; i++) add(rows, "b", "ok", 0, 50);
    assert_true(kvl_trial_is_settled(kind, rows, "a", 5));
    assert_true(kvl_trial_is_settled(kind, rows, "b", 0.001));
    assert_false(kvl_trial_is_settled(kind, rows, "a", 0.1));
    assert_false(kvl_trial_is_settled(kind, rows, "c", 5));
    /* Every column must be narrow; a round that failed is none. */
    for (int i = 0; i < 6; i++) add(rows, "d", "ok", i % 2 ? 400 : 800, 50);
    assert_false(kvl_trial_is_settled(kind, rows, "d", 5));
    for (int i = 0; i < 6; i++) add(rows, "e", i ? "ok" : "crash", 0, 50);
    assert_false(kvl_trial_is_settled(kind, rows, "e", 5));
    json_decref(rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_level_series_ends_at_once),
        cmocka_unit_test(slow_first_steps_are_left_behind),
        cmocka_unit_test(a_ramp_is_not_steady_until_it_ends),
        cmocka_unit_test(an_outlier_is_no_change),
        cmocka_unit_test(a_change_below_one_per_cent_does_not_matter),
        cmocka_unit_test(a_long_series_is_judged_by_its_end),
        cmocka_unit_test(noise_is_what_is_added),
        cmocka_unit_test(narrow_intervals_settle_a_trial),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
