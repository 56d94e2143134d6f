/* Weights as bfloat16: float32 without its lower 16 bits, widened by a shift or a mask. */
#define W_NAME bf16
#define W_TYPE uint16_t
#define W_DTYPE KVL_BF16
#define W_PAIRS 1
#include "quant/linear_weights.h"

#include "quant/linear_stream.h"
#include "quant/linear_tile.h"
#include "quant/matrix_bf16.h"

const kvl_weight_codec KVL_ISA_FN(kvl_weights_bf16) = {
    .format = {.name = "bf16",
               .summary = "16 bits, range of float32, 8 bits of precision",
               .dtype = KVL_BF16,
               .bits_per_weight = 16},
    .panel = KVL_PANEL,
    .k_bytes = W_K_BYTES,
    .panel_bytes = panel_bytes,
    .encode = encode,
    .decode_row = decode_row,
    .decode_tile = decode_tile,
    .stream = stream,
    .tile = tile,
    KVL_MATRIX_BF16,
};
