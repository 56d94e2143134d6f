/* Block layouts (all little-endian, packed; d, m, dmin are f16):
 *
 *   Q4_0  d, 16 x 2 nibbles                  value = d * (q - 8)
 *   Q4_1  d, m, 16 x 2 nibbles               value = d * q + m
 *   Q5_0  d, 32 high bits, 16 x 2 nibbles    value = d * (q - 16)
 *   Q5_1  d, m, 32 high bits, 16 x 2 nibbles value = d * q + m
 *   Q8_0  d, 32 x int8                       value = q * d
 *
 * In these, byte i holds element i in its low and element i + 16 in its high nibble. The K formats
 * pack 256 values with a scale (and minimum) for each 16 or 32 of them. Each value is computed in
 * float32 with the operations in the order written here, as the gguf package does.
 */
#include "quant/gguf_blocks.h"

#include <string.h>

#include "quant/convert.h"

enum { QK = 32, QK_K = 256 };

static float f16_at(const uint8_t *p) {
    return kvl_dec_f16((uint16_t)(p[0] | p[1] << 8));
}

static uint32_t u32_at(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* ---- plain floats: "blocks" of one value ---------------------------------------------------- */

static void decode_f32(const uint8_t *blocks, int64_t n, float *out) {
    memcpy(out, blocks, (size_t)n * sizeof *out);
}

static void decode_f16(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t code;
        memcpy(&code, blocks + 2 * i, sizeof code);
        out[i] = kvl_dec_f16(code);
    }
}

static void decode_bf16(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t code;
        memcpy(&code, blocks + 2 * i, sizeof code);
        out[i] = kvl_as_f32((uint32_t)code << 16);
    }
}

/* ---- blocks of 32 --------------------------------------------------------------------------- */

static void decode_q8_0(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t b = 0; b < n / QK; b++, blocks += 34, out += QK) {
        float d = f16_at(blocks);
        const int8_t *q = (const int8_t *)blocks + 2;
        for (int i = 0; i < QK; i++) out[i] = (float)q[i] * d;
    }
}

static void decode_q4_0(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t b = 0; b < n / QK; b++, blocks += 18, out += QK) {
        float d = f16_at(blocks);
        const uint8_t *q = blocks + 2;
        for (int i = 0; i < 16; i++) out[i] = d * (float)((q[i] & 15) - 8);
        for (int i = 0; i < 16; i++) out[i + 16] = d * (float)((q[i] >> 4) - 8);
    }
}

static void decode_q4_1(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t b = 0; b < n / QK; b++, blocks += 20, out += QK) {
        float d = f16_at(blocks), m = f16_at(blocks + 2);
        const uint8_t *q = blocks + 4;
        for (int i = 0; i < 16; i++) out[i] = d * (float)(q[i] & 15) + m;
        for (int i = 0; i < 16; i++) out[i + 16] = d * (float)(q[i] >> 4) + m;
    }
}

/* q[32] = nibbles with their fifth bits. */
static void unpack_five(const uint8_t *nibbles, uint32_t high, int *q) {
    for (int i = 0; i < 16; i++) q[i] = (nibbles[i] & 15) | (int)(high >> i & 1) << 4;
    for (int i = 0; i < 16; i++) q[i + 16] = nibbles[i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
}

static void decode_q5_0(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t b = 0; b < n / QK; b++, blocks += 22, out += QK) {
        float d = f16_at(blocks);
        int q[QK];
        unpack_five(blocks + 6, u32_at(blocks + 2), q);
        for (int i = 0; i < QK; i++) out[i] = d * (float)(q[i] - 16);
    }
}

static void decode_q5_1(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t b = 0; b < n / QK; b++, blocks += 24, out += QK) {
        float d = f16_at(blocks), m = f16_at(blocks + 2);
        int q[QK];
        unpack_five(blocks + 8, u32_at(blocks + 4), q);
        for (int i = 0; i < QK; i++) out[i] = d * (float)q[i] + m;
    }
}

/* ---- super-blocks of 256 -------------------------------------------------------------------- */

/* Two-bit fields: 32 bytes hold 128 values, 32 in each bit pair, lowest pair first. */
static void decode_q2_k(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t b = 0; b < n / QK_K; b++, blocks += 84, out += QK_K) {
        const uint8_t *scales = blocks, *q = blocks + 16;
        float d = f16_at(blocks + 80), dmin = f16_at(blocks + 82);
        for (int s = 0; s < 16; s++) {
            const uint8_t *p = q + s / 8 * 32 + s % 2 * 16;
            int shift = s % 8 / 2 * 2;
            float scale = d * (float)(scales[s] & 15), min = dmin * (float)(scales[s] >> 4);
            for (int i = 0; i < 16; i++) out[s * 16 + i] = scale * (float)(p[i] >> shift & 3) - min;
        }
    }
}

/* As Q2_K with a third bit, which subtracts 4 where it is clear. Six-bit scales: low nibbles in
 * bytes 0..7 (scale s + 8 in the high nibble of byte s), upper pairs in bytes 8..11. */
static void decode_q3_k(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t b = 0; b < n / QK_K; b++, blocks += 110, out += QK_K) {
        const uint8_t *high = blocks, *q = blocks + 32, *packed = blocks + 96;
        float d = f16_at(blocks + 108);
        for (int s = 0; s < 16; s++) {
            int low = s < 8 ? packed[s] & 15 : packed[s - 8] >> 4;
            int scale = (low | (packed[8 + s % 4] >> s / 4 * 2 & 3) << 4) - 32;
            const uint8_t *p = q + s / 8 * 32 + s % 2 * 16, *h = high + s % 2 * 16;
            int shift = s % 8 / 2 * 2, bit = s / 2;
            float dl = d * (float)scale;
            for (int i = 0; i < 16; i++) {
                int value = (p[i] >> shift & 3) - 4 + (h[i] >> bit & 1) * 4;
                out[s * 16 + i] = dl * (float)value;
            }
        }
    }
}

/* Scale and minimum, six bits each, of sub-block s of Q4_K and Q5_K, from 12 bytes: 0..3 scales,
 * 4..7 minima of the first four, whose top pairs lend the upper bits of the last four; 8..11 their
 * low nibbles. */
static void scale_min(const uint8_t *packed, int s, int *scale, int *min) {
    if (s < 4) {
        *scale = packed[s] & 63;
        *min = packed[s + 4] & 63;
    } else {
        *scale = (packed[s + 4] & 15) | packed[s - 4] >> 6 << 4;
        *min = packed[s + 4] >> 4 | packed[s] >> 6 << 4;
    }
}

static void decode_q4_k(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t b = 0; b < n / QK_K; b++, blocks += 144, out += QK_K) {
        float d = f16_at(blocks), dmin = f16_at(blocks + 2);
        for (int s = 0; s < 8; s++) {
            const uint8_t *q = blocks + 16 + s / 2 * 32;
            int scale, min, shift = s % 2 * 4;
            scale_min(blocks + 4, s, &scale, &min);
            float ds = d * (float)scale, dm = dmin * (float)min;
            for (int i = 0; i < 32; i++) out[s * 32 + i] = ds * (float)(q[i] >> shift & 15) - dm;
        }
    }
}

static void decode_q5_k(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t b = 0; b < n / QK_K; b++, blocks += 176, out += QK_K) {
        float d = f16_at(blocks), dmin = f16_at(blocks + 2);
        const uint8_t *high = blocks + 16;
        for (int s = 0; s < 8; s++) {
            const uint8_t *q = blocks + 48 + s / 2 * 32;
            int scale, min, shift = s % 2 * 4;
            scale_min(blocks + 4, s, &scale, &min);
            float ds = d * (float)scale, dm = dmin * (float)min;
            for (int i = 0; i < 32; i++) {
                int value = (q[i] >> shift & 15) | (high[i] >> s & 1) << 4;
                out[s * 32 + i] = ds * (float)value - dm;
            }
        }
    }
}

/* 64 bytes of nibbles and 32 bytes of bit pairs make 128 values; int8 scales. */
static void decode_q6_k(const uint8_t *blocks, int64_t n, float *restrict out) {
    for (int64_t b = 0; b < n / QK_K; b++, blocks += 210, out += QK_K) {
        const int8_t *scales = (const int8_t *)blocks + 192;
        float d = f16_at(blocks + 208);
        for (int s = 0; s < 16; s++) {
            int in_half = s % 8;
            const uint8_t *low = blocks + s / 8 * 64 + in_half % 4 * 16;
            const uint8_t *high = blocks + 128 + s / 8 * 32 + s % 2 * 16;
            int low_shift = in_half / 4 * 4, high_shift = in_half / 2 * 2;
            float ds = d * (float)scales[s];
            for (int i = 0; i < 16; i++) {
                int value = ((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4) - 32;
                out[s * 16 + i] = ds * (float)value;
            }
        }
    }
}

/* ---- registry ------------------------------------------------------------------------------- */

static const kvl_gguf_block blocks_known[] = {
    {"f32", 0, 1, 4, decode_f32},         {"f16", 1, 1, 2, decode_f16},
    {"q4_0", 2, QK, 18, decode_q4_0},     {"q4_1", 3, QK, 20, decode_q4_1},
    {"q5_0", 6, QK, 22, decode_q5_0},     {"q5_1", 7, QK, 24, decode_q5_1},
    {"q8_0", 8, QK, 34, decode_q8_0},     {"q2_k", 10, QK_K, 84, decode_q2_k},
    {"q3_k", 11, QK_K, 110, decode_q3_k}, {"q4_k", 12, QK_K, 144, decode_q4_k},
    {"q5_k", 13, QK_K, 176, decode_q5_k}, {"q6_k", 14, QK_K, 210, decode_q6_k},
    {"bf16", 30, 1, 2, decode_bf16},
};
enum { N_BLOCKS = sizeof blocks_known / sizeof *blocks_known };

size_t kvl_gguf_block_count(void) {
    return N_BLOCKS;
}

const kvl_gguf_block *kvl_gguf_block_at(size_t index) {
    return index < N_BLOCKS ? &blocks_known[index] : NULL;
}

const kvl_gguf_block *kvl_gguf_block_of(uint32_t ggml_type) {
    for (size_t i = 0; i < N_BLOCKS; i++) {
        if (blocks_known[i].ggml_type == ggml_type) return &blocks_known[i];
    }
    return NULL;
}

const char *kvl_ggml_type_name(uint32_t ggml_type) {
    static const char *const names[] = {
        "f32",
        "f16",
        "q4_0",
        "q4_1",
        "q4_2 (retired)",
        "q4_3 (retired)",
        "q5_0",
        "q5_1",
        "q8_0",
        "q8_1",
        "q2_k",
        "q3_k",
        "q4_k",
        "q5_k",
        "q6_k",
        "q8_k",
        "iq2_xxs",
        "iq2_xs",
        "iq3_xxs",
        "iq1_s",
        "iq4_nl",
        "iq3_s",
        "iq2_s",
        "iq4_xs",
        "i8",
        "i16",
        "i32",
        "i64",
        "f64",
        "iq1_m",
        "bf16",
        "q4_0_4_4 (retired)",
        "q4_0_4_8 (retired)",
        "q4_0_8_8 (retired)",
        "tq1_0",
        "tq2_0",
        "iq4_nl_4_4 (retired)",
        "iq4_nl_4_8 (retired)",
        "iq4_nl_8_8 (retired)",
        "mxfp4",
        "nvfp4",
        "q1_0",
    };
    return ggml_type < sizeof names / sizeof *names ? names[ggml_type] : NULL;
}
