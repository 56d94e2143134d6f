/* serve: continuous batching over a trace. Two tables under one name: in virtual time there is no
 * model, only the cost of its steps. */
#include <string.h>

#include "harness/serve/retry.h"
#include "harness/sweep/workload_common.h"
#include "harness/traces/arrivals.h"

static const char *const schedules[] = {"decode_first", "prefill_first", "static", NULL};
static const char *const preempts[] = {"recompute", "swap", NULL};

#define SCHEDULER_AXES \
    {.id = KVL_AXIS_TRACE}, \
        {.id = KVL_AXIS_ARRIVAL, .grammar = kvl_arrival_canonical, .fallback = "recorded"}, \
        {.id = KVL_AXIS_ALLOCATOR}, \
        {.id = KVL_AXIS_RESERVE, .names = kvl_workload_policies, .fallback = "max"}, \
        {.id = KVL_AXIS_PAGE_TOKENS}, \
        {.id = KVL_AXIS_SHARE, .names = kvl_workload_switches, .fallback = "off"}, \
        {.id = KVL_AXIS_POOL_TOKENS, .fallback = "0"}, \
        {.id = KVL_AXIS_MEMORY_UTILIZATION, .fallback = "90"}, \
        {.id = KVL_AXIS_MAX_MODEL_LEN, .fallback = "0"}, \
        {.id = KVL_AXIS_MAX_SEQS, .fallback = "256"}, \
        {.id = KVL_AXIS_MAX_BATCHED_TOKENS, .fallback = "512"}, \
        {.id = KVL_AXIS_SCHEDULE, .names = schedules, .fallback = "decode_first"}, \
        {.id = KVL_AXIS_CHUNKED_PREFILL, .names = kvl_workload_switches, .fallback = "on"}, \
        {.id = KVL_AXIS_PREEMPT, .names = preempts, .fallback = "recompute"}, \
        {.id = KVL_AXIS_QUEUE_LIMIT, .fallback = "0"}, { \
        .id = KVL_AXIS_RETRY, .grammar = kvl_retry_canonical, .fallback = "none" \
    }

static const kvl_axis_use axes[] = {SCHEDULER_AXES};
static const kvl_axis_use real_axes[] = {
    {.id = KVL_AXIS_MODEL},   {.id = KVL_AXIS_ATTENTION},     {.id = KVL_AXIS_KV_DTYPE},
    {.id = KVL_AXIS_WEIGHTS}, {.id = KVL_AXIS_COMPUTE_DTYPE}, SCHEDULER_AXES,
    {.id = KVL_AXIS_THREADS}, {.id = KVL_AXIS_ISA},           {.id = KVL_AXIS_DEVICE}};

static const kvl_summary_column columns[] = {
    {"output_tok_s", "output tok/s"}, {"ttft_p50_ms", "TTFT p50 ms"},
    {"ttft_p99_ms", "TTFT p99 ms"},   {"tpot_p50_ms", "TPOT p50 ms"},
    {"itl_p99_ms", "ITL p99 ms"},     {"slo_met_pct", "SLO met %"},
    {"preempted", "preempted"},       {"gave_up", "gave up"}};

static void normalise(kvl_trial *trial) {
    kvl_workload_drop_slot_axes(trial);
    if (trial->numbers[KVL_AXIS_POOL_TOKENS]) trial->numbers[KVL_AXIS_MEMORY_UTILIZATION] = 0;
    if (trial->numbers[KVL_AXIS_QUEUE_LIMIT] == 0) trial->names[KVL_AXIS_RETRY] = "none";
}

static const char *why_not(const kvl_trial *trial) {
    if (trial->numbers[KVL_AXIS_MAX_SEQS] < 1) return "--max-seqs: at least 1";
    const char *why = kvl_workload_why_no_reserve(trial);
    if (!why) why = kvl_workload_why_no_share(trial);
    if (why) return why;
    if (trial->model && strcmp(trial->names[KVL_AXIS_PREEMPT], "swap") == 0)
        return "--preempt swap: not on the engine";
    if (trial->model && !trial->numbers[KVL_AXIS_POOL_TOKENS])
        return "--real needs --pool-tokens N";
    return NULL;
}

static void refuse(const kvl_experiment *experiment, kvl_trial *trial) {
    (void)experiment;
    kvl_workload_refuse_allocator(trial, why_not(trial));
}

const kvl_workload_kind kvl_workload_serve = {
    .name = "serve",
    .axes = axes,
    .n_axes = sizeof axes / sizeof *axes,
    .columns = columns,
    .n_columns = sizeof columns / sizeof *columns,
    .normalise = normalise,
    .refuse = refuse,
};

const kvl_workload_kind kvl_workload_serve_real = {
    .name = "serve",
    .command = "serve --real",
    .axes = real_axes,
    .n_axes = sizeof real_axes / sizeof *real_axes,
    .columns = columns,
    .n_columns = sizeof columns / sizeof *columns,
    .normalise = normalise,
    .refuse = refuse,
};
