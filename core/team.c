#include "core/team.h"

#include <omp.h>
#include <sched.h>
#include <stddef.h>

#include "core/clock.h"
#include "core/threads.h"

/* A worker that waits for one with as much to do waits well under this many pauses (some 100 us);
 * when there are more threads than CPUs, or another program has the CPU, yielding lets the late one
 * run. */
enum { SPINS = 20000 };

static inline void cpu_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

typedef struct start {
    kvl_team team;
    void (*run)(kvl_worker *worker, void *context);
    void *context;
    _Atomic uint64_t wait_ns;
} start;

void kvl_team_run(int n_workers, void (*run)(kvl_worker *worker, void *context), void *context,
                  uint64_t *wait_ns) {
    start s = {.run = run, .context = context};
    if (n_workers <= 1) {
        kvl_worker alone = kvl_worker_alone();
        run(&alone, context);
        return;
    }
#pragma omp parallel num_threads(n_workers)
    {
#pragma omp single
        {
            s.team.n_workers = omp_get_num_threads();
            /* Spinning pays only while every worker has a CPU of its own. */
            s.team.n_spins = s.team.n_workers <= kvl_usable_cpus() ? SPINS : 0;
        }
        kvl_worker worker = {.team = &s.team, .index = omp_get_thread_num(), .n = s.team.n_workers};
        s.run(&worker, s.context);
        atomic_fetch_add(&s.wait_ns, worker.wait_ns);
    }
    if (wait_ns) *wait_ns += s.wait_ns;
}

void kvl_team_barrier(kvl_worker *worker) {
    kvl_team *team = worker->team;
    if (worker->n == 1) return;
    uint32_t round = atomic_load_explicit(&team->opened, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->n_arrived, 1, memory_order_acq_rel) == worker->n - 1) {
        /* The last one resets the count before it opens: nobody can arrive again until then. */
        atomic_store_explicit(&team->n_arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&team->opened, round + 1, memory_order_release);
        return;
    }
    if (atomic_load_explicit(&team->opened, memory_order_acquire) != round) return;
    uint64_t since_ns = kvl_now_ns();
    for (int i = 0; atomic_load_explicit(&team->opened, memory_order_acquire) == round; i++) {
        if (i < team->n_spins) {
            cpu_pause();
        } else {
            sched_yield();
        }
    }
    worker->wait_ns += kvl_now_ns() - since_ns;
}

bool kvl_team_claim(kvl_worker *worker, int64_t n, int64_t unit, int64_t *first, int64_t *last) {
    if (worker->n == 1) {
        /* The whole at once; the next call ends the round. */
        bool is_first = worker->claim_base == 0 && n > 0;
        *first = 0;
        *last = n;
        worker->claim_base = is_first;
        return is_first;
    }
    /* A piece is a third of an equal share of what is left, so that the last ones are small. */
    int64_t at = atomic_load_explicit(&worker->team->n_claimed, memory_order_relaxed), piece;
    do {
        int64_t left = worker->claim_base + n - at;
        if (left <= 0) {
            worker->claim_base += n;
            return false;
        }
        piece = left / (worker->n + worker->n / 2 + 1);
        if (piece > unit) piece -= piece % unit;
        if (piece < 1) piece = 1;
    } while (!atomic_compare_exchange_weak_explicit(&worker->team->n_claimed, &at, at + piece,
                                                    memory_order_relaxed, memory_order_relaxed));
    *first = at - worker->claim_base;
    *last = *first + piece;
    return true;
}

kvl_worker kvl_worker_alone(void) {
    return (kvl_worker){.team = NULL, .index = 0, .n = 1};
}
