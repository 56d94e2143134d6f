#include "harness/replay/heap.h"

#include <stdlib.h>

static bool before(const kvl_event *a, const kvl_event *b) {
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

kvl_status kvl_heap_push(kvl_heap *heap, kvl_event event) {
    if (heap->n == heap->capacity) {
        int64_t capacity = heap->capacity ? 2 * heap->capacity : 256;
        kvl_event *larger = realloc(heap->events, (size_t)capacity * sizeof *larger);
        if (!larger) return kvl_fail(KVL_ERR_OOM, "%lld events: out of memory", (long long)heap->n);
        heap->events = larger;
        heap->capacity = capacity;
    }
    int64_t at = heap->n++;
    for (; at > 0 && before(&event, &heap->events[(at - 1) / 2]); at = (at - 1) / 2)
        heap->events[at] = heap->events[(at - 1) / 2];
    heap->events[at] = event;
    return KVL_OK;
}

kvl_event kvl_heap_pop(kvl_heap *heap) {
    kvl_event top = heap->events[0], last = heap->events[--heap->n];
    int64_t at = 0;
    for (int64_t child = 1; child < heap->n; child = 2 * at + 1) {
        if (child + 1 < heap->n && before(&heap->events[child + 1], &heap->events[child])) child++;
        if (!before(&heap->events[child], &last)) break;
        heap->events[at] = heap->events[child];
        at = child;
    }
    if (heap->n) heap->events[at] = last;
    return top;
}

void kvl_heap_free(kvl_heap *heap) {
    free(heap->events);
    *heap = (kvl_heap){0};
}
