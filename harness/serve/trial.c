#include "harness/serve/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/threads.h"
#include "harness/kernels/axes.h"
#include "harness/serve/real.h"
#include "harness/traces/arrivals.h"
#include "harness/trial/trial.h"

typedef struct trial {
    const char *trace_path, *arrival, *side, *cost_path;
    kvl_trace_options trace_options;
    kvl_serve_options options;
    int64_t utilization_pct, memory_mib, batch_pct;
    double length_scale, swap_gb_s;
    uint64_t seed;
    /* On the engine. */
    const char *model, *text, *attention, *kv_dtype, *weights, *compute_dtype, *device;
    int64_t threads;
    kvl_trace trace;
    kvl_cost cost;
    kvl_series *series;
    kvl_serve_result result;
} trial;

/* ---- spec ----------------------------------------------------------------------------------- */

static kvl_status parse_names(const json_t *axes, trial *t) {
    static const char *const schedules[] = {"decode_first", "prefill_first", "static"};
    const char *allocator, *reserve, *schedule, *retry;
    kvl_serve_options *o = &t->options;
    KVL_TRY(kvl_spec_text(axes, "trace", &t->trace_path));
    KVL_TRY(kvl_spec_text(axes, "arrival", &t->arrival));
    KVL_TRY(kvl_spec_text(axes, "allocator", &allocator));
    KVL_TRY(kvl_allocator_find(allocator, &o->allocator));
    KVL_TRY(kvl_spec_text(axes, "reserve", &reserve));
    if (strcmp(reserve, "none") != 0) KVL_TRY(kvl_reserve_policy_parse(reserve, &o->reserve));
    KVL_TRY(kvl_spec_choice(axes, "share", "off", "on", &o->share));
    KVL_TRY(kvl_spec_choice(axes, "chunked_prefill", "off", "on", &o->chunked));
    KVL_TRY(kvl_spec_choice(axes, "preempt", "recompute", "swap", &o->swap));
    KVL_TRY(kvl_spec_text(axes, "schedule", &schedule));
    int at = 0;
    while (at < 3 && strcmp(schedules[at], schedule) != 0) at++;
    if (at == 3) return kvl_fail(KVL_ERR_INPUT, "trial spec: schedule '%.60s'", schedule);
    o->schedule = (kvl_serve_schedule)at;
    KVL_TRY(kvl_spec_text(axes, "retry", &retry));
    return kvl_retry_parse(retry, strlen(retry), &o->retry);
}

static kvl_status parse_numbers(const json_t *axes, trial *t) {
    int64_t seqs, batched;
    kvl_serve_options *o = &t->options;
    KVL_TRY(kvl_spec_number(axes, "page_tokens", 0, INT32_MAX, &o->page_tokens));
    KVL_TRY(kvl_spec_number(axes, "pool_tokens", 0, INT64_MAX, &o->pool_tokens));
    KVL_TRY(kvl_spec_number(axes, "memory_utilization", 0, 100, &t->utilization_pct));
    KVL_TRY(kvl_spec_number(axes, "max_model_len", 0, INT32_MAX, &o->max_model_len));
    KVL_TRY(kvl_spec_number(axes, "max_seqs", 1, 1 << 20, &seqs));
    KVL_TRY(kvl_spec_number(axes, "max_batched_tokens", 1, 1 << 24, &batched));
    KVL_TRY(kvl_spec_number(axes, "queue_limit", 0, INT64_MAX, &o->queue_limit));
    o->max_seqs = (int32_t)seqs;
    o->max_batched_tokens = (int32_t)batched;
    return KVL_OK;
}

static double number_or(const json_t *object, const char *name, double fallback) {
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) ? json_number_value(value) : fallback;
}

static kvl_status parse_engine(const json_t *axes, const json_t *workload, trial *t) {
    KVL_TRY(kvl_spec_text(axes, "attention", &t->attention));
    KVL_TRY(kvl_spec_text(axes, "kv_dtype", &t->kv_dtype));
    KVL_TRY(kvl_spec_text(axes, "weights", &t->weights));
    KVL_TRY(kvl_spec_text(axes, "compute_dtype", &t->compute_dtype));
    KVL_TRY(kvl_spec_text(axes, "device", &t->device));
    KVL_TRY(kvl_spec_number(axes, "threads", 1, INT32_MAX, &t->threads));
    t->text = json_string_value(json_object_get(workload, "text"));
    return kvl_spec_text(axes, "model", &t->model);
}

static kvl_status parse(const json_t *spec, trial *t) {
    const json_t *axes = json_object_get(spec, "axes"), *w = json_object_get(spec, "workload");
    KVL_TRY(parse_names(axes, t));
    KVL_TRY(parse_numbers(axes, t));
    t->seed = (uint64_t)json_integer_value(json_object_get(w, "seed"));
    t->options.seed = t->seed;
    t->options.aging_ns = (int64_t)(number_or(w, "aging_s", 60) * 1e9);
    t->options.slo_ttft_ms = number_or(w, "slo_ttft_ms", 1000);
    t->options.slo_tpot_ms = number_or(w, "slo_tpot_ms", 100);
    t->length_scale = number_or(w, "length_scale", 1);
    t->swap_gb_s = number_or(w, "swap_gb_s", 10);
    t->memory_mib = (int64_t)number_or(w, "memory_mib", 0);
    t->batch_pct = (int64_t)number_or(w, "batch_pct", 0);
    t->trace_options.skip_zero = json_is_true(json_object_get(w, "skip_zero"));
    t->trace_options.max_requests = json_integer_value(json_object_get(w, "requests"));
    t->cost_path = json_string_value(json_object_get(w, "cost"));
    t->side = json_string_value(json_object_get(spec, "side"));
    return json_object_get(axes, "model") ? parse_engine(axes, w, t) : KVL_OK;
}

/* ---- memory --------------------------------------------------------------------------------- */

kvl_status kvl_serve_pool_tokens(const kvl_cost *cost, int64_t utilization_pct,
                                 uint64_t memory_bytes, int64_t *pool_tokens) {
    uint64_t memory = memory_bytes ? memory_bytes : cost->memory_bytes;
    uint64_t usable = memory / 100 * (uint64_t)utilization_pct;
    if (!memory || !cost->kv_bytes_per_token)
        return kvl_fail(KVL_ERR_INPUT, "the rows do not tell the size of memory or of K and V: "
                                       "--pool-tokens N");
    if (usable <= cost->weight_bytes ||
        (usable - cost->weight_bytes) / cost->kv_bytes_per_token == 0)
        return kvl_fail(KVL_ERR_INPUT,
                        "%lld %% of %.1f MiB: no slot is left beside weights of %.1f MiB",
                        (long long)utilization_pct, (double)memory / (1 << 20),
                        (double)cost->weight_bytes / (1 << 20));
    *pool_tokens = (int64_t)((usable - cost->weight_bytes) / cost->kv_bytes_per_token);
    return KVL_OK;
}

static kvl_status size_pool(trial *t) {
    if (t->options.pool_tokens) return KVL_OK;
    return kvl_serve_pool_tokens(&t->cost, t->utilization_pct, (uint64_t)t->memory_mib << 20,
                                 &t->options.pool_tokens);
}

/* ---- running -------------------------------------------------------------------------------- */

static kvl_status serve(trial *t, const kvl_serve_backend *backend) {
    if (t->side) {
        t->series = malloc(sizeof *t->series);
        if (!t->series) return kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    return kvl_serve_run(&t->trace, &t->options, backend, t->series, &t->result);
}

static kvl_status run_virtual(trial *t) {
    if (!t->cost_path)
        return kvl_fail(KVL_ERR_INPUT, "--cost F.jsonl is needed: rows of kvlab bench decode");
    KVL_TRY(size_pool(t));
    t->cost.swap_token = (double)t->cost.kv_bytes_per_token / (t->swap_gb_s * 1e9);
    kvl_serve_backend backend = kvl_cost_backend(&t->cost);
    return serve(t, &backend);
}

static kvl_status encode_text(const kvl_model *model, const char *path, int32_t **ids, int64_t *n) {
    kvl_file file;
    if (!model->tokenizer)
        return kvl_fail(KVL_ERR_INPUT, "--text %s: the model has no tokenizer", path);
    KVL_TRY(kvl_file_open(path, &file));
    kvl_status status = kvl_tokenizer_encode_alloc(model->tokenizer, (const char *)file.data,
                                                   file.bytes, false, ids, n);
    kvl_file_close(&file);
    if (status == KVL_OK && *n == 0) status = kvl_fail(KVL_ERR_INPUT, "--text %s: empty", path);
    return status;
}

/* Nothing is timed before it is right. */
static kvl_status verify(const kvl_model *model, const trial *t, kvl_findings *f) {
    const kvl_config *config = &model->config;
    kvl_verify_result verified;
    kvl_verify_case c = {.n_q_heads = config->n_q_heads,
                         .n_kv_heads = config->n_kv_heads,
                         .head_dim = config->head_dim,
                         .window = config->sliding_window};
    KVL_TRY(kvl_trial_layout(t->options.allocator->name,
                             kvl_reserve_policy_name(t->options.reserve), t->options.page_tokens,
                             &c.layout));
    snprintf(c.kernel, sizeof c.kernel, "%s", t->attention);
    KVL_TRY(kvl_dtype_parse(t->kv_dtype, &c.k_dtype));
    c.v_dtype = c.k_dtype;
    KVL_TRY(kvl_dtype_parse(t->compute_dtype, &c.q_dtype));
    KVL_TRY(kvl_verify_attention_config(&c, &verified));
    if (verified.state == KVL_VERIFY_SKIP)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s", verified.reason);
    if (verified.state == KVL_VERIFY_FAIL) {
        f->outcome = "mismatch";
        snprintf(f->reason, sizeof f->reason, "%s: %s", verified.id, verified.reason);
    }
    return KVL_OK;
}

static json_t *ids_json(const int32_t *ids, int64_t n) {
    json_t *array = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(array, json_integer(ids[i]));
    return array;
}

static json_t *margins_json(const float *margins, int64_t n) {
    json_t *array = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(array, json_real((double)margins[i]));
    return array;
}

/* What another system needs to do the same work, and what came out here. */
static kvl_status write_requests(const trial *t, const kvl_real *real, json_t *effective) {
    char path[4200];
    kvl_buffer out = {0};
    for (int64_t i = 0; i < t->trace.n; i++) {
        const kvl_trace_request *q = &t->trace.requests[i];
        const kvl_served *r = &t->result.requests[i];
        const int32_t *ids = kvl_real_ids(real, i);
        bool served = r->end == KVL_SERVED;
        json_t *line =
            json_pack("{s:I,s:f,s:f,s:f,s:o,s:o,s:o}", "request", (json_int_t)i, "arrival_s",
                      (double)q->arrival_ns * 1e-9, "first_s", (double)r->first_ns * 1e-9, "last_s",
                      (double)r->last_ns * 1e-9, "prompt", ids_json(ids, q->prompt), "output",
                      ids_json(ids + q->prompt, served ? q->output : 0), "margins",
                      margins_json(kvl_real_margins(real, i) + q->prompt, served ? q->output : 0));
        char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
        if (text)
            kvl_buffer_printf(&out, "%s\n", text);
        else
            out.failed = true;
        free(text);
        json_decref(line);
    }
    snprintf(path, sizeof path, "%s-requests.jsonl", t->side);
    kvl_status status = out.failed ? kvl_fail(KVL_ERR_OOM, "out of memory")
                                   : kvl_file_write_all(path, out.data, out.bytes);
    kvl_buffer_free(&out);
    if (status == KVL_OK) kvl_set_text(effective, "requests", path);
    return status;
}

static void report_engine(const trial *t, kvl_engine *engine, json_t *e) {
    kvl_engine_effective ran;
    kvl_engine_effective_get(engine, t->options.max_batched_tokens, t->options.max_seqs, &ran);
    kvl_set_text(e, "attention", ran.attention);
    kvl_set_text(e, "attention_reason", ran.attention_reason);
    kvl_set_text(e, "matmul_prefill", ran.matmul_prefill);
    kvl_set_text(e, "matmul_decode", ran.matmul_decode);
    kvl_set_text(e, "isa", ran.isa);
    kvl_set_text(e, "kv_dtype", ran.kv_dtype);
    kvl_set_text(e, "weights", ran.weights);
    kvl_set_text(e, "compute_dtype", ran.compute_dtype);
    kvl_set_count(e, "threads", (uint64_t)kvl_threads());
}

static kvl_status run_engine(trial *t, const kvl_model *model, kvl_findings *f) {
    int32_t *text = NULL;
    int64_t n_text = 0;
    kvl_real *real = NULL;
    kvl_engine_options names = kvl_engine_defaults();
    names.device = t->device;
    names.attention = t->attention;
    names.kv_dtype = t->kv_dtype;
    names.weights = t->weights;
    names.compute_dtype = t->compute_dtype;
    if (!t->options.pool_tokens)
        return kvl_fail(KVL_ERR_INPUT, "--pool-tokens N is needed with --real");
    if (t->text) KVL_TRY(encode_text(model, t->text, &text, &n_text));
    kvl_status status =
        kvl_real_open(model, &names, &t->options, &t->trace, text, n_text, t->seed, &real);
    free(text);
    if (status != KVL_OK) return status;
    kvl_serve_backend backend = kvl_real_backend(real);
    status = serve(t, &backend);
    if (status == KVL_OK) {
        report_engine(t, kvl_real_engine(real), f->effective);
        if (t->side) status = write_requests(t, real, f->effective);
    }
    kvl_real_close(real);
    return status;
}

static kvl_status run_real(trial *t, const char *digest, kvl_findings *f) {
    kvl_model *model = NULL;
    KVL_TRY(kvl_threads_set((int)t->threads, 1));
    KVL_TRY(kvl_model_open(t->model, t->seed, &model));
    kvl_status status = KVL_OK;
    if (digest && strcmp(model->digest, digest) != 0) {
        f->outcome = "mismatch";
        snprintf(f->reason, sizeof f->reason, "model file changed during the sweep");
    } else {
        kvl_fail(KVL_OK, "%s", model->config.source_weights); /* replaces what JSON cannot hold */
        kvl_set_text(f->effective, "source_weights", kvl_message());
        status = verify(model, t, f);
        if (status == KVL_OK && !f->outcome) status = run_engine(t, model, f);
    }
    kvl_model_close(model);
    return status;
}

/* ---- answer --------------------------------------------------------------------------------- */

static void report_cost(const trial *t, kvl_findings *f) {
    const kvl_cost *c = &t->cost;
    if (!t->cost_path) return;
    for (int i = 0; i < KVL_COST_FEATURES; i++) {
        char name[64];
        snprintf(name, sizeof name, "cost_%s_us", kvl_cost_names[i]);
        kvl_set_number(f->effective, name, c->seconds[i] * 1e6);
    }
    kvl_set_text(f->effective, "cost_model", c->model);
    kvl_set_number(f->metrics, "fit_mean_error_pct", c->mean_error_pct);
    kvl_set_number(f->metrics, "fit_max_error_pct", c->max_error_pct);
    kvl_set_count(f->metrics, "fit_points", (uint64_t)c->n_points);
}

static kvl_status keep_series(const trial *t, json_t *effective) {
    char path[4200];
    kvl_buffer csv = {0};
    if (!t->series) return KVL_OK;
    kvl_series_csv(t->series, 1e-3, &csv);
    snprintf(path, sizeof path, "%s-ledger.csv", t->side);
    kvl_status status = csv.failed ? kvl_fail(KVL_ERR_OOM, "out of memory")
                                   : kvl_file_write_all(path, csv.data, csv.bytes);
    kvl_buffer_free(&csv);
    if (status == KVL_OK) kvl_set_text(effective, "ledger", path);
    return status;
}

static kvl_status run(trial *t, const json_t *spec, kvl_findings *f) {
    const char *digest = json_string_value(json_object_get(spec, "trace_digest"));
    KVL_TRY(kvl_trace_read(t->trace_path, &t->trace_options, &t->trace));
    if (digest && strcmp(t->trace.digest, digest) != 0) {
        f->outcome = "mismatch";
        snprintf(f->reason, sizeof f->reason, "the trace changed during the sweep");
        return KVL_OK;
    }
    KVL_TRY(kvl_trace_scale_lengths(&t->trace, t->length_scale));
    kvl_trace_set_classes(&t->trace, (int32_t)t->batch_pct, t->seed);
    KVL_TRY(kvl_arrivals_apply(t->arrival, t->seed, &t->trace));
    if (t->cost_path) KVL_TRY(kvl_cost_fit(t->cost_path, &t->cost));
    f->effective = json_object();
    KVL_TRY(t->model ? run_real(t, json_string_value(json_object_get(spec, "model_digest")), f)
                     : run_virtual(t));
    if (f->outcome) return KVL_OK;
    KVL_TRY(keep_series(t, f->effective));
    f->metrics = kvl_serve_metrics(&t->trace, &t->options, &t->result);
    report_cost(t, f);
    kvl_set_text(f->effective, "clock", t->model ? "wall" : "virtual");
    kvl_set_text(f->effective, "trace_format", t->trace.format);
    kvl_set_number(f->effective, "slo_ttft_ms", t->options.slo_ttft_ms);
    kvl_set_number(f->effective, "slo_tpot_ms", t->options.slo_tpot_ms);
    return KVL_OK;
}

kvl_status kvl_serve_trial_run(const json_t *spec, json_t **answer) {
    trial t = {0};
    kvl_findings f = {0};
    *answer = NULL;
    KVL_TRY(parse(spec, &t));
    kvl_status status = run(&t, spec, &f);
    kvl_serve_result_free(&t.result);
    kvl_trace_free(&t.trace);
    free(t.series);
    return kvl_findings_answer(&f, status, answer);
}
