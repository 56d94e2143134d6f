/* Flash attention on a CPU: online softmax over tiles of keys, no score matrix.
 * Sources: Milakov & Gimelshein 2018 (online softmax), Dao et al. 2022 and Dao 2023
 * (FlashAttention, -2), Flash-Decoding (split keys, merge by log-sum-exp). */
#include "attention/flash.h"

#include "attention/tile.h"

static void scale_row(float *o, int32_t n_vecs, float factor) {
    vf f = vf_set1(factor);
    for (int64_t i = 0; i < (int64_t)n_vecs * KVL_VL; i += KVL_VL)
        vf_store(o + i, vf_mul(vf_load_f32(o + i), f));
}

/* The tile's scores become weights; each row's running max, sum and output follow. */
static void online_softmax(const kvl_tile *tile, float *s, kvl_tile_state *state) {
    float softcap = tile->block->args->softcap;
    for (int32_t r = 0; r < tile->n_rows; r++) {
        int32_t lo = tile->lo[r], hi = tile->hi[r];
        if (lo >= hi) continue;
        float *row = s + r * KVL_TILE_KEYS;
        float max = kvl_row_max(row, lo, hi, tile->scale, softcap);
        if (state->max[r] > max) max = state->max[r];
        if (max != state->max[r]) {
            /* The first tile of a split has nothing to rescale: its o and sum are zeros. */
            float keep = kvl_exp1(state->max[r] - max);
            if (state->sum[r] != 0.0f) scale_row(state->o + r * tile->ld, tile->n_vecs, keep);
            state->sum[r] *= keep;
            state->max[r] = max;
        }
        state->sum[r] += kvl_row_exp(row, lo, hi, max);
    }
}

/* One split, from a fresh state. `end`: where the keys of the whole task end, for prefetching. */
static void run_split(kvl_tile *tile, int64_t first, int64_t last, int64_t end, float *s,
                      kvl_tile_state *state) {
    kvl_state_reset(state, tile);
    int64_t start = first & ~(int64_t)(KVL_TILE_KEYS - 1);
    for (; start < last; start += KVL_TILE_KEYS) {
        int64_t from = start > first ? start : first;
        int64_t to = start + KVL_TILE_KEYS < last ? start + KVL_TILE_KEYS : last;
        kvl_tile_load(tile, start, from, to, end, KVL_WANT_K | KVL_WANT_V);
        kvl_tile_scores(tile, s, KVL_TILE_KEYS);
        online_softmax(tile, s, state);
        kvl_tile_values(tile, s, KVL_TILE_KEYS, state->o);
    }
}

static float *partial_of(const kvl_flash_task *task, int32_t row, int64_t split) {
    return task->partials + (row * task->n_splits + split) * kvl_flash_partial(task->block.args);
}

static void keep_partials(const kvl_flash_task *task, const kvl_tile *tile, int64_t split,
                          const kvl_tile_state *state) {
    for (int32_t r = 0; r < tile->n_rows; r++) {
        float *out = partial_of(task, r, split);
        memcpy(out, state->o + r * tile->ld, (size_t)tile->ld * sizeof(float));
        out[tile->ld] = state->max[r];
        out[tile->ld + 1] = state->sum[r];
    }
}

void KVL_ISA_FN(kvl_flash_block)(const kvl_flash_task *task, float *scratch) {
    kvl_tile tile;
    kvl_tile_state total, part;
    int64_t ld = kvl_tile_stride(task->block.args), first, last;
    kvl_tile_load_q(&tile, &task->block, scratch);
    float *s = scratch + kvl_tile_scratch(task->block.args);
    total.o = s + KVL_BLOCK_ROWS * KVL_TILE_KEYS;
    part.o = total.o + KVL_BLOCK_ROWS * ld;
    kvl_state_reset(&total, &tile);
    kvl_block_keys(&task->block, &first, &last);
    int64_t end =
        task->split_last * KVL_SPLIT_KEYS < last ? task->split_last * KVL_SPLIT_KEYS : last;
    for (int64_t split = task->split_first; split < task->split_last; split++) {
        int64_t from = split * KVL_SPLIT_KEYS, to = from + KVL_SPLIT_KEYS;
        if (from < first) from = first;
        if (to > last) to = last;
        if (from < to) {
            run_split(&tile, from, to, end, s, &part);
        } else {
            kvl_state_reset(&part, &tile);
        }
        if (task->partials) {
            keep_partials(task, &tile, split, &part);
            continue;
        }
        for (int32_t r = 0; r < tile.n_rows; r++)
            kvl_state_merge(&total.max[r], &total.sum[r], total.o + r * ld, part.max[r],
                            part.sum[r], part.o + r * ld, ld);
    }
    if (task->partials) return;
    for (int32_t r = 0; r < tile.n_rows; r++)
        kvl_row_store(task->block.args, kvl_block_token(&task->block, r),
                      kvl_block_head(&task->block, r), total.max[r], total.sum[r],
                      total.o + r * ld);
}

void KVL_ISA_FN(kvl_flash_merge)(const kvl_flash_task *task, int32_t row) {
    int64_t ld = kvl_tile_stride(task->block.args);
    float *into = partial_of(task, row, task->split_first);
    for (int64_t split = task->split_first + 1; split < task->split_last; split++) {
        const float *from = partial_of(task, row, split);
        kvl_state_merge(&into[ld], &into[ld + 1], into, from[ld], from[ld + 1], from, ld);
    }
    kvl_row_store(task->block.args, kvl_block_token(&task->block, row),
                  kvl_block_head(&task->block, row), into[ld], into[ld + 1], into);
}
