/* Between flash.c (plan, workers) and flash_kernel.c (arithmetic, once per instruction set). */
#ifndef KVL_ATTENTION_FLASH_H
#define KVL_ATTENTION_FLASH_H

#include "attention/block.h"

enum {
    KVL_FLASH_HEAD_DIM_MAX = 256,
    /* Every KVL_SPLIT_KEYS keys, counted from absolute key 0, a row starts a fresh softmax state;
     * the states are merged in rising order. So it makes no difference to a bit whether one thread
     * walks all splits or each split has its own. */
    KVL_SPLIT_KEYS = 512
};

/* One piece of work: splits [split_first, split_last) of a block. A row's softmax state is its o,
 * then max and sum: kvl_flash_partial floats. */
typedef struct kvl_flash_task {
    kvl_attention_block block;
    int64_t split_first, split_last;
    /* [n_rows][n_states] states. One a row: splits are merged into it in rising order, from a fresh
     * one when `fresh`. More: state `split` of a row is kept for kvl_flash_merge. */
    float *states;
    int64_t n_states;
    bool fresh, store; /* store: the block is complete after this piece, O and LSE are written */
    /* What this worker does next, for prefetching: a KV head of the same sequence and the first
     * key; -1 for nothing. */
    int32_t next_head;
    int64_t next_key;
} kvl_flash_task;

/* Floats of scratch a block needs, and of one row's state. */
static inline int64_t kvl_flash_scratch(const kvl_attention_args *args) {
    return kvl_tile_scratch(args) + KVL_BLOCK_ROWS * (kvl_tile_stride(args) + KVL_TILE_KEYS);
}
static inline int64_t kvl_flash_partial(const kvl_attention_args *args) {
    return kvl_tile_stride(args) + 16;
}

/* merge: stores row `row` of a task's block from its kept states of splits [split_first,
 * split_last). */
#define KVL_FLASH_KERNEL(isa) \
    void kvl_flash_block_##isa(const kvl_flash_task *task, float *scratch); \
    void kvl_flash_merge_##isa(const kvl_flash_task *task, int32_t row);
KVL_FLASH_KERNEL(scalar)
KVL_FLASH_KERNEL(avx2)
KVL_FLASH_KERNEL(avx512)
KVL_FLASH_KERNEL(avx512_bf16)
#undef KVL_FLASH_KERNEL

#endif
