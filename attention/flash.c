/* flash: plan and threads. The arithmetic is in flash_kernel.c. */
#include "attention/flash.h"

#include <omp.h>

#include "attention/modules.h"
#include "core/checked.h"

typedef struct flash_plan {
    bool splits; /* the splits of a row go to different threads */
    int64_t n_splits;
    uint64_t starts_bytes, scratch_bytes, partial_bytes, total_bytes; /* total: UINT64_MAX = over */
} flash_plan;

typedef void (*block_fn)(const kvl_flash_task *task, float *scratch);
typedef void (*merge_fn)(const kvl_attention_args *args, int64_t token, int32_t head,
                         float *partials, int64_t n_splits);
static const block_fn block_fns[] = {kvl_flash_block_scalar, kvl_flash_block_avx2,
                                     kvl_flash_block_avx512};
static const merge_fn merge_fns[] = {kvl_flash_merge_scalar, kvl_flash_merge_avx2,
                                     kvl_flash_merge_avx512};

/* Partial states of a call above this size are not worth their memory: blocks then stay whole. */
static const uint64_t partial_limit_bytes = (uint64_t)256 << 20;

/* Splits are handed out only when there are too few blocks to keep all threads busy. */
static flash_plan plan(const kvl_attention_args *args) {
    flash_plan p = {.n_splits = 1, .starts_bytes = kvl_blocks_bytes(args)};
    int64_t longest = 0;
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        if (args->kv->kv_lens[s] > longest) longest = args->kv->kv_lens[s];
    }
    p.n_splits = (longest + KVL_SPLIT_KEYS - 1) / KVL_SPLIT_KEYS;
    bool fits = kvl_mul_u64((uint64_t)args->n_threads,
                            (uint64_t)kvl_flash_scratch(args) * sizeof(float), &p.scratch_bytes);
    if (args->n_threads > 1 && p.n_splits > 1 &&
        kvl_blocks_count(args, NULL) < 4 * (int64_t)args->n_threads) {
        uint64_t rows = (uint64_t)args->q_start[args->kv->n_seqs] * (uint64_t)args->n_q_heads;
        p.splits = kvl_mul_u64(rows, (uint64_t)p.n_splits, &rows) &&
                   kvl_mul_u64(rows, (uint64_t)kvl_flash_partial(args) * sizeof(float),
                               &p.partial_bytes) &&
                   p.partial_bytes <= partial_limit_bytes;
        if (!p.splits) p.partial_bytes = 0;
    }
    fits = fits && kvl_add_u64(p.starts_bytes, p.scratch_bytes, &p.total_bytes) &&
           kvl_add_u64(p.total_bytes, p.partial_bytes, &p.total_bytes);
    if (!fits) p.total_bytes = UINT64_MAX;
    return p;
}

static uint64_t flash_workspace_bytes(const kvl_attention_args *args) {
    return plan(args).total_bytes;
}

static void flash_supports(const kvl_attention_args *args, kvl_attention_choice *choice) {
    kvl_attention_supports(args, "flash", kvl_attention_variant(), KVL_FLASH_HEAD_DIM_MAX, choice);
}

static kvl_status flash_run(const kvl_attention_args *args) {
    flash_plan p = plan(args);
    int64_t *starts = args->workspace;
    float *scratch = (float *)((char *)args->workspace + p.starts_bytes);
    float *partials = p.splits ? (float *)((char *)scratch + p.scratch_bytes) : NULL;
    int64_t n_blocks = kvl_blocks_count(args, starts), scratch_floats = kvl_flash_scratch(args);
    int64_t per_block = p.splits ? p.n_splits : 1, n_tasks = n_blocks * per_block;
    int64_t n_rows = p.splits ? (int64_t)args->q_start[args->kv->n_seqs] * args->n_q_heads : 0;
    block_fn run_block = block_fns[kvl_attention_variant()];
    merge_fn merge_row = merge_fns[kvl_attention_variant()];
#pragma omp parallel num_threads(args->n_threads) if (n_tasks > 1)
    {
        float *mine = scratch + omp_get_thread_num() * scratch_floats;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n_tasks; i++) {
            int64_t split = i % per_block;
            kvl_flash_task task = {
                .block = kvl_blocks_at(args, starts, i / per_block),
                .split_first = p.splits ? split : 0,
                .split_last = p.splits ? split + 1 : p.n_splits,
                .partials = partials,
                .n_splits = p.n_splits,
            };
            run_block(&task, mine);
        }
#pragma omp for schedule(static)
        for (int64_t row = 0; row < n_rows; row++)
            merge_row(args, row / args->n_q_heads, (int32_t)(row % args->n_q_heads),
                      partials + row * p.n_splits * kvl_flash_partial(args), p.n_splits);
    }
    return KVL_OK;
}

const kvl_attention kvl_attention_flash = {
    .name = "flash",
    .summary = "online softmax over tiles of keys, no score matrix; split keys for few queries",
    .p_dtype = KVL_F32,
    .acc_dtype = KVL_F32,
    .supports = flash_supports,
    .workspace_bytes = flash_workspace_bytes,
    .run_cpu = flash_run,
};
