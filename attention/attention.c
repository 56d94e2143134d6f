#include "attention/attention.h"

#include <math.h>

#include "attention/block.h"
#include "core/checked.h"

static kvl_status check_heads(const kvl_attention_args *args) {
    if (args->n_q_heads < 1 || args->n_q_heads % args->kv->n_kv_heads != 0)
        return kvl_fail(KVL_ERR_INPUT,
                        "attention: n_q_heads %d: must be a multiple of n_kv_heads %d",
                        args->n_q_heads, args->kv->n_kv_heads);
    int64_t width = (int64_t)args->n_q_heads * args->kv->head_dim;
    if (args->q_row_stride < width || args->o_row_stride < width)
        return kvl_fail(KVL_ERR_INPUT,
                        "attention: q_row_stride %lld, o_row_stride %lld: at least n_q_heads * "
                        "head_dim = %lld",
                        (long long)args->q_row_stride, (long long)args->o_row_stride,
                        (long long)width);
    return KVL_OK;
}

static kvl_status check_queries(const kvl_attention_args *args) {
    if (!args->q_start) return kvl_fail(KVL_ERR_INPUT, "attention: q_start is missing");
    if (args->q_start[0] != 0)
        return kvl_fail(KVL_ERR_INPUT, "attention: q_start[0] = %d: must be 0", args->q_start[0]);
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        if (args->q_start[s + 1] < args->q_start[s])
            return kvl_fail(KVL_ERR_INPUT, "attention: q_start[%d..%d] = %d..%d: must not fall", s,
                            s + 1, args->q_start[s], args->q_start[s + 1]);
    }
    int64_t n_tokens = args->q_start[args->kv->n_seqs], last;
    if (!kvl_mul_i64(n_tokens, args->q_row_stride, &last) ||
        !kvl_mul_i64(n_tokens, args->o_row_stride, &last) || last > INT64_MAX / 8)
        return kvl_fail(KVL_ERR_INPUT, "attention: %lld query tokens overflow their strides",
                        (long long)n_tokens);
    if (n_tokens > 0 && (!args->q || !args->o))
        return kvl_fail(KVL_ERR_INPUT, "attention: q or o is missing");
    return KVL_OK;
}

static kvl_status check_flags(const kvl_attention_args *args) {
    if (!isfinite(args->scale))
        return kvl_fail(KVL_ERR_INPUT, "attention: scale %g: must be finite", (double)args->scale);
    if (!isfinite(args->softcap) || args->softcap < 0.0f)
        return kvl_fail(KVL_ERR_INPUT, "attention: softcap %g: must be 0 (none) or above",
                        (double)args->softcap);
    if (args->window < 0)
        return kvl_fail(KVL_ERR_INPUT, "attention: window %d: must be 0 (none) or above",
                        args->window);
    if (args->n_threads < 1 || args->n_threads > 1024)
        return kvl_fail(KVL_ERR_INPUT, "attention: n_threads %d: 1 to 1024", args->n_threads);
    if (args->worker && args->worker->n != args->n_threads)
        return kvl_fail(KVL_ERR_INPUT, "attention: n_threads %d, but the team has %d workers",
                        args->n_threads, args->worker->n);
    return KVL_OK;
}

/* The view check lets pages outside a window be -1; here it is known which ones are read. */
static kvl_status check_pages(const kvl_attention_args *args) {
    const kvl_kv_view *kv = args->kv;
    if (!kv->page_table) return KVL_OK;
    for (int32_t s = 0; s < kv->n_seqs; s++) {
        int64_t q_len = (int64_t)args->q_start[s + 1] - args->q_start[s], first, last, end;
        if (q_len == 0) continue;
        int64_t kv_len = kv->kv_lens[s];
        kvl_attention_range(kv_len - q_len, kv_len, args->causal, args->window, &first, &end);
        kvl_attention_range(kv_len - 1, kv_len, args->causal, args->window, &end, &last);
        if (first < 0) first = 0;
        for (int64_t t = first; t < last; t += kv->page_tokens - t % kv->page_tokens) {
            if (kv->page_table[s * kv->table_stride + t / kv->page_tokens] == -1)
                return kvl_fail(KVL_ERR_INPUT,
                                "attention: sequence %d: token %lld is seen, its page is -1", s,
                                (long long)t);
        }
    }
    return KVL_OK;
}

static kvl_status check_workspace(const kvl_attention *module, const kvl_attention_args *args) {
    uint64_t need = module->workspace_bytes(args);
    if (need == 0) return KVL_OK;
    if (!args->workspace || args->workspace_bytes < need)
        return kvl_fail(KVL_ERR_INPUT, "attention: workspace of %llu bytes: %s needs %llu",
                        (unsigned long long)(args->workspace ? args->workspace_bytes : 0),
                        module->name, (unsigned long long)need);
    if ((uintptr_t)args->workspace % 64 != 0)
        return kvl_fail(KVL_ERR_INPUT, "attention: workspace is not 64-byte aligned");
    return KVL_OK;
}

kvl_status kvl_attention_check(const kvl_attention *module, const kvl_attention_args *args) {
    KVL_TRY(kvl_kv_view_check(args->kv));
    KVL_TRY(check_heads(args));
    KVL_TRY(check_queries(args));
    KVL_TRY(check_flags(args));
    KVL_TRY(check_pages(args));
    kvl_attention_choice choice;
    module->supports(args, &choice);
    if (!choice.supported) return kvl_fail(KVL_ERR_UNSUPPORTED, "%s", choice.reason);
    return check_workspace(module, args);
}

kvl_status kvl_attention_part(const kvl_attention *module, const kvl_attention_args *args) {
    if (args->q_start[args->kv->n_seqs] == 0) return KVL_OK;
    return module->run_cpu(args);
}

kvl_status kvl_attention_run(const kvl_attention *module, const kvl_attention_args *args) {
    KVL_TRY(kvl_attention_check(module, args));
    return kvl_attention_part(module, args);
}

/* Pairs (query token, key) that are seen, and the keys that some query sees. */
static void count_seen(const kvl_attention_args *args, int32_t seq, double *pairs, double *keys) {
    int64_t q_len = (int64_t)args->q_start[seq + 1] - args->q_start[seq];
    int64_t kv_len = args->kv->kv_lens[seq], lowest = kv_len, highest = 0, first, last;
    for (int64_t i = 0; i < q_len; i++) {
        kvl_attention_range(kv_len - q_len + i, kv_len, args->causal, args->window, &first, &last);
        if (first >= last) continue;
        *pairs += (double)(last - first);
        if (first < lowest) lowest = first;
        if (last > highest) highest = last;
    }
    if (lowest < highest) *keys += (double)(highest - lowest);
}

/* Bytes of dynamic scales for each token of a head. */
static double scale_bytes(int64_t scale_tokens) {
    return scale_tokens ? (double)sizeof(float) / (double)scale_tokens : 0.0;
}

kvl_work kvl_attention_work(const kvl_attention_args *args) {
    double pairs = 0, keys = 0;
    for (int32_t s = 0; s < args->kv->n_seqs; s++) count_seen(args, s, &pairs, &keys);
    double head_dim = args->kv->head_dim, n_q_heads = args->n_q_heads;
    double rows = (double)args->q_start[args->kv->n_seqs] * n_q_heads;
    const kvl_kv_view *kv = args->kv;
    double kv_bytes =
        keys * kv->n_kv_heads *
        (head_dim * (double)(kvl_dtype_bytes(kv->k_dtype) + kvl_dtype_bytes(kv->v_dtype)) +
         scale_bytes(kv->k_scale_tokens) + scale_bytes(kv->v_scale_tokens));
    return (kvl_work){
        .read_bytes = kv_bytes + rows * head_dim * (double)kvl_dtype_bytes(args->q_dtype),
        .write_bytes = rows * head_dim * (double)kvl_dtype_bytes(args->o_dtype) +
                       (args->lse ? rows * (double)sizeof(float) : 0.0),
        .flops = 4.0 * head_dim * pairs * n_q_heads,
    };
}

void kvl_attention_merge(float *o_a, float *lse_a, const float *o_b, float lse_b,
                         int32_t head_dim) {
    float max = lse_b > *lse_a ? lse_b : *lse_a;
    if (max == -INFINITY) return; /* both are empty: o_a is 0 already */
    float a = expf(*lse_a - max), b = expf(lse_b - max), sum = a + b;
    /* An empty side has weight 0; its o is left out, whatever it holds. */
    for (int32_t i = 0; i < head_dim; i++)
        o_a[i] = ((a > 0.0f ? a * o_a[i] : 0.0f) + (b > 0.0f ? b * o_b[i] : 0.0f)) / sum;
    *lse_a = max + logf(sum);
}
