/* Stages load and store, the softmax of a row, and merging. */
#include "attention/tile.h"

KVL_INLINE vf load_part(kvl_dtype dtype, const void *row, int64_t i, int n) {
    switch (dtype) {
    case KVL_F16:
        return vf_load_f16_n((const uint16_t *)row + i, n);
    case KVL_BF16:
        return vf_load_bf16_n((const uint16_t *)row + i, n);
    default:
        return vf_load_f32_n((const float *)row + i, n);
    }
}

/* Elements after which the order of vf_part_<dtype> repeats. */
static int32_t order_of(kvl_dtype dtype) {
    return dtype == KVL_BF16 ? 2 * KVL_VL : kvl_is_fp8(dtype) ? 4 * KVL_VL : 2;
}

/* Elements that vectors are loaded by: those past a row must not be read. */
static int32_t piece_of(const kvl_kv_view *kv) {
    return kvl_is_fp8(kv->k_dtype) || kvl_is_fp8(kv->v_dtype) ? 4 * KVL_VL : 2 * KVL_VL;
}

/* Widens the first `n` elements, whole pieces, in the dtype's order. */
KVL_INLINE void widen_vectors(kvl_dtype dtype, const void *row, int32_t n, float *out) {
    int64_t v = 0, n_vecs = n / KVL_VL;
    for (; v + 4 <= n_vecs; v += 4) {
        for (int c = 0; c < 4; c++)
            vf_store(out + (v + c) * KVL_VL, kvl_vector(dtype, row, v + c, c));
    }
    for (int c = 0; c < 2 && v + c < n_vecs; c++)
        vf_store(out + (v + c) * KVL_VL, kvl_vector(dtype, row, v + c, c));
}

static void widen_whole(kvl_dtype dtype, const void *row, int32_t n, float *out) {
    switch (dtype) {
    case KVL_F16:
        widen_vectors(KVL_F16, row, n, out);
        break;
    case KVL_BF16:
        widen_vectors(KVL_BF16, row, n, out);
        break;
    case KVL_FP8_E4M3:
        widen_vectors(KVL_FP8_E4M3, row, n, out);
        break;
    case KVL_FP8_E5M2:
        widen_vectors(KVL_FP8_E5M2, row, n, out);
        break;
    case KVL_I8:
        widen_vectors(KVL_I8, row, n, out);
        break;
    default:
        widen_vectors(KVL_F32, row, n, out);
    }
}

/* The fast way takes NaN codes of e4m3 for numbers; a row that has some is put right. */
static void restore_nan(const uint8_t *codes, int32_t n, float *out) {
    for (int32_t i = 0; i < n; i++) {
        if ((codes[i] & 0x7f) == 0x7f) out[kvl_place(order_of(KVL_FP8_E4M3), i)] = NAN;
    }
}

/* A row to f32, zeros after head_dim. */
static void widen_row(const kvl_tile *tile, kvl_dtype dtype, const void *row, float *out) {
    const kvl_kv_view *kv = tile->block->args->kv;
    int32_t n = tile->n_vecs * KVL_VL, whole = kv->head_dim;
    int64_t bytes = kvl_stored_bytes(dtype);
    bool has_nan = false, e4m3 = dtype == KVL_FP8_E4M3;
    whole -= whole % piece_of(kv);
    widen_whole(dtype, row, whole, out);
    if (e4m3) has_nan = vf_nan_e4m3(&row, 1, whole);
    if (whole < n) {
        /* What is left must not be read past the row's end. */
        uint8_t rest[4 * KVL_VL * sizeof(float)] = {0};
        const void *padded = rest;
        memcpy(rest, (const uint8_t *)row + whole * bytes,
               (size_t)((kv->head_dim - whole) * bytes));
        widen_whole(dtype, rest, n - whole, out + whole);
        if (e4m3) has_nan = has_nan || vf_nan_e4m3(&padded, 1, n - whole);
    }
    if (has_nan) restore_nan(row, kv->head_dim, out);
}

/* Row `a` of the n rows of a register tile: widened in the order of memory, then brought into the
 * keys' order and packed. */
static void load_q_row(const kvl_tile *tile, const void *row, int32_t a, int32_t n, float *out) {
    const kvl_attention_args *args = tile->block->args;
    int32_t head_dim = args->kv->head_dim;
    for (int32_t i = 0; i < head_dim; i += KVL_VL) {
        int part = head_dim - i < KVL_VL ? head_dim - i : KVL_VL;
        float x[KVL_VL];
        switch (args->q_dtype) {
        case KVL_F16:
            vf_store(x, load_part(KVL_F16, row, i, part));
            break;
        case KVL_BF16:
            vf_store(x, load_part(KVL_BF16, row, i, part));
            break;
        default:
            vf_store(x, load_part(KVL_F32, row, i, part));
        }
        for (int l = 0; l < part; l++) {
            int64_t at = kvl_place(tile->k_step, i + l);
            out[(at / KVL_VL * n + a) * KVL_VL + at % KVL_VL] = x[l];
        }
    }
}

static void load_q_rows(kvl_tile *tile) {
    const kvl_attention_args *args = tile->block->args;
    size_t q_bytes = args->q_dtype == KVL_F32 ? 4 : 2;
    memset(tile->q, 0, (size_t)(tile->n_rows * tile->ld) * sizeof(float));
    for (int32_t r = 0, n; r < tile->n_rows; r += n) {
        n = kvl_score_rows(tile->turn, tile->n_rows - r);
        for (int32_t a = 0; a < n; a++) {
            int64_t offset = kvl_block_token(tile->block, r + a) * args->q_row_stride +
                             (int64_t)kvl_block_head(tile->block, r + a) * args->kv->head_dim;
            load_q_row(tile, (const char *)args->q + (size_t)offset * q_bytes, a, n,
                       tile->q + r * tile->ld);
        }
    }
}

/* Rows from which on a widened copy pays: several register tiles then read the same keys. Turning
 * K, which spares the scores their sums across lanes, costs as much again. */
enum { WIDEN_FROM = 9, TURN_FROM = 12 };

void kvl_tile_load_q(kvl_tile *tile, const kvl_attention_block *block, float *scratch) {
    const kvl_attention_args *args = block->args;
    const kvl_kv_view *kv = args->kv;
    tile->block = block;
    tile->ld = kvl_tile_stride(args);
    tile->n_rows = block->n_rows;
    tile->k_step = order_of(kv->k_dtype);
    int32_t piece = piece_of(kv);
    tile->n_vecs = (kv->head_dim + piece - 1) / piece * piece / KVL_VL;
    /* A ragged head_dim is always copied: vectors must not read past a row. */
    tile->widen = kv->head_dim % piece != 0 || block->n_rows >= WIDEN_FROM;
    tile->dot = KVL_HAS_DOT && kvl_tile_dots(args);
    tile->turn = block->n_rows >= TURN_FROM && !tile->dot;
    tile->scale = args->scale;
    if (kv->k_scale && !kv->k_scale_tokens) tile->scale *= kv->k_scale[block->kv_head];
    if (kv->k_dtype == KVL_FP8_E4M3 && !tile->dot) tile->scale *= 256.0f;
    tile->found[0].start = tile->found[1].start = -1;
    tile->next_key = -1;
    tile->q = scratch;
    tile->k_wide = tile->q + KVL_BLOCK_ROWS * tile->ld;
    tile->v_wide = tile->k_wide + KVL_TILE_KEYS * tile->ld;
    tile->k_turned = tile->v_wide + KVL_TILE_KEYS * tile->ld;
    for (int32_t j = 0; j < KVL_TILE_KEYS; j++) {
        tile->wide.k[j] = tile->k_wide + j * tile->ld;
        tile->wide.v[j] = tile->v_wide + j * tile->ld;
        /* Fetches may ask for rows that no tile had yet (before a window): any address of the pool
         * will do. */
        for (int i = 0; i < 2; i++) {
            tile->found[i].k[j] = kv->k_pool;
            tile->found[i].v[j] = kv->v_pool;
        }
    }
    for (int32_t r = 0; r < block->n_rows; r++)
        kvl_block_range(block, r, &tile->first[r], &tile->last[r]);
    if (KVL_HAS_DOT) kvl_dot_tables(tile);
    if (KVL_HAS_DOT && tile->dot) {
        tile->q_pairs = (uint32_t *)(void *)tile->q;
        tile->k_pairs = (uint32_t *)(void *)tile->k_turned;
        kvl_dot_load_q(tile);
    } else {
        load_q_rows(tile);
    }
}

/* Scales of the n tokens from t on, all of one page. */
static void find_scales(const kvl_kv_view *kv, const float *scales, int64_t scale_tokens,
                        int32_t seq, int64_t t, int64_t n, int32_t head, float *out) {
    int64_t slot = t % kv->page_tokens;
    const float *at = scales + kvl_kv_scale_index(kv, scale_tokens, seq, t - slot, head);
    for (int64_t i = slot; i < slot + n; i++)
        out[i - slot] = at[(i - i % scale_tokens) * kv->n_kv_heads];
}

static void find_rows(const kvl_attention_block *block, int32_t head, kvl_rows *rows, int64_t start,
                      int64_t from, int64_t to) {
    const kvl_kv_view *kv = block->args->kv;
    int64_t k_bytes = kvl_stored_bytes(kv->k_dtype), v_bytes = kvl_stored_bytes(kv->v_dtype);
    int64_t k_stride = kv->token_stride * k_bytes, v_stride = kv->token_stride * v_bytes;
    rows->start = start;
    for (int64_t t = from; t < to;) {
        int64_t offset;
        int64_t n = kvl_kv_run(kv, block->seq, t, to, head, &offset);
        const char *k = (const char *)kv->k_pool + offset * k_bytes;
        const char *v = (const char *)kv->v_pool + offset * v_bytes;
        for (int64_t i = 0; i < n; i++) {
            rows->k[t - start + i] = k + i * k_stride;
            rows->v[t - start + i] = v + i * v_stride;
        }
        if (kv->k_scale_tokens)
            find_scales(kv, kv->k_scale, kv->k_scale_tokens, block->seq, t, n, head,
                        rows->k_scale + (t - start));
        if (kv->v_scale_tokens)
            find_scales(kv, kv->v_scale, kv->v_scale_tokens, block->seq, t, n, head,
                        rows->v_scale + (t - start));
        t += n;
    }
    /* Scores are computed in strips of eight or sixteen keys; the ends of the range are filled up
     * with a valid row, whose score nobody reads. */
    int64_t low = from - start, high = to - start;
    for (int64_t j = low & ~(int64_t)15; j < low; j++) {
        rows->k[j] = rows->k[low];
        rows->v[j] = rows->v[low];
    }
    for (int64_t j = high; j & 15; j++) rows->k[j] = rows->k[high - 1];
}

static void prefetch_row(const void *row, int64_t bytes) {
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch((const char *)row + b, 0, 2);
}

/* Copies keys [low, high) of the tile to f32, and turns K so that lanes run over keys: strip after
 * strip of KVL_STRIP_KEYS keys, in each a row for lane 0 of every vector, for lane 1, and so on. */
static void widen_tile(kvl_tile *tile, int32_t low, int32_t high, int want) {
    const kvl_kv_view *kv = tile->block->args->kv;
    int64_t k_bytes = kv->head_dim * kvl_stored_bytes(kv->k_dtype);
    int64_t v_bytes = kv->head_dim * kvl_stored_bytes(kv->v_dtype);
    for (int32_t j = low; j < high; j++) {
        if (want & KVL_WANT_K) {
            prefetch_row(tile->ahead->k[j], k_bytes);
            widen_row(tile, kv->k_dtype, tile->rows->k[j], tile->k_wide + j * tile->ld);
        }
        if (want & KVL_WANT_V) {
            prefetch_row(tile->ahead->v[j], v_bytes);
            widen_row(tile, kv->v_dtype, tile->rows->v[j], tile->v_wide + j * tile->ld);
        }
    }
    if (tile->turn && (want & KVL_WANT_K)) {
        for (int32_t j = low & ~(KVL_VL - 1); j < high; j += KVL_VL) {
            int32_t in_strip = j & (KVL_STRIP_KEYS - 1);
            float *strip = tile->k_turned + (int64_t)(j - in_strip) * tile->n_vecs * KVL_VL;
            for (int32_t i = 0; i < tile->n_vecs; i++)
                vf_transpose(tile->k_wide + j * tile->ld + i * KVL_VL, tile->ld,
                             strip + i * KVL_STRIP_KEYS + in_strip,
                             (int64_t)tile->n_vecs * KVL_STRIP_KEYS);
        }
    }
    tile->rows = &tile->wide;
    tile->k_dtype = tile->v_dtype = KVL_F32;
}

/* Where what comes after a tile lies; without anything to come, the tile itself. */
static void look_ahead(kvl_tile *tile, kvl_rows *now, kvl_rows *next, int64_t low, int64_t end) {
    int64_t after = now->start + KVL_TILE_KEYS, from = after, to = end;
    int32_t head = tile->block->kv_head;
    bool other = after >= end && tile->next_key >= 0;
    tile->ahead = now;
    if (other) {
        int64_t first, last;
        kvl_block_keys(tile->block, &first, &last);
        after = tile->next_key;
        from = after > first ? after : first;
        after = from & ~(int64_t)(KVL_TILE_KEYS - 1);
        to = last;
        head = tile->next_head;
    }
    if (after >= to || from >= to) return;
    if (to > after + KVL_TILE_KEYS) to = after + KVL_TILE_KEYS;
    find_rows(tile->block, head, next, after, from, to);
    /* What it lacks of a whole tile is prefetched as this tile's own rows. */
    for (int64_t j = low & ~(int64_t)15; j < KVL_TILE_KEYS; j++) {
        if (j >= from - after && j < to - after) continue;
        next->k[j] = now->k[j];
        next->v[j] = now->v[j];
    }
    if (other) next->start = -1; /* it is not this block's */
    tile->ahead = next;
}

static int32_t clamp_tile(int64_t x) {
    return (int32_t)(x < 0 ? 0 : x > KVL_TILE_KEYS ? KVL_TILE_KEYS : x);
}

void kvl_tile_load(kvl_tile *tile, int64_t start, int64_t from, int64_t to, int64_t end, int want) {
    const kvl_kv_view *kv = tile->block->args->kv;
    kvl_rows *now = &tile->found[start / KVL_TILE_KEYS & 1];
    kvl_rows *next = &tile->found[(start / KVL_TILE_KEYS & 1) ^ 1];
    if (now->start != start) find_rows(tile->block, tile->block->kv_head, now, start, from, to);
    int32_t low = (int32_t)(from - start), high = (int32_t)(to - start);
    look_ahead(tile, now, next, low, end);
    tile->rows = now;
    tile->k_dtype = kv->k_dtype;
    tile->v_dtype = kv->v_dtype;
    tile->k_scale = kv->k_scale_tokens ? now->k_scale : NULL;
    tile->v_scale = kv->v_scale_tokens ? now->v_scale : NULL;
    tile->low = low;
    tile->high = high;
    bool widen = tile->widen;
    if (KVL_HAS_DOT && tile->dot && (want & KVL_WANT_K)) {
        kvl_dot_load_k(tile, low, high);
        want &= ~KVL_WANT_K;
    }
    if (!widen)
        widen = (kv->k_dtype == KVL_FP8_E4M3 && (want & KVL_WANT_K) &&
                 vf_nan_e4m3(now->k + low, high - low, kv->head_dim)) ||
                (!KVL_HAS_DOT && kv->v_dtype == KVL_FP8_E4M3 && (want & KVL_WANT_V) &&
                 vf_nan_e4m3(now->v + low, high - low, kv->head_dim));
    if (widen) widen_tile(tile, low, high, want);
    for (int32_t r = 0; r < tile->n_rows; r++) {
        tile->lo[r] = clamp_tile(tile->first[r] - start);
        tile->hi[r] = clamp_tile(tile->last[r] - start);
    }
}

static const float lane_numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

float kvl_row_max(float *s, int64_t lo, int64_t hi, float scale, float softcap) {
    vf factor = vf_set1(scale), lowest = vf_set1(-INFINITY), largest = lowest;
    for (int64_t j = lo & ~(int64_t)(KVL_VL - 1); j < hi; j += KVL_VL) {
        vf x = vf_mul(vf_load_f32(s + j), factor);
        if (softcap > 0.0f) {
            vf cap = vf_set1(softcap);
            x = vf_mul(cap, vf_tanh(vf_div(x, cap)));
        }
        if (j < lo || j + KVL_VL > hi) {
            vf lane = vf_load_f32(lane_numbers);
            x = vf_select_below(lane, vf_set1((float)(lo - j)), lowest, x);
            if (hi - j < KVL_VL) x = vf_select_below(lane, vf_set1((float)(hi - j)), x, lowest);
        }
        vf_store(s + j, x);
        largest = vf_max(x, largest);
    }
    return vf_hmax(largest);
}

float kvl_row_exp(float *s, int64_t lo, int64_t hi, float max) {
    vf shift = vf_set1(max), sum = vf_zero();
    for (int64_t j = lo & ~(int64_t)(KVL_VL - 1); j < hi; j += KVL_VL) {
        vf p = vf_exp(vf_sub(vf_load_f32(s + j), shift));
        vf_store(s + j, p);
        sum = vf_add(sum, p);
    }
    return vf_hsum(sum);
}

float kvl_exp1(float x) {
    float lanes[KVL_VL];
    vf_store(lanes, vf_exp(vf_set1(x)));
    return lanes[0];
}

void kvl_state_reset(kvl_tile_state *state, const kvl_tile *tile) {
    for (int32_t r = 0; r < tile->n_rows; r++) {
        state->max[r] = -INFINITY;
        state->sum[r] = 0.0f;
    }
    memset(state->o, 0, (size_t)(tile->n_rows * tile->ld) * sizeof(float));
}

void kvl_state_merge(float *into_max, float *into_sum, float *into_o, float from_max,
                     float from_sum, const float *from_o, int64_t n) {
    if (from_sum == 0.0f) return;
    if (*into_sum == 0.0f) {
        *into_max = from_max;
        *into_sum = from_sum;
        memcpy(into_o, from_o, (size_t)n * sizeof(float));
        return;
    }
    float max = from_max > *into_max ? from_max : *into_max;
    float keep = kvl_exp1(*into_max - max), take = kvl_exp1(from_max - max);
    vf a = vf_set1(keep), b = vf_set1(take);
    for (int64_t i = 0; i < n; i += KVL_VL)
        vf_store(into_o + i,
                 vf_fma(vf_load_f32(from_o + i), b, vf_mul(vf_load_f32(into_o + i), a)));
    *into_sum = *into_sum * keep + from_sum * take;
    *into_max = max;
}

/* Elements of O that are brought into the order of memory at a time; every order repeats after it.
 */
enum { STORE = 4 * KVL_VL };

static void in_order(int32_t step, const float *o, float *out) {
    if (step == 2) {
        memcpy(out, o, STORE * sizeof *out);
    } else if (step == STORE) {
        for (int l = 0; l < STORE / 2; l++) {
            out[2 * l] = o[l];
            out[2 * l + 1] = o[STORE / 2 + l];
        }
    } else {
        for (int half = 0; half < STORE; half += STORE / 2) {
            for (int l = 0; l < STORE / 4; l++) {
                out[half + 2 * l] = o[half + l];
                out[half + 2 * l + 1] = o[half + STORE / 4 + l];
            }
        }
    }
}

static void store_part(kvl_dtype dtype, void *o, int64_t at, int32_t n, vf x) {
    uint16_t codes[KVL_VL];
    if (dtype == KVL_F32) {
        if (n == KVL_VL) {
            vf_store((float *)o + at, x);
        } else {
            vf_store_n((float *)o + at, x, n);
        }
        return;
    }
    uint16_t *out = n == KVL_VL ? (uint16_t *)o + at : codes;
    if (dtype == KVL_BF16) {
        vf_store_bf16(out, x);
    } else {
        vf_store_f16(out, x);
    }
    if (n < KVL_VL) memcpy((uint16_t *)o + at, codes, (size_t)n * sizeof *codes);
}

void kvl_row_store(const kvl_attention_args *args, int64_t token, int32_t head, float max,
                   float sum, const float *o) {
    const kvl_kv_view *kv = args->kv;
    int32_t head_dim = kv->head_dim, kv_head = head / kvl_attention_group(args);
    int32_t step = order_of(kv->v_dtype);
    float factor = kv->v_scale && !kv->v_scale_tokens ? kv->v_scale[kv_head] : 1.0f;
    /* What a sink leaves of the row, as its root: beside large values the row may still be a number
     * where the whole factor is none. */
    float root = 1.0f;
    float lse = sum == 0.0f ? -INFINITY : max + logf(sum);
    if (kv->v_dtype == KVL_FP8_E4M3) factor *= 256.0f;
    if (args->sinks && sum == 0.0f) lse = args->sinks[head];
    if (args->sinks && sum != 0.0f) {
        float top = args->sinks[head] > max ? args->sinks[head] : max;
        root = kvl_exp1(0.5f * (max - top));
        factor *= root;
        sum = sum * kvl_exp1(max - top) + kvl_exp1(args->sinks[head] - top);
        lse = top + logf(sum);
    }
    if (args->lse) args->lse[token * args->n_q_heads + head] = lse;
    /* No key seen: o is all zeros and stays so. */
    factor = sum == 0.0f ? 0.0f : factor / sum;
    int64_t offset = token * args->o_row_stride + (int64_t)head * head_dim;
    for (int32_t i = 0; i < head_dim; i += STORE) {
        float ordered[STORE];
        in_order(step, o + i, ordered);
        for (int32_t v = 0; v < STORE && i + v < head_dim; v += KVL_VL) {
            int32_t left = head_dim - i - v;
            vf x = vf_mul(vf_mul(vf_load_f32(ordered + v), vf_set1(factor)), vf_set1(root));
            store_part(args->o_dtype, args->o, offset + i + v, left < KVL_VL ? left : KVL_VL, x);
        }
    }
}
