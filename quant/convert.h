/* Conversions between float32 and the narrow KV formats, as branch-free integer arithmetic:
 * the same lines serve one value (quant/kv_format.c) and vectors (quant/convert.c, built once an
 * isa).
 *
 * Encoding rounds to nearest even. With `shift` mantissa bits to drop, a normal result is
 * (bits + half - 1 + lowest kept bit) >> shift, its exponent re-biased. A subnormal result is a
 * multiple of the format's smallest value u: adding 2^23 u to |x| makes the float adder round to
 * such a multiple, and leaves the code in the low mantissa bits.
 * Sources: OCP 8-bit Floating Point Specification 1.0, tables 1 and 2; IEEE 754-2019.
 */
#ifndef KVL_QUANT_CONVERT_H
#define KVL_QUANT_CONVERT_H

#include <stdint.h>
#include <string.h>

/* Float32 bit patterns of magnitudes. */
#define KVL_BITS_INF 0x7f800000u
#define KVL_BITS_65504 0x477fe000u     /* largest finite f16 */
#define KVL_BITS_65520 0x477ff000u     /* from here f16 rounds to infinity */
#define KVL_BITS_448 0x43e00000u       /* largest e4m3 */
#define KVL_BITS_57344 0x47600000u     /* largest finite e5m2 */
#define KVL_BITS_127_5 0x42ff0000u     /* from here int8 would round to 128 */
#define KVL_BITS_2_M14 0x38800000u     /* smallest normal f16 and e5m2, 2^-14 */
#define KVL_BITS_2_M6 0x3c800000u      /* smallest normal e4m3, 2^-6 */
#define KVL_BITS_BF16_OVER 0x7f7f8000u /* from here bf16 rounds to infinity */

static inline uint32_t kvl_as_u32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float kvl_as_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
/* `yes` where the condition (0 or 1) holds; spelled with masks so that no compiler branches. */
static inline uint32_t kvl_pick(uint32_t condition, uint32_t yes, uint32_t no) {
    uint32_t mask = 0u - condition;
    return (yes & mask) | (no & ~mask);
}

/* Codes of a magnitude that is in range (no NaN), without sign. */
static inline uint32_t kvl_round_magnitude(uint32_t a, uint32_t shift, uint32_t bias_difference,
                                           uint32_t smallest_normal, float magic) {
    uint32_t half = (1u << (shift - 1)) - 1, odd = a >> shift & 1;
    uint32_t normal = ((a + half + odd) >> shift) - (bias_difference << (23 - shift));
    uint32_t tiny = kvl_as_u32(kvl_as_f32(a) + magic) - kvl_as_u32(magic);
    return kvl_pick(a < smallest_normal, tiny, normal);
}

static inline uint16_t kvl_enc_f16(float x) {
    uint32_t bits = kvl_as_u32(x), a = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    uint32_t nan = 0x7e00 | (a >> 13 & 0x3ff);
    uint32_t finite = kvl_pick(a < KVL_BITS_65520, a, 0); /* keeps the adder below infinity */
    uint32_t code = kvl_round_magnitude(finite, 13, 112, KVL_BITS_2_M14, 0.5f);
    code = kvl_pick(a >= KVL_BITS_65520, 0x7c00, code);
    return (uint16_t)(sign | kvl_pick(a > KVL_BITS_INF, nan, code));
}
static inline uint16_t kvl_enc_bf16(float x) {
    uint32_t bits = kvl_as_u32(x), a = bits & 0x7fffffff;
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)kvl_pick(a > KVL_BITS_INF, bits >> 16 | 0x40, rounded);
}
static inline uint8_t kvl_enc_e4m3(float x) {
    uint32_t bits = kvl_as_u32(x), a = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
    uint32_t kept = kvl_pick(a > KVL_BITS_448, KVL_BITS_448, a);
    uint32_t code = kvl_round_magnitude(kept, 20, 120, KVL_BITS_2_M6, 0x1p14f);
    return (uint8_t)(sign | kvl_pick(a > KVL_BITS_INF, 0x7f, code));
}
static inline uint8_t kvl_enc_e5m2(float x) {
    uint32_t bits = kvl_as_u32(x), a = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
    uint32_t kept = kvl_pick(a > KVL_BITS_57344, KVL_BITS_57344, a);
    uint32_t code = kvl_round_magnitude(kept, 21, 112, KVL_BITS_2_M14, 0x1p7f);
    return (uint8_t)(sign | kvl_pick(a > KVL_BITS_INF, 0x7f, code));
}

/* Nearest even integer, -127 to 127. Integers have no NaN: it becomes 0, and is counted below. */
static inline int8_t kvl_enc_int8(float x) {
    uint32_t bits = kvl_as_u32(x), a = bits & 0x7fffffff;
    uint32_t kept = kvl_pick(a >= KVL_BITS_127_5, 0x42fe0000u /* 127 */, a);
    int32_t n = (int32_t)(kvl_as_u32(kvl_as_f32(kept) + 0x1p23f) & 0xff);
    n = (int32_t)kvl_pick(a > KVL_BITS_INF, 0, (uint32_t)n);
    return (int8_t)((bits >> 31) ? -n : n);
}

/* 1 where encoding saturates (fp8, int8) or turns a finite value into infinity (f16, bf16). */
static inline uint32_t kvl_over_f16(float x) {
    uint32_t a = kvl_as_u32(x) & 0x7fffffff;
    return (uint32_t)(a >= KVL_BITS_65520) & (uint32_t)(a < KVL_BITS_INF);
}
static inline uint32_t kvl_over_bf16(float x) {
    uint32_t a = kvl_as_u32(x) & 0x7fffffff;
    return (uint32_t)(a >= KVL_BITS_BF16_OVER) & (uint32_t)(a < KVL_BITS_INF);
}
static inline uint32_t kvl_over_e4m3(float x) {
    uint32_t a = kvl_as_u32(x) & 0x7fffffff;
    return (uint32_t)(a > KVL_BITS_448) & (uint32_t)(a <= KVL_BITS_INF);
}
static inline uint32_t kvl_over_e5m2(float x) {
    uint32_t a = kvl_as_u32(x) & 0x7fffffff;
    return (uint32_t)(a > KVL_BITS_57344) & (uint32_t)(a <= KVL_BITS_INF);
}

static inline uint32_t kvl_over_int8(float x) {
    uint32_t a = kvl_as_u32(x) & 0x7fffffff;
    return (uint32_t)(a >= KVL_BITS_127_5);
}

/* Decoding: exponent and mantissa go to their places, and a multiplication by a power of two moves
 * the bias, which also makes subnormals right. NaN comes out quiet, sign and payload kept. */
static inline float kvl_dec_f16(uint16_t code) {
    uint32_t sign = (uint32_t)(code & 0x8000) << 16, rest = (uint32_t)(code & 0x7fff) << 13;
    uint32_t finite = kvl_as_u32(kvl_as_f32(rest) * 0x1p112f);
    uint32_t special = (rest + (224u << 23)) | (uint32_t)(rest > 0x0f800000) << 22;
    return kvl_as_f32(sign | kvl_pick(rest >= 0x0f800000, special, finite));
}
static inline float kvl_dec_bf16(uint16_t code) {
    uint32_t quiet = (uint32_t)((code & 0x7fff) > 0x7f80) << 22;
    return kvl_as_f32((uint32_t)code << 16 | quiet);
}
static inline float kvl_dec_e4m3(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80) << 24, rest = code & 0x7f;
    uint32_t finite = kvl_as_u32(kvl_as_f32(rest << 20) * 0x1p120f);
    return kvl_as_f32(sign | kvl_pick(rest == 0x7f, 0x7fc00000, finite));
}
static inline float kvl_dec_e5m2(uint8_t code) {
    return kvl_dec_f16((uint16_t)(code << 8)); /* e5m2 is the upper byte of an f16 */
}
static inline float kvl_dec_int8(int8_t code) {
    return (float)code;
}

#endif
