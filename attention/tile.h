/* The stages that the vector kernels are made of, on one block of query rows and one tile of keys:
 * load_q, load_kv, scores, softmax of a row, accumulate, store. Written once on core/simd.h.
 *
 * Every number of a row is computed in an order that only its own keys fix:
 * - q.k: lanes over head_dim, one fused multiply-add a vector in rising order, then one fixed tree;
 * - the softmax's sum: lanes over absolute key positions, rising, then the same tree; keys that the
 *   row does not see are -inf before the exponential and add an exact 0;
 * - P.V: one key after another in rising order, lanes over head_dim; a key that the row does not
 *   see is left out by count, so that neither its NaN nor its infinity can reach the row.
 * So register tiles (up to 3 rows x 4 keys) change speed, never bits. */
#ifndef KVL_ATTENTION_TILE_H
#define KVL_ATTENTION_TILE_H

#include "attention/block.h"
#include "core/simd.h"

#define KVL_INLINE static inline __attribute__((always_inline))

/* One block at work. `ld` floats lie between the rows of q, o and the widened tiles. */
typedef struct kvl_tile {
    const kvl_attention_block *block;
    int64_t ld;
    int32_t n_rows, n_vecs; /* vectors in a head_dim */
    kvl_dtype dtype;        /* what k[] and v[] point to: the pool's dtype, or f32 when widened */
    bool widen;
    float scale;                                         /* softmax scale, k_scale folded in */
    int64_t first[KVL_BLOCK_ROWS], last[KVL_BLOCK_ROWS]; /* absolute keys a row sees */
    int32_t lo[KVL_BLOCK_ROWS], hi[KVL_BLOCK_ROWS];      /* the same within the tile */
    const void *k[KVL_TILE_KEYS], *v[KVL_TILE_KEYS];     /* rows of the tile's keys */
    float *q, *k_wide, *v_wide;                          /* scratch */
} kvl_tile;

/* Running softmax of the block's rows: max, sum of exp(s - max), and sum of exp(s - max) v. */
typedef struct kvl_tile_state {
    float max[KVL_BLOCK_ROWS], sum[KVL_BLOCK_ROWS];
    float *o; /* [n_rows][ld] */
} kvl_tile_state;

KVL_INLINE vf kvl_load(kvl_dtype dtype, const void *row, int64_t i) {
    switch (dtype) {
    case KVL_F16:
        return vf_load_f16((const uint16_t *)row + i);
    case KVL_BF16:
        return vf_load_bf16((const uint16_t *)row + i);
    case KVL_FP8_E4M3:
        return vf_load_e4m3((const uint8_t *)row + i);
    case KVL_FP8_E5M2:
        return vf_load_e5m2((const uint8_t *)row + i);
    default:
        return vf_load_f32((const float *)row + i);
    }
}

KVL_INLINE vf kvl_load_n(kvl_dtype dtype, const void *row, int64_t i, int n) {
    switch (dtype) {
    case KVL_F16:
        return vf_load_f16_n((const uint16_t *)row + i, n);
    case KVL_BF16:
        return vf_load_bf16_n((const uint16_t *)row + i, n);
    case KVL_FP8_E4M3:
        return vf_load_e4m3_n((const uint8_t *)row + i, n);
    case KVL_FP8_E5M2:
        return vf_load_e5m2_n((const uint8_t *)row + i, n);
    default:
        return vf_load_f32_n((const float *)row + i, n);
    }
}

/* Widens head_dim elements to f32, zeros up to a whole vector. */
KVL_INLINE void kvl_widen_row(kvl_dtype dtype, const void *row, int32_t head_dim, float *out) {
    int64_t i = 0;
    for (; i + KVL_VL <= head_dim; i += KVL_VL) vf_store(out + i, kvl_load(dtype, row, i));
    if (i < head_dim) vf_store(out + i, kvl_load_n(dtype, row, i, (int)(head_dim - i)));
}

static void kvl_widen(kvl_dtype dtype, const void *row, int32_t head_dim, float *out) {
    switch (dtype) {
    case KVL_F16:
        kvl_widen_row(KVL_F16, row, head_dim, out);
        break;
    case KVL_BF16:
        kvl_widen_row(KVL_BF16, row, head_dim, out);
        break;
    case KVL_FP8_E4M3:
        kvl_widen_row(KVL_FP8_E4M3, row, head_dim, out);
        break;
    case KVL_FP8_E5M2:
        kvl_widen_row(KVL_FP8_E5M2, row, head_dim, out);
        break;
    default:
        kvl_widen_row(KVL_F32, row, head_dim, out);
    }
}

/* Whether K and V go through a widened copy of the tile. It pays once several register tiles read
 * the same keys; fp8 takes more work to widen, so it pays earlier. A ragged head_dim always does:
 * partial vectors must not read past a row. */
static bool kvl_tile_widens(const kvl_kv_view *kv, int32_t n_rows) {
    if (kv->head_dim % KVL_VL != 0) return true;
    if (kv->dtype == KVL_F32) return false;
    return n_rows > (kv->dtype == KVL_F16 || kv->dtype == KVL_BF16 ? 6 : 3);
}

/* Stage load_q: rows, their key ranges, and Q as f32. `scratch` holds
 * (KVL_BLOCK_ROWS + 2 * KVL_TILE_KEYS) * ld floats. */
static void kvl_tile_load_q(kvl_tile *tile, const kvl_attention_block *block, float *scratch) {
    const kvl_attention_args *args = block->args;
    const kvl_kv_view *kv = args->kv;
    tile->block = block;
    tile->ld = kvl_tile_stride(args);
    tile->n_rows = block->n_rows;
    tile->n_vecs = (kv->head_dim + KVL_VL - 1) / KVL_VL;
    tile->widen = kvl_tile_widens(kv, block->n_rows);
    tile->dtype = tile->widen ? KVL_F32 : kv->dtype;
    tile->scale = args->scale * (kv->k_scale ? kv->k_scale[block->kv_head] : 1.0f);
    tile->q = scratch;
    tile->k_wide = tile->q + KVL_BLOCK_ROWS * tile->ld;
    tile->v_wide = tile->k_wide + KVL_TILE_KEYS * tile->ld;
    size_t q_bytes = args->q_dtype == KVL_F32 ? 4 : 2;
    for (int32_t r = 0; r < block->n_rows; r++) {
        int64_t offset = kvl_block_token(block, r) * args->q_row_stride +
                         (int64_t)kvl_block_head(block, r) * kv->head_dim;
        kvl_widen(args->q_dtype, (const char *)args->q + (size_t)offset * q_bytes, kv->head_dim,
                  tile->q + r * tile->ld);
        kvl_block_range(block, r, &tile->first[r], &tile->last[r]);
    }
}

static int32_t kvl_clamp_tile(int64_t x) {
    return (int32_t)(x < 0 ? 0 : x > KVL_TILE_KEYS ? KVL_TILE_KEYS : x);
}

/* Stage load_kv: finds (and widens) the rows of keys [from, to) of the tile that starts at
 * absolute key `start`, and each row's range in it. This is the only place that sees pages. */
static void kvl_tile_load_kv(kvl_tile *tile, int64_t start, int64_t from, int64_t to, bool want_k,
                             bool want_v) {
    const kvl_kv_view *kv = tile->block->args->kv;
    int64_t bytes = kv->dtype == KVL_F32 ? 4 : kv->dtype <= KVL_BF16 ? 2 : 1;
    for (int64_t t = from; t < to;) {
        int64_t offset, end;
        end = t + kvl_kv_run(kv, tile->block->seq, t, to, tile->block->kv_head, &offset);
        for (; t < end; t++, offset += kv->token_stride) {
            tile->k[t - start] = (const char *)kv->k_pool + offset * bytes;
            tile->v[t - start] = (const char *)kv->v_pool + offset * bytes;
        }
    }
    if (tile->widen) {
        for (int64_t j = from - start; j < to - start; j++) {
            float *k = tile->k_wide + j * tile->ld, *v = tile->v_wide + j * tile->ld;
            if (want_k) kvl_widen(kv->dtype, tile->k[j], kv->head_dim, k);
            if (want_v) kvl_widen(kv->dtype, tile->v[j], kv->head_dim, v);
            tile->k[j] = k;
            tile->v[j] = v;
        }
    }
    /* Register tiles take four keys; the ends of the range are filled up with a valid one, whose
     * score nobody reads. */
    int64_t low = from - start, high = to - start;
    for (int64_t j = low & ~(int64_t)3; j < low; j++) tile->k[j] = tile->k[low];
    for (int64_t j = high; j & 3; j++) tile->k[j] = tile->k[high - 1];
    for (int32_t r = 0; r < tile->n_rows; r++) {
        tile->lo[r] = kvl_clamp_tile(tile->first[r] - start);
        tile->hi[r] = kvl_clamp_tile(tile->last[r] - start);
    }
}

/* How many of `left` rows the next register tile takes: threes, without leaving a one behind. */
static inline int32_t kvl_rows_next(int32_t left) {
    return left == 4 ? 2 : left < 3 ? left : 3;
}

/* Raw q.k of `rows` (1 to 3) rows with four keys. */
KVL_INLINE void kvl_score_tile(kvl_dtype dtype, int rows, const kvl_tile *tile, int32_t r,
                               const void *const *k, float *s, int64_t lds) {
    vf acc[3][4];
    for (int a = 0; a < rows; a++) {
        for (int b = 0; b < 4; b++) acc[a][b] = vf_zero();
    }
    const float *q = tile->q + r * tile->ld;
    for (int64_t i = 0; i < (int64_t)tile->n_vecs * KVL_VL; i += KVL_VL) {
        vf key[4];
        for (int b = 0; b < 4; b++) key[b] = kvl_load(dtype, k[b], i);
        for (int a = 0; a < rows; a++) {
            vf query = vf_load_f32(q + a * tile->ld + i);
            for (int b = 0; b < 4; b++) acc[a][b] = vf_fma(query, key[b], acc[a][b]);
        }
    }
    for (int a = 0; a < rows; a++) {
        vf_hsum4(s + a * lds, acc[a][0], acc[a][1], acc[a][2], acc[a][3]);
    }
}

/* Few rows read each K and V row once, at the speed of memory, and the values stage walks V in
 * columns, which the hardware does not foresee: ask for the strip's V rows and the K rows two
 * strips ahead while this strip is computed. */
KVL_INLINE void kvl_prefetch_strip(kvl_dtype dtype, const kvl_tile *tile, int32_t j, int32_t end) {
    int64_t bytes = dtype == KVL_F32 ? 4 : dtype <= KVL_BF16 ? 2 : 1;
    int64_t row_bytes = (int64_t)tile->n_vecs * KVL_VL * bytes;
    if (tile->widen) return;
    for (int32_t i = j < tile->lo[0] ? tile->lo[0] : j; i < j + 4 && i < end; i++) {
        for (int64_t b = 0; b < row_bytes; b += 64) {
            __builtin_prefetch((const char *)tile->v[i] + b);
            if (i + 8 < end) __builtin_prefetch((const char *)tile->k[i + 8] + b);
        }
    }
}

KVL_INLINE void kvl_scores_of(kvl_dtype dtype, const kvl_tile *tile, float *s, int64_t lds) {
    int32_t begin = tile->lo[0] & ~3, end = tile->hi[tile->n_rows - 1];
    for (int32_t j = begin; j < end; j += 4) {
        const void *const *k = tile->k + j;
        kvl_prefetch_strip(dtype, tile, j, end);
        for (int32_t r = 0, n; r < tile->n_rows; r += n) {
            n = kvl_rows_next(tile->n_rows - r);
            /* Ranges rise with the row, so these two tell whether any of the n sees a key here. */
            if (tile->lo[r] >= j + 4 || tile->hi[r + n - 1] <= j) continue;
            float *out = s + r * lds + j;
            if (n == 3) {
                kvl_score_tile(dtype, 3, tile, r, k, out, lds);
            } else if (n == 2) {
                kvl_score_tile(dtype, 2, tile, r, k, out, lds);
            } else {
                kvl_score_tile(dtype, 1, tile, r, k, out, lds);
            }
        }
    }
}

/* Stage scores: s[r * lds + j] = q_r . k_j for all that some row of a register tile sees. */
static void kvl_tile_scores(const kvl_tile *tile, float *s, int64_t lds) {
    switch (tile->dtype) {
    case KVL_F16:
        kvl_scores_of(KVL_F16, tile, s, lds);
        break;
    case KVL_BF16:
        kvl_scores_of(KVL_BF16, tile, s, lds);
        break;
    case KVL_FP8_E4M3:
        kvl_scores_of(KVL_FP8_E4M3, tile, s, lds);
        break;
    case KVL_FP8_E5M2:
        kvl_scores_of(KVL_FP8_E5M2, tile, s, lds);
        break;
    default:
        kvl_scores_of(KVL_F32, tile, s, lds);
    }
}

/* Scales (and caps) the scores s[lo .. hi) of a row, sets what it does not see in the first and
 * last vector to -inf, and returns the largest. s starts at a multiple of KVL_TILE_KEYS. */
static float kvl_row_max(float *s, int64_t lo, int64_t hi, float scale, float softcap) {
    int64_t begin = lo & ~(int64_t)(KVL_VL - 1);
    vf factor = vf_set1(scale), largest = vf_set1(-INFINITY);
    for (int64_t j = begin; j < hi; j += KVL_VL) {
        vf x = vf_mul(vf_load_f32(s + j), factor);
        if (softcap > 0.0f) {
            vf cap = vf_set1(softcap);
            x = vf_mul(cap, vf_tanh(vf_div(x, cap)));
        }
        vf_store(s + j, x);
    }
    for (int64_t j = begin; j < lo; j++) s[j] = -INFINITY;
    for (int64_t j = hi; j & (KVL_VL - 1); j++) s[j] = -INFINITY;
    for (int64_t j = begin; j < hi; j += KVL_VL) largest = vf_max(vf_load_f32(s + j), largest);
    return vf_hmax(largest);
}

/* s = exp(s - max) over the same vectors; returns the sum. */
static float kvl_row_exp(float *s, int64_t lo, int64_t hi, float max) {
    vf shift = vf_set1(max), sum = vf_zero();
    for (int64_t j = lo & ~(int64_t)(KVL_VL - 1); j < hi; j += KVL_VL) {
        vf p = vf_exp(vf_sub(vf_load_f32(s + j), shift));
        vf_store(s + j, p);
        sum = vf_add(sum, p);
    }
    return vf_hsum(sum);
}

static float kvl_exp1(float x) {
    float lanes[KVL_VL];
    vf_store(lanes, vf_exp(vf_set1(x)));
    return lanes[0];
}

/* o[a][c] += p[a][j] v[j][c] for `rows` rows, `vecs` vectors of head_dim from i on, keys lo..hi. */
KVL_INLINE void kvl_value_tile(kvl_dtype dtype, int rows, int vecs, const kvl_tile *tile,
                               const float *p, int64_t ldp, int32_t lo, int32_t hi, float *o,
                               int64_t i) {
    vf acc[3][8];
    for (int a = 0; a < rows; a++) {
        for (int c = 0; c < vecs; c++) acc[a][c] = vf_load_f32(o + a * tile->ld + i + c * KVL_VL);
    }
    for (int32_t j = lo; j < hi; j++) {
        const void *v = tile->v[j];
        vf weight[3];
        for (int a = 0; a < rows; a++) weight[a] = vf_set1(p[a * ldp + j]);
        for (int c = 0; c < vecs; c++) {
            vf value = kvl_load(dtype, v, i + c * KVL_VL);
            for (int a = 0; a < rows; a++) acc[a][c] = vf_fma(weight[a], value, acc[a][c]);
        }
    }
    for (int a = 0; a < rows; a++) {
        for (int c = 0; c < vecs; c++) vf_store(o + a * tile->ld + i + c * KVL_VL, acc[a][c]);
    }
}

KVL_INLINE void kvl_value_rows(kvl_dtype dtype, int rows, const kvl_tile *tile, const float *p,
                               int64_t ldp, int32_t lo, int32_t hi, float *o) {
    if (lo >= hi) return;
    int64_t i = 0, end = (int64_t)tile->n_vecs * KVL_VL;
    if (rows == 1) {
        for (; i + 8 * KVL_VL <= end; i += 8 * KVL_VL)
            kvl_value_tile(dtype, rows, 8, tile, p, ldp, lo, hi, o, i);
    }
    for (; i + 4 * KVL_VL <= end; i += 4 * KVL_VL)
        kvl_value_tile(dtype, rows, 4, tile, p, ldp, lo, hi, o, i);
    for (; i + 2 * KVL_VL <= end; i += 2 * KVL_VL)
        kvl_value_tile(dtype, rows, 2, tile, p, ldp, lo, hi, o, i);
    if (i < end) kvl_value_tile(dtype, rows, 1, tile, p, ldp, lo, hi, o, i);
}

/* Keys that all of a register tile's rows see go through it together; what only some see before
 * and after them, row by row. The order of keys of each row stays the rising one. */
KVL_INLINE void kvl_values_of(kvl_dtype dtype, const kvl_tile *tile, const float *p, int64_t ldp,
                              float *o) {
    for (int32_t r = 0, n; r < tile->n_rows; r += n) {
        n = kvl_rows_next(tile->n_rows - r);
        int32_t lo = tile->lo[r + n - 1], hi = tile->hi[r];
        const float *weights = p + r * ldp;
        float *out = o + r * tile->ld;
        if (lo > hi) lo = hi;
        for (int32_t a = 0; a < n; a++)
            kvl_value_rows(dtype, 1, tile, weights + a * ldp, ldp, tile->lo[r + a],
                           lo < tile->hi[r + a] ? lo : tile->hi[r + a], out + a * tile->ld);
        if (n == 3) {
            kvl_value_rows(dtype, 3, tile, weights, ldp, lo, hi, out);
        } else if (n == 2) {
            kvl_value_rows(dtype, 2, tile, weights, ldp, lo, hi, out);
        } else {
            kvl_value_rows(dtype, 1, tile, weights, ldp, lo, hi, out);
        }
        for (int32_t a = 0; a < n; a++)
            kvl_value_rows(dtype, 1, tile, weights + a * ldp, ldp,
                           hi > tile->lo[r + a] ? hi : tile->lo[r + a], tile->hi[r + a],
                           out + a * tile->ld);
    }
}

/* Stage accumulate: o[r] += sum over the keys that row r sees of p[r * ldp + j] v[j]. */
static void kvl_tile_values(const kvl_tile *tile, const float *p, int64_t ldp, float *o) {
    switch (tile->dtype) {
    case KVL_F16:
        kvl_values_of(KVL_F16, tile, p, ldp, o);
        break;
    case KVL_BF16:
        kvl_values_of(KVL_BF16, tile, p, ldp, o);
        break;
    case KVL_FP8_E4M3:
        kvl_values_of(KVL_FP8_E4M3, tile, p, ldp, o);
        break;
    case KVL_FP8_E5M2:
        kvl_values_of(KVL_FP8_E5M2, tile, p, ldp, o);
        break;
    default:
        kvl_values_of(KVL_F32, tile, p, ldp, o);
    }
}

static void kvl_state_reset(kvl_tile_state *state, const kvl_tile *tile) {
    for (int32_t r = 0; r < tile->n_rows; r++) {
        state->max[r] = -INFINITY;
        state->sum[r] = 0.0f;
    }
    memset(state->o, 0, (size_t)(tile->n_rows * tile->ld) * sizeof(float));
}

/* Row r of `into` <- into + from, two softmax states over disjoint keys. A state that saw no key
 * (sum 0) is left out, so it cannot change a bit. */
static void kvl_state_merge(float *into_max, float *into_sum, float *into_o, float from_max,
                            float from_sum, const float *from_o, int32_t n_vecs) {
    if (from_sum == 0.0f) return;
    if (*into_sum == 0.0f) {
        *into_max = from_max;
        *into_sum = from_sum;
        memcpy(into_o, from_o, (size_t)n_vecs * KVL_VL * sizeof(float));
        return;
    }
    float max = from_max > *into_max ? from_max : *into_max;
    float keep = kvl_exp1(*into_max - max), take = kvl_exp1(from_max - max);
    vf a = vf_set1(keep), b = vf_set1(take);
    for (int64_t i = 0; i < (int64_t)n_vecs * KVL_VL; i += KVL_VL)
        vf_store(into_o + i,
                 vf_fma(vf_load_f32(from_o + i), b, vf_mul(vf_load_f32(into_o + i), a)));
    *into_sum = *into_sum * keep + from_sum * take;
    *into_max = max;
}

/* Stage store: divides by the denominator (sink included), folds v_scale in, writes O and LSE of
 * one row. */
static void kvl_row_store(const kvl_attention_args *args, int64_t token, int32_t head, float max,
                          float sum, float *o) {
    const kvl_kv_view *kv = args->kv;
    int32_t head_dim = kv->head_dim, kv_head = head / kvl_attention_group(args);
    float factor = kv->v_scale ? kv->v_scale[kv_head] : 1.0f;
    float lse = sum == 0.0f ? -INFINITY : max + logf(sum);
    if (args->sinks && sum == 0.0f) lse = args->sinks[head];
    if (args->sinks && sum != 0.0f) {
        float top = args->sinks[head] > max ? args->sinks[head] : max;
        factor *= kvl_exp1(max - top);
        sum = sum * kvl_exp1(max - top) + kvl_exp1(args->sinks[head] - top);
        lse = top + logf(sum);
    }
    if (args->lse) args->lse[token * args->n_q_heads + head] = lse;
    /* No key seen: o is all zeros and stays so. */
    factor = sum == 0.0f ? 0.0f : factor / sum;
    int64_t offset = token * args->o_row_stride + (int64_t)head * head_dim;
    for (int32_t i = 0; i < head_dim; i += KVL_VL) {
        int n = head_dim - i < KVL_VL ? head_dim - i : KVL_VL;
        vf x = vf_mul(vf_load_f32(o + i), vf_set1(factor));
        if (args->o_dtype == KVL_F32) {
            vf_store_n((float *)args->o + offset + i, x, n);
        } else {
            uint16_t codes[KVL_VL];
            if (args->o_dtype == KVL_BF16) {
                vf_store_bf16(codes, x);
            } else {
                vf_store_f16(codes, x);
            }
            memcpy((uint16_t *)args->o + offset + i, codes, (size_t)n * sizeof(uint16_t));
        }
    }
}

#endif
