/* kvlab info [models] [--json]: what this machine and this build have. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "allocators/allocator.h"
#include "attention/attention.h"
#include "core/device.h"
#include "core/isa.h"
#include "core/memory.h"
#include "core/threads.h"
#include "decoder/model.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "quant/kv_format.h"
#include "quant/linear.h"

/* The whole answer is one JSON value; the text form is printed from it, so the two cannot differ.
 */
static json_t *describe_isas(void) {
    json_t *isas = json_array();
    for (int i = 0; i < KVL_N_ISAS; i++)
        json_array_append_new(isas, json_pack("{s:s, s:b}", "name", kvl_isa_name((kvl_isa)i),
                                              "available", kvl_isa_has((kvl_isa)i)));
    return isas;
}

static json_t *describe_devices(void) {
    json_t *devices = json_array();
    for (size_t i = 0; i < kvl_device_count(); i++) {
        const kvl_device *device = kvl_device_at(i);
        char why[256] = "";
        bool available = device->available(why, sizeof why);
        json_array_append_new(devices,
                              json_pack("{s:s, s:b, s:s, s:s}", "name", device->name, "available",
                                        available, "summary", device->summary, "why", why));
    }
    json_array_append_new(devices,
                          json_pack("{s:s, s:b, s:s, s:s}", "name", "cuda", "available", 0,
                                    "summary", "NVIDIA GPUs", "why", "not part of this build"));
    return devices;
}

static void add_module(json_t *list, const char *name, const char *summary) {
    json_array_append_new(list, json_pack("{s:s, s:s}", "name", name, "summary", summary));
}

static json_t *describe_modules(void) {
    json_t *allocators = json_array(), *attention = json_array(), *kv = json_array(),
           *weights = json_array();
    for (size_t i = 0; i < kvl_allocator_count(); i++)
        add_module(allocators, kvl_allocator_at(i)->name, kvl_allocator_at(i)->summary);
    for (size_t i = 0; i < kvl_attention_count(); i++)
        add_module(attention, kvl_attention_at(i)->name, kvl_attention_at(i)->summary);
    for (size_t i = 0; i < kvl_kv_format_count(); i++) {
        const kvl_kv_format *format = kvl_kv_format_at(i);
        char summary[96];
        snprintf(summary, sizeof summary, "%zu byte%s an element, largest value %g",
                 kvl_dtype_bytes(format->dtype), kvl_dtype_bytes(format->dtype) > 1 ? "s" : "",
                 (double)format->max_finite);
        add_module(kv, format->name, summary);
    }
    for (size_t i = 0; i < kvl_weight_format_count(); i++)
        add_module(weights, kvl_weight_format_at(i)->name, kvl_weight_format_at(i)->summary);
    return json_pack("{s:o, s:o, s:o, s:o}", "allocators", allocators, "attention", attention,
                     "kv_formats", kv, "weight_formats", weights);
}

static json_t *describe_models(void) {
    json_t *models = json_array();
    for (size_t i = 0; i < kvl_synthetic_count(); i++) {
        kvl_config config;
        char name[160];
        if (kvl_synthetic_config(kvl_synthetic_at(i), &config) != KVL_OK) continue;
        snprintf(name, sizeof name, "synthetic:%s", kvl_synthetic_at(i));
        json_array_append_new(
            models,
            json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:I}", "name", name,
                      "n_layers", config.n_layers, "hidden_size", config.hidden_size, "n_q_heads",
                      config.n_q_heads, "n_kv_heads", config.n_kv_heads, "head_dim",
                      config.head_dim, "vocab_size", config.vocab_size, "max_position",
                      config.max_position, "parameters_billion",
                      (double)kvl_config_parameters(&config) / 1e9, "kv_bytes_per_token_bf16",
                      (json_int_t)kvl_config_kv_bytes_per_token(&config, 2)));
    }
    return models;
}

static json_t *describe(void) {
    struct utsname kernel = {0};
    uname(&kernel);
    double memory_gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30);
    return json_pack(
        "{s:i, s:s, s:s, s:i, s:f, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "schema_version", 1,
        "version", KVL_VERSION, "cpu", kvl_cpu_model(), "physical_cores", kvl_physical_cores(),
        "memory_gib", memory_gib, "kernel", kernel.release, "compiler", KVL_COMPILER, "isa",
        kvl_isa_name(kvl_isa_current()), "isas", describe_isas(), "devices", describe_devices(),
        "modules", describe_modules(), "models", describe_models());
}

static const char *text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static void print_list(const char *title, const json_t *list) {
    size_t i;
    const json_t *entry;
    printf("%s\n", title);
    json_array_foreach(list, i, entry) {
        const json_t *available = json_object_get(entry, "available");
        const char *why = text_of(entry, "why"), *summary = text_of(entry, "summary");
        printf("  %-14s %s", text_of(entry, "name"), summary ? summary : "");
        if (json_is_false(available)) printf(": not here (%s)", why && *why ? why : "unknown");
        putchar('\n');
    }
}

static void print_models(const json_t *models) {
    size_t i;
    const json_t *m;
    printf("models without a file (real shapes, seeded weights)\n  %-26s %6s %6s %6s %6s %6s %8s "
           "%9s %10s\n",
           "name", "layers", "hidden", "heads", "kv", "dim", "params", "context", "KV B/token");
    json_array_foreach(models, i, m) {
#define N(key) json_integer_value(json_object_get(m, key))
        printf("  %-26s %6lld %6lld %6lld %6lld %6lld %7.2fB %9lld %10lld\n", text_of(m, "name"),
               (long long)N("n_layers"), (long long)N("hidden_size"), (long long)N("n_q_heads"),
               (long long)N("n_kv_heads"), (long long)N("head_dim"),
               json_real_value(json_object_get(m, "parameters_billion")),
               (long long)N("max_position"), (long long)N("kv_bytes_per_token_bf16"));
#undef N
    }
}

static void print_text(const json_t *info) {
    size_t i;
    const json_t *isa, *modules = json_object_get(info, "modules");
    printf("kvlab %s (%s)\n%s, %lld physical cores, %.1f GiB, Linux %s\n", text_of(info, "version"),
           text_of(info, "compiler"), text_of(info, "cpu"),
           (long long)json_integer_value(json_object_get(info, "physical_cores")),
           json_real_value(json_object_get(info, "memory_gib")), text_of(info, "kernel"));
    printf("instruction sets");
    json_array_foreach(json_object_get(info, "isas"), i, isa)
        printf(" %s%s", text_of(isa, "name"),
               json_is_true(json_object_get(isa, "available")) ? "" : " (not here)");
    printf("; kernels use %s\n", text_of(info, "isa"));
    print_list("devices", json_object_get(info, "devices"));
    print_list("allocators", json_object_get(modules, "allocators"));
    print_list("attention", json_object_get(modules, "attention"));
    print_list("KV formats", json_object_get(modules, "kv_formats"));
    print_list("weight formats", json_object_get(modules, "weight_formats"));
    print_models(json_object_get(info, "models"));
}

typedef struct values {
    bool json;
} values;

static const kvl_option options[] = {
    {"json", KVL_OPT_FLAG, offsetof(values, json), NULL, "the same as one JSON object", 0, 0},
};

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {0};
    const char *topic = NULL;
    int n_topics;
    bool help_shown;
    kvl_status status = kvl_options_parse(self, argc, argv, &v, &topic, 1, &n_topics, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (status == KVL_OK && topic && strcmp(topic, "models") != 0)
        status = kvl_fail(KVL_ERR_INPUT, "info '%.40s': the only topic is 'models'", topic);
    if (status != KVL_OK) return kvl_exit_report(status);
    json_t *info = describe();
    if (!info) return kvl_exit_report(kvl_fail(KVL_ERR_OOM, "out of memory"));
    const json_t *models = json_object_get(info, "models");
    if (v.json) {
        json_dumpf(topic ? models : info, stdout, JSON_INDENT(1));
        putchar('\n');
    } else if (topic) {
        print_models(models);
    } else {
        print_text(info);
    }
    json_decref(info);
    return kvl_exit_flush(KVL_EXIT_OK);
}

const kvl_command kvl_command_info = {
    "info",
    "CPU, instruction sets, devices (and why one is missing), modules, models",
    "[models] [--json]",
    NULL,
    options,
    1,
    run};
