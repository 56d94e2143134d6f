/* How far one run of a model lies from another, token by token.
 *
 * For a token with float32 logits x of the measured run and r of the reference, in float64:
 *   nll = -log softmax(x)[next],  kld = sum_v softmax(r)[v] (log softmax(r)[v] - log softmax(x)[v])
 * in nats. Equal logits give kld 0 exactly: every term is 0. Perplexity is exp of the mean nll.
 */
#ifndef KVL_HARNESS_QUALITY_SCORE_H
#define KVL_HARNESS_QUALITY_SCORE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

/* One predicted token. Logits that are not finite make its numbers so. */
typedef struct kvl_quality_token {
    double nll, nll_f32; /* of the token that follows, measured and reference; nats */
    double kld;          /* from the reference to the measured distribution; nats */
    bool same_top1;      /* both have their largest logit (the first of equal ones) in one place */
} kvl_quality_token;

/* Scores n_rows positions: logits and reference [n_rows][vocab] host, next [n_rows] ids in range.
 * Uses kvl_threads(); each row is summed in one order, so threads play no part. */
void kvl_quality_score(const float *logits, const float *reference, int64_t n_rows, int32_t vocab,
                       const int32_t *next, kvl_quality_token *out);

enum { KVL_QUALITY_BUCKETS = 8 };

/* A run of neighbouring tokens: drift over length. */
typedef struct kvl_quality_bucket {
    int64_t first, n; /* predicted tokens first .. first + n, counted from 0 */
    double ppl, ppl_f32, mean_kld, same_top1;
} kvl_quality_bucket;

typedef struct kvl_quality_summary {
    int64_t n; /* predicted tokens */
    double ppl, ppl_f32, mean_kld, median_kld, p99_kld, same_top1;
    int n_buckets;
    kvl_quality_bucket buckets[KVL_QUALITY_BUCKETS];
} kvl_quality_summary;

/* Percentiles interpolate linearly between ranks, as numpy and torch do. Buckets are equal but for
 * rounding, one a token where there are fewer. KVL_ERR_INPUT for n < 1. */
kvl_status kvl_quality_summarise(const kvl_quality_token *tokens, int64_t n,
                                 kvl_quality_summary *out);

#endif
