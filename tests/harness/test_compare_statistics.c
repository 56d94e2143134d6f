/* Intervals of a change on data whose answer is known: seeded noise, and Student's t in closed
 * form. */
#include "tests/test.h"

#include <math.h>

#include "core/rng.h"
#include "harness/compare/interval.h"

enum { MAX_ROUNDS = 64 };
static const double CONFIDENCE = 0.995, EFFECT = 0.01;

/* Noise of timings: normal; or skewed with one round in ten that a neighbour disturbs by up to
 * thirty times the spread. */
typedef enum noise { NORMAL, DISTURBED } noise;

static double one_time(kvl_rng *rng, noise kind, double spread) {
    double normal = (double)kvl_rng_normal(rng);
    if (kind == NORMAL) return 100 * (1 + spread * normal);
    double slow = kvl_rng_unit(rng) < 0.1 ? 30 * spread * kvl_rng_unit(rng) : 0;
    return 100 * exp(spread * fabs(normal) + slow);
}

typedef struct tally {
    int n[4]; /* by kvl_direction */
} tally;

/* 1,000 comparisons of A with B = A * `ratio`. `drift`: what both of a round share. */
static tally compare_many(noise kind, double spread, double drift, size_t rounds, bool paired,
                          double ratio) {
    tally out = {{0}};
    double a[MAX_ROUNDS], b[MAX_ROUNDS];
    kvl_rng rng = kvl_rng_make(20261130, rounds);
    for (int i = 0; i < 1000; i++) {
        for (size_t r = 0; r < rounds; r++) {
            double both = exp(drift * (double)kvl_rng_normal(&rng));
            a[r] = both * one_time(&rng, kind, spread);
            b[r] = both * one_time(&rng, kind, spread) * ratio;
        }
        kvl_change change;
        assert_ok(kvl_change_of(a, rounds, b, rounds, paired, CONFIDENCE, &change));
        assert_true(change.exists);
        assert_true(change.lo <= change.ratio && change.ratio <= change.hi);
        out.n[kvl_change_direction(&change, EFFECT)]++;
    }
    return out;
}

static void a_against_a_is_hardly_ever_a_change(void **state) {
    static const size_t rounds[] = {3, 8, 12, 20};
    static const double spreads[] = {0.01, 0.05};
    (void)state;
    for (int kind = NORMAL; kind <= DISTURBED; kind++) {
        for (int s = 0; s < 2; s++) {
            for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
                for (int paired = 0; paired < 2; paired++) {
                    tally t = compare_many((noise)kind, spreads[s], 0, rounds[i], paired, 1);
                    int false_verdicts = t.n[KVL_CHANGE_UP] + t.n[KVL_CHANGE_DOWN];
                    if (false_verdicts > 10)
                        fail_msg("noise %d of %g, %zu rounds, paired %d: %d of 1000 false", kind,
                                 spreads[s], rounds[i], paired, false_verdicts);
                }
            }
        }
    }
}

static void three_per_cent_are_found(void **state) {
    (void)state;
    for (int paired = 0; paired < 2; paired++) {
        tally up = compare_many(NORMAL, 0.01, 0, 20, paired, 1.03);
        tally down = compare_many(NORMAL, 0.01, 0, 20, paired, 1 / 1.03);
        assert_true(up.n[KVL_CHANGE_UP] >= 900);
        assert_int_equal(up.n[KVL_CHANGE_DOWN], 0);
        assert_true(down.n[KVL_CHANGE_DOWN] >= 900);
        assert_int_equal(down.n[KVL_CHANGE_UP], 0);
    }
}

/* A machine that wanders by 5 % between rounds: within a round the change still shows. */
static void interleaved_rounds_see_through_drift(void **state) {
    (void)state;
    tally together = compare_many(NORMAL, 0.01, 0.05, 20, true, 1.03);
    tally apart = compare_many(NORMAL, 0.01, 0.05, 20, false, 1.03);
    assert_true(together.n[KVL_CHANGE_UP] >= 900);
    assert_true(apart.n[KVL_CHANGE_UP] < 100);
}

static void quiet_equal_rounds_are_the_same(void **state) {
    (void)state;
    tally t = compare_many(NORMAL, 0.002, 0, 20, false, 1);
    assert_true(t.n[KVL_CHANGE_SAME] >= 990);
    /* A change below the smallest that counts is the same too. */
    t = compare_many(NORMAL, 0.001, 0, 20, false, 1.005);
    assert_true(t.n[KVL_CHANGE_SAME] >= 990);
}

/* The promise of "N more rounds would settle it": with that many, most comparisons are settled. */
static void more_rounds_settle_it(void **state) {
    double a[512], b[512];
    kvl_rng rng = kvl_rng_make(7, 7);
    int settled = 0, asked = 0;
    (void)state;
    for (int i = 0; i < 300; i++) {
        kvl_change change;
        size_t n = 6;
        for (size_t r = 0; r < 512; r++) {
            a[r] = 100 * (1 + 0.02 * (double)kvl_rng_normal(&rng));
            b[r] = 104 * (1 + 0.02 * (double)kvl_rng_normal(&rng));
        }
        assert_ok(kvl_change_of(a, n, b, n, false, CONFIDENCE, &change));
        long more = kvl_change_more_rounds(&change, EFFECT, CONFIDENCE);
        if (kvl_change_direction(&change, EFFECT) != KVL_CHANGE_UNSURE) {
            assert_int_equal(more, 0);
            continue;
        }
        /* An estimate from six rounds that happen to lie near the threshold asks for very many. */
        if (more == KVL_ROUNDS_UNKNOWN || more > 500) continue;
        assert_true(more > 0);
        n += (size_t)more;
        assert_ok(kvl_change_of(a, n, b, n, false, CONFIDENCE, &change));
        asked++;
        settled += kvl_change_direction(&change, EFFECT) != KVL_CHANGE_UNSURE;
    }
    assert_true(asked > 100);
    assert_true(settled * 10 >= asked * 5);
}

static void student_has_its_closed_forms(void **state) {
    (void)state;
    for (double p = 0.55; p < 0.9999; p += 0.013) {
        double u = p - 0.5, four = 4 * p * (1 - p);
        assert_true(fabs(kvl_student_quantile(p, 1) / tan(M_PI * u) - 1) < 1e-9);
        assert_true(fabs(kvl_student_quantile(p, 2) / (2 * u * sqrt(2 / four)) - 1) < 1e-9);
        assert_true(fabs(kvl_student_quantile(1 - p, 2) + 2 * u * sqrt(2 / four)) < 1e-6);
    }
    /* Tables: t(0.975, 10), t(0.9975, 4), and the normal's 0.995 quantile. */
    assert_true(fabs(kvl_student_quantile(0.975, 10) - 2.228139) < 1e-6);
    assert_true(fabs(kvl_student_quantile(0.9975, 4) - 5.597568) < 1e-5);
    assert_true(fabs(kvl_student_quantile(0.995, 1e7) - 2.575829) < 1e-5);
    assert_true(kvl_student_quantile(0.5, 3) == 0);
}

static void few_and_strange_values(void **state) {
    const double one = 100, two[] = {100, 101}, equal[] = {64, 64, 64}, half[] = {32, 32, 32};
    const double zeros[] = {0, 0, 0}, some[] = {0, 5, 5};
    kvl_change change;
    (void)state;
    assert_ok(kvl_change_of(&one, 1, &one, 1, false, CONFIDENCE, &change));
    assert_int_equal(kvl_change_direction(&change, EFFECT), KVL_CHANGE_UNSURE);
    assert_true(isinf(change.hi) && change.lo == 0);
    assert_int_equal(kvl_change_more_rounds(&change, EFFECT, CONFIDENCE), KVL_ROUNDS_UNKNOWN);
    assert_ok(kvl_change_of(two, 2, &one, 1, false, CONFIDENCE, &change));
    assert_int_equal(kvl_change_direction(&change, EFFECT), KVL_CHANGE_UNSURE);
    assert_ok(kvl_change_of(equal, 3, half, 3, false, CONFIDENCE, &change)); /* bytes: no noise */
    assert_true(change.lo == change.hi && fabs(change.ratio - 0.5) < 1e-12);
    assert_int_equal(kvl_change_direction(&change, EFFECT), KVL_CHANGE_DOWN);
    assert_ok(kvl_change_of(zeros, 3, zeros, 3, true, CONFIDENCE, &change));
    assert_int_equal(kvl_change_direction(&change, EFFECT), KVL_CHANGE_SAME);
    assert_ok(kvl_change_of(zeros, 3, some, 3, true, CONFIDENCE, &change));
    assert_false(change.exists);
    assert_int_equal(kvl_change_direction(&change, EFFECT), KVL_CHANGE_UNSURE);
    assert_ok(kvl_change_of(NULL, 0, some, 3, false, CONFIDENCE, &change));
    assert_false(change.exists);
    assert_ok(kvl_change_of(two, 2, two, 2, true, CONFIDENCE, &change));
    assert_int_equal(kvl_change_direction(&change, EFFECT), KVL_CHANGE_SAME);
}

/* A ratio and its inverse are one finding. */
static void swapping_sides_mirrors_the_interval(void **state) {
    double a[15], b[15];
    kvl_rng rng = kvl_rng_make(3, 3);
    kvl_change forth, back;
    (void)state;
    for (int r = 0; r < 15; r++) {
        a[r] = 100 + (double)kvl_rng_normal(&rng);
        b[r] = 110 + (double)kvl_rng_normal(&rng);
    }
    assert_ok(kvl_change_of(a, 15, b, 15, false, CONFIDENCE, &forth));
    assert_ok(kvl_change_of(b, 15, a, 15, false, CONFIDENCE, &back));
    assert_true(fabs(forth.ratio * back.ratio - 1) < 1e-12);
    assert_true(fabs(forth.lo * back.hi - 1) < 0.002); /* resamples differ */
    assert_true(fabs(forth.hi * back.lo - 1) < 0.002);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_against_a_is_hardly_ever_a_change),
        cmocka_unit_test(three_per_cent_are_found),
        cmocka_unit_test(interleaved_rounds_see_through_drift),
        cmocka_unit_test(quiet_equal_rounds_are_the_same),
        cmocka_unit_test(more_rounds_settle_it),
        cmocka_unit_test(student_has_its_closed_forms),
        cmocka_unit_test(few_and_strange_values),
        cmocka_unit_test(swapping_sides_mirrors_the_interval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
