/* How much the machine adds to a fixed piece of work just now: other processes, a hypervisor that
 * takes the core away, a clock that wanders. */
#ifndef KVL_HARNESS_NOISE_H
#define KVL_HARNESS_NOISE_H

#include <stddef.h>

/* Runs arithmetic in registers, about 25 us a piece, for 30 ms on the calling thread; by how many
 * per cent the mean piece takes longer than the fast ones (10th percentile). */
double kvl_noise_measure(void);
/* The same of given times; 0 for n == 0. Sorts. */
double kvl_noise_of(double *ns, size_t n);

/* "quiet" up to 1 %, "fair" up to 3 %, "noisy" up to 10 %, else "loud". */
const char *kvl_noise_grade(double pct);

#endif
