#include "harness/sweep/workload_common.h"

#include <stdio.h>
#include <string.h>

#include "allocators/allocator.h"
#include "quant/kv_format.h"

const char *const kvl_workload_policies[] = {"none", "max", "pow2", "oracle", NULL};
const char *const kvl_workload_switches[] = {"on", "off", NULL};

static const kvl_allocator *allocator_of(const kvl_trial *trial) {
    const kvl_allocator *allocator;
    kvl_status status = kvl_allocator_find(trial->names[KVL_AXIS_ALLOCATOR], &allocator);
    return status == KVL_OK ? allocator : NULL;
}

void kvl_workload_drop_pages(kvl_trial *trial) {
    const kvl_allocator *allocator = allocator_of(trial);
    if (allocator && !allocator->uses_pages) trial->numbers[KVL_AXIS_PAGE_TOKENS] = 0;
}

void kvl_workload_drop_reserve(kvl_trial *trial) {
    const kvl_allocator *allocator = allocator_of(trial);
    if (allocator && !allocator->uses_reserve) trial->names[KVL_AXIS_RESERVE] = "none";
}

void kvl_workload_drop_slot_axes(kvl_trial *trial) {
    const kvl_allocator *allocator = allocator_of(trial);
    if (!allocator || !allocator->maps_memory) kvl_workload_drop_pages(trial);
    kvl_workload_drop_reserve(trial);
}

const char *kvl_workload_why_no_reserve(const kvl_trial *trial) {
    const kvl_allocator *allocator = allocator_of(trial);
    bool has_none = strcmp(trial->names[KVL_AXIS_RESERVE], "none") == 0;
    return allocator && allocator->uses_reserve && has_none ? "needs --reserve max, pow2 or oracle"
                                                            : NULL;
}

const char *kvl_workload_why_no_share(const kvl_trial *trial) {
    const kvl_allocator *allocator = allocator_of(trial);
    if (strcmp(trial->names[KVL_AXIS_SHARE], "on") != 0) return NULL;
    if (allocator && !allocator->admit) return "shares no prefixes (--share off)";
    if (trial->model) return "--share on: not on the engine";
    if (!trial->trace->shares) return "--share on: the trace does not say what its prompts hold";
    return NULL;
}

void kvl_workload_refuse_allocator(kvl_trial *trial, const char *why) {
    if (why)
        snprintf(trial->refused, sizeof trial->refused, "allocator %s: %s",
                 trial->names[KVL_AXIS_ALLOCATOR], why);
}

uint64_t kvl_workload_dtype_bytes(const char *name, uint64_t n) {
    kvl_dtype k, v;
    if (kvl_kv_pair_parse(name, &k, &v) != KVL_OK) return n;
    return n * (kvl_dtype_bytes(k) + kvl_dtype_bytes(v)) / 2;
}

uint64_t kvl_workload_no_working_set(const kvl_trial *trial) {
    (void)trial;
    return 0;
}
