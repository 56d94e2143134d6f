/* The safetensors reader and writer on good files; broken ones are in test_safetensors_hostile.c.
 */
#include "tests/test.h"

#include <math.h>
#include <unistd.h>

#include "core/buffer.h"
#include "decoder/json.h"
#include "decoder/name_index.h"
#include "decoder/safetensors.h"

#define GOLDEN KVL_SOURCE_DIR "/tests/golden/"

static float bits_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The golden file holds, for each fp8 code, the value another library decodes. */
static void fp8_codes_read_as_the_golden_says(void **state) {
    kvl_safetensors *st;
    assert_ok(kvl_st_open(GOLDEN "fp8.safetensors", &st));
    const struct {
        const char *name;
        kvl_dtype dtype;
    } formats[] = {{"float8_e4m3fn_to_f32", KVL_FP8_E4M3}, {"float8_e5m2_to_f32", KVL_FP8_E5M2}};
    for (int f = 0; f < 2; f++) {
        const kvl_st_tensor *values = kvl_st_find(st, formats[f].name);
        assert_non_null(values);
        assert_int_equal(values->n_elems, 256);
        uint8_t codes[256];
        for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
        kvl_st_tensor stored = {.name = "codes",
                                .dtype = formats[f].dtype,
                                .n_dims = 1,
                                .dims = {256},
                                .n_elems = 256,
                                .data = codes,
                                .bytes = 256};
        float want[256], got[256];
        assert_ok(kvl_st_read_f32(values, 0, 256, want));
        assert_ok(kvl_st_read_f32(&stored, 0, 256, got));
        for (int i = 0; i < 256; i++) {
            if (isnan(want[i]))
                assert_true(isnan(got[i]));
            else
                assert_memory_equal(&got[i], &want[i], 4);
        }
    }
    kvl_st_close(st);
}

static void golden_model_tensors_are_found(void **state) {
    kvl_safetensors *st;
    assert_ok(kvl_st_open(GOLDEN "models/qwen2/model.safetensors", &st));
    const kvl_st_tensor *tensor = kvl_st_find(st, "model.layers.1.self_attn.k_proj.weight");
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, KVL_BF16);
    assert_int_equal(tensor->n_dims, 2);
    assert_int_equal(tensor->dims[0], 32);
    assert_int_equal(tensor->dims[1], 128);
    assert_int_equal(tensor->bytes, 32 * 128 * 2);
    assert_null(kvl_st_find(st, "model.layers.2.self_attn.k_proj.weight"));
    assert_string_equal(kvl_st_metadata(st, "format"), "pt");
    assert_null(kvl_st_metadata(st, "formal"));
    float whole[32 * 128], part[7];
    assert_ok(kvl_st_read_f32(tensor, 0, 32 * 128, whole));
    assert_ok(kvl_st_read_f32(tensor, 1000, 7, part));
    assert_memory_equal(part, whole + 1000, sizeof part);
    assert_refused(kvl_st_read_f32(tensor, 4090, 7, part), KVL_ERR_INPUT, "4096");
    assert_refused(kvl_st_read_f32(tensor, -1, 1, part), KVL_ERR_INPUT, "-1");
    assert_ok(kvl_st_read_f32(tensor, 4096, 0, part));
    for (size_t i = 0; i < kvl_st_count(st); i++)
        assert_ptr_equal(kvl_st_find(st, kvl_st_at(st, i)->name), kvl_st_at(st, i));
    kvl_st_close(st);
}

static void written_files_read_back(void **state) {
    const uint16_t half[3] = {0x3c00, 0x0001, 0xfc00}; /* 1, 2^-24, -inf */
    const uint16_t brain[2] = {0x4049, 0x8000};
    const double wide[2] = {0.1, -3};
    const int8_t bytes[5] = {-128, -1, 0, 1, 127};
    const int32_t words[2] = {-7, 1 << 30};
    const int64_t longs[1] = {-5000000000};
    const uint8_t octets[1] = {255};
    const kvl_st_tensor tensors[] = {
        {"i8 \"quoted\"", KVL_I8, 1, {5}, 5, bytes, 5}, {"f16", KVL_F16, 2, {3, 1}, 3, half, 6},
        {"bf16", KVL_BF16, 1, {2}, 2, brain, 4},        {"f64", KVL_F64, 1, {2}, 2, wide, 16},
        {"i32", KVL_I32, 1, {2}, 2, words, 8},          {"i64", KVL_I64, 0, {0}, 1, longs, 8},
        {"u8", KVL_U8, 1, {1}, 1, octets, 1},           {"empty", KVL_F32, 2, {2, 0}, 0, "", 0},
    };
    const float want[][5] = {{-128, -1, 0, 1, 127},
                             {1, 0x1p-24f, -INFINITY},
                             {3.140625f, -0.0f},
                             {0.1f, -3},
                             {-7, 0x1p30f},
                             {-5e9f},
                             {255}};
    char path[] = "/tmp/kvl_st_XXXXXX";
    close(mkstemp(path));
    assert_ok(kvl_st_write(path, tensors, 8));
    kvl_safetensors *st;
    assert_ok(kvl_st_open(path, &st));
    assert_int_equal(kvl_st_count(st), 8);
    for (int i = 0; i < 8; i++) {
        const kvl_st_tensor *got = kvl_st_find(st, tensors[i].name);
        assert_non_null(got);
        assert_int_equal(got->dtype, tensors[i].dtype);
        assert_int_equal(got->n_dims, tensors[i].n_dims);
        assert_int_equal(got->n_elems, tensors[i].n_elems);
        assert_int_equal((uintptr_t)got->data % kvl_dtype_bytes(got->dtype), 0);
        float values[5];
        assert_ok(kvl_st_read_f32(got, 0, got->n_elems, values));
        if (i < 7) assert_memory_equal(values, want[i], (size_t)got->n_elems * 4);
    }
    kvl_st_close(st);
    unlink(path);
}

static void writing_refuses_what_no_reader_takes(void **state) {
    const kvl_st_tensor twice[] = {{"a", KVL_U8, 1, {1}, 1, "x", 1},
                                   {"a", KVL_U8, 1, {1}, 1, "y", 1}};
    assert_refused(kvl_st_write("/tmp/kvl_st_none", twice, 2), KVL_ERR_INPUT, "twice");
    const kvl_st_tensor invalid[] = {{"\xff", KVL_U8, 1, {1}, 1, "x", 1}};
    assert_refused(kvl_st_write("/tmp/kvl_st_none", invalid, 1), KVL_ERR_INPUT, "UTF-8");
    const kvl_st_tensor off[] = {{"a", KVL_F32, 1, {1}, 1, "xy", 2}};
    assert_refused(kvl_st_write("/tmp/kvl_st_none", off, 1), KVL_ERR_INPUT, "make 4");
    assert_refused(kvl_st_write("/nonexistent/x", twice, 1), KVL_ERR_IO, "/nonexistent/x");
    assert_int_not_equal(access("/tmp/kvl_st_none", F_OK), 0);
}

/* bf16 is the upper half of a float; a second way to read it, over all codes and f16 by hand. */
static void sixteen_bit_codes_read_exactly(void **state) {
    static uint16_t codes[65536];
    static float got[65536];
    for (int i = 0; i < 65536; i++) codes[i] = (uint16_t)i;
    kvl_st_tensor tensor = {"t", KVL_BF16, 1, {65536}, 65536, codes, 131072};
    assert_ok(kvl_st_read_f32(&tensor, 0, 65536, got));
    for (uint32_t i = 0; i < 65536; i++) {
        float want = bits_f32(i << 16);
        if (isnan(want))
            assert_true(isnan(got[i]));
        else
            assert_memory_equal(&got[i], &want, 4);
    }
    tensor.dtype = KVL_F16;
    assert_ok(kvl_st_read_f32(&tensor, 0, 65536, got));
    for (int i = 0; i < 65536; i++) {
        int exponent = i >> 10 & 31, mantissa = i & 1023;
        double want = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
        if (exponent == 31) want = mantissa ? NAN : INFINITY;
        if (i & 0x8000) want = -want;
        if (isnan(want))
            assert_true(isnan(got[i]));
        else
            assert_true((double)got[i] == want && !signbit(got[i]) == !signbit(want));
    }
}

static void name_index_keeps_its_law(void **state) {
    kvl_name_index index;
    assert_true(kvl_name_index_init(&index, 5000));
    assert_int_equal(kvl_name_index_find(&index, "x", 1), -1);
    char names[5000][16];
    for (int i = 0; i < 5000; i++) {
        snprintf(names[i], sizeof names[i], "name%d", i);
        assert_true(kvl_name_index_add(&index, names[i], strlen(names[i])));
        assert_false(kvl_name_index_add(&index, names[i / 2], strlen(names[i / 2])));
    }
    for (int i = 0; i < 5000; i++)
        assert_int_equal(kvl_name_index_find(&index, names[i], strlen(names[i])), i);
    assert_int_equal(kvl_name_index_find(&index, "name", 4), -1);
    kvl_name_index_free(&index);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_codes_read_as_the_golden_says),
        cmocka_unit_test(golden_model_tensors_are_found),
        cmocka_unit_test(written_files_read_back),
        cmocka_unit_test(writing_refuses_what_no_reader_takes),
        cmocka_unit_test(sixteen_bit_codes_read_exactly),
        cmocka_unit_test(name_index_keeps_its_law),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
