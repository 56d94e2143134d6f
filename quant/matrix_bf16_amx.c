/* Many rows of bf16 x against bf16 panels on AMX: TDPBF16PS adds to a 16 x 16 tile of float32 sums
 * the products of 16 rows of 32 x and 16 pairs of k of 16 outputs.
 *
 * Two x two tiles of sums (32 rows x one panel) take two tiles of x and two of weights: four loads
 * for four products, the best ratio that eight tile registers allow. Pieces of k are outermost in a
 * block of rows and a group of panels, so that the piece of x stays in L2 and the piece of a panel
 * is still nearer while the rows pass it; sums wait in scratch between pieces. The last pairs of an
 * n_in that is no multiple of 32 go through a tile filled up with zeros, x being zeros there. */
#include "core/amx.h"
#include "quant/linear_sink.h"
#include "quant/matrix_bf16.h"

enum {
    TILE_ROWS = 16,
    TILE_K = 32,
    ROWS = 2 * TILE_ROWS,                            /* rows of a product of tiles */
    TILE_WEIGHTS = TILE_K * KVL_PANEL,               /* of a step: two tiles side by side */
    WEIGHT_STRIDE = 2 * KVL_PANEL * sizeof(uint16_t) /* bytes between pairs of k */
};

/* A piece of k of one panel at work. */
typedef struct piece {
    const uint16_t *w, *tail; /* whole steps from w on; the partial step, or NULL */
    int64_t n_whole;
    const char *ahead; /* the lines that are needed next, n_ahead for every row block's step */
    int64_t n_ahead;
    bool resume;
} piece;

#define LOAD_SUMS(i, at) \
    do { \
        if (p->resume) { \
            _tile_loadd(i, at, KVL_PANEL * sizeof(float)); \
        } else { \
            _tile_zero(i); \
        } \
    } while (0)

/* sums [ROWS][KVL_PANEL] (+)= x w; both: else only the first TILE_ROWS rows. */
static inline __attribute__((always_inline)) void
product(const piece *p, const uint16_t *x, int64_t x_stride, float *sums, const bool both) {
    size_t x_bytes = (size_t)x_stride * sizeof *x;
    kvl_amx_written();
    LOAD_SUMS(0, sums);
    LOAD_SUMS(1, sums + TILE_ROWS);
    if (both) {
        LOAD_SUMS(2, sums + TILE_ROWS * KVL_PANEL);
        LOAD_SUMS(3, sums + TILE_ROWS * KVL_PANEL + TILE_ROWS);
    }
    const char *ahead = p->ahead;
    int64_t n_steps = p->n_whole + (p->tail != NULL);
    for (int64_t step = 0; step < n_steps; step++, x += TILE_K) {
        const uint16_t *w = step < p->n_whole ? p->w + step * TILE_WEIGHTS : p->tail;
        _tile_loadd(4, x, x_bytes);
        _tile_loadd(6, w, WEIGHT_STRIDE);
        _tile_loadd(7, w + 2 * TILE_ROWS, WEIGHT_STRIDE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (both) {
            _tile_loadd(5, x + TILE_ROWS * x_stride, x_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        for (int64_t i = 0; i < p->n_ahead; i++, ahead += 64) __builtin_prefetch(ahead, 0, 2);
    }
    _tile_stored(0, sums, KVL_PANEL * sizeof(float));
    _tile_stored(1, sums + TILE_ROWS, KVL_PANEL * sizeof(float));
    if (both) {
        _tile_stored(2, sums + TILE_ROWS * KVL_PANEL, KVL_PANEL * sizeof(float));
        _tile_stored(3, sums + TILE_ROWS * KVL_PANEL + TILE_ROWS, KVL_PANEL * sizeof(float));
    }
}

static void finish_rows(const kvl_linear_sink *sink, int64_t row, int64_t n_rows, int64_t o,
                        const float *sums) {
    for (int64_t r = 0; r < n_rows; r++) {
        kvl_sink_vector(sink, row + r, o, vf_load_f32(sums + r * KVL_PANEL));
        kvl_sink_vector(sink, row + r, o + KVL_VL, vf_load_f32(sums + r * KVL_PANEL + KVL_VL));
    }
}

/* The rows [row, row_end) of the job against one piece of one panel. */
static void piece_of_panel(const kvl_matrix_job *job, piece p, int64_t k, int64_t row,
                           int64_t row_end, int64_t o, float *sums, bool last) {
    for (; row < row_end; row += ROWS, sums += ROWS * KVL_PANEL) {
        int64_t n = row_end - row < ROWS ? row_end - row : ROWS;
        const uint16_t *x = job->x + row * job->x_stride + k;
        if (n > TILE_ROWS) {
            product(&p, x, job->x_stride, sums, true);
        } else {
            product(&p, x, job->x_stride, sums, false);
        }
        p.ahead += p.n_ahead * 64 * (p.n_whole + (p.tail != NULL));
        if (last) finish_rows(&job->sink, row, n, o, sums);
    }
}

/* The weights k0 .. k0 + n_k of a panel; a partial step is copied and filled up. */
static piece take_piece(const kvl_matrix_job *job, int64_t panel, int64_t k0, int64_t n_k,
                        int64_t n_rows) {
    const uint16_t *w = (const uint16_t *)(job->panels + (uint64_t)panel * job->panel_bytes);
    piece p = {.w = w + k0 * KVL_PANEL, .n_whole = n_k / TILE_K, .resume = k0 > 0};
    int64_t n_pairs = (n_k % TILE_K + 1) / 2, n_row_blocks = (n_rows + ROWS - 1) / ROWS;
    if (n_pairs > 0) {
        size_t bytes = (size_t)n_pairs * WEIGHT_STRIDE;
        memcpy(job->scratch, p.w + p.n_whole * TILE_WEIGHTS, bytes);
        memset(job->scratch + bytes, 0, KVL_MATRIX_TAIL_BYTES - bytes);
        p.tail = (const uint16_t *)job->scratch;
    }
    /* What follows a piece in memory is the panel's next one, or the next panel: the order in which
     * they are needed when the panel is one piece, and near enough else. */
    p.ahead = (const char *)(p.w + n_k * KVL_PANEL);
    if (panel + 1 < job->end_panel) p.n_ahead = (TILE_K + n_row_blocks - 1) / n_row_blocks;
    return p;
}

static void block_of_rows(const kvl_matrix_job *job, int64_t row, int64_t row_end, int64_t first,
                          int64_t end) {
    float *sums = (float *)(job->scratch + KVL_MATRIX_TAIL_BYTES);
    int64_t n_pieces = (job->n_in + KVL_MATRIX_PIECE_K - 1) / KVL_MATRIX_PIECE_K;
    for (int64_t i = 0; i < n_pieces; i++) {
        int64_t k = i * KVL_MATRIX_PIECE_K, n_k = job->n_in - k;
        if (n_k > KVL_MATRIX_PIECE_K) n_k = KVL_MATRIX_PIECE_K;
        for (int64_t panel = first; panel < end; panel++)
            piece_of_panel(job, take_piece(job, panel, k, n_k, row_end - row), k, row, row_end,
                           panel * KVL_PANEL,
                           sums + (panel - first) * KVL_MATRIX_BLOCK_ROWS * KVL_PANEL,
                           i + 1 == n_pieces);
    }
}

void KVL_ISA_FN(kvl_matrix_bf16)(const kvl_matrix_job *job) {
    int64_t n_rows = job->n_rows;
    kvl_amx_begin();
    for (int64_t row = 0, row_end; row < n_rows; row = row_end) {
        row_end = row + KVL_MATRIX_BLOCK_ROWS < n_rows ? row + KVL_MATRIX_BLOCK_ROWS : n_rows;
        for (int64_t panel = job->first_panel, end; panel < job->end_panel; panel = end) {
            end = panel + KVL_MATRIX_GROUP_PANELS;
            if (end > job->end_panel) end = job->end_panel;
            block_of_rows(job, row, row_end, panel, end);
        }
    }
    kvl_amx_end();
}
