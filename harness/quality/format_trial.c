#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/isa.h"
#include "core/threads.h"
#include "harness/kernels/axes.h"
#include "harness/quality/format_error.h"
#include "harness/trial/trial.h"

typedef enum data_kind { DATA_NORMAL, DATA_K, DATA_V, DATA_WEIGHTS, N_DATA } data_kind;
static const char *const data_names[N_DATA] = {"normal", "k", "v", "weights"};

typedef struct trial {
    kvl_trial_spec_values spec; /* model NULL: normals */
    data_kind data;
    const kvl_error_format *format;
    int64_t block;
    kvl_model *model;
    kvl_error_sums *layers; /* [n_layers] */
    int32_t n_layers;
} trial;

static kvl_status parse(const json_t *spec, trial *t) {
    const json_t *axes = json_object_get(spec, "axes");
    const json_t *workload = json_object_get(spec, "workload");
    const char *data, *format;
    KVL_TRY(kvl_spec_text(axes, "data", &data));
    for (t->data = 0; t->data < N_DATA && strcmp(data, data_names[t->data]) != 0;) t->data++;
    if (t->data == N_DATA) return kvl_fail(KVL_ERR_INPUT, "trial spec: axes.data '%.60s'", data);
    KVL_TRY(kvl_spec_text(axes, "format", &format));
    KVL_TRY(kvl_error_format_find(format, &t->format));
    KVL_TRY(kvl_spec_number(axes, "block", 0, KVL_NF4_MAX_BLOCK, &t->block));
    KVL_TRY(kvl_spec_number(axes, "threads", 1, INT32_MAX, &t->spec.threads));
    t->spec.seed = (uint64_t)json_integer_value(json_object_get(workload, "seed"));
    t->spec.batch = 1;
    if (t->data == DATA_NORMAL) return KVL_OK;
    KVL_TRY(kvl_spec_text(axes, "model", &t->spec.model));
    if (t->data == DATA_WEIGHTS) return KVL_OK;
    KVL_TRY(kvl_spec_number(axes, "prompt", 1, INT32_MAX, &t->spec.prompt));
    t->spec.text = json_string_value(json_object_get(workload, "text"));
    if (!t->spec.text) return kvl_fail(KVL_ERR_INPUT, "trial spec: workload.text is not a text");
    return KVL_OK;
}

static kvl_status take(void *context, int32_t layer, const float *x, int64_t n) {
    trial *t = context;
    float *y = malloc((size_t)n * sizeof *y + 1);
    if (!y) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_error_sums *sums = &t->layers[layer];
    kvl_status status = kvl_error_round_trip(t->format, t->block, x, n, y, &sums->saturated);
    if (status == KVL_OK) kvl_error_add(sums, x, y, n);
    free(y);
    return status;
}

static kvl_status take_kv(trial *t) {
    int32_t *ids = NULL;
    KVL_TRY(kvl_trial_prompts(t->model, &t->spec, &ids));
    kvl_status status = kvl_error_kv(t->model, ids, t->spec.prompt, t->data == DATA_V, take, t);
    free(ids);
    return status;
}

static kvl_status take_values(trial *t) {
    if (t->data == DATA_NORMAL) return kvl_error_normals(t->spec.seed, take, t);
    if (t->data == DATA_WEIGHTS) return kvl_error_weights(t->model, take, t);
    return take_kv(t);
}

static void report(const trial *t, kvl_findings *f) {
    kvl_error_sums all = {0};
    json_t *nrmse = json_array();
    for (int32_t i = 0; i < t->n_layers; i++) {
        kvl_error_merge(&all, &t->layers[i]);
        double value = kvl_error_nrmse(&t->layers[i]);
        json_array_append_new(nrmse, isfinite(value) ? json_real(value) : json_null());
    }
    double n = (double)all.n, share = kvl_error_nrmse(&all);
    json_t *metrics = f->metrics = json_object();
    kvl_set_number(metrics, "mean_abs_err", all.abs / n);
    kvl_set_number(metrics, "mean_rel_err", all.rel / (double)all.n_nonzero);
    kvl_set_number(metrics, "max_abs_err", all.max_abs);
    kvl_set_number(metrics, "nrmse", share);
    kvl_set_number(metrics, "sqnr_db", -20 * log10(share));
    kvl_set_number(metrics, "bits_per_value", kvl_error_format_bits(t->format, t->block));
    kvl_set_count(metrics, "n_values", (uint64_t)all.n);
    kvl_set_count(metrics, "saturated", (uint64_t)all.saturated);
    f->samples = json_object();
    json_object_set_new(f->samples, "layer_nrmse", nrmse);
    f->effective = json_object();
    kvl_set_text(f->effective, "isa", kvl_isa_name(kvl_isa_current()));
    kvl_set_count(f->effective, "threads", (uint64_t)kvl_threads());
    if (!t->model) return;
    kvl_fail(KVL_OK, "%s", t->model->config.source_weights); /* replaces what JSON cannot hold */
    kvl_set_text(f->effective, "source_weights", kvl_message());
}

static kvl_status run(trial *t, const char *digest, kvl_findings *f) {
    KVL_TRY(kvl_threads_set((int)t->spec.threads, 1));
    t->n_layers = 1;
    if (t->data != DATA_NORMAL) {
        KVL_TRY(kvl_model_open(t->spec.model, t->spec.seed, &t->model));
        if (digest && strcmp(t->model->digest, digest) != 0) {
            f->outcome = "mismatch";
            snprintf(f->reason, sizeof f->reason, "model file changed during the sweep");
            return KVL_OK;
        }
        t->n_layers = t->model->config.n_layers;
    }
    t->layers = calloc((size_t)t->n_layers, sizeof *t->layers);
    if (!t->layers) return kvl_fail(KVL_ERR_OOM, "out of memory");
    KVL_TRY(take_values(t));
    report(t, f);
    return KVL_OK;
}

kvl_status kvl_format_error_trial_run(const json_t *spec, json_t **answer) {
    trial t = {0};
    kvl_findings f = {0};
    *answer = NULL;
    KVL_TRY(parse(spec, &t));
    kvl_status status = run(&t, json_string_value(json_object_get(spec, "model_digest")), &f);
    free(t.layers);
    kvl_model_close(t.model);
    return kvl_findings_answer(&f, status, answer);
}
