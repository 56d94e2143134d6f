/* The KV cache of one decoder: the pools of every layer and the allocator that owns their slots.
 *
 * All layers share one allocator state: a slot is the same index in every layer's K and V pool. All
 * pools have one geometry, so a step builds one view and only swaps the pool pointers from layer to
 * layer. Inside a page (or a slab of fixed length) the order is (kv_head, token, head_dim); where
 * slabs differ in length it is (token, kv_head, head_dim), see core/kv_view.h. */
#ifndef KVL_DECODER_KV_CACHE_H
#define KVL_DECODER_KV_CACHE_H

#include <stdint.h>

#include "allocators/allocator.h"
#include "core/device.h"
#include "core/kv_view.h"

typedef struct kvl_kv_cache {
    const kvl_device *device;
    const kvl_allocator *allocator;
    kvl_allocator_config config; /* resolved: no zeros left */
    void *state;                 /* the allocator's; state_bytes */
    uint64_t state_bytes;

    int32_t n_layers, n_kv_heads, head_dim;
    kvl_dtype k_dtype, v_dtype;
    int64_t k_scale_tokens, v_scale_tokens; /* dynamic scales: tokens of one; else 0 */
    float *k_static, *v_static; /* owned, [n_layers][n_kv_heads]: static scales, or NULL */
    kvl_placement placement;
    int64_t page_tokens;         /* of the view: a page, or the longest slab */
    int64_t pool_elems;          /* elements in each pool */
    uint64_t k_bytes, v_bytes;   /* of each pool of K and V; of address space where it is mapped */
    uint64_t mapped_bytes;       /* of each pool, where memory is mapped on demand */
    bool populated;              /* pools have all their memory from the start */
    bool failed;                 /* an order could not be run: memory and allocator disagree */
    void **k_pools, **v_pools;   /* host arrays [n_layers] of device memory */
    uint64_t scale_bytes;        /* of each pool of dynamic scales: one float a slot and head */
    void **k_scales, **v_scales; /* [n_layers]; NULL entries where scales are not dynamic */

    /* Scratch of the view: host. */
    int32_t *page_table; /* [max_seqs][table_stride] */
    int64_t table_stride;
    int64_t *slab_start; /* [max_seqs] */
} kvl_kv_cache;

/* Fills in the zeros of `config`: pool_tokens 0 becomes what max_seqs sequences of max_seq_tokens
 * can need (kvl_allocator.full_pool). KVL_ERR_INPUT when a value is out of range or a product
 * overflows. */
kvl_status kvl_kv_cache_resolve(const kvl_allocator *allocator, kvl_allocator_config *config);

/* Whether a cache of this allocator would lie token by token (kvl_placement.slabs_vary); makes
 * none.
 */
kvl_status kvl_kv_cache_by_token(const kvl_allocator *allocator, kvl_reserve_policy reserve,
                                 bool *by_token);

/* Bytes of a token in each pool, which `virtual` counts in. */
static inline uint64_t kvl_kv_slot_bytes(int32_t n_kv_heads, int32_t head_dim, kvl_dtype dtype) {
    return (uint64_t)n_kv_heads * (uint64_t)head_dim * kvl_dtype_bytes(dtype);
}

/* Bytes of a pool of `dtype` for `config`. */
kvl_status kvl_kv_cache_pool_bytes(const kvl_allocator_config *config, int32_t n_kv_heads,
                                   int32_t head_dim, kvl_dtype dtype, uint64_t *bytes);

/* The fields device, allocator, config, n_layers, n_kv_heads, head_dim, dtypes, scale tokens,
 * static scales and `populated` are set by the caller; the rest is zero. Allocates state and pools.
 * On failure nothing is held. */
kvl_status kvl_kv_cache_create(kvl_kv_cache *cache);
void kvl_kv_cache_free(kvl_kv_cache *cache);

/* Admits a request and runs the orders that come with it (a prefix that ends inside a page). */
kvl_status kvl_kv_cache_admit(kvl_kv_cache *cache, const kvl_request *request, kvl_admission *out);

/* Makes room for n_tokens more tokens of `seq` and runs the orders that come with it (copies, in
 * every layer). All or nothing. */
kvl_status kvl_kv_cache_append(kvl_kv_cache *cache, kvl_seq seq, int64_t n_tokens);

/* Bytes of a token in all layers, scales included (of a group: its share, rounded down). */
uint64_t kvl_kv_cache_token_bytes(const kvl_kv_cache *cache);

/* The view of sequences seqs [n_seqs] (n_seqs <= max_seqs) with kv_lens [n_seqs] tokens each; both
 * arrays and the cache's scratch must stay until the view is done. Pools are those of layer 0. */
void kvl_kv_cache_view(kvl_kv_cache *cache, const kvl_seq *seqs, const int32_t *kv_lens,
                       int32_t n_seqs, kvl_kv_view *view);

/* Points the view at another layer. */
static inline void kvl_kv_cache_layer(const kvl_kv_cache *cache, int32_t layer, kvl_kv_view *view) {
    const int64_t first = (int64_t)layer * cache->n_kv_heads;
    view->k_pool = cache->k_pools[layer];
    view->v_pool = cache->v_pools[layer];
    view->k_scale = cache->k_static ? cache->k_static + first : cache->k_scales[layer];
    view->v_scale = cache->v_static ? cache->v_static + first : cache->v_scales[layer];
}

#endif
