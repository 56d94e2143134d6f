/* The cpu device: host memory, and the plain operations split over workers by rows. A call without
 * a worker and with little work stays on the calling thread, since waking a team costs more than a
 * decode step's norms take. */
#include <string.h>

#include "core/device_kernels.h"
#include "core/isa.h"
#include "core/kv_store.h"
#include "core/memory.h"
#include "core/threads.h"
#include "quant/kv_format.h"

enum { PARALLEL_FROM = 16384 }; /* elements */

static const kvl_device_kernels *kernels(void) {
    kvl_isa isa = kvl_isa_current();
    if (isa >= KVL_ISA_AVX512) return &kvl_device_kernels_avx512;
    return isa >= KVL_ISA_AVX2 ? &kvl_device_kernels_avx2 : &kvl_device_kernels_scalar;
}

typedef struct rows_call {
    kvl_rows_fn fn;
    const void *args;
    int64_t n_rows;
} rows_call;

static void rows_share(kvl_worker *worker, void *context) {
    const rows_call *call = context;
    int64_t first, last;
    kvl_worker_share(worker, call->n_rows, &first, &last);
    if (first < last) call->fn(call->args, first, last);
}

/* Runs fn over rows 0 .. n_rows, each of row_elems elements of work: the worker's share, or,
 * without one, all. */
static void for_rows(kvl_worker *worker, kvl_rows_fn fn, const void *args, int64_t n_rows,
                     int64_t row_elems) {
    rows_call call = {fn, args, n_rows};
    if (worker) {
        rows_share(worker, &call);
    } else {
        bool alone = n_rows < 2 || n_rows * row_elems < PARALLEL_FROM;
        kvl_team_run(alone ? 1 : kvl_threads(), rows_share, &call, NULL);
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

static bool available(char *why, size_t why_bytes) {
    if (why_bytes) why[0] = '\0';
    return true;
}

static kvl_status copy_bytes(void *dst, const void *src, uint64_t bytes) {
    if (bytes) memcpy(dst, src, bytes);
    return KVL_OK;
}

static kvl_status no_wait(void) {
    return KVL_OK; /* every operation has ended when it returns */
}

/* ---- operations ----------------------------------------------------------------------------- */

static kvl_status rmsnorm(kvl_worker *worker, const float *x, const float *weight, float eps,
                          int64_t n_rows, int64_t groups, int64_t dim, int64_t x_stride, float *out,
                          int64_t out_stride) {
    if (groups < 1 || dim < 1)
        return kvl_fail(KVL_ERR_INPUT, "rmsnorm: %lld groups of %lld: at least 1",
                        (long long)groups, (long long)dim);
    const kvl_rmsnorm_args args = {x, weight, eps, groups, dim, x_stride, out_stride, out};
    for_rows(worker, kernels()->rmsnorm, &args, n_rows, groups * dim);
    return KVL_OK;
}

static kvl_status rope(kvl_worker *worker, float *x, int64_t x_stride, int64_t n_rows,
                       int32_t n_heads, int32_t head_dim, const int32_t *positions,
                       const float *inv_freq) {
    if (head_dim < 2 || head_dim % 2)
        return kvl_fail(KVL_ERR_INPUT, "rope: head_dim %d: even and at least 2", head_dim);
    const kvl_rope_args args = {x, x_stride, n_heads, head_dim, positions, inv_freq};
    for_rows(worker, kernels()->rope, &args, n_rows, (int64_t)n_heads * head_dim);
    return KVL_OK;
}

static kvl_status swiglu(kvl_worker *worker, const float *gate, const float *up, int64_t in_stride,
                         int64_t n_rows, int64_t dim, float *out, int64_t out_stride) {
    const kvl_swiglu_args args = {gate, up, in_stride, dim, out_stride, out};
    int64_t n_pieces = (dim + KVL_SWIGLU_PIECE - 1) / KVL_SWIGLU_PIECE;
    for_rows(worker, kernels()->swiglu, &args, n_rows * n_pieces, KVL_SWIGLU_PIECE);
    return KVL_OK;
}

/* ---- convert -------------------------------------------------------------------------------- */

typedef struct convert_args {
    const uint8_t *src;
    uint8_t *dst;
    kvl_dtype src_dtype, dst_dtype;
    int64_t n, src_stride, dst_stride; /* elements */
} convert_args;

static void convert_row(kvl_dtype src_dtype, const uint8_t *src, kvl_dtype dst_dtype, uint8_t *dst,
                        int64_t n) {
    enum { BLOCK = 1024 };
    int64_t src_bytes = (int64_t)kvl_dtype_bytes(src_dtype);
    int64_t dst_bytes = (int64_t)kvl_dtype_bytes(dst_dtype);
    if (src_dtype == KVL_F32) {
        kvl_encode(dst_dtype, (const float *)src, n, 1.0f, dst);
    } else if (dst_dtype == KVL_F32) {
        kvl_decode(src_dtype, src, n, 1.0f, (float *)dst);
    } else { /* float32 holds every value of the other formats, so this rounds once */
        float block[BLOCK];
        for (int64_t i = 0; i < n; i += BLOCK) {
            int64_t m = n - i < BLOCK ? n - i : BLOCK;
            kvl_decode(src_dtype, src + i * src_bytes, m, 1.0f, block);
            kvl_encode(dst_dtype, block, m, 1.0f, dst + i * dst_bytes);
        }
    }
}

static void convert_range(const void *args, int64_t first, int64_t last) {
    const convert_args *a = args;
    int64_t src_bytes = a->src_stride * (int64_t)kvl_dtype_bytes(a->src_dtype);
    int64_t dst_bytes = a->dst_stride * (int64_t)kvl_dtype_bytes(a->dst_dtype);
    for (int64_t row = first; row < last; row++)
        convert_row(a->src_dtype, a->src + row * src_bytes, a->dst_dtype, a->dst + row * dst_bytes,
                    a->n);
}

static kvl_status convert(kvl_worker *worker, int64_t n_rows, int64_t n, const void *src,
                          kvl_dtype src_dtype, int64_t src_stride, void *dst, kvl_dtype dst_dtype,
                          int64_t dst_stride) {
    if (!kvl_kv_format_of(src_dtype) || !kvl_kv_format_of(dst_dtype))
        return kvl_fail(KVL_ERR_UNSUPPORTED, "convert %s to %s: f32, f16, bf16 and fp8 only",
                        kvl_dtype_name(src_dtype), kvl_dtype_name(dst_dtype));
    const convert_args args = {src, dst, src_dtype, dst_dtype, n, src_stride, dst_stride};
    for_rows(worker, convert_range, &args, n_rows, n);
    return KVL_OK;
}

/* ---- the KV cache --------------------------------------------------------------------------- */

static void append_rows(const void *args, int64_t first, int64_t last) {
    const kvl_kv_new *call = args;
    kvl_kv_store(call, first, last, 0, call->view->n_kv_heads);
}

static void append_heads(const void *args, int64_t first, int64_t last) {
    const kvl_kv_new *call = args;
    kvl_kv_store(call, 0, call->q_start[call->view->n_seqs], (int32_t)first, (int32_t)last);
}

/* Elements from a slot's address to the end of its last head. */
static int64_t slot_reach(const kvl_kv_view *view) {
    return (view->n_kv_heads - 1) * view->head_stride + view->head_dim;
}

/* Every page that new tokens go to is a page of the pool: a bad table must not become a write. */
static kvl_status check_append(const kvl_kv_view *view, const int32_t *q_start) {
    const kvl_dtype dtypes[2] = {view->k_dtype, view->v_dtype};
    for (int i = 0; i < 2; i++) {
        if (!kvl_kv_format_of(dtypes[i]))
            return kvl_fail(KVL_ERR_UNSUPPORTED, "KV cache of dtype %s", kvl_dtype_name(dtypes[i]));
    }
    if (q_start[0] != 0) return kvl_fail(KVL_ERR_INPUT, "q_start[0] = %d: 0", q_start[0]);
    for (int32_t s = 0; s < view->n_seqs; s++) {
        int64_t n_new = (int64_t)q_start[s + 1] - q_start[s], end = view->kv_lens[s];
        if (n_new < 0 || n_new > end)
            return kvl_fail(KVL_ERR_INPUT, "kv_append: sequence %d: %lld new tokens of %lld", s,
                            (long long)n_new, (long long)end);
        for (int64_t t = end - n_new; t < end;
             t = (t / view->page_tokens + 1) * view->page_tokens) {
            int64_t page = t / view->page_tokens, stop = (page + 1) * view->page_tokens;
            if (view->page_table ? page >= view->table_stride ||
                                       view->page_table[s * view->table_stride + page] < 0
                                 : page > 0 || view->slab_start[s] < 0)
                return kvl_fail(KVL_ERR_INPUT, "kv_append: sequence %d, token %lld has no slot", s,
                                (long long)t);
            int64_t last = (stop < end ? stop : end) - 1;
            int64_t reach = kvl_kv_offset(view, s, last, 0) + slot_reach(view);
            if (reach > view->pool_elems)
                return kvl_fail(KVL_ERR_INPUT,
                                "kv_append: sequence %d, token %lld ends at element %lld of a pool "
                                "of %lld",
                                s, (long long)last, (long long)reach, (long long)view->pool_elems);
        }
    }
    return KVL_OK;
}

static kvl_status kv_append(kvl_worker *worker, const kvl_kv_view *view, const int32_t *q_start,
                            const float *k, int64_t k_stride, const float *v, int64_t v_stride,
                            int64_t *saturated) {
    KVL_TRY(check_append(view, q_start));
    const kvl_kv_new args = {view, q_start, k, v, k_stride, v_stride, saturated};
    const int64_t n_rows = q_start[view->n_seqs],
                  row_elems = 2LL * view->n_kv_heads * view->head_dim;
    if (kvl_kv_store_in_order(&args)) {
        /* Heads instead of rows: a worker then meets rows that others made. */
        if (worker) kvl_team_barrier(worker);
        for_rows(worker, append_heads, &args, view->n_kv_heads,
                 n_rows * row_elems / view->n_kv_heads);
    } else {
        for_rows(worker, append_rows, &args, n_rows, row_elems);
    }
    return KVL_OK;
}

static kvl_status kv_copy(const kvl_kv_view *view, int64_t src_slot, int64_t dst_slot,
                          int64_t n_slots) {
    if (view->page_stride < 1)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "kv_copy needs the view's page_stride");
    int64_t n_fit = view->pool_elems / view->page_stride * view->page_tokens;
    if (n_slots < 0 || n_slots > n_fit || src_slot < 0 || dst_slot < 0 ||
        src_slot > n_fit - n_slots || dst_slot > n_fit - n_slots)
        return kvl_fail(KVL_ERR_INPUT, "kv_copy of %lld slots from %lld to %lld: pool has %lld",
                        (long long)n_slots, (long long)src_slot, (long long)dst_slot,
                        (long long)n_fit);
    if (src_slot == dst_slot) return KVL_OK;
    /* Ranges may overlap: as memmove, from the end that is not overwritten first. */
    for (int64_t i = 0; i < n_slots; i++) {
        int64_t at = dst_slot > src_slot ? n_slots - 1 - i : i;
        kvl_kv_copy_slot(view, src_slot + at, dst_slot + at);
    }
    return KVL_OK;
}

const kvl_device kvl_device_cpu = {
    .name = "cpu",
    .summary = "this machine's processor, all threads, vector kernels",
    .available = available,
    .alloc = kvl_mem_alloc,
    .release = kvl_mem_free,
    .populate = kvl_mem_populate,
    .reserve = kvl_mem_reserve,
    .unreserve = kvl_mem_unreserve,
    .map = kvl_mem_map,
    .unmap = kvl_mem_unmap,
    .upload = copy_bytes,
    .download = copy_bytes,
    .sync = no_wait,
    .rmsnorm = rmsnorm,
    .rope = rope,
    .swiglu = swiglu,
    .convert = convert,
    .kv_append = kv_append,
    .kv_copy = kv_copy,
};
