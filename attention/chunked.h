/* Attention over chunks of materialised scores, once per instruction set: sdpa's
 * mem_efficient (Rabe & Staats 2021). eager.c has the whole score matrix instead. */
#ifndef KVL_ATTENTION_CHUNKED_H
#define KVL_ATTENTION_CHUNKED_H

#include "attention/block.h"

enum { KVL_CHUNK_KEYS = 1024 };

/* Workspace; UINT64_MAX when no size fits. */
uint64_t kvl_chunked_workspace(const kvl_attention_args *args);

kvl_status kvl_chunked_run(const kvl_attention_args *args);

#define KVL_CHUNKED_KERNEL(isa) \
    void kvl_chunked_block_##isa(const kvl_attention_block *block, float *scratch);
KVL_CHUNKED_KERNEL(scalar)
KVL_CHUNKED_KERNEL(avx2)
KVL_CHUNKED_KERNEL(avx512)
KVL_CHUNKED_KERNEL(avx512_bf16)
#undef KVL_CHUNKED_KERNEL

#endif
