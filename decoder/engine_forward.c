/* One chunk through the decoder: embed, layers (attention, MLP), logits. Pre-norm, residual stream
 * in float32.
 *
 * The chunk is one parallel region. Every worker walks the same stages and does its share of each;
 * a barrier stands wherever a stage reads what another worker may have written. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/team.h"
#include "core/threads.h"
#include "decoder/engine_internal.h"

typedef enum phase { PHASE_ATTENTION, PHASE_MATMUL, PHASE_OTHER, N_PHASES } phase;

/* What the workers of a chunk share. */
typedef struct forward {
    kvl_engine *engine;
    kvl_kv_view view;
    kvl_attention_args args;
    float *logits;
    _Atomic uint64_t phase_ns[N_PHASES];
    _Atomic int failed; /* set by the worker that writes status and message */
    kvl_status status;
    char message[256];
    int n_workers;
} forward;

/* One worker's walk: its own view and arguments, since their pointers move from layer to layer. */
typedef struct walk {
    forward *shared;
    kvl_engine *engine;
    kvl_worker *worker;
    kvl_kv_view view;
    kvl_attention_args args;
    uint64_t phase_ns[N_PHASES], since_ns, waited_ns;
} walk;

/* The first failure is kept. No stage is left out after it, so that nobody waits at a barrier for a
 * worker that has gone: what is computed from then on is thrown away. */
static void note(walk *w, kvl_status status) {
    forward *f = w->shared;
    int none = 0;
    if (status == KVL_OK || !atomic_compare_exchange_strong(&f->failed, &none, 1)) return;
    f->status = status;
    snprintf(f->message, sizeof f->message, "%s", kvl_message());
}

/* Ends a stage: waits for the others, and books the time worked (not waited) since the last one. */
static void end_stage(walk *w, phase p) {
    kvl_team_barrier(w->worker);
    uint64_t now_ns = kvl_now_ns();
    w->phase_ns[p] += now_ns - w->since_ns - (w->worker->wait_ns - w->waited_ns);
    w->since_ns = now_ns;
    w->waited_ns = w->worker->wait_ns;
}

/* ---- stages -------------------------------------------------------------------------------- */

static void matmul(walk *w, const kvl_linear *layer, const float *x, int64_t n_rows, float *y,
                   bool accumulate) {
    kvl_activations *act = &w->engine->act;
    kvl_linear_call call = {.x = x,
                            .x_stride = kvl_linear_n_in(layer),
                            .n_rows = n_rows,
                            .y = y,
                            .y_stride = kvl_linear_n_out(layer),
                            .accumulate = accumulate,
                            .workspace = act->linear,
                            .workspace_bytes = act->linear_bytes};
    note(w, kvl_linear_part(layer, &call, w->worker));
    end_stage(w, PHASE_MATMUL);
}

static void norm(walk *w, const float *weight) {
    const kvl_config *c = &w->engine->model->config;
    note(w, w->engine->device->rmsnorm(w->worker, w->engine->act.x, weight, c->rms_norm_eps,
                                       w->engine->chunk.n_rows, 1, c->hidden_size, c->hidden_size,
                                       w->engine->act.normed, c->hidden_size));
    end_stage(w, PHASE_OTHER);
}

static void embed(walk *w) {
    const kvl_chunk *chunk = &w->engine->chunk;
    const int64_t hidden = w->engine->model->config.hidden_size;
    int64_t first, last;
    kvl_worker_share(w->worker, chunk->n_rows, &first, &last);
    for (int64_t row = first; row < last; row++)
        kvl_weights_embed(&w->engine->weights, chunk->ids[row], w->engine->act.x + row * hidden);
    end_stage(w, PHASE_OTHER);
}

/* Norms of Q and K heads where the family has them, RoPE on both (they lie side by side), K and V
 * into the cache, Q rounded to bf16. All by rows, so that no worker waits between them. */
static void position_and_store(walk *w, int32_t index) {
    kvl_engine *engine = w->engine;
    const kvl_config *c = &engine->model->config;
    const kvl_device *device = engine->device;
    const kvl_layer_weights *layer = &engine->weights.layers[index];
    const int64_t stride = kvl_engine_qkv_width(c), q_width = kvl_engine_q_width(c);
    const int32_t n_rows = engine->chunk.n_rows;
    float *q = engine->act.qkv, *k = q + q_width, *v = k + kvl_engine_kv_width(c);
    if (layer->q_norm) {
        note(w, device->rmsnorm(w->worker, q, layer->q_norm, c->rms_norm_eps, n_rows, c->n_q_heads,
                                c->head_dim, stride, q, stride));
        note(w, device->rmsnorm(w->worker, k, layer->k_norm, c->rms_norm_eps, n_rows, c->n_kv_heads,
                                c->head_dim, stride, k, stride));
    }
    note(w, device->rope(w->worker, q, stride, n_rows, c->n_q_heads + c->n_kv_heads, c->head_dim,
                         engine->chunk.positions, engine->inv_freq));
    note(w, device->kv_append(w->worker, &w->view, engine->chunk.q_start, k, stride, v, stride,
                              engine->saturated + (int64_t)index * 2 * c->n_kv_heads));
    if (engine->act.q16)
        note(w, device->convert(w->worker, n_rows, q_width, q, KVL_F32, stride, engine->act.q16,
                                KVL_BF16, q_width));
    end_stage(w, PHASE_OTHER);
}

/* x += o_proj(attention(qkv_proj(norm(x)))). */
static void attention_block(walk *w, int32_t index) {
    kvl_engine *engine = w->engine;
    const kvl_layer_weights *layer = &engine->weights.layers[index];
    kvl_activations *act = &engine->act;
    const int32_t n_rows = engine->chunk.n_rows;
    kvl_kv_cache_layer(&engine->cache, index, &w->view);
    norm(w, layer->input_norm);
    matmul(w, layer->qkv, act->normed, n_rows, act->qkv, false);
    position_and_store(w, index);
    note(w, kvl_attention_part(engine->attention, &w->args));
    end_stage(w, PHASE_ATTENTION);
    matmul(w, layer->o, act->attended, n_rows, act->x, true);
}

/* x += down(silu(gate(norm(x))) * up(norm(x))). */
static void mlp_block(walk *w, int32_t index) {
    kvl_engine *engine = w->engine;
    const kvl_config *c = &engine->model->config;
    const kvl_layer_weights *layer = &engine->weights.layers[index];
    kvl_activations *act = &engine->act;
    const int32_t n_rows = engine->chunk.n_rows;
    const int64_t inner = c->intermediate_size;
    norm(w, layer->post_norm);
    matmul(w, layer->gate_up, act->normed, n_rows, act->gate_up, false);
    note(w, engine->device->swiglu(w->worker, act->gate_up, act->gate_up + inner, 2 * inner, n_rows,
                                   inner, act->gated, inner));
    end_stage(w, PHASE_OTHER);
    matmul(w, layer->down, act->gated, n_rows, act->x, true);
}

/* Logits of the rows asked for: only those are normed and multiplied. */
static void head(walk *w, float *logits) {
    kvl_engine *engine = w->engine;
    const kvl_config *c = &engine->model->config;
    const kvl_chunk *chunk = &engine->chunk;
    const int64_t hidden = c->hidden_size;
    int64_t first, last;
    if (chunk->n_logits == 0) return;
    kvl_worker alone = kvl_worker_alone();
    kvl_worker_share(w->worker, chunk->n_logits, &first, &last);
    for (int64_t i = first; i < last; i++)
        note(w, engine->device->rmsnorm(&alone, engine->act.x + chunk->logit_rows[i] * hidden,
                                        engine->weights.final_norm, c->rms_norm_eps, 1, 1, hidden,
                                        hidden, engine->act.normed + i * hidden, hidden));
    end_stage(w, PHASE_OTHER);
    matmul(w, engine->weights.lm_head, engine->act.normed, chunk->n_logits, logits, false);
}

static void walk_layers(kvl_worker *worker, void *context) {
    forward *f = context;
    walk w = {.shared = f,
              .engine = f->engine,
              .worker = worker,
              .view = f->view,
              .args = f->args,
              .since_ns = kvl_now_ns()};
    w.args.kv = &w.view;
    w.args.worker = worker;
    w.args.n_threads = worker->n;
    if (worker->index == 0) f->n_workers = worker->n;
    embed(&w);
    for (int32_t i = 0; i < w.engine->model->config.n_layers; i++) {
        attention_block(&w, i);
        mlp_block(&w, i);
    }
    head(&w, f->logits);
    for (int p = 0; p < N_PHASES; p++) atomic_fetch_add(&f->phase_ns[p], w.phase_ns[p]);
}

/* ---- workspaces ----------------------------------------------------------------------------- */

/* Grows a workspace to what is needed, with headroom so that a context that grows by a token a step
 * does not ask again each time. */
static kvl_status grow(uint64_t need, const char *what, void **block, uint64_t *block_bytes) {
    if (need <= *block_bytes) return KVL_OK;
    uint64_t bytes = need < UINT64_MAX / 2 ? need + need / 4 : need;
    kvl_mem_free(*block, *block_bytes);
    *block = NULL;
    *block_bytes = 0;
    kvl_status status = kvl_mem_alloc(bytes, block);
    if (status != KVL_OK) return kvl_fail_prefix(status, "%s: workspace", what);
    *block_bytes = bytes;
    return KVL_OK;
}

static uint64_t linear_need(const kvl_engine *engine, int n_workers) {
    const kvl_weights *weights = &engine->weights;
    const kvl_chunk *chunk = &engine->chunk;
    uint64_t most = kvl_linear_workspace_bytes(weights->lm_head, chunk->n_logits, n_workers);
    for (int32_t i = 0; i < engine->model->config.n_layers; i++) {
        const kvl_layer_weights *layer = &weights->layers[i];
        const kvl_linear *linears[] = {layer->qkv, layer->o, layer->gate_up, layer->down};
        for (int k = 0; k < 4; k++) {
            uint64_t need = kvl_linear_workspace_bytes(linears[k], chunk->n_rows, n_workers);
            if (need > most) most = need;
        }
    }
    return most;
}

static kvl_status grow_workspaces(kvl_engine *engine, kvl_attention_args *args) {
    kvl_activations *act = &engine->act;
    KVL_TRY(grow(engine->attention->workspace_bytes(args), engine->attention->name, &act->attention,
                 &act->attention_bytes));
    args->workspace = act->attention;
    args->workspace_bytes = act->attention_bytes;
    return grow(linear_need(engine, args->n_threads), "linear layers", &act->linear,
                &act->linear_bytes);
}

kvl_status kvl_engine_forward(kvl_engine *engine, float *logits) {
    const kvl_chunk *chunk = &engine->chunk;
    forward f = {.engine = engine, .logits = logits};
    kvl_kv_cache_view(&engine->cache, chunk->seqs, chunk->kv_lens, chunk->n_seqs, &f.view);
    f.args = kvl_engine_attention_args(engine, &f.view, chunk->q_start);
    f.args.q = engine->act.q16 ? (const void *)engine->act.q16 : engine->act.qkv;
    f.args.o = engine->act.attended;
    KVL_TRY(grow_workspaces(engine, &f.args));
    /* Once for all layers: they differ by their pools only. */
    kvl_kv_cache_layer(&engine->cache, 0, &f.view);
    KVL_TRY(kvl_attention_check(engine->attention, &f.args));

    uint64_t wait_ns = 0;
    kvl_team_run(f.args.n_threads, walk_layers, &f, &wait_ns);
    kvl_engine_stats *stats = &engine->stats;
    uint64_t n = (uint64_t)f.n_workers;
    stats->attention_ns += f.phase_ns[PHASE_ATTENTION] / n;
    stats->matmul_ns += f.phase_ns[PHASE_MATMUL] / n;
    stats->other_ns += f.phase_ns[PHASE_OTHER] / n;
    stats->idle_ns += wait_ns / n;
    return f.status == KVL_OK ? KVL_OK : kvl_fail(f.status, "%s", f.message);
}
