/* Element types that tensors in files, weights, activations and the KV cache can have.
 * Block-quantised weight formats (Q4_0, NF4, ...) are not dtypes: see quant/. */
#ifndef KVL_CORE_DTYPE_H
#define KVL_CORE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef enum kvl_dtype {
    KVL_F32 = 0,
    KVL_F16,      /* IEEE 754 binary16 */
    KVL_BF16,     /* upper half of binary32 */
    KVL_FP8_E4M3, /* OCP 8-bit, finite only ("fn"): max 448, no infinity, NaN = 0x7f/0xff */
    KVL_FP8_E5M2, /* OCP 8-bit, IEEE-like: max 57344 */
    KVL_I8,       /* signed integer: -127 to 127 of a scale */
    KVL_F64,
    KVL_U8,
    KVL_I32,
    KVL_I64,
    KVL_N_DTYPES,
    KVL_KV_DTYPE_LAST = KVL_I8 /* up to here a KV cache can hold them */
} kvl_dtype;

/* Bytes of one element. */
size_t kvl_dtype_bytes(kvl_dtype dtype);

/* kvlab's name: "f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "f64", "u8", "i32",
 * "i64". */
const char *kvl_dtype_name(kvl_dtype dtype);

/* Parses kvlab's name. KVL_ERR_INPUT with the nearest name for an unknown one. */
kvl_status kvl_dtype_parse(const char *name, kvl_dtype *out);

#endif
