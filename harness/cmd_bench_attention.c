/* kvlab bench attention: attention kernels alone, by shape. */
#include "harness/cmd_bench.h"

static const kvl_option options[] = {
    KVL_BENCH_AXIS(SHAPE, "shape", "S,...", "batches, as below (8q1s4096)"),
    KVL_BENCH_AXIS(HEADS, "heads", "Q/KV,...", "query and KV heads (32/8)"),
    KVL_BENCH_AXIS(HEAD_DIM, "head-dim", "N,...", "elements of a head (128)"),
    KVL_BENCH_AXIS(ATTENTION, "attention", "NAME,...", "kernels (flash)"),
    KVL_BENCH_AXIS(KV_DTYPE, "kv-dtype", "NAME,...", "stored K and V, or K:V (bf16)"),
    KVL_BENCH_AXIS(COMPUTE_DTYPE, "q-dtype", "NAME,...", "Q and O (bf16); compute_dtype in rows"),
    KVL_BENCH_AXIS(ALLOCATOR, "allocator", "NAME,...", "where K and V lie (paged, shuffled)"),
    KVL_BENCH_AXIS(PAGE_TOKENS, "page-tokens", "N,...",
                   "tokens in a page (16); plays no part in contiguous"),
    KVL_BENCH_AXIS(CACHE, "cache", "NAME,...",
                   "cold: each call reads K and V from memory; warm: the same again (cold)"),
    KVL_BENCH_AXIS(CAUSAL, "causal", "on,off", "causal mask (on)"),
    KVL_BENCH_AXIS(WINDOW, "window", "N,...", "sliding window, 0 = none (0)"),
    KVL_BENCH_AXIS(SOFTCAP, "softcap", "N,...", "cap of the scores, 0 = none (0)"),
    KVL_BENCH_MACHINE_OPTIONS,
    KVL_BENCH_POLICY_OPTIONS("attention"),
};

static int run(const kvl_command *self, int argc, char **argv) {
    return kvl_bench_run(self, &kvl_workload_attention, argc, argv);
}

const kvl_command kvl_command_bench_attention = {
    "bench attention",
    "attention kernels alone, by shape: GB/s, GFLOP/s, % of the ceilings",
    "[--shape S] [axes] [--rounds N] [--out F.jsonl]",
    "A shape is [N]qLEN[sLEN] groups joined by _: N sequences (1) of q query tokens each against\n"
    "s keys in all (as many as queries); LEN in digits, or digits and k for times 1,024.\n"
    "  8q1s4096             decode: 8 sequences with 4,096 keys\n"
    "  q2k                  prefill of 2,048 tokens\n"
    "  2q512s512_32q1s4096  two prefills beside 32 decodes\n"
    "Every axis is a comma list, numbers also as ranges: 16-256*2 (factor), 1-9+4 (step).\n"
    "Example: kvlab bench attention --shape 8q1s4096,q2k --kv-dtype bf16,fp8_e4m3 \\\n"
    "           --allocator contiguous,paged --cache cold,warm\n" KVL_BENCH_DETAILS,
    options,
    sizeof options / sizeof *options,
    run};
