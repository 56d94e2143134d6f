/* What a trial's configuration means for verify and for the engine. */
#include <stdio.h>

#include "decoder/kv_cache.h"
#include "harness/trial/trial.h"
#include "quant/kv_format.h"

kvl_engine_options kvl_trial_engine_options(const kvl_trial_spec_values *spec) {
    kvl_engine_options options = kvl_engine_defaults();
    options.device = spec->device;
    options.allocator = spec->allocator;
    options.attention = spec->attention;
    options.reserve = spec->reserve;
    options.map_bytes = spec->map_bytes;
    options.prefix_cache = spec->prefix_cache;
    options.kv_dtype = spec->kv_dtype;
    options.kv_scale = spec->kv_scale;
    options.weights = spec->weights;
    options.compute_dtype = spec->compute_dtype;
    if (spec->page_tokens) options.page_tokens = spec->page_tokens;
    options.deterministic = spec->deterministic;
    options.nf4_block = spec->nf4_block;
    options.nf4_skip = spec->nf4_skip;
    options.allow_nonfinite = spec->allow_nonfinite;
    return options;
}

kvl_status kvl_trial_layout(const char *allocator, const char *reserve, int64_t page_tokens,
                            kvl_verify_layout *out) {
    const kvl_allocator *module;
    kvl_reserve_policy policy = KVL_RESERVE_MAX;
    *out = (kvl_verify_layout){0};
    KVL_TRY(kvl_allocator_find(allocator, &module));
    if (reserve) KVL_TRY(kvl_reserve_policy_parse(reserve, &policy));
    if (module->uses_pages) out->page_tokens = page_tokens;
    return kvl_kv_cache_by_token(module, policy, &out->token_major);
}

static kvl_status verify_scale(kvl_verify_case *c, kvl_kv_scale scale, int64_t group_tokens,
                               kvl_verify_result *out) {
    c->scaled = scale != KVL_SCALE_ONE;
    c->scale_tokens = kvl_kv_scale_tokens(scale, group_tokens);
    KVL_TRY(kvl_verify_attention_config(c, out));
    return out->state == KVL_VERIFY_SKIP ? kvl_fail(KVL_ERR_UNSUPPORTED, "%s", out->reason)
                                         : KVL_OK;
}

kvl_status kvl_trial_verify(const kvl_config *config, const kvl_trial_spec_values *spec,
                            kvl_verify_result *verified) {
    kvl_verify_case c = {.n_q_heads = config->n_q_heads,
                         .n_kv_heads = config->n_kv_heads,
                         .head_dim = config->head_dim,
                         .window = config->sliding_window};
    kvl_kv_scale wanted, k, v;
    const int64_t group = kvl_trial_engine_options(spec).page_tokens;
    KVL_TRY(kvl_trial_layout(spec->allocator, spec->reserve, group, &c.layout));
    snprintf(c.kernel, sizeof c.kernel, "%s", spec->attention);
    KVL_TRY(kvl_kv_pair_parse(spec->kv_dtype, &c.k_dtype, &c.v_dtype));
    KVL_TRY(kvl_kv_scale_parse(spec->kv_scale ? spec->kv_scale : "auto", &wanted));
    KVL_TRY(kvl_kv_scale_resolve(wanted, c.k_dtype, c.v_dtype, &k, &v));
    KVL_TRY(kvl_dtype_parse(spec->compute_dtype, &c.q_dtype));
    KVL_TRY(verify_scale(&c, k, group, verified));
    /* A case scales K and V alike, so that a mixed pair is two. */
    if (v == k || verified->state != KVL_VERIFY_PASS) return KVL_OK;
    return verify_scale(&c, v, group, verified);
}
