/* A tensor source over a GGUF file. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/gguf.h"
#include "decoder/name_index.h"
#include "decoder/source.h"
#include "decoder/tensor_spec.h"
#include "quant/gguf_blocks.h"

/* One tensor of the model. Law: data holds rows * row_bytes bytes of whole blocks. */
typedef struct entry {
    kvl_tensor_spec spec;
    const uint8_t *data;
    const kvl_gguf_block *block;
    int64_t row_bytes; /* of spec.cols values; of the whole vector when cols == 1 */
} entry;

typedef struct gguf_source {
    kvl_gguf *gguf;
    entry *entries;       /* [n_entries] in the order of kvl_tensor_spec_at */
    kvl_name_index index; /* spec.name -> entry */
    size_t n_entries;
} gguf_source;

static const entry *find(const kvl_source *source, const char *name) {
    const gguf_source *self = source->self;
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

/* llama-architecture files interleave the two halves of each head's rows (ggml's RoPE turns
 * neighbours): half-split row (head, half, j) stands at (head, j, half). */
static int64_t stored_row(const entry *e, int64_t row) {
    if (!e->spec.permuted_heads) return row;
    int64_t head_dim = e->spec.rows / e->spec.permuted_heads, half = head_dim / 2;
    int64_t head = row / head_dim, in_head = row % head_dim;
    return head * head_dim + in_head % half * 2 + in_head / half;
}

static kvl_status read_rows(const kvl_source *source, const char *name, int64_t first,
                            int64_t n_rows, float *out) {
    const entry *e = find(source, name);
    if (!e) return kvl_fail(KVL_ERR_INPUT, "tensor '%s' is not in the model", name);
    if (first < 0 || n_rows < 0 || first > e->spec.rows || n_rows > e->spec.rows - first)
        return kvl_fail(KVL_ERR_INPUT,
                        "tensor '%s': rows %" PRId64 " + %" PRId64 ": it has %" PRId64, name, first,
                        n_rows, e->spec.rows);
    if (e->spec.cols == 1) { /* vectors are stored unquantised: any element can start a read */
        e->block->decode(e->data + first * e->block->block_bytes, n_rows, out);
    } else if (!e->spec.permuted_heads) {
        e->block->decode(e->data + first * e->row_bytes, n_rows * e->spec.cols, out);
    } else {
        for (int64_t i = 0; i < n_rows; i++)
            e->block->decode(e->data + stored_row(e, first + i) * e->row_bytes, e->spec.cols,
                             out + i * e->spec.cols);
    }
    return KVL_OK;
}

static void free_self(gguf_source *self, bool with_file) {
    if (!self) return;
    kvl_name_index_free(&self->index);
    free(self->entries);
    if (with_file) kvl_gguf_close(self->gguf);
    free(self);
}

static void close_source(kvl_source *source) {
    free_self(source->self, true);
    *source = (kvl_source){0};
}

static kvl_status check_tensor(const kvl_gguf *gguf, entry *e) {
    const kvl_tensor_spec *spec = &e->spec;
    const char *path = kvl_gguf_path(gguf);
    const kvl_gguf_tensor *tensor = kvl_gguf_find(gguf, spec->gguf_name);
    if (!tensor)
        return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s' is missing", path, spec->gguf_name);
    bool vector = spec->cols == 1;
    int64_t dim0 = vector ? spec->rows : spec->cols, dim1 = vector ? 1 : spec->rows;
    if (tensor->n_dims > 2 || tensor->dims[0] != dim0 || tensor->dims[1] != dim1)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: tensor '%s' has %" PRId32 " dims [%" PRId64 ", %" PRId64
                        ", ...]: the metadata ask for [%" PRId64 ", %" PRId64 "]",
                        path, spec->gguf_name, tensor->n_dims, tensor->dims[0], tensor->dims[1],
                        dim0, dim1);
    e->block = kvl_gguf_block_of(tensor->ggml_type);
    if (!e->block)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "%s: tensor '%s' is %s: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 and "
                        "q2_k to q6_k are decoded",
                        path, spec->gguf_name, kvl_ggml_type_name(tensor->ggml_type));
    if (vector && e->block->block_elems != 1)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "%s: tensor '%s' is %s: vectors of f32, f16 or bf16 are read", path,
                        spec->gguf_name, e->block->name);
    e->data = tensor->data;
    e->row_bytes = dim0 / e->block->block_elems * e->block->block_bytes;
    return KVL_OK;
}

/* A tensor without a place would change the result where another program uses it. The frequencies
 * are the exception: rope_freqs is in the configuration, rot_embd repeats what metadata say. */
static kvl_status refuse_strangers(const kvl_gguf *gguf, const kvl_name_index *known) {
    for (size_t i = 0; i < kvl_gguf_n_tensors(gguf); i++) {
        const char *name = kvl_gguf_tensor_at(gguf, i)->name;
        if (kvl_name_index_find(known, name, strlen(name)) >= 0) continue;
        if (strcmp(name, "rope_freqs.weight") == 0 || strstr(name, ".attn_rot_embd")) continue;
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "%s: tensor '%s' has no place in the model that the metadata describe",
                        kvl_gguf_path(gguf), name);
    }
    return KVL_OK;
}

static kvl_status fill(gguf_source *self, const kvl_config *config, kvl_name_index *gguf_names) {
    for (size_t i = 0; i < self->n_entries; i++) {
        entry *e = &self->entries[i];
        kvl_tensor_spec_at(config, i, &e->spec);
        KVL_TRY(check_tensor(self->gguf, e));
        kvl_name_index_add(&self->index, e->spec.name, strlen(e->spec.name));
        kvl_name_index_add(gguf_names, e->spec.gguf_name, strlen(e->spec.gguf_name));
    }
    return refuse_strangers(self->gguf, gguf_names);
}

kvl_status kvl_source_from_gguf(kvl_gguf *gguf, const kvl_config *config, kvl_source *source) {
    gguf_source *self = calloc(1, sizeof *self);
    size_t n = kvl_tensor_spec_count(config);
    kvl_name_index gguf_names = {0};
    kvl_status status = KVL_OK;
    if (!self || !(self->entries = calloc(n, sizeof *self->entries)) ||
        !kvl_name_index_init(&self->index, n) || !kvl_name_index_init(&gguf_names, n)) {
        status = kvl_fail(KVL_ERR_OOM, "%s: out of memory", kvl_gguf_path(gguf));
    } else {
        self->gguf = gguf;
        self->n_entries = n;
        status = fill(self, config, &gguf_names);
    }
    kvl_name_index_free(&gguf_names);
    if (status == KVL_OK)
        *source = (kvl_source){self, shape, read_rows, close_source, NULL};
    else
        free_self(self, false);
    return status;
}
