/* Internal to quant/: the tables that quant/convert.c defines, one per instruction set. */
#ifndef KVL_QUANT_CONVERT_ISA_H
#define KVL_QUANT_CONVERT_ISA_H

#include <stdint.h>

#include "core/dtype.h"

/* encode: codes of src[n] / scale, returns the saturation count; decode: values of codes * scale.
 * Indexed by kvl_dtype; up to KVL_KV_DTYPE_LAST, the KV formats. */
typedef struct kvl_convert_kernels {
    int64_t (*encode[KVL_KV_DTYPE_LAST + 1])(const float *src, int64_t n, float scale, void *dst);
    void (*decode[KVL_KV_DTYPE_LAST + 1])(const void *src, int64_t n, float scale, float *dst);
} kvl_convert_kernels;

extern const kvl_convert_kernels kvl_convert_scalar, kvl_convert_avx2, kvl_convert_avx512;

#endif
