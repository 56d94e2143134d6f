/* Stage scores: Q K^T of a block and a tile. Two ways to the same bits.
 *
 * Few rows: lanes run over head_dim, up to four rows by as many keys as fill the registers, one
 * tree of sums across lanes an element. K is widened on the way, so it is read once as stored.
 *
 * Many rows: the tree costs as much as a third of the products at head_dim 64. With K turned, lanes
 * run over keys: what was lane l of the first way is a sum of its own here, and the tree is plain
 * additions of such sums in the same order. */
#include "attention/tile.h"

/* Keys of a register tile: accumulators for two multiply-adds a cycle at a latency of four, and
 * room for what they multiply in 16 registers. */
KVL_INLINE int keys_of(int rows) {
    return rows == 1 ? 8 : rows == 4 ? 2 : 4;
}

/* Raw q.k of `rows` rows with keys j .. j + keys_of(rows). */
KVL_INLINE void score_tile(kvl_dtype dtype, int rows, const kvl_tile *tile, int32_t r, int32_t j,
                           float *s, int64_t lds) {
    const int keys = keys_of(rows);
    const bool coded = dtype == KVL_FP8_E4M3 || dtype == KVL_FP8_E5M2;
    const void *const *k = tile->rows->k + j;
    const float *q = tile->q + r * tile->ld;
    vf acc[4][8];
    for (int a = 0; a < rows; a++) {
        for (int b = 0; b < keys; b++) acc[a][b] = vf_zero();
    }
    for (int64_t pair = 0; pair < tile->n_vecs / 2; pair += coded ? 2 : 1) {
        for (int odd = 0; odd < (coded ? 2 : 1); odd++) {
            const float *part = q + (pair + odd) * 2 * KVL_VL;
            for (int b = 0; b < keys; b++) {
                vf2 key = kvl_pair(dtype, k[b], pair + odd, odd);
                for (int a = 0; a < rows; a++)
                    acc[a][b] = vf_fma(vf_load_f32(part + a * tile->ld), key.a, acc[a][b]);
                for (int a = 0; a < rows; a++)
                    acc[a][b] = vf_fma(vf_load_f32(part + a * tile->ld + KVL_VL), key.b, acc[a][b]);
            }
        }
    }
    if (keys == 2) {
        for (int a = 0; a < rows; a += 2) {
            float sums[4];
            vf_hsum4(sums, acc[a][0], acc[a][1], acc[a + 1][0], acc[a + 1][1]);
            memcpy(s + a * lds + j, sums, 2 * sizeof(float));
            memcpy(s + (a + 1) * lds + j, sums + 2, 2 * sizeof(float));
        }
        return;
    }
    for (int a = 0; a < rows; a++) {
        for (int b = 0; b < keys; b += 4)
            vf_hsum4(s + a * lds + j + b, acc[a][b], acc[a][b + 1], acc[a][b + 2], acc[a][b + 3]);
    }
}

/* A strip of eight keys. The first rows that come along ask for the same keys of the next tile:
 * early enough for memory, and spread over the time that this tile takes. */
KVL_INLINE void score_strip(kvl_dtype dtype, int rows, const kvl_tile *tile, int32_t r, int32_t j,
                            bool fetch, float *s, int64_t lds) {
    int64_t row_bytes = (int64_t)tile->n_vecs * KVL_VL * kvl_stored_bytes(dtype);
    for (int b = 0; b < 8; b += keys_of(rows)) {
        if (fetch) {
            for (int c = 0; c < keys_of(rows); c++) {
                const char *row = tile->ahead->k[j + b + c];
                for (int64_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
            }
        }
        score_tile(dtype, rows, tile, r, j + b, s, lds);
    }
}

KVL_INLINE void scores_of(kvl_dtype dtype, const kvl_tile *tile, float *s, int64_t lds) {
    int32_t end = tile->hi[tile->n_rows - 1];
    for (int32_t j = tile->lo[0] & ~7; j < end; j += 8) {
        for (int32_t r = 0, n; r < tile->n_rows; r += n) {
            n = kvl_rows_next(tile->n_rows - r);
            /* Ranges rise with the row, so these two tell whether any of the n sees a key here. */
            if (tile->lo[r] >= j + 8 || tile->hi[r + n - 1] <= j) continue;
            bool fetch = r == 0 && tile->rows != &tile->wide;
            float *out = s + r * lds;
            if (n == 4) {
                score_strip(dtype, 4, tile, r, j, fetch, out, lds);
            } else if (n == 3) {
                score_strip(dtype, 3, tile, r, j, fetch, out, lds);
            } else if (n == 2) {
                score_strip(dtype, 2, tile, r, j, fetch, out, lds);
            } else {
                score_strip(dtype, 1, tile, r, j, fetch, out, lds);
            }
        }
    }
}

/* The order in which a tree over lanes needs them: x[l] + x[l + KVL_VL / 2] first (vf_hsum). */
static inline int lane_of(int leaf) {
    int lane = 0;
    for (int bit = 1; bit < KVL_VL; bit *= 2) lane = lane * 2 + (leaf & bit ? 1 : 0);
    return lane;
}

enum { VECS = 4, LEVELS = 4 }; /* vectors of keys in a register tile; log2 of the widest vector */

/* Raw q.k of `rows` (1 to 3) rows with VECS vectors of keys from j on, K turned. */
KVL_INLINE void turned_tile(int rows, const kvl_tile *tile, const float *q, int32_t j, float *s,
                            int64_t lds) {
    float waiting[LEVELS][3 * VECS * KVL_VL];
    int depth = 0;
    for (int leaf = 0; leaf < KVL_VL; leaf++) {
        int lane = lane_of(leaf);
        const float *k = tile->k_turned + (int64_t)lane * tile->n_vecs * KVL_TILE_KEYS + j;
        vf acc[3][VECS];
        for (int a = 0; a < rows; a++) {
            for (int c = 0; c < VECS; c++) acc[a][c] = vf_zero();
        }
        for (int64_t i = 0; i < tile->n_vecs; i++, k += KVL_TILE_KEYS) {
            vf key[VECS];
            for (int c = 0; c < VECS; c++) key[c] = vf_load_f32(k + c * KVL_VL);
            for (int a = 0; a < rows; a++) {
                vf query = vf_set1(q[a * tile->ld + i * KVL_VL + lane]);
                for (int c = 0; c < VECS; c++) acc[a][c] = vf_fma(query, key[c], acc[a][c]);
            }
        }
        /* As many sums are complete as leaf + 1 has factors of two. */
        for (int done = leaf + 1; !(done & 1); done /= 2) {
            const float *other = waiting[--depth];
            for (int a = 0; a < rows; a++) {
                for (int c = 0; c < VECS; c++)
                    acc[a][c] = vf_add(vf_load_f32(other + (a * VECS + c) * KVL_VL), acc[a][c]);
            }
        }
        bool last = leaf + 1 == KVL_VL;
        for (int a = 0; a < rows; a++) {
            for (int c = 0; c < VECS; c++)
                vf_store(last ? s + a * lds + j + c * KVL_VL
                              : waiting[depth] + (a * VECS + c) * KVL_VL,
                         acc[a][c]);
        }
        if (!last) depth++;
    }
}

static void scores_turned(const kvl_tile *tile, float *s, int64_t lds) {
    const int32_t strip = VECS * KVL_VL;
    int32_t end = tile->hi[tile->n_rows - 1];
    for (int32_t j = tile->lo[0] & ~(strip - 1); j < end; j += strip) {
        for (int32_t r = 0, n; r < tile->n_rows; r += n) {
            n = tile->n_rows - r < 3 ? tile->n_rows - r : 3;
            if (tile->lo[r] >= j + strip || tile->hi[r + n - 1] <= j) continue;
            const float *q = tile->q + r * tile->ld;
            if (n == 3) {
                turned_tile(3, tile, q, j, s + r * lds, lds);
            } else if (n == 2) {
                turned_tile(2, tile, q, j, s + r * lds, lds);
            } else {
                turned_tile(1, tile, q, j, s + r * lds, lds);
            }
        }
    }
}

void kvl_tile_scores(const kvl_tile *tile, float *s, int64_t lds) {
    if (tile->turn) {
        scores_turned(tile, s, lds);
        return;
    }
    switch (tile->dtype) {
    case KVL_F16:
        scores_of(KVL_F16, tile, s, lds);
        break;
    case KVL_BF16:
        scores_of(KVL_BF16, tile, s, lds);
        break;
    case KVL_FP8_E4M3:
        scores_of(KVL_FP8_E4M3, tile, s, lds);
        break;
    case KVL_FP8_E5M2:
        scores_of(KVL_FP8_E5M2, tile, s, lds);
        break;
    default:
        scores_of(KVL_F32, tile, s, lds);
    }
}
