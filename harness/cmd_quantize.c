/* kvlab quantize: a model written as a folder in 4 bits. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/threads.h"
#include "decoder/bnb_write.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "quant/linear.h"

typedef struct values {
    const char *weights, *out, *skip, *other_dtype;
    int64_t block, seed, threads;
    bool allow_nonfinite;
} values;

#define FIELD(name) offsetof(values, name)
static const kvl_option options[] = {
    {"weights", KVL_OPT_TEXT, FIELD(weights), "NAME",
     "nf4, nf4_dq (absmax in 8 bits too) or fp4 (nf4)", 0, 0},
    {"out", KVL_OPT_TEXT, FIELD(out), "DIR", "the folder to make; must not exist", 0, 0},
    {"nf4-block", KVL_OPT_INT, FIELD(block), "N",
     "weights of a block, a power of two from 32 to 4096 (64)", 32, 4096},
    {"nf4-skip", KVL_OPT_TEXT, FIELD(skip), "NAME,...",
     "modules left unquantised, or none (lm_head)", 0, 0},
    {"other-dtype", KVL_OPT_TEXT, FIELD(other_dtype), "NAME",
     "of what stays unquantised: f32, f16 or bf16 (bf16)", 0, 0},
    {"allow-nonfinite", KVL_OPT_FLAG, FIELD(allow_nonfinite), NULL,
     "NaN and infinities in weights are written, not refused", 0, 0},
    {"seed", KVL_OPT_INT, FIELD(seed), "S", "of synthetic weights (0)", 0, 9e18},
    {"threads", KVL_OPT_INT, FIELD(threads), "N", "0 = physical cores (0)", 0, 1024},
};

static kvl_status resolve(const values *v, kvl_bnb_write_options *out) {
    const kvl_weight_format *format;
    if (!v->out || !v->out[0]) return kvl_fail(KVL_ERR_INPUT, "quantize needs --out DIR");
    KVL_TRY(kvl_weight_format_find(v->weights, &format));
    if (!format->in_blocks)
        return kvl_fail(KVL_ERR_INPUT, "--weights %s: quantize writes nf4, nf4_dq and fp4",
                        v->weights);
    KVL_TRY(kvl_nf4_check_block("--nf4-block", v->block));
    KVL_TRY(kvl_dtype_parse(v->other_dtype, &out->other_dtype));
    if (out->other_dtype != KVL_F32 && out->other_dtype != KVL_F16 && out->other_dtype != KVL_BF16)
        return kvl_fail(KVL_ERR_INPUT, "--other-dtype %s: f32, f16 or bf16", v->other_dtype);
    out->type = strcmp(v->weights, "fp4") == 0 ? KVL_FP4 : KVL_NF4;
    out->nested = strcmp(v->weights, "nf4_dq") == 0;
    out->block = v->block;
    out->skip = v->skip;
    out->allow_nonfinite = v->allow_nonfinite;
    return KVL_OK;
}

static void show_progress(void *user, double share) {
    (void)user;
    fprintf(stderr, "\rquantising %3.0f %%%s", share * 100, share >= 1 ? "\r\033[K" : "");
}

static kvl_status quantize(const values *v, const char *spec) {
    kvl_bnb_write_options write = {0};
    kvl_model *model = NULL;
    KVL_TRY(resolve(v, &write));
    KVL_TRY(kvl_threads_set((int)v->threads, 1));
    KVL_TRY(kvl_model_open(spec, (uint64_t)v->seed, &model));
    kvl_status status =
        kvl_bnb_write(model, spec, &write, v->out, isatty(2) ? show_progress : NULL, NULL);
    if (status == KVL_OK && access(spec, F_OK) == 0 && model->tokenizer && strstr(spec, ".gguf"))
        fprintf(stderr, "kvlab: %s: the tokenizer stays in the GGUF file\n", v->out);
    kvl_model_close(model);
    return status;
}

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {.weights = "nf4", .block = KVL_NF4_BLOCK, .other_dtype = "bf16"};
    const char *spec = NULL;
    int n_specs = 0;
    bool help_shown = false;
    kvl_status status = kvl_options_parse(self, argc, argv, &v, &spec, 1, &n_specs, &help_shown);
    if (help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (status == KVL_OK && n_specs == 0)
        status = kvl_fail(KVL_ERR_INPUT, "quantize needs a model: a GGUF file, a folder or "
                                         "synthetic:NAME");
    if (status == KVL_OK) status = quantize(&v, spec);
    return status == KVL_OK ? kvl_exit_flush(KVL_EXIT_OK) : kvl_exit_report(status);
}

const kvl_command kvl_command_quantize = {
    .name = "quantize",
    .summary = "write a model in 4 bits, for Transformers with bitsandbytes and for kvlab",
    .usage = "MODEL --weights nf4|nf4_dq|fp4 --out DIR [options]",
    .details =
        "Example: kvlab quantize SmolLM2.gguf --weights nf4_dq --out smollm2-nf4\n"
        "Exit codes: 0 written, 2 bad input, DIR exists, or a full disk (nothing is left).\n",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run,
};
