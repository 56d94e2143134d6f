/* Scores of a chunk of keys in memory, then softmax, then V; chunks are merged in rising order.
 * Source: Rabe & Staats 2021, "Self-attention does not need O(n^2) memory". */
#include "attention/chunked.h"

#include "attention/tile.h"

/* Calls a stage for each tile of keys [first, last). */
typedef enum stage { SCORES, VALUES } stage;

static void walk(kvl_tile *tile, stage what, int64_t chunk, int64_t first, int64_t last, float *s,
                 int64_t lds, float *o) {
    int64_t start = first & ~(int64_t)(KVL_TILE_KEYS - 1);
    for (; start < last; start += KVL_TILE_KEYS) {
        int64_t from = start > first ? start : first;
        int64_t to = start + KVL_TILE_KEYS < last ? start + KVL_TILE_KEYS : last;
        kvl_tile_load_kv(tile, start, from, to, what == SCORES, what == VALUES);
        if (what == SCORES) {
            kvl_tile_scores(tile, s + (start - chunk), lds);
        } else {
            kvl_tile_values(tile, s + (start - chunk), lds, o);
        }
    }
}

/* Softmax over what each row sees of the chunk; the state's o still lacks the values. */
static void softmax(const kvl_tile *tile, int64_t chunk, int64_t last, float *s, int64_t lds,
                    kvl_tile_state *state) {
    for (int32_t r = 0; r < tile->n_rows; r++) {
        int64_t lo = tile->first[r] > chunk ? tile->first[r] : chunk;
        int64_t hi = tile->last[r] < last ? tile->last[r] : last;
        if (lo >= hi) continue;
        float *row = s + r * lds;
        state->max[r] =
            kvl_row_max(row, lo - chunk, hi - chunk, tile->scale, tile->block->args->softcap);
        state->sum[r] = kvl_row_exp(row, lo - chunk, hi - chunk, state->max[r]);
    }
}

void KVL_ISA_FN(kvl_chunked_block)(const kvl_attention_block *block, int64_t chunk_keys,
                                   int64_t score_stride, float *scratch) {
    kvl_tile tile;
    kvl_tile_state total, part;
    int64_t ld = kvl_tile_stride(block->args);
    kvl_tile_load_q(&tile, block, scratch);
    total.o = scratch + (KVL_BLOCK_ROWS + 2 * KVL_TILE_KEYS) * ld;
    part.o = total.o + KVL_BLOCK_ROWS * ld;
    float *s = part.o + KVL_BLOCK_ROWS * ld;
    kvl_state_reset(&total, &tile);
    int64_t first = tile.first[0], last = tile.last[tile.n_rows - 1];
    for (int64_t chunk = first - first % chunk_keys; chunk < last; chunk += chunk_keys) {
        int64_t from = chunk > first ? chunk : first;
        int64_t to = chunk_keys < last - chunk ? chunk + chunk_keys : last;
        kvl_state_reset(&part, &tile);
        walk(&tile, SCORES, chunk, from, to, s, score_stride, NULL);
        softmax(&tile, chunk, to, s, score_stride, &part);
        walk(&tile, VALUES, chunk, from, to, s, score_stride, part.o);
        for (int32_t r = 0; r < tile.n_rows; r++)
            kvl_state_merge(&total.max[r], &total.sum[r], total.o + r * ld, part.max[r],
                            part.sum[r], part.o + r * ld, tile.n_vecs);
    }
    for (int32_t r = 0; r < tile.n_rows; r++)
        kvl_row_store(block->args, kvl_block_token(block, r), kvl_block_head(block, r),
                      total.max[r], total.sum[r], total.o + r * ld);
}
