/* Static scales of a KV cache, from a calibration pass: the largest |K| and |V| of each layer and
 * KV head over a text. A format's scale is that over its largest value, for a head or, the largest
 * of all heads, for the tensor.
 *
 * `kvlab quantize --kv-scales TEXT` keeps them where other systems and this one look:
 *   FOLDER/kv_scales.json           all heads; beside a GGUF file: FILE.kv_scales.json
 *   model.layers.N.self_attn.k_scale, .v_scale
 *                                   float32 [1] among a folder's tensors, for e4m3 and one a
 *                                   tensor, as vLLM and compressed-tensors read and write them
 * A folder with the tensors alone has no scales per head. */
#ifndef KVL_DECODER_KV_SCALES_H
#define KVL_DECODER_KV_SCALES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/dtype.h"
#include "decoder/config.h"

typedef struct kvl_kv_scales {
    int32_t n_layers, n_kv_heads;
    float *k_absmax, *v_absmax; /* [n_layers][n_kv_heads], finite, above 0 or 0 for all zeros */
    bool per_head;
    char source[160]; /* "kv_scales.json" or "k_scale tensors" */
} kvl_kv_scales;

/* Zeroed arrays for `config`. */
kvl_status kvl_kv_scales_create(const kvl_config *config, kvl_kv_scales **out);
void kvl_kv_scales_free(kvl_kv_scales *scales);

/* out[layer][head] = scale of `dtype` for K or V, per head or (the same for all heads) tensor. */
void kvl_kv_scales_of(const kvl_kv_scales *scales, kvl_dtype dtype, bool is_v, bool per_head,
                      float *out);

/* The file that goes with a model: *out NULL when there is none. KVL_ERR_INPUT: it does not fit the
 * model, or is no such file. `spec` as kvl_model_open takes it. */
kvl_status kvl_kv_scales_load(const char *spec, const kvl_config *config, kvl_kv_scales **out);

/* The same from a folder's k_scale and v_scale tensors; *out NULL when there are none. */
struct kvl_shards;
kvl_status kvl_kv_scales_from_shards(const char *dir, const struct kvl_shards *shards,
                                     const kvl_config *config, kvl_kv_scales **out);

/* Writes the file, complete or not at all; `text` and `n_tokens` say what it was made from. */
kvl_status kvl_kv_scales_write(const char *path, const kvl_kv_scales *scales, const char *text,
                               int64_t n_tokens);

/* Name of the file beside a model, malloc'ed; NULL for one that has no place (synthetic). */
char *kvl_kv_scales_path(const char *spec);

/* "model.layers.3.self_attn.v_scale" and the like: layer (below n_layers) and which; else false. */
bool kvl_kv_scale_tensor(const char *name, int32_t n_layers, int32_t *layer, bool *is_v);

#endif
