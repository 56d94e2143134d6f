/* safetensors reader and writer. Format: u64 little-endian header length, JSON header, data.
 * Source: the safetensors README ("Format"). The reader refuses all that hostile_files-style input
 * can hold: lengths past the file, ranges that do not tile the buffer, shape x dtype != range,
 * overflowing products, duplicate or non-UTF-8 names, non-string metadata. */
#ifndef KVL_DECODER_SAFETENSORS_H
#define KVL_DECODER_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/file.h"
#include "core/status.h"

enum { KVL_ST_MAX_DIMS = 8 };

typedef struct kvl_st_tensor {
    const char *name;
    kvl_dtype dtype;
    int32_t n_dims;
    int64_t dims[KVL_ST_MAX_DIMS];
    int64_t n_elems;
    const void *data; /* host, in the mapping; not necessarily aligned */
    uint64_t bytes;
} kvl_st_tensor;

typedef struct kvl_safetensors kvl_safetensors;

kvl_status kvl_st_open(const char *path, kvl_safetensors **out);
void kvl_st_close(kvl_safetensors *st);
size_t kvl_st_count(const kvl_safetensors *st);
const kvl_st_tensor *kvl_st_at(const kvl_safetensors *st, size_t index);
/* NULL when absent. O(1). */
const kvl_st_tensor *kvl_st_find(const kvl_safetensors *st, const char *name);
/* Value of __metadata__[key], or NULL. */
const char *kvl_st_metadata(const kvl_safetensors *st, const char *key);

/* Elements first .. first + n as float32, from f32, f16, bf16, f64, fp8, i8, u8, i32 or i64. */
kvl_status kvl_st_read_f32(const kvl_st_tensor *tensor, int64_t first, int64_t n, float *out);

/* Writes tensors (data host, contiguous; of each: name, dtype, n_dims, dims, data, bytes) to
 * `path`, whole or not at all. A name given twice or not UTF-8, and bytes that are not dims x
 * dtype, are KVL_ERR_INPUT. */
kvl_status kvl_st_write(const char *path, const kvl_st_tensor *tensors, size_t n_tensors);

/* A file written piece by piece, for tensors that do not fit in memory together. */
typedef struct kvl_st_stream kvl_st_stream;

/* Creates `path`, which must not exist, for tensors as in kvl_st_write (data ignored), with
 * {"format": "pt"} as metadata. Disk space for all of it is taken at once. On failure no file is
 * left. The tensors' names are read until close. */
kvl_status kvl_st_stream_create(const char *path, const kvl_st_tensor *tensors, size_t n_tensors,
                                kvl_st_stream **out);
/* Bytes at .. at + bytes of tensors[index]. Thread-safe. */
kvl_status kvl_st_stream_write(kvl_st_stream *stream, size_t index, uint64_t at, const void *data,
                               uint64_t bytes);
/* Ends the file on disk. With a `status` other than KVL_OK the file is removed and that is
 * returned; a failure of its own removes it too. */
kvl_status kvl_st_stream_close(kvl_st_stream *stream, kvl_status status);

#endif
