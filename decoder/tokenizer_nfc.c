/* Unicode normalisation form C over utf8proc's tables. utf8proc_map sorts combining marks by
 * exchanging neighbours, which is quadratic on a hostile run of marks; here each run is sorted by
 * counting over the 256 combining classes, and only decomposition and composition are the
 * library's. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "decoder/tokenizer_internal.h"

typedef struct codes {
    utf8proc_int32_t *data;
    size_t n, capacity;
} codes;

enum { DECOMPOSITION_MAX = 32 /* code points that one decomposes into; 4 in Unicode 15 */ };

static kvl_status decompose(const uint8_t *text, size_t bytes, codes *out) {
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t code;
        at += (size_t)utf8proc_iterate(text + at, (utf8proc_ssize_t)(bytes - at), &code);
        if (out->n + DECOMPOSITION_MAX > out->capacity) {
            size_t capacity = (out->capacity + DECOMPOSITION_MAX) * 2 + bytes;
            utf8proc_int32_t *data = realloc(out->data, capacity * sizeof *data);
            if (!data) return kvl_fail(KVL_ERR_OOM, "normalising %zu bytes: out of memory", bytes);
            out->data = data;
            out->capacity = capacity;
        }
        int boundary = 0;
        utf8proc_ssize_t n =
            utf8proc_decompose_char(code, out->data + out->n, DECOMPOSITION_MAX,
                                    UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
        if (n < 0) return kvl_fail(KVL_ERR_INTERNAL, "normalising U+%04X", (unsigned)code);
        out->n += (size_t)n;
    }
    return KVL_OK;
}

static unsigned combining_class(utf8proc_int32_t code) {
    return code < 0x300 ? 0 : (uint8_t)utf8proc_get_property(code)->combining_class;
}

/* Stable counting sort of one run of marks by class. */
static void sort_run(utf8proc_int32_t *run, size_t n, utf8proc_int32_t *spare) {
    size_t starts[257] = {0};
    for (size_t i = 0; i < n; i++) starts[combining_class(run[i]) + 1]++;
    for (int c = 0; c < 256; c++) starts[c + 1] += starts[c];
    for (size_t i = 0; i < n; i++) spare[starts[combining_class(run[i])]++] = run[i];
    memcpy(run, spare, n * sizeof *run);
}

static kvl_status reorder(codes *all) {
    utf8proc_int32_t *spare = NULL;
    for (size_t i = 0; i < all->n;) {
        if (combining_class(all->data[i]) == 0) {
            i++;
            continue;
        }
        size_t end = i + 1;
        while (end < all->n && combining_class(all->data[end]) != 0) end++;
        if (end - i > 1) {
            if (!spare) spare = malloc(all->n * sizeof *spare);
            if (!spare) return kvl_fail(KVL_ERR_OOM, "normalising: out of memory");
            sort_run(all->data + i, end - i, spare);
        }
        i = end;
    }
    free(spare);
    return KVL_OK;
}

/* Below U+0300 nothing decomposes that NFC would not compose again, and no marks occur. */
static bool is_plain(const uint8_t *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (text[i] >= 0xcc) return false;
    return true;
}

kvl_status kvl_nfc(const char *text, size_t bytes, kvl_buffer *out) {
    codes all = {0};
    kvl_status status = KVL_OK;
    if (is_plain((const uint8_t *)text, bytes)) {
        kvl_buffer_add(out, text, bytes);
    } else {
        status = decompose((const uint8_t *)text, bytes, &all);
        if (status == KVL_OK) status = reorder(&all);
        utf8proc_ssize_t n = 0;
        if (status == KVL_OK)
            n = utf8proc_normalize_utf32(all.data, (utf8proc_ssize_t)all.n,
                                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (n < 0) status = kvl_fail(KVL_ERR_INTERNAL, "normalising: %s", utf8proc_errmsg(n));
        for (utf8proc_ssize_t i = 0; i < n; i++) {
            utf8proc_uint8_t buffer[4];
            kvl_buffer_add(out, buffer, (size_t)utf8proc_encode_char(all.data[i], buffer));
        }
    }
    free(all.data);
    if (status == KVL_OK && out->failed)
        status = kvl_fail(KVL_ERR_OOM, "normalising %zu bytes: out of memory", bytes);
    return status;
}
