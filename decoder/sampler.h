/* Samplers: greedy, and temperature with repetition penalty, top-k, top-p, min-p, in this order:
 * repetition -> temperature -> top-k -> top-p -> min-p -> draw. Seeded; the same (seed, step,
 * logits) draws the same token on any machine. Ties go to the lower id. NaN logits are
 * KVL_ERR_INTERNAL, never a token. */
#ifndef KVL_DECODER_SAMPLER_H
#define KVL_DECODER_SAMPLER_H

#include <stdint.h>

#include "core/status.h"

typedef struct kvl_sampler_options {
    float temperature;        /* 0 = greedy */
    int32_t top_k;            /* 0 = off */
    float top_p;              /* 1 = off */
    float min_p;              /* 0 = off */
    float repetition_penalty; /* 1 = off; CTRL's rule: logit > 0 divided, < 0 multiplied */
    uint64_t seed;
} kvl_sampler_options;

kvl_sampler_options kvl_sampler_defaults(void); /* greedy, seed 0 */
kvl_status kvl_sampler_check(const kvl_sampler_options *options);

typedef struct kvl_sampler kvl_sampler;
kvl_status kvl_sampler_create(const kvl_sampler_options *options, int32_t vocab_size,
                              kvl_sampler **out);
void kvl_sampler_free(kvl_sampler *sampler);
/* Notes a token of the prompt or the output for the repetition penalty. */
void kvl_sampler_accept(kvl_sampler *sampler, int32_t id);
/* Picks from logits [vocab_size]; logits are not changed. */
kvl_status kvl_sampler_pick(kvl_sampler *sampler, const float *logits, int32_t *id);

/* Index of the largest of n floats, the lowest on ties; -1 when any is NaN. */
int32_t kvl_argmax(const float *logits, int32_t n);

#endif
