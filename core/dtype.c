#include "core/dtype.h"

#include "core/names.h"

static const char *const names[KVL_N_DTYPES] = {"f32",  "f16", "bf16", "fp8_e4m3", "fp8_e5m2",
                                                "int8", "f64", "u8",   "i32",      "i64"};
static const size_t bytes[KVL_N_DTYPES] = {4, 2, 2, 1, 1, 1, 8, 1, 4, 8};

size_t kvl_dtype_bytes(kvl_dtype dtype) {
    return bytes[dtype];
}

const char *kvl_dtype_name(kvl_dtype dtype) {
    return (unsigned)dtype < KVL_N_DTYPES ? names[dtype] : "?";
}

kvl_status kvl_dtype_parse(const char *name, kvl_dtype *out) {
    int index = kvl_names_find(name, names, KVL_N_DTYPES);
    if (index < 0) {
        char line[512];
        kvl_names_unknown(line, sizeof line, "dtype", name, names, KVL_N_DTYPES);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = (kvl_dtype)index;
    return KVL_OK;
}
