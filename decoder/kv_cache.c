#include "decoder/kv_cache.h"

#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/memory.h"

kvl_status kvl_kv_cache_resolve(const kvl_allocator *allocator, kvl_allocator_config *config) {
    if (config->max_seqs < 1)
        return kvl_fail(KVL_ERR_INPUT, "max_seqs %d: at least 1", config->max_seqs);
    if (config->page_tokens < 1)
        return kvl_fail(KVL_ERR_INPUT, "page_tokens %lld: at least 1",
                        (long long)config->page_tokens);
    if (config->max_seq_tokens < 1 || config->max_seq_tokens > INT32_MAX)
        return kvl_fail(KVL_ERR_INPUT, "max_seq_tokens %lld: 1 to %d",
                        (long long)config->max_seq_tokens, INT32_MAX);
    if (config->pool_tokens < 0)
        return kvl_fail(KVL_ERR_INPUT, "pool_tokens %lld: at least 1, or 0 for all that fits",
                        (long long)config->pool_tokens);
    if (config->pool_tokens) return KVL_OK;
    if (!allocator->full_pool(config, &config->pool_tokens))
        return kvl_fail(KVL_ERR_INPUT,
                        "max_seqs %d x max_seq_tokens %lld in pages of %lld tokens: the pool "
                        "overflows 64 bits",
                        config->max_seqs, (long long)config->max_seq_tokens,
                        (long long)config->page_tokens);
    return KVL_OK;
}

kvl_status kvl_kv_cache_pool_bytes(const kvl_allocator_config *config, int32_t n_kv_heads,
                                   int32_t head_dim, kvl_dtype dtype, uint64_t *bytes) {
    uint64_t slot_bytes = kvl_kv_slot_bytes(n_kv_heads, head_dim, dtype);
    if (!kvl_mul_u64((uint64_t)config->pool_tokens, slot_bytes, bytes) || *bytes > INT64_MAX)
        return kvl_fail(KVL_ERR_INPUT,
                        "pool_tokens %lld x %llu bytes a token and layer: overflows 64 bits",
                        (long long)config->pool_tokens, (unsigned long long)slot_bytes);
    return KVL_OK;
}

kvl_status kvl_kv_cache_by_token(const kvl_allocator *allocator, kvl_reserve_policy reserve,
                                 bool *by_token) {
    kvl_allocator_config config = {
        .page_tokens = 1, .max_seq_tokens = 1, .max_seqs = 1, .reserve = reserve};
    kvl_placement placement;
    uint64_t bytes;
    void *state;
    KVL_TRY(kvl_kv_cache_resolve(allocator, &config));
    KVL_TRY(allocator->state_bytes(&config, &bytes));
    KVL_TRY(kvl_mem_alloc(bytes, &state));
    kvl_status status = allocator->init(state, &config);
    if (status == KVL_OK) {
        allocator->placement(state, &placement);
        *by_token = placement.slabs_vary;
    }
    kvl_mem_free(state, bytes);
    return status;
}

static kvl_status create_state(kvl_kv_cache *cache) {
    uint64_t state_bytes = 0;
    KVL_TRY(cache->allocator->state_bytes(&cache->config, &state_bytes));
    KVL_TRY(kvl_mem_alloc(state_bytes, &cache->state));
    cache->state_bytes = state_bytes;
    KVL_TRY(cache->allocator->init(cache->state, &cache->config));
    cache->allocator->placement(cache->state, &cache->placement);
    cache->page_tokens = cache->placement.page_tokens;
    return KVL_OK;
}

static kvl_status create_scratch(kvl_kv_cache *cache) {
    size_t max_seqs = (size_t)cache->config.max_seqs;
    int64_t tokens = cache->config.max_seq_tokens;
    cache->table_stride = tokens / cache->page_tokens + (tokens % cache->page_tokens != 0);
    cache->page_table = calloc(max_seqs, (size_t)cache->table_stride * sizeof(int32_t));
    cache->slab_start = calloc(max_seqs, sizeof(int64_t));
    if (!cache->page_table || !cache->slab_start)
        return kvl_fail(KVL_ERR_OOM, "out of memory: page tables of %zu sequences x %lld pages",
                        max_seqs, (long long)cache->table_stride);
    return KVL_OK;
}

/* One pool: memory, or address space that orders map memory into. */
static kvl_status create_pool(kvl_kv_cache *cache, uint64_t bytes, void **pool) {
    const kvl_device *device = cache->device;
    if (!cache->placement.mapped) {
        KVL_TRY(device->alloc(bytes, pool));
        return cache->populated && device->populate ? device->populate(*pool, bytes) : KVL_OK;
    }
    if (!device->reserve)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "allocator %s: device %s maps no memory",
                        cache->allocator->name, device->name);
    return device->reserve(bytes, pool);
}

static kvl_status create_pools(kvl_kv_cache *cache) {
    const uint64_t slots = (uint64_t)cache->placement.address_slots;
    uint64_t k_slot = kvl_kv_slot_bytes(cache->n_kv_heads, cache->head_dim, cache->k_dtype);
    uint64_t v_slot = kvl_kv_slot_bytes(cache->n_kv_heads, cache->head_dim, cache->v_dtype);
    void ***const lists[4] = {&cache->k_pools, &cache->v_pools, &cache->k_scales, &cache->v_scales};
    if (cache->placement.mapped && k_slot != v_slot)
        return kvl_fail(
            KVL_ERR_UNSUPPORTED,
            "allocator %s maps the same bytes of K and V: kv_dtype %s:%s differs in width",
            cache->allocator->name, kvl_dtype_name(cache->k_dtype), kvl_dtype_name(cache->v_dtype));
    if (!kvl_mul_u64(slots, k_slot, &cache->k_bytes) || cache->k_bytes > INT64_MAX ||
        !kvl_mul_u64(slots, v_slot, &cache->v_bytes) || cache->v_bytes > INT64_MAX)
        return kvl_fail(KVL_ERR_INPUT, "KV cache of %lld slots: overflows 64 bits",
                        (long long)cache->placement.address_slots);
    cache->pool_elems = (int64_t)(cache->k_bytes / kvl_dtype_bytes(cache->k_dtype));
    cache->scale_bytes = (uint64_t)(cache->pool_elems / cache->head_dim) * sizeof(float);
    for (int i = 0; i < 4; i++) {
        *lists[i] = calloc((size_t)cache->n_layers, sizeof(void *));
        if (!*lists[i])
            return kvl_fail(KVL_ERR_OOM, "out of memory: pools of %d layers", cache->n_layers);
    }
    for (int32_t i = 0; i < cache->n_layers; i++) {
        kvl_status status = create_pool(cache, cache->k_bytes, &cache->k_pools[i]);
        if (status == KVL_OK) status = create_pool(cache, cache->v_bytes, &cache->v_pools[i]);
        if (status == KVL_OK && cache->k_scale_tokens)
            status = cache->device->alloc(cache->scale_bytes, &cache->k_scales[i]);
        if (status == KVL_OK && cache->v_scale_tokens)
            status = cache->device->alloc(cache->scale_bytes, &cache->v_scales[i]);
        if (status != KVL_OK)
            return kvl_fail_prefix(status, "KV cache of %lld tokens, layer %d of %d",
                                   (long long)cache->config.pool_tokens, i, cache->n_layers);
    }
    return KVL_OK;
}

kvl_status kvl_kv_cache_create(kvl_kv_cache *cache) {
    kvl_status status = create_state(cache);
    if (status == KVL_OK) status = create_scratch(cache);
    if (status == KVL_OK) status = create_pools(cache);
    if (status != KVL_OK) kvl_kv_cache_free(cache);
    return status;
}

void kvl_kv_cache_free(kvl_kv_cache *cache) {
    void **const lists[4] = {cache->k_pools, cache->v_pools, cache->k_scales, cache->v_scales};
    const uint64_t bytes[4] = {cache->k_bytes, cache->v_bytes, cache->scale_bytes,
                               cache->scale_bytes};
    for (int j = 0; j < 4; j++) {
        for (int32_t i = 0; lists[j] && i < cache->n_layers; i++) {
            if (!lists[j][i]) continue;
            if (j < 2 && cache->placement.mapped)
                cache->device->unreserve(lists[j][i], bytes[j], cache->mapped_bytes);
            else
                cache->device->release(lists[j][i], bytes[j]);
        }
        free(lists[j]);
    }
    free(cache->k_static);
    free(cache->v_static);
    free(cache->page_table);
    free(cache->slab_start);
    kvl_mem_free(cache->state, cache->state_bytes);
    memset(cache, 0, sizeof *cache);
}

/* Geometry that every view shares; no sequences in it yet. */
static kvl_kv_view empty_view(const kvl_kv_cache *cache) {
    bool by_token = cache->placement.slabs_vary;
    int64_t token_elems = (int64_t)cache->n_kv_heads * cache->head_dim;
    kvl_kv_view view = {
        .k_dtype = cache->k_dtype,
        .v_dtype = cache->v_dtype,
        .n_kv_heads = cache->n_kv_heads,
        .head_dim = cache->head_dim,
        .page_tokens = cache->page_tokens,
        .page_stride = cache->page_tokens * token_elems,
        .head_stride = by_token ? cache->head_dim : cache->page_tokens * cache->head_dim,
        .token_stride = by_token ? token_elems : cache->head_dim,
        .n_pages = cache->config.pool_tokens / cache->page_tokens,
        .pool_elems = cache->pool_elems,
        .k_scale_tokens = cache->k_scale_tokens,
        .v_scale_tokens = cache->v_scale_tokens,
        .n_k_scales = cache->pool_elems / cache->head_dim,
        .n_v_scales = cache->pool_elems / cache->head_dim,
    };
    kvl_kv_cache_layer(cache, 0, &view);
    return view;
}

static kvl_status run_copy(kvl_kv_cache *cache, const kvl_order *order) {
    kvl_kv_view view = empty_view(cache);
    if (cache->placement.slabs_vary) { /* slots lie one behind the other, all heads together */
        if (!cache->k_scale_tokens && !cache->v_scale_tokens) {
            view.head_dim *= view.n_kv_heads;
            view.n_kv_heads = 1;
        }
        view.page_tokens = 1;
        view.page_stride = view.token_stride;
    }
    for (int32_t layer = 0; layer < cache->n_layers; layer++) {
        kvl_kv_cache_layer(cache, layer, &view);
        KVL_TRY(cache->device->kv_copy(&view, order->src_slot, order->dst_slot, order->n_slots));
    }
    return KVL_OK;
}

/* Maps or unmaps the same bytes of every pool. */
static kvl_status run_mapping(kvl_kv_cache *cache, const kvl_order *order) {
    const kvl_device *device = cache->device;
    enum { HUGE_PAGE = 2 << 20 };
    uint64_t bytes = (uint64_t)order->n_slots;
    bool map = order->kind == KVL_ORDER_MAP, huge = cache->config.map_bytes % HUGE_PAGE == 0;
    for (int32_t i = 0; i < 2 * cache->n_layers; i++) {
        void **pools = i < cache->n_layers ? cache->k_pools : cache->v_pools;
        char *at = (char *)pools[i % cache->n_layers] + order->src_slot;
        KVL_TRY(map ? device->map(at, bytes, huge) : device->unmap(at, bytes));
    }
    cache->mapped_bytes += map ? bytes : -bytes;
    return KVL_OK;
}

static kvl_status run_order(kvl_kv_cache *cache, const kvl_order *order) {
    switch (order->kind) {
    case KVL_ORDER_COPY_SLOTS:
        return run_copy(cache, order);
    case KVL_ORDER_MAP:
    case KVL_ORDER_UNMAP:
        return run_mapping(cache, order);
    }
    return kvl_fail(KVL_ERR_INTERNAL, "allocator %s: order of unknown kind %d",
                    cache->allocator->name, (int)order->kind);
}

static kvl_status check_orders(const kvl_kv_cache *cache) {
    if (!cache->failed) return KVL_OK;
    return kvl_fail(KVL_ERR_OOM, "KV cache: an order of allocator %s failed before",
                    cache->allocator->name);
}

static kvl_status run_orders(kvl_kv_cache *cache) {
    kvl_order orders[16];
    int32_t n_orders;
    while ((n_orders = cache->allocator->take_orders(cache->state, orders, 16)) > 0) {
        for (int32_t i = 0; i < n_orders; i++) {
            kvl_status status = run_order(cache, &orders[i]);
            if (status == KVL_OK) continue;
            cache->failed = true;
            return kvl_fail_prefix(status, "KV cache");
        }
    }
    return KVL_OK;
}

kvl_status kvl_kv_cache_admit(kvl_kv_cache *cache, const kvl_request *request, kvl_admission *out) {
    KVL_TRY(check_orders(cache));
    KVL_TRY(kvl_allocator_admit(cache->allocator, cache->state, request, out));
    return run_orders(cache);
}

kvl_status kvl_kv_cache_append(kvl_kv_cache *cache, kvl_seq seq, int64_t n_tokens) {
    KVL_TRY(check_orders(cache));
    KVL_TRY(cache->allocator->append(cache->state, seq, n_tokens));
    return run_orders(cache);
}

uint64_t kvl_kv_cache_token_bytes(const kvl_kv_cache *cache) {
    const uint64_t heads = (uint64_t)cache->n_layers * (uint64_t)cache->n_kv_heads;
    const uint64_t row = (uint64_t)cache->head_dim *
                         (kvl_dtype_bytes(cache->k_dtype) + kvl_dtype_bytes(cache->v_dtype));
    uint64_t k =
        cache->k_scale_tokens ? heads * sizeof(float) / (uint64_t)cache->k_scale_tokens : 0;
    uint64_t v =
        cache->v_scale_tokens ? heads * sizeof(float) / (uint64_t)cache->v_scale_tokens : 0;
    return heads * row + k + v;
}

void kvl_kv_cache_view(kvl_kv_cache *cache, const kvl_seq *seqs, const int32_t *kv_lens,
                       int32_t n_seqs, kvl_kv_view *view) {
    int64_t slot_elems = (int64_t)cache->n_kv_heads * cache->head_dim;
    *view = empty_view(cache);
    view->n_seqs = n_seqs;
    view->kv_lens = kv_lens;
    view->slab_start = cache->slab_start;
    for (int32_t s = 0; s < n_seqs; s++) {
        int64_t slab_slot = 0;
        const int32_t *pages = cache->allocator->pages(cache->state, seqs[s], &slab_slot);
        cache->slab_start[s] = slab_slot * slot_elems;
        if (!pages) continue;
        int64_t n_pages = ((int64_t)kv_lens[s] + cache->page_tokens - 1) / cache->page_tokens;
        view->page_table = cache->page_table;
        view->table_stride = cache->table_stride;
        memcpy(cache->page_table + s * cache->table_stride, pages,
               (size_t)n_pages * sizeof(int32_t));
    }
}
