/* Many-row products: a register tile of rows x one panel, and the small vector helpers around it.
 * Built once an instruction set.
 *
 * 6 rows x 16 columns on AVX2 (12 of 16 registers hold sums), 12 x 32 on AVX-512 (24 of 32): two
 * weight vectors and one broadcast feed 12 or 24 multiply-adds. The weights of a tile are float32
 * in the L1 cache by then. */
#include "quant/linear_sink.h"

enum {
    TILE_ROWS = KVL_VL == 16 ? 12 : 6,
    TILE_K = KVL_VL == 16 ? 256 : 320, /* 32 KiB of weights of a 48 KiB L1; 20 of 32 KiB */
    /* k between two prefetches of a line: one block of rows covers most of the next piece. */
    AHEAD_STEP = KVL_VL == 16 ? 1 : 4,
};

static inline __attribute__((always_inline)) void
tile_step(vf (*sum)[2], const float *x, int64_t x_stride, const float *w, const int R) {
    vf w0 = vf_load_f32(w), w1 = vf_load_f32(w + KVL_VL);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
        vf a = vf_set1(x[r * x_stride]);
        sum[r][0] = vf_fma(a, w0, sum[r][0]);
        sum[r][1] = vf_fma(a, w1, sum[r][1]);
    }
}

/* R rows from x on; R is a constant at every call. Meanwhile the caches are asked for 64 bytes
 * of `ahead` every AHEAD_STEP steps. */
static inline __attribute__((always_inline)) void
tile_rows(const kvl_tile_job *job, const float *x, float *sums, const char *ahead, const int R) {
    vf sum[12][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
        sum[r][0] = job->resume ? vf_load_f32(sums + r * KVL_PANEL) : vf_zero();
        sum[r][1] = job->resume ? vf_load_f32(sums + r * KVL_PANEL + KVL_VL) : vf_zero();
    }
    const float *w = job->weights;
    int64_t k = 0;
    for (; k + AHEAD_STEP <= job->n_k; k += AHEAD_STEP) {
        __builtin_prefetch(ahead + k * (64 / AHEAD_STEP));
#pragma GCC unroll 4
        for (int step = 0; step < AHEAD_STEP; step++)
            tile_step(sum, x + k + step, job->x_stride, w + (k + step) * KVL_PANEL, R);
    }
    for (; k < job->n_k; k++) tile_step(sum, x + k, job->x_stride, w + k * KVL_PANEL, R);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
        vf_store(sums + r * KVL_PANEL, sum[r][0]);
        vf_store(sums + r * KVL_PANEL + KVL_VL, sum[r][1]);
    }
}

static void store(const float *sums, int64_t sums_stride, int64_t n_rows, int64_t o,
                  const kvl_linear_sink *sink) {
    for (int64_t r = 0; r < n_rows; r++) {
        const float *from = sums + r * sums_stride;
        kvl_sink_vector(sink, r, o, vf_load_f32(from));
        kvl_sink_vector(sink, r, o + KVL_VL, vf_load_f32(from + KVL_VL));
    }
}

/* Sums of rows r .. r + n, just made, on to y. */
static void finish_rows(const kvl_tile_job *job, int64_t r, int64_t n) {
    kvl_linear_sink sink = *job->sink;
    sink.y += r * sink.y_stride;
    store(job->sums + r * KVL_PANEL, KVL_PANEL, n, job->o, &sink);
}

/* The lines of y that finish_rows will write, asked for while the sums are made. */
static void fetch_rows(const kvl_tile_job *job, int64_t r, int64_t n) {
    for (int64_t i = r; i < r + n; i++)
        __builtin_prefetch(job->sink->y + i * job->sink->y_stride + job->o, 1);
}

static void tile(const kvl_tile_job *job) {
    /* Blocks as equal as possible: 6 + 1 rows would leave one block waiting on its few sums. */
    int64_t n_rows = job->n_rows, n_blocks = (n_rows + TILE_ROWS - 1) / TILE_ROWS;
    const char *ahead = job->ahead, *ahead_end = ahead + job->ahead_bytes;
    for (int64_t i = 0; i < n_blocks; i++) {
        int64_t r = n_rows * i / n_blocks, n = n_rows * (i + 1) / n_blocks - r;
        const float *x = job->x + r * job->x_stride;
        float *sums = job->sums + r * KVL_PANEL;
        /* Nothing more to ask for: ask for what is here anyway. */
        if (ahead >= ahead_end) ahead = (const char *)job->weights;
        if (job->sink) fetch_rows(job, r, n);
        switch (n) {
#define CASE(R) \
    case R: \
        if (R <= TILE_ROWS) tile_rows(job, x, sums, ahead, R); \
        break
            CASE(1);
            CASE(2);
            CASE(3);
            CASE(4);
            CASE(5);
            CASE(6);
            CASE(7);
            CASE(8);
            CASE(9);
            CASE(10);
            CASE(11);
            CASE(12);
#undef CASE
        }
        if (job->sink) finish_rows(job, r, n);
        if (ahead != (const char *)job->weights) ahead += job->n_k * (64 / AHEAD_STEP);
    }
}

static void round_bf16(const float *x, int64_t n, float *out) {
    uint16_t codes[KVL_VL];
    int64_t i = 0;
    for (; i + KVL_VL <= n; i += KVL_VL) {
        vf_store_bf16(codes, vf_load_f32(x + i));
        vf_store(out + i, vf_load_bf16(codes));
    }
    vf_store_bf16(codes, vf_load_f32_n(x + i, (int)(n - i)));
    vf_store_n(out + i, vf_load_bf16(codes), (int)(n - i));
}

static void to_bf16(const float *x, int64_t n, uint16_t *out) {
    uint16_t codes[KVL_VL];
    int64_t i = 0;
    for (; i + KVL_VL <= n; i += KVL_VL) vf_store_bf16(out + i, vf_load_f32(x + i));
    vf_store_bf16(codes, vf_load_f32_n(x + i, (int)(n - i)));
    memcpy(out + i, codes, (size_t)(n - i) * sizeof *codes);
}

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
const kvl_linear_isa KVL_ISA_FN(kvl_linear_isa) = {
    .kernel = "panel/" TEXT(KVL_ISA_SUFFIX),
    .panel = KVL_PANEL,
    .tile_rows = TILE_ROWS,
    .tile_k = TILE_K,
    .tile = tile,
    .store = store,
    .round_bf16 = round_bf16,
    .to_bf16 = to_bf16,
};
