#include "harness/figures/figure_axes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/sweep/axis.h"

enum { TEXT = 128 };

/* Kernels and formats first: they are what is compared. The last are no axes of a sweep, but rows
 * that differ in them must not be mixed either. */
static const char *const axes[] = {"attention",
                                   "kv_dtype",
                                   "kv_scale",
                                   "allocator",
                                   "weights",
                                   "compute_dtype",
                                   "batch",
                                   "page_tokens",
                                   "threads",
                                   "isa",
                                   "device",
                                   "model",
                                   "prompt",
                                   "output",
                                   "context",
                                   "shape",
                                   "heads",
                                   "head_dim",
                                   "window",
                                   "softcap",
                                   "causal",
                                   "cache",
                                   "reserve",
                                   "map_kib",
                                   "prefix_cache",
                                   "share",
                                   "pool_tokens",
                                   "max_model_len",
                                   "max_seqs",
                                   "operations",
                                   "arrival",
                                   "trace",
                                   "memory_utilization",
                                   "max_batched_tokens",
                                   "schedule",
                                   "chunked_prefill",
                                   "preempt",
                                   "queue_limit",
                                   "retry",
                                   "kernel",
                                   "system",
                                   "work",
                                   "workload",
                                   "chunk",
                                   "seed",
                                   "deterministic",
                                   "text",
                                   "host",
                                   "build"};

size_t kvl_figure_axis_count(void) {
    return sizeof axes / sizeof *axes;
}

const char *kvl_figure_axis_at(size_t index) {
    return axes[index];
}

bool kvl_figure_axis_is_numeric(const char *name) {
    kvl_axis_id id = kvl_axis_find(name);
    return id < KVL_N_AXES && kvl_axis_of(id)->numeric;
}

static void value_text(const json_t *value, char *out, size_t out_bytes) {
    if (json_is_string(value))
        snprintf(out, out_bytes, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(out, out_bytes, "%lld", (long long)json_integer_value(value));
    else
        snprintf(out, out_bytes, "%s",
                 json_is_true(value)    ? "true"
                 : json_is_false(value) ? "false"
                                        : "");
}

void kvl_figure_axis_text(const kvl_group *group, const char *name, char *out, size_t out_bytes) {
    static const struct {
        const char *name, *object, *member;
    } others[] = {{"chunk", "effective", "chunk_tokens"},
                  {"deterministic", "effective", "deterministic"},
                  {"text", "effective", "text"},
                  {"host", "env", "host"},
                  {"model_digest", "effective", "model_digest"},
                  {"build", "env", "build"}};
    const json_t *row = group->rows[0];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(others[i].name, name) != 0) continue;
        value_text(json_object_get(json_object_get(row, others[i].object), others[i].member), out,
                   out_bytes);
        return;
    }
    if (strcmp(name, "seed") == 0 || strcmp(name, "workload") == 0)
        value_text(json_object_get(row, name), out, out_bytes);
    else
        kvl_row_axis_text(row, name, out, out_bytes);
}

void kvl_figure_phrase(const kvl_group *group, const char *name, char *out, size_t out_bytes) {
    static const struct {
        const char *name, *word;
    } words[] = {{"kv_dtype", "KV "},         {"kv_scale", "scale "},
                 {"weights", "weights "},     {"compute_dtype", "compute "},
                 {"page_tokens", "page "},    {"chunk", "chunk "},
                 {"map_kib", "map KiB "},     {"prefix_cache", "prefix cache "},
                 {"seed", "seed "},           {"deterministic", "deterministic "},
                 {"text", "text "},           {"host", "host "},
                 {"model_digest", "digest "}, {"build", "build "}};
    char text[TEXT];
    const char *word = "", *space = "";
    kvl_figure_axis_text(group, name, text, sizeof text);
    if (kvl_figure_axis_is_numeric(name)) word = name, space = " ";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i].name, name) == 0) word = words[i].word, space = "";
    }
    out[0] = '\0';
    if (!text[0]) return; /* rows of another workload lack some axes */
    if (strcmp(name, "build") == 0 || strcmp(name, "host") == 0 ||
        strcmp(name, "model_digest") == 0)
        text[6] = '\0';
    const char *slash =
        strcmp(name, "model") == 0 || strcmp(name, "trace") == 0 ? strrchr(text, '/') : NULL;
    snprintf(out, out_bytes, "%s%s%s", word, space, slash && slash[1] ? slash + 1 : text);
}

static int by_number(const void *a, const void *b) {
    double x = strtod(*(char *const *)a, NULL), y = strtod(*(char *const *)b, NULL);
    return (x > y) - (x < y);
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

kvl_status kvl_figure_values(const kvl_group *const *groups, size_t n, const char *name,
                             char ***values, int *n_values) {
    char text[TEXT];
    *n_values = 0;
    *values = calloc(n + 1, sizeof **values);
    if (!*values) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        bool known = false;
        kvl_figure_axis_text(groups[i], name, text, sizeof text);
        for (int v = 0; v < *n_values && !known; v++) known = strcmp((*values)[v], text) == 0;
        if (known) continue;
        (*values)[*n_values] = strdup(text);
        if (!(*values)[*n_values]) return kvl_fail(KVL_ERR_OOM, "out of memory");
        ++*n_values;
    }
    qsort(*values, (size_t)*n_values, sizeof **values,
          kvl_figure_axis_is_numeric(name) ? by_number : by_text);
    return KVL_OK;
}

void kvl_figure_values_free(char **values, int n_values) {
    for (int i = 0; values && i < n_values; i++) free(values[i]);
    free(values);
}

static bool is_same(const kvl_group *a, const kvl_group *b, const char *name) {
    char x[TEXT], y[TEXT];
    kvl_figure_axis_text(a, name, x, sizeof x);
    kvl_figure_axis_text(b, name, y, sizeof y);
    return strcmp(x, y) == 0;
}

const char *kvl_figure_axis_owner(const char *name) {
    static const char *const of_allocator[] = {"page_tokens", "reserve", "map_kib", "prefix_cache"};
    for (size_t i = 0; i < sizeof of_allocator / sizeof *of_allocator; i++) {
        if (strcmp(name, of_allocator[i]) == 0) return "allocator";
    }
    if (strcmp(name, "model_digest") == 0) return "model";
    return NULL;
}

bool kvl_figure_differs(const kvl_group *const *groups, size_t n, const char *name) {
    const char *owner = kvl_figure_axis_owner(name);
    for (size_t i = 0; i + 1 < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            bool comparable = !owner || is_same(groups[i], groups[j], owner);
            if (comparable && !is_same(groups[i], groups[j], name)) return true;
        }
        if (!owner) break; /* all equal the first */
    }
    return false;
}
