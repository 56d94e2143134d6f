/* The stages that the vector kernels are made of, on one block of query rows and one tile of keys:
 * load_q, load, scores, softmax of a row, values, store. Written once on core/simd.h and compiled
 * once an instruction set (tile.c, tile_scores.c, tile_values.c).
 *
 * Every number of a row is computed in an order that only its own keys fix:
 * - q.k: lanes over head_dim, one fused multiply-add a vector in rising order, then one fixed tree;
 * - the softmax's sum: lanes over absolute key positions, rising, then the same tree; keys that the
 *   row does not see are -inf before the exponential and add an exact 0;
 * - P.V: one key after another in rising order, lanes over head_dim; a key that the row does not
 *   see is left out by count, so that neither its NaN nor its infinity can reach the row.
 * So register tiles change speed, never bits.
 *
 * Which element lies in which lane is up to the KV dtype (vf_part_<dtype>): what costs least to
 * widen. Q is brought into the order of K once, O leaves that of V at the store (kvl_place). e4m3
 * is read as value / 256; tile->scale and the store make up for it, both by a power of two.
 *
 * Scales never touch an element: a static one is folded into tile->scale (K) or the store (V); a
 * dynamic one multiplies its key's score (K), or the key's weight before P V, not in the sum (V).
 */
#ifndef KVL_ATTENTION_TILE_H
#define KVL_ATTENTION_TILE_H

#include "attention/block.h"
#include "core/simd.h"

#ifdef KVL_ISA_IS_avx512_bf16
#include "core/simd_bf16.h"
typedef vp_fp8_table kvl_fp8_table;
#else
typedef struct kvl_fp8_table {
    char unused;
} kvl_fp8_table;
#endif

#define KVL_INLINE static inline __attribute__((always_inline))

/* Keys of a register tile of turned K: four vectors by three rows fill 16 registers. */
enum { KVL_STRIP_KEYS = 4 * KVL_VL };

/* Where the rows of a tile's keys lie. */
typedef struct kvl_rows {
    const void *k[KVL_TILE_KEYS], *v[KVL_TILE_KEYS];
    float k_scale[KVL_TILE_KEYS], v_scale[KVL_TILE_KEYS]; /* where scales are dynamic */
    int64_t start; /* absolute key of index 0; -1: none found yet */
} kvl_rows;

/* One block at work. `ld` floats lie between the rows of q, o and the widened tiles. */
typedef struct kvl_tile {
    const kvl_attention_block *block;
    int64_t ld;
    int32_t n_rows;
    int32_t n_vecs; /* vectors in a head_dim, padded to pieces of the dtype's order; even */
    int32_t k_step; /* elements after which the order of K repeats */
    bool widen;     /* every tile is copied to f32 first */
    bool turn;      /* and K turned, for scores of many rows */
    bool dot;       /* scores are bf16 dot products: tile_dot.c */
    float scale;    /* softmax scale, a static k_scale folded in */
    int64_t first[KVL_BLOCK_ROWS], last[KVL_BLOCK_ROWS]; /* absolute keys a row sees */
    int32_t lo[KVL_BLOCK_ROWS], hi[KVL_BLOCK_ROWS];      /* the same within the tile */
    int32_t low, high;                                   /* keys of the tile that were loaded */
    kvl_rows found[2], wide; /* of this and the next tile in the pool; of the widened copy */
    const kvl_rows *rows;    /* what scores and values read */
    const kvl_rows *ahead;   /* what they prefetch */
    int32_t next_head; /* what follows the last tile, to be prefetched: a KV head and a key, */
    int64_t next_key;  /* or -1 for nothing */
    kvl_dtype k_dtype, v_dtype;            /* of `rows`: the pool's, or f32 when widened */
    const float *k_scale, *v_scale;        /* of the tile's keys; NULL: static or none */
    float *q, *k_wide, *v_wide, *k_turned; /* scratch; k_turned: see widen_tile */
    uint32_t *q_pairs, *k_pairs;           /* with dot, in place of q and k_turned */
    int32_t n_pairs;                       /* of elements of a head_dim, padded with zeros */
    const void *const *k_stored;           /* with dot: the tile's keys in the pool */
    kvl_fp8_table k_table, v_table;        /* where KVL_HAS_DOT and the dtype is fp8 */
} kvl_tile;

/* Running softmax of the block's rows: max, sum of exp(s - max), and sum of exp(s - max) v. */
typedef struct kvl_tile_state {
    float max[KVL_BLOCK_ROWS], sum[KVL_BLOCK_ROWS];
    float *o; /* [n_rows][ld] */
} kvl_tile_state;

/* Where element `i` of a row lies in an order that repeats every `step`: the even elements of a
 * step, then the odd ones. A step of 2 is the order of memory. */
static inline int64_t kvl_place(int32_t step, int64_t i) {
    int64_t in_step = i & (step - 1);
    return i - in_step + (in_step & 1) * (step / 2) + (in_step >> 1);
}

/* How many of `left` rows the next register tile takes (1 to 4): threes where they fit, since three
 * rows by four keys or vectors fill 16 registers best. */
static inline int32_t kvl_rows_next(int32_t left) {
    return left % 3 == 0 ? 3 : left < 3 ? left : left == 5 ? 3 : 4;
}

/* The same for scores, whose Q is packed by register tile: element i of row a of the n rows from r
 * on is at q + r * ld + (i / KVL_VL * n + a) * KVL_VL + i % KVL_VL. So the inner loop needs one
 * pointer, not one a row. Turned K takes at most three rows. */
static inline int32_t kvl_score_rows(bool turn, int32_t left) {
    return !turn ? kvl_rows_next(left) : left < 3 ? left : 3;
}

static inline int64_t kvl_stored_bytes(kvl_dtype dtype) {
    return dtype == KVL_F32 ? 4 : dtype <= KVL_BF16 ? 2 : 1;
}
static inline bool kvl_is_fp8(kvl_dtype dtype) {
    return dtype == KVL_FP8_E4M3 || dtype == KVL_FP8_E5M2;
}

/* Vector `v` of a row; `which` = v modulo 4, a constant for the compiler. */
KVL_INLINE vf kvl_vector(kvl_dtype dtype, const void *row, int64_t v, int which) {
    switch (dtype) {
    case KVL_F16:
        return vf_load_f16((const uint16_t *)row + v * KVL_VL);
    case KVL_BF16:
        return vf_part_bf16((const uint16_t *)row + (v - (which & 1)) * KVL_VL, which & 1);
    case KVL_FP8_E4M3:
        return vf_part_e4m3((const uint8_t *)row + (v - which) * KVL_VL, which);
    case KVL_FP8_E5M2:
        return vf_part_e5m2((const uint8_t *)row + (v - which) * KVL_VL, which);
    case KVL_I8:
        return vf_load_i8((const int8_t *)row + v * KVL_VL);
    default:
        return vf_load_f32((const float *)row + v * KVL_VL);
    }
}

/* Whether there are 32 registers, as with the widest vectors. */
enum { KVL_WIDE = KVL_VL == 16 };

/* Whether this instruction set has bf16 dot products (tile_dot.c) and looks fp8 up in tables; and
 * vectors v .. v + 3 of a row, v a multiple of 4. */
#ifdef KVL_ISA_IS_avx512_bf16
enum { KVL_HAS_DOT = 1 };
KVL_INLINE void kvl_vectors4(kvl_dtype dtype, const kvl_fp8_table *table, const void *row,
                             int64_t v, vf out[4]) {
    if (kvl_is_fp8(dtype)) {
        vf_parts_fp8(table, (const uint8_t *)row + v * KVL_VL, out);
    } else {
        for (int c = 0; c < 4; c++) out[c] = kvl_vector(dtype, row, v + c, c);
    }
}
#else
enum { KVL_HAS_DOT = 0 };
KVL_INLINE void kvl_vectors4(kvl_dtype dtype, const kvl_fp8_table *table, const void *row,
                             int64_t v, vf out[4]) {
    for (int c = 0; c < 4; c++) out[c] = kvl_vector(dtype, row, v + c, c);
}
#endif

/* Keeps the compiler from loading ahead, or from holding what it loaded: where 16 registers are
 * just enough, either would spill accumulators, whose way through memory takes longer than all
 * else. */
#define KVL_LOAD_LATER() __asm__ volatile("" ::: "memory")

/* Each instruction set has its own copy of what follows. */
#define kvl_tile_load_q KVL_ISA_FN(kvl_tile_load_q)
#define kvl_tile_load KVL_ISA_FN(kvl_tile_load)
#define kvl_tile_scores KVL_ISA_FN(kvl_tile_scores)
#define kvl_tile_values KVL_ISA_FN(kvl_tile_values)
#define kvl_state_reset KVL_ISA_FN(kvl_state_reset)
#define kvl_state_merge KVL_ISA_FN(kvl_state_merge)
#define kvl_row_max KVL_ISA_FN(kvl_row_max)
#define kvl_row_exp KVL_ISA_FN(kvl_row_exp)
#define kvl_exp1 KVL_ISA_FN(kvl_exp1)
#define kvl_row_store KVL_ISA_FN(kvl_row_store)
#define kvl_tile_dots KVL_ISA_FN(kvl_tile_dots)
#define kvl_dot_tables KVL_ISA_FN(kvl_dot_tables)
#define kvl_dot_load_q KVL_ISA_FN(kvl_dot_load_q)
#define kvl_dot_load_k KVL_ISA_FN(kvl_dot_load_k)
#define kvl_dot_scores KVL_ISA_FN(kvl_dot_scores)

/* Stage load_q: rows, their key ranges, and Q as f32. `scratch`: kvl_tile_scratch floats. */
void kvl_tile_load_q(kvl_tile *tile, const kvl_attention_block *block, float *scratch);

/* Stage load: finds the rows of keys [from, to) of the tile that starts at absolute key `start`,
 * widens K, V or both where that pays, and sets each row's range in the tile. Also finds the rows
 * of the tile after it when keys go on up to `end`, or of the caller's next task, so that the other
 * stages can prefetch them.
 * This is the only place that sees pages. */
typedef enum kvl_want { KVL_WANT_K = 1, KVL_WANT_V = 2 } kvl_want;
void kvl_tile_load(kvl_tile *tile, int64_t start, int64_t from, int64_t to, int64_t end, int want);

/* Stage scores: s[r * lds + j] = q_r . k_j, times the key's dynamic scale, for all that some row of
 * a register tile sees; what lies between those may be anything. */
void kvl_tile_scores(const kvl_tile *tile, float *s, int64_t lds);

/* Scales (and caps) the scores s[lo .. hi) of a row, sets what it does not see in the first and
 * last vector to -inf, and returns the largest. s starts at a multiple of KVL_TILE_KEYS. */
float kvl_row_max(float *s, int64_t lo, int64_t hi, float scale, float softcap);

/* s = exp(s - max) over the same vectors; returns the sum. */
float kvl_row_exp(float *s, int64_t lo, int64_t hi, float max);

float kvl_exp1(float x);

/* Stage values: o[r] += sum over the keys that row r sees of p[r * ldp + j] v[j]. Where V has
 * dynamic scales they are multiplied into p. */
void kvl_tile_values(const kvl_tile *tile, float *p, int64_t ldp, float *o);

/* tile_dot.c, where KVL_HAS_DOT. Whether a call's scores are bf16 dot products, which its dtypes
 * alone decide, so that a row's bits do not depend on its company. Then: tables of fp8, Q, keys
 * [low, high) of a tile, and what kvl_tile_scores owes. */
bool kvl_tile_dots(const kvl_attention_args *args);
void kvl_dot_load_q(kvl_tile *tile);
void kvl_dot_tables(kvl_tile *tile);
void kvl_dot_load_k(kvl_tile *tile, int32_t low, int32_t high);
void kvl_dot_scores(const kvl_tile *tile, float *s, int64_t lds);

void kvl_state_reset(kvl_tile_state *state, const kvl_tile *tile);

/* Row r of `into` <- into + from, two softmax states over disjoint keys. A state that saw no key
 * (sum 0) is left out, so it cannot change a bit. `n` floats, a multiple of the vector. */
void kvl_state_merge(float *into_max, float *into_sum, float *into_o, float from_max,
                     float from_sum, const float *from_o, int64_t n);

/* Stage store: divides by the denominator (sink included), folds v_scale in, writes O and LSE of
 * one row. */
void kvl_row_store(const kvl_attention_args *args, int64_t token, int32_t head, float max,
                   float sum, const float *o);

#endif
