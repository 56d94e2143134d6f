/* kvlab bench serve: continuous batching over a trace. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "core/file.h"
#include "harness/cmd_bench.h"
#include "harness/exit.h"
#include "harness/serve/cost.h"

#define TRACE_REAL(name, field, argument, help, low, high) \
    { name, KVL_OPT_REAL, offsetof(kvl_bench_values, trace.field), argument, help, low, high }
#define TRACE_INT(name, field, argument, help, low, high) \
    { name, KVL_OPT_INT, offsetof(kvl_bench_values, trace.field), argument, help, low, high }

static const kvl_option options[] = {
    KVL_BENCH_AXIS(TRACE, "trace", "FILE,...", "requests (formats: kvlab bench replay --help)"),
    {"cost", KVL_OPT_TEXT, offsetof(kvl_bench_values, trace.cost), "F.jsonl",
     "rows of kvlab bench decode that the time of a step is fitted to", 0, 0},
    {"real", KVL_OPT_FLAG, offsetof(kvl_bench_values, trace.real), NULL,
     "run the steps on the engine (--model) instead of in virtual time", 0, 0},
    KVL_BENCH_AXIS(ARRIVAL, "arrival", "LAW,...",
                   "recorded, xF, poisson:R, gamma:R:CV, together (recorded)"),
    KVL_BENCH_AXIS(ALLOCATOR, "allocator", "NAME,...", "who owns slots (paged)"),
    KVL_BENCH_AXIS(RESERVE, "reserve", "NAME,...", "contiguous, buddy: max, pow2, oracle (max)"),
    KVL_BENCH_AXIS(PAGE_TOKENS, "page-tokens", "N,...", "tokens in a page (16)"),
    KVL_BENCH_AXIS(SHARE, "share", "on,off", "prompts of known content share prefixes (off)"),
    KVL_BENCH_AXIS(POOL_TOKENS, "pool-tokens", "N,...",
                   "slots of the pool; 0 = by memory utilisation (0)"),
    KVL_BENCH_AXIS(MEMORY_UTILIZATION, "memory-utilization", "PCT,...",
                   "per cent of the memory for weights and pool (90)"),
    KVL_BENCH_AXIS(MAX_MODEL_LEN, "max-model-len", "N,...",
                   "longest request, 0 = the trace's longest (0)"),
    KVL_BENCH_AXIS(MAX_SEQS, "max-seqs", "N,...", "sequences at once (256)"),
    KVL_BENCH_AXIS(MAX_BATCHED_TOKENS, "max-batched-tokens", "N,...", "new tokens in a step (512)"),
    KVL_BENCH_AXIS(SCHEDULE, "schedule", "NAME,...",
                   "decode_first, prefill_first, static (decode_first)"),
    KVL_BENCH_AXIS(CHUNKED_PREFILL, "chunked-prefill", "on,off", "cut prompts to fit a step (on)"),
    KVL_BENCH_AXIS(PREEMPT, "preempt", "NAME,...", "recompute, swap (recompute)"),
    KVL_BENCH_AXIS(QUEUE_LIMIT, "queue-limit", "N,...",
                   "requests that may wait, others get a 429; 0 = no limit (0)"),
    KVL_BENCH_AXIS(RETRY, "retry", "LAW,...",
                   "after a 429: none, fixed:S:N, backoff:S:N, jitter:S:N (none)"),
    TRACE_INT("requests", requests, "N", "the first N requests (all)", 1, 1e12),
    TRACE_REAL("length-scale", length_scale, "F", "prompts and outputs times F (1)", 1e-6, 1e6),
    TRACE_INT("batch-pct", batch_pct, "PCT", "requests of the batch class, drawn (the trace's)", 1,
              100),
    TRACE_REAL("aging-s", aging_s, "S",
               "a batch request goes before interactive ones after S seconds (60)", 0.001, 1e9),
    TRACE_REAL("slo-ttft-ms", slo_ttft_ms, "MS", "goodput: time to first token (1000)", 0.001, 1e9),
    TRACE_REAL("slo-tpot-ms", slo_tpot_ms, "MS", "goodput: time per output token (100)", 0.001,
               1e9),
    TRACE_INT("memory-mib", memory_mib, "N", "memory of the device (of the machine in the rows)", 1,
              1 << 30),
    TRACE_REAL("swap-gb-s", swap_gb_s, "N", "speed of swapping (10)", 0.001, 1e6),
    {"skip-zero", KVL_OPT_FLAG, offsetof(kvl_bench_values, trace.skip_zero), NULL,
     "leave out requests without prompt or output", 0, 0},
    {"series", KVL_OPT_TEXT, offsetof(kvl_bench_values, side_dir), "DIR",
     "keep time series (and requests with --real) in this folder", 0, 0},
    KVL_BENCH_AXIS(MODEL, "model", "M,...", "--real: model"),
    KVL_BENCH_AXIS(ATTENTION, "attention", "NAME,...", "--real: kernels (flash)"),
    KVL_BENCH_AXIS(KV_DTYPE, "kv-dtype", "NAME,...", "--real: stored K and V (bf16)"),
    KVL_BENCH_AXIS(WEIGHTS, "weights", "NAME,...", "--real: stored weights (bf16)"),
    KVL_BENCH_AXIS(COMPUTE_DTYPE, "compute-dtype", "NAME,...", "--real: activations (bf16)"),
    {"text", KVL_OPT_TEXT, offsetof(kvl_bench_values, text), "FILE",
     "--real: prompts are windows of this text instead of random ids", 0, 0},
    KVL_BENCH_MACHINE_OPTIONS,
    KVL_BENCH_POLICY_OPTIONS_OF("serve", "1"),
};

static void set_real(json_t *extra, const char *name, double value) {
    if (value) json_object_set_new(extra, name, json_real(value));
}

static void set_integer(json_t *extra, const char *name, int64_t value) {
    if (value) json_object_set_new(extra, name, json_integer(value));
}

static json_t *given(const kvl_trace_values *t) {
    json_t *extra = json_object();
    set_integer(extra, "requests", t->requests);
    set_integer(extra, "batch_pct", t->batch_pct);
    set_integer(extra, "memory_mib", t->memory_mib);
    set_real(extra, "length_scale", t->length_scale);
    set_real(extra, "aging_s", t->aging_s);
    set_real(extra, "slo_ttft_ms", t->slo_ttft_ms);
    set_real(extra, "slo_tpot_ms", t->slo_tpot_ms);
    set_real(extra, "swap_gb_s", t->swap_gb_s);
    if (t->skip_zero) json_object_set_new(extra, "skip_zero", json_true());
    if (t->cost) json_object_set_new(extra, "cost", json_string(t->cost));
    return extra;
}

/* Rows of a cost are read once by the parent, so that a fault in them ends the command; what they
 * hold is part of the trials' keys. */
static kvl_status check_cost(const kvl_trace_values *t, json_t *extra) {
    kvl_cost cost;
    kvl_file file;
    char digest[17];
    if (!t->cost && !t->real)
        return kvl_fail(KVL_ERR_INPUT,
                        "--cost F.jsonl is needed: rows of kvlab bench decode that the time of a "
                        "step is fitted to (or --real --model M)");
    if (!t->cost) return KVL_OK;
    KVL_TRY(kvl_cost_fit(t->cost, &cost));
    KVL_TRY(kvl_file_open(t->cost, &file));
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)XXH64(file.data, file.bytes, 0));
    kvl_file_close(&file);
    json_object_set_new(extra, "cost_digest", json_string(digest));
    return KVL_OK;
}

static kvl_status check_options(const kvl_bench_values *v) {
    static const kvl_axis_id engine[] = {
        KVL_AXIS_MODEL,         KVL_AXIS_ATTENTION, KVL_AXIS_KV_DTYPE, KVL_AXIS_WEIGHTS,
        KVL_AXIS_COMPUTE_DTYPE, KVL_AXIS_THREADS,   KVL_AXIS_ISA,      KVL_AXIS_DEVICE};
    for (size_t i = 0; !v->trace.real && i < sizeof engine / sizeof *engine; i++) {
        if (v->axes[engine[i]])
            return kvl_fail(KVL_ERR_INPUT, "--%s: plays no part in virtual time (--real)",
                            kvl_axis_of(engine[i])->option);
    }
    if (!v->trace.real && v->text)
        return kvl_fail(KVL_ERR_INPUT, "--text: plays no part in virtual time (--real)");
    return KVL_OK;
}

static int run(const kvl_command *self, int argc, char **argv) {
    kvl_bench_values v = kvl_bench_defaults();
    v.rounds = 1;
    int n_arguments, code = KVL_EXIT_OK;
    bool help_shown;
    kvl_status status = kvl_options_parse(self, argc, argv, &v, NULL, 0, &n_arguments, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    v.extra = given(&v.trace);
    if (status == KVL_OK) status = check_options(&v);
    if (status == KVL_OK) status = check_cost(&v.trace, v.extra);
    if (status == KVL_OK) status = kvl_bench_side_dir(&v);
    if (status == KVL_OK)
        status = kvl_bench_sweep(&v, v.trace.real ? &kvl_workload_serve_real : &kvl_workload_serve,
                                 &code);
    json_decref(v.extra);
    return status == KVL_OK ? kvl_exit_flush(code) : kvl_exit_report(status);
}

const kvl_command kvl_command_bench_serve = {
    "bench serve",
    "continuous batching over a trace: latency, throughput, goodput; virtual time or the engine",
    "--trace F --cost ROWS.jsonl | --real --model M [axes] [--out F.jsonl]",
    "Rows for --cost: kvlab bench decode --model M --prompt 64-1024*4 --batch 1-16*4 --out "
    "cost.jsonl\n"
    "Example: kvlab bench serve --trace azure.csv --cost cost.jsonl --schedule "
    "decode_first,static \\\n"
    "           --arrival poisson:1,poisson:4\n" KVL_BENCH_DETAILS,
    options,
    sizeof options / sizeof *options,
    run};
