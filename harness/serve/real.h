/* The backend that is the decoder engine itself: the scheduler's steps run, greedy tokens come out,
 * and the clock is the wall's (idle time between arrivals is skipped). */
#ifndef KVL_HARNESS_SERVE_REAL_H
#define KVL_HARNESS_SERVE_REAL_H

#include "decoder/engine.h"
#include "harness/serve/serve.h"

typedef struct kvl_real kvl_real;

/* Loads the model's weights and makes the prompts: windows of `text` (token ids, from seeded
 * places) or, when it is NULL, seeded random ids. `options`: names of kernels and formats; sizes
 * come from `serve`. Model, trace and options must outlive it. */
kvl_status kvl_real_open(const kvl_model *model, const kvl_engine_options *options,
                         const kvl_serve_options *serve, const kvl_trace *trace,
                         const int32_t *text, int64_t n_text, uint64_t seed, kvl_real **out);
void kvl_real_close(kvl_real *real);

kvl_serve_backend kvl_real_backend(kvl_real *real);
kvl_engine *kvl_real_engine(kvl_real *real);

/* [prompt + output] ids of a request; those not generated yet are -1. */
const int32_t *kvl_real_ids(const kvl_real *real, int64_t request);
/* [prompt + output] how far the logit of each generated token lay above the next best one: where
 * another system picks another token, this says whether rounding can explain it. */
const float *kvl_real_margins(const kvl_real *real, int64_t request);

#endif
