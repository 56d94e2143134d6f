#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/isa.h"
#include "core/threads.h"
#include "harness/kernels/axes.h"
#include "harness/kernels/matmul.h"

typedef struct bench {
    kvl_matmul_setup setup;
    kvl_matmul_inputs inputs;
    const kvl_linear *layer; /* of the next call */
    kvl_verify_result verified;
    kvl_timings timings;
    uint64_t seed;
    double setup_s, check_s;
    const json_t *ceilings;
} bench;

static void prepare(void *context, int64_t index) {
    bench *b = context;
    b->layer = b->inputs.layers[index % b->setup.n_copies];
}

static kvl_status call(void *context) {
    bench *b = context;
    const kvl_product_shape *shape = &b->setup.shape;
    return kvl_linear_run(b->layer, b->inputs.x, shape->n_in, shape->n_rows, b->inputs.y,
                          shape->n_out, false);
}

/* All layers hold the same weights: the same bits must come out. */
static bool is_right(void *context) {
    bench *b = context;
    return memcmp(b->inputs.y, b->inputs.checked, b->setup.y_bytes) == 0;
}

static kvl_status verify(bench *b) {
    prepare(b, 0);
    KVL_TRY(call(b));
    KVL_TRY(kvl_matmul_inputs_check(&b->inputs, b->seed, &b->verified));
    memcpy(b->inputs.checked, b->inputs.y, b->setup.y_bytes);
    return KVL_OK;
}

static void mismatch(kvl_findings *f, const char *reason) {
    f->outcome = "mismatch";
    snprintf(f->reason, sizeof f->reason, "%s", reason);
}

static void describe(const bench *b, kvl_findings *f) {
    const kvl_matmul_setup *s = &b->setup;
    char verified[128];
    snprintf(verified, sizeof verified, "float64: %lld of %lld outputs",
             (long long)b->verified.n_rows, (long long)(s->shape.n_rows * s->shape.n_out));
    kvl_set_text(f->effective, "matmul", kvl_linear_kernel(b->inputs.layers[0], s->shape.n_rows));
    kvl_set_text(f->effective, "isa", kvl_isa_name(kvl_isa_current()));
    kvl_set_text(f->effective, "weights", s->weights);
    kvl_set_text(f->effective, "compute_dtype", kvl_dtype_name(s->compute_dtype));
    kvl_set_text(f->effective, "device", s->device);
    kvl_set_text(f->effective, "cache", s->cold ? "cold" : "warm");
    kvl_set_count(f->effective, "copies", (uint64_t)s->n_copies);
    kvl_set_count(f->effective, "threads", (uint64_t)kvl_threads());
    kvl_set_text(f->effective, "verified", verified);
    kvl_set_number(f->effective, "verified_max_abs", b->verified.max_abs);
    kvl_set_number(f->effective, "verified_bound", b->verified.bound);
}

static void report(const bench *b, kvl_findings *f) {
    const kvl_matmul_setup *s = &b->setup;
    const kvl_linear *layer = b->inputs.layers[0];
    kvl_work work = kvl_linear_work(layer, s->shape.n_rows);
    kvl_report_times(f, &b->timings, &work, b->ceilings, s->compute_dtype);
    double us = json_number_value(json_object_get(f->metrics, "time_us"));
    kvl_set_count(f->metrics, "weight_bytes", kvl_linear_bytes(layer));
    kvl_set_number(f->metrics, "weights_gb_s", (double)kvl_linear_bytes(layer) * 1e-3 / us);
    kvl_set_count(f->metrics, "working_set_bytes", s->working_set_bytes);
    kvl_set_number(f->metrics, "setup_s", b->setup_s);
    kvl_set_number(f->metrics, "check_s", b->check_s);
}

static double seconds_since(uint64_t start) {
    return (double)(kvl_now_ns() - start) * 1e-9;
}

static kvl_status run(bench *b, kvl_findings *f) {
    uint64_t start = kvl_now_ns();
    if (strcmp(b->setup.device, "cpu") != 0)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "device %s: kernels alone run on cpu",
                        b->setup.device);
    KVL_TRY(kvl_threads_set(b->setup.n_threads, 1));
    KVL_TRY(kvl_memory_suffices(b->setup.sum_bytes));
    KVL_TRY(kvl_matmul_inputs_make(&b->setup, b->seed, &b->inputs));
    b->setup_s = seconds_since(start);
    start = kvl_now_ns();
    KVL_TRY(verify(b));
    b->check_s = seconds_since(start);
    describe(b, f);
    if (b->verified.state == KVL_VERIFY_FAIL) {
        mismatch(f, b->verified.reason);
        return KVL_OK;
    }
    kvl_timed timed = {.prepare = prepare, .call = call, .is_right = is_right, .context = b};
    KVL_TRY(kvl_time_calls(&timed, &b->timings));
    if (b->timings.wrong)
        mismatch(f, "a call gave other bits than the verified one, on the same values");
    else
        report(b, f);
    return KVL_OK;
}

kvl_status kvl_matmul_trial_run(const json_t *spec, json_t **answer) {
    bench b = {.ceilings = json_object_get(spec, "ceilings")};
    const json_t *workload = json_object_get(spec, "workload");
    b.seed = (uint64_t)json_integer_value(json_object_get(workload, "seed"));
    *answer = NULL;
    kvl_status status = kvl_matmul_setup_make(json_object_get(spec, "axes"), &b.setup);
    if (status == KVL_ERR_INPUT) return status;
    kvl_findings f = {
        .effective = json_object(), .metrics = json_object(), .samples = json_object()};
    if (status == KVL_OK) status = run(&b, &f);
    kvl_timings_free(&b.timings);
    kvl_matmul_inputs_free(&b.inputs);
    return kvl_findings_answer(&f, status, answer);
}
