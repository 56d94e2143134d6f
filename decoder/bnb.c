#include "decoder/bnb.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/json.h"

enum { NAME_BYTES = 192, MAX_STATE_BYTES = 4096 };

static const char state_prefix[] = ".quant_state.bitsandbytes__";

/* One tensor being opened: what messages and look-ups need. */
typedef struct reader {
    const char *dir, *name;
    const kvl_shards *shards;
    kvl_nf4_tensor *tensor;
    int64_t n_blocks;
    json_t *state;
} reader;

static const kvl_st_tensor *part_of(const kvl_shards *shards, const char *name, const char *part) {
    char full[NAME_BYTES];
    int n = snprintf(full, sizeof full, "%s%s", name, part);
    return n < (int)sizeof full ? kvl_shards_find(shards, full) : NULL;
}

static const kvl_st_tensor *state_of(const kvl_shards *shards, const char *name,
                                     kvl_nf4_type type) {
    char part[64];
    snprintf(part, sizeof part, "%s%s", state_prefix, kvl_nf4_type_name(type));
    return part_of(shards, name, part);
}

bool kvl_bnb_is_quantised(const kvl_shards *shards, const char *name) {
    return state_of(shards, name, KVL_NF4) || state_of(shards, name, KVL_FP4);
}

size_t kvl_bnb_state_of(const char *name) {
    static const char *const parts[] = {".nested_absmax",
                                        ".nested_quant_map",
                                        ".absmax",
                                        ".quant_map",
                                        ".quant_state.bitsandbytes__nf4",
                                        ".quant_state.bitsandbytes__fp4"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t n = strlen(parts[i]);
        if (length > n && strcmp(name + length - n, parts[i]) == 0) return length - n;
    }
    return 0;
}

/* ---- the parts ------------------------------------------------------------------------------ */

/* W<part> of this dtype and element count. */
static kvl_status find_part(const reader *r, const char *part, kvl_dtype dtype, int64_t n_elems,
                            const kvl_st_tensor **out) {
    const kvl_st_tensor *found = part_of(r->shards, r->name, part);
    if (!found)
        return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s%s' is missing", r->dir, r->name, part);
    if (found->dtype != dtype || found->n_elems != n_elems)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: tensor '%s%s' has %" PRId64 " values of %s: %" PRId64
                        " of %s are needed",
                        r->dir, r->name, part, found->n_elems, kvl_dtype_name(found->dtype),
                        n_elems, kvl_dtype_name(dtype));
    *out = found;
    return KVL_OK;
}

/* A map of n values, each within `slack` (relative) of the definition's; a copy in *out. */
static kvl_status read_map(const reader *r, const char *part, const float *want, int n,
                           double slack, float *out) {
    const kvl_st_tensor *found;
    KVL_TRY(find_part(r, part, KVL_F32, n, &found));
    KVL_TRY(kvl_st_read_f32(found, 0, n, out));
    for (int i = 0; i < n; i++)
        if (!(fabs((double)out[i] - want[i]) <= slack * fabs(want[i])))
            return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s%s'[%d] is %.9g: the format says %.9g",
                            r->dir, r->name, part, i, (double)out[i], (double)want[i]);
    return KVL_OK;
}

static kvl_status check_finite(const reader *r, const char *what, const float *x, int64_t n) {
    int64_t bad = kvl_nf4_find_nonfinite(x, n);
    if (bad < 0) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s': %s[%" PRId64 "] is %g", r->dir, r->name, what,
                    bad, (double)x[bad]);
}

/* absmax of 8 bits to float32. */
static kvl_status read_nested(const reader *r, float *absmax) {
    char label[NAME_BYTES + 64];
    snprintf(label, sizeof label, "%s: tensor '%s': quantisation state", r->dir, r->name);
    const char *dtype = NULL;
    int64_t nested_block = 0;
    double offset = 0;
    KVL_TRY(kvl_json_string(label, r->state, "nested_dtype", true, &dtype));
    KVL_TRY(kvl_json_int(label, r->state, "nested_blocksize", true, INT64_MIN, INT64_MAX,
                         &nested_block));
    KVL_TRY(kvl_json_number(label, r->state, "nested_offset", true, -1e38, 1e38, &offset));
    if (strcmp(dtype, "float32") != 0)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: nested_dtype %.32s: float32 is read", label,
                        dtype);
    if (nested_block != KVL_NF4_NESTED_BLOCK)
        return kvl_fail(KVL_ERR_INPUT, "%s: nested_blocksize %" PRId64 ": %d is needed", label,
                        nested_block, KVL_NF4_NESTED_BLOCK);
    const kvl_st_tensor *codes, *nested;
    float map[256];
    int64_t n_scales = kvl_nf4_blocks(r->n_blocks, nested_block);
    KVL_TRY(find_part(r, ".absmax", KVL_U8, r->n_blocks, &codes));
    KVL_TRY(find_part(r, ".nested_absmax", KVL_F32, n_scales, &nested));
    KVL_TRY(read_map(r, ".nested_quant_map", kvl_nf4_dynamic_map(), 256, 0x1p-21, map));
    float *scales = malloc((size_t)n_scales * sizeof *scales);
    if (!scales) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", r->dir);
    kvl_status status = kvl_st_read_f32(nested, 0, n_scales, scales);
    if (status == KVL_OK) status = check_finite(r, "nested_absmax", scales, n_scales);
    if (status == KVL_OK)
        kvl_nf4_unnest(codes->data, r->n_blocks, scales, nested_block, (float)offset, map, absmax);
    free(scales);
    return status;
}

static kvl_status read_absmax(const reader *r, float *absmax) {
    const kvl_st_tensor *found;
    if (r->tensor->nested) {
        KVL_TRY(read_nested(r, absmax));
    } else {
        KVL_TRY(find_part(r, ".absmax", KVL_F32, r->n_blocks, &found));
        KVL_TRY(kvl_st_read_f32(found, 0, r->n_blocks, absmax));
    }
    return check_finite(r, "absmax", absmax, r->n_blocks);
}

/* ---- the state ------------------------------------------------------------------------------ */

/* The JSON text of the state, which must be of the type that its name says. */
static kvl_status load_state(reader *r) {
    bool is_nf4 = state_of(r->shards, r->name, KVL_NF4);
    if (is_nf4 && state_of(r->shards, r->name, KVL_FP4))
        return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s' has states of nf4 and of fp4", r->dir,
                        r->name);
    r->tensor->type = is_nf4 ? KVL_NF4 : KVL_FP4;
    const kvl_st_tensor *text = state_of(r->shards, r->name, r->tensor->type);
    char label[NAME_BYTES + 64];
    snprintf(label, sizeof label, "%s: tensor '%s': quantisation state", r->dir, r->name);
    if (text->dtype != KVL_U8 || text->bytes > MAX_STATE_BYTES)
        return kvl_fail(KVL_ERR_INPUT, "%s: %" PRIu64 " bytes of %s: at most %d of u8", label,
                        text->bytes, kvl_dtype_name(text->dtype), MAX_STATE_BYTES);
    KVL_TRY(kvl_json_parse(label, text->data, text->bytes, &r->state));
    const char *type = NULL;
    KVL_TRY(kvl_json_string(label, r->state, "quant_type", true, &type));
    if (strcmp(type, kvl_nf4_type_name(r->tensor->type)) != 0)
        return kvl_fail(KVL_ERR_INPUT, "%s: quant_type %.32s: its name says %s", label, type,
                        kvl_nf4_type_name(r->tensor->type));
    return KVL_OK;
}

static kvl_status check_shape(const reader *r, int64_t rows, int64_t cols) {
    const json_t *shape = json_object_get(r->state, "shape");
    const json_t *first = json_array_get(shape, 0), *second = json_array_get(shape, 1);
    if (json_array_size(shape) == 2 && json_is_integer(first) && json_is_integer(second) &&
        json_integer_value(first) == rows && json_integer_value(second) == cols)
        return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT,
                    "%s: tensor '%s': quantisation state: shape [%" PRId64 ", %" PRId64
                    "]: config.json asks for [%" PRId64 ", %" PRId64 "]",
                    r->dir, r->name, (int64_t)json_integer_value(first),
                    (int64_t)json_integer_value(second), rows, cols);
}

static kvl_status read_state(reader *r, int64_t rows, int64_t cols) {
    kvl_nf4_tensor *tensor = r->tensor;
    KVL_TRY(load_state(r));
    KVL_TRY(check_shape(r, rows, cols));
    char label[NAME_BYTES + 64];
    snprintf(label, sizeof label, "%s: tensor '%s': blocksize", r->dir, r->name);
    KVL_TRY(kvl_json_int(label, r->state, "blocksize", true, INT64_MIN, INT64_MAX, &tensor->block));
    KVL_TRY(kvl_nf4_check_block(label, tensor->block));
    tensor->n_elems = rows * cols; /* both passed kvl_config_check: the product fits */
    r->n_blocks = kvl_nf4_blocks(tensor->n_elems, tensor->block);
    const kvl_st_tensor *packed = kvl_shards_find(r->shards, r->name);
    uint64_t bytes = ((uint64_t)tensor->n_elems + 1) / 2;
    if (!packed || packed->bytes != bytes)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: tensor '%s' has %" PRIu64 " bytes: %" PRId64
                        " codes of 4 bits are %" PRIu64,
                        r->dir, r->name, packed ? packed->bytes : 0, tensor->n_elems, bytes);
    tensor->packed = packed->data;
    float map[16];
    KVL_TRY(read_map(r, ".quant_map", kvl_nf4_map(tensor->type), 16, 0, map));
    tensor->nested = part_of(r->shards, r->name, ".nested_absmax") ||
                     json_object_get(r->state, "nested_blocksize");
    return KVL_OK;
}

kvl_status kvl_bnb_open(const char *dir, const kvl_shards *shards, const char *name, int64_t rows,
                        int64_t cols, kvl_nf4_tensor *out) {
    reader r = {.dir = dir, .name = name, .shards = shards, .tensor = out};
    *out = (kvl_nf4_tensor){0};
    kvl_status status = read_state(&r, rows, cols);
    float *absmax = NULL;
    if (status == KVL_OK && !(absmax = malloc((size_t)r.n_blocks * sizeof *absmax)))
        status = kvl_fail(KVL_ERR_OOM, "%s: out of memory", dir);
    if (status == KVL_OK) status = read_absmax(&r, absmax);
    json_decref(r.state);
    if (status == KVL_OK)
        out->absmax = absmax;
    else
        free(absmax);
    return status;
}
