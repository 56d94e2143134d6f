/* Times between tokens: too many to keep, so they are counted in buckets of 0.1 %. */
#include <math.h>

#include "harness/serve/serve.h"

/* Bucket k > 0 holds times around 1 us x 1.001^(k - 1/2). */
static const double FIRST_NS = 1000, RATIO = 1.001;

int32_t kvl_gap_bucket(int64_t ns) {
    if ((double)ns < FIRST_NS) return 0;
    double k = 1 + floor(log((double)ns / FIRST_NS) / log(RATIO));
    return k < KVL_GAP_BUCKETS - 1 ? (int32_t)k : KVL_GAP_BUCKETS - 1;
}

double kvl_gap_ns(int32_t bucket) {
    return bucket == 0 ? FIRST_NS / 2 : FIRST_NS * pow(RATIO, bucket - 0.5);
}

double kvl_gap_quantile(const uint64_t *gaps, double q) {
    uint64_t n = 0, below = 0;
    for (int32_t k = 0; k < KVL_GAP_BUCKETS; k++) n += gaps[k];
    if (n == 0) return NAN;
    double wanted = q * (double)(n - 1);
    for (int32_t k = 0; k < KVL_GAP_BUCKETS; k++) {
        below += gaps[k];
        if ((double)below > wanted) return kvl_gap_ns(k);
    }
    return kvl_gap_ns(KVL_GAP_BUCKETS - 1);
}
