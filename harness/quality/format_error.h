/* What storing numbers in a format does to them: the rounding error of each format on normals, on
 * a model's K and V, and on its weights.
 *
 *   mean abs = mean |y - x|        mean rel = mean |y - x| / |x| over x != 0
 *   NRMSE = sqrt(sum (y - x)^2 / sum x^2)        SQNR = -20 log10(NRMSE) dB
 *
 * x is float32, y what it reads back as. fp8 is stored with scale 1.0. Block formats begin a block
 * at each tensor; K and V are tensors [n_tokens][n_kv_heads * head_dim] of a layer, K after RoPE.
 */
#ifndef KVL_HARNESS_QUALITY_FORMAT_ERROR_H
#define KVL_HARNESS_QUALITY_FORMAT_ERROR_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/status.h"
#include "decoder/model.h"
#include "quant/nf4.h"

typedef struct kvl_error_format {
    const char *name;
    kvl_dtype dtype;   /* where not in blocks */
    bool in_blocks;    /* a scale for each `block` values, codes of 4 bits */
    kvl_nf4_type type; /* where in blocks */
    bool nested;       /* absmax goes through 8 bits */
} kvl_error_format;

/* f16, bf16, fp8_e4m3, fp8_e5m2, nf4, nf4_dq, fp4. */
kvl_status kvl_error_format_find(const char *name, const kvl_error_format **out);

/* Stored bits of a value, scales included, of a tensor whose last blocks are full. */
double kvl_error_format_bits(const kvl_error_format *format, int64_t block);

/* y[n] = what the tensor x[n] reads back as; *saturated grows by values past the format's range.
 * KVL_ERR_INPUT: NaN or infinity in x, which a block format cannot hold. */
kvl_status kvl_error_round_trip(const kvl_error_format *format, int64_t block, const float *x,
                                int64_t n, float *y, int64_t *saturated);

/* Sums of errors. Those of several tensors add up. */
typedef struct kvl_error_sums {
    int64_t n, n_nonzero, saturated;
    double abs, rel, square, x_square, max_abs;
} kvl_error_sums;

void kvl_error_add(kvl_error_sums *sums, const float *x, const float *y, int64_t n);
void kvl_error_merge(kvl_error_sums *sums, const kvl_error_sums *more);
double kvl_error_nrmse(const kvl_error_sums *sums);

/* A source of tensors: each goes to `take` with the layer it belongs to, 0 where there are none. */
typedef kvl_status (*kvl_error_take)(void *context, int32_t layer, const float *x, int64_t n);

/* 2^20 seeded values of N(0, 1). (format_values.c) */
kvl_status kvl_error_normals(uint64_t seed, kvl_error_take take, void *context);
/* Matrices of the layers; embedding, head and norms are left out. */
kvl_status kvl_error_weights(const kvl_model *model, kvl_error_take take, void *context);
/* K (which 0) or V (1) of ids[n] under the float32 model, layer by layer. */
kvl_status kvl_error_kv(const kvl_model *model, const int32_t *ids, int64_t n, int which,
                        kvl_error_take take, void *context);

/* The trial of `spec`. *answer as kvl_trial_run gives it; fails only when the spec itself is
 * malformed. (format_trial.c) */
kvl_status kvl_format_error_trial_run(const json_t *spec, json_t **answer);

#endif
