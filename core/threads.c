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

/* Calls visit for each usable core until it returns 0; returns how many there are. */
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

kvl_status kvl_threads_set(int n_threads, int pin) {
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return kvl_fail(KVL_ERR_INPUT, "threads %d: 1 to %d, or 0 for the physical cores",
                        n_threads, MAX_THREADS);
    static int cpus[MAX_THREADS], n_cpus = -1;
    if (n_cpus < 0) n_cpus = usable_cores(cpus, MAX_THREADS);
    n_threads_now = n_threads ? n_threads : kvl_physical_cores();
    omp_set_dynamic(0);
    omp_set_num_threads(n_threads_now);
    if (!pin || n_cpus <= 0 || n_threads_now > n_cpus) return KVL_OK;
#pragma omp parallel num_threads(n_threads_now)
    {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpus[omp_get_thread_num()], &set);
        sched_setaffinity(0, sizeof set, &set); /* advice: a refusal costs speed only */
    }
    return KVL_OK;
}

int kvl_threads(void) {
    return n_threads_now;
}
