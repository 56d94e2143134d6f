/* Scores of a chunk of keys in memory, then softmax, then V; chunks are merged in rising order.
 * Source: Rabe & Staats 2021, "Self-attention does not need O(n^2) memory". */
#include "attention/chunked.h"

#include "attention/tile.h"

/* One stage for each tile of keys [first, last) of the chunk. */
static void walk(kvl_tile *tile, kvl_want what, int64_t chunk, int64_t first, int64_t last,
                 float *s, float *o) {
    int64_t start = first & ~(int64_t)(KVL_TILE_KEYS - 1);
    for (; start < last; start += KVL_TILE_KEYS) {
        int64_t from = start > first ? start : first;
        int64_t to = start + KVL_TILE_KEYS < last ? start + KVL_TILE_KEYS : last;
        kvl_tile_load(tile, start, from, to, last, (int)what);
        if (what == KVL_WANT_K) {
            kvl_tile_scores(tile, s + (start - chunk), KVL_CHUNK_KEYS);
        } else {
            kvl_tile_values(tile, s + (start - chunk), KVL_CHUNK_KEYS, o);
        }
    }
}

/* Softmax over what each row sees of the chunk; the state's o still lacks the values. */
static void softmax(const kvl_tile *tile, int64_t chunk, int64_t last, float *s,
                    kvl_tile_state *state) {
    for (int32_t r = 0; r < tile->n_rows; r++) {
        int64_t lo = tile->first[r] > chunk ? tile->first[r] : chunk;
        int64_t hi = tile->last[r] < last ? tile->last[r] : last;
        if (lo >= hi) continue;
        float *row = s + r * KVL_CHUNK_KEYS;
        state->max[r] =
            kvl_row_max(row, lo - chunk, hi - chunk, tile->scale, tile->block->args->softcap);
        state->sum[r] = kvl_row_exp(row, lo - chunk, hi - chunk, state->max[r]);
    }
}

void KVL_ISA_FN(kvl_chunked_block)(const kvl_attention_block *block, float *scratch) {
    kvl_tile tile;
    kvl_tile_state total, part;
    int64_t ld = kvl_tile_stride(block->args), first, last;
    kvl_tile_load_q(&tile, block, scratch);
    total.o = scratch + kvl_tile_scratch(block->args);
    part.o = total.o + KVL_BLOCK_ROWS * ld;
    float *s = part.o + KVL_BLOCK_ROWS * ld;
    kvl_state_reset(&total, &tile);
    kvl_block_keys(block, &first, &last);
    for (int64_t chunk = first - first % KVL_CHUNK_KEYS; chunk < last; chunk += KVL_CHUNK_KEYS) {
        int64_t from = chunk > first ? chunk : first;
        int64_t to = KVL_CHUNK_KEYS < last - chunk ? chunk + KVL_CHUNK_KEYS : last;
        kvl_state_reset(&part, &tile);
        walk(&tile, KVL_WANT_K, chunk, from, to, s, NULL);
        softmax(&tile, chunk, to, s, &part);
        walk(&tile, KVL_WANT_V, chunk, from, to, s, part.o);
        for (int32_t r = 0; r < tile.n_rows; r++)
            kvl_state_merge(&total.max[r], &total.sum[r], total.o + r * ld, part.max[r],
                            part.sum[r], part.o + r * ld, ld);
    }
    for (int32_t r = 0; r < tile.n_rows; r++)
        kvl_row_store(block->args, kvl_block_token(block, r), kvl_block_head(block, r),
                      total.max[r], total.sum[r], total.o + r * ld);
}
