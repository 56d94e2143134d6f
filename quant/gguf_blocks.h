/* GGUF block formats decoded to float32: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K..Q6_K.
 * Source: block layouts of ggml-common.h, as documented by the gguf Python package's quants.py. */
#ifndef KVL_QUANT_GGUF_BLOCKS_H
#define KVL_QUANT_GGUF_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

typedef struct kvl_gguf_block {
    const char *name;    /* "q4_1" */
    uint32_t ggml_type;  /* id in the file */
    int32_t block_elems; /* values in a block */
    int32_t block_bytes;
    /* n values (a multiple of block_elems) from n / block_elems blocks (unaligned) to float32. */
    void (*decode)(const uint8_t *blocks, int64_t n, float *out);
} kvl_gguf_block;

size_t kvl_gguf_block_count(void);
const kvl_gguf_block *kvl_gguf_block_at(size_t index);
const kvl_gguf_block *kvl_gguf_block_of(uint32_t ggml_type); /* NULL: not decoded here */
/* Name of any ggml type id that ever existed ("iq2_xs", "q4_2 (retired)"), or NULL: for messages.
 */
const char *kvl_ggml_type_name(uint32_t ggml_type);

#endif
