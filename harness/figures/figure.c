#define _GNU_SOURCE
#include "harness/figures/figure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/names.h"
#include "harness/figures/dictionary.h"
#include "harness/figures/figure_axes.h"
#include "harness/figures/stats.h"

enum { TEXT = 128, MAX_NAMES = 256 }; /* names: far above what rows have */

/* The trials a figure is made from: groups that --where leaves. */
typedef struct selection {
    const kvl_group **groups;
    size_t n;
} selection;

static kvl_status check_axis(const char *option, const char *name) {
    const char *names[MAX_NAMES];
    size_t n = kvl_figure_axis_count() < MAX_NAMES ? kvl_figure_axis_count() : MAX_NAMES;
    char line[768];
    for (size_t i = 0; i < n; i++) names[i] = kvl_figure_axis_at(i);
    if (kvl_names_find(name, names, n) >= 0) return KVL_OK;
    kvl_names_unknown(line, sizeof line, "axis", name, names, n);
    return kvl_fail(KVL_ERR_INPUT, "%s: %s", option, line);
}

static kvl_status keep_where(selection *s, const char *part, size_t length) {
    char name[TEXT], text[TEXT];
    const char *equals = memchr(part, '=', length);
    if (!equals)
        return kvl_fail(KVL_ERR_INPUT, "--where '%.*s': axis=value is needed", (int)length, part);
    snprintf(name, sizeof name, "%.*s", (int)(equals - part), part);
    KVL_TRY(check_axis("--where", name));
    size_t kept = 0, n_value = length - (size_t)(equals - part) - 1;
    for (size_t i = 0; i < s->n; i++) {
        kvl_figure_axis_text(s->groups[i], name, text, sizeof text);
        if (strlen(text) == n_value && memcmp(text, equals + 1, n_value) == 0)
            s->groups[kept++] = s->groups[i];
    }
    s->n = kept;
    if (kept == 0)
        return kvl_fail(KVL_ERR_INPUT, "--where %.*s: no trial has it", (int)length, part);
    return KVL_OK;
}

static kvl_status select_groups(const kvl_groups *groups, const char *where, selection *s) {
    s->groups = calloc(groups->n + 1, sizeof *s->groups);
    if (!s->groups) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (size_t i = 0; i < groups->n; i++) s->groups[i] = &groups->items[i];
    s->n = groups->n;
    if (s->n == 0) return kvl_fail(KVL_ERR_INPUT, "no rows to plot");
    for (const char *part = where; part; part += strcspn(part, ",") + 1) {
        size_t length = strcspn(part, ",");
        KVL_TRY(keep_where(s, part, length));
        if (part[length] == '\0') break;
    }
    return KVL_OK;
}

kvl_status kvl_figure_select(const kvl_groups *groups, const char *where, const kvl_group ***chosen,
                             size_t *n) {
    selection s = {0};
    kvl_status status = select_groups(groups, where, &s);
    if (status != KVL_OK) free(s.groups);
    *chosen = status == KVL_OK ? s.groups : NULL;
    *n = status == KVL_OK ? s.n : 0;
    return status;
}

/* The numeric axis with most values; a tie goes to the one that is usually asked about. */
static void default_x(const kvl_group *const *groups, size_t n, char *out, size_t out_bytes) {
    static const char *const order[] = {"prompt",      "context", "batch",     "threads",
                                        "page_tokens", "output",  "operations"};
    int most = 1;
    snprintf(out, out_bytes, "%s", "");
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        char **values;
        int n_values;
        if (kvl_figure_values(groups, n, order[i], &values, &n_values) == KVL_OK &&
            n_values > most && kvl_figure_differs(groups, n, order[i])) {
            most = n_values;
            snprintf(out, out_bytes, "%s", order[i]);
        }
        kvl_figure_values_free(values, n_values);
    }
}

void kvl_figure_default_x(const kvl_groups *groups, char *out, size_t out_bytes) {
    selection s = {0};
    snprintf(out, out_bytes, "%s", "");
    if (select_groups(groups, NULL, &s) == KVL_OK) default_x(s.groups, s.n, out, out_bytes);
    free(s.groups);
}

static kvl_status choose_x(const selection *s, const char *asked, kvl_figure *figure) {
    if (asked) {
        KVL_TRY(check_axis("--x", asked));
        snprintf(figure->x, sizeof figure->x, "%s", asked);
    } else {
        default_x(s->groups, s->n, figure->x, sizeof figure->x);
    }
    /* No numeric axis varies: the first name that does, or the kernel. */
    for (size_t i = 0; !figure->x[0] && i < kvl_figure_axis_count(); i++) {
        const char *name = kvl_figure_axis_at(i);
        if (kvl_figure_differs(s->groups, s->n, name))
            snprintf(figure->x, sizeof figure->x, "%s", name);
    }
    if (!figure->x[0]) snprintf(figure->x, sizeof figure->x, "%s", "attention");
    figure->x_numeric = kvl_figure_axis_is_numeric(figure->x);
    return KVL_OK;
}

static kvl_status add_by(kvl_figure *figure, const char *name, size_t length) {
    if (figure->n_by == KVL_FIGURE_MAX_BY)
        return kvl_fail(KVL_ERR_INPUT, "--by: more than %d axes", KVL_FIGURE_MAX_BY);
    snprintf(figure->by[figure->n_by], sizeof figure->by[0], "%.*s", (int)length, name);
    KVL_TRY(check_axis("--by", figure->by[figure->n_by]));
    if (strcmp(figure->by[figure->n_by], figure->x) != 0) figure->n_by++;
    return KVL_OK;
}

static bool is_named(const kvl_figure *figure, const char *name) {
    bool named = strcmp(figure->x, name) == 0;
    for (int i = 0; i < figure->n_by && !named; i++) named = strcmp(figure->by[i], name) == 0;
    return named;
}

/* Axes in which any trials differ and that are neither x nor in `by`, in the order of preference:
 * even where no two trials meet at one x, a line must not join them. With `keep`, each becomes part
 * of `by`; else they are what makes the figure refuse. */
static kvl_status settle_by(const selection *s, kvl_figure *figure, bool keep) {
    char left[256] = "";
    for (size_t i = 0; i < kvl_figure_axis_count(); i++) {
        const char *name = kvl_figure_axis_at(i);
        if (is_named(figure, name) || !kvl_figure_differs(s->groups, s->n, name)) continue;
        if (keep) KVL_TRY(add_by(figure, name, strlen(name)));
        size_t n = strlen(left);
        snprintf(left + n, sizeof left - n, "%s%s", n ? ", " : "", name);
    }
    if (keep || !left[0]) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT,
                    "trials differ in %s too: name it with --by, or pick a value "
                    "with --where; nothing is averaged",
                    left);
}

static kvl_status choose_by(const selection *s, const char *asked, kvl_figure *figure) {
    for (const char *part = asked; part; part += strcspn(part, ",") + 1) {
        size_t length = strcspn(part, ",");
        KVL_TRY(add_by(figure, part, length));
        if (part[length] == '\0') break;
    }
    return settle_by(s, figure, !asked);
}

/* "flash KV fp8_e4m3", "batch 4": phrases of by[first..last). */
static void label_of(const kvl_figure *figure, const kvl_group *group, int first, int last,
                     const char *separator, char *out, size_t out_bytes) {
    char phrase[TEXT * 2];
    size_t n = 0;
    out[0] = '\0';
    for (int i = first; i < last && n < out_bytes; i++) {
        kvl_figure_phrase(group, figure->by[i], phrase, sizeof phrase);
        if (!phrase[0]) continue;
        int wrote = snprintf(out + n, out_bytes - n, "%s%s", n ? separator : "", phrase);
        n += wrote > 0 ? (size_t)wrote : 0;
    }
}

static int find_or_add(char **labels, int *n, const char *label) {
    for (int i = 0; i < *n; i++) {
        if (strcmp(labels[i], label) == 0) return i;
    }
    labels[*n] = strdup(label);
    return labels[*n] ? (*n)++ : -1;
}

static int count_labels(const selection *s, const kvl_figure *figure, int first, int last) {
    char **labels = calloc(s->n + 1, sizeof *labels), label[TEXT * 2];
    int n = 0;
    for (size_t i = 0; labels && i < s->n; i++) {
        label_of(figure, s->groups[i], first, last, " ", label, sizeof label);
        find_or_add(labels, &n, label);
    }
    kvl_figure_values_free(labels, n);
    return n;
}

/* As many leading axes tell series apart as 6 series allow; the rest become panels. One axis alone
 * may have 8. */
static kvl_status split_by(const selection *s, kvl_figure *figure) {
    enum { COMFORTABLE = 6 };
    int k = 0;
    while (k < figure->n_by &&
           count_labels(s, figure, 0, k + 1) <= (k ? COMFORTABLE : KVL_FIGURE_MAX_SERIES))
        k++;
    figure->n_series_axes = k;
    int n_series = count_labels(s, figure, 0, k);
    int n_panels = count_labels(s, figure, k, figure->n_by);
    if (n_panels > KVL_FIGURE_MAX_PANELS)
        return kvl_fail(KVL_ERR_INPUT,
                        "%d series in %d panels are too many to read: pick values "
                        "with --where axis=value",
                        n_series, n_panels);
    return KVL_OK;
}

static const char *const parts[2][3] = {
    {"attention_share", "matmul_share", "other_share"},
    {"prefill_attention_share", "prefill_matmul_share", "prefill_other_share"}};

static void set_values(const kvl_figure *figure, bool bootstrap, double *values,
                       kvl_figure_point *point) {
    size_t n = kvl_group_metric(point->group, figure->y, values);
    point->n_rounds = n;
    point->y = kvl_quantile(values, n, 0.5);
    point->lo = kvl_quantile(values, n, 0);
    point->hi = kvl_quantile(values, n, 1);
    if (bootstrap && n) kvl_median_interval(values, n, &point->lo, &point->hi);
    /* A time to first token is made of prefill, any other of decode. */
    const char *const *names = parts[strcmp(figure->y, "ttft_ms") == 0];
    for (int i = 0; i < 3; i++)
        point->part[i] = figure->kind == KVL_FIGURE_STACK
                             ? point->y * kvl_group_median(point->group, names[i])
                             : NAN;
}

static int by_place(const void *a, const void *b) {
    const kvl_figure_point *p = a, *q = b;
    if (p->panel != q->panel) return p->panel - q->panel;
    return p->series != q->series ? p->series - q->series : p->x - q->x;
}

static int label_order(const void *a, const void *b) {
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

/* Labels shorten models, builds and hosts: two trials that then look the same are refused. */
static kvl_status check_places(const kvl_figure *figure) {
    for (size_t i = 1; i < figure->n_points; i++) {
        const kvl_figure_point *p = &figure->points[i - 1], *q = p + 1;
        if (by_place(p, q) != 0) continue;
        return kvl_fail(KVL_ERR_INPUT,
                        "trials %s and %s both stand at '%s' '%s', %s %s: pick one with --where",
                        p->group->trial, q->group->trial, figure->panels[p->panel],
                        figure->series[p->series], figure->x, figure->xs[p->x]);
    }
    return KVL_OK;
}

static kvl_status place_points(const selection *s, bool bootstrap, kvl_figure *figure) {
    char label[TEXT * 2];
    size_t most_rounds = 1;
    for (size_t i = 0; i < s->n; i++)
        if (s->groups[i]->n_rows > most_rounds) most_rounds = s->groups[i]->n_rows;
    double *values = calloc(most_rounds, sizeof *values);
    figure->points = calloc(s->n + 1, sizeof *figure->points);
    figure->panels = calloc(s->n + 1, sizeof *figure->panels);
    figure->series = calloc(s->n + 1, sizeof *figure->series);
    if (!values || !figure->points || !figure->panels || !figure->series) {
        free(values);
        return kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    /* Labels first, sorted, so that colours do not hang on the order of rows. */
    for (size_t i = 0; i < s->n; i++) {
        label_of(figure, s->groups[i], 0, figure->n_series_axes, " ", label, sizeof label);
        find_or_add(figure->series, &figure->n_series, label);
        label_of(figure, s->groups[i], figure->n_series_axes, figure->n_by, ", ", label,
                 sizeof label);
        find_or_add(figure->panels, &figure->n_panels, label);
    }
    qsort(figure->series, (size_t)figure->n_series, sizeof *figure->series, label_order);
    qsort(figure->panels, (size_t)figure->n_panels, sizeof *figure->panels, label_order);
    for (size_t i = 0; i < s->n; i++) {
        kvl_figure_point *point = &figure->points[figure->n_points++];
        point->group = s->groups[i];
        label_of(figure, s->groups[i], 0, figure->n_series_axes, " ", label, sizeof label);
        point->series = find_or_add(figure->series, &figure->n_series, label);
        label_of(figure, s->groups[i], figure->n_series_axes, figure->n_by, ", ", label,
                 sizeof label);
        point->panel = find_or_add(figure->panels, &figure->n_panels, label);
        kvl_figure_axis_text(s->groups[i], figure->x, label, sizeof label);
        point->x = find_or_add(figure->xs, &figure->n_xs, label);
        set_values(figure, bootstrap, values, point);
    }
    qsort(figure->points, figure->n_points, sizeof *figure->points, by_place);
    free(values);
    return check_places(figure);
}

static kvl_status check_metric(const selection *s, const kvl_figure *figure) {
    const char *names[MAX_NAMES];
    size_t n = kvl_metric_count() < MAX_NAMES ? kvl_metric_count() : MAX_NAMES;
    char line[1024];
    for (size_t i = 0; i < s->n; i++) {
        if (isfinite(kvl_group_median(s->groups[i], figure->y))) return KVL_OK;
    }
    for (size_t i = 0; i < n; i++) names[i] = kvl_metric_at(i)->name;
    if (kvl_names_find(figure->y, names, n) >= 0)
        return kvl_fail(KVL_ERR_INPUT, "--y %s: no trial that ended ok has it", figure->y);
    kvl_names_unknown(line, sizeof line, "metric", figure->y, names, n);
    return kvl_fail(KVL_ERR_INPUT, "--y: %s", line);
}

/* Names that hold for all trials and tell what was measured; labels already say those in `by`. */
static void set_fixed(const selection *s, kvl_figure *figure) {
    static const char *const told[] = {"attention", "allocator", "kv_dtype", "weights"};
    char phrase[TEXT * 2];
    size_t n = 0;
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        if (kvl_figure_differs(s->groups, s->n, told[i]) || is_named(figure, told[i])) continue;
        if (n >= sizeof figure->fixed) continue;
        kvl_figure_axis_text(s->groups[0], told[i], phrase, sizeof phrase);
        if (!phrase[0]) continue; /* rows of other workloads lack some axes */
        kvl_figure_phrase(s->groups[0], told[i], phrase, sizeof phrase);
        int wrote =
            snprintf(figure->fixed + n, sizeof figure->fixed - n, "%s%s", n ? ", " : "", phrase);
        n += wrote > 0 ? (size_t)wrote : 0;
    }
}

static void keep_last_x(selection *s, const kvl_figure *figure) {
    char text[TEXT];
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++) {
        kvl_figure_axis_text(s->groups[i], figure->x, text, sizeof text);
        if (strcmp(text, figure->xs[figure->n_xs - 1]) == 0) s->groups[kept++] = s->groups[i];
    }
    s->n = kept;
}

static kvl_status make(selection *s, const kvl_figure_options *options, kvl_figure *out) {
    snprintf(out->y, sizeof out->y, "%s", options->y ? options->y : "decode_tok_s");
    KVL_TRY(check_metric(s, out));
    KVL_TRY(choose_x(s, options->x, out));
    KVL_TRY(kvl_figure_values(s->groups, s->n, out->x, &out->xs, &out->n_xs));
    if (options->last_x && out->n_xs > 1) {
        keep_last_x(s, out);
        kvl_figure_values_free(out->xs, out->n_xs);
        KVL_TRY(kvl_figure_values(s->groups, s->n, out->x, &out->xs, &out->n_xs));
    }
    KVL_TRY(choose_by(s, options->by, out));
    KVL_TRY(split_by(s, out));
    out->kind = options->kind;
    if (out->kind == KVL_FIGURE_AUTO)
        out->kind = out->x_numeric && out->n_xs > 1 ? KVL_FIGURE_LINE : KVL_FIGURE_BARS;
    if (out->kind == KVL_FIGURE_LINE && !out->x_numeric)
        return kvl_fail(KVL_ERR_INPUT, "--kind line: x is %s, which has no numbers", out->x);
    set_fixed(s, out);
    return place_points(s, options->bootstrap, out);
}

kvl_status kvl_figure_make(const kvl_groups *groups, const kvl_figure_options *options,
                           kvl_figure *out) {
    selection s = {0};
    memset(out, 0, sizeof *out);
    kvl_status status = select_groups(groups, options->where, &s);
    if (status == KVL_OK) status = make(&s, options, out);
    free(s.groups);
    if (status != KVL_OK) kvl_figure_free(out);
    return status;
}

void kvl_figure_free(kvl_figure *figure) {
    kvl_figure_values_free(figure->panels, figure->n_panels);
    kvl_figure_values_free(figure->series, figure->n_series);
    kvl_figure_values_free(figure->xs, figure->n_xs);
    free(figure->points);
    memset(figure, 0, sizeof *figure);
}
