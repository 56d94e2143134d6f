/* Stage values: P V of a block and a tile. Columns of two vector pairs go outside, so that a column
 * of the tile's V stays in L1 while all rows pass over it; keys run inside, in rising order. */
#include "attention/tile.h"

/* Where a register tile works: keys lo..hi, vector pairs from `pair` on. */
typedef struct place {
    const void *const *v, *const *ahead;
    const float *p;
    float *o;
    int64_t ldp, ldo, pair;
} place;

/* o[a][c] += p[a][j] v[j][c] for `rows` rows and `pairs` pairs of vectors. Few rows pass at the
 * speed of memory: each asks for the same piece of the next tile's row. */
KVL_INLINE void value_tile(kvl_dtype dtype, int rows, int pairs, int odd, const place *at,
                           int32_t lo, int32_t hi) {
    const int64_t column = (at->pair - odd) * 2 * KVL_VL * kvl_stored_bytes(dtype);
    const int64_t column_bytes = 4 * KVL_VL * kvl_stored_bytes(dtype);
    float *o = at->o + at->pair * 2 * KVL_VL;
    vf acc[4][4];
    for (int a = 0; a < rows; a++) {
        for (int c = 0; c < 2 * pairs; c++) acc[a][c] = vf_load_f32(o + a * at->ldo + c * KVL_VL);
    }
    for (int32_t j = lo; j < hi; j++) {
        const void *v = at->v[j];
        vf weight[4];
        for (int a = 0; a < rows; a++) weight[a] = vf_set1(at->p[a * at->ldp + j]);
        if (odd == 0) {
            for (int64_t b = 0; b < column_bytes; b += 64)
                __builtin_prefetch((const char *)at->ahead[j] + column + b, 0, 2);
        }
        for (int c = 0; c < pairs; c++) {
            vf2 value = kvl_pair(dtype, v, at->pair + c, (odd + c) & 1);
            for (int a = 0; a < rows; a++)
                acc[a][2 * c] = vf_fma(weight[a], value.a, acc[a][2 * c]);
            for (int a = 0; a < rows; a++)
                acc[a][2 * c + 1] = vf_fma(weight[a], value.b, acc[a][2 * c + 1]);
        }
    }
    for (int a = 0; a < rows; a++) {
        for (int c = 0; c < 2 * pairs; c++) vf_store(o + a * at->ldo + c * KVL_VL, acc[a][c]);
    }
}

/* One column: two pairs, or the one that is left of an uneven count. */
KVL_INLINE void value_column(kvl_dtype dtype, int rows, const place *at, bool two, int32_t lo,
                             int32_t hi) {
    if (lo >= hi) return;
    if (rows == 4) {
        place next = *at;
        next.pair++;
        value_tile(dtype, 4, 1, 0, at, lo, hi);
        if (two) value_tile(dtype, 4, 1, 1, &next, lo, hi);
    } else if (two) {
        value_tile(dtype, rows, 2, 0, at, lo, hi);
    } else {
        value_tile(dtype, rows, 1, 0, at, lo, hi);
    }
}

/* One row alone, in a place of its own: the edges of what rows see, which seldom matter. */
static __attribute__((noinline)) void one_row(kvl_dtype dtype, const place *at, int32_t row,
                                              bool two, int32_t lo, int32_t hi) {
    place mine = *at;
    mine.p += row * at->ldp;
    mine.o += row * at->ldo;
    switch (dtype) {
    case KVL_F16:
        value_column(KVL_F16, 1, &mine, two, lo, hi);
        break;
    case KVL_BF16:
        value_column(KVL_BF16, 1, &mine, two, lo, hi);
        break;
    case KVL_FP8_E4M3:
        value_column(KVL_FP8_E4M3, 1, &mine, two, lo, hi);
        break;
    case KVL_FP8_E5M2:
        value_column(KVL_FP8_E5M2, 1, &mine, two, lo, hi);
        break;
    default:
        value_column(KVL_F32, 1, &mine, two, lo, hi);
    }
}

/* Keys that all of a register tile's rows see go through it together; what only some see before
 * and after them, row by row. The order of keys of each row stays the rising one. */
KVL_INLINE void value_rows(kvl_dtype dtype, const kvl_tile *tile, const place *at, int32_t r,
                           int32_t n, bool two) {
    int32_t lo = tile->lo[r + n - 1], hi = tile->hi[r];
    if (lo > hi) lo = hi;
    for (int32_t a = 0; a < n && tile->lo[r + a] < lo; a++)
        one_row(dtype, at, a, two, tile->lo[r + a], lo < tile->hi[r + a] ? lo : tile->hi[r + a]);
    if (n == 4) {
        value_column(dtype, 4, at, two, lo, hi);
    } else if (n == 3) {
        value_column(dtype, 3, at, two, lo, hi);
    } else if (n == 2) {
        value_column(dtype, 2, at, two, lo, hi);
    } else {
        one_row(dtype, at, 0, two, lo, hi);
    }
    for (int32_t a = 0; a < n; a++) {
        if (tile->hi[r + a] > hi)
            one_row(dtype, at, a, two, hi > tile->lo[r + a] ? hi : tile->lo[r + a],
                    tile->hi[r + a]);
    }
}

KVL_INLINE void values_of(kvl_dtype dtype, const kvl_tile *tile, const float *p, int64_t ldp,
                          float *o) {
    const void *const *v = tile->rows->v;
    int64_t n_pairs = tile->n_vecs / 2;
    for (int64_t pair = 0; pair < n_pairs; pair += 2) {
        for (int32_t r = 0, n; r < tile->n_rows; r += n) {
            n = kvl_rows_next(tile->n_rows - r);
            bool fetch = r == 0 && tile->rows != &tile->wide;
            place at = {
                v, fetch ? tile->ahead->v : v, p + r * ldp, o + r * tile->ld, ldp, tile->ld, pair};
            value_rows(dtype, tile, &at, r, n, pair + 2 <= n_pairs);
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
