/* The attention seam: one maths, several speeds.
 *
 *   O[i] = sum_j P[i][j] V[j],   P = softmax over the keys that query i sees of
 *   S[i][j] = scale * q_i . k_j      (softcap c > 0: S = c * tanh(S / c))
 *
 * Batches are ragged: query tokens of all sequences lie end to end, sequence s owns rows
 * q_start[s] .. q_start[s+1]. Queries are end-aligned: query i of a sequence stands at position
 * kv_len - q_len + i. So prefill, chunks, decode and mixed batches are one call.
 * Key j is seen by query at p when (!causal || j <= p) and (window == 0 || j > p - window); without
 * `causal`, later keys are seen too. A sink adds exp(sinks[h]) to the softmax's denominator only.
 * Query head h reads KV head h / (n_q_heads / n_kv_heads). No key seen and no sink: O = 0, LSE =
 * -inf. LSE is the natural log of the denominator (sink included), scaled as S is.
 *
 * What every kernel owes (tests hold it to this):
 * - the result of a query row depends on its own keys only, in an order fixed by absolute key
 *   position: bit-identical for any thread count, batch composition, chunking and page size;
 * - float32 (or wider) sums; slots past kv_len never read as values;
 * - no allocation: scratch comes from `workspace`.
 */
#ifndef KVL_ATTENTION_ATTENTION_H
#define KVL_ATTENTION_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/isa.h"
#include "core/kv_view.h"
#include "core/team.h"
#include "core/work.h"

typedef struct kvl_attention_args {
    const kvl_kv_view *kv; /* n_seqs, n_kv_heads, head_dim, kv_lens, dtype live there */

    const int32_t *q_start; /* host [n_seqs + 1], q_start[0] = 0 */
    int32_t n_q_heads;
    const void *q; /* [q_start[n_seqs]][n_q_heads][head_dim], rows q_row_stride elements apart */
    kvl_dtype q_dtype;    /* f32, bf16 or f16 */
    int64_t q_row_stride; /* elements between query tokens; heads are head_dim apart */

    void *o;           /* as q, in o_dtype */
    kvl_dtype o_dtype; /* f32, bf16 or f16 */
    int64_t o_row_stride;
    float *lse; /* [q_start[n_seqs]][n_q_heads], or NULL */

    float scale;
    bool causal;
    int32_t window;     /* 0 = none; W: a query sees itself and the W - 1 before it */
    float softcap;      /* 0 = none */
    const float *sinks; /* host [n_q_heads], or NULL */

    int32_t n_threads; /* >= 1 */
    /* NULL: the call opens a region of n_threads. Else every worker of the team (n_threads of them)
     * calls with equal arguments and the same workspace; after the next barrier O is complete and
     * the workspace free for another call. */
    kvl_worker *worker;
    void *workspace; /* 64-byte aligned, at least workspace_bytes(args) */
    uint64_t workspace_bytes;
} kvl_attention_args;

/* Why a module cannot do `args`, or what it would really run. */
typedef struct kvl_attention_choice {
    bool supported;
    char kernel[48];   /* effective kernel, e.g. "flash" for sdpa that dispatched to it */
    kvl_isa isa;       /* variant that would run */
    kvl_dtype p_dtype; /* what that variant rounds P to */
    char reason[160];  /* why unsupported, or why this kernel was picked; "" when nothing to say */
} kvl_attention_choice;

typedef struct kvl_attention {
    const char *name;    /* "flash" */
    const char *summary; /* one line for `kvlab info` */

    /* Arithmetic it declares: what P is rounded to at most (a variant may say better in its choice;
     * verify derives the bound of its error from that) and what sums are kept in. */
    kvl_dtype p_dtype, acc_dtype; /* f32 / f64 */

    /* Launches nothing. Looks at shapes, dtypes and flags only (q, o, workspace may be NULL). */
    void (*supports)(const kvl_attention_args *args, kvl_attention_choice *choice);
    uint64_t (*workspace_bytes)(const kvl_attention_args *args);
    /* CPU entry. Arguments were checked by kvl_attention_run. */
    kvl_status (*run_cpu)(const kvl_attention_args *args);
} kvl_attention;

/* Registry (attention/registry.c, one line a module). Order is the order of `kvlab info`. */
size_t kvl_attention_count(void);
const kvl_attention *kvl_attention_at(size_t index);
kvl_status kvl_attention_find(const char *name,
                              const kvl_attention **out); /* nearest name in message */

/* Checks args (kvl_kv_view_check, strides, q_start monotone, GQA divisibility, finite scale, no
 * page of -1 where a query sees, workspace size and alignment), asks supports(), runs. Unsupported:
 * KVL_ERR_UNSUPPORTED with the reason. q_len > kv_len is allowed: the queries before key 0 see no
 * key when causal (q_len 1, kv_len 0 is such a row). */
kvl_status kvl_attention_run(const kvl_attention *module, const kvl_attention_args *args);

/* kvl_attention_run in two steps, for a caller that runs many layers of one shape: the checks once
 * (they need no worker), then the call, unchecked, per layer and worker. Between them only pool
 * pointers may change. Uses barriers of args->worker inside. */
kvl_status kvl_attention_check(const kvl_attention *module, const kvl_attention_args *args);
kvl_status kvl_attention_part(const kvl_attention *module, const kvl_attention_args *args);

/* Unique bytes and flops of a call: K and V bytes that some query sees read once, Q read, O
 * written; 4 * head_dim flops per visible (query, key, head) pair. */
kvl_work kvl_attention_work(const kvl_attention_args *args);

/* First and one-past-last key that the query at position `p` sees, of kv_len keys. */
static inline void kvl_attention_range(int64_t p, int64_t kv_len, bool causal, int64_t window,
                                       int64_t *first, int64_t *last) {
    *last = causal && p + 1 < kv_len ? p + 1 : kv_len;
    *first = window > 0 && p - window + 1 > 0 ? p - window + 1 : 0;
    if (*first > *last) *first = *last;
}

/* Merges partial states of one row over disjoint key sets: (o_a, lse_a) <- a + b. o are float32
 * [head_dim]. Two empty states (-inf) give O = 0, LSE = -inf, never NaN. */
void kvl_attention_merge(float *o_a, float *lse_a, const float *o_b, float lse_b, int32_t head_dim);

#endif
