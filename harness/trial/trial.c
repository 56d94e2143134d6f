#include "harness/trial/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/clock.h"
#include "core/threads.h"

static kvl_status take_text(const json_t *object, const char *name, const char **out) {
    *out = json_string_value(json_object_get(object, name));
    return *out ? KVL_OK : kvl_fail(KVL_ERR_INPUT, "trial spec: axes.%s is not a text", name);
}

/* What only some allocators take; left out, or none, 0 and off where it plays no part. */
static kvl_status take_allocator(const json_t *axes, kvl_trial_spec_values *out) {
    const json_t *reserve = json_object_get(axes, "reserve"),
                 *map = json_object_get(axes, "map_kib"),
                 *prefix = json_object_get(axes, "prefix_cache");
    const char *cached = prefix ? json_string_value(prefix) : "off";
    out->reserve = json_string_value(reserve);
    if (reserve && !out->reserve)
        return kvl_fail(KVL_ERR_INPUT, "trial spec: axes.reserve is not a text");
    if (reserve && strcmp(out->reserve, "none") == 0) out->reserve = NULL;
    if (map && (!json_is_integer(map) || json_integer_value(map) < 0 ||
                json_integer_value(map) > INT32_MAX))
        return kvl_fail(KVL_ERR_INPUT,
                        "trial spec: map_kib is not a whole number from 0 to 2^31 - 1");
    out->map_bytes = json_integer_value(map) * 1024;
    out->prefix_cache = cached && strcmp(cached, "on") == 0;
    if (!cached || (!out->prefix_cache && strcmp(cached, "off") != 0))
        return kvl_fail(KVL_ERR_INPUT, "trial spec: axes.prefix_cache is not on or off");
    return KVL_OK;
}

static kvl_status take_number(const json_t *object, const char *name, int64_t min, int64_t *out) {
    const json_t *value = json_object_get(object, name);
    *out = json_integer_value(value);
    if (!json_is_integer(value) || *out < min || *out > INT32_MAX)
        return kvl_fail(KVL_ERR_INPUT, "trial spec: %s is not a whole number from %lld to 2^31 - 1",
                        name, (long long)min);
    return KVL_OK;
}

kvl_status kvl_trial_spec_parse(const json_t *spec, kvl_trial_spec_values *out) {
    const json_t *axes = json_object_get(spec, "axes"),
                 *workload = json_object_get(spec, "workload");
    const json_t *ceilings = json_object_get(spec, "ceilings");
    memset(out, 0, sizeof *out);
    KVL_TRY(take_text(axes, "model", &out->model));
    KVL_TRY(take_text(axes, "allocator", &out->allocator));
    KVL_TRY(take_text(axes, "attention", &out->attention));
    KVL_TRY(take_text(axes, "kv_dtype", &out->kv_dtype));
    out->kv_scale = json_string_value(json_object_get(axes, "kv_scale")); /* NULL: auto */
    KVL_TRY(take_allocator(axes, out));
    KVL_TRY(take_text(axes, "weights", &out->weights));
    KVL_TRY(take_text(axes, "compute_dtype", &out->compute_dtype));
    KVL_TRY(take_text(axes, "device", &out->device));
    KVL_TRY(take_number(axes, "prompt", 0, &out->prompt));
    KVL_TRY(take_number(axes, "context", 0, &out->context));
    KVL_TRY(take_number(axes, "output", 1, &out->output));
    KVL_TRY(take_number(axes, "batch", 1, &out->batch));
    KVL_TRY(take_number(axes, "page_tokens", 0, &out->page_tokens));
    KVL_TRY(take_number(axes, "threads", 1, &out->threads));
    KVL_TRY(take_number(workload, "chunk", 0, &out->chunk));
    if ((out->prompt == 0) == (out->context == 0))
        return kvl_fail(KVL_ERR_INPUT, "trial spec: one of prompt and context must be 0");
    out->seed = (uint64_t)json_integer_value(json_object_get(workload, "seed"));
    out->text = json_string_value(json_object_get(workload, "text"));
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

/* What a trial found out, on the way to its answer. */
typedef struct findings {
    const char *outcome;
    char reason[640];
    kvl_verify_result verified;
    json_t *effective, *metrics, *samples;
} findings;

static const char *outcome_of(kvl_status status) {
    switch (status) {
    case KVL_OK:
        return "ok";
    case KVL_ERR_OOM:
        return "oom";
    case KVL_ERR_INPUT:
    case KVL_ERR_UNSUPPORTED:
        return "unsupported";
    default:
        return "crash";
    }
}

/* Nothing is timed before it is right: the attention kernel against the oracle, with the trial's
 * heads, dtypes, page size and window. */
static kvl_status verify(const kvl_model *model, const kvl_trial_spec_values *spec, findings *f) {
    KVL_TRY(kvl_trial_verify(&model->config, spec, &f->verified));
    if (f->verified.state == KVL_VERIFY_FAIL) {
        f->outcome = "mismatch";
        snprintf(f->reason, sizeof f->reason, "%s: %s (max abs %.3g, bound %.3g)", f->verified.id,
                 f->verified.reason, f->verified.max_abs, f->verified.bound);
    }
    return KVL_OK;
}

/* The longest sequence of the trial, which `max` sets aside; with `pow2` the longest slab is
 * longer.
 */
static int64_t longest_slab(const kvl_model *model, const kvl_trial_spec_values *spec) {
    int64_t start = spec->prompt + spec->context, output = spec->output;
    if (spec->reserve && strcmp(spec->reserve, "pow2") == 0)
        while (output & (output - 1)) output += output & -output;
    const int64_t most = model->config.max_position, asked = start + spec->output;
    if (start + output <= most) return start + output;
    return asked < most ? most : asked; /* the engine refuses what is too long */
}

/* With a prefix cache each sequence may hold a copy of a page that stays in the cache beside it
 * (what was found ends inside it): room for both, or passes would push it out and find less. */
static kvl_status prefix_pool(const kvl_trial_spec_values *spec, kvl_engine_options *options) {
    const int64_t page = options->page_tokens;
    int64_t pages = (options->max_seq_tokens + page - 1) / page + 1;
    if (kvl_mul_i64(pages, page, &options->pool_tokens) &&
        kvl_mul_i64(options->pool_tokens, spec->batch, &options->pool_tokens))
        return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "batch %lld x %lld tokens: the pool overflows 64 bits",
                    (long long)spec->batch, (long long)options->max_seq_tokens);
}

static kvl_status load(const kvl_model *model, const kvl_trial_spec_values *spec,
                       kvl_engine **engine) {
    kvl_engine_options options = kvl_trial_engine_options(spec);
    options.populate = true;
    options.max_seqs = (int32_t)spec->batch;
    options.max_seq_tokens = longest_slab(model, spec);
    if (spec->prefix_cache) KVL_TRY(prefix_pool(spec, &options));
    if (spec->chunk) options.max_batch_tokens = (int32_t)spec->chunk;
    return kvl_engine_create(model, &options, NULL, NULL, engine);
}

static kvl_status measure(const kvl_model *model, kvl_engine *engine,
                          const kvl_trial_spec_values *spec, double load_s, findings *f) {
    int32_t *prompts = NULL;
    kvl_trial_times times = {0};
    KVL_TRY(kvl_trial_prompts(model, spec, &prompts));
    kvl_status status = kvl_trial_measure(engine, spec, prompts, &times);
    if (status == KVL_OK) {
        f->effective = kvl_trial_effective(engine, model, spec, &times, &f->verified);
        f->metrics = kvl_trial_metrics(engine, spec, &times, load_s);
        f->samples = kvl_trial_samples(&model->config, &times);
        double share = json_number_value(json_object_get(f->metrics, "read_ceiling_pct"));
        json_object_set_new(f->effective, "above_ceiling", json_boolean(share > 100));
    }
    if (status == KVL_OK && times.nonfinite) {
        f->outcome = "mismatch";
        snprintf(f->reason, sizeof f->reason, "%lld logits are not finite",
                 (long long)times.nonfinite);
    }
    kvl_trial_times_free(&times);
    free(prompts);
    return status;
}

/* The row's digest is what the sweep saw when it began; the file may be another one by now. */
static void compare_digest(const kvl_model *model, const char *expected, findings *f) {
    if (!expected || strcmp(model->digest, expected) == 0) return;
    f->outcome = "mismatch";
    snprintf(f->reason, sizeof f->reason, "model file changed during the sweep");
}

/* `digest`: of the model as the sweep knows it, or NULL. */
static kvl_status run_trial(const kvl_trial_spec_values *spec, const char *digest, findings *f) {
    kvl_model *model = NULL;
    kvl_engine *engine = NULL;
    uint64_t start = kvl_now_ns();
    KVL_TRY(kvl_threads_set((int)spec->threads, 1));
    KVL_TRY(kvl_model_open(spec->model, spec->seed, &model));
    double open_s = (double)(kvl_now_ns() - start) * 1e-9;
    compare_digest(model, digest, f);
    kvl_status status = f->outcome ? KVL_OK : verify(model, spec, f);
    if (status == KVL_OK && !f->outcome) {
        start = kvl_now_ns();
        status = load(model, spec, &engine);
        double load_s = open_s + (double)(kvl_now_ns() - start) * 1e-9;
        if (status == KVL_OK) status = measure(model, engine, spec, load_s, f);
    }
    kvl_engine_destroy(engine);
    kvl_model_close(model);
    return status;
}

kvl_status kvl_trial_run(const json_t *spec, json_t **answer) {
    kvl_trial_spec_values values;
    findings f = {0};
    *answer = NULL;
    KVL_TRY(kvl_trial_spec_parse(spec, &values));
    kvl_status status =
        run_trial(&values, json_string_value(json_object_get(spec, "model_digest")), &f);
    if (status != KVL_OK) {
        f.outcome = outcome_of(status);
        snprintf(f.reason, sizeof f.reason, "%.600s", kvl_message());
    }
    json_t *object = json_object();
    json_object_set_new(object, "outcome", json_string(f.outcome ? f.outcome : "ok"));
    json_object_set_new(object, "reason", json_string(f.reason));
    json_object_set_new(object, "effective", f.effective ? f.effective : json_object());
    json_object_set_new(object, "metrics", f.metrics ? f.metrics : json_object());
    json_object_set_new(object, "samples", f.samples ? f.samples : json_object());
    *answer = object;
    return object ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
}
