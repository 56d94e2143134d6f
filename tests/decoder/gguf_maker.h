/* Builds GGUF files byte by byte, right or wrong ones, for tests. */
#ifndef KVL_TESTS_GGUF_MAKER_H
#define KVL_TESTS_GGUF_MAKER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/buffer.h"

enum {
    T_U8 = 0,
    T_I8,
    T_U16,
    T_I16,
    T_U32,
    T_I32,
    T_F32,
    T_BOOL,
    T_STRING,
    T_ARRAY,
    T_U64,
    T_I64,
    T_F64
};

static inline void put_u8(kvl_buffer *b, uint8_t x) {
    kvl_buffer_add(b, &x, 1);
}
static inline void put_u32(kvl_buffer *b, uint32_t x) {
    for (int i = 0; i < 4; i++) put_u8(b, (uint8_t)(x >> 8 * i));
}
static inline void put_u64(kvl_buffer *b, uint64_t x) {
    for (int i = 0; i < 8; i++) put_u8(b, (uint8_t)(x >> 8 * i));
}
static inline void put_f32(kvl_buffer *b, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_u32(b, bits);
}
static inline void put_string(kvl_buffer *b, const char *text) {
    put_u64(b, strlen(text));
    kvl_buffer_add(b, text, strlen(text));
}
static inline void put_magic(kvl_buffer *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv) {
    kvl_buffer_add(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_kv);
}
/* Key and value type; the value follows. */
static inline void put_key(kvl_buffer *b, const char *key, uint32_t type) {
    put_string(b, key);
    put_u32(b, type);
}
static inline void put_key_u32(kvl_buffer *b, const char *key, uint32_t value) {
    put_key(b, key, T_U32);
    put_u32(b, value);
}
static inline void put_key_f32(kvl_buffer *b, const char *key, float value) {
    put_key(b, key, T_F32);
    put_f32(b, value);
}
static inline void put_key_string(kvl_buffer *b, const char *key, const char *value) {
    put_key(b, key, T_STRING);
    put_string(b, value);
}
/* The head of an array; its elements follow. */
static inline void put_key_array(kvl_buffer *b, const char *key, uint32_t type, uint64_t count) {
    put_key(b, key, T_ARRAY);
    put_u32(b, type);
    put_u64(b, count);
}
static inline void put_tensor(kvl_buffer *b, const char *name, uint32_t n_dims,
                              const uint64_t *dims, uint32_t type, uint64_t offset) {
    put_string(b, name);
    put_u32(b, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) put_u64(b, dims[d]);
    put_u32(b, type);
    put_u64(b, offset);
}
static inline void put_padding(kvl_buffer *b, size_t align) {
    while (b->bytes % align) put_u8(b, 0);
}
static inline void put_zeros(kvl_buffer *b, size_t n) {
    for (size_t i = 0; i < n; i++) put_u8(b, 0);
}

/* Writes bytes to a fresh file in /tmp; `path` is a template ending in XXXXXX. */
static inline void write_temporary(char *path, const void *data, size_t bytes) {
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes || close(fd) != 0) abort();
}

#endif
