/* An allocator with its state, as replay and serve drive it: no tensors, no orders to run. */
#ifndef KVL_HARNESS_POOL_H
#define KVL_HARNESS_POOL_H

#include "allocators/allocator.h"
#include "harness/traces/trace.h"

typedef struct kvl_pool {
    const kvl_allocator *module;
    kvl_allocator_config config;
    kvl_placement placement;
    const kvl_trace *trace; /* borrowed: contents of prompts */
    void *state;
    uint64_t state_bytes;
    uint64_t *keys; /* scratch: of one request's pages */
} kvl_pool;

/* Lays out the state; it takes memory as it is touched. */
kvl_status kvl_pool_open(kvl_pool *pool, const kvl_allocator *module,
                         const kvl_allocator_config *config, const kvl_trace *trace);
void kvl_pool_close(kvl_pool *pool);

/* How a request comes in. */
typedef struct kvl_pool_request {
    int64_t index;      /* in the trace */
    int64_t n_tokens;   /* to hold at once: its prompt and what it had generated before */
    int64_t max_new;    /* to come */
    int64_t max_cached; /* most tokens taken from the prefix cache */
    bool readmitted;    /* after a preemption */
    bool whole;         /* set everything aside now, so that no append can be refused */
} kvl_pool_request;

/* Admits it and writes the tokens found in the cache; the caller appends the others. */
kvl_status kvl_pool_admit(kvl_pool *pool, const kvl_pool_request *request, kvl_admission *out);

/* Appends, and drops the orders that a real engine would run. */
kvl_status kvl_pool_append(kvl_pool *pool, kvl_seq seq, int64_t n_tokens);

/* Tokens that a sequence of `length` tokens and `need` in all may still append without changing
 * what is handed out: 0 when the very next one may. */
int64_t kvl_pool_room(const kvl_pool *pool, int64_t length, int64_t need);

#endif
