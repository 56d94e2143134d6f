/* The bf16 matrix kernels of the linear layers on any CPU with AVX2, by emulated instructions; and
 * natively where the CPU has them. Against float64 sums of the same bf16 values. */
#include "tests/test.h"

#include <math.h>

#include "core/isa.h"
#include "core/rng.h"
#include "quant/kv_format.h"
#include "quant/linear_internal.h"

extern const kvl_weight_codec kvl_weights_bf16_emulated_amx, kvl_weights_bf16_emulated_avx512_bf16;

typedef struct product {
    int64_t n_out, n_in, n_rows;
    bool bias, accumulate;
} product;

/* A job on its own memory; every byte that must not count is NaN. */
typedef struct bench {
    const kvl_weight_codec *codec;
    product p;
    float *w, *bias, *y;
    uint16_t *x;
    int64_t y_stride;
    kvl_matrix_job job;
} bench;

static void *nan_bytes(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 127) & ~(size_t)63);
    assert_non_null(p);
    memset(p, 0xff, (bytes + 127) & ~(size_t)63);
    return p;
}

static void bench_make(bench *b, const kvl_weight_codec *codec, const product *p) {
    int64_t n_panels = (p->n_out + codec->panel - 1) / codec->panel;
    int64_t x_stride = (p->n_in + 31) / 32 * 32 + 32, x_rows = (p->n_rows + 31) / 32 * 32;
    uint64_t panel_bytes;
    *b = (bench){.codec = codec, .p = *p, .y_stride = p->n_out + 3};
    assert_true(codec->panel_bytes(p->n_in, &panel_bytes));
    panel_bytes = (panel_bytes + 63) & ~(uint64_t)63;
    uint8_t *panels = nan_bytes((size_t)n_panels * panel_bytes);
    memset(panels, 0, (size_t)n_panels * panel_bytes); /* as kvl_linear_create leaves them */
    b->w = nan_bytes((size_t)(p->n_out * p->n_in) * 4);
    kvl_rng_fill_normal(3, 1, 0.5f, b->w, p->n_out * p->n_in);
    for (int64_t o = 0; o < p->n_out; o++)
        assert_ok(codec->encode(b->w + o * p->n_in, o, 1, p->n_in, o % codec->panel,
                                panels + (uint64_t)(o / codec->panel) * panel_bytes));
    float *x = nan_bytes((size_t)(p->n_rows * p->n_in) * 4);
    kvl_rng_fill_normal(3, 2, 1.0f, x, p->n_rows * p->n_in);
    b->x = nan_bytes((size_t)(x_rows * x_stride) * 2);
    for (int64_t r = 0; r < x_rows; r++) {
        uint16_t *row = b->x + r * x_stride;
        memset(row, 0, (size_t)(x_stride - 32) * 2);
        for (int64_t k = 0; k < p->n_in && r < p->n_rows; k++)
            row[k] = kvl_f32_to_bf16(x[r * p->n_in + k]);
    }
    free(x);
    b->bias = nan_bytes((size_t)(n_panels * codec->panel) * 4);
    kvl_rng_fill_normal(3, 3, 1.0f, b->bias, p->n_out);
    b->y = nan_bytes((size_t)(p->n_rows * b->y_stride) * 4);
    kvl_rng_fill_normal(3, 4, 1.0f, b->y, p->n_rows * b->y_stride);
    b->job = (kvl_matrix_job){.panels = panels,
                              .panel_bytes = panel_bytes,
                              .end_panel = n_panels,
                              .x = b->x,
                              .x_stride = x_stride,
                              .n_rows = p->n_rows,
                              .n_in = p->n_in,
                              .sink = {.y = b->y,
                                       .y_stride = b->y_stride,
                                       .n_out = p->n_out,
                                       .bias = p->bias ? b->bias : NULL,
                                       .accumulate = p->accumulate},
                              .scratch = nan_bytes(codec->matrix_scratch_bytes)};
}

static void bench_free(bench *b) {
    free((void *)(uintptr_t)b->job.panels);
    free(b->w), free(b->bias), free(b->y), free(b->x), free(b->job.scratch);
}

/* Each product rounds its sum once: u sum |x w| each, twice that for pairs that are added first. */
static void check_values(const bench *b, const float *before) {
    const product *p = &b->p;
    for (int64_t r = 0; r < p->n_rows; r++) {
        for (int64_t o = 0; o < b->y_stride; o++) {
            int64_t at = r * b->y_stride + o;
            if (o >= p->n_out) {
                assert_true(b->y[at] == before[at]);
                continue;
            }
            double sum = p->bias ? b->bias[o] : 0, size = fabs(sum);
            for (int64_t k = 0; k < p->n_in; k++) {
                double term = (double)kvl_bf16_to_f32(b->x[r * b->job.x_stride + k]) *
                              kvl_bf16_to_f32(kvl_f32_to_bf16(b->w[o * p->n_in + k]));
                sum += term;
                size += fabs(term);
            }
            if (p->accumulate) sum += before[at], size += fabs(before[at]);
            double bound = 0x1p-24 * size * (4 + sqrt((double)p->n_in)) * 2;
            if (!(fabs(b->y[at] - sum) <= bound))
                fail_msg("%s [%lld %lld] rows %lld: y[%lld][%lld] = %.9g, not %.9g (bound %.3g)",
                         b->codec->matrix_kernel, (long long)p->n_out, (long long)p->n_in,
                         (long long)p->n_rows, (long long)r, (long long)o, (double)b->y[at], sum,
                         bound);
        }
    }
}

static void check_product(const kvl_weight_codec *codec, const product *p) {
    bench b;
    bench_make(&b, codec, p);
    size_t bytes = (size_t)(p->n_rows * b.y_stride) * 4;
    float *before = nan_bytes(bytes);
    memcpy(before, b.y, bytes);
    /* In two jobs, as two workers take them. */
    kvl_matrix_job job = b.job;
    job.end_panel = b.job.end_panel / 2;
    codec->matrix(&job);
    job.first_panel = job.end_panel;
    job.end_panel = b.job.end_panel;
    codec->matrix(&job);
    check_values(&b, before);
    free(before);
    bench_free(&b);
}

/* Every codec that this CPU, or the emulation, can run. */
static void each_codec(void (*check)(const kvl_weight_codec *codec)) {
    if (kvl_isa_has(KVL_ISA_AVX2)) {
        check(&kvl_weights_bf16_emulated_avx512_bf16);
        check(&kvl_weights_bf16_emulated_amx);
    } else {
        print_message("[  SKIPPED ] emulation: this CPU has no AVX2\n");
    }
    const kvl_weight_format *format;
    kvl_isa best = kvl_isa_current();
    assert_ok(kvl_weight_format_find("bf16", &format));
    for (int isa = KVL_ISA_AVX512_BF16; isa < KVL_N_ISAS; isa++) {
        if (!kvl_isa_has((kvl_isa)isa)) {
            print_message("[  SKIPPED ] %s: not on this CPU\n", kvl_isa_name((kvl_isa)isa));
            continue;
        }
        assert_ok(kvl_isa_force((kvl_isa)isa));
        assert_non_null(kvl_weight_codec_now(format)->matrix);
        check(kvl_weight_codec_now(format));
    }
    assert_ok(kvl_isa_force(best));
}

static void shapes_once(const kvl_weight_codec *codec) {
    static const int64_t n_ins[] = {1, 2, 3, 31, 32, 33, 63, 64, 95, 100};
    static const int64_t n_rows[] = {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 49};
    for (size_t i = 0; i < sizeof n_ins / sizeof *n_ins; i++) {
        for (size_t r = 0; r < sizeof n_rows / sizeof *n_rows; r++) {
            product p = {.n_out = i % 2 ? 33 : 5 + 59 * (int64_t)(r % 3 == 0),
                         .n_in = n_ins[i],
                         .n_rows = n_rows[r],
                         .bias = r & 1,
                         .accumulate = r & 2};
            check_product(codec, &p);
        }
    }
    /* More rows than a block, more k than a piece, more panels than a group. */
    check_product(codec, &(product){40, 70, 290, true, false});
    check_product(codec, &(product){35, 2100, 20, false, true});
    check_product(codec, &(product){330, 2081, 33, true, false});
}

static void values(void **state) {
    each_codec(shapes_once);
}

/* A row of x beside any others, in any job, gives the same bits; NaN stays in its row, infinity of
 * a weight in its output. */
static void rows_once(const kvl_weight_codec *codec) {
    enum { OUT = 37, IN = 300, ROWS = 300 };
    bench b;
    bench_make(&b, codec, &(product){OUT, IN, ROWS, true, false});
    float *whole = nan_bytes((size_t)(ROWS * b.y_stride) * 4);
    memcpy(whole, b.y, (size_t)(ROWS * b.y_stride) * 4);
    codec->matrix(&b.job);
    memcpy(whole, b.y, (size_t)(ROWS * b.y_stride) * 4);
    for (int64_t first = 0, n = 1; first < ROWS; first += 32 * ((n + 31) / 32), n += 9) {
        /* A job's rows start anywhere; what follows its last one is not zero here, and must not
         * reach it. */
        kvl_matrix_job job = b.job;
        job.x += first * job.x_stride;
        job.n_rows = n < ROWS - first ? n : ROWS - first;
        if (first + (job.n_rows + 31) / 32 * 32 > (ROWS + 31) / 32 * 32) break;
        float *y = nan_bytes((size_t)(job.n_rows * b.y_stride) * 4);
        job.sink.y = y;
        codec->matrix(&job);
        for (int64_t r = 0; r < job.n_rows; r++)
            assert_memory_equal(y + r * b.y_stride, whole + (first + r) * b.y_stride, OUT * 4);
        free(y);
    }
    b.x[17 * b.job.x_stride + 5] = 0x7fc0;
    b.x[40 * b.job.x_stride + 6] = 0x7f80;
    codec->matrix(&b.job);
    for (int64_t r = 0; r < ROWS; r++) {
        for (int64_t o = 0; o < OUT; o++) {
            float y = b.y[r * b.y_stride + o];
            assert_true(r == 17 ? isnan(y) : r == 40 ? isinf(y) : y == whole[r * b.y_stride + o]);
        }
    }
    free(whole);
    bench_free(&b);
}

static void a_row_stands_alone(void **state) {
    each_codec(rows_once);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(a_row_stands_alone),
    };
    if (kvl_isa_init() != KVL_OK) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
