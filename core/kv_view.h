/* KV view: all that a kernel knows of one layer's KV cache.
 *
 * K and V are two pools of the same geometry. One token of one KV head is head_dim contiguous
 * elements ("a row"). The element address of (sequence s, token t, KV head h) is
 *
 *   pool + base(s, t / page_tokens) + h * head_stride + (t % page_tokens) * token_stride
 *
 *   paged:       base(s, p) = page_table[s * table_stride + p] * page_stride
 *   contiguous:  base(s, 0) = slab_start[s]     (page_table == NULL; page_tokens = slab capacity)
 *
 * All strides and bases are 64-bit counts of elements. The default order inside a page or slab is
 * (kv_head, token, head_dim): head_stride = page_tokens * head_dim, token_stride = head_dim,
 * page_stride = n_kv_heads * page_tokens * head_dim; any other order is expressed by strides.
 *
 * Slots at or past kv_lens[s] are never read as values: they may hold NaN. A page_table entry is
 * only read for pages that hold a token some query can see; entries of pages wholly outside a
 * sliding window may be -1.
 *
 * Scales: value = stored * scale, one scale for every (token, KV head), whatever its granularity:
 *   none        k_scale is NULL: 1.0 everywhere
 *   static      k_scale_tokens is 0: k_scale[h], host [n_kv_heads], for the whole cache
 *   dynamic     k_scale_tokens is n: one for each n tokens of a KV head in a page or slab, written
 *               when tokens are appended (n = 1: each token's own); kvl_kv_scale_index says where
 * and the same for V. What is stored in the two pools may differ as well (k_dtype, v_dtype).
 */
#ifndef KVL_CORE_KV_VIEW_H
#define KVL_CORE_KV_VIEW_H

#include <stdint.h>

#include "core/dtype.h"
#include "core/status.h"

typedef struct kvl_kv_view {
    void *k_pool, *v_pool;      /* device place; elements of k_dtype and of v_dtype */
    kvl_dtype k_dtype, v_dtype; /* f32, f16, bf16, fp8_e4m3, fp8_e5m2, int8 */

    int32_t n_seqs, n_kv_heads, head_dim;
    const int32_t *kv_lens; /* host [n_seqs], tokens stored, this step's included; may be 0 */

    int64_t page_tokens; /* tokens in a page, or in a slab */
    int64_t page_stride, head_stride, token_stride;

    const int32_t *page_table; /* host [n_seqs][table_stride]; NULL: contiguous */
    int64_t table_stride;
    const int64_t *slab_start; /* host [n_seqs]; used when page_table is NULL */

    int64_t n_pages;    /* pages in the pool; page ids are below it (checks only; 0 = unknown) */
    int64_t pool_elems; /* elements in each pool, for checks */

    float *k_scale, *v_scale;               /* host; see above */
    int64_t k_scale_tokens, v_scale_tokens; /* 0: static */
    int64_t n_k_scales, n_v_scales;         /* floats in each, for checks of dynamic ones */
} kvl_kv_view;

/* Element offset of token `t`, KV head `h` of sequence `s`. */
static inline int64_t kvl_kv_offset(const kvl_kv_view *view, int64_t s, int64_t t, int64_t h) {
    int64_t page = t / view->page_tokens, slot = t - page * view->page_tokens;
    int64_t base = view->page_table ? (int64_t)view->page_table[s * view->table_stride + page] *
                                          view->page_stride
                                    : view->slab_start[s];
    return base + h * view->head_stride + slot * view->token_stride;
}

/* Where the scale of token `t`, KV head `h` of sequence `s` lies, for k_scale_tokens or
 * v_scale_tokens as `scale_tokens`. Dynamic scales lie as [slot of the pool][head]; a group's is at
 * its first token, so that scales go with slots wherever these are copied. */
static inline int64_t kvl_kv_scale_index(const kvl_kv_view *view, int64_t scale_tokens, int64_t s,
                                         int64_t t, int64_t h) {
    if (scale_tokens == 0) return h;
    int64_t page = t / view->page_tokens, slot = t - page * view->page_tokens;
    int64_t base =
        view->page_table
            ? (int64_t)view->page_table[s * view->table_stride + page] * view->page_tokens
            : view->slab_start[s] / ((int64_t)view->n_kv_heads * view->head_dim);
    return (base + slot - slot % scale_tokens) * view->n_kv_heads + h;
}

/* Dynamic scales that go with a pool. */
static inline int64_t kvl_kv_scales_needed(const kvl_kv_view *view) {
    return view->pool_elems / view->head_dim;
}

static inline float kvl_kv_k_scale(const kvl_kv_view *view, int64_t s, int64_t t, int64_t h) {
    return view->k_scale ? view->k_scale[kvl_kv_scale_index(view, view->k_scale_tokens, s, t, h)]
                         : 1.0f;
}
static inline float kvl_kv_v_scale(const kvl_kv_view *view, int64_t s, int64_t t, int64_t h) {
    return view->v_scale ? view->v_scale[kvl_kv_scale_index(view, view->v_scale_tokens, s, t, h)]
                         : 1.0f;
}

/* A run of tokens that lie token_stride apart, so that inner loops see no table: the run starts at
 * token `t` and ends at the page's end or at `t_end`, whichever comes first. */
static inline int64_t kvl_kv_run(const kvl_kv_view *view, int64_t s, int64_t t, int64_t t_end,
                                 int64_t h, int64_t *offset) {
    int64_t left = view->page_tokens - t % view->page_tokens;
    *offset = kvl_kv_offset(view, s, t, h);
    return left < t_end - t ? left : t_end - t;
}

/* Checks every invariant above (positive sizes, lengths within table or slab, page ids in range,
 * every addressed element inside the pool, overflow). KVL_ERR_INPUT names the first that fails. */
kvl_status kvl_kv_view_check(const kvl_kv_view *view);

/* --- Converters for the two public conventions --------------------------------------------------
 */

/* CSR, as FlashInfer: kv_indptr [n_seqs + 1], kv_indices [kv_indptr[n_seqs]], kv_last_page_len
 * [n_seqs] in 1..page_tokens (0 only for a sequence without pages). Writes a dense table
 * [n_seqs][table_stride] padded with -1, and kv_lens [n_seqs]. A last_page_len out of range, a
 * falling indptr or a length past table_stride pages is refused by sequence and value. */
kvl_status kvl_kv_from_csr(int32_t n_seqs, int64_t page_tokens, const int32_t *kv_indptr,
                           const int32_t *kv_indices, const int32_t *kv_last_page_len,
                           int64_t table_stride, int32_t *page_table, int32_t *kv_lens);

/* Dense, as vLLM: slot_mapping[i] = block * page_tokens + slot for the i-th new token, -1 = skip.
 * Writes the mapping for tokens kv_start[s] .. kv_lens[s] of each sequence, in order. */
kvl_status kvl_kv_slot_mapping(const kvl_kv_view *view, const int32_t *kv_start,
                               int64_t *slot_mapping, int64_t n_slots);

#endif
