/* One call of an attention module on a problem in a cache, with everything around its outputs
 * watched: padding, guard rows and the bytes after the workspace must come back untouched. */
#ifndef KVL_HARNESS_VERIFY_CALL_H
#define KVL_HARNESS_VERIFY_CALL_H

#include "harness/verify/oracle.h"
#include "harness/verify/problem.h"

/* What a call covers: sequences seq_first .. + n_seqs of the problem with these query offsets and
 * cache lengths, the queries being tokens token_first .. of the problem. */
typedef struct kvl_verify_part {
    int32_t seq_first, n_seqs;
    const int32_t *q_start; /* [n_seqs + 1], from 0 */
    const int32_t *kv_lens; /* [n_seqs] */
    int64_t token_first;
    int64_t key_first; /* contiguous caches: keys begin here (0 but for merges) */
    bool no_sinks;
} kvl_verify_part;

/* Runs `part` (NULL: the whole problem) and writes its rows to their places in *out. Errors of the
 * module as it gave them; KVL_ERR_INTERNAL when it wrote where it must not. */
kvl_status kvl_verify_call(const kvl_attention *module, const kvl_verify_problem *p,
                           const kvl_verify_cache *cache, const kvl_verify_part *part,
                           int32_t n_threads, kvl_verify_output *out);

/* Effective kernel and instruction set ("flash/avx2") of the whole problem; KVL_ERR_UNSUPPORTED
 * with the module's reason. */
kvl_status kvl_verify_supports(const kvl_attention *module, const kvl_verify_problem *p,
                               const kvl_verify_cache *cache, kvl_dtype o_dtype, char *kernel,
                               size_t kernel_bytes, kvl_isa *isa);

kvl_status kvl_verify_output_create(const kvl_verify_problem *p, kvl_dtype o_dtype,
                                    kvl_verify_output *out);
void kvl_verify_output_free(kvl_verify_output *out);

#endif
