#include "decoder/kv_calibrate.h"

#include <math.h>
#include <stdlib.h>

#include "decoder/engine.h"

/* Largest magnitude of each head of rows [n][n_heads][head_dim]. */
static kvl_status absmax_of(const float *x, int64_t n, int32_t n_heads, int32_t head_dim,
                            int32_t layer, char which, float *out) {
    for (int64_t i = 0; i < n * n_heads; i++) {
        for (int32_t d = 0; d < head_dim; d++) {
            float a = fabsf(x[i * head_dim + d]);
            if (!isfinite(a))
                return kvl_fail(KVL_ERR_INPUT, "calibration: layer %d: %c of token %lld is %g",
                                layer, which, (long long)(i / n_heads),
                                (double)x[i * head_dim + d]);
            if (a > out[i % n_heads]) out[i % n_heads] = a;
        }
    }
    return KVL_OK;
}

static kvl_status read_layers(kvl_engine *engine, kvl_seq seq, int64_t n, kvl_kv_scales *s) {
    const kvl_config *c = kvl_engine_config(engine);
    const int64_t width = (int64_t)c->n_kv_heads * c->head_dim;
    float *k = malloc((size_t)(2 * n * width) * sizeof *k), *v = k + n * width;
    if (!k) return kvl_fail(KVL_ERR_OOM, "out of memory: K and V of %lld tokens", (long long)n);
    kvl_status status = KVL_OK;
    for (int32_t layer = 0; status == KVL_OK && layer < c->n_layers; layer++) {
        const int64_t at = (int64_t)layer * c->n_kv_heads;
        status = kvl_engine_read_kv(engine, seq, layer, 0, n, k, v);
        if (status == KVL_OK)
            status = absmax_of(k, n, c->n_kv_heads, c->head_dim, layer, 'K', s->k_absmax + at);
        if (status == KVL_OK)
            status = absmax_of(v, n, c->n_kv_heads, c->head_dim, layer, 'V', s->v_absmax + at);
    }
    free(k);
    return status;
}

kvl_status kvl_kv_calibrate(const kvl_model *model, const int32_t *ids, int64_t n_ids,
                            kvl_kv_scales **out) {
    kvl_engine_options options = kvl_engine_defaults();
    kvl_engine *engine = NULL;
    kvl_kv_scales *s = NULL;
    kvl_seq seq;
    if (n_ids < 1 || n_ids > model->config.max_position)
        return kvl_fail(KVL_ERR_INPUT, "calibration on %lld tokens: 1 to %d", (long long)n_ids,
                        model->config.max_position);
    options.kv_dtype = options.weights = options.compute_dtype = "f32";
    options.max_seq_tokens = n_ids;
    KVL_TRY(kvl_engine_create(model, &options, NULL, NULL, &engine));
    kvl_status status = kvl_engine_add(engine, n_ids, 0, &seq);
    kvl_step_item item = {.seq = seq, .ids = ids, .n_ids = (int32_t)n_ids};
    if (status == KVL_OK) item.seq = seq, status = kvl_engine_step(engine, &item, 1, NULL);
    if (status == KVL_OK) status = kvl_kv_scales_create(&model->config, &s);
    if (status == KVL_OK) status = read_layers(engine, seq, n_ids, s);
    kvl_engine_destroy(engine);
    if (status != KVL_OK) {
        kvl_kv_scales_free(s);
        return status;
    }
    s->per_head = true;
    *out = s;
    return KVL_OK;
}
