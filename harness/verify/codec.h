/* Number formats by their definition, in float64: the oracle's own, independent of quant/.
 * Source: IEEE 754-2019; OCP 8-bit Floating Point Specification 1.0. */
#ifndef KVL_HARNESS_VERIFY_CODEC_H
#define KVL_HARNESS_VERIFY_CODEC_H

#include <stdint.h>

#include "core/dtype.h"

/* Value of a code of f32, f16, bf16, fp8_e4m3, fp8_e5m2 or int8. */
double kvl_verify_value(kvl_dtype dtype, uint32_t code);

/* Nearest code, ties to even. fp8 and int8 saturate, the others overflow to infinity; NaN gives
 * a quiet NaN, in int8 0. */
uint32_t kvl_verify_code(kvl_dtype dtype, double x);

/* x rounded to `dtype`; f64 keeps it. */
double kvl_verify_round(kvl_dtype dtype, double x);

double kvl_verify_max_finite(kvl_dtype dtype);

/* Code number `index` of an array of codes in host memory (little-endian, as stored). */
uint32_t kvl_verify_code_at(kvl_dtype dtype, const void *codes, int64_t index);
void kvl_verify_code_put(kvl_dtype dtype, void *codes, int64_t index, uint32_t code);
static inline double kvl_verify_value_at(kvl_dtype dtype, const void *codes, int64_t index) {
    return kvl_verify_value(dtype, kvl_verify_code_at(dtype, codes, index));
}

#endif
