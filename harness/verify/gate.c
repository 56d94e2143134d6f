/* The gates. For each row (query token and head), with u = 2^-24:
 *
 *   max abs    |O - exact| <= 2 * naive + max(1e-5, u (4 M + 32) S)
 *   max rel    |O - exact| / floor, floor = max(|exact|, rms of the row, S / 1000)
 *   NMSE       mean of squares over floor^2 (rms part), each against twice the naive pass's root
 *   LSE        |LSE - exact| <= max(1e-5 (1 + |exact|), u (4 M + 32))
 *
 * S (v_mean) is the weighted mean of |V|: float32 sums of P V err in proportion to it, so that the
 * flat 1e-5 means nothing beside V = 65,504 and too much beside V = 1e-3; max rel and NMSE use
 * 1e-5 S instead and so bind for small V. M (s_mass) is the largest scale * sum |q k| of a key that
 * matters: a float32 dot product errs by a few u M (4 covers the partial sums of any vector width
 * up to 256 elements), which moves P by as much relative, and LSE absolute. 32 u is for exp, its
 * argument and the division, 1 to 2 ulp each, with rescaling once a tile. For N(0, 1) data with
 * head_dim 64, M is about 5 and S about 1: the derived terms are 3e-6 and the flat 1e-5 holds. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "harness/verify/codec.h"
#include "harness/verify/oracle.h"

void kvl_verify_failed(kvl_verify_result *result, const char *format, ...) {
    if (result->state == KVL_VERIFY_FAIL) return;
    va_list list;
    va_start(list, format);
    vsnprintf(result->reason, sizeof result->reason, format, list);
    va_end(list);
    result->state = KVL_VERIFY_FAIL;
}

typedef struct row_errors {
    double abs, rel, square; /* square: sum of squares */
    int64_t nonfinite;
} row_errors;

/* max that keeps NaN: a metric that is NaN must not hide. */
static double worse(double a, double b) {
    return isnan(a) || a > b ? a : b;
}

static row_errors measure(const double *exact, const double *got, int32_t n, double rms,
                          double floor) {
    row_errors e = {0};
    for (int32_t d = 0; d < n; d++) {
        double error = fabs(got[d] - exact[d]), base = worse(fabs(exact[d]), worse(rms, floor));
        if (!isfinite(got[d])) e.nonfinite++;
        e.abs = worse(error, e.abs);
        e.rel = worse(base > 0 ? error / base : error, e.rel);
        e.square += error * error;
    }
    return e;
}

typedef struct row_bounds {
    double abs, rel, nmse_root, lse;
} row_bounds;

static row_bounds bounds_of(const kvl_verify_row *row, const row_errors *naive, int32_t n,
                            double base, bool flat) {
    const double u = 0x1p-24;
    double derived = flat ? 0 : u * (4 * row->s_mass + 32);
    double relative = worse(1e-5, derived) * row->v_mean;
    row_bounds b;
    b.abs = 2 * naive->abs + worse(1e-5, derived * row->v_mean);
    b.rel = 2 * naive->rel + (base > 0 ? relative / base : 0);
    b.nmse_root = base > 0 ? (2 * sqrt(naive->square / n) + relative) / base : 0;
    b.lse = isinf(row->lse) ? 0 : worse(1e-5 * (1 + fabs(row->lse)), derived);
    return b;
}

static void keep_worst(double value, double bound, double *kept_value, double *kept_bound) {
    double ratio = bound > 0 ? value / bound : value > 0 ? INFINITY : 0;
    double kept = *kept_bound > 0 ? *kept_value / *kept_bound : *kept_value > 0 ? INFINITY : 0;
    if (*kept_value < 0 || isnan(value) || (!isnan(*kept_value) && ratio > kept)) {
        *kept_value = value;
        *kept_bound = bound;
    }
}

static void gate_row(const kvl_verify_problem *p, const kvl_verify_truth *t, int64_t r,
                     const double *got, float lse, bool flat, kvl_verify_result *result) {
    const kvl_verify_row *row = &t->rows[r];
    const double *exact = t->o + r * p->head_dim, *naive_o = t->naive + r * p->head_dim;
    double square = 0;
    for (int32_t d = 0; d < p->head_dim; d++) square += exact[d] * exact[d];
    double rms = sqrt(square / p->head_dim), floor = row->v_mean / 1000;
    row_errors e = measure(exact, got, p->head_dim, rms, floor);
    row_errors naive = measure(exact, naive_o, p->head_dim, rms, floor);
    double base = worse(rms, floor);
    row_bounds b = bounds_of(row, &naive, p->head_dim, base, flat);
    double nmse_root = sqrt(e.square / p->head_dim) / (base > 0 ? base : 1);
    double lse_error = isinf(row->lse) ? (lse == row->lse ? 0 : INFINITY) : fabs(lse - row->lse);

    keep_worst(e.abs, b.abs, &result->max_abs, &result->bound);
    keep_worst(lse_error, b.lse, &result->lse_error, &result->lse_bound);
    result->max_rel = worse(e.rel, result->max_rel);
    result->nmse = worse(nmse_root * nmse_root, result->nmse);
    result->n_nonfinite += e.nonfinite;

    int token = (int)(r / p->n_q_heads), head = (int)(r % p->n_q_heads);
    /* Written as !(x <= bound), so that NaN fails. */
    if (e.nonfinite)
        kvl_verify_failed(result, "token %d head %d: %lld non-finite values", token, head,
                          (long long)e.nonfinite);
    else if (!(e.abs <= b.abs))
        kvl_verify_failed(result, "token %d head %d: max_abs %.3g past %.3g", token, head, e.abs,
                          b.abs);
    else if (!(e.rel <= b.rel))
        kvl_verify_failed(result, "token %d head %d: max_rel %.3g past %.3g", token, head, e.rel,
                          b.rel);
    else if (!(nmse_root <= b.nmse_root))
        kvl_verify_failed(result, "token %d head %d: nmse %.3g past %.3g", token, head,
                          nmse_root * nmse_root, b.nmse_root * b.nmse_root);
    else if (!(lse_error <= b.lse))
        kvl_verify_failed(result, "token %d head %d: LSE %.9g, not %.9g (bound %.3g)", token, head,
                          (double)lse, row->lse, b.lse);
}

void kvl_verify_gate(const kvl_verify_problem *p, const kvl_verify_truth *truth,
                     const kvl_verify_output *output, bool flat_bound, kvl_verify_result *result) {
    double got[4096];
    result->max_abs = result->bound = result->lse_error = result->lse_bound = -1;
    result->max_rel = result->nmse = 0;
    result->n_nonfinite = 0;
    result->n_rows = truth->n_rows;
    result->format_error = truth->format_error;
    for (int64_t r = 0; r < truth->n_rows; r++) {
        for (int32_t d = 0; d < p->head_dim; d++)
            got[d] = kvl_verify_value_at(output->o_dtype, output->o, r * p->head_dim + d);
        gate_row(p, truth, r, got, output->lse[r], flat_bound, result);
    }
}
