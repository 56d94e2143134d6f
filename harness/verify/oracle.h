/* The float64 oracle, the naive float32 pass, and the gates between a kernel and them. */
#ifndef KVL_HARNESS_VERIFY_ORACLE_H
#define KVL_HARNESS_VERIFY_ORACLE_H

#include "harness/verify/problem.h"
#include "harness/verify/verify.h"

/* What the oracle knows of one (query token, head) row besides its output. */
typedef struct kvl_verify_row {
    double lse;    /* natural log of the denominator, sink included; -inf when nothing is seen */
    double v_mean; /* largest over head_dim of sum_j P_j |V_j|: what float32 sums err in units of */
    double s_mass; /* largest over keys of scale * sum_d |q_d k_d| (P_j > 1e-9): likewise, scores */
    double margin; /* best score minus the second best (inf for a single key; sinks count) */
    int64_t best;  /* key of the best score, -1 when none is seen */
} kvl_verify_row;

typedef struct kvl_verify_truth {
    int64_t n_rows;       /* query tokens x heads */
    double *o;            /* [n_rows][head_dim] */
    double *naive;        /* the same by the naive pass; NULL until kvl_verify_naive */
    kvl_verify_row *rows; /* [n_rows] */
    double format_error;  /* max abs difference of o from unrounded K and V; -1 when unknown */
} kvl_verify_truth;

/* Float64 over the decoded K and V of `p`. */
kvl_status kvl_verify_truth_create(const kvl_verify_problem *p, kvl_verify_truth *out);
void kvl_verify_truth_free(kvl_verify_truth *truth);

/* The naive pass: float32 scores and sums, P rounded to p_dtype, O rounded to o_dtype. With p_dtype
 * f64 only the rounding of O is left. Replaces truth->naive. */
kvl_status kvl_verify_naive(const kvl_verify_problem *p, kvl_dtype p_dtype, kvl_dtype o_dtype,
                            kvl_verify_truth *truth);

/* What a kernel gave. */
typedef struct kvl_verify_output {
    kvl_dtype o_dtype;
    void *o;    /* [n_rows][head_dim] of o_dtype */
    float *lse; /* [n_rows] */
} kvl_verify_output;

/* Compares every row with the gates; fills the metrics, state and reason of *result. `flat_bound`:
 * the constant of the bound stays 1e-5 and LSE's 1e-5 (1 + |LSE|) whatever the magnitudes, as the
 * golden outputs are held to. */
void kvl_verify_gate(const kvl_verify_problem *p, const kvl_verify_truth *truth,
                     const kvl_verify_output *output, bool flat_bound, kvl_verify_result *result);

/* Marks *result failed (the first reason stays) with a printf-style reason. */
void kvl_verify_failed(kvl_verify_result *result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
