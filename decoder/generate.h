/* Generation: prompt in, tokens out, over the engine; used by `kvlab generate` and by verify. */
#ifndef KVL_DECODER_GENERATE_H
#define KVL_DECODER_GENERATE_H

#include "decoder/engine.h"
#include "decoder/sampler.h"

typedef struct kvl_generate_options {
    int64_t max_tokens;
    kvl_sampler_options sampler;
    bool ignore_eos;      /* keep going past end tokens */
    bool no_cache;        /* recompute the whole sequence every step */
    int32_t chunk_tokens; /* prompt in chunks of this many; 0 = as the engine's max_batch_tokens */
    /* Teacher forcing for golden comparison: when not NULL, token i fed back is forced[i]. */
    const int32_t *forced;
    /* Called with each new token and its logits [vocab_size]; return false to stop. May be NULL. */
    bool (*on_token)(void *user, int32_t id, const float *logits);
    void *user;
} kvl_generate_options;

typedef struct kvl_generate_result {
    int32_t *ids; /* malloc'ed, n_ids: an end token that stopped the run is included */
    int64_t n_ids;
    bool stopped_by_eos;
    double ttft_ms, tpot_ms; /* tpot 0 when n_ids < 2 */
} kvl_generate_result;

kvl_status kvl_generate(kvl_engine *engine, const int32_t *prompt, int64_t n_prompt,
                        const kvl_generate_options *options, kvl_generate_result *result);
void kvl_generate_result_free(kvl_generate_result *result);

#endif
