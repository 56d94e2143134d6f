/* One attention kernel alone: its inputs, its check in float64, its time.
 *
 *   axes -> setup (sizes, refused before anything is allocated) -> inputs -> check -> time ->
 * answer
 *
 * `cold`: as many copies of K and V as exceed the last-level cache several times lie in one pool
 * and calls go round them, so that each call reads memory. All copies hold the same values, and
 * every timed call's output is compared bit for bit with the one that was checked.
 */
#ifndef KVL_HARNESS_KERNELS_ATTENTION_H
#define KVL_HARNESS_KERNELS_ATTENTION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "attention/attention.h"
#include "harness/kernels/shape.h"
#include "harness/verify/verify.h"

/* What is asked for, and the sizes that follow. Names are borrowed from the axes' JSON. */
typedef struct kvl_attention_setup {
    const char *attention, *allocator, *device;
    kvl_dtype k_dtype, v_dtype, q_dtype; /* int8: with a scale a token */
    kvl_heads heads;
    int32_t head_dim, window, n_threads;
    float softcap;
    kvl_batch_shape shape;
    bool paged, causal, cold;
    int64_t page_tokens; /* of the KV view: a page, or the slab */

    int64_t table_stride;   /* pages of the longest sequence */
    int64_t n_pages;        /* of one copy; 0 = contiguous */
    int64_t copy_elems;     /* of K, and of V, in one copy */
    uint64_t kv_read_bytes; /* K and V that some query sees, one copy */
    int64_t n_copies;
    uint64_t k_bytes, v_bytes, scale_bytes;   /* of the pools and of int8's scales, all copies */
    uint64_t q_bytes, table_bytes, sum_bytes; /* sum: all that is allocated but the workspace */
    uint64_t working_set_bytes; /* read before any byte is read again; at most kv of all copies */
} kvl_attention_setup;

/* From axes{} of a row. KVL_ERR_INPUT: a member that is missing or malformed; KVL_ERR_UNSUPPORTED:
 * sizes that overflow, or copies too small to get past the cache. */
kvl_status kvl_attention_setup_make(const json_t *axes, kvl_attention_setup *out);

typedef struct kvl_attention_inputs {
    const kvl_attention_setup *setup;
    void *k_pool, *v_pool;      /* [n_copies][copy_elems] of k_dtype and v_dtype */
    void *scales;               /* one for each row of a pool, all equal; NULL without int8 */
    int32_t *tables;            /* [n_copies][n_seqs][table_stride]; NULL: contiguous */
    int64_t *slabs;             /* [n_copies][n_seqs]; NULL: paged */
    int32_t *q_start, *kv_lens; /* [n_seqs + 1], [n_seqs] */
    void *q, *o, *checked;      /* [q_tokens][n_q][head_dim]; checked: O once it was verified */
    void *workspace;
    uint64_t workspace_bytes;
    kvl_kv_view view;        /* of the copy selected last */
    kvl_attention_args args; /* what the kernel is called with; kv = &view */
} kvl_attention_inputs;

/* Allocates and fills; pages lie in seeded random order over the whole pool. (attention_inputs.c)
 */
kvl_status kvl_attention_inputs_make(const kvl_attention_setup *setup, uint64_t seed,
                                     kvl_attention_inputs *out);
/* Points the view at copy `index` of n_copies. */
void kvl_attention_inputs_select(kvl_attention_inputs *inputs, int64_t index);
void kvl_attention_inputs_free(kvl_attention_inputs *inputs);

/* Compares O of the selected copy, as `module` left it, with float64 on the same stored bits: all
 * (query token, KV head) units when they take well under a second, else a seeded sample with the
 * first and last query of every group of the batch. *result as verify reports it; n_rows are the
 * rows compared. (attention_check.c) */
kvl_status kvl_attention_inputs_check(const kvl_attention *module, kvl_attention_inputs *inputs,
                                      uint64_t seed, kvl_verify_result *result);

/* The trial of `spec` on `module` (NULL: the one that its axes name). *answer as kvl_trial_run
 * gives it; fails only when the spec itself is malformed. (attention_trial.c) */
kvl_status kvl_attention_trial_run(const kvl_attention *module, const json_t *spec,
                                   json_t **answer);

#endif
