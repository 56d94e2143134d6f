/* Attention over chunks of materialised scores, once per instruction set: eager is one chunk that
 * holds all keys, sdpa's mem_efficient is chunks of KVL_CHUNK_KEYS (Rabe & Staats 2021). */
#ifndef KVL_ATTENTION_CHUNKED_H
#define KVL_ATTENTION_CHUNKED_H

#include "attention/block.h"

enum { KVL_CHUNK_KEYS = 1024 };

/* Any head_dim that an int32 stride and a sane workspace allow. */
enum { KVL_CHUNKED_HEAD_DIM_MAX = 65536 };

/* Workspace for `chunk_keys` keys a chunk (0 = all keys in one); UINT64_MAX when no size fits. */
uint64_t kvl_chunked_workspace(const kvl_attention_args *args, int64_t chunk_keys);

/* Runs all blocks on args->n_threads threads. */
kvl_status kvl_chunked_run(const kvl_attention_args *args, int64_t chunk_keys);

#define KVL_CHUNKED_KERNEL(isa) \
    void kvl_chunked_block_##isa(const kvl_attention_block *block, int64_t chunk_keys, \
                                 int64_t score_stride, float *scratch);
KVL_CHUNKED_KERNEL(scalar)
KVL_CHUNKED_KERNEL(avx2)
KVL_CHUNKED_KERNEL(avx512)
#undef KVL_CHUNKED_KERNEL

#endif
