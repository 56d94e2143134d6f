/* One linear layer alone: y = x W^T, its check in float64, its time.
 *
 * `cold`: as many layers with the same weights as exceed the last-level cache several times are
 * gone round, so that each call reads its weights from memory. Every timed call's output is
 * compared bit for bit with the one that was checked.
 */
#ifndef KVL_HARNESS_KERNELS_MATMUL_H
#define KVL_HARNESS_KERNELS_MATMUL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "harness/kernels/shape.h"
#include "harness/verify/verify.h"
#include "quant/linear.h"

typedef struct kvl_matmul_setup {
    const char *weights, *device; /* borrowed from the axes' JSON */
    const kvl_weight_format *format;
    kvl_dtype compute_dtype;
    kvl_product_shape shape;
    int32_t n_threads;
    bool cold, own;        /* own: kernels whose sums keep one order */
    uint64_t weight_bytes; /* of one layer, by the format's bits; packing may add to them */
    int64_t n_copies;
    uint64_t x_bytes, y_bytes; /* float32 */
    uint64_t sum_bytes;        /* all that is allocated but scratch */
    uint64_t working_set_bytes;
} kvl_matmul_setup;

/* From axes{} of a row. KVL_ERR_INPUT: a member that is missing or malformed; KVL_ERR_UNSUPPORTED:
 * sizes that overflow, or copies too small to get past the cache. */
kvl_status kvl_matmul_setup_make(const json_t *axes, kvl_matmul_setup *out);

typedef struct kvl_matmul_inputs {
    const kvl_matmul_setup *setup;
    kvl_linear **layers; /* [n_copies], equal weights */
    float *x;            /* [n_rows][n_in] */
    float *y, *checked;  /* [n_rows][n_out]; checked: y once it was verified */
} kvl_matmul_inputs;

kvl_status kvl_matmul_inputs_make(const kvl_matmul_setup *setup, uint64_t seed,
                                  kvl_matmul_inputs *out);
void kvl_matmul_inputs_free(kvl_matmul_inputs *inputs);

/* Compares y with float64 sums over the decoded weights: seeded rows and outputs, the first and
 * last of both among them, well under a second in all. Bound: verify's of linear layers. */
kvl_status kvl_matmul_inputs_check(const kvl_matmul_inputs *inputs, uint64_t seed,
                                   kvl_verify_result *result);

/* The trial of `spec`. *answer as kvl_trial_run gives it; fails only when the spec is malformed. */
kvl_status kvl_matmul_trial_run(const json_t *spec, json_t **answer);

#endif
