#include "harness/verify/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/threads.h"
#include "harness/verify/codec.h"

enum { PAD_ELEMS = 8, GUARD_BYTES = 64, GUARD = 0xa5 };

/* Buffers of one call. O has a guard row before and after, and PAD_ELEMS after each row. */
typedef struct buffers {
    uint8_t *q, *o, *lse, *workspace;
    size_t row_elems, stride_elems, q_bytes, o_bytes, lse_bytes; /* lse with both guards */
    uint64_t workspace_bytes;
} buffers;

static void release(buffers *b) {
    free(b->q), free(b->o), free(b->lse), free(b->workspace);
}

static void fill_codes(kvl_dtype dtype, uint8_t *at, size_t n) {
    uint32_t nan = kvl_verify_code(dtype, __builtin_nan(""));
    for (size_t i = 0; i < n; i++) kvl_verify_code_put(dtype, at, (int64_t)i, nan);
}

static kvl_status prepare(const kvl_verify_problem *p, int64_t token_first, int64_t n_tokens,
                          kvl_dtype o_dtype, buffers *b) {
    size_t q_size = kvl_dtype_bytes(p->q_dtype), o_size = kvl_dtype_bytes(o_dtype);
    size_t tokens = (size_t)n_tokens;
    b->row_elems = (size_t)p->n_q_heads * (size_t)p->head_dim;
    b->stride_elems = b->row_elems + PAD_ELEMS;
    b->q_bytes = (tokens + 1) * b->stride_elems * q_size;
    b->o_bytes = (tokens + 2) * b->stride_elems * o_size;
    b->lse_bytes = tokens * (size_t)p->n_q_heads * sizeof(float) + 2 * GUARD_BYTES;
    b->q = malloc(b->q_bytes), b->o = malloc(b->o_bytes), b->lse = malloc(b->lse_bytes);
    if (!b->q || !b->o || !b->lse)
        return kvl_fail(KVL_ERR_OOM, "out of memory for a verification call");
    /* Whatever a kernel reads beside its rows is NaN; what it leaves unwritten stays NaN. */
    fill_codes(p->q_dtype, b->q, (tokens + 1) * b->stride_elems);
    memset(b->o, GUARD, b->o_bytes);
    memset(b->lse, GUARD, b->lse_bytes);
    fill_codes(KVL_F32, b->lse + GUARD_BYTES, tokens * (size_t)p->n_q_heads);
    for (size_t i = 0; i < tokens; i++) {
        memcpy(b->q + i * b->stride_elems * q_size,
               p->q_codes + ((size_t)token_first + i) * b->row_elems * q_size,
               b->row_elems * q_size);
        fill_codes(o_dtype, b->o + (i + 1) * b->stride_elems * o_size, b->row_elems);
    }
    return KVL_OK;
}

static bool untouched(const uint8_t *at, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (at[i] != GUARD) return false;
    return true;
}

/* Checks the guards and takes the rows out. */
static kvl_status collect(const kvl_verify_problem *p, int64_t token_first, int64_t n_tokens,
                          const buffers *b, kvl_verify_output *out) {
    size_t size = kvl_dtype_bytes(out->o_dtype), stride = b->stride_elems * size;
    size_t row = b->row_elems * size, tokens = (size_t)n_tokens;
    bool ok = untouched(b->o, stride) && untouched(b->o + (tokens + 1) * stride, stride);
    for (size_t i = 0; i < tokens; i++) {
        const uint8_t *from = b->o + (i + 1) * stride;
        ok = ok && untouched(from + row, stride - row);
        memcpy((uint8_t *)out->o + ((size_t)token_first + i) * row, from, row);
    }
    if (!ok) return kvl_fail(KVL_ERR_INTERNAL, "wrote outside its output rows");
    ok = untouched(b->lse, GUARD_BYTES) &&
         untouched(b->lse + b->lse_bytes - GUARD_BYTES, GUARD_BYTES);
    if (!ok) return kvl_fail(KVL_ERR_INTERNAL, "wrote outside its LSE");
    if (b->workspace && !untouched(b->workspace + b->workspace_bytes, GUARD_BYTES))
        return kvl_fail(KVL_ERR_INTERNAL, "wrote past its workspace of %llu bytes",
                        (unsigned long long)b->workspace_bytes);
    memcpy(out->lse + token_first * p->n_q_heads, b->lse + GUARD_BYTES,
           b->lse_bytes - 2 * GUARD_BYTES);
    return KVL_OK;
}

static kvl_kv_view part_view(const kvl_verify_cache *cache, const kvl_verify_part *part,
                             int64_t *slabs) {
    kvl_kv_view view = cache->view;
    view.n_seqs = part->n_seqs;
    view.kv_lens = part->kv_lens;
    if (view.page_table) {
        view.page_table += part->seq_first * view.table_stride;
        return view;
    }
    for (int32_t s = 0; s < part->n_seqs; s++)
        slabs[s] = view.slab_start[part->seq_first + s] + part->key_first * view.token_stride;
    view.slab_start = slabs;
    return view;
}

static kvl_attention_args arguments(const kvl_verify_problem *p, const kvl_kv_view *view,
                                    const kvl_verify_part *part, kvl_dtype o_dtype,
                                    int32_t n_threads) {
    int64_t stride = (int64_t)p->n_q_heads * p->head_dim + PAD_ELEMS;
    return (kvl_attention_args){
        .kv = view,
        .q_start = part->q_start,
        .n_q_heads = p->n_q_heads,
        .q_dtype = p->q_dtype,
        .q_row_stride = stride,
        .o_dtype = o_dtype,
        .o_row_stride = stride,
        .scale = p->scale,
        .causal = p->causal,
        .window = p->window,
        .softcap = p->softcap,
        .sinks = part->no_sinks ? NULL : p->sinks,
        .n_threads = n_threads,
    };
}

static kvl_verify_part whole(const kvl_verify_problem *p) {
    return (kvl_verify_part){.n_seqs = p->n_seqs, .q_start = p->q_start, .kv_lens = p->kv_lens};
}

static kvl_status run_prepared(const kvl_attention *module, kvl_attention_args *args, buffers *b) {
    b->workspace_bytes = module->workspace_bytes(args);
    uint64_t bytes = (b->workspace_bytes + GUARD_BYTES + 63) & ~(uint64_t)63;
    b->workspace = aligned_alloc(64, bytes);
    if (!b->workspace)
        return kvl_fail(KVL_ERR_OOM, "out of memory for a workspace of %llu bytes",
                        (unsigned long long)bytes);
    memset(b->workspace, 0xff, b->workspace_bytes); /* NaN, so that stale scratch shows */
    memset(b->workspace + b->workspace_bytes, GUARD, bytes - b->workspace_bytes);
    args->q = b->q;
    args->o = b->o + b->stride_elems * kvl_dtype_bytes(args->o_dtype);
    args->lse = (float *)(void *)(b->lse + GUARD_BYTES);
    args->workspace = b->workspace;
    args->workspace_bytes = b->workspace_bytes;
    return kvl_attention_run(module, args);
}

kvl_status kvl_verify_call(const kvl_attention *module, const kvl_verify_problem *p,
                           const kvl_verify_cache *cache, const kvl_verify_part *part,
                           int32_t n_threads, kvl_verify_output *out) {
    kvl_verify_part all = whole(p);
    if (!part) part = &all;
    int64_t n_tokens = part->q_start[part->n_seqs];
    int64_t *slabs = malloc((size_t)(part->n_seqs + 1) * sizeof *slabs);
    if (!slabs) return kvl_fail(KVL_ERR_OOM, "out of memory for a verification call");
    kvl_kv_view view = part_view(cache, part, slabs);
    kvl_attention_args args = arguments(p, &view, part, out->o_dtype, n_threads);
    kvl_attention_choice choice = {0};
    module->supports(&args, &choice);
    buffers b = {0};
    kvl_status status =
        choice.supported ? KVL_OK : kvl_fail(KVL_ERR_UNSUPPORTED, "%s", choice.reason);
    if (status == KVL_OK) status = prepare(p, part->token_first, n_tokens, out->o_dtype, &b);
    if (status == KVL_OK) status = run_prepared(module, &args, &b);
    if (status == KVL_OK) status = collect(p, part->token_first, n_tokens, &b, out);
    release(&b);
    free(slabs);
    return status;
}

kvl_status kvl_verify_supports(const kvl_attention *module, const kvl_verify_problem *p,
                               const kvl_verify_cache *cache, kvl_dtype o_dtype, char *kernel,
                               size_t kernel_bytes, kvl_isa *isa) {
    kvl_verify_part all = whole(p);
    kvl_attention_args args = arguments(p, &cache->view, &all, o_dtype, kvl_threads());
    kvl_attention_choice choice = {0};
    module->supports(&args, &choice);
    if (!choice.supported) return kvl_fail(KVL_ERR_UNSUPPORTED, "%s", choice.reason);
    snprintf(kernel, kernel_bytes, "%s/%s", choice.kernel, kvl_isa_name(choice.isa));
    *isa = choice.isa;
    return KVL_OK;
}

kvl_status kvl_verify_output_create(const kvl_verify_problem *p, kvl_dtype o_dtype,
                                    kvl_verify_output *out) {
    size_t rows = (size_t)(kvl_verify_n_q(p) * p->n_q_heads);
    out->o_dtype = o_dtype;
    out->o = calloc(rows * (size_t)p->head_dim + 1, kvl_dtype_bytes(o_dtype));
    out->lse = calloc(rows + 1, sizeof *out->lse);
    if (out->o && out->lse) return KVL_OK;
    kvl_verify_output_free(out);
    return kvl_fail(KVL_ERR_OOM, "out of memory for a verification output");
}

void kvl_verify_output_free(kvl_verify_output *out) {
    free(out->o);
    free(out->lse);
    memset(out, 0, sizeof *out);
}
