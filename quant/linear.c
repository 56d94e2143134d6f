/* Life of a layer: made empty, filled row by row, finished, read, destroyed. Products are in
 * quant/linear_run.c. */
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/memory.h"
#include "quant/linear_internal.h"

static bool layer_size(kvl_linear *layer) {
    uint64_t outs;
    return kvl_add_u64((uint64_t)layer->n_out, (uint64_t)layer->codec->panel - 1, &outs) &&
           (layer->blocks ? kvl_linear_blocks_panel_bytes(layer, &layer->panel_bytes)
                          : layer->codec->panel_bytes(layer->n_in, &layer->panel_bytes)) &&
           kvl_align_u64(layer->panel_bytes, 64, &layer->panel_bytes) &&
           kvl_mul_u64(layer->panel_bytes, outs / (uint64_t)layer->codec->panel, &layer->bytes);
}

kvl_status kvl_linear_create(int64_t n_out, int64_t n_in, const kvl_linear_options *options,
                             kvl_linear **out) {
    if (n_out < 1 || n_in < 1)
        return kvl_fail(KVL_ERR_INPUT, "linear layer %lld x %lld: both dimensions at least 1",
                        (long long)n_out, (long long)n_in);
    if (options->compute_dtype != KVL_F32 && options->compute_dtype != KVL_BF16)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "linear layer: compute_dtype %s: f32 or bf16",
                        kvl_dtype_name(options->compute_dtype));
    const kvl_weight_codec *codec = kvl_weight_codec_now(options->format);
    if (!codec) return kvl_fail(KVL_ERR_INTERNAL, "linear layer: unregistered weight format");
    kvl_linear *layer = calloc(1, sizeof *layer);
    if (!layer) return kvl_fail(KVL_ERR_OOM, "out of memory: linear layer");
    *layer = (kvl_linear){.codec = codec,
                          .isa = kvl_linear_isa_now(),
                          .n_out = n_out,
                          .n_in = n_in,
                          .bf16_x = options->compute_dtype == KVL_BF16,
                          .deterministic = options->deterministic};
    kvl_status status = codec->blocks ? kvl_linear_blocks_create(layer, options) : KVL_OK;
    if (status == KVL_OK && !layer_size(layer)) {
        status = kvl_fail(KVL_ERR_OOM, "linear layer %lld x %lld: size overflows", (long long)n_out,
                          (long long)n_in);
    } else if (status == KVL_OK) {
        layer->n_panels = (int64_t)(layer->bytes / layer->panel_bytes);
        status = kvl_mem_alloc(layer->bytes, (void **)&layer->panels);
    }
    if (status == KVL_OK) status = kvl_mem_alloc((uint64_t)n_out, (void **)&layer->is_set);
    if (status != KVL_OK) {
        kvl_linear_destroy(layer);
        return status;
    }
    if (layer->blocks) kvl_linear_blocks_start(layer);
    *out = layer;
    return KVL_OK;
}

kvl_status kvl_linear_set_rows(kvl_linear *layer, int64_t first, int64_t n_rows,
                               const float *rows) {
    if (first < 0 || n_rows < 0 || first > layer->n_out - n_rows)
        return kvl_fail(KVL_ERR_INPUT, "linear layer: rows %lld + %lld: the layer has %lld",
                        (long long)first, (long long)n_rows, (long long)layer->n_out);
    if (!layer->is_set) return kvl_fail(KVL_ERR_INTERNAL, "linear layer: set after finish");
    if (layer->blocks) return kvl_linear_blocks_set_rows(layer, first, n_rows, rows);
    int64_t panel = layer->codec->panel;
    for (int64_t row = first, end = first + n_rows; row < end;) {
        int64_t lane = row % panel, n = panel - lane < end - row ? panel - lane : end - row;
        KVL_TRY(layer->codec->encode(rows + (row - first) * layer->n_in, row, n, layer->n_in, lane,
                                     layer->panels + (uint64_t)(row / panel) * layer->panel_bytes));
        memset(layer->is_set + row, 1, (size_t)n);
        row += n;
    }
    return KVL_OK;
}

kvl_status kvl_linear_finish(kvl_linear *layer, const float *bias) {
    if (!layer->is_set) return kvl_fail(KVL_ERR_INTERNAL, "linear layer: finished twice");
    const uint8_t *unset = memchr(layer->is_set, 0, (size_t)layer->n_out);
    if (unset)
        return kvl_fail(KVL_ERR_INTERNAL, "linear layer: row %lld of %lld was never set",
                        (long long)(unset - layer->is_set), (long long)layer->n_out);
    if (bias) {
        uint64_t bytes = (uint64_t)layer->n_panels * (uint64_t)layer->codec->panel * sizeof *bias;
        KVL_TRY(kvl_mem_alloc(bytes, (void **)&layer->bias));
        memcpy(layer->bias, bias, (size_t)layer->n_out * sizeof *bias);
    }
    kvl_mem_free(layer->is_set, (uint64_t)layer->n_out);
    layer->is_set = NULL;
    return KVL_OK;
}

void kvl_linear_destroy(kvl_linear *layer) {
    if (!layer) return;
    uint64_t panel = (uint64_t)layer->codec->panel;
    kvl_mem_free(layer->panels, layer->bytes);
    kvl_mem_free(layer->is_set, (uint64_t)layer->n_out);
    kvl_mem_free(layer->bias, (uint64_t)layer->n_panels * panel * sizeof *layer->bias);
    kvl_linear_blocks_destroy(layer);
    free(layer);
}

void kvl_linear_get_row(const kvl_linear *layer, int64_t row, float *out) {
    int64_t panel = layer->codec->panel;
    layer->codec->decode_row(layer->panels + (uint64_t)(row / panel) * layer->panel_bytes,
                             layer->n_in, row % panel, out);
}

int64_t kvl_linear_n_out(const kvl_linear *layer) {
    return layer->n_out;
}

int64_t kvl_linear_n_in(const kvl_linear *layer) {
    return layer->n_in;
}

uint64_t kvl_linear_bytes(const kvl_linear *layer) {
    return layer->bytes;
}

kvl_work kvl_linear_work(const kvl_linear *layer, int64_t n_rows) {
    double rows = (double)n_rows, n_out = (double)layer->n_out, n_in = (double)layer->n_in;
    double weights = n_out * n_in * kvl_linear_bits(layer) / 8;
    double bias = layer->bias ? n_out * sizeof(float) : 0;
    return (kvl_work){.read_bytes = weights + bias + rows * n_in * sizeof(float),
                      .write_bytes = rows * n_out * sizeof(float),
                      .flops = 2 * rows * n_out * n_in};
}

bool kvl_linear_rounds_weights(const kvl_linear *layer, int64_t n_rows) {
    return layer->codec->blocks && kvl_linear_uses_matrix(layer, n_rows);
}

const char *kvl_linear_kernel(const kvl_linear *layer, int64_t n_rows) {
    return kvl_linear_uses_matrix(layer, n_rows) ? layer->codec->matrix_kernel : layer->isa->kernel;
}
