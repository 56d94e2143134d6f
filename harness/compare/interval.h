/* By how much B differs from A: the ratio of their medians with an interval, and what it says.
 *
 * Work is done on logarithms, so that a ratio and its inverse have mirrored intervals. Rounds that
 * ran interleaved in one run are compared within each round (what disturbs the machine for a while
 * disturbs both); others as two independent samples.
 *
 * The interval is the percentile bootstrap of the (difference of) medians (Efron 1979), 5,000
 * resamples from a fixed seed. It cannot reach beyond the extremes, which n rounds hold on one side
 * of the median with probability 2^-n each: below 12 rounds it is widened to Student's (paired) or
 * Welch's (1947) interval of the mean, whose factors grow as rounds become few.
 */
#ifndef KVL_HARNESS_INTERVAL_H
#define KVL_HARNESS_INTERVAL_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

typedef struct kvl_change {
    double ratio, lo, hi; /* B / A; lo = 0 and hi = infinity where one round cannot tell */
    size_t n_a, n_b;      /* rounds; equal when paired */
    bool paired;
    bool exists; /* false: no round, or values that have no ratio (0, negative) */
} kvl_change;

/* a[n_a], b[n_b]: values of rounds. `paired`: a[i] and b[i] are one round of one run (n_a == n_b).
 * `confidence`: 0.995. Equal values on both sides (zeros too) give exactly 1. KVL_ERR_OOM. */
kvl_status kvl_change_of(const double *a, size_t n_a, const double *b, size_t n_b, bool paired,
                         double confidence, kvl_change *out);

/* An open verdict names no direction of better: that is the metric's. */
typedef enum kvl_direction {
    KVL_CHANGE_UNSURE = 0, /* the interval meets a threshold: more rounds are needed */
    KVL_CHANGE_SAME,       /* it lies within +- the minimum effect */
    KVL_CHANGE_UP,         /* it lies above it: B is larger */
    KVL_CHANGE_DOWN
} kvl_direction;

/* `effect`: the smallest change that counts, 0.01 for 1 %: B is larger when lo > 1 + effect,
 * smaller when hi < 1 / (1 + effect). */
kvl_direction kvl_change_direction(const kvl_change *change, double effect);

enum { KVL_ROUNDS_UNKNOWN = -1, KVL_ROUNDS_MAX = 10000 };

/* Rounds more, on each side, after which an unsure change would be settled if ratio and spread stay
 * what they are; KVL_ROUNDS_UNKNOWN above KVL_ROUNDS_MAX (the ratio lies on the threshold), or
 * where one round says nothing of the spread. */
long kvl_change_more_rounds(const kvl_change *change, double effect, double confidence);

/* Quantile p of Student's t with `df` degrees of freedom (any real number above 0). */
double kvl_student_quantile(double p, double df);

#endif
