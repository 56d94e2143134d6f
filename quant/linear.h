/* Linear layers on the CPU: y = x W^T (+ bias), W stored in a weight format, packed for streaming.
 *
 * Weights are packed once, at load, into panels of `panel` output rows, k-major: element (k, r) of
 * panel p is W[p * panel + r][k]. A batch-1 product then reads every weight byte once, in order,
 * and many-row products reuse a panel from cache. Weights keep their stored bits; they are widened
 * to float32 in registers. Sums are float32, in the order k = 0, 1, 2, ... for every row count, so
 * that the result of one row does not depend on how many rows are computed beside it, nor on
 * threads: prefill whole, in chunks, or token by token gives the same bits. Only matrix kernels
 * (many rows of bf16 on CPUs that multiply it, unless determinism was asked for) have an order of
 * their own (quant/README.md).
 *
 * A weight format is one .c file and one registry line: name, dtype, pack and the kernels per isa.
 */
#ifndef KVL_QUANT_LINEAR_H
#define KVL_QUANT_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/status.h"
#include "core/team.h"
#include "core/work.h"
#include "quant/nf4.h"

typedef struct kvl_linear kvl_linear; /* opaque: packed weights, bias, shape, format */

typedef struct kvl_weight_format {
    const char *name;    /* "f32", "f16", "bf16" */
    const char *summary; /* one line for `kvlab info` */
    kvl_dtype dtype;     /* stored element type */
    double bits_per_weight;
    bool in_blocks; /* scales are shared in blocks of the tensor: nf4_block applies */
} kvl_weight_format;

size_t kvl_weight_format_count(void);
const kvl_weight_format *kvl_weight_format_at(size_t index);
kvl_status kvl_weight_format_find(const char *name, const kvl_weight_format **out);

enum { KVL_LINEAR_MAX_PARTS = 4 };

typedef struct kvl_linear_options {
    const kvl_weight_format *format;
    kvl_dtype
        compute_dtype;  /* f32, or bf16: x is rounded to bf16 (nearest even) before the product */
    bool deterministic; /* own kernels only, fixed order of sums */
    /* nf4, nf4_dq, fp4: weights of a block, a power of two from 32 to 4096; 0 = 64. */
    int64_t nf4_block;
    /* Tensors that the layer stacks by rows, n_out in all: blocks, and double quantisation, stay
     * within each. n_parts 0: the layer is one tensor. */
    int n_parts;
    int64_t part_rows[KVL_LINEAR_MAX_PARTS];
} kvl_linear_options;

/* Starts an [n_out, n_in] layer. Fill every row with kvl_linear_set_rows, then kvl_linear_finish.
 */
kvl_status kvl_linear_create(int64_t n_out, int64_t n_in, const kvl_linear_options *options,
                             kvl_linear **out);

/* Rows first .. first + n_rows of W as float32 [n_rows][n_in] (row-major), encoded into the format
 * (exact when the values are representable). Rows may come in any order, from several threads for
 * disjoint whole panels. Formats of blocks (nf4, nf4_dq, fp4) take each row once. `bias` in finish:
 * [n_out] float32 or NULL. */
kvl_status kvl_linear_set_rows(kvl_linear *layer, int64_t first, int64_t n_rows, const float *rows);
/* Rows first .. first + n_rows of the layer from a tensor that is quantised already, in the layer's
 * type and block: rows tensor_row on of one that is n_in wide. Codes and absmax are taken as they
 * are; nothing is rounded. All rows of a layer come this way or none. KVL_ERR_UNSUPPORTED when type
 * or block differ. */
kvl_status kvl_linear_set_nf4(kvl_linear *layer, int64_t first, int64_t n_rows,
                              const kvl_nf4_tensor *tensor, int64_t tensor_row);
kvl_status kvl_linear_finish(kvl_linear *layer, const float *bias);
void kvl_linear_destroy(kvl_linear *layer);

/* y [n_rows][y_stride] = x [n_rows][x_stride] W^T + bias; x, y float32 host, strides in elements.
 * Uses kvl_threads(). `accumulate`: y += instead of y =. */
kvl_status kvl_linear_run(const kvl_linear *layer, const float *x, int64_t x_stride, int64_t n_rows,
                          float *y, int64_t y_stride, bool accumulate);

/* One product, as every worker of a team calls it. */
typedef struct kvl_linear_call {
    const float *x; /* [n_rows][x_stride] */
    int64_t x_stride, n_rows;
    float *y; /* [n_rows][y_stride] */
    int64_t y_stride;
    bool accumulate;
    void *workspace; /* shared by the team, 64-byte aligned, at least kvl_linear_workspace_bytes */
    uint64_t workspace_bytes;
} kvl_linear_call;

/* Scratch that kvl_linear_part needs for up to n_rows rows and n_workers workers; UINT64_MAX when
 * that overflows. */
uint64_t kvl_linear_workspace_bytes(const kvl_linear *layer, int64_t n_rows, int n_workers);

/* kvl_linear_run's share of one worker. x must be complete before; y is after the next barrier of
 * the team. Uses barriers inside; opens no region. */
kvl_status kvl_linear_part(const kvl_linear *layer, const kvl_linear_call *call,
                           kvl_worker *worker);

/* Decodes row `row` of W to float32 [n_in] (what the stored bits mean). For tied embeddings. */
void kvl_linear_get_row(const kvl_linear *layer, int64_t row, float *out);

int64_t kvl_linear_n_out(const kvl_linear *layer);
int64_t kvl_linear_n_in(const kvl_linear *layer);
uint64_t kvl_linear_bytes(const kvl_linear *layer); /* packed weight bytes */
kvl_work kvl_linear_work(const kvl_linear *layer, int64_t n_rows);
const char *kvl_linear_kernel(const kvl_linear *layer,
                              int64_t n_rows); /* effective: "panel/avx2", "matrix/amx" */
/* Whether a product of n_rows rows multiplies bf16(value * absmax) of a 4-bit format, since it runs
 * on bf16 instructions; elsewhere it multiplies what kvl_linear_get_row gives. */
bool kvl_linear_rounds_weights(const kvl_linear *layer, int64_t n_rows);

#endif
