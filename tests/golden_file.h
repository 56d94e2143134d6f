/* Reads tests/golden/NAME.safetensors for tests: our own files, so trusted; the reader that
 * distrusts its input is decoder/safetensors.h. Fails the test when a file or tensor is missing. */
#ifndef KVL_TESTS_GOLDEN_FILE_H
#define KVL_TESTS_GOLDEN_FILE_H

#include "tests/test.h"

#include <jansson.h>

#include "core/file.h"

typedef struct golden_file {
    kvl_file file;
    json_t *header;
    uint64_t data_offset;
} golden_file;

static inline golden_file golden_open(const char *name) {
    golden_file golden;
    char path[1024];
    uint64_t header_bytes;
    snprintf(path, sizeof path, "%s/tests/golden/%s.safetensors", KVL_SOURCE_DIR, name);
    assert_ok(kvl_file_open(path, &golden.file));
    memcpy(&header_bytes, golden.file.data, sizeof header_bytes);
    golden.header = json_loadb((const char *)golden.file.data + 8, header_bytes, 0, NULL);
    assert_non_null(golden.header);
    golden.data_offset = 8 + header_bytes;
    return golden;
}

static inline void golden_close(golden_file *golden) {
    json_decref(golden->header);
    kvl_file_close(&golden->file);
}

/* Data of a tensor in the mapping (not necessarily aligned) and its bytes. */
static inline const uint8_t *golden_bytes(const golden_file *golden, const char *name,
                                          uint64_t *bytes) {
    const json_t *tensor = json_object_get(golden->header, name);
    if (!tensor) fail_msg("no tensor '%s' in %s", name, golden->file.path);
    const json_t *offsets = json_object_get(tensor, "data_offsets");
    uint64_t begin = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    uint64_t end = (uint64_t)json_integer_value(json_array_get(offsets, 1));
    *bytes = end - begin;
    return golden->file.data + golden->data_offset + begin;
}

/* A malloc'ed, aligned copy of a tensor of n elements of elem_bytes; the caller frees. */
static inline void *golden_copy(const golden_file *golden, const char *name, size_t elem_bytes,
                                int64_t *n) {
    uint64_t bytes;
    const uint8_t *data = golden_bytes(golden, name, &bytes);
    void *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    *n = (int64_t)(bytes / elem_bytes);
    return copy;
}

#endif
