/* An allocator under measurement: its state, and what the trials of `bench allocator` and `bench
 * soak` share. No model, no tensor: lengths only, one thread. */
#ifndef KVL_HARNESS_ALLOCATORS_SUBJECT_H
#define KVL_HARNESS_ALLOCATORS_SUBJECT_H

#include <jansson.h>

#include "allocators/allocator.h"

typedef struct kvl_subject {
    const kvl_allocator *allocator;
    kvl_allocator_config config;
    void *state;
    uint64_t state_bytes;
} kvl_subject;

/* Slabs are as long as the request (reserve policy oracle), where the allocator asks for a policy.
 * `virtual` maps pages of 64 KiB with 2 KiB a token (8 KV heads of 128 in bf16). */
kvl_status kvl_subject_open(const char *allocator, int64_t page_tokens, int64_t pool_tokens,
                            int32_t max_seqs, int64_t max_seq_tokens, kvl_prefix_mode prefix,
                            kvl_subject *out);
void kvl_subject_close(kvl_subject *subject);

/* Takes and drops all waiting orders, as an engine without tensors. */
void kvl_subject_drop_orders(kvl_subject *subject);

kvl_status kvl_allocator_trial_run(const json_t *spec, json_t **answer);
kvl_status kvl_soak_trial_run(const json_t *spec, json_t **answer);

#endif
