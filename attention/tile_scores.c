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
static inline int keys_of(int rows) {
    return rows == 1 ? 8 : rows == 4 ? 2 : 4;
}

/* acc[a][b] += q_a . k_b over `vecs` vectors from v on (a multiple of 4). Q stays in registers for
 * all keys, which halves the loads; of three rows only two, as twelve sums leave no room. */
KVL_INLINE void score_vectors(kvl_dtype dtype, int rows, int vecs, const void *const *k,
                              const float *q, int64_t v, vf acc[4][8]) {
    const int held = rows == 3 ? 2 : rows;
    for (int c = 0; c < vecs; c++) {
        const float *part = q + c * rows * KVL_VL;
        vf query[4];
        for (int a = 0; a < held; a++) query[a] = vf_load_f32(part + a * KVL_VL);
        for (int b = 0; b < keys_of(rows); b++) {
            vf key = kvl_vector(dtype, k[b], v + c, c);
            for (int a = 0; a < held; a++) vf_fma_to(&acc[a][b], query[a], key);
            for (int a = held; a < rows; a++) vf_fma_from(&acc[a][b], key, part + a * KVL_VL);
        }
        KVL_LOAD_LATER();
    }
}

/* Raw q.k of `rows` rows with keys j .. j + keys_of(rows). */
KVL_INLINE void score_tile(kvl_dtype dtype, int rows, const kvl_tile *tile, int32_t r, int32_t j,
                           float *s, int64_t lds) {
    const int keys = keys_of(rows);
    const int64_t n_vecs = tile->n_vecs;
    const float *q = tile->q + r * tile->ld;
    const void *k[8];
    vf acc[4][8];
    int64_t v = 0;
    for (int b = 0; b < keys; b++) k[b] = tile->rows->k[j + b];
    for (int a = 0; a < rows; a++) {
        for (int b = 0; b < keys; b++) acc[a][b] = vf_zero();
    }
    for (; v + 4 <= n_vecs; v += 4, q += 4 * rows * KVL_VL)
        score_vectors(dtype, rows, 4, k, q, v, acc);
    /* fp8 comes in pieces of four vectors, the others in twos. */
    if (!kvl_is_fp8(dtype) && v < n_vecs) score_vectors(dtype, rows, 2, k, q, v, acc);
    float *out = s + j;
    if (rows == 4) {
        vf pairs[4][2] = {{acc[0][0], acc[0][1]},
                          {acc[1][0], acc[1][1]},
                          {acc[2][0], acc[2][1]},
                          {acc[3][0], acc[3][1]}};
        vf_hsum4x2(out, lds, pairs);
        return;
    }
    for (int a = 0; a < rows; a++) {
        for (int b = 0; b < keys; b += 4)
            vf_hsum4(out + a * lds + b, acc[a][b], acc[a][b + 1], acc[a][b + 2], acc[a][b + 3]);
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
            n = kvl_score_rows(false, tile->n_rows - r);
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

enum { VECS = KVL_STRIP_KEYS / KVL_VL, LEVELS = 4 /* log2 of the widest vector */ };

/* Raw q.k of `rows` (1 to 3) rows with a strip of keys, turned. */
KVL_INLINE void turned_tile(int rows, const kvl_tile *tile, const float *q, const float *strip,
                            float *s, int64_t lds) {
    float waiting[LEVELS][3 * VECS * KVL_VL];
    int depth = 0;
    for (int leaf = 0; leaf < KVL_VL; leaf++) {
        int lane = lane_of(leaf);
        const float *k = strip + (int64_t)lane * tile->n_vecs * KVL_STRIP_KEYS;
        vf acc[3][VECS];
        for (int a = 0; a < rows; a++) {
            for (int c = 0; c < VECS; c++) acc[a][c] = vf_zero();
        }
        for (int64_t i = 0; i < tile->n_vecs; i++, k += KVL_STRIP_KEYS) {
            vf key[VECS];
            for (int c = 0; c < VECS; c++) key[c] = vf_load_f32(k + c * KVL_VL);
            for (int a = 0; a < rows; a++) {
                vf query = vf_set1(q[(i * rows + a) * KVL_VL + lane]);
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
                vf_store(last ? s + a * lds + c * KVL_VL : waiting[depth] + (a * VECS + c) * KVL_VL,
                         acc[a][c]);
        }
        if (!last) depth++;
    }
}

static void scores_turned(const kvl_tile *tile, float *s, int64_t lds) {
    int32_t end = tile->hi[tile->n_rows - 1];
    for (int32_t j = tile->lo[0] & ~(KVL_STRIP_KEYS - 1); j < end; j += KVL_STRIP_KEYS) {
        const float *strip = tile->k_turned + (int64_t)j * tile->n_vecs * KVL_VL;
        for (int32_t r = 0, n; r < tile->n_rows; r += n) {
            n = kvl_score_rows(true, tile->n_rows - r);
            if (tile->lo[r] >= j + KVL_STRIP_KEYS || tile->hi[r + n - 1] <= j) continue;
            const float *q = tile->q + r * tile->ld;
            float *out = s + r * lds + j;
            if (n == 3) {
                turned_tile(3, tile, q, strip, out, lds);
            } else if (n == 2) {
                turned_tile(2, tile, q, strip, out, lds);
            } else {
                turned_tile(1, tile, q, strip, out, lds);
            }
        }
    }
}

/* Each key's dynamic scale. */
static void scale_scores(const kvl_tile *tile, float *s, int64_t lds) {
    for (int32_t r = 0; r < tile->n_rows; r++) {
        for (int32_t j = tile->lo[r]; j < tile->hi[r]; j++) s[r * lds + j] *= tile->k_scale[j];
    }
}

static void scores_as_stored(const kvl_tile *tile, float *s, int64_t lds) {
    switch (tile->k_dtype) {
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
    case KVL_I8:
        scores_of(KVL_I8, tile, s, lds);
        break;
    default:
        scores_of(KVL_F32, tile, s, lds);
    }
}

void kvl_tile_scores(const kvl_tile *tile, float *s, int64_t lds) {
    if (KVL_HAS_DOT && tile->dot) {
        kvl_dot_scores(tile, s, lds);
    } else if (tile->turn) {
        scores_turned(tile, s, lds);
    } else {
        scores_as_stored(tile, s, lds);
    }
    if (tile->k_scale) scale_scores(tile, s, lds);
}
