#include "harness/cmd_bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/clock.h"
#include "harness/exit.h"
#include "harness/sweep/row.h"
#include "harness/sweep/summary.h"
#include "harness/sweep/sweep.h"
#include "harness/trial/env.h"
#include "quant/nf4.h"

static kvl_status print_points(const kvl_experiment *experiment, const kvl_trials *trials) {
    for (size_t i = 0; i < trials->n; i++) {
        const kvl_trial *trial = &trials->items[i];
        json_t *line = json_object();
        json_object_set_new(line, "trial", json_string(trial->key));
        json_object_set_new(line, "axes", kvl_trial_axes(trial));
        json_object_set_new(line, "refused",
                            trial->refused[0] ? json_string(trial->refused) : json_null());
        char *text = json_dumps(line, JSON_COMPACT);
        json_decref(line);
        if (!text) return kvl_fail(KVL_ERR_OOM, "out of memory");
        printf("%s\n", text);
        free(text);
    }
    fprintf(stderr, "%zu trials, %zu of them refused; %zu equal points dropped%s\n", trials->n,
            trials->n_refused, trials->n_duplicates,
            experiment->axes[KVL_AXIS_PAGE_TOKENS].n > 1 && trials->n_duplicates
                ? " (page_tokens plays a part in paged only)"
                : "");
    return KVL_OK;
}

/* One line for each reason, so that a refused point is not found out at the end only. */
static void warn_refused(const kvl_trials *trials) {
    const char *last = "";
    size_t n_shown = 0;
    for (size_t i = 0; i < trials->n; i++) {
        const char *why = trials->items[i].refused;
        if (!why[0] || strcmp(why, last) == 0 || n_shown == 5) continue;
        fprintf(stderr, "kvlab: refused: %s\n", why);
        last = why;
        n_shown++;
    }
}

/* Nothing can run: the reason of the first point is the error. */
static kvl_status check_some_can_run(const kvl_trials *trials) {
    if (trials->n_refused < trials->n) return KVL_OK;
    if (trials->n == 1) return kvl_fail(KVL_ERR_INPUT, "%s", trials->items[0].refused);
    return kvl_fail(KVL_ERR_INPUT, "%s (and no other point can run)", trials->items[0].refused);
}

static kvl_status default_out(const char *workload, char *out, size_t bytes) {
    char utc[32];
    kvl_utc_compact(utc, sizeof utc);
    if (mkdir("results", 0777) != 0 && errno != EEXIST)
        return kvl_fail(KVL_ERR_IO, "results: cannot create the folder: %s (use --out FILE)",
                        strerror(errno));
    snprintf(out, bytes, "results/%s-%s.jsonl", workload, utc);
    return KVL_OK;
}

static void print_end(const kvl_workload_kind *kind, const kvl_sweep_summary *summary,
                      const char *out) {
    kvl_summary_print(stderr, kind, summary->rows);
    if (kind->note) kind->note(stderr, summary->rows);
    if (summary->signal)
        fprintf(stderr,
                "kvlab: interrupted with %zu of %zu rows kept; the same command%s goes on\n",
                summary->n_resumed + summary->n_written, summary->n_scheduled,
                out ? " with --out set to the file below" : "");
    if (summary->n_settled)
        fprintf(stderr, "kvlab: %zu rounds were not needed: their trials' intervals are narrow\n",
                summary->n_settled);
    if (summary->n_late)
        fprintf(stderr, "kvlab: no time was left for %zu trials and rounds\n", summary->n_late);
    if (out) fprintf(stderr, "%s\n", out);
}

static kvl_status sweep(const kvl_bench_values *v, const kvl_experiment *experiment,
                        const kvl_trials *trials, const char *build_id, int *code, json_t **rows) {
    char path[64];
    const char *out = v->out;
    kvl_sweep_summary summary = {0};
    if (!v->allow_refused) KVL_TRY(check_some_can_run(trials));
    if (!out) {
        KVL_TRY(default_out(experiment->workload.kind->name, path, sizeof path));
        out = path;
    } else if (strcmp(out, "-") == 0) {
        out = NULL;
    }
    warn_refused(trials);
    kvl_sweep_options sweep_options = {
        .workload = &experiment->workload,
        .trials = trials,
        .rounds = v->rounds,
        .until_ci_pct = v->until_ci_pct,
        .max_rounds = v->max_rounds,
        .max_time_s = v->max_time_s,
        .out = out,
        .side_dir = v->side_dir,
        .timeout_s = v->timeout_s,
        .memory_limit_bytes = v->memory_limit_mib ? (uint64_t)v->memory_limit_mib << 20
                                                  : kvl_memory_available() / 10 * 9,
        .retry_failed = v->retry_failed,
        .executable = "/proc/self/exe",
        .build_id = build_id,
    };
    kvl_status status = kvl_sweep_run(&sweep_options, &summary);
    if (status == KVL_OK) {
        print_end(experiment->workload.kind, &summary, out);
        *code = kvl_sweep_exit(&summary);
        *rows = json_incref(summary.rows);
    }
    kvl_sweep_summary_free(&summary);
    return status;
}

kvl_bench_values kvl_bench_defaults(void) {
    return (kvl_bench_values){.rounds = 3, .seed = 1, .timeout_s = 600, .max_rounds = 100};
}

kvl_status kvl_bench_sweep(const kvl_bench_values *v, const kvl_workload_kind *kind, int *code) {
    json_t *rows = NULL;
    kvl_status status = kvl_bench_sweep_rows(v, kind, code, &rows);
    json_decref(rows);
    return status;
}

kvl_status kvl_bench_sweep_rows(const kvl_bench_values *v, const kvl_workload_kind *kind, int *code,
                                json_t **rows) {
    *rows = NULL;
    char build_id[17];
    kvl_experiment experiment = {0};
    kvl_trials trials = {0};
    kvl_workload workload = {.kind = kind,
                             .seed = (uint64_t)v->seed,
                             .chunk = v->chunk,
                             .text = v->text,
                             .deterministic = v->deterministic,
                             .nf4_block = v->nf4_block,
                             .nf4_skip = v->nf4_skip,
                             .allow_nonfinite = v->allow_nonfinite,
                             .extra = v->extra};
    if (v->nf4_block) KVL_TRY(kvl_nf4_check_block("--nf4-block", v->nf4_block));
    KVL_TRY(kvl_build_id(build_id));
    KVL_TRY(kvl_experiment_init(&experiment, &workload, v->axes));
    kvl_status status = KVL_OK;
    if (v->dry_run && v->out && strcmp(v->out, "-") != 0) status = kvl_row_file_check(v->out);
    if (status == KVL_OK)
        status = kvl_experiment_expand(&experiment, kvl_experiment_refuse, build_id, &trials);
    if (status == KVL_OK)
        status = v->dry_run ? print_points(&experiment, &trials)
                            : sweep(v, &experiment, &trials, build_id, code, rows);
    if (status == KVL_OK && v->dry_run) status = check_some_can_run(&trials);
    kvl_trials_free(&trials);
    kvl_experiment_free(&experiment);
    return status;
}

int kvl_bench_run(const kvl_command *self, const kvl_workload_kind *kind, int argc, char **argv) {
    kvl_bench_values v = kvl_bench_defaults();
    int n_arguments, code = KVL_EXIT_OK;
    bool help_shown;
    kvl_status status = kvl_options_parse(self, argc, argv, &v, NULL, 0, &n_arguments, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (status == KVL_OK) status = kvl_bench_sweep(&v, kind, &code);
    return status == KVL_OK ? kvl_exit_flush(code) : kvl_exit_report(status);
}
