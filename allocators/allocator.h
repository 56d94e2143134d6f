/* The allocator seam: who owns which KV slot. Host C only; touches no tensor.
 *
 * A slot holds K and V of one token in every layer of a layer group. An allocator hands slots of a
 * pool of `pool_tokens` slots to sequences, and says what must happen to memory as a list of orders
 * (copy slots to slots) that the engine runs before the next append. The caller owns
 * the state memory: nothing is allocated after init.
 *
 * Conservation law, exact after every call (kvl_ledger):
 *
 *   pool = live + reserved + internal + cached + padding + free
 *
 *   live      slots that hold a token (a slot shared by several sequences counts once)
 *   reserved  handed out, not yet written, within the sequence's declared need (prompt + max_new)
 *   internal  handed out, not written, beyond the declared need
 *   cached    kept for reuse after release (prefix cache), reclaimable
 *   padding   lost to alignment, never usable
 *   free      the rest
 */
#ifndef KVL_ALLOCATORS_ALLOCATOR_H
#define KVL_ALLOCATORS_ALLOCATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct kvl_allocator_config {
    int64_t pool_tokens;    /* slots in the pool, >= 1 */
    int64_t page_tokens;    /* paged: slots in a page, >= 1; ignored by contiguous */
    int64_t max_seq_tokens; /* longest sequence allowed; contiguous: the slab */
    int32_t max_seqs;       /* sequences alive at once, >= 1 */
} kvl_allocator_config;

typedef struct kvl_ledger {
    int64_t pool, live, reserved, internal, cached, padding, free; /* slots; the law above */
    int64_t external; /* part of free that cannot serve `largest_wanted` (0 if it can be served) */
    int64_t
        largest_admissible; /* longest new request (prompt + max_new) that would be accepted now */
    int64_t shared_saved;   /* slots saved by sharing: sum over sequences of tokens - live */
    int64_t live_peak, used_peak; /* high-water marks: live; pool - free */
    int64_t copied_slots;         /* slots moved by orders since init */
    int64_t metadata_bytes;       /* state memory */
} kvl_ledger;

typedef enum kvl_order_kind {
    KVL_ORDER_COPY_SLOTS, /* copy n_slots slots from src_slot to dst_slot (copy-on-write, growth) */
} kvl_order_kind;

/* Memory work for the engine. Slots are pool-wide: page * page_tokens + slot, or slab start + slot.
 */
typedef struct kvl_order {
    kvl_order_kind kind;
    int64_t src_slot, dst_slot, n_slots;
} kvl_order;

typedef struct kvl_allocator kvl_allocator; /* module, below */

/* A sequence's handle: small, dense, 0 .. max_seqs - 1, reused after release. */
typedef int32_t kvl_seq;

struct kvl_allocator {
    const char *name;    /* "paged" */
    const char *summary; /* one line for `kvlab info` */
    bool uses_pages;     /* page_tokens plays a part; without it the KV view has no page table */

    /* Bytes of state for `config`, or an error that names the value (page_tokens 0, overflow ...).
     */
    kvl_status (*state_bytes)(const kvl_allocator_config *config, uint64_t *bytes);
    /* Lays the state out in `state` (state_bytes bytes, 64-byte aligned). */
    kvl_status (*init)(void *state, const kvl_allocator_config *config);

    /* Admits a sequence that will hold up to n_prompt + max_new tokens; all or nothing. Contiguous
     * takes its slab here; paged takes what the prompt needs. KVL_ERR_OOM says "needs N pages, pool
     * has M free of K, longest that fits is L tokens"; KVL_ERR_INPUT when it could never fit. */
    kvl_status (*reserve)(void *state, int64_t n_prompt, int64_t max_new, kvl_seq *seq);
    /* n_tokens more tokens are about to be written at the sequence's end; all or nothing. May add
     * orders (copy-on-write of a shared last page). */
    kvl_status (*append)(void *state, kvl_seq seq, int64_t n_tokens);
    /* A child that shares every token of `seq`; KVL_ERR_UNSUPPORTED where sharing is impossible. */
    kvl_status (*fork)(void *state, kvl_seq seq, kvl_seq *child);
    /* Drops tokens past n_tokens. */
    kvl_status (*truncate)(void *state, kvl_seq seq, int64_t n_tokens);
    kvl_status (*release)(void *state, kvl_seq seq);

    /* Tokens held; -1 for a handle that is not alive. */
    int64_t (*length)(const void *state, kvl_seq seq);

    /* Placement, for the KV view. Paged: page ids of `seq` ([ceil(len / page_tokens)] valid
     * entries), slab NULL. Contiguous: returns NULL and *slab_slot = first slot of the slab. */
    const int32_t *(*pages)(const void *state, kvl_seq seq, int64_t *slab_slot);
    /* Slots a page (paged) or a slab (contiguous) has: the view's page_tokens. */
    int64_t (*page_tokens)(const void *state);

    /* Orders collected since the last call: at most `capacity` are written, the count is returned;
     * call until 0. */
    int32_t (*take_orders)(void *state, kvl_order *orders, int32_t capacity);

    /* `largest_wanted`: declared need of the largest waiting request, 0 for none (external = 0). */
    void (*stats)(const void *state, int64_t largest_wanted, kvl_ledger *ledger);
    /* Walks every invariant; false with one line in `why`. */
    bool (*is_valid)(const void *state, char *why, size_t why_bytes);
};

size_t kvl_allocator_count(void);
const kvl_allocator *kvl_allocator_at(size_t index);
kvl_status kvl_allocator_find(const char *name, const kvl_allocator **out);

#endif
