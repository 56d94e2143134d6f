/* kvlab bench matmul: linear layers alone, by shape. */
#include "harness/cmd_bench.h"

static const kvl_option options[] = {
    KVL_BENCH_AXIS(SHAPE, "shape", "MxKxN,...", "rows x inputs x outputs (1x4096x4096)"),
    KVL_BENCH_AXIS(WEIGHTS, "weights", "NAME,...", "stored weights (bf16)"),
    KVL_BENCH_AXIS(COMPUTE_DTYPE, "compute-dtype", "NAME,...", "what x is rounded to (bf16)"),
    KVL_BENCH_AXIS(KERNEL, "kernel", "NAME,...",
                   "auto: as the decoder picks; own: no library kernels (auto)"),
    KVL_BENCH_AXIS(CACHE, "cache", "NAME,...",
                   "cold: each call reads the weights from memory; warm: the same again (cold)"),
    KVL_BENCH_MACHINE_OPTIONS,
    KVL_BENCH_POLICY_OPTIONS("matmul"),
};

static int run(const kvl_command *self, int argc, char **argv) {
    return kvl_bench_run(self, &kvl_workload_matmul, argc, argv);
}

const kvl_command kvl_command_bench_matmul = {
    "bench matmul",
    "linear layers alone, by shape: GB/s, GFLOP/s, % of the ceilings",
    "[--shape MxKxN] [axes] [--rounds N] [--out F.jsonl]",
    "A shape is rows of activations x inputs x outputs, in digits, or digits and k for times\n"
    "1,024: 1x4096x4096 is a decode step's layer, 512x576x1536 a prefill's.\n"
    "Every axis is a comma list, numbers also as ranges: 1-8*2 (factor), 1-9+4 (step).\n"
    "Example: kvlab bench matmul --shape 1x4kx4k,512x4kx4k --weights f32,f16,bf16 \\\n"
    "           --cache cold,warm\n" KVL_BENCH_DETAILS,
    options,
    sizeof options / sizeof *options,
    run};
