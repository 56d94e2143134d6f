/* core/simd.h for any CPU: compiler vectors of four floats, conversions in plain C. */
#ifndef KVL_CORE_SIMD_SCALAR_H
#define KVL_CORE_SIMD_SCALAR_H

enum { KVL_VL = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t kvl_vi __attribute__((vector_size(16)));

static inline vf vf_set1(float x) {
    return (vf){x, x, x, x};
}
static inline vf vf_zero(void) {
    return vf_set1(0.0f);
}
static inline vf vf_load_f32(const float *p) {
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline void vf_store(float *p, vf x) {
    memcpy(p, &x, sizeof x);
}
static inline vf vf_add(vf a, vf b) {
    return a + b;
}
static inline vf vf_sub(vf a, vf b) {
    return a - b;
}
static inline vf vf_mul(vf a, vf b) {
    return a * b;
}
static inline vf vf_div(vf a, vf b) {
    return a / b;
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return a * b + c;
}
static inline void vf_fma_to(vf *sum, vf a, vf b) {
    *sum = vf_fma(a, b, *sum);
}
static inline void vf_fma_from(vf *sum, vf a, const float *b) {
    *sum = vf_fma(a, vf_load_f32(b), *sum);
}
static inline vf kvl_blend(kvl_vi mask, vf yes, vf no) {
    return (vf)(((kvl_vi)yes & mask) | ((kvl_vi)no & ~mask));
}
/* As the x86 instructions: the second operand where either is NaN. */
static inline vf vf_max(vf a, vf b) {
    return kvl_blend(a > b, a, b);
}
static inline vf vf_min(vf a, vf b) {
    return kvl_blend(a < b, a, b);
}
/* Nearest even, for |x| < 2^22. */
static inline vf vf_round(vf x) {
    vf magic = vf_set1(12582912.0f);
    return (x + magic) - magic;
}
/* 2^n for integral n in [-126, 127]. */
static inline vf vf_pow2(vf n) {
    kvl_vi i = __builtin_convertvector(n, kvl_vi);
    return (vf)((i + 127) << 23);
}
static inline vf vf_zero_below(vf y, vf x, vf limit) {
    return (vf)((kvl_vi)y & ~(kvl_vi)(x < limit));
}
/* Lane by lane: x < limit ? yes : no (NaN is not below). */
static inline vf vf_select_below(vf x, vf limit, vf yes, vf no) {
    return kvl_blend(x < limit, yes, no);
}
static inline vf vf_keep_nan(vf x, vf y) {
    return kvl_blend(x != x, x, y);
}
static inline float vf_hsum(vf x) {
    return (x[0] + x[2]) + (x[1] + x[3]);
}
/* out[0..3] = vf_hsum of a, b, c, d. */
static inline void vf_hsum4(float *out, vf a, vf b, vf c, vf d) {
    out[0] = vf_hsum(a), out[1] = vf_hsum(b), out[2] = vf_hsum(c), out[3] = vf_hsum(d);
}
/* out[i * ld + b] = vf_hsum of x[i][b] for four rows of two. */
static inline void vf_hsum4x2(float *out, int64_t ld, vf x[4][2]) {
    for (int i = 0; i < 4; i += 2) {
        float sums[4];
        vf_hsum4(sums, x[i][0], x[i][1], x[i + 1][0], x[i + 1][1]);
        memcpy(out + i * ld, sums, 2 * sizeof(float));
        memcpy(out + (i + 1) * ld, sums + 2, 2 * sizeof(float));
    }
}
static inline float vf_hmax(vf x) {
    float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
    return a > b ? a : b;
}

static inline float kvl_bits_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline float kvl_scalar_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return kvl_bits_f32(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    /* Exponent bias 15 -> 127 by a multiplication, which also makes subnormals right. */
    return kvl_bits_f32(sign | rest << 13) * 0x1p112f;
}
static inline float kvl_scalar_e4m3(uint8_t c) {
    uint32_t sign = (uint32_t)(c & 0x80) << 24, rest = c & 0x7f;
    if (rest == 0x7f) return kvl_bits_f32(sign | 0x7fc00000);
    return kvl_bits_f32(sign | rest << 20) * 0x1p120f;
}
static inline vf vf_load_bf16(const uint16_t *p) {
    return (vf){kvl_bits_f32((uint32_t)p[0] << 16), kvl_bits_f32((uint32_t)p[1] << 16),
                kvl_bits_f32((uint32_t)p[2] << 16), kvl_bits_f32((uint32_t)p[3] << 16)};
}
static inline vf vf_load_bf16_even(const uint16_t *p) {
    return vf_load_bf16((const uint16_t[4]){p[0], p[2], p[4], p[6]});
}
static inline vf vf_load_bf16_odd(const uint16_t *p) {
    return vf_load_bf16((const uint16_t[4]){p[1], p[3], p[5], p[7]});
}
static inline vf vf_load_f16(const uint16_t *p) {
    return (vf){kvl_scalar_f16(p[0]), kvl_scalar_f16(p[1]), kvl_scalar_f16(p[2]),
                kvl_scalar_f16(p[3])};
}
static inline vf vf_load_e4m3(const uint8_t *p) {
    return (vf){kvl_scalar_e4m3(p[0]), kvl_scalar_e4m3(p[1]), kvl_scalar_e4m3(p[2]),
                kvl_scalar_e4m3(p[3])};
}
static inline vf vf_load_e5m2(const uint8_t *p) {
    uint16_t h[4] = {(uint16_t)(p[0] << 8), (uint16_t)(p[1] << 8), (uint16_t)(p[2] << 8),
                     (uint16_t)(p[3] << 8)};
    return vf_load_f16(h);
}
static inline vf vf_load_i8(const int8_t *p) {
    return (vf){(float)p[0], (float)p[1], (float)p[2], (float)p[3]};
}
/* Rounds to bf16 (nearest even, NaN stays NaN) and stores KVL_VL codes. */
static inline void vf_store_bf16(uint16_t *p, vf x) {
    for (int i = 0; i < 4; i++) {
        uint32_t bits;
        float value = x[i];
        memcpy(&bits, &value, sizeof bits);
        p[i] = value != value ? (uint16_t)(bits >> 16 | 0x40)
                              : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

/* Nearest even; overflow gives inf, NaN stays NaN. */
static inline uint16_t kvl_scalar_to_f16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000) { /* below 2^-14: adding 0.5 leaves the code in the low bits, rounded */
        float sum = kvl_bits_f32(rest) + 0.5f;
        memcpy(&bits, &sum, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    return (uint16_t)(sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13));
}
/* Rounds to f16 (nearest even; overflow gives inf) and stores KVL_VL codes. */
static inline void vf_store_f16(uint16_t *p, vf x) {
    for (int i = 0; i < 4; i++) p[i] = kvl_scalar_to_f16(x[i]);
}

static inline vf vf_part_bf16(const uint16_t *p, int which) {
    uint16_t codes[4] = {p[which], p[which + 2], p[which + 4], p[which + 6]};
    return vf_load_bf16(codes);
}
static inline vf vf_part_e5m2(const uint8_t *p, int which) {
    const uint8_t *c = p + (which & 1) * 8 + which / 2;
    uint8_t codes[4] = {c[0], c[2], c[4], c[6]};
    return vf_load_e5m2(codes);
}
static inline vf vf_part_e4m3(const uint8_t *p, int which) {
    const uint8_t *c = p + (which & 1) * 8 + which / 2;
    uint16_t h[4];
    for (int i = 0; i < 4; i++) h[i] = (uint16_t)((c[2 * i] & 0x80) << 8 | (c[2 * i] & 0x7f) << 7);
    return vf_load_f16(h);
}
/* Whether one of `n` codes (a multiple of 4 * KVL_VL) of any of the rows is NaN. */
static inline int vf_nan_e4m3(const void *const *rows, int n_rows, int64_t n) {
    for (int r = 0; r < n_rows; r++) {
        const uint8_t *codes = rows[r];
        for (int64_t i = 0; i < n; i++) {
            if ((codes[i] & 0x7f) == 0x7f) return 1;
        }
    }
    return 0;
}
static inline void vf_transpose(const float *in, int64_t ldi, float *out, int64_t ldo) {
    for (int r = 0; r < 4; r++) {
        for (int c = 0; c < 4; c++) out[c * ldo + r] = in[r * ldi + c];
    }
}

#endif
