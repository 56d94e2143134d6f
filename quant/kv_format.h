/* KV formats: how K and V elements are stored. encode/decode here are the definition; kernels that
 * widen in registers are checked against them.
 *
 * All round to nearest even. f16 overflows to inf (counted). fp8 saturates: |x| above the largest
 * finite value, and inf, become that value with x's sign (counted); NaN stays NaN. int8 rounds to
 * -127..127 of a scale and saturates likewise; it has no NaN, which becomes 0 (counted).
 * Source: OCP 8-bit Floating Point Specification 1.0; IEEE 754-2019. */
#ifndef KVL_QUANT_KV_FORMAT_H
#define KVL_QUANT_KV_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"

typedef struct kvl_kv_format {
    const char *name; /* = kvl_dtype_name(dtype) */
    kvl_dtype dtype;
    float max_finite;
    double half_ulp;  /* relative rounding error bound for normal values: 2^-(mantissa bits + 1) */
    double abs_error; /* absolute bound in the subnormal range: half the smallest subnormal */
    /* dst[n] = stored codes of src[n] / scale. Returns how many values saturated or overflowed. */
    int64_t (*encode)(const float *src, int64_t n, float scale, void *dst);
    /* dst[n] = value of codes * scale. */
    void (*decode)(const void *src, int64_t n, float scale, float *dst);
} kvl_kv_format;

size_t kvl_kv_format_count(void);
const kvl_kv_format *kvl_kv_format_at(size_t index);
const kvl_kv_format *kvl_kv_format_of(kvl_dtype dtype); /* NULL for a dtype no KV cache has */
kvl_status kvl_kv_format_find(const char *name, const kvl_kv_format **out);

/* Scalar conversions, exact for every input; inline users are in quant/convert.h. */
uint16_t kvl_f32_to_f16(float x);
float kvl_f16_to_f32(uint16_t code);
uint16_t kvl_f32_to_bf16(float x); /* NaN stays NaN (quiet) */
float kvl_bf16_to_f32(uint16_t code);
uint8_t kvl_f32_to_e4m3(float x);
float kvl_e4m3_to_f32(uint8_t code);
uint8_t kvl_f32_to_e5m2(float x);
float kvl_e5m2_to_f32(uint8_t code);
int8_t kvl_f32_to_int8(float x);

/* Bulk conversion between f32 and any kv dtype, vectorised for the current isa; scale as above.
 * Bit-identical to encode/decode. Returns the saturation count. */
int64_t kvl_encode(kvl_dtype dtype, const float *src, int64_t n, float scale, void *dst);
void kvl_decode(kvl_dtype dtype, const void *src, int64_t n, float scale, float *dst);

#endif
