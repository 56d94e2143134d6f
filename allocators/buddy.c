/* Buddy: slabs as in `contiguous`, in chunks of powers of two, as Orca's memory was modelled in
 * "Efficient Memory Management for Large Language Model Serving with PagedAttention" (Kwon et al.,
 * 2023, section 6.1). The reserve policy says what is asked for; the chunk is that, rounded up. A
 * chunk's end beyond the request is internal waste, free chunks that are too short are external. */
#include "allocators/slabs.h"

static int64_t usable(const kvl_allocator_config *config) {
    return config->pool_tokens;
}

/* The pool's largest chunk is the highest power of two in it: that much bounds a request. */
static int64_t ever(const kvl_allocator_config *config, int64_t n_prompt, int64_t max_new) {
    int64_t slots = kvl_reserve_slots(config, n_prompt, max_new);
    return slots ? kvl_space_buddy.rounded(slots) : 0;
}

static bool full_pool(const kvl_allocator_config *config, int64_t *pool_tokens) {
    return kvl_mul_i64(config->max_seqs, kvl_space_buddy.rounded(config->max_seq_tokens),
                       pool_tokens);
}

static const kvl_slab_rules rules = {.name = "buddy",
                                     .space = &kvl_space_buddy,
                                     .usable = usable,
                                     .at_admission = kvl_reserve_slots,
                                     .ever = ever};

static kvl_status state_bytes(const kvl_allocator_config *config, uint64_t *bytes) {
    KVL_TRY(kvl_slabs_state_bytes(&rules, config, bytes));
    if (config->reserve == KVL_RESERVE_MAX && ever(config, 0, 0) > config->pool_tokens)
        return kvl_fail(KVL_ERR_INPUT, "pool_tokens %lld: less than one slab of %lld tokens",
                        (long long)config->pool_tokens, (long long)ever(config, 0, 0));
    return KVL_OK;
}

static kvl_status init(void *state, const kvl_allocator_config *config) {
    uint64_t bytes;
    KVL_TRY(state_bytes(config, &bytes));
    return kvl_slabs_init(&rules, state, config);
}

const kvl_allocator kvl_allocator_buddy = {
    .name = "buddy",
    .summary = "one chunk of a power of two a sequence, set aside at admission, as Orca",
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
    .placement = kvl_slabs_placement,
    .take_orders = kvl_slabs_take_orders,
    .stats = kvl_slabs_stats,
    .walk = kvl_slabs_walk,
    .is_valid = kvl_slabs_is_valid,
};
