#include "quant/kv_format.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/isa.h"
#include "core/names.h"
#include "quant/convert.h"
#include "quant/convert_isa.h"

uint16_t kvl_f32_to_f16(float x) {
    return kvl_enc_f16(x);
}
float kvl_f16_to_f32(uint16_t code) {
    return kvl_dec_f16(code);
}
uint16_t kvl_f32_to_bf16(float x) {
    return kvl_enc_bf16(x);
}
float kvl_bf16_to_f32(uint16_t code) {
    return kvl_dec_bf16(code);
}
uint8_t kvl_f32_to_e4m3(float x) {
    return kvl_enc_e4m3(x);
}
float kvl_e4m3_to_f32(uint8_t code) {
    return kvl_dec_e4m3(code);
}
uint8_t kvl_f32_to_e5m2(float x) {
    return kvl_enc_e5m2(x);
}
float kvl_e5m2_to_f32(uint8_t code) {
    return kvl_dec_e5m2(code);
}
int8_t kvl_f32_to_int8(float x) {
    return kvl_enc_int8(x);
}

/* ---- the definition: one value at a time ---------------------------------------------------- */

#define DEFINE_FORMAT(format, type) \
    static int64_t encode_##format(const float *src, int64_t n, float scale, void *dst) { \
        type *out = dst; \
        int64_t over = 0; \
        for (int64_t i = 0; i < n; i++) { \
            float x = scale == 1.0f ? src[i] : src[i] / scale; \
            out[i] = kvl_enc_##format(x); \
            over += kvl_over_##format(x); \
        } \
        return over; \
    } \
    static void decode_##format(const void *src, int64_t n, float scale, float *dst) { \
        const type *codes = src; \
        for (int64_t i = 0; i < n; i++) { \
            float x = kvl_dec_##format(codes[i]); \
            dst[i] = scale == 1.0f ? x : x * scale; \
        } \
    }
DEFINE_FORMAT(f16, uint16_t)
DEFINE_FORMAT(bf16, uint16_t)
DEFINE_FORMAT(e4m3, uint8_t)
DEFINE_FORMAT(e5m2, uint8_t)
DEFINE_FORMAT(int8, int8_t)

static int64_t encode_f32(const float *src, int64_t n, float scale, void *dst) {
    return kvl_convert_scalar.encode[KVL_F32](src, n, scale, dst);
}
static void decode_f32(const void *src, int64_t n, float scale, float *dst) {
    kvl_convert_scalar.decode[KVL_F32](src, n, scale, dst);
}

/* In the order of kvl_dtype, which kvl_kv_format_of relies on. */
static const kvl_kv_format formats[] = {
    {"f32", KVL_F32, 0x1.fffffep127f, 0x1p-24, 0x1p-150, encode_f32, decode_f32},
    {"f16", KVL_F16, 65504.0f, 0x1p-11, 0x1p-25, encode_f16, decode_f16},
    {"bf16", KVL_BF16, 0x1.fep127f, 0x1p-8, 0x1p-134, encode_bf16, decode_bf16},
    {"fp8_e4m3", KVL_FP8_E4M3, 448.0f, 0x1p-4, 0x1p-10, encode_e4m3, decode_e4m3},
    {"fp8_e5m2", KVL_FP8_E5M2, 57344.0f, 0x1p-3, 0x1p-17, encode_e5m2, decode_e5m2},
    {"int8", KVL_I8, 127.0f, 0.0, 0.5, encode_int8, decode_int8},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

size_t kvl_kv_format_count(void) {
    return N_FORMATS;
}

const kvl_kv_format *kvl_kv_format_at(size_t index) {
    return index < N_FORMATS ? &formats[index] : NULL;
}

const kvl_kv_format *kvl_kv_format_of(kvl_dtype dtype) {
    return kvl_kv_format_at((size_t)dtype);
}

kvl_status kvl_kv_format_find(const char *name, const kvl_kv_format **out) {
    const char *names[N_FORMATS];
    for (size_t i = 0; i < N_FORMATS; i++) names[i] = formats[i].name;
    int index = kvl_names_find(name, names, N_FORMATS);
    if (index < 0) {
        char line[512];
        kvl_names_unknown(line, sizeof line, "KV format", name, names, N_FORMATS);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = &formats[index];
    return KVL_OK;
}

/* ---- pairs and scales ------------------------------------------------------------------------ */

kvl_status kvl_kv_pair_parse(const char *text, kvl_dtype *k, kvl_dtype *v) {
    const kvl_kv_format *format = NULL;
    const char *colon = strchr(text, ':');
    char first[64];
    size_t n = colon ? (size_t)(colon - text) : strlen(text);
    if (n >= sizeof first) n = sizeof first - 1;
    memcpy(first, text, n);
    first[n] = '\0';
    KVL_TRY(kvl_kv_format_find(first, &format));
    *k = *v = format->dtype;
    if (!colon) return KVL_OK;
    KVL_TRY(kvl_kv_format_find(colon + 1, &format));
    *v = format->dtype;
    return KVL_OK;
}

void kvl_kv_pair_name(kvl_dtype k, kvl_dtype v, char out[KVL_KV_PAIR_BYTES]) {
    if (k == v)
        snprintf(out, KVL_KV_PAIR_BYTES, "%s", kvl_dtype_name(k));
    else
        snprintf(out, KVL_KV_PAIR_BYTES, "%s:%s", kvl_dtype_name(k), kvl_dtype_name(v));
}

static const char *const scale_names[KVL_N_SCALES] = {"auto", "one",  "tensor",
                                                      "head", "page", "token"};

const char *kvl_kv_scale_name(kvl_kv_scale scale) {
    return scale_names[scale];
}

kvl_status kvl_kv_scale_parse(const char *name, kvl_kv_scale *out) {
    int index = kvl_names_find(name, scale_names, KVL_N_SCALES);
    if (index < 0) {
        char line[512];
        kvl_names_unknown(line, sizeof line, "kv_scale", name, scale_names, KVL_N_SCALES);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = (kvl_kv_scale)index;
    return KVL_OK;
}

static bool is_wide(kvl_dtype dtype) {
    return dtype == KVL_F32 || dtype == KVL_BF16;
}

static kvl_kv_scale scale_of(kvl_kv_scale wanted, kvl_dtype dtype) {
    if (wanted == KVL_SCALE_AUTO) return dtype == KVL_I8 ? KVL_SCALE_TOKEN : KVL_SCALE_ONE;
    if (is_wide(dtype)) return KVL_SCALE_ONE;
    return dtype == KVL_I8 && wanted == KVL_SCALE_PAGE ? KVL_SCALE_TOKEN : wanted;
}

kvl_status kvl_kv_scale_resolve(kvl_kv_scale wanted, kvl_dtype k_dtype, kvl_dtype v_dtype,
                                kvl_kv_scale *k, kvl_kv_scale *v) {
    const char *name = scale_names[wanted];
    if (wanted == KVL_SCALE_ONE && (k_dtype == KVL_I8 || v_dtype == KVL_I8))
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "kv_scale one: int8 holds -127 to 127 of a scale: token, head or tensor");
    if (wanted == KVL_SCALE_PAGE && k_dtype == KVL_I8 && v_dtype == KVL_I8)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "kv_scale page: a growing scale would round int8 again and again: token");
    if (wanted > KVL_SCALE_ONE && is_wide(k_dtype) && is_wide(v_dtype))
        return kvl_fail(KVL_ERR_UNSUPPORTED, "kv_scale %s: %s has the range of float32: one", name,
                        kvl_dtype_name(k_dtype));
    *k = scale_of(wanted, k_dtype);
    *v = scale_of(wanted, v_dtype);
    return KVL_OK;
}

int64_t kvl_kv_scale_tokens(kvl_kv_scale scale, int64_t page_tokens) {
    return scale == KVL_SCALE_TOKEN ? 1 : scale == KVL_SCALE_PAGE ? page_tokens : 0;
}

/* ---- bulk ----------------------------------------------------------------------------------- */

static const kvl_convert_kernels *kernels(void) {
    kvl_isa isa = kvl_isa_current();
    if (isa >= KVL_ISA_AVX512) return &kvl_convert_avx512;
    return isa >= KVL_ISA_AVX2 ? &kvl_convert_avx2 : &kvl_convert_scalar;
}

int64_t kvl_encode(kvl_dtype dtype, const float *src, int64_t n, float scale, void *dst) {
    assert((size_t)dtype < N_FORMATS);
    return kernels()->encode[dtype](src, n, scale, dst);
}

void kvl_decode(kvl_dtype dtype, const void *src, int64_t n, float scale, float *dst) {
    assert((size_t)dtype < N_FORMATS);
    kernels()->decode[dtype](src, n, scale, dst);
}
