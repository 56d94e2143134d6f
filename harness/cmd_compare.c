/* kvlab compare A B: faster, slower, the same, or cannot tell; an exit code for a CI to gate on. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/commands.h"
#include "harness/compare/compare.h"
#include "harness/exit.h"
#include "harness/figures/group.h"

typedef struct values {
    const char *by, *across, *metrics, *thresholds, *fail_on;
    double effect_pct;
    bool json;
} values;

static const kvl_option options[] = {
    {"by", KVL_OPT_TEXT, offsetof(values, by), "AXIS,...",
     "axes that trials are paired on (all); one that differs and is not named is an error", 0, 0},
    {"across", KVL_OPT_TEXT, offsetof(values, across), "AXIS,...",
     "axes in which A and B differ, what is compared (those that pick one value of each file)", 0,
     0},
    {"metric", KVL_OPT_TEXT, offsetof(values, metrics), "NAME,...",
     "what is compared, NAME:lower or NAME:higher where the direction is not known (throughputs, "
     "time_us, quality)",
     0, 0},
    {"min-effect", KVL_OPT_REAL, offsetof(values, effect_pct), "PCT",
     "smallest change that counts (1)", 0, 1e6},
    {"threshold", KVL_OPT_TEXT, offsetof(values, thresholds), "NAME=PCT,...",
     "the same of single metrics", 0, 0},
    {"fail-on", KVL_OPT_TEXT, offsetof(values, fail_on), "VERDICT,...",
     "exit 1 for these alone: slower, unsure, missing, failed, faster, same, new, crossed, none", 0,
     0},
    {"json", KVL_OPT_FLAG, offsetof(values, json), NULL, "one JSON object instead of lines", 0, 0},
};

static volatile sig_atomic_t stop_signal;

static void on_signal(int signal) {
    stop_signal = signal;
}

/* A file of rows and, behind a ':', which of its trials: "x.jsonl:attention=eager,batch=1". */
typedef struct source {
    char path[4096], name[4200];
    const char *where;
    json_t *rows;
    kvl_groups groups;
} source;

static kvl_status open_source(const char *letter, const char *argument, source *s) {
    const char *colon = strrchr(argument, ':');
    int n_torn = 0;
    bool picks = colon && strchr(colon, '=') && access(argument, F_OK) != 0;
    size_t length = picks ? (size_t)(colon - argument) : strlen(argument);
    if (length >= sizeof s->path)
        return kvl_fail(KVL_ERR_INPUT, "%s: the name is longer than %zu bytes", letter,
                        sizeof s->path - 1);
    snprintf(s->path, sizeof s->path, "%.*s", (int)length, argument);
    snprintf(s->name, sizeof s->name, "%s (%s)", letter, s->path);
    s->where = picks ? colon + 1 : NULL;
    const char *path = s->path;
    KVL_TRY(kvl_rows_load_all(&path, 1, &s->rows, &n_torn));
    if (n_torn) fprintf(stderr, "kvlab: %s: a torn last line is left out\n", s->path);
    return kvl_groups_make(s->rows, &s->groups);
}

static void close_source(source *s) {
    kvl_groups_free(&s->groups);
    json_decref(s->rows);
}

static void print_json(json_t *object) {
    char *text = json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    if (text) printf("%s\n", text);
    free(text);
    json_decref(object);
}

/* Rounds measured while the machine was disturbed: what makes intervals wide. */
static void warn_noisy(const source *s) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(s->rows); i++) {
        const json_t *env = json_object_get(json_array_get(s->rows, i), "env");
        const char *grade = json_string_value(json_object_get(env, "noise_grade"));
        n += grade && (strcmp(grade, "noisy") == 0 || strcmp(grade, "loud") == 0);
    }
    if (n)
        fprintf(stderr, "kvlab: %s: the machine was noisy in %zu of %zu rounds\n", s->path, n,
                json_array_size(s->rows));
}

static kvl_status print_result(const values *v, const kvl_compare_result *result, int *code) {
    KVL_TRY(kvl_compare_exit(result, v->fail_on, code));
    if (v->json) {
        print_json(kvl_compare_json(result, *code));
    } else {
        kvl_buffer text = {0};
        kvl_compare_text(result, &text);
        bool failed = text.failed;
        if (text.data) fwrite(text.data, 1, text.bytes, stdout);
        kvl_buffer_free(&text);
        if (failed) return kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    if (result->signal) fprintf(stderr, "kvlab: interrupted: the comparison is not whole\n");
    if (result->other_run && !result->signal)
        fprintf(stderr, "kvlab: A and B were not measured in one run: what changed on the machine "
                        "between them is in no interval\n");
    return KVL_OK;
}

static kvl_status compare(const values *v, const char *const arguments[2], int *code) {
    source *sources = calloc(2, sizeof *sources);
    kvl_compare_result result = {0};
    if (!sources) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_status status = open_source("A", arguments[0], &sources[0]);
    if (status == KVL_OK) status = open_source("B", arguments[1], &sources[1]);
    bool empty = !sources[0].groups.n || !sources[1].groups.n;
    if (status == KVL_OK && empty) {
        *code = KVL_EXIT_NOTHING;
        kvl_fail(KVL_OK, "%s holds no rows", sources[!!sources[0].groups.n].name);
    } else if (status == KVL_OK) {
        kvl_side a = {sources[0].name, sources[0].where, &sources[0].groups};
        kvl_side b = {sources[1].name, sources[1].where, &sources[1].groups};
        kvl_compare_options compare_options = {.by = v->by,
                                               .across = v->across,
                                               .metrics = v->metrics,
                                               .thresholds = v->thresholds,
                                               .effect_pct = v->effect_pct,
                                               .fail_on = v->fail_on,
                                               .stop = &stop_signal};
        status = kvl_compare_run(&a, &b, &compare_options, &result);
        if (status == KVL_OK) status = print_result(v, &result, code);
        for (int i = 0; status == KVL_OK && i < 2; i++) warn_noisy(&sources[i]);
        if (status == KVL_OK && *code == KVL_EXIT_NOTHING)
            kvl_fail(KVL_OK, "no trial of A has a partner in B with a metric to compare (--metric "
                             "names others)");
    }
    kvl_compare_free(&result);
    close_source(&sources[0]);
    close_source(&sources[1]);
    free(sources);
    return status;
}

/* The error as programs read it; the line on stderr stays for people. */
static void print_error(int code) {
    print_json(json_pack("{s:i,s:s,s:i,s:s}", "schema_version", KVL_COMPARE_SCHEMA, "command",
                         "compare", "exit_code", code, "error", kvl_message()));
}

static bool asks_json(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--json") == 0) return true;
    return false;
}

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {.effect_pct = 1};
    const char *arguments[2];
    int n_arguments = 0, code = KVL_EXIT_OK;
    bool help_shown = false;
    bool json = asks_json(argc, argv); /* before the order of arguments changes */
    struct sigaction action = {.sa_handler = on_signal};
    kvl_status status =
        kvl_options_parse(self, argc, argv, &v, arguments, 2, &n_arguments, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (status == KVL_OK && n_arguments != 2)
        status = kvl_fail(KVL_ERR_INPUT, "compare needs two files of rows, A and B (see kvlab "
                                         "compare --help)");
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (status == KVL_OK) status = compare(&v, arguments, &code);
    if (status != KVL_OK) {
        code = kvl_exit_of(status);
        if (json) print_error(code);
        return kvl_exit_report(status);
    }
    if (code == KVL_EXIT_NOTHING) {
        fprintf(stderr, "kvlab: %s\n", kvl_message());
        if (json) print_error(code);
    }
    return kvl_exit_flush(code);
}

const kvl_command kvl_command_compare = {
    "compare",
    "is B faster than A, slower, the same, or cannot these rows tell",
    "A.jsonl[:AXIS=VALUE,...] B.jsonl[:AXIS=VALUE,...] [--across AXIS,...]",
    "Trials are paired on all axes; builds may differ, anything else that does is refused unless\n"
    "--across names it or each file's ':' picks one value of it. Each line gives medians, the\n"
    "ratio B/A with a 99.5 % interval, and its verdict; what is not settled says how many rounds\n"
    "more would. Rounds of one run are compared round by round.\n"
    "Exit codes: 0 gain or same, 1 something is slower, 3 something cannot be told or is missing\n"
    "in B, 4 a trial of B failed, 5 nothing to compare, 2 bad input.\n"
    "Example: kvlab compare main.jsonl branch.jsonl --threshold decode_tok_s=2\n"
    "         kvlab compare x.jsonl:attention=eager x.jsonl:attention=flash\n",
    options,
    sizeof options / sizeof *options,
    run};
