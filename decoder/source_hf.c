/* A tensor source over the safetensors files of a Hugging Face folder. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/bnb.h"
#include "decoder/kv_scales.h"
#include "decoder/name_index.h"
#include "decoder/safetensors.h"
#include "decoder/shards.h"
#include "decoder/source.h"
#include "decoder/tensor_spec.h"

typedef struct entry {
    kvl_tensor_spec spec;
    const kvl_st_tensor *tensor;
    bool is_quantised;
    kvl_nf4_tensor quantised; /* owns its absmax */
} entry;

typedef struct hf_source {
    kvl_shards shards;
    entry *entries; /* [n_entries], one for each tensor of the model */
    size_t n_entries;
    kvl_name_index index; /* spec.name -> entry */
} hf_source;

static const entry *find(const kvl_source *source, const char *name) {
    const hf_source *self = source->self;
    int64_t number = kvl_name_index_find(&self->index, name, strlen(name));
    return number < 0 ? NULL : &self->entries[number];
}

static bool shape(const kvl_source *source, const char *name, int64_t *rows, int64_t *cols) {
    const entry *e = find(source, name);
    if (!e) return false;
    *rows = e->spec.rows;
    *cols = e->spec.cols;
    return true;
}

static kvl_status read_rows(const kvl_source *source, const char *name, int64_t first,
                            int64_t n_rows, float *out) {
    const entry *e = find(source, name);
    if (!e) return kvl_fail(KVL_ERR_INPUT, "tensor '%s' is not in the model", name);
    if (first < 0 || n_rows < 0 || first > e->spec.rows || n_rows > e->spec.rows - first)
        return kvl_fail(KVL_ERR_INPUT,
                        "tensor '%s': rows %" PRId64 " + %" PRId64 ": it has %" PRId64, name, first,
                        n_rows, e->spec.rows);
    int64_t from = first * e->spec.cols, n = n_rows * e->spec.cols;
    if (!e->is_quantised) return kvl_st_read_f32(e->tensor, from, n, out);
    kvl_nf4_decode(e->quantised.type, e->quantised.block, e->quantised.packed, e->quantised.absmax,
                   from, n, out);
    return KVL_OK;
}

static const kvl_nf4_tensor *quantised(const kvl_source *source, const char *name) {
    const entry *e = find(source, name);
    return e && e->is_quantised ? &e->quantised : NULL;
}

static void free_self(hf_source *self) {
    if (!self) return;
    for (size_t i = 0; self->entries && i < self->n_entries; i++)
        free((void *)self->entries[i].quantised.absmax);
    kvl_name_index_free(&self->index);
    free(self->entries);
    kvl_shards_close(&self->shards);
    free(self);
}

static void close_source(kvl_source *source) {
    free_self(source->self);
    *source = (kvl_source){0};
}

static kvl_status check_tensor(const hf_source *self, const char *dir, entry *e) {
    const kvl_tensor_spec *spec = &e->spec;
    const kvl_st_tensor *tensor = kvl_shards_find(&self->shards, spec->name);
    if (!tensor) return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s' is missing", dir, spec->name);
    e->tensor = tensor;
    if (spec->kind == KVL_TENSOR_MATRIX && kvl_bnb_is_quantised(&self->shards, spec->name)) {
        e->is_quantised = true;
        return kvl_bnb_open(dir, &self->shards, spec->name, spec->rows, spec->cols, &e->quantised);
    }
    if (tensor->dtype != KVL_F32 && tensor->dtype != KVL_F16 && tensor->dtype != KVL_BF16)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: tensor '%s' is %s: f32, f16 and bf16 are read",
                        dir, spec->name, kvl_dtype_name(tensor->dtype));
    int32_t n_dims = spec->cols == 1 ? 1 : 2;
    if (tensor->n_dims != n_dims || tensor->dims[0] != spec->rows ||
        (n_dims == 2 && tensor->dims[1] != spec->cols))
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: tensor '%s' has %" PRId32 " dims [%" PRId64 ", %" PRId64
                        ", ...]: config.json asks for [%" PRId64 ", %" PRId64 "]",
                        dir, spec->name, tensor->n_dims, tensor->n_dims > 0 ? tensor->dims[0] : 0,
                        tensor->n_dims > 1 ? tensor->dims[1] : 1, spec->rows, spec->cols);
    return KVL_OK;
}

/* A part of the state of a tensor that is read as quantised. */
static bool is_state(const hf_source *self, const char *name) {
    int64_t number = kvl_name_index_find(&self->index, name, kvl_bnb_state_of(name));
    return number >= 0 && self->entries[number].is_quantised;
}

/* A tensor without a place would change the result elsewhere. Exceptions: frequencies that old
 * checkpoints keep, a head that tied embeddings make redundant, and scales of a KV cache, which
 * kv_scales.c reads. */
static kvl_status refuse_strangers(const hf_source *self, const char *dir,
                                   const kvl_config *config) {
    const bool tied = config->tie_embeddings;
    int32_t layer;
    bool is_v;
    for (size_t s = 0; s < self->shards.n_files; s++) {
        const kvl_safetensors *st = self->shards.files[s];
        for (size_t i = 0; i < kvl_st_count(st); i++) {
            const char *name = kvl_st_at(st, i)->name;
            if (kvl_name_index_find(&self->index, name, strlen(name)) >= 0) continue;
            if (is_state(self, name)) continue;
            if (kvl_kv_scale_tensor(name, config->n_layers, &layer, &is_v)) continue;
            if (strstr(name, "rotary_emb.inv_freq")) continue;
            if (tied && strcmp(name, "lm_head.weight") == 0) continue;
            return kvl_fail(KVL_ERR_UNSUPPORTED,
                            "%s: tensor '%.80s' has no place in the model that config.json "
                            "describes",
                            dir, name);
        }
    }
    return KVL_OK;
}

static void name_source_weights(const hf_source *self, size_t n, char *out) {
    enum { NF4 = KVL_N_DTYPES, FP4, N };
    int64_t elems[N] = {0};
    int most = 0;
    for (size_t i = 0; i < n; i++) {
        const entry *e = &self->entries[i];
        if (e->is_quantised)
            elems[e->quantised.type == KVL_NF4 ? NF4 : FP4] += e->quantised.n_elems;
        else
            elems[e->tensor->dtype] += e->tensor->n_elems;
    }
    for (int d = 0; d < N; d++)
        if (elems[d] > elems[most]) most = d;
    snprintf(out, 32, "%s",
             most == NF4   ? "nf4"
             : most == FP4 ? "fp4"
                           : kvl_dtype_name((kvl_dtype)most));
}

static kvl_status fill(hf_source *self, const char *dir, const kvl_config *config) {
    size_t n = kvl_tensor_spec_count(config);
    self->entries = calloc(n, sizeof *self->entries);
    self->n_entries = n;
    if (!self->entries || !kvl_name_index_init(&self->index, n))
        return kvl_fail(KVL_ERR_OOM, "%s: out of memory", dir);
    for (size_t i = 0; i < n; i++) {
        entry *e = &self->entries[i];
        kvl_tensor_spec_at(config, i, &e->spec);
        KVL_TRY(check_tensor(self, dir, e));
        kvl_name_index_add(&self->index, e->spec.name, strlen(e->spec.name));
    }
    return refuse_strangers(self, dir, config);
}

kvl_status kvl_source_from_shards(const char *dir, kvl_shards *shards, const kvl_config *config,
                                  char *source_weights, kvl_source *source) {
    hf_source *self = calloc(1, sizeof *self);
    if (!self) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", dir);
    self->shards = *shards;
    kvl_status status = fill(self, dir, config);
    if (status != KVL_OK) {
        self->shards = (kvl_shards){0}; /* still the caller's */
        free_self(self);
        return status;
    }
    *shards = (kvl_shards){0};
    name_source_weights(self, kvl_tensor_spec_count(config), source_weights);
    bool any = false;
    for (size_t i = 0; i < self->n_entries; i++) any |= self->entries[i].is_quantised;
    *source = (kvl_source){self, shape, read_rows, close_source, any ? quantised : NULL};
    return KVL_OK;
}
