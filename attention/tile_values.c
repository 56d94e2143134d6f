/* Stage values: P V of a block and a tile. Columns of four vectors go outside, so that a column of
 * the tile's V stays in L1 while all rows pass over it; keys run inside, in rising order. */
#include "attention/tile.h"

enum { FETCH_KEYS = 4 };

/* Where a register tile works: rows from p and o on, vectors from `v` on. */
typedef struct place {
    const void *const *rows, *const *ahead;
    const kvl_fp8_table *table;
    const float *p;
    float *o;
    int64_t ldp, ldo, v;
    /* Few rows pass at the speed of memory. While they pass over a column of a tile they ask for
     * their part of the next tile's V in the order in which it lies in memory (columns would be as
     * many lines, but out of the hardware's step): a row every `fetch_every` keys, a power of two
     * up to FETCH_KEYS, from `fetch_from` on. */
    int32_t fetch_every, fetch_from;
    int64_t fetch_bytes; /* of a row; 0: none */
} place;

/* o[a][c] += p[a][j] v[j][c] for `rows` rows and `vecs` vectors, keys lo..hi; `which` = the first
 * vector's number modulo 4. */
KVL_INLINE void value_tile(kvl_dtype dtype, int rows, int vecs, int which, const place *at,
                           int32_t lo, int32_t hi) {
    const int64_t v = at->v + which, ldp = at->ldp, ldo = at->ldo;
    const void *const *row = at->rows;
    const void *const *ahead = at->ahead + at->fetch_from;
    const int64_t fetch_bytes = at->fetch_bytes;
    const int32_t every = at->fetch_every, step = every > FETCH_KEYS ? every : FETCH_KEYS;
    const float *p = at->p;
    float *o = at->o + v * KVL_VL;
    vf acc[6][4];
    for (int a = 0; a < rows; a++) {
        for (int c = 0; c < vecs; c++) acc[a][c] = vf_load_f32(o + a * ldo + c * KVL_VL);
    }
    for (int32_t j = lo; j < hi;) {
        /* f32 is mostly a widened copy, for which there is nothing to fetch. */
        const bool fetches = which == 0 && dtype != KVL_F32;
        int32_t stop = fetches ? (j & -step) + step : hi;
        for (int32_t i = j / every; fetches && i < stop / every; i++) {
            for (int64_t b = 0; b < fetch_bytes; b += 64)
                __builtin_prefetch((const char *)ahead[i] + b, 0, 2);
        }
        if (stop > hi) stop = hi;
        for (; j < stop; j++) {
            const void *value_row = row[j];
            if (KVL_WIDE && vecs == 4) {
                vf value[4];
                kvl_vectors4(dtype, at->table, value_row, v, value);
                for (int a = 0; a < rows; a++) {
                    vf weight = vf_set1(p[a * ldp + j]);
                    for (int c = 0; c < vecs; c++) acc[a][c] = vf_fma(weight, value[c], acc[a][c]);
                }
                continue;
            }
            vf weight[6];
            for (int a = 0; a < rows; a++) weight[a] = vf_set1(p[a * ldp + j]);
            for (int c = 0; c < vecs; c++) {
                vf value = kvl_vector(dtype, value_row, v + c, which + c);
                for (int a = 0; a < rows; a++) acc[a][c] = vf_fma(weight[a], value, acc[a][c]);
                KVL_LOAD_LATER();
            }
        }
    }
    for (int a = 0; a < rows; a++) {
        for (int c = 0; c < vecs; c++) vf_store(o + a * ldo + c * KVL_VL, acc[a][c]);
    }
}

/* How many of `left` rows the next register tile takes. */
static int32_t value_rows_next(int32_t left) {
    if (KVL_WIDE) return left >= 9 || left == 6 ? 6 : left > 6 ? 4 : left;
    return kvl_rows_next(left);
}

/* One column: four vectors, or the two that are left. Four rows by two vectors, or three by four,
 * are what 16 registers hold; six by four what 32 do. */
KVL_INLINE void value_column(kvl_dtype dtype, int rows, const place *at, bool four, int32_t lo,
                             int32_t hi) {
    if (lo >= hi) return;
    if (rows == 4 && !KVL_WIDE) {
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
    case KVL_I8:
        value_column(KVL_I8, 1, &mine, four, lo, hi);
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
    if (KVL_WIDE && n == 6) {
        value_column(dtype, 6, at, four, lo, hi);
    } else if (KVL_WIDE && n == 5) {
        value_column(dtype, 5, at, four, lo, hi);
    } else if (n == 4) {
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
    const bool copied = tile->rows == &tile->wide;
    const int64_t row_bytes = tile->n_vecs * KVL_VL * kvl_stored_bytes(dtype);
    /* As many keys as columns, so that all columns together fetch all rows; a power of two. */
    int32_t every = 1;
    while (every * 4 < tile->n_vecs) every *= 2;
    for (int64_t v = 0; v < tile->n_vecs; v += 4) {
        for (int32_t r = 0, n; r < tile->n_rows; r += n) {
            n = value_rows_next(tile->n_rows - r);
            bool fetch = r == 0 && !copied;
            place at = {.rows = tile->rows->v,
                        .ahead = tile->ahead->v,
                        .table = &tile->v_table,
                        .p = p + r * ldp,
                        .o = o + r * tile->ld,
                        .ldp = ldp,
                        .ldo = tile->ld,
                        .v = v,
                        .fetch_every = fetch ? every : FETCH_KEYS,
                        .fetch_from = fetch ? (int32_t)(v / 4) * (KVL_TILE_KEYS / every) : 0,
                        .fetch_bytes = fetch ? row_bytes : 0};
            value_rows(dtype, tile, &at, r, n, v + 4 <= tile->n_vecs);
        }
    }
}

/* Each key's dynamic scale, into the weights: their sum is taken already. */
static void scale_weights(const kvl_tile *tile, float *p, int64_t ldp) {
    for (int32_t r = 0; r < tile->n_rows; r++) {
        for (int32_t j = tile->lo[r]; j < tile->hi[r]; j++) p[r * ldp + j] *= tile->v_scale[j];
    }
}

void kvl_tile_values(const kvl_tile *tile, float *p, int64_t ldp, float *o) {
    if (tile->v_scale) scale_weights(tile, p, ldp);
    switch (tile->v_dtype) {
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
    case KVL_I8:
        values_of(KVL_I8, tile, p, ldp, o);
        break;
    default:
        values_of(KVL_F32, tile, p, ldp, o);
    }
}
