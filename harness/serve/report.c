/* metrics{} of bench serve; results/README.md defines every name. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness/figures/stats.h"
#include "harness/kernels/axes.h"
#include "harness/serve/trial.h"

/* One value a finished request, of a class or of all (-1). */
typedef struct values {
    double *items;
    size_t n;
} values;

static double ttft_ms(const kvl_served *r) {
    return (double)(r->first_ns - r->arrival_ns) * 1e-6;
}
static double e2e_ms(const kvl_served *r) {
    return (double)(r->last_ns - r->arrival_ns) * 1e-6;
}

static double tpot_ms(const kvl_served *r, int32_t output) {
    return output > 1 ? (double)(r->last_ns - r->first_ns) * 1e-6 / (output - 1) : NAN;
}

enum { TTFT, TPOT, E2E, LONGEST_GAP };

static double value_of(int what, const kvl_trace_request *t, const kvl_served *r) {
    switch (what) {
    case TTFT:
        return ttft_ms(r);
    case TPOT:
        return tpot_ms(r, t->output);
    case E2E:
        return e2e_ms(r);
    default:
        return t->output > 1 ? (double)r->longest_gap_ns * 1e-6 : NAN;
    }
}

static void collect(const kvl_trace *trace, const kvl_serve_result *result, int what, int class,
                    values *out) {
    out->n = 0;
    for (int64_t i = 0; i < trace->n; i++) {
        const kvl_trace_request *t = &trace->requests[i];
        if (result->requests[i].end != KVL_SERVED || (class >= 0 && (int)t->class != class))
            continue;
        double value = value_of(what, t, &result->requests[i]);
        if (isfinite(value)) out->items[out->n++] = value;
    }
}

static void set_quantiles(json_t *m, const char *name, const values *v) {
    static const struct {
        const char *word;
        double q;
    } quantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}};
    for (int i = 0; i < 3; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s_%s_ms", name, quantiles[i].word);
        kvl_set_number(m, text, v->n ? kvl_quantile(v->items, v->n, quantiles[i].q) : NAN);
    }
}

static void report_latency(json_t *m, const kvl_trace *trace, const kvl_serve_result *r) {
    static const char *const names[] = {"ttft", "tpot", "e2e"};
    values v = {.items = malloc(((size_t)trace->n + 1) * sizeof(double))};
    if (!v.items) return;
    for (int what = TTFT; what <= E2E; what++) {
        collect(trace, r, what, -1, &v);
        set_quantiles(m, names[what], &v);
    }
    collect(trace, r, LONGEST_GAP, -1, &v);
    kvl_set_number(m, "longest_gap_p99_ms", v.n ? kvl_quantile(v.items, v.n, 0.99) : NAN);
    collect(trace, r, TTFT, KVL_CLASS_INTERACTIVE, &v);
    kvl_set_number(m, "ttft_interactive_p99_ms", v.n ? kvl_quantile(v.items, v.n, 0.99) : NAN);
    collect(trace, r, TTFT, KVL_CLASS_BATCH, &v);
    kvl_set_number(m, "ttft_batch_p99_ms", v.n ? kvl_quantile(v.items, v.n, 0.99) : NAN);
    free(v.items);
    kvl_set_number(m, "itl_p50_ms", kvl_gap_quantile(r->gaps, 0.5) * 1e-6);
    kvl_set_number(m, "itl_p99_ms", kvl_gap_quantile(r->gaps, 0.99) * 1e-6);
}

/* Requests that met both limits; one with a single token has no time per token. */
static int64_t count_good(const kvl_trace *trace, const kvl_serve_options *o,
                          const kvl_serve_result *r) {
    int64_t n = 0;
    for (int64_t i = 0; i < trace->n; i++) {
        const kvl_served *s = &r->requests[i];
        double tpot = tpot_ms(s, trace->requests[i].output);
        n += s->end == KVL_SERVED && ttft_ms(s) <= o->slo_ttft_ms && !(tpot > o->slo_tpot_ms);
    }
    return n;
}

static void report_throughput(json_t *m, const kvl_trace *trace, const kvl_serve_options *o,
                              const kvl_serve_result *r) {
    double s = (double)r->end_ns * 1e-9;
    int64_t good = count_good(trace, o, r);
    kvl_set_number(m, "output_tok_s", s > 0 ? (double)r->output_tokens / s : NAN);
    kvl_set_number(m, "computed_tok_s", s > 0 ? (double)r->computed_tokens / s : NAN);
    kvl_set_number(m, "finished_req_s", s > 0 ? (double)r->finished / s : NAN);
    kvl_set_number(m, "goodput_req_s", s > 0 ? (double)good / s : NAN);
    kvl_set_number(m, "slo_met_pct", 100.0 * (double)good / (double)trace->n);
    kvl_set_number(m, "virtual_s", s);
    kvl_set_number(m, "busy_pct", r->end_ns ? 100.0 * (double)r->busy_ns / (double)r->end_ns : NAN);
    kvl_set_number(m, "mean_batch", r->busy_ns ? r->batch_ns / (double)r->busy_ns : NAN);
    kvl_set_number(m, "mean_queue", r->end_ns ? r->queue_ns / (double)r->end_ns : NAN);
    kvl_set_number(m, "step_tokens",
                   r->steps ? (double)r->computed_tokens / (double)r->steps : NAN);
}

json_t *kvl_serve_metrics(const kvl_trace *trace, const kvl_serve_options *o,
                          const kvl_serve_result *r) {
    json_t *m = json_object();
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {{"requests", trace->n},
                  {"finished", r->finished},
                  {"refused", r->refused},
                  {"gave_up", r->gave_up},
                  {"turned_away", r->turned_away},
                  {"preempted", r->preempted},
                  {"preempted_requests", r->preempted_requests},
                  {"recomputed_tokens", r->recomputed_tokens},
                  {"swapped_tokens", r->swapped_tokens},
                  {"steps", r->steps},
                  {"output_tokens", r->output_tokens},
                  {"computed_tokens", r->computed_tokens},
                  {"largest_batch", r->largest_batch},
                  {"largest_queue", r->largest_queue},
                  {"serve_pool_tokens", o->pool_tokens}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        kvl_set_count(m, counts[i].name, (uint64_t)counts[i].value);
    double asked = (double)r->ledger.asked_pages, pool = (double)o->pool_tokens;
    report_throughput(m, trace, o, r);
    report_latency(m, trace, r);
    kvl_set_number(m, "prefix_hit_pct",
                   asked > 0 ? 100 * (double)r->ledger.hit_pages / asked : NAN);
    kvl_set_number(m, "slots_live_pct",
                   r->end_ns ? 100 * r->live_ns / (double)r->end_ns / pool : NAN);
    kvl_set_number(m, "tail_waste_pct", r->used_ns > 0 ? 100 * (1 - r->live_ns / r->used_ns) : NAN);
    return m;
}
