/* replay: a trace through an allocator in virtual time. Nothing is timed. */
#include "harness/sweep/workload_common.h"
#include "harness/traces/arrivals.h"

static const kvl_axis_use axes[] = {
    {.id = KVL_AXIS_TRACE},
    {.id = KVL_AXIS_ARRIVAL, .grammar = kvl_arrival_canonical, .fallback = "recorded"},
    {.id = KVL_AXIS_ALLOCATOR},
    {.id = KVL_AXIS_RESERVE, .names = kvl_workload_policies, .fallback = "max"},
    {.id = KVL_AXIS_PAGE_TOKENS},
    {.id = KVL_AXIS_SHARE, .names = kvl_workload_switches, .fallback = "off"},
    {.id = KVL_AXIS_POOL_TOKENS, .fallback = "0"},
    {.id = KVL_AXIS_MAX_MODEL_LEN, .fallback = "0"},
    {.id = KVL_AXIS_MAX_SEQS, .fallback = "0"},
};

static const kvl_summary_column columns[] = {{"tail_waste_pct", "tail waste %"},
                                             {"slots_live_pct", "live %"},
                                             {"external_pct", "external %"},
                                             {"prefix_hit_pct", "prefix hit %"},
                                             {"refused", "refused"},
                                             {"preempted", "preempted"},
                                             {"largest_batch", "largest batch"}};

static void refuse(const kvl_experiment *experiment, kvl_trial *trial) {
    (void)experiment;
    const char *why = kvl_workload_why_no_share(trial);
    kvl_workload_refuse_allocator(trial, why ? why : kvl_workload_why_no_reserve(trial));
}

const kvl_workload_kind kvl_workload_replay = {
    .name = "replay",
    .axes = axes,
    .n_axes = sizeof axes / sizeof *axes,
    .columns = columns,
    .n_columns = sizeof columns / sizeof *columns,
    .normalise = kvl_workload_drop_slot_axes,
    .refuse = refuse,
};
