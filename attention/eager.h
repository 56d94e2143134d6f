/* Between eager.c (plan, workers) and eager_kernel.c (arithmetic, once per instruction set).
 *
 * eager is what Transformers' eager_attention_forward does and what PyTorch calls math: all scores
 * of the call (each sequence: n_q_heads x q_len x kv_len) lie in memory as float32; one pass
 * multiplies Q K^T, one takes the softmax, one multiplies P V. What the mask hides is multiplied as
 * well. */
#ifndef KVL_ATTENTION_EAGER_H
#define KVL_ATTENTION_EAGER_H

#include "attention/block.h"

/* Any head_dim that an int32 stride and a sane workspace allow. */
enum { KVL_EAGER_HEAD_DIM_MAX = 65536 };

typedef struct kvl_eager_task {
    kvl_attention_block block;
    int64_t first, last; /* keys that some query of the sequence sees */
    float *scores;       /* [n_rows][stride] of the block, from key 0 on */
    int64_t stride;
    float *sums; /* [n_rows][2]: max and sum of a row's softmax */
} kvl_eager_task;

/* Workspace for all scores; UINT64_MAX when no size fits. */
uint64_t kvl_eager_workspace(const kvl_attention_args *args);

kvl_status kvl_eager_run(const kvl_attention_args *args);

static inline int64_t kvl_eager_scratch(const kvl_attention_args *args) {
    return kvl_tile_scratch(args) + 2 * KVL_BLOCK_ROWS * kvl_tile_stride(args);
}

#define KVL_EAGER_KERNEL(isa) \
    void kvl_eager_scores_##isa(const kvl_eager_task *task, float *scratch); \
    void kvl_eager_softmax_##isa(const kvl_eager_task *task, float *scratch); \
    void kvl_eager_values_##isa(const kvl_eager_task *task, float *scratch);
KVL_EAGER_KERNEL(scalar)
KVL_EAGER_KERNEL(avx2)
KVL_EAGER_KERNEL(avx512)
KVL_EAGER_KERNEL(avx512_bf16)
#undef KVL_EAGER_KERNEL

#endif
