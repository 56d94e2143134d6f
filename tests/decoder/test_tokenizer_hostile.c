/* Broken and hostile vocabularies: each is refused with its field and value, nothing crashes, leaks
 * or hangs; then every prefix and 5,000 mutations of a small tokenizer.json. */
#include "core/clock.h"
#include "core/rng.h"
#include "tests/decoder/gguf_maker.h"
#include "tests/decoder/tokenizer_maker.h"

static void assert_build_refused(maker m, const char *config, kvl_status code, const char *part) {
    kvl_tokenizer *tok = NULL;
    kvl_status status = build(m, config, &tok);
    if (status != code || !strstr(kvl_message(), part))
        fail_msg("got %s: '%s'; wanted %s with '%s'", kvl_status_name(status), kvl_message(),
                 kvl_status_name(code), part);
    assert_null(tok);
}

/* ---- tokenizer.json: model ---------------------------------------------------------------------
 */

static void test_models(void **state) {
    static const struct {
        maker m;
        kvl_status code;
        const char *part;
    } cases[] = {
        {{.type = "Unigram"}, KVL_ERR_UNSUPPORTED, "model.type 'Unigram'"},
        {{.type = "WordPiece"}, KVL_ERR_UNSUPPORTED, "model.type 'WordPiece'"},
        {{.model = ",\"byte_fallback\":true"}, KVL_ERR_UNSUPPORTED, "byte_fallback true"},
        {{.model = ",\"byte_fallback\":3"}, KVL_ERR_INPUT, "byte_fallback"},
        {{.model = ",\"dropout\":0.5"}, KVL_ERR_UNSUPPORTED, "model.dropout"},
        {{.model = ",\"continuing_subword_prefix\":\"##\""},
         KVL_ERR_UNSUPPORTED,
         "continuing_subword_prefix '##'"},
        {{.model = ",\"end_of_word_suffix\":\"</w>\""}, KVL_ERR_UNSUPPORTED, "'</w>'"},
        {{.model = ",\"unk_token\":\"nope\"", .without_a = true}, KVL_ERR_INPUT, "'nope'"},
        {{.vocab = ",\"ab\":-1"}, KVL_ERR_INPUT, "-1"},
        {{.vocab = ",\"ab\":4294967296"}, KVL_ERR_INPUT, "4294967296"},
        {{.vocab = ",\"ab\":4000000"}, KVL_ERR_INPUT, "largest token id 4000000"},
        {{.vocab = ",\"ab\":\"x\""}, KVL_ERR_INPUT, "model.vocab id has another type"},
        {{.vocab = ",\"ab\":97"}, KVL_ERR_INPUT, "97 is given twice"},
        {{.vocab = ",\"ab\":256,\"ab\":257"}, KVL_ERR_INPUT, "duplicate"},
        {{.merges = "{}"}, KVL_ERR_INPUT, "model.merges has another type"},
        {{.merges = "[\"ab\"]"}, KVL_ERR_INPUT, "model.merges[0] 'ab': no space"},
        {{.merges = "[\" \"]"}, KVL_ERR_INPUT, "model.merges[0]"},
        {{.merges = "[\"\"]"}, KVL_ERR_INPUT, "model.merges[0]"},
        {{.merges = "[\"a \"]"}, KVL_ERR_INPUT, "model.merges[0]"},
        {{.merges = "[[\"a\"]]"}, KVL_ERR_INPUT, "model.merges[0]: neither"},
        {{.merges = "[[\"a\",1]]"}, KVL_ERR_INPUT, "model.merges[0]: neither"},
        {{.merges = "[[\"a\",\"b\",\"c\"]]"}, KVL_ERR_INPUT, "model.merges[0]: neither"},
        {{.merges = "[17]"}, KVL_ERR_INPUT, "model.merges[0]: neither"},
        {{.vocab = ",\"aa\":256,\"bb\":257", .merges = "[[\"aa\",\"bb\"]]"},
         KVL_ERR_INPUT,
         "model.merges[0]: result 'aabb' is not in the vocabulary"},
        {{.merges = "[\"a b\"]"}, KVL_ERR_INPUT, "result 'ab'"},
        {{.merges = "[\"a xyz\"]"}, KVL_ERR_INPUT, "right half 'xyz'"},
        {{.merges = "[\"xyz a\"]"}, KVL_ERR_INPUT, "left half 'xyz'"},
        {{.merges = "[[\"\",\"a\"]]"}, KVL_ERR_INPUT, "left half ''"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_build_refused(cases[i].m, NULL, cases[i].code, cases[i].part);
}

#define TOKEN(id, rest) "[{\"id\":" #id ",\"content\":" rest "}]"

static void test_added(void **state) {
    static const struct {
        const char *added;
        kvl_status code;
        const char *part;
    } cases[] = {
        {"{}", KVL_ERR_INPUT, "added_tokens has another type"},
        {"[3]", KVL_ERR_INPUT, "added_tokens id is missing"},
        {"[{\"id\":256}]", KVL_ERR_INPUT, "content is missing"},
        {TOKEN(256, "7"), KVL_ERR_INPUT, "content has another type"},
        {TOKEN(256, "\"\""), KVL_ERR_INPUT, "without text"},
        {TOKEN(2.5, "\"x!\""), KVL_ERR_INPUT, "added_tokens id has another type"},
        {TOKEN(-2, "\"x!\""), KVL_ERR_INPUT, "added_tokens id -2"},
        {TOKEN(97, "\"<x>\""), KVL_ERR_INPUT, "id 97 is 'a' in model.vocab, but '<x>'"},
        {TOKEN(256, "\"a\""), KVL_ERR_INPUT, "tokens 97 and 256 have the same text 'a'"},
        {TOKEN(256, "\"<m>\",\"lstrip\":true"), KVL_ERR_UNSUPPORTED, "'<m>'"},
        {TOKEN(256, "\"<m>\",\"rstrip\":true"), KVL_ERR_UNSUPPORTED, "rstrip true"},
        {TOKEN(256, "\"<m>\",\"single_word\":true"), KVL_ERR_UNSUPPORTED, "single_word true"},
        {TOKEN(256, "\"<m>\",\"special\":\"yes\""), KVL_ERR_INPUT, "special"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_build_refused((maker){.added = cases[i].added}, NULL, cases[i].code, cases[i].part);
    kvl_buffer b = {0};
    kvl_buffer_text(&b, "[{\"id\":256,\"content\":\"");
    for (int i = 0; i <= KVL_ADDED_MAX_BYTES; i++) kvl_buffer_text(&b, "x");
    kvl_buffer_text(&b, "\"}]");
    assert_build_refused((maker){.added = b.data}, NULL, KVL_ERR_INPUT, "at most 1024");
    kvl_buffer_clear(&b);
    kvl_buffer_text(&b, ",\"");
    for (int i = 0; i <= KVL_TOKEN_MAX_BYTES; i++) kvl_buffer_text(&b, "x");
    kvl_buffer_text(&b, "\":256");
    assert_build_refused((maker){.vocab = b.data}, NULL, KVL_ERR_INPUT, "at most 4096");
    kvl_buffer_free(&b);
}

/* ---- tokenizer.json: the stages ----------------------------------------------------------------
 */

#define SPLIT(pattern, rest) \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":" pattern "," rest \
    "},{\"type\":\"ByteLevel\",\"use_regex\":false}]}"
#define ISOLATED "\"behavior\":\"Isolated\",\"invert\":false"
#define REGEX(text) SPLIT("{\"Regex\":\"" text "\"}", ISOLATED)

static void test_pre_tokenizers(void **state) {
    static const struct {
        const char *pre;
        kvl_status code;
        const char *part;
    } cases[] = {
        {"null", KVL_ERR_UNSUPPORTED, "without ByteLevel"},
        {"{\"type\":\"Metaspace\"}", KVL_ERR_UNSUPPORTED, "'Metaspace'"},
        {"{\"type\":\"Whitespace\"}", KVL_ERR_UNSUPPORTED, "'Whitespace'"},
        {"[]", KVL_ERR_INPUT, "pre_tokenizer is not an object"},
        {"{}", KVL_ERR_INPUT, "type is missing"},
        {"{\"type\":\"Sequence\"}", KVL_ERR_INPUT, "pretokenizers is not an array"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[]}", KVL_ERR_UNSUPPORTED, "without ByteLevel"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Sequence\"}]}", KVL_ERR_UNSUPPORTED,
         "'Sequence'"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", KVL_ERR_UNSUPPORTED,
         "add_prefix_space true"},
        {SPLIT("{\"Regex\":\"x\"}", "\"behavior\":\"Removed\",\"invert\":true"),
         KVL_ERR_UNSUPPORTED, "'Removed', invert true"},
        {SPLIT("\"x\"", ISOLATED), KVL_ERR_INPUT, "pattern is not an object"},
        {SPLIT("{}", ISOLATED), KVL_ERR_INPUT, "String is missing"},
        {SPLIT("{\"Regex\":\"\"}", ISOLATED), KVL_ERR_INPUT, "pattern of 0 bytes"},
        {REGEX("(a"), KVL_ERR_INPUT, "pattern: "},
        {REGEX("[a"), KVL_ERR_INPUT, "pattern: "},
        {REGEX("a{99999}"), KVL_ERR_INPUT, "pattern: "},
        {REGEX("\\\\ha"), KVL_ERR_UNSUPPORTED, "escape \\h"},
        {REGEX("a\\\\Kb"), KVL_ERR_UNSUPPORTED, "escape \\K"},
        {REGEX("a\\\\Cb"), KVL_ERR_UNSUPPORTED, "escape \\C"},
        {REGEX("[a\\\\S]"), KVL_ERR_UNSUPPORTED, "in a class"},
        {REGEX("[a[b]]"), KVL_ERR_UNSUPPORTED, "nested class"},
        {REGEX("(*LIMIT_MATCH=1)a"), KVL_ERR_UNSUPPORTED, "control verb"},
        {REGEX("a\\\\"), KVL_ERR_UNSUPPORTED, "escape"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_build_refused((maker){.pre = cases[i].pre}, NULL, cases[i].code, cases[i].part);
    kvl_buffer many = {0};
    kvl_buffer_text(&many, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < 9; i++) kvl_buffer_text(&many, "{\"type\":\"Digits\"},");
    kvl_buffer_text(&many, "{\"type\":\"ByteLevel\"}]}");
    assert_build_refused((maker){.pre = many.data}, NULL, KVL_ERR_UNSUPPORTED, "more than 8 steps");
    kvl_buffer_free(&many);
}

/* Nested repeats against 100 KB: a step limit and an error, in bounded time. */
static void test_pattern_limits(void **state) {
    static const char *const patterns[] = {"(a+)+$", "(a|a)*b", "(?:a|ab|b)*c", "(a*)*c",
                                           "((a+)b?)*c"};
    kvl_buffer text = {0};
    for (int i = 0; i < 100000; i++) kvl_buffer_text(&text, "a");
    kvl_buffer_text(&text, "!bc"); /* so that no required letter is missing */
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        char pre[512];
        snprintf(pre, sizeof pre, REGEX("%s"), patterns[i]);
        kvl_tokenizer *tok;
        int32_t *ids = NULL;
        int64_t n;
        assert_ok(build((maker){.pre = pre}, NULL, &tok));
        uint64_t start = kvl_now_ns();
        assert_refused(kvl_tokenizer_encode_alloc(tok, text.data, text.bytes, false, &ids, &n),
                       KVL_ERR_INPUT, "limit");
        print_message("%s: %s (%.0f ms)\n", patterns[i], kvl_message(),
                      (double)(kvl_now_ns() - start) / 1e6);
        kvl_tokenizer_free(tok);
    }
    kvl_buffer_free(&text);
}

/* Each match within its limit, 100,000 of them: all together have one too. */
static void test_pattern_budget(void **state) {
    kvl_buffer text = {0};
    for (int i = 0; i < 5000; i++) kvl_buffer_text(&text, "aaaaaaaaaaaaaaaaaa!");
    kvl_tokenizer *tok;
    int32_t *ids = NULL;
    int64_t n;
    assert_ok(build((maker){.pre = REGEX("(a+)+$|a")}, NULL, &tok));
    assert_refused(kvl_tokenizer_encode_alloc(tok, text.data, text.bytes, false, &ids, &n),
                   KVL_ERR_INPUT, "time limit");
    kvl_tokenizer_free(tok);
    kvl_buffer_free(&text);
}

#define POST(single, specials) \
    "{\"type\":\"TemplateProcessing\",\"single\":" single ",\"special_tokens\":" specials "}"
#define SEQUENCE_A "{\"Sequence\":{\"id\":\"A\"}}"
#define SPECIAL_B "{\"SpecialToken\":{\"id\":\"B\"}}"

static void test_other_stages(void **state) {
    static const struct {
        maker m;
        kvl_status code;
        const char *part;
    } cases[] = {
        {{.normal = "{\"type\":\"NFKC\"}"}, KVL_ERR_UNSUPPORTED, "'NFKC'"},
        {{.normal = "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"!\"}"},
         KVL_ERR_UNSUPPORTED,
         "'Precompiled'"},
        {{.normal = "{\"type\":\"Sequence\"}"}, KVL_ERR_INPUT, "normalizers is not an array"},
        {{.normal = "7"}, KVL_ERR_INPUT, "normalizer is not an object"},
        {{.decoder = "{\"type\":\"Metaspace\"}"}, KVL_ERR_UNSUPPORTED, "'Metaspace'"},
        {{.post = "{\"type\":\"BertProcessing\"}"}, KVL_ERR_UNSUPPORTED, "'BertProcessing'"},
        {{.post = POST("[" SPECIAL_B "," SEQUENCE_A "]", "{}")},
         KVL_ERR_INPUT,
         "the template names 'B'"},
        {{.post = POST("[" SPECIAL_B "," SEQUENCE_A "]", "{\"B\":{\"ids\":[400]}}")},
         KVL_ERR_INPUT,
         "'B' has id 400"},
        {{.post = POST("[" SPECIAL_B "," SEQUENCE_A "]", "{\"B\":{\"ids\":[\"x\"]}}")},
         KVL_ERR_INPUT,
         "special token 'B'"},
        {{.post = POST("[" SPECIAL_B "," SEQUENCE_A "]", "{\"B\":{\"ids\":[1,1,1,1,1,1,1,1,1]}}")},
         KVL_ERR_UNSUPPORTED,
         "more than 8"},
        {{.post = POST("[]", "{}")}, KVL_ERR_INPUT, "holds the text 0 times"},
        {{.post = POST("[" SEQUENCE_A "," SEQUENCE_A "]", "{}")}, KVL_ERR_INPUT, "2 times"},
        {{.post = POST("[3]", "{}")}, KVL_ERR_INPUT, "id is missing"},
        {{.post = POST("3", "{}")}, KVL_ERR_INPUT, "single is not an array"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_build_refused(cases[i].m, NULL, cases[i].code, cases[i].part);
    maker plain = {0};
    assert_build_refused(plain, "[]", KVL_ERR_INPUT, "tokenizer_config.json has another type");
    assert_build_refused(plain, "{\"bos_token\":\"<s>\"}", KVL_ERR_INPUT, "bos_token '<s>'");
    assert_build_refused(plain, "{\"eos_token\":{\"content\":5}}", KVL_ERR_INPUT, "eos_token");
    assert_build_refused(plain, "{\"add_bos_token\":true}", KVL_ERR_INPUT, "names no token");
    assert_build_refused(plain, "{\"bos_token\":\"a\",\"add_bos_token\":1}", KVL_ERR_INPUT,
                         "add_bos_token");
    /* What plays no part in encoding one text is not looked at. */
    kvl_tokenizer *tok;
    maker loose = {.extra = "\"truncation\":{\"stride\":9,\"max_length\":3},\"padding\":7,"};
    assert_ok(build(loose, "{\"bos_token\":null,\"model_max_length\":1e30}", &tok));
    kvl_tokenizer_free(tok);
    assert_refused(kvl_tokenizer_from_dir("/nowhere/at/all", &tok), KVL_ERR_IO, "/nowhere/at/all");
}

/* ---- tokenizer.json: prefixes and mutations ----------------------------------------------------
 */

static void make_rich(kvl_buffer *b) {
    maker m = {
        .vocab = ",\"ab\":256,\"abc\":257",
        .merges = "[\"a b\",[\"ab\",\"c\"]]",
        .added = "[{\"id\":258,\"content\":\"<B>\",\"special\":true,\"normalized\":false}]",
        .normal = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
        .pre = REGEX("\\\\p{N}|[^\\\\s\\\\p{L}]+|\\\\s+(?!\\\\S)|\\\\s+"),
        .post = POST("[" SPECIAL_B "," SEQUENCE_A "]", "{\"B\":{\"id\":\"B\",\"ids\":[258]}}"),
        .model = ",\"ignore_merges\":false,\"unk_token\":null",
    };
    make_json(&m, b);
}

/* Builds and, where that is allowed, uses it: the ids must be in range and decode. */
static bool try_text(const char *text, size_t bytes) {
    static const char sample[] = "abc <B> 12 e\u0301\n\n \u00e9 x!!";
    kvl_tokenizer *tok = NULL;
    if (build_text(text, bytes, NULL, &tok) != KVL_OK) {
        assert_true(kvl_message()[0] != 0);
        assert_null(tok);
        return false;
    }
    int32_t *ids;
    int64_t n;
    kvl_buffer out = {0};
    if (kvl_tokenizer_encode_alloc(tok, sample, sizeof sample - 1, true, &ids, &n) == KVL_OK) {
        assert_ok(kvl_tokenizer_decode(tok, ids, n, false, &out));
        free(ids);
    }
    kvl_buffer_free(&out);
    kvl_tokenizer_free(tok);
    return true;
}

static void test_prefixes(void **state) {
    kvl_buffer b = {0};
    make_rich(&b);
    for (size_t n = 0; n < b.bytes; n++) {
        /* A copy of exact size, so that reading past its end is seen. */
        char *copy = malloc(n ? n : 1);
        memcpy(copy, b.data, n);
        assert_false(try_text(copy, n));
        free(copy);
    }
    assert_true(try_text(b.data, b.bytes));
    kvl_buffer_free(&b);
}

static void test_mutations(void **state) {
    kvl_buffer b = {0};
    make_rich(&b);
    size_t alphabet_end = (size_t)(strstr(b.data, "\"ab\":256") - b.data);
    size_t alphabet_begin = (size_t)(strstr(b.data, "\"vocab\"") - b.data);
    kvl_rng rng = kvl_rng_make(23, 0);
    char *copy = malloc(b.bytes);
    int n_built = 0;
    for (int trial = 0; trial < 5000; trial++) {
        memcpy(copy, b.data, b.bytes);
        for (uint64_t k = 0, n = 1 + kvl_rng_below(&rng, 3); k < n; k++) {
            size_t at = kvl_rng_below(&rng, b.bytes);
            /* The alphabet fills most of the text; most mutations belong into the rest. */
            if (at > alphabet_begin && at < alphabet_end && trial % 8)
                at = kvl_rng_below(&rng, alphabet_begin);
            static const char lively[] = "0123456789-\"[]{}:,\\ eE.truefalsn\x80\xff";
            copy[at] = kvl_rng_below(&rng, 4) ? lively[kvl_rng_below(&rng, sizeof lively)]
                                              : copy[kvl_rng_below(&rng, b.bytes)];
        }
        n_built += try_text(copy, b.bytes);
    }
    print_message("%d of 5000 mutations are still tokenizers\n", n_built);
    assert_true(n_built > 50 && n_built < 4950);
    free(copy);
    kvl_buffer_free(&b);
}

/* ---- GGUF --------------------------------------------------------------------------------------
 */

/* Vocabulary: the 256 byte symbols, "ab", "<e>". Fields that a case leaves 0 are good. */
typedef struct vocabulary {
    const char *model, *pre, *merge;
    int n_types, n_scores; /* 0 = 258; -1 = no such key */
    uint32_t type_of_types, type_of_scores, last_type;
    const char *last_token;
    uint64_t last_token_bytes; /* declared length, where not its own */
    bool no_tokens, no_merges, tokens_are_ints, add_bos, space_prefix;
    int bos, eos; /* 0 = 257, -1 = no such key */
} vocabulary;

static void put_tokens(kvl_buffer *b, const vocabulary *v) {
    put_key_array(b, "tokenizer.ggml.tokens", v->tokens_are_ints ? T_I32 : T_STRING, 258);
    for (int byte = 0; byte < 258; byte++) {
        char text[4] = "ab";
        uint32_t code = kvl_byte_code((uint8_t)byte);
        if (v->tokens_are_ints)
            put_u32(b, (uint32_t)byte);
        else if (byte == 257) {
            const char *last = or_else(v->last_token, "<e>");
            put_u64(b, v->last_token_bytes ? v->last_token_bytes : strlen(last));
            kvl_buffer_add(b, last, strlen(last));
        } else {
            if (byte < 256 && code < 0x80) text[0] = (char)code, text[1] = 0;
            if (byte < 256 && code >= 0x80)
                snprintf(text, 4, "%c%c", (int)(0xc0 | code >> 6), (int)(0x80 | (code & 0x3f)));
            put_string(b, text);
        }
    }
}

static void put_numbers(kvl_buffer *b, const char *key, uint32_t type, int n, int fill, int last) {
    put_key_array(b, key, type, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        if (type == T_F32)
            put_f32(b, 0);
        else if (type == T_STRING)
            put_string(b, "x");
        else
            put_u32(b, (uint32_t)(i == n - 1 ? last : fill));
    }
}

static void make_vocabulary(const vocabulary *v, kvl_buffer *b) {
    put_magic(b, 3, 0, 0);
    uint64_t n_keys = 0;
    if (!v->model || *v->model)
        put_key_string(b, "tokenizer.ggml.model", or_else(v->model, "gpt2")), n_keys++;
    put_key_string(b, "tokenizer.ggml.pre", or_else(v->pre, "gpt-2")), n_keys++;
    if (!v->no_tokens) put_tokens(b, v), n_keys++;
    if (v->n_types >= 0)
        put_numbers(b, "tokenizer.ggml.token_type", v->type_of_types ? v->type_of_types : T_I32,
                    v->n_types ? v->n_types : 258, 1, v->last_type ? (int)v->last_type : 3),
            n_keys++;
    if (v->n_scores >= 0)
        put_numbers(b, "tokenizer.ggml.scores", v->type_of_scores ? v->type_of_scores : T_F32,
                    v->n_scores ? v->n_scores : 258, 0, 0),
            n_keys++;
    if (!v->no_merges) {
        put_key_array(b, "tokenizer.ggml.merges", T_STRING, 1), n_keys++;
        put_string(b, or_else(v->merge, "a b"));
    }
    if (v->bos >= 0)
        put_key_u32(b, "tokenizer.ggml.bos_token_id", v->bos ? (uint32_t)v->bos : 257), n_keys++;
    if (v->eos >= 0)
        put_key_u32(b, "tokenizer.ggml.eos_token_id", v->eos ? (uint32_t)v->eos : 257), n_keys++;
    put_key(b, "tokenizer.ggml.add_bos_token", T_BOOL), put_u8(b, v->add_bos), n_keys++;
    put_key(b, "tokenizer.ggml.add_space_prefix", T_BOOL), put_u8(b, v->space_prefix), n_keys++;
    for (int i = 0; i < 8; i++) b->data[16 + i] = (char)(n_keys >> 8 * i);
    put_padding(b, 32);
}

static kvl_status build_gguf(vocabulary v, kvl_tokenizer **tok) {
    char path[] = "/tmp/kvl_vocabulary_XXXXXX";
    kvl_buffer b = {0};
    kvl_gguf *gguf = NULL;
    make_vocabulary(&v, &b);
    write_temporary(path, b.data, b.bytes);
    kvl_status status = kvl_gguf_open(path, &gguf);
    if (status == KVL_OK) status = kvl_tokenizer_from_gguf(gguf, tok);
    kvl_gguf_close(gguf);
    unlink(path);
    kvl_buffer_free(&b);
    return status;
}

static void test_gguf_good(void **state) {
    static const char *const pres[] = {"llama-bpe", "llama3", "qwen2",
                                       "gpt-2",     "smollm", "default"};
    for (size_t i = 0; i < sizeof pres / sizeof pres[0]; i++) {
        kvl_tokenizer *tok;
        int32_t *ids;
        int64_t n;
        assert_ok(build_gguf((vocabulary){.pre = pres[i], .add_bos = true}, &tok));
        assert_ok(kvl_tokenizer_encode_alloc(tok, "ab1234<e>", 9, true, &ids, &n));
        const int32_t want[] = {257, 256, '1', '2', '3', '4', 257};
        assert_int_equal(n, 7);
        assert_memory_equal(ids, want, sizeof want);
        free(ids);
        kvl_tokenizer_free(tok);
    }
    kvl_tokenizer *tok;
    assert_ok(build_gguf((vocabulary){.n_types = -1, .n_scores = -1, .bos = -1, .eos = -1}, &tok));
    assert_int_equal(kvl_tokenizer_bos(tok), -1);
    assert_false(kvl_tokenizer_is_special(tok, 257));
    kvl_tokenizer_free(tok);
}

static void test_gguf_refused(void **state) {
    static const struct {
        vocabulary v;
        kvl_status code;
        const char *part;
    } cases[] = {
        {{.model = "llama"}, KVL_ERR_UNSUPPORTED, "tokenizer.ggml.model 'llama'"},
        {{.model = ""}, KVL_ERR_INPUT, "tokenizer.ggml.model"},
        {{.pre = "tekken"}, KVL_ERR_UNSUPPORTED, "tokenizer.ggml.pre 'tekken'"},
        {{.no_tokens = true}, KVL_ERR_INPUT, "tokenizer.ggml.tokens"},
        {{.no_merges = true}, KVL_ERR_INPUT, "tokenizer.ggml.merges"},
        {{.tokens_are_ints = true}, KVL_ERR_INPUT, "tokenizer.ggml.tokens"},
        {{.n_types = 257}, KVL_ERR_INPUT, "token_type has 257 elements"},
        {{.n_types = 300}, KVL_ERR_INPUT, "token_type has 300 elements"},
        {{.n_scores = 10}, KVL_ERR_INPUT, "scores has 10 elements"},
        {{.type_of_types = T_F32}, KVL_ERR_INPUT, "tokenizer.ggml.token_type"},
        {{.type_of_scores = T_I32}, KVL_ERR_INPUT, "tokenizer.ggml.scores"},
        {{.type_of_scores = T_STRING}, KVL_ERR_INPUT, "tokenizer.ggml.scores"},
        {{.last_type = 7}, KVL_ERR_INPUT, "token_type[257] 7: 1 to 6"},
        {{.last_type = UINT32_MAX}, KVL_ERR_INPUT, "token_type[257] -1"},
        {{.last_token = "ab"}, KVL_ERR_INPUT, "tokens 256 and 257 have the same text 'ab'"},
        {{.last_token = "\xff"}, KVL_ERR_INPUT, "tokens[257] (byte "},
        {{.last_token = ""}, KVL_ERR_INPUT, "without text"},
        {{.last_token_bytes = 1ull << 31}, KVL_ERR_INPUT, ""},
        {{.last_token_bytes = UINT64_MAX}, KVL_ERR_INPUT, ""},
        {{.merge = "ab"}, KVL_ERR_INPUT, "'ab': no space"},
        {{.merge = ""}, KVL_ERR_INPUT, "merges[0] (byte "},
        {{.merge = "b a"}, KVL_ERR_INPUT, "result 'ba' is not in the vocabulary"},
        {{.merge = "a bc"}, KVL_ERR_INPUT, "right half 'bc'"},
        {{.bos = 258}, KVL_ERR_INPUT, "bos_token_id"},
        {{.eos = 99999}, KVL_ERR_INPUT, "eos_token_id"},
        {{.bos = -1, .add_bos = true}, KVL_ERR_INPUT, "add_bos_token is true"},
        {{.space_prefix = true}, KVL_ERR_UNSUPPORTED, "add_space_prefix"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvl_tokenizer *tok = NULL;
        kvl_status status = build_gguf(cases[i].v, &tok);
        if (status != cases[i].code || !strstr(kvl_message(), cases[i].part))
            fail_msg("case %d: got %s: '%s'; wanted '%s'", (int)i, kvl_status_name(status),
                     kvl_message(), cases[i].part);
        assert_null(tok);
    }
}

/* A token whose text really has 2^31 bytes, in a sparse file. */
static void test_gguf_giant_token(void **state) {
    char path[] = "/tmp/kvl_giant_XXXXXX";
    kvl_buffer b = {0};
    kvl_gguf *gguf = NULL;
    kvl_tokenizer *tok = NULL;
    vocabulary v = {.last_token_bytes = 1ull << 31};
    put_magic(&b, 3, 0, 2);
    put_key_string(&b, "tokenizer.ggml.model", "gpt2");
    put_tokens(&b, &v);
    write_temporary(path, b.data, b.bytes);
    assert_int_equal(truncate(path, (off_t)(b.bytes + (1ull << 31) + 64)), 0);
    kvl_status status = kvl_gguf_open(path, &gguf);
    if (status == KVL_OK) status = kvl_tokenizer_from_gguf(gguf, &tok);
    assert_int_equal(status, KVL_ERR_INPUT);
    print_message("%s\n", kvl_message());
    kvl_gguf_close(gguf);
    unlink(path);
    kvl_buffer_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),           cmocka_unit_test(test_added),
        cmocka_unit_test(test_pre_tokenizers),   cmocka_unit_test(test_pattern_limits),
        cmocka_unit_test(test_pattern_budget),   cmocka_unit_test(test_other_stages),
        cmocka_unit_test(test_prefixes),         cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_gguf_good),        cmocka_unit_test(test_gguf_refused),
        cmocka_unit_test(test_gguf_giant_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
