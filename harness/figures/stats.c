#include "harness/figures/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double kvl_quantile(double *x, size_t n, double q) {
    if (n == 0) return NAN;
    qsort(x, n, sizeof *x, by_value);
    double at = q * (double)(n - 1);
    size_t low = (size_t)at;
    if (low + 1 >= n) return x[n - 1];
    return x[low] + (at - (double)low) * (x[low + 1] - x[low]);
}

void kvl_median_interval(double *x, size_t n, double *lo, double *hi) {
    enum { RESAMPLES = 2000 };
    *lo = kvl_quantile(x, n, 0), *hi = kvl_quantile(x, n, 1);
    if (n < 3) return;
    double *medians = malloc(RESAMPLES * sizeof *medians);
    double *sample = malloc(n * sizeof *sample);
    kvl_rng rng = kvl_rng_make(1979, n);
    for (int i = 0; medians && sample && i < RESAMPLES; i++) {
        for (size_t j = 0; j < n; j++) sample[j] = x[kvl_rng_below(&rng, n)];
        medians[i] = kvl_quantile(sample, n, 0.5);
    }
    if (medians && sample) {
        *lo = kvl_quantile(medians, RESAMPLES, 0.025);
        *hi = kvl_quantile(medians, RESAMPLES, 0.975);
    }
    free(medians);
    free(sample);
}
