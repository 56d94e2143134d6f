/* What `kvlab bench decode`, `attention`, `matmul` and `quality` share: options of the sweep's
 * policy, the run itself, --dry-run and the table at the end. */
#ifndef KVL_HARNESS_CMD_BENCH_H
#define KVL_HARNESS_CMD_BENCH_H

#include "harness/commands.h"
#include "harness/sweep/experiment.h"

/* Options of workloads over traces. */
typedef struct kvl_trace_values {
    int64_t requests, wanted_tokens, memory_mib, batch_pct;
    double step_ms, length_scale, aging_s, slo_ttft_ms, slo_tpot_ms, swap_gb_s;
    const char *cost;
    bool skip_zero, real;
} kvl_trace_values;

typedef struct kvl_bench_values {
    const char *axes[KVL_N_AXES]; /* texts of the options; NULL: not given */
    const char *text, *out;
    int64_t chunk, rounds, seed, memory_limit_mib;
    double timeout_s, until_ci_pct, max_time_s;
    int64_t max_rounds;
    const char *nf4_skip;
    int64_t nf4_block;
    bool deterministic, dry_run, retry_failed, allow_nonfinite;
    bool allow_refused;   /* a sweep without a point that can run is rows with reasons, no error */
    const char *side_dir; /* of time series; NULL: none are kept */
    json_t *extra;        /* options of one workload alone; borrowed */
    kvl_trace_values trace; /* replay, serve */
} kvl_bench_values;

/* An axis as an option: name, argument and help are literals. */
#define KVL_BENCH_AXIS(id, name, argument, help) \
    { name, KVL_OPT_TEXT, offsetof(kvl_bench_values, axes[KVL_AXIS_##id]), argument, help, 0, 0 }

#define KVL_BENCH_MACHINE_OPTIONS \
    KVL_BENCH_AXIS(THREADS, "threads", "N,...", "threads, pinned (physical cores)"), \
        KVL_BENCH_AXIS(ISA, "isa", "NAME,...", "instruction sets (the best here)"), \
        KVL_BENCH_AXIS(DEVICE, "device", "NAME,...", "devices (cpu)")

/* `workload` is a literal, the name in the default file; so is `rounds`, their default. */
#define KVL_BENCH_POLICY_OPTIONS(workload) KVL_BENCH_POLICY_OPTIONS_OF(workload, "3")
#define KVL_BENCH_POLICY_OPTIONS_OF(workload, n_rounds) \
    {"rounds", \
     KVL_OPT_INT, \
     offsetof(kvl_bench_values, rounds), \
     "N", \
     "times each trial is measured, interleaved (" n_rounds ")", \
     1, \
     10000}, \
        {"until-ci", \
         KVL_OPT_REAL, \
         offsetof(kvl_bench_values, until_ci_pct), \
         "PCT", \
         "then more rounds of a trial until its medians' 95 % intervals reach PCT % to either " \
         "side", \
         0.001, \
         1000}, \
        {"max-rounds", \
         KVL_OPT_INT, \
         offsetof(kvl_bench_values, max_rounds), \
         "N", \
         "... at most N in all (100)", \
         1, \
         10000}, \
        {"max-time-s", \
         KVL_OPT_REAL, \
         offsetof(kvl_bench_values, max_time_s), \
         "S", \
         "start no trial after S seconds; the same command goes on (no limit)", \
         0.001, \
         1e9}, \
        {"seed", \
         KVL_OPT_INT, \
         offsetof(kvl_bench_values, seed), \
         "N", \
         "inputs, synthetic data, order (1)", \
         0, \
         9007199254740992.0}, \
        {"out", \
         KVL_OPT_TEXT, \
         offsetof(kvl_bench_values, out), \
         "FILE", \
         "rows are appended here, finished ones are not run again (results/" workload \
         "-UTC.jsonl); - is stdout", \
         0, \
         0}, \
        {"timeout-s", \
         KVL_OPT_REAL, \
         offsetof(kvl_bench_values, timeout_s), \
         "S", \
         "a trial and round is ended after S seconds (600)", \
         0.001, \
         1e9}, \
        {"memory-limit-mib", \
         KVL_OPT_INT, \
         offsetof(kvl_bench_values, memory_limit_mib), \
         "N", \
         "... or above N MiB of resident memory (90 % of what is free)", \
         1, \
         1 << 30}, \
        {"retry-failed", \
         KVL_OPT_FLAG, \
         offsetof(kvl_bench_values, retry_failed), \
         NULL, \
         "run again what ended other than ok", \
         0, \
         0}, \
    { \
        "dry-run", KVL_OPT_FLAG, offsetof(kvl_bench_values, dry_run), NULL, \
            "list the trials with their keys and what is refused; run nothing", 0, 0 \
    }

/* What each bench command's --help says at its end. */
#define KVL_BENCH_DETAILS \
    "Each trial and round is a process of its own and one row of the file; what the columns " \
    "mean\n" \
    "stands in results/README.md. Exit codes: 4 when a trial ended oom, timeout, crash or\n" \
    "mismatch; 5 when nothing ran; 130/143 when interrupted (the same command goes on).\n"

/* Values before anything was parsed. */
kvl_bench_values kvl_bench_defaults(void);
/* Sweeps and prints the table; *code is the exit code. */
kvl_status kvl_bench_sweep(const kvl_bench_values *values, const kvl_workload_kind *kind,
                           int *code);
/* The same; *rows (a new reference, NULL after --dry-run) holds the rows of its trials, those that
 * a resumed file held included. */
kvl_status kvl_bench_sweep_rows(const kvl_bench_values *values, const kvl_workload_kind *kind,
                                int *code, json_t **rows);
/* Parses the command line of `self`, sweeps, prints the table; returns the exit code. */
/* Creates the folder of --series, where one was given. */
kvl_status kvl_bench_side_dir(const kvl_bench_values *values);
int kvl_bench_run(const kvl_command *self, const kvl_workload_kind *kind, int argc, char **argv);

#endif
