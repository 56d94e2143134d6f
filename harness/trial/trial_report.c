#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/isa.h"
#include "core/memory.h"
#include "core/threads.h"
#include "harness/figures/stats.h"
#include "harness/trial/trial.h"

/* A number, or null where it does not exist: JSON has no NaN. */
static void set(json_t *object, const char *name, double value) {
    json_object_set_new(object, name, isfinite(value) ? json_real(value) : json_null());
}

static void set_count(json_t *object, const char *name, uint64_t value) {
    json_object_set_new(object, name, json_integer((json_int_t)value));
}

/* A quantile of x[n] that leaves x as it is; NaN when there is none. */
static double quantile(const double *x, size_t n, double q) {
    double *copy = malloc((n + 1) * sizeof *copy);
    if (!copy) return NAN;
    memcpy(copy, x, n * sizeof *copy);
    double value = kvl_quantile(copy, n, q);
    free(copy);
    return value;
}

static void set_times(json_t *metrics, const kvl_trial_spec_values *spec,
                      const kvl_trial_times *times) {
    double batch = (double)spec->batch;
    double steps = (double)(spec->context ? spec->output : spec->output - 1);
    double ttft = spec->context ? NAN : quantile(times->ttft_ns, times->n_passes, 0.5);
    double decode = steps > 0 ? quantile(times->decode_ns, times->n_passes, 0.5) : NAN;
    set(metrics, "ttft_ms", ttft * 1e-6);
    set(metrics, "prefill_tok_s", batch * (double)spec->prompt / (ttft * 1e-9));
    set(metrics, "tpot_ms", decode / steps * 1e-6);
    set(metrics, "itl_p50_ms", quantile(times->step_ns, times->n_steps, 0.5) * 1e-6);
    set(metrics, "itl_p99_ms", quantile(times->step_ns, times->n_steps, 0.99) * 1e-6);
    set(metrics, "decode_tok_s", batch * steps / (decode * 1e-9));
    set(metrics, "e2e_ms", ((spec->context ? 0 : ttft) + (steps > 0 ? decode : 0)) * 1e-6);
    set(metrics, "warmup_ms", times->warmup_ns * 1e-6);
    set_count(metrics, "warmup_steps", times->n_warmup_steps);
    set_count(metrics, "passes", times->n_passes);
    double prompts = batch * (double)spec->prompt * (double)times->n_passes;
    set(metrics, "prefix_hit_tokens_pct",
        spec->prefix_cache ? 100 * (double)times->found_tokens / prompts : NAN);
}

/* Shares of a thread's time in a phase, the mean over the team; they sum to 1. `idle` is waiting at
 * barriers for other threads, `other` what is neither attention nor matmul: norms, RoPE, the cache,
 * the choice of the next token. */
static void set_shares(json_t *metrics, const char *const names[4], const kvl_engine_stats *stats,
                       double wall_ns) {
    double attention = (double)stats->attention_ns / wall_ns;
    double matmul = (double)stats->matmul_ns / wall_ns;
    double idle = (double)stats->idle_ns / wall_ns;
    set(metrics, names[0], attention);
    set(metrics, names[1], matmul);
    set(metrics, names[2], 1 - attention - matmul - idle);
    set(metrics, names[3], idle);
}

/* What the roofline allows: the longer of reading the bytes and doing the operations at the
 * ceilings of this run, in seconds for all that `stats` counted. */
static double predicted_s(const kvl_trial_spec_values *spec, const kvl_engine_stats *stats) {
    double read_s = stats->read_bytes / spec->read_bytes_per_s;
    double flops_s = stats->flops / spec->flops_per_s;
    return read_s > flops_s ? read_s : flops_s;
}

/* Which of the two it is: what a setting must change to make the phase faster. */
static const char *bound_of(const kvl_trial_spec_values *spec, const kvl_engine_stats *stats) {
    if (spec->read_bytes_per_s <= 0 || spec->flops_per_s <= 0 || stats->steps == 0)
        return "unknown";
    bool reads = stats->read_bytes / spec->read_bytes_per_s > stats->flops / spec->flops_per_s;
    return reads ? "memory" : "compute";
}

/* Work of a mean pass over the time of the median one, as the throughputs: a pass that something
 * disturbed moves neither. */
static void set_ceilings(json_t *metrics, const kvl_trial_spec_values *spec,
                         const kvl_trial_times *times) {
    double passes = (double)times->n_passes;
    double decode_s = quantile(times->decode_ns, times->n_passes, 0.5) * 1e-9;
    double prefill_s = quantile(times->ttft_ns, times->n_passes, 0.5) * 1e-9;
    double read = times->decode.read_bytes / passes / decode_s;
    double flops = times->prefill.flops / passes / prefill_s;
    set(metrics, "decode_read_gb_s", read * 1e-9);
    set(metrics, "read_ceiling_pct", 100 * read / spec->read_bytes_per_s);
    set(metrics, "prefill_gflop_s", flops * 1e-9);
    set(metrics, "flops_ceiling_pct", 100 * flops / spec->flops_per_s);
    set(metrics, "step_read_bytes", times->decode.read_bytes / (double)times->n_steps);
    set(metrics, "step_flops", times->decode.flops / (double)times->n_steps);
    double steps = (double)times->n_steps;
    set(metrics, "predicted_tpot_ms",
        steps > 0 ? 1e3 * predicted_s(spec, &times->decode) / steps : NAN);
    set(metrics, "predicted_ttft_ms",
        times->prefill_ns_sum > 0 ? 1e3 * predicted_s(spec, &times->prefill) / passes : NAN);
}

static void set_memory(json_t *metrics, const kvl_trial_spec_values *spec,
                       const kvl_trial_times *times) {
    const kvl_engine_memory *memory = &times->memory;
    int64_t start = spec->context ? spec->context : spec->prompt;
    set_count(metrics, "kv_bytes_formula",
              (uint64_t)(spec->batch * (start + spec->output)) * memory->kv_bytes_per_token);
    set_count(metrics, "kv_bytes_live", memory->kv_live_bytes);
    set_count(metrics, "kv_bytes_allocated", memory->kv_allocated_bytes);
    set(metrics, "kv_bytes_scanned", times->n_steps ? times->kv_bytes_scanned : NAN);
    set_count(metrics, "kv_pool_bytes", memory->kv_pool_bytes);
    set_count(metrics, "weight_bytes", memory->weight_bytes);
    set_count(metrics, "workspace_bytes", memory->workspace_bytes);
    set_count(metrics, "rss_steady_bytes", times->rss_steady_bytes);
    set_count(metrics, "rss_peak_bytes", kvl_rss_peak_bytes());
    double steps = (double)times->n_steps;
    set(metrics, "cast_elements", steps > 0 ? times->decode.cast_elements / steps : NAN);
    set(metrics, "widened_elements", steps > 0 ? times->decode.widened_elements / steps : NAN);
    set_count(metrics, "kv_saturated",
              (uint64_t)(times->prefill.kv_saturated + times->decode.kv_saturated));
}

json_t *kvl_trial_metrics(const kvl_engine *engine, const kvl_trial_spec_values *spec,
                          const kvl_trial_times *times, double load_s) {
    static const char *const decode[4] = {"attention_share", "matmul_share", "other_share",
                                          "idle_share"};
    static const char *const prefill[4] = {"prefill_attention_share", "prefill_matmul_share",
                                           "prefill_other_share", "prefill_idle_share"};
    (void)engine;
    json_t *metrics = json_object();
    set_times(metrics, spec, times);
    set_shares(metrics, decode, &times->decode, times->decode_ns_sum);
    set_shares(metrics, prefill, &times->prefill, times->prefill_ns_sum);
    set_ceilings(metrics, spec, times);
    set_memory(metrics, spec, times);
    set(metrics, "load_s", load_s);
    return metrics;
}

/* Nanoseconds as milliseconds with three decimals: microseconds are what the clock is good for. */
static json_t *milliseconds(const double *ns, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_real(nearbyint(ns[i] * 1e-3) * 1e-3));
    return array;
}

/* Of all heads. */
static json_int_t of_layer(const kvl_config *config, const int64_t *counts, int32_t layer, int v) {
    json_int_t sum = 0;
    for (int32_t h = 0; h < config->n_kv_heads; h++)
        sum += counts[(2 * (int64_t)layer + v) * config->n_kv_heads + h];
    return sum;
}

void kvl_trial_saturated(const kvl_config *config, const kvl_trial_times *times, json_t *samples) {
    static const char *const names[2] = {"layer_k_saturated", "layer_v_saturated"};
    for (int v = 0; v < 2; v++) {
        json_t *layers = json_array();
        for (int32_t i = 0; i < config->n_layers; i++)
            json_array_append_new(layers, json_integer(of_layer(config, times->saturated, i, v)));
        json_object_set_new(samples, names[v], layers);
    }
}

json_t *kvl_trial_samples(const kvl_config *config, const kvl_trial_times *times) {
    json_t *samples = json_object();
    bool prefilled = times->prefill_ns_sum > 0;
    json_object_set_new(samples, "ttft_ms",
                        milliseconds(times->ttft_ns, prefilled ? times->n_passes : 0));
    json_object_set_new(samples, "decode_ms", milliseconds(times->decode_ns, times->n_passes));
    json_object_set_new(samples, "itl_ms", milliseconds(times->step_ns, times->n_steps));
    json_object_set_new(samples, "warmup_itl_ms",
                        milliseconds(times->warmup_step_ns, times->n_warmup_steps));
    kvl_trial_saturated(config, times, samples);
    return samples;
}

json_t *kvl_trial_effective(const kvl_engine *engine, const kvl_model *model,
                            const kvl_trial_spec_values *spec, const kvl_trial_times *times,
                            const kvl_verify_result *verified) {
    kvl_engine_effective ran;
    kvl_engine_effective_get(engine, spec->context ? 1 : spec->prompt, (int32_t)spec->batch, &ran);
    json_t *effective = json_object();
    const struct {
        const char *name, *text;
    } texts[] = {{"attention", ran.attention},
                 {"attention_reason", ran.attention_reason},
                 {"matmul_prefill", ran.matmul_prefill},
                 {"matmul_decode", ran.matmul_decode},
                 {"isa", ran.isa},
                 {"kv_dtype", ran.kv_dtype},
                 {"kv_scale", ran.kv_scale},
                 {"casts", ran.casts},
                 {"weights", ran.weights},
                 {"weights_other", ran.weights_other},
                 {"source_weights", model->config.source_weights},
                 {"compute_dtype", ran.compute_dtype},
                 {"device", ran.device},
                 {"allocator", ran.allocator},
                 {"reserve", ran.reserve},
                 {"kv_order", ran.by_token ? "token" : "head"},
                 {"cache", ran.prefix_cache ? "warm" : "cold"},
                 {"model_name", model->config.name},
                 {"verified", verified->id}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        kvl_fail(KVL_OK, "%s", texts[i].text); /* names from files may not be valid UTF-8 */
        json_object_set_new(effective, texts[i].name, json_string(kvl_message()));
    }
    json_object_set_new(effective, "warmup",
                        json_string(times->warmup_steady ? "steady" : "limit"));
    json_object_set_new(effective, "prefill_bound", json_string(bound_of(spec, &times->prefill)));
    json_object_set_new(effective, "decode_bound", json_string(bound_of(spec, &times->decode)));
    json_object_set_new(effective, "page_tokens", json_integer(ran.page_tokens));
    json_object_set_new(effective, "prefix_cache", json_string(ran.prefix_cache ? "on" : "off"));
    if (ran.map_bytes) json_object_set_new(effective, "map_bytes", json_integer(ran.map_bytes));
    json_object_set_new(effective, "nf4_block",
                        ran.nf4_block ? json_integer(ran.nf4_block) : json_null());
    json_object_set_new(effective, "threads", json_integer(kvl_threads()));
    char where[160];
    kvl_saturated_text(&model->config, times->saturated, where, sizeof where);
    json_object_set_new(effective, "saturated", where[0] ? json_string(where) : json_null());
    set(effective, "verified_max_abs", verified->max_abs);
    set(effective, "verified_bound", verified->bound);
    return effective;
}
