/* Behaviour on small made vocabularies: merge order against a plain oracle, added tokens, NFC,
 * what add_special adds, streaming of broken bytes, long and invalid texts. */
#include "core/clock.h"
#include "core/file.h"
#include "core/rng.h"
#include "tests/decoder/tokenizer_maker.h"

#define ADDED(id, content, special, normalized) \
    "{\"id\":" #id ",\"content\":\"" content "\",\"single_word\":false,\"lstrip\":false," \
    "\"rstrip\":false,\"normalized\":" #normalized ",\"special\":" #special "}"

/* Ids of `text` as "1 2 3". */
static void assert_encodes(const kvl_tokenizer *tok, const char *text, bool special,
                           const char *want) {
    int32_t *ids;
    int64_t n;
    kvl_buffer got = {0};
    assert_ok(kvl_tokenizer_encode_alloc(tok, text, strlen(text), special, &ids, &n));
    for (int64_t i = 0; i < n; i++) kvl_buffer_printf(&got, "%s%d", i ? " " : "", ids[i]);
    assert_string_equal(got.data ? got.data : "", want);
    kvl_buffer_free(&got);
    free(ids);
}

/* ---- merging -----------------------------------------------------------------------------------
 */

/* Lowest rank first, leftmost of equal ones, one merge at a time: the definition. */
static size_t oracle_merge(const kvl_tokenizer *tok, int32_t *ids, size_t n) {
    for (;;) {
        const kvl_map64_slot *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const kvl_map64_slot *found = kvl_map64_find(
                &tok->merges, (uint64_t)(uint32_t)ids[i] << 32 | (uint32_t)ids[i + 1]);
            if (found && (!best || found->first < best->first)) best = found, at = i;
        }
        if (!best) return n;
        ids[at] = (int32_t)best->second;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

/* Every string over a, b, c up to 4 letters is a token; merges are a shuffled list of splits. */
static void make_abc(maker *m, uint64_t seed, kvl_buffer *vocab, kvl_buffer *merges) {
    char words[117][5], splits[400][8];
    int n_words = 0, n_splits = 0;
    for (int length = 2; length <= 4; length++)
        for (int code = 0, end = length == 2 ? 9 : length == 3 ? 27 : 81; code < end; code++) {
            int rest = code;
            for (int i = 0; i < length; i++, rest /= 3) words[n_words][i] = (char)('a' + rest % 3);
            words[n_words][length] = 0;
            kvl_buffer_printf(vocab, ",\"%s\":%d", words[n_words], 256 + n_words);
            for (int cut = 1; cut < length; cut++)
                snprintf(splits[n_splits++], 8, "%.*s %s", cut, words[n_words],
                         words[n_words] + cut);
            n_words++;
        }
    kvl_rng rng = kvl_rng_make(seed, 0);
    kvl_buffer_text(merges, "[");
    for (int i = 0; i < 250; i++) {
        int j = i + (int)kvl_rng_below(&rng, (uint64_t)(n_splits - i));
        char swap[8];
        memcpy(swap, splits[i], 8), memcpy(splits[i], splits[j], 8), memcpy(splits[j], swap, 8);
        kvl_buffer_printf(merges, "%s\"%s\"", i ? "," : "", splits[i]);
    }
    kvl_buffer_text(merges, "]");
    m->vocab = vocab->data;
    m->merges = merges->data;
}

static void test_merges(void **state) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        maker m = {0};
        kvl_buffer vocab = {0}, merges = {0};
        kvl_tokenizer *tok;
        make_abc(&m, seed, &vocab, &merges);
        assert_ok(build(m, NULL, &tok));
        kvl_rng rng = kvl_rng_make(seed, 1);
        for (int trial = 0; trial < 200; trial++) {
            char text[200];
            int32_t want[200], *ids;
            size_t n = kvl_rng_below(&rng, trial % 2 ? 26 : 200);
            int64_t n_ids;
            for (size_t i = 0; i < n; i++) text[i] = (char)('a' + kvl_rng_below(&rng, 3));
            for (size_t i = 0; i < n; i++) want[i] = text[i];
            assert_ok(kvl_tokenizer_encode_alloc(tok, text, n, false, &ids, &n_ids));
            size_t n_want = oracle_merge(tok, want, n);
            assert_int_equal(n_ids, n_want);
            if (n_want) assert_memory_equal(ids, want, n_want * sizeof *want);
            free(ids);
        }
        kvl_tokenizer_free(tok);
        kvl_buffer_free(&vocab);
        kvl_buffer_free(&merges);
    }
}

static void test_ignore_merges(void **state) {
    maker m = {.vocab = ",\"ab\":256,\"abc\":257", .merges = "[[\"a\",\"b\"]]"};
    kvl_tokenizer *tok;
    assert_ok(build(m, NULL, &tok));
    assert_encodes(tok, "abc", false, "256 99");
    kvl_tokenizer_free(tok);
    m.model = ",\"ignore_merges\":true";
    assert_ok(build(m, NULL, &tok));
    assert_encodes(tok, "abc", false, "257");
    assert_encodes(tok, "abcd", false, "256 99 100");
    kvl_tokenizer_free(tok);
}

/* ---- pre-tokenizers ----------------------------------------------------------------------------
 */

static kvl_status join_piece(void *user, const uint8_t *piece, size_t bytes) {
    kvl_buffer *out = user;
    if (out->bytes) kvl_buffer_text(out, "|");
    kvl_buffer_add(out, piece, bytes);
    return KVL_OK;
}

/* Pieces as Hugging Face tokenizers 0.23 cuts them. U+0085 is white space, U+180E is not. */
static void test_pieces(void **state) {
    static const char word[] = "\\w+|[^\\w\\s]+";
    static const struct {
        const char *first, *second, *text, *want;
    } cases[] = {
        {kvl_pattern_gpt2, NULL, "I'm don't  x1234 ++\n\n y\xc2\x85\xc2\xa0z",
         "I|'m| don|'t| | x|1234| ++|\n\n| y|\xc2\x85|\xc2\xa0|z"},
        {kvl_pattern_gpt2, NULL, "a \u180e b\u180e", "a| \u180e| b|\u180e"},
        {kvl_pattern_gpt2, NULL, "I'LL \u3000\u2028x", "I|'|LL| \u3000|\u2028|x"},
        {kvl_pattern_llama3, NULL, "I'LL don'\u017f  1234567 ..\n\r\n  y\n z",
         "I|'LL| don|'\u017f| | |123|456|7| ..\n\r\n| | y|\n| z"},
        {kvl_pattern_llama3, NULL,
         "a\u180e \xc2\x85"
         "b",
         "a|\u180e| |\xc2\x85"
         "b"},
        {kvl_pattern_qwen2, NULL, "x12 (34)\t\tq", "x|1|2| (|3|4|)|\t|\tq"},
        {kvl_pattern_digit, kvl_pattern_gpt2, "x12 \u0663\u2167 3.5",
         "x|1|2| |\u0663|\u2167| |3|.|5"},
        {word, NULL,
         "a\u0301_b\u203f"
         "c d-\u180e-e",
         "a\u0301_b\u203f"
         "c| |d|-\u180e-|e"},
        {"x*", NULL, "axxb", "a|xx|b"}, /* empty matches cut nothing and end */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvl_pretokenizer *pre;
        kvl_buffer out = {0};
        kvl_split_clock clock = kvl_split_clock_start(strlen(cases[i].text));
        assert_ok(kvl_pretokenizer_create(&pre));
        assert_ok(kvl_pretokenizer_add(pre, "test", cases[i].first, strlen(cases[i].first)));
        if (cases[i].second)
            assert_ok(kvl_pretokenizer_add(pre, "test", cases[i].second, strlen(cases[i].second)));
        assert_ok(kvl_pretokenizer_split(pre, (const uint8_t *)cases[i].text, strlen(cases[i].text),
                                         &clock, join_piece, &out));
        assert_string_equal(out.data, cases[i].want);
        kvl_buffer_free(&out);
        kvl_pretokenizer_free(pre);
    }
}

/* ---- added tokens, normaliser, what is added ---------------------------------------------------
 */

static void test_added_tokens(void **state) {
    maker m = {.added = "[" ADDED(256, "<|a|>", true, false) "," ADDED(
                   257, "<|a|><|b|>", true, false) "," ADDED(258, "tool", false, true) "]"};
    kvl_tokenizer *tok;
    assert_ok(build(m, NULL, &tok));
    assert_encodes(tok, "<|a|><|b|x", false, "256 60 124 98 124 120");
    assert_encodes(tok, "x<|a|><|b|>tool", false, "120 257 258");
    assert_encodes(tok, "<<|a|><", false, "60 256 60");
    assert_true(kvl_tokenizer_is_special(tok, 257));
    assert_false(kvl_tokenizer_is_special(tok, 258));
    assert_int_equal(kvl_tokenizer_find(tok, "<|a|>"), 256);
    const int32_t ids[] = {256, 'x', 258};
    kvl_buffer out = {0};
    assert_ok(kvl_tokenizer_decode(tok, ids, 3, true, &out));
    assert_string_equal(out.data, "xtool");
    assert_ok(kvl_tokenizer_decode(tok, ids, 3, false, &out));
    assert_string_equal(out.data, "xtool<|a|>xtool");
    kvl_buffer_free(&out);
    const int32_t bad[] = {259, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++)
        assert_refused(kvl_tokenizer_decode(tok, &bad[i], 1, false, &out), KVL_ERR_INPUT,
                       "has 259 tokens");
    kvl_buffer_free(&out);
    kvl_tokenizer_free(tok);
}

static void test_nfc(void **state) {
    static const char *const cases[][2] = {
        {"e\u0301", "\u00e9"},
        {"\u212b", "\u00c5"},              /* singleton */
        {"a\u0301\u0316", "\u00e1\u0316"}, /* the mark below does not block */
        {"a\u0316\u0301", "\u00e1\u0316"},
        {"q\u0323\u0307", "q\u0323\u0307"},
        {"q\u0307\u0323", "q\u0323\u0307"},
        {"\u1100\u1161\u11a8", "\uac01"}, /* Hangul */
        {"\u0958", "\u0915\u093c"},       /* excluded from composition */
        {"plain \u00e9", "plain \u00e9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvl_buffer out = {0};
        assert_ok(kvl_nfc(cases[i][0], strlen(cases[i][0]), &out));
        assert_string_equal(out.data, cases[i][1]);
        kvl_buffer_free(&out);
    }
    /* 200,000 marks of alternating class: sorted by counting, not by exchanging neighbours. */
    kvl_buffer text = {0}, out = {0};
    for (int i = 0; i < 100000; i++) kvl_buffer_text(&text, "\u0301\u0316");
    uint64_t start = kvl_now_ns();
    assert_ok(kvl_nfc(text.data, text.bytes, &out));
    assert_true(kvl_now_ns() - start < 2000000000u);
    assert_int_equal(out.bytes, text.bytes);
    assert_memory_equal(out.data, "\u0316\u0316\u0316", 6);
    kvl_buffer_free(&text);
    kvl_buffer_free(&out);
    /* Tokens marked normalized are looked for in the composed text, others in the text as it is. */
    maker m = {.normal = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
               .added = "[" ADDED(256, "\u00e9x", false, true) "," ADDED(257, "e\u0301y", false,
                                                                         false) "]"};
    kvl_tokenizer *tok;
    assert_ok(build(m, NULL, &tok));
    assert_encodes(tok, "e\u0301x e\u0301y \u00e9y", false, "256 32 257 32 195 169 121");
    kvl_tokenizer_free(tok);
}

#define TEMPLATE \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"B\"}}," \
    "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"E\"}}],\"special_tokens\":{" \
    "\"B\":{\"id\":\"B\",\"ids\":[256]},\"E\":{\"id\":\"E\",\"ids\":[257,257]}}}"

static void test_add_special(void **state) {
    maker m = {.added = "[" ADDED(256, "<B>", true, false) "," ADDED(257, "<E>", true, false) "]"};
    kvl_tokenizer *tok;
    assert_ok(build(m, "{\"bos_token\":\"<B>\",\"eos_token\":{\"content\":\"<E>\"}}", &tok));
    assert_encodes(tok, "x", true, "120"); /* a BOS only where the file says so */
    assert_int_equal(kvl_tokenizer_bos(tok), 256);
    assert_int_equal(kvl_tokenizer_eos(tok), 257);
    kvl_tokenizer_free(tok);
    assert_ok(build(m, "{\"bos_token\":\"<B>\",\"add_bos_token\":true}", &tok));
    assert_encodes(tok, "x", true, "256 120");
    assert_encodes(tok, "x", false, "120");
    kvl_tokenizer_free(tok);
    m.post = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE "]}";
    assert_ok(build(m, NULL, &tok));
    assert_encodes(tok, "x", true, "256 120 257 257");
    kvl_tokenizer_free(tok);
    assert_ok(
        build(m, "{\"add_bos_token\":false,\"eos_token\":\"<E>\",\"add_eos_token\":true}", &tok));
    assert_encodes(tok, "", true, "257");
    kvl_tokenizer_free(tok);
}

/* ---- streaming ---------------------------------------------------------------------------------
 */

/* Bytes that a stream must hold back: the shortest suffix that some bytes complete to exactly one
 * character, tried over all second bytes and the two ends of the later ones. */
static size_t held_back(const uint8_t *bytes, size_t n) {
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        uint8_t whole[4];
        memcpy(whole, bytes + n - k, k);
        for (size_t size = k + 1; whole[0] >= 0xc0 && size <= 4; size++)
            for (unsigned next = 0x80; next <= 0xbf; next++) {
                for (size_t i = k; i < size; i++) whole[i] = (uint8_t)(i == k ? next : 0x80);
                size_t lead = whole[0] < 0xe0 ? 2 : whole[0] < 0xf0 ? 3 : 4;
                if (size == lead && kvl_utf8_valid(whole, size)) return k;
            }
    }
    return 0;
}

/* Any sequence of byte tokens comes out whole in the end, and no half character before. */
static void test_stream(void **state) {
    static const uint8_t lively[] = {0x41, 0x80, 0xbf, 0xc1, 0xc2, 0xdf, 0xe0, 0xa0, 0x9f, 0xed,
                                     0xef, 0xf0, 0x90, 0x8f, 0xf4, 0xf5, 0xff, 0xe2, 0x82, 0xac};
    kvl_tokenizer *tok;
    assert_ok(build((maker){0}, NULL, &tok));
    kvl_rng rng = kvl_rng_make(17, 0);
    for (int trial = 0; trial < 3000; trial++) {
        kvl_stream stream;
        kvl_buffer out = {0};
        uint8_t fed[12];
        kvl_stream_init(&stream, tok, false);
        for (size_t i = 0; i < sizeof fed; i++) {
            fed[i] = lively[kvl_rng_below(&rng, sizeof lively)];
            assert_ok(kvl_stream_put(&stream, fed[i], &out));
            assert_int_equal(out.bytes, i + 1 - held_back(fed, i + 1));
        }
        kvl_stream_flush(&stream, &out);
        assert_int_equal(out.bytes, sizeof fed);
        assert_memory_equal(out.data, fed, sizeof fed);
        kvl_buffer_free(&out);
    }
    kvl_tokenizer_free(tok);
}

/* ---- texts that are long or not text -----------------------------------------------------------
 */

static void assert_fast(const kvl_tokenizer *tok, const kvl_buffer *text, const char *what) {
    int32_t *ids;
    int64_t n;
    kvl_buffer back = {0};
    uint64_t start = kvl_now_ns();
    assert_ok(kvl_tokenizer_encode_alloc(tok, text->data, text->bytes, false, &ids, &n));
    double ms = (double)(kvl_now_ns() - start) / 1e6;
    print_message("%s: %zu bytes, %lld ids, %.1f ms\n", what, text->bytes, (long long)n, ms);
    assert_true(ms < 2000); /* milliseconds when all is well; quadratic ways take minutes */
    assert_ok(kvl_tokenizer_decode(tok, ids, n, false, &back));
    assert_int_equal(back.bytes, text->bytes);
    assert_memory_equal(back.data, text->data, text->bytes);
    kvl_buffer_free(&back);
    free(ids);
}

static void test_long_texts(void **state) {
    static const struct {
        const char *unit, *what;
        int times;
    } cases[] = {
        {"A", "43,000 x A", 43000},
        {"Z", "131,072 x Z", 131072},
        {"\n", "blank lines", 60000},
        {" \n", "blank lines with a space", 30000},
        {" ", "spaces", 131072},
        {"'", "quotes", 60000},
        {"<|", "starts of special tokens", 60000},
        {"9", "digits", 60000},
        {"\u3042", "one kana", 40000},
        {"ab", "two letters", 60000},
    };
    for (int which = 0; which < 2; which++) {
        kvl_tokenizer *tok = NULL;
        kvl_gguf *gguf = NULL;
        if (which == 0)
            assert_ok(kvl_tokenizer_from_dir(KVL_SOURCE_DIR "/tests/golden/models/llama", &tok));
        else if (kvl_gguf_open(KVL_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf", &gguf)) {
            print_message("the default model is not there: only the tiny vocabulary\n");
            continue;
        } else
            assert_ok(kvl_tokenizer_from_gguf(gguf, &tok));
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            kvl_buffer text = {0};
            for (int k = 0; k < cases[i].times; k++) kvl_buffer_text(&text, cases[i].unit);
            assert_fast(tok, &text, cases[i].what);
            kvl_buffer_free(&text);
        }
        kvl_tokenizer_free(tok);
        kvl_gguf_close(gguf);
    }
}

static void test_invalid_text(void **state) {
    static const struct {
        const char *text;
        size_t bytes;
        const char *part;
    } cases[] = {
        {"\xff", 1, "byte 0xff at offset 0"},
        {"ab\xc3", 3, "byte 0xc3 at offset 2"},
        {"\u00e9\xed\xa0\x80x", 6, "byte 0xed at offset 2"},
        {"x\xc0\x80", 3, "byte 0xc0 at offset 1"},
        {"\U0001f642\xf5", 5, "byte 0xf5 at offset 4"},
    };
    kvl_tokenizer *tok;
    int32_t *ids;
    int64_t n;
    assert_ok(build((maker){0}, NULL, &tok));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(
            kvl_tokenizer_encode_alloc(tok, cases[i].text, cases[i].bytes, false, &ids, &n),
            KVL_ERR_INPUT, cases[i].part);
    assert_ok(kvl_tokenizer_encode_alloc(tok, "a\0b", 3, false, &ids, &n));
    assert_int_equal(n, 3);
    assert_int_equal(ids[1], 0);
    free(ids);
    kvl_tokenizer_free(tok);
    /* A byte without a symbol: the unknown token where the file has one, otherwise refused. */
    assert_ok(build((maker){.without_a = true, .vocab = ",\"\\u00c3\\u00a9\":97"}, NULL, &tok));
    assert_refused(kvl_tokenizer_encode_alloc(tok, "bca", 3, false, &ids, &n), KVL_ERR_INPUT,
                   "text byte 0x61 at offset 2");
    kvl_tokenizer_free(tok);
    assert_ok(build((maker){.without_a = true, .model = ",\"unk_token\":\"b\""}, NULL, &tok));
    assert_encodes(tok, "ca", false, "99 98");
    kvl_tokenizer_free(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges),       cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_pieces),       cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_nfc),          cmocka_unit_test(test_add_special),
        cmocka_unit_test(test_stream),       cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_invalid_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
