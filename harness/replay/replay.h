/* A trace through an allocator in virtual time: lengths only, no model.
 *
 * Time goes in decode steps of a fixed length. A request joins the first step that begins at or
 * after its arrival, as soon as the pool takes it; its prompt is there at once, and at step s =
 * 1 .. output it holds prompt + s tokens (the counting of /results/README.md). First come, first
 * served. Where sequences grow, a request is admitted only while headroom stays (replay.c). When
 * one cannot grow, the one admitted last gives way: it is released, goes back to the front of the
 * queue and is admitted again with all it had (recompute).
 *
 * Laws, checked at the end of every run (KVL_ERR_INTERNAL when one is broken):
 *   requests = finished + refused; preemptions = re-admissions
 *   no request is preempted more than KVL_REPLAY_MAX_PREEMPTIONS times: after that it is admitted
 *   only with its whole need set aside, and is never chosen again
 *   the pool is empty at the end but for cached pages, and its invariants hold
 *
 * A sequence is looked at when its memory changes (a page is full, it ends), not at every token:
 * in between the ledger moves by one slot a sequence and step, from reserved to live, and sums over
 * those steps are closed forms. They are the same numbers, whole slots, as token by token.
 */
#ifndef KVL_HARNESS_REPLAY_H
#define KVL_HARNESS_REPLAY_H

#include "allocators/allocator.h"
#include "harness/replay/map.h"
#include "harness/replay/series.h"
#include "harness/traces/trace.h"

enum { KVL_REPLAY_MAX_PREEMPTIONS = 3 };

typedef struct kvl_replay_options {
    const kvl_allocator *allocator;
    kvl_reserve_policy reserve;
    int64_t page_tokens;
    int64_t pool_tokens;    /* 0 = unlimited: the pool is what is handed out */
    int64_t max_seq_tokens; /* longer requests are refused; 0 = the trace's longest */
    int64_t max_seqs;       /* at once; 0 = no limit */
    int64_t wanted_tokens;  /* external: free that cannot serve a request of this need; 0 = of the
                               next one that waits */
    bool share;             /* prompts with known content share their prefixes */
    double step_s;          /* length of a decode step */
} kvl_replay_options;

/* Slots by kind, summed over steps. */
typedef struct kvl_replay_sums {
    double pool, live, reserved, internal, cached, padding, free, external;
    int64_t steps;
} kvl_replay_sums;

typedef struct kvl_replay_result {
    int64_t requests, finished, refused;
    int64_t preempted;          /* preemptions */
    int64_t preempted_requests; /* that were preempted at least once */
    int64_t preempted_most;     /* preemptions of one request */
    int64_t recomputed_tokens;  /* held before a preemption and written again */
    int64_t largest_batch, largest_queue;
    int64_t steps;                /* to the last token, idle ones included */
    double batch_sum;             /* sequences, summed over all.steps */
    kvl_replay_sums all;          /* steps in which a sequence runs */
    kvl_replay_sums full;         /* of them, those in which a request waits */
    double end_slots, end_tokens; /* handed to finished requests at their last step; tokens there */
    kvl_ledger ledger;            /* at the end */
    int64_t used_peak, live_peak;
} kvl_replay_result;

/* `series` and `map` may be NULL; a map must have been started with the pool's slots. KVL_ERR_INPUT
 * for impossible options. */
kvl_status kvl_replay_run(const kvl_trace *trace, const kvl_replay_options *options,
                          kvl_series *series, kvl_map *map, kvl_replay_result *out);

/* Columns of the series. */
enum { KVL_REPLAY_COLUMNS = 11 };
extern const char *const kvl_replay_columns[KVL_REPLAY_COLUMNS];

#endif
