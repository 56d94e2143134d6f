/* Many rows of bf16 x against bf16 panels with VDPBF16PS: each lane multiplies a pair of k and adds
 * both products to a float32 sum.
 *
 * A register tile is 8 rows x one panel: 16 sums, which hide the instruction's latency, two weight
 * vectors, and one broadcast pair of x. A panel comes from memory once and stays in L2 while the
 * rows pass it. */
#include "quant/linear_sink.h"
#include "quant/matrix_bf16.h"

enum { TILE_ROWS = 8 };

/* A stretch of memory that is needed later: the tiles of a panel ask for it by turns, a line or two
 * a pair of k, so that it arrives at the rate at which it is used. */
typedef struct ahead {
    const char *at, *end;
    int64_t step; /* bytes a pair of k: 64, 128, or 0 for none */
} ahead;

/* The pair x[0], x[1] in every lane. */
static inline __m512bh pair_of(const uint16_t *x) {
    int pair;
    memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* Into L2: the panel in use and the rows of x fill L1. */
static inline void ask(ahead *next) {
    if (next->at >= next->end) return;
    for (int64_t b = 0; b < next->step; b += 64) __builtin_prefetch(next->at + b, 0, 2);
    next->at += next->step;
}

/* Rows row .. row + TILE_ROWS of the job, those past the last being zeros. */
static void tile(const kvl_matrix_job *job, int64_t panel, int64_t row, ahead *next) {
    const uint16_t *w = (const uint16_t *)(job->panels + (uint64_t)panel * job->panel_bytes);
    const uint16_t *x = job->x + row * job->x_stride;
    vf sum[TILE_ROWS][2];
    for (int r = 0; r < TILE_ROWS; r++) sum[r][0] = sum[r][1] = vf_zero();
    for (int64_t k = 0; k < job->n_in; k += 2, w += 2 * KVL_PANEL) {
        __m512bh w0 = (__m512bh)_mm512_loadu_si512(w);
        __m512bh w1 = (__m512bh)_mm512_loadu_si512(w + KVL_PANEL);
        ask(next);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++) {
            __m512bh pair = pair_of(x + r * job->x_stride + k);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], pair, w0);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], pair, w1);
        }
    }
    int64_t n = job->n_rows - row < TILE_ROWS ? job->n_rows - row : TILE_ROWS;
    for (int64_t r = 0; r < n; r++) {
        kvl_sink_vector(&job->sink, row + r, panel * KVL_PANEL, sum[r][0]);
        kvl_sink_vector(&job->sink, row + r, panel * KVL_PANEL + KVL_VL, sum[r][1]);
    }
}

void KVL_ISA_FN(kvl_matrix_bf16)(const kvl_matrix_job *job) {
    /* A panel has a line for each k, a tile half as many steps. */
    const int64_t step = job->n_rows > TILE_ROWS ? 64 : 128;
    for (int64_t panel = job->first_panel; panel < job->end_panel; panel++) {
        ahead next = {.step = step};
        if (panel + 1 < job->end_panel) {
            next.at = (const char *)job->panels + (uint64_t)(panel + 1) * job->panel_bytes;
            next.end = next.at + job->panel_bytes;
        }
        for (int64_t row = 0; row < job->n_rows; row += TILE_ROWS) tile(job, panel, row, &next);
    }
}
