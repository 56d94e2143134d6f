/* A tensor source: weights as float32 rows on demand, under Hugging Face names, whatever the file.
 *
 * Names: "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight" and, for layer i,
 * "model.layers.<i>." + {input_layernorm, post_attention_layernorm, self_attn.{q,k,v,o}_proj,
 * self_attn.{q,k}_norm, mlp.{gate,up,down}_proj}.weight and self_attn.{q,k,v}_proj.bias.
 * Readers translate: GGUF names are mapped and llama-architecture Q/K rows are put back from GGUF's
 * interleaved RoPE order into the half-split order used here.
 */
#ifndef KVL_DECODER_SOURCE_H
#define KVL_DECODER_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/status.h"
#include "quant/nf4.h"

typedef struct kvl_source kvl_source;

struct kvl_source {
    void *self;
    /* True when the tensor exists; rows and cols (1-D: rows = n, cols = 1) are then set. */
    bool (*shape)(const kvl_source *source, const char *name, int64_t *rows, int64_t *cols);
    /* Rows first .. first + n_rows as float32 [n_rows][cols] to host memory. Thread-safe. */
    kvl_status (*read_rows)(const kvl_source *source, const char *name, int64_t first,
                            int64_t n_rows, float *out);
    void (*close)(kvl_source *source);
    /* A tensor that the file holds in 4 bits already, or NULL for any other; valid until close. The
     * member is NULL where no tensor is. */
    const kvl_nf4_tensor *(*quantised)(const kvl_source *source, const char *name);
};

/* The tensors of an open GGUF file. Every tensor that `config` asks for must be there in its shape
 * and in a type that kvlab decodes; a tensor without a place in the model (a bias, an expert) is
 * refused by name. On success the source owns `gguf` and closes it; on failure the caller keeps it.
 */
struct kvl_gguf;
struct kvl_config;
kvl_status kvl_source_from_gguf(struct kvl_gguf *gguf, const struct kvl_config *config,
                                kvl_source *source);

/* The tensors of a Hugging Face folder's safetensors files (`dir` is for messages). Checked
 * likewise. On success the source owns what `shards` holds, and *shards is emptied.
 * `source_weights` [32] gets the dtype of most weights. */
struct kvl_shards;
kvl_status kvl_source_from_shards(const char *dir, struct kvl_shards *shards,
                                  const struct kvl_config *config, char *source_weights,
                                  kvl_source *source);

#endif
