/* Flash attention on AMX: the online softmax of flash_kernel.c, tile by tile of 64 keys and split
 * by split, its two products on TDPBF16PS (16 x 16 float32 sums of 32 bf16 products each).
 *
 * S^T = K Q^T: K rows are the left operand as they lie in the cache; Q is packed once a block,
 * pairs of dimensions side by side. A vector of S^T is one key and 16 rows, so max, exponential and
 * sum of the softmax never cross lanes.
 *
 * O += P V: P is two bf16 summands, hi + lo. hi is off by up to 2^-8 of P, lo by 2^-9 of what is
 * left: 2^-17 or 7.6e-6 of a weight, below the 1e-5 that float32 kernels are held to. V becomes
 * pairs of keys once a tile.
 *
 * Every number of a row is computed in an order that only its own keys fix: dimensions and keys
 * rise in steps of 32 counted from absolute key 0, and a key that the row does not see has P = 0,
 * which adds an exact 0. Rows that see no key of a tile are put back after it: + 0 would still
 * flush a subnormal. 0 * NaN is no 0, and neither is lo * infinity: see add_values.
 * The hardware takes subnormals for 0 and gives none. */
#include "attention/flash_amx.h"

#include "core/amx.h"

#include "attention/tile.h"

enum {
    ROWS = KVL_AMX_ROWS,
    GROUPS = KVL_TILE_KEYS / ROWS, /* of 16 keys */
    HALVES = KVL_TILE_KEYS / 32,   /* of 32 keys: a step of P V */
    TILE_BYTES = 1024,
    TILE_CODES = TILE_BYTES / 2, /* bf16 of an operand tile */
};
_Static_assert(KVL_BLOCK_ROWS % KVL_AMX_ROWS == 0, "rows of a block fill whole tiles");

typedef struct amx_block {
    kvl_tile tile; /* key ranges, rows of K and V; its q and widened copies are not used */
    int32_t head_dim, n_q_tiles;
    int64_t dims, dim_tiles; /* head_dim rounded up to 32s; tiles of 16 of them */
    uint16_t *q;             /* [n_q_tiles][dims / 32][16 pairs of dimensions][ROWS][2] */
    uint16_t *k_copy;        /* [KVL_TILE_KEYS][dims], for keys that cannot be read in place */
    uint16_t *v;             /* [HALVES][dim_tiles][16 pairs of keys][16 dimensions][2] */
    float *s;                /* [KVL_TILE_KEYS][ROWS] */
    uint32_t *words;         /* [hi, lo][KVL_TILE_KEYS / 2 pairs of keys][ROWS] */
    uint32_t *p;             /* [hi, lo][HALVES][ROWS][16 pairs of keys] */
    float *o_copy;           /* [ROWS][ld] */
    const uint16_t *k[GROUPS];
    int64_t k_stride_bytes[GROUPS];
    bool v_finite;
} amx_block;

/* ---- operands ------------------------------------------------------------------------------- */

/* Where row `r` of Q begins; its pairs of dimensions lie 2 * ROWS codes apart. */
static void pack_q_row(amx_block *b, int32_t r, const uint16_t *row) {
    uint16_t *to = b->q + r / ROWS * ROWS * b->dims + r % ROWS * 2;
    for (int32_t i = 0; i < b->head_dim; i++) to[i / 2 * 2 * ROWS + i % 2] = row[i];
}

static void load_q(amx_block *b, const kvl_attention_block *block, float *scratch) {
    const kvl_attention_args *args = block->args;
    const kvl_kv_view *kv = args->kv;
    *b = (amx_block){.head_dim = kv->head_dim,
                     .n_q_tiles = (block->n_rows + ROWS - 1) / ROWS,
                     .dims = kvl_amx_dims(args),
                     .dim_tiles = kvl_amx_dims(args) / 16};
    b->tile.block = block;
    b->tile.ld = kvl_tile_stride(args);
    b->tile.n_rows = block->n_rows;
    b->tile.found[0].start = b->tile.found[1].start = -1;
    /* Fetches may ask for rows that no tile had yet: any address of the pool will do. */
    for (int32_t i = 0; i < 2 * KVL_TILE_KEYS; i++) {
        b->tile.found[i % 2].k[i / 2] = kv->k_pool;
        b->tile.found[i % 2].v[i / 2] = kv->v_pool;
    }
    b->tile.scale = args->scale * (kv->k_scale ? kv->k_scale[block->kv_head] : 1.0f);
    b->q = (uint16_t *)scratch;
    b->k_copy = b->q + KVL_AMX_Q_TILES * ROWS * b->dims;
    b->v = b->k_copy + KVL_TILE_KEYS * b->dims;
    b->s = (float *)(b->v + KVL_TILE_KEYS * b->dims);
    b->words = (uint32_t *)b->s + KVL_TILE_KEYS * ROWS;
    b->p = b->words + KVL_TILE_KEYS * ROWS;
    b->o_copy = (float *)(b->p + KVL_TILE_KEYS * ROWS);
    memset(b->q, 0, (size_t)(b->n_q_tiles * ROWS * b->dims) * sizeof *b->q);
    for (int32_t r = 0; r < block->n_rows; r++) {
        int64_t offset = kvl_block_token(block, r) * args->q_row_stride +
                         (int64_t)kvl_block_head(block, r) * kv->head_dim;
        pack_q_row(b, r, (const uint16_t *)args->q + offset);
        kvl_block_range(block, r, &b->tile.first[r], &b->tile.last[r]);
    }
}

/* True when the 16 keys of a group are all there and lie one stride apart. */
static bool in_place(const amx_block *b, int32_t group, int64_t *stride_bytes) {
    int32_t from = group * ROWS;
    if (from < b->tile.low || from + ROWS > b->tile.high || b->head_dim % 32 != 0) return false;
    const void *const *k = b->tile.rows->k + from;
    *stride_bytes = (const char *)k[1] - (const char *)k[0];
    for (int32_t j = 2; j < ROWS; j++) {
        if ((const char *)k[j] - (const char *)k[j - 1] != *stride_bytes) return false;
    }
    return true;
}

static void take_k(amx_block *b) {
    size_t row_bytes = (size_t)b->head_dim * sizeof(uint16_t);
    for (int32_t g = 0; g < GROUPS; g++) {
        b->k[g] = b->tile.rows->k[g * ROWS];
        if (in_place(b, g, &b->k_stride_bytes[g])) continue;
        uint16_t *copy = b->k_copy + g * ROWS * b->dims;
        b->k[g] = copy;
        b->k_stride_bytes[g] = b->dims * (int64_t)sizeof *copy;
        memset(copy, 0, (size_t)(ROWS * b->dims) * sizeof *copy);
        for (int32_t j = g * ROWS; j < (g + 1) * ROWS; j++, copy += b->dims) {
            if (j >= b->tile.low && j < b->tile.high) memcpy(copy, b->tile.rows->k[j], row_bytes);
        }
    }
}

/* 32 dimensions of V from dimension i on, zeros past head_dim and for a key that is left out. */
static inline __m512i load_dims(const amx_block *b, int32_t key, int64_t i, bool there) {
    int64_t left = b->head_dim - i;
    __mmask32 mask = left >= 32 ? UINT32_MAX : (1u << left) - 1;
    if (!there) return _mm512_set1_epi32(0);
    return _mm512_maskz_loadu_epi16(mask, (const uint16_t *)b->tile.rows->v[key] + i);
}

/* V of keys [from, to) of the tile as pairs of keys, zeros for the others; of each 32 dimensions
 * the even ones, then the odd ones: the order in which the store (kvl_place) takes O. Returns
 * whether all of it is finite. */
static bool take_v(const amx_block *b, int32_t from, int32_t to) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80), low = _mm512_set1_epi32(0xffff);
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    __mmask32 special = 0;
    for (int32_t j = 0; j < KVL_TILE_KEYS; j += 2) {
        uint16_t *out = b->v + j / 32 * b->dim_tiles * TILE_CODES + j % 32 / 2 * 32;
        for (int64_t i = 0; i < b->dims; i += 32, out += 2 * TILE_CODES) {
            __m512i first = load_dims(b, j, i, j >= from && j < to);
            __m512i second = load_dims(b, j + 1, i, j + 1 >= from && j + 1 < to);
            special |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(first, exponent), exponent);
            special |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(second, exponent), exponent);
            _mm512_storeu_si512(
                out, _mm512_or_si512(_mm512_and_si512(first, low), _mm512_slli_epi32(second, 16)));
            _mm512_storeu_si512(out + TILE_CODES, _mm512_or_si512(_mm512_srli_epi32(first, 16),
                                                                  _mm512_and_si512(second, high)));
        }
    }
    return special == 0;
}

/* ---- S^T ------------------------------------------------------------------------------------ */

/* Raw scores of the tile's keys with the rows of a Q tile. */
static void scores(const amx_block *b, int32_t q_tile) {
    const uint16_t *q = b->q + q_tile * ROWS * b->dims;
    kvl_amx_written();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < b->dims; i += 32, q += TILE_CODES) {
        _tile_loadd(6, q, 64);
        _tile_loadd(4, b->k[0] + i, (size_t)b->k_stride_bytes[0]);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, b->k[1] + i, (size_t)b->k_stride_bytes[1]);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(4, b->k[2] + i, (size_t)b->k_stride_bytes[2]);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, b->k[3] + i, (size_t)b->k_stride_bytes[3]);
        _tile_dpbf16ps(3, 5, 6);
    }
    _tile_stored(0, b->s, 64);
    _tile_stored(1, b->s + ROWS * ROWS, 64);
    _tile_stored(2, b->s + 2 * ROWS * ROWS, 64);
    _tile_stored(3, b->s + 3 * ROWS * ROWS, 64);
}

/* ---- softmax: a lane a row ------------------------------------------------------------------- */

/* Rows of the Q tile that see key j. */
static inline __mmask16 sees(__m512i lo, __m512i hi, int32_t j) {
    __m512i key = _mm512_set1_epi32(j);
    return _mm512_cmple_epi32_mask(lo, key) & _mm512_cmpgt_epi32_mask(hi, key);
}

/* Scales (and caps) the scores, -inf where a row does not see a key, and returns each row's max. */
static vf scale_scores(const amx_block *b, __m512i lo, __m512i hi) {
    float softcap = b->tile.block->args->softcap;
    vf factor = vf_set1(b->tile.scale), none = vf_set1(-INFINITY), largest = none;
    for (int32_t j = 0; j < KVL_TILE_KEYS; j++) {
        vf x = vf_mul(vf_load_f32(b->s + j * ROWS), factor);
        if (softcap > 0.0f) {
            vf cap = vf_set1(softcap);
            x = vf_mul(cap, vf_tanh(vf_div(x, cap)));
        }
        x = _mm512_mask_blend_ps(sees(lo, hi, j), none, x);
        vf_store(b->s + j * ROWS, x);
        largest = vf_max(x, largest);
    }
    return largest;
}

/* x rounded to bf16, in the upper half of each lane. */
static inline __m512i upper_bf16(vf x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000u));
}

/* s to P = exp(s - max), in words of two keys: hi and lo. Returns the sums of P. */
static vf exponentials(const amx_block *b, __m512i lo, __m512i hi, vf max) {
    vf sum = vf_zero();
    for (int32_t j = 0; j < KVL_TILE_KEYS; j += 2) {
        __m512i high[2], low[2];
        for (int i = 0; i < 2; i++) {
            vf p = vf_exp(vf_sub(vf_load_f32(b->s + (j + i) * ROWS), max));
            p = _mm512_maskz_mov_ps(sees(lo, hi, j + i), p);
            sum = vf_add(sum, p);
            high[i] = upper_bf16(p);
            low[i] = upper_bf16(vf_sub(p, _mm512_castsi512_ps(high[i])));
        }
        uint32_t *to = b->words + j / 2 * ROWS;
        _mm512_storeu_si512(to, _mm512_or_si512(_mm512_srli_epi32(high[0], 16), high[1]));
        _mm512_storeu_si512(to + KVL_TILE_KEYS / 2 * ROWS,
                            _mm512_or_si512(_mm512_srli_epi32(low[0], 16), low[1]));
    }
    return sum;
}

/* The words of 16 pairs of keys, a lane a row, to rows of 16 words. */
static void transpose(const uint32_t *in, uint32_t *out) {
    __m512i a[16], t[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_si512(in + i * ROWS);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* a[i + c]: in each 128-bit lane L, column 4 L + c */
        a[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int c = 0; c < 4; c++) {
        __m512i l01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);
        __m512i l23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
        __m512i h01 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
        __m512i h23 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
        _mm512_storeu_si512(out + c * ROWS, _mm512_shuffle_i32x4(l01, l23, 0x88));
        _mm512_storeu_si512(out + (4 + c) * ROWS, _mm512_shuffle_i32x4(h01, h23, 0x88));
        _mm512_storeu_si512(out + (8 + c) * ROWS, _mm512_shuffle_i32x4(l01, l23, 0xdd));
        _mm512_storeu_si512(out + (12 + c) * ROWS, _mm512_shuffle_i32x4(h01, h23, 0xdd));
    }
}

static void scale_rows(const amx_block *b, float *o, const float *keep) {
    for (int32_t r = 0; r < ROWS; r++, o += b->tile.ld) {
        if (keep[r] == 1.0f) continue;
        vf factor = vf_set1(keep[r]);
        for (int64_t i = 0; i < b->tile.ld; i += KVL_VL)
            vf_store(o + i, vf_mul(vf_load_f32(o + i), factor));
    }
}

/* Scores of a Q tile to P; max, sum and O of its rows follow. Rows that see nothing here keep their
 * state. */
static void softmax(const amx_block *b, int32_t q_tile, kvl_tile_state *state) {
    int32_t first = q_tile * ROWS;
    float keep_of[ROWS];
    __m512i lo = _mm512_loadu_si512(b->tile.lo + first);
    __m512i hi = _mm512_loadu_si512(b->tile.hi + first);
    vf before = vf_load_f32(state->max + first), sum = vf_load_f32(state->sum + first);
    vf max = scale_scores(b, lo, hi);
    max = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(before, max, _CMP_GT_OQ), max, before);
    max = _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(lo, hi), before, max);
    __mmask16 moved = _mm512_cmp_ps_mask(before, max, _CMP_NEQ_UQ);
    vf keep = _mm512_mask_blend_ps(moved, vf_set1(1.0f), vf_exp(vf_sub(before, max)));
    vf_store(keep_of, keep);
    if (moved) scale_rows(b, state->o + first * b->tile.ld, keep_of);
    sum = vf_add(vf_mul(sum, keep), exponentials(b, lo, hi, max));
    vf_store(state->max + first, max);
    vf_store(state->sum + first, sum);
    for (int32_t i = 0; i < 2 * HALVES; i++)
        transpose(b->words + i * ROWS * ROWS, b->p + i * ROWS * ROWS);
}

/* ---- O += P V ------------------------------------------------------------------------------- */

/* Up to four tiles of 16 dimensions at a time, from dimension tile i on. */
static void add_values_at(const amx_block *b, int64_t i, float *o) {
    int64_t n = b->dim_tiles - i;
    size_t o_bytes = (size_t)b->tile.ld * sizeof *o;
    o += i * 16;
#define EACH(DO) \
    DO(0); \
    if (n > 1) DO(1); \
    if (n > 2) DO(2); \
    if (n > 3) DO(3)
#define LOAD(c) _tile_loadd(c, o + c * 16, o_bytes)
#define MULTIPLY(c) \
    do { \
        _tile_loadd(6, v + c * TILE_CODES, 64); \
        _tile_dpbf16ps(c, 4, 6); \
        _tile_dpbf16ps(c, 5, 6); \
    } while (0)
#define STORE(c) _tile_stored(c, o + c * 16, o_bytes)
    kvl_amx_written();
    EACH(LOAD);
    for (int32_t half = 0; half < HALVES; half++) {
        const uint16_t *v = b->v + (half * b->dim_tiles + i) * TILE_CODES;
        _tile_loadd(4, b->p + half * ROWS * ROWS, 64);
        _tile_loadd(5, b->p + (HALVES + half) * ROWS * ROWS, 64);
        EACH(MULTIPLY);
    }
    EACH(STORE);
#undef EACH
#undef LOAD
#undef MULTIPLY
#undef STORE
}

static void add_all_values(const amx_block *b, float *o) {
    for (int64_t i = 0; i < b->dim_tiles; i += 4) add_values_at(b, i, o);
}

/* P of row r of the Q tile and key j, which is never below 0. */
static float weight(const amx_block *b, int32_t r, int32_t j) {
    float part[2];
    for (int32_t i = 0; i < 2; i++) {
        uint32_t pair = b->p[(i * HALVES + j / 32) * ROWS * ROWS + r * 16 + j % 32 / 2];
        uint32_t bits = j % 2 ? pair & 0xffff0000u : pair << 16;
        memcpy(&part[i], &bits, sizeof bits);
    }
    return part[0] + part[1];
}

/* A row that sees infinities or NaN, key by key in float32. */
static void add_values_of_row(const amx_block *b, int32_t r, int32_t lo, int32_t hi, float *o) {
    for (int32_t j = lo; j < hi; j++) {
        const uint16_t *v = b->tile.rows->v[j];
        float p = weight(b, r, j);
        for (int32_t i = 0; i < b->head_dim; i++) {
            uint32_t bits = (uint32_t)v[i] << 16;
            float value;
            memcpy(&value, &bits, sizeof bits);
            o[kvl_place(32, i)] += p * value;
        }
    }
}

/* Rows of a Q tile one by one, on a V without the keys that the row does not see: what those hold
 * must not decide anything. */
static void add_values_by_row(const amx_block *b, const int32_t *lo, const int32_t *hi, float *o) {
    int64_t ld = b->tile.ld;
    for (int32_t r = 0; r < ROWS; r++, o += ld) {
        if (lo[r] >= hi[r]) continue;
        if (!take_v(b, lo[r], hi[r])) {
            add_values_of_row(b, r, lo[r], hi[r], o);
            continue;
        }
        memset(b->o_copy, 0, (size_t)(ROWS * ld) * sizeof *o);
        memcpy(b->o_copy + r * ld, o, (size_t)ld * sizeof *o);
        add_all_values(b, b->o_copy);
        memcpy(o, b->o_copy + r * ld, (size_t)ld * sizeof *o);
    }
}

static void add_values(const amx_block *b, int32_t q_tile, float *o) {
    const int32_t *lo = b->tile.lo + q_tile * ROWS, *hi = b->tile.hi + q_tile * ROWS;
    int64_t ld = b->tile.ld;
    if (!b->v_finite) {
        add_values_by_row(b, lo, hi, o);
        return;
    }
    for (int32_t r = 0; r < ROWS; r++) {
        if (lo[r] >= hi[r]) memcpy(b->o_copy + r * ld, o + r * ld, (size_t)ld * sizeof *o);
    }
    add_all_values(b, o);
    for (int32_t r = 0; r < ROWS; r++) {
        if (lo[r] >= hi[r]) memcpy(o + r * ld, b->o_copy + r * ld, (size_t)ld * sizeof *o);
    }
}

/* ---- tiles, splits, blocks ------------------------------------------------------------------- */

/* Asks for the next tile's rows of K or V. */
static void prefetch_rows(const amx_block *b, const void *const *rows) {
    if (b->tile.ahead == b->tile.rows) return;
    for (int32_t j = b->tile.low; j < b->tile.high; j++) {
        for (int32_t i = 0; i < b->head_dim * 2; i += 64)
            __builtin_prefetch((const char *)rows[j] + i, 0, 2);
    }
}

/* Whether some row of the Q tile sees a key of the tile of keys. */
static bool q_tile_sees(const amx_block *b, int32_t q_tile) {
    int32_t first = q_tile * ROWS;
    __m512i lo = _mm512_loadu_si512(b->tile.lo + first);
    return _mm512_cmplt_epi32_mask(lo, _mm512_loadu_si512(b->tile.hi + first)) != 0;
}

static void reset_state(const amx_block *b, kvl_tile_state *state) {
    for (int32_t r = 0; r < KVL_BLOCK_ROWS; r++) {
        state->max[r] = -INFINITY;
        state->sum[r] = 0.0f;
    }
    memset(state->o, 0, (size_t)(b->n_q_tiles * ROWS * b->tile.ld) * sizeof(float));
}

static void run_split(amx_block *b, int64_t first, int64_t last, int64_t end,
                      kvl_tile_state *state) {
    reset_state(b, state);
    int64_t start = first & ~(int64_t)(KVL_TILE_KEYS - 1);
    for (; start < last; start += KVL_TILE_KEYS) {
        int64_t from = start > first ? start : first;
        int64_t to = start + KVL_TILE_KEYS < last ? start + KVL_TILE_KEYS : last;
        kvl_tile_load(&b->tile, start, from, to, end, KVL_WANT_K | KVL_WANT_V);
        take_k(b);
        prefetch_rows(b, b->tile.ahead->k);
        b->v_finite = take_v(b, b->tile.low, b->tile.high);
        prefetch_rows(b, b->tile.ahead->v);
        for (int32_t q_tile = 0; q_tile < b->n_q_tiles; q_tile++) {
            if (!q_tile_sees(b, q_tile)) continue;
            scores(b, q_tile);
            softmax(b, q_tile, state);
            add_values(b, q_tile, state->o + q_tile * ROWS * b->tile.ld);
        }
    }
}

/* As in flash_kernel.c: keeps the rows' states of a split, or merges them into what each row has.
 */
static void put_states(const kvl_flash_task *task, const amx_block *b, int64_t split, bool fresh,
                       const kvl_tile_state *state) {
    int64_t ld = b->tile.ld, size = kvl_flash_partial(task->block.args);
    bool apart = task->n_states > 1;
    for (int32_t r = 0; r < b->tile.n_rows; r++) {
        float *into = task->states + r * task->n_states * size + (apart ? split * size : 0);
        const float *from = state->o + r * ld;
        if (apart || fresh) {
            memcpy(into, from, (size_t)ld * sizeof *into);
            into[ld] = state->max[r];
            into[ld + 1] = state->sum[r];
        } else {
            kvl_state_merge(&into[ld], &into[ld + 1], into, state->max[r], state->sum[r], from, ld);
        }
    }
}

static void run_splits(amx_block *b, const kvl_flash_task *task, kvl_tile_state *state) {
    int64_t first, last, end = task->split_last * KVL_SPLIT_KEYS;
    kvl_block_keys(&task->block, &first, &last);
    if (end > last) end = last;
    for (int64_t split = task->split_first; split < task->split_last; split++) {
        int64_t from = split * KVL_SPLIT_KEYS, to = from + KVL_SPLIT_KEYS;
        if (from < first) from = first;
        if (to > last) to = last;
        if (from < to) {
            run_split(b, from, to, end, state);
        } else {
            reset_state(b, state);
        }
        put_states(task, b, split, task->fresh && split == task->split_first, state);
    }
}

void KVL_ISA_FN(kvl_flash_block)(const kvl_flash_task *task, float *scratch) {
    amx_block b;
    kvl_tile_state state;
    const kvl_attention_block *block = &task->block;
    load_q(&b, block, scratch);
    b.tile.next_head = task->next_head;
    b.tile.next_key = task->next_key;
    state.o = b.o_copy + ROWS * b.tile.ld;
    kvl_amx_begin();
    run_splits(&b, task, &state);
    kvl_amx_end();
    for (int32_t r = 0; r < b.tile.n_rows && task->store; r++) {
        const float *o = task->states + r * kvl_flash_partial(block->args);
        kvl_row_store(block->args, kvl_block_token(block, r), kvl_block_head(block, r),
                      o[b.tile.ld], o[b.tile.ld + 1], o);
    }
}
