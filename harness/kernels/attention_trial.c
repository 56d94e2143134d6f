#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/threads.h"
#include "harness/kernels/attention.h"
#include "harness/kernels/axes.h"
#include "quant/kv_format.h"

typedef struct bench {
    const kvl_attention *module;
    kvl_attention_setup setup;
    kvl_attention_inputs inputs;
    kvl_attention_choice choice;
    kvl_verify_result verified;
    kvl_timings timings;
    uint64_t seed;
    double setup_s, check_s;
    const json_t *ceilings;
} bench;

static void prepare(void *context, int64_t index) {
    bench *b = context;
    kvl_attention_inputs_select(&b->inputs, index % b->setup.n_copies);
}

static kvl_status call(void *context) {
    bench *b = context;
    return kvl_attention_run(b->module, &b->inputs.args);
}

/* Every copy holds the same values: the same bits must come out, wherever they lie. */
static bool is_right(void *context) {
    bench *b = context;
    return memcmp(b->inputs.o, b->inputs.checked, b->setup.q_bytes) == 0;
}

static kvl_status choose(bench *b) {
    kvl_attention_inputs *in = &b->inputs;
    b->module->supports(&in->args, &b->choice);
    if (!b->choice.supported) return kvl_fail(KVL_ERR_UNSUPPORTED, "%s", b->choice.reason);
    in->workspace_bytes = b->module->workspace_bytes(&in->args);
    kvl_status status = kvl_memory_suffices(in->workspace_bytes);
    if (status == KVL_OK) status = kvl_mem_alloc(in->workspace_bytes, &in->workspace);
    if (status != KVL_OK) return kvl_fail_prefix(status, "workspace of %s", b->module->name);
    in->args.workspace = in->workspace;
    in->args.workspace_bytes = in->workspace_bytes;
    return KVL_OK;
}

static kvl_status verify(bench *b) {
    kvl_attention_inputs *in = &b->inputs;
    int64_t n_rows = b->setup.shape.q_tokens * b->setup.heads.n_q;
    float *lse = malloc((size_t)n_rows * sizeof *lse);
    if (!lse) return kvl_fail(KVL_ERR_OOM, "out of memory");
    in->args.lse = lse;
    kvl_attention_inputs_select(in, 0);
    kvl_status status = kvl_attention_run(b->module, &in->args);
    if (status == KVL_OK) status = kvl_attention_inputs_check(b->module, in, b->seed, &b->verified);
    memcpy(in->checked, in->o, b->setup.q_bytes);
    in->args.lse = NULL;
    free(lse);
    return status;
}

static void mismatch(kvl_findings *f, const char *reason) {
    f->outcome = "mismatch";
    snprintf(f->reason, sizeof f->reason, "%s", reason);
}

static void describe(const bench *b, kvl_findings *f) {
    const kvl_attention_setup *s = &b->setup;
    char verified[128], pair[KVL_KV_PAIR_BYTES];
    kvl_kv_pair_name(s->k_dtype, s->v_dtype, pair);
    snprintf(verified, sizeof verified, "float64: %lld of %lld rows", (long long)b->verified.n_rows,
             (long long)(s->shape.q_tokens * s->heads.n_q));
    kvl_set_text(f->effective, "attention", b->choice.kernel);
    kvl_set_text(f->effective, "attention_reason", b->choice.reason);
    kvl_set_text(f->effective, "isa", kvl_isa_name(b->choice.isa));
    kvl_set_text(f->effective, "kv_dtype", pair);
    kvl_set_text(f->effective, "compute_dtype", kvl_dtype_name(s->q_dtype));
    kvl_set_text(f->effective, "allocator", s->allocator);
    kvl_set_text(f->effective, "device", s->device);
    kvl_set_text(f->effective, "cache", s->cold ? "cold" : "warm");
    kvl_set_count(f->effective, "copies", (uint64_t)s->n_copies);
    kvl_set_count(f->effective, "page_tokens", s->paged ? (uint64_t)s->page_tokens : 0);
    kvl_set_count(f->effective, "threads", (uint64_t)kvl_threads());
    kvl_set_text(f->effective, "verified", verified);
    kvl_set_number(f->effective, "verified_max_abs", b->verified.max_abs);
    kvl_set_number(f->effective, "verified_bound", b->verified.bound);
}

static void report(const bench *b, kvl_findings *f) {
    const kvl_attention_setup *s = &b->setup;
    kvl_work work = kvl_attention_work(&b->inputs.args);
    kvl_report_times(f, &b->timings, &work, b->ceilings, s->q_dtype);
    double us = json_number_value(json_object_get(f->metrics, "time_us"));
    kvl_set_count(f->metrics, "kv_bytes_scanned", s->kv_read_bytes);
    kvl_set_number(f->metrics, "kv_gb_s", (double)s->kv_read_bytes * 1e-3 / us);
    kvl_set_count(f->metrics, "workspace_bytes", b->inputs.workspace_bytes);
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
    if (!b->module) KVL_TRY(kvl_attention_find(b->setup.attention, &b->module));
    KVL_TRY(kvl_attention_inputs_make(&b->setup, b->seed, &b->inputs));
    KVL_TRY(choose(b));
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

kvl_status kvl_attention_trial_run(const kvl_attention *module, const json_t *spec,
                                   json_t **answer) {
    bench b = {.module = module, .ceilings = json_object_get(spec, "ceilings")};
    const json_t *workload = json_object_get(spec, "workload");
    b.seed = (uint64_t)json_integer_value(json_object_get(workload, "seed"));
    *answer = NULL;
    kvl_status status = kvl_attention_setup_make(json_object_get(spec, "axes"), &b.setup);
    if (status == KVL_ERR_INPUT) return status;
    kvl_findings f = {
        .effective = json_object(), .metrics = json_object(), .samples = json_object()};
    if (status == KVL_OK) status = run(&b, &f);
    kvl_timings_free(&b.timings);
    kvl_attention_inputs_free(&b.inputs);
    return kvl_findings_answer(&f, status, answer);
}
