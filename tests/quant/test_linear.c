/* Linear layers against a float64 product over the weights that were stored. */
#include "tests/test.h"

#include <float.h>
#include <math.h>

#include "core/isa.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/threads.h"
#include "quant/kv_format.h"
#include "quant/linear.h"
#include "quant/linear_internal.h"

static const kvl_weight_format *format_named(const char *name) {
    const kvl_weight_format *format = NULL;
    assert_ok(kvl_weight_format_find(name, &format));
    return format;
}

static float *normals(uint64_t stream, int64_t n, float sigma) {
    float *x = malloc((size_t)n * sizeof *x + 1);
    assert_non_null(x);
    kvl_rng_fill_normal(7, stream, sigma, x, n);
    return x;
}

/* Rows go in by sevens from the end, so no range starts where a panel does. */
static kvl_linear *layer_of(const char *format, kvl_dtype compute, int64_t n_out, int64_t n_in,
                            const float *w, const float *bias) {
    kvl_linear_options options = {
        .format = format_named(format), .compute_dtype = compute, .deterministic = true};
    kvl_linear *layer = NULL;
    assert_ok(kvl_linear_create(n_out, n_in, &options, &layer));
    for (int64_t end = n_out; end > 0; end -= 7) {
        int64_t first = end > 7 ? end - 7 : 0;
        assert_ok(kvl_linear_set_rows(layer, first, end - first, w + first * n_in));
    }
    assert_ok(kvl_linear_finish(layer, bias));
    return layer;
}

static float rounded(float x, kvl_dtype dtype) {
    return dtype == KVL_BF16  ? kvl_bf16_to_f32(kvl_f32_to_bf16(x))
           : dtype == KVL_F16 ? kvl_f16_to_f32(kvl_f32_to_f16(x))
                              : x;
}

typedef struct product {
    const char *format;
    kvl_dtype compute;
    int64_t n_out, n_in, n_rows, x_pad, y_pad;
    bool bias, accumulate;
} product;

/* A sum of n products rounds once a term (twice in plain C) and each rounding is at most half an
 * ulp of a partial sum, which is at most sum |x||w|: |error| <= 2 n u sum |x||w| to first order,
 * u = eps / 2; the bias and the accumulated y add one rounding each of the whole. */
static double bound(int64_t n_in, double magnitude, double result) {
    double u = FLT_EPSILON / 2;
    return 1.01 * (2 * (double)n_in * u * magnitude + 2 * u * (magnitude + fabs(result))) + 1e-44;
}

static void check_values(const product *p, const float *x, const float *w, const float *bias,
                         const float *before, const float *y) {
    kvl_dtype stored = format_named(p->format)->dtype;
    for (int64_t r = 0; r < p->n_rows; r++) {
        for (int64_t o = 0; o < p->n_out; o++) {
            int64_t at = r * (p->n_out + p->y_pad) + o;
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < p->n_in; k++) {
                double term = (double)rounded(x[r * (p->n_in + p->x_pad) + k], p->compute) *
                              rounded(w[o * p->n_in + k], stored);
                sum += term;
                magnitude += fabs(term);
            }
            if (bias) sum += bias[o], magnitude += fabs(bias[o]);
            if (p->accumulate) sum += before[at], magnitude += fabs(before[at]);
            if (!(fabs(y[at] - sum) <= bound(p->n_in, magnitude, sum)))
                fail_msg("%s %s [%lld %lld] rows %lld: y[%lld][%lld] = %.9g, not %.9g", p->format,
                         kvl_dtype_name(p->compute), (long long)p->n_out, (long long)p->n_in,
                         (long long)p->n_rows, (long long)r, (long long)o, y[at], sum);
        }
        for (int64_t pad = 0; pad < p->y_pad; pad++) { /* what lies between rows is not touched */
            int64_t at = r * (p->n_out + p->y_pad) + p->n_out + pad;
            assert_true(y[at] == before[at]);
        }
    }
}

static void check_product(const product *p) {
    int64_t xs = p->n_in + p->x_pad, ys = p->n_out + p->y_pad;
    float *w = normals(1, p->n_out * p->n_in, 0.05f), *x = normals(2, p->n_rows * xs, 1);
    float *b = normals(3, p->n_out, 1), *before = normals(4, p->n_rows * ys, 1);
    float *y = malloc((size_t)(p->n_rows * ys) * sizeof *y);
    memcpy(y, before, (size_t)(p->n_rows * ys) * sizeof *y);
    const float *bias = p->bias ? b : NULL;
    kvl_linear *layer = layer_of(p->format, p->compute, p->n_out, p->n_in, w, bias);
    assert_ok(kvl_linear_run(layer, x, xs, p->n_rows, y, ys, p->accumulate));
    check_values(p, x, w, bias, before, y);
    kvl_linear_destroy(layer);
    free(w), free(x), free(b), free(before), free(y);
}

static const char *const format_names[] = {"f32", "f16", "bf16"};

static void each_isa(void (*check)(void)) {
    kvl_isa best = kvl_isa_current();
    for (int isa = 0; isa < KVL_N_ISAS; isa++) {
        if (!kvl_isa_has((kvl_isa)isa)) {
            print_message("[  SKIPPED ] %s: not on this CPU\n", kvl_isa_name((kvl_isa)isa));
            continue;
        }
        assert_ok(kvl_isa_force((kvl_isa)isa));
        check();
    }
    assert_ok(kvl_isa_force(best));
}

static void shapes_once(void) {
    static const int64_t sizes[][2] = {{1, 1}, {5, 3}, {16, 64}, {33, 257}, {70, 515}, {200, 300}};
    for (size_t f = 0; f < 3; f++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (int64_t rows = 1; rows <= 40; rows += rows < 14 || f == 2 ? 1 : 13) {
                product p = {.format = format_names[f],
                             .compute = rows & 1 ? KVL_BF16 : KVL_F32,
                             .n_out = sizes[s][0],
                             .n_in = sizes[s][1],
                             .n_rows = rows,
                             .x_pad = rows % 3,
                             .y_pad = rows % 4,
                             .bias = rows & 2,
                             .accumulate = rows & 4};
                check_product(&p);
            }
        }
    }
    check_product(&(product){"bf16", KVL_BF16, 75, 576, 520, 5, 3, true, true});
    check_product(&(product){"f32", KVL_F32, 40, 1536, 512, 0, 0, false, false});
}

static void values_for_every_shape_and_isa(void **state) {
    each_isa(shapes_once);
}

/* 520 rows of x, at once; then in pieces that take every path; same bits, for 1, 2, 3 threads. */
static void bits_once(void) {
    enum { OUT = 75, IN = 701, ROWS = 520 }; /* more than a piece, and an odd last k */
    float *w = normals(1, OUT * IN, 0.05f), *x = normals(2, ROWS * IN, 1);
    float *want = malloc(ROWS * OUT * sizeof *want), *got = malloc(ROWS * OUT * sizeof *got);
    for (size_t f = 0; f < 3; f++) {
        kvl_linear *layer = layer_of(format_names[f], KVL_BF16, OUT, IN, w, NULL);
        assert_ok(kvl_threads_set(1, 0));
        assert_ok(kvl_linear_run(layer, x, IN, ROWS, want, OUT, false));
        for (int threads = 1; threads <= 3; threads++) {
            assert_ok(kvl_threads_set(threads, 0));
            static const int pieces[] = {1, 2, 3, 4, 5, 6, 7, 12, 13, 64, 512};
            for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
                memset(got, 0, ROWS * OUT * sizeof *got);
                for (int r = 0; r < ROWS; r += pieces[i]) {
                    int n = ROWS - r < pieces[i] ? ROWS - r : pieces[i];
                    assert_ok(kvl_linear_run(layer, x + r * IN, IN, n, got + r * OUT, OUT, false));
                }
                if (memcmp(want, got, ROWS * OUT * sizeof *got))
                    fail_msg("%s, %d threads: pieces of %d rows change bits", format_names[f],
                             threads, pieces[i]);
            }
        }
        kvl_linear_destroy(layer);
    }
    assert_ok(kvl_threads_set(2, 0));
    free(w), free(x), free(want), free(got);
}

static void same_bits_for_any_rows_and_threads(void **state) {
    each_isa(bits_once);
}

/* A batch-1 product of the widest kernel against the definition of the order of sums: fmaf over k.
 * The scalar kernels round twice and are left out. */
static void sums_run_in_order(void **state) {
    enum { OUT = 40, IN = 700 };
    if (kvl_isa_current() == KVL_ISA_SCALAR) {
        print_message("[  SKIPPED ] no fused multiply-add on this CPU\n");
        return;
    }
    float *w = normals(1, OUT * IN, 1), *x = normals(2, 8 * IN, 1), y[8 * OUT];
    kvl_linear *layer = layer_of("f32", KVL_F32, OUT, IN, w, NULL);
    for (int rows = 1; rows <= 8; rows += 7) {
        assert_ok(kvl_linear_run(layer, x, IN, rows, y, OUT, false));
        for (int i = 0; i < rows * OUT; i++) {
            float sum = 0;
            for (int k = 0; k < IN; k++) sum = fmaf(x[i / OUT * IN + k], w[i % OUT * IN + k], sum);
            assert_true(sum == y[i]);
        }
    }
    kvl_linear_destroy(layer);
    free(w), free(x);
}

/* Every 16-bit code goes in and comes out as itself; f32 keeps its bits. */
static void rows_are_stored_exactly(void **state) {
    enum { IN = 1021 };
    for (size_t f = 0; f < 3; f++) {
        kvl_dtype dtype = format_named(format_names[f])->dtype;
        int64_t n_out = 65536 / IN + 1;
        float *w = malloc((size_t)(n_out * IN) * sizeof *w), row[IN];
        for (int64_t i = 0; i < n_out * IN; i++) {
            uint16_t code = (uint16_t)i;
            w[i] = dtype == KVL_F16 ? kvl_f16_to_f32(code) : kvl_bf16_to_f32(code);
        }
        kvl_linear *layer = layer_of(format_names[f], KVL_F32, n_out, IN, w, NULL);
        for (int64_t r = 0; r < n_out; r++) {
            kvl_linear_get_row(layer, r, row);
            for (int k = 0; k < IN; k++) {
                float want = w[r * IN + k];
                bool same = isnan(want) ? isnan(row[k]) : !memcmp(&want, &row[k], sizeof want);
                if (!same) fail_msg("%s: %a became %a", format_names[f], want, row[k]);
            }
        }
        kvl_linear_destroy(layer);
        free(w);
    }
}

/* What the bf16 matrix instructions read: [k / 2][lane][k % 2], zeros past n_in and n_out. */
static void pairs_once(void) {
    enum { OUT = 43, IN = 5 };
    float w[OUT * IN];
    for (int i = 0; i < OUT * IN; i++) w[i] = (float)(1 + i);
    kvl_linear *layer = layer_of("bf16", KVL_BF16, OUT, IN, w, NULL);
    int panel = layer->codec->panel;
    assert_true(layer->panel_bytes >= (uint64_t)panel * 6 * 2 && layer->panel_bytes % 64 == 0);
    for (int o = 0; o < layer->n_panels * panel; o++) {
        const uint16_t *codes =
            (const uint16_t *)(layer->panels + (uint64_t)(o / panel) * layer->panel_bytes);
        for (int k = 0; k < 6; k++) {
            float want = o < OUT && k < IN ? w[o * IN + k] : 0;
            assert_true(codes[(k / 2 * panel + o % panel) * 2 + k % 2] == kvl_f32_to_bf16(want));
        }
    }
    kvl_linear_destroy(layer);
}

static void bf16_panels_hold_pairs(void **state) {
    each_isa(pairs_once);
}

static void rounds_weights_to_nearest_even(void **state) {
    const float w[4] = {1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1p-11f, 1 + 0x3p-11f};
    float row[4];
    kvl_linear *layer = layer_of("bf16", KVL_F32, 1, 4, w, NULL);
    kvl_linear_get_row(layer, 0, row);
    assert_true(row[0] == 1 && row[1] == 1 + 0x1p-6f && row[2] == 1 && row[3] == 1);
    kvl_linear_destroy(layer);
    layer = layer_of("f16", KVL_F32, 1, 4, w, NULL);
    kvl_linear_get_row(layer, 0, row);
    assert_true(row[0] == w[0] && row[1] == w[1] && row[2] == 1 && row[3] == 1 + 0x1p-9f);
    kvl_linear_destroy(layer);
}

static void unclean_rows_once(void) {
    enum { OUT = 37, IN = 90, ROWS = 20 };
    float *w = normals(1, OUT * IN, 1), *x = normals(2, ROWS * IN, 1);
    float want[ROWS * OUT], got[ROWS * OUT];
    kvl_linear *layer = layer_of("bf16", KVL_BF16, OUT, IN, w, NULL);
    for (int rows = 3; rows <= ROWS; rows += ROWS - 3) {
        assert_ok(kvl_linear_run(layer, x, IN, rows, want, OUT, false));
        float kept[2] = {x[1 * IN + 4], x[2 * IN + 8]};
        x[1 * IN + 4] = NAN;
        x[2 * IN + 8] = INFINITY;
        assert_ok(kvl_linear_run(layer, x, IN, rows, got, OUT, false));
        x[1 * IN + 4] = kept[0];
        x[2 * IN + 8] = kept[1];
        for (int i = 0; i < rows * OUT; i++) {
            int row = i / OUT;
            if (row == 1)
                assert_true(isnan(got[i]));
            else if (row == 2)
                assert_true(isinf(got[i]));
            else
                assert_true(got[i] == want[i]);
        }
    }
    kvl_linear_destroy(layer);
    free(w), free(x);
}

static void nan_and_inf_stay_in_their_row(void **state) {
    each_isa(unclean_rows_once);
}

static void refusals(void **state) {
    kvl_linear_options options = {
        .format = format_named("f16"), .compute_dtype = KVL_F32, .deterministic = true};
    kvl_linear *layer = NULL;
    float row[3] = {1, 2, 3}, y[2];
    assert_refused(kvl_linear_create(0, 3, &options, &layer), KVL_ERR_INPUT, "0 x 3");
    assert_refused(kvl_linear_create(3, -1, &options, &layer), KVL_ERR_INPUT, "3 x -1");
    assert_refused(kvl_linear_create(INT64_MAX, INT64_MAX, &options, &layer), KVL_ERR_OOM,
                   "overflows");
    assert_refused(kvl_linear_create(INT64_MAX, 1, &options, &layer), KVL_ERR_OOM, "");
    assert_refused(kvl_linear_create(1LL << 30, 1LL << 30, &options, &layer), KVL_ERR_OOM,
                   "out of memory");
    options.compute_dtype = KVL_F16;
    assert_refused(kvl_linear_create(2, 3, &options, &layer), KVL_ERR_UNSUPPORTED, "f16");
    options.compute_dtype = KVL_F32;
    assert_null(layer);
    assert_ok(kvl_linear_create(2, 3, &options, &layer));
    assert_refused(kvl_linear_set_rows(layer, 1, 2, row), KVL_ERR_INPUT, "rows 1 + 2");
    assert_refused(kvl_linear_set_rows(layer, -1, 1, row), KVL_ERR_INPUT, "rows -1");
    assert_ok(kvl_linear_set_rows(layer, 0, 1, row));
    assert_refused(kvl_linear_finish(layer, NULL), KVL_ERR_INTERNAL, "row 1 of 2");
    assert_refused(kvl_linear_run(layer, row, 3, 1, y, 2, false), KVL_ERR_INTERNAL, "finish");
    row[2] = 65520;
    assert_refused(kvl_linear_set_rows(layer, 1, 1, row), KVL_ERR_INPUT, "row 1");
    row[2] = 65504;
    assert_ok(kvl_linear_set_rows(layer, 1, 1, row));
    assert_ok(kvl_linear_finish(layer, NULL));
    assert_refused(kvl_linear_set_rows(layer, 0, 1, row), KVL_ERR_INTERNAL, "after finish");
    assert_refused(kvl_linear_finish(layer, NULL), KVL_ERR_INTERNAL, "twice");
    assert_refused(kvl_linear_run(layer, row, 2, 2, y, 2, false), KVL_ERR_INTERNAL, "strides 2");
    assert_refused(kvl_linear_run(layer, row, 3, -1, y, 2, false), KVL_ERR_INTERNAL, "-1 rows");
    assert_ok(kvl_linear_run(layer, NULL, 3, 0, NULL, 2, false));
    kvl_linear_destroy(layer);
    kvl_linear_destroy(NULL);
    const kvl_weight_format *format;
    assert_refused(kvl_weight_format_find("bf61", &format), KVL_ERR_INPUT, "bf16");
    assert_null(kvl_weight_format_at(kvl_weight_format_count()));
}

static void says_what_it_is(void **state) {
    const float w[6] = {1, 2, 3, 4, 5, 6}, bias[2] = {0, 1};
    uint64_t live = kvl_mem_live_bytes();
    kvl_linear *layer = layer_of("bf16", KVL_F32, 2, 3, w, bias);
    assert_int_equal(kvl_linear_n_out(layer), 2);
    assert_int_equal(kvl_linear_n_in(layer), 3);
    /* One panel, padded: at least its rows, at most 32 of them (AVX-512) of whole pairs. */
    assert_in_range(kvl_linear_bytes(layer), 2 * 3 * 2, 32 * 4 * 2);
    kvl_work work = kvl_linear_work(layer, 10);
    assert_true(work.read_bytes == 2 * 3 * 2 + 2 * 4 + 10 * 3 * 4);
    assert_true(work.write_bytes == 10 * 2 * 4);
    assert_true(work.flops == 2 * 10 * 2 * 3);
    assert_non_null(strstr(kvl_linear_kernel(layer, 1), "panel/"));
    kvl_linear_destroy(layer);
    assert_int_equal(kvl_mem_live_bytes(), live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_for_every_shape_and_isa),
        cmocka_unit_test(same_bits_for_any_rows_and_threads),
        cmocka_unit_test(sums_run_in_order),
        cmocka_unit_test(rows_are_stored_exactly),
        cmocka_unit_test(bf16_panels_hold_pairs),
        cmocka_unit_test(rounds_weights_to_nearest_even),
        cmocka_unit_test(nan_and_inf_stay_in_their_row),
        cmocka_unit_test(refusals),
        cmocka_unit_test(says_what_it_is),
    };
    if (kvl_isa_init() != KVL_OK || kvl_threads_set(2, 0) != KVL_OK) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
