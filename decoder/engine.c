#include "decoder/engine.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/memory.h"
#include "decoder/engine_internal.h"

/* ---- life ---------------------------------------------------------------------------------- */

/* Bytes of rows of `width` elements, rounded up so that the next ones start aligned. */
static bool add_rows(const kvl_engine *engine, uint64_t width, uint64_t elem_bytes,
                     uint64_t *total) {
    uint64_t bytes = elem_bytes;
    return kvl_mul_u64(bytes, width, &bytes) &&
           kvl_mul_u64(bytes, (uint64_t)engine->max_batch_tokens, &bytes) &&
           kvl_add_u64(*total, bytes, total) && kvl_align_u64(*total, 64, total);
}

/* One block for all activations: offsets are laid out first, then the block is taken. */
static kvl_status create_activations(kvl_engine *engine) {
    const kvl_config *c = &engine->model->config;
    kvl_activations *act = &engine->act;
    const uint64_t q_width = (uint64_t)kvl_engine_q_width(c);
    const uint64_t widths[7] = {(uint64_t)c->hidden_size,
                                (uint64_t)c->hidden_size,
                                (uint64_t)kvl_engine_qkv_width(c),
                                q_width,
                                2 * (uint64_t)c->intermediate_size,
                                (uint64_t)c->intermediate_size,
                                q_width};
    const bool bf16 = engine->compute_dtype == KVL_BF16;
    uint64_t offsets[7], total = 0;
    for (int i = 0; i < (bf16 ? 7 : 6); i++) {
        offsets[i] = total;
        if (!add_rows(engine, widths[i], i < 6 ? sizeof(float) : sizeof(uint16_t), &total))
            return kvl_fail(KVL_ERR_INPUT, "max_batch_tokens %d: activations overflow 64 bits",
                            engine->max_batch_tokens);
    }
    kvl_status status = engine->device->alloc(total, &act->block);
    if (status != KVL_OK)
        return kvl_fail_prefix(status, "activations of %d tokens", engine->max_batch_tokens);
    char *block = act->block;
    act->block_bytes = total;
    act->x = (float *)(block + offsets[0]);
    act->normed = (float *)(block + offsets[1]);
    act->qkv = (float *)(block + offsets[2]);
    act->attended = (float *)(block + offsets[3]);
    act->gate_up = (float *)(block + offsets[4]);
    act->gated = (float *)(block + offsets[5]);
    act->q16 = bf16 ? (uint16_t *)(block + offsets[6]) : NULL;
    return KVL_OK;
}

static kvl_status create_scratch(kvl_engine *engine) {
    kvl_chunk *chunk = &engine->chunk;
    size_t seqs = (size_t)engine->cache.config.max_seqs;
    size_t rows = (size_t)engine->max_batch_tokens;
    chunk->seqs = calloc(seqs, sizeof *chunk->seqs);
    chunk->kv_lens = calloc(seqs, sizeof *chunk->kv_lens);
    chunk->q_start = calloc(seqs + 1, sizeof *chunk->q_start);
    chunk->ids = calloc(rows, sizeof *chunk->ids);
    chunk->positions = calloc(rows, sizeof *chunk->positions);
    chunk->logit_rows = calloc(rows, sizeof *chunk->logit_rows);
    engine->known = calloc(seqs, sizeof *engine->known);
    engine->old_lens = calloc(seqs, sizeof *engine->old_lens);
    engine->seen = calloc(seqs, 1);
    engine->saturated =
        calloc(kvl_engine_saturated_count(&engine->model->config), sizeof *engine->saturated);
    engine->inv_freq = calloc((size_t)engine->model->config.head_dim, sizeof(float));
    if (!chunk->seqs || !chunk->kv_lens || !chunk->q_start || !chunk->ids || !chunk->positions ||
        !chunk->logit_rows || !engine->old_lens || !engine->known || !engine->seen ||
        !engine->inv_freq || !engine->saturated)
        return kvl_fail(KVL_ERR_OOM, "out of memory: step tables of %zu sequences, %zu tokens",
                        seqs, rows);
    kvl_config_inv_freq(&engine->model->config, engine->inv_freq);
    return KVL_OK;
}

kvl_status kvl_engine_create(const kvl_model *model, const kvl_engine_options *options,
                             void (*progress)(void *user, double share), void *user,
                             kvl_engine **out) {
    kvl_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return kvl_fail(KVL_ERR_OOM, "out of memory: engine");
    engine->stats.kv_saturated_layer = -1;
    kvl_status status = kvl_engine_resolve(engine, model, options);
    if (status != KVL_OK) {
        free(engine->cache.k_static);
        free(engine->cache.v_static);
        free(engine);
        return status;
    }
    /* Memory first: what does not fit is known before seconds go into the weights. */
    status = kvl_kv_cache_create(&engine->cache);
    if (status == KVL_OK) status = create_activations(engine);
    if (status == KVL_OK) status = create_scratch(engine);
    kvl_weights_options load = {.linear = engine->linear,
                                .nf4_skip = options->nf4_skip,
                                .allow_nonfinite = options->allow_nonfinite};
    if (status == KVL_OK) status = kvl_weights_load(model, &load, progress, user, &engine->weights);
    if (status != KVL_OK) {
        kvl_engine_destroy(engine);
        return status;
    }
    *out = engine;
    return KVL_OK;
}

void kvl_engine_destroy(kvl_engine *engine) {
    if (!engine) return;
    kvl_chunk *chunk = &engine->chunk;
    kvl_weights_free(&engine->weights);
    kvl_kv_cache_free(&engine->cache);
    if (engine->act.block) engine->device->release(engine->act.block, engine->act.block_bytes);
    kvl_mem_free(engine->act.attention, engine->act.attention_bytes);
    kvl_mem_free(engine->act.linear, engine->act.linear_bytes);
    free(chunk->seqs);
    free(chunk->kv_lens);
    free(chunk->q_start);
    free(chunk->ids);
    free(chunk->positions);
    free(chunk->logit_rows);
    free(engine->known);
    free(engine->old_lens);
    free(engine->seen);
    free(engine->inv_freq);
    free(engine->saturated);
    free(engine);
}

const kvl_config *kvl_engine_config(const kvl_engine *engine) {
    return &engine->model->config;
}

/* ---- sequences ----------------------------------------------------------------------------- */

static kvl_status check_request(const kvl_engine *engine, int64_t n_prompt, int64_t max_new) {
    const kvl_config *c = &engine->model->config;
    int64_t limit = engine->cache.config.max_seq_tokens;
    if (n_prompt < 1 || max_new < 0)
        return kvl_fail(KVL_ERR_INPUT, "prompt of %lld tokens + %lld new: at least 1 + 0",
                        (long long)n_prompt, (long long)max_new);
    if (n_prompt > limit || max_new > limit - n_prompt) {
        if (limit == c->max_position)
            return kvl_fail(KVL_ERR_INPUT, "prompt of %lld tokens + %lld new: model %s allows %lld",
                            (long long)n_prompt, (long long)max_new, c->name, (long long)limit);
        return kvl_fail(KVL_ERR_INPUT,
                        "prompt of %lld tokens + %lld new: max_seq_tokens is %lld here (model %s "
                        "allows %d)",
                        (long long)n_prompt, (long long)max_new, (long long)limit, c->name,
                        c->max_position);
    }
    return KVL_OK;
}

kvl_status kvl_engine_admit(kvl_engine *engine, const int32_t *ids, int64_t n_prompt,
                            int64_t max_new, bool readmitted, kvl_seq *seq, int64_t *n_cached) {
    kvl_admission out = {-1, 0};
    KVL_TRY(check_request(engine, n_prompt, max_new));
    const kvl_request request = {.n_prompt = n_prompt,
                                 .max_new = max_new,
                                 .tokens = ids,
                                 .max_cached = n_prompt - 1,
                                 .readmitted = readmitted};
    KVL_TRY(kvl_kv_cache_admit(&engine->cache, &request, &out));
    *seq = out.seq;
    *n_cached = out.n_cached;
    engine->known[out.seq] = ids ? n_prompt : 0;
    return KVL_OK;
}

kvl_status kvl_engine_add(kvl_engine *engine, int64_t n_prompt, int64_t max_new, kvl_seq *seq) {
    int64_t n_cached;
    return kvl_engine_admit(engine, NULL, n_prompt, max_new, false, seq, &n_cached);
}

int64_t kvl_engine_length(const kvl_engine *engine, kvl_seq seq) {
    if (seq < 0 || seq >= engine->cache.config.max_seqs) return -1;
    return engine->cache.allocator->length(engine->cache.state, seq);
}

void kvl_engine_forget(kvl_engine *engine, kvl_seq seq) {
    int64_t length = kvl_engine_length(engine, seq);
    if (engine->known[seq] > length) engine->known[seq] = length;
}

static kvl_status check_alive(const kvl_engine *engine, kvl_seq seq) {
    if (kvl_engine_length(engine, seq) >= 0) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "sequence %d is not alive", seq);
}

kvl_status kvl_engine_fork(kvl_engine *engine, kvl_seq seq, kvl_seq *child) {
    KVL_TRY(check_alive(engine, seq));
    KVL_TRY(engine->cache.allocator->fork(engine->cache.state, seq, child));
    kvl_engine_forget(engine, seq);
    engine->known[*child] = engine->known[seq];
    return KVL_OK;
}

kvl_status kvl_engine_truncate(kvl_engine *engine, kvl_seq seq, int64_t n_tokens) {
    KVL_TRY(check_alive(engine, seq));
    int64_t length = kvl_engine_length(engine, seq);
    if (n_tokens < 0 || n_tokens > length)
        return kvl_fail(KVL_ERR_INPUT, "sequence %d: cut to %lld tokens, it has %lld", seq,
                        (long long)n_tokens, (long long)length);
    KVL_TRY(engine->cache.allocator->truncate(engine->cache.state, seq, n_tokens));
    kvl_engine_forget(engine, seq);
    return KVL_OK;
}

kvl_status kvl_engine_remove(kvl_engine *engine, kvl_seq seq) {
    KVL_TRY(check_alive(engine, seq));
    return engine->cache.allocator->release(engine->cache.state, seq);
}
