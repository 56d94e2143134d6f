/* Kernels of bf16 weights on the CPU's bf16 matrix instructions, and what weights_bf16.c says of
 * them in its codec: nothing below AVX512_BF16. Both read panels as they are stored, pairs of k
 * side by side, and treat subnormal weights, x and products as zero, as the instructions do. */
#ifndef KVL_QUANT_MATRIX_BF16_H
#define KVL_QUANT_MATRIX_BF16_H

#include "core/simd.h"
#include "quant/linear_internal.h"

/* From this row count on a product is worth it; fewer rows are bound by reading the weights. */
enum { KVL_MATRIX_BF16_ROWS = KVL_STREAM_ROWS + 1 };

void KVL_ISA_FN(kvl_matrix_bf16)(const kvl_matrix_job *job);

#if defined(KVL_ISA_IS_amx)
enum {
    KVL_MATRIX_BLOCK_ROWS = 256, /* x PIECE_K bf16 of x: half of a 2 MiB L2 */
    KVL_MATRIX_PIECE_K = 2048,
    KVL_MATRIX_GROUP_PANELS = 8,
    KVL_MATRIX_TAIL_BYTES = 2048, /* the last, partial tile of weights, filled up with zeros */
};
#define KVL_MATRIX_BF16 \
    .matrix = KVL_ISA_FN(kvl_matrix_bf16), .matrix_kernel = "matrix/amx", \
    .matrix_rows = KVL_MATRIX_BF16_ROWS, \
    .matrix_scratch_bytes = KVL_MATRIX_TAIL_BYTES + sizeof(float) * KVL_MATRIX_GROUP_PANELS * \
                                                        KVL_MATRIX_BLOCK_ROWS * 2 * KVL_VL
#elif defined(KVL_ISA_IS_avx512_bf16)
#define KVL_MATRIX_BF16 \
    .matrix = KVL_ISA_FN(kvl_matrix_bf16), .matrix_kernel = "matrix/avx512_bf16", \
    .matrix_rows = KVL_MATRIX_BF16_ROWS
#else
#define KVL_MATRIX_BF16 .matrix = NULL
#endif

#endif
