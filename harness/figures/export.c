#define _GNU_SOURCE
#include "harness/figures/export.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/names.h"
#include "harness/figures/dictionary.h"
#include "harness/figures/group.h"
#include "harness/figures/stats.h"
#include "harness/sweep/axis.h"

/* A column: where its value lies in a row. */
typedef struct column {
    const char *header; /* "effective.isa" */
    const char *object; /* "effective", NULL for a member of the row itself */
    const char *member; /* "isa" */
} column;

typedef struct columns {
    column *items;
    size_t n, capacity;
    json_t *texts; /* owner of headers that are built here */
} columns;

static const char *const row_columns[] = {"run",     "trial",  "round", "workload",
                                          "outcome", "reason", "seed"};
static const char *const more_columns[] = {"schema", "repro"};

void kvl_csv_field(kvl_buffer *out, const char *text) {
    if (!strpbrk(text, ",\"\r\n")) {
        kvl_buffer_text(out, text);
        return;
    }
    kvl_buffer_text(out, "\"");
    for (; *text; text++) {
        if (*text == '"') kvl_buffer_text(out, "\"");
        kvl_buffer_add(out, text, 1);
    }
    kvl_buffer_text(out, "\"");
}

static kvl_status add_column(columns *list, const char *object, const char *member, bool prefixed) {
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        column *grown = realloc(list->items, capacity * sizeof *grown);
        if (!grown) return kvl_fail(KVL_ERR_OOM, "out of memory");
        list->items = grown;
        list->capacity = capacity;
    }
    json_t *header = prefixed ? json_sprintf("%s.%s", object, member) : json_sprintf("%s", member);
    if (!header || json_array_append_new(list->texts, header) != 0)
        return kvl_fail(KVL_ERR_OOM, "out of memory");
    list->items[list->n++] = (column){json_string_value(header), object, member};
    return KVL_OK;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Members of `object` that occur in any row, by name, without those in the dictionary (they have
 * their place already). */
static kvl_status add_found(columns *list, const json_t *rows, const char *object, bool prefixed) {
    json_t *found = json_object();
    size_t i;
    json_t *row, *value;
    const char *name;
    json_array_foreach((json_t *)rows, i, row) {
        json_object_foreach(json_object_get(row, object), name, value) {
            bool placed = !prefixed && kvl_name_find(name);
            if (!placed) json_object_set_new(found, name, json_true());
        }
    }
    size_t n = 0;
    const char **names = calloc(json_object_size(found) + 1, sizeof *names);
    json_object_foreach(found, name, value) {
        if (names) names[n++] = name;
    }
    if (names) qsort(names, n, sizeof *names, by_text);
    kvl_status status = names ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    for (i = 0; status == KVL_OK && i < n; i++) {
        json_t *text = json_string(names[i]);
        json_array_append_new(list->texts, text);
        status = add_column(list, object, json_string_value(text), prefixed);
    }
    free(names);
    json_decref(found);
    return status;
}

static kvl_status all_columns(columns *list, const json_t *rows) {
    for (size_t i = 0; i < sizeof row_columns / sizeof *row_columns; i++)
        KVL_TRY(add_column(list, NULL, row_columns[i], false));
    KVL_TRY(add_column(list, "axes", "system", false));
    for (int i = 0; i < KVL_N_AXES; i++)
        KVL_TRY(add_column(list, "axes", kvl_axis_of((kvl_axis_id)i)->name, false));
    KVL_TRY(add_found(list, rows, "axes", false));
    for (size_t i = 0; i < kvl_metric_count(); i++)
        KVL_TRY(add_column(list, "metrics", kvl_metric_at(i)->name, false));
    KVL_TRY(add_found(list, rows, "metrics", false));
    return add_found(list, rows, "effective", true);
}

/* Narrows `all` to the names asked for, in that order. */
static kvl_status choose_columns(columns *all, const char *text) {
    column *chosen = calloc(strlen(text) + 1, sizeof *chosen);
    const char **names = calloc(all->n + 1, sizeof *names);
    size_t n = 0;
    kvl_status status = chosen && names ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    for (size_t i = 0; names && i < all->n; i++) names[i] = all->items[i].header;
    for (const char *part = text; status == KVL_OK; part += strcspn(part, ",") + 1) {
        char name[128];
        size_t length = strcspn(part, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, part);
        int index = kvl_names_find(name, names, all->n);
        if (index < 0) {
            const char *near = kvl_names_nearest(name, names, all->n);
            status = kvl_fail(KVL_ERR_INPUT, "--columns: unknown column '%s'%s%s%s", name,
                              near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
        } else {
            chosen[n++] = all->items[index];
        }
        if (part[length] == '\0') break;
    }
    free(names);
    if (status != KVL_OK) {
        free(chosen);
        return status;
    }
    free(all->items);
    all->items = chosen;
    all->n = n;
    return KVL_OK;
}

static const json_t *value_of(const json_t *row, const column *column) {
    const json_t *object = column->object ? json_object_get(row, column->object) : row;
    return json_object_get(object, column->member);
}

static void add_value(kvl_buffer *out, const json_t *value) {
    if (json_is_string(value)) {
        kvl_csv_field(out, json_string_value(value));
    } else if (json_is_integer(value)) {
        kvl_buffer_printf(out, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        kvl_buffer_printf(out, "%.9g", json_real_value(value));
    } else if (json_is_boolean(value)) {
        kvl_buffer_text(out, json_is_true(value) ? "true" : "false");
    } else if (value && !json_is_null(value)) {
        char *text = json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9));
        kvl_csv_field(out, text ? text : "");
        free(text);
    }
}

static bool is_metric(const column *column) {
    return column->object && strcmp(column->object, "metrics") == 0;
}

static void add_header(kvl_buffer *out, const columns *list, const kvl_export_options *options) {
    for (size_t i = 0; i < list->n; i++) {
        const column *c = &list->items[i];
        kvl_buffer_text(out, i ? "," : "");
        bool counts = options->median && !c->object && strcmp(c->member, "round") == 0;
        kvl_csv_field(out, counts ? "rounds" : c->header);
        if (options->median && options->interval && is_metric(c))
            kvl_buffer_printf(out, ",%s_lo,%s_hi", c->header, c->header);
    }
    kvl_buffer_text(out, "\n");
}

static void add_number(kvl_buffer *out, double value) {
    if (isfinite(value)) kvl_buffer_printf(out, "%.9g", value);
}

static void add_medians(kvl_buffer *out, const kvl_group *group, const char *metric, bool interval,
                        double *values) {
    size_t n = kvl_group_metric(group, metric, values);
    double lo = NAN, hi = NAN;
    add_number(out, kvl_quantile(values, n, 0.5));
    if (!interval) return;
    if (n) kvl_median_interval(values, n, &lo, &hi);
    kvl_buffer_text(out, ",");
    add_number(out, lo);
    kvl_buffer_text(out, ",");
    add_number(out, hi);
}

/* One line for a trial. What is no metric comes from its first ok row. */
static kvl_status add_group(kvl_buffer *out, const columns *list, const kvl_group *group,
                            bool interval) {
    const json_t *row = group->rows[0];
    size_t n_ok = 0;
    double *values = calloc(group->n_rows + 1, sizeof *values);
    if (!values) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (size_t i = group->n_rows; i-- > 0;) {
        if (!kvl_row_is_ok(group->rows[i])) continue;
        row = group->rows[i];
        n_ok++;
    }
    for (size_t i = 0; i < list->n; i++) {
        const column *c = &list->items[i];
        kvl_buffer_text(out, i ? "," : "");
        if (is_metric(c))
            add_medians(out, group, c->member, interval, values);
        else if (!c->object && strcmp(c->member, "round") == 0)
            kvl_buffer_printf(out, "%zu", n_ok);
        else
            add_value(out, value_of(row, c));
    }
    kvl_buffer_text(out, "\n");
    free(values);
    return KVL_OK;
}

static kvl_status add_trials(kvl_buffer *out, const columns *list, const json_t *rows,
                             bool interval) {
    kvl_groups groups;
    KVL_TRY(kvl_groups_make(rows, &groups));
    kvl_status status = KVL_OK;
    for (size_t i = 0; status == KVL_OK && i < groups.n; i++)
        status = add_group(out, list, &groups.items[i], interval);
    kvl_groups_free(&groups);
    return status;
}

static void add_rows(kvl_buffer *out, const columns *list, const json_t *rows) {
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row) {
        for (size_t c = 0; c < list->n; c++) {
            kvl_buffer_text(out, c ? "," : "");
            add_value(out, value_of(row, &list->items[c]));
        }
        kvl_buffer_text(out, "\n");
    }
}

static kvl_status make_columns(columns *list, const json_t *rows, const char *wanted) {
    KVL_TRY(all_columns(list, rows));
    if (!wanted) return KVL_OK;
    for (size_t i = 0; i < sizeof more_columns / sizeof *more_columns; i++)
        KVL_TRY(add_column(list, NULL, more_columns[i], false));
    KVL_TRY(add_found(list, rows, "env", true));
    KVL_TRY(add_found(list, rows, "ceilings", true));
    return choose_columns(list, wanted);
}

kvl_status kvl_export_csv(const json_t *rows, const kvl_export_options *options, kvl_buffer *out) {
    columns list = {.texts = json_array()};
    kvl_status status = list.texts ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status == KVL_OK) status = make_columns(&list, rows, options->columns);
    if (status == KVL_OK) {
        add_header(out, &list, options);
        if (options->median)
            status = add_trials(out, &list, rows, options->interval);
        else
            add_rows(out, &list, rows);
    }
    free(list.items);
    json_decref(list.texts);
    if (status == KVL_OK && out->failed) status = kvl_fail(KVL_ERR_OOM, "out of memory");
    return status;
}
