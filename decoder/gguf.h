/* GGUF reader, versions 2 and 3, little-endian. Source: ggml/docs/gguf.md of the ggml project.
 * Everything is bounds-checked against the real file; see tests/decoder/test_gguf_hostile.c. */
#ifndef KVL_DECODER_GGUF_H
#define KVL_DECODER_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct kvl_gguf kvl_gguf;

typedef struct kvl_gguf_string {
    const char *data; /* not NUL-terminated, in the mapping */
    uint64_t bytes;
} kvl_gguf_string;

typedef struct kvl_gguf_tensor {
    const char *name; /* NUL-terminated copy */
    uint32_t ggml_type;
    int32_t n_dims;
    int64_t dims[4]; /* dims[0] is the contiguous one, as in the file; unused are 1 */
    const uint8_t *data;
    uint64_t bytes;
} kvl_gguf_tensor;

/* Maps and checks the whole header: magic, counts, types, lengths, duplicates, ranges, overlap.
 * Tensors of types that kvlab does not decode are listed (see quant/gguf_blocks.h). */
kvl_status kvl_gguf_open(const char *path, kvl_gguf **out);
void kvl_gguf_close(kvl_gguf *gguf);
const char *kvl_gguf_path(const kvl_gguf *gguf);

bool kvl_gguf_has(const kvl_gguf *gguf, const char *key);
/* Typed access. Absent and !required: *out untouched, KVL_OK. Wrong type or out of [min, max]:
 * refused by key, byte offset of the value, value seen and limit. Integers of any width are
 * accepted where they fit. */
kvl_status kvl_gguf_int(const kvl_gguf *gguf, const char *key, bool required, int64_t min,
                        int64_t max, int64_t *out);
kvl_status kvl_gguf_float(const kvl_gguf *gguf, const char *key, bool required, double *out);
kvl_status kvl_gguf_bool(const kvl_gguf *gguf, const char *key, bool required, bool *out);
kvl_status kvl_gguf_str(const kvl_gguf *gguf, const char *key, bool required, kvl_gguf_string *out);
/* Arrays. `count` elements; strings are read by index in O(1) (offsets are kept). Numbers are
 * copied at the first call for a key, so first calls belong to one thread. */
kvl_status kvl_gguf_strings(const kvl_gguf *gguf, const char *key, bool required, uint64_t *count,
                            const kvl_gguf_string **out);
kvl_status kvl_gguf_ints(const kvl_gguf *gguf, const char *key, bool required, uint64_t *count,
                         const int32_t **out); /* i32/u32 arrays; a copy owned by gguf */
kvl_status kvl_gguf_floats(const kvl_gguf *gguf, const char *key, bool required, uint64_t *count,
                           const float **out);

size_t kvl_gguf_n_tensors(const kvl_gguf *gguf);
const kvl_gguf_tensor *kvl_gguf_tensor_at(const kvl_gguf *gguf, size_t index);
const kvl_gguf_tensor *kvl_gguf_find(const kvl_gguf *gguf,
                                     const char *name); /* O(1), NULL if absent */

#endif
