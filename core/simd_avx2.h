/* core/simd.h for AVX2 + FMA + F16C: eight floats. */
#ifndef KVL_CORE_SIMD_AVX2_H
#define KVL_CORE_SIMD_AVX2_H

#include <immintrin.h>

enum { KVL_VL = 8 };
typedef __m256 vf;

static inline vf vf_set1(float x) {
    return _mm256_set1_ps(x);
}
static inline vf vf_zero(void) {
    return _mm256_setzero_ps();
}
static inline vf vf_load_f32(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void vf_store(float *p, vf x) {
    _mm256_storeu_ps(p, x);
}
static inline vf vf_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
/* *sum = a * b + *sum where the sum is: left to choose which operand the result replaces, compilers
 * run out of 16 registers and keep some of 12 sums in memory. */
static inline void vf_fma_to(vf *sum, vf a, vf b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
}
/* *sum += a * b[0 .. KVL_VL), b read by the instruction: a register less. */
static inline void vf_fma_from(vf *sum, vf a, const float *b) {
    __asm__("vfmadd231ps %2, %1, %0"
            : "+x"(*sum)
            : "x"(a), "m"(*(const __m256_u *)(const void *)b));
}
/* The second operand where either is NaN. */
static inline vf vf_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
static inline vf vf_round(vf x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* 2^n for integral n in [-126, 127]. */
static inline vf vf_pow2(vf n) {
    __m256i i = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(i, 23));
}
static inline vf vf_zero_below(vf y, vf x, vf limit) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), y);
}
/* Lane by lane: x < limit ? yes : no (NaN is not below). */
static inline vf vf_select_below(vf x, vf limit, vf yes, vf no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, limit, _CMP_LT_OQ));
}
static inline vf vf_keep_nan(vf x, vf y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
static inline float vf_hsum(vf x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
/* The tree of vf_hsum on several vectors at once: a blend and one shuffle bring the two halves of
 * each level together (x + y = y + x, so it is no matter which comes first). */
static inline vf kvl_fold_halves(vf a, vf b) {
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
}
static inline vf kvl_fold_quarters(vf a, vf b) {
    vf swapped = _mm256_castpd_ps(_mm256_shuffle_pd(_mm256_castps_pd(a), _mm256_castps_pd(b), 0x5));
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xcc), swapped);
}
/* out[0..3] = vf_hsum of a, b, c, d, to the bit. */
static inline void vf_hsum4(float *out, vf a, vf b, vf c, vf d) {
    vf t = kvl_fold_quarters(kvl_fold_halves(a, c), kvl_fold_halves(b, d));
    __m128 ab = _mm256_castps256_ps128(t), cd = _mm256_extractf128_ps(t, 1);
    _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(ab, cd, _MM_SHUFFLE(2, 0, 2, 0)),
                                  _mm_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 1, 3, 1))));
}
/* out[i * ld + b] = vf_hsum of x[i][b] for four rows of two. */
static inline void vf_hsum4x2(float *out, int64_t ld, vf x[4][2]) {
    vf t = kvl_fold_quarters(kvl_fold_halves(x[0][0], x[2][0]), kvl_fold_halves(x[0][1], x[2][1]));
    vf u = kvl_fold_quarters(kvl_fold_halves(x[1][0], x[3][0]), kvl_fold_halves(x[1][1], x[3][1]));
    vf sums = _mm256_add_ps(_mm256_shuffle_ps(t, u, 0x88), _mm256_shuffle_ps(t, u, 0xdd));
    __m128 low = _mm256_castps256_ps128(sums), high = _mm256_extractf128_ps(sums, 1);
    _mm_storel_pi((__m64 *)(void *)out, low);
    _mm_storeh_pi((__m64 *)(void *)(out + ld), low);
    _mm_storel_pi((__m64 *)(void *)(out + 2 * ld), high);
    _mm_storeh_pi((__m64 *)(void *)(out + 3 * ld), high);
}
static inline float vf_hmax(vf x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
static inline vf vf_load_bf16(const uint16_t *p) {
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
static inline vf vf_load_bf16_even(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)p), 16));
}
/* The mask stays in memory: a register for it would be one too many beside 12 sums. */
static inline vf vf_load_bf16_odd(const uint16_t *p) {
    static const struct {
        _Alignas(32) uint32_t lanes[8];
    } upper = {{0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                0xffff0000}};
    __m256i w = _mm256_loadu_si256((const __m256i *)p);
    __asm__("vpand %1, %0, %0" : "+x"(w) : "m"(upper));
    return _mm256_castsi256_ps(w);
}
static inline vf vf_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline vf vf_load_e5m2(const uint8_t *p) {
    /* The upper byte of an f16. */
    __m128i h = _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)p));
    return _mm256_cvtph_ps(h);
}
static inline vf vf_load_e4m3(const uint8_t *p) {
    /* Sign and the other seven bits to their places; x 2^120 moves the bias from 7 to 127 and makes
     * subnormals right; 0x7f is NaN. */
    __m256i w = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i rest = _mm256_and_si256(w, _mm256_set1_epi32(0x7f));
    __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(w, rest), 24);
    __m256i nan = _mm256_cmpeq_epi32(rest, _mm256_set1_epi32(0x7f));
    vf x = _mm256_castsi256_ps(_mm256_or_si256(sign, _mm256_slli_epi32(rest, 20)));
    x = _mm256_mul_ps(x, _mm256_set1_ps(0x1p120f));
    return _mm256_or_ps(x,
                        _mm256_castsi256_ps(_mm256_and_si256(nan, _mm256_set1_epi32(0x7fc00000))));
}
static inline vf vf_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
/* Rounds to bf16 (nearest even, NaN stays NaN) and stores KVL_VL codes. */
static inline void vf_store_bf16(uint16_t *p, vf x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i top = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, is_nan), 16);
    __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    _mm_storeu_si128((__m128i *)p, packed);
}

/* Rounds to f16 (nearest even; overflow gives inf) and stores KVL_VL codes. */
static inline void vf_store_f16(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline vf vf_part_bf16(const uint16_t *p, int which) {
    __m256i w = _mm256_loadu_si256((const __m256i *)p);
    return _mm256_castsi256_ps(which ? _mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000))
                                     : _mm256_slli_epi32(w, 16));
}
static inline vf vf_part_e5m2(const uint8_t *p, int which) {
    __m128i w = _mm_loadu_si128((const __m128i *)(p + (which & 1) * 16));
    return _mm256_cvtph_ps(which & 2 ? _mm_and_si128(w, _mm_set1_epi16((short)0xff00))
                                     : _mm_slli_epi16(w, 8));
}
static inline vf vf_part_e4m3(const uint8_t *p, int which) {
    /* The exponent's four bits become the lower four of f16's five: bias 7 read as 15. */
    __m128i w = _mm_loadu_si128((const __m128i *)(p + (which & 1) * 16));
    w = _mm_srai_epi16(which & 2 ? w : _mm_slli_epi16(w, 8), 1);
    return _mm256_cvtph_ps(_mm_and_si128(w, _mm_set1_epi16((short)0xbf80)));
}
/* Whether one of `n` codes (a multiple of 4 * KVL_VL) of any of the rows is NaN. */
static inline int vf_nan_e4m3(const void *const *rows, int n_rows, int64_t n) {
    /* Doubling drops the sign; NaN is the largest of what is left. */
    __m256i largest = _mm256_setzero_si256();
    for (int r = 0; r < n_rows; r++) {
        for (int64_t i = 0; i < n; i += 32) {
            __m256i w = _mm256_loadu_si256((const __m256i *)((const uint8_t *)rows[r] + i));
            largest = _mm256_max_epu8(largest, _mm256_add_epi8(w, w));
        }
    }
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(largest, _mm256_set1_epi8((char)0xfe))) != 0;
}
static inline void vf_transpose(const float *in, int64_t ldi, float *out, int64_t ldo) {
    vf quad[2][4]; /* [g][c]: column c (and 4 + c) of rows 4 g .. 4 g + 3 */
    for (int g = 0; g < 2; g++) {
        const float *rows = in + 4 * g * ldi;
        vf r0 = _mm256_loadu_ps(rows), r1 = _mm256_loadu_ps(rows + ldi);
        vf r2 = _mm256_loadu_ps(rows + 2 * ldi), r3 = _mm256_loadu_ps(rows + 3 * ldi);
        __m256d lo01 = _mm256_castps_pd(_mm256_unpacklo_ps(r0, r1));
        __m256d hi01 = _mm256_castps_pd(_mm256_unpackhi_ps(r0, r1));
        __m256d lo23 = _mm256_castps_pd(_mm256_unpacklo_ps(r2, r3));
        __m256d hi23 = _mm256_castps_pd(_mm256_unpackhi_ps(r2, r3));
        quad[g][0] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo01, lo23));
        quad[g][1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo01, lo23));
        quad[g][2] = _mm256_castpd_ps(_mm256_unpacklo_pd(hi01, hi23));
        quad[g][3] = _mm256_castpd_ps(_mm256_unpackhi_pd(hi01, hi23));
    }
    for (int c = 0; c < 4; c++) {
        vf_store(out + c * ldo, _mm256_permute2f128_ps(quad[0][c], quad[1][c], 0x20));
        vf_store(out + (4 + c) * ldo, _mm256_permute2f128_ps(quad[0][c], quad[1][c], 0x31));
    }
}

#endif
