#include "decoder/name_index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/clock.h"

bool kvl_name_index_init(kvl_name_index *index, size_t capacity) {
    assert(capacity <= (size_t)1 << 28);
    *index = (kvl_name_index){.capacity = capacity, .n_slots = 8, .seed = kvl_now_ns()};
    while (index->n_slots < capacity * 2) index->n_slots *= 2;
    index->names = calloc(capacity + 1, sizeof *index->names);
    index->bytes = calloc(capacity + 1, sizeof *index->bytes);
    index->slots = calloc(index->n_slots, sizeof *index->slots);
    if (index->names && index->bytes && index->slots) return true;
    kvl_name_index_free(index);
    return false;
}

void kvl_name_index_free(kvl_name_index *index) {
    free(index->names);
    free(index->bytes);
    free(index->slots);
    *index = (kvl_name_index){0};
}

/* The slot that holds the name, or the empty one where it belongs. */
static size_t slot_of(const kvl_name_index *index, const char *name, size_t bytes) {
    size_t slot = XXH3_64bits_withSeed(name, bytes, index->seed) & (index->n_slots - 1);
    for (; index->slots[slot]; slot = (slot + 1) & (index->n_slots - 1)) {
        uint32_t number = index->slots[slot] - 1;
        if (index->bytes[number] == bytes && memcmp(index->names[number], name, bytes) == 0) break;
    }
    return slot;
}

int64_t kvl_name_index_find(const kvl_name_index *index, const char *name, size_t bytes) {
    if (!index->n_names) return -1;
    return (int64_t)index->slots[slot_of(index, name, bytes)] - 1;
}

bool kvl_name_index_add(kvl_name_index *index, const char *name, size_t bytes) {
    size_t slot = slot_of(index, name, bytes);
    if (index->slots[slot]) return false;
    assert(index->n_names < index->capacity && bytes <= UINT32_MAX);
    index->names[index->n_names] = name;
    index->bytes[index->n_names] = (uint32_t)bytes;
    index->slots[slot] = (uint32_t)++index->n_names;
    return true;
}
