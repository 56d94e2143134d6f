/* Every primitive of core/simd.h, compared with plain C by tests/core/test_simd.c, once an isa. */
#include "tests/core/simd_probe.h"
#include "core/simd.h"

int KVL_ISA_FN(simd_width)(void) {
    return KVL_VL;
}

/* Decodes n codes of one format, in full vectors and a partial one. */
#define DECODER(name, type) \
    void KVL_ISA_FN(simd_decode_##name)(const void *codes, int n, float *out) { \
        const type *p = codes; \
        int i = 0; \
        for (; i + KVL_VL <= n; i += KVL_VL) vf_store(out + i, vf_load_##name(p + i)); \
        vf_store_n(out + i, vf_load_##name##_n(p + i, n - i), n - i); \
    }
DECODER(f32, float)
DECODER(f16, uint16_t)
DECODER(bf16, uint16_t)
DECODER(e4m3, uint8_t)
DECODER(e5m2, uint8_t)

void KVL_ISA_FN(simd_encode_bf16)(const float *x, int n, uint16_t *out) {
    for (int i = 0; i + KVL_VL <= n; i += KVL_VL) vf_store_bf16(out + i, vf_load_f32(x + i));
}

void KVL_ISA_FN(simd_exp)(const float *x, int n, float *out) {
    for (int i = 0; i + KVL_VL <= n; i += KVL_VL) vf_store(out + i, vf_exp(vf_load_f32(x + i)));
}

/* out[0] = sum, out[1] = max, out[2] = sum of fma(x, x, 1), each over the first KVL_VL floats;
 * out[3..] = max(x, x reversed by one), min, sub, div, round. */
void KVL_ISA_FN(simd_basics)(const float *x, float *out) {
    vf a = vf_load_f32(x), b = vf_load_f32(x + 1);
    out[0] = vf_hsum(a);
    out[1] = vf_hmax(a);
    out[2] = vf_hsum(vf_fma(a, a, vf_set1(1.0f)));
    out[3] = vf_hsum(vf_max(a, b));
    out[4] = vf_hsum(vf_min(a, b));
    out[5] = vf_hsum(vf_sub(a, b));
    out[6] = vf_hsum(vf_div(a, b));
    out[7] = vf_hsum(vf_round(a));
    out[8] = vf_hsum(vf_add(vf_zero(), vf_mul(a, b)));
}

void KVL_ISA_FN(simd_encode_f16)(const float *x, int n, uint16_t *out) {
    for (int i = 0; i + KVL_VL <= n; i += KVL_VL) vf_store_f16(out + i, vf_load_f32(x + i));
}

void KVL_ISA_FN(simd_tanh)(const float *x, int n, float *out) {
    for (int i = 0; i + KVL_VL <= n; i += KVL_VL) vf_store(out + i, vf_tanh(vf_load_f32(x + i)));
}

/* one[0..3] = vf_hsum of x + 0, 1, 2, 3; four[0..3] = vf_hsum4 of the same. */
void KVL_ISA_FN(simd_hsum4)(const float *x, float *one, float *four) {
    for (int i = 0; i < 4; i++) one[i] = vf_hsum(vf_load_f32(x + i));
    vf_hsum4(four, vf_load_f32(x), vf_load_f32(x + 1), vf_load_f32(x + 2), vf_load_f32(x + 3));
}

/* out[0..KVL_VL) = x < limit ? 1 : 2. */
void KVL_ISA_FN(simd_select_below)(const float *x, float limit, float *out) {
    vf_store(out, vf_select_below(vf_load_f32(x), vf_set1(limit), vf_set1(1), vf_set1(2)));
}
