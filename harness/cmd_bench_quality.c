/* kvlab bench quality: perplexity and KL divergence of a configuration beside its speed and bytes;
 * with --format-error, the rounding error of number formats. */
#include "harness/cmd_bench.h"
#include "harness/exit.h"

typedef struct values {
    kvl_bench_values bench; /* first: the shared options are offsets into it */
    bool format_error;
} values;

static const kvl_option options[] = {
    KVL_BENCH_AXIS(MODEL, "model", "M,...", "GGUF file or Hugging Face directory"),
    KVL_BENCH_AXIS(ALLOCATOR, "allocator", "NAME,...", "who owns slots (paged)"),
    KVL_BENCH_AXIS(ATTENTION, "attention", "NAME,...", "kernels (flash)"),
    KVL_BENCH_AXIS(KV_DTYPE, "kv-dtype", "NAME,...", "stored K and V, or K:V (bf16)"),
    KVL_BENCH_AXIS(KV_SCALE, "kv-scale", "NAME,...",
                   "auto, one, tensor, head, page or token (auto: int8 token, others one)"),
    KVL_BENCH_AXIS(WEIGHTS, "weights", "NAME,...", "stored weights (bf16)"),
    KVL_BENCH_AXIS(COMPUTE_DTYPE, "compute-dtype", "NAME,...",
                   "activations entering linear layers and attention (f32)"),
    KVL_BENCH_AXIS(PROMPT, "tokens", "N,...",
                   "first N tokens of the text, in one window (2048; --format-error: 512)"),
    KVL_BENCH_AXIS(PAGE_TOKENS, "page-tokens", "N,...",
                   "tokens in a page (16); plays no part in contiguous"),
    {"format-error", KVL_OPT_FLAG, offsetof(values, format_error), NULL,
     "rounding error of formats on normals and, with --model, its K, V and weights", 0, 0},
    KVL_BENCH_AXIS(DATA, "data", "NAME,...", "--format-error: normal, k, v, weights (all)"),
    KVL_BENCH_AXIS(FORMAT, "format", "NAME,...", "--format-error: formats (all but f32)"),
    KVL_BENCH_AXIS(BLOCK, "block", "N,...",
                   "--format-error: values of a block of nf4, nf4_dq, fp4 (32,64,128,256)"),
    KVL_BENCH_MACHINE_OPTIONS,
    {"text", KVL_OPT_TEXT, offsetof(values, bench.text), "FILE",
     "UTF-8 text (the Constitution of the United States, in tests/text)", 0, 0},
    {"chunk", KVL_OPT_INT, offsetof(values, bench.chunk), "N", "tokens in one engine step (512)", 1,
     1 << 20},
    {"deterministic", KVL_OPT_FLAG, offsetof(values, bench.deterministic), NULL,
     "own kernels and fixed shapes: bit-exact whatever the batch", 0, 0},
    {"nf4-block", KVL_OPT_INT, offsetof(values, bench.nf4_block), "N",
     "weights of a block of nf4, nf4_dq, fp4 (the model's own, or 64)", 32, 4096},
    {"nf4-skip", KVL_OPT_TEXT, offsetof(values, bench.nf4_skip), "NAME,...",
     "modules that stay unquantised, or none (the model's own, or lm_head)", 0, 0},
    {"allow-nonfinite", KVL_OPT_FLAG, offsetof(values, bench.allow_nonfinite), NULL,
     "load weights that are NaN or infinite", 0, 0},
    KVL_BENCH_POLICY_OPTIONS_OF("quality", "1"),
};

static const char *option_of(const kvl_workload_kind *kind, kvl_axis_id id) {
    const kvl_axis_use *use = kvl_workload_use(kind, id);
    return use && use->option ? use->option : kvl_axis_of(id)->option;
}

/* Options of the one kind are an error for the other, not silently left out. */
static kvl_status check(const values *v, const kvl_workload_kind *kind) {
    const kvl_bench_values *b = &v->bench;
    for (int i = 0; i < KVL_N_AXES; i++) {
        kvl_axis_id id = (kvl_axis_id)i;
        if (!b->axes[id] || kvl_workload_use(kind, id)) continue;
        if (!v->format_error)
            return kvl_fail(KVL_ERR_INPUT, "--%s needs --format-error", option_of(kind, id));
        if (kvl_workload_use(&kvl_workload_format_error_model, id))
            return kvl_fail(KVL_ERR_INPUT, "--%s with --format-error needs --model",
                            option_of(&kvl_workload_format_error_model, id));
        return kvl_fail(KVL_ERR_INPUT, "--%s plays no part in --format-error", option_of(kind, id));
    }
    if (!v->format_error) return KVL_OK;
    if (b->chunk || b->deterministic || b->nf4_block || b->nf4_skip || b->allow_nonfinite)
        return kvl_fail(KVL_ERR_INPUT, "--chunk, --deterministic, --nf4-block, --nf4-skip and "
                                       "--allow-nonfinite play no part in --format-error");
    if (b->text && kind != &kvl_workload_format_error_model)
        return kvl_fail(KVL_ERR_INPUT, "--text with --format-error needs --model");
    return KVL_OK;
}

static const kvl_workload_kind *kind_of(const values *v) {
    if (!v->format_error) return &kvl_workload_quality;
    return v->bench.axes[KVL_AXIS_MODEL] ? &kvl_workload_format_error_model
                                         : &kvl_workload_format_error;
}

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {.bench = kvl_bench_defaults()};
    int n_arguments, code = KVL_EXIT_OK;
    bool help_shown;
    v.bench.rounds = 1; /* the digits are the same each time */
    kvl_status status = kvl_options_parse(self, argc, argv, &v, NULL, 0, &n_arguments, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    const kvl_workload_kind *kind = kind_of(&v);
    if (status == KVL_OK) status = check(&v, kind);
    if (!v.bench.text && kind != &kvl_workload_format_error) v.bench.text = KVL_TEXT_FILE;
    if (status == KVL_OK) status = kvl_bench_sweep(&v.bench, kind, &code);
    return status == KVL_OK ? kvl_exit_flush(code) : kvl_exit_report(status);
}

const kvl_command kvl_command_bench_quality = {
    "bench quality",
    "perplexity and KL divergence against the float32 run, beside speed and bytes",
    "--model M [axes] [--text F] [--tokens N] [--out F.jsonl] | --format-error [--model M]",
    "The measured engine and a float32 one (weights, K/V and arithmetic) step over the same text\n"
    "side by side; every token but the first is predicted. KLD is in nats, same top-1 a share.\n"
    "Every axis is a comma list.\n"
    "Example: kvlab bench quality --model M.gguf --weights f32 --kv-dtype bf16,fp8_e4m3\n"
    "         kvlab bench quality --model M.gguf --kv-dtype f32 --weights bf16,nf4,nf4_dq\n"
    "         kvlab bench quality --format-error --model M.gguf\n" KVL_BENCH_DETAILS,
    options,
    sizeof options / sizeof *options,
    run};
