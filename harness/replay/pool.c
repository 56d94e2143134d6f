#define _GNU_SOURCE
#include "harness/replay/pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Keys of a page: the id of the block that its last token lies in, and its place. Ids are chained
 * (equal ids are equal prefixes), so this holds for any page size. SplitMix64's finaliser. */
static uint64_t page_key(uint64_t block_id, uint64_t page) {
    uint64_t x = block_id * UINT64_C(0x9E3779B97F4A7C15) + page + 1;
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static int64_t keys_of(kvl_pool *pool, const kvl_trace_request *r, bool with_last_part) {
    int64_t page = pool->config.page_tokens, block = pool->trace->block_tokens;
    if (!pool->keys || r->n_blocks == 0) return 0;
    int64_t n = r->prompt / page + (with_last_part && r->prompt % page != 0);
    const uint64_t *ids = pool->trace->blocks + r->first_block;
    for (int64_t i = 0; i < n; i++) {
        int64_t last = (i + 1) * page < r->prompt ? (i + 1) * page - 1 : r->prompt - 1;
        pool->keys[i] = page_key(ids[last / block], (uint64_t)i);
    }
    return n;
}

static kvl_status open_keys(kvl_pool *pool) {
    if (pool->config.prefix != KVL_PREFIX_KEYS || !pool->trace->n_blocks) return KVL_OK;
    pool->keys =
        calloc((size_t)(pool->trace->longest / pool->config.page_tokens + 1), sizeof *pool->keys);
    return pool->keys ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
}

kvl_status kvl_pool_open(kvl_pool *pool, const kvl_allocator *module,
                         const kvl_allocator_config *config, const kvl_trace *trace) {
    *pool = (kvl_pool){.module = module, .config = *config, .trace = trace};
    KVL_TRY(module->state_bytes(config, &pool->state_bytes));
    pool->state = mmap(NULL, pool->state_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool->state == MAP_FAILED) {
        pool->state = NULL;
        return kvl_fail(KVL_ERR_OOM, "the allocator's state of %.1f GiB: out of memory",
                        (double)pool->state_bytes / (1 << 30));
    }
    kvl_status status = module->init(pool->state, config);
    if (status == KVL_OK) status = open_keys(pool);
    if (status == KVL_OK) module->placement(pool->state, &pool->placement);
    if (status != KVL_OK) kvl_pool_close(pool);
    return status;
}

void kvl_pool_close(kvl_pool *pool) {
    if (pool->state) munmap(pool->state, pool->state_bytes);
    free(pool->keys);
    pool->state = NULL;
    pool->keys = NULL;
}

kvl_status kvl_pool_admit(kvl_pool *pool, const kvl_pool_request *in, kvl_admission *out) {
    const kvl_trace_request *r = &pool->trace->requests[in->index];
    kvl_request request = {.n_prompt = in->n_tokens,
                           .max_new = in->max_new,
                           .max_cached = in->max_cached,
                           .keys = pool->keys,
                           .readmitted = in->readmitted};
    if (in->whole) {
        request.n_prompt += request.max_new;
        request.max_new = 0;
    } else {
        request.n_keys = keys_of(pool, r, in->n_tokens == r->prompt);
    }
    return kvl_allocator_admit(pool->module, pool->state, &request, out);
}

kvl_status kvl_pool_append(kvl_pool *pool, kvl_seq seq, int64_t n_tokens) {
    kvl_order orders[64];
    KVL_TRY(pool->module->append(pool->state, seq, n_tokens));
    while (pool->module->take_orders(pool->state, orders, 64) > 0) {
    }
    return KVL_OK;
}

int64_t kvl_pool_room(const kvl_pool *pool, int64_t length, int64_t need) {
    int64_t page = pool->config.page_tokens;
    if (pool->module->uses_pages) return (page - length % page) % page;
    bool whole_slab = !pool->placement.slabs_vary && !pool->placement.mapped;
    return whole_slab ? need - length : 0;
}
