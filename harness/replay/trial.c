#include "harness/replay/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "harness/kernels/axes.h"
#include "harness/replay/replay.h"
#include "harness/traces/arrivals.h"

typedef struct trial {
    const char *trace_path, *arrival, *side;
    kvl_trace_options trace_options;
    kvl_replay_options options;
    uint64_t seed;
    kvl_trace trace;
    kvl_series *series; /* NULL: not asked for */
    kvl_map *map;
    kvl_replay_result result;
} trial;

static kvl_status parse_options(const json_t *workload, trial *t) {
    double step_ms = json_number_value(json_object_get(workload, "step_ms"));
    t->seed = (uint64_t)json_integer_value(json_object_get(workload, "seed"));
    t->options.step_s = step_ms > 0 ? step_ms * 1e-3 : 0.03;
    t->options.wanted_tokens = json_integer_value(json_object_get(workload, "wanted_tokens"));
    t->trace_options.skip_zero = json_is_true(json_object_get(workload, "skip_zero"));
    t->trace_options.max_requests = json_integer_value(json_object_get(workload, "requests"));
    return KVL_OK;
}

static kvl_status parse(const json_t *spec, trial *t) {
    const json_t *axes = json_object_get(spec, "axes");
    const char *allocator, *reserve;
    KVL_TRY(kvl_spec_text(axes, "trace", &t->trace_path));
    KVL_TRY(kvl_spec_text(axes, "arrival", &t->arrival));
    KVL_TRY(kvl_spec_text(axes, "allocator", &allocator));
    KVL_TRY(kvl_allocator_find(allocator, &t->options.allocator));
    KVL_TRY(kvl_spec_text(axes, "reserve", &reserve));
    if (strcmp(reserve, "none") != 0)
        KVL_TRY(kvl_reserve_policy_parse(reserve, &t->options.reserve));
    KVL_TRY(kvl_spec_choice(axes, "share", "off", "on", &t->options.share));
    KVL_TRY(kvl_spec_number(axes, "page_tokens", 0, INT32_MAX, &t->options.page_tokens));
    KVL_TRY(kvl_spec_number(axes, "pool_tokens", 0, INT64_MAX, &t->options.pool_tokens));
    KVL_TRY(kvl_spec_number(axes, "max_model_len", 0, INT32_MAX, &t->options.max_seq_tokens));
    KVL_TRY(kvl_spec_number(axes, "max_seqs", 0, INT32_MAX, &t->options.max_seqs));
    t->side = json_string_value(json_object_get(spec, "side"));
    return parse_options(json_object_get(spec, "workload"), t);
}

static kvl_status make_side(trial *t) {
    if (!t->side) return KVL_OK;
    t->series = malloc(sizeof *t->series);
    t->map = t->options.pool_tokens ? malloc(sizeof *t->map) : NULL;
    if (!t->series || (t->options.pool_tokens && !t->map))
        return kvl_fail(KVL_ERR_OOM, "out of memory");
    if (t->map) kvl_map_start(t->map, t->options.pool_tokens);
    return KVL_OK;
}

static kvl_status write_side(const trial *t, const char *what, kvl_buffer *csv, json_t *effective) {
    char path[4200];
    snprintf(path, sizeof path, "%s-%s.csv", t->side, what);
    kvl_status status = csv->failed ? kvl_fail(KVL_ERR_OOM, "out of memory")
                                    : kvl_file_write_all(path, csv->data, csv->bytes);
    kvl_buffer_free(csv);
    if (status == KVL_OK) kvl_set_text(effective, what, path);
    return status;
}

static kvl_status keep_side(const trial *t, json_t *effective) {
    kvl_buffer csv = {0};
    if (t->series) {
        kvl_series_csv(t->series, t->options.step_s, &csv);
        KVL_TRY(write_side(t, "ledger", &csv, effective));
    }
    if (!t->map) return KVL_OK;
    kvl_map_csv(t->map, t->options.step_s, &csv);
    return write_side(t, "map", &csv, effective);
}

/* Mean shares of the pool in per cent; null where no step counted. */
static void report_shares(json_t *metrics, const char *prefix, const kvl_replay_sums *s) {
    const struct {
        const char *name;
        double sum;
    } kinds[] = {{"live", s->live},        {"reserved", s->reserved}, {"internal", s->internal},
                 {"cached", s->cached},    {"padding", s->padding},   {"free", s->free},
                 {"external", s->external}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char name[48];
        snprintf(name, sizeof name, "%s%s_pct", prefix, kinds[i].name);
        kvl_set_number(metrics, name, s->pool > 0 ? 100 * kinds[i].sum / s->pool : NAN);
    }
}

static double share_pct(double part, double whole) {
    return whole > 0 ? 100 * part / whole : NAN;
}

static void report_requests(const trial *t, json_t *m) {
    const kvl_replay_result *r = &t->result;
    kvl_set_count(m, "requests", (uint64_t)r->requests);
    kvl_set_count(m, "finished", (uint64_t)r->finished);
    kvl_set_count(m, "refused", (uint64_t)r->refused);
    kvl_set_count(m, "preempted", (uint64_t)r->preempted);
    kvl_set_count(m, "preempted_requests", (uint64_t)r->preempted_requests);
    kvl_set_count(m, "recomputed_tokens", (uint64_t)r->recomputed_tokens);
    kvl_set_count(m, "largest_batch", (uint64_t)r->largest_batch);
    kvl_set_count(m, "largest_queue", (uint64_t)r->largest_queue);
    kvl_set_number(m, "mean_batch", r->all.steps ? r->batch_sum / (double)r->all.steps : NAN);
    kvl_set_count(m, "steps", (uint64_t)r->steps);
    kvl_set_number(m, "virtual_s", (double)r->steps * t->options.step_s);
    kvl_set_count(m, "trace_tokens", (uint64_t)(t->trace.sum_prompt + t->trace.sum_output));
    kvl_set_count(m, "trace_skipped", (uint64_t)t->trace.n_skipped);
    kvl_set_count(m, "trace_out_of_order", (uint64_t)t->trace.n_out_of_order);
}

static void report(const trial *t, kvl_findings *f) {
    const kvl_replay_result *r = &t->result;
    const kvl_replay_sums *all = &r->all;
    double out_slots = all->live + all->reserved + all->internal;
    json_t *m = f->metrics = json_object();
    kvl_set_number(m, "tail_waste_pct", share_pct(all->reserved + all->internal, out_slots));
    kvl_set_number(m, "tail_waste_end_pct", share_pct(r->end_slots - r->end_tokens, r->end_slots));
    kvl_set_number(m, "slots_live_pct", share_pct(all->live, all->pool));
    kvl_set_number(m, "prefix_hit_pct",
                   share_pct((double)r->ledger.hit_pages, (double)r->ledger.asked_pages));
    kvl_set_count(m, "prefix_asked_pages", (uint64_t)r->ledger.asked_pages);
    kvl_set_count(m, "prefix_hit_pages", (uint64_t)r->ledger.hit_pages);
    kvl_set_number(m, "prefix_hit_tokens_pct",
                   share_pct((double)r->ledger.hit_tokens, (double)r->ledger.asked_tokens));
    report_requests(t, m);
    report_shares(m, "", all);
    report_shares(m, "full_", &r->full);
    kvl_set_number(m, "full_steps_pct", share_pct((double)r->full.steps, (double)all->steps));
    kvl_set_count(m, "used_peak_tokens", (uint64_t)r->used_peak);
    kvl_set_count(m, "live_peak_tokens", (uint64_t)r->live_peak);
    kvl_set_count(m, "copied_slots", (uint64_t)r->ledger.copied_slots);
    kvl_set_count(m, "metadata_bytes", (uint64_t)r->ledger.metadata_bytes);
    json_t *e = f->effective;
    kvl_set_text(e, "trace_format", t->trace.format);
    kvl_set_text(e, "trace_digest", t->trace.digest);
    kvl_set_number(e, "step_ms", t->options.step_s * 1e3);
    kvl_set_count(e, "longest_request_tokens", (uint64_t)t->trace.longest);
}

static kvl_status run(trial *t, const char *digest, kvl_findings *f) {
    KVL_TRY(kvl_trace_read(t->trace_path, &t->trace_options, &t->trace));
    if (digest && strcmp(t->trace.digest, digest) != 0) {
        f->outcome = "mismatch";
        snprintf(f->reason, sizeof f->reason, "the trace changed during the sweep");
        return KVL_OK;
    }
    KVL_TRY(kvl_arrivals_apply(t->arrival, t->seed, &t->trace));
    KVL_TRY(make_side(t));
    KVL_TRY(kvl_replay_run(&t->trace, &t->options, t->series, t->map, &t->result));
    f->effective = json_object();
    KVL_TRY(keep_side(t, f->effective));
    report(t, f);
    return KVL_OK;
}

kvl_status kvl_replay_trial_run(const json_t *spec, json_t **answer) {
    trial t = {0};
    kvl_findings f = {0};
    *answer = NULL;
    KVL_TRY(parse(spec, &t));
    kvl_status status = run(&t, json_string_value(json_object_get(spec, "trace_digest")), &f);
    kvl_trace_free(&t.trace);
    free(t.series);
    free(t.map);
    return kvl_findings_answer(&f, status, answer);
}
