#include "harness/trial/ceiling_kernels.h"

#include "core/simd.h"

/* Eight independent sums, so that the loads and not the additions set the pace. */
float KVL_ISA_FN(kvl_ceiling_sum)(const float *x, int64_t n) {
    enum { WAYS = 8 };
    vf sums[WAYS];
    for (int w = 0; w < WAYS; w++) sums[w] = vf_zero();
    for (int64_t i = 0; i < n; i += WAYS * KVL_VL) {
        for (int w = 0; w < WAYS; w++) sums[w] = vf_add(sums[w], vf_load_f32(x + i + w * KVL_VL));
    }
    for (int w = 1; w < WAYS; w++) sums[0] = vf_add(sums[0], sums[w]);
    return vf_hsum(sums[0]);
}

/* The same over eight places that move on together, asked for ahead of their use: more pages of
 * memory are open at once, which some machines read faster and some slower. */
float KVL_ISA_FN(kvl_ceiling_sum_streams)(const float *x, int64_t n) {
    enum { STREAMS = 8, AHEAD_FLOATS = 256, LINE = 16 };
    vf sums[STREAMS];
    int64_t part = n / STREAMS;
    for (int w = 0; w < STREAMS; w++) sums[w] = vf_zero();
    for (int64_t i = 0; i < part; i += LINE) {
        for (int w = 0; w < STREAMS; w++) {
            const float *at = x + w * part + i;
            __builtin_prefetch(at + AHEAD_FLOATS);
            for (int k = 0; k < LINE; k += KVL_VL) sums[w] = vf_add(sums[w], vf_load_f32(at + k));
        }
    }
    for (int w = 1; w < STREAMS; w++) sums[0] = vf_add(sums[0], sums[w]);
    return vf_hsum(sums[0]);
}

/* 12 chains hide the latency of two multiply-add units (4 to 5 cycles each) and leave registers for
 * the constants on sets with 16. */
float KVL_ISA_FN(kvl_ceiling_fma)(int64_t n, double *flops) {
    enum { CHAINS = 12 };
    vf chains[CHAINS], a = vf_set1(0.999f), b = vf_set1(0.001f);
    for (int c = 0; c < CHAINS; c++) chains[c] = vf_set1((float)c);
    for (int64_t i = 0; i < n; i++) {
        for (int c = 0; c < CHAINS; c++) chains[c] = vf_fma(chains[c], a, b);
    }
    for (int c = 1; c < CHAINS; c++) chains[0] = vf_add(chains[0], chains[c]);
    *flops = 2.0 * CHAINS * KVL_VL * (double)n;
    return vf_hsum(chains[0]);
}
