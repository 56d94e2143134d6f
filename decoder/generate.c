#include "decoder/generate.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

typedef struct generation {
    kvl_engine *engine;
    const kvl_generate_options *options;
    kvl_sampler *sampler;
    kvl_seq seq;
    int32_t *tokens; /* [n_prompt + max_tokens] prompt, then what was fed back */
    int64_t n_tokens;
    int32_t *ids; /* [max_tokens] picked */
    int64_t n_ids;
    float *logits; /* [vocab_size] */
    bool stopped_by_eos;
    uint64_t start_ns, first_ns, last_ns;
} generation;

static kvl_status check_options(const kvl_generate_options *options, int64_t n_prompt) {
    if (n_prompt < 1)
        return kvl_fail(KVL_ERR_INPUT, "prompt of %lld tokens: at least 1", (long long)n_prompt);
    if (options->max_tokens < 1)
        return kvl_fail(KVL_ERR_INPUT, "max_tokens %lld: at least 1",
                        (long long)options->max_tokens);
    if (options->chunk_tokens < 0)
        return kvl_fail(KVL_ERR_INPUT, "chunk_tokens %d: at least 1, or 0 for the engine's",
                        options->chunk_tokens);
    return kvl_sampler_check(&options->sampler);
}

/* Feeds tokens first .. n_tokens in chunks; logits of the last one. */
static kvl_status feed(generation *g, int64_t first) {
    int64_t chunk = g->options->chunk_tokens ? g->options->chunk_tokens : INT32_MAX;
    for (int64_t at = first; at < g->n_tokens;) {
        int64_t n = g->n_tokens - at < chunk ? g->n_tokens - at : chunk;
        bool last = at + n == g->n_tokens;
        kvl_step_item item = {
            .seq = g->seq, .ids = g->tokens + at, .n_ids = (int32_t)n, .n_logits = last ? 1 : 0};
        KVL_TRY(kvl_engine_step(g->engine, &item, 1, g->logits));
        at += n;
    }
    return KVL_OK;
}

static bool is_end(const kvl_config *config, int32_t id) {
    for (int32_t i = 0; i < config->n_eos; i++) {
        if (config->eos_ids[i] == id) return true;
    }
    return false;
}

/* Picks a token and tells the caller; *go_on is false when it was the last. */
static kvl_status pick(generation *g, bool *go_on) {
    const kvl_generate_options *options = g->options;
    int32_t id;
    /* NaN logits of a right decoder come from the file: its weights hold NaN or overflow. */
    kvl_status status = kvl_sampler_pick(g->sampler, g->logits, &id);
    if (status == KVL_ERR_INTERNAL)
        return kvl_fail(KVL_ERR_INPUT, "%s: logits hold NaN at token %lld: weights not finite?",
                        kvl_engine_config(g->engine)->name, (long long)g->n_ids);
    KVL_TRY(status);
    g->last_ns = kvl_now_ns();
    if (g->n_ids == 0) g->first_ns = g->last_ns;
    g->ids[g->n_ids++] = id;
    g->stopped_by_eos = !options->ignore_eos && is_end(kvl_engine_config(g->engine), id);
    bool wanted = !options->on_token || options->on_token(options->user, id, g->logits);
    *go_on = wanted && !g->stopped_by_eos && g->n_ids < options->max_tokens;
    return KVL_OK;
}

static kvl_status run(generation *g) {
    for (int64_t i = 0; i < g->n_tokens; i++) kvl_sampler_accept(g->sampler, g->tokens[i]);
    KVL_TRY(feed(g, 0));
    for (bool go_on = true;;) {
        KVL_TRY(pick(g, &go_on));
        if (!go_on) return KVL_OK;
        int32_t fed = g->options->forced ? g->options->forced[g->n_ids - 1] : g->ids[g->n_ids - 1];
        g->tokens[g->n_tokens++] = fed;
        int64_t first = g->n_tokens - 1;
        if (g->options->no_cache) {
            KVL_TRY(kvl_engine_truncate(g->engine, g->seq, 0));
            first = 0;
        }
        KVL_TRY(feed(g, first)); /* also checks a forced id */
        kvl_sampler_accept(g->sampler, fed);
    }
}

/* Memory for `g`, whose sequence was admitted: so lengths are within the model's limit. */
static kvl_status prepare(generation *g, const int32_t *prompt, int64_t n_prompt) {
    int32_t vocab = kvl_engine_config(g->engine)->vocab_size;
    size_t max_tokens = (size_t)g->options->max_tokens;
    g->tokens = malloc(((size_t)n_prompt + max_tokens) * sizeof *g->tokens);
    g->ids = malloc(max_tokens * sizeof *g->ids);
    g->logits = malloc((size_t)vocab * sizeof *g->logits);
    if (!g->tokens || !g->ids || !g->logits)
        return kvl_fail(KVL_ERR_OOM, "out of memory: %lld + %zu tokens, logits of %d",
                        (long long)n_prompt, max_tokens, vocab);
    memcpy(g->tokens, prompt, (size_t)n_prompt * sizeof *prompt);
    g->n_tokens = n_prompt;
    for (int64_t i = 0; i < n_prompt; i++) {
        if (prompt[i] < 0 || prompt[i] >= vocab)
            return kvl_fail(KVL_ERR_INPUT, "prompt token %lld: id %d, the vocabulary has %d",
                            (long long)i, prompt[i], vocab);
    }
    return kvl_sampler_create(&g->options->sampler, vocab, &g->sampler);
}

static double ms_between(uint64_t start_ns, uint64_t end_ns) {
    return (double)(end_ns - start_ns) * 1e-6;
}

kvl_status kvl_generate(kvl_engine *engine, const int32_t *prompt, int64_t n_prompt,
                        const kvl_generate_options *options, kvl_generate_result *result) {
    generation g = {.engine = engine, .options = options, .start_ns = kvl_now_ns()};
    memset(result, 0, sizeof *result);
    KVL_TRY(check_options(options, n_prompt));
    KVL_TRY(kvl_engine_add(engine, n_prompt, options->max_tokens, &g.seq));
    kvl_status status = prepare(&g, prompt, n_prompt);
    if (status == KVL_OK) status = run(&g);
    if (status == KVL_OK) {
        *result = (kvl_generate_result){.ids = g.ids,
                                        .n_ids = g.n_ids,
                                        .stopped_by_eos = g.stopped_by_eos,
                                        .ttft_ms = ms_between(g.start_ns, g.first_ns)};
        if (g.n_ids > 1)
            result->tpot_ms = ms_between(g.first_ns, g.last_ns) / (double)(g.n_ids - 1);
        g.ids = NULL;
    }
    kvl_sampler_free(g.sampler);
    free(g.logits);
    free(g.ids);
    free(g.tokens);
    kvl_status removed = kvl_engine_remove(engine, g.seq);
    if (removed != KVL_OK) kvl_generate_result_free(result);
    return status != KVL_OK ? status : removed;
}

void kvl_generate_result_free(kvl_generate_result *result) {
    free(result->ids);
    memset(result, 0, sizeof *result);
}
