/* Body of a weight format that stores one plain element per weight; included by weights_<name>.c
 * after it has defined
 *   W_NAME   bf16, ...: vf_load_<W_NAME> widens KVL_VL of them
 *   W_TYPE   the stored type
 *   W_DTYPE  its kvl_dtype
 *   W_PAIRS  1: a panel is W_TYPE [n_in / 2, rounded up][KVL_PANEL][2], two k of an output side by
 *            side and a k from n_in on zero; 0: W_TYPE [n_in][KVL_PANEL]
 * Pairs of 16 bits fill the 32 bits of a lane: a whole load, a shift and a mask widen two vectors,
 * and the bf16 matrix instructions take them as they lie. */
#include <string.h>

#include "core/checked.h"
#include "quant/kv_format.h"
#include "quant/linear_sink.h"

#define W_PASTE2(a, b) a##b
#define W_PASTE(a, b) W_PASTE2(a, b)

/* Where weight k of a lane is. */
static inline int64_t weight_at(int64_t k, int64_t lane) {
    return W_PAIRS ? (k / 2 * KVL_PANEL + lane) * 2 + k % 2 : k * KVL_PANEL + lane;
}

/* Weights k (even) and k + 1 of KVL_VL lanes, lane a multiple of KVL_VL. */
static inline void load_two(const W_TYPE *w, int64_t k, int64_t lane, vf *even, vf *odd) {
#if W_PAIRS
    W_PASTE(W_PASTE(vf_load_, W_NAME), _pairs)(w + weight_at(k, lane), even, odd);
#else
    *even = W_PASTE(vf_load_, W_NAME)(w + weight_at(k, lane));
    *odd = W_PASTE(vf_load_, W_NAME)(w + weight_at(k + 1, lane));
#endif
}

/* The last k of an odd n_in. */
static inline vf load_one(const W_TYPE *w, int64_t k, int64_t lane) {
#if W_PAIRS
    vf even, odd;
    load_two(w, k, lane, &even, &odd);
    return even;
#else
    return W_PASTE(vf_load_, W_NAME)(w + weight_at(k, lane));
#endif
}

enum {
    /* Weights come from memory, and the hardware prefetcher stops at the end of a 4 KiB page. */
    PREFETCH_BYTES = 1024,
    /* Sums of R rows x P panels x 2 vectors live in registers: 12 vectors are enough to hide the
     * latency of the multiply-add (4 cycles, 2 a cycle) and leave room for weights. */
    MAX_PANELS = 6,
    MAX_SUMS = 6,
    CHUNK = 256,
};

static bool panel_bytes(int64_t n_in, uint64_t *out) {
    uint64_t n_k = (uint64_t)n_in + (W_PAIRS ? (uint64_t)n_in % 2 : 0);
    return kvl_mul_u64(n_k, KVL_PANEL * sizeof(W_TYPE), out);
}

static kvl_status encode(const float *rows, int64_t first_row, int64_t n_rows, int64_t n_in,
                         int64_t lane, void *panel) {
    W_TYPE *w = panel, codes[CHUNK];
    for (int64_t k0 = 0; k0 < n_in; k0 += CHUNK) {
        int64_t n_k = n_in - k0 < CHUNK ? n_in - k0 : CHUNK;
        for (int64_t r = 0; r < n_rows; r++) {
            int64_t n_over = kvl_encode(W_DTYPE, rows + r * n_in + k0, n_k, 1.0f, codes);
            if (n_over)
                return kvl_fail(KVL_ERR_INPUT,
                                "weights: row %lld: %lld of %lld values are too large for %s",
                                (long long)(first_row + r), (long long)n_over, (long long)n_k,
                                kvl_dtype_name(W_DTYPE));
            for (int64_t k = 0; k < n_k; k++) w[weight_at(k0 + k, lane + r)] = codes[k];
        }
    }
    return KVL_OK;
}

static void decode_row(const void *panel, int64_t n_in, int64_t lane, float *out) {
    const W_TYPE *w = panel;
    W_TYPE codes[CHUNK];
    for (int64_t k0 = 0; k0 < n_in; k0 += CHUNK) {
        int64_t n_k = n_in - k0 < CHUNK ? n_in - k0 : CHUNK;
        for (int64_t k = 0; k < n_k; k++) codes[k] = w[weight_at(k0 + k, lane)];
        kvl_decode(W_DTYPE, codes, n_k, 1.0f, out + k0);
    }
}

/* k0 is even. */
static const float *decode_tile(const void *panel, int64_t n_in, int64_t k0, int64_t n_k,
                                float *scratch) {
    const W_TYPE *w = panel;
    if (W_DTYPE == KVL_F32) return (const float *)panel + k0 * KVL_PANEL;
    int64_t k = 0;
    for (; k + 2 <= n_k; k += 2) {
        float *to = scratch + k * KVL_PANEL;
        vf w0[2], w1[2];
        load_two(w, k0 + k, 0, &w0[0], &w1[0]);
        load_two(w, k0 + k, KVL_VL, &w0[1], &w1[1]);
        vf_store(to, w0[0]);
        vf_store(to + KVL_VL, w0[1]);
        vf_store(to + KVL_PANEL, w1[0]);
        vf_store(to + KVL_PANEL + KVL_VL, w1[1]);
    }
    if (k < n_k) {
        vf_store(scratch + k * KVL_PANEL, load_one(w, k0 + k, 0));
        vf_store(scratch + k * KVL_PANEL + KVL_VL, load_one(w, k0 + k, KVL_VL));
    }
    return scratch;
}

/* ---- few rows ------------------------------------------------------------------------------- */

/* Column k of the rows times the weights in w. */
static inline __attribute__((always_inline)) void
stream_step(vf (*sum)[2], const vf *w, const float *x, int64_t x_stride, const int R, const int P) {
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        vf a = vf_set1(x[r * x_stride]);
        sum[r * P][0] = vf_fma(a, w[0], sum[r * P][0]);
        sum[r * P][1] = vf_fma(a, w[1], sum[r * P][1]);
    }
}

/* R rows against panels panel .. panel + P; R and P are constants at every call. */
static inline __attribute__((always_inline)) void
stream_panels(const kvl_stream_job *job, int64_t panel, const int R, const int P) {
    const W_TYPE *w[MAX_PANELS];
    vf sum[MAX_SUMS][2], w0[2], w1[2];
#pragma GCC unroll 6
    for (int p = 0; p < P; p++)
        w[p] = (const W_TYPE *)(job->panels + (uint64_t)(panel + p) * job->panel_bytes);
#pragma GCC unroll 6
    for (int i = 0; i < R * P; i++) sum[i][0] = sum[i][1] = vf_zero();

    int64_t k = 0;
    for (; k + 2 <= job->n_in; k += 2) {
#pragma GCC unroll 6
        for (int p = 0; p < P; p++) {
            const char *ahead = (const char *)(w[p] + k * KVL_PANEL) + PREFETCH_BYTES;
#pragma GCC unroll 4
            for (size_t b = 0; b < 2 * KVL_PANEL * sizeof(W_TYPE); b += 64)
                __builtin_prefetch(ahead + b);
            load_two(w[p], k, 0, &w0[0], &w1[0]);
            load_two(w[p], k, KVL_VL, &w0[1], &w1[1]);
            stream_step(sum + p, w0, job->x + k, job->x_stride, R, P);
            stream_step(sum + p, w1, job->x + k + 1, job->x_stride, R, P);
        }
    }
    if (k < job->n_in) {
#pragma GCC unroll 6
        for (int p = 0; p < P; p++) {
            w0[0] = load_one(w[p], k, 0);
            w0[1] = load_one(w[p], k, KVL_VL);
            stream_step(sum + p, w0, job->x + k, job->x_stride, R, P);
        }
    }

#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 6
        for (int p = 0; p < P; p++) {
            int64_t o = (panel + p) * KVL_PANEL;
            kvl_sink_vector(&job->sink, r, o, sum[r * P + p][0]);
            kvl_sink_vector(&job->sink, r, o + KVL_VL, sum[r * P + p][1]);
        }
    }
}

static void stream(const kvl_stream_job *job) {
    /* As many panels at a time as the registers hold, in shares as equal as possible. */
    static const int most[KVL_STREAM_ROWS + 1] = {0, 6, 3, 2, 1, 1, 1};
    int64_t n = job->end_panel - job->first_panel, n_steps = (n + most[job->n_rows] - 1);
    n_steps /= most[job->n_rows];
    for (int64_t i = 0; i < n_steps; i++) {
        int64_t from = job->first_panel + n * i / n_steps;
        int64_t to = job->first_panel + n * (i + 1) / n_steps;
        switch (job->n_rows * 8 + (to - from)) {
#define CASE(rows, count) \
    case (rows)*8 + (count): \
        stream_panels(job, from, rows, count); \
        break
            CASE(1, 1);
            CASE(1, 2);
            CASE(1, 3);
            CASE(1, 4);
            CASE(1, 5);
            CASE(1, 6);
            CASE(2, 1);
            CASE(2, 2);
            CASE(2, 3);
            CASE(3, 1);
            CASE(3, 2);
            CASE(4, 1);
            CASE(5, 1);
            CASE(6, 1);
#undef CASE
        }
    }
}
