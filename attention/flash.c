/* flash: plan and workers. The arithmetic is in flash_kernel.c.
 *
 * Many query rows: whole blocks, taken from a queue by whoever is free. Else (decode): the splits
 * of all blocks lie on one line, each as long as it takes, and every worker has an equal stretch of
 * it. A block that lies across the end of a stretch keeps the state of each of its splits; after a
 * barrier they are merged in rising order. So one sequence keeps all workers busy, and no counter
 * is touched. */
#include "attention/flash.h"

#include <math.h>

#include "attention/modules.h"
#include "core/checked.h"

typedef struct flash_plan {
    bool queued;
    int32_t max_rows;                                             /* of a block */
    int64_t n_splits;                                             /* of the longest sequence */
    uint64_t queue_bytes, scratch_bytes, slot_bytes, total_bytes; /* total: UINT64_MAX = over */
} flash_plan;

typedef void (*block_fn)(const kvl_flash_task *task, float *scratch);
typedef void (*merge_fn)(const kvl_flash_task *task, int32_t row);
static const block_fn block_fns[] = {kvl_flash_block_scalar, kvl_flash_block_avx2,
                                     kvl_flash_block_avx512};
static const merge_fn merge_fns[] = {kvl_flash_merge_scalar, kvl_flash_merge_avx2,
                                     kvl_flash_merge_avx512};

/* From this many blocks a worker on, the last ones end close enough together. */
enum { QUEUE_BLOCKS = 4, QUEUE_ROWS = 17 };

static flash_plan plan(const kvl_attention_args *args) {
    flash_plan p = {.n_splits = (kvl_longest_kv(args) + KVL_SPLIT_KEYS - 1) / KVL_SPLIT_KEYS,
                    .queue_bytes = kvl_queue_bytes(args)};
    int64_t most = 0, n_blocks = kvl_blocks_count(args, NULL);
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        if (kvl_seq_rows(args, s) > most) most = kvl_seq_rows(args, s);
    }
    if (p.n_splits < 1) p.n_splits = 1;
    p.max_rows = (int32_t)(most < KVL_BLOCK_ROWS ? most : KVL_BLOCK_ROWS);
    p.queued = most >= QUEUE_ROWS && n_blocks >= QUEUE_BLOCKS * (int64_t)args->n_threads;
    /* At most one block a border between two workers is cut, and none of a single split. */
    uint64_t n_slots = (uint64_t)args->n_threads - 1;
    if (n_slots > (uint64_t)n_blocks) n_slots = (uint64_t)n_blocks;
    if (p.queued || p.n_splits == 1) n_slots = 0;
    uint64_t state = (uint64_t)kvl_flash_partial(args) * sizeof(float), slots_bytes;
    bool fits = kvl_mul_u64(state * (uint64_t)p.max_rows, (uint64_t)p.n_splits, &p.slot_bytes) &&
                kvl_mul_u64(p.slot_bytes, n_slots, &slots_bytes) &&
                kvl_mul_u64((uint64_t)args->n_threads,
                            (uint64_t)kvl_flash_scratch(args) * sizeof(float), &p.scratch_bytes) &&
                kvl_add_u64(p.queue_bytes, p.scratch_bytes, &p.total_bytes) &&
                kvl_add_u64(p.total_bytes, slots_bytes, &p.total_bytes);
    if (!fits) p.total_bytes = UINT64_MAX;
    return p;
}

static uint64_t flash_workspace_bytes(const kvl_attention_args *args) {
    return plan(args).total_bytes;
}

static void flash_supports(const kvl_attention_args *args, kvl_attention_choice *choice) {
    kvl_attention_supports(args, "flash", kvl_attention_variant(), KVL_FLASH_HEAD_DIM_MAX, choice);
}

/* All splits that hold a key of the block; one, empty, when it sees none. */
static kvl_flash_task whole_block(const kvl_attention_block *block, const flash_plan *p) {
    int64_t first, last;
    kvl_block_keys(block, &first, &last);
    kvl_flash_task task = {.block = *block, .n_splits = p->n_splits};
    task.split_first = first / KVL_SPLIT_KEYS;
    task.split_last = (last + KVL_SPLIT_KEYS - 1) / KVL_SPLIT_KEYS;
    if (task.split_last <= task.split_first) task.split_last = task.split_first + 1;
    return task;
}

/* What a block takes, in some unit: its keys times its rows, plus what reading a key costs, plus
 * what a block costs that sees few. */
static double block_cost(const kvl_attention_block *block) {
    int64_t first, last;
    kvl_block_keys(block, &first, &last);
    return ((double)(last - first) + 32) * (block->n_rows + 4);
}

/* A walk along the line, the same for every worker to the bit. */
typedef struct walk {
    const kvl_attention_args *args;
    const flash_plan *plan;
    int n_workers;
    double total, at; /* cost of all blocks, and of those passed */
} walk;

static double border(const walk *w, int worker) {
    return worker == w->n_workers ? INFINITY : w->total * worker / w->n_workers;
}

/* The split of a block, `cost` long from w->at on, at which a border cuts it. */
static int64_t cut_at(const walk *w, const kvl_flash_task *whole, double cost, double border_at) {
    int64_t n = whole->split_last - whole->split_first;
    double part = (border_at - w->at) / cost;
    int64_t cut = part <= 0 ? 0 : part >= 1 ? n : (int64_t)(part * (double)n + 0.5);
    return whole->split_first + cut;
}

/* The first border that cuts this block in two, or -1: where its states are kept. */
static int cut_of(const walk *w, const kvl_flash_task *whole, double cost) {
    int worker = (int)(w->at / w->total * w->n_workers);
    for (; worker < w->n_workers && border(w, worker) < w->at + cost; worker++) {
        int64_t cut = cut_at(w, whole, cost, border(w, worker));
        if (cut > whole->split_first && cut < whole->split_last) return worker - 1;
    }
    return -1;
}

typedef enum pass { COMPUTE, MERGE } pass;

/* This worker's part of one block; tells whether the block is cut. */
static bool pass_block(const walk *w, kvl_worker *worker, pass what, const kvl_flash_task *whole,
                       double cost, float *scratch, char *slots) {
    int slot = whole->split_last - whole->split_first > 1 ? cut_of(w, whole, cost) : -1;
    kvl_flash_task task = *whole;
    if (slot >= 0) task.partials = (float *)(void *)(slots + (uint64_t)slot * w->plan->slot_bytes);
    if (what == COMPUTE) {
        task.split_first = cut_at(w, whole, cost, border(w, worker->index));
        task.split_last = cut_at(w, whole, cost, border(w, worker->index + 1));
        if (task.split_first < task.split_last) block_fns[kvl_attention_variant()](&task, scratch);
    } else if (slot >= 0) {
        for (int32_t r = worker->index; r < task.block.n_rows; r += worker->n)
            merge_fns[kvl_attention_variant()](&task, r);
    }
    return slot >= 0;
}

/* Returns whether any block is cut, to every worker alike. */
static bool pass_all(walk *w, kvl_worker *worker, pass what, float *scratch, char *slots) {
    const kvl_attention_args *args = w->args;
    bool any = false;
    w->at = 0;
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        for (int64_t b = 0; b < kvl_seq_blocks(args, s); b++) {
            kvl_attention_block block = kvl_block_of(args, s, b, 0);
            kvl_flash_task whole = whole_block(&block, w->plan);
            double cost = block_cost(&block);
            for (int32_t h = 0; h < args->kv->n_kv_heads; h++, w->at += cost) {
                whole.block.kv_head = h;
                if (pass_block(w, worker, what, &whole, cost, scratch, slots)) any = true;
            }
        }
    }
    return any;
}

static void run_line(kvl_worker *worker, const kvl_attention_args *args, const flash_plan *p,
                     float *scratch, char *slots) {
    walk w = {.args = args, .plan = p, .n_workers = worker->n};
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        for (int64_t b = 0; b < kvl_seq_blocks(args, s); b++) {
            kvl_attention_block block = kvl_block_of(args, s, b, 0);
            w.total += block_cost(&block) * args->kv->n_kv_heads;
        }
    }
    if (!pass_all(&w, worker, COMPUTE, scratch, slots)) return;
    kvl_team_barrier(worker);
    pass_all(&w, worker, MERGE, scratch, slots);
}

static void flash_share(kvl_worker *worker, const kvl_attention_args *args) {
    flash_plan p = plan(args);
    kvl_block_queue *queue = args->workspace;
    char *scratch = (char *)args->workspace + p.queue_bytes;
    uint64_t mine = (uint64_t)worker->index * (uint64_t)kvl_flash_scratch(args) * sizeof(float);
    if (!p.queued) {
        run_line(worker, args, &p, (float *)(void *)(scratch + mine), scratch + p.scratch_bytes);
        return;
    }
    if (worker->index == 0) kvl_queue_fill(queue, args);
    kvl_team_barrier(worker);
    kvl_attention_block block;
    while (kvl_queue_take(queue, args, &block)) {
        kvl_flash_task task = whole_block(&block, &p);
        block_fns[kvl_attention_variant()](&task, (float *)(void *)(scratch + mine));
    }
}

static kvl_status flash_run(const kvl_attention_args *args) {
    kvl_attention_team(args, flash_share);
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
