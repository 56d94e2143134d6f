/* The cpu device: host memory, and the plain operations split over workers by rows. A call without
 * a worker and with little work stays on the calling thread, since waking a team costs more than a
 * decode step's norms take. */
#include <string.h>

#include "core/device_kernels.h"
#include "core/isa.h"
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

typedef struct append_args {
    const kvl_kv_view *view;
    const int32_t *q_start;
    const float *k, *v;
    int64_t k_stride, v_stride;
    int64_t *saturated; /* added to atomically: integers, so the order plays no part */
} append_args;

/* Encodes the rows of one new token, all heads, into one pool; returns the saturation count. */
static int64_t append_token(const kvl_kv_view *view, int64_t offset, const float *row,
                            const float *scales, void *pool) {
    int64_t bytes = (int64_t)kvl_dtype_bytes(view->dtype), count = 0;
    for (int32_t h = 0; h < view->n_kv_heads; h++) {
        uint8_t *dst = (uint8_t *)pool + (offset + h * view->head_stride) * bytes;
        count += kvl_encode(view->dtype, row + (int64_t)h * view->head_dim, view->head_dim,
                            scales ? scales[h] : 1.0f, dst);
    }
    return count;
}

static void append_range(const void *args, int64_t first, int64_t last) {
    const append_args *a = args;
    const kvl_kv_view *view = a->view;
    int64_t count = 0;
    int32_t s = 0;
    for (int64_t row = first; row < last; row++) {
        while (row >= a->q_start[s + 1]) s++;
        int64_t t = (int64_t)view->kv_lens[s] - (a->q_start[s + 1] - row);
        int64_t offset = kvl_kv_offset(view, s, t, 0);
        count += append_token(view, offset, a->k + row * a->k_stride, view->k_scale, view->k_pool);
        count += append_token(view, offset, a->v + row * a->v_stride, view->v_scale, view->v_pool);
    }
    if (count) __atomic_fetch_add(a->saturated, count, __ATOMIC_RELAXED);
}

/* Elements from a slot's address to the end of its last head. */
static int64_t slot_reach(const kvl_kv_view *view) {
    return (view->n_kv_heads - 1) * view->head_stride + view->head_dim;
}

/* Every page that new tokens go to is a page of the pool: a bad table must not become a write. */
static kvl_status check_append(const kvl_kv_view *view, const int32_t *q_start) {
    if (!kvl_kv_format_of(view->dtype))
        return kvl_fail(KVL_ERR_UNSUPPORTED, "KV cache of dtype %s", kvl_dtype_name(view->dtype));
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
    const append_args args = {view, q_start, k, v, k_stride, v_stride, saturated};
    for_rows(worker, append_range, &args, q_start[view->n_seqs],
             2LL * view->n_kv_heads * view->head_dim);
    return KVL_OK;
}

static int64_t slot_offset(const kvl_kv_view *view, int64_t slot) {
    return slot / view->page_tokens * view->page_stride +
           slot % view->page_tokens * view->token_stride;
}

static void copy_slot(const kvl_kv_view *view, int64_t src, int64_t dst) {
    int64_t bytes = (int64_t)kvl_dtype_bytes(view->dtype), row_bytes = view->head_dim * bytes;
    int64_t from = slot_offset(view, src) * bytes, to = slot_offset(view, dst) * bytes;
    for (int32_t h = 0; h < view->n_kv_heads; h++) {
        int64_t head = h * view->head_stride * bytes;
        uint8_t *k = view->k_pool, *v = view->v_pool;
        memcpy(k + to + head, k + from + head, (size_t)row_bytes);
        memcpy(v + to + head, v + from + head, (size_t)row_bytes);
    }
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
        copy_slot(view, src_slot + at, dst_slot + at);
    }
    return KVL_OK;
}

const kvl_device kvl_device_cpu = {
    .name = "cpu",
    .summary = "this machine's processor, all threads, vector kernels",
    .available = available,
    .alloc = kvl_mem_alloc,
    .release = kvl_mem_free,
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
