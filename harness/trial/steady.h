/* Where a series of step times becomes steady: behind its last change point.
 *
 * A warm-up that counts steps ends too early on one machine and too late on another. Here the
 * series is cut where its level changes (binary segmentation, Scott and Knott 1974, as Barrett et
 * al. 2017 use change points for warm-up), and warm-up is over when enough steps follow the last
 * cut. A change must be both significant (four standard errors, by a spread that is taken from
 * neighbouring differences, so that the change itself does not widen it) and relevant (1 %). Single
 * outliers are no change, except the first step, which is what warm-up is about, and the last,
 * whose successors decide.
 */
#ifndef KVL_HARNESS_STEADY_H
#define KVL_HARNESS_STEADY_H

#include <stdbool.h>
#include <stddef.h>

/* Steps that must follow the last change; a window of the last ones is looked at. */
enum { KVL_STEADY_STEPS = 8, KVL_STEADY_WINDOW = 64 };

/* Index of the first step behind the last change of x[n] (n <= KVL_STEADY_WINDOW); 0: no change. */
size_t kvl_steady_from(const double *x, size_t n);

/* The last KVL_STEADY_STEPS or more of x[n] are steady. */
bool kvl_is_steady(const double *x, size_t n);

#endif
