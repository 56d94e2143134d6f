#include "attention/chunked.h"

#include "core/checked.h"

typedef void (*block_fn)(const kvl_attention_block *block, float *scratch);
static const block_fn block_fns[] = {kvl_chunked_block_scalar, kvl_chunked_block_avx2,
                                     kvl_chunked_block_avx512, kvl_chunked_block_avx512_bf16};

static uint64_t scratch_bytes(const kvl_attention_args *args) {
    return (uint64_t)(kvl_tile_scratch(args) + 2 * KVL_BLOCK_ROWS * kvl_tile_stride(args) +
                      KVL_BLOCK_ROWS * KVL_CHUNK_KEYS) *
           sizeof(float);
}

uint64_t kvl_chunked_workspace(const kvl_attention_args *args) {
    uint64_t bytes;
    bool fits = kvl_mul_u64(scratch_bytes(args), (uint64_t)args->n_threads, &bytes) &&
                kvl_add_u64(bytes, kvl_queue_bytes(args), &bytes);
    return fits ? bytes : UINT64_MAX;
}

static void chunked_share(kvl_worker *worker, const kvl_attention_args *args) {
    kvl_block_queue *queue = args->workspace;
    char *scratch = (char *)args->workspace + kvl_queue_bytes(args) +
                    (uint64_t)worker->index * scratch_bytes(args);
    if (worker->index == 0) kvl_queue_fill(queue, args);
    kvl_team_barrier(worker);
    kvl_attention_block block;
    while (kvl_queue_take(queue, args, &block))
        block_fns[kvl_attention_variant()](&block, (float *)(void *)scratch);
}

kvl_status kvl_chunked_run(const kvl_attention_args *args) {
    kvl_attention_team(args, chunked_share);
    return KVL_OK;
}
