#include "core/buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool grow(kvl_buffer *buffer, size_t more) {
    if (buffer->failed || more > SIZE_MAX / 4 - buffer->bytes) return !(buffer->failed = true);
    size_t need = buffer->bytes + more + 1;
    if (need <= buffer->capacity) return true;
    size_t capacity = buffer->capacity ? buffer->capacity : 64;
    while (capacity < need) capacity *= 2;
    char *data = realloc(buffer->data, capacity);
    if (!data) return !(buffer->failed = true);
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void kvl_buffer_add(kvl_buffer *buffer, const void *data, size_t bytes) {
    if (!grow(buffer, bytes)) return;
    if (bytes) memcpy(buffer->data + buffer->bytes, data, bytes);
    buffer->bytes += bytes;
    buffer->data[buffer->bytes] = '\0';
}

void kvl_buffer_text(kvl_buffer *buffer, const char *text) {
    kvl_buffer_add(buffer, text, strlen(text));
}

void kvl_buffer_printf(kvl_buffer *buffer, const char *format, ...) {
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n >= 0 && grow(buffer, (size_t)n)) {
        vsnprintf(buffer->data + buffer->bytes, (size_t)n + 1, format, again);
        buffer->bytes += (size_t)n;
    }
    va_end(again);
}

void kvl_buffer_clear(kvl_buffer *buffer) {
    buffer->bytes = 0;
    if (buffer->data) buffer->data[0] = '\0';
}

void kvl_buffer_free(kvl_buffer *buffer) {
    free(buffer->data);
    *buffer = (kvl_buffer){0};
}
