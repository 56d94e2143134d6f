/* An attention problem: shapes, mask and tensors as stored, whatever cache they are then placed in.
 * Made from a case id (seeded data) or from golden tensors. */
#ifndef KVL_HARNESS_VERIFY_PROBLEM_H
#define KVL_HARNESS_VERIFY_PROBLEM_H

#include "core/kv_view.h"
#include "harness/verify/case.h"

typedef struct kvl_verify_problem {
    int32_t n_seqs, n_q_heads, n_kv_heads, head_dim;
    kvl_dtype k_dtype, v_dtype, q_dtype;
    int32_t *q_start;  /* [n_seqs + 1] */
    int32_t *kv_lens;  /* [n_seqs] */
    int64_t *kv_start; /* [n_seqs + 1]: sequence s owns rows kv_start[s].. of the K and V below */
    float scale, softcap;
    bool causal;
    int32_t window;

    /* Host tensors, contiguous. Codes are what a cache stores; k, v and q are what they mean, scale
     * included, in float64; raw values are those before rounding, NULL when unknown. */
    uint8_t *q_codes;           /* [n_q][n_q_heads][head_dim] of q_dtype */
    uint8_t *k_codes, *v_codes; /* [n_kv][n_kv_heads][head_dim] of k_dtype, v_dtype */
    double *q, *k, *v;          /* the same shapes */
    float *k_raw, *v_raw;       /* as k, v */
    float *sinks;               /* [n_q_heads] or NULL */
    /* NULL; or [n_kv_heads]; or, with scale_tokens, [n_kv][n_kv_heads], equal for that many tokens
     * of a sequence, counted from its first. */
    float *k_scale, *v_scale;
    int64_t scale_tokens;
    int64_t shared_tokens; /* leading tokens that all non-empty sequences have in common */
} kvl_verify_problem;

/* What a problem is made for: of a case, the lengths, heads, dtypes, sinks and scales. Allocates
 * all arrays. */
kvl_status kvl_verify_problem_create(const kvl_verify_case *shape, kvl_verify_problem **out);
void kvl_verify_problem_free(kvl_verify_problem *problem);

/* Decodes the codes into q, k, v (after the codes or scales were set from outside). */
void kvl_verify_problem_decode(kvl_verify_problem *problem);

/* Seeded problem of a case. KVL_ERR_UNSUPPORTED when the data pattern has no meaning for it. */
kvl_status kvl_verify_problem_make(const kvl_verify_case *c, kvl_verify_problem **out);

/* Scale of row `row` of [n_kv][n_kv_heads]. */
static inline float kvl_verify_scale(const kvl_verify_problem *p, const float *scales,
                                     int64_t row) {
    return !scales ? 1.0f : scales[p->scale_tokens ? row : row % p->n_kv_heads];
}

static inline int64_t kvl_verify_n_q(const kvl_verify_problem *p) {
    return p->q_start[p->n_seqs];
}

/* A KV cache that holds a problem's K and V. Every slot that holds no token is NaN; page-table
 * entries of pages that no query can see are -1. */
typedef struct kvl_verify_cache {
    kvl_kv_view view;
    int32_t *table;
    int64_t *slabs;
    uint64_t k_bytes, v_bytes, scale_bytes; /* of the pools, and of dynamic scales */
    bool sparse;                            /* all these are sparse mappings */
} kvl_verify_cache;

/* `seed` orders shuffled pages. KVL_ERR_OOM when the address space does not suffice (.far). */
kvl_status kvl_verify_cache_create(const kvl_verify_problem *problem,
                                   const kvl_verify_layout *layout, uint64_t seed,
                                   kvl_verify_cache *out);
void kvl_verify_cache_free(kvl_verify_cache *cache);

#endif
