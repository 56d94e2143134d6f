/* eager: the whole score matrix in memory, softmax, then V. What a framework does without a fused
 * kernel, and the yardstick for those that have one. */
#include "attention/eager.h"

#include "attention/modules.h"
#include "core/checked.h"

enum { N_STAGES = 3 };
typedef void (*stage_fn)(const kvl_eager_task *task, float *scratch);
static const stage_fn stage_fns[][N_STAGES] = {
    {kvl_eager_scores_scalar, kvl_eager_softmax_scalar, kvl_eager_values_scalar},
    {kvl_eager_scores_avx2, kvl_eager_softmax_avx2, kvl_eager_values_avx2},
    {kvl_eager_scores_avx512, kvl_eager_softmax_avx512, kvl_eager_values_avx512},
    {kvl_eager_scores_avx512_bf16, kvl_eager_softmax_avx512_bf16, kvl_eager_values_avx512_bf16}};

/* Workspace: a queue a stage, scratch a thread, sums of all rows, scores of all rows. */
typedef struct eager_plan {
    uint64_t queue_bytes, scratch_bytes, sums_bytes, total_bytes; /* total: UINT64_MAX = over */
} eager_plan;

static int64_t stride_of(const kvl_attention_args *args, int32_t seq) {
    return ((int64_t)args->kv->kv_lens[seq] + KVL_TILE_KEYS - 1) & ~(int64_t)(KVL_TILE_KEYS - 1);
}

static eager_plan plan(const kvl_attention_args *args) {
    eager_plan p = {.queue_bytes = kvl_queue_bytes(args)};
    uint64_t rows = (uint64_t)args->q_start[args->kv->n_seqs], scores = 0, of_seq;
    bool fits = kvl_mul_u64((uint64_t)args->n_threads,
                            (uint64_t)kvl_eager_scratch(args) * sizeof(float), &p.scratch_bytes) &&
                kvl_mul_u64(rows, (uint64_t)args->n_q_heads * 2 * sizeof(float), &p.sums_bytes) &&
                kvl_align_u64(p.sums_bytes, 64, &p.sums_bytes);
    for (int32_t s = 0; fits && s < args->kv->n_seqs; s++) {
        rows = (uint64_t)(args->q_start[s + 1] - args->q_start[s]) * (uint64_t)args->n_q_heads;
        fits = kvl_mul_u64(rows, (uint64_t)stride_of(args, s) * sizeof(float), &of_seq) &&
               kvl_add_u64(scores, of_seq, &scores);
    }
    fits = fits && kvl_add_u64(N_STAGES * p.queue_bytes, p.scratch_bytes, &p.total_bytes) &&
           kvl_add_u64(p.total_bytes, p.sums_bytes, &p.total_bytes) &&
           kvl_add_u64(p.total_bytes, scores, &p.total_bytes);
    if (!fits) p.total_bytes = UINT64_MAX;
    return p;
}

uint64_t kvl_eager_workspace(const kvl_attention_args *args) {
    return plan(args).total_bytes;
}

static kvl_eager_task task_of(const kvl_attention_args *args, const kvl_attention_block *block,
                              float *sums, float *scores) {
    kvl_eager_task task = {.block = *block, .stride = stride_of(args, block->seq)};
    int64_t rows = kvl_seq_rows(args, block->seq), n_kv_heads = args->kv->n_kv_heads;
    int64_t row = block->kv_head * rows + block->row_first;
    for (int32_t s = 0; s < block->seq; s++)
        scores += kvl_seq_rows(args, s) * n_kv_heads * stride_of(args, s);
    task.scores = scores + row * task.stride;
    task.sums = sums + 2 * ((int64_t)args->q_start[block->seq] * args->n_q_heads + row);
    kvl_attention_block all = *block;
    int64_t ignored;
    all.row_first = 0;
    kvl_block_range(&all, 0, &task.first, &ignored);
    kvl_block_range(&all, (int32_t)(rows - 1), &ignored, &task.last);
    return task;
}

static void eager_share(kvl_worker *worker, const kvl_attention_args *args) {
    eager_plan p = plan(args);
    char *queues = args->workspace, *scratch = queues + N_STAGES * p.queue_bytes;
    float *sums = (float *)(void *)(scratch + p.scratch_bytes);
    float *scores = (float *)(void *)((char *)sums + p.sums_bytes);
    scratch += (uint64_t)worker->index * (uint64_t)kvl_eager_scratch(args) * sizeof(float);
    if (worker->index == 0) {
        for (int i = 0; i < N_STAGES; i++)
            kvl_queue_fill((void *)(queues + (uint64_t)i * p.queue_bytes), args);
    }
    for (int i = 0; i < N_STAGES; i++) {
        kvl_attention_block block;
        kvl_team_barrier(worker);
        while (kvl_queue_take((void *)(queues + (uint64_t)i * p.queue_bytes), args, &block)) {
            kvl_eager_task task = task_of(args, &block, sums, scores);
            stage_fns[kvl_attention_variant()][i](&task, (float *)(void *)scratch);
        }
    }
}

kvl_status kvl_eager_run(const kvl_attention_args *args) {
    kvl_attention_team(args, eager_share);
    return KVL_OK;
}

static void eager_supports(const kvl_attention_args *args, kvl_attention_choice *choice) {
    kvl_attention_supports(args, "eager", kvl_attention_variant(), KVL_EAGER_HEAD_DIM_MAX, choice);
}

const kvl_attention kvl_attention_eager = {
    .name = "eager",
    .summary = "materialises all scores, then softmax, then V, as frameworks do unfused",
    .p_dtype = KVL_F32,
    .acc_dtype = KVL_F32,
    .supports = eager_supports,
    .workspace_bytes = kvl_eager_workspace,
    .run_cpu = kvl_eager_run,
};
