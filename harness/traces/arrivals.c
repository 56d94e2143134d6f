#include "harness/traces/arrivals.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/rng.h"

typedef enum law_kind { RECORDED, SCALED, POISSON, GAMMA, TOGETHER } law_kind;

typedef struct law {
    law_kind kind;
    double rate, cv; /* SCALED: rate is the factor */
} law;

static const double LOW = 1e-6, HIGH = 1e6, MAX_NS = 2.3e18;

/* Digits with an optional fraction; *text is advanced past them. */
static bool take_number(const char **text, const char *end, double *out) {
    double value = 0, unit = 1;
    const char *at = *text, *first = at;
    int n_digits = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++, n_digits++) value = value * 10 + (*at - '0');
    if (at == first || n_digits > 9) return false;
    if (at < end && *at == '.') {
        for (first = ++at; at < end && *at >= '0' && *at <= '9'; at++)
            value += (*at - '0') * (unit /= 10);
        if (at == first || at - first > 9) return false;
    }
    *text = at;
    *out = value;
    return value >= LOW && value <= HIGH;
}

static bool take_word(const char **text, const char *end, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(end - *text) < n || memcmp(*text, word, n) != 0) return false;
    *text += n;
    return true;
}

static bool parse(const char *text, size_t length, law *out) {
    const char *at = text, *end = text + length;
    *out = (law){RECORDED, 1, 1};
    if (take_word(&at, end, "recorded")) return at == end;
    if (take_word(&at, end, "together")) return out->kind = TOGETHER, at == end;
    if (take_word(&at, end, "x"))
        return out->kind = SCALED, take_number(&at, end, &out->rate) && at == end;
    if (take_word(&at, end, "poisson:"))
        return out->kind = POISSON, take_number(&at, end, &out->rate) && at == end;
    if (!take_word(&at, end, "gamma:") || !take_number(&at, end, &out->rate)) return false;
    out->kind = GAMMA;
    return take_word(&at, end, ":") && take_number(&at, end, &out->cv) && at == end;
}

/* Nine decimals at most and no zeros at the end: what the grammar reads again. */
static void plain(double value, char out[32]) {
    int n = snprintf(out, 32, "%.9f", value);
    while (out[n - 1] == '0') n--;
    out[n - (out[n - 1] == '.')] = '\0';
}

kvl_status kvl_arrival_canonical(const char *text, size_t length,
                                 char canonical[KVL_AXIS_TEXT_BYTES]) {
    law l;
    if (!parse(text, length, &l))
        return kvl_fail(KVL_ERR_INPUT,
                        "'%.*s': recorded, together, xF, poisson:R or gamma:R:CV "
                        "(R requests a second; numbers in 0.000001 to 1000000)",
                        (int)(length < 60 ? length : 60), text);
    char rate[32], cv[32];
    static const char *const words[] = {[RECORDED] = "recorded",
                                        [SCALED] = "x",
                                        [POISSON] = "poisson:",
                                        [GAMMA] = "gamma:",
                                        [TOGETHER] = "together"};
    bool numbered = l.kind != RECORDED && l.kind != TOGETHER;
    plain(l.rate, rate);
    plain(l.cv, cv);
    snprintf(canonical, KVL_AXIS_TEXT_BYTES, "%s%s%s%s", words[l.kind], numbered ? rate : "",
             l.kind == GAMMA ? ":" : "", l.kind == GAMMA ? cv : "");
    return KVL_OK;
}

/* Of mean 1 and shape k (Marsaglia and Tsang 2000; below 1 by the boost of a uniform). */
static double gamma_unit(kvl_rng *rng, double k) {
    double boost = 1, shape = k;
    if (shape < 1) {
        boost = pow(1 - kvl_rng_unit(rng), 1 / shape);
        shape += 1;
    }
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = kvl_rng_normal(rng), v = 1 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        double u = 1 - kvl_rng_unit(rng); /* in (0, 1] */
        if (log(u) < 0.5 * x * x + d - d * v + d * log(v)) return boost * d * v / k;
    }
}

kvl_status kvl_arrivals_apply(const char *text, uint64_t seed, kvl_trace *trace) {
    law l;
    kvl_rng rng = kvl_rng_make(seed, 0x617272 /* "arr" */);
    double at_ns = 0;
    if (!parse(text, strlen(text), &l))
        return kvl_fail(KVL_ERR_INTERNAL, "arrival law '%.60s' is not canonical", text);
    if (l.kind == RECORDED) return KVL_OK;
    for (int64_t i = 0; i < trace->n; i++) {
        int64_t *arrival = &trace->requests[i].arrival_ns;
        if (l.kind == SCALED) at_ns = (double)*arrival / l.rate;
        if (i > 0 && l.kind == POISSON) at_ns += -log(1 - kvl_rng_unit(&rng)) / l.rate * 1e9;
        if (i > 0 && l.kind == GAMMA) at_ns += gamma_unit(&rng, 1 / (l.cv * l.cv)) / l.rate * 1e9;
        if (!(at_ns <= MAX_NS))
            return kvl_fail(KVL_ERR_INPUT, "--arrival %s: request %lld would arrive after 73 years",
                            text, (long long)(i + 1));
        *arrival = (int64_t)at_ns;
    }
    return KVL_OK;
}

static int32_t scaled(int32_t tokens, double scale) {
    double n = floor(tokens * scale + 0.5);
    return n < 1 ? 1 : n > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t)n;
}

kvl_status kvl_trace_scale_lengths(kvl_trace *trace, double scale) {
    if (!(scale > 0 && scale <= 1e6))
        return kvl_fail(KVL_ERR_INPUT, "--length-scale %g: above 0, at most 1000000", scale);
    if (scale == 1) return KVL_OK;
    trace->longest = trace->longest_output = 0;
    trace->sum_prompt = trace->sum_output = trace->n_blocks = 0;
    trace->block_tokens = 0;
    for (int64_t i = 0; i < trace->n; i++) {
        kvl_trace_request *r = &trace->requests[i];
        r->prompt = scaled(r->prompt, scale);
        r->output = scaled(r->output, scale);
        r->n_blocks = 0;
        if (r->prompt + r->output > trace->longest) trace->longest = r->prompt + r->output;
        if (r->output > trace->longest_output) trace->longest_output = r->output;
        trace->sum_prompt += r->prompt;
        trace->sum_output += r->output;
    }
    return KVL_OK;
}

void kvl_trace_set_classes(kvl_trace *trace, int32_t batch_pct, uint64_t seed) {
    kvl_rng rng = kvl_rng_make(seed, 0x636c61 /* "cla" */);
    for (int64_t i = 0; batch_pct > 0 && i < trace->n; i++) {
        bool batch = kvl_rng_at(&rng, (uint64_t)i) % 100 < (uint64_t)batch_pct;
        trace->requests[i].class = batch ? KVL_CLASS_BATCH : KVL_CLASS_INTERACTIVE;
    }
}
