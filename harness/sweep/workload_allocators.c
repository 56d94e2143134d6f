/* allocator and soak: allocators alone, without model or tensors. One thread, so that threads are
 * no axis to sweep, only a column. */
#include <stdio.h>

#include "harness/sweep/workload_common.h"

#define EVERY_ALLOCATOR "contiguous,buddy,growing,paged,virtual"

static const kvl_axis_use allocator_axes[] = {
    {.id = KVL_AXIS_ALLOCATOR, .fallback = EVERY_ALLOCATOR},
    {.id = KVL_AXIS_PAGE_TOKENS, .fallback = "16"},
    {.id = KVL_AXIS_THREADS, .fallback = "1"},
    {.id = KVL_AXIS_ISA},
    {.id = KVL_AXIS_DEVICE},
};

static const kvl_axis_use soak_axes[] = {
    {.id = KVL_AXIS_ALLOCATOR, .fallback = EVERY_ALLOCATOR},
    {.id = KVL_AXIS_OPERATIONS, .fallback = "10000000"},
    {.id = KVL_AXIS_PAGE_TOKENS, .fallback = "16"},
    {.id = KVL_AXIS_THREADS, .fallback = "1"},
    {.id = KVL_AXIS_ISA},
    {.id = KVL_AXIS_DEVICE},
};

static const kvl_summary_column allocator_columns[] = {{"page_op_m_s", "page M ops/s"},
                                                       {"admit_ns", "admit+release ns"},
                                                       {"append_ns", "append ns"},
                                                       {"prefix_token_ns", "prefix ns/token"},
                                                       {"metadata_bytes", "metadata bytes"}};

static const kvl_summary_column soak_columns[] = {{"operation_ns", "operation ns"},
                                                  {"slots_live_pct", "live %"},
                                                  {"free_pct", "free %"},
                                                  {"admissible_pct", "admissible %"},
                                                  {"refused_with_room", "refused with room"}};

static void refuse(const kvl_experiment *experiment, kvl_trial *trial) {
    (void)experiment;
    if (trial->numbers[KVL_AXIS_THREADS] != 1)
        snprintf(trial->refused, sizeof trial->refused,
                 "threads %lld: an allocator is used by one thread",
                 (long long)trial->numbers[KVL_AXIS_THREADS]);
    else if (trial->numbers[KVL_AXIS_PAGE_TOKENS] > 1 << 16)
        snprintf(trial->refused, sizeof trial->refused, "page_tokens %lld: at most 65536 here",
                 (long long)trial->numbers[KVL_AXIS_PAGE_TOKENS]);
}

const kvl_workload_kind kvl_workload_allocator = {
    .name = "allocator",
    .axes = allocator_axes,
    .n_axes = sizeof allocator_axes / sizeof *allocator_axes,
    .columns = allocator_columns,
    .n_columns = sizeof allocator_columns / sizeof *allocator_columns,
    .normalise = kvl_workload_drop_pages,
    .refuse = refuse,
    .working_set_bytes = kvl_workload_no_working_set};

const kvl_workload_kind kvl_workload_soak = {.name = "soak",
                                             .axes = soak_axes,
                                             .n_axes = sizeof soak_axes / sizeof *soak_axes,
                                             .columns = soak_columns,
                                             .n_columns =
                                                 sizeof soak_columns / sizeof *soak_columns,
                                             .normalise = kvl_workload_drop_pages,
                                             .refuse = refuse,
                                             .working_set_bytes = kvl_workload_no_working_set};
