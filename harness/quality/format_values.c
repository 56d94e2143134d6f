#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "decoder/engine.h"
#include "decoder/tensor_spec.h"
#include "harness/quality/format_error.h"
#include "harness/quality/quality.h"

enum { NORMALS = 1 << 20, STREAM_NORMALS = 0x6e6f };

kvl_status kvl_error_normals(uint64_t seed, kvl_error_take take, void *context) {
    float *x = malloc(NORMALS * sizeof *x);
    if (!x) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_rng_fill_normal(seed, STREAM_NORMALS, 1.0f, x, NORMALS);
    kvl_status status = take(context, 0, x, NORMALS);
    free(x);
    return status;
}

/* The layer of "model.layers.N....weight", or -1. */
static int32_t layer_of(const char *name) {
    int layer = -1;
    return sscanf(name, "model.layers.%d.", &layer) == 1 ? layer : -1;
}

static kvl_status take_tensor(const kvl_model *model, const kvl_tensor_spec *spec, int32_t layer,
                              kvl_error_take take, void *context) {
    int64_t n = spec->rows * spec->cols; /* a configuration's products fit 64 bits */
    float *x = malloc((size_t)n * sizeof *x);
    if (!x) return kvl_fail(KVL_ERR_OOM, "out of memory: tensor %s", spec->name);
    kvl_status status = model->source.read_rows(&model->source, spec->name, 0, spec->rows, x);
    if (status == KVL_OK) {
        status = take(context, layer, x, n);
        if (status != KVL_OK) kvl_fail_prefix(status, "tensor %s", spec->name);
    }
    free(x);
    return status;
}

kvl_status kvl_error_weights(const kvl_model *model, kvl_error_take take, void *context) {
    size_t count = kvl_tensor_spec_count(&model->config);
    for (size_t i = 0; i < count; i++) {
        kvl_tensor_spec spec;
        kvl_tensor_spec_at(&model->config, i, &spec);
        int32_t layer = layer_of(spec.name);
        if (spec.kind != KVL_TENSOR_MATRIX || layer < 0) continue;
        KVL_TRY(take_tensor(model, &spec, layer, take, context));
    }
    return KVL_OK;
}

static kvl_status take_layers(kvl_engine *engine, kvl_seq seq, int64_t n, int which,
                              kvl_error_take take, void *context) {
    const kvl_config *c = kvl_engine_config(engine);
    int64_t width = (int64_t)c->n_kv_heads * c->head_dim;
    float *x = malloc((size_t)(n * width) * sizeof *x);
    if (!x) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_status status = KVL_OK;
    for (int32_t layer = 0; status == KVL_OK && layer < c->n_layers; layer++) {
        status = kvl_engine_read_kv(engine, seq, layer, 0, n, which ? NULL : x, which ? x : NULL);
        if (status == KVL_OK) status = take(context, layer, x, n * width);
    }
    free(x);
    return status;
}

kvl_status kvl_error_kv(const kvl_model *model, const int32_t *ids, int64_t n, int which,
                        kvl_error_take take, void *context) {
    kvl_engine *engine = NULL;
    kvl_seq seq;
    if (n < 1 || n > INT32_MAX)
        return kvl_fail(KVL_ERR_INPUT, "K and V of %lld tokens", (long long)n);
    KVL_TRY(kvl_quality_reference(model, n, kvl_engine_defaults().max_batch_tokens, &engine));
    kvl_step_item item = {.ids = ids, .n_ids = (int32_t)n};
    kvl_status status = kvl_engine_add(engine, n, 0, &seq);
    item.seq = seq;
    if (status == KVL_OK) status = kvl_engine_step(engine, &item, 1, NULL);
    if (status == KVL_OK) status = take_layers(engine, seq, n, which, take, context);
    kvl_engine_destroy(engine);
    return status;
}
