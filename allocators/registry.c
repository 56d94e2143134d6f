#include <stdint.h>

#include "allocators/common.h"
#include "core/checked.h"
#include "core/names.h"

static const kvl_allocator *const modules[] = {
    &kvl_allocator_contiguous, &kvl_allocator_buddy,   &kvl_allocator_growing,
    &kvl_allocator_paged,      &kvl_allocator_virtual,
};
enum { N_MODULES = sizeof modules / sizeof *modules };

size_t kvl_allocator_count(void) {
    return N_MODULES;
}

const kvl_allocator *kvl_allocator_at(size_t index) {
    return index < N_MODULES ? modules[index] : NULL;
}

kvl_status kvl_allocator_find(const char *name, const kvl_allocator **out) {
    const char *names[N_MODULES];
    for (size_t i = 0; i < N_MODULES; i++) names[i] = modules[i]->name;
    int index = kvl_names_find(name, names, N_MODULES);
    if (index < 0) {
        char line[512];
        kvl_names_unknown(line, sizeof line, "allocator", name, names, N_MODULES);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = modules[index];
    return KVL_OK;
}

kvl_status kvl_allocator_admit(const kvl_allocator *allocator, void *state,
                               const kvl_request *request, kvl_admission *out) {
    if (allocator->admit) return allocator->admit(state, request, out);
    out->n_cached = 0;
    return allocator->reserve(state, request->n_prompt, request->max_new, &out->seq);
}

static const char *const policies[] = {"max", "pow2", "oracle"};

kvl_status kvl_reserve_policy_parse(const char *name, kvl_reserve_policy *out) {
    int index = kvl_names_find(name, policies, 3);
    if (index < 0) {
        char line[256];
        kvl_names_unknown(line, sizeof line, "reserve policy", name, policies, 3);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = (kvl_reserve_policy)index;
    return KVL_OK;
}

const char *kvl_reserve_policy_name(kvl_reserve_policy policy) {
    return policies[policy];
}

int64_t kvl_reserve_slots(const kvl_allocator_config *config, int64_t n_prompt, int64_t max_new) {
    if (config->reserve == KVL_RESERVE_MAX) return config->max_seq_tokens;
    int64_t grown = max_new;
    if (config->reserve == KVL_RESERVE_POW2) {
        for (grown = 1; grown < max_new; grown *= 2) {
        }
    }
    int64_t slots = n_prompt + (max_new ? grown : 0);
    return slots < config->max_seq_tokens ? slots : config->max_seq_tokens;
}

kvl_status kvl_allocator_check_config(const kvl_allocator_config *config) {
    if (config->pool_tokens < 1)
        return kvl_fail(KVL_ERR_INPUT, "pool_tokens %lld: at least 1",
                        (long long)config->pool_tokens);
    if (config->max_seq_tokens < 1 || config->max_seq_tokens > INT32_MAX)
        return kvl_fail(KVL_ERR_INPUT, "max_seq_tokens %lld: 1 to %d",
                        (long long)config->max_seq_tokens, INT32_MAX);
    if (config->max_seqs < 1)
        return kvl_fail(KVL_ERR_INPUT, "max_seqs %d: at least 1", config->max_seqs);
    return KVL_OK;
}

kvl_status kvl_allocator_need(const kvl_allocator_config *config, int64_t n_prompt, int64_t max_new,
                              int64_t *need) {
    if (n_prompt < 0 || max_new < 0)
        return kvl_fail(KVL_ERR_INPUT, "prompt of %lld tokens, %lld new: at least 0",
                        (long long)n_prompt, (long long)max_new);
    if (n_prompt > config->max_seq_tokens || max_new > config->max_seq_tokens - n_prompt)
        return kvl_fail(KVL_ERR_INPUT,
                        "prompt of %lld tokens and %lld new: longest that fits is %lld tokens "
                        "(max_seq_tokens)",
                        (long long)n_prompt, (long long)max_new, (long long)config->max_seq_tokens);
    *need = n_prompt + max_new;
    return KVL_OK;
}

kvl_status kvl_allocator_check_append(const kvl_allocator_config *config, int64_t length,
                                      int64_t n_tokens) {
    if (n_tokens < 0)
        return kvl_fail(KVL_ERR_INPUT, "append of %lld tokens: at least 0", (long long)n_tokens);
    if (n_tokens > config->max_seq_tokens - length)
        return kvl_fail(KVL_ERR_INPUT,
                        "append of %lld tokens to %lld: longest sequence is %lld tokens "
                        "(max_seq_tokens)",
                        (long long)n_tokens, (long long)length, (long long)config->max_seq_tokens);
    return KVL_OK;
}

kvl_status kvl_allocator_deny(const kvl_allocator_config *config) {
    if (config->deny && config->deny(config->deny_user))
        return kvl_fail(KVL_ERR_OOM, "refused by the fault injector");
    return KVL_OK;
}

int32_t kvl_allocator_take_orders(kvl_order *waiting, int32_t *n_waiting, kvl_order *out,
                                  int32_t capacity) {
    int32_t n = *n_waiting < capacity ? *n_waiting : capacity;
    if (n <= 0) return 0;
    memcpy(out, waiting, (size_t)n * sizeof *out);
    *n_waiting -= n;
    memmove(waiting, waiting + n, (size_t)*n_waiting * sizeof *out);
    return n;
}
