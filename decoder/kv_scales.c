#define _GNU_SOURCE
#include "decoder/kv_scales.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "decoder/json.h"
#include "decoder/shards.h"
#include "quant/kv_format.h"

static const char *const FORMAT = "kvlab KV scales 1";

kvl_status kvl_kv_scales_create(const kvl_config *config, kvl_kv_scales **out) {
    size_t n = (size_t)config->n_layers * (size_t)config->n_kv_heads;
    kvl_kv_scales *s = calloc(1, sizeof *s);
    if (s) {
        s->n_layers = config->n_layers;
        s->n_kv_heads = config->n_kv_heads;
        s->k_absmax = calloc(n, sizeof *s->k_absmax);
        s->v_absmax = calloc(n, sizeof *s->v_absmax);
    }
    if (!s || !s->k_absmax || !s->v_absmax) {
        kvl_kv_scales_free(s);
        return kvl_fail(KVL_ERR_OOM, "out of memory: KV scales");
    }
    *out = s;
    return KVL_OK;
}

void kvl_kv_scales_free(kvl_kv_scales *s) {
    if (!s) return;
    free(s->k_absmax);
    free(s->v_absmax);
    free(s);
}

void kvl_kv_scales_of(const kvl_kv_scales *s, kvl_dtype dtype, bool is_v, bool per_head,
                      float *out) {
    const float max = kvl_kv_format_of(dtype)->max_finite;
    for (int32_t layer = 0; layer < s->n_layers; layer++) {
        const float *absmax = (is_v ? s->v_absmax : s->k_absmax) + layer * s->n_kv_heads;
        float top = 0.0f;
        for (int32_t h = 0; h < s->n_kv_heads; h++) top = fmaxf(top, absmax[h]);
        for (int32_t h = 0; h < s->n_kv_heads; h++) {
            float most = per_head ? absmax[h] : top, scale = most / max;
            /* Rounded down, it would put the largest value itself past the range. */
            while (most / scale > max) scale = nextafterf(scale, INFINITY);
            out[layer * s->n_kv_heads + h] = scale > 0.0f ? scale : 1.0f;
        }
    }
}

char *kvl_kv_scales_path(const char *spec) {
    struct stat info;
    char *path = NULL;
    if (stat(spec, &info) != 0) return NULL;
    int n = S_ISDIR(info.st_mode) ? asprintf(&path, "%s/kv_scales.json", spec)
                                  : asprintf(&path, "%s.kv_scales.json", spec);
    return n < 0 ? NULL : path;
}

/* ---- reading --------------------------------------------------------------------------------- */

static kvl_status read_row(const char *path, const char *key, const json_t *row, int32_t layer,
                           int32_t n_heads, float *out) {
    if (!json_is_array(row) || json_array_size(row) != (size_t)n_heads)
        return kvl_fail(KVL_ERR_INPUT, "%s: %s[%d]: must be %d numbers, one a KV head", path, key,
                        layer, n_heads);
    for (int32_t h = 0; h < n_heads; h++) {
        const json_t *item = json_array_get(row, (size_t)h);
        double x = json_number_value(item);
        if (!json_is_number(item) || !(x >= 0) || x > 0x1.fffffep127)
            return kvl_fail(KVL_ERR_INPUT, "%s: %s[%d][%d]: must be a finite number, 0 or above",
                            path, key, layer, h);
        out[h] = (float)x;
    }
    return KVL_OK;
}

static kvl_status read_table(const char *path, const json_t *root, const char *key,
                             const kvl_kv_scales *s, float *out) {
    const json_t *rows = json_object_get(root, key);
    if (!json_is_array(rows) || json_array_size(rows) != (size_t)s->n_layers)
        return kvl_fail(KVL_ERR_INPUT, "%s: %s: must hold %d layers", path, key, s->n_layers);
    for (int32_t layer = 0; layer < s->n_layers; layer++)
        KVL_TRY(read_row(path, key, json_array_get(rows, (size_t)layer), layer, s->n_kv_heads,
                         out + (int64_t)layer * s->n_kv_heads));
    return KVL_OK;
}

static kvl_status read_file(const char *path, const json_t *root, const kvl_config *config,
                            kvl_kv_scales **out) {
    const char *format = NULL;
    if (!json_is_object(root)) return kvl_fail(KVL_ERR_INPUT, "%s: must be an object", path);
    KVL_TRY(kvl_json_string(path, root, "format", true, &format));
    if (strcmp(format, FORMAT) != 0)
        return kvl_fail(KVL_ERR_INPUT, "%s: format '%.40s': must be '%s'", path, format, FORMAT);
    KVL_TRY(kvl_kv_scales_create(config, out));
    (*out)->per_head = true;
    snprintf((*out)->source, sizeof(*out)->source, "kv_scales.json");
    KVL_TRY(read_table(path, root, "k_absmax", *out, (*out)->k_absmax));
    return read_table(path, root, "v_absmax", *out, (*out)->v_absmax);
}

kvl_status kvl_kv_scales_load(const char *spec, const kvl_config *config, kvl_kv_scales **out) {
    char *path = kvl_kv_scales_path(spec);
    json_t *root = NULL;
    *out = NULL;
    kvl_status status = KVL_OK;
    if (path && access(path, F_OK) == 0) {
        status = kvl_json_load(path, &root);
        if (status == KVL_OK) status = read_file(path, root, config, out);
    }
    if (status != KVL_OK) {
        kvl_kv_scales_free(*out);
        *out = NULL;
    }
    json_decref(root);
    free(path);
    return status;
}

/* e4m3's scale of one half of a layer, as absmax of all its heads. */
static kvl_status read_tensor(const char *dir, const kvl_shards *shards, kvl_kv_scales *s,
                              int32_t layer, bool is_v) {
    char name[64];
    float scale = 0;
    snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_scale", layer, is_v ? 'v' : 'k');
    const kvl_st_tensor *tensor = kvl_shards_find(shards, name);
    if (!tensor)
        return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s' is missing, other layers have theirs", dir,
                        name);
    if (tensor->n_elems != 1)
        return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s' has %lld elements: 1", dir, name,
                        (long long)tensor->n_elems);
    KVL_TRY(kvl_st_read_f32(tensor, 0, 1, &scale));
    const float most = FLT_MAX / kvl_kv_format_of(KVL_FP8_E4M3)->max_finite;
    if (!(scale > 0) || scale > most)
        return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s' is %g: above 0 and at most %g", dir, name,
                        (double)scale, (double)most);
    float *absmax = (is_v ? s->v_absmax : s->k_absmax) + layer * s->n_kv_heads;
    for (int32_t h = 0; h < s->n_kv_heads; h++)
        absmax[h] = scale * kvl_kv_format_of(KVL_FP8_E4M3)->max_finite;
    return KVL_OK;
}

kvl_status kvl_kv_scales_from_shards(const char *dir, const kvl_shards *shards,
                                     const kvl_config *config, kvl_kv_scales **out) {
    bool any = false;
    *out = NULL;
    for (size_t f = 0; f < shards->n_files; f++) {
        for (size_t i = 0; i < kvl_st_count(shards->files[f]); i++) {
            int32_t layer;
            bool is_v;
            any |= kvl_kv_scale_tensor(kvl_st_at(shards->files[f], i)->name, config->n_layers,
                                       &layer, &is_v);
        }
    }
    if (!any) return KVL_OK;
    KVL_TRY(kvl_kv_scales_create(config, out));
    snprintf((*out)->source, sizeof(*out)->source, "k_scale and v_scale tensors");
    kvl_status status = KVL_OK;
    for (int32_t i = 0; status == KVL_OK && i < 2 * config->n_layers; i++)
        status = read_tensor(dir, shards, *out, i / 2, i % 2);
    if (status != KVL_OK) {
        kvl_kv_scales_free(*out);
        *out = NULL;
    }
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Nine digits, as many as a float32 needs. */
static json_t *table(const kvl_kv_scales *s, const float *absmax) {
    json_t *rows = json_array();
    for (int32_t layer = 0; layer < s->n_layers; layer++) {
        json_t *row = json_array();
        for (int32_t h = 0; h < s->n_kv_heads; h++)
            json_array_append_new(row, json_real((double)absmax[layer * s->n_kv_heads + h]));
        json_array_append_new(rows, row);
    }
    return rows;
}

kvl_status kvl_kv_scales_write(const char *path, const kvl_kv_scales *s, const char *text,
                               int64_t n_tokens) {
    const char *slash = strrchr(text, '/');
    kvl_fail(KVL_OK, "%s", slash ? slash + 1 : text); /* what JSON cannot hold is replaced */
    json_t *root = json_pack("{s:s, s:s, s:I, s:o, s:o}", "format", FORMAT, "text", kvl_message(),
                             "tokens", (json_int_t)n_tokens, "k_absmax", table(s, s->k_absmax),
                             "v_absmax", table(s, s->v_absmax));
    char *json = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    char *temporary = NULL;
    kvl_status status = KVL_OK;
    if (!json || asprintf(&temporary, "%s.part", path) < 0)
        status = kvl_fail(KVL_ERR_OOM, "out of memory: KV scales");
    if (status == KVL_OK) {
        status = kvl_file_write_all(temporary, json, strlen(json));
        if (status == KVL_OK && rename(temporary, path) != 0)
            status = kvl_fail(KVL_ERR_IO, "%s: cannot be made: %s", path, strerror(errno));
        if (status != KVL_OK) unlink(temporary);
    }
    free(temporary);
    free(json);
    json_decref(root);
    return status;
}

/* ---- tensors --------------------------------------------------------------------------------- */

bool kvl_kv_scale_tensor(const char *name, int32_t n_layers, int32_t *layer, bool *is_v) {
    int end = 0;
    char which = 0;
    int n = sscanf(name, "model.layers.%d.self_attn.%c_scale%n", layer, &which, &end);
    *is_v = which == 'v';
    return n == 2 && end && !name[end] && (which == 'k' || which == 'v') && *layer >= 0 &&
           *layer < n_layers;
}
