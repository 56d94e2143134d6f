/* How the kernels cut a call into work: a block is up to KVL_BLOCK_ROWS query rows of one sequence
 * that share one KV head. Row r of a sequence is query token r / group with query head
 * kv_head * group + r % group, so the heads of a group lie side by side and share each K/V load.
 * Nothing here decides a result's bits: a row is computed alike in any block. */
#ifndef KVL_ATTENTION_BLOCK_H
#define KVL_ATTENTION_BLOCK_H

#include "attention/attention.h"

enum {
    KVL_BLOCK_ROWS = 48, /* a multiple of the three rows of a register tile; Q stays in L1 */
    KVL_TILE_KEYS = 64   /* keys of one online-softmax step, aligned at absolute key 0 */
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

/* Floats between the rows of a tile in scratch: head_dim rounded up to the widest vector. */
static inline int64_t kvl_tile_stride(const kvl_attention_args *args) {
    return ((int64_t)args->kv->head_dim + 15) & ~(int64_t)15;
}

/* Blocks of all sequences and KV heads. Writes, when `starts` is not NULL, starts[s] = blocks of a
 * KV head in the sequences before s; [n_seqs + 1]. */
int64_t kvl_blocks_count(const kvl_attention_args *args, int64_t *starts);

/* The `index`-th block, sequence-major, later rows of a sequence first (they see the most keys, so
 * the longest pieces of work start first). */
kvl_attention_block kvl_blocks_at(const kvl_attention_args *args, const int64_t *starts,
                                  int64_t index);

/* Bytes of `starts`, rounded up so that what follows it in the workspace is 64-byte aligned. */
static inline uint64_t kvl_blocks_bytes(const kvl_attention_args *args) {
    return (((uint64_t)args->kv->n_seqs + 1) * sizeof(int64_t) + 63) & ~(uint64_t)63;
}

/* The rules every module shares: what supports() refuses of dtypes and flags. Fills `choice` as
 * supported with `kernel` at `isa`, or with the reason. */
void kvl_attention_supports(const kvl_attention_args *args, const char *kernel, kvl_isa isa,
                            int32_t head_dim_max, kvl_attention_choice *choice);

/* The vector variant that the settled instruction set runs: 0 scalar, 1 avx2, 2 avx512. */
static inline kvl_isa kvl_attention_variant(void) {
    kvl_isa isa = kvl_isa_current();
    return isa < KVL_ISA_AVX512 ? isa : KVL_ISA_AVX512;
}

#endif
