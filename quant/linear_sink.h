/* The end of every product, for sources built through kvl_isa_source: sums in registers to y. */
#ifndef KVL_QUANT_LINEAR_SINK_H
#define KVL_QUANT_LINEAR_SINK_H

#include "core/simd.h"
#include "quant/linear_internal.h"

enum {
    KVL_PANEL = 2 * KVL_VL,
    KVL_TILE_ROWS = KVL_VL == 16 ? 12 : 6, /* rows of x x one panel fill the registers with sums */
    KVL_TILE_K = KVL_VL == 16 ? 256 : 320, /* a piece of weights and of x share the L1 cache */
};

/* The last outputs, fewer than a vector; out of line, so that kernels stay small. */
static __attribute__((noinline, unused)) void kvl_sink_rest(float *y, int n, bool accumulate,
                                                            vf sum) {
    if (accumulate) sum = vf_add(vf_load_f32_n(y, n), sum);
    vf_store_n(y, sum, n);
}

/* y[row][o .. o + KVL_VL) (+)= sum + bias, as far as n_out goes. The sum is complete before y or
 * bias joins it: an accumulated y then rounds once, however large it is beside the products. */
static inline void kvl_sink_vector(const kvl_linear_sink *sink, int64_t row, int64_t o, vf sum) {
    float *y = sink->y + row * sink->y_stride + o;
    int64_t n = sink->n_out - o;
    if (n <= 0) return;
    if (sink->bias) sum = vf_add(sum, vf_load_f32(sink->bias + o));
    if (n >= KVL_VL) {
        vf_store(y, sink->accumulate ? vf_add(vf_load_f32(y), sum) : sum);
    } else {
        kvl_sink_rest(y, (int)n, sink->accumulate, sum);
    }
}

#endif
