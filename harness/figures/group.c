#include "harness/figures/group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/figures/stats.h"
#include "harness/sweep/axis.h"
#include "harness/sweep/row.h"

static const char *text_of(const json_t *row, const char *member) {
    const char *text = json_string_value(json_object_get(row, member));
    return text ? text : "";
}

bool kvl_row_is_ok(const json_t *row) {
    return strcmp(text_of(row, "outcome"), "ok") == 0;
}

static kvl_status add_row(kvl_group *group, const json_t *row) {
    json_int_t round = json_integer_value(json_object_get(row, "round"));
    for (size_t i = 0; i < group->n_rows; i++) {
        if (json_integer_value(json_object_get(group->rows[i], "round")) == round) {
            group->rows[i] = row;
            return KVL_OK;
        }
    }
    if (group->n_rows == group->capacity) {
        size_t capacity = group->capacity ? 2 * group->capacity : 4;
        const json_t **grown = realloc(group->rows, capacity * sizeof *grown);
        if (!grown) return kvl_fail(KVL_ERR_OOM, "out of memory");
        group->rows = grown;
        group->capacity = capacity;
    }
    group->rows[group->n_rows++] = row;
    return KVL_OK;
}

kvl_status kvl_groups_make(const json_t *rows, kvl_groups *out) {
    size_t n = json_array_size(rows);
    json_t *index = json_object(); /* trial -> place in items */
    out->items = calloc(n + 1, sizeof *out->items);
    out->n = 0;
    kvl_status status = index && out->items ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    for (size_t i = 0; status == KVL_OK && i < n; i++) {
        const json_t *row = json_array_get(rows, i);
        const char *trial = text_of(row, "trial");
        const json_t *place = json_object_get(index, trial);
        size_t at = place ? (size_t)json_integer_value(place) : out->n;
        if (!place) {
            out->items[out->n++].trial = trial;
            json_object_set_new(index, trial, json_integer((json_int_t)at));
        }
        status = add_row(&out->items[at], row);
    }
    json_decref(index);
    if (status != KVL_OK) kvl_groups_free(out);
    return status;
}

static int by_axes(const void *a, const void *b) {
    const kvl_group *x = a, *y = b;
    for (int i = 0; i < KVL_N_AXES; i++) {
        const kvl_axis *axis = kvl_axis_of((kvl_axis_id)i);
        const json_t *u = json_object_get(json_object_get(x->rows[0], "axes"), axis->name);
        const json_t *v = json_object_get(json_object_get(y->rows[0], "axes"), axis->name);
        if (axis->numeric) {
            double p = json_number_value(u), q = json_number_value(v);
            if (p != q) return p < q ? -1 : 1;
        } else if (json_is_string(u) && json_is_string(v)) {
            int order = strcmp(json_string_value(u), json_string_value(v));
            if (order) return order;
        }
    }
    return strcmp(x->trial, y->trial);
}

void kvl_groups_sort(kvl_groups *groups) {
    if (groups->n) qsort(groups->items, groups->n, sizeof *groups->items, by_axes);
}

void kvl_groups_free(kvl_groups *groups) {
    for (size_t i = 0; groups->items && i < groups->n; i++) free(groups->items[i].rows);
    free(groups->items);
    memset(groups, 0, sizeof *groups);
}

const char *kvl_group_outcome(const kvl_group *group) {
    for (size_t i = 0; i < group->n_rows; i++) {
        if (kvl_row_is_ok(group->rows[i])) return "ok";
    }
    return text_of(group->rows[0], "outcome");
}

size_t kvl_group_metric(const kvl_group *group, const char *name, double *values) {
    size_t n = 0;
    for (size_t i = 0; i < group->n_rows; i++) {
        const json_t *value = json_object_get(json_object_get(group->rows[i], "metrics"), name);
        if (kvl_row_is_ok(group->rows[i]) && json_is_number(value))
            values[n++] = json_number_value(value);
    }
    return n;
}

double kvl_group_median(const kvl_group *group, const char *name) {
    double *values = malloc((group->n_rows + 1) * sizeof *values);
    if (!values) return NAN;
    double median = kvl_quantile(values, kvl_group_metric(group, name, values), 0.5);
    free(values);
    return median;
}

void kvl_row_axis_text(const json_t *row, const char *name, char *out, size_t out_bytes) {
    const json_t *value = json_object_get(json_object_get(row, "axes"), name);
    if (json_is_string(value))
        snprintf(out, out_bytes, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(out, out_bytes, "%lld", (long long)json_integer_value(value));
    else if (json_is_number(value))
        snprintf(out, out_bytes, "%.9g", json_number_value(value));
    else
        snprintf(out, out_bytes, "%s", "");
}

kvl_status kvl_rows_load_all(const char *const *paths, int n_paths, json_t **rows, int *n_torn) {
    *rows = json_array();
    *n_torn = 0;
    if (!*rows) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_status status = KVL_OK;
    for (int i = 0; status == KVL_OK && i < n_paths; i++) {
        json_t *more = NULL;
        int torn = 0;
        status = kvl_rows_load(paths[i], &more, &torn);
        *n_torn += torn;
        if (status == KVL_OK) json_array_extend(*rows, more);
        json_decref(more);
    }
    return status;
}
