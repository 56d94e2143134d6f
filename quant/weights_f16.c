/* Weights as IEEE 754 binary16, widened by the F16C instruction. A weight above 65,504 is refused:
 * it would become infinity. */
#define W_NAME f16
#define W_TYPE uint16_t
#define W_DTYPE KVL_F16
#define W_PAIRS 0
#include "quant/linear_weights.h"

#include "quant/linear_stream.h"

const kvl_weight_codec KVL_ISA_FN(kvl_weights_f16) = {
    .format = {.name = "f16",
               .summary = "16 bits, up to 65504, 11 bits of precision",
               .dtype = KVL_F16,
               .bits_per_weight = 16},
    .panel = KVL_PANEL,
    .k_bytes = W_K_BYTES,
    .panel_bytes = panel_bytes,
    .encode = encode,
    .decode_row = decode_row,
    .decode_tile = decode_tile,
    .stream = stream,
};
