/* The sweep: rounds over all trials, one child process for each trial and round, one row each.
 *
 * Law: every scheduled (trial, round) ends as exactly one row, whatever became of its child; a run
 * that was cut short has written the rows of the ones it finished, and the next run on the same
 * file schedules the others only. A round that a settled trial does not need, or that max_time_s
 * leaves no time for, is not run and has no row.
 *
 * Rounds are the outer loop and the order inside a round is random by seed, so that slow drift
 * (heat, neighbours) hits all trials alike.
 */
#ifndef KVL_HARNESS_SWEEP_H
#define KVL_HARNESS_SWEEP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "harness/sweep/experiment.h"

typedef struct kvl_sweep_options {
    const kvl_workload *workload;
    const kvl_trials *trials;
    int64_t rounds; /* of each trial; with until_ci_pct: the fewest */
    double
        until_ci_pct; /* then more, up to max_rounds, until a trial is settled (settle.h); 0: no */
    int64_t max_rounds;
    double max_time_s;           /* no trial is started later; 0 = no limit */
    const char *out;             /* .jsonl file; NULL: rows go to stdout and nothing is resumed */
    const char *side_dir;        /* folder for what is too large for a row; NULL: not kept */
    double timeout_s;            /* per trial and round; 0 = none */
    uint64_t memory_limit_bytes; /* resident size of a child; 0 = none */
    bool retry_failed;           /* run again what ended other than ok */
    const char *executable;      /* answers `trial SPEC` on descriptor 3; "/proc/self/exe" */
    const char *build_id;
    bool quiet; /* no progress */
} kvl_sweep_options;

typedef enum kvl_outcome {
    KVL_OUTCOME_OK = 0,
    KVL_OUTCOME_UNSUPPORTED,
    KVL_OUTCOME_SKIPPED,
    KVL_OUTCOME_OOM,
    KVL_OUTCOME_TIMEOUT,
    KVL_OUTCOME_CRASH,
    KVL_OUTCOME_MISMATCH,
    KVL_N_OUTCOMES
} kvl_outcome;

const char *kvl_outcome_name(kvl_outcome outcome);
/* KVL_N_OUTCOMES for an unknown name. */
kvl_outcome kvl_outcome_find(const char *name);

typedef struct kvl_sweep_summary {
    size_t n_rows[KVL_N_OUTCOMES]; /* of all rows of these trials, resumed ones included */
    size_t n_scheduled, n_resumed, n_written;
    size_t n_settled, n_late; /* scheduled, but not needed any more; no time left for them */
    int signal;               /* SIGINT or SIGTERM that ended the sweep, else 0 */
    json_t *rows;             /* those rows; borrowed by nobody: free with kvl_sweep_summary_free */
} kvl_sweep_summary;

/* SIGINT and SIGTERM are caught while it runs. KVL_ERR_IO when a row cannot be kept (full disk). */
kvl_status kvl_sweep_run(const kvl_sweep_options *options, kvl_sweep_summary *summary);
void kvl_sweep_summary_free(kvl_sweep_summary *summary);

/* Exit code of a sweep that ended without an error. */
int kvl_sweep_exit(const kvl_sweep_summary *summary);

#endif
