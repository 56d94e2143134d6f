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

/* Keeps the rows' states of a split, or merges them into the one that each row has. */
static void put_states(const kvl_flash_task *task, const kvl_tile *tile, int64_t split, bool fresh,
                       const kvl_tile_state *state) {
    int64_t ld = tile->ld, size = kvl_flash_partial(task->block.args);
    for (int32_t r = 0; r < tile->n_rows; r++) {
        float *into = task->states + r * task->n_states * size;
        const float *from = state->o + r * ld;
        if (task->n_states > 1) into += split * size;
        if (task->n_states > 1 || fresh) {
            memcpy(into, from, (size_t)ld * sizeof(float));
            into[ld] = state->max[r];
            into[ld + 1] = state->sum[r];
        } else {
            kvl_state_merge(&into[ld], &into[ld + 1], into, state->max[r], state->sum[r], from, ld);
        }
    }
}

static void store_row(const kvl_flash_task *task, int32_t r, const float *state) {
    const kvl_attention_args *args = task->block.args;
    int64_t ld = kvl_tile_stride(args);
    kvl_row_store(args, kvl_block_token(&task->block, r), kvl_block_head(&task->block, r),
                  state[ld], state[ld + 1], state);
}

void KVL_ISA_FN(kvl_flash_block)(const kvl_flash_task *task, float *scratch) {
    kvl_tile tile;
    kvl_tile_state state;
    int64_t first, last, task_end = task->split_last * KVL_SPLIT_KEYS;
    kvl_tile_load_q(&tile, &task->block, scratch);
    tile.next_head = task->next_head;
    tile.next_key = task->next_key;
    float *s = scratch + kvl_tile_scratch(task->block.args);
    state.o = s + KVL_BLOCK_ROWS * KVL_TILE_KEYS;
    kvl_block_keys(&task->block, &first, &last);
    for (int64_t split = task->split_first; split < task->split_last; split++) {
        int64_t from = split * KVL_SPLIT_KEYS, to = from + KVL_SPLIT_KEYS;
        if (from < first) from = first;
        if (to > last) to = last;
        if (from < to) {
            run_split(&tile, from, to, task_end < last ? task_end : last, s, &state);
        } else {
            kvl_state_reset(&state, &tile);
        }
        put_states(task, &tile, split, task->fresh && split == task->split_first, &state);
    }
    if (!task->store) return;
    for (int32_t r = 0; r < tile.n_rows; r++)
        store_row(task, r, task->states + r * kvl_flash_partial(task->block.args));
}

void KVL_ISA_FN(kvl_flash_merge)(const kvl_flash_task *task, int32_t row) {
    int64_t ld = kvl_tile_stride(task->block.args), size = kvl_flash_partial(task->block.args);
    float *states = task->states + row * task->n_states * size;
    float *into = states + task->split_first * size;
    for (int64_t split = task->split_first + 1; split < task->split_last; split++) {
        const float *from = states + split * size;
        kvl_state_merge(&into[ld], &into[ld + 1], into, from[ld], from[ld + 1], from, ld);
    }
    store_row(task, row, into);
}
