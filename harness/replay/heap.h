/* A binary heap of events in virtual time, the earliest on top. */
#ifndef KVL_HARNESS_HEAP_H
#define KVL_HARNESS_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef struct kvl_event {
    int64_t time;
    int64_t order; /* of events at one time: unique, so that ties cannot go either way */
    int64_t what;  /* the owner's */
} kvl_event;

typedef struct kvl_heap {
    kvl_event *events; /* [capacity] */
    int64_t n, capacity;
} kvl_heap;

kvl_status kvl_heap_push(kvl_heap *heap, kvl_event event);
/* The heap is not empty. */
kvl_event kvl_heap_pop(kvl_heap *heap);
void kvl_heap_free(kvl_heap *heap);

#endif
