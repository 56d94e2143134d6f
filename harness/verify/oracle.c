/* Attention by its definition, twice: in float64 (the oracle) and in float32 (the naive pass).
 * Written from the formulas of attention/attention.h, sharing no code with attention/. */
#include "harness/verify/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/verify/codec.h"

/* A row of the problem: which sequence, position and heads it stands for. */
typedef struct row_place {
    const double *q;
    int64_t kv_row; /* index of the sequence's key 0 among all K rows (token x KV head) */
    int64_t kv_len, position;
    int32_t head;
} row_place;

static int32_t seq_of(const kvl_verify_problem *p, int64_t token) {
    int32_t s = 0;
    while (token >= p->q_start[s + 1]) s++;
    return s;
}

static row_place place_of(const kvl_verify_problem *p, int64_t row) {
    int64_t token = row / p->n_q_heads;
    int32_t head = (int32_t)(row % p->n_q_heads), s = seq_of(p, token);
    int32_t kv_head = head / (p->n_q_heads / p->n_kv_heads);
    row_place at = {.head = head, .kv_len = p->kv_lens[s], .q = p->q + row * p->head_dim};
    at.kv_row = p->kv_start[s] * p->n_kv_heads + kv_head;
    at.position = at.kv_len - (p->q_start[s + 1] - p->q_start[s]) + (token - p->q_start[s]);
    return at;
}

static bool sees(const kvl_verify_problem *p, int64_t position, int64_t key) {
    return (!p->causal || key <= position) && (p->window == 0 || position - key < p->window);
}

/* Four partial sums: the compiler may keep them in one vector register. */
static double dot(const double *a, const double *b, int32_t n, double *mass) {
    double sum[4] = {0}, abs_sum[4] = {0};
    for (int32_t d = 0; d + 4 <= n; d += 4) {
        for (int i = 0; i < 4; i++) {
            double product = a[d + i] * b[d + i];
            sum[i] += product;
            abs_sum[i] += fabs(product);
        }
    }
    for (int32_t d = n & ~3; d < n; d++) {
        sum[0] += a[d] * b[d];
        abs_sum[0] += fabs(a[d] * b[d]);
    }
    *mass = (abs_sum[0] + abs_sum[1]) + (abs_sum[2] + abs_sum[3]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* ---- float64 ----------------------------------------------------------------------------------
 */

/* Scores of the keys seen, their masses, and best, margin and maximum (sink included). */
static double score_row(const kvl_verify_problem *p, const row_place *at, const double *k,
                        double *scores, double *masses, kvl_verify_row *row) {
    int64_t step = (int64_t)p->n_kv_heads * p->head_dim;
    double best = -INFINITY, second = p->sinks ? (double)p->sinks[at->head] : -INFINITY;
    row->best = -1;
    for (int64_t j = 0; j < at->kv_len; j++) {
        scores[j] = -INFINITY, masses[j] = 0;
        if (!sees(p, at->position, j)) continue;
        const double *key = k + at->kv_row * p->head_dim + j * step;
        double s = dot(at->q, key, p->head_dim, &masses[j]) * p->scale;
        masses[j] *= fabs(p->scale);
        if (p->softcap > 0) s = p->softcap * tanh(s / p->softcap);
        scores[j] = s;
        if (s > best) {
            second = best > second ? best : second;
            best = s, row->best = j;
        } else if (s > second) {
            second = s;
        }
    }
    row->margin = best - second;
    return best > second ? best : second;
}

/* O of one row; scratch holds 2 * kv_len + head_dim doubles. */
static void oracle_row(const kvl_verify_problem *p, const row_place *at, const double *k,
                       const double *v, double *scratch, double *o, kvl_verify_row *row) {
    double *scores = scratch, *masses = scratch + at->kv_len, *v_abs = masses + at->kv_len;
    int64_t step = (int64_t)p->n_kv_heads * p->head_dim;
    double top = score_row(p, at, k, scores, masses, row), total = 0;
    memset(o, 0, (size_t)p->head_dim * sizeof *o);
    memset(v_abs, 0, (size_t)p->head_dim * sizeof *v_abs);
    row->v_mean = row->s_mass = 0;
    row->lse = -INFINITY;
    if (top == -INFINITY) return;
    if (p->sinks) total = exp(p->sinks[at->head] - top);
    for (int64_t j = 0; j < at->kv_len; j++) {
        scores[j] = scores[j] == -INFINITY ? 0 : exp(scores[j] - top);
        total += scores[j];
    }
    row->lse = top + log(total);
    for (int64_t j = 0; j < at->kv_len; j++) {
        double weight = scores[j] / total;
        if (weight == 0) continue;
        if (weight > 1e-9 && masses[j] > row->s_mass) row->s_mass = masses[j];
        const double *value = v + at->kv_row * p->head_dim + j * step;
        for (int32_t d = 0; d < p->head_dim; d++) {
            o[d] += weight * value[d];
            v_abs[d] += weight * fabs(value[d]);
        }
    }
    for (int32_t d = 0; d < p->head_dim; d++)
        if (v_abs[d] > row->v_mean) row->v_mean = v_abs[d];
}

static int64_t scratch_elems(const kvl_verify_problem *p) {
    int64_t longest = 0;
    for (int32_t s = 0; s < p->n_seqs; s++)
        if (p->kv_lens[s] > longest) longest = p->kv_lens[s];
    return 2 * longest + 2 * p->head_dim + 8;
}

static kvl_status oracle(const kvl_verify_problem *p, const double *k, const double *v,
                         int64_t n_rows, double *o, kvl_verify_row *rows) {
    bool ok = true;
#pragma omp parallel
    {
        double *scratch = malloc((size_t)scratch_elems(p) * sizeof *scratch);
#pragma omp critical
        ok = ok && scratch;
#pragma omp barrier
#pragma omp for schedule(dynamic, 8)
        for (int64_t r = 0; r < (ok ? n_rows : 0); r++) {
            row_place at = place_of(p, r);
            oracle_row(p, &at, k, v, scratch, o + r * p->head_dim, &rows[r]);
        }
        free(scratch);
    }
    return ok ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory for the oracle");
}

/* Difference that rounding K and V makes, by the oracle over the unrounded values. */
static kvl_status format_error(const kvl_verify_problem *p, kvl_verify_truth *t) {
    int64_t n = p->kv_start[p->n_seqs] * p->n_kv_heads * p->head_dim, n_o = t->n_rows * p->head_dim;
    double *k = malloc((size_t)(n + 1) * sizeof *k), *v = malloc((size_t)(n + 1) * sizeof *v);
    double *o = malloc((size_t)(n_o + 1) * sizeof *o);
    kvl_verify_row *rows = malloc((size_t)(t->n_rows + 1) * sizeof *rows);
    kvl_status status = KVL_OK;
    if (!k || !v || !o || !rows) status = kvl_fail(KVL_ERR_OOM, "out of memory for the oracle");
    for (int64_t i = 0; status == KVL_OK && i < n; i++) k[i] = p->k_raw[i], v[i] = p->v_raw[i];
    if (status == KVL_OK) status = oracle(p, k, v, t->n_rows, o, rows);
    t->format_error = 0;
    for (int64_t i = 0; status == KVL_OK && i < n_o; i++) {
        double difference = fabs(o[i] - t->o[i]);
        if (!(difference <= t->format_error)) t->format_error = difference;
    }
    free(k), free(v), free(o), free(rows);
    return status;
}

kvl_status kvl_verify_truth_create(const kvl_verify_problem *p, kvl_verify_truth *out) {
    memset(out, 0, sizeof *out);
    out->format_error = -1;
    out->n_rows = kvl_verify_n_q(p) * p->n_q_heads;
    out->o = calloc((size_t)(out->n_rows * p->head_dim + 1), sizeof *out->o);
    out->rows = calloc((size_t)(out->n_rows + 1), sizeof *out->rows);
    kvl_status status =
        out->o && out->rows ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory for the oracle");
    if (status == KVL_OK) status = oracle(p, p->k, p->v, out->n_rows, out->o, out->rows);
    if (status == KVL_OK && p->k_raw) {
        if (p->k_dtype == KVL_F32 && p->v_dtype == KVL_F32 && !p->k_scale)
            out->format_error = 0;
        else
            status = format_error(p, out);
    }
    if (status != KVL_OK) kvl_verify_truth_free(out);
    return status;
}

void kvl_verify_truth_free(kvl_verify_truth *truth) {
    free(truth->o);
    free(truth->naive);
    free(truth->rows);
    memset(truth, 0, sizeof *truth);
}

/* ---- float32 ----------------------------------------------------------------------------------
 */

/* The naive pass over one row: K and V as float32, plain loops in key and element order. */
static void naive_row(const kvl_verify_problem *p, const row_place *at, kvl_dtype p_dtype,
                      float *scores, float *sums, double *o) {
    int64_t step = (int64_t)p->n_kv_heads * p->head_dim, base = at->kv_row * p->head_dim;
    float top = p->sinks ? p->sinks[at->head] : -INFINITY, total = 0;
    for (int64_t j = 0; j < at->kv_len; j++) {
        float s = 0;
        if (!sees(p, at->position, j)) continue;
        for (int32_t d = 0; d < p->head_dim; d++)
            s += (float)at->q[d] * (float)p->k[base + j * step + d];
        s *= p->scale;
        if (p->softcap > 0) s = p->softcap * tanhf(s / p->softcap);
        scores[j] = s;
        if (s > top) top = s;
    }
    memset(sums, 0, (size_t)p->head_dim * sizeof *sums);
    if (p->sinks) total = expf(p->sinks[at->head] - top);
    for (int64_t j = 0; j < at->kv_len; j++) {
        if (!sees(p, at->position, j)) continue;
        scores[j] = expf(scores[j] - top);
        total += scores[j];
    }
    for (int64_t j = 0; j < at->kv_len; j++) {
        if (!sees(p, at->position, j)) continue;
        float weight = (float)kvl_verify_round(p_dtype, scores[j] / total);
        for (int32_t d = 0; d < p->head_dim; d++)
            sums[d] += weight * (float)p->v[base + j * step + d];
    }
    for (int32_t d = 0; d < p->head_dim; d++) o[d] = sums[d];
}

kvl_status kvl_verify_naive(const kvl_verify_problem *p, kvl_dtype p_dtype, kvl_dtype o_dtype,
                            kvl_verify_truth *truth) {
    int64_t n = truth->n_rows * p->head_dim;
    if (!truth->naive) truth->naive = malloc((size_t)(n + 1) * sizeof *truth->naive);
    bool ok = truth->naive != NULL;
#pragma omp parallel if (ok)
    {
        float *scratch = malloc((size_t)scratch_elems(p) * sizeof *scratch);
#pragma omp critical
        ok = ok && scratch;
#pragma omp barrier
#pragma omp for schedule(dynamic, 8)
        for (int64_t r = 0; r < (ok && p_dtype != KVL_F64 ? truth->n_rows : 0); r++) {
            row_place at = place_of(p, r);
            naive_row(p, &at, p_dtype, scratch + p->head_dim, scratch,
                      truth->naive + r * p->head_dim);
        }
        free(scratch);
    }
    if (!ok) return kvl_fail(KVL_ERR_OOM, "out of memory for the naive pass");
    if (p_dtype == KVL_F64) memcpy(truth->naive, truth->o, (size_t)n * sizeof *truth->naive);
    for (int64_t i = 0; i < n; i++) truth->naive[i] = kvl_verify_round(o_dtype, truth->naive[i]);
    return KVL_OK;
}
