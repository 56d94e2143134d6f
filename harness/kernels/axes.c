#include "harness/kernels/axes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "harness/figures/stats.h"
#include "harness/trial/ceiling.h"
#include "harness/trial/env.h"

kvl_status kvl_spec_text(const json_t *axes, const char *name, const char **out) {
    *out = json_string_value(json_object_get(axes, name));
    return *out ? KVL_OK : kvl_fail(KVL_ERR_INPUT, "trial spec: axes.%s is not a text", name);
}

kvl_status kvl_spec_number(const json_t *axes, const char *name, int64_t min, int64_t max,
                           int64_t *out) {
    const json_t *value = json_object_get(axes, name);
    *out = json_integer_value(value);
    if (!json_is_integer(value) || *out < min || *out > max)
        return kvl_fail(KVL_ERR_INPUT,
                        "trial spec: axes.%s is not a whole number from %lld to %lld", name,
                        (long long)min, (long long)max);
    return KVL_OK;
}

kvl_status kvl_spec_dtype(const json_t *axes, const char *name, kvl_dtype *out) {
    const char *text;
    KVL_TRY(kvl_spec_text(axes, name, &text));
    return kvl_dtype_parse(text, out);
}

kvl_status kvl_spec_choice(const json_t *axes, const char *name, const char *first,
                           const char *second, bool *out) {
    const char *text;
    KVL_TRY(kvl_spec_text(axes, name, &text));
    *out = strcmp(text, second) == 0;
    if (*out || strcmp(text, first) == 0) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "trial spec: axes.%s '%.60s': %s or %s", name, text, first,
                    second);
}

kvl_status kvl_cold_copies(uint64_t bytes, int64_t max_copies, int64_t *out) {
    uint64_t enough = kvl_ceiling_class(UINT64_MAX);
    uint64_t n = bytes ? (enough - 1) / bytes + 1 : UINT64_MAX;
    if (n > (uint64_t)max_copies)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "cache cold: %llu bytes a call are too few: %lld copies of them stay below "
                        "the %llu MiB that get past the cache; cache warm measures them",
                        (unsigned long long)bytes, (long long)max_copies,
                        (unsigned long long)(enough >> 20));
    *out = (int64_t)n;
    return KVL_OK;
}

kvl_status kvl_memory_suffices(uint64_t bytes) {
    uint64_t available = kvl_memory_available();
    if (!available || bytes <= available / 10 * 9) return KVL_OK;
    return kvl_fail(KVL_ERR_UNSUPPORTED, "needs %.1f GiB of memory, %.1f GiB are free",
                    (double)bytes / (1 << 30), (double)available / (1 << 30));
}

void kvl_set_number(json_t *object, const char *name, double value) {
    json_object_set_new(object, name, isfinite(value) ? json_real(value) : json_null());
}

void kvl_set_count(json_t *object, const char *name, uint64_t value) {
    json_object_set_new(object, name, json_integer((json_int_t)value));
}

void kvl_set_text(json_t *object, const char *name, const char *text) {
    json_object_set_new(object, name, json_string(text));
}

static double median(const kvl_timings *timings) {
    double *copy = malloc((timings->n + 1) * sizeof *copy);
    if (!copy) return NAN;
    memcpy(copy, timings->ns, timings->n * sizeof *copy);
    double value = kvl_quantile(copy, timings->n, 0.5);
    free(copy);
    return value;
}

void kvl_report_times(kvl_findings *f, const kvl_timings *timings, const kvl_work *work,
                      const json_t *ceilings, kvl_dtype compute) {
    double ns = median(timings);
    double read = json_number_value(json_object_get(ceilings, "read_bytes_per_s"));
    double flops = json_number_value(
        json_object_get(ceilings, compute == KVL_BF16 ? "bf16_flops_per_s" : "f32_flops_per_s"));
    double read_ns = read > 0 ? work->read_bytes / read * 1e9 : NAN;
    double flops_ns = flops > 0 ? work->flops / flops * 1e9 : NAN;
    double predicted_ns = read_ns > flops_ns ? read_ns : flops_ns;
    if (isnan(read_ns)) predicted_ns = NAN;
    kvl_set_number(f->metrics, "time_us", ns * 1e-3);
    kvl_set_number(f->metrics, "read_gb_s", work->read_bytes / ns);
    kvl_set_number(f->metrics, "gflop_s", work->flops / ns);
    kvl_set_number(f->metrics, "read_ceiling_pct", 100 * read_ns / ns);
    kvl_set_number(f->metrics, "flops_ceiling_pct", 100 * flops_ns / ns);
    kvl_set_number(f->metrics, "predicted_us", predicted_ns * 1e-3);
    kvl_set_number(f->metrics, "roofline_pct", 100 * predicted_ns / ns);
    kvl_set_count(f->metrics, "work_read_bytes", (uint64_t)work->read_bytes);
    kvl_set_count(f->metrics, "work_write_bytes", (uint64_t)work->write_bytes);
    kvl_set_count(f->metrics, "work_flops", (uint64_t)work->flops);
    kvl_set_count(f->metrics, "calls", timings->n);
    kvl_set_count(f->metrics, "warmup_calls", timings->n_warmup);
    kvl_set_number(f->metrics, "warmup_ms", timings->warmup_ns * 1e-6);
    kvl_set_count(f->metrics, "rss_peak_bytes", kvl_rss_peak_bytes());
    json_object_set_new(f->effective, "above_ceiling",
                        json_boolean(predicted_ns > ns)); /* false where it is not known */
    json_t *samples = json_array();
    for (size_t i = 0; i < timings->n; i++)
        json_array_append_new(samples, json_real(timings->ns[i] * 1e-3));
    json_object_set_new(f->samples, "time_us", samples);
}

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

kvl_status kvl_findings_answer(kvl_findings *f, kvl_status status, json_t **answer) {
    if (status != KVL_OK) {
        f->outcome = outcome_of(status);
        snprintf(f->reason, sizeof f->reason, "%.600s", kvl_message());
    }
    bool timed = !f->outcome;
    json_t *object = json_object();
    json_object_set_new(object, "outcome", json_string(timed ? "ok" : f->outcome));
    json_object_set_new(object, "reason", json_string(f->reason));
    json_object_set_new(object, "effective", f->effective ? f->effective : json_object());
    json_object_set_new(object, "metrics", f->metrics ? f->metrics : json_object());
    json_object_set_new(object, "samples", f->samples ? f->samples : json_object());
    *f = (kvl_findings){0};
    *answer = object;
    return object ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
}
