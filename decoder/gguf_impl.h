/* What gguf.c (the parser) and gguf_values.c (typed access to metadata) share. */
#ifndef KVL_DECODER_GGUF_IMPL_H
#define KVL_DECODER_GGUF_IMPL_H

#include "core/file.h"
#include "decoder/gguf.h"
#include "decoder/name_index.h"

/* Value types, as the format numbers them. */
typedef enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_TYPES
} gguf_type;

/* One metadata value. Law: [at, at + its bytes) lies within the file. */
typedef struct gguf_value {
    gguf_type type, elem_type; /* elem_type: of arrays */
    uint64_t at;               /* file offset of the value; of the first element for arrays */
    uint64_t count;            /* elements of an array; bytes of a string */
    kvl_gguf_string *strings;  /* [count] of an array of strings */
    void *copy;                /* [count] int32_t or float, made when first asked for */
} gguf_value;

struct kvl_gguf {
    kvl_file file;
    kvl_name_index keys, names; /* numbers index values and tensors */
    gguf_value *values;         /* [keys.n_names] */
    kvl_gguf_tensor *tensors;   /* [n_tensors] */
    char *name_bytes;           /* the tensors' names, NUL-terminated */
    uint64_t *tensor_at;        /* [n_tensors] file offset of each tensor's record */
    size_t n_tensors;
    uint64_t n_strings; /* in all arrays */
    uint64_t alignment;
};

/* "u8", "string", ... */
const char *gguf_type_name(gguf_type type);

/* Bytes of one element of a type with a fixed size; 0 for strings and arrays. */
uint32_t gguf_type_bytes(gguf_type type);

#endif
