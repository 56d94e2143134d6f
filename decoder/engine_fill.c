/* A cache filled without a prefill: long contexts are then measured in seconds. */
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/threads.h"
#include "decoder/engine_internal.h"

/* Rows are cut out of one table of normals at seeded places: a copy is many times faster than
 * drawing billions of normals, and what attention reads is spread all the same. */
enum { TABLE_FLOATS = 1 << 18 };

/* Row `head` of K (which = 0) or V (1) of one token in one layer: a pure function of its place in
 * the sequence, so that pages, chunks and threads play no part. */
static void fill_row(const kvl_rng *rng, const float *table, int64_t row_index, int32_t head_dim,
                     float *out) {
    uint64_t at = kvl_rng_at(rng, (uint64_t)row_index) % (uint64_t)(TABLE_FLOATS - head_dim);
    memcpy(out, table + at, (size_t)head_dim * sizeof(float));
}

/* Tokens first .. first + n of one layer, as K and V rows [n][n_kv_heads * head_dim] each. */
static void fill_layer(const kvl_engine *engine, const kvl_rng *rng, const float *table,
                       int32_t layer, int64_t first, int64_t n, float *k, float *v) {
    const kvl_config *c = &engine->model->config;
    const int64_t width = kvl_engine_kv_width(c);
#pragma omp parallel for num_threads(kvl_threads()) schedule(static) if (n >= 64)
    for (int64_t t = 0; t < n; t++) {
        for (int32_t h = 0; h < c->n_kv_heads; h++) {
            int64_t row = (((first + t) * c->n_layers + layer) * c->n_kv_heads + h) * 2;
            fill_row(rng, table, row, c->head_dim, k + t * width + h * c->head_dim);
            fill_row(rng, table, row + 1, c->head_dim, v + t * width + h * c->head_dim);
        }
    }
}

/* Writes tokens old_len .. old_len + n_tokens in pieces of max_batch_tokens. */
static kvl_status fill_pieces(kvl_engine *engine, kvl_seq seq, int64_t old_len, int64_t n_tokens,
                              const kvl_rng *rng, const float *table) {
    /* qkv rows are at least twice a K row wide: both halves of the block serve as scratch. */
    float *k = engine->act.qkv;
    float *v = k + engine->max_batch_tokens * kvl_engine_kv_width(&engine->model->config);
    const int64_t width = kvl_engine_kv_width(&engine->model->config);
    for (int64_t done = 0; done < n_tokens;) {
        int64_t n = n_tokens - done;
        if (n > engine->max_batch_tokens) n = engine->max_batch_tokens;
        int32_t kv_len = (int32_t)(old_len + done + n), q_start[2] = {0, (int32_t)n};
        kvl_kv_view view;
        kvl_kv_cache_view(&engine->cache, &seq, &kv_len, 1, &view);
        for (int32_t layer = 0; layer < engine->cache.n_layers; layer++) {
            fill_layer(engine, rng, table, layer, old_len + done, n, k, v);
            kvl_kv_cache_layer(&engine->cache, layer, &view);
            KVL_TRY(engine->device->kv_append(NULL, &view, q_start, k, width, v, width, NULL));
        }
        done += n;
    }
    return KVL_OK;
}

kvl_status kvl_engine_fill_synthetic(kvl_engine *engine, kvl_seq seq, int64_t n_tokens,
                                     uint64_t seed) {
    enum { STREAM_TABLE = 0x6b76, STREAM_PLACES = 0x6b77 };
    int64_t old_len = kvl_engine_length(engine, seq);
    int64_t limit = engine->cache.config.max_seq_tokens;
    if (old_len < 0) return kvl_fail(KVL_ERR_INPUT, "sequence %d is not alive", seq);
    if (n_tokens < 0 || n_tokens > limit - old_len)
        return kvl_fail(KVL_ERR_INPUT, "context of %lld tokens after %lld: at most %lld",
                        (long long)n_tokens, (long long)old_len, (long long)limit);
    if (n_tokens == 0) return KVL_OK;
    float *table = malloc(TABLE_FLOATS * sizeof *table);
    if (!table) return kvl_fail(KVL_ERR_OOM, "out of memory: table of synthetic K and V");
    kvl_rng_fill_normal(seed, STREAM_TABLE, 1.0f, table, TABLE_FLOATS);
    kvl_rng places = kvl_rng_make(seed, STREAM_PLACES);
    kvl_status status = kvl_kv_cache_append(&engine->cache, seq, n_tokens);
    if (status == KVL_OK) status = fill_pieces(engine, seq, old_len, n_tokens, &places, table);
    if (status != KVL_OK && kvl_engine_length(engine, seq) > old_len)
        engine->cache.allocator->truncate(engine->cache.state, seq, old_len);
    free(table);
    return status;
}
