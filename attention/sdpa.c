/* sdpa: PyTorch's scaled_dot_product_attention as a dispatcher. The choice looks at flags and
 * dtypes alone, never at lengths, so that batch composition and chunking cannot change a row. */
#include <stdio.h>

#include "attention/chunked.h"
#include "attention/eager.h"
#include "attention/flash.h"
#include "attention/modules.h"

typedef enum backend { FLASH, MEM_EFFICIENT, MATH } backend;

static const char *const names[] = {"flash", "mem_efficient", "math"};

/* First match wins; the rules and where they part from PyTorch's are in README.md. */
static backend choose(const kvl_attention_args *args, char *reason, size_t reason_bytes) {
    if (args->sinks || args->softcap > 0.0f) {
        snprintf(reason, reason_bytes, "%s: no fused kernel takes it",
                 args->sinks ? "sinks" : "softcap");
        return MATH;
    }
    if (args->kv->head_dim > KVL_FLASH_HEAD_DIM_MAX) {
        snprintf(reason, reason_bytes, "head_dim %d: the fused kernels handle 1 to %d",
                 args->kv->head_dim, KVL_FLASH_HEAD_DIM_MAX);
        return MATH;
    }
    if (args->window > 0) {
        snprintf(reason, reason_bytes, "window %d is a mask: flash takes causal or none",
                 args->window);
        return MEM_EFFICIENT;
    }
    snprintf(reason, reason_bytes, "%s: no mask, head_dim %d",
             args->causal ? "causal" : "not causal", args->kv->head_dim);
    return FLASH;
}

static void sdpa_supports(const kvl_attention_args *args, kvl_attention_choice *choice) {
    char reason[sizeof choice->reason];
    backend which = choose(args, reason, sizeof reason);
    kvl_attention_supports(args, names[which], kvl_attention_variant(), KVL_EAGER_HEAD_DIM_MAX,
                           choice);
    if (choice->supported && which == FLASH) kvl_attention_flash.supports(args, choice);
    if (choice->supported) snprintf(choice->reason, sizeof choice->reason, "%s", reason);
}

static uint64_t sdpa_workspace_bytes(const kvl_attention_args *args) {
    char reason[160];
    switch (choose(args, reason, sizeof reason)) {
    case FLASH:
        return kvl_attention_flash.workspace_bytes(args);
    case MEM_EFFICIENT:
        return kvl_chunked_workspace(args);
    default:
        return kvl_eager_workspace(args);
    }
}

static kvl_status sdpa_run(const kvl_attention_args *args) {
    char reason[160];
    switch (choose(args, reason, sizeof reason)) {
    case FLASH:
        return kvl_attention_flash.run_cpu(args);
    case MEM_EFFICIENT:
        return kvl_chunked_run(args);
    default:
        return kvl_eager_run(args);
    }
}

const kvl_attention kvl_attention_sdpa = {
    .name = "sdpa",
    .summary = "dispatcher in PyTorch's sense: flash, mem_efficient or math",
    .p_dtype = KVL_F32,
    .acc_dtype = KVL_F32,
    .supports = sdpa_supports,
    .workspace_bytes = sdpa_workspace_bytes,
    .run_cpu = sdpa_run,
};
