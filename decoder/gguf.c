/* The GGUF parser: one pass over the header, a flat stack, nothing of the tensors touched. Every
 * count and length is held against the bytes that are left before it is believed. */
#include "decoder/gguf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "decoder/gguf_impl.h"
#include "quant/gguf_blocks.h"

enum {
    MAX_KEY_BYTES = 65535, /* the format's limit */
    MAX_NAME_BYTES = 63,   /* the format's limit is 64 with the NUL */
    MAX_TOKEN_BYTES = 1 << 20,
    MAX_STRING_BYTES = 1 << 24,
    MAX_RECORDS = 1 << 20, /* tensors, or metadata keys */
    MAX_STRINGS = 1 << 24, /* in all arrays: each costs 16 bytes of memory, 8 of the file */
    MAX_ALIGNMENT = 1 << 20,
};

/* A place in the file, and what the file is called in messages. */
typedef struct cursor {
    const kvl_file *file;
    uint64_t at;
} cursor;

static uint64_t left(const cursor *c) {
    return c->file->bytes - c->at;
}

static uint64_t little_endian(const uint8_t *bytes, int n) {
    uint64_t value = 0;
    for (int i = n - 1; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}

static kvl_status read_number(cursor *c, int bytes, const char *field, uint64_t *out) {
    if (left(c) < (uint64_t)bytes)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s (byte %" PRIu64 "): %d bytes are needed, the file ends after "
                        "%" PRIu64,
                        field, c->at, bytes, left(c));
    *out = little_endian(c->file->data + c->at, bytes);
    c->at += (uint64_t)bytes;
    return KVL_OK;
}

static kvl_status read_u32(cursor *c, const char *field, uint32_t *out) {
    uint64_t value = 0;
    KVL_TRY(read_number(c, 4, field, &value));
    *out = (uint32_t)value;
    return KVL_OK;
}

static kvl_status read_u64(cursor *c, const char *field, uint64_t *out) {
    return read_number(c, 8, field, out);
}

/* Length and bytes of a string. `min` and `max` bound the length beside the bytes left. */
static kvl_status read_string(cursor *c, const char *field, uint64_t min, uint64_t max,
                              kvl_gguf_string *out) {
    uint64_t at = c->at, length = 0;
    KVL_TRY(read_u64(c, field, &length));
    if (length < min || length > max || length > left(c))
        return kvl_fail(KVL_ERR_INPUT,
                        "%s (byte %" PRIu64 "): length %" PRIu64 ": %" PRIu64 " to %" PRIu64
                        " is allowed, and %" PRIu64 " bytes are left",
                        field, at, length, min, max, left(c));
    *out = (kvl_gguf_string){(const char *)c->file->data + c->at, length};
    c->at += length;
    return KVL_OK;
}

const char *gguf_type_name(gguf_type type) {
    static const char *const names[GGUF_N_TYPES] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                    "i32", "f32", "bool", "string", "array",
                                                    "u64", "i64", "f64"};
    return names[type];
}

uint32_t gguf_type_bytes(gguf_type type) {
    static const uint8_t bytes[GGUF_N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return bytes[type];
}

/* ---- metadata ---- */

static kvl_status read_type(cursor *c, const char *field, gguf_type *out) {
    uint64_t at = c->at;
    uint32_t type = 0;
    KVL_TRY(read_u32(c, field, &type));
    if (type >= GGUF_N_TYPES)
        return kvl_fail(KVL_ERR_INPUT, "%s (byte %" PRIu64 ") %" PRId32 ": 0 to %d are known",
                        field, at, (int32_t)type, GGUF_N_TYPES - 1);
    *out = (gguf_type)type;
    return KVL_OK;
}

/* Strings are walked once and kept as (place, length), so that each is found at once later. */
static kvl_status read_strings(cursor *c, gguf_value *value) {
    value->strings = malloc((value->count + 1) * sizeof *value->strings);
    if (!value->strings)
        return kvl_fail(KVL_ERR_OOM, "array count (byte %" PRIu64 ") %" PRIu64 ": out of memory",
                        value->at - 8, value->count);
    for (uint64_t i = 0; i < value->count; i++)
        KVL_TRY(read_string(c, "array string", 0, MAX_TOKEN_BYTES, &value->strings[i]));
    return KVL_OK;
}

static kvl_status read_array(kvl_gguf *gguf, cursor *c, gguf_value *value) {
    uint64_t at = c->at;
    KVL_TRY(read_type(c, "array element type", &value->elem_type));
    if (value->elem_type == GGUF_ARRAY)
        return kvl_fail(KVL_ERR_INPUT,
                        "array element type (byte %" PRIu64 ") 9: arrays of arrays are not read",
                        at);
    at = c->at;
    KVL_TRY(read_u64(c, "array count", &value->count));
    bool strings = value->elem_type == GGUF_STRING;
    uint64_t least = strings ? 8 : gguf_type_bytes(value->elem_type); /* bytes of an element */
    if (value->count > left(c) / least || (strings && value->count > MAX_STRINGS - gguf->n_strings))
        return kvl_fail(KVL_ERR_INPUT,
                        "array count (byte %" PRIu64 ") %" PRIu64 ": %" PRIu64
                        " bytes are left, an element takes %" PRIu64
                        " or more (strings: at most %d in all)",
                        at, value->count, left(c), least, MAX_STRINGS);
    value->at = c->at;
    if (strings) {
        gguf->n_strings += value->count;
        return read_strings(c, value);
    }
    c->at += value->count * least;
    return KVL_OK;
}

static kvl_status read_value(kvl_gguf *gguf, cursor *c, gguf_value *value) {
    KVL_TRY(read_type(c, "value type", &value->type));
    value->at = c->at;
    if (value->type == GGUF_ARRAY) return read_array(gguf, c, value);
    if (value->type == GGUF_STRING) {
        kvl_gguf_string string;
        KVL_TRY(read_string(c, "string value", 0, MAX_STRING_BYTES, &string));
        value->at += 8;
        value->count = string.bytes;
        return KVL_OK;
    }
    uint64_t ignored;
    return read_number(c, (int)gguf_type_bytes(value->type), "value", &ignored);
}

static kvl_status read_metadata(kvl_gguf *gguf, cursor *c, uint64_t n_kv) {
    if (!kvl_name_index_init(&gguf->keys, n_kv) ||
        !(gguf->values = calloc(n_kv + 1, sizeof *gguf->values)))
        return kvl_fail(KVL_ERR_OOM, "n_kv %" PRIu64 ": out of memory", n_kv);
    for (uint64_t i = 0; i < n_kv; i++) {
        uint64_t at = c->at;
        kvl_gguf_string key;
        KVL_TRY(read_string(c, "key", 1, MAX_KEY_BYTES, &key));
        int shown = (int)(key.bytes < 100 ? key.bytes : 100);
        if (memchr(key.data, 0, key.bytes))
            return kvl_fail(KVL_ERR_INPUT, "key %" PRIu64 " (byte %" PRIu64 "): holds a NUL byte",
                            i, at);
        if (!kvl_name_index_add(&gguf->keys, key.data, key.bytes))
            return kvl_fail(KVL_ERR_INPUT, "key '%.*s' (byte %" PRIu64 "): given twice", shown,
                            key.data, at);
        kvl_status status = read_value(gguf, c, &gguf->values[i]);
        if (status != KVL_OK) return kvl_fail_prefix(status, "key '%.*s'", shown, key.data);
    }
    return KVL_OK;
}

static kvl_status read_alignment(kvl_gguf *gguf) {
    gguf->alignment = 32;
    int64_t number = kvl_name_index_find(&gguf->keys, "general.alignment", 17);
    if (number < 0) return KVL_OK;
    const gguf_value *value = &gguf->values[number];
    if (value->type != GGUF_U32)
        return kvl_fail(KVL_ERR_INPUT, "general.alignment (byte %" PRIu64 ") is %s: u32 is needed",
                        value->at, gguf_type_name(value->type));
    uint64_t alignment = little_endian(gguf->file.data + value->at, 4);
    if (alignment < 8 || alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)))
        return kvl_fail(KVL_ERR_INPUT,
                        "general.alignment (byte %" PRIu64 ") %" PRIu64
                        ": a power of two from 8 to %d is needed",
                        value->at, alignment, MAX_ALIGNMENT);
    gguf->alignment = alignment;
    return KVL_OK;
}

/* ---- tensors ---- */

/* Block shapes of the types that files hold and kvlab does not decode: their ranges are checked all
 * the same. Retired types, and those that ggml only computes with, have no shape and are refused.
 */
static bool block_shape(uint32_t type, uint64_t *elems, uint64_t *bytes) {
    static const struct {
        uint8_t type;
        uint16_t elems, bytes;
    } others[] = {
        {16, 256, 66},  {17, 256, 74}, {18, 256, 98},  {19, 256, 50}, {20, 32, 18},
        {21, 256, 110}, {22, 256, 82}, {23, 256, 136}, {24, 1, 1},    {25, 1, 2},
        {26, 1, 4},     {27, 1, 8},    {28, 1, 8},     {29, 256, 56}, {34, 256, 54},
        {35, 256, 66},  {39, 32, 17},  {40, 64, 36},   {41, 128, 18},
    };
    const kvl_gguf_block *block = kvl_gguf_block_of(type);
    if (block) {
        *elems = (uint64_t)block->block_elems;
        *bytes = (uint64_t)block->block_bytes;
        return true;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (others[i].type != type) continue;
        *elems = others[i].elems;
        *bytes = others[i].bytes;
        return true;
    }
    return false;
}

static kvl_status read_dims(cursor *c, kvl_gguf_tensor *tensor, uint64_t *n_elems) {
    uint64_t at = c->at;
    uint32_t n_dims = 0;
    KVL_TRY(read_u32(c, "n_dims", &n_dims));
    if (n_dims < 1 || n_dims > 4)
        return kvl_fail(KVL_ERR_INPUT, "n_dims (byte %" PRIu64 ") %" PRIu32 ": 1 to 4 is allowed",
                        at, n_dims);
    tensor->n_dims = (int32_t)n_dims;
    *n_elems = 1;
    for (uint32_t d = 0; d < 4; d++) {
        uint64_t dim = 1;
        at = c->at;
        if (d < n_dims) KVL_TRY(read_u64(c, "dim", &dim));
        if (dim < 1 || dim > INT64_MAX || !kvl_mul_u64(*n_elems, dim, n_elems) ||
            *n_elems > INT64_MAX)
            return kvl_fail(KVL_ERR_INPUT,
                            "dim[%" PRIu32 "] (byte %" PRIu64 ") %" PRIu64
                            ": 1 or more is needed, and fewer than 2^63 elements in all",
                            d, at, dim);
        tensor->dims[d] = (int64_t)dim;
    }
    return KVL_OK;
}

static kvl_status read_tensor_type(cursor *c, kvl_gguf_tensor *tensor, uint64_t n_elems) {
    uint64_t at = c->at, elems = 0, bytes = 0;
    KVL_TRY(read_u32(c, "type", &tensor->ggml_type));
    const char *name = kvl_ggml_type_name(tensor->ggml_type);
    if (!name) name = "unknown";
    if (!block_shape(tensor->ggml_type, &elems, &bytes)) {
        return kvl_fail(KVL_ERR_INPUT,
                        "type (byte %" PRIu64 ") %" PRId32 " (%s): not a type "
                        "that files may hold",
                        at, (int32_t)tensor->ggml_type, name);
    }
    if ((uint64_t)tensor->dims[0] % elems)
        return kvl_fail(KVL_ERR_INPUT,
                        "type (byte %" PRIu64 ") %s: dim[0] %" PRId64
                        " is no multiple of its block of %" PRIu64,
                        at, name, tensor->dims[0], elems);
    if (!kvl_mul_u64(n_elems / elems, bytes, &tensor->bytes))
        return kvl_fail(KVL_ERR_INPUT,
                        "type (byte %" PRIu64 "): %" PRIu64 " elements pass 2^64 bytes", at,
                        n_elems);
    return KVL_OK;
}

/* One record. Data offsets are checked later, when the records' end is known: `offset` is kept. */
static kvl_status read_tensor(kvl_gguf *gguf, cursor *c, char *name_out, uint64_t *offset) {
    kvl_gguf_tensor *tensor = &gguf->tensors[gguf->n_tensors];
    uint64_t at = c->at, n_elems = 0;
    kvl_gguf_string name;
    KVL_TRY(read_string(c, "tensor name", 1, MAX_NAME_BYTES, &name));
    if (memchr(name.data, 0, name.bytes))
        return kvl_fail(KVL_ERR_INPUT, "tensor name (byte %" PRIu64 "): holds a NUL byte", at);
    memcpy(name_out, name.data, name.bytes);
    tensor->name = name_out;
    gguf->tensor_at[gguf->n_tensors] = at;
    if (!kvl_name_index_add(&gguf->names, name.data, name.bytes))
        return kvl_fail(KVL_ERR_INPUT, "tensor '%s' (byte %" PRIu64 "): given twice", name_out, at);
    kvl_status status = read_dims(c, tensor, &n_elems);
    if (status == KVL_OK) status = read_tensor_type(c, tensor, n_elems);
    if (status == KVL_OK) status = read_u64(c, "offset", offset);
    if (status != KVL_OK) return kvl_fail_prefix(status, "tensor '%s'", name_out);
    return KVL_OK;
}

/* Data of tensor `i` at `offset` from `data_at`, which is aligned. */
static kvl_status place_tensor(kvl_gguf *gguf, size_t i, uint64_t data_at, uint64_t offset) {
    kvl_gguf_tensor *tensor = &gguf->tensors[i];
    uint64_t data_bytes = gguf->file.bytes > data_at ? gguf->file.bytes - data_at : 0, end;
    if (offset % gguf->alignment)
        return kvl_fail(KVL_ERR_INPUT,
                        "tensor '%s' (byte %" PRIu64 "): offset %" PRIu64
                        " is no multiple of the alignment %" PRIu64,
                        tensor->name, gguf->tensor_at[i], offset, gguf->alignment);
    if (!kvl_add_u64(offset, tensor->bytes, &end) || end > data_bytes)
        return kvl_fail(KVL_ERR_INPUT,
                        "tensor '%s' (byte %" PRIu64 "): offset %" PRIu64 " + %" PRIu64
                        " bytes: the file has %" PRIu64 " bytes of data",
                        tensor->name, gguf->tensor_at[i], offset, tensor->bytes, data_bytes);
    tensor->data = gguf->file.data + data_at + offset;
    return KVL_OK;
}

static int by_place(const void *a, const void *b) {
    const kvl_gguf_tensor *x = *(const kvl_gguf_tensor *const *)a;
    const kvl_gguf_tensor *y = *(const kvl_gguf_tensor *const *)b;
    return (x->data > y->data) - (x->data < y->data);
}

static kvl_status check_overlap(const kvl_gguf *gguf) {
    const kvl_gguf_tensor **order = malloc((gguf->n_tensors + 1) * sizeof *order);
    if (!order) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (size_t i = 0; i < gguf->n_tensors; i++) order[i] = &gguf->tensors[i];
    qsort(order, gguf->n_tensors, sizeof *order, by_place);
    kvl_status status = KVL_OK;
    for (size_t i = 1; i < gguf->n_tensors && status == KVL_OK; i++) {
        const kvl_gguf_tensor *before = order[i - 1], *tensor = order[i];
        if (before->data + before->bytes <= tensor->data) continue;
        status = kvl_fail(KVL_ERR_INPUT,
                          "tensor '%s' (byte %" PRIu64 "): its data overlap those of '%s'",
                          tensor->name, gguf->tensor_at[tensor - gguf->tensors], before->name);
    }
    free(order);
    return status;
}

static kvl_status read_tensors(kvl_gguf *gguf, cursor *c, uint64_t n) {
    uint64_t *offsets = calloc(n + 1, sizeof *offsets), data_at = 0;
    gguf->tensors = calloc(n + 1, sizeof *gguf->tensors);
    gguf->tensor_at = calloc(n + 1, sizeof *gguf->tensor_at);
    gguf->name_bytes = calloc(n + 1, MAX_NAME_BYTES + 1);
    kvl_status status = KVL_OK;
    if (!offsets || !gguf->tensors || !gguf->tensor_at || !gguf->name_bytes ||
        !kvl_name_index_init(&gguf->names, n))
        status = kvl_fail(KVL_ERR_OOM, "n_tensors %" PRIu64 ": out of memory", n);
    for (uint64_t i = 0; i < n && status == KVL_OK; i++) {
        status = read_tensor(gguf, c, gguf->name_bytes + i * (MAX_NAME_BYTES + 1), &offsets[i]);
        if (status == KVL_OK) gguf->n_tensors++;
    }
    if (status == KVL_OK && !kvl_align_u64(c->at, gguf->alignment, &data_at))
        status = kvl_fail(KVL_ERR_INPUT, "data (byte %" PRIu64 "): no place", c->at);
    for (size_t i = 0; i < n && status == KVL_OK; i++)
        status = place_tensor(gguf, i, data_at, offsets[i]);
    free(offsets);
    return status == KVL_OK ? check_overlap(gguf) : status;
}

/* ---- file ---- */

static kvl_status read_version(cursor *c) {
    uint32_t magic = 0, version = 0;
    KVL_TRY(read_u32(c, "magic", &magic));
    if (magic != 0x46554747) /* "GGUF" */
        return kvl_fail(KVL_ERR_INPUT, "magic (byte 0) 0x%08" PRIx32 ": %s", magic,
                        magic == 0x47475546 ? "GGUF with its bytes swapped: a big-endian file"
                                            : "0x46554747 ('GGUF') is needed");
    KVL_TRY(read_u32(c, "version", &version));
    if (version == 2 || version == 3) return KVL_OK;
    uint32_t swapped = __builtin_bswap32(version);
    if (swapped >= 1 && swapped <= 3)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "version (byte 4) 0x%08" PRIx32 ": version %" PRIu32
                        " with its bytes swapped: big-endian files are not read",
                        version, swapped);
    return kvl_fail(KVL_ERR_UNSUPPORTED, "version (byte 4) %" PRIu32 ": 2 and 3 are read", version);
}

/* A record count, held against the smallest record that the bytes left could hold. */
static kvl_status read_count(cursor *c, const char *field, uint64_t *out) {
    uint64_t at = c->at;
    KVL_TRY(read_u64(c, field, out));
    uint64_t least = 14; /* a key: length, one byte, type, one byte; a tensor takes more */
    if (*out > left(c) / least || *out > MAX_RECORDS)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s (byte %" PRIu64 ") %" PRIu64 ": %" PRIu64
                        " bytes are left, at most %d are read",
                        field, at, *out, left(c), MAX_RECORDS);
    return KVL_OK;
}

static kvl_status parse(kvl_gguf *gguf) {
    cursor c = {&gguf->file, 0};
    uint64_t n_tensors = 0, n_kv = 0;
    KVL_TRY(read_version(&c));
    KVL_TRY(read_count(&c, "n_tensors", &n_tensors));
    KVL_TRY(read_count(&c, "n_kv", &n_kv));
    KVL_TRY(read_metadata(gguf, &c, n_kv));
    KVL_TRY(read_alignment(gguf));
    return read_tensors(gguf, &c, n_tensors);
}

kvl_status kvl_gguf_open(const char *path, kvl_gguf **out) {
    *out = NULL;
    kvl_gguf *gguf = calloc(1, sizeof *gguf);
    if (!gguf) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", path);
    kvl_status status = kvl_file_open(path, &gguf->file);
    if (status == KVL_OK) {
        status = parse(gguf);
        if (status != KVL_OK) kvl_fail_prefix(status, "%s", path);
    }
    if (status == KVL_OK)
        *out = gguf;
    else
        kvl_gguf_close(gguf);
    return status;
}

void kvl_gguf_close(kvl_gguf *gguf) {
    if (!gguf) return;
    for (size_t i = 0; gguf->values && i < gguf->keys.n_names; i++) {
        free(gguf->values[i].strings);
        free(gguf->values[i].copy);
    }
    free(gguf->values);
    free(gguf->tensors);
    free(gguf->tensor_at);
    free(gguf->name_bytes);
    kvl_name_index_free(&gguf->keys);
    kvl_name_index_free(&gguf->names);
    if (gguf->file.path) kvl_file_close(&gguf->file);
    free(gguf);
}

const char *kvl_gguf_path(const kvl_gguf *gguf) {
    return gguf->file.path;
}

size_t kvl_gguf_n_tensors(const kvl_gguf *gguf) {
    return gguf->n_tensors;
}

const kvl_gguf_tensor *kvl_gguf_tensor_at(const kvl_gguf *gguf, size_t index) {
    return &gguf->tensors[index];
}

const kvl_gguf_tensor *kvl_gguf_find(const kvl_gguf *gguf, const char *name) {
    int64_t number = kvl_name_index_find(&gguf->names, name, strlen(name));
    return number < 0 ? NULL : &gguf->tensors[number];
}
