/* core/simd.h for AVX-512 F, BW, VL, DQ: sixteen floats. */
#ifndef KVL_CORE_SIMD_AVX512_H
#define KVL_CORE_SIMD_AVX512_H

#include <immintrin.h>

enum { KVL_VL = 16 };
typedef __m512 vf;

static inline vf vf_set1(float x) {
    return _mm512_set1_ps(x);
}
static inline vf vf_zero(void) {
    return _mm512_setzero_ps();
}
static inline vf vf_load_f32(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void vf_store(float *p, vf x) {
    _mm512_storeu_ps(p, x);
}
static inline vf vf_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline void vf_fma_to(vf *sum, vf a, vf b) {
    *sum = vf_fma(a, b, *sum);
}
static inline void vf_fma_from(vf *sum, vf a, const float *b) {
    *sum = vf_fma(a, vf_load_f32(b), *sum);
}
/* The second operand where either is NaN. */
static inline vf vf_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
static inline vf vf_round(vf x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* 2^n for integral n in [-126, 127]. */
static inline vf vf_pow2(vf n) {
    __m512i i = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(i, 23));
}
static inline vf vf_zero_below(vf y, vf x, vf limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), y);
}
/* Lane by lane: x < limit ? yes : no (NaN is not below). */
static inline vf vf_select_below(vf x, vf limit, vf yes, vf no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), no, yes);
}
static inline vf vf_keep_nan(vf x, vf y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), y, x);
}
static inline float vf_hsum(vf x) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
/* out[0..3] = vf_hsum of a, b, c, d, to the bit: the same tree, four at a time by transposes. */
static inline void vf_hsum4(float *out, vf a, vf b, vf c, vf d) {
    __m256 ha = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m256 hb = _mm256_add_ps(_mm512_castps512_ps256(b), _mm512_extractf32x8_ps(b, 1));
    __m256 hc = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
    __m256 hd = _mm256_add_ps(_mm512_castps512_ps256(d), _mm512_extractf32x8_ps(d, 1));
    __m256d ac = _mm256_castps_pd(
        _mm256_add_ps(_mm256_permute2f128_ps(ha, hc, 0x20), _mm256_permute2f128_ps(ha, hc, 0x31)));
    __m256d bd = _mm256_castps_pd(
        _mm256_add_ps(_mm256_permute2f128_ps(hb, hd, 0x20), _mm256_permute2f128_ps(hb, hd, 0x31)));
    __m256 t = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(ac, bd)),
                             _mm256_castpd_ps(_mm256_unpackhi_pd(ac, bd)));
    __m128 ab = _mm256_castps256_ps128(t), cd = _mm256_extractf128_ps(t, 1);
    _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(ab, cd, _MM_SHUFFLE(2, 0, 2, 0)),
                                  _mm_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 1, 3, 1))));
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
    return _mm512_reduce_max_ps(x);
}
static inline vf vf_load_bf16(const uint16_t *p) {
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
static inline vf vf_load_bf16_even(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
static inline vf vf_load_bf16_odd(const uint16_t *p) {
    __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper));
}
static inline vf vf_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline vf vf_load_e5m2(const uint8_t *p) {
    /* The upper byte of an f16. */
    __m256i w = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    return _mm512_cvtph_ps(_mm256_slli_epi16(w, 8));
}
static inline vf vf_load_e4m3(const uint8_t *p) {
    /* As in simd_avx2.h. */
    __m512i w = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    __m512i rest = _mm512_and_si512(w, _mm512_set1_epi32(0x7f));
    __m512i sign = _mm512_slli_epi32(_mm512_xor_si512(w, rest), 24);
    __mmask16 nan = _mm512_cmpeq_epi32_mask(rest, _mm512_set1_epi32(0x7f));
    __m512i bits = _mm512_or_si512(sign, _mm512_slli_epi32(rest, 20));
    vf x = _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
    __m512i quiet = _mm512_or_si512(sign, _mm512_set1_epi32(0x7fc00000));
    return _mm512_mask_blend_ps(nan, x, _mm512_castsi512_ps(quiet));
}
static inline vf vf_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* Rounds to bf16 (nearest even, NaN stays NaN) and stores KVL_VL codes. */
static inline void vf_store_bf16(uint16_t *p, vf x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i top = _mm512_srli_epi32(_mm512_mask_blend_epi32(is_nan, up, quiet), 16);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(top));
}

/* Rounds to f16 (nearest even; overflow gives inf) and stores KVL_VL codes. */
static inline void vf_store_f16(uint16_t *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline vf vf_part_bf16(const uint16_t *p, int which) {
    __m512i w = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(which ? _mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000))
                                     : _mm512_slli_epi32(w, 16));
}
static inline vf vf_part_e5m2(const uint8_t *p, int which) {
    __m256i w = _mm256_loadu_si256((const __m256i *)(p + (which & 1) * 32));
    return _mm512_cvtph_ps(which & 2 ? _mm256_and_si256(w, _mm256_set1_epi16((short)0xff00))
                                     : _mm256_slli_epi16(w, 8));
}
static inline vf vf_part_e4m3(const uint8_t *p, int which) {
    /* As in simd_avx2.h. */
    __m256i w = _mm256_loadu_si256((const __m256i *)(p + (which & 1) * 32));
    w = _mm256_srai_epi16(which & 2 ? w : _mm256_slli_epi16(w, 8), 1);
    return _mm512_cvtph_ps(_mm256_and_si256(w, _mm256_set1_epi16((short)0xbf80)));
}
/* Whether one of `n` codes (a multiple of 4 * KVL_VL) of any of the rows is NaN. */
static inline int vf_nan_e4m3(const void *const *rows, int n_rows, int64_t n) {
    /* As in simd_avx2.h. */
    __m512i largest = _mm512_setzero_si512();
    for (int r = 0; r < n_rows; r++) {
        for (int64_t i = 0; i < n; i += 64) {
            __m512i w = _mm512_loadu_si512((const uint8_t *)rows[r] + i);
            largest = _mm512_max_epu8(largest, _mm512_add_epi8(w, w));
        }
    }
    return _mm512_cmpeq_epi8_mask(largest, _mm512_set1_epi8((char)0xfe)) != 0;
}
static inline void vf_transpose(const float *in, int64_t ldi, float *out, int64_t ldo) {
    vf quad[4][4]; /* [g][c]: columns c, 4 + c, 8 + c, 12 + c of rows 4 g .. 4 g + 3 */
    for (int g = 0; g < 4; g++) {
        const float *rows = in + 4 * g * ldi;
        vf r0 = _mm512_loadu_ps(rows), r1 = _mm512_loadu_ps(rows + ldi);
        vf r2 = _mm512_loadu_ps(rows + 2 * ldi), r3 = _mm512_loadu_ps(rows + 3 * ldi);
        __m512d lo01 = _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1));
        __m512d hi01 = _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1));
        __m512d lo23 = _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3));
        __m512d hi23 = _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3));
        quad[g][0] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo01, lo23));
        quad[g][1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo01, lo23));
        quad[g][2] = _mm512_castpd_ps(_mm512_unpacklo_pd(hi01, hi23));
        quad[g][3] = _mm512_castpd_ps(_mm512_unpackhi_pd(hi01, hi23));
    }
    for (int c = 0; c < 4; c++) {
        /* Quarters 0 and 2, then 1 and 3, of the four row groups. */
        vf even01 = _mm512_shuffle_f32x4(quad[0][c], quad[1][c], 0x88);
        vf even23 = _mm512_shuffle_f32x4(quad[2][c], quad[3][c], 0x88);
        vf odd01 = _mm512_shuffle_f32x4(quad[0][c], quad[1][c], 0xdd);
        vf odd23 = _mm512_shuffle_f32x4(quad[2][c], quad[3][c], 0xdd);
        vf_store(out + c * ldo, _mm512_shuffle_f32x4(even01, even23, 0x88));
        vf_store(out + (4 + c) * ldo, _mm512_shuffle_f32x4(odd01, odd23, 0x88));
        vf_store(out + (8 + c) * ldo, _mm512_shuffle_f32x4(even01, even23, 0xdd));
        vf_store(out + (12 + c) * ldo, _mm512_shuffle_f32x4(odd01, odd23, 0xdd));
    }
}

#endif
