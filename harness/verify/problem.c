/* Seeded problems. The data patterns and why they are there:
 *
 *   flat    Q = K = 0 and V = 1: all weights are equal, O is exactly 1 whatever the length; sums
 *           kept in 16 bits stop growing at 2,048 or 256 (ggml's CPU flash attention gave 0.125).
 *   vmax    |V| near the largest finite value: 16-bit accumulators overflow. Formats with the range
 *           of float32 get 1e30, since sums over keys must themselves stay below 3.4e38.
 *   onehot  one key takes the whole softmax: O is its V row, bit for bit.
 *   rising  each key scores more than the one before: the running maximum of an online softmax
 *           moves in every tile.
 *   alt     V rows alternate between +40 and -40: the sum cancels, so that a row too many, too few
 *           or stale stands out, which constant V hides (llama.cpp 29034).
 *   big     scores of a hundred and more.
 */
#include "harness/verify/problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "harness/verify/codec.h"

/* Streams of the seed, so that each tensor is the same whatever else is drawn. */
enum { STREAM_Q = 1, STREAM_K, STREAM_V, STREAM_SINKS, STREAM_SCALES, STREAM_PICK };

/* Zeroed array of n elements, never NULL for n = 0; clears *ok on failure. */
static void *array(int64_t n, size_t bytes, bool *ok) {
    void *p = calloc((size_t)(n > 0 ? n : 1), bytes);
    if (!p) *ok = false;
    return p;
}

static bool allocate(kvl_verify_problem *p, const kvl_verify_case *c) {
    bool ok = true;
    int64_t q = kvl_verify_n_q(p) * p->n_q_heads * p->head_dim;
    int64_t kv = p->kv_start[p->n_seqs] * p->n_kv_heads * p->head_dim;
    p->q_codes = array(q, kvl_dtype_bytes(p->q_dtype), &ok);
    p->k_codes = array(kv, kvl_dtype_bytes(p->k_dtype), &ok);
    p->v_codes = array(kv, kvl_dtype_bytes(p->v_dtype), &ok);
    p->q = array(q, sizeof(double), &ok);
    p->k = array(kv, sizeof(double), &ok);
    p->v = array(kv, sizeof(double), &ok);
    if (c->sinks) p->sinks = array(p->n_q_heads, sizeof(float), &ok);
    if (c->scaled) {
        int64_t n = p->scale_tokens ? p->kv_start[p->n_seqs] * p->n_kv_heads : p->n_kv_heads;
        p->k_scale = array(n, sizeof(float), &ok);
        p->v_scale = array(n, sizeof(float), &ok);
    }
    return ok;
}

/* 2^31 elements of each tensor bound what a case may ask for: 16 GiB of float64. */
static bool sizes_fit(const kvl_verify_problem *p) {
    int64_t limit = (int64_t)1 << 31;
    int64_t q_row = (int64_t)p->n_q_heads * p->head_dim;
    int64_t kv_row = (int64_t)p->n_kv_heads * p->head_dim;
    return kvl_verify_n_q(p) <= limit / q_row && p->kv_start[p->n_seqs] <= limit / kv_row;
}

kvl_status kvl_verify_problem_create(const kvl_verify_case *c, kvl_verify_problem **out) {
    bool ok = true;
    const int32_t n_seqs = c->n_seqs;
    kvl_verify_problem *p = array(1, sizeof *p, &ok);
    if (!ok) return kvl_fail(KVL_ERR_OOM, "out of memory for a verification problem");
    p->n_seqs = n_seqs, p->n_q_heads = c->n_q_heads, p->n_kv_heads = c->n_kv_heads;
    p->head_dim = c->head_dim, p->q_dtype = c->q_dtype;
    p->k_dtype = c->k_dtype, p->v_dtype = c->v_dtype, p->scale_tokens = c->scale_tokens;
    p->q_start = array(n_seqs + 1, sizeof *p->q_start, &ok);
    p->kv_lens = array(n_seqs, sizeof *p->kv_lens, &ok);
    p->kv_start = array(n_seqs + 1, sizeof *p->kv_start, &ok);
    int64_t n_q = 0;
    for (int32_t s = 0; ok && s < n_seqs; s++) {
        n_q += c->q_lens[s];
        if (n_q > 1 << 24) break;
        p->q_start[s + 1] = (int32_t)n_q;
        p->kv_lens[s] = c->kv_lens[s];
        p->kv_start[s + 1] = p->kv_start[s] + c->kv_lens[s];
    }
    if (n_q > 1 << 24 || (ok && !sizes_fit(p))) {
        int64_t n_kv = p->kv_start[n_seqs];
        kvl_verify_problem_free(p);
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "%lld query tokens on %lld keys are too much to check in float64",
                        (long long)n_q, (long long)n_kv);
    }
    if (!ok || !allocate(p, c)) {
        kvl_verify_problem_free(p);
        return kvl_fail(KVL_ERR_OOM, "out of memory for a verification problem");
    }
    *out = p;
    return KVL_OK;
}

void kvl_verify_problem_free(kvl_verify_problem *p) {
    if (!p) return;
    void *owned[] = {p->q_start, p->kv_lens, p->kv_start, p->q_codes, p->k_codes,
                     p->v_codes, p->q,       p->k,        p->v,       p->k_raw,
                     p->v_raw,   p->sinks,   p->k_scale,  p->v_scale, p};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) free(owned[i]);
}

static void decode_kv(const kvl_verify_problem *p, kvl_dtype dtype, const uint8_t *codes,
                      const float *scales, double *out) {
    int64_t rows = p->kv_start[p->n_seqs] * p->n_kv_heads;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        double scale = kvl_verify_scale(p, scales, r);
        for (int64_t i = r * p->head_dim; i < (r + 1) * p->head_dim; i++)
            out[i] = kvl_verify_value_at(dtype, codes, i) * scale;
    }
}

void kvl_verify_problem_decode(kvl_verify_problem *p) {
    int64_t n = kvl_verify_n_q(p) * p->n_q_heads * p->head_dim;
    for (int64_t i = 0; i < n; i++) p->q[i] = kvl_verify_value_at(p->q_dtype, p->q_codes, i);
    decode_kv(p, p->k_dtype, p->k_codes, p->k_scale, p->k);
    decode_kv(p, p->v_dtype, p->v_codes, p->v_scale, p->v);
}

/* ---- seeded data ------------------------------------------------------------------------------
 */

static void encode_q(kvl_verify_problem *p, const float *q) {
    int64_t n = kvl_verify_n_q(p) * p->n_q_heads * p->head_dim;
    for (int64_t i = 0; i < n; i++)
        kvl_verify_code_put(p->q_dtype, p->q_codes, i, kvl_verify_code(p->q_dtype, q[i]));
}

static void encode_kv(kvl_verify_problem *p, kvl_dtype dtype, const float *raw, const float *scales,
                      uint8_t *codes) {
    int64_t rows = p->kv_start[p->n_seqs] * p->n_kv_heads;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        double scale = kvl_verify_scale(p, scales, r);
        for (int64_t i = r * p->head_dim; i < (r + 1) * p->head_dim; i++)
            kvl_verify_code_put(dtype, codes, i, kvl_verify_code(dtype, raw[i] / scale));
    }
}

/* One element of the pattern: token t of kv_len, index d in its row, z drawn from N(0, 1). */
static float k_value(const kvl_verify_case *c, int64_t t, int64_t kv_len, int32_t d, float z) {
    if (c->pattern == KVL_PATTERN_FLAT) return 0.0f;
    if (c->pattern != KVL_PATTERN_RISING) return z;
    /* With q = +-1 of the same signs, key t scores 60 t / kv_len. */
    float step = 60.0f * (float)t / (float)kv_len / sqrtf((float)c->head_dim);
    return d % 3 == 1 ? -step : step;
}

static float v_value(const kvl_verify_case *c, int64_t t, float z) {
    double top = kvl_verify_max_finite(c->v_dtype);
    switch (c->pattern) {
    case KVL_PATTERN_FLAT:
        return 1.0f;
    case KVL_PATTERN_VMAX:
        /* Between 7/8 of the maximum and the maximum, of either sign. */
        top = top < 1e30 ? top : 1e30;
        return (float)(copysign(top, z) * (1.0 - fmin(fabs(z), 2.0) / 16.0));
    case KVL_PATTERN_ALT:
        return t % 2 ? -40.0f : 40.0f;
    default:
        return z;
    }
}

/* A key that query i of sequence s sees under the case's mask, or -1. */
static int64_t pick_key(const kvl_verify_case *c, const kvl_rng *rng, int32_t s, int64_t row,
                        int64_t i) {
    int64_t p = (int64_t)c->kv_lens[s] - c->q_lens[s] + i;
    int64_t end = c->causal && p + 1 < c->kv_lens[s] ? p + 1 : c->kv_lens[s];
    int64_t begin = c->window && p - c->window + 1 > 0 ? p - c->window + 1 : 0;
    if (end <= begin) return -1;
    return begin + (int64_t)(kvl_rng_at(rng, (uint64_t)row) % (uint64_t)(end - begin));
}

static void fill_q(const kvl_verify_case *c, const kvl_verify_problem *p, const float *k,
                   float *q) {
    kvl_rng pick = kvl_rng_make(c->seed, STREAM_PICK);
    int32_t group = c->n_q_heads / c->n_kv_heads;
    for (int32_t s = 0; s < c->n_seqs; s++) {
        for (int64_t row = p->q_start[s]; row < p->q_start[s + 1]; row++) {
            int64_t key = pick_key(c, &pick, s, row, row - p->q_start[s]);
            for (int32_t h = 0; h < c->n_q_heads; h++) {
                float *out = q + (row * c->n_q_heads + h) * c->head_dim;
                const float *chosen =
                    k + ((p->kv_start[s] + (key < 0 ? 0 : key)) * c->n_kv_heads + h / group) *
                            c->head_dim;
                for (int32_t d = 0; d < c->head_dim; d++) {
                    if (c->pattern == KVL_PATTERN_FLAT)
                        out[d] = 0.0f;
                    else if (c->pattern == KVL_PATTERN_RISING)
                        out[d] = d % 3 == 1 ? -1.0f : 1.0f;
                    else if (c->pattern == KVL_PATTERN_ONEHOT && key >= 0)
                        out[d] = 64.0f * chosen[d];
                    else if (c->pattern == KVL_PATTERN_BIG)
                        out[d] *= 32.0f;
                }
            }
        }
    }
}

static void fill_kv(const kvl_verify_case *c, const kvl_verify_problem *p, float *k, float *v) {
    int64_t row_elems = (int64_t)c->n_kv_heads * c->head_dim, total = p->kv_start[p->n_seqs];
    if (c->pattern != KVL_PATTERN_FLAT) { /* all constants there, and the longest cases */
        kvl_rng_fill_normal(c->seed, STREAM_K, 1.0f, k, total * row_elems);
        kvl_rng_fill_normal(c->seed, STREAM_V, 1.0f, v, total * row_elems);
    }
    for (int32_t s = 0; s < c->n_seqs; s++) {
        for (int64_t t = 0; t < c->kv_lens[s]; t++) {
            float *k_row = k + (p->kv_start[s] + t) * row_elems;
            float *v_row = v + (p->kv_start[s] + t) * row_elems;
            for (int64_t i = 0; i < row_elems; i++) {
                k_row[i] = k_value(c, t, c->kv_lens[s], (int32_t)(i % c->head_dim), k_row[i]);
                v_row[i] = v_value(c, t, v_row[i]);
            }
        }
    }
}

static void share_prefix(const kvl_verify_case *c, kvl_verify_problem *p, float *k, float *v) {
    int64_t shortest = INT64_MAX, row_elems = (int64_t)c->n_kv_heads * c->head_dim;
    int32_t first = -1;
    for (int32_t s = 0; s < c->n_seqs; s++) {
        if (c->kv_lens[s] == 0) continue;
        if (first < 0) first = s;
        if (c->kv_lens[s] < shortest) shortest = c->kv_lens[s];
    }
    if (first < 0) return;
    p->shared_tokens = shortest / c->layout.page_tokens * c->layout.page_tokens;
    size_t bytes = (size_t)(p->shared_tokens * row_elems) * sizeof(float);
    for (int32_t s = first + 1; s < c->n_seqs; s++) {
        if (c->kv_lens[s] == 0) continue;
        memcpy(k + p->kv_start[s] * row_elems, k + p->kv_start[first] * row_elems, bytes);
        memcpy(v + p->kv_start[s] * row_elems, v + p->kv_start[first] * row_elems, bytes);
    }
}

/* Scales of a group of tokens (or of all) and head, between 0.25 and 3; integers of it as many as
 * int8 has. Shared tokens have the scales of the first sequence. */
static void set_scale(const kvl_verify_case *c, kvl_verify_problem *p, int64_t group, int32_t h,
                      int64_t row) {
    kvl_rng rng = kvl_rng_make(c->seed, STREAM_SCALES);
    uint64_t at = 2 * (uint64_t)(group * c->n_kv_heads + h);
    for (int i = 0; i < 2; i++) {
        double unit = (double)(kvl_rng_at(&rng, at + (uint64_t)i) >> 11) * 0x1p-53;
        bool integer = (i ? c->v_dtype : c->k_dtype) == KVL_I8;
        (i ? p->v_scale : p->k_scale)[row] = (float)((0.25 + 2.75 * unit) / (integer ? 32 : 1));
    }
    /* Beside the maximum there is no room for a scale above 1. */
    if (c->pattern == KVL_PATTERN_VMAX) p->v_scale[row] = 1.0f;
}

static void fill_scales(const kvl_verify_case *c, kvl_verify_problem *p) {
    if (!p->k_scale) return;
    for (int32_t h = 0; h < c->n_kv_heads; h++) {
        if (!c->scale_tokens) set_scale(c, p, 0, h, h);
        for (int32_t s = 0; c->scale_tokens && s < c->n_seqs; s++) {
            for (int64_t t = 0; t < c->kv_lens[s]; t++) {
                int64_t group = t / c->scale_tokens;
                if (t >= p->shared_tokens) group += (int64_t)(s + 1) << 32;
                set_scale(c, p, group, h, (p->kv_start[s] + t) * c->n_kv_heads + h);
            }
        }
    }
}

static void fill_extras(const kvl_verify_case *c, kvl_verify_problem *p) {
    kvl_rng rng = kvl_rng_make(c->seed, STREAM_SINKS);
    for (int32_t h = 0; p->sinks && h < c->n_q_heads; h++) p->sinks[h] = 2 * kvl_rng_normal(&rng);
    fill_scales(c, p);
    p->scale = c->scale > 0 ? c->scale : (float)(1.0 / sqrt(c->head_dim));
    p->softcap = c->softcap, p->causal = c->causal, p->window = c->window;
}

/* Groups of tokens must lie in pages as they lie in sequences. */
static kvl_status check_scale_tokens(const kvl_verify_case *c) {
    int64_t n = c->scale_tokens, page = c->layout.page_tokens;
    if (n > 1 && (page % n != 0 || c->kind == KVL_VERIFY_MERGE))
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "scales of %lld tokens need pages of a multiple of that, or contiguous, "
                        "and whole sequences",
                        (long long)n);
    if (n && c->kind == KVL_VERIFY_MERGE)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "attn-merge moves slabs, which scales do not follow");
    return KVL_OK;
}

kvl_status kvl_verify_problem_make(const kvl_verify_case *c, kvl_verify_problem **out) {
    if (c->pattern == KVL_PATTERN_VMAX && c->o_dtype == KVL_F16 &&
        (c->v_dtype == KVL_F32 || c->v_dtype == KVL_BF16))
        return kvl_fail(KVL_ERR_UNSUPPORTED, "V near the maximum of %s does not fit an f16 output",
                        kvl_dtype_name(c->v_dtype));
    kvl_verify_problem *p;
    KVL_TRY(check_scale_tokens(c));
    KVL_TRY(kvl_verify_problem_create(c, &p));
    int64_t n_q = kvl_verify_n_q(p) * c->n_q_heads * c->head_dim;
    int64_t n_kv = p->kv_start[p->n_seqs] * c->n_kv_heads * c->head_dim;
    bool ok = true;
    float *q = array(n_q, sizeof *q, &ok);
    p->k_raw = array(n_kv, sizeof(float), &ok);
    p->v_raw = array(n_kv, sizeof(float), &ok);
    if (!ok) {
        free(q);
        kvl_verify_problem_free(p);
        return kvl_fail(KVL_ERR_OOM, "out of memory for a verification problem");
    }
    fill_kv(c, p, p->k_raw, p->v_raw);
    if (c->layout.shared) share_prefix(c, p, p->k_raw, p->v_raw);
    fill_extras(c, p);
    kvl_rng_fill_normal(c->seed, STREAM_Q, 1.0f, q, n_q);
    fill_q(c, p, p->k_raw, q);
    encode_q(p, q);
    encode_kv(p, p->k_dtype, p->k_raw, p->k_scale, p->k_codes);
    encode_kv(p, p->v_dtype, p->v_raw, p->v_scale, p->v_codes);
    kvl_verify_problem_decode(p);
    free(q);
    *out = p;
    return KVL_OK;
}
