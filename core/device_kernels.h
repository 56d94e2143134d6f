/* Internal to core/: the cpu device, and its kernels, one table an instruction set. Each kernel
 * does a range of rows, so that device_cpu.c can split a call over threads; a row's bits depend on
 * that row only. Shapes and strides as in core/device.h. */
#ifndef KVL_CORE_DEVICE_KERNELS_H
#define KVL_CORE_DEVICE_KERNELS_H

#include <stdint.h>

#include "core/device.h"

extern const kvl_device kvl_device_cpu;

typedef struct kvl_rmsnorm_args {
    const float *x, *weight;
    float eps;
    int64_t groups, dim, x_stride, out_stride;
    float *out;
} kvl_rmsnorm_args;

typedef struct kvl_rope_args {
    float *x;
    int64_t x_stride;
    int32_t n_heads, head_dim;
    const int32_t *positions;
    const float *inv_freq;
} kvl_rope_args;

/* Columns of a share of swiglu: a few cache lines, whole vectors. */
enum { KVL_SWIGLU_PIECE = 128 };

typedef struct kvl_swiglu_args {
    const float *gate, *up;
    int64_t in_stride, dim, out_stride;
    float *out;
} kvl_swiglu_args;

/* Rows (for swiglu: pieces of KVL_SWIGLU_PIECE columns, row-major) first .. last. `args` points to
 * the struct of the same name. */
typedef void (*kvl_rows_fn)(const void *args, int64_t first, int64_t last);

typedef struct kvl_device_kernels {
    kvl_rows_fn rmsnorm, rope, swiglu;
} kvl_device_kernels;

extern const kvl_device_kernels kvl_device_kernels_scalar, kvl_device_kernels_avx2,
    kvl_device_kernels_avx512;

#endif
