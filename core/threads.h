/* One thread pool, OpenMP's. Kernels take n_threads from here and open `#pragma omp parallel
 * num_threads(kvl_threads())`; results never depend on the count. */
#ifndef KVL_CORE_THREADS_H
#define KVL_CORE_THREADS_H

#include "core/status.h"

/* Physical cores this process may run on (affinity respected), by hwloc; at least 1. */
int kvl_physical_cores(void);

/* Sets the count (1 to 1024; 0 = physical cores). With `pin`, for measurements: more threads than
 * CPUs are refused, as is a team smaller than asked for, and up to one thread a core is bound to
 * its core (more, on hardware threads, are left to the scheduler). */
kvl_status kvl_threads_set(int n_threads, int pin);

int kvl_threads(void);

#endif
