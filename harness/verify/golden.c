/* kvlab verify --golden DIR: the parts in turn; the shared tools of all parts; the formats. */
#include "harness/verify/golden.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <fnmatch.h>

#include "harness/verify/codec.h"
#include "harness/verify/oracle.h"
#include "quant/gguf_blocks.h"
#include "quant/kv_format.h"

bool kvl_verify_golden_path(const char *dir, const char *name, char *out, size_t out_bytes) {
    struct stat info;
    snprintf(out, out_bytes, "%s/%s", dir, name);
    return stat(out, &info) == 0;
}

static bool contains_one(const char *list, const char *id) {
    size_t id_bytes = strlen(id);
    while (*list) {
        size_t n = strcspn(list, ",");
        for (size_t i = 0; n && i + n <= id_bytes; i++)
            if (strncmp(id + i, list, n) == 0) return true;
        list += n + (list[n] == ',');
    }
    return false;
}

bool kvl_verify_golden_wants(kvl_verify_golden_run *run, kvl_verify_result *result,
                             const char *format, ...) {
    char id[KVL_VERIFY_ID_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(id, sizeof id, format, list);
    va_end(list);
    kvl_verify_result_clear(result, id);
    if (run->options->case_id && fnmatch(run->options->case_id, id, 0) != 0) return false;
    if (run->options->filter && !contains_one(run->options->filter, id)) return false;
    if (!run->options->list) return true;
    kvl_verify_skipped(result, "listed");
    kvl_verify_golden_report(run, result);
    return false;
}

void kvl_verify_golden_report(kvl_verify_golden_run *run, const kvl_verify_result *result) {
    int64_t *totals[] = {&run->totals->passed, &run->totals->failed, &run->totals->skipped};
    ++*totals[result->state];
    if (run->options->on_result) run->options->on_result(run->options->user, result);
}

kvl_status kvl_verify_golden_tensor(const kvl_safetensors *st, const char *path, const char *name,
                                    kvl_dtype dtype, int64_t n_elems, const kvl_st_tensor **out) {
    *out = kvl_st_find(st, name);
    if (!*out) return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s' is missing", path, name);
    if ((*out)->dtype != dtype)
        return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s': dtype %s, not %s", path, name,
                        kvl_dtype_name((*out)->dtype), kvl_dtype_name(dtype));
    if (n_elems >= 0 && (*out)->n_elems != n_elems)
        return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s': %lld elements, not %lld", path, name,
                        (long long)(*out)->n_elems, (long long)n_elems);
    return KVL_OK;
}

/* ---- fp8.safetensors --------------------------------------------------------------------------
 */

static bool agrees(kvl_dtype to, uint32_t got, uint32_t want) {
    double a = kvl_verify_value(to, got), b = kvl_verify_value(to, want);
    if (isnan(b)) return isnan(a);
    /* Where torch gives an infinity of fp8_e5m2, kvlab saturates with the same sign. */
    if (isinf(b) && to == KVL_FP8_E5M2) return a == copysign(kvl_verify_max_finite(to), b);
    return a == b && !signbit(a) == !signbit(b);
}

/* n stored values of dtype `from` (bytes at `in`, or all 65,536 patterns when NULL) against codes.
 */
static void compare_codes(kvl_dtype from, const void *in, kvl_dtype to, const kvl_st_tensor *want,
                          kvl_verify_result *result) {
    const kvl_kv_format *format = kvl_kv_format_of(to);
    for (int64_t i = 0; i < want->n_elems; i++) {
        uint32_t source = in ? kvl_verify_code_at(from, in, i) : (uint32_t)i;
        float x = (float)kvl_verify_value(from, source);
        uint8_t stored[4] = {0};
        format->encode(&x, 1, 1.0f, stored);
        uint32_t got = kvl_verify_code_at(to, stored, 0),
                 expected = kvl_verify_code_at(to, want->data, i);
        if (!agrees(to, got, expected))
            kvl_verify_failed(result, "[%lld] %.9g gives code 0x%x, golden 0x%x", (long long)i,
                              (double)x, got, expected);
        result->n_rows++;
    }
}

typedef struct conversion {
    const char *name, *source; /* source tensor; NULL: all patterns of `from` */
    kvl_dtype from, to, stored;
} conversion;

static const conversion conversions[] = {
    {"bfloat16_to_float8_e4m3fn", NULL, KVL_BF16, KVL_FP8_E4M3, KVL_U8},
    {"bfloat16_to_float8_e5m2", NULL, KVL_BF16, KVL_FP8_E5M2, KVL_U8},
    {"float16_to_float8_e4m3fn", NULL, KVL_F16, KVL_FP8_E4M3, KVL_U8},
    {"float16_to_float8_e5m2", NULL, KVL_F16, KVL_FP8_E5M2, KVL_U8},
    {"f32_to_e4m3fn", "f32", KVL_F32, KVL_FP8_E4M3, KVL_U8},
    {"f32_to_e5m2", "f32", KVL_F32, KVL_FP8_E5M2, KVL_U8},
    {"f32_to_bf16", "f32", KVL_F32, KVL_BF16, KVL_BF16},
    {"f32_to_f16", "f32", KVL_F32, KVL_F16, KVL_F16},
};

static kvl_status run_conversion(kvl_verify_golden_run *run, const kvl_safetensors *st,
                                 const char *path, const conversion *c) {
    const kvl_st_tensor *want, *source = NULL;
    kvl_verify_result result;
    if (!kvl_verify_golden_wants(run, &result, "golden/fp8/%s", c->name)) return KVL_OK;
    KVL_TRY(kvl_verify_golden_tensor(st, path, c->name, c->stored, c->source ? -1 : 65536, &want));
    if (c->source)
        KVL_TRY(kvl_verify_golden_tensor(st, path, c->source, KVL_F32, want->n_elems, &source));
    compare_codes(c->from, source ? source->data : NULL, c->to, want, &result);
    kvl_verify_golden_report(run, &result);
    return KVL_OK;
}

static kvl_status run_decoding(kvl_verify_golden_run *run, const kvl_safetensors *st,
                               const char *path, const char *name, kvl_dtype dtype) {
    const kvl_st_tensor *want;
    kvl_verify_result result;
    if (!kvl_verify_golden_wants(run, &result, "golden/fp8/%s", name)) return KVL_OK;
    KVL_TRY(kvl_verify_golden_tensor(st, path, name, KVL_F32, 256, &want));
    for (int code = 0; code < 256; code++) {
        uint8_t stored = (uint8_t)code;
        float value;
        kvl_kv_format_of(dtype)->decode(&stored, 1, 1.0f, &value);
        double expected = kvl_verify_value_at(KVL_F32, want->data, code);
        if (!(value == expected && !signbit(value) == !signbit(expected)) &&
            !(isnan(value) && isnan(expected)))
            kvl_verify_failed(&result, "code 0x%x is %.9g, golden %.9g", code, (double)value,
                              expected);
        result.n_rows++;
    }
    kvl_verify_golden_report(run, &result);
    return KVL_OK;
}

static kvl_status run_fp8(kvl_verify_golden_run *run, const kvl_safetensors *st, const char *path) {
    for (size_t i = 0; i < sizeof conversions / sizeof *conversions; i++)
        KVL_TRY(run_conversion(run, st, path, &conversions[i]));
    KVL_TRY(run_decoding(run, st, path, "float8_e4m3fn_to_f32", KVL_FP8_E4M3));
    return run_decoding(run, st, path, "float8_e5m2_to_f32", KVL_FP8_E5M2);
}

/* ---- gguf_blocks.safetensors ------------------------------------------------------------------
 */

/* The block format of a tensor "Q4_1.raw", NULL for any other name. */
static const kvl_gguf_block *block_of(const char *tensor, char *type, size_t type_bytes) {
    size_t n = strlen(tensor);
    if (n < 5 || n - 4 >= type_bytes || strcmp(tensor + n - 4, ".raw") != 0) return NULL;
    for (size_t i = 0; i < n - 4; i++)
        type[i] = (char)(tensor[i] >= 'A' && tensor[i] <= 'Z' ? tensor[i] + 32 : tensor[i]);
    type[n - 4] = '\0';
    for (size_t i = 0; i < kvl_gguf_block_count(); i++)
        if (strcmp(kvl_gguf_block_at(i)->name, type) == 0) return kvl_gguf_block_at(i);
    return NULL;
}

static kvl_status compare_blocks(const kvl_gguf_block *block, const kvl_st_tensor *raw,
                                 const kvl_st_tensor *want, kvl_verify_result *result) {
    float *values = malloc((size_t)(want->n_elems + 1) * sizeof *values);
    if (!values) return kvl_fail(KVL_ERR_OOM, "out of memory for golden blocks");
    block->decode(raw->data, want->n_elems, values);
    result->max_abs = result->bound = 0;
    for (int64_t i = 0; i < want->n_elems; i++) {
        double expected = kvl_verify_value_at(KVL_F32, want->data, i);
        double error = fabs(values[i] - expected);
        if (!isnan(result->max_abs) && !(error <= result->max_abs)) result->max_abs = error;
        if (!(error == 0))
            kvl_verify_failed(result, "[%lld] decodes to %.9g, golden %.9g", (long long)i,
                              (double)values[i], expected);
        result->n_rows++;
    }
    free(values);
    return KVL_OK;
}

static kvl_status run_gguf(kvl_verify_golden_run *run, const kvl_safetensors *st,
                           const char *path) {
    for (size_t i = 0; i < kvl_st_count(st); i++) {
        char type[32] = "", name[48];
        kvl_verify_result result;
        const kvl_st_tensor *raw = kvl_st_at(st, i), *want;
        const kvl_gguf_block *block = block_of(raw->name, type, sizeof type);
        if (!type[0]) continue;
        if (!kvl_verify_golden_wants(run, &result, "golden/gguf_blocks/%s", type)) continue;
        snprintf(name, sizeof name, "%.*s.f32", (int)(strlen(raw->name) - 4), raw->name);
        KVL_TRY(kvl_verify_golden_tensor(st, path, name, KVL_F32, -1, &want));
        if (!block) {
            kvl_verify_skipped(&result, "kvlab does not decode this block format");
        } else if (raw->dtype != KVL_U8 || want->n_elems % block->block_elems ||
                   raw->n_elems != want->n_elems / block->block_elems * block->block_bytes) {
            return kvl_fail(KVL_ERR_INPUT, "%s: %s: %lld bytes for %lld values of %s", path,
                            raw->name, (long long)raw->n_elems, (long long)want->n_elems, type);
        } else {
            KVL_TRY(compare_blocks(block, raw, want, &result));
        }
        kvl_verify_golden_report(run, &result);
    }
    return KVL_OK;
}

/* ---- the parts --------------------------------------------------------------------------------
 */

typedef kvl_status (*part_of_file)(kvl_verify_golden_run *run, const kvl_safetensors *st,
                                   const char *path);

static kvl_status run_file(kvl_verify_golden_run *run, const char *name, part_of_file part) {
    char path[4096];
    kvl_safetensors *st;
    if (!kvl_verify_golden_path(run->dir, name, path, sizeof path)) return KVL_OK;
    KVL_TRY(kvl_st_open(path, &st));
    kvl_status status = part(run, st, path);
    kvl_st_close(st);
    return status;
}

kvl_status kvl_verify_golden_formats(kvl_verify_golden_run *run) {
    kvl_status status = run_file(run, "fp8.safetensors", run_fp8);
    kvl_status gguf = run_file(run, "gguf_blocks.safetensors", run_gguf);
    return status == KVL_OK ? gguf : status;
}

kvl_status kvl_verify_golden(const char *dir, const kvl_verify_options *options,
                             kvl_verify_totals *totals) {
    static kvl_status (*const parts[])(kvl_verify_golden_run *) = {
        kvl_verify_golden_formats, kvl_verify_golden_nf4,     kvl_verify_golden_attention,
        kvl_verify_golden_models,  kvl_verify_golden_smollm2,
    };
    kvl_verify_golden_run run = {.options = options, .totals = totals, .dir = dir};
    struct stat info;
    char first[1024] = "";
    kvl_status worst = KVL_OK;
    memset(totals, 0, sizeof *totals);
    if (stat(dir, &info) != 0 || !S_ISDIR(info.st_mode))
        return kvl_fail(KVL_ERR_INPUT, "%s: not a folder", dir);
    if (options->model && stat(options->model, &info) != 0)
        return kvl_fail(KVL_ERR_INPUT, "model '%s': no such file or folder", options->model);
    KVL_TRY(kvl_verify_scope_make(options, &run.scope));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        kvl_status status = parts[i](&run);
        if (status == KVL_OK || worst != KVL_OK) continue;
        worst = status;
        snprintf(first, sizeof first, "%s", kvl_message());
    }
    return worst == KVL_OK ? KVL_OK : kvl_fail(worst, "%s", first);
}
