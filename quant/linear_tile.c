/* What does not depend on the weight format: packing of x, tiles of float32 weights, and the small
 * vector helpers around them. Built once an instruction set. */
#define W_NAME f32
#define W_TYPE float
#define W_PAIRS 0
#include "quant/linear_weights.h"

#include "quant/linear_tile.h"

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

/* out[k][r] = x[r][k] for R rows; R is a constant at every call. Some k at a time, so that the
 * rounded rows wait in the L1 cache. */
static inline __attribute__((always_inline)) void
pack_rows(const float *x, int64_t x_stride, int64_t n_in, bool rounds, float *out, const int R) {
    enum { PIECE = 64 };
    float rounded[12][PIECE];
    for (int64_t k0 = 0; k0 < n_in; k0 += PIECE) {
        int64_t n = n_in - k0 < PIECE ? n_in - k0 : PIECE;
        const float *from = x + k0;
        int64_t stride = x_stride;
        if (rounds) {
            for (int r = 0; r < R; r++) round_bf16(x + r * x_stride + k0, n, rounded[r]);
            from = rounded[0];
            stride = PIECE;
        }
        for (int64_t k = 0; k < n; k++, out += R) {
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) out[r] = from[r * stride + k];
        }
    }
}

static void pack(const float *x, int64_t x_stride, kvl_tiling tiling, int64_t first_tile,
                 int64_t end_tile, bool rounds, float *packed) {
    for (int64_t t = first_tile; t < end_tile; t++) {
        int64_t r = kvl_tile_row(tiling, t), n = kvl_tile_row(tiling, t + 1) - r;
        const float *from = x + r * x_stride;
        float *to = packed + r * tiling.n_in;
        switch (n) {
#define CASE(R) \
    case R: \
        if (R <= KVL_TILE_ROWS) pack_rows(from, x_stride, tiling.n_in, rounds, to, R); \
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

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
const kvl_linear_isa KVL_ISA_FN(kvl_linear_isa) = {
    .kernel = "panel/" TEXT(KVL_ISA_SUFFIX),
    .panel = KVL_PANEL,
    .tile_rows = KVL_TILE_ROWS,
    .tile_k = KVL_TILE_K,
    .tile = tile,
    .pack = pack,
    .store = store,
    .round_bf16 = round_bf16,
    .to_bf16 = to_bf16,
};
