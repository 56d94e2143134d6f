/* flash: plan and workers. The arithmetic is in flash_kernel.c.
 *
 * Many query rows: whole blocks, taken from a queue by whoever is free. Else (decode): the splits
 * of all blocks lie on one line, each as long as it takes, and every worker has an equal stretch of
 * it. So one sequence keeps all workers busy, and no counter is touched. On the line the KV heads
 * of a sequence take turns split by split: what the hardware reads past the end of a head's rows in
 * a page are the next head's, which are wanted soon. A sequence that lies across the end of a
 * stretch keeps the states of all its splits; after a barrier they are merged in rising order. */
#include "attention/flash.h"

#include <math.h>

#include "attention/flash_amx.h"
#include "attention/modules.h"
#include "core/checked.h"

typedef void (*block_fn)(const kvl_flash_task *task, float *scratch);

typedef struct flash_plan {
    block_fn block;
    bool queued;
    int32_t max_rows; /* of a block */
    int64_t n_splits; /* of the longest sequence */
    /* Of the queue, of a worker's scratch and of its states, of the states of a cut sequence; of
     * all (UINT64_MAX = over). */
    uint64_t queue_bytes, scratch_bytes, states_bytes, slot_bytes, total_bytes;
} flash_plan;

typedef void (*merge_fn)(const kvl_flash_task *task, int32_t row);
static const block_fn block_fns[] = {kvl_flash_block_scalar, kvl_flash_block_avx2,
                                     kvl_flash_block_avx512, kvl_flash_block_avx512_bf16};
static const merge_fn merge_fns[] = {kvl_flash_merge_scalar, kvl_flash_merge_avx2,
                                     kvl_flash_merge_avx512, kvl_flash_merge_avx512_bf16};

/* From this many blocks a worker on, the last ones end close enough together. */
enum { QUEUE_BLOCKS = 4, QUEUE_ROWS = 17 };

static flash_plan plan(const kvl_attention_args *args) {
    bool amx = kvl_flash_uses_amx(args);
    flash_plan p = {.block = amx ? kvl_flash_block_amx : block_fns[kvl_attention_variant()],
                    .n_splits = (kvl_longest_kv(args) + KVL_SPLIT_KEYS - 1) / KVL_SPLIT_KEYS,
                    .queue_bytes = kvl_queue_bytes(args)};
    int64_t scratch_floats = amx ? kvl_flash_amx_scratch(args) : kvl_flash_scratch(args);
    int64_t most = 0, n_heads = args->kv->n_kv_heads;
    int64_t n_groups = kvl_blocks_count(args, NULL) / n_heads;
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        if (kvl_seq_rows(args, s) > most) most = kvl_seq_rows(args, s);
    }
    if (p.n_splits < 1) p.n_splits = 1;
    p.max_rows = (int32_t)(most < KVL_BLOCK_ROWS ? most : KVL_BLOCK_ROWS);
    p.queued = most >= QUEUE_ROWS && n_groups * n_heads >= QUEUE_BLOCKS * (int64_t)args->n_threads;
    /* At most one group of heads a border between two workers is cut, and none of one split. */
    uint64_t n_slots = (uint64_t)args->n_threads - 1;
    if (n_slots > (uint64_t)n_groups) n_slots = (uint64_t)n_groups;
    if (p.queued || p.n_splits == 1) n_slots = 0;
    uint64_t state = (uint64_t)kvl_flash_partial(args) * sizeof(float) * (uint64_t)p.max_rows;
    uint64_t slots_bytes, worker_bytes;
    p.scratch_bytes = (uint64_t)scratch_floats * sizeof(float);
    bool fits = kvl_mul_u64(state, p.queued ? 1 : (uint64_t)n_heads, &p.states_bytes) &&
                kvl_mul_u64(p.states_bytes, (uint64_t)p.n_splits, &p.slot_bytes) &&
                kvl_mul_u64(p.slot_bytes, n_slots, &slots_bytes) &&
                kvl_add_u64(p.scratch_bytes, p.states_bytes, &worker_bytes) &&
                kvl_mul_u64(worker_bytes, (uint64_t)args->n_threads, &worker_bytes) &&
                kvl_add_u64(p.queue_bytes, worker_bytes, &p.total_bytes) &&
                kvl_add_u64(p.total_bytes, slots_bytes, &p.total_bytes);
    if (!fits) p.total_bytes = UINT64_MAX;
    return p;
}

static uint64_t flash_workspace_bytes(const kvl_attention_args *args) {
    return plan(args).total_bytes;
}

static void flash_supports(const kvl_attention_args *args, kvl_attention_choice *choice) {
    kvl_isa isa = kvl_flash_uses_amx(args) ? KVL_ISA_AMX : kvl_attention_variant();
    kvl_attention_supports(args, "flash", isa, KVL_FLASH_HEAD_DIM_MAX, choice);
}

/* All splits that hold a key of the block; one, empty, when it sees none. */
static kvl_flash_task whole_block(const kvl_attention_block *block) {
    int64_t first, last;
    kvl_block_keys(block, &first, &last);
    kvl_flash_task task = {.block = *block, .n_states = 1, .next_key = -1};
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
    kvl_worker *worker;
    float *scratch, *states; /* this worker's */
    char *slots;             /* states of cut groups */
    double total, at;        /* cost of all groups, and of those passed */
    int64_t n_passed;        /* of groups */
} walk;

static double border(const walk *w, int worker) {
    return worker == w->worker->n ? INFINITY : w->total * worker / w->worker->n;
}

/* The heads of a sequence's block of rows: unit i is split i / n_kv_heads of head i % n_kv_heads.
 */
typedef struct group {
    kvl_flash_task whole; /* of head 0 */
    int64_t n_units;
    double cost;
} group;

static group group_of(const walk *w, int32_t seq, int64_t index) {
    kvl_attention_block block = kvl_block_of(w->args, seq, index, 0);
    group g = {.whole = whole_block(&block)};
    g.n_units = (g.whole.split_last - g.whole.split_first) * w->args->kv->n_kv_heads;
    g.cost = block_cost(&block) * w->args->kv->n_kv_heads;
    return g;
}

/* The unit at which a border cuts the group that starts at w->at. */
static int64_t cut_at(const walk *w, const group *g, double border_at) {
    double part = (border_at - w->at) / g->cost;
    return part <= 0 ? 0 : part >= 1 ? g->n_units : (int64_t)(part * (double)g->n_units + 0.5);
}

/* The slot of a group that a border cuts between splits of a head; else -1. First such borders and
 * groups both rise from one cut group to the next, so the smaller of their indices does too: it is
 * nobody else's, and below the number of slots. */
static int slot_of(const walk *w, const group *g) {
    if (g->whole.split_last - g->whole.split_first == 1) return -1;
    int worker = (int)(w->at / w->total * w->worker->n);
    for (; worker < w->worker->n && border(w, worker) < w->at + g->cost; worker++) {
        int64_t cut = cut_at(w, g, border(w, worker));
        if (worker > 0 && cut > 0 && cut < g->n_units)
            return w->n_passed < worker - 1 ? (int)w->n_passed : worker - 1;
    }
    return -1;
}

/* The group's task for one head, its states in place. */
static kvl_flash_task head_task(const walk *w, const group *g, int slot, int32_t head) {
    kvl_flash_task task = g->whole;
    int64_t size = kvl_flash_partial(w->args) * task.block.n_rows;
    task.block.kv_head = head;
    task.n_states = slot >= 0 ? w->plan->n_splits : 1;
    float *states = w->states;
    if (slot >= 0) states = (float *)(void *)(w->slots + (uint64_t)slot * w->plan->slot_bytes);
    task.states = states + head * size * task.n_states;
    return task;
}

static void compute_group(const walk *w, const group *g, int slot) {
    int32_t n_heads = w->args->kv->n_kv_heads;
    int64_t end = cut_at(w, g, border(w, w->worker->index + 1));
    for (int64_t i = cut_at(w, g, border(w, w->worker->index)); i < end; i++) {
        kvl_flash_task task = head_task(w, g, slot, (int32_t)(i % n_heads));
        task.split_first = g->whole.split_first + i / n_heads;
        task.split_last = task.split_first + 1;
        task.fresh = task.split_first == g->whole.split_first;
        task.store = slot < 0 && task.split_last == g->whole.split_last;
        if (i + 1 < end) {
            task.next_head = (int32_t)((i + 1) % n_heads);
            task.next_key = (g->whole.split_first + (i + 1) / n_heads) * KVL_SPLIT_KEYS;
        }
        w->plan->block(&task, w->scratch);
    }
}

static void merge_group(const walk *w, const group *g, int slot) {
    if (slot < 0) return;
    int64_t n_rows = g->whole.block.n_rows, all = n_rows * w->args->kv->n_kv_heads;
    for (int64_t i = w->worker->index; i < all; i += w->worker->n) {
        kvl_flash_task task = head_task(w, g, slot, (int32_t)(i / n_rows));
        merge_fns[kvl_attention_variant()](&task, (int32_t)(i % n_rows));
    }
}

/* Returns whether any group is cut, to every worker alike. */
static bool pass(walk *w, void (*step)(const walk *w, const group *g, int slot)) {
    bool any = false;
    w->at = 0;
    w->n_passed = 0;
    for (int32_t s = 0; s < w->args->kv->n_seqs; s++) {
        for (int64_t b = 0; b < kvl_seq_blocks(w->args, s); b++) {
            group g = group_of(w, s, b);
            int slot = slot_of(w, &g);
            step(w, &g, slot);
            any = any || slot >= 0;
            w->at += g.cost;
            w->n_passed++;
        }
    }
    return any;
}

static void run_line(walk *w) {
    for (int32_t s = 0; s < w->args->kv->n_seqs; s++) {
        for (int64_t b = 0; b < kvl_seq_blocks(w->args, s); b++) w->total += group_of(w, s, b).cost;
    }
    if (!pass(w, compute_group)) return;
    kvl_team_barrier(w->worker);
    pass(w, merge_group);
}

static void flash_share(kvl_worker *worker, const kvl_attention_args *args) {
    flash_plan p = plan(args);
    uint64_t worker_bytes = p.scratch_bytes + p.states_bytes;
    char *workers = (char *)args->workspace + p.queue_bytes;
    char *mine = workers + (uint64_t)worker->index * worker_bytes;
    walk w = {.args = args, .plan = &p, .worker = worker};
    w.scratch = (float *)(void *)mine;
    w.states = (float *)(void *)(mine + p.scratch_bytes);
    w.slots = workers + (uint64_t)args->n_threads * worker_bytes;
    if (!p.queued) {
        run_line(&w);
        return;
    }
    kvl_block_queue *queue = args->workspace;
    if (worker->index == 0) kvl_queue_fill(queue, args);
    kvl_team_barrier(worker);
    kvl_attention_block block;
    while (kvl_queue_take(queue, args, &block)) {
        kvl_flash_task task = whole_block(&block);
        task.states = w.states;
        task.fresh = task.store = true;
        p.block(&task, w.scratch);
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
