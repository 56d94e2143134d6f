/* kvlab bench decode: a sweep of prefill and decode over any axes. */
#include "harness/cmd_bench.h"

static const kvl_option options[] = {
    KVL_BENCH_AXIS(MODEL, "model", "M,...", "GGUF file, Hugging Face directory or synthetic:NAME"),
    KVL_BENCH_AXIS(ALLOCATOR, "allocator", "NAME,...", "who owns slots (paged)"),
    KVL_BENCH_AXIS(ATTENTION, "attention", "NAME,...", "kernels (flash)"),
    KVL_BENCH_AXIS(KV_DTYPE, "kv-dtype", "NAME,...", "stored K and V, or K:V (bf16)"),
    KVL_BENCH_AXIS(KV_SCALE, "kv-scale", "NAME,...",
                   "auto, one, tensor, head, page or token (auto: int8 token, others one)"),
    KVL_BENCH_AXIS(WEIGHTS, "weights", "NAME,...", "stored weights (bf16)"),
    KVL_BENCH_AXIS(COMPUTE_DTYPE, "compute-dtype", "NAME,...",
                   "activations entering linear layers and attention (bf16)"),
    KVL_BENCH_AXIS(PROMPT, "prompt", "N,...", "prompt tokens (512)"),
    KVL_BENCH_AXIS(OUTPUT, "output", "N,...", "tokens generated (64)"),
    KVL_BENCH_AXIS(CONTEXT, "context", "N,...",
                   "fill the cache with N seeded tokens instead of a prompt"),
    KVL_BENCH_AXIS(BATCH, "batch", "N,...", "sequences at once (1)"),
    KVL_BENCH_AXIS(PAGE_TOKENS, "page-tokens", "N,...", "paged: tokens in a page (16)"),
    KVL_BENCH_AXIS(RESERVE, "reserve", "NAME,...",
                   "contiguous, buddy: set aside max, pow2 or oracle at admission (max)"),
    KVL_BENCH_AXIS(MAP_KIB, "map-kib", "N,...",
                   "virtual: KiB of a physical page in each pool (64)"),
    KVL_BENCH_AXIS(PREFIX_CACHE, "prefix-cache", "on,off",
                   "paged: prompts are found in the cache, warm from the warm-up (off)"),
    KVL_BENCH_MACHINE_OPTIONS,
    {"text", KVL_OPT_TEXT, offsetof(kvl_bench_values, text), "FILE",
     "take prompts from this text instead of random ids", 0, 0},
    {"chunk", KVL_OPT_INT, offsetof(kvl_bench_values, chunk), "N",
     "prompt tokens in one engine step (512)", 1, 1 << 20},
    {"deterministic", KVL_OPT_FLAG, offsetof(kvl_bench_values, deterministic), NULL,
     "own kernels and fixed shapes: bit-exact whatever the batch", 0, 0},
    {"nf4-block", KVL_OPT_INT, offsetof(kvl_bench_values, nf4_block), "N",
     "weights of a block of nf4, nf4_dq, fp4 (the model's own, or 64)", 32, 4096},
    {"nf4-skip", KVL_OPT_TEXT, offsetof(kvl_bench_values, nf4_skip), "NAME,...",
     "modules that stay unquantised, or none (the model's own, or lm_head)", 0, 0},
    {"allow-nonfinite", KVL_OPT_FLAG, offsetof(kvl_bench_values, allow_nonfinite), NULL,
     "load weights that are NaN or infinite", 0, 0},
    KVL_BENCH_POLICY_OPTIONS("decode"),
};

static int run(const kvl_command *self, int argc, char **argv) {
    return kvl_bench_run(self, &kvl_workload_decode, argc, argv);
}

const kvl_command kvl_command_bench_decode = {
    "bench decode",
    "sweep prefill and decode over any axes, verified before timed",
    "--model M [axes] [--rounds N] [--out F.jsonl]",
    "An axis is a comma list, numbers also as ranges: 512-8192*2 (factor), 1-9+4 (step).\n"
    "Example: kvlab bench decode --model M.gguf --allocator contiguous,paged \\\n"
    "           --attention eager,flash --kv-dtype bf16,fp8_e4m3 --prompt "
    "512-4096*2\n" KVL_BENCH_DETAILS,
    options,
    sizeof options / sizeof *options,
    run};
