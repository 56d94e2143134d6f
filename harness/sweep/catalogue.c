/* What the registries know, for the axes of an experiment: allowed names, defaults, models. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "allocators/allocator.h"
#include "attention/attention.h"
#include "core/device.h"
#include "core/file.h"
#include "core/isa.h"
#include "core/threads.h"
#include "decoder/engine.h"
#include "decoder/model.h"
#include "harness/sweep/experiment.h"
#include "harness/traces/trace.h"
#include "quant/kv_format.h"
#include "quant/linear.h"

enum { MAX_NAMES = 64 };

static const char *allocator_name(size_t i) {
    return kvl_allocator_at(i)->name;
}
static const char *attention_name(size_t i) {
    return kvl_attention_at(i)->name;
}
static size_t kv_scale_count(void) {
    return KVL_N_SCALES;
}
static const char *kv_scale_name(size_t i) {
    return kvl_kv_scale_name((kvl_kv_scale)i);
}
static const char *weights_name(size_t i) {
    return kvl_weight_format_at(i)->name;
}
static const char *device_name(size_t i) {
    return kvl_device_at(i)->name;
}
static const char *isa_name(size_t i) {
    return kvl_isa_name((kvl_isa)i);
}
static size_t isa_count(void) {
    return KVL_N_ISAS;
}
static const char *compute_name(size_t i) {
    return i ? "bf16" : "f32";
}
static size_t compute_count(void) {
    return 2;
}

typedef struct registry {
    size_t (*count)(void);
    const char *(*name)(size_t index);
} registry;

static const registry registries[KVL_N_AXES] = {
    [KVL_AXIS_ALLOCATOR] = {kvl_allocator_count, allocator_name},
    [KVL_AXIS_ATTENTION] = {kvl_attention_count, attention_name},
    [KVL_AXIS_KV_SCALE] = {kv_scale_count, kv_scale_name},
    [KVL_AXIS_WEIGHTS] = {kvl_weight_format_count, weights_name},
    [KVL_AXIS_COMPUTE_DTYPE] = {compute_count, compute_name},
    [KVL_AXIS_ISA] = {isa_count, isa_name},
    [KVL_AXIS_DEVICE] = {kvl_device_count, device_name},
};

static kvl_status parse_axis(kvl_experiment *experiment, kvl_axis_id id, const char *text) {
    const char *names[MAX_NAMES];
    const registry *from = &registries[id];
    const kvl_axis_use *use = kvl_workload_use(experiment->workload.kind, id);
    kvl_axis axis = *kvl_axis_of(id);
    size_t n = 0;
    if (use->option) axis.option = use->option;
    if (use->grammar) axis.grammar = use->grammar;
    if (use->names) {
        for (; use->names[n]; n++) names[n] = use->names[n];
    } else {
        n = from->count ? from->count() : 0;
        if (n > MAX_NAMES) n = MAX_NAMES;
        for (size_t i = 0; i < n; i++) names[i] = from->name(i);
    }
    return kvl_axis_parse(&axis, text, n ? names : NULL, n, &experiment->axes[id]);
}

kvl_status kvl_experiment_parse_axis(const kvl_workload_kind *kind, kvl_axis_id id,
                                     const char *text, kvl_axis_values *out) {
    kvl_experiment experiment = {.workload.kind = kind};
    kvl_status status = parse_axis(&experiment, id, text);
    *out = experiment.axes[id];
    return status;
}

/* An axis that plays no part: the single value 0, which no option can ask for. */
static kvl_status set_absent(kvl_experiment *experiment, kvl_axis_id id) {
    kvl_axis_values *values = &experiment->axes[id];
    values->numbers = calloc(1, sizeof *values->numbers);
    values->n = 1;
    return values->numbers ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
}

static kvl_status default_axis(kvl_experiment *experiment, kvl_axis_id id) {
    const char *fallback = kvl_workload_use(experiment->workload.kind, id)->fallback;
    kvl_engine_options defaults = kvl_engine_defaults();
    char number[24];
    if (fallback) return parse_axis(experiment, id, fallback);
    switch (id) {
    case KVL_AXIS_MODEL:
        return kvl_fail(KVL_ERR_INPUT, "--model is needed: a GGUF file, a Hugging Face directory, "
                                       "or synthetic:NAME (kvlab info models)");
    case KVL_AXIS_TRACE:
        return kvl_fail(KVL_ERR_INPUT, "--trace is needed: a CSV or JSONL file of requests (see "
                                       "--help for the formats)");
    case KVL_AXIS_ALLOCATOR:
        return parse_axis(experiment, id, defaults.allocator);
    case KVL_AXIS_ATTENTION:
        return parse_axis(experiment, id, defaults.attention);
    case KVL_AXIS_KV_DTYPE:
        return parse_axis(experiment, id, defaults.kv_dtype);
    case KVL_AXIS_KV_SCALE:
        return parse_axis(experiment, id, "auto");
    case KVL_AXIS_WEIGHTS:
        return parse_axis(experiment, id, defaults.weights);
    case KVL_AXIS_COMPUTE_DTYPE:
        return parse_axis(experiment, id, defaults.compute_dtype);
    case KVL_AXIS_DEVICE:
        return parse_axis(experiment, id, defaults.device);
    case KVL_AXIS_ISA:
        return parse_axis(experiment, id, kvl_isa_name(kvl_isa_current()));
    case KVL_AXIS_PROMPT:
        if (experiment->axes[KVL_AXIS_CONTEXT].n) return set_absent(experiment, id);
        return parse_axis(experiment, id, "512");
    case KVL_AXIS_CONTEXT:
        return set_absent(experiment, id);
    case KVL_AXIS_THREADS:
        snprintf(number, sizeof number, "%d", kvl_physical_cores());
        return parse_axis(experiment, id, number);
    default:
        snprintf(number, sizeof number, "%lld", (long long)defaults.page_tokens);
        return parse_axis(experiment, id, number);
    }
}

static kvl_status read_text(kvl_workload *workload, kvl_file *file) {
    KVL_TRY(kvl_file_open(workload->text, file));
    snprintf(workload->text_digest, sizeof workload->text_digest, "%016llx",
             (unsigned long long)XXH64(file->data, file->bytes, 0));
    return KVL_OK;
}

static kvl_status text_tokens(const kvl_model *model, const char *spec, const kvl_file *text,
                              kvl_model_facts *facts) {
    facts->text_tokens = -1;
    if (!text->path) return KVL_OK;
    if (!model->tokenizer)
        return kvl_fail(KVL_ERR_INPUT, "--text %s: model %s has no tokenizer (%s)", text->path,
                        spec, model->tokenizer_why ? model->tokenizer_why : "none in its files");
    kvl_status status = kvl_tokenizer_encode(model->tokenizer, (const char *)text->data,
                                             text->bytes, false, NULL, 0, &facts->text_tokens);
    return status == KVL_OK ? KVL_OK : kvl_fail_prefix(status, "--text %s", text->path);
}

static void digest_kv_scales(const kvl_kv_scales *s, char out[17]) {
    const size_t bytes = (size_t)s->n_layers * (size_t)s->n_kv_heads * sizeof(float);
    snprintf(out, 17, "%016llx",
             (unsigned long long)XXH64(s->v_absmax, bytes, XXH64(s->k_absmax, bytes, s->per_head)));
}

static kvl_status model_facts(const char *spec, uint64_t seed, const kvl_file *text,
                              kvl_model_facts *facts) {
    kvl_model *model = NULL;
    KVL_TRY(kvl_model_open(spec, seed, &model));
    const kvl_config *config = &model->config;
    memcpy(facts->digest, model->digest, sizeof facts->digest);
    if (model->kv_scales) digest_kv_scales(model->kv_scales, facts->kv_scales_digest);
    facts->max_position = config->max_position;
    facts->parameters = kvl_config_parameters(config);
    if (!config->tie_embeddings)
        facts->embedding_parameters = (uint64_t)config->vocab_size * (uint64_t)config->hidden_size;
    facts->kv_values_per_token = kvl_config_kv_bytes_per_token(config, 1);
    kvl_status status = text_tokens(model, spec, text, facts);
    kvl_model_close(model);
    return status;
}

static kvl_status init_models(kvl_experiment *experiment) {
    const kvl_axis_values *models = &experiment->axes[KVL_AXIS_MODEL];
    experiment->models = calloc(models->n, sizeof *experiment->models);
    if (!experiment->models) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_file text = {0};
    kvl_status status = KVL_OK;
    if (experiment->workload.text) status = read_text(&experiment->workload, &text);
    for (size_t i = 0; status == KVL_OK && i < models->n; i++)
        status =
            model_facts(models->names[i], experiment->workload.seed, &text, &experiment->models[i]);
    if (text.path) kvl_file_close(&text);
    return status;
}

static kvl_status init_traces(kvl_experiment *experiment) {
    const kvl_axis_values *traces = &experiment->axes[KVL_AXIS_TRACE];
    const json_t *extra = experiment->workload.extra;
    const kvl_trace_options options = {
        .skip_zero = json_is_true(json_object_get(extra, "skip_zero")),
        .max_requests = json_integer_value(json_object_get(extra, "requests"))};
    experiment->traces = calloc(traces->n, sizeof *experiment->traces);
    if (!experiment->traces) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (size_t i = 0; i < traces->n; i++) {
        kvl_trace trace;
        kvl_trace_facts *facts = &experiment->traces[i];
        KVL_TRY(kvl_trace_read(traces->names[i], &options, &trace));
        memcpy(facts->digest, trace.digest, sizeof facts->digest);
        facts->longest = trace.longest;
        facts->shares = trace.n_blocks > 0;
        kvl_trace_free(&trace);
    }
    return KVL_OK;
}

kvl_status kvl_experiment_init(kvl_experiment *experiment, const kvl_workload *workload,
                               const char *const texts[KVL_N_AXES]) {
    memset(experiment, 0, sizeof *experiment);
    experiment->workload = *workload;
    const kvl_workload_kind *kind = workload->kind;
    kvl_status status = kind->check ? kind->check(texts) : KVL_OK;
    for (size_t i = 0; status == KVL_OK && i < kind->n_axes; i++) {
        kvl_axis_id id = kind->axes[i].id;
        if (texts[id]) status = parse_axis(experiment, id, texts[id]);
    }
    for (size_t i = 0; status == KVL_OK && i < kind->n_axes; i++) {
        if (!texts[kind->axes[i].id]) status = default_axis(experiment, kind->axes[i].id);
    }
    if (status == KVL_OK && kvl_workload_use(kind, KVL_AXIS_MODEL))
        status = init_models(experiment);
    if (status == KVL_OK && kvl_workload_use(kind, KVL_AXIS_TRACE))
        status = init_traces(experiment);
    if (status != KVL_OK) kvl_experiment_free(experiment);
    return status;
}

void kvl_experiment_refuse(const kvl_experiment *experiment, kvl_trial *trial) {
    (void)experiment;
    char *why = trial->refused;
    size_t bytes = sizeof trial->refused;
    kvl_isa isa;
    const kvl_device *device;
    if (!kvl_workload_use(trial->kind, KVL_AXIS_ISA)) return; /* nothing runs on a device */
    if (kvl_isa_parse(trial->names[KVL_AXIS_ISA], &isa) == KVL_OK && !kvl_isa_has(isa))
        snprintf(why, bytes, "isa %s: this CPU does not have it", trial->names[KVL_AXIS_ISA]);
    else if (kvl_device_find(trial->names[KVL_AXIS_DEVICE], &device) == KVL_OK) {
        char reason[160] = "";
        if (!device->available(reason, sizeof reason))
            snprintf(why, bytes, "device %s: %s", device->name, reason);
    }
}
