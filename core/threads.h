/* One thread pool, OpenMP's. Kernels take n_threads from here and open `#pragma omp parallel
 * num_threads(kvl_threads())`; results never depend on the count. */
#ifndef KVL_CORE_THREADS_H
#define KVL_CORE_THREADS_H

#include "core/status.h"

/* Physical cores this process may run on (affinity respected), by hwloc; at least 1. */
int kvl_physical_cores(void);

/* Sets the count (1 to 1024; 0 = physical cores) and, when `pin`, binds thread i to core i. */
kvl_status kvl_threads_set(int n_threads, int pin);

int kvl_threads(void);

#endif
