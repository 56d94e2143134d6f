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

/* "bf16": both, "fp8_e4m3:bf16": K and V. KVL_ERR_INPUT names the part that is unknown. */
kvl_status kvl_kv_pair_parse(const char *text, kvl_dtype *k, kvl_dtype *v);
/* The shortest spelling of a pair; `out` of KVL_KV_PAIR_BYTES. */
enum { KVL_KV_PAIR_BYTES = 24 };
void kvl_kv_pair_name(kvl_dtype k, kvl_dtype v, char out[KVL_KV_PAIR_BYTES]);

/* Where the scales of K or of V come from (core/kv_view.h says what each is for kernels). */
typedef enum kvl_kv_scale {
    KVL_SCALE_AUTO,   /* what the format has by itself: int8 token, the others one */
    KVL_SCALE_ONE,    /* 1.0 */
    KVL_SCALE_TENSOR, /* static, of a calibration pass: one a layer */
    KVL_SCALE_HEAD,   /* static, one a layer and KV head */
    KVL_SCALE_PAGE,   /* dynamic: page_tokens tokens of a KV head */
    KVL_SCALE_TOKEN,  /* dynamic: each token of a KV head */
    KVL_N_SCALES
} kvl_kv_scale;
const char *kvl_kv_scale_name(kvl_kv_scale scale);
kvl_status kvl_kv_scale_parse(const char *name, kvl_kv_scale *out);

/* What `wanted` means for a pair of formats. KVL_ERR_UNSUPPORTED: it means nothing, since f32 and
 * bf16 have the range of float32, and int8 is nothing without a scale and cannot share one that
 * grows. A half of a pair that needs none has `one`, and int8 under `page` has `token`. */
kvl_status kvl_kv_scale_resolve(kvl_kv_scale wanted, kvl_dtype k_dtype, kvl_dtype v_dtype,
                                kvl_kv_scale *k, kvl_kv_scale *v);
/* Tokens that share a scale, for kvl_kv_view; 0: static or none. */
int64_t kvl_kv_scale_tokens(kvl_kv_scale scale, int64_t page_tokens);

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
