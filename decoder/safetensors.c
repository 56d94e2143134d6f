#define _GNU_SOURCE
#include "decoder/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/buffer.h"
#include "core/checked.h"
#include "decoder/json.h"
#include "decoder/name_index.h"
#include "quant/kv_format.h"

/* The limit of the format's own reader. */
enum { MAX_HEADER_BYTES = 100000000 };

/* The file's spelling of each dtype, by kvl_dtype. */
static const char *const file_dtypes[KVL_N_DTYPES] = {
    [KVL_F32] = "F32",          [KVL_F16] = "F16", [KVL_BF16] = "BF16", [KVL_FP8_E4M3] = "F8_E4M3",
    [KVL_FP8_E5M2] = "F8_E5M2", [KVL_F64] = "F64", [KVL_I8] = "I8",     [KVL_U8] = "U8",
    [KVL_I32] = "I32",          [KVL_I64] = "I64",
};

struct kvl_safetensors {
    kvl_file file;
    json_t *header;         /* owns the names */
    const json_t *metadata; /* in header, or NULL */
    kvl_st_tensor *tensors; /* [n_tensors] in header order */
    size_t n_tensors;
    uint64_t header_bytes, data_bytes;
    kvl_name_index index;
};

/* Fails with "path: tensor 'name' (byte N): " before the reason; N is where the header spells the
 * name, looked up only now, so that good files pay nothing. */
static kvl_status fail_at(const kvl_safetensors *st, const char *name, kvl_status code) {
    const char *text = (const char *)st->file.data + 8;
    size_t length = strlen(name);
    uint64_t at = 8;
    for (uint64_t i = 0; i + length + 2 <= st->header_bytes; i++) {
        if (text[i] != '"' || text[i + length + 1] != '"') continue;
        if (memcmp(text + i + 1, name, length) != 0) continue;
        at = 8 + i;
        break;
    }
    return kvl_fail_prefix(code, "%s: tensor '%.80s' (byte %" PRIu64 ")", st->file.path, name, at);
}

static kvl_status parse_dtype(const json_t *entry, kvl_dtype *out) {
    const char *text = NULL;
    KVL_TRY(kvl_json_string("dtype", entry, "dtype", true, &text));
    for (int i = 0; i < KVL_N_DTYPES; i++) {
        if (strcmp(text, file_dtypes[i]) != 0) continue;
        *out = (kvl_dtype)i;
        return KVL_OK;
    }
    return kvl_fail(KVL_ERR_UNSUPPORTED,
                    "dtype %.32s: F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, I8 and U8 are "
                    "read",
                    text);
}

static kvl_status parse_shape(const json_t *entry, kvl_st_tensor *tensor) {
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) return kvl_fail(KVL_ERR_INPUT, "shape is not an array");
    if (json_array_size(shape) > KVL_ST_MAX_DIMS)
        return kvl_fail(KVL_ERR_INPUT, "shape has %zu dimensions: at most %d",
                        json_array_size(shape), KVL_ST_MAX_DIMS);
    tensor->n_dims = (int32_t)json_array_size(shape);
    tensor->n_elems = 1;
    for (int d = 0; d < tensor->n_dims; d++) {
        const json_t *dim = json_array_get(shape, (size_t)d);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return kvl_fail(KVL_ERR_INPUT, "shape[%d] is not a whole number", d);
        tensor->dims[d] = json_integer_value(dim);
        if (!kvl_mul_i64(tensor->n_elems, tensor->dims[d], &tensor->n_elems))
            return kvl_fail(KVL_ERR_INPUT, "shape[%d] %" PRId64 ": the product passes 2^63", d,
                            tensor->dims[d]);
    }
    if (!kvl_mul_u64((uint64_t)tensor->n_elems, kvl_dtype_bytes(tensor->dtype), &tensor->bytes))
        return kvl_fail(KVL_ERR_INPUT, "shape of %" PRId64 " elements: bytes pass 2^64",
                        tensor->n_elems);
    return KVL_OK;
}

static kvl_status parse_offsets(const kvl_safetensors *st, const json_t *entry,
                                kvl_st_tensor *tensor) {
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return kvl_fail(KVL_ERR_INPUT, "data_offsets: %zu values: 2 are needed",
                        json_array_size(offsets));
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (!json_is_integer(first) || !json_is_integer(last) || begin < 0 || end < begin)
        return kvl_fail(KVL_ERR_INPUT,
                        "data_offsets [%" PRId64 ", %" PRId64 "]: two whole numbers, begin <= end, "
                        "are needed",
                        begin, end);
    if ((uint64_t)end > st->data_bytes)
        return kvl_fail(KVL_ERR_INPUT,
                        "data_offsets [%" PRId64 ", %" PRId64 "]: the file has %" PRIu64
                        " bytes of data",
                        begin, end, st->data_bytes);
    if ((uint64_t)(end - begin) != tensor->bytes)
        return kvl_fail(KVL_ERR_INPUT,
                        "data_offsets [%" PRId64 ", %" PRId64 "]: %" PRId64
                        " bytes, its dtype and shape make %" PRIu64,
                        begin, end, end - begin, tensor->bytes);
    tensor->data = st->file.data + 8 + st->header_bytes + begin;
    return KVL_OK;
}

static kvl_status parse_tensor(kvl_safetensors *st, const char *name, const json_t *entry) {
    kvl_st_tensor *tensor = &st->tensors[st->n_tensors];
    tensor->name = name;
    kvl_status status = KVL_OK;
    if (!json_is_object(entry)) status = kvl_fail(KVL_ERR_INPUT, "the entry is not an object");
    if (status == KVL_OK) status = parse_dtype(entry, &tensor->dtype);
    if (status == KVL_OK) status = parse_shape(entry, tensor);
    if (status == KVL_OK) status = parse_offsets(st, entry, tensor);
    if (status != KVL_OK) return fail_at(st, name, status);
    kvl_name_index_add(&st->index, name, strlen(name));
    st->n_tensors++;
    return KVL_OK;
}

static kvl_status check_metadata(const kvl_safetensors *st) {
    if (!json_is_object(st->metadata))
        return kvl_fail(KVL_ERR_INPUT, "%s: __metadata__ is not an object of strings",
                        st->file.path);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)st->metadata, key, value) {
        if (!json_is_string(value))
            return kvl_fail(KVL_ERR_INPUT, "%s: __metadata__ '%.80s' is not a string",
                            st->file.path, key);
    }
    return KVL_OK;
}

static int by_place(const void *a, const void *b) {
    const kvl_st_tensor *x = *(const kvl_st_tensor *const *)a;
    const kvl_st_tensor *y = *(const kvl_st_tensor *const *)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

/* The ranges must tile the data: no hole, no overlap, nothing after the last. */
static kvl_status check_tiling(const kvl_safetensors *st) {
    const kvl_st_tensor **order = calloc(st->n_tensors + 1, sizeof *order);
    if (!order) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", st->file.path);
    for (size_t i = 0; i < st->n_tensors; i++) order[i] = &st->tensors[i];
    qsort(order, st->n_tensors, sizeof *order, by_place);
    const uint8_t *data = st->file.data + 8 + st->header_bytes;
    uint64_t at = 0;
    kvl_status status = KVL_OK;
    for (size_t i = 0; i < st->n_tensors && status == KVL_OK; i++) {
        uint64_t begin = (uint64_t)((const uint8_t *)order[i]->data - data);
        if (begin != at) {
            status =
                kvl_fail(KVL_ERR_INPUT,
                         "data_offsets begin at %" PRIu64 ", the tensor before ends at %" PRIu64
                         ": ranges must follow one another without %s",
                         begin, at, begin > at ? "a hole" : "overlap");
            status = fail_at(st, order[i]->name, status);
        }
        at = begin + order[i]->bytes;
    }
    if (status == KVL_OK && at != st->data_bytes)
        status = kvl_fail(KVL_ERR_INPUT,
                          "%s: %" PRIu64 " bytes after the last tensor (byte %" PRIu64 ")",
                          st->file.path, st->data_bytes - at, 8 + st->header_bytes + at);
    free(order);
    return status;
}

/* Header length and header text. */
static kvl_status read_header(kvl_safetensors *st) {
    const kvl_file *file = &st->file;
    if (file->bytes < 8)
        return kvl_fail(KVL_ERR_INPUT, "%s: header length (byte 0): the file has %" PRIu64 " bytes",
                        file->path, file->bytes);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | file->data[i];
    if (n > MAX_HEADER_BYTES || n > file->bytes - 8)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: header length (byte 0) %" PRIu64 ": at most %d, and %" PRIu64
                        " bytes follow",
                        file->path, n, MAX_HEADER_BYTES, file->bytes - 8);
    if (n < 2 || file->data[8] != '{')
        return kvl_fail(KVL_ERR_INPUT, "%s: header (byte 8) does not start with '{'", file->path);
    st->header_bytes = n;
    st->data_bytes = file->bytes - 8 - n;
    return kvl_json_parse_at(file->path, file->data + 8, n, 8, &st->header);
}

static kvl_status parse(kvl_safetensors *st) {
    KVL_TRY(read_header(st));
    size_t n = json_object_size(st->header);
    st->tensors = calloc(n + 1, sizeof *st->tensors);
    if (!st->tensors || !kvl_name_index_init(&st->index, n))
        return kvl_fail(KVL_ERR_OOM, "%s: out of memory", st->file.path);
    const char *name;
    json_t *entry;
    json_object_foreach(st->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) {
            st->metadata = entry;
            KVL_TRY(check_metadata(st));
        } else {
            KVL_TRY(parse_tensor(st, name, entry));
        }
    }
    return check_tiling(st);
}

kvl_status kvl_st_open(const char *path, kvl_safetensors **out) {
    *out = NULL;
    kvl_safetensors *st = calloc(1, sizeof *st);
    if (!st) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", path);
    kvl_status status = kvl_file_open(path, &st->file);
    if (status == KVL_OK) status = parse(st);
    if (status == KVL_OK)
        *out = st;
    else
        kvl_st_close(st);
    return status;
}

void kvl_st_close(kvl_safetensors *st) {
    if (!st) return;
    kvl_name_index_free(&st->index);
    free(st->tensors);
    json_decref(st->header);
    if (st->file.path) kvl_file_close(&st->file);
    free(st);
}

size_t kvl_st_count(const kvl_safetensors *st) {
    return st->n_tensors;
}

const kvl_st_tensor *kvl_st_at(const kvl_safetensors *st, size_t index) {
    return &st->tensors[index];
}

const kvl_st_tensor *kvl_st_find(const kvl_safetensors *st, const char *name) {
    int64_t number = kvl_name_index_find(&st->index, name, strlen(name));
    return number < 0 ? NULL : &st->tensors[number];
}

const char *kvl_st_metadata(const kvl_safetensors *st, const char *key) {
    return json_string_value(json_object_get(st->metadata, key));
}

/* The dtypes that no KV cache has, read unaligned. */
#define READ_AS(type) \
    for (int64_t i = 0; i < n; i++) { \
        type x; \
        memcpy(&x, from + (size_t)i * sizeof x, sizeof x); \
        out[i] = (float)x; \
    } \
    return

static void read_plain(kvl_dtype dtype, const uint8_t *from, int64_t n, float *out) {
    switch (dtype) {
    case KVL_F64:
        READ_AS(double);
    case KVL_I8:
        READ_AS(int8_t);
    case KVL_U8:
        READ_AS(uint8_t);
    case KVL_I32:
        READ_AS(int32_t);
    case KVL_I64:
        READ_AS(int64_t);
    default:
        return;
    }
}

/* kvl_decode wants aligned elements; a header of odd length leaves them at odd places. */
static void decode_unaligned(kvl_dtype dtype, const uint8_t *from, int64_t n, float *out) {
    size_t width = kvl_dtype_bytes(dtype);
    if ((uintptr_t)from % width == 0) {
        kvl_decode(dtype, from, n, 1.0f, out);
        return;
    }
    uint32_t chunk[1024];
    for (int64_t done = 0; done < n; done += 1024) {
        int64_t part = n - done < 1024 ? n - done : 1024;
        memcpy(chunk, from + (size_t)done * width, (size_t)part * width);
        kvl_decode(dtype, chunk, part, 1.0f, out + done);
    }
}

kvl_status kvl_st_read_f32(const kvl_st_tensor *tensor, int64_t first, int64_t n, float *out) {
    if (first < 0 || n < 0 || first > tensor->n_elems || n > tensor->n_elems - first)
        return kvl_fail(KVL_ERR_INPUT,
                        "tensor '%s': elements %" PRId64 " + %" PRId64 ": it has %" PRId64,
                        tensor->name, first, n, tensor->n_elems);
    if (!n) return KVL_OK;
    const uint8_t *from =
        (const uint8_t *)tensor->data + (uint64_t)first * kvl_dtype_bytes(tensor->dtype);
    if (tensor->dtype == KVL_F32)
        memcpy(out, from, (size_t)n * sizeof *out);
    else if (kvl_kv_format_of(tensor->dtype))
        decode_unaligned(tensor->dtype, from, n, out);
    else
        read_plain(tensor->dtype, from, n, out);
    return KVL_OK;
}

/* The header entry of tensors[i], whose data begin at `at`. */
static json_t *header_entry(const kvl_st_tensor *tensor, uint64_t at) {
    json_t *shape = json_array();
    for (int d = 0; d < tensor->n_dims; d++)
        json_array_append_new(shape, json_integer(tensor->dims[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", file_dtypes[tensor->dtype], "shape", shape,
                     "data_offsets", (json_int_t)at, (json_int_t)(at + tensor->bytes));
}

/* Visits tensors wide elements first, as other writers do, so that each is aligned to its element:
 * the number of the k-th one, or n_tensors after the last. */
static size_t kth_by_width(const kvl_st_tensor *tensors, size_t n_tensors, size_t *width,
                           size_t after) {
    for (; *width; *width /= 2, after = 0) {
        for (size_t i = after; i < n_tensors; i++)
            if (kvl_dtype_bytes(tensors[i].dtype) == *width) return i;
    }
    return n_tensors;
}

/* Fills `header` with entries whose ranges follow one another. */
static kvl_status describe(const char *path, const kvl_st_tensor *tensors, size_t n_tensors,
                           json_t *header) {
    size_t width = 8;
    uint64_t at = 0;
    for (size_t i = kth_by_width(tensors, n_tensors, &width, 0); i < n_tensors;
         i = kth_by_width(tensors, n_tensors, &width, i + 1)) {
        const kvl_st_tensor *tensor = &tensors[i];
        uint64_t bytes = width;
        for (int d = 0; d < tensor->n_dims; d++) bytes *= (uint64_t)tensor->dims[d];
        if (bytes != tensor->bytes)
            return kvl_fail(KVL_ERR_INPUT,
                            "%s: tensor '%s' has %" PRIu64
                            " bytes, its dtype and dims make %" PRIu64,
                            path, tensor->name, tensor->bytes, bytes);
        if (json_object_get(header, tensor->name))
            return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s' is given twice", path, tensor->name);
        if (json_object_set_new(header, tensor->name, header_entry(tensor, at)) != 0)
            return kvl_fail(KVL_ERR_INPUT, "%s: tensor name '%s' is not UTF-8", path, tensor->name);
        at += tensor->bytes;
    }
    return KVL_OK;
}

/* The whole file. Data start at a multiple of 8 bytes: the format pads the header with spaces. */
static kvl_status compose_header(const char *path, const json_t *header, kvl_buffer *text) {
    char *dump = json_dumps(header, JSON_COMPACT);
    if (!dump) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", path);
    uint64_t length = strlen(dump), padded = (length + 7) / 8 * 8;
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)(padded >> (8 * i));
    kvl_buffer_add(text, prefix, sizeof prefix);
    kvl_buffer_add(text, dump, length);
    kvl_buffer_add(text, "       ", padded - length);
    free(dump);
    return text->failed ? kvl_fail(KVL_ERR_OOM, "%s: out of memory", path) : KVL_OK;
}

static kvl_status compose(const char *path, const kvl_st_tensor *tensors, size_t n_tensors,
                          const json_t *header, kvl_buffer *text) {
    KVL_TRY(compose_header(path, header, text));
    size_t width = 8;
    for (size_t i = kth_by_width(tensors, n_tensors, &width, 0); i < n_tensors;
         i = kth_by_width(tensors, n_tensors, &width, i + 1))
        kvl_buffer_add(text, tensors[i].data, tensors[i].bytes);
    return text->failed ? kvl_fail(KVL_ERR_OOM, "%s: out of memory", path) : KVL_OK;
}

kvl_status kvl_st_write(const char *path, const kvl_st_tensor *tensors, size_t n_tensors) {
    json_t *header = json_object();
    if (!header) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", path);
    kvl_buffer text = {0};
    kvl_status status = describe(path, tensors, n_tensors, header);
    if (status == KVL_OK) status = compose(path, tensors, n_tensors, header, &text);
    json_decref(header);
    if (status == KVL_OK) status = kvl_file_write_all(path, text.data, text.bytes);
    kvl_buffer_free(&text);
    return status;
}

/* ---- piece by piece ------------------------------------------------------------------------- */

struct kvl_st_stream {
    char *path;
    int fd;
    const kvl_st_tensor *tensors;
    uint64_t *offsets; /* [n_tensors] in the file */
};

static kvl_status stream_fail(const kvl_st_stream *stream, int reason) {
    return kvl_fail(KVL_ERR_IO, "%s: cannot write: %s", stream->path, strerror(reason));
}

static kvl_status write_at(const kvl_st_stream *stream, const void *data, uint64_t bytes,
                           uint64_t at) {
    for (const char *from = data; bytes;) {
        ssize_t n = pwrite(stream->fd, from, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return stream_fail(stream, n < 0 ? errno : ENOSPC);
        from += n, at += (uint64_t)n, bytes -= (uint64_t)n;
    }
    return KVL_OK;
}

/* Header, places of all tensors, and disk space. */
static kvl_status stream_start(kvl_st_stream *stream, size_t n_tensors) {
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    if (!header) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", stream->path);
    kvl_buffer text = {0};
    kvl_status status = describe(stream->path, stream->tensors, n_tensors, header);
    if (status == KVL_OK) status = compose_header(stream->path, header, &text);
    json_decref(header);
    uint64_t at = text.bytes;
    size_t width = 8;
    for (size_t i = kth_by_width(stream->tensors, n_tensors, &width, 0); i < n_tensors;
         i = kth_by_width(stream->tensors, n_tensors, &width, i + 1)) {
        stream->offsets[i] = at;
        at += stream->tensors[i].bytes;
    }
    if (status == KVL_OK) {
        int reason = posix_fallocate(stream->fd, 0, (off_t)at);
        if (reason) status = stream_fail(stream, reason);
    }
    if (status == KVL_OK) status = write_at(stream, text.data, text.bytes, 0);
    kvl_buffer_free(&text);
    return status;
}

kvl_status kvl_st_stream_create(const char *path, const kvl_st_tensor *tensors, size_t n_tensors,
                                kvl_st_stream **out) {
    kvl_st_stream *stream = calloc(1, sizeof *stream);
    if (!stream) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", path);
    stream->path = strdup(path);
    stream->tensors = tensors;
    stream->offsets = calloc(n_tensors + 1, sizeof *stream->offsets);
    stream->fd = -1;
    kvl_status status = KVL_OK;
    if (!stream->path || !stream->offsets)
        status = kvl_fail(KVL_ERR_OOM, "%s: out of memory", path);
    if (status == KVL_OK) stream->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (status == KVL_OK && stream->fd < 0) status = stream_fail(stream, errno);
    if (status == KVL_OK) status = stream_start(stream, n_tensors);
    if (status != KVL_OK) return kvl_st_stream_close(stream, status);
    *out = stream;
    return KVL_OK;
}

kvl_status kvl_st_stream_write(kvl_st_stream *stream, size_t index, uint64_t at, const void *data,
                               uint64_t bytes) {
    const kvl_st_tensor *tensor = &stream->tensors[index];
    if (at > tensor->bytes || bytes > tensor->bytes - at)
        return kvl_fail(KVL_ERR_INTERNAL, "%s: tensor '%s': bytes past its end", stream->path,
                        tensor->name);
    return write_at(stream, data, bytes, stream->offsets[index] + at);
}

kvl_status kvl_st_stream_close(kvl_st_stream *stream, kvl_status status) {
    if (stream->fd >= 0) {
        if (status == KVL_OK && fsync(stream->fd) != 0) status = stream_fail(stream, errno);
        if (close(stream->fd) != 0 && status == KVL_OK) status = stream_fail(stream, errno);
        if (status != KVL_OK) unlink(stream->path);
    }
    free(stream->path);
    free(stream->offsets);
    free(stream);
    return status;
}
