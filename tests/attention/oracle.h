/* A float64 oracle and a naive float32 pass of attention, written from the definition for the tests
 * alone (nothing of attention/ is used), and calls laid out in contiguous or paged pools. */
#ifndef KVL_TESTS_ATTENTION_ORACLE_H
#define KVL_TESTS_ATTENTION_ORACLE_H

#include "tests/test.h"

#include <math.h>

#include "attention/attention.h"
#include "quant/kv_format.h"

enum { MAX_SEQS = 16 };

typedef struct shape {
    int32_t n_seqs, q_lens[MAX_SEQS], kv_lens[MAX_SEQS];
    int32_t n_q_heads, n_kv_heads, head_dim;
    float scale;
    bool causal;
    int32_t window;
    float softcap;
    bool sinks, scaled;
    kvl_dtype kv_dtype, q_dtype, o_dtype;
} shape;

/* The logical tensors of a call: K and V as stored, [sum kv_lens][n_kv_heads][head_dim]. */
typedef struct tensors {
    shape shape;
    int64_t n_q, n_kv; /* tokens */
    uint8_t *q, *k, *v;
    float *sinks, *k_scale, *v_scale;
} tensors;

/* A call ready to run, with its own pools. */
typedef struct call {
    kvl_kv_view view;
    kvl_attention_args args;
    int32_t q_start[MAX_SEQS + 1], *page_table;
    int64_t slab_start[MAX_SEQS];
    uint8_t *k_pool, *v_pool, *o;
    float *lse;
} call;

/* Value of a stored element, by the format's definition. */
static inline double value_at(kvl_dtype dtype, const void *data, int64_t i) {
    static const int exponent_bits[] = {8, 5, 8, 4, 5}, mantissa_bits[] = {23, 10, 7, 3, 2};
    uint32_t code;
    if (dtype == KVL_F32) {
        memcpy(&code, (const uint8_t *)data + i * 4, 4);
    } else if (dtype == KVL_F16 || dtype == KVL_BF16) {
        uint16_t half;
        memcpy(&half, (const uint8_t *)data + i * 2, 2);
        code = half;
    } else {
        code = ((const uint8_t *)data)[i];
    }
    int eb = exponent_bits[dtype], mb = mantissa_bits[dtype], bias = (1 << (eb - 1)) - 1;
    int e = (int)(code >> mb) & ((1 << eb) - 1), m = (int)(code & ((1u << mb) - 1));
    double sign = code >> (eb + mb) & 1 ? -1.0 : 1.0;
    bool top = e == (1 << eb) - 1;
    if (dtype == KVL_FP8_E4M3 ? top && m == 7 : top && m) return NAN;
    if (dtype != KVL_FP8_E4M3 && top) return sign * INFINITY;
    return sign * (e ? ldexp((1 << mb) + m, e - bias - mb) : ldexp(m, 1 - bias - mb));
}

static inline void *must_alloc(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 64) & ~(size_t)63);
    assert_non_null(p);
    return p;
}

/* Roughly normal numbers, seeded; a test may overwrite them. */
static inline float rough_normal(uint64_t *state) {
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) / (1 << 24) - 0.5f;
    }
    return sum * 1.7f;
}

static inline void fill(kvl_dtype dtype, void *data, int64_t n, uint64_t seed, float size) {
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int64_t i = 0; i < n; i++) {
        float x = rough_normal(&state) * size;
        kvl_encode(dtype, &x, 1, 1.0f, (uint8_t *)data + i * (int64_t)kvl_dtype_bytes(dtype));
    }
}

static inline void set_value(kvl_dtype dtype, void *data, int64_t i, float x) {
    kvl_encode(dtype, &x, 1, 1.0f, (uint8_t *)data + i * (int64_t)kvl_dtype_bytes(dtype));
}

static inline tensors tensors_make(const shape *s, uint64_t seed) {
    tensors t = {.shape = *s};
    for (int32_t i = 0; i < s->n_seqs; i++) {
        t.n_q += s->q_lens[i];
        t.n_kv += s->kv_lens[i];
    }
    int64_t nq = t.n_q * s->n_q_heads * s->head_dim, nkv = t.n_kv * s->n_kv_heads * s->head_dim;
    t.q = must_alloc((size_t)nq * kvl_dtype_bytes(s->q_dtype));
    t.k = must_alloc((size_t)nkv * kvl_dtype_bytes(s->kv_dtype));
    t.v = must_alloc((size_t)nkv * kvl_dtype_bytes(s->kv_dtype));
    fill(s->q_dtype, t.q, nq, seed, 1.0f);
    fill(s->kv_dtype, t.k, nkv, seed + 1, 1.0f);
    fill(s->kv_dtype, t.v, nkv, seed + 2, 1.0f);
    t.sinks = s->sinks ? must_alloc((size_t)s->n_q_heads * 4) : NULL;
    t.k_scale = s->scaled ? must_alloc((size_t)s->n_kv_heads * 4) : NULL;
    t.v_scale = s->scaled ? must_alloc((size_t)s->n_kv_heads * 4) : NULL;
    for (int32_t h = 0; h < s->n_q_heads && s->sinks; h++) t.sinks[h] = 0.5f * (float)h - 1.0f;
    for (int32_t h = 0; h < s->n_kv_heads && s->scaled; h++) {
        t.k_scale[h] = 0.5f + 0.3f * (float)h;
        t.v_scale[h] = 1.5f - 0.2f * (float)h;
    }
    return t;
}

static inline void tensors_free(tensors *t) {
    free(t->q), free(t->k), free(t->v), free(t->sinks), free(t->k_scale), free(t->v_scale);
}

/* Copies one sequence's K and V into its slots. */
static inline void place(call *c, const tensors *t, int32_t seq, int64_t first_token) {
    const shape *s = &t->shape;
    size_t row = (size_t)s->head_dim * kvl_dtype_bytes(s->kv_dtype);
    for (int64_t j = 0; j < s->kv_lens[seq]; j++) {
        for (int32_t h = 0; h < s->n_kv_heads; h++) {
            size_t from = (size_t)((first_token + j) * s->n_kv_heads + h) * row;
            size_t to = (size_t)kvl_kv_offset(&c->view, seq, j, h) * kvl_dtype_bytes(s->kv_dtype);
            memcpy(c->k_pool + to, t->k + from, row);
            memcpy(c->v_pool + to, t->v + from, row);
        }
    }
}

/* Pages of all sequences in a seeded random order; two spare pages stay unused. */
static inline int64_t shuffle_pages(call *c, const shape *s, int64_t page_tokens, uint64_t seed) {
    int64_t stride = 1, n_pages = 2;
    for (int32_t i = 0; i < s->n_seqs; i++) {
        int64_t pages = (s->kv_lens[i] + page_tokens - 1) / page_tokens;
        if (pages > stride) stride = pages;
        n_pages += pages;
    }
    int32_t *order = must_alloc((size_t)n_pages * 4);
    for (int64_t i = 0; i < n_pages; i++) order[i] = (int32_t)i;
    for (int64_t i = n_pages - 1; i > 0; i--) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int64_t j = (int64_t)((seed >> 33) % (uint64_t)(i + 1));
        int32_t swap = order[i];
        order[i] = order[j], order[j] = swap;
    }
    c->page_table = must_alloc((size_t)(stride * s->n_seqs) * 4);
    c->view.page_table = c->page_table;
    c->view.table_stride = stride;
    c->view.n_pages = n_pages;
    int64_t next = 0;
    for (int32_t i = 0; i < s->n_seqs; i++) {
        int64_t pages = (s->kv_lens[i] + page_tokens - 1) / page_tokens;
        for (int64_t p = 0; p < stride; p++)
            c->page_table[i * stride + p] = p < pages ? order[next++] : -1;
    }
    free(order);
    return n_pages;
}

/* Lays the tensors out: page_tokens 0 = contiguous. Every slot that holds no token is NaN. */
static inline void call_make(call *c, const tensors *t, int64_t page_tokens, int32_t n_threads) {
    const shape *s = &t->shape;
    size_t kv_bytes = kvl_dtype_bytes(s->kv_dtype);
    int64_t longest = 0, kv_row = (int64_t)s->n_kv_heads * s->head_dim;
    memset(c, 0, sizeof *c);
    for (int32_t i = 0; i < s->n_seqs; i++) {
        c->q_start[i + 1] = c->q_start[i] + s->q_lens[i];
        if (s->kv_lens[i] > longest) longest = s->kv_lens[i];
    }
    int64_t slots = page_tokens ? page_tokens : longest + 3;
    c->view = (kvl_kv_view){
        .k_dtype = s->kv_dtype,
        .v_dtype = s->kv_dtype,
        .n_seqs = s->n_seqs,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .kv_lens = t->shape.kv_lens,
        .page_tokens = slots,
        .page_stride = slots * kv_row,
        .head_stride = slots * s->head_dim,
        .token_stride = s->head_dim,
        .k_scale = t->k_scale,
        .v_scale = t->v_scale,
    };
    int64_t n_places = s->n_seqs;
    if (page_tokens) n_places = shuffle_pages(c, s, page_tokens, (uint64_t)t->n_kv + 77);
    for (int32_t i = 0; i < s->n_seqs; i++) c->slab_start[i] = (s->n_seqs - 1 - i) * slots * kv_row;
    c->view.slab_start = c->slab_start;
    c->view.pool_elems = n_places * slots * kv_row;
    size_t pool_bytes = (size_t)c->view.pool_elems * kv_bytes;
    c->k_pool = malloc(pool_bytes + 1), c->v_pool = malloc(pool_bytes + 1);
    assert_true(c->k_pool && c->v_pool);
    memset(c->k_pool, 0xff, pool_bytes), memset(c->v_pool, 0xff, pool_bytes);
    c->view.k_pool = c->k_pool, c->view.v_pool = c->v_pool;
    for (int64_t i = 0, token = 0; i < s->n_seqs; token += s->kv_lens[i], i++)
        place(c, t, (int32_t)i, token);
    int64_t width = (int64_t)s->n_q_heads * s->head_dim;
    size_t o_bytes = (size_t)(t->n_q * width) * kvl_dtype_bytes(s->o_dtype);
    c->o = malloc(o_bytes + 1);
    c->lse = malloc((size_t)(t->n_q * s->n_q_heads) * 4 + 1);
    assert_true(c->o && c->lse);
    memset(c->o, 0xff, o_bytes);
    c->args = (kvl_attention_args){
        .kv = &c->view,
        .q_start = c->q_start,
        .n_q_heads = s->n_q_heads,
        .q = t->q,
        .q_dtype = s->q_dtype,
        .q_row_stride = width,
        .o = c->o,
        .o_dtype = s->o_dtype,
        .o_row_stride = width,
        .lse = c->lse,
        .scale = s->scale,
        .causal = s->causal,
        .window = s->window,
        .softcap = s->softcap,
        .sinks = t->sinks,
        .n_threads = n_threads,
    };
}

static inline void call_free(call *c) {
    free(c->k_pool), free(c->v_pool), free(c->o), free(c->lse), free(c->page_table);
}

/* Runs with a workspace of exactly the size asked for. */
static inline kvl_status call_run(call *c, const kvl_attention *module) {
    uint64_t bytes = module->workspace_bytes(&c->args);
    void *workspace = must_alloc(bytes);
    memset(workspace, 0xff, bytes);
    c->args.workspace = workspace;
    c->args.workspace_bytes = bytes;
    kvl_status status = kvl_attention_run(module, &c->args);
    free(workspace);
    return status;
}

/* Whether the query at `position` sees key j: the definition in attention.h's head comment. */
static inline bool sees(const shape *s, int64_t position, int64_t j) {
    return (!s->causal || j <= position) && (s->window == 0 || j > position - s->window);
}

typedef struct oracle_row {
    const tensors *t;
    int64_t token, kv_first, kv_len, position; /* kv_first: first of the sequence's tokens */
    int32_t head;
} oracle_row;

static inline int64_t oracle_kv_index(const oracle_row *r, int64_t j) {
    const shape *s = &r->t->shape;
    int32_t kv_head = r->head / (s->n_q_heads / s->n_kv_heads);
    return ((r->kv_first + j) * s->n_kv_heads + kv_head) * s->head_dim;
}

/* float64; o [head_dim], returns the LSE. */
static inline double oracle_exact(const oracle_row *r, double *o) {
    const shape *s = &r->t->shape;
    int32_t kv_head = r->head / (s->n_q_heads / s->n_kv_heads);
    double k_scale = r->t->k_scale ? (double)r->t->k_scale[kv_head] : 1.0;
    double v_scale = r->t->v_scale ? (double)r->t->v_scale[kv_head] : 1.0;
    double *w = must_alloc((size_t)(r->kv_len + 1) * sizeof *w), max = -INFINITY, sum = 0;
    int64_t q = (r->token * s->n_q_heads + r->head) * s->head_dim, n = 0;
    for (int64_t j = 0; j < r->kv_len; j++) {
        w[j] = -INFINITY;
        if (!sees(s, r->position, j)) continue;
        double dot = 0;
        for (int32_t d = 0; d < s->head_dim; d++)
            dot += value_at(s->q_dtype, r->t->q, q + d) *
                   value_at(s->kv_dtype, r->t->k, oracle_kv_index(r, j) + d);
        w[j] = dot * (double)s->scale * k_scale;
        if (s->softcap > 0) w[j] = (double)s->softcap * tanh(w[j] / (double)s->softcap);
        if (w[j] > max) max = w[j];
        n++;
    }
    if (r->t->sinks && (double)r->t->sinks[r->head] > max) max = (double)r->t->sinks[r->head];
    memset(o, 0, (size_t)s->head_dim * sizeof *o);
    if (r->t->sinks) sum = exp((double)r->t->sinks[r->head] - max);
    for (int64_t j = 0; j < r->kv_len && n; j++) {
        if (!sees(s, r->position, j)) continue;
        double p = exp(w[j] - max);
        sum += p;
        for (int32_t d = 0; d < s->head_dim; d++)
            o[d] += p * v_scale * value_at(s->kv_dtype, r->t->v, oracle_kv_index(r, j) + d);
    }
    for (int32_t d = 0; d < s->head_dim && n; d++) o[d] /= sum;
    free(w);
    return n || r->t->sinks ? max + log(sum) : -INFINITY;
}

/* The naive pass in the declared dtypes: float32 scores and sums, P as float32, one after another;
 * o [head_dim] before rounding to o_dtype. */
static inline void oracle_naive(const oracle_row *r, float *o) {
    const shape *s = &r->t->shape;
    int32_t kv_head = r->head / (s->n_q_heads / s->n_kv_heads);
    float k_scale = r->t->k_scale ? r->t->k_scale[kv_head] : 1.0f;
    float v_scale = r->t->v_scale ? r->t->v_scale[kv_head] : 1.0f;
    float *w = must_alloc((size_t)(r->kv_len + 1) * sizeof *w), max = -INFINITY, sum = 0;
    int64_t q = (r->token * s->n_q_heads + r->head) * s->head_dim;
    bool any = false;
    for (int64_t j = 0; j < r->kv_len; j++) {
        if (!sees(s, r->position, j)) continue;
        w[j] = 0;
        for (int32_t d = 0; d < s->head_dim; d++)
            w[j] += (float)value_at(s->q_dtype, r->t->q, q + d) *
                    ((float)value_at(s->kv_dtype, r->t->k, oracle_kv_index(r, j) + d) * k_scale);
        w[j] *= s->scale;
        if (s->softcap > 0) w[j] = s->softcap * tanhf(w[j] / s->softcap);
        if (w[j] > max) max = w[j];
        any = true;
    }
    if (r->t->sinks && r->t->sinks[r->head] > max) max = r->t->sinks[r->head];
    if (r->t->sinks) sum = expf(r->t->sinks[r->head] - max);
    for (int32_t d = 0; d < s->head_dim; d++) o[d] = 0;
    for (int64_t j = 0; j < r->kv_len; j++) {
        if (!sees(s, r->position, j)) continue;
        float p = expf(w[j] - max);
        sum += p;
        for (int32_t d = 0; d < s->head_dim; d++)
            o[d] +=
                p * ((float)value_at(s->kv_dtype, r->t->v, oracle_kv_index(r, j) + d) * v_scale);
    }
    for (int32_t d = 0; d < s->head_dim && any; d++) o[d] /= sum;
    free(w);
}

/* What a call should give: rows in the order of its output. */
typedef struct expected {
    double *o, *lse; /* [n_q][n_q_heads][head_dim], [n_q][n_q_heads] */
    double *o_naive; /* the naive pass's O, rounded to o_dtype */
} expected;

static inline float round_to(kvl_dtype dtype, float x) {
    uint8_t code[4];
    kvl_encode(dtype, &x, 1, 1.0f, code);
    return (float)value_at(dtype, code, 0);
}

static inline expected expected_make(const tensors *t) {
    const shape *s = &t->shape;
    size_t rows = (size_t)(t->n_q * s->n_q_heads), n = rows * (size_t)s->head_dim;
    expected e = {must_alloc(n * 8), must_alloc(rows * 8), must_alloc(n * 8)};
    float *naive = must_alloc((size_t)s->head_dim * 4);
    oracle_row row = {.t = t};
    for (int32_t i = 0; i < s->n_seqs; i++) {
        row.kv_len = s->kv_lens[i];
        for (int32_t j = 0; j < s->q_lens[i]; j++, row.token++) {
            row.position = row.kv_len - s->q_lens[i] + j;
            for (row.head = 0; row.head < s->n_q_heads; row.head++) {
                int64_t at = row.token * s->n_q_heads + row.head;
                e.lse[at] = oracle_exact(&row, e.o + at * s->head_dim);
                oracle_naive(&row, naive);
                for (int32_t d = 0; d < s->head_dim; d++)
                    e.o_naive[at * s->head_dim + d] = (double)round_to(s->o_dtype, naive[d]);
            }
        }
        row.kv_first += row.kv_len;
    }
    free(naive);
    return e;
}

static inline void expected_free(expected *e) {
    free(e->o), free(e->lse), free(e->o_naive);
}

/* Holds a call's outputs to the oracle: max abs error of each row <= 2x the naive pass's + 1e-5
 * over the whole call, LSE within 1e-5 (1 + |LSE|). Not finite where it should be fails. */
static inline void check_outputs(const call *c, const tensors *t, const expected *e,
                                 const char *what) {
    const shape *s = &t->shape;
    int64_t rows = t->n_q * s->n_q_heads, n = rows * s->head_dim;
    double naive = 0;
    for (int64_t i = 0; i < n; i++) naive = fmax(naive, fabs(e->o_naive[i] - e->o[i]));
    for (int64_t i = 0; i < n; i++) {
        double got = value_at(s->o_dtype, c->o, i), error = fabs(got - e->o[i]);
        if (!(error <= 2 * naive + 1e-5))
            fail_msg("%s: o[%lld] = %.9g, not %.9g (naive error %.3g)", what, (long long)i, got,
                     e->o[i], naive);
    }
    for (int64_t i = 0; i < rows; i++) {
        double want = e->lse[i], got = (double)c->lse[i];
        bool same = isinf(want) ? got == want : fabs(got - want) <= 1e-5 * (1 + fabs(want));
        if (!same) fail_msg("%s: lse[%lld] = %.9g, not %.9g", what, (long long)i, got, want);
    }
}

#endif
