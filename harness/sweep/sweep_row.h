/* From the end of a child to its row. Internal to the sweep. */
#ifndef KVL_HARNESS_SWEEP_ROW_H
#define KVL_HARNESS_SWEEP_ROW_H

#include "harness/sweep/child.h"
#include "harness/sweep/sweep.h"

/* What the sweep knows beside the child's answer. */
typedef struct kvl_row_context {
    const kvl_sweep_options *options;
    const kvl_trial *trial;
    const char *run;
    int64_t round;
    const json_t *ceilings; /* object */
    const json_t *env;      /* object, taken before the child started */
} kvl_row_context;

/* The spec that `kvlab trial` gets: workload, axes, round, ceilings; malloc'ed JSON text. */
char *kvl_trial_spec(const kvl_row_context *context);

/* The row of a child that ran, whatever its end; of one that did not run: child NULL, with outcome
 * and reason. A new reference. */
json_t *kvl_sweep_row(const kvl_row_context *context, const kvl_child_result *child,
                      kvl_outcome outcome, const char *reason);

#endif
