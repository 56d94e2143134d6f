/* Growing: a sequence's slab is as long as the sequence. An append past its end takes a new slab of
 * exactly the new length, orders a copy of all tokens, and gives the old one back, as Transformers'
 * DynamicCache does with torch.cat at each step; holes are left all over the heap. The prompt's
 * slab is taken at admission. While a sequence moves it has both slabs, so a request can only ever
 * end in a pool of twice its length (but one). An append of n tokens grows once. */
#include "allocators/slabs.h"

static int64_t usable(const kvl_allocator_config *config) {
    return config->pool_tokens;
}

static int64_t at_admission(const kvl_allocator_config *config, int64_t n_prompt, int64_t max_new) {
    return n_prompt;
}

static int64_t ever(const kvl_allocator_config *config, int64_t n_prompt, int64_t max_new) {
    int64_t need = n_prompt + max_new; /* both fit 32 bits: checked */
    bool moves = max_new && need > 1;
    return moves ? 2 * need - 1 : need;
}

/* n slabs leave at most n + 1 holes: one of them is long enough to move to if all together have
 * n + 1 times the length. */
static bool full_pool(const kvl_allocator_config *config, int64_t *pool_tokens) {
    return kvl_mul_i64(2 * (int64_t)config->max_seqs + 1, config->max_seq_tokens, pool_tokens);
}

static const kvl_slab_rules rules = {.name = "growing",
                                     .space = &kvl_space_heap,
                                     .usable = usable,
                                     .at_admission = at_admission,
                                     .ever = ever,
                                     .grows = true};

static kvl_status state_bytes(const kvl_allocator_config *config, uint64_t *bytes) {
    return kvl_slabs_state_bytes(&rules, config, bytes);
}

static kvl_status init(void *state, const kvl_allocator_config *config) {
    return kvl_slabs_init(&rules, state, config);
}

const kvl_allocator kvl_allocator_growing = {
    .name = "growing",
    .summary = "a longer slab and a copy for every new token, as Transformers' DynamicCache",
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
