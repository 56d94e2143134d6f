/* Body of a weight format that stores one plain element per weight; included by weights_<name>.c
 * after quant/linear_weights.h. */
#include <string.h>

#include "core/checked.h"
#include "quant/kv_format.h"

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
        vf_store(to, load_even(w, k0 + k, 0));
        vf_store(to + KVL_VL, load_even(w, k0 + k, KVL_VL));
        vf_store(to + KVL_PANEL, load_odd(w, k0 + k, 0));
        vf_store(to + KVL_PANEL + KVL_VL, load_odd(w, k0 + k, KVL_VL));
    }
    if (k < n_k) {
        vf_store(scratch + k * KVL_PANEL, load_even(w, k0 + k, 0));
        vf_store(scratch + k * KVL_PANEL + KVL_VL, load_even(w, k0 + k, KVL_VL));
    }
    return scratch;
}

/* ---- few rows ------------------------------------------------------------------------------- */

/* Column k of the rows times the weights of a panel. */
static inline __attribute__((always_inline)) void stream_step(vf (*sum)[2], const float *x,
                                                              int64_t x_stride, vf w0, vf w1,
                                                              const int R, const int P) {
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
        vf a = vf_set1(x[r * x_stride]);
        vf_fma_to(&sum[r * P][0], a, w0);
        vf_fma_to(&sum[r * P][1], a, w1);
    }
}

/* R rows against panels panel .. panel + P; R and P are constants at every call. `next` is how far
 * behind a panel the one lies that comes after it in the same stream, less the bytes of a panel. */
static inline __attribute__((always_inline)) void
stream_panels(const kvl_stream_job *job, int64_t panel, int64_t next, const int R, const int P) {
    const W_TYPE *w[MAX_PANELS];
    const float *x = job->x;
    int64_t x_stride = job->x_stride, n_in = job->n_in, k = 0;
    vf sum[MAX_SUMS][2];
#pragma GCC unroll 6
    for (int p = 0; p < P; p++)
        w[p] = (const W_TYPE *)(job->panels + (uint64_t)(panel + p) * job->panel_bytes);
#pragma GCC unroll 6
    for (int i = 0; i < R * P; i++) sum[i][0] = sum[i][1] = vf_zero();

    /* Up to `within` the bytes PREFETCH_BYTES ahead are of the same panel, then of the next. */
    int64_t within = n_in - PREFETCH_BYTES / W_K_BYTES, ahead_bytes = PREFETCH_BYTES;
    for (int part = 0; part < 2; part++) {
        int64_t end = part ? n_in : within;
        for (; k + 2 <= end; k += 2) {
#pragma GCC unroll 6
            for (int p = 0; p < P; p++) {
                const char *ahead = (const char *)(w[p] + k * KVL_PANEL) + ahead_bytes;
#pragma GCC unroll 4
                for (int b = 0; b < 2 * W_K_BYTES; b += 64) __builtin_prefetch(ahead + b);
                stream_step(sum + p, x + k, x_stride, load_even(w[p], k, 0),
                            load_even(w[p], k, KVL_VL), R, P);
                W_RELOAD();
                stream_step(sum + p, x + k + 1, x_stride, load_odd(w[p], k, 0),
                            load_odd(w[p], k, KVL_VL), R, P);
            }
        }
        ahead_bytes += next;
    }
    if (k < n_in) {
#pragma GCC unroll 6
        for (int p = 0; p < P; p++)
            stream_step(sum + p, x + k, x_stride, load_even(w[p], k, 0), load_even(w[p], k, KVL_VL),
                        R, P);
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
        /* At the end nothing comes after: ask for what is here anyway. */
        int64_t next = i + 1 < n_steps ? (to - from - 1) * (int64_t)job->panel_bytes
                                       : -(int64_t)PREFETCH_BYTES;
        switch (job->n_rows * 8 + (to - from)) {
#define CASE(rows, count) \
    case (rows)*8 + (count): \
        stream_panels(job, from, next, rows, count); \
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
