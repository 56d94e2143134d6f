#include "core/kv_view.h"

#include "core/checked.h"

/* Largest element that (page base, any head, any slot) reaches, relative to the base. */
static bool reach(const kvl_kv_view *view, int64_t slots, int64_t *out) {
    int64_t heads, tokens;
    return kvl_mul_i64(view->n_kv_heads - 1, view->head_stride, &heads) &&
           kvl_mul_i64(slots - 1, view->token_stride, &tokens) &&
           !__builtin_add_overflow(heads, tokens, out) &&
           !__builtin_add_overflow(*out, (int64_t)view->head_dim, out);
}

static kvl_status check_geometry(const kvl_kv_view *view) {
    kvl_dtype unfit = view->k_dtype > KVL_KV_DTYPE_LAST ? view->k_dtype : view->v_dtype;
    if (unfit > KVL_KV_DTYPE_LAST)
        return kvl_fail(KVL_ERR_INPUT, "KV view: dtype %s cannot hold a KV cache",
                        kvl_dtype_name(unfit));
    if (view->n_seqs < 0 || view->n_kv_heads < 1 || view->head_dim < 1)
        return kvl_fail(KVL_ERR_INPUT, "KV view: n_seqs %d, n_kv_heads %d, head_dim %d",
                        view->n_seqs, view->n_kv_heads, view->head_dim);
    if (view->page_tokens < 1)
        return kvl_fail(KVL_ERR_INPUT, "KV view: page_tokens %lld: at least 1",
                        (long long)view->page_tokens);
    if (view->page_stride < 0 || view->head_stride < 0 || view->token_stride < 0 ||
        view->pool_elems < 0)
        return kvl_fail(KVL_ERR_INPUT, "KV view: negative stride or pool size");
    if (!view->kv_lens && view->n_seqs)
        return kvl_fail(KVL_ERR_INPUT, "KV view: kv_lens is missing");
    if (view->n_seqs && !view->page_table && !view->slab_start)
        return kvl_fail(KVL_ERR_INPUT, "KV view: neither page_table nor slab_start");
    return KVL_OK;
}

/* Page ids are checked against n_pages and slabs against the pool, so the count says it all. */
static kvl_status check_scales(const kvl_kv_view *view, char which, const float *scales,
                               int64_t tokens, int64_t n_scales) {
    if (tokens < 0 || (tokens > 0 && !scales))
        return kvl_fail(KVL_ERR_INPUT, "KV view: %c_scale_tokens %lld%s", which, (long long)tokens,
                        tokens > 0 ? ", but no scales" : "");
    if (tokens == 0) return KVL_OK;
    if (n_scales >= kvl_kv_scales_needed(view)) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "KV view: %lld %c scales, the pool needs %lld",
                    (long long)n_scales, which, (long long)kvl_kv_scales_needed(view));
}

static kvl_status check_paged(const kvl_kv_view *view, int32_t s, int64_t used) {
    int64_t n_pages = (used + view->page_tokens - 1) / view->page_tokens;
    if (n_pages > view->table_stride)
        return kvl_fail(KVL_ERR_INPUT,
                        "KV view: sequence %d has %lld tokens, its page table holds %lld", s,
                        (long long)used, (long long)(view->table_stride * view->page_tokens));
    for (int64_t p = 0; p < n_pages; p++) {
        int64_t page = view->page_table[s * view->table_stride + p], base, last;
        if (page == -1) continue; /* out of every window; a kernel that reads it is at fault */
        int64_t slots = p + 1 < n_pages ? view->page_tokens : used - p * view->page_tokens;
        if (page < 0 || (view->n_pages && page >= view->n_pages))
            return kvl_fail(KVL_ERR_INPUT, "KV view: sequence %d, page %lld: id %lld of %lld", s,
                            (long long)p, (long long)page, (long long)view->n_pages);
        if (!kvl_mul_i64(page, view->page_stride, &base) || !reach(view, slots, &last) ||
            __builtin_add_overflow(base, last, &last) || last > view->pool_elems)
            return kvl_fail(
                KVL_ERR_INPUT,
                "KV view: sequence %d, page id %lld lies past the pool of %lld elements", s,
                (long long)page, (long long)view->pool_elems);
    }
    return KVL_OK;
}

static kvl_status check_slab(const kvl_kv_view *view, int32_t s, int64_t used) {
    int64_t last;
    if (used > view->page_tokens)
        return kvl_fail(KVL_ERR_INPUT, "KV view: sequence %d has %lld tokens, its slab %lld", s,
                        (long long)used, (long long)view->page_tokens);
    if (used == 0) return KVL_OK;
    if (view->slab_start[s] < 0 || !reach(view, used, &last) ||
        __builtin_add_overflow(view->slab_start[s], last, &last) || last > view->pool_elems)
        return kvl_fail(KVL_ERR_INPUT,
                        "KV view: sequence %d, slab at %lld lies past the pool of %lld elements", s,
                        (long long)view->slab_start[s], (long long)view->pool_elems);
    return KVL_OK;
}

kvl_status kvl_kv_view_check(const kvl_kv_view *view) {
    KVL_TRY(check_geometry(view));
    KVL_TRY(check_scales(view, 'k', view->k_scale, view->k_scale_tokens, view->n_k_scales));
    KVL_TRY(check_scales(view, 'v', view->v_scale, view->v_scale_tokens, view->n_v_scales));
    for (int32_t s = 0; s < view->n_seqs; s++) {
        int64_t used = view->kv_lens[s];
        if (used < 0)
            return kvl_fail(KVL_ERR_INPUT, "KV view: sequence %d has kv_len %lld", s,
                            (long long)used);
        KVL_TRY(view->page_table ? check_paged(view, s, used) : check_slab(view, s, used));
        if (used && (!view->k_pool || !view->v_pool))
            return kvl_fail(KVL_ERR_INPUT, "KV view: a pool is missing");
    }
    return KVL_OK;
}

kvl_status kvl_kv_from_csr(int32_t n_seqs, int64_t page_tokens, const int32_t *kv_indptr,
                           const int32_t *kv_indices, const int32_t *kv_last_page_len,
                           int64_t table_stride, int32_t *page_table, int32_t *kv_lens) {
    if (page_tokens < 1)
        return kvl_fail(KVL_ERR_INPUT, "page_tokens %lld: at least 1", (long long)page_tokens);
    for (int32_t s = 0; s < n_seqs; s++) {
        int64_t n_pages = (int64_t)kv_indptr[s + 1] - kv_indptr[s], last = kv_last_page_len[s];
        if (kv_indptr[s] < 0 || n_pages < 0 || n_pages > table_stride)
            return kvl_fail(KVL_ERR_INPUT,
                            "kv_indptr[%d..%d] = %d..%d: must rise, at most %lld pages", s, s + 1,
                            kv_indptr[s], kv_indptr[s + 1], (long long)table_stride);
        if (last > page_tokens || (n_pages > 0 && last < 1) || (n_pages == 0 && last != 0))
            return kvl_fail(KVL_ERR_INPUT, "kv_last_page_len[%d] = %lld: %s %lld", s,
                            (long long)last, n_pages ? "1 to" : "0 for no pages, page_tokens",
                            (long long)page_tokens);
        int64_t tokens = n_pages ? (n_pages - 1) * page_tokens + last : 0;
        if (tokens > INT32_MAX)
            return kvl_fail(KVL_ERR_INPUT, "sequence %d: %lld tokens", s, (long long)tokens);
        kv_lens[s] = (int32_t)tokens;
        for (int64_t p = 0; p < table_stride; p++)
            page_table[s * table_stride + p] = p < n_pages ? kv_indices[kv_indptr[s] + p] : -1;
    }
    return KVL_OK;
}

kvl_status kvl_kv_slot_mapping(const kvl_kv_view *view, const int32_t *kv_start,
                               int64_t *slot_mapping, int64_t n_slots) {
    if (!view->page_table) return kvl_fail(KVL_ERR_UNSUPPORTED, "slot_mapping needs a paged view");
    int64_t next = 0;
    for (int32_t s = 0; s < view->n_seqs; s++) {
        for (int64_t t = kv_start[s]; t < view->kv_lens[s]; t++) {
            if (next >= n_slots)
                return kvl_fail(KVL_ERR_INPUT, "slot_mapping holds %lld slots, more are needed",
                                (long long)n_slots);
            int64_t page = view->page_table[s * view->table_stride + t / view->page_tokens];
            slot_mapping[next++] = page < 0 ? -1 : page * view->page_tokens + t % view->page_tokens;
        }
    }
    return KVL_OK;
}
