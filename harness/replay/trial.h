/* The child's side of `kvlab bench replay`. */
#ifndef KVL_HARNESS_REPLAY_TRIAL_H
#define KVL_HARNESS_REPLAY_TRIAL_H

#include <jansson.h>

#include "core/status.h"

/* Runs the trial of `spec`; see kvl_trial_run. Where the spec names a side file, the time series is
 * written to <side>-ledger.csv and, of a limited pool, the map to <side>-map.csv. */
kvl_status kvl_replay_trial_run(const json_t *spec, json_t **answer);

#endif
