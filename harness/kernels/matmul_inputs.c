#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/memory.h"
#include "core/rng.h"
#include "harness/kernels/axes.h"
#include "harness/kernels/matmul.h"
#include "harness/verify/codec.h"
#include "harness/verify/family.h"
#include "harness/verify/oracle.h"

enum { MAX_COPIES = 4096, GROUP_ROWS = 64, TABLE_VALUES = 1 << 20 };
enum { STREAM_TABLE = 1, STREAM_ROWS, STREAM_X, STREAM_SAMPLE };

/* ---- sizes ------------------------------------------------------------------------------------
 */

static kvl_status read_axes(const json_t *axes, kvl_matmul_setup *s) {
    const char *shape;
    int64_t threads;
    KVL_TRY(kvl_spec_text(axes, "weights", &s->weights));
    KVL_TRY(kvl_spec_text(axes, "device", &s->device));
    KVL_TRY(kvl_spec_text(axes, "shape", &shape));
    KVL_TRY(kvl_spec_dtype(axes, "compute_dtype", &s->compute_dtype));
    KVL_TRY(kvl_spec_choice(axes, "cache", "warm", "cold", &s->cold));
    KVL_TRY(kvl_spec_choice(axes, "kernel", "auto", "own", &s->own));
    KVL_TRY(kvl_spec_number(axes, "threads", 1, 1024, &threads));
    KVL_TRY(kvl_product_shape_parse(shape, strlen(shape), &s->shape));
    s->n_threads = (int32_t)threads;
    return kvl_weight_format_find(s->weights, &s->format);
}

kvl_status kvl_matmul_setup_make(const json_t *axes, kvl_matmul_setup *out) {
    kvl_matmul_setup s = {0};
    KVL_TRY(read_axes(axes, &s));
    uint64_t rows = (uint64_t)s.shape.n_rows, n_in = (uint64_t)s.shape.n_in,
             n_out = (uint64_t)s.shape.n_out, all; /* 2^24 each at most: products fit */
    s.weight_bytes = (uint64_t)((double)(n_in * n_out) * s.format->bits_per_weight / 8);
    s.x_bytes = rows * n_in * sizeof(float);
    s.y_bytes = rows * n_out * sizeof(float);
    s.n_copies = 1;
    if (s.cold) KVL_TRY(kvl_cold_copies(s.weight_bytes, MAX_COPIES, &s.n_copies));
    if (!kvl_mul_u64(s.weight_bytes, (uint64_t)s.n_copies, &all))
        return kvl_fail(KVL_ERR_UNSUPPORTED, "the weights of this shape overflow 64 bits");
    s.sum_bytes = all + s.x_bytes + 2 * s.y_bytes;
    s.working_set_bytes = all + s.x_bytes;
    *out = s;
    return KVL_OK;
}

/* ---- inputs -----------------------------------------------------------------------------------
 */

/* Rows of W are windows, at seeded places, of a table of normals of standard deviation
 * 1 / sqrt(n_in), so that outputs are of size 1. */
static void make_row(const float *table, const kvl_rng *rng, int64_t row, int64_t n_in,
                     float *out) {
    for (int64_t k = 0; k < n_in; k += TABLE_VALUES) {
        int64_t part = n_in - k < TABLE_VALUES ? n_in - k : TABLE_VALUES;
        uint64_t at = kvl_rng_at(rng, (uint64_t)row << 32 | (uint64_t)k);
        memcpy(out + k, table + at % TABLE_VALUES, (size_t)part * sizeof *out);
    }
}

/* Panels are powers of two of at most GROUP_ROWS rows, so groups of them may be set at once. */
static kvl_status make_layer(const kvl_matmul_inputs *in, const float *table, const kvl_rng *rng,
                             kvl_linear **layer) {
    const kvl_matmul_setup *s = in->setup;
    kvl_linear_options options = {
        .format = s->format, .compute_dtype = s->compute_dtype, .deterministic = s->own};
    int64_t n_in = s->shape.n_in, n_out = s->shape.n_out;
    bool ok = true;
    KVL_TRY(kvl_linear_create(n_out, n_in, &options, layer));
#pragma omp parallel for schedule(dynamic) reduction(&& : ok) num_threads(s->n_threads)
    for (int64_t first = 0; first < n_out; first += GROUP_ROWS) {
        float *row = malloc((size_t)n_in * sizeof *row);
        for (int64_t r = first; row && r < n_out && r < first + GROUP_ROWS; r++) {
            make_row(table, rng, r, n_in, row);
            ok = ok && kvl_linear_set_rows(*layer, r, 1, row) == KVL_OK;
        }
        ok = ok && row;
        free(row);
    }
    /* Its message stayed on the thread that failed. */
    if (!ok) return kvl_fail(KVL_ERR_UNSUPPORTED, "the weights could not be set");
    return kvl_linear_finish(*layer, NULL);
}

static kvl_status make_layers(kvl_matmul_inputs *in, uint64_t seed) {
    const kvl_matmul_setup *s = in->setup;
    float *table = malloc(2 * TABLE_VALUES * sizeof *table);
    kvl_rng rng = kvl_rng_make(seed, STREAM_ROWS);
    kvl_status status = table ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status == KVL_OK)
        kvl_rng_fill_normal(seed, STREAM_TABLE, 1.0f / sqrtf((float)s->shape.n_in), table,
                            2 * TABLE_VALUES);
    for (int64_t i = 0; status == KVL_OK && i < s->n_copies; i++)
        status = make_layer(in, table, &rng, &in->layers[i]);
    free(table);
    return status;
}

kvl_status kvl_matmul_inputs_make(const kvl_matmul_setup *setup, uint64_t seed,
                                  kvl_matmul_inputs *out) {
    void *x = NULL, *y = NULL, *checked = NULL;
    memset(out, 0, sizeof *out);
    out->setup = setup;
    out->layers = calloc((size_t)setup->n_copies, sizeof(kvl_linear *));
    kvl_status status = out->layers ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status == KVL_OK) status = kvl_mem_alloc(setup->x_bytes, &x);
    if (status == KVL_OK) status = kvl_mem_alloc(setup->y_bytes, &y);
    if (status == KVL_OK) status = kvl_mem_alloc(setup->y_bytes, &checked);
    out->x = x;
    out->y = y;
    out->checked = checked;
    if (status == KVL_OK) {
        kvl_rng_fill_normal(seed, STREAM_X, 1.0f, out->x, setup->shape.n_rows * setup->shape.n_in);
        status = make_layers(out, seed);
    }
    if (status != KVL_OK) kvl_matmul_inputs_free(out);
    return status;
}

void kvl_matmul_inputs_free(kvl_matmul_inputs *in) {
    if (!in->setup) return;
    for (int64_t i = 0; in->layers && i < in->setup->n_copies; i++)
        kvl_linear_destroy(in->layers[i]);
    free(in->layers);
    kvl_mem_free(in->x, in->setup->x_bytes);
    kvl_mem_free(in->y, in->setup->y_bytes);
    kvl_mem_free(in->checked, in->setup->y_bytes);
    memset(in, 0, sizeof *in);
}

/* ---- check ------------------------------------------------------------------------------------
 */

/* Bound as in harness/verify/linear.c: twice the error of plain float32 sums, and what a random
 * walk of n_in roundings gives. */
static void check_value(const kvl_matmul_inputs *in, int64_t r, int64_t o, const float *w,
                        kvl_verify_result *result) {
    const kvl_matmul_setup *s = in->setup;
    const double u = 0x1p-24;
    const float *row = in->x + r * s->shape.n_in;
    double exact = 0, norm1 = 0, norm2 = 0, n = (double)s->shape.n_in;
    float naive = 0;
    for (int64_t k = 0; k < s->shape.n_in; k++) {
        double x = row[k];
        if (s->compute_dtype == KVL_BF16) x = kvl_verify_round(KVL_BF16, x);
        double term = x * (double)w[k];
        exact += term;
        norm1 += fabs(term);
        norm2 += term * term;
        naive += (float)x * w[k];
    }
    double got = in->y[r * s->shape.n_out + o], error = fabs(got - exact);
    double bound = 2 * fabs(naive - exact) + 4 * u * sqrt(n * norm2) + 8 * u * norm1 / sqrt(n);
    result->n_rows++;
    if (!isfinite(got)) result->n_nonfinite++;
    if (result->max_abs < 0 || !(error / bound <= result->max_abs / result->bound)) {
        result->max_abs = error;
        result->bound = bound;
    }
    if (!(error <= bound))
        kvl_verify_failed(result, "row %lld output %lld: %.9g, not %.9g (bound %.3g)", (long long)r,
                          (long long)o, got, exact, bound);
}

/* The i-th of n_wanted seeded places below n: both ends first, all in order where n is small. */
static int64_t place(const kvl_rng *rng, int64_t i, int64_t n, int64_t n_wanted) {
    if (n <= n_wanted) return i;
    if (i < 2) return i ? n - 1 : 0;
    return (int64_t)(kvl_rng_at(rng, (uint64_t)i) % (uint64_t)n);
}

static int64_t lesser(int64_t a, int64_t b) {
    return a < b ? a : b;
}

kvl_status kvl_matmul_inputs_check(const kvl_matmul_inputs *in, uint64_t seed,
                                   kvl_verify_result *result) {
    /* Terms that are summed in all, at a few nanoseconds each. */
    const int64_t budget = 30000000;
    const kvl_product_shape *shape = &in->setup->shape;
    kvl_rng row_rng = kvl_rng_make(seed, STREAM_SAMPLE),
            out_rng = kvl_rng_make(seed, STREAM_SAMPLE + 1);
    int64_t n_values = budget / shape->n_in < 8 ? 8 : budget / shape->n_in;
    int64_t n_rows = lesser(shape->n_rows, n_values < 256 ? 2 : 16);
    int64_t n_outs = lesser(shape->n_out, n_values / n_rows);
    const bool rounds = kvl_linear_rounds_weights(in->layers[0], shape->n_rows);
    float *w = malloc((size_t)shape->n_in * sizeof *w);
    kvl_verify_result_clear(result, "");
    result->n_rows = 0;
    if (!w) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (int64_t i = 0; i < n_outs; i++) {
        int64_t o = place(&out_rng, i, shape->n_out, n_outs);
        kvl_linear_get_row(in->layers[0], o, w);
        for (int64_t k = 0; rounds && k < shape->n_in; k++)
            w[k] = (float)kvl_verify_round(KVL_BF16, w[k]);
        for (int64_t j = 0; j < n_rows; j++)
            check_value(in, place(&row_rng, j, shape->n_rows, n_rows), o, w, result);
    }
    free(w);
    return KVL_OK;
}
