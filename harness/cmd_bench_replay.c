/* kvlab bench replay: request traces through allocators in virtual time. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/cmd_bench.h"
#include "harness/exit.h"

static const kvl_option options[] = {
    KVL_BENCH_AXIS(TRACE, "trace", "FILE,...", "requests: CSV or JSONL, formats below"),
    KVL_BENCH_AXIS(ARRIVAL, "arrival", "LAW,...",
                   "recorded, xF, poisson:R, gamma:R:CV, together (recorded)"),
    KVL_BENCH_AXIS(ALLOCATOR, "allocator", "NAME,...", "who owns slots (paged)"),
    KVL_BENCH_AXIS(RESERVE, "reserve", "NAME,...",
                   "contiguous, buddy: set aside max, pow2 or oracle at admission (max)"),
    KVL_BENCH_AXIS(PAGE_TOKENS, "page-tokens", "N,...", "tokens in a page (16)"),
    KVL_BENCH_AXIS(SHARE, "share", "on,off", "prompts of known content share prefixes (off)"),
    KVL_BENCH_AXIS(POOL_TOKENS, "pool-tokens", "N,...",
                   "slots of the pool, 0 = unlimited: what is handed out (0)"),
    KVL_BENCH_AXIS(MAX_MODEL_LEN, "max-model-len", "N,...",
                   "longest request and longest slab, 0 = the trace's longest (0)"),
    KVL_BENCH_AXIS(MAX_SEQS, "max-seqs", "N,...", "sequences at once, 0 = no limit (0)"),
    {"step-ms", KVL_OPT_REAL, offsetof(kvl_bench_values, trace.step_ms), "MS",
     "length of a decode step (30)", 0.001, 1e6},
    {"requests", KVL_OPT_INT, offsetof(kvl_bench_values, trace.requests), "N",
     "the first N requests (all)", 1, 1e12},
    {"wanted-tokens", KVL_OPT_INT, offsetof(kvl_bench_values, trace.wanted_tokens), "N",
     "external: free memory that a request of N tokens cannot use (the next that waits)", 1,
     INT32_MAX},
    {"skip-zero", KVL_OPT_FLAG, offsetof(kvl_bench_values, trace.skip_zero), NULL,
     "leave out, and count, requests without prompt or output", 0, 0},
    {"series", KVL_OPT_TEXT, offsetof(kvl_bench_values, side_dir), "DIR",
     "keep time series and maps in this folder, for kvlab plot --kind ledger and map", 0, 0},
    KVL_BENCH_POLICY_OPTIONS_OF("replay", "1"),
};

kvl_status kvl_bench_side_dir(const kvl_bench_values *v) {
    if (!v->side_dir || v->dry_run) return KVL_OK;
    struct stat info;
    if (mkdir(v->side_dir, 0777) != 0 && errno != EEXIST)
        return kvl_fail(KVL_ERR_IO, "%s: cannot create the folder: %s", v->side_dir,
                        strerror(errno));
    if (stat(v->side_dir, &info) == 0 && S_ISDIR(info.st_mode) &&
        access(v->side_dir, W_OK | X_OK) == 0)
        return KVL_OK;
    return kvl_fail(KVL_ERR_IO, "--series %s: a folder that can be written is needed", v->side_dir);
}

static json_t *given(const kvl_trace_values *t) {
    json_t *extra = json_object();
    if (t->step_ms) json_object_set_new(extra, "step_ms", json_real(t->step_ms));
    if (t->requests) json_object_set_new(extra, "requests", json_integer(t->requests));
    if (t->wanted_tokens)
        json_object_set_new(extra, "wanted_tokens", json_integer(t->wanted_tokens));
    if (t->skip_zero) json_object_set_new(extra, "skip_zero", json_true());
    return extra;
}

static int run(const kvl_command *self, int argc, char **argv) {
    kvl_bench_values v = kvl_bench_defaults();
    v.rounds = 1; /* the same numbers every time */
    int n_arguments, code = KVL_EXIT_OK;
    bool help_shown;
    kvl_status status = kvl_options_parse(self, argc, argv, &v, NULL, 0, &n_arguments, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    v.extra = given(&v.trace);
    if (status == KVL_OK) status = kvl_bench_side_dir(&v);
    if (status == KVL_OK) status = kvl_bench_sweep(&v, &kvl_workload_replay, &code);
    json_decref(v.extra);
    return status == KVL_OK ? kvl_exit_flush(code) : kvl_exit_report(status);
}

const kvl_command kvl_command_bench_replay = {
    "bench replay",
    "request traces through allocators in virtual time: waste by kind, no model",
    "--trace F [axes] [--out F.jsonl] [--series DIR]",
    "Traces, told by their first line; a fault is answered with FILE:LINE:COLUMN:\n"
    "  Azure CSV      TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "  BurstGPT CSV   Timestamp,...,Request tokens,Response tokens,...\n"
    "  Mooncake JSONL {\"timestamp\", \"input_length\", \"output_length\", \"hash_ids\"}\n"
    "  kvlab CSV      arrival_s,prompt,output[,class]\n"
    "Example: kvlab bench replay --trace azure.csv --page-tokens 16-2048*2 --series "
    "series\n" KVL_BENCH_DETAILS,
    options,
    sizeof options / sizeof *options,
    run};
