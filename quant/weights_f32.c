/* Weights as float32, used where they lie. */
#define W_NAME f32
#define W_TYPE float
#define W_DTYPE KVL_F32
#define W_PAIRS 0
#include "quant/linear_weights.h"

#include "quant/linear_stream.h"

const kvl_weight_codec KVL_ISA_FN(kvl_weights_f32) = {
    .format = {.name = "f32",
               .summary = "32 bits, as computed with",
               .dtype = KVL_F32,
               .bits_per_weight = 32},
    .panel = KVL_PANEL,
    .k_bytes = W_K_BYTES,
    .panel_bytes = panel_bytes,
    .encode = encode,
    .decode_row = decode_row,
    .decode_tile = decode_tile,
    .stream = stream,
};
