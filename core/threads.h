/* One thread pool, OpenMP's. An operation runs on kvl_threads() threads, inside one parallel region
 * of its own or as the share of a worker (core/team.h); results never depend on the count. */
#ifndef KVL_CORE_THREADS_H
#define KVL_CORE_THREADS_H

#include "core/status.h"

/* Physical cores this process may run on (affinity respected), by hwloc; at least 1. */
int kvl_physical_cores(void);

/* CPUs (hardware threads) this process may use; at least 1. */
int kvl_usable_cpus(void);

/* Sets the count (1 to 1024; 0 = physical cores). With `pin`, for measurements: more threads than
 * CPUs are refused, as is a team smaller than asked for, and up to one thread a core is bound to
 * its core (more, on hardware threads, are left to the scheduler). */
kvl_status kvl_threads_set(int n_threads, int pin);

int kvl_threads(void);

#endif
