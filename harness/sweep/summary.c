#include "harness/sweep/summary.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "harness/figures/group.h"

enum { CELL = KVL_AXIS_TEXT_BYTES };

typedef struct columns {
    const char *names[KVL_N_AXES];
    int widths[KVL_N_AXES];
    int n;
} columns;

/* Axes with more than one value, and how wide they print. */
static void find_columns(const kvl_groups *groups, columns *out) {
    char first[CELL], text[CELL];
    out->n = 0;
    for (int a = 0; a < KVL_N_AXES; a++) {
        const char *name = kvl_axis_of((kvl_axis_id)a)->name;
        bool varies = false;
        int width = (int)strlen(name);
        kvl_row_axis_text(groups->items[0].rows[0], name, first, sizeof first);
        for (size_t i = 0; i < groups->n; i++) {
            kvl_row_axis_text(groups->items[i].rows[0], name, text, sizeof text);
            varies = varies || strcmp(first, text) != 0;
            if ((int)strlen(text) > width) width = (int)strlen(text);
        }
        if (!varies) continue;
        out->names[out->n] = name;
        out->widths[out->n++] = width;
    }
}

static bool is_share(const kvl_summary_column *column) {
    size_t n = strlen(column->metric);
    return n > 4 && strcmp(column->metric + n - 4, "_pct") == 0;
}

static int width_of(const kvl_summary_column *column) {
    int n = (int)strlen(column->title);
    return n < 9 ? 9 : n;
}

/* A figure above its ceiling is marked. */
static void print_cell(FILE *out, const kvl_summary_column *column, double value, bool last) {
    char text[CELL] = "-";
    if (isfinite(value))
        snprintf(text, sizeof text, "%.*f%s",
                 value < 1      ? 3
                 : value < 10   ? 2
                 : value < 1000 ? 1
                                : 0,
                 value, is_share(column) && value > 100 ? "!" : "");
    if (value != 0 && fabs(value) < 0.01) snprintf(text, sizeof text, "%.2e", value);
    fprintf(out, "%*s%s", width_of(column), text, last ? "\n" : "  ");
}

static void print_trial(FILE *out, const kvl_workload_kind *kind, const columns *columns,
                        const kvl_group *group) {
    char text[CELL];
    for (int c = 0; c < columns->n; c++) {
        kvl_row_axis_text(group->rows[0], columns->names[c], text, sizeof text);
        fprintf(out, "%-*s  ", columns->widths[c], text);
    }
    const char *outcome = kvl_group_outcome(group);
    if (strcmp(outcome, "ok") != 0) {
        const char *reason = json_string_value(json_object_get(group->rows[0], "reason"));
        fprintf(out, "%s: %.120s\n", outcome, reason ? reason : "");
        return;
    }
    for (size_t c = 0; c < kind->n_columns; c++)
        print_cell(out, &kind->columns[c], kvl_group_median(group, kind->columns[c].metric),
                   c + 1 == kind->n_columns);
}

kvl_status kvl_summary_print(FILE *out, const kvl_workload_kind *kind, const json_t *rows) {
    kvl_groups groups = {0};
    columns columns = {0};
    KVL_TRY(kvl_groups_make(rows, &groups));
    if (groups.n) {
        kvl_groups_sort(&groups);
        find_columns(&groups, &columns);
        for (int c = 0; c < columns.n; c++)
            fprintf(out, "%-*s  ", columns.widths[c], columns.names[c]);
        for (size_t c = 0; c < kind->n_columns; c++)
            fprintf(out, "%*s%s", width_of(&kind->columns[c]), kind->columns[c].title,
                    c + 1 == kind->n_columns ? "\n" : "  ");
    }
    for (size_t i = 0; i < groups.n; i++) print_trial(out, kind, &columns, &groups.items[i]);
    kvl_groups_free(&groups);
    return KVL_OK;
}
