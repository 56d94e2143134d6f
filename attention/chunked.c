#include "attention/chunked.h"

#include <omp.h>

#include "core/checked.h"

typedef void (*block_fn)(const kvl_attention_block *block, int64_t chunk_keys, int64_t score_stride,
                         float *scratch);
static const block_fn block_fns[] = {kvl_chunked_block_scalar, kvl_chunked_block_avx2,
                                     kvl_chunked_block_avx512};

/* Keys between the score rows of a block: the chunk, or the longest sequence when that is less. */
static int64_t score_stride(const kvl_attention_args *args, int64_t chunk_keys) {
    int64_t longest = 0;
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        if (args->kv->kv_lens[s] > longest) longest = args->kv->kv_lens[s];
    }
    if (chunk_keys && chunk_keys < longest) longest = chunk_keys;
    return (longest + KVL_TILE_KEYS - 1) / KVL_TILE_KEYS * KVL_TILE_KEYS;
}

static uint64_t scratch_floats(const kvl_attention_args *args, int64_t stride) {
    return (uint64_t)(3 * KVL_BLOCK_ROWS + 2 * KVL_TILE_KEYS) * (uint64_t)kvl_tile_stride(args) +
           (uint64_t)KVL_BLOCK_ROWS * (uint64_t)stride;
}

uint64_t kvl_chunked_workspace(const kvl_attention_args *args, int64_t chunk_keys) {
    uint64_t bytes = scratch_floats(args, score_stride(args, chunk_keys)) * sizeof(float);
    bool fits = kvl_mul_u64(bytes, (uint64_t)args->n_threads, &bytes) &&
                kvl_add_u64(bytes, kvl_blocks_bytes(args), &bytes);
    return fits ? bytes : UINT64_MAX;
}

kvl_status kvl_chunked_run(const kvl_attention_args *args, int64_t chunk_keys) {
    int64_t *starts = args->workspace;
    float *scratch = (float *)((char *)args->workspace + kvl_blocks_bytes(args));
    int64_t stride = score_stride(args, chunk_keys), n_blocks = kvl_blocks_count(args, starts);
    int64_t floats = (int64_t)scratch_floats(args, stride);
    /* One chunk for all keys: any multiple of a tile past the longest sequence. */
    int64_t keys = chunk_keys ? chunk_keys : (int64_t)1 << 40;
    block_fn run_block = block_fns[kvl_attention_variant()];
#pragma omp parallel for schedule(dynamic, 1) num_threads(args->n_threads) if (n_blocks > 1)
    for (int64_t i = 0; i < n_blocks; i++) {
        kvl_attention_block block = kvl_blocks_at(args, starts, i);
        run_block(&block, keys, stride, scratch + omp_get_thread_num() * floats);
    }
    return KVL_OK;
}
