/* Entry points of simd_probe.c, one set per instruction set. */
#ifndef KVL_TESTS_SIMD_PROBE_H
#define KVL_TESTS_SIMD_PROBE_H

#include <stdint.h>

#define KVL_SIMD_PROBE(isa) \
    int simd_width_##isa(void); \
    void simd_decode_f32_##isa(const void *codes, int n, float *out); \
    void simd_decode_f16_##isa(const void *codes, int n, float *out); \
    void simd_decode_bf16_##isa(const void *codes, int n, float *out); \
    void simd_decode_e4m3_##isa(const void *codes, int n, float *out); \
    void simd_decode_e5m2_##isa(const void *codes, int n, float *out); \
    void simd_encode_bf16_##isa(const float *x, int n, uint16_t *out); \
    void simd_exp_##isa(const float *x, int n, float *out); \
    void simd_basics_##isa(const float *x, float *out); \
    void simd_encode_f16_##isa(const float *x, int n, uint16_t *out); \
    void simd_tanh_##isa(const float *x, int n, float *out); \
    void simd_hsum4_##isa(const float *x, float *one, float *four); \
    void simd_select_below_##isa(const float *x, float limit, float *out);

KVL_SIMD_PROBE(scalar)
KVL_SIMD_PROBE(avx2)
KVL_SIMD_PROBE(avx512)

#endif
