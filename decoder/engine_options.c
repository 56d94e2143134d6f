#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/names.h"
#include "core/threads.h"
#include "decoder/engine_internal.h"

enum { DEFAULT_BATCH_TOKENS = 512, MAX_BATCH_TOKENS = 1 << 20, DEFAULT_MAP_BYTES = 64 << 10 };

kvl_engine_options kvl_engine_defaults(void) {
    return (kvl_engine_options){
        .device = "cpu",
        .allocator = "paged",
        .attention = "flash",
        .kv_dtype = "bf16",
        .weights = "bf16",
        .compute_dtype = "bf16",
        .page_tokens = 16,
        .max_seqs = 1,
        .max_batch_tokens = DEFAULT_BATCH_TOKENS,
    };
}

static kvl_status resolve_compute(const char *name, kvl_dtype *out) {
    static const char *const names[2] = {"f32", "bf16"};
    int index = kvl_names_find(name, names, 2);
    if (index < 0) {
        char line[512];
        kvl_names_unknown(line, sizeof line, "compute_dtype", name, names, 2);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = index == 0 ? KVL_F32 : KVL_BF16;
    return KVL_OK;
}

static kvl_status resolve_device(const char *name, const kvl_device **out) {
    char why[256] = "";
    KVL_TRY(kvl_device_find(name, out));
    if (!(*out)->available(why, sizeof why))
        return kvl_fail(KVL_ERR_UNSUPPORTED, "device %s: %s", name, why);
    return KVL_OK;
}

static kvl_status resolve_names(kvl_engine *engine, const kvl_engine_options *options) {
    const char *names[6] = {options->device,   options->allocator, options->attention,
                            options->kv_dtype, options->weights,   options->compute_dtype};
    for (int i = 0; i < 6; i++) {
        static const char *const fields[6] = {"device",   "allocator", "attention",
                                              "kv_dtype", "weights",   "compute_dtype"};
        if (!names[i]) return kvl_fail(KVL_ERR_INPUT, "%s: no name given", fields[i]);
    }
    kvl_kv_scale wanted;
    KVL_TRY(resolve_device(options->device, &engine->device));
    KVL_TRY(kvl_allocator_find(options->allocator, &engine->cache.allocator));
    KVL_TRY(kvl_attention_find(options->attention, &engine->attention));
    KVL_TRY(kvl_kv_pair_parse(options->kv_dtype, &engine->cache.k_dtype, &engine->cache.v_dtype));
    KVL_TRY(kvl_kv_scale_parse(options->kv_scale ? options->kv_scale : "auto", &wanted));
    KVL_TRY(kvl_kv_scale_resolve(wanted, engine->cache.k_dtype, engine->cache.v_dtype,
                                 &engine->k_scale, &engine->v_scale));
    KVL_TRY(kvl_weight_format_find(options->weights, &engine->linear.format));
    KVL_TRY(resolve_compute(options->compute_dtype, &engine->compute_dtype));
    engine->linear.compute_dtype = engine->compute_dtype;
    engine->linear.deterministic = options->deterministic;
    engine->linear.nf4_block = options->nf4_block;
    if (options->nf4_block) KVL_TRY(kvl_nf4_check_block("nf4_block", options->nf4_block));
    engine->cache.device = engine->device;
    return KVL_OK;
}

static kvl_status resolve_sizes(kvl_engine *engine, const kvl_engine_options *options) {
    const kvl_config *c = &engine->model->config;
    kvl_kv_cache *cache = &engine->cache;
    cache->n_layers = c->n_layers;
    cache->n_kv_heads = c->n_kv_heads;
    cache->head_dim = c->head_dim;
    cache->populated = options->populate;
    cache->config = (kvl_allocator_config){
        .pool_tokens = options->pool_tokens,
        .page_tokens = options->page_tokens,
        .max_seq_tokens = options->max_seq_tokens ? options->max_seq_tokens : c->max_position,
        .max_seqs = options->max_seqs,
        .prefix = options->prefix_cache ? KVL_PREFIX_TOKENS : KVL_PREFIX_OFF,
        .window_tokens = c->sliding_window, /* the same in all layers */
        .slot_bytes = (int64_t)kvl_kv_slot_bytes(c->n_kv_heads, c->head_dim, cache->k_dtype),
        .map_bytes = options->map_bytes ? options->map_bytes : DEFAULT_MAP_BYTES,
    };
    if (options->prefix_cache && !cache->allocator->admit)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "allocator %s has no prefix cache: use 'paged'",
                        cache->allocator->name);
    if (options->reserve)
        KVL_TRY(kvl_reserve_policy_parse(options->reserve, &cache->config.reserve));
    if (cache->config.map_bytes < 4096 || cache->config.map_bytes % 4096)
        return kvl_fail(KVL_ERR_INPUT, "map_bytes %lld: a multiple of 4096",
                        (long long)cache->config.map_bytes);
    if (cache->config.max_seq_tokens > c->max_position)
        return kvl_fail(KVL_ERR_INPUT, "max_seq_tokens %lld: model %s allows %d",
                        (long long)options->max_seq_tokens, c->name, c->max_position);
    KVL_TRY(kvl_kv_cache_resolve(cache->allocator, &cache->config));
    cache->k_scale_tokens = kvl_kv_scale_tokens(engine->k_scale, options->page_tokens);
    cache->v_scale_tokens = kvl_kv_scale_tokens(engine->v_scale, options->page_tokens);
    int32_t batch = options->max_batch_tokens;
    engine->max_batch_tokens = batch ? batch : DEFAULT_BATCH_TOKENS;
    if (batch < 0 || batch > MAX_BATCH_TOKENS)
        return kvl_fail(KVL_ERR_INPUT, "max_batch_tokens %d: 1 to %d, or 0 for %d", batch,
                        MAX_BATCH_TOKENS, DEFAULT_BATCH_TOKENS);
    uint64_t state_bytes, pool_bytes;
    KVL_TRY(cache->allocator->state_bytes(&cache->config, &state_bytes));
    const kvl_dtype wider = kvl_dtype_bytes(cache->k_dtype) > kvl_dtype_bytes(cache->v_dtype)
                                ? cache->k_dtype
                                : cache->v_dtype;
    return kvl_kv_cache_pool_bytes(&cache->config, c->n_kv_heads, c->head_dim, wider, &pool_bytes);
}

/* Static scales of one half, from the model's calibration. */
static kvl_status static_scales(const kvl_engine *engine, bool is_v, float **out) {
    const kvl_kv_scales *scales = engine->model->kv_scales;
    const kvl_config *c = &engine->model->config;
    kvl_kv_scale scale = is_v ? engine->v_scale : engine->k_scale;
    if (scale != KVL_SCALE_TENSOR && scale != KVL_SCALE_HEAD) return KVL_OK;
    if (!scales)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "kv_scale %s: model %s has no calibrated scales: kvlab quantize MODEL "
                        "--kv-scales TEXT makes them",
                        kvl_kv_scale_name(scale), c->name);
    if (scale == KVL_SCALE_HEAD && !scales->per_head)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "kv_scale head: model %s has %s only, one a layer: --kv-scale tensor",
                        c->name, scales->source);
    *out = calloc((size_t)c->n_layers * (size_t)c->n_kv_heads, sizeof **out);
    if (!*out) return kvl_fail(KVL_ERR_OOM, "out of memory: KV scales");
    kvl_kv_scales_of(scales, is_v ? engine->cache.v_dtype : engine->cache.k_dtype, is_v,
                     scale == KVL_SCALE_HEAD, *out);
    return KVL_OK;
}

kvl_attention_args kvl_engine_attention_args(const kvl_engine *engine, const kvl_kv_view *view,
                                             const int32_t *q_start) {
    const kvl_config *c = &engine->model->config;
    bool bf16 = engine->compute_dtype == KVL_BF16;
    return (kvl_attention_args){
        .kv = view,
        .q_start = q_start,
        .n_q_heads = c->n_q_heads,
        .q_dtype = bf16 ? KVL_BF16 : KVL_F32,
        .q_row_stride = bf16 ? kvl_engine_q_width(c) : kvl_engine_qkv_width(c),
        .o_dtype = KVL_F32, /* the next linear layer rounds it where bf16 is asked for */
        .o_row_stride = kvl_engine_q_width(c),
        .scale = (float)(1.0 / sqrt((double)c->head_dim)),
        .causal = true,
        .window = c->sliding_window,
        .n_threads = kvl_threads(),
    };
}

void kvl_engine_attention_choice(const kvl_engine *engine, int32_t n_seqs, int32_t q_len,
                                 int32_t kv_len, kvl_attention_choice *choice) {
    enum { MAX_SHOWN = 64 }; /* what a kernel can do does not hang on more sequences than that */
    int32_t q_start[MAX_SHOWN + 1], kv_lens[MAX_SHOWN];
    int64_t slab_start[MAX_SHOWN] = {0};
    const kvl_config *c = &engine->model->config;
    n_seqs = n_seqs < 1 ? 1 : n_seqs > MAX_SHOWN ? MAX_SHOWN : n_seqs;
    q_start[0] = 0;
    for (int32_t s = 0; s < n_seqs; s++) {
        q_start[s + 1] = q_start[s] + q_len;
        kv_lens[s] = kv_len;
    }
    kvl_kv_view view = {.k_dtype = engine->cache.k_dtype,
                        .v_dtype = engine->cache.v_dtype,
                        .n_seqs = n_seqs,
                        .n_kv_heads = c->n_kv_heads,
                        .head_dim = c->head_dim,
                        .kv_lens = kv_lens,
                        .page_tokens = kv_len,
                        .page_stride = (int64_t)kv_len * kvl_engine_kv_width(c),
                        .head_stride = (int64_t)kv_len * c->head_dim,
                        .token_stride = c->head_dim,
                        .slab_start = slab_start};
    kvl_attention_args args = kvl_engine_attention_args(engine, &view, q_start);
    memset(choice, 0, sizeof *choice);
    engine->attention->supports(&args, choice);
}

static kvl_status check_attention(const kvl_engine *engine) {
    kvl_attention_choice choice;
    int32_t longest = (int32_t)engine->cache.config.max_seq_tokens;
    int32_t q_len = longest < engine->max_batch_tokens ? longest : engine->max_batch_tokens;
    kvl_engine_attention_choice(engine, 1, q_len, longest, &choice);
    if (choice.supported)
        kvl_engine_attention_choice(engine, engine->cache.config.max_seqs, 1, longest, &choice);
    if (choice.supported) return KVL_OK;
    char pair[KVL_KV_PAIR_BYTES];
    kvl_kv_pair_name(engine->cache.k_dtype, engine->cache.v_dtype, pair);
    return kvl_fail(KVL_ERR_UNSUPPORTED, "attention %s with kv_dtype %s: %s",
                    engine->attention->name, pair, choice.reason);
}

kvl_status kvl_engine_resolve(kvl_engine *engine, const kvl_model *model,
                              const kvl_engine_options *options) {
    engine->model = model;
    KVL_TRY(kvl_config_check(&model->config, "hf"));
    KVL_TRY(resolve_names(engine, options));
    KVL_TRY(resolve_sizes(engine, options));
    KVL_TRY(check_attention(engine));
    KVL_TRY(kvl_weights_check(model));
    KVL_TRY(static_scales(engine, false, &engine->cache.k_static));
    return static_scales(engine, true, &engine->cache.v_static);
}
