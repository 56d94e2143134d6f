/* Typed access to GGUF metadata. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/gguf.h"
#include "decoder/gguf_impl.h"

bool kvl_gguf_has(const kvl_gguf *gguf, const char *key) {
    return kvl_name_index_find(&gguf->keys, key, strlen(key)) >= 0;
}

/* The value of a key, or NULL when it is absent and not required. */
static kvl_status value_of(const kvl_gguf *gguf, const char *key, bool required, gguf_value **out) {
    int64_t number = kvl_name_index_find(&gguf->keys, key, strlen(key));
    *out = number < 0 ? NULL : &gguf->values[number];
    if (required && !*out)
        return kvl_fail(KVL_ERR_INPUT, "%s: key %s is missing", gguf->file.path, key);
    return KVL_OK;
}

static kvl_status wrong_type(const kvl_gguf *gguf, const char *key, const gguf_value *value,
                             const char *wanted) {
    bool array = value->type == GGUF_ARRAY;
    return kvl_fail(KVL_ERR_INPUT, "%s: %s (byte %" PRIu64 ") is %s%s%s: %s is needed",
                    gguf->file.path, key, value->at, gguf_type_name(value->type),
                    array ? " of " : "", array ? gguf_type_name(value->elem_type) : "", wanted);
}

/* Little-endian bits of a fixed-size element. */
static uint64_t bits_of(const kvl_gguf *gguf, uint64_t at, uint32_t bytes) {
    uint64_t bits = 0;
    for (uint32_t i = bytes; i-- > 0;) bits = bits << 8 | gguf->file.data[at + i];
    return bits;
}

static bool is_integer(gguf_type type) {
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

static bool is_signed(gguf_type type) {
    return type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
}

kvl_status kvl_gguf_int(const kvl_gguf *gguf, const char *key, bool required, int64_t min,
                        int64_t max, int64_t *out) {
    gguf_value *value;
    KVL_TRY(value_of(gguf, key, required, &value));
    if (!value) return KVL_OK;
    if (!is_integer(value->type)) return wrong_type(gguf, key, value, "an integer");
    uint32_t bytes = gguf_type_bytes(value->type);
    uint64_t bits = bits_of(gguf, value->at, bytes);
    int64_t number = (int64_t)bits;
    if (is_signed(value->type)) { /* sign extension */
        int shift = 64 - 8 * (int)bytes;
        number = (int64_t)(bits << shift) >> shift;
    }
    bool wraps = value->type == GGUF_U64 && bits > INT64_MAX;
    if (wraps || number < min || number > max) {
        char text[24];
        if (wraps)
            snprintf(text, sizeof text, "%" PRIu64, bits);
        else
            snprintf(text, sizeof text, "%" PRId64, number);
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: %s (byte %" PRIu64 ") %s: %" PRId64 " to %" PRId64 " is allowed",
                        gguf->file.path, key, value->at, text, min, max);
    }
    *out = number;
    return KVL_OK;
}

kvl_status kvl_gguf_float(const kvl_gguf *gguf, const char *key, bool required, double *out) {
    gguf_value *value;
    KVL_TRY(value_of(gguf, key, required, &value));
    if (!value) return KVL_OK;
    double number;
    if (value->type == GGUF_F32) {
        uint32_t bits = (uint32_t)bits_of(gguf, value->at, 4);
        float narrow;
        memcpy(&narrow, &bits, sizeof narrow);
        number = (double)narrow;
    } else if (value->type == GGUF_F64) {
        uint64_t bits = bits_of(gguf, value->at, 8);
        memcpy(&number, &bits, sizeof number);
    } else {
        return wrong_type(gguf, key, value, "f32 or f64");
    }
    if (!isfinite(number))
        return kvl_fail(KVL_ERR_INPUT, "%s: %s (byte %" PRIu64 ") %g: a finite number is needed",
                        gguf->file.path, key, value->at, number);
    *out = number;
    return KVL_OK;
}

kvl_status kvl_gguf_bool(const kvl_gguf *gguf, const char *key, bool required, bool *out) {
    gguf_value *value;
    KVL_TRY(value_of(gguf, key, required, &value));
    if (!value) return KVL_OK;
    if (value->type != GGUF_BOOL) return wrong_type(gguf, key, value, "bool");
    uint8_t byte = gguf->file.data[value->at];
    if (byte > 1)
        return kvl_fail(KVL_ERR_INPUT, "%s: %s (byte %" PRIu64 ") %d: 0 or 1 is needed",
                        gguf->file.path, key, value->at, byte);
    *out = byte == 1;
    return KVL_OK;
}

kvl_status kvl_gguf_str(const kvl_gguf *gguf, const char *key, bool required,
                        kvl_gguf_string *out) {
    gguf_value *value;
    KVL_TRY(value_of(gguf, key, required, &value));
    if (!value) return KVL_OK;
    if (value->type != GGUF_STRING) return wrong_type(gguf, key, value, "a string");
    *out = (kvl_gguf_string){(const char *)gguf->file.data + value->at, value->count};
    return KVL_OK;
}

kvl_status kvl_gguf_strings(const kvl_gguf *gguf, const char *key, bool required, uint64_t *count,
                            const kvl_gguf_string **out) {
    gguf_value *value;
    KVL_TRY(value_of(gguf, key, required, &value));
    if (!value) return KVL_OK;
    if (value->type != GGUF_ARRAY || value->elem_type != GGUF_STRING)
        return wrong_type(gguf, key, value, "an array of strings");
    *count = value->count;
    *out = value->strings;
    return KVL_OK;
}

/* An aligned copy of an array of 4-byte elements, kept until the file is closed. */
static kvl_status copy_words(const kvl_gguf *gguf, const char *key, gguf_value *value) {
    if (value->copy) return KVL_OK;
    value->copy = malloc(value->count * 4 + 4);
    if (!value->copy)
        return kvl_fail(KVL_ERR_OOM,
                        "%s: %s (byte %" PRIu64 "): out of memory for %" PRIu64 " elements",
                        gguf->file.path, key, value->at, value->count);
    memcpy(value->copy, gguf->file.data + value->at, value->count * 4);
    return KVL_OK;
}

kvl_status kvl_gguf_ints(const kvl_gguf *gguf, const char *key, bool required, uint64_t *count,
                         const int32_t **out) {
    gguf_value *value;
    KVL_TRY(value_of(gguf, key, required, &value));
    if (!value) return KVL_OK;
    if (value->type != GGUF_ARRAY || (value->elem_type != GGUF_I32 && value->elem_type != GGUF_U32))
        return wrong_type(gguf, key, value, "an array of i32 or u32");
    KVL_TRY(copy_words(gguf, key, value));
    const int32_t *words = value->copy;
    for (uint64_t i = 0; value->elem_type == GGUF_U32 && i < value->count; i++) {
        if (words[i] < 0)
            return kvl_fail(
                KVL_ERR_INPUT,
                "%s: %s (byte %" PRIu64 ") element %" PRIu64 " is %" PRIu32 ": at most %d",
                gguf->file.path, key, value->at + 4 * i, i, (uint32_t)words[i], INT32_MAX);
    }
    *count = value->count;
    *out = words;
    return KVL_OK;
}

kvl_status kvl_gguf_floats(const kvl_gguf *gguf, const char *key, bool required, uint64_t *count,
                           const float **out) {
    gguf_value *value;
    KVL_TRY(value_of(gguf, key, required, &value));
    if (!value) return KVL_OK;
    if (value->type != GGUF_ARRAY || value->elem_type != GGUF_F32)
        return wrong_type(gguf, key, value, "an array of f32");
    KVL_TRY(copy_words(gguf, key, value));
    *count = value->count;
    *out = value->copy;
    return KVL_OK;
}
