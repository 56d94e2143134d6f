/* NF4 and FP4 as bitsandbytes defines them: what a code means and which code a weight gets.
 *
 * A tensor is flattened ([n_out][n_in], row-major) and cut into blocks of `block` weights (a power
 * of two, 32 to 4096; the last may be short). A block has one float32 absmax = max |w|; a weight is
 * a code c of 4 bits with the value map[c] * absmax, rounded once to float32. Two codes a byte, the
 * first in the high nibble; an odd count ends with the code of 0.
 *
 * Encoding: s = w * (1 / max(absmax, 1e-38)) in float32, and in the short last block s = w / absmax
 * (absmax itself raised to 1e-38 there); c is the code of the nearest value, a tie goes to the
 * lower value. So a block of zeros holds the code of 0.
 *
 * Double quantisation stores absmax as 8 bits: offset = mean of all absmax; d = absmax - offset in
 * blocks of 256 with a scale max |d| each and a code of the dynamic 8-bit map; absmax' =
 * map[code] * scale + offset, rounded after each step. The 4-bit codes were chosen with the exact
 * absmax before.
 *
 * Sources: Dettmers et al., "QLoRA" (2023), section 3, and "8-bit Optimizers via Block-wise
 * Quantization" (2022) for the dynamic map; bitsandbytes 0.50 for constants and rounding. */
#ifndef KVL_QUANT_NF4_H
#define KVL_QUANT_NF4_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef enum kvl_nf4_type { KVL_NF4 = 0, KVL_FP4 } kvl_nf4_type;

enum {
    KVL_NF4_MIN_BLOCK = 32,
    KVL_NF4_BLOCK = 64, /* the default */
    KVL_NF4_MAX_BLOCK = 4096,
    KVL_NF4_NESTED_BLOCK = 256, /* absmax values that share a scale in double quantisation */
};

const char *kvl_nf4_type_name(kvl_nf4_type type); /* "nf4", "fp4" */

/* The value of each code, [16]. */
const float *kvl_nf4_map(kvl_nf4_type type);
/* The value of each 8-bit code of double quantisation, [256] ascending. */
const float *kvl_nf4_dynamic_map(void);

/* KVL_ERR_INPUT "<what> N: ..." unless `block` is a power of two from 32 to 4096. */
kvl_status kvl_nf4_check_block(const char *what, int64_t block);
/* Blocks of n weights. */
int64_t kvl_nf4_blocks(int64_t n, int64_t block);

/* Codes of w[n], one a byte in codes[n], and absmax [kvl_nf4_blocks]. w[0] begins a block; the last
 * block is short when n is no multiple of `block`, and is then taken as the tensor's last. Returns
 * the index of the first block with a NaN or infinity in it, whose values are lost, or -1. */
int64_t kvl_nf4_encode(kvl_nf4_type type, int64_t block, const float *w, int64_t n, uint8_t *codes,
                       float *absmax);
/* Index of the first NaN or infinity of x[n], or -1. */
int64_t kvl_nf4_find_nonfinite(const float *x, int64_t n);

/* codes[n] to packed[(n + 1) / 2], and back. `first` (even or odd) counts from packed[0]. */
void kvl_nf4_pack(kvl_nf4_type type, const uint8_t *codes, int64_t n, uint8_t *packed);
void kvl_nf4_unpack(const uint8_t *packed, int64_t first, int64_t n, uint8_t *codes);
/* Values first .. first + n of a tensor. */
void kvl_nf4_decode(kvl_nf4_type type, int64_t block, const uint8_t *packed, const float *absmax,
                    int64_t first, int64_t n, float *out);

/* absmax[n] to 8-bit codes [n], scales [kvl_nf4_blocks(n, 256)] and *offset. The mean is summed as
 * torch does on AVX2 with one thread: eight lanes, four accumulators, cascaded. */
void kvl_nf4_nest(const float *absmax, int64_t n, uint8_t *codes, float *scales, float *offset);
/* Back to float32, by a map of 256 values (kvl_nf4_dynamic_map, or a file's). */
void kvl_nf4_unnest(const uint8_t *codes, int64_t n, const float *scales, int64_t nested_block,
                    float offset, const float *map, float *absmax);

/* A quantised tensor; host. */
typedef struct kvl_nf4_tensor {
    kvl_nf4_type type;
    int64_t n_elems, block;
    const uint8_t *packed; /* [(n_elems + 1) / 2] */
    const float *absmax;   /* [kvl_nf4_blocks(n_elems, block)] */
    bool nested;           /* absmax went through 8 bits */
} kvl_nf4_tensor;

#endif
