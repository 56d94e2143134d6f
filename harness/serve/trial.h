/* The child's side of `kvlab bench serve`. */
#ifndef KVL_HARNESS_SERVE_TRIAL_H
#define KVL_HARNESS_SERVE_TRIAL_H

#include <jansson.h>

#include "core/status.h"
#include "harness/serve/cost.h"

/* Slots for K and V in `utilization_pct` of `memory_bytes` (0: the machine of the rows) once
 * weights are in. KVL_ERR_INPUT when nothing is left. */
kvl_status kvl_serve_pool_tokens(const kvl_cost *cost, int64_t utilization_pct,
                                 uint64_t memory_bytes, int64_t *pool_tokens);

/* metrics{} of a run. */
json_t *kvl_serve_metrics(const kvl_trace *trace, const kvl_serve_options *options,
                          const kvl_serve_result *result);

/* Runs the trial of `spec`; see kvl_trial_run. Side files: <side>-ledger.csv and, on the engine,
 * <side>-requests.jsonl: arrival, prompt, output and times of each request. */
kvl_status kvl_serve_trial_run(const json_t *spec, json_t **answer);

#endif
