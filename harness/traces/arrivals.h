/* When requests arrive: as the trace says, or by a law, lengths and their order kept.
 *
 *   recorded      as the trace says
 *   xF            F times the recorded rate: gaps divided by F (x0.5, x2)
 *   poisson:R     R requests a second on average, gaps exponential
 *   gamma:R:CV    the same rate, gaps gamma-distributed with a coefficient of variation of CV:
 *                 1 is poisson, above 1 comes in bursts
 *   together      all at once
 *
 * R, F and CV are plain decimals in 0.000001 to 1000000. Random gaps depend on the seed alone.
 */
#ifndef KVL_HARNESS_ARRIVALS_H
#define KVL_HARNESS_ARRIVALS_H

#include "harness/sweep/axis.h"
#include "harness/traces/trace.h"

/* Grammar of the axis `arrival`. */
kvl_status kvl_arrival_canonical(const char *text, size_t length,
                                 char canonical[KVL_AXIS_TEXT_BYTES]);

/* Rewrites arrival_ns of all requests; `law` is canonical. KVL_ERR_INPUT when the last arrival
 * would lie more than 73 years on. */
kvl_status kvl_arrivals_apply(const char *law, uint64_t seed, kvl_trace *trace);

/* Prompts and outputs times `scale` (> 0), rounded, at least one token each: a trace of a large
 * model fitted to a small one. What prompts hold is forgotten, unless scale is 1. */
kvl_status kvl_trace_scale_lengths(kvl_trace *trace, double scale);

/* `batch_pct` per cent of the requests, drawn by seed, become of the batch class; 0 leaves the
 * trace's own classes. */
void kvl_trace_set_classes(kvl_trace *trace, int32_t batch_pct, uint64_t seed);

#endif
