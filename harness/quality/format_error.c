#include "harness/quality/format_error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/kv_store.h"
#include "core/names.h"
#include "quant/kv_format.h"

static const kvl_error_format formats[] = {
    {"f16", KVL_F16, false, KVL_NF4, false},
    {"bf16", KVL_BF16, false, KVL_NF4, false},
    {"fp8_e4m3", KVL_FP8_E4M3, false, KVL_NF4, false},
    {"fp8_e5m2", KVL_FP8_E5M2, false, KVL_NF4, false},
    {"int8", KVL_I8, true, KVL_NF4, false},
    {"nf4", KVL_F32, true, KVL_NF4, false},
    {"nf4_dq", KVL_F32, true, KVL_NF4, true},
    {"fp4", KVL_F32, true, KVL_FP4, false},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

kvl_status kvl_error_format_find(const char *name, const kvl_error_format **out) {
    const char *names[N_FORMATS];
    for (int i = 0; i < N_FORMATS; i++) names[i] = formats[i].name;
    int index = kvl_names_find(name, names, N_FORMATS);
    if (index < 0) {
        char line[512];
        kvl_names_unknown(line, sizeof line, "format", name, names, N_FORMATS);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = &formats[index];
    return KVL_OK;
}

double kvl_error_format_bits(const kvl_error_format *format, int64_t block) {
    if (!format->in_blocks) return 8.0 * (double)kvl_dtype_bytes(format->dtype);
    if (format->dtype == KVL_I8) return 8.0 + 32.0 / (double)block;
    double scale = format->nested ? 8.0 + 32.0 / KVL_NF4_NESTED_BLOCK : 32.0;
    return 4.0 + scale / (double)block;
}

/* ---- there and back ------------------------------------------------------------------------- */

static kvl_status through_dtype(kvl_dtype dtype, const float *x, int64_t n, float *y,
                                int64_t *saturated) {
    void *codes = malloc((size_t)n * kvl_dtype_bytes(dtype) + 1);
    if (!codes) return kvl_fail(KVL_ERR_OOM, "out of memory");
    *saturated += kvl_encode(dtype, x, n, 1.0f, codes);
    kvl_decode(dtype, codes, n, 1.0f, y);
    free(codes);
    return KVL_OK;
}

/* A scale for each block, absmax / 127, as the KV cache has one for each token and head. */
static kvl_status through_int8(int64_t block, const float *x, int64_t n, float *y,
                               int64_t *saturated) {
    int8_t codes[KVL_NF4_MAX_BLOCK];
    for (int64_t i = 0; i < n; i += block) {
        int64_t m = n - i < block ? n - i : block;
        float scale = kvl_kv_scale_for(KVL_I8, x + i, m);
        *saturated += kvl_encode(KVL_I8, x + i, m, scale > 0 ? scale : 1.0f, codes);
        kvl_decode(KVL_I8, codes, m, scale > 0 ? scale : 1.0f, y + i);
    }
    return KVL_OK;
}

static kvl_status nest(float *absmax, int64_t n) {
    uint8_t *codes = malloc((size_t)n + 1);
    float *scales = malloc((size_t)kvl_nf4_blocks(n, KVL_NF4_NESTED_BLOCK) * sizeof(float) + 1);
    float offset = 0;
    if (codes && scales) {
        kvl_nf4_nest(absmax, n, codes, scales, &offset);
        kvl_nf4_unnest(codes, n, scales, KVL_NF4_NESTED_BLOCK, offset, kvl_nf4_dynamic_map(),
                       absmax);
    }
    bool nested = codes && scales;
    free(codes);
    free(scales);
    return nested ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
}

static kvl_status through_blocks(const kvl_error_format *format, int64_t block, const float *x,
                                 int64_t n, float *y) {
    int64_t n_blocks = kvl_nf4_blocks(n, block);
    uint8_t *codes = malloc((size_t)n + 1);
    float *absmax = malloc((size_t)n_blocks * sizeof *absmax + 1);
    const float *map = kvl_nf4_map(format->type);
    kvl_status status = KVL_OK;
    if (!codes || !absmax) {
        status = kvl_fail(KVL_ERR_OOM, "out of memory");
    } else {
        int64_t bad = kvl_nf4_encode(format->type, block, x, n, codes, absmax);
        if (bad >= 0)
            status =
                kvl_fail(KVL_ERR_INPUT, "%s: NaN or infinity in values %lld to %lld", format->name,
                         (long long)(bad * block), (long long)(bad * block + block - 1));
    }
    if (status == KVL_OK && format->nested) status = nest(absmax, n_blocks);
    for (int64_t i = 0; status == KVL_OK && i < n; i++) y[i] = map[codes[i]] * absmax[i / block];
    free(codes);
    free(absmax);
    return status;
}

kvl_status kvl_error_round_trip(const kvl_error_format *format, int64_t block, const float *x,
                                int64_t n, float *y, int64_t *saturated) {
    if (!format->in_blocks) return through_dtype(format->dtype, x, n, y, saturated);
    KVL_TRY(kvl_nf4_check_block("block", block));
    if (format->dtype == KVL_I8) return through_int8(block, x, n, y, saturated);
    return through_blocks(format, block, x, n, y);
}

/* ---- sums ----------------------------------------------------------------------------------- */

void kvl_error_add(kvl_error_sums *sums, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double error = fabs((double)y[i] - x[i]);
        sums->abs += error;
        sums->square += error * error;
        sums->x_square += (double)x[i] * x[i];
        if (!(error <= sums->max_abs)) sums->max_abs = error;
        if (x[i] == 0) continue;
        sums->rel += error / fabs((double)x[i]);
        sums->n_nonzero++;
    }
    sums->n += n;
}

void kvl_error_merge(kvl_error_sums *sums, const kvl_error_sums *more) {
    sums->n += more->n;
    sums->n_nonzero += more->n_nonzero;
    sums->saturated += more->saturated;
    sums->abs += more->abs;
    sums->rel += more->rel;
    sums->square += more->square;
    sums->x_square += more->x_square;
    if (!(more->max_abs <= sums->max_abs)) sums->max_abs = more->max_abs;
}

double kvl_error_nrmse(const kvl_error_sums *sums) {
    return sqrt(sums->square / sums->x_square);
}
