/* Times calls of a kernel: warm-up until they are stable, then as many as fit a time budget. */
#ifndef KVL_HARNESS_KERNELS_TIMING_H
#define KVL_HARNESS_KERNELS_TIMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* What is timed. `index` counts calls from 0, warm-up included: a working set that is gone round
 * picks its part by it, in `prepare`, outside the time. */
typedef struct kvl_timed {
    void (*prepare)(void *context, int64_t index); /* may be NULL */
    kvl_status (*call)(void *context);
    bool (*is_right)(void *context); /* of the last call, outside the time; may be NULL */
    void *context;
} kvl_timed;

typedef struct kvl_timings {
    double *ns; /* [n] of the measured calls */
    size_t n;
    double warmup_ns;
    size_t n_warmup;
    bool wrong; /* a call was not right: what was timed does not count */
} kvl_timings;

/* Warm-up: until calls are steady (harness/trial/steady.h), at most a second. Measured: half a
 * second of calls, at least 5, at most 4,096. */
kvl_status kvl_time_calls(const kvl_timed *timed, kvl_timings *out);
void kvl_timings_free(kvl_timings *timings);

#endif
