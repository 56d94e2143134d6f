#define _GNU_SOURCE
#include "core/team.h"

#include <limits.h>
#include <linux/futex.h>
#include <omp.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/threads.h"

/* A worker that waits for one with as much to do waits well under this many pauses (some 100 us).
 * When there are more threads than CPUs, or another program has the CPU of the late one, it sleeps:
 * the scheduler lets a thread that wakes go before one that has run all along, where a thread that
 * yields may wait a whole time slice at each barrier. (Two threads beside three busy programs a
 * CPU: 206 ms a decode step of 32 sequences, 453 ms when waiting by sched_yield.) */
enum { SPINS = 20000 };

/* Sleeps unless *word is no longer `value`; may wake for no reason. */
static void sleep_while(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

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
        atomic_store(&team->opened, round + 1);
        /* Either this load sees who is about to sleep, or the kernel sees the new round. */
        if (atomic_load(&team->n_sleeping)) wake_all(&team->opened);
        return;
    }
    if (atomic_load_explicit(&team->opened, memory_order_acquire) != round) return;
    uint64_t since_ns = kvl_now_ns();
    for (int i = 0; i < team->n_spins; i++) {
        if (atomic_load_explicit(&team->opened, memory_order_acquire) != round) break;
        cpu_pause();
    }
    if (atomic_load_explicit(&team->opened, memory_order_acquire) == round) {
        atomic_fetch_add(&team->n_sleeping, 1);
        while (atomic_load(&team->opened) == round) sleep_while(&team->opened, round);
        atomic_fetch_sub(&team->n_sleeping, 1);
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
