/* What the scheduler's files share: serve.c (time, arrivals, laws), admit.c (queues, admission,
 * preemption), step.c (what goes into a step and comes out of it). */
#ifndef KVL_HARNESS_SERVE_INTERNAL_H
#define KVL_HARNESS_SERVE_INTERNAL_H

#include "harness/replay/heap.h"
#include "harness/serve/serve.h"

/* A request on its way. */
typedef struct kvl_serving {
    int64_t queued_ns; /* when it last joined the queue from outside */
    int32_t generated; /* output tokens given out */
    kvl_seq seq;       /* while it runs */
    int64_t computed;  /* tokens in its cache */
    int64_t target;    /* tokens to compute before the next one comes out */
    int64_t lost;      /* tokens that a preemption threw away */
    int64_t swapped;   /* tokens whose K and V are kept outside; 0: none */
    bool whole;        /* everything it needs is set aside */
    bool in_step;      /* it has an item in the step being made */
} kvl_serving;

/* First in, first out, and what was preempted comes back in front. */
typedef struct kvl_queue {
    int64_t *ring; /* [capacity] requests */
    int64_t capacity, head, n;
} kvl_queue;

typedef struct kvl_server {
    const kvl_trace *trace;
    const kvl_serve_options *options;
    const kvl_serve_backend *backend;
    kvl_serve_result *result;
    kvl_pool pool;
    bool grows;           /* sequences take slots after admission */
    kvl_serving *serving; /* [trace.n] */
    kvl_queue queues[2];  /* by class */
    int64_t *running;     /* [max_seqs] requests in order of admission */
    int32_t n_running;
    kvl_serve_item *items; /* [max_seqs] the step being made */
    int32_t n_items;
    int64_t budget;       /* new tokens that the step may still take */
    int64_t swap_tokens;  /* to move before the next step */
    kvl_heap retries;     /* what: request */
    int64_t next_arrival; /* first request of the trace that has not come */
    int64_t now_ns;
    bool blocked;    /* the next request has no place in this step */
    bool batch_open; /* static: the batch may still take requests in */
} kvl_server;

static inline int64_t kvl_server_waiting(const kvl_server *s) {
    return s->queues[0].n + s->queues[1].n;
}

/* ---- admit.c -------------------------------------------------------------------------------- */

void kvl_queue_back(kvl_queue *queue, int64_t request);
/* Admits whom the pool takes, in order, as long as the step has room for a chunk of each. */
kvl_status kvl_serve_admit(kvl_server *s);
/* Appends n tokens; when they have no place others give way, in the end the request itself: then
 * *stays is false. */
kvl_status kvl_serve_grow(kvl_server *s, int64_t request, int64_t n, bool *stays);
/* Takes a request off the running list, its slots are given back. */
kvl_status kvl_serve_leave(kvl_server *s, int64_t request);

/* ---- step.c --------------------------------------------------------------------------------- */

kvl_status kvl_serve_fill_step(kvl_server *s);
/* Adds a chunk of the prompt of `request`, of what the budget allows. */
kvl_status kvl_serve_add_chunk(kvl_server *s, int64_t request);
/* After the step: tokens come out at now_ns, requests end. */
kvl_status kvl_serve_take_tokens(kvl_server *s);

#endif
