/* kvlab quantize: a model written as a folder in 4 bits, and scales of its KV cache. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/threads.h"
#include "decoder/bnb_write.h"
#include "decoder/kv_calibrate.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "quant/linear.h"

typedef struct values {
    const char *weights, *out, *skip, *other_dtype, *kv_scales;
    int64_t block, seed, threads, kv_tokens;
    bool allow_nonfinite;
} values;

#define FIELD(name) offsetof(values, name)
static const kvl_option options[] = {
    {"weights", KVL_OPT_TEXT, FIELD(weights), "NAME",
     "nf4, nf4_dq (absmax in 8 bits too) or fp4 (nf4; with --kv-scales: none)", 0, 0},
    {"out", KVL_OPT_TEXT, FIELD(out), "PATH",
     "the folder to make; of scales alone, the file (beside the model); must not exist", 0, 0},
    {"kv-scales", KVL_OPT_TEXT, FIELD(kv_scales), "TEXT",
     "calibrate static scales of the KV cache on this file's text", 0, 0},
    {"kv-tokens", KVL_OPT_INT, FIELD(kv_tokens), "N",
     "tokens of it, as many as the model and text allow (2048)", 1, 1e6},
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
    const char *weights = v->weights ? v->weights : "nf4";
    if (!v->out || !v->out[0]) return kvl_fail(KVL_ERR_INPUT, "quantize needs --out DIR");
    KVL_TRY(kvl_weight_format_find(weights, &format));
    if (!format->in_blocks)
        return kvl_fail(KVL_ERR_INPUT, "--weights %s: quantize writes nf4, nf4_dq and fp4",
                        weights);
    KVL_TRY(kvl_nf4_check_block("--nf4-block", v->block));
    KVL_TRY(kvl_dtype_parse(v->other_dtype, &out->other_dtype));
    if (out->other_dtype != KVL_F32 && out->other_dtype != KVL_F16 && out->other_dtype != KVL_BF16)
        return kvl_fail(KVL_ERR_INPUT, "--other-dtype %s: f32, f16 or bf16", v->other_dtype);
    out->type = strcmp(weights, "fp4") == 0 ? KVL_FP4 : KVL_NF4;
    out->nested = strcmp(weights, "nf4_dq") == 0;
    out->block = v->block;
    out->skip = v->skip;
    out->allow_nonfinite = v->allow_nonfinite;
    return KVL_OK;
}

static void show_progress(void *user, double share) {
    (void)user;
    fprintf(stderr, "\rquantising %3.0f %%%s", share * 100, share >= 1 ? "\r\033[K" : "");
}

/* The first tokens of the text, at most --kv-tokens and what the model allows. */
static kvl_status calibrate(const values *v, const kvl_model *model, kvl_kv_scales **scales,
                            int64_t *n_tokens) {
    kvl_file text;
    if (!model->tokenizer)
        return kvl_fail(KVL_ERR_INPUT, "--kv-scales %s: model %s has no tokenizer (%s)",
                        v->kv_scales, model->config.name,
                        model->tokenizer_why ? model->tokenizer_why : "none in its files");
    KVL_TRY(kvl_file_open(v->kv_scales, &text));
    int64_t n = 0;
    int32_t *ids = malloc(((size_t)text.bytes + 1) * sizeof *ids);
    kvl_status status =
        ids ? kvl_tokenizer_encode(model->tokenizer, (const char *)text.data, text.bytes, false,
                                   ids, (int64_t)text.bytes + 1, &n)
            : kvl_fail(KVL_ERR_OOM, "out of memory: tokens of %s", v->kv_scales);
    kvl_file_close(&text);
    if (n > v->kv_tokens) n = v->kv_tokens;
    if (n > model->config.max_position) n = model->config.max_position;
    if (status == KVL_OK && n == 0)
        status = kvl_fail(KVL_ERR_INPUT, "--kv-scales %s: no text in it", v->kv_scales);
    if (status == KVL_OK) status = kvl_kv_calibrate(model, ids, n, scales);
    free(ids);
    *n_tokens = n;
    return status;
}

/* Scales alone: one file, beside the model unless --out says where. */
static kvl_status write_scales(const values *v, const char *spec, const kvl_kv_scales *scales,
                               int64_t n_tokens) {
    char *beside = kvl_kv_scales_path(spec);
    const char *path = v->out ? v->out : beside;
    kvl_status status;
    if (!path)
        status = kvl_fail(KVL_ERR_INPUT, "quantize --kv-scales of %s needs --out FILE", spec);
    else if (access(path, F_OK) == 0)
        status = kvl_fail(KVL_ERR_INPUT, "%s: exists already", path);
    else
        status = kvl_kv_scales_write(path, scales, v->kv_scales, n_tokens);
    if (status == KVL_OK && beside && strcmp(path, beside) != 0)
        fprintf(stderr, "kvlab: --kv-scale finds it as %s\n", beside);
    free(beside);
    return status;
}

static volatile sig_atomic_t stop_signal;

static void on_signal(int signal) {
    stop_signal = signal;
}

/* A folder half made is taken away when the writing is interrupted. */
static kvl_status write_model(const values *v, const char *spec, const kvl_model *model,
                              kvl_bnb_write_options *write) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    write->stop = &stop_signal;
    return kvl_bnb_write(model, spec, write, v->out, isatty(2) ? show_progress : NULL, NULL);
}

static kvl_status quantize_model(const values *v, const char *spec, const kvl_model *model,
                                 kvl_bnb_write_options *write) {
    kvl_kv_scales *scales = NULL;
    int64_t n_tokens = 0;
    if (v->kv_scales) KVL_TRY(calibrate(v, model, &scales, &n_tokens));
    write->kv_scales = scales, write->kv_text = v->kv_scales, write->kv_tokens = n_tokens;
    kvl_status status = v->kv_scales && !v->weights ? write_scales(v, spec, scales, n_tokens)
                                                    : write_model(v, spec, model, write);
    kvl_kv_scales_free(scales);
    return status;
}

static kvl_status quantize(const values *v, const char *spec) {
    kvl_bnb_write_options write = {0};
    kvl_model *model = NULL;
    const bool scales_alone = v->kv_scales && !v->weights;
    if (!scales_alone) KVL_TRY(resolve(v, &write));
    KVL_TRY(kvl_threads_set((int)v->threads, 1));
    KVL_TRY(kvl_model_open(spec, (uint64_t)v->seed, &model));
    kvl_status status = quantize_model(v, spec, model, &write);
    if (status == KVL_OK && !scales_alone && access(spec, F_OK) == 0 && model->tokenizer &&
        strstr(spec, ".gguf"))
        fprintf(stderr, "kvlab: %s: the tokenizer stays in the GGUF file\n", v->out);
    kvl_model_close(model);
    return status;
}

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {.block = KVL_NF4_BLOCK, .other_dtype = "bf16", .kv_tokens = 2048};
    const char *spec = NULL;
    int n_specs = 0;
    bool help_shown = false;
    kvl_status status = kvl_options_parse(self, argc, argv, &v, &spec, 1, &n_specs, &help_shown);
    if (help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (status == KVL_OK && n_specs == 0)
        status = kvl_fail(KVL_ERR_INPUT, "quantize needs a model: a GGUF file, a folder or "
                                         "synthetic:NAME");
    if (status == KVL_OK) status = quantize(&v, spec);
    if (status == KVL_OK) return kvl_exit_flush(KVL_EXIT_OK);
    int code = kvl_exit_report(status);
    return stop_signal ? 128 + stop_signal : code;
}

const kvl_command kvl_command_quantize = {
    .name = "quantize",
    .summary = "write a model in 4 bits, and calibrated scales of its KV cache",
    .usage = "MODEL --weights nf4|nf4_dq|fp4 --out DIR | MODEL --kv-scales TEXT [options]",
    .details =
        "Example: kvlab quantize SmolLM2.gguf --weights nf4_dq --out smollm2-nf4\n"
        "         kvlab quantize SmolLM2.gguf --kv-scales text.txt   # "
        "SmolLM2.gguf.kv_scales.json\n"
        "Exit codes: 0 written, 2 bad input, DIR exists, or a full disk, 130/143 interrupted\n"
        "(nothing is left).\n",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run,
};
