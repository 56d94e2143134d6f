/* Filling a layer whose weights share scales in blocks of the flattened tensor (NF4, FP4).
 *
 * Where rows are whole blocks, a row is encoded as it comes. Otherwise rows wait as float32 until
 * the layer is complete, since a block needs its last weight. Double quantisation needs the mean of
 * all absmax of a tensor, so these wait likewise. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/memory.h"
#include "quant/linear_internal.h"

typedef struct part {
    int64_t first, n_rows;
    _Atomic int64_t rows_left;
    float
        *absmax; /* [blocks of the tensor], nested and rows of whole blocks: until all are there */
    uint64_t absmax_bytes;
} part;

struct kvl_linear_blocks {
    const kvl_block_codec *codec;
    int64_t block;
    bool whole_rows; /* n_in is a multiple of block */
    int n_parts;
    part parts[KVL_LINEAR_MAX_PARTS];
    _Atomic int64_t rows_left; /* of all parts */
    float *staged;             /* [n_out][n_in] when rows are not whole blocks, or NULL */
    uint64_t staged_bytes;
};

typedef struct kvl_linear_blocks blocks_state;

kvl_status kvl_linear_blocks_create(kvl_linear *layer, const kvl_linear_options *options) {
    int64_t block = options->nf4_block ? options->nf4_block : KVL_NF4_BLOCK, rows = 0, elems;
    KVL_TRY(kvl_nf4_check_block("nf4 block", block));
    if (!kvl_mul_i64(layer->n_out, layer->n_in, &elems))
        return kvl_fail(KVL_ERR_OOM, "linear layer %lld x %lld: size overflows",
                        (long long)layer->n_out, (long long)layer->n_in);
    blocks_state *b = calloc(1, sizeof *b);
    if (!b) return kvl_fail(KVL_ERR_OOM, "out of memory: linear layer");
    layer->blocks = b;
    b->codec = layer->codec->blocks;
    b->block = block;
    b->whole_rows = layer->n_in % block == 0;
    b->rows_left = layer->n_out;
    b->n_parts = options->n_parts ? options->n_parts : 1;
    if (b->n_parts > KVL_LINEAR_MAX_PARTS)
        return kvl_fail(KVL_ERR_INTERNAL, "linear layer: %d parts", b->n_parts);
    for (int i = 0; i < b->n_parts; i++) {
        part *p = &b->parts[i];
        p->first = rows;
        p->n_rows = options->n_parts ? options->part_rows[i] : layer->n_out;
        p->rows_left = p->n_rows;
        rows += p->n_rows;
        if (!b->codec->nested || !b->whole_rows) continue;
        p->absmax_bytes = (uint64_t)(p->n_rows * (layer->n_in / block)) * sizeof(float);
        KVL_TRY(kvl_mem_alloc(p->absmax_bytes, (void **)&p->absmax));
    }
    if (rows != layer->n_out)
        return kvl_fail(KVL_ERR_INTERNAL, "linear layer: parts of %lld rows, not %lld",
                        (long long)rows, (long long)layer->n_out);
    return KVL_OK;
}

bool kvl_linear_blocks_panel_bytes(const kvl_linear *layer, uint64_t *out) {
    return layer->blocks->codec->panel_bytes(layer->n_in, layer->blocks->block, out);
}

static void *panel_of(const kvl_linear *layer, int64_t row) {
    return layer->panels + (uint64_t)(row / layer->codec->panel) * layer->panel_bytes;
}

static part *part_of(blocks_state *b, int64_t row) {
    int i = 0;
    while (row >= b->parts[i].first + b->parts[i].n_rows) i++;
    return &b->parts[i];
}

void kvl_linear_blocks_start(kvl_linear *layer) {
    blocks_state *b = layer->blocks;
    int64_t panel = layer->codec->panel;
    for (int64_t row = 0; row < layer->n_out; row++) {
        if (row % panel == 0)
            b->codec->start_panel(panel_of(layer, row), b->codec->type, layer->n_in, b->block);
        if (b->whole_rows) continue;
        int64_t flat = (row - part_of(b, row)->first) * layer->n_in;
        b->codec->set_phase(panel_of(layer, row), row % panel, flat % b->block);
    }
}

static void free_staged(blocks_state *b) {
    kvl_mem_free(b->staged, b->staged_bytes);
    b->staged = NULL;
}

void kvl_linear_blocks_destroy(kvl_linear *layer) {
    blocks_state *b = layer->blocks;
    if (!b) return;
    free_staged(b);
    for (int i = 0; i < b->n_parts; i++) kvl_mem_free(b->parts[i].absmax, b->parts[i].absmax_bytes);
    free(b);
    layer->blocks = NULL;
}

double kvl_linear_bits(const kvl_linear *layer) {
    return layer->blocks ? 4 + 32.0 / (double)layer->blocks->block
                         : layer->codec->format.bits_per_weight;
}

/* ---- encoding ------------------------------------------------------------------------------- */

/* What absmax becomes in double quantisation: to 8 bits and back. */
static kvl_status round_absmax(float *absmax, int64_t n) {
    int64_t n_scales = kvl_nf4_blocks(n, KVL_NF4_NESTED_BLOCK);
    uint8_t *codes = malloc((size_t)n + (size_t)n_scales * sizeof(float) + 64);
    if (!codes) return kvl_fail(KVL_ERR_OOM, "out of memory: double quantisation");
    float *scales = (float *)(codes + ((size_t)n + 15) / 16 * 16), offset;
    kvl_nf4_nest(absmax, n, codes, scales, &offset);
    kvl_nf4_unnest(codes, n, scales, KVL_NF4_NESTED_BLOCK, offset, kvl_nf4_dynamic_map(), absmax);
    free(codes);
    return KVL_OK;
}

/* Codes and absmax of a whole part to its lanes. */
static void place_part(kvl_linear *layer, const part *p, const uint8_t *codes,
                       const float *absmax) {
    blocks_state *b = layer->blocks;
    for (int64_t r = 0; r < p->n_rows; r++) {
        int64_t row = p->first + r, flat = r * layer->n_in, lane = row % layer->codec->panel;
        void *panel = panel_of(layer, row);
        if (codes) b->codec->set_codes(panel, layer->n_in, lane, codes + flat);
        b->codec->set_absmax(panel, layer->n_in, lane, absmax + flat / b->block);
    }
}

static kvl_status encode_part(kvl_linear *layer, const part *p) {
    blocks_state *b = layer->blocks;
    int64_t n = p->n_rows * layer->n_in, n_blocks = kvl_nf4_blocks(n, b->block);
    if (!n) return KVL_OK;
    uint8_t *codes = malloc((size_t)n);
    float *absmax = malloc((size_t)n_blocks * sizeof *absmax);
    kvl_status status = KVL_OK;
    if (!codes || !absmax) status = kvl_fail(KVL_ERR_OOM, "out of memory: nf4 weights");
    if (status == KVL_OK) {
        kvl_nf4_encode(b->codec->type, b->block, b->staged + p->first * layer->n_in, n, codes,
                       absmax);
        if (b->codec->nested) status = round_absmax(absmax, n_blocks);
    }
    if (status == KVL_OK) place_part(layer, p, codes, absmax);
    free(codes);
    free(absmax);
    return status;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* The calling thread may be one of several, each with rows of its own. */
static kvl_status stage_rows(kvl_linear *layer, int64_t first, int64_t n_rows, const float *rows) {
    blocks_state *b = layer->blocks;
    size_t row_bytes = (size_t)layer->n_in * sizeof *rows;
    kvl_status status = KVL_OK;
#pragma omp critical(kvl_linear_blocks_stage)
    if (!b->staged) {
        b->staged_bytes = (uint64_t)layer->n_out * row_bytes;
        status = kvl_mem_alloc(b->staged_bytes, (void **)&b->staged);
    }
    KVL_TRY(status);
    memcpy(b->staged + first * layer->n_in, rows, (size_t)n_rows * row_bytes);
    if (atomic_fetch_sub(&b->rows_left, n_rows) != n_rows) return KVL_OK;
    for (int i = 0; i < b->n_parts; i++) KVL_TRY(encode_part(layer, &b->parts[i]));
    free_staged(b);
    return KVL_OK;
}

/* One row of whole blocks. The last row of a tensor completes its double quantisation. */
static kvl_status encode_row(kvl_linear *layer, int64_t row, const float *weights, uint8_t *codes,
                             float *absmax) {
    blocks_state *b = layer->blocks;
    part *p = part_of(b, row);
    int64_t per_row = layer->n_in / b->block, lane = row % layer->codec->panel;
    if (p->absmax) absmax = p->absmax + (row - p->first) * per_row;
    kvl_nf4_encode(b->codec->type, b->block, weights, layer->n_in, codes, absmax);
    b->codec->set_codes(panel_of(layer, row), layer->n_in, lane, codes);
    if (!p->absmax) {
        b->codec->set_absmax(panel_of(layer, row), layer->n_in, lane, absmax);
        return KVL_OK;
    }
    if (atomic_fetch_sub(&p->rows_left, 1) != 1) return KVL_OK;
    KVL_TRY(round_absmax(p->absmax, p->n_rows * per_row));
    place_part(layer, p, NULL, p->absmax);
    return KVL_OK;
}

/* Marks rows as set; each may come once. */
static kvl_status claim_rows(kvl_linear *layer, int64_t first, int64_t n_rows) {
    const uint8_t *twice = memchr(layer->is_set + first, 1, (size_t)n_rows);
    if (twice)
        return kvl_fail(KVL_ERR_INTERNAL, "linear layer: row %lld is set twice",
                        (long long)(twice - layer->is_set));
    memset(layer->is_set + first, 1, (size_t)n_rows);
    return KVL_OK;
}

/* Room for one row's codes and the absmax of the blocks it touches. */
static kvl_status row_scratch(const kvl_linear *layer, uint8_t **codes, float **absmax) {
    size_t n_absmax = (size_t)(layer->n_in / layer->blocks->block + 2);
    *absmax = malloc(n_absmax * sizeof **absmax + (size_t)layer->n_in);
    if (!*absmax) return kvl_fail(KVL_ERR_OOM, "out of memory: nf4 weights");
    *codes = (uint8_t *)(*absmax + n_absmax);
    return KVL_OK;
}

kvl_status kvl_linear_blocks_set_rows(kvl_linear *layer, int64_t first, int64_t n_rows,
                                      const float *rows) {
    KVL_TRY(claim_rows(layer, first, n_rows));
    if (n_rows == 0) return KVL_OK;
    if (!layer->blocks->whole_rows) return stage_rows(layer, first, n_rows, rows);
    uint8_t *codes = NULL;
    float *absmax = NULL;
    KVL_TRY(row_scratch(layer, &codes, &absmax));
    kvl_status status = KVL_OK;
    for (int64_t r = 0; r < n_rows && status == KVL_OK; r++)
        status = encode_row(layer, first + r, rows + r * layer->n_in, codes, absmax);
    free(absmax);
    return status;
}

kvl_status kvl_linear_set_nf4(kvl_linear *layer, int64_t first, int64_t n_rows,
                              const kvl_nf4_tensor *tensor, int64_t tensor_row) {
    blocks_state *b = layer->blocks;
    if (!b || tensor->type != b->codec->type || tensor->block != b->block)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "linear layer: %s blocks of %lld do not fit it",
                        kvl_nf4_type_name(tensor->type), (long long)tensor->block);
    if (!layer->is_set) return kvl_fail(KVL_ERR_INTERNAL, "linear layer: set after finish");
    if (first < 0 || n_rows < 0 || first > layer->n_out - n_rows || tensor_row < 0 ||
        tensor_row + n_rows > tensor->n_elems / layer->n_in)
        return kvl_fail(KVL_ERR_INTERNAL, "linear layer: rows %lld + %lld from row %lld",
                        (long long)first, (long long)n_rows, (long long)tensor_row);
    KVL_TRY(claim_rows(layer, first, n_rows));
    uint8_t *codes = NULL;
    float *absmax = NULL;
    KVL_TRY(row_scratch(layer, &codes, &absmax));
    for (int64_t r = 0; r < n_rows; r++) {
        int64_t row = first + r, flat = (tensor_row + r) * layer->n_in;
        int64_t lane = row % layer->codec->panel;
        kvl_nf4_unpack(tensor->packed, flat, layer->n_in, codes);
        b->codec->set_codes(panel_of(layer, row), layer->n_in, lane, codes);
        b->codec->set_absmax(panel_of(layer, row), layer->n_in, lane,
                             tensor->absmax + flat / b->block);
    }
    free(absmax);
    return KVL_OK;
}
