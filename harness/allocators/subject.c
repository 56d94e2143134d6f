#include "harness/allocators/subject.h"

#include <string.h>

#include "core/memory.h"

kvl_status kvl_subject_open(const char *allocator, int64_t page_tokens, int64_t pool_tokens,
                            int32_t max_seqs, int64_t max_seq_tokens, kvl_prefix_mode prefix,
                            kvl_subject *out) {
    memset(out, 0, sizeof *out);
    out->config = (kvl_allocator_config){.pool_tokens = pool_tokens,
                                         .page_tokens = page_tokens ? page_tokens : 1,
                                         .max_seq_tokens = max_seq_tokens,
                                         .max_seqs = max_seqs,
                                         .reserve = KVL_RESERVE_ORACLE,
                                         .prefix = prefix,
                                         .slot_bytes = 2048,
                                         .map_bytes = 64 << 10};
    KVL_TRY(kvl_allocator_find(allocator, &out->allocator));
    KVL_TRY(out->allocator->state_bytes(&out->config, &out->state_bytes));
    KVL_TRY(kvl_mem_alloc(out->state_bytes, &out->state));
    kvl_status status = out->allocator->init(out->state, &out->config);
    if (status != KVL_OK) kvl_subject_close(out);
    return status;
}

void kvl_subject_close(kvl_subject *subject) {
    kvl_mem_free(subject->state, subject->state_bytes);
    subject->state = NULL;
}

void kvl_subject_drop_orders(kvl_subject *subject) {
    kvl_order orders[256];
    while (subject->allocator->take_orders(subject->state, orders, 256) > 0) {
    }
}
