/* A hash index from names to small integers, for tensors and metadata keys of model files.
 * Law: every added name is found at its number; numbers count up from 0 in the order of adding. */
#ifndef KVL_DECODER_NAME_INDEX_H
#define KVL_DECODER_NAME_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kvl_name_index {
    const char **names; /* [n_names] borrowed, not NUL-terminated */
    uint32_t *bytes;    /* [n_names] their lengths */
    uint32_t *slots;    /* [n_slots] number + 1, 0 = empty; open addressing */
    size_t n_names, capacity, n_slots;
    uint64_t seed; /* differs from run to run, so that a file cannot aim for collisions */
} kvl_name_index;

/* Room for `capacity` names (at most 2^28). False when memory is short. */
bool kvl_name_index_init(kvl_name_index *index, size_t capacity);
void kvl_name_index_free(kvl_name_index *index);

/* Number of the name, or -1. */
int64_t kvl_name_index_find(const kvl_name_index *index, const char *name, size_t bytes);

/* Adds a name; false when it is there already. The caller keeps within capacity. */
bool kvl_name_index_add(kvl_name_index *index, const char *name, size_t bytes);

#endif
