/* kvlab run FILE.yaml|DIR...: sweeps, checks the claims, and reports. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "harness/claims/claim.h"
#include "harness/claims/report.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "harness/figures/plot.h"

enum { MAX_FILES = 256, PATH_BYTES = 4096 };

typedef struct values {
    const char *out_dir, *from, *report, *model;
    double max_time_s;
    bool dry_run, json, schema;
} values;

static const kvl_option options[] = {
    {"out-dir", KVL_OPT_TEXT, offsetof(values, out_dir), "DIR",
     "rows, figures and report.html are kept here; finished rows are not run again (results)", 0,
     0},
    {"report", KVL_OPT_TEXT, offsetof(values, report), "FILE",
     "write the page here (a folder's: DIR/report.html of --out-dir)", 0, 0},
    {"from", KVL_OPT_TEXT, offsetof(values, from), "F.jsonl",
     "run nothing: check against the rows of this file that answer the sweep", 0, 0},
    {"model", KVL_OPT_TEXT, offsetof(values, model), "M",
     "this model in place of the one that an experiment names", 0, 0},
    {"max-time-s", KVL_OPT_REAL, offsetof(values, max_time_s), "S",
     "start no trial of an experiment after S seconds (its own limit)", 0.001, 1e9},
    {"dry-run", KVL_OPT_FLAG, offsetof(values, dry_run), NULL,
     "check the files and list their trials; run nothing", 0, 0},
    {"json", KVL_OPT_FLAG, offsetof(values, json), NULL, "findings as one JSON object", 0, 0},
    {"schema", KVL_OPT_FLAG, offsetof(values, schema), NULL,
     "print the JSON schema of experiment files", 0, 0},
};

/* One experiment on its way from file to finding. */
typedef struct work {
    kvl_claim claim;
    json_t *rows;
    kvl_claim_result result;
    bool has_result;
    int sweep_code; /* exit code of its sweep */
    char *path, *svg;
    char command[PATH_BYTES], error[1024], no_figure[1024];
} work;

typedef struct batch {
    const values *v;
    work *items[MAX_FILES];
    size_t n;
    bool folder; /* a folder was named */
} batch;

/* ---- files --------------------------------------------------------------------------------------
 */

static kvl_status add_file(batch *b, const char *path) {
    if (b->n == MAX_FILES) return kvl_fail(KVL_ERR_INPUT, "more than %d experiments", MAX_FILES);
    work *w = calloc(1, sizeof *w);
    if (!w) return kvl_fail(KVL_ERR_OOM, "out of memory");
    b->items[b->n++] = w;
    w->path = strdup(path);
    if (!w->path) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_status status = kvl_claim_open(path, &w->claim);
    kvl_buffer excerpt = {0};
    kvl_yaml_excerpt(&w->claim.yaml, &excerpt);
    if (status != KVL_OK && excerpt.data) {
        /* The line belongs below its message, which names it. */
        fprintf(stderr, "kvlab: %s\n%s", kvl_message(), excerpt.data);
        kvl_fail(KVL_ERR_INPUT, "%s: not run", path);
    }
    kvl_buffer_free(&excerpt);
    return status;
}

static int is_yaml(const struct dirent *entry) {
    size_t length = strlen(entry->d_name);
    return length > 5 && strcmp(entry->d_name + length - 5, ".yaml") == 0 &&
           entry->d_name[0] != '.';
}

static kvl_status add_folder(batch *b, const char *folder) {
    struct dirent **entries = NULL;
    char path[PATH_BYTES];
    int n = scandir(folder, &entries, is_yaml, alphasort);
    kvl_status status = n < 0 ? kvl_fail(KVL_ERR_IO, "%s: %s", folder, strerror(errno)) : KVL_OK;
    for (int i = 0; i < n; i++) {
        const char *slash = folder[strlen(folder) - 1] == '/' ? "" : "/";
        snprintf(path, sizeof path, "%s%s%s", folder, slash, entries[i]->d_name);
        if (status == KVL_OK) status = add_file(b, path);
        free(entries[i]);
    }
    free(entries);
    b->folder = true;
    if (status == KVL_OK && n == 0)
        status = kvl_fail(KVL_ERR_INPUT, "%s: no .yaml file in this folder", folder);
    return status;
}

static kvl_status add_argument(batch *b, const char *path) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return add_folder(b, path);
    return add_file(b, path);
}

/* Rows and figures are kept by name: two of one would write into each other. */
static kvl_status check_names(const batch *b) {
    for (size_t i = 0; i < b->n; i++)
        for (size_t j = i + 1; j < b->n; j++)
            if (strcmp(b->items[i]->claim.name, b->items[j]->claim.name) == 0)
                return kvl_fail(KVL_ERR_INPUT, "%s and %s: two experiments of one name",
                                b->items[i]->path, b->items[j]->path);
    return KVL_OK;
}

/* ---- one experiment -----------------------------------------------------------------------------
 */

static kvl_status use_model(const values *v, kvl_claim *claim) {
    if (!v->model || !kvl_workload_use(claim->kind, KVL_AXIS_MODEL)) return KVL_OK;
    kvl_axis_values_free(&claim->axis_values[KVL_AXIS_MODEL]);
    claim->values.axes[KVL_AXIS_MODEL] = v->model;
    return kvl_experiment_parse_axis(claim->kind, KVL_AXIS_MODEL, v->model,
                                     &claim->axis_values[KVL_AXIS_MODEL]);
}

static kvl_status get_rows(const values *v, work *w) {
    json_t *all = NULL;
    char path[PATH_BYTES];
    int n_torn = 0;
    if (v->from) {
        KVL_TRY(kvl_rows_load_all(&v->from, 1, &all, &n_torn));
        if (n_torn) fprintf(stderr, "kvlab: %s: a torn last line is left out\n", v->from);
        w->rows = kvl_claim_select(&w->claim, all);
        json_decref(all);
        return w->rows ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    snprintf(path, sizeof path, "%s/%s.jsonl", v->out_dir, w->claim.name);
    w->claim.values.out = path;
    w->claim.values.dry_run = v->dry_run;
    w->claim.values.allow_refused = true;
    if (v->max_time_s > 0) w->claim.values.max_time_s = v->max_time_s;
    kvl_status status =
        kvl_bench_sweep_rows(&w->claim.values, w->claim.kind, &w->sweep_code, &w->rows);
    w->claim.values.out = NULL;
    return status;
}

static kvl_status read_text(const char *path, char **out) {
    kvl_file file;
    KVL_TRY(kvl_file_open(path, &file));
    *out = strndup((const char *)file.data, file.bytes);
    kvl_file_close(&file);
    return *out ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
}

static kvl_status draw(const values *v, work *w) {
    static const char *const kinds[] = {"line", "bars", "stack"};
    const kvl_claim *c = &w->claim;
    char base[PATH_BYTES], path[PATH_BYTES + 8];
    kvl_figure figure;
    kvl_figure_options figure_options = {.x = c->plot_x,
                                         .y = c->plot_y ? c->plot_y : c->metric,
                                         .by = c->plot_by,
                                         .where = c->plot_where,
                                         .bootstrap = true};
    for (int i = 0; c->plot_kind && i < 3; i++)
        if (strcmp(c->plot_kind, kinds[i]) == 0) figure_options.kind = (kvl_figure_kind)(i + 1);
    KVL_TRY(kvl_figure_make(&w->result.groups, &figure_options, &figure));
    snprintf(base, sizeof base, "%s/%s-%s", v->out_dir, c->name, figure.y);
    kvl_plot_options plot = {.base = base};
    kvl_status status = kvl_plot_figure(&figure, &plot);
    kvl_figure_free(&figure);
    snprintf(path, sizeof path, "%s.svg", base);
    return status == KVL_OK ? read_text(path, &w->svg) : status;
}

/* The sweep alone, as a command: what the file says in other words. */
static void describe(const values *v, work *w) {
    const kvl_claim *c = &w->claim;
    size_t n = 0, bytes = sizeof w->command;
    n += (size_t)snprintf(w->command, bytes, "kvlab run %.1000s%s%.1000s\nkvlab bench %s", w->path,
                          v->model ? " --model " : "", v->model ? v->model : "",
                          c->kind->command ? c->kind->command : c->kind->name);
    for (size_t i = 0; i < c->kind->n_axes && n < bytes; i++) {
        const kvl_axis_use *use = &c->kind->axes[i];
        const char *text = c->values.axes[use->id];
        const char *option = use->option ? use->option : kvl_axis_of(use->id)->option;
        if (text) n += (size_t)snprintf(w->command + n, bytes - n, " --%s '%s'", option, text);
    }
    if (n < bytes)
        snprintf(w->command + n, bytes - n, " --rounds %lld --seed %lld",
                 (long long)c->values.rounds, (long long)c->values.seed);
}

static kvl_status run_one(const values *v, work *w) {
    describe(v, w);
    kvl_status status = use_model(v, &w->claim);
    if (!v->json && !v->from) fprintf(stderr, "%s: %s\n", w->claim.name, w->claim.claim);
    if (status == KVL_OK) status = get_rows(v, w);
    if (status != KVL_OK || v->dry_run) return status;
    if (w->sweep_code == KVL_EXIT_SIGINT || w->sweep_code == KVL_EXIT_SIGTERM) return KVL_OK;
    if (json_array_size(w->rows) == 0)
        return kvl_fail(KVL_ERR_INPUT, "%s: %s holds no row that answers its sweep", w->path,
                        v->from ? v->from : "its file");
    status = kvl_claim_evaluate(&w->claim, w->rows, &w->result);
    w->has_result = status == KVL_OK;
    if (status == KVL_OK && !v->from && draw(v, w) != KVL_OK)
        snprintf(w->no_figure, sizeof w->no_figure, "No figure: %s", kvl_message());
    return status;
}

static kvl_report_item item_of(const work *w) {
    return (kvl_report_item){.claim = &w->claim,
                             .result = w->has_result ? &w->result : NULL,
                             .error = w->error[0] ? w->error : NULL,
                             .svg = w->svg,
                             .no_figure = w->no_figure[0] ? w->no_figure : NULL,
                             .command = w->command};
}

/* ---- all ----------------------------------------------------------------------------------------
 */

/* A claim about how trials end expects failures. */
static bool expects_failure(const kvl_claim *claim) {
    for (size_t c = 0; c < claim->n_checks; c++)
        for (int i = 0; i < claim->checks[c].n_nodes; i++)
            if (strcmp(claim->checks[c].nodes[i].name, "outcome") == 0) return true;
    return false;
}

static int exit_of(const batch *b) {
    bool error = false, failed = false, negative = false, unsure = false;
    for (size_t i = 0; i < b->n; i++) {
        const work *w = b->items[i];
        error = error || w->error[0];
        failed = failed || (w->sweep_code == KVL_EXIT_TRIALS && !expects_failure(&w->claim));
        negative = negative || (w->has_result && w->result.finding == KVL_HOLDS_NOT);
        unsure = unsure || (w->has_result && w->result.finding == KVL_CANNOT_TELL);
    }
    return error      ? KVL_EXIT_INPUT
           : failed   ? KVL_EXIT_TRIALS
           : negative ? KVL_EXIT_NEGATIVE
           : unsure   ? KVL_EXIT_CANNOT_TELL
                      : KVL_EXIT_OK;
}

static kvl_status write_report(const batch *b) {
    char path[PATH_BYTES];
    const char *target = b->v->report;
    if (!target && !b->folder) return KVL_OK;
    if (!target) snprintf(path, sizeof path, "%s/report.html", b->v->out_dir);
    kvl_report_item *items = calloc(b->n, sizeof *items);
    if (!items) return kvl_fail(KVL_ERR_OOM, "out of memory");
    const json_t *env = NULL;
    for (size_t i = 0; i < b->n; i++) {
        items[i] = item_of(b->items[i]);
        if (!env) env = json_object_get(json_array_get(b->items[i]->rows, 0), "env");
    }
    kvl_buffer page = {0};
    kvl_report_html(items, b->n, env, &page);
    kvl_status status = page.failed
                            ? kvl_fail(KVL_ERR_OOM, "out of memory")
                            : kvl_file_write_all(target ? target : path, page.data, page.bytes);
    if (status == KVL_OK) fprintf(stderr, "%s\n", target ? target : path);
    kvl_buffer_free(&page);
    free(items);
    return status;
}

static void print_json(const batch *b, int code) {
    json_t *list = json_array();
    for (size_t i = 0; i < b->n; i++) {
        kvl_report_item item = item_of(b->items[i]);
        json_array_append_new(list, kvl_report_json(&item));
    }
    json_t *all = json_pack("{s:i,s:s,s:i,s:o}", "schema_version", 1, "command", "run", "exit_code",
                            code, "experiments", list);
    char *text = json_dumps(all, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    if (text) printf("%s\n", text);
    free(text);
    json_decref(all);
}

static void print_text(const work *w) {
    kvl_report_item item = item_of(w);
    kvl_buffer text = {0};
    kvl_report_text(&item, &text);
    if (text.data) fwrite(text.data, 1, text.bytes, stdout);
    fflush(stdout);
    kvl_buffer_free(&text);
}

static kvl_status run_all(batch *b, int *code) {
    const values *v = b->v;
    if (!v->dry_run && !v->from && mkdir(v->out_dir, 0777) != 0 && errno != EEXIST)
        return kvl_fail(KVL_ERR_IO, "%s: cannot create the folder: %s", v->out_dir,
                        strerror(errno));
    for (size_t i = 0; i < b->n; i++) {
        work *w = b->items[i];
        kvl_status status = run_one(v, w);
        /* One that cannot run does not keep the others from it. */
        if (status != KVL_OK && (b->n == 1 || kvl_exit_of(status) == KVL_EXIT_DEFECT))
            return status;
        if (status != KVL_OK) snprintf(w->error, sizeof w->error, "%s", kvl_message());
        if (w->sweep_code == KVL_EXIT_SIGINT || w->sweep_code == KVL_EXIT_SIGTERM) {
            *code = w->sweep_code;
            return KVL_OK;
        }
        if (!v->dry_run && !v->json) print_text(w);
    }
    *code = exit_of(b);
    if (v->dry_run) return KVL_OK;
    if (v->json) print_json(b, *code);
    return write_report(b);
}

static void free_all(batch *b) {
    for (size_t i = 0; i < b->n; i++) {
        work *w = b->items[i];
        kvl_claim_result_free(&w->result);
        kvl_claim_free(&w->claim);
        json_decref(w->rows);
        free(w->svg);
        free(w->path);
        free(w);
    }
}

static kvl_status print_schema(void) {
    json_t *schema = kvl_claim_schema();
    char *text = json_dumps(schema, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(schema);
    if (!text) return kvl_fail(KVL_ERR_OOM, "out of memory");
    printf("%s\n", text);
    free(text);
    return KVL_OK;
}

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {.out_dir = "results"};
    const char *paths[MAX_FILES];
    int n_paths, code = KVL_EXIT_OK;
    bool help_shown;
    kvl_status status =
        kvl_options_parse(self, argc, argv, &v, paths, MAX_FILES, &n_paths, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    batch *b = calloc(1, sizeof *b);
    if (status == KVL_OK && !b) status = kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status == KVL_OK && v.schema) {
        status = print_schema();
    } else if (status == KVL_OK && n_paths == 0) {
        status = kvl_fail(KVL_ERR_INPUT, "run needs an experiment or a folder of them (see kvlab "
                                         "run --help)");
    } else if (status == KVL_OK) {
        b->v = &v;
        /* All files are read before the first runs. */
        for (int i = 0; status == KVL_OK && i < n_paths; i++) status = add_argument(b, paths[i]);
        if (status == KVL_OK) status = check_names(b);
        if (status == KVL_OK) status = run_all(b, &code);
    }
    if (b) free_all(b);
    free(b);
    return status == KVL_OK ? kvl_exit_flush(code) : kvl_exit_report(status);
}

const kvl_command kvl_command_run = {
    "run",
    "experiments: sweep, check a claim, report whether it holds here",
    "FILE.yaml|DIR... [--out-dir DIR] [--from F.jsonl]",
    "An experiment states a claim, the sweep that tests it and what must show; the answer is\n"
    "'holds', 'does not hold' or 'cannot tell here', with the numbers. A folder's page is\n"
    "report.html. harness/claims/check.h has the grammar of checks, experiments/schema.json that\n"
    "of files. Exit codes: 0 all hold, 1 one does not, 3 one cannot be told (noise, a missing\n"
    "device), 4 a trial failed, 2 bad input.\n"
    "Example: kvlab run experiments/kv-formula.yaml\n"
    "         kvlab run experiments/\n",
    options,
    sizeof options / sizeof *options,
    run};
