/* Bulk conversions, compiled once per instruction set: plain loops over quant/convert.h, which the
 * compiler turns into vectors of the set's width. Integer arithmetic, so every set gives the same
 * bits. */
#include "quant/convert_isa.h"

#include "quant/convert.h"

#define PASTE2(name, suffix) name##_##suffix
#define PASTE(name, suffix) PASTE2(name, suffix)

/* Values are counted in 32-bit lanes, block by block, so that the count does not narrow the loop.
 */
enum { BLOCK = 1024 };

/* Scale 1 gets a loop of its own: x / 1 = x, and division is the slowest step of the other. */
#define DEFINE_ENCODE(format, type) \
    static int64_t encode_##format(const float *src, int64_t n, float scale, void *dst) { \
        int64_t count = 0; \
        for (int64_t first = 0; first < n; first += BLOCK) { \
            int m = (int)(n - first < BLOCK ? n - first : BLOCK); \
            const float *restrict x = src + first; \
            type *restrict out = (type *)dst + first; \
            uint32_t over = 0; \
            if (scale == 1.0f) { \
                for (int i = 0; i < m; i++) out[i] = kvl_enc_##format(x[i]); \
                for (int i = 0; i < m; i++) over += kvl_over_##format(x[i]); \
            } else { \
                for (int i = 0; i < m; i++) out[i] = kvl_enc_##format(x[i] / scale); \
                for (int i = 0; i < m; i++) over += kvl_over_##format(x[i] / scale); \
            } \
            count += over; \
        } \
        return count; \
    }
DEFINE_ENCODE(f16, uint16_t)
DEFINE_ENCODE(bf16, uint16_t)
DEFINE_ENCODE(e4m3, uint8_t)
DEFINE_ENCODE(e5m2, uint8_t)
DEFINE_ENCODE(int8, int8_t)

#define DEFINE_DECODE(format, type) \
    static void decode_##format(const void *src, int64_t n, float scale, float *restrict dst) { \
        const type *restrict code = src; \
        if (scale == 1.0f) { \
            for (int64_t i = 0; i < n; i++) dst[i] = kvl_dec_##format(code[i]); \
        } else { \
            for (int64_t i = 0; i < n; i++) dst[i] = kvl_dec_##format(code[i]) * scale; \
        } \
    }
DEFINE_DECODE(f16, uint16_t)
DEFINE_DECODE(bf16, uint16_t)
DEFINE_DECODE(e4m3, uint8_t)
DEFINE_DECODE(e5m2, uint8_t)
DEFINE_DECODE(int8, int8_t)

static int64_t encode_f32(const float *src, int64_t n, float scale, void *dst) {
    float *out = dst;
    if (scale == 1.0f) {
        memmove(out, src, (size_t)n * sizeof *out);
    } else {
        for (int64_t i = 0; i < n; i++) out[i] = src[i] / scale;
    }
    return 0;
}

static void decode_f32(const void *src, int64_t n, float scale, float *dst) {
    const float *x = src;
    if (scale == 1.0f) {
        memmove(dst, x, (size_t)n * sizeof *dst);
    } else {
        for (int64_t i = 0; i < n; i++) dst[i] = x[i] * scale;
    }
}

/* Indexed by kvl_dtype, KVL_F32 to KVL_KV_DTYPE_LAST. */
const kvl_convert_kernels PASTE(kvl_convert, KVL_ISA_SUFFIX) = {
    .encode = {encode_f32, encode_f16, encode_bf16, encode_e4m3, encode_e5m2, encode_int8},
    .decode = {decode_f32, decode_f16, decode_bf16, decode_e4m3, decode_e5m2, decode_int8},
};
