/* Reading axes{} and ceilings{} of a trial's spec, and what all kernels report alike. */
#ifndef KVL_HARNESS_KERNELS_AXES_H
#define KVL_HARNESS_KERNELS_AXES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/status.h"
#include "core/work.h"
#include "harness/kernels/timing.h"

kvl_status kvl_spec_text(const json_t *axes, const char *name, const char **out);
kvl_status kvl_spec_number(const json_t *axes, const char *name, int64_t min, int64_t max,
                           int64_t *out);
kvl_status kvl_spec_dtype(const json_t *axes, const char *name, kvl_dtype *out);
/* A text that is one of two: *out = it is the second. */
kvl_status kvl_spec_choice(const json_t *axes, const char *name, const char *first,
                           const char *second, bool *out);

/* Copies of `bytes` that exceed the last-level cache several times, one when they already do so;
 * KVL_ERR_UNSUPPORTED when that takes more than max_copies. */
kvl_status kvl_cold_copies(uint64_t bytes, int64_t max_copies, int64_t *out);

/* KVL_ERR_UNSUPPORTED when `bytes` exceed 90 % of the memory that is free now. */
kvl_status kvl_memory_suffices(uint64_t bytes);

/* What a trial found out, on the way to its answer. */
typedef struct kvl_findings {
    const char *outcome; /* NULL: ok */
    char reason[640];
    json_t *effective, *metrics, *samples;
} kvl_findings;

/* A number, or null where it does not exist. */
void kvl_set_number(json_t *object, const char *name, double value);
void kvl_set_count(json_t *object, const char *name, uint64_t value);
void kvl_set_text(json_t *object, const char *name, const char *text);

/* Times, throughput, shares of the ceilings, and the roofline: a call takes at least the longer of
 * its bytes at the read ceiling and its flops at the ceiling of `compute`. */
void kvl_report_times(kvl_findings *f, const kvl_timings *timings, const kvl_work *work,
                      const json_t *ceilings, kvl_dtype compute);

/* {outcome, reason, effective, metrics, samples}; `status` is how the trial ended. Takes what the
 * findings hold. */
kvl_status kvl_findings_answer(kvl_findings *f, kvl_status status, json_t **answer);

#endif
