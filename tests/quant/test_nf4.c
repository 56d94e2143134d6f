/* NF4 and FP4: the definition against bitsandbytes' bytes, and layers against the definition. */
#include "tests/test.h"

#include <float.h>
#include <math.h>

#include "core/isa.h"
#include "core/rng.h"
#include "core/threads.h"
#include "quant/kv_format.h"
#include "quant/linear.h"
#include "quant/nf4.h"
#include "tests/golden_file.h"

static float *normals(uint64_t stream, int64_t n, float sigma) {
    float *x = malloc((size_t)n * sizeof *x + 1);
    assert_non_null(x);
    kvl_rng_fill_normal(7, stream, sigma, x, n);
    return x;
}

/* ---- goldens -------------------------------------------------------------------------------- */

static float *golden_weight(const golden_file *golden, const char *name, const char *dtype,
                            int64_t *n) {
    if (strcmp(dtype, "float32") == 0) return golden_copy(golden, name, sizeof(float), n);
    uint16_t *codes = golden_copy(golden, name, sizeof *codes, n);
    float *w = malloc((size_t)*n * sizeof *w);
    assert_non_null(w);
    bool bf16 = strcmp(dtype, "bfloat16") == 0;
    for (int64_t i = 0; i < *n; i++)
        w[i] = bf16 ? kvl_bf16_to_f32(codes[i]) : kvl_f16_to_f32(codes[i]);
    free(codes);
    return w;
}

static void assert_golden(const golden_file *golden, const char *id, const char *part,
                          const void *got, size_t bytes) {
    char name[64];
    uint64_t golden_size;
    snprintf(name, sizeof name, "%s.%s", id, part);
    const uint8_t *want = golden_bytes(golden, name, &golden_size);
    assert_int_equal(golden_size, bytes);
    if (memcmp(got, want, bytes) != 0) fail_msg("%s: bytes differ", name);
}

/* The decoded value of every weight, rounded to the dtype that went in. */
static void check_decoded(const golden_file *golden, const char *id, const char *dtype,
                          const float *values, int64_t n) {
    char name[64];
    int64_t n_want;
    snprintf(name, sizeof name, "%s.dequantised", id);
    float *want = golden_weight(golden, name, dtype, &n_want);
    assert_int_equal(n_want, n);
    for (int64_t i = 0; i < n; i++) {
        float got = values[i];
        if (strcmp(dtype, "bfloat16") == 0) got = kvl_bf16_to_f32(kvl_f32_to_bf16(got));
        if (strcmp(dtype, "float16") == 0) got = kvl_f16_to_f32(kvl_f32_to_f16(got));
        if (got != want[i])
            fail_msg("%s[%lld] is %.9g, not %.9g", name, (long long)i, (double)got,
                     (double)want[i]);
    }
    free(want);
}

static void check_case(const golden_file *golden, const json_t *c) {
    const char *id = json_string_value(json_object_get(c, "id"));
    const char *dtype = json_string_value(json_object_get(c, "dtype"));
    const char *quant_type = json_string_value(json_object_get(c, "quant_type"));
    kvl_nf4_type type = strcmp(quant_type, "nf4") == 0 ? KVL_NF4 : KVL_FP4;
    int64_t block = json_integer_value(json_object_get(c, "blocksize")), n;
    char name[64];
    snprintf(name, sizeof name, "%s.weight", id);
    float *w = golden_weight(golden, name, dtype, &n);
    int64_t n_blocks = kvl_nf4_blocks(n, block), n_scales = kvl_nf4_blocks(n_blocks, 256);
    uint8_t *codes = malloc((size_t)n), *packed = malloc((size_t)n), nested[4096];
    float *absmax = malloc((size_t)n_blocks * sizeof *absmax), scales[16], offset;
    assert_int_equal(kvl_nf4_encode(type, block, w, n, codes, absmax), -1);
    kvl_nf4_pack(type, codes, n, packed);
    assert_golden(golden, id, "packed", packed, (size_t)(n + 1) / 2);
    if (json_is_true(json_object_get(c, "double_quant"))) {
        assert_true(n_blocks <= 4096 && n_scales <= 16);
        kvl_nf4_nest(absmax, n_blocks, nested, scales, &offset);
        assert_golden(golden, id, "absmax", nested, (size_t)n_blocks);
        assert_golden(golden, id, "nested_absmax", scales, (size_t)n_scales * sizeof *scales);
        assert_golden(golden, id, "nested_offset", &offset, sizeof offset);
        assert_golden(golden, id, "nested_quant_map", kvl_nf4_dynamic_map(), 1024);
        kvl_nf4_unnest(nested, n_blocks, scales, 256, offset, kvl_nf4_dynamic_map(), absmax);
    } else {
        assert_golden(golden, id, "absmax", absmax, (size_t)n_blocks * sizeof *absmax);
    }
    kvl_nf4_decode(type, block, packed, absmax, 0, n, w);
    check_decoded(golden, id, dtype, w, n);
    free(w), free(codes), free(packed), free(absmax);
}

static void bitsandbytes_bytes(void **state) {
    golden_file golden = golden_open("nf4");
    json_t *cases = json_load_file(KVL_SOURCE_DIR "/tests/golden/nf4.json", 0, NULL);
    assert_true(json_array_size(cases) >= 20);
    uint64_t bytes;
    assert_memory_equal(golden_bytes(&golden, "nf4.quant_map", &bytes), kvl_nf4_map(KVL_NF4), 64);
    assert_memory_equal(golden_bytes(&golden, "fp4.quant_map", &bytes), kvl_nf4_map(KVL_FP4), 64);
    kvl_isa best = kvl_isa_current();
    for (int isa = KVL_ISA_SCALAR; isa <= (int)KVL_ISA_AVX512; isa++) {
        if (kvl_isa_force((kvl_isa)isa) != KVL_OK) continue;
        for (size_t i = 0; i < json_array_size(cases); i++)
            check_case(&golden, json_array_get(cases, i));
    }
    assert_ok(kvl_isa_force(best));
    json_decref(cases);
    golden_close(&golden);
}

/* ---- the definition ------------------------------------------------------------------------- */

/* erf's inverse by bisection. */
static double normal_quantile(double p) {
    double low = -10, high = 10;
    for (int i = 0; i < 200; i++) {
        double middle = (low + high) / 2;
        if (0.5 * erfc(-middle / sqrt(2)) < p)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The map is what QLoRA says it is: quantiles at equal steps from 0.9677083 to 0.5, eight above
 * zero and seven below, zero, over the largest. */
static void map_is_quantiles(void **state) {
    const float *map = kvl_nf4_map(KVL_NF4);
    const double last = 0.9677083, top = normal_quantile(last);
    for (int i = 0; i < 8; i++) {
        double above = normal_quantile(last + (0.5 - last) * i / 8) / top;
        assert_float_equal(map[15 - i], above, 2e-6);
        if (i == 7) continue;
        double below = -normal_quantile(last + (0.5 - last) * i / 7) / top;
        assert_float_equal(map[i], below, 2e-6);
    }
    assert_true(map[7] == 0.0f);
}

/* A block holds its largest weight exactly; every other is off by at most half the widest gap. */
static void error_is_bounded(void **state) {
    enum { N = 1000, BLOCK = 64 };
    float *w = normals(1, N, 1.0f), absmax[16], out[N];
    uint8_t codes[N], packed[N / 2];
    for (int type = KVL_NF4; type <= KVL_FP4; type++) {
        assert_int_equal(kvl_nf4_encode((kvl_nf4_type)type, BLOCK, w, N, codes, absmax), -1);
        kvl_nf4_pack((kvl_nf4_type)type, codes, N, packed);
        kvl_nf4_decode((kvl_nf4_type)type, BLOCK, packed, absmax, 0, N, out);
        for (int i = 0; i < N; i++) {
            if (fabsf(w[i]) == absmax[i / BLOCK]) assert_true(out[i] == w[i]);
            assert_true(fabsf(out[i] - w[i]) <= 0.1667f * absmax[i / BLOCK]);
        }
    }
    free(w);
}

/* Beside a boundary, w / absmax and w * (1 / absmax) can fall on different sides: whole blocks go
 * by the second, a short last one by the first. */
static void whole_and_short_blocks_scale(void **state) {
    const float *map = kvl_nf4_map(KVL_NF4), bound = (map[12] + map[13]) / 2;
    int n_apart = 0;
    float *sizes = normals(5, 4000, 1.0f);
    for (int i = 0; i < 4000; i++) {
        float w[32] = {0}, absmax, size = fabsf(sizes[i]) + 0.1f;
        uint8_t codes[32];
        w[0] = size, w[1] = bound * size;
        bool by_quotient = w[1] / size > bound, by_product = w[1] * (1.0f / size) > bound;
        n_apart += by_quotient != by_product;
        kvl_nf4_encode(KVL_NF4, 32, w, 31, codes, &absmax);
        assert_int_equal(codes[1], 12 + by_quotient);
        kvl_nf4_encode(KVL_NF4, 32, w, 32, codes, &absmax);
        assert_int_equal(codes[1], 12 + by_product);
    }
    assert_true(n_apart > 10);
    free(sizes);
}

static void odd_places_unpack(void **state) {
    uint8_t codes[13] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, packed[7], back[13];
    kvl_nf4_pack(KVL_NF4, codes, 13, packed);
    assert_int_equal(packed[0], 0x12);
    assert_int_equal(packed[6], 0xd7);
    kvl_nf4_pack(KVL_FP4, codes, 13, packed);
    assert_int_equal(packed[6], 0xd0);
    for (int first = 0; first < 13; first++)
        for (int n = 0; first + n <= 13; n++) {
            memset(back, 0xee, sizeof back);
            kvl_nf4_unpack(packed, first, n, back);
            assert_memory_equal(back, codes + first, n);
            for (int i = n; i < 13; i++) assert_int_equal(back[i], 0xee);
        }
}

static void nonfinite_is_found(void **state) {
    float *w = normals(1, 256, 1.0f), absmax[4];
    uint8_t codes[256];
    w[130] = NAN, w[200] = INFINITY;
    assert_int_equal(kvl_nf4_encode(KVL_NF4, 64, w, 256, codes, absmax), 2);
    assert_int_equal(kvl_nf4_find_nonfinite(w, 256), 130);
    assert_true(isnan(absmax[2]) && isinf(absmax[3]));
    free(w);
}

static void block_sizes(void **state) {
    for (int64_t block = 32; block <= 4096; block *= 2) assert_ok(kvl_nf4_check_block("b", block));
    static const int64_t bad[] = {-64, 0, 16, 48, 63, 100, 8192};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_refused(kvl_nf4_check_block("block", bad[i]), KVL_ERR_INPUT, "a power of two");
}

/* ---- layers --------------------------------------------------------------------------------- */

typedef struct shape {
    int64_t n_out, n_in, block;
    int n_parts;
    int64_t parts[3];
} shape;

static const shape shapes[] = {
    {33, 64, 64, 0, {0}},        {70, 192, 64, 3, {40, 15, 15}},
    {40, 96, 64, 2, {25, 15}},   {19, 100, 32, 0, {0}},
    {23, 33, 32, 2, {11, 12}},   {5, 3, 64, 0, {0}},
    {64, 576, 4096, 2, {9, 55}}, {1, 1, 32, 0, {0}},
    {50, 1028, 256, 0, {0}},
};

/* What the weights become, tensor by tensor, by the definition. */
static void round_parts(const shape *s, kvl_nf4_type type, bool nested, float *w) {
    int n_parts = s->n_parts ? s->n_parts : 1;
    for (int i = 0; i < n_parts; i++) {
        int64_t n = (s->n_parts ? s->parts[i] : s->n_out) * s->n_in;
        int64_t n_blocks = kvl_nf4_blocks(n, s->block), n_scales = kvl_nf4_blocks(n_blocks, 256);
        uint8_t *codes = malloc((size_t)n), *packed = malloc((size_t)n);
        uint8_t *nested_codes = malloc((size_t)n_blocks);
        float *absmax = malloc((size_t)n_blocks * sizeof *absmax), offset;
        float *scales = malloc((size_t)n_scales * sizeof *scales);
        kvl_nf4_encode(type, s->block, w, n, codes, absmax);
        kvl_nf4_pack(type, codes, n, packed);
        if (nested) {
            kvl_nf4_nest(absmax, n_blocks, nested_codes, scales, &offset);
            kvl_nf4_unnest(nested_codes, n_blocks, scales, 256, offset, kvl_nf4_dynamic_map(),
                           absmax);
        }
        kvl_nf4_decode(type, s->block, packed, absmax, 0, n, w);
        w += n;
        free(codes), free(packed), free(nested_codes), free(absmax), free(scales);
    }
}

static kvl_linear_options options_of(const shape *s, const char *format, kvl_dtype compute) {
    kvl_linear_options options = {.compute_dtype = compute,
                                  .deterministic = true,
                                  .nf4_block = s->block,
                                  .n_parts = s->n_parts};
    assert_ok(kvl_weight_format_find(format, &options.format));
    for (int i = 0; i < s->n_parts; i++) options.part_rows[i] = s->parts[i];
    return options;
}

/* Every weight is the definition's to the bit, however rows came in. */
static void check_weights(const shape *s, const kvl_linear *layer, const float *want) {
    float *row = malloc((size_t)s->n_in * sizeof *row);
    for (int64_t r = 0; r < s->n_out; r++) {
        kvl_linear_get_row(layer, r, row);
        for (int64_t k = 0; k < s->n_in; k++)
            if (row[k] != want[r * s->n_in + k])
                fail_msg("%lld x %lld blocks of %lld: [%lld][%lld] is %.9g, not %.9g",
                         (long long)s->n_out, (long long)s->n_in, (long long)s->block, (long long)r,
                         (long long)k, (double)row[k], (double)want[r * s->n_in + k]);
    }
    free(row);
}

/* Products against float64 over the decoded weights; each row alone has the bits of all together,
 * by few rows and by many, with one thread and three. */
static void check_products(const shape *s, const kvl_linear *layer, const float *w, bool bf16) {
    enum { MAX_ROWS = 20 };
    float *x = normals(3, MAX_ROWS * s->n_in, 1.0f), *y, *alone;
    y = malloc((size_t)(MAX_ROWS * s->n_out) * sizeof *y);
    alone = malloc((size_t)(MAX_ROWS * s->n_out) * sizeof *alone);
    for (int64_t r = 0; r < MAX_ROWS; r++)
        assert_ok(kvl_linear_run(layer, x + r * s->n_in, s->n_in, 1, alone + r * s->n_out, s->n_out,
                                 false));
    for (int64_t r = 0; r < MAX_ROWS; r++) {
        for (int64_t o = 0; o < s->n_out; o++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < s->n_in; k++) {
                float value = x[r * s->n_in + k];
                if (bf16) value = kvl_bf16_to_f32(kvl_f32_to_bf16(value));
                sum += (double)value * w[o * s->n_in + k];
                size += fabs((double)value * w[o * s->n_in + k]);
            }
            double bound = 2 * (double)s->n_in * FLT_EPSILON * size + 1e-37;
            if (!(fabs(alone[r * s->n_out + o] - sum) <= bound))
                fail_msg("%lld x %lld: y[%lld][%lld] is %.9g, not %.9g", (long long)s->n_out,
                         (long long)s->n_in, (long long)r, (long long)o,
                         (double)alone[r * s->n_out + o], sum);
        }
    }
    int threads = kvl_threads();
    for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
        assert_ok(kvl_threads_set(n_threads, 0));
        for (int64_t n = 1; n <= MAX_ROWS; n += n < 7 ? 1 : 13) {
            memset(y, 0xa5, (size_t)(MAX_ROWS * s->n_out) * sizeof *y);
            assert_ok(kvl_linear_run(layer, x, s->n_in, n, y, s->n_out, false));
            assert_memory_equal(y, alone, (size_t)(n * s->n_out) * sizeof *y);
        }
    }
    assert_ok(kvl_threads_set(threads, 0));
    free(x), free(y), free(alone);
}

static void check_layer(const shape *s, const char *format, kvl_dtype compute) {
    kvl_linear_options options = options_of(s, format, compute);
    float *w = normals(2, s->n_out * s->n_in, 0.3f);
    kvl_linear *layer = NULL;
    assert_ok(kvl_linear_create(s->n_out, s->n_in, &options, &layer));
    for (int64_t end = s->n_out; end > 0; end -= 7) {
        int64_t first = end > 7 ? end - 7 : 0;
        assert_ok(kvl_linear_set_rows(layer, first, end - first, w + first * s->n_in));
    }
    assert_ok(kvl_linear_finish(layer, NULL));
    round_parts(s, strcmp(format, "fp4") == 0 ? KVL_FP4 : KVL_NF4, strcmp(format, "nf4_dq") == 0,
                w);
    check_weights(s, layer, w);
    check_products(s, layer, w, compute == KVL_BF16);
    kvl_linear_destroy(layer);
    free(w);
}

static void layers_follow_definition(void **state) {
    static const char *const formats[] = {"nf4", "nf4_dq", "fp4"};
    kvl_isa best = kvl_isa_current();
    for (int isa = KVL_ISA_SCALAR; isa <= (int)KVL_ISA_AVX512; isa++) {
        if (kvl_isa_force((kvl_isa)isa) != KVL_OK) continue;
        for (size_t f = 0; f < 3; f++)
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                check_layer(&shapes[i], formats[f], i % 2 ? KVL_BF16 : KVL_F32);
    }
    assert_ok(kvl_isa_force(best));
}

/* A tensor that is quantised already is taken as it is, absmax of any sign included. */
static void quantised_rows(void **state) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        if (s->n_parts) continue;
        int64_t n = s->n_out * s->n_in, n_blocks = kvl_nf4_blocks(n, s->block);
        float *w = normals(2, n, 0.3f), *absmax = malloc((size_t)n_blocks * sizeof *absmax);
        uint8_t *codes = malloc((size_t)n), *packed = malloc((size_t)n);
        kvl_nf4_encode(KVL_NF4, s->block, w, n, codes, absmax);
        kvl_nf4_pack(KVL_NF4, codes, n, packed);
        for (int64_t b = 0; b < n_blocks; b += 3) absmax[b] = -absmax[b] / 3;
        kvl_nf4_decode(KVL_NF4, s->block, packed, absmax, 0, n, w);
        kvl_nf4_tensor tensor = {KVL_NF4, n, s->block, packed, absmax, false};
        kvl_linear_options options = options_of(s, "nf4", KVL_F32);
        kvl_linear *layer = NULL;
        assert_ok(kvl_linear_create(s->n_out, s->n_in, &options, &layer));
        int64_t cut = s->n_out / 2;
        assert_ok(kvl_linear_set_nf4(layer, 0, cut, &tensor, 0));
        assert_ok(kvl_linear_set_nf4(layer, cut, s->n_out - cut, &tensor, cut));
        assert_ok(kvl_linear_finish(layer, NULL));
        check_weights(s, layer, w);
        check_products(s, layer, w, false);
        kvl_linear_destroy(layer);
        free(w), free(absmax), free(codes), free(packed);
    }
}

static void layers_refuse(void **state) {
    shape s = {32, 64, 48, 0, {0}};
    kvl_linear_options options = options_of(&s, "nf4", KVL_F32);
    kvl_linear *layer = NULL;
    assert_refused(kvl_linear_create(32, 64, &options, &layer), KVL_ERR_INPUT,
                   "nf4 block 48: a power of two from 32 to 4096");
    options.nf4_block = 64;
    assert_ok(kvl_linear_create(32, 64, &options, &layer));
    float *w = normals(1, 32 * 64, 1.0f), absmax[32] = {0};
    assert_ok(kvl_linear_set_rows(layer, 0, 16, w));
    assert_refused(kvl_linear_set_rows(layer, 8, 16, w), KVL_ERR_INTERNAL, "row 8 is set twice");
    kvl_nf4_tensor other = {KVL_FP4, 32 * 64, 64, (const uint8_t *)w, absmax, false};
    assert_refused(kvl_linear_set_nf4(layer, 16, 16, &other, 0), KVL_ERR_UNSUPPORTED, "fp4");
    assert_refused(kvl_linear_finish(layer, NULL), KVL_ERR_INTERNAL, "row 16 of 32");
    kvl_linear_destroy(layer);
    free(w);
}

int main(void) {
    if (kvl_isa_init() != KVL_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bitsandbytes_bytes), cmocka_unit_test(map_is_quantiles),
        cmocka_unit_test(error_is_bounded),   cmocka_unit_test(whole_and_short_blocks_scale),
        cmocka_unit_test(odd_places_unpack),  cmocka_unit_test(nonfinite_is_found),
        cmocka_unit_test(block_sizes),        cmocka_unit_test(layers_follow_definition),
        cmocka_unit_test(quantised_rows),     cmocka_unit_test(layers_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
