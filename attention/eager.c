/* eager: the score matrix of a block of query rows in memory, softmax, then V. What a framework
 * does without a fused kernel, and the yardstick for those that have one. */
#include "attention/chunked.h"
#include "attention/modules.h"

static uint64_t eager_workspace_bytes(const kvl_attention_args *args) {
    return kvl_chunked_workspace(args, 0);
}

static void eager_supports(const kvl_attention_args *args, kvl_attention_choice *choice) {
    kvl_attention_supports(args, "eager", kvl_attention_variant(), KVL_CHUNKED_HEAD_DIM_MAX,
                           choice);
}

static kvl_status eager_run(const kvl_attention_args *args) {
    return kvl_chunked_run(args, 0);
}

const kvl_attention kvl_attention_eager = {
    .name = "eager",
    .summary = "materialises the scores of a block of rows, then softmax, then V",
    .p_dtype = KVL_F32,
    .acc_dtype = KVL_F32,
    .supports = eager_supports,
    .workspace_bytes = eager_workspace_bytes,
    .run_cpu = eager_run,
};
