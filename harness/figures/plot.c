#define _GNU_SOURCE
#include "harness/figures/plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buffer.h"
#include "core/file.h"
#include "harness/figures/dictionary.h"
#include "harness/sweep/child.h"

enum { PATH_BYTES = 4096 };

static kvl_status find_gnuplot(char *out, size_t out_bytes) {
    const char *path = getenv("PATH");
    for (const char *part = path ? path : "/usr/bin"; *part;) {
        size_t length = strcspn(part, ":");
        if (length) snprintf(out, out_bytes, "%.*s/gnuplot", (int)length, part);
        if (length && access(out, X_OK) == 0) return KVL_OK;
        part += length + (part[length] == ':');
    }
    return kvl_fail(KVL_ERR_INPUT, "gnuplot is not installed: apt-get install gnuplot-nox");
}

/* name='text' with quotes doubled: nothing in a single-quoted gnuplot text is special. */
static void set_text(kvl_buffer *out, const char *name, const char *text) {
    kvl_buffer_printf(out, "%s='", name);
    for (; *text; text++) {
        if (*text == '\'') kvl_buffer_text(out, "'");
        if ((unsigned char)*text >= ' ') kvl_buffer_add(out, text, 1);
    }
    kvl_buffer_text(out, "';");
}

static void set_list(kvl_buffer *out, const char *name, char *const *texts, int n) {
    char item[64];
    kvl_buffer_printf(out, "array %s[%d];", name, n);
    for (int i = 0; i < n; i++) {
        snprintf(item, sizeof item, "%s[%d]", name, i + 1);
        set_text(out, item, texts[i]);
    }
}

/* True when each value is at least 1.5 times the one before: ticks then stand evenly on a
 * logarithmic axis and crowd on a linear one. */
static bool spreads(const kvl_figure *figure) {
    for (int i = 1; i < figure->n_xs; i++) {
        double before = strtod(figure->xs[i - 1], NULL), now = strtod(figure->xs[i], NULL);
        if (before <= 0 || now < 1.5 * before) return false;
    }
    return figure->n_xs > 2;
}

static double highest(const kvl_figure *figure) {
    double top = 0;
    for (size_t i = 0; i < figure->n_points; i++) {
        const kvl_figure_point *p = &figure->points[i];
        if (p->y > top) top = p->y;
        if (p->hi > top) top = p->hi;
    }
    return top > 0 ? top : 1;
}

/* A unit in which the axis shows small numbers: bytes as KiB, MiB or GiB. */
static double scale_of(const kvl_figure *figure, const char **unit) {
    const kvl_name *known = kvl_name_find(figure->y);
    double top = highest(figure);
    *unit = known ? known->unit : "";
    if (strcmp(*unit, "bytes") != 0 || top < 10240) return 1;
    *unit = top < 10485760 ? "KiB" : top < 10737418240.0 ? "MiB" : "GiB";
    return top < 10485760 ? 1024.0 : top < 10737418240.0 ? 1048576.0 : 1073741824.0;
}

/* The title carries the label, the axis its unit. */
static void set_titles(const kvl_figure *figure, const char *title, const char *unit,
                       kvl_buffer *out) {
    const kvl_name *known = kvl_name_find(figure->y);
    char text[512];
    snprintf(text, sizeof text, "%s%s%s%s", known ? known->label : figure->y,
             figure->fixed[0] ? " (" : "", figure->fixed, figure->fixed[0] ? ")" : "");
    set_text(out, "title", title ? title : text);
    set_text(out, "y_label", *unit ? unit : known ? known->label : figure->y);
}

/* 10000000 as 10M, 2500000 as 2.5M: ticks of millions would overlap. */
static void tick_text(const char *x, char *out, size_t out_bytes) {
    double value = strtod(x, NULL);
    if (value >= 1e6 && fmod(value, 1e5) == 0)
        snprintf(out, out_bytes, "%gM", value / 1e6);
    else
        snprintf(out, out_bytes, "%s", x);
}

static void add_ticks(kvl_buffer *out, const kvl_figure *figure) {
    kvl_buffer ticks = {0};
    for (int i = 0; i < figure->n_xs; i++) {
        char text[64];
        tick_text(figure->xs[i], text, sizeof text);
        kvl_buffer_printf(&ticks, "%s\"%s\" %s", i ? ", " : "", text, figure->xs[i]);
    }
    if (!ticks.failed && ticks.data) set_text(out, "x_ticks", ticks.data);
    kvl_buffer_free(&ticks);
}

static void add_variables(const kvl_figure *figure, const kvl_plot_options *options,
                          kvl_buffer *out) {
    char label[256];
    const char *unit;
    double scale = scale_of(figure, &unit), top = highest(figure) / scale;
    set_titles(figure, options->title, unit, out);
    kvl_name_label(figure->x, label, sizeof label);
    set_text(out, "x_label", label);
    set_text(out, "x_name", figure->x);
    set_list(out, "panel_names", figure->panels, figure->n_panels);
    set_list(out, "series_names", figure->series, figure->n_series);
    set_list(out, "x_names", figure->xs, figure->n_xs);
    kvl_buffer_printf(out, "n_panels=%d;n_series=%d;n_x=%d;scale=%.17g;y_top=%.17g;",
                      figure->n_panels, figure->n_series, figure->n_xs, scale,
                      top * (figure->kind == KVL_FIGURE_STACK ? 1.14 : 1.08));
    if (figure->x_numeric && figure->kind == KVL_FIGURE_LINE) {
        double first = strtod(figure->xs[0], NULL),
               last = strtod(figure->xs[figure->n_xs - 1], NULL);
        bool log_x = first > 0 && (options->log_x || spreads(figure));
        kvl_buffer_printf(out, "x_first=%.17g;x_last=%.17g;log_x=%d;", first, last, log_x);
        add_ticks(out, figure);
    }
}

static kvl_status run_gnuplot(const char *gnuplot, const char *script, const char *variables) {
    const char *argv[] = {"gnuplot", "-e", variables, script, NULL};
    kvl_child_options child = {.executable = gnuplot, .argv = argv, .timeout_s = 120};
    kvl_child_result result;
    KVL_TRY(kvl_child_run(&child, &result));
    kvl_status status = KVL_OK;
    if (result.end != KVL_CHILD_EXITED || result.code != 0)
        status = kvl_fail(KVL_ERR_IO, "gnuplot %s: %s", script,
                          result.last_words[0] ? result.last_words : "ended without a word");
    kvl_child_result_free(&result);
    return status;
}

static const char *const suffixes[] = {".csv", ".svg", ".png"};
enum { N_FILES = sizeof suffixes / sizeof *suffixes };

/* gnuplot ends well even where it could not write all of an image, or any of it. */
static kvl_status check_written(const char *base) {
    static const char *const ends[N_FILES] = {NULL, "</svg>", "IEND"};
    for (int i = 1; i < N_FILES; i++) {
        char path[PATH_BYTES];
        struct stat info;
        kvl_file file;
        snprintf(path, sizeof path, "%s%s", base, suffixes[i]);
        if (stat(path, &info) != 0 || info.st_size == 0)
            return kvl_fail(KVL_ERR_IO,
                            "%s: gnuplot ended without an error but wrote nothing (disk full, or "
                            "a gnuplot without the svg or pngcairo terminal)",
                            path);
        KVL_TRY(kvl_file_open(path, &file));
        uint64_t tail = file.bytes < 16 ? file.bytes : 16;
        bool whole = memmem(file.data + file.bytes - tail, tail, ends[i], strlen(ends[i])) != NULL;
        kvl_file_close(&file);
        if (!whole) return kvl_fail(KVL_ERR_IO, "%s: cannot be written whole (disk full?)", path);
    }
    return KVL_OK;
}

/* A folder of a figure's name is found before anything is drawn or replaced. */
static kvl_status check_targets(const char *base) {
    for (int i = 0; i < N_FILES; i++) {
        char path[PATH_BYTES];
        struct stat info;
        snprintf(path, sizeof path, "%s%s", base, suffixes[i]);
        if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
            return kvl_fail(KVL_ERR_IO, "%s: is there and not a file, cannot be replaced", path);
    }
    return KVL_OK;
}

static kvl_status rename_all(const char *from, const char *to) {
    for (int i = 0; i < N_FILES; i++) {
        char old[PATH_BYTES], new[PATH_BYTES];
        snprintf(old, sizeof old, "%s%s", from, suffixes[i]);
        snprintf(new, sizeof new, "%s%s", to, suffixes[i]);
        if (rename(old, new) != 0)
            return kvl_fail(KVL_ERR_IO, "%s: cannot write: %s", new, strerror(errno));
    }
    return KVL_OK;
}

static void remove_all(const char *base) {
    for (int i = 0; i < N_FILES; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s%s", base, suffixes[i]);
        unlink(path);
    }
}

/* What a script reads: variables of its own kind of figure, and the CSV. */
typedef struct drawing {
    const char *script; /* "bars.gp" */
    kvl_buffer csv, variables;
} drawing;

static kvl_status draw(const drawing *d, const char *base, const char *folder, const char *gnuplot,
                       const char *script) {
    char csv_path[PATH_BYTES + 8];
    kvl_buffer variables = {0};
    snprintf(csv_path, sizeof csv_path, "%s.csv", base);
    KVL_TRY(kvl_file_write_all(csv_path, d->csv.data, d->csv.bytes));
    set_text(&variables, "base", base);
    set_text(&variables, "scripts", folder);
    kvl_buffer_add(&variables, d->variables.data, d->variables.bytes);
    kvl_status status = variables.failed || d->variables.failed
                            ? kvl_fail(KVL_ERR_OOM, "out of memory")
                            : run_gnuplot(gnuplot, script, variables.data);
    if (status == KVL_OK) status = check_written(base);
    kvl_buffer_free(&variables);
    return status;
}

static kvl_status draw_files(const drawing *d, const kvl_plot_options *options) {
    enum { SUFFIX_ROOM = 32 }; /* ".<process>.csv" and what the CSV's own temporary name adds */
    char gnuplot[PATH_BYTES], script[PATH_BYTES], temporary[PATH_BYTES];
    const char *folder = options->scripts ? options->scripts : KVL_PLOTS_DIR;
    KVL_TRY(find_gnuplot(gnuplot, sizeof gnuplot));
    snprintf(script, sizeof script, "%s/%s", folder, d->script);
    if (access(script, R_OK) != 0)
        return kvl_fail(KVL_ERR_IO, "%s: the plot script is missing (--scripts DIR)", script);
    if (strlen(options->base) > PATH_BYTES - SUFFIX_ROOM)
        return kvl_fail(KVL_ERR_INPUT, "%.40s...: the path is too long", options->base);
    KVL_TRY(check_targets(options->base));
    snprintf(temporary, sizeof temporary, "%s.%ld", options->base, (long)getpid());
    kvl_status status = draw(d, temporary, folder, gnuplot, script);
    if (status == KVL_OK) status = rename_all(temporary, options->base);
    if (status != KVL_OK) remove_all(temporary);
    return status;
}

static void drawing_free(drawing *d) {
    kvl_buffer_free(&d->csv);
    kvl_buffer_free(&d->variables);
}

kvl_status kvl_plot_figure(const kvl_figure *figure, const kvl_plot_options *options) {
    static const char *const scripts[] = {[KVL_FIGURE_LINE] = "lines.gp",
                                          [KVL_FIGURE_BARS] = "bars.gp",
                                          [KVL_FIGURE_STACK] = "stack.gp"};
    drawing d = {.script = scripts[figure->kind]};
    kvl_status status = kvl_figure_csv(figure, &d.csv);
    if (status == KVL_OK) {
        add_variables(figure, options, &d.variables);
        status = draw_files(&d, options);
    }
    drawing_free(&d);
    return status;
}

/* Rows of the picture, and an axis that holds 1, every bar and the figure behind its end. */
static void add_ratio_variables(const kvl_ratios *ratios, const kvl_plot_options *options,
                                kvl_buffer *out) {
    double low = 0.7, high = 2;
    int n_places = -1;
    for (size_t i = 0; i < ratios->n; i++) {
        const kvl_ratio_entry *entry = &ratios->items[i];
        bool first = i == 0 || strcmp(entry[-1].work, entry->work) != 0;
        n_places += first ? 3 : 1;
        if (entry->lo < low) low = entry->lo;
        if (entry->hi > high) high = entry->hi;
    }
    set_text(out, "title",
             options->title ? options->title : "kvlab against other systems, same work in one run");
    kvl_buffer_printf(out, "n_places=%d;x_low=%.17g;x_high=%.17g;", n_places, low / 1.15,
                      high * 1.5);
}

kvl_status kvl_plot_ratios(const kvl_ratios *ratios, const kvl_plot_options *options) {
    drawing d = {.script = "ratio.gp"};
    kvl_status status = kvl_ratios_csv(ratios, &d.csv);
    if (status == KVL_OK) {
        add_ratio_variables(ratios, options, &d.variables);
        status = draw_files(&d, options);
    }
    drawing_free(&d);
    return status;
}

/* How far each panel's axes go: greatest time, greatest height, and for maps the rows and cells
 * that their rectangles divide it into. */
typedef struct side_extent {
    double end_s, last_s, top;
    long rows, cells;
} side_extent;

static void measure_side(const kvl_side *side, side_extent extents[KVL_SIDE_MAX_PANELS]) {
    bool map = strcmp(side->what, "map") == 0;
    const char *line = strchr(side->csv.data, '\n');
    for (line = line ? line + 1 : ""; *line; line = strchr(line, '\n') + 1) {
        double v[9] = {0};
        const char *at = line;
        for (int i = 0; i < 9 && at; i++) {
            v[i] = strtod(at, NULL);
            const char *comma = strpbrk(at, ",\n");
            at = comma && *comma == ',' ? comma + 1 : NULL;
        }
        side_extent *e = &extents[(int)v[0] - 1];
        double time = map ? v[2] : v[3];
        if (time > e->end_s) e->last_s = e->end_s, e->end_s = time;
        if (map && v[1] + 1 > (double)e->rows) e->rows = (long)v[1] + 1;
        if (map && v[3] + 1 > (double)e->cells) e->cells = (long)v[3] + 1;
        if (map && v[4] > e->top) e->top = v[4];
    }
}

/* The pool's greatest size: column pool_max. */
static void measure_pool(const kvl_side *side, side_extent extents[KVL_SIDE_MAX_PANELS]) {
    int column = 0;
    const char *header = side->csv.data, *found = strstr(header, ",pool_max");
    for (const char *c = header; c < found; c++) column += *c == ',';
    const char *line = strchr(header, '\n');
    for (line = line ? line + 1 : ""; found && *line; line = strchr(line, '\n') + 1) {
        const char *at = line;
        side_extent *e = &extents[strtol(line, NULL, 10) - 1];
        for (int i = 0; i <= column && at; i++) at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
        if (at && strtod(at, NULL) > e->top) e->top = strtod(at, NULL);
    }
}

static void set_numbers(kvl_buffer *out, const char *name, const double *values, int n) {
    kvl_buffer_printf(out, "array %s[%d];", name, n);
    for (int i = 0; i < n; i++) kvl_buffer_printf(out, "%s[%d]=%.17g;", name, i + 1, values[i]);
}

static void add_side_variables(const kvl_side *side, const kvl_plot_options *options,
                               kvl_buffer *out) {
    bool map = strcmp(side->what, "map") == 0;
    side_extent extents[KVL_SIDE_MAX_PANELS] = {0};
    char *labels[KVL_SIDE_MAX_PANELS]; /* borrowed */
    double tops[KVL_SIDE_MAX_PANELS], ends[KVL_SIDE_MAX_PANELS], rows[KVL_SIDE_MAX_PANELS],
        cells[KVL_SIDE_MAX_PANELS];
    measure_side(side, extents);
    if (!map) measure_pool(side, extents);
    for (int i = 0; i < side->n_panels; i++) {
        const side_extent *e = &extents[i];
        labels[i] = (char *)side->labels[i];
        rows[i] = (double)(e->rows ? e->rows : 1);
        cells[i] = (double)(e->cells ? e->cells : 1);
        /* A map's last row and top cell have an extent of their own. */
        ends[i] = map && e->rows > 1 ? e->end_s * rows[i] / (rows[i] - 1) : e->end_s;
        tops[i] = (map && e->cells > 1 ? e->top * cells[i] / (cells[i] - 1) : e->top) / 1000;
        if (!(ends[i] > 0)) ends[i] = 1;
        if (!(tops[i] > 0)) tops[i] = 1;
    }
    char title[KVL_SIDE_LABEL_BYTES + 64];
    bool alone = side->n_panels == 1; /* its label goes into the title */
    snprintf(title, sizeof title, "%s%s%s%s",
             map ? "Who owns which part of the pool" : "What the slots of the pool are",
             alone ? " (" : "", alone ? side->labels[0] : "", alone ? ")" : "");
    if (alone) labels[0] = "";
    set_text(out, "title", options->title ? options->title : title);
    set_text(out, "x_label", "virtual time (s)");
    set_list(out, "panel_names", labels, side->n_panels);
    set_numbers(out, "panel_tops", tops, side->n_panels);
    set_numbers(out, "panel_ends", ends, side->n_panels);
    set_numbers(out, "panel_rows", rows, side->n_panels);
    set_numbers(out, "panel_cells", cells, side->n_panels);
    kvl_buffer_printf(out, "n_panels=%d;", side->n_panels);
}

kvl_status kvl_plot_side(const kvl_side *side, const kvl_plot_options *options) {
    drawing d = {.script = strcmp(side->what, "map") == 0 ? "map.gp" : "ledger.gp"};
    kvl_buffer_add(&d.csv, side->csv.data, side->csv.bytes);
    add_side_variables(side, options, &d.variables);
    kvl_status status =
        d.csv.failed ? kvl_fail(KVL_ERR_OOM, "out of memory") : draw_files(&d, options);
    drawing_free(&d);
    return status;
}

kvl_status kvl_plot_waste(const kvl_waste *waste, const kvl_plot_options *options) {
    drawing d = {.script = "waste.gp"};
    kvl_buffer_add(&d.csv, waste->csv.data, waste->csv.bytes);
    set_text(&d.variables, "title",
             options->title ? options->title
             : waste->full  ? "What the slots of the pool are while requests wait"
                            : "What the slots of the pool are");
    kvl_buffer_printf(&d.variables, "n_places=%d;", waste->n_places);
    kvl_status status =
        d.csv.failed ? kvl_fail(KVL_ERR_OOM, "out of memory") : draw_files(&d, options);
    drawing_free(&d);
    return status;
}
