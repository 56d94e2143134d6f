/* Pairs of bf16, sixteen to a vector, for the variant avx512_bf16 (AVX512_BF16 and VBMI), beside
 * the float vectors of core/simd.h.
 *
 *   vp                       16 pairs: element 2 i in the lower half of lane i, 2 i + 1 in the
 * upper vf_dot(sum, a, b)        lane by lane sum + a.odd * b.odd, rounded, + a.even * b.even,
 * rounded. Products are exact. Unlike vf_fma it takes subnormal inputs for zeros and gives zeros
 * for subnormal sums, whatever the mode of the thread. vp_load_bf16(p, n)       the first n (0..32)
 * of 32 elements, zeros after vp_load_fp8(table, p, n, &lo, &hi)  of 64 codes; lo holds pairs 8 q +
 * i, hi pairs 8 q + 4 + i (q, i = 0..3), since bytes become words within quarters of a register
 *   vp_turn(in, out, ldo, quads)  in[r] lane 4 q + i -> out[(q * quads + i) * ldo + r]
 *   vf_parts_fp8(table, p, out)  the four vectors of vf_part_<dtype> of 64 codes, NaN included
 *   vp_load_chunk(p)         four pairs, in each of four quarters
 *   vp_quarters(in, out)     quarter i of in[r] -> quarter r of out[i]
 */
#ifndef KVL_CORE_SIMD_BF16_H
#define KVL_CORE_SIMD_BF16_H

#include "core/dtype.h"
#include "core/simd.h"

typedef __m512i vp;

static inline vf vf_dot(vf sum, vp a, vp b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

static inline vp vp_load_bf16(const uint16_t *p, int64_t n) {
    if (n >= 32) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi16((__mmask32)(((uint64_t)1 << n) - 1), p);
}

static inline __m512i vp_join(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* bf16 of `factor` times an fp8 code without its sign, looked up in bytes with the code's lower
 * seven bits. The factor, a power of two, must not lead out of bf16's normal numbers. */
typedef struct vp_fp8_table {
    __m512i low[2], high[2];
} vp_fp8_table;

static inline vp_fp8_table vp_fp8_table_of(kvl_dtype dtype, float factor) {
    uint8_t codes[16];
    uint16_t bf16[128];
    vp_fp8_table t;
    for (int i = 0; i < 128; i += KVL_VL) {
        for (int l = 0; l < KVL_VL; l++) codes[l] = (uint8_t)(i + l);
        vf x = dtype == KVL_FP8_E4M3 ? vf_load_e4m3(codes) : vf_load_e5m2(codes);
        vf_store_bf16(bf16 + i, vf_mul(x, vf_set1(factor)));
    }
    for (int half = 0; half < 2; half++) {
        __m512i a = _mm512_loadu_si512(bf16 + 64 * half);
        __m512i b = _mm512_loadu_si512(bf16 + 64 * half + 32);
        t.low[half] = vp_join(_mm512_cvtepi16_epi8(a), _mm512_cvtepi16_epi8(b));
        a = _mm512_srli_epi16(a, 8);
        b = _mm512_srli_epi16(b, 8);
        t.high[half] = vp_join(_mm512_cvtepi16_epi8(a), _mm512_cvtepi16_epi8(b));
    }
    return t;
}

static inline void vp_fp8_bytes(const vp_fp8_table *t, __m512i codes, __m512i *low, __m512i *high) {
    __m512i sign = _mm512_and_si512(codes, _mm512_set1_epi8((char)0x80));
    *low = _mm512_permutex2var_epi8(t->low[0], codes, t->low[1]);
    *high = _mm512_or_si512(_mm512_permutex2var_epi8(t->high[0], codes, t->high[1]), sign);
}

static inline void vp_load_fp8(const vp_fp8_table *t, const uint8_t *p, int64_t n, vp *lo, vp *hi) {
    __m512i low, high,
        codes =
            n >= 64 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, p);
    vp_fp8_bytes(t, codes, &low, &high);
    *lo = _mm512_unpacklo_epi8(low, high);
    *hi = _mm512_unpackhi_epi8(low, high);
}

static inline void vf_parts_fp8(const vp_fp8_table *t, const uint8_t *p, vf out[4]) {
    /* Eights of codes such that words of the lower half come out below those of the upper one. */
    __m512i eights = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), low, high;
    __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    vp_fp8_bytes(t, _mm512_permutexvar_epi64(eights, _mm512_loadu_si512(p)), &low, &high);
    __m512i lo = _mm512_unpacklo_epi8(low, high), hi = _mm512_unpackhi_epi8(low, high);
    out[0] = _mm512_castsi512_ps(_mm512_slli_epi32(lo, 16));
    out[1] = _mm512_castsi512_ps(_mm512_slli_epi32(hi, 16));
    out[2] = _mm512_castsi512_ps(_mm512_and_si512(lo, upper));
    out[3] = _mm512_castsi512_ps(_mm512_and_si512(hi, upper));
}

static inline vp vp_load_chunk(const uint32_t *p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
}

static inline void vp_quarters(const vp in[4], vp out[4]) {
    __m512i lo01 = _mm512_shuffle_i32x4(in[0], in[1], 0x44);
    __m512i hi01 = _mm512_shuffle_i32x4(in[0], in[1], 0xee);
    __m512i lo23 = _mm512_shuffle_i32x4(in[2], in[3], 0x44);
    __m512i hi23 = _mm512_shuffle_i32x4(in[2], in[3], 0xee);
    out[0] = _mm512_shuffle_i32x4(lo01, lo23, 0x88);
    out[1] = _mm512_shuffle_i32x4(lo01, lo23, 0xdd);
    out[2] = _mm512_shuffle_i32x4(hi01, hi23, 0x88);
    out[3] = _mm512_shuffle_i32x4(hi01, hi23, 0xdd);
}

static inline void vp_turn(const vp in[16], uint32_t *out, int64_t ldo, int64_t quads) {
    __m512i quad[4][4]; /* [g][i]: lanes i, 4 + i, 8 + i, 12 + i of in[4 g .. 4 g + 3] */
    for (int g = 0; g < 4; g++) {
        const vp *r = in + 4 * g;
        __m512i lo01 = _mm512_unpacklo_epi32(r[0], r[1]), hi01 = _mm512_unpackhi_epi32(r[0], r[1]);
        __m512i lo23 = _mm512_unpacklo_epi32(r[2], r[3]), hi23 = _mm512_unpackhi_epi32(r[2], r[3]);
        quad[g][0] = _mm512_unpacklo_epi64(lo01, lo23);
        quad[g][1] = _mm512_unpackhi_epi64(lo01, lo23);
        quad[g][2] = _mm512_unpacklo_epi64(hi01, hi23);
        quad[g][3] = _mm512_unpackhi_epi64(hi01, hi23);
    }
    for (int i = 0; i < 4; i++) {
        /* Quarters 0 and 2, then 1 and 3, of the four groups of rows. */
        __m512i even01 = _mm512_shuffle_i32x4(quad[0][i], quad[1][i], 0x88);
        __m512i even23 = _mm512_shuffle_i32x4(quad[2][i], quad[3][i], 0x88);
        __m512i odd01 = _mm512_shuffle_i32x4(quad[0][i], quad[1][i], 0xdd);
        __m512i odd23 = _mm512_shuffle_i32x4(quad[2][i], quad[3][i], 0xdd);
        _mm512_storeu_si512(out + i * ldo, _mm512_shuffle_i32x4(even01, even23, 0x88));
        _mm512_storeu_si512(out + (quads + i) * ldo, _mm512_shuffle_i32x4(odd01, odd23, 0x88));
        _mm512_storeu_si512(out + (2 * quads + i) * ldo,
                            _mm512_shuffle_i32x4(even01, even23, 0xdd));
        _mm512_storeu_si512(out + (3 * quads + i) * ldo, _mm512_shuffle_i32x4(odd01, odd23, 0xdd));
    }
}

#endif
