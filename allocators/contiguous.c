/* Contiguous: each sequence owns one slab from admission to release. How long it is, is the reserve
 * policy's: the longest sequence allowed, the request with its output rounded up to a power of two,
 * or exactly the request.
 *
 * Under `max` all slabs are equal: the pool is cut into floor(pool_tokens / max_seq_tokens) of them
 * and the rest is padding. Under `pow2` and `oracle` slabs lie in a heap with holes. Nothing ever
 * moves and no table is read; the unused end of every slab is wasted: this is the baseline that
 * paging is measured against.
 */
#include "allocators/slabs.h"

static int64_t usable(const kvl_allocator_config *config) {
    if (config->reserve != KVL_RESERVE_MAX) return config->pool_tokens;
    return config->pool_tokens - config->pool_tokens % config->max_seq_tokens;
}

/* In a heap, n - 1 slabs leave at most n holes: one of them is long enough if all together have n
 * times the length. */
static bool full_pool(const kvl_allocator_config *config, int64_t *pool_tokens) {
    int64_t n = config->max_seqs;
    return kvl_mul_i64(config->reserve == KVL_RESERVE_MAX ? n : 2 * n - 1, config->max_seq_tokens,
                       pool_tokens);
}

static const kvl_slab_rules rules = {.name = "contiguous",
                                     .space = &kvl_space_heap,
                                     .usable = usable,
                                     .at_admission = kvl_reserve_slots,
                                     .ever = kvl_reserve_slots};

static kvl_status state_bytes(const kvl_allocator_config *config, uint64_t *bytes) {
    return kvl_slabs_state_bytes(&rules, config, bytes);
}

static kvl_status init(void *state, const kvl_allocator_config *config) {
    return kvl_slabs_init(&rules, state, config);
}

/* Equal slabs have room for the order of pages (kv_head, token, head_dim): their length is fixed.
 */
static void placement(const void *state, kvl_placement *out) {
    const kvl_slabs *s = state;
    kvl_slabs_placement(state, out);
    out->slabs_vary = s->config.reserve != KVL_RESERVE_MAX;
}

const kvl_allocator kvl_allocator_contiguous = {
    .name = "contiguous",
    .summary = "one slab a sequence, set aside at admission (max, pow2 or oracle)",
    .uses_reserve = true,
    .full_pool = full_pool,
    .state_bytes = state_bytes,
    .init = init,
    .reserve = kvl_slabs_reserve,
    .append = kvl_slabs_append,
    .fork = kvl_slabs_fork,
    .truncate = kvl_slabs_truncate,
    .release = kvl_slabs_release,
    .length = kvl_slabs_length,
    .pages = kvl_slabs_pages,
    .placement = placement,
    .take_orders = kvl_slabs_take_orders,
    .stats = kvl_slabs_stats,
    .walk = kvl_slabs_walk,
    .is_valid = kvl_slabs_is_valid,
};
