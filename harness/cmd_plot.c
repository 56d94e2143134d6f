/* kvlab plot F.jsonl: figures from rows, with sane defaults. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/names.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "harness/figures/figure.h"
#include "harness/figures/group.h"
#include "harness/figures/plot.h"
#include "harness/figures/ratio.h"

enum { MAX_FILES = 64, PATH_BYTES = 4096 };

typedef struct values {
    const char *x, *y, *by, *where, *kind, *out_dir, *name, *title, *interval, *scripts;
    bool log_x;
} values;

static const kvl_option options[] = {
    {"x", KVL_OPT_TEXT, offsetof(values, x), "AXIS", "the numeric axis with most values", 0, 0},
    {"y", KVL_OPT_TEXT, offsetof(values, y), "METRIC",
     "one figure of this metric (decode, prefill and a stack of phases)", 0, 0},
    {"by", KVL_OPT_TEXT, offsetof(values, by), "AXIS,...",
     "series, then panels (all axes in which trials differ)", 0, 0},
    {"where", KVL_OPT_TEXT, offsetof(values, where), "AXIS=VALUE,...", "only these trials", 0, 0},
    {"kind", KVL_OPT_TEXT, offsetof(values, kind), "NAME",
     "line, bars or stack (by the x axis); ratio: kvlab to other systems; of bench replay: waste "
     "by "
     "kind, and ledger and map from --series",
     0, 0},
    {"interval", KVL_OPT_TEXT, offsetof(values, interval), "NAME",
     "error bars over rounds: minmax or bootstrap, 95 % of the median from 3 rounds on (minmax)", 0,
     0},
    {"out-dir", KVL_OPT_TEXT, offsetof(values, out_dir), "DIR", "folder for figures (the file's)",
     0, 0},
    {"name", KVL_OPT_TEXT, offsetof(values, name), "NAME",
     "first part of the figure's file name (the rows' file)", 0, 0},
    {"title", KVL_OPT_TEXT, offsetof(values, title), "TEXT", "title of the figure", 0, 0},
    {"logx", KVL_OPT_FLAG, offsetof(values, log_x), NULL, "logarithmic x (where its values spread)",
     0, 0},
    {"scripts", KVL_OPT_TEXT, offsetof(values, scripts), "DIR", "folder of the .gp scripts", 0, 0},
};

/* "results/x.jsonl" + y -> "results/x-decode_tok_s"; --out-dir and --name replace their part. */
static void base_name(const values *v, const char *path, const char *what, const char *tail,
                      char *out) {
    const char *slash = strrchr(path, '/'), *name = v->name ? v->name : slash ? slash + 1 : path;
    size_t length = strlen(name);
    if (!v->name && length > 6 && strcmp(name + length - 6, ".jsonl") == 0) length -= 6;
    const char *folder = v->out_dir ? v->out_dir : slash ? path : ".";
    size_t folder_length = v->out_dir || !slash ? strlen(folder) : (size_t)(slash - path);
    snprintf(out, PATH_BYTES, "%.*s/%.*s-%s%s", (int)folder_length, folder, (int)length, name, what,
             tail);
}

/* Too few rounds to resample: their extremes stand instead, which the figure cannot say itself. */
static void warn_of_few_rounds(const kvl_figure *figure) {
    size_t n_few = 0;
    for (size_t i = 0; i < figure->n_points; i++)
        n_few += figure->points[i].n_rounds > 0 && figure->points[i].n_rounds < 3;
    if (n_few)
        fprintf(stderr,
                "kvlab: %s: %zu of %zu trials have fewer than 3 rounds: their bars are minimum and "
                "maximum, not a bootstrap interval\n",
                figure->y, n_few, figure->n_points);
}

static kvl_status draw(const values *v, const char *path, const kvl_groups *groups,
                       const kvl_figure_options *figure_options) {
    kvl_figure figure;
    char base[PATH_BYTES], insight[768];
    static const char *const tails[] = {"", "", "-bars", "-phases"};
    KVL_TRY(kvl_figure_make(groups, figure_options, &figure));
    base_name(v, path, figure.y, tails[figure.kind], base);
    kvl_plot_options plot = {base, v->title, v->scripts, v->log_x};
    kvl_status status = kvl_plot_figure(&figure, &plot);
    if (status == KVL_OK) {
        kvl_figure_insight(&figure, insight, sizeof insight);
        if (figure_options->bootstrap) warn_of_few_rounds(&figure);
        printf("%s.svg %s.png %s.csv\n  %s\n", base, base, base, insight);
    }
    kvl_figure_free(&figure);
    return status;
}

static bool some_has(const kvl_groups *groups, const char *metric) {
    for (size_t i = 0; i < groups->n; i++) {
        if (isfinite(kvl_group_median(&groups->items[i], metric))) return true;
    }
    return false;
}

/* Without --y: what a decode sweep is asked about first. */
static kvl_status draw_defaults(const values *v, const char *path, const kvl_groups *groups,
                                kvl_figure_options figure_options) {
    static const char *const metrics[] = {"decode_tok_s", "prefill_tok_s"};
    int n_drawn = 0;
    for (int i = 0; i < 2; i++) {
        figure_options.y = metrics[i];
        if (!some_has(groups, metrics[i])) continue;
        KVL_TRY(draw(v, path, groups, &figure_options));
        n_drawn++;
    }
    figure_options.y = "tpot_ms";
    figure_options.kind = KVL_FIGURE_STACK;
    figure_options.last_x = true;
    if (some_has(groups, "attention_share") && some_has(groups, "tpot_ms")) {
        KVL_TRY(draw(v, path, groups, &figure_options));
        n_drawn++;
    }
    return n_drawn ? KVL_OK
                   : kvl_fail(KVL_ERR_INPUT,
                              "%s: no trial that ended ok has a throughput; "
                              "name a metric with --y",
                              path);
}

/* --kind ratio: work items and systems of experiments/peers; axes are chosen by --where alone. */
static kvl_status draw_ratios(const values *v, const char *path, const kvl_groups *groups,
                              bool bootstrap) {
    char base[PATH_BYTES], insight[768];
    kvl_ratios ratios;
    if (v->x || v->y || v->by || v->log_x)
        return kvl_fail(KVL_ERR_INPUT, "--kind ratio has its own axes: no --x, --y, --by, --logx");
    KVL_TRY(kvl_ratios_make(groups, v->where, bootstrap, &ratios));
    base_name(v, path, "ratio", "", base);
    kvl_plot_options plot = {base, v->title, v->scripts, false};
    kvl_status status = kvl_plot_ratios(&ratios, &plot);
    if (status == KVL_OK) {
        kvl_ratios_insight(&ratios, insight, sizeof insight);
        printf("%s.svg %s.png %s.csv\n  %s\n", base, base, base, insight);
    }
    kvl_ratios_free(&ratios);
    return status;
}

/* --kind ledger, map: files beside the rows, a panel a trial. */
static kvl_status draw_side(const values *v, const char *path, const kvl_groups *groups,
                            const char *what) {
    char base[PATH_BYTES];
    kvl_side side;
    if (v->x || v->y || v->by || v->log_x)
        return kvl_fail(KVL_ERR_INPUT, "--kind %s has its own axes: no --x, --y, --by, --logx",
                        what);
    KVL_TRY(kvl_side_make(groups, what, v->where, path, &side));
    base_name(v, path, what, "", base);
    kvl_plot_options plot = {base, v->title, v->scripts, false};
    kvl_status status = kvl_plot_side(&side, &plot);
    if (status == KVL_OK) printf("%s.svg %s.png %s.csv\n  %s\n", base, base, base, side.insight);
    kvl_side_free(&side);
    return status;
}

/* --kind waste: a bar a trial of what the pool's slots are. */
static kvl_status draw_waste(const values *v, const char *path, const kvl_groups *groups) {
    char base[PATH_BYTES];
    kvl_waste waste;
    if (v->x || v->y || v->by || v->log_x)
        return kvl_fail(KVL_ERR_INPUT, "--kind waste has its own axes: no --x, --y, --by, --logx");
    KVL_TRY(kvl_waste_make(groups, v->where, &waste));
    base_name(v, path, "waste", "", base);
    kvl_plot_options plot = {base, v->title, v->scripts, false};
    kvl_status status = kvl_plot_waste(&waste, &plot);
    if (status == KVL_OK) printf("%s.svg %s.png %s.csv\n  %s\n", base, base, base, waste.insight);
    kvl_waste_free(&waste);
    return status;
}

static kvl_status pick(const char *option, const char *name, const char *const *names, size_t n,
                       int *index) {
    char line[512];
    if (!name) return KVL_OK;
    *index = kvl_names_find(name, names, n);
    if (*index >= 0) return KVL_OK;
    kvl_names_unknown(line, sizeof line, option, name, names, n);
    return kvl_fail(KVL_ERR_INPUT, "--%s: %s", option, line);
}

static kvl_status plot(const values *v, const char *const *paths, int n_paths) {
    static const char *const kinds[] = {"line", "bars", "stack", "ratio", "ledger", "map", "waste"};
    enum { N_KINDS = 7, RATIO = 3, LEDGER, MAP, WASTE };
    static const char *const intervals[] = {"minmax", "bootstrap"};
    int kind = -1, interval = 0, n_torn = 0;
    KVL_TRY(pick("kind", v->kind, kinds, N_KINDS, &kind));
    KVL_TRY(pick("interval", v->interval, intervals, 2, &interval));
    if (v->name && (!v->name[0] || strchr(v->name, '/')))
        return kvl_fail(KVL_ERR_INPUT, "--name '%s': a file name without '/'", v->name);
    if (v->out_dir && mkdir(v->out_dir, 0777) != 0 && errno != EEXIST)
        return kvl_fail(KVL_ERR_IO, "%s: cannot create the folder: %s", v->out_dir,
                        strerror(errno));
    kvl_figure_options figure_options = {.x = v->x,
                                         .y = v->y,
                                         .by = v->by,
                                         .where = v->where,
                                         .kind = (kvl_figure_kind)(kind + 1),
                                         .bootstrap = interval == 1};
    json_t *rows = NULL;
    kvl_groups groups = {0};
    kvl_status status = kvl_rows_load_all(paths, n_paths, &rows, &n_torn);
    if (n_torn) fprintf(stderr, "kvlab: %d torn last line(s) left out\n", n_torn);
    if (status == KVL_OK) status = kvl_groups_make(rows, &groups);
    if (status == KVL_OK && groups.n == 0)
        status = kvl_fail(KVL_ERR_INPUT, "%s: no rows to plot", paths[0]);
    if (status == KVL_OK)
        status = kind == WASTE       ? draw_waste(v, paths[0], &groups)
                 : kind >= LEDGER    ? draw_side(v, paths[0], &groups, kinds[kind])
                 : kind == RATIO     ? draw_ratios(v, paths[0], &groups, interval == 1)
                 : v->y || kind >= 0 ? draw(v, paths[0], &groups, &figure_options)
                                     : draw_defaults(v, paths[0], &groups, figure_options);
    kvl_groups_free(&groups);
    json_decref(rows);
    return status;
}

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {0};
    const char *paths[MAX_FILES];
    int n_paths;
    bool help_shown;
    kvl_status status =
        kvl_options_parse(self, argc, argv, &v, paths, MAX_FILES, &n_paths, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (status == KVL_OK && n_paths == 0)
        status = kvl_fail(KVL_ERR_INPUT, "plot needs a .jsonl file (see kvlab plot --help)");
    if (status == KVL_OK) status = plot(&v, paths, n_paths);
    return status == KVL_OK ? kvl_exit_flush(KVL_EXIT_OK) : kvl_exit_report(status);
}

const kvl_command kvl_command_plot = {
    "plot",
    "figures from rows: SVG, PNG and the CSV behind them",
    "F.jsonl... [--x AXIS --y METRIC --by AXIS,...]",
    "Without --y: decode and prefill throughput and a stack of decode phases. Trials that differ\n"
    "in an axis that is neither x, nor by, nor picked by --where are refused, never averaged.\n"
    "Prints the files of each figure and one line of what it shows.\n",
    options,
    sizeof options / sizeof *options,
    run};
