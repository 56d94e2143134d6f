#define _GNU_SOURCE
#include "core/threads.h"

#include <hwloc.h>
#include <omp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

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

enum { MAX_THREADS = 1024 };

/* What this process may use, asked once: pinning narrows the affinity that a later question sees.
 */
static struct {
    bool known;
    int cpus[MAX_THREADS]; /* the CPU to bind to on each usable core */
    int n_cores, n_cpus;
} machine;

/* Where the system hides its topology (a bare chroot), every CPU counts as a core. */
static void cpus_as_cores(const cpu_set_t *allowed) {
    for (int cpu = 0; cpu < CPU_SETSIZE && machine.n_cores < MAX_THREADS; cpu++) {
        if (CPU_ISSET(cpu, allowed)) machine.cpus[machine.n_cores++] = cpu;
    }
}

static void look_at_machine(void) {
    cpu_set_t allowed;
    hwloc_topology_t topology;
    if (machine.known) return;
    machine.known = true;
    machine.n_cpus = MAX_THREADS;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    machine.n_cpus = CPU_COUNT(&allowed);
    setenv("HWLOC_HIDE_ERRORS", "2", 0); /* the fallback below answers for it */
    if (hwloc_topology_init(&topology) == 0) {
        int n = 0;
        if (hwloc_topology_load(topology) == 0) {
            while (n < MAX_THREADS && (machine.cpus[n] = core_cpu(topology, &allowed, n)) >= 0) n++;
        }
        machine.n_cores = n;
        hwloc_topology_destroy(topology);
    }
    if (machine.n_cores == 0) cpus_as_cores(&allowed);
}

int kvl_physical_cores(void) {
    look_at_machine();
    return machine.n_cores > 0 ? machine.n_cores : 1;
}

int kvl_usable_cpus(void) {
    look_at_machine();
    return machine.n_cpus > 0 ? machine.n_cpus : 1;
}

/* Binds thread i of the team to core i where each has one; returns how many threads really ran. */
static int start_team(void) {
    int n_ran = 0;
#pragma omp parallel num_threads(n_threads_now)
    {
#pragma omp single
        n_ran = omp_get_num_threads();
        if (omp_get_num_threads() <= machine.n_cores) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(machine.cpus[omp_get_thread_num()], &set);
            sched_setaffinity(0, sizeof set, &set); /* advice: a refusal costs speed only */
        }
    }
    return n_ran;
}

kvl_status kvl_threads_set(int n_threads, int pin) {
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return kvl_fail(KVL_ERR_INPUT, "threads %d: 1 to %d, or 0 for the physical cores",
                        n_threads, MAX_THREADS);
    look_at_machine();
    if (pin && n_threads > machine.n_cpus)
        return kvl_fail(KVL_ERR_INPUT, "threads %d: this process may use %d CPUs", n_threads,
                        machine.n_cpus);
    n_threads_now = n_threads ? n_threads : kvl_physical_cores();
    omp_set_dynamic(0);
    omp_set_num_threads(n_threads_now);
    if (!pin) return KVL_OK;
    int n_ran = start_team();
    if (n_ran != n_threads_now)
        return kvl_fail(KVL_ERR_INPUT, "threads %d: only %d started (is OMP_THREAD_LIMIT set?)",
                        n_threads_now, n_ran);
    return KVL_OK;
}

int kvl_threads(void) {
    return n_threads_now;
}
