/* Stage scores on bf16 dot products, for bf16 Q against keys that bf16 holds exactly (bf16, fp8).
 *
 * A score is four chains over head_dim: chain l takes pairs l, 4 + l, 8 + l, ...
 * (core/simd_bf16.h), and the score is (chain 0 + chain 2) + (chain 1 + chain 3). Two ways to these
 * bits:
 *
 * Few rows: a vector holds a chunk of four pairs of four keys, whose chains so lie side by side. It
 * takes two shuffles a line of K, and nothing is stored.
 *
 * Many rows: a tile's keys are turned once, so that lanes run over keys and a vector holds a pair
 * of sixteen. One chain after another goes through the registers.
 *
 * Against the float32 way: products are exact in both; a step rounds twice (core/simd_bf16.h), and
 * subnormal elements of Q and K count as zeros. */
#include "attention/tile.h"

enum { CHUNK = 4 /* pairs */, FEW_ROWS = 8 };

static bool is_few(const kvl_tile *tile) {
    return tile->n_rows <= FEW_ROWS;
}

/* Rows of the next register tile. Many: 24 sums, four vectors of keys and a broadcast pair of Q
 * fill 32 registers. */
static int32_t dot_rows(const kvl_tile *tile, int32_t left) {
    if (is_few(tile)) return left == 5 || left == 6 ? 3 : left < 4 ? left : 4;
    return left >= 9 || left == 6 ? 6 : left > 6 ? 4 : left;
}

bool kvl_tile_dots(const kvl_attention_args *args) {
    kvl_dtype dtype = args->kv->k_dtype;
    return args->q_dtype == KVL_BF16 &&
           (dtype == KVL_BF16 || dtype == KVL_FP8_E4M3 || dtype == KVL_FP8_E5M2);
}

/* K as it is; V of e4m3 as value / 256, as vf_part_e4m3 gives it. */
void kvl_dot_tables(kvl_tile *tile) {
    const kvl_kv_view *kv = tile->block->args->kv;
    if (kvl_is_fp8(kv->k_dtype)) tile->k_table = vp_fp8_table_of(kv->k_dtype, 1.0f);
    if (kvl_is_fp8(kv->v_dtype))
        tile->v_table = vp_fp8_table_of(kv->v_dtype, kv->v_dtype == KVL_FP8_E4M3 ? 0x1p-8f : 1.0f);
}

static void load_q_row(const uint16_t *row, int32_t head_dim, uint32_t *out, int32_t n, int32_t a,
                       bool few) {
    for (int32_t i = 0; i < head_dim; i += 2 * CHUNK) {
        uint32_t chunk[CHUNK] = {0};
        int32_t left = head_dim - i < 2 * CHUNK ? head_dim - i : 2 * CHUNK;
        memcpy(chunk, row + i, (size_t)left * sizeof *row);
        if (few) {
            memcpy(out + (i / (2 * CHUNK) * n + a) * CHUNK, chunk, sizeof chunk);
            continue;
        }
        for (int l = 0; l < CHUNK; l++) out[(i / 2 + l) * n + a] = chunk[l];
    }
}

/* Q as it is stored, packed by register tile. Pair i of row a of the n rows from r on is at q_pairs
 * + r * n_pairs + i * n + a; with few rows chunks stay whole: + (i / CHUNK * n + a) * CHUNK + i %
 * CHUNK. */
void kvl_dot_load_q(kvl_tile *tile) {
    const kvl_attention_args *args = tile->block->args;
    int32_t head_dim = args->kv->head_dim;
    /* Whole vectors of stored elements; what lies past head_dim is zeros. */
    int32_t step = args->kv->k_dtype == KVL_BF16 ? 32 : 64;
    tile->n_pairs = (head_dim + step - 1) / step * step / 2;
    memset(tile->q_pairs, 0, (size_t)tile->n_rows * (size_t)tile->n_pairs * sizeof(uint32_t));
    for (int32_t r = 0, n; r < tile->n_rows; r += n) {
        n = dot_rows(tile, tile->n_rows - r);
        for (int32_t a = 0; a < n; a++) {
            const uint16_t *row = (const uint16_t *)args->q +
                                  kvl_block_token(tile->block, r + a) * args->q_row_stride +
                                  (int64_t)kvl_block_head(tile->block, r + a) * head_dim;
            load_q_row(row, head_dim, tile->q_pairs + r * tile->n_pairs, n, a, is_few(tile));
        }
    }
}

static void ask_for(const void *const *ahead, int64_t offset) {
    for (int i = 0; i < KVL_VL; i++) __builtin_prefetch((const char *)ahead[i] + offset, 0, 2);
}

static void turn_bf16(const kvl_tile *tile, const void *const *k, const void *const *ahead,
                      uint32_t *out) {
    int32_t head_dim = tile->block->args->kv->head_dim;
    for (int32_t i = 0; i < head_dim; i += 32) {
        vp rows[KVL_VL];
        for (int r = 0; r < KVL_VL; r++)
            rows[r] = vp_load_bf16((const uint16_t *)k[r] + i, head_dim - i);
        ask_for(ahead, 2 * i);
        vp_turn(rows, out + i / 2 * KVL_TILE_KEYS, KVL_TILE_KEYS, 4);
    }
}

static void turn_fp8(const kvl_tile *tile, const vp_fp8_table *table, const void *const *k,
                     const void *const *ahead, uint32_t *out) {
    int32_t head_dim = tile->block->args->kv->head_dim;
    for (int32_t i = 0; i < head_dim; i += 64) {
        vp lo[KVL_VL], hi[KVL_VL];
        for (int r = 0; r < KVL_VL; r++)
            vp_load_fp8(table, (const uint8_t *)k[r] + i, head_dim - i, &lo[r], &hi[r]);
        ask_for(ahead, i);
        uint32_t *pairs = out + i / 2 * KVL_TILE_KEYS;
        vp_turn(lo, pairs, KVL_TILE_KEYS, 8);
        vp_turn(hi, pairs + 4 * KVL_TILE_KEYS, KVL_TILE_KEYS, 8);
    }
}

/* Keys [low, high) to k_pairs, for many rows: pair i of key j is at k_pairs + i * KVL_TILE_KEYS +
 * j. Few rows read the keys where they lie. */
void kvl_dot_load_k(kvl_tile *tile, int32_t low, int32_t high) {
    kvl_dtype dtype = tile->block->args->kv->k_dtype;
    tile->k_stored = tile->rows->k;
    if (is_few(tile)) return;
    for (int32_t j = low & ~(KVL_VL - 1); j < high; j += KVL_VL) {
        const void *const *k = tile->rows->k + j, *const *ahead = tile->ahead->k + j;
        if (dtype == KVL_BF16) {
            turn_bf16(tile, k, ahead, tile->k_pairs + j);
        } else {
            turn_fp8(tile, &tile->k_table, k, ahead, tile->k_pairs + j);
        }
    }
}

/* ---- few rows ---------------------------------------------------------------------------------
 */

/* Chunks of four keys, 4 apart from `k` on: chunk c of key q is quarter q of out[c]. Elements from
 * `i` on: 32 (four chunks), or 64 of fp8. */
KVL_INLINE void chunks_of(kvl_dtype dtype, const vp_fp8_table *table, const void *const *k,
                          const void *const *ahead, int64_t i, int64_t n, vp out[8]) {
    vp lo[4], hi[4], even[4], odd[4];
    for (int q = 0; q < 4; q++) {
        if (dtype == KVL_BF16) {
            lo[q] = vp_load_bf16((const uint16_t *)k[4 * q] + i, n);
            __builtin_prefetch((const uint16_t *)ahead[4 * q] + i, 0, 2);
        } else {
            vp_load_fp8(table, (const uint8_t *)k[4 * q] + i, n, &lo[q], &hi[q]);
            __builtin_prefetch((const uint8_t *)ahead[4 * q] + i, 0, 2);
        }
    }
    if (dtype == KVL_BF16) {
        vp_quarters(lo, out);
        return;
    }
    vp_quarters(lo, even);
    vp_quarters(hi, odd);
    for (int c = 0; c < 4; c++) {
        out[2 * c] = even[c];
        out[2 * c + 1] = odd[c];
    }
}

/* Sixteen keys from `k` on against `rows` (1 to 4) rows. Four sets of four keys keep as many chains
 * going as hide the latency of a step; two of them are in registers at a time. */
KVL_INLINE void few_keys(kvl_dtype dtype, int rows, const vp_fp8_table *table, const kvl_tile *tile,
                         const uint32_t *q, const void *const *k, const void *const *ahead,
                         float *s, int64_t lds) {
    const int n_chunks = dtype == KVL_BF16 ? 4 : 8, step = 8 * n_chunks;
    int32_t head_dim = tile->block->args->kv->head_dim;
    vf acc[4][4];
    for (int a = 0; a < rows; a++) acc[a][0] = acc[a][1] = acc[a][2] = acc[a][3] = vf_zero();
    for (int64_t i = 0; i < head_dim; i += step, q += n_chunks * rows * CHUNK) {
        for (int set = 0; set < 4; set += 2) {
            vp key[2][8];
            chunks_of(dtype, table, k + set, ahead + set, i, head_dim - i, key[0]);
            chunks_of(dtype, table, k + set + 1, ahead + set + 1, i, head_dim - i, key[1]);
            for (int c = 0; c < n_chunks; c++) {
                for (int a = 0; a < rows; a++) {
                    vp chunk = vp_load_chunk(q + (c * rows + a) * CHUNK);
                    acc[a][set] = vf_dot(acc[a][set], chunk, key[0][c]);
                    acc[a][set + 1] = vf_dot(acc[a][set + 1], chunk, key[1][c]);
                }
            }
        }
    }
    for (int a = 0; a < rows; a++) {
        vf x = vf_add(_mm512_unpacklo_ps(acc[a][0], acc[a][1]),
                      _mm512_unpackhi_ps(acc[a][0], acc[a][1]));
        vf y = vf_add(_mm512_unpacklo_ps(acc[a][2], acc[a][3]),
                      _mm512_unpackhi_ps(acc[a][2], acc[a][3]));
        vf lo = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
        vf hi = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
        vf_store(s + a * lds, vf_add(lo, hi));
    }
}

/* `dtype`: bf16, or e4m3 for either fp8, whose table makes the difference. */
KVL_INLINE void few_scores(kvl_dtype dtype, const kvl_tile *tile, float *s, int64_t lds) {
    for (int32_t r = 0, n; r < tile->n_rows; r += n) {
        n = dot_rows(tile, tile->n_rows - r);
        const uint32_t *q = tile->q_pairs + r * tile->n_pairs;
        for (int32_t j = tile->lo[r] & ~(KVL_VL - 1); j < tile->hi[r + n - 1]; j += KVL_VL) {
            const void *const *k = tile->k_stored + j, *const *ahead = tile->ahead->k + j;
            float *out = s + r * lds + j;
            if (n == 4) {
                few_keys(dtype, 4, &tile->k_table, tile, q, k, ahead, out, lds);
            } else if (n == 3) {
                few_keys(dtype, 3, &tile->k_table, tile, q, k, ahead, out, lds);
            } else if (n == 2) {
                few_keys(dtype, 2, &tile->k_table, tile, q, k, ahead, out, lds);
            } else {
                few_keys(dtype, 1, &tile->k_table, tile, q, k, ahead, out, lds);
            }
        }
    }
}

/* ---- many rows --------------------------------------------------------------------------------
 */

KVL_INLINE void dot_chain(int rows, int vecs, int64_t n_pairs, const uint32_t *q, const uint32_t *k,
                          vf acc[6][4]) {
    for (int a = 0; a < rows; a++) {
        for (int c = 0; c < vecs; c++) acc[a][c] = vf_zero();
    }
    for (int64_t i = 0; i < n_pairs; i += CHUNK, q += CHUNK * rows, k += CHUNK * KVL_TILE_KEYS) {
        vp key[4];
        for (int c = 0; c < vecs; c++) key[c] = _mm512_loadu_si512(k + c * KVL_VL);
        for (int a = 0; a < rows; a++) {
            vp query = _mm512_set1_epi32((int)q[a]);
            for (int c = 0; c < vecs; c++) acc[a][c] = vf_dot(acc[a][c], query, key[c]);
        }
    }
}

KVL_INLINE void dot_tile(int rows, int vecs, int64_t n_pairs, const uint32_t *q, const uint32_t *k,
                         float *s, int64_t lds) {
    static const int order[CHUNK] = {0, 2, 1, 3};
    float first[6 * 4 * KVL_VL];
    for (int l = 0; l < CHUNK; l++) {
        vf acc[6][4];
        dot_chain(rows, vecs, n_pairs, q + order[l] * rows, k + order[l] * KVL_TILE_KEYS, acc);
        for (int a = 0; a < rows; a++) {
            for (int c = 0; c < vecs; c++) {
                float *half = first + (a * 4 + c) * KVL_VL, *out = s + a * lds + c * KVL_VL;
                if (l == 1 || l == 3) acc[a][c] = vf_add(vf_load_f32(half), acc[a][c]);
                if (l == 3) acc[a][c] = vf_add(vf_load_f32(out), acc[a][c]);
                vf_store(l == 1 || l == 3 ? out : half, acc[a][c]);
            }
        }
    }
}

#define DOT_ROWS(rows) \
    static void dot_##rows(int vecs, int64_t n_pairs, const uint32_t *q, const uint32_t *k, \
                           float *s, int64_t lds) { \
        switch (vecs) { \
        case 1: \
            dot_tile(rows, 1, n_pairs, q, k, s, lds); \
            break; \
        case 2: \
            dot_tile(rows, 2, n_pairs, q, k, s, lds); \
            break; \
        case 3: \
            dot_tile(rows, 3, n_pairs, q, k, s, lds); \
            break; \
        default: \
            dot_tile(rows, 4, n_pairs, q, k, s, lds); \
        } \
    }
DOT_ROWS(1)
DOT_ROWS(2)
DOT_ROWS(3)
DOT_ROWS(4)
DOT_ROWS(5)
DOT_ROWS(6)
#undef DOT_ROWS

static void many_scores(const kvl_tile *tile, float *s, int64_t lds) {
    static void (*const dots[])(int, int64_t, const uint32_t *, const uint32_t *, float *,
                                int64_t) = {dot_1, dot_2, dot_3, dot_4, dot_5, dot_6};
    for (int32_t r = 0, n; r < tile->n_rows; r += n) {
        n = dot_rows(tile, tile->n_rows - r);
        /* Ranges rise with the row: these vectors hold all that some of the n rows see. */
        int32_t from = tile->lo[r] / KVL_VL, to = (tile->hi[r + n - 1] + KVL_VL - 1) / KVL_VL;
        if (from >= to) continue;
        dots[n - 1](to - from, tile->n_pairs, tile->q_pairs + r * tile->n_pairs,
                    tile->k_pairs + from * KVL_VL, s + r * lds + from * KVL_VL, lds);
    }
}

void kvl_dot_scores(const kvl_tile *tile, float *s, int64_t lds) {
    if (!is_few(tile)) {
        many_scores(tile, s, lds);
        return;
    }
    switch (tile->block->args->kv->k_dtype) {
    case KVL_FP8_E4M3:
    case KVL_FP8_E5M2:
        few_scores(KVL_FP8_E4M3, tile, s, lds);
        break;
    default:
        few_scores(KVL_BF16, tile, s, lds);
    }
}
