/* A figure: which trials it shows, by which axes, and the numbers behind it.
 *
 * Law: no two trials share a place. Each axis in which any two trials differ is x or part of the
 * series or panel (a page size follows its allocator); anything else is refused by name: it is
 * neither averaged nor joined into one line.
 */
#ifndef KVL_HARNESS_FIGURE_H
#define KVL_HARNESS_FIGURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/buffer.h"
#include "core/status.h"
#include "harness/figures/group.h"

typedef enum kvl_figure_kind {
    KVL_FIGURE_AUTO = 0, /* line for a numeric x with two values or more, else bars */
    KVL_FIGURE_LINE,
    KVL_FIGURE_BARS,
    KVL_FIGURE_STACK /* y split into attention, matmul, other by the phase shares */
} kvl_figure_kind;

typedef struct kvl_figure_options {
    const char *x, *y, *by; /* axis, metric, comma list of axes; NULL: chosen */
    const char *where;      /* comma list axis=value: only those trials */
    kvl_figure_kind kind;
    bool bootstrap; /* error bars: 95 % interval of the median, not minimum and maximum */
    bool last_x;    /* keep the largest x only (the default stack) */
} kvl_figure_options;

enum { KVL_FIGURE_MAX_SERIES = 8, KVL_FIGURE_MAX_PANELS = 12, KVL_FIGURE_MAX_BY = 24 };

typedef struct kvl_figure_point {
    const kvl_group *group;
    int panel, series, x; /* indices from 0 */
    double y, lo, hi;     /* NaN when the trial did not end ok */
    double part[3];       /* attention, matmul, other, in the unit of y; KVL_FIGURE_STACK only */
    size_t n_rounds;
} kvl_figure_point;

typedef struct kvl_figure {
    kvl_figure_kind kind;
    char x[64], y[64];
    bool x_numeric;
    char by[KVL_FIGURE_MAX_BY][64]; /* the first n_series_axes tell series apart, the rest panels */
    int n_by, n_series_axes;
    char **panels, **series, **xs; /* labels; xs in ascending or registry order */
    int n_panels, n_series, n_xs;
    kvl_figure_point *points; /* by panel, series, x */
    size_t n_points;
    char fixed[256]; /* axes that do not vary but say what was measured: "paged, bf16" */
} kvl_figure;

/* KVL_ERR_INPUT: unknown axis or metric (with the nearest), no trial left, a metric that no trial
 * has, axes that differ and are not named, more than 8 series in 12 panels. */
kvl_status kvl_figure_make(const kvl_groups *groups, const kvl_figure_options *options,
                           kvl_figure *out);
void kvl_figure_free(kvl_figure *figure);

/* The groups that `where` leaves (NULL: all) into a malloc'ed list of borrowed pointers. */
kvl_status kvl_figure_select(const kvl_groups *groups, const char *where, const kvl_group ***chosen,
                             size_t *n);

/* The numeric axis with most values; "" when none varies. */
void kvl_figure_default_x(const kvl_groups *groups, char *out, size_t out_bytes);

/* The numbers as CSV: panel_id, series_id, x_id (from 1), panel, series, x, y, y_lo, y_hi, rounds,
 * outcome and, for a stack, attention, matmul, other. */
kvl_status kvl_figure_csv(const kvl_figure *figure, kvl_buffer *out);

/* One line of what the figure shows, e.g. "flash is 3.1x eager at prompt 4096 (decode_tok_s, paged,
 * bf16)". */
void kvl_figure_insight(const kvl_figure *figure, char *out, size_t out_bytes);

/* Text of an axis of a trial: axes.<name>, or build, host, seed, chunk, text, deterministic. */
void kvl_figure_axis_text(const kvl_group *group, const char *name, char *out, size_t out_bytes);

#endif
