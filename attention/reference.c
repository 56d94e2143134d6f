/* reference: float64 over the decoded K and V, one query row after another. The oracle that
 * `verify` holds every kernel to, so it is written to be read and shares no arithmetic with them.
 */
#include <math.h>
#include <string.h>

#include "attention/block.h"
#include "attention/modules.h"
#include "core/checked.h"
#include "quant/kv_format.h"

static uint64_t round_up(uint64_t bytes) {
    return (bytes + 63) & ~(uint64_t)63;
}

static uint64_t longest_kv(const kvl_attention_args *args) {
    int32_t longest = 0;
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        if (args->kv->kv_lens[s] > longest) longest = args->kv->kv_lens[s];
    }
    return (uint64_t)longest;
}

/* Of one thread: a score a key, the output row, and one decoded row. */
static uint64_t thread_bytes(const kvl_attention_args *args) {
    uint64_t head_dim = (uint64_t)args->kv->head_dim;
    return round_up(longest_kv(args) * sizeof(double)) + round_up(head_dim * sizeof(double)) +
           round_up(2 * head_dim * sizeof(float));
}

static uint64_t reference_workspace_bytes(const kvl_attention_args *args) {
    uint64_t bytes;
    return kvl_mul_u64(thread_bytes(args), (uint64_t)args->n_threads, &bytes) ? bytes : UINT64_MAX;
}

static void reference_supports(const kvl_attention_args *args, kvl_attention_choice *choice) {
    kvl_attention_supports(args, "reference", KVL_ISA_SCALAR, INT32_MAX, choice);
}

typedef struct row {
    const kvl_attention_args *args;
    int32_t seq, head;
    int64_t token; /* of all query tokens */
} row;

static const void *element(const void *pool, kvl_dtype dtype, int64_t offset) {
    return (const char *)pool + (size_t)offset * kvl_dtype_bytes(dtype);
}

static double score(const row *at, int64_t key, const float *q, float *k) {
    const kvl_kv_view *kv = at->args->kv;
    int32_t kv_head = at->head / kvl_attention_group(at->args);
    int64_t offset = kvl_kv_offset(kv, at->seq, key, kv_head);
    double k_scale = (double)kvl_kv_k_scale(kv, at->seq, key, kv_head);
    kvl_decode(kv->k_dtype, element(kv->k_pool, kv->k_dtype, offset), kv->head_dim, 1.0f, k);
    double dot = 0.0;
    for (int32_t i = 0; i < kv->head_dim; i++) dot += (double)q[i] * (double)k[i];
    double s = (double)at->args->scale * k_scale * dot;
    double cap = (double)at->args->softcap;
    return cap > 0.0 ? cap * tanh(s / cap) : s;
}

static void store(const row *at, const double *o, double lse) {
    const kvl_attention_args *args = at->args;
    int32_t head_dim = args->kv->head_dim;
    int64_t offset = at->token * args->o_row_stride + (int64_t)at->head * head_dim;
    for (int32_t i = 0; i < head_dim; i++) {
        float x = (float)o[i];
        if (args->o_dtype == KVL_F32) {
            ((float *)args->o)[offset + i] = x;
        } else {
            ((uint16_t *)args->o)[offset + i] =
                args->o_dtype == KVL_BF16 ? kvl_f32_to_bf16(x) : kvl_f32_to_f16(x);
        }
    }
    if (args->lse) args->lse[at->token * args->n_q_heads + at->head] = (float)lse;
}

static void run_row(const row *at, char *scratch) {
    const kvl_attention_args *args = at->args;
    const kvl_kv_view *kv = args->kv;
    int32_t head_dim = kv->head_dim, kv_head = at->head / kvl_attention_group(args);
    double *scores = (double *)(void *)scratch;
    double *o = (double *)(void *)(scratch + round_up(longest_kv(args) * sizeof(double)));
    float *q = (float *)(void *)((char *)o + round_up((uint64_t)head_dim * sizeof(double)));
    float *decoded = q + head_dim;
    int64_t q_offset = at->token * args->q_row_stride + (int64_t)at->head * head_dim, first, last;
    kvl_decode(args->q_dtype, element(args->q, args->q_dtype, q_offset), head_dim, 1.0f, q);
    int64_t position = kv->kv_lens[at->seq] - args->q_start[at->seq + 1] + at->token;
    kvl_attention_range(position, kv->kv_lens[at->seq], args->causal, args->window, &first, &last);

    double max = args->sinks ? (double)args->sinks[at->head] : -INFINITY, sum = 0.0;
    for (int64_t j = first; j < last; j++) {
        scores[j] = score(at, j, q, decoded);
        if (scores[j] > max) max = scores[j];
    }
    memset(o, 0, (size_t)head_dim * sizeof(double));
    if (args->sinks) sum = exp((double)args->sinks[at->head] - max);
    for (int64_t j = first; j < last; j++) {
        double p = exp(scores[j] - max), v_scale = (double)kvl_kv_v_scale(kv, at->seq, j, kv_head);
        int64_t offset = kvl_kv_offset(kv, at->seq, j, kv_head);
        kvl_decode(kv->v_dtype, element(kv->v_pool, kv->v_dtype, offset), head_dim, 1.0f, decoded);
        sum += p;
        for (int32_t i = 0; i < head_dim; i++) o[i] += p * v_scale * (double)decoded[i];
    }
    bool empty = first >= last;
    for (int32_t i = 0; i < head_dim; i++) o[i] = empty ? 0.0 : o[i] / sum;
    store(at, o, empty && !args->sinks ? -INFINITY : max + log(sum));
}

static int32_t seq_of(const kvl_attention_args *args, int64_t token) {
    int32_t s = 0;
    while (args->q_start[s + 1] <= token) s++;
    return s;
}

/* Rows are dealt out in turn: their costs differ by position, which so evens out. */
static void reference_share(kvl_worker *worker, const kvl_attention_args *args) {
    int64_t n_rows = (int64_t)args->q_start[args->kv->n_seqs] * args->n_q_heads;
    char *scratch = (char *)args->workspace + (uint64_t)worker->index * thread_bytes(args);
    for (int64_t i = worker->index; i < n_rows; i += worker->n) {
        int64_t token = i / args->n_q_heads;
        row at = {args, seq_of(args, token), (int32_t)(i % args->n_q_heads), token};
        run_row(&at, scratch);
    }
}

static kvl_status reference_run(const kvl_attention_args *args) {
    kvl_attention_team(args, reference_share);
    return KVL_OK;
}

const kvl_attention kvl_attention_reference = {
    .name = "reference",
    .summary = "float64 over the decoded K and V: the oracle, slow on purpose",
    .p_dtype = KVL_F64,
    .acc_dtype = KVL_F64,
    .supports = reference_supports,
    .workspace_bytes = reference_workspace_bytes,
    .run_cpu = reference_run,
};
