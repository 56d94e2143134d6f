#include "decoder/weights.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/memory.h"
#include "core/threads.h"
#include "decoder/tensor_spec.h"
#include "quant/kv_format.h"

enum {
    NAME_BYTES = 80,
    MAX_PARTS = 3,
    PER_LAYER = 4,           /* qkv, o, gate_up, down */
    BLOCK_ELEMS = 96 * 1024, /* floats in a block: it stays in a core's second-level cache */
    /* Blocks start at multiples of this many rows, so that two threads never fill one panel. */
    BLOCK_ALIGN = 192
};

/* One stacked matrix: where its rows come from and where they go. */
typedef struct matrix {
    char names[MAX_PARTS][NAME_BYTES]; /* tensors, by rows */
    int64_t rows[MAX_PARTS];
    int n_parts;
    int64_t n_out, n_in;
    kvl_linear **linear;                   /* NULL: the embedding table */
    const kvl_nf4_tensor *kept[MAX_PARTS]; /* the parts as the file has them; [0] NULL: as floats */
    int64_t block_rows, first_block;
} matrix;

typedef struct plan {
    const kvl_model *model;
    matrix *matrices; /* [n_matrices] */
    int32_t n_matrices;
    int64_t n_blocks;
    uint64_t max_block_bytes;
    bool allow_nonfinite;
} plan;

/* ---- what there is to load ----------------------------------------------------------------- */

static void tensor_name(char *out, int32_t layer, const char *suffix) {
    snprintf(out, NAME_BYTES, "model.layers.%d.%s", layer, suffix);
}

static void add_part(matrix *m, int32_t layer, const char *suffix, int64_t rows) {
    if (layer >= 0)
        tensor_name(m->names[m->n_parts], layer, suffix);
    else
        snprintf(m->names[m->n_parts], NAME_BYTES, "%s", suffix);
    m->rows[m->n_parts++] = rows;
    m->n_out += rows;
}

static matrix *add_matrix(plan *p, kvl_linear **linear, int64_t n_in) {
    matrix *m = &p->matrices[p->n_matrices++];
    *m = (matrix){.linear = linear, .n_in = n_in};
    return m;
}

static void plan_layer(plan *p, int32_t i, kvl_layer_weights *layer) {
    const kvl_config *c = &p->model->config;
    int64_t q_rows = (int64_t)c->n_q_heads * c->head_dim;
    int64_t kv_rows = (int64_t)c->n_kv_heads * c->head_dim;
    matrix *m = add_matrix(p, &layer->qkv, c->hidden_size);
    add_part(m, i, "self_attn.q_proj.weight", q_rows);
    add_part(m, i, "self_attn.k_proj.weight", kv_rows);
    add_part(m, i, "self_attn.v_proj.weight", kv_rows);
    m = add_matrix(p, &layer->o, q_rows);
    add_part(m, i, "self_attn.o_proj.weight", c->hidden_size);
    m = add_matrix(p, &layer->gate_up, c->hidden_size);
    add_part(m, i, "mlp.gate_proj.weight", c->intermediate_size);
    add_part(m, i, "mlp.up_proj.weight", c->intermediate_size);
    m = add_matrix(p, &layer->down, c->intermediate_size);
    add_part(m, i, "mlp.down_proj.weight", c->hidden_size);
}

/* Cuts every matrix into blocks of whole rows. */
static void plan_blocks(plan *p) {
    for (int32_t i = 0; i < p->n_matrices; i++) {
        matrix *m = &p->matrices[i];
        int64_t aligned = BLOCK_ELEMS / m->n_in / BLOCK_ALIGN * BLOCK_ALIGN;
        m->block_rows = aligned ? aligned : BLOCK_ALIGN;
        if (m->block_rows > m->n_out) m->block_rows = m->n_out;
        m->first_block = p->n_blocks;
        p->n_blocks += (m->n_out + m->block_rows - 1) / m->block_rows;
        uint64_t bytes = (uint64_t)m->block_rows * (uint64_t)m->n_in * sizeof(float);
        if (bytes > p->max_block_bytes) p->max_block_bytes = bytes;
    }
}

/* `weights` has its layers array; the plan points into it. The caller frees p->matrices. */
static kvl_status plan_make(const kvl_model *model, const kvl_weights_options *options,
                            kvl_weights *weights, plan *p) {
    const kvl_config *c = &model->config;
    *p = (plan){.model = model, .allow_nonfinite = options->allow_nonfinite};
    p->matrices = calloc((size_t)c->n_layers * PER_LAYER + 2, sizeof(matrix));
    if (!p->matrices)
        return kvl_fail(KVL_ERR_OOM, "out of memory: load plan of %d layers", c->n_layers);
    /* The largest first: threads finish together. */
    matrix *m = add_matrix(p, &weights->lm_head, c->hidden_size);
    add_part(m, -1, c->tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
             c->vocab_size);
    if (!c->tie_embeddings) {
        m = add_matrix(p, NULL, c->hidden_size);
        add_part(m, -1, "model.embed_tokens.weight", c->vocab_size);
    }
    for (int32_t i = 0; i < c->n_layers; i++) plan_layer(p, i, &weights->layers[i]);
    plan_blocks(p);
    return KVL_OK;
}

/* ---- shapes -------------------------------------------------------------------------------- */

static kvl_status check_tensor(const kvl_model *model, const char *name, int64_t rows,
                               int64_t cols) {
    int64_t seen_rows, seen_cols;
    if (!model->source.shape(&model->source, name, &seen_rows, &seen_cols))
        return kvl_fail(KVL_ERR_INPUT, "model %s: tensor %s is missing", model->config.name, name);
    if (seen_rows != rows || seen_cols != cols)
        return kvl_fail(KVL_ERR_INPUT,
                        "model %s: tensor %s is [%lld, %lld], the configuration says [%lld, %lld]",
                        model->config.name, name, (long long)seen_rows, (long long)seen_cols,
                        (long long)rows, (long long)cols);
    return KVL_OK;
}

/* Readers check too; a source may come from elsewhere. */
kvl_status kvl_weights_check(const kvl_model *model) {
    size_t count = kvl_tensor_spec_count(&model->config);
    for (size_t i = 0; i < count; i++) {
        kvl_tensor_spec spec;
        kvl_tensor_spec_at(&model->config, i, &spec);
        KVL_TRY(check_tensor(model, spec.name, spec.rows, spec.cols));
    }
    return KVL_OK;
}

/* ---- matrices ------------------------------------------------------------------------------ */

/* Rows of one tensor, n_cols wide (1: a vector's elements), which must be numbers. */
static kvl_status read_numbers(const plan *p, const char *name, int64_t first, int64_t n_rows,
                               int64_t n_cols, float *out) {
    const kvl_source *source = &p->model->source;
    KVL_TRY(source->read_rows(source, name, first, n_rows, out));
    if (p->allow_nonfinite) return KVL_OK;
    int64_t bad = kvl_nf4_find_nonfinite(out, n_rows * n_cols);
    if (bad < 0) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT,
                    "model %s: tensor %s: element [%lld][%lld] is %g: --allow-nonfinite loads it",
                    p->model->config.name, name, (long long)(first + bad / n_cols),
                    (long long)(bad % n_cols), (double)out[bad]);
}

/* Rows first .. first + n_rows of a stacked matrix, from the tensors they lie in; as floats to
 * `out`, or, where `layer` is given, as the file's own codes to it. */
static kvl_status read_block(const plan *p, const matrix *m, int64_t first, int64_t n_rows,
                             float *out, kvl_linear *layer) {
    int64_t part_start = 0;
    for (int part = 0; part < m->n_parts; part++) {
        int64_t part_end = part_start + m->rows[part];
        int64_t from = first > part_start ? first : part_start;
        int64_t to = first + n_rows < part_end ? first + n_rows : part_end;
        if (from < to && layer)
            KVL_TRY(kvl_linear_set_nf4(layer, from, to - from, m->kept[part], from - part_start));
        else if (from < to)
            KVL_TRY(read_numbers(p, m->names[part], from - part_start, to - from, m->n_in,
                                 out + (from - first) * m->n_in));
        part_start = part_end;
    }
    return KVL_OK;
}

static kvl_status store_embedding(kvl_weights *weights, int64_t first, int64_t n_rows,
                                  const float *rows) {
    int64_t at = first * weights->hidden_size, n = n_rows * weights->hidden_size;
    char *out =
        (char *)weights->embedding + at * (int64_t)kvl_dtype_bytes(weights->embedding_dtype);
    int64_t lost = kvl_encode(weights->embedding_dtype, rows, n, 1.0f, out);
    if (lost)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "model.embed_tokens.weight rows %lld..%lld: %lld values overflow %s",
                        (long long)first, (long long)(first + n_rows), (long long)lost,
                        kvl_dtype_name(weights->embedding_dtype));
    return KVL_OK;
}

static kvl_status load_block(const plan *p, kvl_weights *weights, int64_t block, float *rows) {
    int32_t low = 0, high = p->n_matrices - 1;
    while (low < high) { /* the last matrix that starts at or before the block */
        int32_t middle = (low + high + 1) / 2;
        if (p->matrices[middle].first_block <= block)
            low = middle;
        else
            high = middle - 1;
    }
    const matrix *m = &p->matrices[low];
    int64_t first = (block - m->first_block) * m->block_rows;
    int64_t n_rows = m->n_out - first < m->block_rows ? m->n_out - first : m->block_rows;
    if (m->kept[0]) return read_block(p, m, first, n_rows, NULL, *m->linear);
    KVL_TRY(read_block(p, m, first, n_rows, rows, NULL));
    if (m->linear) return kvl_linear_set_rows(*m->linear, first, n_rows, rows);
    return store_embedding(weights, first, n_rows, rows);
}

/* A worker's failure: messages are per thread, so the text is carried to the caller's. */
typedef struct failure {
    kvl_status status;
    char message[1024];
} failure;

static void note_failure(failure *first, kvl_status status) {
#pragma omp critical(kvl_weights_failure)
    if (first->status == KVL_OK) {
        first->status = status;
        snprintf(first->message, sizeof first->message, "%s", kvl_message());
    }
}

static kvl_status load_blocks(const plan *p, kvl_weights *weights,
                              void (*progress)(void *user, double share), void *user) {
    failure first = {.status = KVL_OK};
    atomic_int stop = 0;
    _Atomic int64_t done = 0;
#pragma omp parallel num_threads(kvl_threads())
    {
        void *rows = NULL;
        kvl_status status = kvl_mem_alloc(p->max_block_bytes, &rows);
#pragma omp for schedule(dynamic)
        for (int64_t block = 0; block < p->n_blocks; block++) {
            if (status == KVL_OK && !stop) status = load_block(p, weights, block, rows);
            if (status != KVL_OK && !stop) {
                stop = 1;
                note_failure(&first, status);
            }
            int64_t n = ++done;
            if (progress && omp_get_thread_num() == 0 && n % 16 == 0)
                progress(user, (double)n / (double)p->n_blocks);
        }
        kvl_mem_free(rows, p->max_block_bytes);
    }
    if (first.status != KVL_OK) return kvl_fail(first.status, "%s", first.message);
    if (progress) progress(user, 1.0);
    return KVL_OK;
}

/* ---- formats in blocks: what stays out, and what the file holds already --------------------- */

/* Whether tensor `name` is to stay unquantised. */
static bool skips(const kvl_source *source, const char *list, const char *name, bool is_head) {
    if (list) return kvl_tensor_listed(list, is_head ? "lm_head.weight" : name);
    if (source->quantised) return !source->quantised(source, name);
    return is_head;
}

/* The parts' own codes, when the layer can take them all as they are. */
static void keep_codes(const plan *p, const kvl_linear_options *options, matrix *m) {
    const kvl_source *source = &p->model->source;
    for (int part = 0; source->quantised && part < m->n_parts; part++) {
        const kvl_nf4_tensor *tensor = source->quantised(source, m->names[part]);
        bool fits = tensor &&
                    strncmp(options->format->name, kvl_nf4_type_name(tensor->type), 3) == 0 &&
                    (tensor->nested || strcmp(options->format->name, "nf4_dq") != 0) &&
                    (!options->nf4_block || options->nf4_block == tensor->block) &&
                    (part == 0 || m->kept[0]->block == tensor->block);
        if (!fits) {
            m->kept[0] = NULL;
            return;
        }
        m->kept[part] = tensor;
    }
}

static kvl_status create_linear(const plan *p, const kvl_weights_options *options,
                                kvl_weights *weights, matrix *m) {
    kvl_linear_options linear = options->linear;
    bool is_head = m->linear == &weights->lm_head;
    weights->n_matrices++;
    if (linear.format->in_blocks) {
        int n_skipped = 0;
        for (int part = 0; part < m->n_parts; part++)
            n_skipped += skips(&p->model->source, options->nf4_skip, m->names[part], is_head);
        if (n_skipped && n_skipped < m->n_parts)
            return kvl_fail(KVL_ERR_UNSUPPORTED,
                            "nf4-skip: %s and those beside it are one matrix: all are skipped or "
                            "none",
                            m->names[0]);
        linear.n_parts = m->n_parts;
        memcpy(linear.part_rows, m->rows, sizeof m->rows);
        if (n_skipped) {
            linear.format = weights->skipped_format;
            weights->n_skipped++;
        } else {
            keep_codes(p, &linear, m);
            if (m->kept[0]) linear.nf4_block = m->kept[0]->block;
            weights->n_kept += m->kept[0] != NULL;
            weights->nf4_block = linear.nf4_block ? linear.nf4_block : KVL_NF4_BLOCK;
        }
    }
    return kvl_linear_create(m->n_out, m->n_in, &linear, m->linear);
}

static kvl_status create_matrices(const plan *p, const kvl_weights_options *options,
                                  kvl_weights *weights) {
    weights->skipped_format = options->linear.format;
    if (options->linear.format->in_blocks)
        KVL_TRY(kvl_weight_format_find(options->linear.compute_dtype == KVL_F32 ? "f32" : "bf16",
                                       &weights->skipped_format));
    /* A row table needs plain elements. */
    weights->embedding_dtype = weights->skipped_format->dtype;
    for (int32_t i = 0; i < p->n_matrices; i++) {
        matrix *m = &p->matrices[i];
        if (m->linear) {
            KVL_TRY(create_linear(p, options, weights, m));
            continue;
        }
        uint64_t bytes = kvl_dtype_bytes(weights->embedding_dtype);
        if (!kvl_mul_u64(bytes, (uint64_t)m->n_out, &bytes) ||
            !kvl_mul_u64(bytes, (uint64_t)m->n_in, &bytes))
            return kvl_fail(KVL_ERR_INPUT, "model.embed_tokens.weight: size overflows 64 bits");
        KVL_TRY(kvl_mem_alloc(bytes, &weights->embedding));
        weights->embedding_bytes = bytes;
    }
    return KVL_OK;
}

/* ---- vectors ------------------------------------------------------------------------------- */

/* Reads one layer's vector to *next, advances it, and returns its start in *out. */
static kvl_status read_norm(const plan *p, const char *name, int64_t n, float **next,
                            const float **out) {
    KVL_TRY(read_numbers(p, name, 0, n, 1, *next));
    *out = *next;
    *next += n;
    return KVL_OK;
}

static kvl_status read_layer_norms(const plan *p, int32_t i, kvl_layer_weights *layer,
                                   float **next) {
    const kvl_config *c = &p->model->config;
    char name[NAME_BYTES];
    tensor_name(name, i, "input_layernorm.weight");
    KVL_TRY(read_norm(p, name, c->hidden_size, next, &layer->input_norm));
    tensor_name(name, i, "post_attention_layernorm.weight");
    KVL_TRY(read_norm(p, name, c->hidden_size, next, &layer->post_norm));
    if (!c->qk_norm) return KVL_OK;
    tensor_name(name, i, "self_attn.q_norm.weight");
    KVL_TRY(read_norm(p, name, c->head_dim, next, &layer->q_norm));
    tensor_name(name, i, "self_attn.k_norm.weight");
    return read_norm(p, name, c->head_dim, next, &layer->k_norm);
}

static kvl_status load_norms(const plan *p, kvl_weights *weights) {
    const kvl_config *c = &p->model->config;
    uint64_t per_layer = 2 * ((uint64_t)c->hidden_size + (c->qk_norm ? (uint64_t)c->head_dim : 0));
    uint64_t floats = per_layer * (uint64_t)c->n_layers + (uint64_t)c->hidden_size;
    void *norms;
    KVL_TRY(kvl_mem_alloc(floats * sizeof(float), &norms));
    weights->norms = norms;
    weights->norms_bytes = floats * sizeof(float);
    float *next = norms;
    for (int32_t i = 0; i < c->n_layers; i++)
        KVL_TRY(read_layer_norms(p, i, &weights->layers[i], &next));
    return read_norm(p, "model.norm.weight", c->hidden_size, &next, &weights->final_norm);
}

/* Ends the fill of every matrix; q, k and v biases are stacked as their rows are. */
static kvl_status finish_matrices(const plan *p, kvl_weights *weights) {
    static const char *const suffixes[3] = {"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                            "self_attn.v_proj.bias"};
    const kvl_config *c = &p->model->config;
    int64_t q_rows = (int64_t)c->n_q_heads * c->head_dim;
    int64_t kv_rows = (int64_t)c->n_kv_heads * c->head_dim;
    float *bias = NULL;
    if (c->qkv_bias && !(bias = malloc((size_t)(q_rows + 2 * kv_rows) * sizeof(float))))
        return kvl_fail(KVL_ERR_OOM, "out of memory: qkv bias");
    kvl_status status = KVL_OK;
    for (int32_t i = 0; i < c->n_layers && status == KVL_OK; i++) {
        kvl_layer_weights *layer = &weights->layers[i];
        float *next = bias;
        for (int part = 0; bias && part < 3 && status == KVL_OK; part++) {
            char name[NAME_BYTES];
            int64_t rows = part ? kv_rows : q_rows;
            tensor_name(name, i, suffixes[part]);
            status = read_numbers(p, name, 0, rows, 1, next);
            next += rows;
        }
        if (status == KVL_OK) status = kvl_linear_finish(layer->qkv, bias);
        if (status == KVL_OK) status = kvl_linear_finish(layer->o, NULL);
        if (status == KVL_OK) status = kvl_linear_finish(layer->gate_up, NULL);
        if (status == KVL_OK) status = kvl_linear_finish(layer->down, NULL);
    }
    free(bias);
    return status == KVL_OK ? kvl_linear_finish(weights->lm_head, NULL) : status;
}

/* ---- the whole ----------------------------------------------------------------------------- */

/* The layers array alone, so that a plan can point into it. */
static kvl_status start(const kvl_model *model, kvl_weights *weights) {
    const kvl_config *c = &model->config;
    *weights = (kvl_weights){
        .n_layers = c->n_layers, .hidden_size = c->hidden_size, .vocab_size = c->vocab_size};
    weights->layers = calloc((size_t)c->n_layers, sizeof *weights->layers);
    if (!weights->layers)
        return kvl_fail(KVL_ERR_OOM, "out of memory: table of %d layers", c->n_layers);
    return KVL_OK;
}

kvl_status kvl_weights_load(const kvl_model *model, const kvl_weights_options *options,
                            void (*progress)(void *user, double share), void *user,
                            kvl_weights *out) {
    plan p;
    if (options->linear.format->in_blocks && options->nf4_skip)
        KVL_TRY(kvl_tensor_list_check("nf4-skip", &model->config, options->nf4_skip));
    KVL_TRY(start(model, out));
    kvl_status status = plan_make(model, options, out, &p);
    if (status == KVL_OK) status = create_matrices(&p, options, out);
    if (status == KVL_OK) status = load_norms(&p, out);
    if (status == KVL_OK) status = load_blocks(&p, out, progress, user);
    if (status == KVL_OK) status = finish_matrices(&p, out);
    free(p.matrices);
    if (status != KVL_OK) kvl_weights_free(out);
    return status;
}

void kvl_weights_free(kvl_weights *weights) {
    for (int32_t i = 0; weights->layers && i < weights->n_layers; i++) {
        kvl_layer_weights *layer = &weights->layers[i];
        kvl_linear *all[PER_LAYER] = {layer->qkv, layer->o, layer->gate_up, layer->down};
        for (int m = 0; m < PER_LAYER; m++) {
            if (all[m]) kvl_linear_destroy(all[m]);
        }
    }
    if (weights->lm_head) kvl_linear_destroy(weights->lm_head);
    kvl_mem_free(weights->embedding, weights->embedding_bytes);
    kvl_mem_free(weights->norms, weights->norms_bytes);
    free(weights->layers);
    memset(weights, 0, sizeof *weights);
}

void kvl_weights_embed(const kvl_weights *weights, int32_t id, float *out) {
    if (!weights->embedding) {
        kvl_linear_get_row(weights->lm_head, id, out);
        return;
    }
    uint64_t row_bytes = (uint64_t)weights->hidden_size * kvl_dtype_bytes(weights->embedding_dtype);
    kvl_decode(weights->embedding_dtype,
               (const char *)weights->embedding + (uint64_t)id * row_bytes, weights->hidden_size,
               1.0f, out);
}

uint64_t kvl_weights_layer_bytes(const kvl_weights *weights) {
    uint64_t bytes = weights->norms_bytes;
    for (int32_t i = 0; i < weights->n_layers; i++) {
        const kvl_layer_weights *layer = &weights->layers[i];
        bytes += kvl_linear_bytes(layer->qkv) + kvl_linear_bytes(layer->o) +
                 kvl_linear_bytes(layer->gate_up) + kvl_linear_bytes(layer->down);
    }
    return bytes;
}

uint64_t kvl_weights_bytes(const kvl_weights *weights) {
    return kvl_weights_layer_bytes(weights) + kvl_linear_bytes(weights->lm_head) +
           weights->embedding_bytes;
}
