/* The tokenizer against ids made by Hugging Face tokenizers, the way back, streaming, long texts,
 * and the library convention of the id buffer. */
#include <time.h>

#include "core/file.h"
#include "decoder/json.h"
#include "decoder/safetensors.h"
#include "decoder/tokenizer_internal.h"
#include "tests/test.h"

#define GOLDEN KVL_SOURCE_DIR "/tests/golden"
#define MODEL KVL_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"

static void open_default(kvl_tokenizer **tok) {
    kvl_gguf *gguf;
    if (kvl_gguf_open(MODEL, &gguf) != KVL_OK) {
        print_message("skipped: the default model is not there: %s\n", kvl_message());
        skip();
    }
    assert_ok(kvl_tokenizer_from_gguf(gguf, tok));
    kvl_gguf_close(gguf);
}

static void assert_ids(const kvl_tokenizer *tok, const char *text, const int32_t *want,
                       int64_t n_want) {
    int32_t *ids;
    int64_t n;
    assert_ok(kvl_tokenizer_encode_alloc(tok, text, strlen(text), false, &ids, &n));
    for (int64_t i = 0; i < n && i < n_want; i++)
        if (ids[i] != want[i]) fail_msg("'%s': id %d of %d, not %d", text, (int)i, ids[i], want[i]);
    assert_int_equal(n, n_want);
    free(ids);
}

static void assert_round_trip(const kvl_tokenizer *tok, const char *text, size_t bytes) {
    int32_t *ids;
    int64_t n;
    kvl_buffer whole = {0}, streamed = {0};
    kvl_stream stream;
    assert_ok(kvl_tokenizer_encode_alloc(tok, text, bytes, false, &ids, &n));
    assert_ok(kvl_tokenizer_decode(tok, ids, n, false, &whole));
    assert_int_equal(whole.bytes, bytes);
    if (bytes) assert_memory_equal(whole.data, text, bytes);
    kvl_stream_init(&stream, tok, false);
    for (int64_t i = 0; i < n; i++) {
        size_t before = streamed.bytes;
        assert_ok(kvl_stream_put(&stream, ids[i], &streamed));
        /* Nothing half: each addition is valid by itself. */
        assert_true(
            kvl_utf8_valid(streamed.data ? streamed.data + before : "", streamed.bytes - before));
    }
    kvl_stream_flush(&stream, &streamed);
    assert_int_equal(streamed.bytes, bytes);
    if (bytes) assert_memory_equal(streamed.data, text, bytes);
    kvl_buffer_free(&whole);
    kvl_buffer_free(&streamed);
    free(ids);
}

static void check_golden(const kvl_tokenizer *tok, const char *path) {
    json_t *cases, *item;
    size_t i, j, n_checked = 0;
    assert_ok(kvl_json_load(path, &cases));
    json_array_foreach(cases, i, item) {
        const json_t *list = json_object_get(item, "ids");
        const char *text = json_string_value(json_object_get(item, "text"));
        int32_t want[512];
        assert_true(json_array_size(list) <= 512);
        for (j = 0; j < json_array_size(list); j++)
            want[j] = (int32_t)json_integer_value(json_array_get(list, j));
        assert_ids(tok, text, want, (int64_t)json_array_size(list));
        assert_round_trip(tok, text, strlen(text));
        n_checked++;
    }
    assert_true(n_checked >= 15);
    json_decref(cases);
}

static void test_golden_folders(void **state) {
    static const char *const names[] = {"llama",          "llama-nf4", "llama3-rope",
                                        "mistral-window", "qwen2",     "qwen3"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[512];
        kvl_tokenizer *tok;
        snprintf(path, sizeof path, GOLDEN "/models/%s", names[i]);
        assert_ok(kvl_tokenizer_from_dir(path, &tok));
        assert_int_equal(kvl_tokenizer_vocab_size(tok), 384);
        assert_int_equal(kvl_tokenizer_find(tok, "<|end|>"), 1);
        assert_true(kvl_tokenizer_is_special(tok, 1));
        assert_false(kvl_tokenizer_is_special(tok, 2));
        assert_int_equal(kvl_tokenizer_bos(tok), -1);
        snprintf(path, sizeof path, GOLDEN "/models/%s/tokenizer_golden.json",
                 i == 1 ? "llama" : names[i]);
        check_golden(tok, path);
        kvl_tokenizer_free(tok);
    }
}

static void test_golden_default_model(void **state) {
    kvl_tokenizer *tok;
    open_default(&tok);
    check_golden(tok, GOLDEN "/smollm2/tokenizer_golden.json");
    assert_int_equal(kvl_tokenizer_vocab_size(tok), 49152);
    assert_int_equal(kvl_tokenizer_bos(tok), 1);
    assert_int_equal(kvl_tokenizer_eos(tok), 2);
    assert_int_equal(kvl_tokenizer_find(tok, "<|im_end|>"), 2);
    assert_int_equal(kvl_tokenizer_find(tok, "no such token"), -1);
    /* The file says add_bos_token false: nothing is added. */
    int32_t ids[8];
    int64_t n;
    assert_ok(kvl_tokenizer_encode(tok, "The", 3, true, ids, 8, &n));
    assert_int_equal(n, 1);
    kvl_tokenizer_free(tok);
}

/* Chat prompts and the first 4,096 tokens of a long text. */
static void test_golden_long_text(void **state) {
    kvl_tokenizer *tok;
    kvl_safetensors *st;
    kvl_file text;
    open_default(&tok);
    assert_ok(kvl_st_open(GOLDEN "/smollm2/golden.safetensors", &st));
    assert_ok(kvl_file_open(KVL_SOURCE_DIR "/tests/text/us-constitution.txt", &text));
    const kvl_st_tensor *want = kvl_st_find(st, "text.ids");
    assert_non_null(want);
    int32_t *ids;
    int64_t n;
    clock_t start = clock();
    assert_ok(
        kvl_tokenizer_encode_alloc(tok, (const char *)text.data, text.bytes, false, &ids, &n));
    print_message("%llu bytes of text encoded in %.1f ms\n", (unsigned long long)text.bytes,
                  1e3 * (double)(clock() - start) / CLOCKS_PER_SEC);
    assert_true(n >= want->n_elems);
    assert_int_equal(want->n_elems, 4096);
    assert_memory_equal(ids, want->data, 4096 * sizeof *ids);
    free(ids);
    assert_round_trip(tok, (const char *)text.data, text.bytes);
    kvl_file_close(&text);
    kvl_st_close(st);
    kvl_tokenizer_free(tok);
}

/* The library convention: never more than the capacity, always the needed count. */
static void test_capacity(void **state) {
    kvl_tokenizer *tok;
    assert_ok(kvl_tokenizer_from_dir(GOLDEN "/models/llama", &tok));
    const char *text = "Hello, world! <|end|> and more";
    int32_t *all, ids[64];
    int64_t n, n_all;
    assert_ok(kvl_tokenizer_encode_alloc(tok, text, strlen(text), false, &all, &n_all));
    assert_true(n_all > 5);
    for (int64_t capacity = -1; capacity <= n_all + 1; capacity++) {
        memset(ids, 0x55, sizeof ids);
        assert_ok(kvl_tokenizer_encode(tok, text, strlen(text), false, capacity > 0 ? ids : NULL,
                                       capacity, &n));
        assert_int_equal(n, n_all);
        for (int64_t i = 0; i < 64; i++)
            assert_int_equal(ids[i], i < capacity && i < n_all ? all[i] : 0x55555555);
    }
    free(all);
    assert_ok(kvl_tokenizer_encode_alloc(tok, "", 0, true, &all, &n));
    assert_int_equal(n, 0);
    free(all);
    kvl_tokenizer_free(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_folders),
        cmocka_unit_test(test_golden_default_model),
        cmocka_unit_test(test_golden_long_text),
        cmocka_unit_test(test_capacity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
