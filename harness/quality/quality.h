/* What a configuration costs in quality, beside its speed and memory: two engines of one model step
 * over the same text, the measured one and a float32 one, and their logits are compared chunk by
 * chunk. Nothing of the logits is kept.
 *
 *   spec (JSON) -> verify attention -> load both -> warm up -> text in chunks, scored -> the last
 *   tokens once more, one at a time (decode speed) -> answer
 */
#ifndef KVL_HARNESS_QUALITY_H
#define KVL_HARNESS_QUALITY_H

#include <jansson.h>

#include "decoder/engine.h"
#include "harness/quality/score.h"
#include "harness/trial/trial.h"

/* The reference: weights, K/V and arithmetic float32, paged, flash, deterministic; one sequence of
 * up to n_tokens, in steps of `chunk`. Its logits do not depend on threads, chunk or device tuning.
 */
kvl_status kvl_quality_reference(const kvl_model *model, int64_t n_tokens, int64_t chunk,
                                 kvl_engine **out);

/* One pass over a text. All but the last token are fed: each predicts the one after it. */
typedef struct kvl_quality_pass {
    kvl_engine *measured, *reference; /* with the same vocabulary */
    const int32_t *ids;               /* [n_tokens], at least 2 */
    int64_t n_tokens, chunk;
    kvl_quality_token *tokens; /* [n_tokens - 1] out */
    kvl_trial_times times;     /* out, of the measured engine only; kvl_trial_times_free */
} kvl_quality_pass;

/* Warms the measured engine up, scores the text, and times decode steps: the text's last tokens are
 * cut off and fed again one by one. times.nonfinite counts tokens without finite numbers. */
kvl_status kvl_quality_pass_run(kvl_quality_pass *pass);

/* The trial of `spec`. *answer as kvl_trial_run gives it; fails only when the spec itself is
 * malformed. (trial.c) */
kvl_status kvl_quality_trial_run(const json_t *spec, json_t **answer);

#endif
