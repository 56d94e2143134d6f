/* nf4.json and nf4.safetensors: bitsandbytes' bytes and values of each case, made again. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/json.h"
#include "harness/verify/codec.h"
#include "harness/verify/golden.h"
#include "harness/verify/oracle.h"
#include "quant/nf4.h"

typedef struct nf4_case {
    const kvl_safetensors *st;
    const char *path, *id;
    kvl_nf4_type type;
    kvl_dtype dtype; /* of the weight that went in */
    int64_t block, n, n_blocks;
    bool nested;
    float *w, *absmax, *scales;
    uint8_t *codes, *packed, *nested_codes;
    float offset;
} nf4_case;

static kvl_status part(const nf4_case *c, const char *name, kvl_dtype dtype, int64_t n,
                       const kvl_st_tensor **out) {
    char full[96];
    snprintf(full, sizeof full, "%.40s.%s", c->id, name);
    return kvl_verify_golden_tensor(c->st, c->path, full, dtype, n, out);
}

static kvl_status parse(const json_t *entry, nf4_case *c) {
    static const char *const dtypes[] = {"float32", "float16", "bfloat16"};
    const char *type = NULL, *dtype = NULL;
    KVL_TRY(kvl_json_string(c->path, entry, "id", true, &c->id));
    KVL_TRY(kvl_json_string(c->path, entry, "quant_type", true, &type));
    KVL_TRY(kvl_json_string(c->path, entry, "dtype", true, &dtype));
    KVL_TRY(kvl_json_bool(c->path, entry, "double_quant", true, &c->nested));
    KVL_TRY(kvl_json_int(c->path, entry, "blocksize", true, 0, 1 << 20, &c->block));
    KVL_TRY(kvl_nf4_check_block("nf4.json: blocksize", c->block));
    int found = -1;
    for (int i = 0; i < 3; i++)
        if (strcmp(dtype, dtypes[i]) == 0) found = i;
    if (found < 0 || (strcmp(type, "nf4") != 0 && strcmp(type, "fp4") != 0))
        return kvl_fail(KVL_ERR_INPUT, "%s: case %.40s: quant_type %.16s of dtype %.16s", c->path,
                        c->id, type, dtype);
    c->dtype = found == 0 ? KVL_F32 : found == 1 ? KVL_F16 : KVL_BF16;
    c->type = strcmp(type, "nf4") == 0 ? KVL_NF4 : KVL_FP4;
    return KVL_OK;
}

static kvl_status quantise(nf4_case *c) {
    const kvl_st_tensor *weight;
    KVL_TRY(part(c, "weight", c->dtype, -1, &weight));
    c->n = weight->n_elems;
    c->n_blocks = kvl_nf4_blocks(c->n, c->block);
    c->w = malloc((size_t)c->n * sizeof(float) + 1);
    c->absmax = malloc((size_t)c->n_blocks * sizeof(float) + 1);
    c->scales = malloc((size_t)c->n_blocks * sizeof(float) + 1);
    c->codes = malloc((size_t)c->n + 1);
    c->packed = malloc((size_t)c->n + 1);
    c->nested_codes = malloc((size_t)c->n_blocks + 1);
    if (!c->w || !c->absmax || !c->scales || !c->codes || !c->packed || !c->nested_codes)
        return kvl_fail(KVL_ERR_OOM, "%s: out of memory", c->path);
    KVL_TRY(kvl_st_read_f32(weight, 0, c->n, c->w));
    kvl_nf4_encode(c->type, c->block, c->w, c->n, c->codes, c->absmax);
    kvl_nf4_pack(c->type, c->codes, c->n, c->packed);
    if (c->nested && c->n)
        kvl_nf4_nest(c->absmax, c->n_blocks, c->nested_codes, c->scales, &c->offset);
    return KVL_OK;
}

/* Whether all weights of the blocks that byte `at` has codes of are 0: there only values count. */
static bool is_zero_block(const nf4_case *c, int64_t at) {
    int64_t from = 2 * at / c->block * c->block;
    for (int64_t i = from; i < from + c->block && i < c->n; i++)
        if (c->w[i] != 0) return false;
    return true;
}

static kvl_status compare(const nf4_case *c, const char *name, kvl_dtype dtype, const void *got,
                          int64_t n, kvl_verify_result *result) {
    const kvl_st_tensor *want;
    KVL_TRY(part(c, name, dtype, n, &want));
    size_t width = kvl_dtype_bytes(dtype);
    bool is_packed = strcmp(name, "packed") == 0;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *a = (const uint8_t *)got + (size_t)i * width;
        const uint8_t *b = (const uint8_t *)want->data + (size_t)i * width;
        if (memcmp(a, b, width) != 0 && !(is_packed && is_zero_block(c, i)))
            kvl_verify_failed(result, "%s[%lld] has other bytes than the golden", name,
                              (long long)i);
        result->n_rows++;
    }
    return KVL_OK;
}

/* Values, of our codes and of the golden's own. */
static kvl_status compare_values(const nf4_case *c, kvl_verify_result *result) {
    const kvl_st_tensor *want, *packed;
    KVL_TRY(part(c, "dequantised", c->dtype, c->n, &want));
    KVL_TRY(part(c, "packed", KVL_U8, (c->n + 1) / 2, &packed));
    if (c->nested)
        kvl_nf4_unnest(c->nested_codes, c->n_blocks, c->scales, KVL_NF4_NESTED_BLOCK, c->offset,
                       kvl_nf4_dynamic_map(), c->absmax);
    for (int own = 0; own < 2; own++) {
        kvl_nf4_decode(c->type, c->block, own ? c->packed : packed->data, c->absmax, 0, c->n, c->w);
        for (int64_t i = 0; i < c->n; i++) {
            double got = kvl_verify_round(c->dtype, c->w[i]);
            double expected = kvl_verify_value_at(c->dtype, want->data, i);
            if (!(got == expected))
                kvl_verify_failed(result, "value [%lld] is %.9g, golden %.9g", (long long)i, got,
                                  expected);
        }
    }
    return KVL_OK;
}

static kvl_status check(nf4_case *c, kvl_verify_result *result) {
    KVL_TRY(quantise(c));
    KVL_TRY(compare(c, "packed", KVL_U8, c->packed, (c->n + 1) / 2, result));
    if (c->nested) {
        int64_t n_scales = kvl_nf4_blocks(c->n_blocks, KVL_NF4_NESTED_BLOCK);
        KVL_TRY(compare(c, "absmax", KVL_U8, c->nested_codes, c->n_blocks, result));
        KVL_TRY(compare(c, "nested_absmax", KVL_F32, c->scales, n_scales, result));
        KVL_TRY(compare(c, "nested_offset", KVL_F32, &c->offset, 1, result));
        KVL_TRY(compare(c, "nested_quant_map", KVL_F32, kvl_nf4_dynamic_map(), 256, result));
    } else {
        KVL_TRY(compare(c, "absmax", KVL_F32, c->absmax, c->n_blocks, result));
    }
    return compare_values(c, result);
}

static void release(nf4_case *c) {
    free(c->w), free(c->absmax), free(c->scales);
    free(c->codes), free(c->packed), free(c->nested_codes);
}

static kvl_status run_cases(kvl_verify_golden_run *run, const kvl_safetensors *st, const char *path,
                            const json_t *cases) {
    if (!json_is_array(cases)) return kvl_fail(KVL_ERR_INPUT, "%s: not an array of cases", path);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        nf4_case c = {.st = st, .path = path};
        kvl_verify_result result;
        KVL_TRY(parse(json_array_get(cases, i), &c));
        if (!kvl_verify_golden_wants(run, &result, "golden/nf4/%.60s", c.id)) continue;
        kvl_status status = check(&c, &result);
        release(&c);
        KVL_TRY(status);
        kvl_verify_golden_report(run, &result);
    }
    return KVL_OK;
}

kvl_status kvl_verify_golden_nf4(kvl_verify_golden_run *run) {
    char path[4096], list[4096];
    kvl_safetensors *st = NULL;
    json_t *cases = NULL;
    if (!kvl_verify_golden_path(run->dir, "nf4.safetensors", path, sizeof path)) return KVL_OK;
    if (!kvl_verify_golden_path(run->dir, "nf4.json", list, sizeof list))
        return kvl_fail(KVL_ERR_INPUT, "%s: nf4.json is not beside it", path);
    KVL_TRY(kvl_st_open(path, &st));
    kvl_status status = kvl_json_load(list, &cases);
    if (status == KVL_OK) status = run_cases(run, st, path, cases);
    json_decref(cases);
    kvl_st_close(st);
    return status;
}
