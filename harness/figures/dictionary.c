#include "harness/figures/dictionary.h"

#include <stdio.h>
#include <string.h>

static const kvl_name metrics[] = {
    {"prefill_tok_s", "tok/s", "prefill throughput, whole batch", KVL_BETTER_HIGHER},
    {"decode_tok_s", "tok/s", "decode throughput, whole batch", KVL_BETTER_HIGHER},
    {"ttft_ms", "ms", "time to first token", KVL_BETTER_LOWER},
    {"tpot_ms", "ms", "time per output token", KVL_BETTER_LOWER},
    {"itl_p50_ms", "ms", "inter-token latency, median", KVL_BETTER_LOWER},
    {"itl_p99_ms", "ms", "inter-token latency, 99th percentile", KVL_BETTER_LOWER},
    {"e2e_ms", "ms", "prompt to last token", KVL_BETTER_LOWER},
    {"read_ceiling_pct", "%", "decode, share of the read ceiling", KVL_BETTER_HIGHER},
    {"flops_ceiling_pct", "%", "prefill, share of the compute ceiling", KVL_BETTER_HIGHER},
    {"decode_read_gb_s", "GB/s", "decode, unique bytes read", KVL_BETTER_HIGHER},
    {"prefill_gflop_s", "GFLOP/s", "prefill, arithmetic", KVL_BETTER_HIGHER},
    {"step_read_bytes", "bytes", "unique bytes of a decode step", KVL_BETTER_LOWER},
    {"step_flops", "flop", "operations of a decode step", KVL_BETTER_LOWER},
    {"predicted_tpot_ms", "ms", "time per output token by the roofline", KVL_BETTER_LOWER},
    {"predicted_ttft_ms", "ms", "time to first token by the roofline", KVL_BETTER_LOWER},
    {"attention_share", "share", "decode, attention", KVL_BETTER_NONE},
    {"matmul_share", "share", "decode, linear layers", KVL_BETTER_NONE},
    {"other_share", "share", "decode, other", KVL_BETTER_NONE},
    {"idle_share", "share", "decode, idle", KVL_BETTER_NONE},
    {"prefill_attention_share", "share", "prefill, attention", KVL_BETTER_NONE},
    {"prefill_matmul_share", "share", "prefill, linear layers", KVL_BETTER_NONE},
    {"prefill_other_share", "share", "prefill, other", KVL_BETTER_NONE},
    {"prefill_idle_share", "share", "prefill, idle", KVL_BETTER_NONE},
    {"kv_bytes_formula", "bytes", "KV cache by the formula", KVL_BETTER_LOWER},
    {"kv_bytes_live", "bytes", "KV cache holding tokens", KVL_BETTER_LOWER},
    {"kv_bytes_allocated", "bytes", "KV cache handed out", KVL_BETTER_LOWER},
    {"kv_bytes_scanned", "bytes", "KV cache read in a decode step", KVL_BETTER_LOWER},
    {"kv_pool_bytes", "bytes", "KV pool", KVL_BETTER_LOWER},
    {"kv_saturated", "", "K and V values saturated", KVL_BETTER_LOWER},
    {"weight_bytes", "bytes", "weights in memory", KVL_BETTER_LOWER},
    {"workspace_bytes", "bytes", "workspace", KVL_BETTER_LOWER},
    {"rss_steady_bytes", "bytes", "resident memory after decode", KVL_BETTER_LOWER},
    {"rss_peak_bytes", "bytes", "resident memory, peak", KVL_BETTER_LOWER},
    {"ppl", "", "perplexity", KVL_BETTER_LOWER},
    {"ppl_f32", "", "perplexity of the float32 run", KVL_BETTER_LOWER},
    {"mean_kld", "nats", "KL divergence from float32, mean", KVL_BETTER_LOWER},
    {"median_kld", "nats", "KL divergence from float32, median", KVL_BETTER_LOWER},
    {"p99_kld", "nats", "KL divergence from float32, 99th percentile", KVL_BETTER_LOWER},
    {"same_top1", "share", "same most likely token as float32", KVL_BETTER_HIGHER},
    {"n_tokens", "tokens", "text", KVL_BETTER_NONE},
    {"bits_per_weight", "bits", "weights in memory, a parameter", KVL_BETTER_LOWER},
    {"kv_bytes_per_token", "bytes", "KV cache of a token", KVL_BETTER_LOWER},
    {"mean_abs_err", "", "rounding error, mean absolute", KVL_BETTER_LOWER},
    {"mean_rel_err", "", "rounding error, mean relative", KVL_BETTER_LOWER},
    {"max_abs_err", "", "rounding error, largest", KVL_BETTER_LOWER},
    {"nrmse", "", "rounding error, root mean square of the values'", KVL_BETTER_LOWER},
    {"sqnr_db", "dB", "signal to rounding noise", KVL_BETTER_HIGHER},
    {"bits_per_value", "bits", "stored bits of a value", KVL_BETTER_LOWER},
    {"n_values", "", "values rounded", KVL_BETTER_NONE},
    {"saturated", "", "values past the range", KVL_BETTER_LOWER},
    {"time_us", "us", "a call of the kernel", KVL_BETTER_LOWER},
    {"kv_gb_s", "GB/s", "K and V read", KVL_BETTER_HIGHER},
    {"weights_gb_s", "GB/s", "weights read", KVL_BETTER_HIGHER},
    {"read_gb_s", "GB/s", "unique bytes read", KVL_BETTER_HIGHER},
    {"gflop_s", "GFLOP/s", "arithmetic", KVL_BETTER_HIGHER},
    {"predicted_us", "us", "roofline's time of a call", KVL_BETTER_NONE},
    {"roofline_pct", "%", "share of the roofline", KVL_BETTER_HIGHER},
    {"work_read_bytes", "bytes", "unique bytes to read in a call", KVL_BETTER_NONE},
    {"work_write_bytes", "bytes", "unique bytes to write in a call", KVL_BETTER_NONE},
    {"work_flops", "flop", "arithmetic of a call", KVL_BETTER_NONE},
    {"working_set_bytes", "bytes", "working set", KVL_BETTER_NONE},
    {"calls", "", "calls measured", KVL_BETTER_NONE},
    {"warmup_calls", "", "calls of the warm-up", KVL_BETTER_NONE},
    {"setup_s", "s", "making the inputs", KVL_BETTER_LOWER},
    {"check_s", "s", "verification", KVL_BETTER_LOWER},
    {"tail_waste_pct", "%", "slots handed out that hold no token, by decode step",
     KVL_BETTER_LOWER},
    {"tail_waste_end_pct", "%", "the same at each request's last step", KVL_BETTER_LOWER},
    {"slots_live_pct", "%", "slots of the pool that hold a token", KVL_BETTER_HIGHER},
    {"live_pct", "%", "pool: live", KVL_BETTER_HIGHER},
    {"reserved_pct", "%", "pool: reserved", KVL_BETTER_LOWER},
    {"internal_pct", "%", "pool: internal", KVL_BETTER_LOWER},
    {"cached_pct", "%", "pool: cached", KVL_BETTER_NONE},
    {"padding_pct", "%", "pool: padding", KVL_BETTER_LOWER},
    {"free_pct", "%", "pool: free", KVL_BETTER_NONE},
    {"external_pct", "%", "pool: free that cannot serve", KVL_BETTER_LOWER},
    {"full_live_pct", "%", "while requests wait: live", KVL_BETTER_HIGHER},
    {"full_reserved_pct", "%", "while requests wait: reserved", KVL_BETTER_LOWER},
    {"full_internal_pct", "%", "while requests wait: internal", KVL_BETTER_LOWER},
    {"full_cached_pct", "%", "while requests wait: cached", KVL_BETTER_NONE},
    {"full_padding_pct", "%", "while requests wait: padding", KVL_BETTER_LOWER},
    {"full_free_pct", "%", "while requests wait: free", KVL_BETTER_LOWER},
    {"full_external_pct", "%", "while requests wait: free that cannot serve", KVL_BETTER_LOWER},
    {"full_steps_pct", "%", "steps in which requests wait", KVL_BETTER_NONE},
    {"prefix_hit_pct", "%", "pages of prompts found in the cache", KVL_BETTER_HIGHER},
    {"prefix_hit_tokens_pct", "%", "prompt tokens found in the cache", KVL_BETTER_HIGHER},
    {"prefix_asked_pages", "", "pages of prompts looked up", KVL_BETTER_NONE},
    {"prefix_hit_pages", "", "pages of prompts found", KVL_BETTER_HIGHER},
    {"requests", "", "requests", KVL_BETTER_NONE},
    {"finished", "", "requests finished", KVL_BETTER_HIGHER},
    {"refused", "", "requests refused", KVL_BETTER_LOWER},
    {"preempted", "", "preemptions", KVL_BETTER_LOWER},
    {"preempted_requests", "", "requests preempted", KVL_BETTER_LOWER},
    {"recomputed_tokens", "tokens", "written again after preemptions", KVL_BETTER_LOWER},
    {"largest_batch", "sequences", "largest batch", KVL_BETTER_HIGHER},
    {"largest_queue", "", "longest queue", KVL_BETTER_LOWER},
    {"mean_batch", "sequences", "mean batch", KVL_BETTER_HIGHER},
    {"steps", "", "decode steps", KVL_BETTER_NONE},
    {"virtual_s", "s", "virtual time to the last token", KVL_BETTER_LOWER},
    {"trace_tokens", "tokens", "in the trace", KVL_BETTER_NONE},
    {"trace_skipped", "", "requests without tokens, left out", KVL_BETTER_NONE},
    {"trace_out_of_order", "", "lines out of order", KVL_BETTER_NONE},
    {"used_peak_tokens", "tokens", "slots handed out, peak", KVL_BETTER_LOWER},
    {"live_peak_tokens", "tokens", "slots that hold tokens, peak", KVL_BETTER_NONE},
    {"copied_slots", "tokens", "slots copied", KVL_BETTER_LOWER},
    {"metadata_bytes", "bytes", "state of the allocator", KVL_BETTER_LOWER},
    {"load_s", "s", "model load", KVL_BETTER_LOWER},
    {"warmup_ms", "ms", "warm-up", KVL_BETTER_LOWER},
    {"warmup_steps", "", "decode steps of the warm-up", KVL_BETTER_NONE},
    {"passes", "", "passes measured", KVL_BETTER_NONE},
    {"wall_s", "s", "the trial's process, start to end", KVL_BETTER_LOWER},
};

static const kvl_name axes[] = {
    {"system", "", "system", KVL_BETTER_NONE},
    {"work", "", "work item", KVL_BETTER_NONE},
    {"model", "", "model", KVL_BETTER_NONE},
    {"allocator", "", "allocator", KVL_BETTER_NONE},
    {"attention", "", "attention kernel", KVL_BETTER_NONE},
    {"kv_dtype", "", "KV format", KVL_BETTER_NONE},
    {"weights", "", "weight format", KVL_BETTER_NONE},
    {"compute_dtype", "", "compute dtype", KVL_BETTER_NONE},
    {"prompt", "tokens", "prompt", KVL_BETTER_NONE},
    {"output", "tokens", "output", KVL_BETTER_NONE},
    {"context", "tokens", "context", KVL_BETTER_NONE},
    {"batch", "sequences", "batch", KVL_BETTER_NONE},
    {"page_tokens", "tokens", "page", KVL_BETTER_NONE},
    {"threads", "", "threads", KVL_BETTER_NONE},
    {"isa", "", "instruction set", KVL_BETTER_NONE},
    {"device", "", "device", KVL_BETTER_NONE},
    {"heads", "", "query/KV heads", KVL_BETTER_NONE},
    {"head_dim", "elements", "head", KVL_BETTER_NONE},
    {"shape", "", "shape", KVL_BETTER_NONE},
    {"window", "tokens", "window", KVL_BETTER_NONE},
    {"softcap", "", "softcap", KVL_BETTER_NONE},
    {"causal", "", "causal mask", KVL_BETTER_NONE},
    {"cache", "", "CPU cache", KVL_BETTER_NONE},
    {"kernel", "", "kernel choice", KVL_BETTER_NONE},
    {"data", "", "values", KVL_BETTER_NONE},
    {"format", "", "format", KVL_BETTER_NONE},
    {"block", "values", "block", KVL_BETTER_NONE},
    {"trace", "", "trace", KVL_BETTER_NONE},
    {"arrival", "", "arrivals", KVL_BETTER_NONE},
    {"reserve", "", "reservation", KVL_BETTER_NONE},
    {"share", "", "shared prefixes", KVL_BETTER_NONE},
    {"pool_tokens", "tokens", "pool", KVL_BETTER_NONE},
    {"max_model_len", "tokens", "longest request", KVL_BETTER_NONE},
    {"max_seqs", "sequences", "sequences at once", KVL_BETTER_NONE},
};

size_t kvl_metric_count(void) {
    return sizeof metrics / sizeof *metrics;
}

const kvl_name *kvl_metric_at(size_t index) {
    return &metrics[index];
}

const kvl_name *kvl_name_find(const char *name) {
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        if (strcmp(metrics[i].name, name) == 0) return &metrics[i];
    }
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        if (strcmp(axes[i].name, name) == 0) return &axes[i];
    }
    return NULL;
}

void kvl_name_label(const char *name, char *out, size_t out_bytes) {
    const kvl_name *known = kvl_name_find(name);
    if (!known)
        snprintf(out, out_bytes, "%s", name);
    else
        snprintf(out, out_bytes, "%s%s%s%s", known->label, known->unit[0] ? " (" : "", known->unit,
                 known->unit[0] ? ")" : "");
}
