/* Tensors that bitsandbytes quantised to 4 bits, as Transformers saves them in safetensors files.
 *
 * Beside a tensor W ("...q_proj.weight", its packed codes in any dtype of quant_storage) stand
 * W.absmax (float32, or uint8 when double quantised), W.quant_map (the 16 values),
 * W.nested_absmax and W.nested_quant_map when double quantised, and
 * W.quant_state.bitsandbytes__nf4 (or __fp4): JSON text as bytes, with quant_type, blocksize,
 * dtype, shape and nested_{blocksize, dtype, offset}.
 * Source: bitsandbytes 0.50, functional.QuantState; the numbers are quant/nf4.h's. */
#ifndef KVL_DECODER_BNB_H
#define KVL_DECODER_BNB_H

#include <stdbool.h>
#include <stdint.h>

#include "decoder/shards.h"
#include "quant/nf4.h"

/* True when the tensor `name` has a quantisation state beside it. */
bool kvl_bnb_is_quantised(const kvl_shards *shards, const char *name);

/* When `name` is a part of another tensor's state, how many bytes of it that tensor's name is; 0
 * for any other name. */
size_t kvl_bnb_state_of(const char *name);

/* Reads and checks the state of `name`, which the model wants as [rows, cols]. *out points into
 * the mapping but for absmax, float32 and malloc'ed: the caller frees it. `dir` opens messages;
 * KVL_ERR_INPUT names the part, its value and the one expected: sizes that do not fit, block sizes
 * that are no power of two, maps that are not the definition's (the nested map may be off by its
 * last bits, as other torch versions make it; its own values are used then). */
kvl_status kvl_bnb_open(const char *dir, const kvl_shards *shards, const char *name, int64_t rows,
                        int64_t cols, kvl_nf4_tensor *out);

#endif
