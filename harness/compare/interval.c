#include "harness/compare/interval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

enum { RESAMPLES = 5000, FEW_ROUNDS = 12, SEED = 1979 };

/* ---- Student's t ---------------------------------------------------------------------------- */

/* Continued fraction of the incomplete beta function (Lentz 1976). */
static double beta_fraction(double a, double b, double x) {
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double h = d;
    for (int m = 1; m <= 300; m++) {
        double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        double step = 1;
        for (int half = 0; half < 2; half++) {
            double term = half ? odd : even;
            d = 1 + term * d;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = 1 + term / c;
            if (fabs(c) < tiny) c = tiny;
            step = d * c;
            h *= step;
        }
        if (fabs(step - 1) < 1e-14) break;
    }
    return h;
}

/* Regularised incomplete beta function I_x(a, b). */
static double incomplete_beta(double a, double b, double x) {
    if (x <= 0) return 0;
    if (x >= 1) return 1;
    double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
    return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

static double student_upper_tail(double t, double df) {
    return 0.5 * incomplete_beta(df / 2, 0.5, df / (df + t * t));
}

double kvl_student_quantile(double p, double df) {
    if (p == 0.5) return 0;
    if (p < 0.5) return -kvl_student_quantile(1 - p, df);
    double low = 0, high = 1;
    while (student_upper_tail(high, df) > 1 - p && high < 1e12) high *= 2;
    for (int i = 0; i < 100; i++) { /* bisection: the tail falls with t */
        double middle = 0.5 * (low + high);
        if (student_upper_tail(middle, df) > 1 - p)
            low = middle;
        else
            high = middle;
    }
    return 0.5 * (low + high);
}

/* ---- interval ------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of a resample of the sorted x[n]: how often each element was drawn is enough. */
static double resampled_median(const double *x, size_t n, kvl_rng *rng, unsigned *drawn) {
    size_t seen = 0, lower = (n - 1) / 2, upper = n / 2, i = 0;
    memset(drawn, 0, n * sizeof *drawn);
    for (size_t j = 0; j < n; j += 2) { /* two draws of 64 bits; their bias is below 2^-32 n */
        uint64_t bits = kvl_rng_u64(rng);
        drawn[(bits & 0xffffffff) * n >> 32]++;
        if (j + 1 < n) drawn[(bits >> 32) * n >> 32]++;
    }
    while (seen + drawn[i] <= lower) seen += drawn[i++];
    double first = x[i];
    while (seen + drawn[i] <= upper) seen += drawn[i++];
    return 0.5 * (first + x[i]);
}

static double sorted_median(const double *x, size_t n) {
    return 0.5 * (x[(n - 1) / 2] + x[n / 2]);
}

/* Quantile of the sorted x[n], as kvl_quantile has it, without sorting again. */
static double sorted_quantile(const double *x, size_t n, double q) {
    double at = q * (double)(n - 1);
    size_t low = (size_t)at;
    return low + 1 < n ? x[low] + (at - (double)low) * (x[low + 1] - x[low]) : x[n - 1];
}

/* b == NULL: the median of a alone. Both sorted. */
static kvl_status bootstrap(const double *a, size_t n_a, const double *b, size_t n_b,
                            double confidence, double *lo, double *hi) {
    size_t most = n_a > n_b ? n_a : n_b;
    double *medians = malloc(RESAMPLES * sizeof *medians);
    unsigned *drawn = malloc(most * sizeof *drawn);
    kvl_rng rng = kvl_rng_make(SEED, n_a * 4099 + n_b);
    for (int i = 0; medians && drawn && i < RESAMPLES; i++) {
        medians[i] = -resampled_median(a, n_a, &rng, drawn);
        if (b) medians[i] += resampled_median(b, n_b, &rng, drawn);
    }
    bool good = medians && drawn;
    if (good) {
        qsort(medians, RESAMPLES, sizeof *medians, by_value);
        *lo = sorted_quantile(medians, RESAMPLES, (1 - confidence) / 2);
        *hi = sorted_quantile(medians, RESAMPLES, (1 + confidence) / 2);
    }
    free(medians);
    free(drawn);
    return good ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
}

/* Mean, and the variance of the mean. */
static void moments(const double *x, size_t n, double *mean, double *variance) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += x[i];
    *mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *variance = n > 1 ? squares / (double)(n - 1) / (double)n : INFINITY;
}

/* Degrees of freedom: n - 1, or Welch's between two samples; never below the smaller sample's. */
static double welch_df(double va, size_t n_a, double vb, size_t n_b) {
    double below = va * va / (double)(n_a - 1) + vb * vb / (double)(n_b - 1);
    return below > 0 ? (va + vb) * (va + vb) / below : (double)(n_a + n_b - 2);
}

/* Stretches lo and hi to Student's interval of the mean. b == NULL: of -a alone. */
static void widen(const double *a, size_t n_a, const double *b, size_t n_b, double confidence,
                  double *lo, double *hi) {
    double mean_a, mean_b = 0, va, vb = 0, df;
    if (n_a < 2 || (b && n_b < 2)) {
        *lo = -INFINITY, *hi = INFINITY;
        return;
    }
    moments(a, n_a, &mean_a, &va);
    if (b) moments(b, n_b, &mean_b, &vb);
    df = b ? welch_df(va, n_a, vb, n_b) : (double)(n_a - 1);
    double half = kvl_student_quantile((1 + confidence) / 2, df) * sqrt(va + vb);
    double centre = mean_b - mean_a;
    if (centre - half < *lo) *lo = centre - half;
    if (centre + half > *hi) *hi = centre + half;
}

static bool all_equal(const double *a, size_t n_a, const double *b, size_t n_b) {
    for (size_t i = 0; i < n_a; i++)
        if (a[i] != a[0]) return false;
    for (size_t i = 0; i < n_b; i++)
        if (b[i] != a[0]) return false;
    return true;
}

static bool have_ratio(const double *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!(x[i] > 0) || !isfinite(x[i])) return false;
    return true;
}

/* Sorted logarithms: of a and b, or (paired) of a/b, whose negative is B's change. */
static double *logarithms(const double *a, const double *b, size_t n) {
    double *x = malloc(n * sizeof *x);
    for (size_t i = 0; x && i < n; i++) x[i] = b ? log(a[i] / b[i]) : log(a[i]);
    if (x) qsort(x, n, sizeof *x, by_value);
    return x;
}

kvl_status kvl_change_of(const double *a, size_t n_a, const double *b, size_t n_b, bool paired,
                         double confidence, kvl_change *out) {
    *out = (kvl_change){.ratio = 1, .lo = 1, .hi = 1, .n_a = n_a, .n_b = n_b, .paired = paired};
    if (n_a == 0 || n_b == 0) return KVL_OK;
    if (n_a > 1 && n_b > 1 && all_equal(a, n_a, b, n_b)) {
        out->exists = true;
        return KVL_OK;
    }
    if (!have_ratio(a, n_a) || !have_ratio(b, n_b)) return KVL_OK;
    double *x = logarithms(a, paired ? b : NULL, n_a);
    double *y = paired ? NULL : logarithms(b, NULL, n_b), lo = 0, hi = 0;
    kvl_status status = !x || (!paired && !y) ? kvl_fail(KVL_ERR_OOM, "out of memory")
                                              : bootstrap(x, n_a, y, n_b, confidence, &lo, &hi);
    if (status == KVL_OK) {
        double centre = (y ? sorted_median(y, n_b) : 0) - sorted_median(x, n_a);
        if (n_a < FEW_ROUNDS || n_b < FEW_ROUNDS) widen(x, n_a, y, n_b, confidence, &lo, &hi);
        out->exists = true;
        out->ratio = exp(centre);
        out->lo = exp(lo);
        out->hi = exp(hi);
    }
    free(x);
    free(y);
    return status;
}

/* ---- what it says -----------------------------------------------------------------------------
 */

kvl_direction kvl_change_direction(const kvl_change *change, double effect) {
    double high = 1 + effect, low = 1 / high;
    if (!change->exists) return KVL_CHANGE_UNSURE;
    if (change->lo > high) return KVL_CHANGE_UP;
    if (change->hi < low) return KVL_CHANGE_DOWN;
    return change->lo >= low && change->hi <= high ? KVL_CHANGE_SAME : KVL_CHANGE_UNSURE;
}

/* How the half width shrinks from n to m rounds on each side: with the root, and, while rounds are
 * few, with Student's factor. */
static double shrink(double n, double m, bool paired, double confidence) {
    double sides = paired ? 1 : 2, p = (1 + confidence) / 2;
    double now = n < FEW_ROUNDS ? kvl_student_quantile(p, sides * (n - 1)) : 1;
    double then = n < FEW_ROUNDS ? kvl_student_quantile(p, sides * (m - 1)) : 1;
    return sqrt(n / m) * then / now;
}

long kvl_change_more_rounds(const kvl_change *change, double effect, double confidence) {
    double n = (double)(change->n_a < change->n_b ? change->n_a : change->n_b);
    double centre = log(change->ratio), threshold = log1p(effect);
    double room = fabs(fabs(centre) - threshold); /* to the threshold that it must not meet */
    if (!change->exists || n < 2 || !(room > 0) || isinf(change->hi)) return KVL_ROUNDS_UNKNOWN;
    if (kvl_change_direction(change, effect) != KVL_CHANGE_UNSURE) return 0;
    double below = centre - log(change->lo), above = log(change->hi) - centre;
    double half = below > above ? below : above;
    long low = 0, high = KVL_ROUNDS_MAX;
    if (half * shrink(n, n + (double)high, change->paired, confidence) > room)
        return KVL_ROUNDS_UNKNOWN;
    while (high - low > 1) { /* the width falls with rounds */
        long middle = low + (high - low) / 2;
        if (half * shrink(n, n + (double)middle, change->paired, confidence) > room)
            low = middle;
        else
            high = middle;
    }
    return high;
}
