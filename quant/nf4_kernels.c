/* Encoding of one NF4 or FP4 block: plain loops that the compiler turns into vectors, built once an
 * instruction set. The arithmetic is the same everywhere, so the bits are too. */
#include "quant/nf4_kernels.h"

#include <float.h>
#include <string.h>

#include "core/simd.h"

enum { CHUNK = 64 };

/* Nothing divides by less: a block of zeros then scales to zeros. */
static const float smallest_absmax = 1e-38f;

/* The bits of positive floats compare as integers do, and a NaN is above them all. */
static float absmax_of(const float *w, int64_t n) {
    int32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, &w[i], sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    float absmax;
    memcpy(&absmax, &most, sizeof absmax);
    return absmax;
}

/* Ranks of up to CHUNK scaled weights; of a NaN the highest. */
static void rank(const kvl_nf4_rule *rule, const float *scaled, uint8_t *codes, int64_t n) {
    int32_t ranks[CHUNK] = {0};
    for (int b = 0; b < 15; b++) {
        float bound = rule->bounds[b];
        for (int i = 0; i < CHUNK; i++) ranks[i] += scaled[i] <= bound ? 0 : 1;
    }
    uint8_t narrow[CHUNK];
    for (int i = 0; i < CHUNK; i++) narrow[i] = (uint8_t)ranks[i];
    if (!rule->ranks_are_codes)
        for (int i = 0; i < CHUNK; i++) narrow[i] = rule->order[narrow[i]];
    memcpy(codes, narrow, (size_t)n);
}

static void encode(const kvl_nf4_rule *rule, const float *w, int64_t n, bool is_short,
                   uint8_t *codes, float *absmax) {
    float most = absmax_of(w, n), divisor = most < smallest_absmax ? smallest_absmax : most;
    float factor = 1.0f / divisor;
    for (int64_t from = 0; from < n; from += CHUNK) {
        int64_t size = n - from < CHUNK ? n - from : CHUNK;
        float scaled[CHUNK] = {0};
        if (is_short)
            for (int64_t i = 0; i < size; i++) scaled[i] = w[from + i] / divisor;
        else
            for (int64_t i = 0; i < size; i++) scaled[i] = w[from + i] * factor;
        rank(rule, scaled, codes + from, size);
    }
    *absmax = is_short ? divisor : most;
}

const kvl_nf4_kernels KVL_ISA_FN(kvl_nf4_kernels) = {.encode = encode};
