/* A team: the threads of one parallel region that walk the same code in step.
 *
 * Opening a region for every operation costs a wake-up and a join each time; a decode step has
 * hundreds of operations of microseconds. So one region spans a step: every worker calls every
 * operation with the same arguments, does its own share (`kvl_worker_share`), and meets the others
 * at `kvl_team_barrier` where one operation reads what another wrote. An operation that takes a
 * worker never opens a region and ends without a barrier unless it says so.
 *
 * A team of one has no-op barriers: a caller without a team uses kvl_worker_alone. Waiting is
 * counted in each worker, so that a row can tell idle time from work.
 */
#ifndef KVL_CORE_TEAM_H
#define KVL_CORE_TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct kvl_team {
    int n_workers;
    /* Workers that arrived at the barrier, and how often it has opened. Lines of their own: all
     * spin on `opened`. */
    _Alignas(64) _Atomic int n_arrived;
    _Alignas(64) _Atomic uint32_t opened;
    _Alignas(64) _Atomic int64_t n_claimed; /* units handed out by kvl_team_claim since the start */
    _Alignas(64) _Atomic int n_sleeping;    /* workers that wait for `opened` in the kernel */
    int n_spins;                            /* before a waiting worker goes to sleep */
} kvl_team;

typedef struct kvl_worker {
    kvl_team *team;
    int index;          /* 0 .. team->n_workers - 1 */
    int n;              /* = team->n_workers */
    uint64_t wait_ns;   /* spent in barriers */
    int64_t claim_base; /* n_claimed when the current round of claims began */
} kvl_worker;

/* Opens one region of `n_workers` (>= 1) threads; each calls run(worker, context). When the runtime
 * grants fewer threads, the team is as small as granted. Returns after all have ended. Not to be
 * nested. *wait_ns, when not NULL, += the waiting of all workers together. */
void kvl_team_run(int n_workers, void (*run)(kvl_worker *worker, void *context), void *context,
                  uint64_t *wait_ns);

/* Returns once every worker of the team has called it; what any of them wrote before is visible to
 * all after. */
void kvl_team_barrier(kvl_worker *worker);

/* Hands out the n units of a stage to whoever is free: some of the units not yet taken as [*first,
 * *last), large pieces while many are left and small ones at the end, multiples of `unit` where
 * they are as large. False when none is left; that ends the round for this worker, who must have
 * called with the same n, and must not claim again before a barrier. For work that is bound by
 * memory, two equal shares seldom take equal time. */
bool kvl_team_claim(kvl_worker *worker, int64_t n, int64_t unit, int64_t *first, int64_t *last);

/* A worker that is its own team. */
kvl_worker kvl_worker_alone(void);

/* This worker's share [*first, *last) of n units, in worker order, equal to within one unit. */
static inline void kvl_worker_share(const kvl_worker *worker, int64_t n, int64_t *first,
                                    int64_t *last) {
    *first = n * worker->index / worker->n;
    *last = n * (worker->index + 1) / worker->n;
}

#endif
