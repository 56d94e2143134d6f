#include "decoder/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

typedef struct candidate {
    int32_t id;
    float logit;
    double weight; /* exp((logit - largest) / temperature), in (0, 1] */
} candidate;

struct kvl_sampler {
    kvl_sampler_options options;
    int32_t vocab_size;
    kvl_rng rng;
    bool *seen;            /* [vocab_size] for the repetition penalty */
    float *logits;         /* [vocab_size] after the penalty */
    candidate *candidates; /* [vocab_size] */
};

kvl_sampler_options kvl_sampler_defaults(void) {
    return (kvl_sampler_options){.top_p = 1, .repetition_penalty = 1};
}

/* Written so that NaN fails too. */
static kvl_status in_range(const char *name, float value, bool open_below, float low, float high) {
    if (value >= low && value <= high && !(open_below && value == low)) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "%s %g: %s %g, at most %g", name, (double)value,
                    open_below ? "above" : "at least", (double)low, (double)high);
}

kvl_status kvl_sampler_check(const kvl_sampler_options *options) {
    KVL_TRY(in_range("temperature", options->temperature, false, 0, 100));
    KVL_TRY(in_range("top_p", options->top_p, true, 0, 1));
    KVL_TRY(in_range("min_p", options->min_p, false, 0, 1));
    KVL_TRY(in_range("repetition_penalty", options->repetition_penalty, true, 0, 100));
    if (options->top_k >= 0) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "top_k %d: at least 0", options->top_k);
}

kvl_status kvl_sampler_create(const kvl_sampler_options *options, int32_t vocab_size,
                              kvl_sampler **out) {
    KVL_TRY(kvl_sampler_check(options));
    if (vocab_size < 1) return kvl_fail(KVL_ERR_INPUT, "vocab_size %d: at least 1", vocab_size);
    kvl_sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler) {
        size_t n = (size_t)vocab_size;
        sampler->seen = calloc(n, sizeof *sampler->seen);
        sampler->logits = malloc(n * sizeof *sampler->logits);
        sampler->candidates = malloc(n * sizeof *sampler->candidates);
    }
    if (!sampler || !sampler->seen || !sampler->logits || !sampler->candidates) {
        kvl_sampler_free(sampler);
        return kvl_fail(KVL_ERR_OOM, "sampler for %d tokens: out of memory", vocab_size);
    }
    sampler->options = *options;
    sampler->vocab_size = vocab_size;
    sampler->rng = kvl_rng_make(options->seed, 0);
    *out = sampler;
    return KVL_OK;
}

void kvl_sampler_free(kvl_sampler *sampler) {
    if (!sampler) return;
    free(sampler->seen);
    free(sampler->logits);
    free(sampler->candidates);
    free(sampler);
}

void kvl_sampler_accept(kvl_sampler *sampler, int32_t id) {
    if (id >= 0 && id < sampler->vocab_size) sampler->seen[id] = true;
}

int32_t kvl_argmax(const float *logits, int32_t n) {
    /* The largest of each lane first, which compilers turn into vector maxima; then where the
     * largest of all stands first. A vocabulary is scanned at every step of every sequence. */
    enum { LANES = 16 };
    float most[LANES], largest = -INFINITY;
    int is_nan[LANES] = {0}, any_nan = 0;
    int32_t i = 0, best = 0;
    for (int k = 0; k < LANES; k++) most[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            float x = logits[i + k];
            most[k] = x > most[k] ? x : most[k];
            is_nan[k] |= x != x;
        }
    }
    for (; i < n; i++) {
        any_nan |= logits[i] != logits[i];
        if (logits[i] > largest) largest = logits[i];
    }
    for (int k = 0; k < LANES; k++) {
        any_nan |= is_nan[k];
        if (most[k] > largest) largest = most[k];
    }
    if (any_nan) return -1;
    while (logits[best] != largest) best++;
    return best;
}

/* e^x for x <= 0, from IEEE additions and multiplications only, so that the same draw comes out
 * whatever the C library: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor to r^13 (error under 2^-52). */
static double exp_portable(double x) {
    static const double ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45;
    if (!(x > -700)) return 0;
    double n = floor(x * 0x1.71547652b82fep+0 + 0.5);
    double r = (x - n * ln2_high) - n * ln2_low, sum = 1;
    for (int i = 13; i > 0; i--) sum = 1 + sum * r / i;
    return ldexp(sum, (int)n);
}

/* Larger logit first, lower id on ties: a total order, so every sort gives the same list. */
static bool before(const candidate *a, const candidate *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static int compare(const void *a, const void *b) {
    return before(a, b) ? -1 : before(b, a) ? 1 : 0;
}

static void sift_down(candidate *heap, int32_t n, int32_t i) {
    candidate moved = heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&heap[child], &heap[child + 1])) child++;
        if (!before(&moved, &heap[child])) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Moves the k first of the order to the front, unsorted: a heap of k with the last of them on top.
 */
static void select_top(candidate *all, int32_t n, int32_t k) {
    for (int32_t i = k / 2; i-- > 0;) sift_down(all, k, i);
    for (int32_t i = k; i < n; i++) {
        if (!before(&all[i], &all[0])) continue;
        all[0] = all[i];
        sift_down(all, k, 0);
    }
}

/* Keeps the shortest prefix of the order whose share of the weight reaches top_p; returns its
 * length. Tokens so light that all together cannot reach the rest are dropped before the sort. */
static int32_t keep_top_p(candidate *all, int32_t n, double top_p) {
    double total = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) total += all[i].weight;
    double light = (1 - top_p) * total / n * (1 - 1e-9);
    int32_t n_heavy = 0;
    for (int32_t i = 0; i < n; i++)
        if (all[i].weight >= light) all[n_heavy++] = all[i];
    qsort(all, (size_t)n_heavy, sizeof *all, compare);
    for (int32_t i = 0; i < n_heavy; i++) {
        sum += all[i].weight;
        if (sum >= top_p * total) return i + 1;
    }
    return n_heavy;
}

static int32_t keep_min_p(candidate *all, int32_t n, double min_p) {
    int32_t n_kept = 0; /* the largest weight is 1 */
    for (int32_t i = 0; i < n; i++)
        if (all[i].weight >= min_p) all[n_kept++] = all[i];
    return n_kept;
}

static int32_t draw(const candidate *all, int32_t n, double unit) {
    double total = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) total += all[i].weight;
    for (int32_t i = 0; i < n; i++) {
        sum += all[i].weight;
        if (unit * total < sum) return all[i].id;
    }
    return all[n - 1].id; /* rounding in the sum, which is the same sum as the total: not reached */
}

static void penalise(const kvl_sampler *sampler, const float *logits) {
    float penalty = sampler->options.repetition_penalty;
    memcpy(sampler->logits, logits, (size_t)sampler->vocab_size * sizeof *logits);
    for (int32_t i = 0; penalty != 1 && i < sampler->vocab_size; i++) {
        if (!sampler->seen[i]) continue;
        float *logit = &sampler->logits[i];
        *logit = *logit > 0 ? *logit / penalty : *logit * penalty;
    }
}

kvl_status kvl_sampler_pick(kvl_sampler *sampler, const float *logits, int32_t *id) {
    const kvl_sampler_options *o = &sampler->options;
    candidate *all = sampler->candidates;
    double unit = kvl_rng_unit(&sampler->rng); /* one for each step, whether it is used or not */
    penalise(sampler, logits);
    int32_t best = kvl_argmax(sampler->logits, sampler->vocab_size), n = 0;
    if (best < 0) return kvl_fail(KVL_ERR_INTERNAL, "logits hold NaN");
    float largest = sampler->logits[best];
    if (largest == -INFINITY) return kvl_fail(KVL_ERR_INTERNAL, "all logits are -inf");
    *id = best;
    if (o->temperature == 0 || o->top_k == 1) return KVL_OK;
    for (int32_t i = 0; i < sampler->vocab_size; i++) {
        float logit = sampler->logits[i];
        /* Infinite logits share the whole weight: inf - inf would be NaN. */
        double weight =
            logit == largest
                ? 1
                : exp_portable(((double)logit - (double)largest) / (double)o->temperature);
        if (weight > 0) all[n++] = (candidate){i, logit, weight};
    }
    if (o->top_k > 0 && o->top_k < n) select_top(all, n, o->top_k);
    if (o->top_k > 0 && o->top_k < n) n = o->top_k;
    if (o->top_p < 1) n = keep_top_p(all, n, (double)o->top_p);
    if (o->min_p > 0) n = keep_min_p(all, n, (double)o->min_p);
    *id = draw(all, n, unit);
    return KVL_OK;
}
