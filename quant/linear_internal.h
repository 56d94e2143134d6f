/* The seam between kvl_linear and a weight format, and what the files of the layer share.
 *
 * A layer is cut into panels of `panel` output rows: two vectors of the instruction set in use when
 * it was made. A format says how the panel's weights are stored; everything else (threads, blocks,
 * bias, accumulation) is common. A new format is one file built through kvl_isa_source that defines
 * kvl_weights_<name>_<isa>, and one line in quant/weights_registry.c. */
#ifndef KVL_QUANT_LINEAR_INTERNAL_H
#define KVL_QUANT_LINEAR_INTERNAL_H

#include "core/isa.h"
#include "quant/linear.h"

/* Where a product goes: y[r][o] (+)= sum[r][o] + bias[o] for o < n_out. */
typedef struct kvl_linear_sink {
    float *y; /* [rows][y_stride] */
    int64_t y_stride;
    int64_t n_out;
    const float *bias; /* [n_out rounded up to whole panels], or NULL */
    bool accumulate;
} kvl_linear_sink;

/* Up to this many rows of x are "few". */
enum { KVL_STREAM_ROWS = 6 };

/* Few rows against a run of panels; every weight byte is read once. */
typedef struct kvl_stream_job {
    const uint8_t *panels; /* panel 0 of the layer */
    uint64_t panel_bytes;
    int64_t first_panel, end_panel;
    const float *x; /* [n_rows][x_stride] */
    int64_t x_stride;
    int64_t n_in;
    int n_rows; /* 1 .. KVL_STREAM_ROWS */
    kvl_linear_sink sink;
} kvl_stream_job;

/* Many rows on the CPU's bf16 matrix instructions (AVX512_BF16, AMX). x is bf16
 * [n_rows][x_stride], x_stride a multiple of 32 at least n_in, zeros from n_in on; rows from n_rows
 * up to a multiple of 32 exist and are zeros. A row's sums do not depend on the rows beside it, but
 * their order is the hardware's: not that of `tile`. */
typedef struct kvl_matrix_job {
    const uint8_t *panels; /* panel 0 of the layer */
    uint64_t panel_bytes;
    int64_t first_panel, end_panel;
    const uint16_t *x;
    int64_t x_stride;
    int64_t n_rows, n_in;
    kvl_linear_sink sink;
    uint8_t *scratch; /* matrix_scratch_bytes of this worker's own, 64-byte aligned */
} kvl_matrix_job;

/* What a format adds whose weights share a scale in blocks of the flattened tensor. A panel knows
 * its block size, so that decode_row, decode_tile and stream need nothing else. */
typedef struct kvl_block_codec {
    kvl_nf4_type type;
    bool nested; /* absmax is rounded to 8 bits (double quantisation) */
    /* Bytes of one panel; false when they overflow 64 bits. */
    bool (*panel_bytes)(int64_t n_in, int64_t block, uint64_t *out);
    void (*start_panel)(void *panel, kvl_nf4_type type, int64_t n_in, int64_t block);
    /* Then, of each lane: weights before its first one in that one's block; its codes, one a byte
     * [n_in]; absmax of the blocks it touches. */
    void (*set_phase)(void *panel, int64_t lane, int64_t phase);
    void (*set_codes)(void *panel, int64_t n_in, int64_t lane, const uint8_t *codes);
    void (*set_absmax)(void *panel, int64_t n_in, int64_t lane, const float *absmax);
} kvl_block_codec;

/* Rows of x in tiles of at most tile_rows, as equal as possible: 6 + 1 rows would leave one tile
 * waiting on its few sums. */
typedef struct kvl_tiling {
    int64_t n_rows, n_tiles;
    int64_t n_in;
} kvl_tiling;

/* The first row of a tile. */
static inline int64_t kvl_tile_row(kvl_tiling tiling, int64_t tile) {
    return tiling.n_rows * tile / tiling.n_tiles;
}

/* sums[rows][panel] = (resume ? sums : 0) + x[rows][k .. k + n_k] weights[n_k][panel], added in the
 * order of k, for the rows of some tiles. */
typedef struct kvl_tile_job {
    const float *x; /* packed: tile t, [n_in][rows of t], from x + kvl_tile_row(t) * n_in on */
    kvl_tiling tiling;
    int64_t first_tile, end_tile;
    const void *weights; /* those of k .. k + n_k; k is even */
    int64_t k, n_k;
    float *sums; /* [rows of all the tiles][panel] */
    bool resume;
    /* Where complete sums go instead, as outputs o .. o + panel, y at the first tile's first row;
     * NULL while sums go on. */
    const kvl_linear_sink *sink;
    int64_t o;
    /* Stored weights that are needed next: brought to the caches meanwhile. */
    const char *ahead;
    int64_t ahead_bytes;
} kvl_tile_job;

typedef struct kvl_weight_codec {
    kvl_weight_format format; /* the public face */
    int panel;                /* output rows of a panel */
    /* Stored bytes of a k of all lanes, where a panel is one k after another; else 0. */
    int64_t k_bytes;

    /* Bytes of one panel of rows of n_in weights; false when they overflow 64 bits. */
    bool (*panel_bytes)(int64_t n_in, uint64_t *out);
    /* Stores rows [n_rows][n_in] as lanes lane .. lane + n_rows of a panel. first_row names the
     * first of them in messages. */
    kvl_status (*encode)(const float *rows, int64_t first_row, int64_t n_rows, int64_t n_in,
                         int64_t lane, void *panel);
    /* One lane to float32 [n_in]. */
    void (*decode_row)(const void *panel, int64_t n_in, int64_t lane, float *out);
    /* Weights k0 (even) .. k0 + n_k of all lanes as float32 [n_k][panel]: written to scratch (that
     * many floats), or the panel's own memory where it is float32 already. */
    const float *(*decode_tile)(const void *panel, int64_t n_in, int64_t k0, int64_t n_k,
                                float *scratch);
    /* Widens in registers instead of through scratch; NULL when the format has no such kernel. Sums
     * in the order of kvl_linear_isa.tile, so the bits are the same. */
    void (*stream)(const kvl_stream_job *job);
    /* Takes products of matrix_rows rows or more when x is bf16 and the caller did not ask for
     * determinism; NULL when the format or the instruction set has none. */
    void (*matrix)(const kvl_matrix_job *job);
    const char *matrix_kernel; /* "matrix/amx" */
    int matrix_rows;
    uint64_t matrix_scratch_bytes;
    /* Weights share scales in blocks: takes the place of panel_bytes and encode; else NULL. */
    const kvl_block_codec *blocks;
    /* kvl_linear_isa.tile on stored weights, widened in registers, with the same bits; NULL: they
     * go through decode_tile. */
    void (*tile)(const kvl_tile_job *job);
} kvl_weight_codec;

/* What does not depend on the format, once an instruction set (quant/linear_tile.c). */
typedef struct kvl_linear_isa {
    const char *kernel; /* "panel/avx2" */
    int panel;
    int tile_rows; /* rows of x in registers at a time */
    int tile_k;    /* weights of a lane widened at a time, so that the tile stays in L1 */
    void (*tile)(const kvl_tile_job *job); /* float32 weights */
    /* Packs the rows of some tiles of x [n_rows][x_stride] as kvl_tile_job reads them, with
     * `rounds` to bf16 first. */
    void (*pack)(const float *x, int64_t x_stride, kvl_tiling tiling, int64_t first_tile,
                 int64_t end_tile, bool rounds, float *packed);
    /* Rows of sums [n_rows][sums_stride], panel columns each, to outputs o .. o + panel. */
    void (*store)(const float *sums, int64_t sums_stride, int64_t n_rows, int64_t o,
                  const kvl_linear_sink *sink);
    /* out[n] = x[n] rounded to bf16, as float32. */
    void (*round_bf16)(const float *x, int64_t n, float *out);
    /* out[n] = the bf16 codes of x[n], rounded. */
    void (*to_bf16)(const float *x, int64_t n, uint16_t *out);
} kvl_linear_isa;

struct kvl_linear {
    const kvl_weight_codec *codec;
    const kvl_linear_isa *isa;
    int64_t n_out, n_in, n_panels;
    uint64_t panel_bytes, bytes;
    uint8_t *panels;                  /* [n_panels][panel_bytes] */
    float *bias;                      /* [n_panels * panel] padded with zeros, or NULL */
    uint8_t *is_set;                  /* [n_out], until finish */
    bool bf16_x;                      /* x is rounded to bf16 */
    bool deterministic;               /* no kernel whose order of sums depends on the row count */
    struct kvl_linear_blocks *blocks; /* filling state of a format of blocks, or NULL */
};

/* The instruction set's kernels and the format's, for the level that kvl_isa_current() says. */
const kvl_linear_isa *kvl_linear_isa_now(void);
const kvl_weight_codec *kvl_weight_codec_now(const kvl_weight_format *format);

/* quant/linear_blocks.c: the life of a layer whose format has blocks. Sizes and memory for `layer`
 * (codec, n_out and n_in are set); rows; release. */
kvl_status kvl_linear_blocks_create(kvl_linear *layer, const kvl_linear_options *options);
bool kvl_linear_blocks_panel_bytes(const kvl_linear *layer, uint64_t *out);
void kvl_linear_blocks_start(kvl_linear *layer);
kvl_status kvl_linear_blocks_set_rows(kvl_linear *layer, int64_t first, int64_t n_rows,
                                      const float *rows);
void kvl_linear_blocks_destroy(kvl_linear *layer);
double kvl_linear_bits(const kvl_linear *layer); /* of a weight, its share of scales included */

/* Whether n_rows rows of this layer take the matrix path. */
static inline bool kvl_linear_uses_matrix(const kvl_linear *layer, int64_t n_rows) {
    return layer->codec->matrix && layer->bf16_x && !layer->deterministic &&
           n_rows >= layer->codec->matrix_rows;
}

#endif
