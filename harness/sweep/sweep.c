#define _GNU_SOURCE
#include "harness/sweep/sweep.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/clock.h"
#include "core/rng.h"
#include "harness/exit.h"
#include "harness/sweep/progress.h"
#include "harness/sweep/row.h"
#include "harness/sweep/settle.h"
#include "harness/sweep/sweep_row.h"
#include "harness/trial/ceiling.h"
#include "harness/trial/env.h"

typedef struct job {
    size_t trial;
    int64_t round;
} job;

typedef struct sweep {
    const kvl_sweep_options *options;
    kvl_sweep_summary *summary;
    kvl_row_file *file;
    char run[48];
    json_t *env;
    json_t *finished;         /* object: "key/round" of rows that stand */
    bool *settled;            /* [n_trials] */
    int64_t rounds;           /* at most */
    const char **ended_badly; /* [n_trials] outcome of an earlier round that was not ok, or NULL */
    job *jobs;                /* those still to run, in order */
    size_t n_jobs;
    kvl_ceilings ceilings;
    kvl_progress progress;
} sweep;

static volatile sig_atomic_t stop_signal;

static void on_signal(int signal) {
    stop_signal = signal;
}

static void catch_signals(struct sigaction old[2]) {
    struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: poll must wake up */
    sigemptyset(&action.sa_mask);
    stop_signal = 0;
    sigaction(SIGINT, &action, &old[0]);
    sigaction(SIGTERM, &action, &old[1]);
}

static void restore_signals(const struct sigaction old[2]) {
    sigaction(SIGINT, &old[0], NULL);
    sigaction(SIGTERM, &old[1], NULL);
}

static void job_key(const char *trial, int64_t round, char out[48]) {
    snprintf(out, 48, "%.16s/%lld", trial, (long long)round);
}

/* Reads what the file already holds: rows of these trials and rounds are kept for the summary and
 * not run again, unless they failed and a retry was asked for. */
static kvl_status load_finished(sweep *s) {
    json_t *rows = NULL, *wanted = json_object();
    KVL_TRY(kvl_rows_load(s->options->out, &rows, NULL));
    for (size_t i = 0; i < s->options->trials->n; i++)
        json_object_set_new(wanted, s->options->trials->items[i].key, json_integer((json_int_t)i));
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        const char *trial = json_string_value(json_object_get(row, "trial"));
        int64_t round = json_integer_value(json_object_get(row, "round"));
        const json_t *index = json_object_get(wanted, trial);
        kvl_outcome outcome = kvl_outcome_find(json_string_value(json_object_get(row, "outcome")));
        if (!index || round < 0 || round >= s->rounds) continue;
        if (outcome != KVL_OUTCOME_OK && s->options->retry_failed) continue;
        char key[48];
        job_key(trial, round, key);
        json_object_set(s->finished, key, row); /* the later row of a round counts */
        if (outcome != KVL_OUTCOME_OK && outcome != KVL_OUTCOME_SKIPPED)
            s->ended_badly[json_integer_value(index)] =
                kvl_outcome_name(outcome < KVL_N_OUTCOMES ? outcome : KVL_OUTCOME_CRASH);
    }
    const char *key;
    json_t *row;
    json_object_foreach(s->finished, key, row) {
        json_array_append(s->summary->rows, row);
        kvl_outcome outcome = kvl_outcome_find(json_string_value(json_object_get(row, "outcome")));
        if (outcome < KVL_N_OUTCOMES) s->summary->n_rows[outcome]++;
        s->summary->n_resumed++;
    }
    json_decref(wanted);
    json_decref(rows);
    return KVL_OK;
}

/* Rounds outside, trials in random order inside. A refused trial has one row only. */
static kvl_status schedule(sweep *s) {
    size_t n_trials = s->options->trials->n;
    size_t *order = calloc(n_trials + 1, sizeof *order);
    s->jobs = calloc(n_trials * (size_t)s->rounds + 1, sizeof *s->jobs);
    if (!order || !s->jobs) {
        free(order);
        return kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    for (int64_t round = 0; round < s->rounds; round++) {
        kvl_rng rng = kvl_rng_make(s->options->workload->seed, (uint64_t)round);
        for (size_t i = 0; i < n_trials; i++) order[i] = i;
        for (size_t i = n_trials; i > 1; i--) { /* Fisher-Yates */
            size_t j = kvl_rng_below(&rng, i), swap = order[i - 1];
            order[i - 1] = order[j];
            order[j] = swap;
        }
        for (size_t i = 0; i < n_trials; i++) {
            const kvl_trial *trial = &s->options->trials->items[order[i]];
            char key[48];
            job_key(trial->key, round, key);
            if (trial->refused[0] && round > 0) continue;
            s->summary->n_scheduled++;
            if (!json_object_get(s->finished, key)) s->jobs[s->n_jobs++] = (job){order[i], round};
        }
    }
    free(order);
    return KVL_OK;
}

/* Axes that vary over the sweep, for the progress line. */
static void trial_label(const sweep *s, const job *todo, char *out, size_t out_bytes) {
    const kvl_trials *trials = s->options->trials;
    const kvl_trial *trial = &trials->items[todo->trial];
    size_t n = 0;
    out[0] = '\0';
    for (size_t u = 0; u < trial->kind->n_axes; u++) {
        kvl_axis_id a = trial->kind->axes[u].id;
        const kvl_axis *axis = kvl_axis_of(a);
        bool varies = false;
        for (size_t i = 1; i < trials->n && !varies; i++)
            varies = axis->numeric
                         ? trials->items[i].numbers[a] != trials->items[0].numbers[a]
                         : strcmp(trials->items[i].names[a], trials->items[0].names[a]) != 0;
        if (!varies || n + 2 >= out_bytes) continue;
        int wrote = axis->numeric ? snprintf(out + n, out_bytes - n, "%s %lld, ", axis->name,
                                             (long long)trial->numbers[a])
                                  : snprintf(out + n, out_bytes - n, "%s, ", trial->names[a]);
        n += wrote > 0 ? (size_t)wrote : 0;
    }
    if (n < out_bytes) snprintf(out + n, out_bytes - n, "round %lld", (long long)todo->round);
}

static kvl_status keep_row(sweep *s, json_t *row) {
    kvl_status status = KVL_OK;
    if (!row) return kvl_fail(KVL_ERR_OOM, "out of memory");
    if (s->file) {
        status = kvl_row_file_append(s->file, row);
    } else {
        char *text = json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(9));
        if (!text || printf("%s\n", text) < 0 || fflush(stdout) != 0)
            status = kvl_fail(KVL_ERR_IO, "stdout: cannot write a row");
        free(text);
    }
    if (status != KVL_OK) return status;
    kvl_outcome outcome = kvl_outcome_find(json_string_value(json_object_get(row, "outcome")));
    s->summary->n_rows[outcome]++;
    s->summary->n_written++;
    json_array_append(s->summary->rows, row);
    return KVL_OK;
}

static kvl_status run_child(sweep *s, const kvl_row_context *context, kvl_child_result *result) {
    char *spec = kvl_trial_spec(context);
    if (!spec) return kvl_fail(KVL_ERR_OOM, "out of memory");
    const char *argv[] = {"kvlab", "trial", spec, NULL};
    kvl_child_options child = {.executable = s->options->executable,
                               .argv = argv,
                               .isa = context->trial->names[KVL_AXIS_ISA],
                               .timeout_s = s->options->timeout_s,
                               .memory_limit_bytes = s->options->memory_limit_bytes,
                               .stop = &stop_signal};
    kvl_status status = kvl_child_run(&child, result);
    free(spec);
    return status;
}

static kvl_status run_job(sweep *s, const job *todo) {
    const kvl_trial *trial = &s->options->trials->items[todo->trial];
    char label[160], reason[320] = "";
    json_t *env = kvl_env_now(s->env);
    kvl_row_context context = {s->options, trial, s->run, todo->round, NULL, env};
    kvl_child_result child = {0};
    kvl_status status = KVL_OK;
    json_t *row = NULL;
    trial_label(s, todo, label, sizeof label);
    context.ceilings = kvl_ceilings_of(&s->ceilings, trial);
    if (trial->refused[0]) {
        row = kvl_sweep_row(&context, NULL, KVL_OUTCOME_UNSUPPORTED, trial->refused);
    } else if (s->ended_badly[todo->trial]) {
        snprintf(reason, sizeof reason, "an earlier round ended %s", s->ended_badly[todo->trial]);
        row = kvl_sweep_row(&context, NULL, KVL_OUTCOME_SKIPPED, reason);
    } else {
        kvl_progress_running(&s->progress, label);
        status = run_child(s, &context, &child);
        if (status == KVL_OK && child.end != KVL_CHILD_STOPPED)
            row = kvl_sweep_row(&context, &child, KVL_OUTCOME_CRASH, "");
    }
    if (row) {
        kvl_outcome outcome = kvl_outcome_find(json_string_value(json_object_get(row, "outcome")));
        status = keep_row(s, row);
        if (outcome != KVL_OUTCOME_OK && outcome != KVL_OUTCOME_SKIPPED)
            s->ended_badly[todo->trial] = kvl_outcome_name(outcome);
        if (status == KVL_OK)
            kvl_progress_done(&s->progress, label, kvl_outcome_name(outcome),
                              json_string_value(json_object_get(row, "reason")), child.wall_s);
    }
    kvl_child_result_free(&child);
    json_decref(row);
    json_decref(env);
    return status;
}

/* A round beyond the fewest, of a trial whose intervals are narrow enough. */
static bool is_settled(sweep *s, const job *todo) {
    const kvl_sweep_options *options = s->options;
    if (options->until_ci_pct <= 0 || todo->round < options->rounds) return false;
    if (!s->settled[todo->trial])
        s->settled[todo->trial] =
            kvl_trial_is_settled(options->workload->kind, s->summary->rows,
                                 options->trials->items[todo->trial].key, options->until_ci_pct);
    return s->settled[todo->trial];
}

static kvl_status run_jobs(sweep *s) {
    const double limit_s = s->options->max_time_s;
    uint64_t start = kvl_now_ns();
    for (size_t i = 0; i < s->n_jobs && !stop_signal; i++) {
        if (limit_s > 0 && (double)(kvl_now_ns() - start) * 1e-9 >= limit_s) {
            s->summary->n_late = s->n_jobs - i;
            break;
        }
        if (is_settled(s, &s->jobs[i]))
            s->summary->n_settled++;
        else
            KVL_TRY(run_job(s, &s->jobs[i]));
    }
    return KVL_OK;
}

/* One calibration for each kind of ceiling that a job still to run needs. A failed one costs the
 * percentages, not the sweep. */
static void calibrate(sweep *s) {
    for (size_t i = 0; i < s->n_jobs && !stop_signal; i++) {
        const kvl_trial *trial = &s->options->trials->items[s->jobs[i].trial];
        if (trial->refused[0] || s->ended_badly[s->jobs[i].trial] ||
            kvl_ceilings_known(&s->ceilings, trial))
            continue;
        kvl_progress_running(&s->progress, "calibrating ceilings");
        if (kvl_ceilings_calibrate(&s->ceilings, trial, s->options->executable, &stop_signal) ==
            KVL_OK)
            continue;
        kvl_progress_clear(&s->progress);
        fprintf(stderr, "kvlab: %s\n", kvl_message());
    }
}

static kvl_status open_sweep(sweep *s) {
    char utc[32];
    uint64_t cut_bytes = 0;
    s->summary->rows = json_array();
    s->finished = json_object();
    s->ended_badly = calloc(s->options->trials->n + 1, sizeof *s->ended_badly);
    s->settled = calloc(s->options->trials->n + 1, sizeof *s->settled);
    s->rounds = s->options->rounds;
    if (s->options->until_ci_pct > 0 && s->options->max_rounds > s->rounds)
        s->rounds = s->options->max_rounds;
    s->env = kvl_env_static(s->options->build_id);
    if (!s->summary->rows || !s->finished || !s->ended_badly || !s->settled || !s->env)
        return kvl_fail(KVL_ERR_OOM, "out of memory");
    uint64_t salt[2] = {kvl_now_ns(), (uint64_t)getpid()};
    kvl_utc_compact(utc, sizeof utc);
    snprintf(s->run, sizeof s->run, "%s-%08llx", utc,
             (unsigned long long)(XXH64(salt, sizeof salt, 0) & 0xffffffff));
    if (s->options->out) {
        KVL_TRY(kvl_row_file_open(s->options->out, &s->file, &cut_bytes));
        KVL_TRY(load_finished(s));
    }
    if (cut_bytes)
        fprintf(stderr, "kvlab: %s: cut a torn last line of %llu bytes\n", s->options->out,
                (unsigned long long)cut_bytes);
    KVL_TRY(schedule(s));
    if (s->summary->n_resumed && !s->options->quiet)
        fprintf(stderr, "kvlab: %s holds %zu of %zu rows already; they are not run again\n",
                s->options->out, s->summary->n_scheduled - s->n_jobs, s->summary->n_scheduled);
    return KVL_OK;
}

static kvl_status close_sweep(sweep *s, kvl_status status) {
    kvl_progress_clear(&s->progress);
    kvl_status closed = kvl_row_file_close(s->file);
    free(s->jobs);
    free(s->ended_badly);
    free(s->settled);
    json_decref(s->finished);
    json_decref(s->env);
    kvl_ceilings_free(&s->ceilings);
    return status == KVL_OK ? closed : status;
}

kvl_status kvl_sweep_run(const kvl_sweep_options *options, kvl_sweep_summary *summary) {
    struct sigaction old[2];
    memset(summary, 0, sizeof *summary);
    sweep s = {.options = options, .summary = summary};
    catch_signals(old);
    kvl_progress_start(&s.progress, 0, true);
    kvl_status status = open_sweep(&s);
    if (status == KVL_OK) {
        kvl_progress_start(&s.progress, s.n_jobs, options->quiet);
        calibrate(&s);
    }
    if (status == KVL_OK) status = run_jobs(&s);
    status = close_sweep(&s, status);
    summary->signal = stop_signal;
    restore_signals(old);
    return status;
}

void kvl_sweep_summary_free(kvl_sweep_summary *summary) {
    json_decref(summary->rows);
    memset(summary, 0, sizeof *summary);
}

int kvl_sweep_exit(const kvl_sweep_summary *summary) {
    const size_t *n = summary->n_rows;
    size_t n_failed = n[KVL_OUTCOME_OOM] + n[KVL_OUTCOME_TIMEOUT] + n[KVL_OUTCOME_CRASH] +
                      n[KVL_OUTCOME_MISMATCH];
    if (summary->signal) return summary->signal == SIGTERM ? KVL_EXIT_SIGTERM : KVL_EXIT_SIGINT;
    if (n[KVL_OUTCOME_OK] + n_failed == 0) return KVL_EXIT_NOTHING;
    return n_failed ? KVL_EXIT_TRIALS : KVL_EXIT_OK;
}
