/* The page: findings first, then each claim with checks, figure, numbers and command. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "harness/claims/report.h"
#include "harness/figures/dictionary.h"
#include "harness/figures/stats.h"

enum { MAX_METRICS = 6, TEXT = KVL_AXIS_TEXT_BYTES };

static const char style[] =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:62em;padding:0 "
    "1em;color:#222}"
    "h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2.5em;border-top:1px solid #ccc;"
    "padding-top:1em}table{border-collapse:collapse;margin:.8em 0;font-size:.9em}"
    "th,td{border:1px solid #ccc;padding:.2em .6em;text-align:left;vertical-align:top}"
    "th{background:#f4f4f4}td.n{text-align:right;font-variant-numeric:tabular-nums}"
    "code,pre{font:.9em ui-monospace,monospace;background:#f4f4f4}pre{padding:.6em;overflow-x:auto}"
    ".f{font-weight:600;padding:.1em .5em;border-radius:.3em;color:#fff;white-space:nowrap}"
    ".f0{background:#00704f}.f1{background:#b34700}.f2{background:#555}"
    "svg{max-width:100%;height:auto}details{margin:.6em 0}";

static void escape(kvl_buffer *out, const char *text) {
    for (; *text; text++) {
        if (*text == '<')
            kvl_buffer_text(out, "&lt;");
        else if (*text == '>')
            kvl_buffer_text(out, "&gt;");
        else if (*text == '&')
            kvl_buffer_text(out, "&amp;");
        else if (*text == '"')
            kvl_buffer_text(out, "&quot;");
        else
            kvl_buffer_add(out, text, 1);
    }
}

static void tagged(kvl_buffer *out, const char *tag, const char *text) {
    kvl_buffer_printf(out, "<%s>", tag);
    escape(out, text);
    kvl_buffer_printf(out, "</%.*s>", (int)strcspn(tag, " "), tag);
}

static void badge(kvl_buffer *out, const kvl_report_item *item) {
    if (item->result)
        kvl_buffer_printf(out, "<span class=\"f f%d\">%s</span>", item->result->finding,
                          kvl_finding_name(item->result->finding));
    else
        kvl_buffer_text(out, "<span class=\"f f2\">did not run</span>");
}

static void number_cell(kvl_buffer *out, double value) {
    if (isfinite(value))
        kvl_buffer_printf(out, "<td class=\"n\">%.5g</td>", value);
    else
        kvl_buffer_text(out, "<td class=\"n\"></td>");
}

static void interval_cell(kvl_buffer *out, double lo, double hi) {
    if (isfinite(lo) && isfinite(hi) && hi < 1e6)
        kvl_buffer_printf(out, "<td class=\"n\">%.4g to %.4g</td>", lo, hi);
    else
        kvl_buffer_text(out, "<td class=\"n\"></td>");
}

static void check_table(kvl_buffer *out, const kvl_check *check, const kvl_check_result *result) {
    kvl_buffer_printf(out, "<p><span class=\"f f%d\">%s</span> ", result->finding,
                      kvl_finding_name(result->finding));
    tagged(out, "code", check->text);
    kvl_buffer_text(out, "</p><table><tr><th>where</th><th>left</th><th>right</th><th>99.5 % "
                         "interval</th><th>rounds</th><th>finding</th></tr>");
    for (size_t i = 0; i < result->n; i++) {
        const kvl_evidence *e = &result->items[i];
        kvl_buffer_text(out, "<tr>");
        tagged(out, "td", e->place);
        number_cell(out, e->left);
        number_cell(out, e->right);
        interval_cell(out, e->lo, e->hi);
        kvl_buffer_printf(out, "<td class=\"n\">%zu</td><td>%s", e->n_rounds,
                          kvl_finding_name(e->finding));
        if (e->reason[0]) kvl_buffer_text(out, ": ");
        escape(out, e->reason);
        kvl_buffer_text(out, "</td></tr>");
    }
    kvl_buffer_text(out, "</table>");
}

/* Axes in which the trials differ. */
static size_t varying_axes(const kvl_groups *groups, const char *names[KVL_N_AXES]) {
    char first[TEXT], text[TEXT];
    size_t n = 0;
    for (int a = 0; a < KVL_N_AXES; a++) {
        const char *name = kvl_axis_of((kvl_axis_id)a)->name;
        bool varies = false;
        for (size_t g = 0; g < groups->n && !varies; g++) {
            kvl_row_axis_text(groups->items[0].rows[0], name, first, sizeof first);
            kvl_row_axis_text(groups->items[g].rows[0], name, text, sizeof text);
            varies = strcmp(first, text) != 0;
        }
        if (varies) names[n++] = name;
    }
    return n;
}

static void metric_cell(kvl_buffer *out, const kvl_group *group, const char *metric) {
    double *values = malloc((group->n_rows + 1) * sizeof *values), lo, hi;
    size_t n = values ? kvl_group_metric(group, metric, values) : 0;
    if (n == 0) {
        kvl_buffer_text(out, "<td></td>");
    } else {
        double median = kvl_quantile(values, n, 0.5);
        kvl_median_interval(values, n, &lo, &hi);
        kvl_buffer_printf(out, "<td class=\"n\">%.5g", median);
        if (lo < hi) kvl_buffer_printf(out, " (%.4g to %.4g)", lo, hi);
        kvl_buffer_text(out, "</td>");
    }
    free(values);
}

static void trial_table(kvl_buffer *out, const kvl_report_item *item) {
    const char *axes[KVL_N_AXES], *metrics[MAX_METRICS];
    char text[TEXT];
    const kvl_groups *groups = &item->result->groups;
    size_t n_axes = groups->n ? varying_axes(groups, axes) : 0;
    size_t n_metrics = kvl_report_metrics(item->claim, metrics, MAX_METRICS);
    kvl_buffer_text(out, "<details><summary>Medians of all trials, with 95 % intervals</summary>"
                         "<table><tr>");
    for (size_t i = 0; i < n_axes; i++) tagged(out, "th", axes[i]);
    for (size_t i = 0; i < n_metrics; i++) {
        const kvl_name *known = kvl_name_find(metrics[i]);
        kvl_buffer_printf(out, "<th>%s%s%s</th>", metrics[i], known && known->unit[0] ? ", " : "",
                          known ? known->unit : "");
    }
    kvl_buffer_text(out, "<th>rounds</th><th>outcome</th></tr>");
    for (size_t g = 0; g < groups->n; g++) {
        const kvl_group *group = &groups->items[g];
        kvl_buffer_text(out, "<tr>");
        for (size_t i = 0; i < n_axes; i++) {
            kvl_row_axis_text(group->rows[0], axes[i], text, sizeof text);
            tagged(out, "td", text);
        }
        for (size_t i = 0; i < n_metrics; i++) metric_cell(out, group, metrics[i]);
        kvl_buffer_printf(out, "<td class=\"n\">%zu</td>", group->n_rows);
        tagged(out, "td", kvl_group_outcome(group));
        kvl_buffer_text(out, "</tr>");
    }
    kvl_buffer_text(out, "</table></details>");
}

/* The element of an SVG file. Ids of several figures in one page must not meet: each is given the
 * figure's number, where it is defined and where it is used. */
static void inline_svg(kvl_buffer *out, const char *svg, size_t figure) {
    static const char *const marks[] = {"id=\"", "id='", "url(#", "href=\"#", "href='#"};
    const char *at = strstr(svg, "<svg");
    while (at && *at) {
        size_t length = 0;
        for (size_t i = 0; i < sizeof marks / sizeof *marks && !length; i++)
            if (strncmp(at, marks[i], strlen(marks[i])) == 0) length = strlen(marks[i]);
        kvl_buffer_add(out, at, length ? length : 1);
        if (length) kvl_buffer_printf(out, "f%zu-", figure);
        at += length ? length : 1;
    }
}

static void item_html(kvl_buffer *out, const kvl_report_item *item, size_t index) {
    kvl_buffer_printf(out, "<h2 id=\"%zu\">", index);
    escape(out, item->claim->claim);
    kvl_buffer_text(out, "</h2><p>");
    badge(out, item);
    kvl_buffer_text(out, " Source: ");
    escape(out, item->claim->source);
    kvl_buffer_text(out, "</p>");
    if (item->claim->note) tagged(out, "p", item->claim->note);
    if (item->error) tagged(out, "p", item->error);
    for (size_t c = 0; item->result && c < item->result->n_checks; c++)
        check_table(out, &item->claim->checks[c], &item->result->checks[c]);
    if (item->svg)
        inline_svg(out, item->svg, index);
    else if (item->no_figure)
        tagged(out, "p", item->no_figure);
    if (item->result) trial_table(out, item);
    tagged(out, "pre", item->command);
}

static void environment(kvl_buffer *out, const json_t *env) {
    static const char *const names[] = {"cpu",    "cores",    "hardware_threads", "memory_bytes",
                                        "kernel", "compiler", "version",          "build",
                                        "host",   "utc"};
    kvl_buffer_text(out, "<h2>Environment</h2><table>");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = json_object_get(env, names[i]);
        char number[32];
        snprintf(number, sizeof number, "%.17g", json_number_value(value));
        if (!value) continue;
        kvl_buffer_printf(out, "<tr><th>%s</th>", names[i]);
        tagged(out, "td", json_is_string(value) ? json_string_value(value) : number);
        kvl_buffer_text(out, "</tr>");
    }
    kvl_buffer_text(out, "</table>");
}

void kvl_report_html(const kvl_report_item *items, size_t n, const json_t *env, kvl_buffer *out) {
    char utc[32];
    kvl_utc_iso(utc, sizeof utc);
    kvl_buffer_printf(out,
                      "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">"
                      "<meta name=\"viewport\" content=\"width=device-width\">"
                      "<title>kvlab: claims</title><style>%s</style></head><body>"
                      "<h1>Claims and what this machine says to them</h1><p>kvlab %s, %s. A claim "
                      "holds where every check holds at every place, by 99.5 %% intervals over "
                      "interleaved rounds.</p><table><tr><th>claim</th><th>finding</th></tr>",
                      style, KVL_VERSION, utc);
    for (size_t i = 0; i < n; i++) {
        kvl_buffer_printf(out, "<tr><td><a href=\"#%zu\">", i);
        escape(out, items[i].claim->claim);
        kvl_buffer_text(out, "</a></td><td>");
        badge(out, &items[i]);
        kvl_buffer_text(out, "</td></tr>");
    }
    kvl_buffer_text(out, "</table>");
    for (size_t i = 0; i < n; i++) item_html(out, &items[i], i);
    if (env) environment(out, env);
    kvl_buffer_text(out, "</body></html>\n");
}
