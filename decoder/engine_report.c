/* What the engine says of itself: counters, memory, and what really runs. */
#include <stdio.h>
#include <string.h>

#include "decoder/engine_internal.h"

const int64_t *kvl_engine_saturated(const kvl_engine *engine) {
    return engine->saturated;
}

void kvl_saturated_text(const kvl_config *c, const int64_t *counts, char *out, size_t out_bytes) {
    enum { SHOWN = 3 };
    const int64_t n = (int64_t)kvl_engine_saturated_count(c);
    int64_t last = INT64_MAX, last_at = -1;
    size_t used = 0;
    if (out_bytes) out[0] = '\0';
    /* The largest counts, ties in the order of layers; each one below the last shown. */
    for (int shown = 0; shown < SHOWN; shown++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++) {
            int64_t count = counts[i];
            if (!count || count > last || (count == last && i <= last_at)) continue;
            if (best < 0 || count > counts[best]) best = i;
        }
        if (best < 0) return;
        last = counts[best], last_at = best;
        int64_t row = best / c->n_kv_heads;
        int wrote = snprintf(out + used, out_bytes - used, "%slayer %lld %c head %lld: %lld",
                             used ? ", " : "", (long long)(row / 2), row % 2 ? 'V' : 'K',
                             (long long)(best % c->n_kv_heads), (long long)last);
        used += wrote > 0 ? (size_t)wrote : 0;
        if (used + 1 >= out_bytes) return;
    }
}

void kvl_engine_stats_get(const kvl_engine *engine, kvl_engine_stats *out) {
    *out = engine->stats;
    const kvl_config *c = &engine->model->config;
    for (int32_t i = c->n_layers - 1; i >= 0; i--) {
        for (int32_t j = 0; j < 2 * c->n_kv_heads; j++) {
            int64_t n = engine->saturated[(int64_t)i * 2 * c->n_kv_heads + j];
            out->kv_saturated += n;
            if (n) out->kv_saturated_layer = i;
        }
    }
}

void kvl_engine_stats_reset(kvl_engine *engine) {
    engine->stats = (kvl_engine_stats){.kv_saturated_layer = -1};
    memset(engine->saturated, 0,
           kvl_engine_saturated_count(&engine->model->config) * sizeof *engine->saturated);
}

void kvl_engine_memory_get(const kvl_engine *engine, kvl_engine_memory *out) {
    const kvl_kv_cache *cache = &engine->cache;
    uint64_t pool_bytes = cache->k_bytes + cache->v_bytes;
    if (cache->placement.mapped) /* that is address space; memory is bounded by the pool */
        pool_bytes = 2 * (uint64_t)cache->config.pool_tokens * (uint64_t)cache->config.slot_bytes;
    if (cache->k_scale_tokens) pool_bytes += cache->scale_bytes;
    if (cache->v_scale_tokens) pool_bytes += cache->scale_bytes;
    *out = (kvl_engine_memory){
        .weight_bytes = kvl_weights_bytes(&engine->weights),
        .kv_pool_bytes = (uint64_t)cache->n_layers * pool_bytes,
        .kv_bytes_per_token = kvl_kv_cache_token_bytes(cache),
        .workspace_bytes =
            engine->act.block_bytes + engine->act.attention_bytes + engine->act.linear_bytes,
    };
    cache->allocator->stats(cache->state, 0, &out->ledger);
    const kvl_ledger *ledger = &out->ledger;
    out->kv_live_bytes = (uint64_t)ledger->live * out->kv_bytes_per_token;
    out->kv_allocated_bytes =
        (uint64_t)(ledger->live + ledger->reserved + ledger->internal) * out->kv_bytes_per_token;
}

/* Decode is what the fields name; where a prefill dispatches otherwise, the reason says so. */
static void describe_attention(const kvl_engine *engine, int32_t q_len, int32_t n_seqs,
                               kvl_engine_effective *out) {
    kvl_attention_choice prefill, decode;
    int32_t longest = (int32_t)engine->cache.config.max_seq_tokens;
    kvl_engine_attention_choice(engine, 1, q_len, q_len, &prefill);
    kvl_engine_attention_choice(engine, n_seqs, 1, q_len < longest ? q_len + 1 : longest, &decode);
    snprintf(out->attention, sizeof out->attention, "%s", decode.kernel);
    snprintf(out->isa, sizeof out->isa, "%s", kvl_isa_name(decode.isa));
    snprintf(out->attention_reason, sizeof out->attention_reason, "%s", decode.reason);
    if (strcmp(prefill.kernel, decode.kernel) != 0)
        snprintf(out->attention_reason, sizeof out->attention_reason, "prefill %.40s; %.90s",
                 prefill.kernel, decode.reason);
}

static void add_text(char *out, size_t out_bytes, const char *more) {
    size_t used = strlen(out);
    snprintf(out + used, out_bytes - used, "%s%s", used ? ", " : "", more);
}

/* Nothing is converted silently: "x and q f32>bf16, k f32>f16; widened k f16>f32, ...". */
static void describe_casts(const kvl_engine *engine, kvl_engine_effective *out) {
    const kvl_dtype dtypes[2] = {engine->cache.k_dtype, engine->cache.v_dtype};
    char rounded[80] = "", widened[100] = "", part[40];
    if (engine->compute_dtype != KVL_F32) {
        snprintf(part, sizeof part, "x and q f32>%s", out->compute_dtype);
        add_text(rounded, sizeof rounded, part);
    }
    for (int i = 0; i < 2; i++) {
        if (dtypes[i] == KVL_F32) continue;
        snprintf(part, sizeof part, "%c f32>%s", "kv"[i], kvl_dtype_name(dtypes[i]));
        add_text(rounded, sizeof rounded, part);
        snprintf(part, sizeof part, "%c %s>f32", "kv"[i], kvl_dtype_name(dtypes[i]));
        add_text(widened, sizeof widened, part);
    }
    if (strcmp(out->weights, "f32") != 0) {
        snprintf(part, sizeof part, "weights %s>f32", out->weights);
        add_text(widened, sizeof widened, part);
    }
    if (kvl_linear_rounds_weights(engine->weights.layers[0].qkv, engine->max_batch_tokens)) {
        snprintf(part, sizeof part, "%s>bf16 in prefill", out->weights);
        add_text(rounded, sizeof rounded, part);
    }
    snprintf(out->casts, sizeof out->casts, "%s%s%s", rounded[0] ? rounded : "none",
             widened[0] ? "; widened " : "", widened);
}

void kvl_engine_effective_get(const kvl_engine *engine, int64_t n_prompt, int32_t n_seqs,
                              kvl_engine_effective *out) {
    const kvl_linear *matrix = engine->weights.layers[0].qkv;
    int64_t longest = engine->cache.config.max_seq_tokens;
    int64_t rows = n_prompt < 1 ? 1 : n_prompt < longest ? n_prompt : longest;
    if (rows > engine->max_batch_tokens) rows = engine->max_batch_tokens;
    memset(out, 0, sizeof *out);
    describe_attention(engine, (int32_t)rows, n_seqs, out);
    snprintf(out->matmul_prefill, sizeof out->matmul_prefill, "%s",
             kvl_linear_kernel(matrix, rows));
    snprintf(out->matmul_decode, sizeof out->matmul_decode, "%s",
             kvl_linear_kernel(matrix, n_seqs < 1 ? 1 : n_seqs));
    kvl_kv_pair_name(engine->cache.k_dtype, engine->cache.v_dtype, out->kv_dtype);
    snprintf(out->kv_scale, sizeof out->kv_scale, "%s", kvl_kv_scale_name(engine->k_scale));
    if (engine->v_scale != engine->k_scale)
        snprintf(out->kv_scale, sizeof out->kv_scale, "%s:%s", kvl_kv_scale_name(engine->k_scale),
                 kvl_kv_scale_name(engine->v_scale));
    snprintf(out->weights, sizeof out->weights, "%s", engine->linear.format->name);
    snprintf(out->weights_other, sizeof out->weights_other, "%s",
             engine->weights.skipped_format->name);
    out->nf4_block = engine->weights.nf4_block;
    snprintf(out->compute_dtype, sizeof out->compute_dtype, "%s",
             kvl_dtype_name(engine->compute_dtype));
    snprintf(out->device, sizeof out->device, "%s", engine->device->name);
    snprintf(out->allocator, sizeof out->allocator, "%s", engine->cache.allocator->name);
    describe_casts(engine, out);
    out->page_tokens = engine->cache.page_tokens;
    out->map_bytes = engine->cache.placement.mapped ? engine->cache.config.map_bytes : 0;
    snprintf(out->reserve, sizeof out->reserve, "%s",
             engine->cache.allocator->uses_reserve
                 ? kvl_reserve_policy_name(engine->cache.config.reserve)
                 : "none");
    out->prefix_cache = engine->cache.config.prefix != KVL_PREFIX_OFF;
    out->by_token = engine->cache.placement.slabs_vary;
}
