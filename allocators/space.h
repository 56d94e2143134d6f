/* A space of slots that slabs are cut from: the heap with holes of `contiguous` and `growing`, and
 * the power-of-two chunks of `buddy`. Internal to allocators/; lives in the allocator's state. */
#ifndef KVL_ALLOCATORS_SPACE_H
#define KVL_ALLOCATORS_SPACE_H

#include "allocators/common.h"

typedef struct kvl_space_ops {
    /* Bytes for a space of n_slots with at most max_blocks slabs at once; false on overflow. */
    bool (*bytes)(int64_t n_slots, int64_t max_blocks, uint64_t *bytes);
    void (*init)(void *space, int64_t n_slots, int64_t max_blocks, kvl_fit fit);
    /* Slots that a slab of n really takes (buddy: the next power of two). */
    int64_t (*rounded)(int64_t n);
    /* A slab of n >= 1 slots (rounded already): its first slot and a number to give it back by;
     * false when no hole is long enough. */
    bool (*take)(void *space, int64_t n, int64_t *slot, int32_t *block);
    void (*give)(void *space, int64_t slot, int64_t n, int32_t block);
    int64_t (*largest)(const void *space);                /* longest slab to be had */
    int64_t (*holes_below)(const void *space, int64_t n); /* slots in holes shorter than n */
    void (*holes)(const void *space, void (*visit)(void *user, int64_t slot, int64_t n),
                  void *user);
    bool (*is_valid)(const void *space, int64_t n_free, char *why, size_t why_bytes);
} kvl_space_ops;

extern const kvl_space_ops kvl_space_heap, kvl_space_buddy;

#endif
