/* Statistics of few samples: quantiles, and an interval for the median. */
#ifndef KVL_HARNESS_STATS_H
#define KVL_HARNESS_STATS_H

#include <stddef.h>

/* Quantile q (0..1) of x[n], linear between order statistics (type 7 of Hyndman and Fan 1996).
 * Sorts x. NaN for n == 0. */
double kvl_quantile(double *x, size_t n, double q);

/* 95 % percentile-bootstrap interval of the median of x[n] (Efron 1979), 2,000 resamples from a
 * fixed seed, so that the same rows give the same bytes. Fewer than 3 values: their minimum and
 * maximum. Sorts x. */
void kvl_median_interval(double *x, size_t n, double *lo, double *hi);

#endif
