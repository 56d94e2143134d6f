/* How long an engine step takes, from measured rows of `kvlab bench decode` on this machine.
 *
 *   seconds = step + token * tokens + sequence * sequences that emit
 *           + decode_key * keys that decoding queries see + prefill_pair * (query, key) pairs of
 * prompts
 *
 * The coefficients are fitted to the decode steps and prefills of the rows by least squares of the
 * relative error with none below zero, so that what was not measured is not extrapolated downwards.
 */
#ifndef KVL_HARNESS_COST_H
#define KVL_HARNESS_COST_H

#include <jansson.h>

#include "harness/serve/serve.h"

enum { KVL_COST_FEATURES = 5 };
extern const char *const kvl_cost_names[KVL_COST_FEATURES]; /* step, token, ... */

typedef struct kvl_cost {
    double seconds[KVL_COST_FEATURES];    /* of one unit of each feature */
    double swap_token;                    /* seconds to move K and V of a token out or in */
    double mean_error_pct, max_error_pct; /* of the fit, on the rows it came from */
    int64_t n_points;
    uint64_t weight_bytes, kv_bytes_per_token, memory_bytes; /* of the rows' model and machine */
    char model[128];
} kvl_cost;

/* Rows of one configuration in which prompt, batch, output or context vary. KVL_ERR_INPUT: too few
 * rows that ended ok, or rows that differ in something else (names it). */
kvl_status kvl_cost_fit(const char *path, kvl_cost *out);

/* What the features of a step are. */
void kvl_cost_features(const kvl_serve_item *items, int32_t n_items,
                       double features[KVL_COST_FEATURES]);

/* The backend of virtual time; user: const kvl_cost. */
kvl_serve_backend kvl_cost_backend(const kvl_cost *cost);

#endif
