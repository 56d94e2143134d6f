#define _GNU_SOURCE
#include "harness/sweep/experiment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/buffer.h"
#include "core/checked.h"
#include "harness/sweep/row.h"
#include "harness/trial/env.h"

enum { MAX_POINTS = 100000 };

void kvl_experiment_free(kvl_experiment *experiment) {
    for (int i = 0; i < KVL_N_AXES; i++) kvl_axis_values_free(&experiment->axes[i]);
    free(experiment->models);
    free(experiment->traces);
    experiment->models = NULL;
    experiment->traces = NULL;
}

json_t *kvl_trial_axes(const kvl_trial *trial) {
    json_t *axes = json_object();
    if (!axes) return NULL;
    json_object_set_new(axes, "system", json_string("kvlab"));
    for (size_t i = 0; i < trial->kind->n_axes; i++) {
        kvl_axis_id id = trial->kind->axes[i].id;
        const kvl_axis *axis = kvl_axis_of(id);
        json_object_set_new(axes, axis->name,
                            axis->numeric ? json_integer(trial->numbers[id])
                                          : json_string(trial->names[id]));
    }
    return axes;
}

static json_t *workload_json(const kvl_workload *workload) {
    json_t *object = json_object();
    if (!object) return NULL;
    json_object_set_new(object, "name", json_string(workload->kind->name));
    json_object_set_new(object, "seed", json_integer((json_int_t)workload->seed));
    json_object_set_new(object, "chunk", json_integer(workload->chunk));
    json_object_set_new(object, "deterministic", json_boolean(workload->deterministic));
    json_object_set_new(object, "text",
                        workload->text ? json_string(workload->text_digest) : json_null());
    /* Only where they were given: keys of trials without them stay what they were. */
    if (workload->nf4_block)
        json_object_set_new(object, "nf4_block", json_integer(workload->nf4_block));
    if (workload->nf4_skip)
        json_object_set_new(object, "nf4_skip", json_string(workload->nf4_skip));
    if (workload->allow_nonfinite) json_object_set_new(object, "allow_nonfinite", json_true());
    if (workload->extra) json_object_update(object, (json_t *)workload->extra);
    return object;
}

/* Calibrated scales can be made anew beside the same model. */
static bool has_static_scales(const kvl_trial *trial) {
    const char *scale = trial->names[KVL_AXIS_KV_SCALE];
    return trial->model && trial->model->kv_scales_digest[0] && scale &&
           (strcmp(scale, "tensor") == 0 || strcmp(scale, "head") == 0);
}

json_t *kvl_trial_canonical(const kvl_workload *workload, const kvl_trial *trial,
                            const char *build_id) {
    char host[17];
    json_t *axes = kvl_trial_axes(trial), *all = json_object();
    if (axes) json_object_del(axes, "model");
    if (axes && trial->trace) json_object_del(axes, "trace");
    kvl_host_id(host);
    json_object_set_new(all, "workload", workload_json(workload));
    json_object_set_new(all, "axes", axes);
    if (trial->model) json_object_set_new(all, "model_digest", json_string(trial->model->digest));
    if (has_static_scales(trial))
        json_object_set_new(all, "kv_scales_digest", json_string(trial->model->kv_scales_digest));
    if (trial->trace) json_object_set_new(all, "trace_digest", json_string(trial->trace->digest));
    json_object_set_new(all, "schema", json_integer(KVL_ROW_SCHEMA));
    json_object_set_new(all, "build", json_string(build_id));
    json_object_set_new(all, "host", json_string(host));
    return all;
}

static kvl_status set_key(const kvl_workload *workload, const char *build_id, kvl_trial *trial) {
    json_t *all = kvl_trial_canonical(workload, trial, build_id);
    char *text = all ? json_dumps(all, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(all);
    if (!text) return kvl_fail(KVL_ERR_OOM, "out of memory");
    snprintf(trial->key, sizeof trial->key, "%016llx",
             (unsigned long long)XXH64(text, strlen(text), 0));
    free(text);
    return KVL_OK;
}

static void point_at(const kvl_experiment *experiment, size_t index, kvl_trial *trial) {
    memset(trial, 0, sizeof *trial);
    trial->kind = experiment->workload.kind;
    for (size_t i = trial->kind->n_axes; i-- > 0;) {
        kvl_axis_id id = trial->kind->axes[i].id;
        const kvl_axis_values *values = &experiment->axes[id];
        size_t at = index % values->n;
        index /= values->n;
        if (values->names) trial->names[id] = values->names[at];
        if (values->numbers) trial->numbers[id] = values->numbers[at];
        if (id == KVL_AXIS_MODEL) trial->model = &experiment->models[at];
        if (id == KVL_AXIS_TRACE) trial->trace = &experiment->traces[at];
    }
}

typedef struct seen_key {
    char key[17];
    size_t index;
} seen_key;

static int by_key(const void *a, const void *b) {
    const seen_key *x = a, *y = b;
    int order = strcmp(x->key, y->key);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* Keeps the first trial of each key, in order. */
static kvl_status drop_duplicates(kvl_trials *trials) {
    seen_key *keys = calloc(trials->n + 1, sizeof *keys);
    bool *drop = calloc(trials->n + 1, sizeof *drop);
    if (!keys || !drop) {
        free(keys);
        free(drop);
        return kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    for (size_t i = 0; i < trials->n; i++) {
        memcpy(keys[i].key, trials->items[i].key, sizeof keys[i].key);
        keys[i].index = i;
    }
    qsort(keys, trials->n, sizeof *keys, by_key);
    for (size_t i = 1; i < trials->n; i++)
        drop[keys[i].index] = strcmp(keys[i].key, keys[i - 1].key) == 0;
    size_t kept = 0;
    for (size_t i = 0; i < trials->n; i++) {
        if (!drop[i]) trials->items[kept++] = trials->items[i];
    }
    trials->n_duplicates = trials->n - kept;
    trials->n = kept;
    free(keys);
    free(drop);
    return KVL_OK;
}

kvl_status kvl_experiment_expand(const kvl_experiment *experiment,
                                 void (*refuse)(const kvl_experiment *experiment, kvl_trial *trial),
                                 const char *build_id, kvl_trials *out) {
    memset(out, 0, sizeof *out);
    const kvl_workload_kind *kind = experiment->workload.kind;
    int64_t n_points = 1;
    for (size_t i = 0; i < kind->n_axes; i++) {
        int64_t n_values = (int64_t)experiment->axes[kind->axes[i].id].n;
        if (!kvl_mul_i64(n_points, n_values, &n_points) || n_points > MAX_POINTS)
            return kvl_fail(KVL_ERR_INPUT, "the axes multiply to more than %d points", MAX_POINTS);
    }
    out->items = calloc((size_t)n_points + 1, sizeof *out->items);
    if (!out->items) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_status status = KVL_OK;
    for (; status == KVL_OK && out->n < (size_t)n_points; out->n++) {
        kvl_trial *trial = &out->items[out->n];
        point_at(experiment, out->n, trial);
        if (kind->normalise) kind->normalise(trial);
        status = set_key(&experiment->workload, build_id, trial);
    }
    if (status == KVL_OK) status = drop_duplicates(out);
    for (size_t i = 0; status == KVL_OK && i < out->n; i++) {
        kvl_trial *trial = &out->items[i];
        if (kind->refuse) kind->refuse(experiment, trial);
        if (!trial->refused[0] && refuse) refuse(experiment, trial);
        out->n_refused += trial->refused[0] != '\0';
    }
    if (status != KVL_OK) kvl_trials_free(out);
    return status;
}

void kvl_trials_free(kvl_trials *trials) {
    free(trials->items);
    memset(trials, 0, sizeof *trials);
}

/* Single quotes where a shell would read more than the text itself. */
static void add_quoted(kvl_buffer *out, const char *text) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./:=,+@%";
    if (*text && strspn(text, plain) == strlen(text)) {
        kvl_buffer_text(out, text);
        return;
    }
    kvl_buffer_text(out, "'");
    for (; *text; text++) {
        if (*text == '\'')
            kvl_buffer_text(out, "'\\''");
        else
            kvl_buffer_add(out, text, 1);
    }
    kvl_buffer_text(out, "'");
}

/* Absolute, so that the line works from any folder; as given for what is no file (synthetic). */
static void add_path(kvl_buffer *out, const char *path) {
    char *full = strncmp(path, "synthetic:", 10) == 0 ? NULL : realpath(path, NULL);
    add_quoted(out, full ? full : path);
    free(full);
}

/* --step-ms 30 --skip-zero: names of rows are options with another dash. */
static void add_extra(kvl_buffer *out, const json_t *extra) {
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)extra, name, value) {
        size_t length = strlen(name);
        if (length > 7 && strcmp(name + length - 7, "_digest") == 0) continue; /* of a file */
        kvl_buffer_text(out, " --");
        for (const char *c = name; *c; c++) kvl_buffer_add(out, *c == '_' ? "-" : c, 1);
        if (json_is_integer(value))
            kvl_buffer_printf(out, " %lld", (long long)json_integer_value(value));
        if (json_is_real(value)) kvl_buffer_printf(out, " %.17g", json_real_value(value));
        if (!json_is_string(value)) continue;
        kvl_buffer_text(out, " ");
        add_quoted(out, json_string_value(value));
    }
}

char *kvl_trial_repro(const kvl_workload *workload, const kvl_trial *trial) {
    kvl_buffer out = {0};
    kvl_buffer_printf(&out, "kvlab bench %s",
                      workload->kind->command ? workload->kind->command : workload->kind->name);
    for (size_t i = 0; i < trial->kind->n_axes; i++) {
        const kvl_axis_use *use = &trial->kind->axes[i];
        const kvl_axis *axis = kvl_axis_of(use->id);
        if (axis->numeric && trial->numbers[use->id] == 0) continue; /* plays no part */
        kvl_buffer_printf(&out, " --%s ", use->option ? use->option : axis->option);
        if (axis->numeric)
            kvl_buffer_printf(&out, "%lld", (long long)trial->numbers[use->id]);
        else if (use->id == KVL_AXIS_MODEL || use->id == KVL_AXIS_TRACE)
            add_path(&out, trial->names[use->id]);
        else
            add_quoted(&out, trial->names[use->id]);
    }
    kvl_buffer_printf(&out, " --seed %llu", (unsigned long long)workload->seed);
    if (workload->chunk) kvl_buffer_printf(&out, " --chunk %lld", (long long)workload->chunk);
    if (workload->deterministic) kvl_buffer_text(&out, " --deterministic");
    if (workload->nf4_block)
        kvl_buffer_printf(&out, " --nf4-block %lld", (long long)workload->nf4_block);
    if (workload->nf4_skip) {
        kvl_buffer_text(&out, " --nf4-skip ");
        add_quoted(&out, workload->nf4_skip);
    }
    if (workload->allow_nonfinite) kvl_buffer_text(&out, " --allow-nonfinite");
    if (workload->extra) add_extra(&out, workload->extra);
    if (workload->text) {
        kvl_buffer_text(&out, " --text ");
        add_path(&out, workload->text);
    }
    kvl_buffer_text(&out, " --rounds 1 --out -");
    if (!out.failed) return out.data;
    kvl_buffer_free(&out);
    return NULL;
}

uint64_t kvl_trial_step_bytes(const kvl_trial *trial) {
    return trial->kind->working_set_bytes(trial);
}

const kvl_axis_use *kvl_workload_use(const kvl_workload_kind *kind, kvl_axis_id id) {
    for (size_t i = 0; i < kind->n_axes; i++) {
        if (kind->axes[i].id == id) return &kind->axes[i];
    }
    return NULL;
}
