/* What the tables of several workloads say alike. Where an allocator's traits decide (its module's
 * flags, never its name), the answer stands here once; a name that is unknown changes nothing. */
#ifndef KVL_HARNESS_WORKLOAD_COMMON_H
#define KVL_HARNESS_WORKLOAD_COMMON_H

#include <stdint.h>

#include "harness/sweep/experiment.h"

/* Names allowed, NULL at the end. */
extern const char *const kvl_workload_policies[]; /* of --reserve: none, max, pow2, oracle */
extern const char *const kvl_workload_switches[]; /* on, off */

/* normalise: page_tokens is 0 where the allocator's view has no pages. */
void kvl_workload_drop_pages(kvl_trial *trial);
/* normalise: reserve is "none" where the allocator has no policy. */
void kvl_workload_drop_reserve(kvl_trial *trial);
/* normalise, for allocators without memory: both, but memory that is mapped on demand is counted in
 * pages of page_tokens there. */
void kvl_workload_drop_slot_axes(kvl_trial *trial);

/* refuse: what the point's allocator, engine or trace lacks; NULL: nothing. */
const char *kvl_workload_why_no_reserve(const kvl_trial *trial);
const char *kvl_workload_why_no_share(const kvl_trial *trial);
/* refuse: writes "allocator NAME: why" into trial->refused, unless why is NULL. */
void kvl_workload_refuse_allocator(kvl_trial *trial, const char *why);

/* Bytes of `n` values in the named dtype or K:V pair; block formats count a byte, near enough for a
 * class. */
uint64_t kvl_workload_dtype_bytes(const char *name, uint64_t n);
/* working_set_bytes of what no bandwidth is set beside: the smallest class of ceilings. */
uint64_t kvl_workload_no_working_set(const kvl_trial *trial);

#endif
