/* How the kernels cut a call into work: a block is up to KVL_BLOCK_ROWS query rows of one sequence
 * that share one KV head. Row r of a sequence is query token r / group with query head
 * kv_head * group + r % group, so the heads of a group lie side by side and share each K/V load.
 * Nothing here decides a result's bits: a row is computed alike in any block. */
#ifndef KVL_ATTENTION_BLOCK_H
#define KVL_ATTENTION_BLOCK_H

#include <stdatomic.h>

#include "attention/attention.h"

enum {
    /* A multiple of the three rows of a register tile. The more rows, the less of the time goes to
     * widening and turning a tile of keys for them; their scores of a tile must stay in L1. */
    KVL_BLOCK_ROWS = 96,
    KVL_TILE_KEYS = 64 /* keys of one online-softmax step, aligned at absolute key 0 */
};

typedef struct kvl_attention_block {
    const kvl_attention_args *args;
    int32_t seq, kv_head, n_rows;
    int64_t row_first;
} kvl_attention_block;

static inline int32_t kvl_attention_group(const kvl_attention_args *args) {
    return args->n_q_heads / args->kv->n_kv_heads;
}

/* Index of query token and head of row `r` (0 .. n_rows) of a block. */
static inline int64_t kvl_block_token(const kvl_attention_block *block, int32_t r) {
    return block->args->q_start[block->seq] +
           (block->row_first + r) / kvl_attention_group(block->args);
}
static inline int32_t kvl_block_head(const kvl_attention_block *block, int32_t r) {
    int32_t group = kvl_attention_group(block->args);
    return block->kv_head * group + (int32_t)((block->row_first + r) % group);
}

/* Keys [*first, *last) that row `r` sees; *first == *last for none. Both rise with r. */
static inline void kvl_block_range(const kvl_attention_block *block, int32_t r, int64_t *first,
                                   int64_t *last) {
    const kvl_attention_args *args = block->args;
    int64_t kv_len = args->kv->kv_lens[block->seq];
    int64_t position = kv_len - args->q_start[block->seq + 1] + kvl_block_token(block, r);
    kvl_attention_range(position, kv_len, args->causal, args->window, first, last);
    if (*last < 0) *first = *last = 0; /* a query before the first key */
}

/* Keys that some row of the block sees. */
static inline void kvl_block_keys(const kvl_attention_block *block, int64_t *first, int64_t *last) {
    int64_t ignored;
    kvl_block_range(block, 0, first, &ignored);
    kvl_block_range(block, block->n_rows - 1, &ignored, last);
}

/* Floats between the rows of a tile in scratch: head_dim rounded up to four of the widest vectors,
 * so that every dtype's order of elements (core/simd.h) fits, and a cache line on top: a column of
 * rows that lie a power of two apart would fall into a few sets of L1. */
static inline int64_t kvl_tile_stride(const kvl_attention_args *args) {
    return (((int64_t)args->kv->head_dim + 63) & ~(int64_t)63) + 16;
}

/* Floats of scratch that the stages of attention/tile.h need. */
static inline int64_t kvl_tile_scratch(const kvl_attention_args *args) {
    return (KVL_BLOCK_ROWS + 3 * KVL_TILE_KEYS) * kvl_tile_stride(args);
}

static inline int64_t kvl_longest_kv(const kvl_attention_args *args) {
    int64_t longest = 0;
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        if (args->kv->kv_lens[s] > longest) longest = args->kv->kv_lens[s];
    }
    return longest;
}

/* Query rows of a sequence for one KV head, and the blocks they make. */
static inline int64_t kvl_seq_rows(const kvl_attention_args *args, int32_t seq) {
    return ((int64_t)args->q_start[seq + 1] - args->q_start[seq]) * kvl_attention_group(args);
}
static inline int64_t kvl_seq_blocks(const kvl_attention_args *args, int32_t seq) {
    return (kvl_seq_rows(args, seq) + KVL_BLOCK_ROWS - 1) / KVL_BLOCK_ROWS;
}

/* Blocks of all sequences and KV heads. Writes, when `starts` is not NULL, starts[s] = blocks of a
 * KV head in the sequences before s; [n_seqs + 1]. */
int64_t kvl_blocks_count(const kvl_attention_args *args, int64_t *starts);

/* Block `index` (0 .. kvl_seq_blocks) of a sequence and KV head. */
kvl_attention_block kvl_block_of(const kvl_attention_args *args, int32_t seq, int64_t index,
                                 int32_t kv_head);

/* All blocks of a call, handed to whichever worker is free: the longest pieces of work come first,
 * so that the last to end is not a long one. In the workspace, kvl_queue_bytes of it. */
typedef struct kvl_block_queue {
    _Alignas(64) _Atomic int64_t next;
    int64_t n_blocks;
    int64_t starts[];
} kvl_block_queue;

static inline uint64_t kvl_queue_bytes(const kvl_attention_args *args) {
    return (sizeof(kvl_block_queue) + ((uint64_t)args->kv->n_seqs + 1) * sizeof(int64_t) + 63) &
           ~(uint64_t)63;
}

/* By one worker; a barrier must follow. */
void kvl_queue_fill(kvl_block_queue *queue, const kvl_attention_args *args);

/* The next block, sequence-major, later rows of a sequence first (causal: they see the most keys).
 * False when none is left. */
bool kvl_queue_take(kvl_block_queue *queue, const kvl_attention_args *args,
                    kvl_attention_block *block);

/* Calls share(worker, args) on each worker: on args->worker's team, or on a region of its own. */
void kvl_attention_team(const kvl_attention_args *args,
                        void (*share)(kvl_worker *worker, const kvl_attention_args *args));

/* The rules every module shares: what supports() refuses of dtypes and flags. Fills `choice` as
 * supported with `kernel` at `isa`, or with the reason. */
void kvl_attention_supports(const kvl_attention_args *args, const char *kernel, kvl_isa isa,
                            int32_t head_dim_max, kvl_attention_choice *choice);

/* The variant that the settled instruction set runs: scalar, avx2, avx512 or avx512_bf16. */
static inline kvl_isa kvl_attention_variant(void) {
    kvl_isa isa = kvl_isa_current();
    return isa < KVL_ISA_AVX512_BF16 ? isa : KVL_ISA_AVX512_BF16;
}

#endif
