/* What lies in the cache, as numbers: for statistics of real K and V. */
#include "decoder/engine_internal.h"

/* A run of tokens of one KV head, decoded row by row into rows of `width`. */
static void read_head(const kvl_kv_view *view, bool is_v, int64_t first, int64_t n, int32_t head,
                      float *out) {
    const kvl_dtype dtype = is_v ? view->v_dtype : view->k_dtype;
    const char *pool = is_v ? view->v_pool : view->k_pool;
    const size_t element = kvl_dtype_bytes(dtype);
    const int64_t width = (int64_t)view->n_kv_heads * view->head_dim;
    for (int64_t t = 0; t < n; t++) {
        int64_t at = kvl_kv_offset(view, 0, first + t, head);
        float scale = is_v ? kvl_kv_v_scale(view, 0, first + t, head)
                           : kvl_kv_k_scale(view, 0, first + t, head);
        kvl_decode(dtype, pool + (size_t)at * element, view->head_dim, scale,
                   out + t * width + (int64_t)head * view->head_dim);
    }
}

kvl_status kvl_engine_read_kv(kvl_engine *engine, kvl_seq seq, int32_t layer, int64_t first,
                              int64_t n, float *k, float *v) {
    int64_t length = kvl_engine_length(engine, seq);
    if (length < 0) return kvl_fail(KVL_ERR_INPUT, "sequence %d is not alive", seq);
    if (layer < 0 || layer >= engine->cache.n_layers)
        return kvl_fail(KVL_ERR_INPUT, "layer %d: the model has %d", layer, engine->cache.n_layers);
    if (first < 0 || n < 0 || first > length || n > length - first)
        return kvl_fail(KVL_ERR_INPUT, "K and V of %lld tokens from %lld on: sequence %d has %lld",
                        (long long)n, (long long)first, seq, (long long)length);
    int32_t kv_len = (int32_t)length;
    kvl_kv_view view;
    kvl_kv_cache_view(&engine->cache, &seq, &kv_len, 1, &view);
    kvl_kv_cache_layer(&engine->cache, layer, &view);
    for (int64_t t = first; view.page_table && t < first + n; t++) {
        if (view.page_table[t / view.page_tokens] < 0)
            return kvl_fail(KVL_ERR_INPUT, "token %lld of sequence %d lies before its window",
                            (long long)t, seq);
    }
    for (int32_t head = 0; head < view.n_kv_heads; head++) {
        if (k) read_head(&view, false, first, n, head, k);
        if (v) read_head(&view, true, first, n, head, v);
    }
    return KVL_OK;
}
