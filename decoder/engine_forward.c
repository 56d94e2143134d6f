/* One chunk through the decoder: embed, layers (attention, MLP), logits. Pre-norm, residual stream
 * in float32. */
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/threads.h"
#include "decoder/engine_internal.h"

/* ---- phases, timed ------------------------------------------------------------------------- */

static kvl_status matmul(kvl_engine *engine, const kvl_linear *layer, const float *x,
                         int64_t n_rows, float *y, bool accumulate) {
    uint64_t start_ns = kvl_now_ns();
    kvl_status status = kvl_linear_run(layer, x, kvl_linear_n_in(layer), n_rows, y,
                                       kvl_linear_n_out(layer), accumulate);
    engine->stats.matmul_ns += kvl_now_ns() - start_ns;
    return status;
}

static kvl_status attend(kvl_engine *engine, const kvl_attention_args *args) {
    uint64_t start_ns = kvl_now_ns();
    kvl_status status = kvl_attention_run(engine->attention, args);
    engine->stats.attention_ns += kvl_now_ns() - start_ns;
    return status;
}

/* ---- stages -------------------------------------------------------------------------------- */

static void embed(kvl_engine *engine) {
    const kvl_chunk *chunk = &engine->chunk;
    const int64_t hidden = engine->model->config.hidden_size;
#pragma omp parallel for num_threads(kvl_threads()) schedule(static) if (chunk->n_rows >= 16)
    for (int32_t row = 0; row < chunk->n_rows; row++)
        kvl_weights_embed(&engine->weights, chunk->ids[row], engine->act.x + row * hidden);
}

/* Grows the attention workspace to what these arguments need, with headroom so that a context that
 * grows by a token a step does not ask again each time. */
static kvl_status grow_workspace(kvl_engine *engine, kvl_attention_args *args) {
    kvl_activations *act = &engine->act;
    uint64_t need = engine->attention->workspace_bytes(args);
    if (need > act->attention_bytes) {
        uint64_t bytes = need < UINT64_MAX / 2 ? need + need / 4 : need;
        kvl_mem_free(act->attention, act->attention_bytes);
        act->attention = NULL;
        act->attention_bytes = 0;
        kvl_status status = kvl_mem_alloc(bytes, &act->attention);
        if (status != KVL_OK)
            return kvl_fail_prefix(status, "attention %s: workspace", engine->attention->name);
        act->attention_bytes = bytes;
    }
    args->workspace = act->attention;
    args->workspace_bytes = act->attention_bytes;
    return KVL_OK;
}

/* Q of each row out of the stacked rows, rounded to bf16. */
static kvl_status round_q(kvl_engine *engine) {
    const kvl_config *c = &engine->model->config;
    const int64_t q_width = kvl_engine_q_width(c), stride = kvl_engine_qkv_width(c);
    for (int32_t row = 0; row < engine->chunk.n_rows; row++)
        KVL_TRY(engine->device->convert(engine->act.qkv + row * stride, KVL_F32,
                                        engine->act.q16 + row * q_width, KVL_BF16, q_width));
    return KVL_OK;
}

/* Norms of Q and K heads where the family has them, then RoPE on both: they lie side by side. */
static kvl_status position(kvl_engine *engine, const kvl_layer_weights *layer) {
    const kvl_config *c = &engine->model->config;
    const kvl_device *device = engine->device;
    const int64_t stride = kvl_engine_qkv_width(c);
    const int32_t n_rows = engine->chunk.n_rows;
    float *q = engine->act.qkv, *k = q + kvl_engine_q_width(c);
    if (layer->q_norm) {
        KVL_TRY(device->rmsnorm(q, layer->q_norm, c->rms_norm_eps, n_rows, c->n_q_heads,
                                c->head_dim, stride, q, stride));
        KVL_TRY(device->rmsnorm(k, layer->k_norm, c->rms_norm_eps, n_rows, c->n_kv_heads,
                                c->head_dim, stride, k, stride));
    }
    return device->rope(q, stride, n_rows, c->n_q_heads + c->n_kv_heads, c->head_dim,
                        engine->chunk.positions, engine->inv_freq);
}

static kvl_status store_kv(kvl_engine *engine, int32_t layer, const kvl_kv_view *view) {
    const kvl_config *c = &engine->model->config;
    const int64_t stride = kvl_engine_qkv_width(c);
    const float *k = engine->act.qkv + kvl_engine_q_width(c), *v = k + kvl_engine_kv_width(c);
    int64_t saturated = 0;
    KVL_TRY(
        engine->device->kv_append(view, engine->chunk.q_start, k, stride, v, stride, &saturated));
    engine->stats.kv_saturated += saturated;
    if (saturated && engine->stats.kv_saturated_layer < 0) engine->stats.kv_saturated_layer = layer;
    return KVL_OK;
}

/* x += o_proj(attention(qkv_proj(norm(x)))). */
static kvl_status attention_block(kvl_engine *engine, int32_t index, kvl_attention_args *args,
                                  kvl_kv_view *view) {
    const kvl_config *c = &engine->model->config;
    const kvl_layer_weights *layer = &engine->weights.layers[index];
    kvl_activations *act = &engine->act;
    const int32_t n_rows = engine->chunk.n_rows;
    kvl_kv_cache_layer(&engine->cache, index, view);
    KVL_TRY(engine->device->rmsnorm(act->x, layer->input_norm, c->rms_norm_eps, n_rows, 1,
                                    c->hidden_size, c->hidden_size, act->normed, c->hidden_size));
    KVL_TRY(matmul(engine, layer->qkv, act->normed, n_rows, act->qkv, false));
    KVL_TRY(position(engine, layer));
    KVL_TRY(store_kv(engine, index, view));
    if (act->q16) KVL_TRY(round_q(engine));
    KVL_TRY(attend(engine, args));
    if (act->o16)
        KVL_TRY(engine->device->convert(act->o16, KVL_BF16, act->attended, KVL_F32,
                                        n_rows * kvl_engine_q_width(c)));
    return matmul(engine, layer->o, act->attended, n_rows, act->x, true);
}

/* x += down(silu(gate(norm(x))) * up(norm(x))). */
static kvl_status mlp_block(kvl_engine *engine, int32_t index) {
    const kvl_config *c = &engine->model->config;
    const kvl_layer_weights *layer = &engine->weights.layers[index];
    kvl_activations *act = &engine->act;
    const int32_t n_rows = engine->chunk.n_rows;
    const int64_t inner = c->intermediate_size;
    KVL_TRY(engine->device->rmsnorm(act->x, layer->post_norm, c->rms_norm_eps, n_rows, 1,
                                    c->hidden_size, c->hidden_size, act->normed, c->hidden_size));
    KVL_TRY(matmul(engine, layer->gate_up, act->normed, n_rows, act->gate_up, false));
    KVL_TRY(engine->device->swiglu(act->gate_up, act->gate_up + inner, 2 * inner, n_rows, inner,
                                   act->gated, inner));
    return matmul(engine, layer->down, act->gated, n_rows, act->x, true);
}

/* Logits of the rows asked for: only those are normed and multiplied. */
static kvl_status head(kvl_engine *engine, float *logits) {
    const kvl_config *c = &engine->model->config;
    const kvl_chunk *chunk = &engine->chunk;
    const int64_t hidden = c->hidden_size;
    if (chunk->n_logits == 0) return KVL_OK;
    for (int32_t i = 0; i < chunk->n_logits; i++)
        KVL_TRY(engine->device->rmsnorm(engine->act.x + chunk->logit_rows[i] * hidden,
                                        engine->weights.final_norm, c->rms_norm_eps, 1, 1, hidden,
                                        hidden, engine->act.normed + i * hidden, hidden));
    return matmul(engine, engine->weights.lm_head, engine->act.normed, chunk->n_logits, logits,
                  false);
}

kvl_status kvl_engine_forward(kvl_engine *engine, float *logits) {
    const kvl_chunk *chunk = &engine->chunk;
    kvl_kv_view view;
    kvl_kv_cache_view(&engine->cache, chunk->seqs, chunk->kv_lens, chunk->n_seqs, &view);
    kvl_attention_args args = kvl_engine_attention_args(engine, &view, chunk->q_start);
    args.q = engine->act.q16 ? (const void *)engine->act.q16 : engine->act.qkv;
    args.o = engine->act.o16 ? (void *)engine->act.o16 : engine->act.attended;
    KVL_TRY(grow_workspace(engine, &args));
    embed(engine);
    for (int32_t i = 0; i < engine->model->config.n_layers; i++) {
        KVL_TRY(attention_block(engine, i, &args, &view));
        KVL_TRY(mlp_block(engine, i));
    }
    return head(engine, logits);
}
