/* A decoder's weights, packed for the engine.
 *
 * Projections that read the same input are stacked by rows into one matrix (q, k, v; gate, up), so
 * a layer is four matrix products. Every matrix is read from the source in blocks of rows and
 * encoded at once: no float32 copy of the model ever exists. */
#ifndef KVL_DECODER_WEIGHTS_H
#define KVL_DECODER_WEIGHTS_H

#include <stdint.h>

#include "decoder/model.h"
#include "quant/linear.h"

typedef struct kvl_layer_weights {
    const float *input_norm, *post_norm; /* [hidden_size] */
    const float *q_norm, *k_norm;        /* [head_dim]; NULL without qk_norm */
    kvl_linear *qkv;     /* [(n_q_heads + 2 * n_kv_heads) * head_dim, hidden_size] */
    kvl_linear *o;       /* [hidden_size, n_q_heads * head_dim] */
    kvl_linear *gate_up; /* [2 * intermediate_size, hidden_size] */
    kvl_linear *down;    /* [hidden_size, intermediate_size] */
} kvl_layer_weights;

typedef struct kvl_weights {
    int32_t n_layers, hidden_size, vocab_size;
    kvl_layer_weights *layers; /* [n_layers] */
    const float *final_norm;   /* [hidden_size] */
    kvl_linear *lm_head;       /* [vocab_size, hidden_size] */

    /* Rows of the embedding in the weight format's dtype; NULL when tied to lm_head, whose rows
     * then serve: one copy of the weights. */
    void *embedding;
    kvl_dtype embedding_dtype;
    uint64_t embedding_bytes;

    /* Matrices in the format asked for, and in another one since they were to be skipped. */
    int32_t n_matrices, n_skipped;
    const kvl_weight_format *skipped_format;
    int32_t n_kept;    /* matrices whose 4-bit codes and absmax are the file's own */
    int64_t nf4_block; /* of formats in blocks; 0 = another format */

    float *norms; /* all norm vectors, end to end */
    uint64_t norms_bytes;
} kvl_weights;

typedef struct kvl_weights_options {
    /* Of the linear layers; parts are filled in here. nf4_block 0: the file's own block where it
     * holds 4-bit weights, else 64. */
    kvl_linear_options linear;
    /* Formats in blocks only: modules that stay unquantised, names or runs of name parts with
     * commas between ("lm_head,o_proj,layers.0"; "none"). NULL: lm_head, or, where the file holds
     * 4-bit weights, what it left unquantised. Embeddings and norms always stay. What stays is
     * bf16, or float32 when compute_dtype is f32. q, k and v (gate and up) go together. */
    const char *nf4_skip;
    bool allow_nonfinite; /* NaN and infinities in weights are loaded, not refused */
} kvl_weights_options;

/* Checks that the source has every tensor of config in its right shape; reads none. KVL_ERR_INPUT
 * names the tensor, its shape and the one expected. */
kvl_status kvl_weights_check(const kvl_model *model);

/* Reads and packs everything (kvl_weights_check has passed) with all threads. `progress` (may be
 * NULL) is called from the calling thread with 0..1. A weight that is NaN or infinite is
 * KVL_ERR_INPUT by tensor and place. On failure nothing is held. */
kvl_status kvl_weights_load(const kvl_model *model, const kvl_weights_options *options,
                            void (*progress)(void *user, double share), void *user,
                            kvl_weights *out);
void kvl_weights_free(kvl_weights *weights);

/* The embedding of token `id` (in range) as float32 [hidden_size]. */
void kvl_weights_embed(const kvl_weights *weights, int32_t id, float *out);

/* Bytes held; and bytes of the matrices that a step reads (lm_head, embedding rows left out). */
uint64_t kvl_weights_bytes(const kvl_weights *weights);
uint64_t kvl_weights_layer_bytes(const kvl_weights *weights);

#endif
