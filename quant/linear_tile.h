/* Body of a many-row kernel: a register tile of rows x one panel, widening the stored weights in
 * registers; included after quant/linear_weights.h by sources that then have `tile`.
 *
 * 6 rows x 16 columns on AVX2 (12 of 16 registers hold sums), 12 x 32 on AVX-512 (24 of 32): two
 * weight vectors and one broadcast feed 12 or 24 multiply-adds, which leave room on the other ports
 * for the two operations that widen a vector of bf16. */

/* k between two prefetches: two tiles of rows can then ask for all of the next piece. */
enum { AHEAD_STEP = 128 / W_K_BYTES < 2 ? 2 : 128 / W_K_BYTES };

static inline __attribute__((always_inline)) void tile_step(vf (*sum)[2], const float *x, vf w0,
                                                            vf w1, const int R) {
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
        vf a = vf_set1(x[r]);
        vf_fma_to(&sum[r][0], a, w0);
        vf_fma_to(&sum[r][1], a, w1);
    }
}

/* R rows from row `row` of the sums on, x [n_k][R]; R is a constant at every call. Meanwhile the
 * caches are asked for every ahead_step-th byte from `ahead` on. */
static inline __attribute__((always_inline)) void tile_rows(const kvl_tile_job *job, int64_t row,
                                                            const float *x, const char *ahead,
                                                            int64_t ahead_step, const int R) {
    vf sum[12][2];
    float *sums = job->sums + row * KVL_PANEL;
    const W_TYPE *w = job->weights;
    int64_t k = 0, n_k = job->n_k;
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
        sum[r][0] = job->resume ? vf_load_f32(sums + r * KVL_PANEL) : vf_zero();
        sum[r][1] = job->resume ? vf_load_f32(sums + r * KVL_PANEL + KVL_VL) : vf_zero();
    }
    for (; k + AHEAD_STEP <= n_k; k += AHEAD_STEP) {
        __builtin_prefetch(ahead, 0, 3);
        ahead += ahead_step;
#pragma GCC unroll 8
        for (int step = 0; step < AHEAD_STEP; step += 2) {
            tile_step(sum, x, load_even(w, k + step, 0), load_even(w, k + step, KVL_VL), R);
            W_RELOAD();
            tile_step(sum, x + R, load_odd(w, k + step, 0), load_odd(w, k + step, KVL_VL), R);
            x += 2 * R;
        }
    }
    for (; k + 2 <= n_k; k += 2, x += 2 * R) {
        tile_step(sum, x, load_even(w, k, 0), load_even(w, k, KVL_VL), R);
        W_RELOAD();
        tile_step(sum, x + R, load_odd(w, k, 0), load_odd(w, k, KVL_VL), R);
    }
    if (k < n_k) tile_step(sum, x, load_even(w, k, 0), load_even(w, k, KVL_VL), R);
    if (job->sink) {
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            kvl_sink_vector(job->sink, row + r, job->o, sum[r][0]);
            kvl_sink_vector(job->sink, row + r, job->o + KVL_VL, sum[r][1]);
        }
        return;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
        vf_store(sums + r * KVL_PANEL, sum[r][0]);
        vf_store(sums + r * KVL_PANEL + KVL_VL, sum[r][1]);
    }
}

/* The lines of y that the sums of rows r .. r + n go to, asked for while they are made. */
static void fetch_rows(const kvl_tile_job *job, int64_t r, int64_t n) {
    for (int64_t i = r; i < r + n; i++)
        __builtin_prefetch(job->sink->y + i * job->sink->y_stride + job->o, 1);
}

static void tile(const kvl_tile_job *job) {
    /* All tiles ask for as much: the caches have few requests to wait for at a time, and x comes
     * through the same ones. */
    int64_t n_steps = job->n_k / AHEAD_STEP * (job->end_tile - job->first_tile);
    int64_t ahead_step = n_steps ? (job->ahead_bytes + n_steps - 1) / n_steps : 0;
    const char *ahead = job->ahead;
    int64_t first_row = kvl_tile_row(job->tiling, job->first_tile);
    for (int64_t t = job->first_tile; t < job->end_tile; t++) {
        int64_t r = kvl_tile_row(job->tiling, t), n = kvl_tile_row(job->tiling, t + 1) - r;
        const float *x = job->x + r * job->tiling.n_in + job->k * n;
        r -= first_row;
        if (job->sink) fetch_rows(job, r, n);
        switch (n) {
#define CASE(R) \
    case R: \
        if (R <= KVL_TILE_ROWS) tile_rows(job, r, x, ahead, ahead_step, R); \
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
        ahead += job->n_k / AHEAD_STEP * ahead_step;
    }
}
