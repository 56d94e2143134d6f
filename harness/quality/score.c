#include "harness/quality/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/threads.h"
#include "harness/figures/stats.h"

/* log sum exp of x[n], with the largest taken out first; its place in *top. */
static double log_sum_exp(const float *x, int32_t n, int32_t *top) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    double largest = x[best], sum = 0;
    for (int32_t i = 0; i < n; i++) sum += exp(x[i] - largest);
    *top = best;
    return largest + log(sum);
}

static kvl_quality_token score_row(const float *x, const float *r, int32_t vocab, int32_t next) {
    int32_t top, top_r;
    double norm = log_sum_exp(x, vocab, &top), norm_r = log_sum_exp(r, vocab, &top_r);
    double kld = 0;
    for (int32_t i = 0; i < vocab; i++) {
        double log_r = r[i] - norm_r, p = exp(log_r);
        /* A probability that underflows adds nothing, even where the other one is 0. */
        if (!(p <= 0)) kld += p * (log_r - (x[i] - norm));
    }
    return (kvl_quality_token){
        .nll = norm - x[next], .nll_f32 = norm_r - r[next], .kld = kld, .same_top1 = top == top_r};
}

void kvl_quality_score(const float *logits, const float *reference, int64_t n_rows, int32_t vocab,
                       const int32_t *next, kvl_quality_token *out) {
#pragma omp parallel for num_threads(kvl_threads()) schedule(static) if (n_rows > 1)
    for (int64_t i = 0; i < n_rows; i++)
        out[i] = score_row(logits + i * vocab, reference + i * vocab, vocab, next[i]);
}

/* Means of tokens first .. first + n. */
static kvl_quality_bucket bucket_of(const kvl_quality_token *tokens, int64_t first, int64_t n) {
    double nll = 0, nll_f32 = 0, kld = 0, same = 0;
    for (int64_t i = first; i < first + n; i++) {
        nll += tokens[i].nll;
        nll_f32 += tokens[i].nll_f32;
        kld += tokens[i].kld;
        same += tokens[i].same_top1;
    }
    double count = (double)n;
    return (kvl_quality_bucket){.first = first,
                                .n = n,
                                .ppl = exp(nll / count),
                                .ppl_f32 = exp(nll_f32 / count),
                                .mean_kld = kld / count,
                                .same_top1 = same / count};
}

kvl_status kvl_quality_summarise(const kvl_quality_token *tokens, int64_t n,
                                 kvl_quality_summary *out) {
    memset(out, 0, sizeof *out);
    if (n < 1) return kvl_fail(KVL_ERR_INPUT, "no predicted tokens: at least 2 tokens are needed");
    double *kld = malloc((size_t)n * sizeof *kld);
    if (!kld) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (int64_t i = 0; i < n; i++) kld[i] = tokens[i].kld;
    kvl_quality_bucket all = bucket_of(tokens, 0, n);
    out->n = n;
    out->ppl = all.ppl, out->ppl_f32 = all.ppl_f32;
    out->mean_kld = all.mean_kld, out->same_top1 = all.same_top1;
    out->median_kld = kvl_quantile(kld, (size_t)n, 0.5);
    out->p99_kld = kvl_quantile(kld, (size_t)n, 0.99);
    free(kld);
    out->n_buckets = n < KVL_QUALITY_BUCKETS ? (int)n : KVL_QUALITY_BUCKETS;
    for (int i = 0; i < out->n_buckets; i++) {
        int64_t first = n * i / out->n_buckets, last = n * (i + 1) / out->n_buckets;
        out->buckets[i] = bucket_of(tokens, first, last - first);
    }
    return KVL_OK;
}
