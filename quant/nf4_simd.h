/* 4-bit codes to values in registers, for sources built through kvl_isa_source.
 *
 * The codes of a panel lie in groups of 4 consecutive k: 2 * KVL_PANEL bytes hold 4 x KVL_PANEL
 * codes, in the order in which each instruction set takes them apart; nf4_place says where. */
#ifndef KVL_QUANT_NF4_SIMD_H
#define KVL_QUANT_NF4_SIMD_H

#include "quant/linear_sink.h"

enum { NF4_GROUP_K = 4, NF4_GROUP_BYTES = 2 * KVL_PANEL };

typedef struct nf4_place {
    int byte, shift; /* in the group, in the byte */
} nf4_place;

#if defined(KVL_ISA_IS_avx512)

/* Sixteen dwords of eight codes: dword i holds lanes i and 16 + i of the four k in turn. One
 * permute of sixteen floats looks a code up; it ignores the bits above. */
typedef struct nf4_table {
    __m512 values;
} nf4_table;

static inline nf4_table nf4_table_make(const float *values) {
    return (nf4_table){_mm512_loadu_ps(values)};
}
static inline nf4_place nf4_place_of(int lane, int k) {
    int number = 2 * k + lane / 16;
    return (nf4_place){lane % 16 * 4 + number / 2, number % 2 * 4};
}
static inline __attribute__((always_inline)) void nf4_group(const nf4_table *t, const uint8_t *p,
                                                            vf w[NF4_GROUP_K][2]) {
    __m512i codes = _mm512_loadu_si512(p);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        w[i / 2][i % 2] =
            _mm512_permutexvar_ps(_mm512_srli_epi32(codes, (unsigned)i * 4), t->values);
}

#elif defined(KVL_ISA_IS_avx2)

/* AVX2 has no permute of sixteen floats, but one of sixteen bytes: each of the four bytes of a
 * value is looked up for 32 codes at once, and two rounds of interleaving make floats of them. The
 * low nibbles are k = 0 and 1 of the group, the high ones k = 2 and 3. */
typedef struct nf4_table {
    __m256i bytes[4]; /* byte b of the sixteen values, twice */
} nf4_table;

static inline nf4_table nf4_table_make(const float *values) {
    nf4_table t;
    for (int b = 0; b < 4; b++) {
        uint8_t plane[16];
        for (int code = 0; code < 16; code++) {
            uint32_t bits;
            memcpy(&bits, &values[code], sizeof bits);
            plane[code] = (uint8_t)(bits >> (8 * b));
        }
        t.bytes[b] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)plane));
    }
    return t;
}
static inline nf4_place nf4_place_of(int lane, int k) {
    int vector = k % 2 * 2 + lane / 8, half = lane % 8 / 4;
    return (nf4_place){half * 16 + vector * 4 + lane % 4, k / 2 * 4};
}
static inline __attribute__((always_inline)) void nf4_pair(const nf4_table *t, __m256i codes,
                                                           vf w[2][2]) {
    __m256i b0 = _mm256_shuffle_epi8(t->bytes[0], codes);
    __m256i b1 = _mm256_shuffle_epi8(t->bytes[1], codes);
    __m256i b2 = _mm256_shuffle_epi8(t->bytes[2], codes);
    __m256i b3 = _mm256_shuffle_epi8(t->bytes[3], codes);
    __m256i low = _mm256_unpacklo_epi8(b0, b1), high = _mm256_unpacklo_epi8(b2, b3);
    w[0][0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low, high));
    w[0][1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, high));
    low = _mm256_unpackhi_epi8(b0, b1), high = _mm256_unpackhi_epi8(b2, b3);
    w[1][0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low, high));
    w[1][1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, high));
}
static inline __attribute__((always_inline)) void nf4_group(const nf4_table *t, const uint8_t *p,
                                                            vf w[NF4_GROUP_K][2]) {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i codes = _mm256_loadu_si256((const __m256i *)p);
    nf4_pair(t, _mm256_and_si256(codes, nibble), w);
    nf4_pair(t, _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble), w + 2);
}

#else

/* Byte 4 k + i of a group: lane i low, lane 4 + i high. */
typedef struct nf4_table {
    float values[16];
} nf4_table;

static inline nf4_table nf4_table_make(const float *values) {
    nf4_table t;
    memcpy(t.values, values, sizeof t.values);
    return t;
}
static inline nf4_place nf4_place_of(int lane, int k) {
    return (nf4_place){4 * k + lane % 4, lane / 4 * 4};
}
static inline void nf4_group(const nf4_table *t, const uint8_t *p, vf w[NF4_GROUP_K][2]) {
    for (int k = 0; k < NF4_GROUP_K; k++, p += 4) {
        for (int half = 0; half < 2; half++) {
            float values[KVL_VL];
            for (int i = 0; i < KVL_VL; i++) values[i] = t->values[p[i] >> (half * 4) & 15];
            w[k][half] = vf_load_f32(values);
        }
    }
}

#endif

#endif
