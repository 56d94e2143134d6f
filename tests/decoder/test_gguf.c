/* The GGUF reader on good files; broken ones are in test_gguf_hostile.c. */
#include "tests/test.h"

#include <math.h>

#include "core/clock.h"
#include "decoder/gguf.h"
#include "tests/decoder/gguf_maker.h"

#define SMOLLM2 KVL_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"

static kvl_gguf *open_bytes(const kvl_buffer *b) {
    char path[] = "/tmp/kvl_gguf_XXXXXX";
    write_temporary(path, b->data, b->bytes);
    kvl_gguf *gguf;
    assert_ok(kvl_gguf_open(path, &gguf));
    unlink(path);
    return gguf;
}

/* One key of every type, extreme values, two tensors out of order with a gap between them. */
static void make_all_types(kvl_buffer *b, uint32_t version) {
    put_magic(b, version, 2, 16);
    put_key(b, "u8", T_U8), put_u8(b, 255);
    put_key(b, "i8", T_I8), put_u8(b, 0x80);
    put_key(b, "u16", T_U16), put_u8(b, 0xff), put_u8(b, 0xff);
    put_key(b, "i16", T_I16), put_u8(b, 0), put_u8(b, 0x80);
    put_key(b, "u32", T_U32), put_u32(b, UINT32_MAX);
    put_key(b, "i32", T_I32), put_u32(b, 0x80000000);
    put_key(b, "f32", T_F32), put_f32(b, 0.1f);
    put_key(b, "bool", T_BOOL), put_u8(b, 1);
    put_key_string(b, "string", "text");
    put_key(b, "u64", T_U64), put_u64(b, UINT64_MAX);
    put_key(b, "i64", T_I64), put_u64(b, 1ull << 63);
    put_key(b, "f64", T_F64), put_u64(b, 0x3fb999999999999a); /* 0.1 */
    put_key_array(b, "strings", T_STRING, 3);
    put_string(b, "a"), put_string(b, ""), put_string(b, "ccc");
    put_key_array(b, "ints", T_I32, 2), put_u32(b, 7), put_u32(b, UINT32_MAX);
    put_key_array(b, "floats", T_F32, 1), put_f32(b, -2.5f);
    put_key_array(b, "big", T_U32, 1), put_u32(b, UINT32_MAX);
    put_tensor(b, "second", 1, (uint64_t[]){2}, 0, 64);
    put_tensor(b, "first", 4, (uint64_t[]){32, 2, 1, 1}, 2, 0); /* q4_0: 36 bytes */
    put_padding(b, 32);
    for (int i = 0; i < 36; i++) put_u8(b, (uint8_t)i);
    put_padding(b, 64);
    if (b->bytes % 32) put_padding(b, 32);
}

static void every_type_reads_back(void **state) {
    for (uint32_t version = 2; version <= 3; version++) {
        kvl_buffer b = {0};
        make_all_types(&b, version);
        put_zeros(&b, 96);
        kvl_gguf *gguf = open_bytes(&b);
        const struct {
            const char *key;
            int64_t value;
        } ints[] = {{"u8", 255},         {"i8", -128},       {"u16", 65535},    {"i16", -32768},
                    {"u32", UINT32_MAX}, {"i32", INT32_MIN}, {"i64", INT64_MIN}};
        for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
            int64_t got = 1;
            assert_ok(kvl_gguf_int(gguf, ints[i].key, true, INT64_MIN, INT64_MAX, &got));
            assert_int_equal(got, ints[i].value);
        }
        double real = 0;
        assert_ok(kvl_gguf_float(gguf, "f32", true, &real));
        assert_true(real == (double)0.1f);
        assert_ok(kvl_gguf_float(gguf, "f64", true, &real));
        assert_true(real == 0.1);
        bool truth = false;
        assert_ok(kvl_gguf_bool(gguf, "bool", true, &truth));
        assert_true(truth);
        kvl_gguf_string string;
        assert_ok(kvl_gguf_str(gguf, "string", true, &string));
        assert_int_equal(string.bytes, 4);
        assert_memory_equal(string.data, "text", 4);
        uint64_t count = 0;
        const kvl_gguf_string *strings;
        assert_ok(kvl_gguf_strings(gguf, "strings", true, &count, &strings));
        assert_int_equal(count, 3);
        assert_int_equal(strings[1].bytes, 0);
        assert_memory_equal(strings[2].data, "ccc", 3);
        const int32_t *words;
        assert_ok(kvl_gguf_ints(gguf, "ints", true, &count, &words));
        assert_int_equal(count, 2);
        assert_int_equal(words[0], 7);
        assert_int_equal(words[1], -1);
        const float *floats;
        assert_ok(kvl_gguf_floats(gguf, "floats", true, &count, &floats));
        assert_int_equal(count, 1);
        assert_true(floats[0] == -2.5f);
        kvl_gguf_close(gguf);
        kvl_buffer_free(&b);
    }
}

static void wrong_types_and_ranges_are_refused(void **state) {
    kvl_buffer b = {0};
    make_all_types(&b, 3);
    put_zeros(&b, 96);
    kvl_gguf *gguf = open_bytes(&b);
    int64_t n = 5;
    double x = 5;
    bool t = true;
    uint64_t count = 5;
    kvl_gguf_string s = {0};
    const kvl_gguf_string *strings;
    const int32_t *ints;
    const float *floats;
    assert_ok(kvl_gguf_int(gguf, "absent", false, 0, 9, &n));
    assert_int_equal(n, 5);
    assert_refused(kvl_gguf_int(gguf, "absent", true, 0, 9, &n), KVL_ERR_INPUT,
                   "absent is missing");
    /* The u8 value is at 24 + (8 + 2 + 4). */
    assert_refused(kvl_gguf_int(gguf, "u8", true, 0, 9, &n), KVL_ERR_INPUT,
                   "u8 (byte 38) 255: 0 to 9");
    assert_refused(kvl_gguf_int(gguf, "i8", true, 0, 9, &n), KVL_ERR_INPUT, "-128");
    assert_refused(kvl_gguf_int(gguf, "u64", true, INT64_MIN, INT64_MAX, &n), KVL_ERR_INPUT,
                   "18446744073709551615");
    assert_refused(kvl_gguf_int(gguf, "string", true, 0, 9, &n), KVL_ERR_INPUT, "is string");
    assert_refused(kvl_gguf_int(gguf, "f32", true, 0, 9, &n), KVL_ERR_INPUT, "is f32");
    assert_refused(kvl_gguf_int(gguf, "bool", true, 0, 9, &n), KVL_ERR_INPUT, "is bool");
    assert_refused(kvl_gguf_float(gguf, "u8", true, &x), KVL_ERR_INPUT, "is u8");
    assert_refused(kvl_gguf_bool(gguf, "u8", true, &t), KVL_ERR_INPUT, "is u8");
    assert_refused(kvl_gguf_str(gguf, "strings", true, &s), KVL_ERR_INPUT, "is array of string");
    assert_refused(kvl_gguf_strings(gguf, "ints", true, &count, &strings), KVL_ERR_INPUT,
                   "is array of i32");
    assert_refused(kvl_gguf_ints(gguf, "floats", true, &count, &ints), KVL_ERR_INPUT,
                   "array of f32");
    assert_refused(kvl_gguf_ints(gguf, "big", true, &count, &ints), KVL_ERR_INPUT, "4294967295");
    assert_refused(kvl_gguf_floats(gguf, "string", true, &count, &floats), KVL_ERR_INPUT, "string");
    assert_int_equal(count, 5);
    kvl_gguf_close(gguf);
    kvl_buffer_free(&b);
}

static void tensors_are_placed(void **state) {
    kvl_buffer b = {0};
    make_all_types(&b, 3);
    put_zeros(&b, 96);
    kvl_gguf *gguf = open_bytes(&b);
    assert_int_equal(kvl_gguf_n_tensors(gguf), 2);
    const kvl_gguf_tensor *first = kvl_gguf_find(gguf, "first");
    const kvl_gguf_tensor *second = kvl_gguf_find(gguf, "second");
    assert_null(kvl_gguf_find(gguf, "third"));
    assert_ptr_equal(kvl_gguf_tensor_at(gguf, 0), second);
    assert_string_equal(first->name, "first");
    assert_int_equal(first->bytes, 36);
    assert_int_equal(first->n_dims, 4);
    assert_int_equal(first->dims[0], 32);
    assert_int_equal(first->dims[1], 2);
    for (int i = 0; i < 36; i++) assert_int_equal(first->data[i], i);
    assert_int_equal(second->bytes, 8);
    assert_ptr_equal(second->data, first->data + 64);
    assert_int_equal(second->dims[1], 1);
    kvl_gguf_close(gguf);
    kvl_buffer_free(&b);
}

static void alignment_moves_the_data(void **state) {
    kvl_buffer b = {0};
    put_magic(&b, 3, 1, 1);
    put_key_u32(&b, "general.alignment", 128);
    put_tensor(&b, "t", 1, (uint64_t[]){1}, 0, 0);
    put_padding(&b, 128);
    put_f32(&b, 42.0f);
    kvl_gguf *gguf = open_bytes(&b);
    float value;
    memcpy(&value, kvl_gguf_find(gguf, "t")->data, 4);
    assert_true(value == 42.0f);
    kvl_gguf_close(gguf);
    kvl_buffer_free(&b);
}

static void a_file_without_anything_opens(void **state) {
    kvl_buffer b = {0};
    put_magic(&b, 3, 0, 0);
    kvl_gguf *gguf = open_bytes(&b);
    assert_int_equal(kvl_gguf_n_tensors(gguf), 0);
    assert_null(kvl_gguf_find(gguf, "t"));
    assert_false(kvl_gguf_has(gguf, "k"));
    kvl_gguf_close(gguf);
    kvl_buffer_free(&b);
}

static void the_default_model_opens_fast(void **state) {
    if (access(SMOLLM2, R_OK) != 0) skip();
    uint64_t before = kvl_now_ns();
    kvl_gguf *gguf;
    assert_ok(kvl_gguf_open(SMOLLM2, &gguf));
    assert_true(kvl_now_ns() - before < 500000000);
    uint64_t count;
    const kvl_gguf_string *tokens;
    const int32_t *kinds;
    assert_ok(kvl_gguf_strings(gguf, "tokenizer.ggml.tokens", true, &count, &tokens));
    assert_int_equal(count, 49152);
    assert_int_equal(tokens[1].bytes, 12);
    assert_memory_equal(tokens[1].data, "<|im_start|>", 12);
    assert_ok(kvl_gguf_ints(gguf, "tokenizer.ggml.token_type", true, &count, &kinds));
    assert_int_equal(count, 49152);
    assert_int_equal(kinds[1], 3);
    const kvl_gguf_tensor *embed = kvl_gguf_find(gguf, "token_embd.weight");
    assert_int_equal(embed->dims[0], 576);
    assert_int_equal(embed->dims[1], 49152);
    kvl_gguf_close(gguf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_reads_back),
        cmocka_unit_test(wrong_types_and_ranges_are_refused),
        cmocka_unit_test(tensors_are_placed),
        cmocka_unit_test(alignment_moves_the_data),
        cmocka_unit_test(a_file_without_anything_opens),
        cmocka_unit_test(the_default_model_opens_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
