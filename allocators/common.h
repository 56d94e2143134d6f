/* Internal to allocators/: what every module checks the same way. */
#ifndef KVL_ALLOCATORS_COMMON_H
#define KVL_ALLOCATORS_COMMON_H

#include <string.h>

#include "allocators/allocator.h"
#include "core/checked.h"

/* Modules of this folder; registry.c lists them. */
extern const kvl_allocator kvl_allocator_contiguous, kvl_allocator_buddy, kvl_allocator_growing,
    kvl_allocator_paged, kvl_allocator_virtual;

/* Every count at least 1 and lengths that a KV view can state (int32). Names the first value that
 * is not. */
kvl_status kvl_allocator_check_config(const kvl_allocator_config *config);

/* need = n_prompt + max_new; refuses negative counts and more than max_seq_tokens. */
kvl_status kvl_allocator_need(const kvl_allocator_config *config, int64_t n_prompt, int64_t max_new,
                              int64_t *need);

/* An append of n_tokens to `length` stays within max_seq_tokens; negative counts are refused. */
kvl_status kvl_allocator_check_append(const kvl_allocator_config *config, int64_t length,
                                      int64_t n_tokens);

/* Asks the fault injector; KVL_ERR_OOM when it says so. */
kvl_status kvl_allocator_deny(const kvl_allocator_config *config);

/* Moves up to `capacity` of the *n_orders waiting orders out, the oldest first. */
int32_t kvl_allocator_take_orders(kvl_order *waiting, int32_t *n_waiting, kvl_order *out,
                                  int32_t capacity);

/* Places an array of n x elem_bytes at the next 64-byte boundary of *end; false on overflow. */
static inline bool kvl_place(uint64_t *end, uint64_t n, uint64_t elem_bytes, uint64_t *offset) {
    uint64_t bytes;
    return kvl_align_u64(*end, 64, offset) && kvl_mul_u64(n, elem_bytes, &bytes) &&
           kvl_add_u64(*offset, bytes, end);
}

/* Raises the ledger's high-water marks. */
static inline void kvl_allocator_peaks(int64_t live, int64_t used, int64_t *live_peak,
                                       int64_t *used_peak) {
    if (live > *live_peak) *live_peak = live;
    if (used > *used_peak) *used_peak = used;
}

#endif
