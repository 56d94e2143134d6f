/* What the engine's files share: engine_options.c (what is asked for), engine.c (life of an engine
 * and its sequences), engine_step.c (a step cut into chunks), engine_forward.c (one chunk through
 * the layers), engine_report.c (what ran, bytes and times). */
#ifndef KVL_DECODER_ENGINE_INTERNAL_H
#define KVL_DECODER_ENGINE_INTERNAL_H

#include "decoder/engine.h"
#include "decoder/kv_cache.h"
#include "decoder/weights.h"
#include "quant/kv_format.h"

/* Rows that go through the layers together: tokens of several sequences, end to end. */
typedef struct kvl_chunk {
    int32_t n_seqs, n_rows, n_logits;
    kvl_seq *seqs;       /* host [max_seqs] */
    int32_t *kv_lens;    /* host [max_seqs]: tokens of each after this chunk */
    int32_t *q_start;    /* host [max_seqs + 1] */
    int32_t *ids;        /* host [max_batch_tokens] */
    int32_t *positions;  /* host [max_batch_tokens] */
    int32_t *logit_rows; /* host [max_batch_tokens]: rows whose logits are asked for */
} kvl_chunk;

/* Activations of a chunk, float32 [max_batch_tokens][width] each, in one block of memory. */
typedef struct kvl_activations {
    void *block;
    uint64_t block_bytes;
    float *x;        /* residual stream [hidden_size] */
    float *normed;   /* input of a matrix product [hidden_size] */
    float *qkv;      /* [(n_q_heads + 2 * n_kv_heads) * head_dim] */
    float *attended; /* O of attention [n_q_heads * head_dim] */
    float *gate_up;  /* [2 * intermediate_size] */
    float *gated;    /* [intermediate_size] */
    uint16_t *q16;   /* Q in bf16; NULL when compute_dtype is f32 */
    void *attention; /* workspace of the attention kernel, grown between steps */
    uint64_t attention_bytes;
    void *linear; /* workspace of the linear layers, grown between steps */
    uint64_t linear_bytes;
} kvl_activations;

struct kvl_engine {
    const kvl_model *model;
    const kvl_device *device;
    const kvl_attention *attention;
    kvl_linear_options linear;
    kvl_dtype compute_dtype;
    kvl_kv_scale k_scale, v_scale; /* resolved: no auto */
    int32_t max_batch_tokens;
    float *inv_freq; /* [head_dim / 2] */

    kvl_weights weights;
    kvl_kv_cache cache;
    kvl_activations act;
    kvl_chunk chunk;
    int64_t *known;     /* [max_seqs] tokens whose ids the prefix cache has */
    int64_t *old_lens;  /* [max_seqs] lengths before the step, by item */
    uint8_t *seen;      /* [max_seqs] scratch: sequences named by a step */
    int64_t *saturated; /* [n_layers][2][n_kv_heads] values of K and of V since the last reset */

    kvl_engine_stats stats;
};

/* Fields of `engine` that follow from names and numbers; nothing big is allocated. Every
 * impossible combination is refused here. */
kvl_status kvl_engine_resolve(kvl_engine *engine, const kvl_model *model,
                              const kvl_engine_options *options);

/* Arguments of the attention module for `view`; q, o and workspace are left NULL. */
kvl_attention_args kvl_engine_attention_args(const kvl_engine *engine, const kvl_kv_view *view,
                                             const int32_t *q_start);

/* What attention would run for n_seqs sequences of kv_len tokens with q_len new ones each. */
void kvl_engine_attention_choice(const kvl_engine *engine, int32_t n_seqs, int32_t q_len,
                                 int32_t kv_len, kvl_attention_choice *choice);

/* The ids of tokens beyond the sequence's length are no longer what they were announced to be. */
void kvl_engine_forget(kvl_engine *engine, kvl_seq seq);

/* Runs engine->chunk through the decoder; logits [chunk.n_logits][vocab_size]. */
kvl_status kvl_engine_forward(kvl_engine *engine, float *logits);

static inline uint64_t kvl_engine_timed_ns(const kvl_engine_stats *stats) {
    return stats->attention_ns + stats->matmul_ns + stats->other_ns + stats->idle_ns;
}
/* Counters in kvl_engine.saturated. */
static inline size_t kvl_engine_saturated_count(const kvl_config *c) {
    return (size_t)c->n_layers * 2 * (size_t)c->n_kv_heads;
}
static inline int64_t kvl_engine_q_width(const kvl_config *c) {
    return (int64_t)c->n_q_heads * c->head_dim;
}
static inline int64_t kvl_engine_kv_width(const kvl_config *c) {
    return (int64_t)c->n_kv_heads * c->head_dim;
}
static inline int64_t kvl_engine_qkv_width(const kvl_config *c) {
    return kvl_engine_q_width(c) + 2 * kvl_engine_kv_width(c);
}

#endif
