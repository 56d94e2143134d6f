/* Model checks that the tiny decoders and smollm2 share. */
#ifndef KVL_HARNESS_VERIFY_GOLDEN_MODEL_H
#define KVL_HARNESS_VERIFY_GOLDEN_MODEL_H

#include "decoder/engine.h"
#include "harness/verify/golden.h"

/* One prompt of a golden: "<name>.ids", "<name>.greedy" and "<name>.greedy_margin", the best logit
 * minus the second best of each greedy step. */
typedef struct kvl_golden_prompt {
    int32_t *ids, *greedy;
    float *margin; /* [n_greedy], no NaN; NULL: the golden has none, our own logits tell a tie */
    int64_t n_ids, n_greedy;
} kvl_golden_prompt;

kvl_status kvl_golden_prompt_load(const kvl_safetensors *st, const char *path, const char *name,
                                  int32_t vocab_size, bool with_margins, kvl_golden_prompt *out);
void kvl_golden_prompt_free(kvl_golden_prompt *prompt);

/* An engine with f32 KV and compute and these weights, with room for one sequence of max_tokens. */
kvl_status kvl_golden_engine(const kvl_model *model, const char *allocator, const char *attention,
                             const char *weights, int64_t max_tokens, kvl_engine **out);

/* Prefill of the prompt; logits [n_ids or 1][vocab] (every position, or the last). The sequence
 * stays open for the greedy steps. */
kvl_status kvl_golden_prefill(kvl_engine *engine, const kvl_golden_prompt *prompt, bool every,
                              kvl_seq *seq, float *logits);

/* Compares logits with golden ones; fills max_abs and bound. */
void kvl_golden_logits(const float *got, const kvl_st_tensor *want, double bound,
                       kvl_verify_result *result);

/* The tie rule: the golden's own tokens are fed in; a token that differs where the golden's margin
 * is under 1e-3 is a tie, anywhere else a failure. `logits` holds those of the prompt's last token
 * and is overwritten. Ends the sequence. */
kvl_status kvl_golden_greedy(kvl_engine *engine, kvl_seq seq, const kvl_golden_prompt *prompt,
                             float *logits, kvl_verify_result *result);

/* tokenizer_golden.json of `dir` under the id "<prefix>/tokenizer": ids equal, decode is the text.
 */
kvl_status kvl_golden_tokenizer(kvl_verify_golden_run *run, const char *dir, const char *prefix,
                                const kvl_model *model);

#endif
