#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/threads.h"
#include "harness/kernels/axes.h"
#include "harness/quality/quality.h"

/* One trial on its way to an answer. */
typedef struct trial {
    kvl_trial_spec_values spec;
    kvl_model *model;
    int64_t chunk;
    double load_s;
    kvl_verify_result verified;
    kvl_quality_pass pass;
    kvl_quality_summary summary;
} trial;

static kvl_status take_axes(const json_t *axes, kvl_trial_spec_values *out) {
    KVL_TRY(kvl_spec_text(axes, "model", &out->model));
    KVL_TRY(kvl_spec_text(axes, "allocator", &out->allocator));
    KVL_TRY(kvl_spec_text(axes, "attention", &out->attention));
    KVL_TRY(kvl_spec_text(axes, "kv_dtype", &out->kv_dtype));
    out->kv_scale = json_string_value(json_object_get(axes, "kv_scale")); /* NULL: auto */
    KVL_TRY(kvl_spec_text(axes, "weights", &out->weights));
    KVL_TRY(kvl_spec_text(axes, "compute_dtype", &out->compute_dtype));
    KVL_TRY(kvl_spec_text(axes, "device", &out->device));
    KVL_TRY(kvl_spec_number(axes, "prompt", 2, INT32_MAX, &out->prompt));
    KVL_TRY(kvl_spec_number(axes, "page_tokens", 0, INT32_MAX, &out->page_tokens));
    return kvl_spec_number(axes, "threads", 1, INT32_MAX, &out->threads);
}

static kvl_status parse(const json_t *spec, trial *t) {
    const json_t *workload = json_object_get(spec, "workload");
    const json_t *ceilings = json_object_get(spec, "ceilings");
    kvl_trial_spec_values *out = &t->spec;
    KVL_TRY(take_axes(json_object_get(spec, "axes"), out));
    out->batch = 1;
    out->seed = (uint64_t)json_integer_value(json_object_get(workload, "seed"));
    out->text = json_string_value(json_object_get(workload, "text"));
    if (!out->text) return kvl_fail(KVL_ERR_INPUT, "trial spec: workload.text is not a text");
    out->chunk = json_integer_value(json_object_get(workload, "chunk"));
    if (out->chunk < 0 || out->chunk > 1 << 20)
        return kvl_fail(KVL_ERR_INPUT, "trial spec: workload.chunk %lld", (long long)out->chunk);
    t->chunk = out->chunk ? out->chunk : kvl_engine_defaults().max_batch_tokens;
    out->deterministic = json_is_true(json_object_get(workload, "deterministic"));
    out->allow_nonfinite = json_is_true(json_object_get(workload, "allow_nonfinite"));
    out->nf4_block = json_integer_value(json_object_get(workload, "nf4_block"));
    out->nf4_skip = json_string_value(json_object_get(workload, "nf4_skip"));
    out->read_bytes_per_s = json_number_value(json_object_get(ceilings, "read_bytes_per_s"));
    out->flops_per_s = json_number_value(
        json_object_get(ceilings, strcmp(out->compute_dtype, "bf16") == 0 ? "bf16_flops_per_s"
                                                                          : "f32_flops_per_s"));
    return KVL_OK;
}

/* The attention kernel against the oracle before anything is compared or timed. */
static kvl_status verify(trial *t, kvl_findings *f) {
    KVL_TRY(kvl_trial_verify(&t->model->config, &t->spec, &t->verified));
    if (t->verified.state == KVL_VERIFY_FAIL) {
        f->outcome = "mismatch";
        snprintf(f->reason, sizeof f->reason, "%s: %s (max abs %.3g, bound %.3g)", t->verified.id,
                 t->verified.reason, t->verified.max_abs, t->verified.bound);
    }
    return KVL_OK;
}

static kvl_status load_measured(const trial *t, kvl_engine **engine) {
    const kvl_trial_spec_values *spec = &t->spec;
    kvl_engine_options options = kvl_trial_engine_options(spec);
    options.max_seq_tokens = spec->prompt;
    options.max_batch_tokens = (int32_t)t->chunk;
    return kvl_engine_create(t->model, &options, NULL, NULL, engine);
}

static json_t *numbers(const kvl_quality_summary *s, double (*of)(const kvl_quality_bucket *)) {
    json_t *array = json_array();
    for (int i = 0; i < s->n_buckets; i++)
        json_array_append_new(array, json_real(of(&s->buckets[i])));
    return array;
}

static double kld_of(const kvl_quality_bucket *b) {
    return b->mean_kld;
}
static double ppl_of(const kvl_quality_bucket *b) {
    return b->ppl;
}
static double ppl_f32_of(const kvl_quality_bucket *b) {
    return b->ppl_f32;
}
static double same_of(const kvl_quality_bucket *b) {
    return b->same_top1;
}

/* samples{}: drift over length, one value a run of positions. */
static json_t *samples_of(const kvl_quality_summary *s) {
    json_t *samples = json_object(), *first = json_array();
    for (int i = 0; i < s->n_buckets; i++)
        json_array_append_new(first, json_integer((json_int_t)s->buckets[i].first));
    json_object_set_new(samples, "bucket_first", first);
    json_object_set_new(samples, "bucket_kld", numbers(s, kld_of));
    json_object_set_new(samples, "bucket_ppl", numbers(s, ppl_of));
    json_object_set_new(samples, "bucket_ppl_f32", numbers(s, ppl_f32_of));
    json_object_set_new(samples, "bucket_same_top1", numbers(s, same_of));
    return samples;
}

static void set_quality(json_t *metrics, const trial *t) {
    const kvl_quality_summary *s = &t->summary;
    const kvl_engine_memory *memory = &t->pass.times.memory;
    kvl_set_number(metrics, "ppl", s->ppl);
    kvl_set_number(metrics, "ppl_f32", s->ppl_f32);
    kvl_set_number(metrics, "mean_kld", s->mean_kld);
    kvl_set_number(metrics, "median_kld", s->median_kld);
    kvl_set_number(metrics, "p99_kld", s->p99_kld);
    kvl_set_number(metrics, "same_top1", s->same_top1);
    kvl_set_count(metrics, "n_tokens", (uint64_t)t->spec.prompt);
    kvl_set_number(metrics, "bits_per_weight",
                   8 * (double)memory->weight_bytes /
                       (double)kvl_config_parameters(&t->model->config));
    kvl_set_count(metrics, "kv_bytes_per_token", memory->kv_bytes_per_token);
    kvl_set_count(metrics, "kv_bytes_formula",
                  (uint64_t)t->spec.prompt * memory->kv_bytes_per_token);
    /* What is resident holds the reference too, and every token's logits are part of the time. */
    static const char *const absent[] = {"rss_steady_bytes", "rss_peak_bytes", "ttft_ms", "e2e_ms",
                                         "predicted_ttft_ms"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        json_object_set_new(metrics, absent[i], json_null());
}

static void report(trial *t, kvl_findings *f) {
    kvl_trial_spec_values *spec = &t->spec;
    const kvl_trial_times *times = &t->pass.times;
    int64_t n_tokens = spec->prompt;
    spec->output = (int64_t)times->n_steps + 1; /* as the report of a decode counts its steps */
    spec->prompt = n_tokens - 1;                /* tokens that were fed */
    f->effective = kvl_trial_effective(t->pass.measured, t->model, spec, times, &t->verified);
    f->metrics = kvl_trial_metrics(t->pass.measured, spec, times, t->load_s);
    spec->prompt = n_tokens;
    double share = json_number_value(json_object_get(f->metrics, "read_ceiling_pct"));
    json_object_set_new(f->effective, "above_ceiling", json_boolean(share > 100));
    kvl_set_text(f->effective, "reference", "weights f32, kv f32, compute f32, paged, flash");
    set_quality(f->metrics, t);
    f->samples = samples_of(&t->summary);
    kvl_trial_saturated(&t->model->config, times, f->samples);
    if (times->nonfinite) {
        f->outcome = "mismatch";
        snprintf(f->reason, sizeof f->reason, "logits of %lld tokens are not finite",
                 (long long)times->nonfinite);
    }
}

static kvl_status measure(trial *t, kvl_findings *f) {
    int32_t *ids = NULL;
    kvl_quality_pass *pass = &t->pass;
    KVL_TRY(kvl_trial_prompts(t->model, &t->spec, &ids));
    uint64_t start = kvl_now_ns();
    kvl_status status = load_measured(t, &pass->measured);
    t->load_s += (double)(kvl_now_ns() - start) * 1e-9;
    if (status == KVL_OK)
        status = kvl_quality_reference(t->model, t->spec.prompt, t->chunk, &pass->reference);
    pass->ids = ids;
    pass->n_tokens = t->spec.prompt;
    pass->chunk = t->chunk;
    pass->tokens = malloc((size_t)t->spec.prompt * sizeof *pass->tokens);
    if (status == KVL_OK && !pass->tokens) status = kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status == KVL_OK) status = kvl_quality_pass_run(pass);
    if (status == KVL_OK)
        status = kvl_quality_summarise(pass->tokens, t->spec.prompt - 1, &t->summary);
    if (status == KVL_OK) report(t, f);
    free(ids);
    return status;
}

static kvl_status run(trial *t, const char *digest, kvl_findings *f) {
    uint64_t start = kvl_now_ns();
    KVL_TRY(kvl_threads_set((int)t->spec.threads, 1));
    KVL_TRY(kvl_model_open(t->spec.model, t->spec.seed, &t->model));
    t->load_s = (double)(kvl_now_ns() - start) * 1e-9;
    if (digest && strcmp(t->model->digest, digest) != 0) {
        f->outcome = "mismatch";
        snprintf(f->reason, sizeof f->reason, "model file changed during the sweep");
        return KVL_OK;
    }
    KVL_TRY(verify(t, f));
    return f->outcome ? KVL_OK : measure(t, f);
}

kvl_status kvl_quality_trial_run(const json_t *spec, json_t **answer) {
    trial t = {0};
    kvl_findings f = {0};
    *answer = NULL;
    KVL_TRY(parse(spec, &t));
    kvl_status status = run(&t, json_string_value(json_object_get(spec, "model_digest")), &f);
    kvl_engine_destroy(t.pass.measured);
    kvl_engine_destroy(t.pass.reference);
    kvl_trial_times_free(&t.pass.times);
    free(t.pass.tokens);
    kvl_model_close(t.model);
    return kvl_findings_answer(&f, status, answer);
}
