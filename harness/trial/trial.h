/* One trial, in its own process: a model, one configuration, verified, warmed up, measured.
 *
 *   spec (JSON) -> verify attention -> load -> warm up -> passes of prefill and decode -> answer
 *
 * It knows one configuration and nothing of sweeps. Every metric it names is defined in
 * results/README.md.
 */
#ifndef KVL_HARNESS_TRIAL_H
#define KVL_HARNESS_TRIAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "decoder/engine.h"
#include "decoder/model.h"
#include "harness/verify/case.h"
#include "harness/verify/verify.h"

/* The spec, borrowed from its JSON. */
typedef struct kvl_trial_spec_values {
    const char *model, *allocator, *attention, *kv_dtype, *kv_scale, *weights, *compute_dtype,
        *device;
    const char *reserve; /* NULL: the engine's default, or it plays no part */
    const char *text;    /* NULL: seeded random ids */
    int64_t prompt, output, context, batch, page_tokens, threads, chunk;
    int64_t map_bytes; /* 0: the engine's default, or it plays no part */
    bool prefix_cache;
    uint64_t seed;
    bool deterministic, allow_nonfinite;
    int64_t nf4_block;
    const char *nf4_skip;                 /* NULL: not given */
    double read_bytes_per_s, flops_per_s; /* ceilings; 0 = unknown */
} kvl_trial_spec_values;

/* What the passes gave. Times in nanoseconds, arrays malloc'ed. */
typedef struct kvl_trial_times {
    double *ttft_ns, *decode_ns; /* [n_passes] */
    double *step_ns;             /* [n_steps] over all passes */
    size_t n_passes, n_steps;
    double warmup_ns, warmup_prefill_ns;
    double *warmup_step_ns; /* [n_warmup_steps] */
    size_t n_warmup_steps;
    bool warmup_steady;               /* false: a limit of steps or time ended the warm-up */
    kvl_engine_stats prefill, decode; /* summed over the passes */
    double prefill_ns_sum, decode_ns_sum;
    double kv_bytes_scanned;  /* mean over decode steps */
    kvl_engine_memory memory; /* at the end of the last pass, sequences alive */
    uint64_t rss_steady_bytes;
    int64_t found_tokens; /* of the prompts of all passes: in the prefix cache */
    int64_t nonfinite;    /* logits that were not finite in the checked steps */
    int64_t *saturated;   /* [n_layers][2][n_kv_heads] K and V values, over the passes */
} kvl_trial_times;

/* Parses the spec; KVL_ERR_INPUT names the member that is missing or of the wrong type. */
kvl_status kvl_trial_spec_parse(const json_t *spec, kvl_trial_spec_values *out);

/* Where K and V lie under an allocator: pages, or slabs in the order that it needs. `reserve` may
 * be NULL. (trial_verify.c) */
kvl_status kvl_trial_layout(const char *allocator, const char *reserve, int64_t page_tokens,
                            kvl_verify_layout *out);

/* The attention kernel that the trial runs, with its heads, dtypes, scales, layout and window,
 * against the oracle. KVL_ERR_UNSUPPORTED: it cannot. (trial_verify.c) */
kvl_status kvl_trial_verify(const kvl_config *config, const kvl_trial_spec_values *spec,
                            kvl_verify_result *verified);

/* What every engine of a trial is made with. (trial_verify.c) */
kvl_engine_options kvl_trial_engine_options(const kvl_trial_spec_values *spec);

/* Prompts of all sequences, [batch][prompt] (context: [batch][1]), malloc'ed. (trial_prompts.c) */
kvl_status kvl_trial_prompts(const kvl_model *model, const kvl_trial_spec_values *spec,
                             int32_t **ids);

/* Adds what the engine counted since its last reset to times->saturated. (trial_measure.c) */
kvl_status kvl_trial_add_saturated(const kvl_engine *engine, kvl_trial_times *times);

/* Warm-up and passes on a loaded engine. (trial_measure.c) */
kvl_status kvl_trial_measure(kvl_engine *engine, const kvl_trial_spec_values *spec,
                             const int32_t *prompts, kvl_trial_times *times);
void kvl_trial_times_free(kvl_trial_times *times);

/* metrics{}, samples{} and effective{} from the times. (trial_report.c) */
json_t *kvl_trial_metrics(const kvl_engine *engine, const kvl_trial_spec_values *spec,
                          const kvl_trial_times *times, double load_s);
/* layer_k_saturated and layer_v_saturated, into samples{}. */
void kvl_trial_saturated(const kvl_config *config, const kvl_trial_times *times, json_t *samples);
json_t *kvl_trial_samples(const kvl_config *config, const kvl_trial_times *times);
json_t *kvl_trial_effective(const kvl_engine *engine, const kvl_model *model,
                            const kvl_trial_spec_values *spec, const kvl_trial_times *times,
                            const kvl_verify_result *verified);

/* Runs the trial of `spec`. *answer is {outcome, reason, effective, metrics, samples} whatever
 * became of it; fails only when the spec itself is malformed. */
kvl_status kvl_trial_run(const json_t *spec, json_t **answer);

#endif
