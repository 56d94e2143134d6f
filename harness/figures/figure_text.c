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
            if (!(a->y >= b->y) || !(b->y > 0) || !differ_in_one(figure, axis, a, b)) continue;
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
        if (phrase[0]) n += snprintf(out + n, out_bytes - (size_t)n, ", %s", phrase);
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

/* " with flash KV bf16, batch 4 at prompt 512": all that tells a point from the others. */
static void place_text(const kvl_figure *figure, const kvl_figure_point *p, char *out,
                       size_t out_bytes) {
    const char *series = figure->series[p->series], *panel = figure->panels[p->panel];
    snprintf(out, out_bytes, "%s%s%s%s at %s %s", series[0] || panel[0] ? " with " : "", series,
             series[0] && panel[0] ? ", " : "", panel, figure->x, figure->xs[p->x]);
}

static void stack_insight(const kvl_figure *figure, char *out, size_t out_bytes) {
    char place[TEXT * 6];
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
    place_text(figure, most, place, sizeof place);
    int n = snprintf(out, out_bytes, "attention takes %.0f %% of %s%s",
                     100 * most->part[0] / most->y, figure->y, place);
    if (most == least || n < 0 || (size_t)n >= out_bytes) return;
    place_text(figure, least, place, sizeof place);
    snprintf(out + n, out_bytes - (size_t)n, ", %.0f %%%s", 100 * least->part[0] / least->y, place);
}

/* "flash is 3.1x eager", "flash takes 0.32x the tpot_ms of eager", or that they hardly differ. */
static void compare(const kvl_figure *figure, contrast found, char *out, size_t out_bytes) {
    char high[TEXT * 2], low[TEXT * 2], ratio_text[32];
    const kvl_name *metric = kvl_name_find(figure->y);
    double ratio = found.high->y / found.low->y;
    kvl_figure_phrase(found.high->group, figure->by[found.axis], high, sizeof high);
    kvl_figure_phrase(found.low->group, figure->by[found.axis], low, sizeof low);
    if (ratio < 1.005) {
        snprintf(out, out_bytes, "%s and %s differ by less than 0.5 %%", high, low);
    } else if (metric && metric->better == KVL_BETTER_LOWER) {
        snprintf(out, out_bytes, "%s takes %.2gx the %s of %s", low, 1 / ratio, figure->y, high);
    } else {
        /* Two digits would call 1.04 the same, and write 120 with an exponent. */
        snprintf(ratio_text, sizeof ratio_text,
                 ratio < 1.1  ? "%.2f"
                 : ratio < 10 ? "%.2g"
                              : "%.0f",
                 ratio);
        snprintf(out, out_bytes, "%s is %sx %s", high, ratio_text, low);
    }
}

void kvl_figure_insight(const kvl_figure *figure, char *out, size_t out_bytes) {
    char around[512], what[TEXT * 5];
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
    compare(figure, found, what, sizeof what);
    circumstances(figure, found.high, found.axis, around, sizeof around);
    /* "takes 0.5x the ttft_ms of" has named the metric already. */
    const char *rest = around;
    size_t n_y = strlen(figure->y);
    if (strstr(what, figure->y) && strncmp(around + n_y, ", ", 2) == 0) rest += n_y + 2;
    /* A ratio inside the noise is said to be one; so is one whose noise nobody measured. */
    const char *noise = "";
    if (found.high->n_rounds < 2 || found.low->n_rounds < 2)
        noise = "; one round, noise unknown";
    else if (found.high->lo <= found.low->hi)
        noise = "; within the spread of rounds";
    snprintf(out, out_bytes, "%s at %s %s (%s%s)", what, figure->x, figure->xs[found.high->x], rest,
             noise);
}
