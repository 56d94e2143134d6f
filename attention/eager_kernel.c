/* The three stages of eager, on a block of rows each. */
#include "attention/eager.h"

#include "attention/tile.h"

/* The tile of all the sequence's keys that starts at `start`. */
static void load(const kvl_eager_task *task, kvl_tile *tile, int64_t start, kvl_want want) {
    int64_t from = start > task->first ? start : task->first;
    int64_t to = start + KVL_TILE_KEYS < task->last ? start + KVL_TILE_KEYS : task->last;
    kvl_tile_load(tile, start, from, to, task->last, (int)want);
}

static int64_t tile_start(int64_t key) {
    return key & ~(int64_t)(KVL_TILE_KEYS - 1);
}

void KVL_ISA_FN(kvl_eager_scores)(const kvl_eager_task *task, float *scratch) {
    kvl_tile tile;
    kvl_tile_load_q(&tile, &task->block, scratch);
    for (int64_t t = tile_start(task->first); t < task->last; t += KVL_TILE_KEYS) {
        load(task, &tile, t, KVL_WANT_K);
        for (int32_t r = 0; r < tile.n_rows; r++) {
            tile.lo[r] = tile.low;
            tile.hi[r] = tile.high;
        }
        kvl_tile_scores(&tile, task->scores + t, task->stride);
    }
}

void KVL_ISA_FN(kvl_eager_softmax)(const kvl_eager_task *task, float *scratch) {
    const kvl_attention_args *args = task->block.args;
    kvl_tile tile;
    kvl_tile_load_q(&tile, &task->block, scratch);
    for (int32_t r = 0; r < tile.n_rows; r++) {
        int64_t lo = tile.first[r], hi = tile.last[r], begin = lo & ~(int64_t)(KVL_VL - 1);
        int64_t end = (hi + KVL_VL - 1) & ~(int64_t)(KVL_VL - 1);
        float *row = task->scores + r * task->stride, *sums = task->sums + 2 * r;
        sums[0] = -INFINITY;
        sums[1] = 0.0f;
        if (lo < hi) {
            sums[0] = kvl_row_max(row, lo, hi, tile.scale, args->softcap);
            sums[1] = kvl_row_exp(row, lo, hi, sums[0]);
        } else {
            begin = end = task->first;
        }
        for (int64_t j = task->first; j < begin; j++) row[j] = 0.0f;
        for (int64_t j = end; j < task->last; j++) row[j] = 0.0f;
    }
}

/* P V over keys [lo, hi) of each row, which rise with the row. */
static void values(kvl_tile *tile, const int32_t *lo, const int32_t *hi, const kvl_eager_task *task,
                   int64_t start, float *o) {
    memcpy(tile->lo, lo, sizeof tile->lo);
    memcpy(tile->hi, hi, sizeof tile->hi);
    kvl_tile_values(tile, task->scores + start, task->stride, o);
}

void KVL_ISA_FN(kvl_eager_values)(const kvl_eager_task *task, float *scratch) {
    const kvl_attention_args *args = task->block.args;
    kvl_tile tile;
    kvl_tile_state state;
    int64_t ld = kvl_tile_stride(args);
    kvl_tile_load_q(&tile, &task->block, scratch);
    state.o = scratch + kvl_tile_scratch(args);
    float *hidden = state.o + KVL_BLOCK_ROWS * ld;
    kvl_state_reset(&state, &tile);
    memset(hidden, 0, (size_t)(KVL_BLOCK_ROWS * ld) * sizeof(float));
    for (int64_t t = tile_start(task->first); t < task->last; t += KVL_TILE_KEYS) {
        int32_t lo[KVL_BLOCK_ROWS] = {0}, hi[KVL_BLOCK_ROWS] = {0};
        int32_t low[KVL_BLOCK_ROWS] = {0}, high[KVL_BLOCK_ROWS] = {0};
        load(task, &tile, t, KVL_WANT_V);
        for (int32_t r = 0; r < tile.n_rows; r++) {
            low[r] = tile.low;
            high[r] = tile.high;
            lo[r] = tile.lo[r] < low[r] ? low[r] : tile.lo[r] > high[r] ? high[r] : tile.lo[r];
            hi[r] = tile.hi[r] < low[r] ? low[r] : tile.hi[r] > high[r] ? high[r] : tile.hi[r];
        }
        values(&tile, lo, hi, task, t, state.o);
        /* A framework multiplies what the mask hides by P = 0. So does this, into rows that nobody
         * reads, since NaN times 0 must not reach the output. */
        values(&tile, low, lo, task, t, hidden);
        values(&tile, hi, high, task, t, hidden);
    }
    for (int32_t r = 0; r < tile.n_rows; r++)
        kvl_row_store(args, kvl_block_token(&task->block, r), kvl_block_head(&task->block, r),
                      task->sums[2 * r], task->sums[2 * r + 1], state.o + r * ld);
}
