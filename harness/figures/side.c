#define _GNU_SOURCE
#include "harness/figures/side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "harness/figures/figure.h"
#include "harness/figures/figure_axes.h"

void kvl_side_label(const kvl_group *const *groups, size_t n, size_t at, char *out) {
    size_t used = 0;
    out[0] = '\0';
    for (size_t a = 0; a < kvl_figure_axis_count(); a++) {
        char phrase[128];
        const char *name = kvl_figure_axis_at(a);
        if (!kvl_figure_differs(groups, n, name)) continue;
        kvl_figure_phrase(groups[at], name, phrase, sizeof phrase);
        if (!phrase[0] || strcmp(phrase, "none") == 0 ||
            used + strlen(phrase) + 3 > KVL_SIDE_LABEL_BYTES)
            continue;
        used += (size_t)snprintf(out + used, KVL_SIDE_LABEL_BYTES - used, "%s%s", used ? ", " : "",
                                 phrase);
    }
    if (!used) kvl_row_axis_text(groups[at]->rows[0], "allocator", out, KVL_SIDE_LABEL_BYTES);
}

static const char *named_file(const kvl_group *group, const char *what) {
    for (size_t i = 0; i < group->n_rows; i++) {
        const json_t *effective = json_object_get(group->rows[i], "effective");
        const char *path = json_string_value(json_object_get(effective, what));
        if (path && kvl_row_is_ok(group->rows[i])) return path;
    }
    return NULL;
}

/* As named, or in the folder of that name beside the rows: a run may have been moved. */
static void find_file(const char *named, const char *rows_path, char *out, size_t bytes) {
    const char *slash = strrchr(rows_path, '/'), *tail = strrchr(named, '/');
    snprintf(out, bytes, "%s", named);
    if (access(named, R_OK) == 0 || !tail) return;
    while (tail > named && tail[-1] != '/') tail--; /* folder/file */
    snprintf(out, bytes, "%.*s/%s", slash ? (int)(slash - rows_path) : 1, slash ? rows_path : ".",
             tail);
}

/* Puts the panel's number before each line; the header comes once. */
static kvl_status add_file(kvl_side *side, const char *path) {
    kvl_file file;
    KVL_TRY(kvl_file_open(path, &file));
    const char *at = (const char *)file.data, *end = at + file.bytes;
    for (bool first = true; at < end; first = false) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = newline ? (size_t)(newline - at) : (size_t)(end - at);
        if (first && side->n_panels == 0) kvl_buffer_text(&side->csv, "panel_id,");
        if (!first) kvl_buffer_printf(&side->csv, "%d,", side->n_panels + 1);
        if (!first || side->n_panels == 0) {
            kvl_buffer_add(&side->csv, at, length);
            kvl_buffer_text(&side->csv, "\n");
        }
        at += length + 1;
    }
    kvl_file_close(&file);
    side->n_panels++;
    return side->csv.failed ? kvl_fail(KVL_ERR_OOM, "out of memory") : KVL_OK;
}

static void add_insight(kvl_side *side, const kvl_group *group, int panel) {
    size_t used = strlen(side->insight);
    double live = kvl_group_median(group, "slots_live_pct");
    snprintf(side->insight + used, sizeof side->insight - used,
             "%s%s: %.1f %% of slots hold tokens", used ? "; " : "", side->labels[panel], live);
}

static kvl_status add_trials(kvl_side *side, const kvl_group **chosen, size_t n,
                             const char *rows_path) {
    size_t n_with = 0;
    for (size_t i = 0; i < n; i++) {
        if (named_file(chosen[i], side->what)) chosen[n_with++] = chosen[i];
    }
    if (n_with == 0)
        return kvl_fail(KVL_ERR_INPUT,
                        "no trial that ended ok has a %s file: run with --series DIR%s", side->what,
                        strcmp(side->what, "map") == 0 ? " and a limited pool (--pool-tokens)"
                                                       : "");
    if (n_with > KVL_SIDE_MAX_PANELS)
        return kvl_fail(KVL_ERR_INPUT, "%zu trials: at most %d panels (choose with --where)",
                        n_with, KVL_SIDE_MAX_PANELS);
    for (size_t i = 0; i < n_with; i++) {
        char path[4096];
        kvl_side_label(chosen, n_with, i, side->labels[i]);
        find_file(named_file(chosen[i], side->what), rows_path, path, sizeof path);
        KVL_TRY(add_file(side, path));
        add_insight(side, chosen[i], (int)i);
    }
    return KVL_OK;
}

kvl_status kvl_side_make(const kvl_groups *groups, const char *what, const char *where,
                         const char *rows_path, kvl_side *out) {
    const kvl_group **chosen;
    size_t n;
    *out = (kvl_side){.what = what};
    KVL_TRY(kvl_figure_select(groups, where, &chosen, &n));
    kvl_status status = add_trials(out, chosen, n, rows_path);
    free(chosen);
    if (status != KVL_OK) kvl_side_free(out);
    return status;
}

void kvl_side_free(kvl_side *side) {
    kvl_buffer_free(&side->csv);
}
