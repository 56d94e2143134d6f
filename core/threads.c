#define _GNU_SOURCE
#include "core/threads.h"

#include <hwloc.h>
#include <omp.h>
#include <sched.h>

static int n_threads_now = 1;

/* Core i of those this process may use: its first hardware thread, -1 past the end. */
static int core_cpu(hwloc_topology_t topology, const cpu_set_t *allowed, int index) {
    int n_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE), seen = 0;
    for (int i = 0; i < n_cores; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, (unsigned)i);
        int cpu;
        for (cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0;
             cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
            if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, allowed)) break;
        }
        if (cpu < 0) continue;
        if (seen++ == index) return cpu;
    }
    return -1;
}

/* CPUs to bind to, one a usable core; returns how many there are. */
static int usable_cores(int *cpus, int capacity) {
    cpu_set_t allowed;
    hwloc_topology_t topology;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 0;
    if (hwloc_topology_init(&topology) != 0) return 0;
    int n = 0;
    if (hwloc_topology_load(topology) == 0) {
        while (n < capacity && (cpus[n] = core_cpu(topology, &allowed, n)) >= 0) n++;
    }
    hwloc_topology_destroy(topology);
    return n;
}

enum { MAX_THREADS = 1024 };

int kvl_physical_cores(void) {
    /* Asked once: pinning narrows the affinity that a later question would see. */
    static int cores;
    static int cpus[MAX_THREADS];
    if (!cores) {
        int n = usable_cores(cpus, MAX_THREADS);
        cores = n > 0 ? n : 1;
    }
    return cores;
}

/* CPUs that this process may be scheduled on, before anything was pinned. */
static int usable_cpus(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : MAX_THREADS;
}

/* Binds thread i of the team to cpus[i] where there is one; returns how many threads really ran. */
static int start_team(const int *cpus, int n_cpus) {
    int n_ran = 0;
#pragma omp parallel num_threads(n_threads_now)
    {
#pragma omp single
        n_ran = omp_get_num_threads();
        if (omp_get_num_threads() <= n_cpus) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(cpus[omp_get_thread_num()], &set);
            sched_setaffinity(0, sizeof set, &set); /* advice: a refusal costs speed only */
        }
    }
    return n_ran;
}

kvl_status kvl_threads_set(int n_threads, int pin) {
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return kvl_fail(KVL_ERR_INPUT, "threads %d: 1 to %d, or 0 for the physical cores",
                        n_threads, MAX_THREADS);
    static int cpus[MAX_THREADS], n_cores = -1, n_cpus;
    if (n_cores < 0) {
        n_cores = usable_cores(cpus, MAX_THREADS);
        n_cpus = usable_cpus();
    }
    if (pin && n_threads > n_cpus)
        return kvl_fail(KVL_ERR_INPUT, "threads %d: this process may use %d CPUs", n_threads,
                        n_cpus);
    n_threads_now = n_threads ? n_threads : kvl_physical_cores();
    omp_set_dynamic(0);
    omp_set_num_threads(n_threads_now);
    if (!pin) return KVL_OK;
    int n_ran = start_team(cpus, n_cores);
    if (n_ran != n_threads_now)
        return kvl_fail(KVL_ERR_INPUT, "threads %d: only %d started (is OMP_THREAD_LIMIT set?)",
                        n_threads_now, n_ran);
    return KVL_OK;
}

int kvl_threads(void) {
    return n_threads_now;
}
