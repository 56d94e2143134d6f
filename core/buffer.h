/* A growing byte string. After an allocation failure it stays valid and `failed` is set; check
 * once. */
#ifndef KVL_CORE_BUFFER_H
#define KVL_CORE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct kvl_buffer {
    char *data; /* NUL-terminated; NULL while empty */
    size_t bytes, capacity;
    bool failed;
} kvl_buffer;

void kvl_buffer_add(kvl_buffer *buffer, const void *data, size_t bytes);
void kvl_buffer_text(kvl_buffer *buffer, const char *text);
void kvl_buffer_printf(kvl_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void kvl_buffer_clear(kvl_buffer *buffer); /* keeps the memory */
void kvl_buffer_free(kvl_buffer *buffer);

#endif
