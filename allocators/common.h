/* Internal to allocators/: what every module checks the same way. */
#ifndef KVL_ALLOCATORS_COMMON_H
#define KVL_ALLOCATORS_COMMON_H

#include "allocators/allocator.h"

/* Modules of this folder; registry.c lists them. */
extern const kvl_allocator kvl_allocator_contiguous, kvl_allocator_paged;

/* Every count at least 1 and lengths that a KV view can state (int32). Names the first value that
 * is not. */
kvl_status kvl_allocator_check_config(const kvl_allocator_config *config);

/* need = n_prompt + max_new; refuses negative counts and more than max_seq_tokens. */
kvl_status kvl_allocator_need(const kvl_allocator_config *config, int64_t n_prompt, int64_t max_new,
                              int64_t *need);

/* An append of n_tokens to `length` stays within max_seq_tokens; negative counts are refused. */
kvl_status kvl_allocator_check_append(const kvl_allocator_config *config, int64_t length,
                                      int64_t n_tokens);

/* Raises the ledger's high-water marks. */
static inline void kvl_allocator_peaks(int64_t live, int64_t used, int64_t *live_peak,
                                       int64_t *used_peak) {
    if (live > *live_peak) *live_peak = live;
    if (used > *used_peak) *used_peak = used;
}

#endif
