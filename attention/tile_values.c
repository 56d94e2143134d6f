/* Stage values: P V of a block and a tile. Columns of four vectors go outside, so that a column of
 * the tile's V stays in L1 while all rows pass over it; keys run inside, in rising order. */
#include "attention/tile.h"

/* Where a register tile works: rows from p and o on, vectors from `v` on. */
typedef struct place {
    const void *const *rows, *const *ahead;
    const float *p;
    float *o;
    int64_t ldp, ldo, v;
} place;

/* o[a][c] += p[a][j] v[j][c] for `rows` rows and `vecs` vectors, keys lo..hi; `which` = the first
 * vector's number modulo 4. Few rows pass at the speed of memory: the column's first asks for the
 * same piece of the next tile's row. f32 is mostly a widened copy, for which there is nothing to
 * ask. */
KVL_INLINE void value_tile(kvl_dtype dtype, int rows, int vecs, int which, const place *at,
                           int32_t lo, int32_t hi) {
    const int64_t v = at->v + which, ldp = at->ldp, ldo = at->ldo;
    const int64_t bytes = KVL_VL * kvl_stored_bytes(dtype), column = at->v * bytes;
    const void *const *row = at->rows, *const *ahead = at->ahead;
    const float *p = at->p;
    float *o = at->o + v * KVL_VL;
    vf acc[4][4];
    for (int a = 0; a < rows; a++) {
        for (int c = 0; c < vecs; c++) acc[a][c] = vf_load_f32(o + a * ldo + c * KVL_VL);
    }
    for (int32_t j = lo; j < hi; j++) {
        const void *value_row = row[j];
        vf weight[4];
        for (int a = 0; a < rows; a++) weight[a] = vf_set1(p[a * ldp + j]);
        if (which == 0 && dtype != KVL_F32) {
            for (int64_t b = 0; b < 4 * bytes; b += 64)
                __builtin_prefetch((const char *)ahead[j] + column + b, 0, 2);
        }
        for (int c = 0; c < vecs; c++) {
            vf value = kvl_vector(dtype, value_row, v + c, which + c);
            for (int a = 0; a < rows; a++) acc[a][c] = vf_fma(weight[a], value, acc[a][c]);
            KVL_LOAD_LATER();
        }
    }
    for (int a = 0; a < rows; a++) {
        for (int c = 0; c < vecs; c++) vf_store(o + a * ldo + c * KVL_VL, acc[a][c]);
    }
}

/* One column: four vectors, or the two that are left. Four rows by two vectors, or three by four,
 * are what 16 registers hold. */
KVL_INLINE void value_column(kvl_dtype dtype, int rows, const place *at, bool four, int32_t lo,
                             int32_t hi) {
    if (lo >= hi) return;
    if (rows == 4) {
        value_tile(dtype, 4, 2, 0, at, lo, hi);
        if (four) value_tile(dtype, 4, 2, 2, at, lo, hi);
    } else if (four) {
        value_tile(dtype, rows, 4, 0, at, lo, hi);
    } else {
        value_tile(dtype, rows, 2, 0, at, lo, hi);
    }
}

/* One row alone, in a place of its own: the edges of what rows see, which seldom matter. */
static __attribute__((noinline)) void one_row(kvl_dtype dtype, const place *at, int32_t row,
                                              bool four, int32_t lo, int32_t hi) {
    place mine = *at;
    mine.p += row * at->ldp;
    mine.o += row * at->ldo;
    switch (dtype) {
    case KVL_F16:
        value_column(KVL_F16, 1, &mine, four, lo, hi);
        break;
    case KVL_BF16:
        value_column(KVL_BF16, 1, &mine, four, lo, hi);
        break;
    case KVL_FP8_E4M3:
        value_column(KVL_FP8_E4M3, 1, &mine, four, lo, hi);
        break;
    case KVL_FP8_E5M2:
        value_column(KVL_FP8_E5M2, 1, &mine, four, lo, hi);
        break;
    default:
        value_column(KVL_F32, 1, &mine, four, lo, hi);
    }
}

/* Keys that all of a register tile's rows see go through it together; what only some see before
 * and after them, row by row. The order of keys of each row stays the rising one. */
KVL_INLINE void value_rows(kvl_dtype dtype, const kvl_tile *tile, const place *at, int32_t r,
                           int32_t n, bool four) {
    int32_t lo = tile->lo[r + n - 1], hi = tile->hi[r];
    if (lo > hi) lo = hi;
    for (int32_t a = 0; a < n && tile->lo[r + a] < lo; a++)
        one_row(dtype, at, a, four, tile->lo[r + a], lo < tile->hi[r + a] ? lo : tile->hi[r + a]);
    if (n == 4) {
        value_column(dtype, 4, at, four, lo, hi);
    } else if (n == 3) {
        value_column(dtype, 3, at, four, lo, hi);
    } else if (n == 2) {
        value_column(dtype, 2, at, four, lo, hi);
    } else {
        one_row(dtype, at, 0, four, lo, hi);
    }
    for (int32_t a = 0; a < n; a++) {
        if (tile->hi[r + a] > hi)
            one_row(dtype, at, a, four, hi > tile->lo[r + a] ? hi : tile->lo[r + a],
                    tile->hi[r + a]);
    }
}

KVL_INLINE void values_of(kvl_dtype dtype, const kvl_tile *tile, const float *p, int64_t ldp,
                          float *o) {
    const void *const *rows = tile->rows->v;
    for (int64_t v = 0; v < tile->n_vecs; v += 4) {
        for (int32_t r = 0, n; r < tile->n_rows; r += n) {
            n = kvl_rows_next(tile->n_rows - r);
            bool fetch = r == 0 && tile->rows != &tile->wide;
            place at = {
                rows, fetch ? tile->ahead->v : rows, p + r * ldp, o + r * tile->ld, ldp, tile->ld,
                v};
            value_rows(dtype, tile, &at, r, n, v + 4 <= tile->n_vecs);
        }
    }
}

void kvl_tile_values(const kvl_tile *tile, const float *p, int64_t ldp, float *o) {
    switch (tile->dtype) {
    case KVL_F16:
        values_of(KVL_F16, tile, p, ldp, o);
        break;
    case KVL_BF16:
        values_of(KVL_BF16, tile, p, ldp, o);
        break;
    case KVL_FP8_E4M3:
        values_of(KVL_FP8_E4M3, tile, p, ldp, o);
        break;
    case KVL_FP8_E5M2:
        values_of(KVL_FP8_E5M2, tile, p, ldp, o);
        break;
    default:
        values_of(KVL_F32, tile, p, ldp, o);
    }
}
