/* kvlab bench allocator, kvlab bench soak: allocators alone. */
#include "harness/cmd_bench.h"

#define COMMON_AXES \
    KVL_BENCH_AXIS(ALLOCATOR, "allocator", "NAME,...", "allocators (all)"), \
        KVL_BENCH_AXIS(PAGE_TOKENS, "page-tokens", "N,...", \
                       "tokens in a page (16); plays a part in paged only")

static const kvl_option allocator_options[] = {
    COMMON_AXES,
    KVL_BENCH_MACHINE_OPTIONS,
    KVL_BENCH_POLICY_OPTIONS("allocator"),
};

static const kvl_option soak_options[] = {
    COMMON_AXES,
    KVL_BENCH_AXIS(OPERATIONS, "operations", "N,...",
                   "calls before the run ends; the row tells of the last million (10000000)"),
    KVL_BENCH_MACHINE_OPTIONS,
    KVL_BENCH_POLICY_OPTIONS("soak"),
};

static int run_allocator(const kvl_command *self, int argc, char **argv) {
    return kvl_bench_run(self, &kvl_workload_allocator, argc, argv);
}

static int run_soak(const kvl_command *self, int argc, char **argv) {
    return kvl_bench_run(self, &kvl_workload_soak, argc, argv);
}

const kvl_command kvl_command_bench_allocator = {
    "bench allocator",
    "allocators alone: page operations a second, ns of a call, metadata",
    "[--allocator NAME,...] [--page-tokens N,...] [--rounds N] [--out F.jsonl]",
    "No model, no tensors: calls on one core, in a pool of 4,194,304 slots. Slabs are as long as\n"
    "their request (reserve policy oracle). Copies that calls order are not carried out.\n"
    "Example: kvlab bench allocator --allocator paged --page-tokens 1-256*4\n" KVL_BENCH_DETAILS,
    allocator_options,
    sizeof allocator_options / sizeof *allocator_options,
    run_allocator};

const kvl_command kvl_command_bench_soak = {
    "bench soak",
    "allocators over millions of calls with shifting lengths: do they decay?",
    "[--allocator NAME,...] [--operations N,...] [--rounds N] [--out F.jsonl]",
    "A pool of 1,048,576 slots is kept nearly full; the mix of lengths changes every million\n"
    "calls. A shorter run is the beginning of a longer one: points of --operations make a curve.\n"
    "Example: kvlab bench soak --operations 1000000-10000000+1000000 --out results/soak.jsonl\n"
    "         kvlab plot results/soak.jsonl --x operations --y admissible_pct --by "
    "allocator\n" KVL_BENCH_DETAILS,
    soak_options,
    sizeof soak_options / sizeof *soak_options,
    run_soak};
