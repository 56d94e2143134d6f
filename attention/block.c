#include "attention/block.h"

#include <stdio.h>

int64_t kvl_blocks_count(const kvl_attention_args *args, int64_t *starts) {
    int64_t n_blocks = 0;
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        if (starts) starts[s] = n_blocks;
        n_blocks += kvl_seq_blocks(args, s);
    }
    if (starts) starts[args->kv->n_seqs] = n_blocks;
    return n_blocks * args->kv->n_kv_heads;
}

/* The sequence whose blocks hold the `index`-th one of a KV head. */
static int32_t find_seq(const int64_t *starts, int32_t n_seqs, int64_t index) {
    int32_t low = 0, high = n_seqs;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (starts[middle] <= index) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

kvl_attention_block kvl_block_of(const kvl_attention_args *args, int32_t seq, int64_t index,
                                 int32_t kv_head) {
    int64_t left = kvl_seq_rows(args, seq) - index * KVL_BLOCK_ROWS;
    return (kvl_attention_block){
        .args = args,
        .seq = seq,
        .kv_head = kv_head,
        .n_rows = (int32_t)(left < KVL_BLOCK_ROWS ? left : KVL_BLOCK_ROWS),
        .row_first = index * KVL_BLOCK_ROWS,
    };
}

void kvl_queue_fill(kvl_block_queue *queue, const kvl_attention_args *args) {
    queue->n_blocks = kvl_blocks_count(args, queue->starts);
    atomic_store_explicit(&queue->next, 0, memory_order_relaxed);
}

bool kvl_queue_take(kvl_block_queue *queue, const kvl_attention_args *args,
                    kvl_attention_block *block) {
    int64_t index = atomic_fetch_add_explicit(&queue->next, 1, memory_order_relaxed);
    if (index >= queue->n_blocks) return false;
    int32_t n_kv_heads = args->kv->n_kv_heads;
    int32_t s = find_seq(queue->starts, args->kv->n_seqs, index / n_kv_heads);
    *block = kvl_block_of(args, s, queue->starts[s + 1] - 1 - index / n_kv_heads,
                          (int32_t)(index % n_kv_heads));
    return true;
}

typedef struct team_call {
    const kvl_attention_args *args;
    void (*share)(kvl_worker *worker, const kvl_attention_args *args);
} team_call;

static void run_share(kvl_worker *worker, void *context) {
    const team_call *call = context;
    call->share(worker, call->args);
}

void kvl_attention_team(const kvl_attention_args *args,
                        void (*share)(kvl_worker *worker, const kvl_attention_args *args)) {
    if (args->worker) {
        share(args->worker, args);
    } else {
        team_call call = {args, share};
        kvl_team_run(args->n_threads, run_share, &call, NULL);
    }
}

static bool is_activation(kvl_dtype dtype) {
    return dtype == KVL_F32 || dtype == KVL_BF16 || dtype == KVL_F16;
}

void kvl_attention_supports(const kvl_attention_args *args, const char *kernel, kvl_isa isa,
                            int32_t head_dim_max, kvl_attention_choice *choice) {
    const kvl_dtype k_dtype = args->kv->k_dtype, v_dtype = args->kv->v_dtype;
    const kvl_dtype unfit = k_dtype > KVL_KV_DTYPE_LAST ? k_dtype : v_dtype;
    *choice = (kvl_attention_choice){.supported = false, .isa = isa, .p_dtype = KVL_F32};
    snprintf(choice->kernel, sizeof choice->kernel, "%s", kernel);
    if (args->kv->head_dim < 1 || args->kv->head_dim > head_dim_max) {
        snprintf(choice->reason, sizeof choice->reason, "head_dim %d: %s handles 1 to %d",
                 args->kv->head_dim, kernel, head_dim_max);
    } else if (!is_activation(args->q_dtype) || !is_activation(args->o_dtype)) {
        snprintf(choice->reason, sizeof choice->reason,
                 "q_dtype %s, o_dtype %s: %s handles f32, bf16 and f16",
                 kvl_dtype_name(args->q_dtype), kvl_dtype_name(args->o_dtype), kernel);
    } else if (unfit > KVL_KV_DTYPE_LAST) {
        snprintf(choice->reason, sizeof choice->reason,
                 "kv dtype %s: %s handles f32, f16, bf16, fp8_e4m3, fp8_e5m2 and int8",
                 kvl_dtype_name(unfit), kernel);
    } else {
        choice->supported = true;
    }
}
