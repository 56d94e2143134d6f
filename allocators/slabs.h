/* Sequences that live in one slab each: what `contiguous`, `buddy` and `growing` have in common.
 * They differ in the space that slabs are cut from and in how long a slab is. */
#ifndef KVL_ALLOCATORS_SLABS_H
#define KVL_ALLOCATORS_SLABS_H

#include "allocators/space.h"

typedef struct kvl_slab_rules {
    const char *name; /* of the allocator, for messages */
    const kvl_space_ops *space;
    /* Slots of the pool that slabs are cut from; the rest is padding. 0: the pool is too small. */
    int64_t (*usable)(const kvl_allocator_config *config);
    /* Slots to set aside at admission, not rounded. */
    int64_t (*at_admission)(const kvl_allocator_config *config, int64_t n_prompt, int64_t max_new);
    /* Slots that the empty pool must have for the request ever to end. */
    int64_t (*ever)(const kvl_allocator_config *config, int64_t n_prompt, int64_t max_new);
    bool grows; /* an append past the slab's end moves the sequence to a longer one */
} kvl_slab_rules;

typedef struct kvl_slab_seq {
    int32_t next_free; /* while dead: next free handle; KVL_SLAB_ALIVE while alive */
    int32_t block;     /* of the space */
    int64_t length, need;
    int64_t slot, n_slots; /* the slab; n_slots 0: none yet */
} kvl_slab_seq;

enum { KVL_SLAB_END = -1, KVL_SLAB_ALIVE = -2 };

/* Law: usable = live + reserved + internal + free, where every sequence adds n_slots = length +
 * max(min(need, n_slots) - length, 0) + the rest. */
typedef struct kvl_slabs {
    kvl_allocator_config config;
    const kvl_slab_rules *rules;
    int64_t usable, used;                   /* slots: that slabs are cut from; in slabs */
    int64_t live, reserved, internal;       /* used = live + reserved + internal */
    int32_t n_alive, first_free, n_touched; /* handles: alive; free list; ever used */
    int32_t n_orders;
    int64_t state_bytes;
    kvl_ledger counters; /* peaks and copies */
    kvl_slab_seq *seqs;  /* [max_seqs] */
    kvl_order *orders;   /* [max_seqs] */
    void *space;
} kvl_slabs;

/* The functions of kvl_allocator; state_bytes and init take the module's rules. */
kvl_status kvl_slabs_state_bytes(const kvl_slab_rules *rules, const kvl_allocator_config *config,
                                 uint64_t *bytes);
kvl_status kvl_slabs_init(const kvl_slab_rules *rules, void *state,
                          const kvl_allocator_config *config);
kvl_status kvl_slabs_reserve(void *state, int64_t n_prompt, int64_t max_new, kvl_seq *seq);
kvl_status kvl_slabs_append(void *state, kvl_seq seq, int64_t n_tokens);
kvl_status kvl_slabs_fork(void *state, kvl_seq seq, kvl_seq *child);
kvl_status kvl_slabs_truncate(void *state, kvl_seq seq, int64_t n_tokens);
kvl_status kvl_slabs_release(void *state, kvl_seq seq);
int64_t kvl_slabs_length(const void *state, kvl_seq seq);
const int32_t *kvl_slabs_pages(const void *state, kvl_seq seq, int64_t *slab_slot);
void kvl_slabs_placement(const void *state, kvl_placement *out);
int32_t kvl_slabs_take_orders(void *state, kvl_order *orders, int32_t capacity);
void kvl_slabs_stats(const void *state, int64_t largest_wanted, kvl_ledger *ledger);
void kvl_slabs_walk(const void *state, kvl_slot_visit visit, void *user);
bool kvl_slabs_is_valid(const void *state, char *why, size_t why_bytes);

#endif
