/* kvlab verify: every kernel, format and allocator against the float64 oracle, one line a case. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/threads.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "harness/verify/verify.h"

enum { SCHEMA_VERSION = 1 };

typedef struct values {
    const char *level, *case_id, *filter, *attention, *kv_dtype, *isa, *device, *golden, *model;
    bool list, json;
    int64_t threads;
} values;

#define TEXT(name, field, argument, help) \
    { name, KVL_OPT_TEXT, offsetof(values, field), argument, help, 0, 0 }

static const kvl_option options[] = {
    TEXT("level", level, "LEVEL", "quick (20 s), default (3 minutes) or full (hours)"),
    TEXT("case", case_id, "ID", "run one case by its id, or the listed ones that match a pattern"),
    TEXT("filter", filter, "TEXT,...", "only cases whose id contains one of these"),
    TEXT("attention", attention, "NAME,...", "only these attention modules"),
    TEXT("kv-dtype", kv_dtype, "NAME,...", "only these KV formats"),
    TEXT("isa", isa, "NAME,...", "only these instruction sets (all of this CPU, or KVLAB_ISA)"),
    TEXT("device", device, "NAME", "device to verify (cpu)"),
    TEXT("golden", golden, "DIR", "compare with other systems' outputs instead: tests/golden"),
    TEXT("model", model, "M", "with --golden: the model of its smollm2/ part"),
    {"list", KVL_OPT_FLAG, offsetof(values, list), NULL, "print the selected ids and run nothing",
     0, 0},
    {"json", KVL_OPT_FLAG, offsetof(values, json), NULL, "one JSON object a line", 0, 0},
    {"threads", KVL_OPT_INT, offsetof(values, threads), "N", "threads (0 = physical cores)", 0,
     1024},
};

typedef struct printer {
    const values *v;
    kvl_verify_totals totals;
    uint64_t start_ns, shown_ns;
    bool terminal;
} printer;

static void progress(printer *p) {
    uint64_t now_ns = kvl_now_ns();
    int64_t done = p->totals.passed + p->totals.failed + p->totals.skipped;
    if (!p->terminal || done == 0 || now_ns - p->shown_ns < 200000000) return;
    double spent = (double)(now_ns - p->start_ns) / 1e9;
    double left = spent / (double)done * (double)(p->totals.expected - done);
    fprintf(stderr, "\r\033[K[%" PRId64 "/%" PRId64 ", %.0f s left, %" PRId64 " failed] ", done,
            p->totals.expected, left > 0 ? left : 0, p->totals.failed);
    p->shown_ns = now_ns;
}

/* " name=value" when it was measured. */
static void print_metric(const char *name, double value) {
    if (!(value < 0)) printf(" %s=%.3g", name, value);
}

static void print_line(const kvl_verify_result *r) {
    static const char *const states[] = {"PASS", "FAIL", "SKIP"};
    printf("%s %s", states[r->state], r->id);
    print_metric("max_abs", r->max_abs);
    print_metric("bound", r->bound);
    print_metric("max_rel", r->max_rel);
    print_metric("nmse", r->nmse);
    print_metric("lse", r->lse_error);
    print_metric("lse_bound", r->lse_bound);
    print_metric("format", r->format_error);
    if (r->n_nonfinite) printf(" nonfinite=%" PRId64, r->n_nonfinite);
    if (r->kernel[0]) printf(" kernel=%s", r->kernel);
    printf("%s%s\n", r->reason[0] ? ": " : "", r->reason);
}

/* Not measured and non-finite values are null: JSON has neither. */
static void set_metric(json_t *object, const char *name, double value) {
    json_object_set_new(object, name,
                        isfinite(value) && value >= 0 ? json_real(value) : json_null());
}

static void print_json(json_t *object) {
    char *text = json_dumps(object, JSON_COMPACT);
    if (text) puts(text);
    free(text);
    json_decref(object);
}

static void print_result_json(const kvl_verify_result *r) {
    static const char *const states[] = {"pass", "fail", "skip"};
    json_t *o = json_object();
    json_object_set_new(o, "schema_version", json_integer(SCHEMA_VERSION));
    json_object_set_new(o, "id", json_string(r->id));
    json_object_set_new(o, "state", json_string(states[r->state]));
    json_object_set_new(o, "reason", json_string(r->reason));
    set_metric(o, "max_abs", r->max_abs);
    set_metric(o, "bound", r->bound);
    set_metric(o, "max_rel", r->max_rel);
    set_metric(o, "nmse", r->nmse);
    set_metric(o, "lse_error", r->lse_error);
    set_metric(o, "lse_bound", r->lse_bound);
    set_metric(o, "format_error", r->format_error);
    json_object_set_new(o, "nonfinite", json_integer(r->n_nonfinite));
    json_object_set_new(o, "rows", json_integer(r->n_rows));
    json_object_set_new(o, "kernel", json_string(r->kernel));
    set_metric(o, "ms", r->ms);
    print_json(o);
}

static void on_result(void *user, const kvl_verify_result *result) {
    printer *p = user;
    if (p->terminal) fputs("\r\033[K", stderr);
    if (p->v->list && !p->v->json)
        puts(result->id);
    else if (p->v->json)
        print_result_json(result);
    else
        print_line(result);
    fflush(stdout); /* a case can take seconds; who reads a pipe sees each at once */
    progress(p);
}

static void print_summary(const printer *p) {
    const kvl_verify_totals *t = &p->totals;
    if (p->v->json) {
        json_t *o = json_pack("{s:i, s:{s:I, s:I, s:I}}", "schema_version", SCHEMA_VERSION,
                              "summary", "passed", (json_int_t)t->passed, "failed",
                              (json_int_t)t->failed, "skipped", (json_int_t)t->skipped);
        print_json(o);
        return;
    }
    printf("%" PRId64 " passed, %" PRId64 " failed, %" PRId64 " skipped\n", t->passed, t->failed,
           t->skipped);
}

static kvl_status set_up(const values *v, printer *p, kvl_verify_options *o) {
    o->case_id = v->case_id, o->filter = v->filter, o->attention = v->attention;
    o->kv_dtype = v->kv_dtype, o->isa = v->isa, o->device = v->device, o->model = v->model;
    o->list = v->list, o->on_result = on_result, o->user = p;
    if (v->model && !v->golden) return kvl_fail(KVL_ERR_INPUT, "--model belongs to --golden DIR");
    if (v->golden && v->level) return kvl_fail(KVL_ERR_INPUT, "--level does not go with --golden");
    KVL_TRY(kvl_verify_level_parse(v->level ? v->level : "default", &o->level));
    return kvl_threads_set((int)v->threads, 0);
}

static int finish(const printer *p, kvl_status status) {
    const kvl_verify_totals *t = &p->totals;
    int64_t n = t->passed + t->failed + t->skipped;
    if (p->terminal) fputs("\r\033[K", stderr);
    if (n > 0 && !p->v->list) print_summary(p);
    if (status != KVL_OK) return kvl_exit_report(status);
    if (n == 0) {
        fputs("kvlab: no case selected\n", stderr);
        return KVL_EXIT_NOTHING;
    }
    if (p->v->list) return KVL_EXIT_OK;
    if (t->failed) return KVL_EXIT_NEGATIVE;
    if (t->passed == 0) fputs("kvlab: every selected case was skipped\n", stderr);
    return t->passed ? KVL_EXIT_OK : KVL_EXIT_NOTHING;
}

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {0};
    printer p = {.v = &v, .start_ns = kvl_now_ns(), .terminal = isatty(STDERR_FILENO) == 1};
    kvl_verify_options o = {0};
    int n_positional;
    bool help_shown;
    kvl_status status =
        kvl_options_parse(self, argc, argv, &v, NULL, 0, &n_positional, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (status == KVL_OK) status = set_up(&v, &p, &o);
    if (status == KVL_OK)
        status =
            v.golden ? kvl_verify_golden(v.golden, &o, &p.totals) : kvl_verify_run(&o, &p.totals);
    return kvl_exit_flush(finish(&p, status));
}

const kvl_command kvl_command_verify = {
    .name = "verify",
    .summary = "check kernels and formats with a float64 oracle, allocators with a model",
    .usage = "[--level LEVEL] [--case ID] [--attention NAME,...] [--golden DIR [--model M]] ...",
    .details = "One line a case: PASS, FAIL or SKIP, its id, the error of the row nearest to its\n"
               "bound, and that bound. An id alone reproduces its case: kvlab verify --case ID.\n"
               "\n"
               "  kvlab verify --level quick\n"
               "  kvlab verify --attention flash --kv-dtype fp8_e4m3,fp8_e5m2\n"
               "  kvlab verify --case 'attn/flash/*.far/*'\n"
               "  kvlab verify --golden tests/golden --model M.gguf\n"
               "\n"
               "Exit codes: 0 all passed; 1 a case failed; 2 bad input; 5 nothing selected or all\n"
               "skipped.\n",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run,
};
