/* kvlab generate: text (or ids) from a model, through the configuration that bench measures. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/memory.h"
#include "core/threads.h"
#include "decoder/chat.h"
#include "decoder/generate.h"
#include "decoder/safetensors.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "harness/input.h"

typedef struct values {
    const char *model, *prompt, *prompt_file, *ids_in, *system, *stop, *logits;
    const char *allocator, *reserve, *attention, *kv_dtype, *kv_scale, *weights, *compute_dtype,
        *device;
    const char *nf4_skip;
    int64_t max_tokens, seed, top_k, page_tokens, map_kib, threads, chunk, nf4_block;
    double temperature, top_p, min_p, repetition_penalty;
    bool chat, ids, ignore_eos, no_cache, deterministic, verbose, allow_nonfinite;
} values;

#define FIELD(name) offsetof(values, name)
static const kvl_option options[] = {
    {"model", KVL_OPT_TEXT, FIELD(model), "M",
     "GGUF file, Hugging Face directory or synthetic:NAME", 0, 0},
    {"prompt", KVL_OPT_TEXT, FIELD(prompt), "TEXT", "the prompt (\"-\": standard input)", 0, 0},
    {"prompt-file", KVL_OPT_TEXT, FIELD(prompt_file), "FILE", "the prompt from a file", 0, 0},
    {"ids-in", KVL_OPT_TEXT, FIELD(ids_in), "FILE", "the prompt as a JSON array of token ids", 0,
     0},
    {"chat", KVL_OPT_FLAG, FIELD(chat), NULL, "wrap the prompt in the model's chat template", 0, 0},
    {"system", KVL_OPT_TEXT, FIELD(system), "TEXT",
     "system message for --chat (the template's own)", 0, 0},
    {"max-tokens", KVL_OPT_INT, FIELD(max_tokens), "N", "tokens to generate at most (64)", 1, 1e9},
    {"temperature", KVL_OPT_REAL, FIELD(temperature), "T", "0 = greedy (0)", 0, 100},
    {"top-k", KVL_OPT_INT, FIELD(top_k), "K", "keep the K most likely; 0 = all (0)", 0, 1e9},
    {"top-p", KVL_OPT_REAL, FIELD(top_p), "P", "keep the smallest set with probability P (1)", 1e-9,
     1},
    {"min-p", KVL_OPT_REAL, FIELD(min_p), "P", "drop tokens below P times the likeliest (0)", 0, 1},
    {"repetition-penalty", KVL_OPT_REAL, FIELD(repetition_penalty), "R", "1 = off (1)", 1e-3, 100},
    {"seed", KVL_OPT_INT, FIELD(seed), "S", "of the sampler and of synthetic weights (0)", 0, 9e18},
    {"stop", KVL_OPT_TEXT, FIELD(stop), "TEXT", "end before this text appears in the output", 0, 0},
    {"ignore-eos", KVL_OPT_FLAG, FIELD(ignore_eos), NULL, "go on past end tokens", 0, 0},
    {"ids", KVL_OPT_FLAG, FIELD(ids), NULL,
     "print one JSON array of generated ids and nothing else", 0, 0},
    {"logits", KVL_OPT_TEXT, FIELD(logits), "FILE", "keep the logits of every step (safetensors)",
     0, 0},
    {"no-cache", KVL_OPT_FLAG, FIELD(no_cache), NULL, "recompute the whole sequence every step", 0,
     0},
    {"chunk", KVL_OPT_INT, FIELD(chunk), "N", "prefill in chunks of N tokens; 0 = 512 (0)", 0, 1e6},
    {"allocator", KVL_OPT_TEXT, FIELD(allocator), "NAME", "KV-cache allocator (paged)", 0, 0},
    {"page-tokens", KVL_OPT_INT, FIELD(page_tokens), "N", "tokens in a page (16)", 1, 1e9},
    {"reserve", KVL_OPT_TEXT, FIELD(reserve), "POLICY",
     "contiguous, buddy: slab of max, pow2 or oracle (max)", 0, 0},
    {"map-kib", KVL_OPT_INT, FIELD(map_kib), "KIB", "virtual: physical page in each pool (64)", 4,
     1 << 20},
    {"attention", KVL_OPT_TEXT, FIELD(attention), "NAME", "attention module (flash)", 0, 0},
    {"kv-dtype", KVL_OPT_TEXT, FIELD(kv_dtype), "NAME", "format of the KV cache, or K:V (bf16)", 0,
     0},
    {"kv-scale", KVL_OPT_TEXT, FIELD(kv_scale), "NAME",
     "its scales: auto, one, tensor, head, page or token (auto: int8 token, others one)", 0, 0},
    {"weights", KVL_OPT_TEXT, FIELD(weights), "NAME", "format of the weights (bf16)", 0, 0},
    {"nf4-block", KVL_OPT_INT, FIELD(nf4_block), "N",
     "weights of a block of nf4, nf4_dq, fp4 (the model's own, or 64)", 32, 4096},
    {"nf4-skip", KVL_OPT_TEXT, FIELD(nf4_skip), "NAME,...",
     "modules that stay unquantised, or none (the model's own, or lm_head)", 0, 0},
    {"allow-nonfinite", KVL_OPT_FLAG, FIELD(allow_nonfinite), NULL,
     "load weights that are NaN or infinite", 0, 0},
    {"compute-dtype", KVL_OPT_TEXT, FIELD(compute_dtype), "NAME", "activations: f32 or bf16 (bf16)",
     0, 0},
    {"device", KVL_OPT_TEXT, FIELD(device), "NAME", "where it runs (cpu)", 0, 0},
    {"threads", KVL_OPT_INT, FIELD(threads), "N", "0 = physical cores (0)", 0, 1024},
    {"deterministic", KVL_OPT_FLAG, FIELD(deterministic), NULL,
     "bit-exact for any batch and chunking", 0, 0},
    {"verbose", KVL_OPT_FLAG, FIELD(verbose), NULL, "times and memory to stderr", 0, 0},
};

static kvl_status check_values(const values *v) {
    if (!v->model) return kvl_fail(KVL_ERR_INPUT, "generate needs --model");
    if (!!v->prompt + !!v->prompt_file + !!v->ids_in != 1)
        return kvl_fail(KVL_ERR_INPUT,
                        "generate needs one of --prompt, --prompt-file and --ids-in");
    if (v->chat && v->ids_in)
        return kvl_fail(KVL_ERR_INPUT, "--chat needs text, --ids-in gives token ids");
    if (v->system && !v->chat) return kvl_fail(KVL_ERR_INPUT, "--system needs --chat");
    if (v->stop && !v->stop[0]) return kvl_fail(KVL_ERR_INPUT, "--stop: an empty text");
    return KVL_OK;
}

/* --logits is opened before anything runs, and never over what the run reads. */
static kvl_status check_logits_path(const values *v) {
    const char *const inputs[] = {v->model, v->prompt_file, v->ids_in};
    struct stat out, in;
    if (!v->logits) return KVL_OK;
    bool exists = stat(v->logits, &out) == 0;
    for (int i = 0; exists && i < 3; i++) {
        if (inputs[i] && stat(inputs[i], &in) == 0 && in.st_dev == out.st_dev &&
            in.st_ino == out.st_ino)
            return kvl_fail(KVL_ERR_INPUT, "--logits %s: is an input of this run", v->logits);
    }
    if (exists && !S_ISREG(out.st_mode))
        return kvl_fail(KVL_ERR_IO, "--logits %s: not a regular file", v->logits);
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", v->logits);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = '\0';
    if (access(slash ? folder : ".", W_OK | X_OK) != 0)
        return kvl_fail(KVL_ERR_IO, "--logits %s: %s", v->logits, strerror(errno));
    return KVL_OK;
}

static kvl_status need_tokenizer(const values *v, const kvl_model *model) {
    if (model->tokenizer) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "%s: %s; give --ids-in and --ids", v->model,
                    model->tokenizer_why ? model->tokenizer_why : "has no tokenizer");
}

/* The prompt as ids: from JSON, or from text with the chat template or a BOS where the file asks.
 */
static kvl_status read_prompt(const values *v, const kvl_model *model, int32_t **ids,
                              int64_t *n_ids) {
    kvl_buffer text = {0}, rendered = {0};
    KVL_TRY(kvl_read_input(v->prompt,
                           v->prompt        ? NULL
                           : v->prompt_file ? v->prompt_file
                                            : v->ids_in,
                           "prompt", &text));
    kvl_status status = KVL_OK;
    const kvl_buffer *source = &text;
    if (v->ids_in) {
        status = kvl_parse_ids(v->ids_in, text.data, text.bytes, ids, n_ids);
        goto done;
    }
    status = need_tokenizer(v, model);
    if (status == KVL_OK && v->chat) {
        if (!model->chat_template) {
            status = kvl_fail(KVL_ERR_INPUT, "%s: has no chat template", v->model);
        } else if (text.bytes && memchr(text.data, 0, text.bytes)) {
            status = kvl_fail(KVL_ERR_INPUT, "prompt: a NUL byte in a chat message");
        } else {
            int32_t bos = kvl_tokenizer_bos(model->tokenizer);
            kvl_buffer bos_text = {0};
            if (bos >= 0)
                status = kvl_tokenizer_decode(model->tokenizer, &bos, 1, false, &bos_text);
            if (status == KVL_OK)
                status =
                    kvl_chat_render(model->chat_template, v->system, text.data ? text.data : "",
                                    bos_text.data ? bos_text.data : "", &rendered);
            kvl_buffer_free(&bos_text);
            source = &rendered;
        }
    }
    if (status == KVL_OK && (text.failed || rendered.failed))
        status = kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status == KVL_OK)
        status = kvl_tokenizer_encode_alloc(model->tokenizer, source->data ? source->data : "",
                                            source->bytes, !v->chat, ids, n_ids);
done:
    if (status == KVL_OK && *n_ids == 0)
        status = kvl_fail(KVL_ERR_INPUT, "the prompt has 0 tokens");
    kvl_buffer_free(&text);
    kvl_buffer_free(&rendered);
    return status;
}

/* What on_token works with: streams text, looks for --stop, collects logits. */
typedef struct printer {
    const values *v;
    kvl_stream stream;
    kvl_buffer pending; /* text not yet printed: it may be the beginning of --stop */
    float *logits;      /* [max_tokens][vocab] or NULL */
    int64_t n_logits, vocab_size;
    kvl_status status;
    bool stopped;
} printer;

/* Bytes at the end of text that are a beginning of `stop`: they must wait. */
static size_t held_for_stop(const kvl_buffer *text, const char *stop) {
    size_t longest = strlen(stop) - 1;
    if (longest > text->bytes) longest = text->bytes;
    while (longest && memcmp(text->data + text->bytes - longest, stop, longest) != 0) longest--;
    return longest;
}

static void print_ready(printer *p, bool last) {
    if (!p->pending.bytes) return;
    size_t ready = p->pending.bytes;
    if (p->v->stop) {
        char *found = memmem(p->pending.data, p->pending.bytes, p->v->stop, strlen(p->v->stop));
        if (found) {
            ready = (size_t)(found - p->pending.data);
            p->stopped = true;
        } else if (!last) {
            ready -= held_for_stop(&p->pending, p->v->stop);
        }
    }
    if (!p->v->ids) {
        fwrite(p->pending.data, 1, ready, stdout);
        fflush(stdout);
    }
    memmove(p->pending.data, p->pending.data + ready, p->pending.bytes - ready);
    p->pending.bytes -= ready;
}

static bool on_token(void *user, int32_t id, const float *logits) {
    printer *p = user;
    if (p->logits) {
        memcpy(p->logits + p->n_logits * p->vocab_size, logits,
               (size_t)p->vocab_size * sizeof(float));
        p->n_logits++;
    }
    if (p->stream.tokenizer) {
        p->status = kvl_stream_put(&p->stream, id, &p->pending);
        if (p->status != KVL_OK) return false;
        print_ready(p, false);
    }
    return !p->stopped && !ferror(stdout);
}

static kvl_status write_logits(const printer *p) {
    kvl_st_tensor tensor = {.name = "logits",
                            .dtype = KVL_F32,
                            .n_dims = 2,
                            .dims = {p->n_logits, p->vocab_size},
                            .n_elems = p->n_logits * p->vocab_size,
                            .data = p->logits,
                            .bytes = (uint64_t)(p->n_logits * p->vocab_size) * sizeof(float)};
    return kvl_st_write(p->v->logits, &tensor, 1);
}

static void report_run(const kvl_generate_result *result, const kvl_engine *engine,
                       int64_t n_prompt) {
    kvl_engine_effective effective;
    kvl_engine_memory memory;
    kvl_engine_effective_get(engine, n_prompt, 1, &effective);
    kvl_engine_memory_get(engine, &memory);
    fprintf(stderr,
            "kvlab: %lld prompt tokens, ttft %.1f ms; %lld generated, tpot %.2f ms (%.1f tok/s); "
            "attention %s, isa %s, KV %s scale %s; weights %.0f MiB, KV pool %.0f MiB, peak RSS "
            "%.0f MiB\n",
            (long long)n_prompt, result->ttft_ms, (long long)result->n_ids, result->tpot_ms,
            result->tpot_ms > 0 ? 1000 / result->tpot_ms : 0.0, effective.attention, effective.isa,
            effective.kv_dtype, effective.kv_scale, (double)memory.weight_bytes / (1 << 20),
            (double)memory.kv_pool_bytes / (1 << 20), (double)kvl_rss_peak_bytes() / (1 << 20));
}

static void warn_saturated(const kvl_model *model, const kvl_engine *engine) {
    kvl_engine_stats stats;
    kvl_engine_effective effective;
    char where[160];
    kvl_engine_stats_get(engine, &stats);
    if (stats.kv_saturated == 0) return;
    kvl_engine_effective_get(engine, 1, 1, &effective);
    kvl_saturated_text(&model->config, kvl_engine_saturated(engine), where, sizeof where);
    fprintf(stderr, "kvlab: KV %s, scale %s: %lld values past its range (%s)\n", effective.kv_dtype,
            effective.kv_scale, (long long)stats.kv_saturated, where);
}

static kvl_status run_engine(const values *v, const kvl_model *model, kvl_engine *engine,
                             const int32_t *prompt, int64_t n_prompt) {
    printer p = {.v = v, .vocab_size = model->config.vocab_size};
    uint64_t logits_bytes = 0;
    if (v->logits) {
        logits_bytes = (uint64_t)v->max_tokens * (uint64_t)p.vocab_size * sizeof(float);
        KVL_TRY(kvl_mem_alloc(logits_bytes, (void **)&p.logits));
    }
    if (model->tokenizer) kvl_stream_init(&p.stream, model->tokenizer, true);
    kvl_generate_options generate = {.max_tokens = v->max_tokens,
                                     .sampler = {.temperature = (float)v->temperature,
                                                 .top_k = (int32_t)v->top_k,
                                                 .top_p = (float)v->top_p,
                                                 .min_p = (float)v->min_p,
                                                 .repetition_penalty = (float)v->repetition_penalty,
                                                 .seed = (uint64_t)v->seed},
                                     .ignore_eos = v->ignore_eos,
                                     .no_cache = v->no_cache,
                                     .chunk_tokens = (int32_t)v->chunk,
                                     .on_token = on_token,
                                     .user = &p};
    kvl_generate_result result = {0};
    kvl_status status = kvl_generate(engine, prompt, n_prompt, &generate, &result);
    if (status == KVL_OK) status = p.status;
    if (status == KVL_OK && p.stream.tokenizer && !p.stopped) {
        kvl_stream_flush(&p.stream, &p.pending);
        print_ready(&p, true);
    }
    if (status == KVL_OK && v->ids)
        kvl_print_ids(result.ids, result.n_ids);
    else if (status == KVL_OK)
        putchar('\n');
    if (status == KVL_OK && v->logits) status = write_logits(&p);
    if (status == KVL_OK) warn_saturated(model, engine);
    if (status == KVL_OK && v->verbose) report_run(&result, engine, n_prompt);
    kvl_generate_result_free(&result);
    kvl_buffer_free(&p.pending);
    kvl_mem_free(p.logits, logits_bytes);
    return status;
}

static void show_progress(void *user, double share) {
    (void)user;
    fprintf(stderr, "\rloading %3.0f %%%s", share * 100, share >= 1 ? "\r\033[K" : "");
}

static kvl_status generate(const values *v) {
    kvl_model *model = NULL;
    kvl_engine *engine = NULL;
    int32_t *prompt = NULL;
    int64_t n_prompt = 0;
    kvl_status status = check_values(v);
    if (status == KVL_OK) status = check_logits_path(v);
    if (status == KVL_OK) status = kvl_threads_set((int)v->threads, 1);
    if (status == KVL_OK) status = kvl_model_open(v->model, (uint64_t)v->seed, &model);
    if (status == KVL_OK && !v->ids) status = need_tokenizer(v, model);
    if (status == KVL_OK && v->stop) status = need_tokenizer(v, model);
    if (status == KVL_OK) status = read_prompt(v, model, &prompt, &n_prompt);
    int64_t limit = model ? model->config.max_position : 0;
    if (status == KVL_OK && (n_prompt > limit || v->max_tokens > limit - n_prompt))
        status = kvl_fail(
            KVL_ERR_INPUT, "prompt of %lld tokens + --max-tokens %lld: %s allows %lld together",
            (long long)n_prompt, (long long)v->max_tokens, v->model, (long long)limit);
    if (status == KVL_OK) {
        kvl_engine_options engine_options = kvl_engine_defaults();
        engine_options.device = v->device;
        engine_options.allocator = v->allocator;
        engine_options.attention = v->attention;
        engine_options.kv_dtype = v->kv_dtype;
        engine_options.kv_scale = v->kv_scale;
        engine_options.weights = v->weights;
        engine_options.compute_dtype = v->compute_dtype;
        engine_options.page_tokens = v->page_tokens;
        engine_options.reserve = v->reserve;
        engine_options.map_bytes = v->map_kib * 1024;
        engine_options.max_seqs = 1;
        engine_options.max_seq_tokens = n_prompt + v->max_tokens;
        engine_options.deterministic = v->deterministic;
        engine_options.nf4_block = v->nf4_block;
        engine_options.nf4_skip = v->nf4_skip;
        engine_options.allow_nonfinite = v->allow_nonfinite;
        status = kvl_engine_create(model, &engine_options, isatty(2) ? show_progress : NULL, NULL,
                                   &engine);
    }
    if (status == KVL_OK) status = run_engine(v, model, engine, prompt, n_prompt);
    kvl_engine_destroy(engine);
    kvl_model_close(model);
    free(prompt);
    return status;
}

static int run(const kvl_command *self, int argc, char **argv) {
    kvl_engine_options defaults = kvl_engine_defaults();
    values v = {.allocator = defaults.allocator,
                .attention = defaults.attention,
                .kv_dtype = defaults.kv_dtype,
                .weights = defaults.weights,
                .compute_dtype = defaults.compute_dtype,
                .device = defaults.device,
                .page_tokens = defaults.page_tokens,
                .max_tokens = 64,
                .top_p = 1,
                .repetition_penalty = 1};
    int n_arguments;
    bool help_shown;
    kvl_status status = kvl_options_parse(self, argc, argv, &v, NULL, 0, &n_arguments, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (status == KVL_OK) status = generate(&v);
    return status == KVL_OK ? kvl_exit_flush(KVL_EXIT_OK) : kvl_exit_report(status);
}

const kvl_command kvl_command_generate = {
    "generate",
    "continue a prompt, streaming text",
    "--model M --prompt TEXT|--prompt-file F|--ids-in F [options]",
    "Examples:\n  kvlab generate --model M.gguf --prompt \"Once upon a time\"\n"
    "  kvlab generate --model M.gguf --chat --prompt \"What is a cache?\" --max-tokens 200\n"
    "  kvlab generate --model synthetic:tiny --ids-in ids.json --ids\n",
    options,
    sizeof options / sizeof *options,
    run};
