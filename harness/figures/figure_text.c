/* What a figure says in text: its CSV and its one line of insight. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/figures/dictionary.h"
#include "harness/figures/export.h"
#include "harness/figures/figure.h"
#include "harness/figures/figure_axes.h"

enum { TEXT = 128 };

static void add_number(kvl_buffer *out, double value) {
    kvl_buffer_text(out, ",");
    if (isfinite(value)) kvl_buffer_printf(out, "%.6g", value);
}

kvl_status kvl_figure_csv(const kvl_figure *figure, kvl_buffer *out) {
    kvl_buffer_text(out, "panel_id,series_id,x_id,panel,series,x,y,y_lo,y_hi,rounds,outcome");
    if (figure->kind == KVL_FIGURE_STACK) kvl_buffer_text(out, ",attention,matmul,other");
    kvl_buffer_text(out, "\n");
    for (size_t i = 0; i < figure->n_points; i++) {
        const kvl_figure_point *p = &figure->points[i];
        kvl_buffer_printf(out, "%d,%d,%d,", p->panel + 1, p->series + 1, p->x + 1);
        kvl_csv_field(out, figure->panels[p->panel]);
        kvl_buffer_text(out, ",");
        kvl_csv_field(out, figure->series[p->series]);
        kvl_buffer_text(out, ",");
        kvl_csv_field(out, figure->xs[p->x]);
        add_number(out, p->y);
        add_number(out, p->lo);
        add_number(out, p->hi);
        kvl_buffer_printf(out, ",%zu,%s", p->n_rounds, kvl_group_outcome(p->group));
        for (int k = 0; figure->kind == KVL_FIGURE_STACK && k < 3; k++) add_number(out, p->part[k]);
        kvl_buffer_text(out, "\n");
    }
    return out->failed ? kvl_fail(KVL_ERR_OOM, "out of memory") : KVL_OK;
}

/* Two points that differ in one `by` axis and nothing else, with the largest ratio. */
typedef struct contrast {
    const kvl_figure_point *high, *low; /* by value of y */
    int axis;                           /* of figure->by */
} contrast;

static bool differ_in_one(const kvl_figure *figure, int axis, const kvl_figure_point *a,
                          const kvl_figure_point *b) {
    char x[TEXT], y[TEXT];
    if (a->x != b->x) return false;
    for (int i = 0; i < figure->n_by; i++) {
        kvl_figure_axis_text(a->group, figure->by[i], x, sizeof x);
        kvl_figure_axis_text(b->group, figure->by[i], y, sizeof y);
        if ((strcmp(x, y) == 0) == (i == axis)) return false;
    }
    return true;
}

/* At the largest x at which two can be compared; names have no largest. */
static contrast strongest(const kvl_figure *figure, int axis) {
    contrast best = {0};
    for (size_t i = 0; i < figure->n_points; i++) {
        for (size_t j = 0; j < figure->n_points; j++) {
            const kvl_figure_point *a = &figure->points[i], *b = &figure->points[j];
            if (!(a->y > b->y) || !(b->y > 0) || !differ_in_one(figure, axis, a, b)) continue;
            bool further = figure->x_numeric && best.high && a->x > best.high->x;
            bool nearer = figure->x_numeric && best.high && a->x < best.high->x;
            if (!best.high || further || (!nearer && a->y / b->y > best.high->y / best.low->y))
                best = (contrast){a, b, axis};
        }
    }
    return best;
}

/* "decode_tok_s, paged, KV bf16": the metric and what else the point stands for, without `axis`. */
static void circumstances(const kvl_figure *figure, const kvl_figure_point *point, int axis,
                          char *out, size_t out_bytes) {
    char phrase[TEXT * 2];
    int n =
        snprintf(out, out_bytes, "%s%s%s", figure->y, figure->fixed[0] ? ", " : "", figure->fixed);
    for (int i = 0; i < figure->n_by && n > 0 && (size_t)n < out_bytes; i++) {
        if (i == axis) continue;
        kvl_figure_phrase(point->group, figure->by[i], phrase, sizeof phrase);
        n += snprintf(out + n, out_bytes - (size_t)n, ", %s", phrase);
    }
}

/* A value with its unit; bytes in MiB. */
static void quantity(const kvl_figure *figure, double value, char *out, size_t out_bytes) {
    const kvl_name *known = kvl_name_find(figure->y);
    bool bytes = known && strcmp(known->unit, "bytes") == 0;
    snprintf(out, out_bytes, "%.4g%s%s", bytes ? value / 1048576 : value,
             known && known->unit[0] ? " " : "",
             bytes   ? "MiB"
             : known ? known->unit
                     : "");
}

static void along_x(const kvl_figure *figure, char *out, size_t out_bytes) {
    const kvl_figure_point *first = NULL, *last = NULL;
    char around[512], low[64], high[64];
    for (size_t i = 0; i < figure->n_points; i++) {
        const kvl_figure_point *p = &figure->points[i];
        if (!isfinite(p->y) || p->series != 0 || p->panel != 0) continue;
        if (!first) first = p;
        last = p;
    }
    if (!first) {
        snprintf(out, out_bytes, "%s: no trial ended ok", figure->y);
        return;
    }
    circumstances(figure, first, -1, around, sizeof around);
    quantity(figure, first->y, low, sizeof low);
    quantity(figure, last->y, high, sizeof high);
    if (first == last)
        snprintf(out, out_bytes, "%s at %s %s (%s)", low, figure->x, figure->xs[first->x], around);
    else
        snprintf(out, out_bytes, "from %s at %s %s to %s at %s (%s)", low, figure->x,
                 figure->xs[first->x], high, figure->xs[last->x], around);
}

static void stack_insight(const kvl_figure *figure, char *out, size_t out_bytes) {
    const kvl_figure_point *most = NULL, *least = NULL;
    for (size_t i = 0; i < figure->n_points; i++) {
        const kvl_figure_point *p = &figure->points[i];
        double share = p->part[0] / p->y;
        if (!isfinite(share)) continue;
        if (!most || share > most->part[0] / most->y) most = p;
        if (!least || share < least->part[0] / least->y) least = p;
    }
    if (!most) {
        snprintf(out, out_bytes, "%s: no trial ended ok", figure->y);
        return;
    }
    int n = snprintf(out, out_bytes, "attention takes %.0f %% of %s with %s at %s %s",
                     100 * most->part[0] / most->y, figure->y, figure->series[most->series],
                     figure->x, figure->xs[most->x]);
    if (most != least && n > 0 && (size_t)n < out_bytes)
        snprintf(out + n, out_bytes - (size_t)n, ", %.0f %% with %s at %s",
                 100 * least->part[0] / least->y, figure->series[least->series],
                 figure->xs[least->x]);
}

void kvl_figure_insight(const kvl_figure *figure, char *out, size_t out_bytes) {
    char high[TEXT * 2], low[TEXT * 2], around[512];
    const kvl_name *metric = kvl_name_find(figure->y);
    if (figure->kind == KVL_FIGURE_STACK) {
        stack_insight(figure, out, out_bytes);
        return;
    }
    contrast found = {0};
    for (int axis = 0; axis < figure->n_by && !found.high; axis++) found = strongest(figure, axis);
    if (!found.high) {
        along_x(figure, out, out_bytes);
        return;
    }
    kvl_figure_phrase(found.high->group, figure->by[found.axis], high, sizeof high);
    kvl_figure_phrase(found.low->group, figure->by[found.axis], low, sizeof low);
    circumstances(figure, found.high, found.axis, around, sizeof around);
    /* A ratio inside the noise is said to be one; so is one whose noise nobody measured. */
    size_t n = strlen(around);
    bool one_round = found.high->n_rounds < 2 || found.low->n_rounds < 2;
    if (one_round)
        snprintf(around + n, sizeof around - n, "; one round, noise unknown");
    else if (found.high->lo <= found.low->hi)
        snprintf(around + n, sizeof around - n, "; within the spread of rounds");
    const char *x = figure->xs[found.high->x];
    if (metric && metric->better == KVL_BETTER_LOWER)
        snprintf(out, out_bytes, "%s takes %.2gx the %s of %s at %s %s (%s)", low,
                 found.low->y / found.high->y, figure->y, high, figure->x, x,
                 around + strlen(figure->y) + (around[strlen(figure->y)] ? 2 : 0));
    else
        snprintf(out, out_bytes, "%s is %.2gx %s at %s %s (%s)", high, found.high->y / found.low->y,
                 low, figure->x, x, around);
}
