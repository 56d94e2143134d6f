/* Places a problem's K and V in pools: contiguous slabs or pages, in any order, at any offset. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/rng.h"
#include "harness/verify/codec.h"
#include "harness/verify/problem.h"

/* Elements before the first page or slab of a .far layout: past what an int32 offset reaches. */
static const int64_t FAR_ELEMS = ((int64_t)1 << 31) + 4096;

/* Quiet NaN of the dtype in elements first .. first + n: one code, then doubled copies of it. */
static void fill_nan(kvl_dtype dtype, void *pool, int64_t first, int64_t n) {
    size_t size = kvl_dtype_bytes(dtype), total = (size_t)n * size, done = size;
    uint8_t *at = (uint8_t *)pool + (size_t)first * size;
    if (n <= 0) return;
    kvl_verify_code_put(dtype, at, 0, kvl_verify_code(dtype, __builtin_nan("")));
    while (done < total) {
        size_t more = done < total - done ? done : total - done;
        memcpy(at + done, at, more);
        done += more;
    }
}

static void *map_pool(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void *take(const kvl_verify_cache *cache, uint64_t bytes) {
    return cache->sparse ? map_pool(bytes) : malloc(bytes);
}

static kvl_status allocate_pools(kvl_verify_cache *cache) {
    kvl_kv_view *view = &cache->view;
    cache->k_bytes = (uint64_t)view->pool_elems * kvl_dtype_bytes(view->k_dtype);
    cache->v_bytes = (uint64_t)view->pool_elems * kvl_dtype_bytes(view->v_dtype);
    view->k_pool = take(cache, cache->k_bytes);
    view->v_pool = take(cache, cache->v_bytes);
    bool ok = view->k_pool && view->v_pool;
    if (view->k_scale_tokens) {
        view->n_k_scales = view->n_v_scales = kvl_kv_scales_needed(view);
        cache->scale_bytes = (uint64_t)view->n_k_scales * sizeof(float);
        view->k_scale = take(cache, cache->scale_bytes);
        view->v_scale = take(cache, cache->scale_bytes);
        ok = ok && view->k_scale && view->v_scale;
    }
    if (!ok)
        return kvl_fail(KVL_ERR_OOM, "no address space for pools of %.1f GiB",
                        (double)(cache->k_bytes + cache->v_bytes) / (1 << 30));
    if (cache->sparse) return KVL_OK;
    fill_nan(view->k_dtype, view->k_pool, 0, view->pool_elems);
    fill_nan(view->v_dtype, view->v_pool, 0, view->pool_elems);
    if (!view->k_scale_tokens) return KVL_OK;
    fill_nan(KVL_F32, view->k_scale, 0, view->n_k_scales);
    fill_nan(KVL_F32, view->v_scale, 0, view->n_v_scales);
    return KVL_OK;
}

/* A random order of 0..n-1 (Fisher-Yates), or the order as it is. */
static int64_t *permutation(int64_t n, bool shuffled, uint64_t seed) {
    int64_t *order = malloc((size_t)(n ? n : 1) * sizeof *order);
    if (!order) return NULL;
    kvl_rng rng = kvl_rng_make(seed, 77);
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; shuffled && i > 0; i--) {
        int64_t j = (int64_t)kvl_rng_below(&rng, (uint64_t)i + 1), t = order[i];
        order[i] = order[j], order[j] = t;
    }
    return order;
}

/* First key that any query of sequence s can see. */
static int64_t first_seen(const kvl_verify_problem *p, int32_t s) {
    int64_t q_len = p->q_start[s + 1] - p->q_start[s];
    int64_t first = (int64_t)p->kv_lens[s] - q_len - p->window + 1;
    return p->window && first > 0 ? first : 0;
}

/* Strides inside a page or slab of `slots` tokens; one block of it has this many elements. */
static int64_t set_strides(kvl_kv_view *view, int64_t slots, bool token_major) {
    int64_t dim = view->head_dim, heads = view->n_kv_heads;
    view->page_tokens = slots;
    view->head_stride = token_major ? dim : slots * dim;
    view->token_stride = token_major ? heads * dim : dim;
    view->page_stride = slots * heads * dim;
    return view->page_stride;
}

/* Slabs of the longest sequence plus three slots, one spare slab so that order shows. */
static kvl_status place_slabs(const kvl_verify_problem *p, const kvl_verify_layout *layout,
                              uint64_t seed, kvl_verify_cache *cache) {
    int64_t longest = 0;
    for (int32_t s = 0; s < p->n_seqs; s++)
        if (p->kv_lens[s] > longest) longest = p->kv_lens[s];
    int64_t block = set_strides(&cache->view, longest + 3, layout->token_major);
    int64_t base = layout->far ? FAR_ELEMS : 0;
    int64_t *order = permutation(p->n_seqs + 1, layout->shuffled, seed);
    cache->slabs = malloc((size_t)(p->n_seqs + 1) * sizeof *cache->slabs);
    if (!order || !cache->slabs) {
        free(order);
        return kvl_fail(KVL_ERR_OOM, "out of memory for a verification cache");
    }
    for (int32_t s = 0; s < p->n_seqs; s++) cache->slabs[s] = base + order[s] * block;
    free(order);
    cache->view.slab_start = cache->slabs;
    cache->view.pool_elems = base + (p->n_seqs + 1) * block;
    KVL_TRY(allocate_pools(cache));
    for (int32_t s = 0; cache->sparse && s < p->n_seqs; s++) {
        fill_nan(p->k_dtype, cache->view.k_pool, cache->slabs[s], block);
        fill_nan(p->v_dtype, cache->view.v_pool, cache->slabs[s], block);
    }
    return KVL_OK;
}

/* Page ids of every sequence: shared ones first, then its own; -1 where no query looks. */
static int64_t number_pages(const kvl_verify_problem *p, const kvl_verify_layout *layout,
                            kvl_verify_cache *cache) {
    int64_t size = layout->page_tokens, n_shared = layout->shared ? p->shared_tokens / size : 0;
    int64_t next = n_shared;
    for (int32_t s = 0; s < p->n_seqs; s++) {
        int64_t n = (p->kv_lens[s] + size - 1) / size;
        for (int64_t i = 0; i < cache->view.table_stride; i++) {
            int32_t *entry = &cache->table[s * cache->view.table_stride + i];
            if (i >= n || (i + 1) * size <= first_seen(p, s))
                *entry = -1;
            else
                *entry = (int32_t)(i < n_shared ? i : next++);
        }
    }
    return next;
}

static kvl_status place_pages(const kvl_verify_problem *p, const kvl_verify_layout *layout,
                              uint64_t seed, kvl_verify_cache *cache) {
    int64_t size = layout->page_tokens, most = 0;
    int64_t block = set_strides(&cache->view, size, layout->token_major);
    for (int32_t s = 0; s < p->n_seqs; s++) {
        int64_t n = (p->kv_lens[s] + size - 1) / size;
        if (n > most) most = n;
    }
    cache->view.table_stride = most + 1; /* wider than needed: the stride has to be honoured */
    cache->table = malloc((size_t)((p->n_seqs + 1) * (most + 1)) * sizeof *cache->table);
    if (!cache->table) return kvl_fail(KVL_ERR_OOM, "out of memory for a verification cache");
    int64_t n_pages = number_pages(p, layout, cache);
    int64_t first = layout->far ? FAR_ELEMS / block + 1 : 1; /* page 0 is nobody's */
    int64_t *order = permutation(n_pages, layout->shuffled, seed);
    if (!order) return kvl_fail(KVL_ERR_OOM, "out of memory for a verification cache");
    int64_t n_entries = p->n_seqs * cache->view.table_stride;
    if (first + n_pages > INT32_MAX) n_entries = 0;
    for (int64_t i = 0; i < n_entries; i++)
        if (cache->table[i] >= 0) cache->table[i] = (int32_t)(first + order[cache->table[i]]);
    free(order);
    if (first + n_pages > INT32_MAX)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "page ids past 2^31: use larger pages or heads");
    cache->view.page_table = cache->table;
    cache->view.n_pages = first + n_pages;
    cache->view.pool_elems = (first + n_pages) * block;
    KVL_TRY(allocate_pools(cache));
    if (!cache->sparse) return KVL_OK;
    fill_nan(p->k_dtype, cache->view.k_pool, first * block, n_pages * block);
    fill_nan(p->v_dtype, cache->view.v_pool, first * block, n_pages * block);
    return KVL_OK;
}

static void copy_row(const kvl_verify_problem *p, kvl_kv_view *view, int32_t s, int64_t t,
                     int32_t h) {
    size_t dim = (size_t)p->head_dim, row = (size_t)((p->kv_start[s] + t) * p->n_kv_heads + h);
    size_t to = (size_t)kvl_kv_offset(view, s, t, h);
    size_t k = kvl_dtype_bytes(p->k_dtype), v = kvl_dtype_bytes(p->v_dtype);
    memcpy((uint8_t *)view->k_pool + to * k, p->k_codes + row * dim * k, dim * k);
    memcpy((uint8_t *)view->v_pool + to * v, p->v_codes + row * dim * v, dim * v);
    if (!view->k_scale_tokens) return;
    int64_t at = kvl_kv_scale_index(view, view->k_scale_tokens, s, t, h);
    view->k_scale[at] = p->k_scale[row];
    view->v_scale[at] = p->v_scale[row];
}

static void copy_tokens(const kvl_verify_problem *p, kvl_verify_cache *cache) {
    kvl_kv_view *view = &cache->view;
    for (int32_t s = 0; s < p->n_seqs; s++) {
        for (int64_t t = 0; t < p->kv_lens[s]; t++) {
            if (view->page_table &&
                view->page_table[s * view->table_stride + t / view->page_tokens] < 0)
                continue;
            for (int32_t h = 0; h < p->n_kv_heads; h++) copy_row(p, view, s, t, h);
        }
    }
}

kvl_status kvl_verify_cache_create(const kvl_verify_problem *p, const kvl_verify_layout *layout,
                                   uint64_t seed, kvl_verify_cache *out) {
    memset(out, 0, sizeof *out);
    kvl_kv_view *view = &out->view;
    view->k_dtype = p->k_dtype, view->v_dtype = p->v_dtype;
    view->n_seqs = p->n_seqs, view->n_kv_heads = p->n_kv_heads, view->head_dim = p->head_dim;
    view->kv_lens = p->kv_lens;
    view->k_scale_tokens = view->v_scale_tokens = p->scale_tokens;
    if (!p->scale_tokens) view->k_scale = p->k_scale, view->v_scale = p->v_scale;
    out->sparse = layout->far;
    kvl_status status =
        layout->page_tokens ? place_pages(p, layout, seed, out) : place_slabs(p, layout, seed, out);
    if (status == KVL_OK) {
        copy_tokens(p, out);
        status = kvl_kv_view_check(view);
    }
    if (status != KVL_OK) kvl_verify_cache_free(out);
    return status;
}

static void give_back(const kvl_verify_cache *cache, void *memory, uint64_t bytes) {
    if (!cache->sparse)
        free(memory);
    else if (memory)
        munmap(memory, bytes);
}

void kvl_verify_cache_free(kvl_verify_cache *cache) {
    kvl_kv_view *view = &cache->view;
    give_back(cache, view->k_pool, cache->k_bytes);
    give_back(cache, view->v_pool, cache->v_bytes);
    if (view->k_scale_tokens) {
        give_back(cache, view->k_scale, cache->scale_bytes);
        give_back(cache, view->v_scale, cache->scale_bytes);
    }
    free(cache->table);
    free(cache->slabs);
    memset(cache, 0, sizeof *cache);
}
