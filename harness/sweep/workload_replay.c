/* replay: a trace through an allocator in virtual time. Nothing is timed. */
#include <stdio.h>
#include <string.h>

#include "allocators/allocator.h"
#include "harness/sweep/experiment.h"
#include "harness/traces/arrivals.h"

static const char *const policies[] = {"none", "max", "pow2", "oracle", NULL};
static const char *const switches[] = {"on", "off", NULL};

static const kvl_axis_use axes[] = {
    {.id = KVL_AXIS_TRACE},
    {.id = KVL_AXIS_ARRIVAL, .grammar = kvl_arrival_canonical, .fallback = "recorded"},
    {.id = KVL_AXIS_ALLOCATOR},
    {.id = KVL_AXIS_RESERVE, .names = policies, .fallback = "max"},
    {.id = KVL_AXIS_PAGE_TOKENS},
    {.id = KVL_AXIS_SHARE, .names = switches, .fallback = "off"},
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

static bool is_slab(const kvl_trial *trial) {
    const char *name = trial->names[KVL_AXIS_ALLOCATOR];
    return strcmp(name, "contiguous") == 0 || strcmp(name, "buddy") == 0;
}

static void normalise(kvl_trial *trial) {
    if (is_slab(trial))
        trial->numbers[KVL_AXIS_PAGE_TOKENS] = 0;
    else
        trial->names[KVL_AXIS_RESERVE] = "none";
    if (strcmp(trial->names[KVL_AXIS_ALLOCATOR], "growing") == 0)
        trial->numbers[KVL_AXIS_PAGE_TOKENS] = 0;
}

static void refuse(const kvl_experiment *experiment, kvl_trial *trial) {
    (void)experiment;
    const kvl_allocator *allocator;
    const char *why = NULL;
    if (is_slab(trial) && strcmp(trial->names[KVL_AXIS_RESERVE], "none") == 0)
        why = "needs --reserve max, pow2 or oracle";
    if (strcmp(trial->names[KVL_AXIS_SHARE], "on") == 0) {
        if (kvl_allocator_find(trial->names[KVL_AXIS_ALLOCATOR], &allocator) == KVL_OK &&
            !allocator->admit)
            why = "shares no prefixes (--share off)";
        else if (!trial->trace->shares)
            why = "--share on: the trace does not say what its prompts hold";
    }
    if (why)
        snprintf(trial->refused, sizeof trial->refused, "allocator %s: %s",
                 trial->names[KVL_AXIS_ALLOCATOR], why);
}

const kvl_workload_kind kvl_workload_replay = {
    .name = "replay",
    .axes = axes,
    .n_axes = sizeof axes / sizeof *axes,
    .columns = columns,
    .n_columns = sizeof columns / sizeof *columns,
    .normalise = normalise,
    .refuse = refuse,
};
