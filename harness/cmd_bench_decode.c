/* kvlab bench decode: a sweep of prefill and decode over any axes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/clock.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "harness/sweep/experiment.h"
#include "harness/sweep/row.h"
#include "harness/sweep/summary.h"
#include "harness/sweep/sweep.h"
#include "harness/trial/env.h"

typedef struct values {
    const char *axes[KVL_N_AXES];
    const char *text, *out;
    int64_t chunk, rounds, seed, memory_limit_mib;
    double timeout_s;
    bool deterministic, dry_run, retry_failed;
} values;

#define AXIS(id) offsetof(values, axes[id])

static const kvl_option options[] = {
    {"model", KVL_OPT_TEXT, AXIS(KVL_AXIS_MODEL), "M,...",
     "GGUF file, Hugging Face directory or synthetic:NAME", 0, 0},
    {"allocator", KVL_OPT_TEXT, AXIS(KVL_AXIS_ALLOCATOR), "NAME,...", "who owns slots (paged)", 0,
     0},
    {"attention", KVL_OPT_TEXT, AXIS(KVL_AXIS_ATTENTION), "NAME,...", "kernels (flash)", 0, 0},
    {"kv-dtype", KVL_OPT_TEXT, AXIS(KVL_AXIS_KV_DTYPE), "NAME,...", "stored K and V (bf16)", 0, 0},
    {"weights", KVL_OPT_TEXT, AXIS(KVL_AXIS_WEIGHTS), "NAME,...", "stored weights (bf16)", 0, 0},
    {"compute-dtype", KVL_OPT_TEXT, AXIS(KVL_AXIS_COMPUTE_DTYPE), "NAME,...",
     "activations entering linear layers and attention (bf16)", 0, 0},
    {"prompt", KVL_OPT_TEXT, AXIS(KVL_AXIS_PROMPT), "N,...", "prompt tokens (512)", 0, 0},
    {"output", KVL_OPT_TEXT, AXIS(KVL_AXIS_OUTPUT), "N,...", "tokens generated (64)", 0, 0},
    {"context", KVL_OPT_TEXT, AXIS(KVL_AXIS_CONTEXT), "N,...",
     "fill the cache with N seeded tokens instead of a prompt", 0, 0},
    {"batch", KVL_OPT_TEXT, AXIS(KVL_AXIS_BATCH), "N,...", "sequences at once (1)", 0, 0},
    {"page-tokens", KVL_OPT_TEXT, AXIS(KVL_AXIS_PAGE_TOKENS), "N,...",
     "tokens in a page (16); plays no part in contiguous", 0, 0},
    {"threads", KVL_OPT_TEXT, AXIS(KVL_AXIS_THREADS), "N,...", "threads, pinned (physical cores)",
     0, 0},
    {"isa", KVL_OPT_TEXT, AXIS(KVL_AXIS_ISA), "NAME,...", "instruction sets (the best here)", 0, 0},
    {"device", KVL_OPT_TEXT, AXIS(KVL_AXIS_DEVICE), "NAME,...", "devices (cpu)", 0, 0},
    {"text", KVL_OPT_TEXT, offsetof(values, text), "FILE",
     "take prompts from this text instead of random ids", 0, 0},
    {"chunk", KVL_OPT_INT, offsetof(values, chunk), "N", "prompt tokens in one engine step (512)",
     1, 1 << 20},
    {"deterministic", KVL_OPT_FLAG, offsetof(values, deterministic), NULL,
     "own kernels and fixed shapes: bit-exact whatever the batch", 0, 0},
    {"rounds", KVL_OPT_INT, offsetof(values, rounds), "N",
     "times each trial is measured, interleaved (3)", 1, 10000},
    {"seed", KVL_OPT_INT, offsetof(values, seed), "N", "prompts, synthetic data, order (1)", 0,
     9007199254740992.0},
    {"out", KVL_OPT_TEXT, offsetof(values, out), "FILE",
     "rows are appended here, finished ones are not run again (results/decode-UTC.jsonl); "
     "- is stdout",
     0, 0},
    {"timeout-s", KVL_OPT_REAL, offsetof(values, timeout_s), "S",
     "a trial and round is ended after S seconds (600)", 0.001, 1e9},
    {"memory-limit-mib", KVL_OPT_INT, offsetof(values, memory_limit_mib), "N",
     "... or above N MiB of resident memory (90 % of what is free)", 1, 1 << 30},
    {"retry-failed", KVL_OPT_FLAG, offsetof(values, retry_failed), NULL,
     "run again what ended other than ok", 0, 0},
    {"dry-run", KVL_OPT_FLAG, offsetof(values, dry_run), NULL,
     "list the trials with their keys and what is refused; run nothing", 0, 0},
};

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
                ? " (page_tokens plays no part in contiguous)"
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

static kvl_status default_out(char *out, size_t bytes) {
    char utc[32];
    kvl_utc_compact(utc, sizeof utc);
    if (mkdir("results", 0777) != 0 && errno != EEXIST)
        return kvl_fail(KVL_ERR_IO, "results: cannot create the folder: %s (use --out FILE)",
                        strerror(errno));
    snprintf(out, bytes, "results/decode-%s.jsonl", utc);
    return KVL_OK;
}

static void print_end(const kvl_sweep_summary *summary, const char *out) {
    kvl_summary_print(stderr, summary->rows);
    if (summary->signal)
        fprintf(stderr,
                "kvlab: interrupted with %zu of %zu rows kept; the same command%s goes on\n",
                summary->n_resumed + summary->n_written, summary->n_scheduled,
                out ? " with --out set to the file below" : "");
    if (out) fprintf(stderr, "%s\n", out);
}

static kvl_status sweep(const values *v, const kvl_experiment *experiment, const kvl_trials *trials,
                        const char *build_id, int *code) {
    char path[64];
    const char *out = v->out;
    kvl_sweep_summary summary = {0};
    KVL_TRY(check_some_can_run(trials));
    if (!out) {
        KVL_TRY(default_out(path, sizeof path));
        out = path;
    } else if (strcmp(out, "-") == 0) {
        out = NULL;
    }
    warn_refused(trials);
    kvl_sweep_options sweep_options = {
        .workload = &experiment->workload,
        .trials = trials,
        .rounds = v->rounds,
        .out = out,
        .timeout_s = v->timeout_s,
        .memory_limit_bytes = v->memory_limit_mib ? (uint64_t)v->memory_limit_mib << 20
                                                  : kvl_memory_available() / 10 * 9,
        .retry_failed = v->retry_failed,
        .executable = "/proc/self/exe",
        .build_id = build_id,
    };
    kvl_status status = kvl_sweep_run(&sweep_options, &summary);
    if (status == KVL_OK) {
        print_end(&summary, out);
        *code = kvl_sweep_exit(&summary);
    }
    kvl_sweep_summary_free(&summary);
    return status;
}

static kvl_status bench(const values *v, int *code) {
    char build_id[17];
    kvl_experiment experiment = {0};
    kvl_trials trials = {0};
    kvl_workload workload = {.name = "decode",
                             .seed = (uint64_t)v->seed,
                             .chunk = v->chunk,
                             .text = v->text,
                             .deterministic = v->deterministic};
    KVL_TRY(kvl_build_id(build_id));
    KVL_TRY(kvl_experiment_init(&experiment, &workload, v->axes));
    kvl_status status = KVL_OK;
    if (v->dry_run && v->out && strcmp(v->out, "-") != 0) status = kvl_row_file_check(v->out);
    if (status == KVL_OK)
        status = kvl_experiment_expand(&experiment, kvl_experiment_refuse, build_id, &trials);
    if (status == KVL_OK)
        status = v->dry_run ? print_points(&experiment, &trials)
                            : sweep(v, &experiment, &trials, build_id, code);
    if (status == KVL_OK && v->dry_run) status = check_some_can_run(&trials);
    kvl_trials_free(&trials);
    kvl_experiment_free(&experiment);
    return status;
}

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {.rounds = 3, .seed = 1, .timeout_s = 600};
    int n_arguments, code = KVL_EXIT_OK;
    bool help_shown;
    kvl_status status = kvl_options_parse(self, argc, argv, &v, NULL, 0, &n_arguments, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (status == KVL_OK) status = bench(&v, &code);
    return status == KVL_OK ? kvl_exit_flush(code) : kvl_exit_report(status);
}

const kvl_command kvl_command_bench_decode = {
    "bench decode",
    "sweep prefill and decode over any axes, verified before timed",
    "--model M [axes] [--rounds N] [--out F.jsonl]",
    "An axis is a comma list, numbers also as ranges: 512-8192*2 (factor), 1-9+4 (step).\n"
    "Example: kvlab bench decode --model M.gguf --allocator contiguous,paged \\\n"
    "           --attention eager,flash --kv-dtype bf16,fp8_e4m3 --prompt 512-4096*2\n"
    "Each trial and round is a process of its own and one row of the file; what the columns mean\n"
    "stands in results/README.md. Exit codes: 4 when a trial ended oom, timeout, crash or\n"
    "mismatch; 5 when nothing ran; 130/143 when interrupted (the same command goes on).\n",
    options,
    sizeof options / sizeof *options,
    run};
