/* The AVX-512, AVX512_BF16 and AMX intrinsics that kernels use, lane by lane in C: so that their
 * sources, built with this folder first on the include path, run on a CPU that has AVX2 only.
 * Meanings are those of Intel's instruction reference; TDPBF16PS and VDPBF16PS take subnormals as
 * zero, round each product-sum to nearest even, and give no subnormals. */
#ifndef KVL_TESTS_EMULATED_IMMINTRIN_H
#define KVL_TESTS_EMULATED_IMMINTRIN_H

#include_next <immintrin.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Not inlined: a kernel unrolled over emulated lanes would compile for minutes. */
#define EMU static __attribute__((unused, noinline))

typedef union emu_vector {
    __m512 ps;
    __m512i si;
    __m512bh bh;
    __m256 half[2];
    float f[16];
    int32_t i32[16];
    uint32_t u32[16];
    int16_t i16[32];
    uint16_t u16[32];
    uint64_t u64[8];
    uint8_t u8[64];
    __m512d pd;
    __m256i half_si[2];
} emu_vector;

/* r = what LANE makes of x and y in each of n lanes. */
#define EMU_LANES(name, type, member, n, LANE) \
    EMU type emu_##name(type a, type b) { \
        emu_vector x, y, r; \
        memcpy(&x, &a, 64); \
        memcpy(&y, &b, 64); \
        for (int i = 0; i < n; i++) r.member[i] = LANE; \
        type out; \
        memcpy(&out, &r, 64); \
        return out; \
    }
EMU_LANES(add_ps, __m512, f, 16, x.f[i] + y.f[i])
EMU_LANES(sub_ps, __m512, f, 16, x.f[i] - y.f[i])
EMU_LANES(mul_ps, __m512, f, 16, x.f[i] * y.f[i])
EMU_LANES(div_ps, __m512, f, 16, x.f[i] / y.f[i])
EMU_LANES(max_ps, __m512, f, 16, x.f[i] > y.f[i] ? x.f[i] : y.f[i])
EMU_LANES(min_ps, __m512, f, 16, x.f[i] < y.f[i] ? x.f[i] : y.f[i])
EMU_LANES(add_epi32, __m512i, u32, 16, x.u32[i] + y.u32[i])
EMU_LANES(and_si512, __m512i, u64, 8, x.u64[i] & y.u64[i])
EMU_LANES(or_si512, __m512i, u64, 8, x.u64[i] | y.u64[i])
EMU_LANES(xor_si512, __m512i, u64, 8, x.u64[i] ^ y.u64[i])
EMU_LANES(add_epi8, __m512i, u8, 64, (uint8_t)(x.u8[i] + y.u8[i]))
EMU_LANES(max_epu8, __m512i, u8, 64, x.u8[i] > y.u8[i] ? x.u8[i] : y.u8[i])
EMU_LANES(unpacklo_ps, __m512, u32, 16, (i % 2 ? y.u32 : x.u32)[i / 4 * 4 + i % 4 / 2])
EMU_LANES(unpackhi_ps, __m512, u32, 16, (i % 2 ? y.u32 : x.u32)[i / 4 * 4 + 2 + i % 4 / 2])
EMU_LANES(unpacklo_pd, __m512d, u64, 8, (i % 2 ? y.u64 : x.u64)[i / 2 * 2])
EMU_LANES(unpackhi_pd, __m512d, u64, 8, (i % 2 ? y.u64 : x.u64)[i / 2 * 2 + 1])
EMU_LANES(unpacklo_epi32, __m512i, u32, 16, (i % 2 ? y.u32 : x.u32)[i / 4 * 4 + i % 4 / 2])
EMU_LANES(unpackhi_epi32, __m512i, u32, 16, (i % 2 ? y.u32 : x.u32)[i / 4 * 4 + 2 + i % 4 / 2])
EMU_LANES(unpacklo_epi64, __m512i, u64, 8, (i % 2 ? y.u64 : x.u64)[i / 2 * 2])
EMU_LANES(unpackhi_epi64, __m512i, u64, 8, (i % 2 ? y.u64 : x.u64)[i / 2 * 2 + 1])

EMU_LANES(unpacklo_epi8, __m512i, u8, 64, (i % 2 ? y.u8 : x.u8)[i / 16 * 16 + i % 16 / 2])
EMU_LANES(unpackhi_epi8, __m512i, u8, 64, (i % 2 ? y.u8 : x.u8)[i / 16 * 16 + 8 + i % 16 / 2])
EMU_LANES(permutexvar_epi64, __m512i, u64, 8, y.u64[x.u64[i] & 7])

#define EMU_MASK(name, member, n, type, LANE) \
    EMU type emu_##name(__m512i a, __m512i b) { \
        emu_vector x = {.si = a}, y = {.si = b}; \
        uint32_t mask = 0; \
        for (int i = 0; i < n; i++) mask |= (uint32_t)(LANE) << i; \
        return (type)mask; \
    }
EMU_MASK(cmple_epi32_mask, i32, 16, __mmask16, x.i32[i] <= y.i32[i])
EMU_MASK(cmplt_epi32_mask, i32, 16, __mmask16, x.i32[i] < y.i32[i])
EMU_MASK(cmpgt_epi32_mask, i32, 16, __mmask16, x.i32[i] > y.i32[i])
EMU_MASK(cmpeq_epi32_mask, i32, 16, __mmask16, x.i32[i] == y.i32[i])
EMU_MASK(cmpeq_epi16_mask, i16, 32, __mmask32, x.i16[i] == y.i16[i])

EMU __mmask16 emu_cmp_ps_mask(__m512 a, __m512 b, int how) {
    emu_vector x = {.ps = a}, y = {.ps = b};
    uint32_t mask = 0;
    for (int i = 0; i < 16; i++) {
        float l = x.f[i], r = y.f[i];
        int holds = how == _CMP_LT_OQ     ? l < r
                    : how == _CMP_NLT_UQ  ? !(l < r)
                    : how == _CMP_GT_OQ   ? l > r
                    : how == _CMP_NEQ_UQ  ? !(l == r)
                    : how == _CMP_UNORD_Q ? l != l || r != r
                                          : (__builtin_trap(), 0);
        mask |= (uint32_t)holds << i;
    }
    return (__mmask16)mask;
}

EMU __m512 emu_set1_ps(float v) {
    emu_vector r;
    for (int i = 0; i < 16; i++) r.f[i] = v;
    return r.ps;
}
EMU __m512 emu_setzero_ps(void) {
    return emu_set1_ps(0.0f);
}
EMU __m512i emu_set1_epi32(int v) {
    emu_vector r;
    for (int i = 0; i < 16; i++) r.i32[i] = v;
    return r.si;
}
EMU __m512i emu_set1_epi16(short v) {
    emu_vector r;
    for (int i = 0; i < 32; i++) r.i16[i] = v;
    return r.si;
}
EMU __m512i emu_loadu_si512(const void *p) {
    emu_vector r;
    memcpy(&r, p, 64);
    return r.si;
}
EMU void emu_storeu_si512(void *p, __m512i v) {
    memcpy(p, &v, 64);
}
EMU __m512 emu_loadu_ps(const void *p) {
    emu_vector r;
    memcpy(&r, p, 64);
    return r.ps;
}
EMU void emu_storeu_ps(void *p, __m512 v) {
    memcpy(p, &v, 64);
}
EMU __m512 emu_castsi512_ps(__m512i v) {
    return (emu_vector){.si = v}.ps;
}
EMU __m512i emu_castps_si512(__m512 v) {
    return (emu_vector){.ps = v}.si;
}
EMU __m256 emu_castps512_ps256(__m512 v) {
    return (emu_vector){.ps = v}.half[0];
}
EMU __m256 emu_extractf32x8_ps(__m512 v, int which) {
    return (emu_vector){.ps = v}.half[which];
}
EMU __m512i emu_slli_epi32(__m512i v, int n) {
    emu_vector r = {.si = v};
    for (int i = 0; i < 16; i++) r.u32[i] <<= n;
    return r.si;
}
EMU __m512i emu_srli_epi32(__m512i v, int n) {
    emu_vector r = {.si = v};
    for (int i = 0; i < 16; i++) r.u32[i] >>= n;
    return r.si;
}
EMU __m512i emu_slli_epi16(__m512i v, int n) {
    emu_vector r = {.si = v};
    for (int i = 0; i < 32; i++) r.u16[i] = (uint16_t)(r.u16[i] << n);
    return r.si;
}
EMU __m512i emu_srai_epi16(__m512i v, int n) {
    emu_vector r = {.si = v};
    for (int i = 0; i < 32; i++) r.i16[i] = (int16_t)(r.i16[i] >> n);
    return r.si;
}
EMU __m512i emu_set1_epi8(char v) {
    emu_vector r;
    memset(&r, v, sizeof r);
    return r.si;
}
EMU __m512i emu_setzero_si512(void) {
    return emu_set1_epi8(0);
}
EMU __m512 emu_castpd_ps(__m512d v) {
    return (emu_vector){.pd = v}.ps;
}
EMU __m512d emu_castps_pd(__m512 v) {
    return (emu_vector){.ps = v}.pd;
}
EMU __m256i emu_castsi512_si256(__m512i v) {
    return (emu_vector){.si = v}.half_si[0];
}
EMU __m256i emu_extracti64x4_epi64(__m512i v, int which) {
    return (emu_vector){.si = v}.half_si[which];
}
EMU __mmask64 emu_cmpeq_epi8_mask(__m512i a, __m512i b) {
    emu_vector x = {.si = a}, y = {.si = b};
    uint64_t mask = 0;
    for (int i = 0; i < 64; i++) mask |= (uint64_t)(x.u8[i] == y.u8[i]) << i;
    return mask;
}
EMU __m512 emu_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    emu_vector x = {.ps = a}, y = {.ps = b}, r = {.ps = c};
    for (int i = 0; i < 16; i++) r.f[i] = fmaf(x.f[i], y.f[i], r.f[i]);
    return r.ps;
}
EMU __m512 emu_mask_blend_ps(__mmask16 mask, __m512 a, __m512 b) {
    emu_vector r = {.ps = a}, y = {.ps = b};
    for (int i = 0; i < 16; i++) r.f[i] = mask >> i & 1 ? y.f[i] : r.f[i];
    return r.ps;
}
EMU __m512i emu_mask_blend_epi32(__mmask16 mask, __m512i a, __m512i b) {
    emu_vector r = {.si = a}, y = {.si = b};
    for (int i = 0; i < 16; i++) r.i32[i] = mask >> i & 1 ? y.i32[i] : r.i32[i];
    return r.si;
}
EMU __m512 emu_maskz_mov_ps(__mmask16 mask, __m512 v) {
    return emu_mask_blend_ps(mask, emu_setzero_ps(), v);
}
EMU __m512 emu_roundscale_ps(__m512 v, int how) {
    emu_vector r = {.ps = v};
    if (how != (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)) __builtin_trap();
    for (int i = 0; i < 16; i++) r.f[i] = rintf(r.f[i]);
    return r.ps;
}
EMU __m512i emu_cvtps_epi32(__m512 v) {
    emu_vector x = {.ps = v}, r;
    for (int i = 0; i < 16; i++) r.i32[i] = (int32_t)rintf(x.f[i]);
    return r.si;
}
EMU float emu_reduce_max_ps(__m512 v) {
    emu_vector x = {.ps = v};
    float most = x.f[0];
    for (int i = 1; i < 16; i++) most = x.f[i] > most ? x.f[i] : most;
    return most;
}
EMU __m512i emu_cvtepu16_epi32(__m256i v) {
    uint16_t from[16];
    emu_vector r;
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++) r.u32[i] = from[i];
    return r.si;
}
EMU __m512i emu_cvtepu8_epi32(__m128i v) {
    uint8_t from[16];
    emu_vector r;
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++) r.u32[i] = from[i];
    return r.si;
}
EMU __m256i emu_cvtepi32_epi16(__m512i v) {
    emu_vector x = {.si = v};
    uint16_t to[16];
    __m256i out;
    for (int i = 0; i < 16; i++) to[i] = (uint16_t)x.u32[i];
    memcpy(&out, to, sizeof out);
    return out;
}
EMU __m512 emu_cvtph_ps(__m256i v) {
    emu_vector r;
    r.half[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
    r.half[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
    return r.ps;
}
EMU __m256i emu_cvtps_ph(__m512 v, int how) {
    emu_vector x = {.ps = v};
    if (how != _MM_FROUND_TO_NEAREST_INT) __builtin_trap();
    __m128i low = _mm256_cvtps_ph(x.half[0], _MM_FROUND_TO_NEAREST_INT);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low),
                                   _mm256_cvtps_ph(x.half[1], _MM_FROUND_TO_NEAREST_INT), 1);
}
EMU __m512i emu_shuffle_i32x4(__m512i a, __m512i b, int how) {
    emu_vector x = {.si = a}, y = {.si = b}, r;
    for (int lane = 0; lane < 4; lane++)
        memcpy(&r.u32[lane * 4], &(lane < 2 ? x : y).u32[(how >> (2 * lane) & 3) * 4], 16);
    return r.si;
}

EMU __m512 emu_shuffle_f32x4(__m512 a, __m512 b, int how) {
    return emu_castsi512_ps(emu_shuffle_i32x4(emu_castps_si512(a), emu_castps_si512(b), how));
}
EMU __m512i emu_maskz_loadu_epi16(__mmask32 mask, const void *p) {
    emu_vector r;
    for (int i = 0; i < 32; i++) {
        r.u16[i] = 0;
        if (mask >> i & 1) memcpy(&r.u16[i], (const char *)p + 2 * i, 2);
    }
    return r.si;
}

EMU __m512i emu_maskz_loadu_epi8(__mmask64 mask, const void *p) {
    emu_vector r;
    for (int i = 0; i < 64; i++) {
        r.u8[i] = 0;
        if (mask >> i & 1) memcpy(&r.u8[i], (const char *)p + i, 1);
    }
    return r.si;
}
EMU __m512i emu_permutex2var_epi8(__m512i a, __m512i which, __m512i b) {
    emu_vector x = {.si = a}, y = {.si = b}, w = {.si = which}, r;
    for (int i = 0; i < 64; i++) r.u8[i] = (w.u8[i] & 64 ? y.u8 : x.u8)[w.u8[i] & 63];
    return r.si;
}
EMU __m512i emu_broadcast_i32x4(__m128i v) {
    emu_vector r;
    for (int i = 0; i < 4; i++) memcpy(&r.u32[4 * i], &v, 16);
    return r.si;
}
EMU __m512i emu_castsi256_si512(__m256i v) {
    return (emu_vector){.half_si = {v}}.si;
}
EMU __m512i emu_inserti64x4(__m512i a, __m256i b, int which) {
    emu_vector r = {.si = a};
    r.half_si[which] = b;
    return r.si;
}
EMU __m512i emu_cvtepi8_epi32(__m128i v) {
    int8_t from[16];
    emu_vector r;
    memcpy(from, &v, sizeof from);
    for (int i = 0; i < 16; i++) r.i32[i] = from[i];
    return r.si;
}
EMU __m512 emu_cvtepi32_ps(__m512i v) {
    emu_vector x = {.si = v}, r;
    for (int i = 0; i < 16; i++) r.f[i] = (float)x.i32[i];
    return r.ps;
}
EMU __m256i emu_cvtepi16_epi8(__m512i v) {
    emu_vector x = {.si = v};
    uint8_t to[32];
    __m256i out;
    for (int i = 0; i < 32; i++) to[i] = (uint8_t)x.u16[i];
    memcpy(&out, to, sizeof out);
    return out;
}
EMU __m512i emu_srli_epi16(__m512i v, int n) {
    emu_vector r = {.si = v};
    for (int i = 0; i < 32; i++) r.u16[i] = (uint16_t)(r.u16[i] >> n);
    return r.si;
}
EMU __m512i emu_set_epi64(long long h, long long g, long long f, long long e, long long d,
                          long long c, long long b, long long a) {
    const long long lanes[8] = {a, b, c, d, e, f, g, h};
    return emu_loadu_si512(lanes);
}

/* ---- bf16 products ----------------------------------------------------------------------------
 */

EMU float emu_flush(float v) {
    return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v;
}
EMU float emu_widen(uint16_t code) {
    uint32_t bits = (uint32_t)code << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return emu_flush(v);
}
EMU float emu_add_product(float sum, uint16_t a, uint16_t b) {
    return emu_flush(fmaf(emu_widen(a), emu_widen(b), sum));
}
EMU __m512 emu_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
    emu_vector r = {.ps = sum}, x = {.bh = a}, y = {.bh = b};
    for (int i = 0; i < 16; i++) {
        r.f[i] = emu_add_product(emu_flush(r.f[i]), x.u16[2 * i + 1], y.u16[2 * i + 1]);
        r.f[i] = emu_add_product(r.f[i], x.u16[2 * i], y.u16[2 * i]);
    }
    return r.ps;
}

typedef struct emu_tile_state {
    uint8_t row_bytes[8], rows[8]; /* 0: not configured */
    uint8_t data[8][16][64];
} emu_tile_state;
static __attribute__((unused)) _Thread_local emu_tile_state emu_tiles;

EMU void emu_tile_loadconfig(const void *config) {
    const uint8_t *c = config;
    if (c[0] != 1 || c[1] != 0) __builtin_trap(); /* #GP, as all that follow */
    for (int i = 2; i < 64; i++) {
        bool reserved = i < 16 || (i >= 32 && i < 48) || i >= 56;
        if (reserved && c[i] != 0) __builtin_trap();
    }
    memset(&emu_tiles, 0, sizeof emu_tiles);
    for (int t = 0; t < 8; t++) {
        uint16_t row_bytes;
        memcpy(&row_bytes, c + 16 + 2 * t, 2);
        if (row_bytes > 64 || c[48 + t] > 16 || !row_bytes != !c[48 + t]) __builtin_trap();
        emu_tiles.row_bytes[t] = (uint8_t)row_bytes;
        emu_tiles.rows[t] = c[48 + t];
    }
}
EMU void emu_tile_release(void) {
    memset(&emu_tiles, 0, sizeof emu_tiles);
}
EMU void emu_tile_check(int t) {
    if (emu_tiles.rows[t] == 0) __builtin_trap(); /* #UD */
}
EMU void emu_tile_zero(int t) {
    emu_tile_check(t);
    memset(emu_tiles.data[t], 0, sizeof emu_tiles.data[t]);
}
EMU void emu_tile_loadd(int t, const void *base, int64_t stride) {
    emu_tile_check(t);
    memset(emu_tiles.data[t], 0, sizeof emu_tiles.data[t]);
    for (int r = 0; r < emu_tiles.rows[t]; r++)
        memcpy(emu_tiles.data[t][r], (const char *)base + r * stride, emu_tiles.row_bytes[t]);
}
EMU void emu_tile_stored(int t, void *base, int64_t stride) {
    emu_tile_check(t);
    for (int r = 0; r < emu_tiles.rows[t]; r++)
        memcpy((char *)base + r * stride, emu_tiles.data[t][r], emu_tiles.row_bytes[t]);
}
/* The even products of a row and the odd ones are summed apart, from 0, then both to the tile. */
EMU void emu_tile_dpbf16ps(int d, int a, int b) {
    emu_tile_check(d);
    emu_tile_check(a);
    emu_tile_check(b);
    /* #UD: rows and columns that do not fit each other. */
    if (emu_tiles.rows[d] != emu_tiles.rows[a] || emu_tiles.row_bytes[a] / 4 != emu_tiles.rows[b] ||
        emu_tiles.row_bytes[d] != emu_tiles.row_bytes[b] || emu_tiles.row_bytes[a] % 4 || d == a ||
        a == b || d == b)
        __builtin_trap();
    for (int m = 0; m < emu_tiles.rows[d]; m++) {
        float sum[16], of_pairs[32] = {0};
        uint16_t left[32], right[32];
        memcpy(sum, emu_tiles.data[d][m], 64);
        memcpy(left, emu_tiles.data[a][m], 64);
        for (int k = 0; k < emu_tiles.row_bytes[a] / 4; k++) {
            memcpy(right, emu_tiles.data[b][k], 64);
            for (int n = 0; n < emu_tiles.row_bytes[d] / 2; n++)
                of_pairs[n] = emu_add_product(of_pairs[n], left[2 * k + n % 2], right[n]);
        }
        for (int n = 0; n < emu_tiles.row_bytes[d] / 4; n++) {
            float pair = emu_flush(of_pairs[2 * n] + of_pairs[2 * n + 1]);
            sum[n] = emu_flush(emu_flush(sum[n]) + pair);
        }
        memcpy(emu_tiles.data[d][m], sum, 64);
    }
}

/* ---- the names ------------------------------------------------------------------------------- */
#undef _mm512_add_ps
#define _mm512_add_ps emu_add_ps
#undef _mm512_sub_ps
#define _mm512_sub_ps emu_sub_ps
#undef _mm512_mul_ps
#define _mm512_mul_ps emu_mul_ps
#undef _mm512_div_ps
#define _mm512_div_ps emu_div_ps
#undef _mm512_max_ps
#define _mm512_max_ps emu_max_ps
#undef _mm512_min_ps
#define _mm512_min_ps emu_min_ps
#undef _mm512_add_epi32
#define _mm512_add_epi32 emu_add_epi32
#undef _mm512_and_si512
#define _mm512_and_si512 emu_and_si512
#undef _mm512_or_si512
#define _mm512_or_si512 emu_or_si512
#undef _mm512_xor_si512
#define _mm512_xor_si512 emu_xor_si512
#undef _mm512_unpacklo_epi32
#define _mm512_unpacklo_epi32 emu_unpacklo_epi32
#undef _mm512_unpackhi_epi32
#define _mm512_unpackhi_epi32 emu_unpackhi_epi32
#undef _mm512_unpacklo_epi64
#define _mm512_unpacklo_epi64 emu_unpacklo_epi64
#undef _mm512_unpackhi_epi64
#define _mm512_unpackhi_epi64 emu_unpackhi_epi64
#undef _mm512_cmple_epi32_mask
#define _mm512_cmple_epi32_mask emu_cmple_epi32_mask
#undef _mm512_cmplt_epi32_mask
#define _mm512_cmplt_epi32_mask emu_cmplt_epi32_mask
#undef _mm512_cmpgt_epi32_mask
#define _mm512_cmpgt_epi32_mask emu_cmpgt_epi32_mask
#undef _mm512_cmpeq_epi32_mask
#define _mm512_cmpeq_epi32_mask emu_cmpeq_epi32_mask
#undef _mm512_cmpeq_epi16_mask
#define _mm512_cmpeq_epi16_mask emu_cmpeq_epi16_mask
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask emu_cmp_ps_mask
#undef _mm512_set1_ps
#define _mm512_set1_ps emu_set1_ps
#undef _mm512_setzero_ps
#define _mm512_setzero_ps emu_setzero_ps
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 emu_set1_epi32
#undef _mm512_set1_epi16
#define _mm512_set1_epi16 emu_set1_epi16
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 emu_loadu_si512
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 emu_storeu_si512
#undef _mm512_loadu_ps
#define _mm512_loadu_ps emu_loadu_ps
#undef _mm512_storeu_ps
#define _mm512_storeu_ps emu_storeu_ps
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps emu_castsi512_ps
#undef _mm512_castps_si512
#define _mm512_castps_si512 emu_castps_si512
#undef _mm512_castps512_ps256
#define _mm512_castps512_ps256 emu_castps512_ps256
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps emu_extractf32x8_ps
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 emu_slli_epi32
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 emu_srli_epi32
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps emu_fmadd_ps
#undef _mm512_mask_blend_ps
#define _mm512_mask_blend_ps emu_mask_blend_ps
#undef _mm512_mask_blend_epi32
#define _mm512_mask_blend_epi32 emu_mask_blend_epi32
#undef _mm512_maskz_mov_ps
#define _mm512_maskz_mov_ps emu_maskz_mov_ps
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps emu_roundscale_ps
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 emu_cvtps_epi32
#undef _mm512_reduce_max_ps
#define _mm512_reduce_max_ps emu_reduce_max_ps
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 emu_cvtepu16_epi32
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 emu_cvtepu8_epi32
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16 emu_cvtepi32_epi16
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps emu_cvtph_ps
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph emu_cvtps_ph
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4 emu_shuffle_i32x4
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps emu_dpbf16_ps
#undef _mm512_add_epi8
#define _mm512_add_epi8 emu_add_epi8
#undef _mm512_castpd_ps
#define _mm512_castpd_ps emu_castpd_ps
#undef _mm512_castps_pd
#define _mm512_castps_pd emu_castps_pd
#undef _mm512_castsi512_si256
#define _mm512_castsi512_si256 emu_castsi512_si256
#undef _mm512_cmpeq_epi8_mask
#define _mm512_cmpeq_epi8_mask emu_cmpeq_epi8_mask
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti64x4_epi64 emu_extracti64x4_epi64
#undef _mm512_max_epu8
#define _mm512_max_epu8 emu_max_epu8
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 emu_set1_epi8
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 emu_setzero_si512
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4 emu_shuffle_f32x4
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 emu_slli_epi16
#undef _mm512_srai_epi16
#define _mm512_srai_epi16 emu_srai_epi16
#undef _mm512_unpackhi_pd
#define _mm512_unpackhi_pd emu_unpackhi_pd
#undef _mm512_unpackhi_ps
#define _mm512_unpackhi_ps emu_unpackhi_ps
#undef _mm512_unpacklo_pd
#define _mm512_unpacklo_pd emu_unpacklo_pd
#undef _mm512_unpacklo_ps
#define _mm512_unpacklo_ps emu_unpacklo_ps
#undef _mm512_maskz_loadu_epi16
#define _mm512_maskz_loadu_epi16 emu_maskz_loadu_epi16
#undef _mm512_unpacklo_epi8
#define _mm512_unpacklo_epi8 emu_unpacklo_epi8
#undef _mm512_unpackhi_epi8
#define _mm512_unpackhi_epi8 emu_unpackhi_epi8
#undef _mm512_permutexvar_epi64
#define _mm512_permutexvar_epi64 emu_permutexvar_epi64
#undef _mm512_maskz_loadu_epi8
#define _mm512_maskz_loadu_epi8 emu_maskz_loadu_epi8
#undef _mm512_permutex2var_epi8
#define _mm512_permutex2var_epi8 emu_permutex2var_epi8
#undef _mm512_broadcast_i32x4
#define _mm512_broadcast_i32x4 emu_broadcast_i32x4
#undef _mm512_castsi256_si512
#define _mm512_castsi256_si512 emu_castsi256_si512
#undef _mm512_inserti64x4
#define _mm512_inserti64x4 emu_inserti64x4
#undef _mm512_cvtepi16_epi8
#define _mm512_cvtepi16_epi8 emu_cvtepi16_epi8
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 emu_srli_epi16
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 emu_cvtepi8_epi32
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps emu_cvtepi32_ps
#undef _mm512_set_epi64
#define _mm512_set_epi64 emu_set_epi64
#undef _tile_loadconfig
#define _tile_loadconfig emu_tile_loadconfig
#undef _tile_release
#define _tile_release emu_tile_release
#undef _tile_zero
#define _tile_zero emu_tile_zero
#undef _tile_loadd
#define _tile_loadd emu_tile_loadd
#undef _tile_stored
#define _tile_stored emu_tile_stored
#undef _tile_dpbf16ps
#define _tile_dpbf16ps emu_tile_dpbf16ps

#endif
