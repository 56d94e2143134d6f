/* Which tensors a configuration asks for: names here and in GGUF files, and shapes. One list serves
 * all sources, so that what is loaded, checked and counted is the same. */
#ifndef KVL_DECODER_TENSOR_SPEC_H
#define KVL_DECODER_TENSOR_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decoder/config.h"

typedef enum kvl_tensor_kind {
    KVL_TENSOR_MATRIX = 0,
    KVL_TENSOR_NORM,
    KVL_TENSOR_BIAS,
} kvl_tensor_kind;

typedef struct kvl_tensor_spec {
    char name[80];      /* as decoder/source.h says */
    char gguf_name[64]; /* "blk.0.attn_q.weight" */
    int64_t rows, cols; /* vectors: cols = 1 */
    kvl_tensor_kind kind;
    int32_t permuted_heads; /* heads whose rows llama-architecture GGUF files interleave; or 0 */
} kvl_tensor_spec;

size_t kvl_tensor_spec_count(const kvl_config *config);
/* The index-th tensor: embedding, layers in order, final norm, lm_head unless tied. */
void kvl_tensor_spec_at(const kvl_config *config, size_t index, kvl_tensor_spec *out);

/* True when `list` ("lm_head,o_proj,layers.0": runs of whole name parts, commas between) has one
 * that stands in `name` ("model.layers.0.self_attn.o_proj.weight"). */
bool kvl_tensor_listed(const char *list, const char *name);

/* Whether each name of a list a user gave stands in a tensor of the model, or is "lm_head" (which a
 * tied model has too) or "none": a name that selects nothing is a slip. KVL_ERR_INPUT
 * names it. */
kvl_status kvl_tensor_list_check(const char *label, const kvl_config *config, const char *list);

#endif
