/* Many-row products: a register tile of rows x one panel, and the small vector helpers around it.
 * Built once an instruction set.
 *
 * 6 rows x 16 columns on AVX2 (12 of 16 registers hold sums), 12 x 32 on AVX-512 (24 of 32): two
 * weight vectors and one broadcast feed 12 or 24 multiply-adds. The weights of a tile are float32
 * in the L1 cache by then. */
#include "quant/linear_sink.h"

enum {
    TILE_ROWS = KVL_VL == 16 ? 12 : 6,
    TILE_K = 256, /* 256 x 16 floats: half of a 32 KiB L1 */
};

/* R rows; R is a constant at every call. */
static inline __attribute__((always_inline)) void tile_rows(const float *x, int64_t x_stride,
                                                            const float *w, int64_t n_k,
                                                            float *sums, bool resume, const int R) {
    vf sum[12][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
        sum[r][0] = resume ? vf_load_f32(sums + r * KVL_PANEL) : vf_zero();
        sum[r][1] = resume ? vf_load_f32(sums + r * KVL_PANEL + KVL_VL) : vf_zero();
    }
    for (int64_t k = 0; k < n_k; k++) {
        vf w0 = vf_load_f32(w + k * KVL_PANEL), w1 = vf_load_f32(w + k * KVL_PANEL + KVL_VL);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            vf a = vf_set1(x[r * x_stride + k]);
            sum[r][0] = vf_fma(a, w0, sum[r][0]);
            sum[r][1] = vf_fma(a, w1, sum[r][1]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
        vf_store(sums + r * KVL_PANEL, sum[r][0]);
        vf_store(sums + r * KVL_PANEL + KVL_VL, sum[r][1]);
    }
}

static void tile(const float *x, int64_t x_stride, int64_t n_rows, const float *w, int64_t n_k,
                 float *sums, bool resume) {
    /* Blocks as equal as possible: 6 + 1 rows would leave one block waiting on its few sums. */
    int64_t n_blocks = (n_rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t i = 0; i < n_blocks; i++) {
        int64_t r = n_rows * i / n_blocks, n = n_rows * (i + 1) / n_blocks - r;
        const float *rows = x + r * x_stride;
        float *to = sums + r * KVL_PANEL;
        switch (n) {
#define CASE(R) \
    case R: \
        if (R <= TILE_ROWS) tile_rows(rows, x_stride, w, n_k, to, resume, R); \
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
