/* The vocabulary of a GGUF file: tokenizer.ggml.*, byte-level BPE only. Key names and token types
 * are those of ggml/docs/gguf.md. */
#include <limits.h>
#include <string.h>

#include "decoder/gguf_impl.h"
#include "decoder/tokenizer_internal.h"

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

#define KEY(name) "tokenizer.ggml." name

static bool is_text(kvl_gguf_string s, const char *text) {
    return s.bytes == strlen(text) && !memcmp(s.data, text, s.bytes);
}

/* Where in the file the string's bytes stand. */
static unsigned long long byte_of(const kvl_gguf *gguf, kvl_gguf_string s) {
    return (unsigned long long)((const uint8_t *)s.data - gguf->file.data);
}

static int shown(uint64_t bytes) {
    return (int)(bytes < 64 ? bytes : 64);
}

static kvl_status read_model(const kvl_gguf *gguf) {
    kvl_gguf_string model = {0};
    KVL_TRY(kvl_gguf_str(gguf, KEY("model"), true, &model));
    if (is_text(model, "gpt2")) return KVL_OK;
    return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: " KEY("model") " '%.*s': only gpt2 (byte-level BPE)",
                    kvl_gguf_path(gguf), shown(model.bytes), model.data);
}

/* A file without the key was made before the key existed, when all such models were GPT-2's. */
static kvl_status read_pre(const kvl_gguf *gguf, kvl_tokenizer *tok) {
    static const struct {
        const char *name, *first, *second;
        bool ignore_merges;
    } known[] = {
        {"llama-bpe", kvl_pattern_llama3, NULL, true},
        {"llama3", kvl_pattern_llama3, NULL, true},
        {"llama-v3", kvl_pattern_llama3, NULL, true},
        {"qwen2", kvl_pattern_qwen2, NULL, false},
        {"gpt-2", kvl_pattern_gpt2, NULL, false},
        {"smollm", kvl_pattern_digit, kvl_pattern_gpt2, false},
        {"default", kvl_pattern_gpt2, NULL, false},
    };
    kvl_gguf_string pre = {.data = "default", .bytes = 7};
    KVL_TRY(kvl_gguf_str(gguf, KEY("pre"), false, &pre));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (!is_text(pre, known[i].name)) continue;
        tok->ignore_merges = known[i].ignore_merges;
        KVL_TRY(kvl_pretokenizer_add(tok->pre, KEY("pre"), known[i].first, strlen(known[i].first)));
        if (!known[i].second) return KVL_OK;
        return kvl_pretokenizer_add(tok->pre, KEY("pre"), known[i].second, strlen(known[i].second));
    }
    return kvl_fail(KVL_ERR_UNSUPPORTED,
                    "%s: " KEY("pre") " '%.*s': known are llama-bpe, llama3, llama-v3, qwen2, "
                                      "gpt-2, smollm, default",
                    kvl_gguf_path(gguf), shown(pre.bytes), pre.data);
}

static kvl_status same_count(const kvl_gguf *gguf, const char *key, uint64_t count, uint64_t want) {
    if (count == want) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "%s: %s has %llu elements: " KEY("tokens") " has %llu",
                    kvl_gguf_path(gguf), key, (unsigned long long)count, (unsigned long long)want);
}

static kvl_status kind_of(const kvl_gguf *gguf, uint64_t index, int32_t type,
                          kvl_token_kind *kind) {
    switch (type) {
    case TYPE_NORMAL:
    case TYPE_UNUSED:
    case TYPE_BYTE:
        *kind = KVL_TOKEN_NORMAL;
        return KVL_OK;
    case TYPE_USER_DEFINED:
        *kind = KVL_TOKEN_ADDED;
        return KVL_OK;
    case TYPE_UNKNOWN:
    case TYPE_CONTROL:
        *kind = KVL_TOKEN_SPECIAL;
        return KVL_OK;
    default:
        return kvl_fail(KVL_ERR_INPUT, "%s: " KEY("token_type") "[%llu] %d: 1 to 6",
                        kvl_gguf_path(gguf), (unsigned long long)index, type);
    }
}

static kvl_status read_tokens(const kvl_gguf *gguf, const kvl_gguf_string *texts, uint64_t n,
                              kvl_tokenizer *tok) {
    const int32_t *types = NULL;
    const float *scores = NULL;
    uint64_t n_types = 0, n_scores = 0;
    KVL_TRY(kvl_gguf_ints(gguf, KEY("token_type"), false, &n_types, &types));
    KVL_TRY(kvl_gguf_floats(gguf, KEY("scores"), false, &n_scores, &scores));
    if (types) KVL_TRY(same_count(gguf, KEY("token_type"), n_types, n));
    /* Scores play no part in BPE; a wrong length still tells of a broken file. */
    if (scores) KVL_TRY(same_count(gguf, KEY("scores"), n_scores, n));
    for (uint64_t i = 0; i < n; i++) {
        kvl_token_kind kind = KVL_TOKEN_NORMAL;
        if (types) KVL_TRY(kind_of(gguf, i, types[i], &kind));
        kvl_status status =
            kvl_tok_set(tok, (int32_t)i, texts[i].data, texts[i].bytes, kind, false);
        if (status != KVL_OK)
            return kvl_fail_prefix(status, KEY("tokens") "[%llu] (byte %llu)",
                                   (unsigned long long)i, byte_of(gguf, texts[i]));
    }
    return kvl_tok_index(tok);
}

static kvl_status read_merges(const kvl_gguf *gguf, kvl_tokenizer *tok) {
    const kvl_gguf_string *merges = NULL;
    uint64_t n = 0;
    KVL_TRY(kvl_gguf_strings(gguf, KEY("merges"), true, &n, &merges));
    if (n > INT32_MAX)
        return kvl_fail(KVL_ERR_INPUT, "%s: " KEY("merges") " has %llu elements: at most %d",
                        kvl_gguf_path(gguf), (unsigned long long)n, INT32_MAX);
    for (uint64_t i = 0; i < n; i++) {
        const char *text = merges[i].data;
        uint64_t bytes = merges[i].bytes;
        const char *space = bytes > 2 ? memchr(text + 1, ' ', bytes - 2) : NULL;
        if (!space)
            return kvl_fail(KVL_ERR_INPUT,
                            "%s: " KEY("merges") "[%llu] (byte %llu) '%.*s': no space in it",
                            kvl_gguf_path(gguf), (unsigned long long)i, byte_of(gguf, merges[i]),
                            shown(bytes), text);
        size_t left = (size_t)(space - text);
        kvl_status status =
            kvl_tok_merge(tok, KEY("merges"), (uint32_t)i, text, left, space + 1, bytes - left - 1);
        if (status != KVL_OK) return kvl_fail_prefix(status, "byte %llu", byte_of(gguf, merges[i]));
    }
    return KVL_OK;
}

static kvl_status read_id(const kvl_gguf *gguf, const char *key, const kvl_tokenizer *tok,
                          int32_t *id) {
    int64_t value = -1;
    KVL_TRY(kvl_gguf_int(gguf, key, false, 0, tok->n_tokens - 1, &value));
    *id = (int32_t)value;
    return KVL_OK;
}

static kvl_status read_add(const kvl_gguf *gguf, const char *key, const char *id_key, int32_t id,
                           int32_t *list, int32_t *n) {
    bool add = false;
    KVL_TRY(kvl_gguf_bool(gguf, key, false, &add));
    if (!add) return KVL_OK;
    if (id < 0)
        return kvl_fail(KVL_ERR_INPUT, "%s: %s is true, but there is no %s", kvl_gguf_path(gguf),
                        key, id_key);
    list[(*n)++] = id;
    return KVL_OK;
}

static kvl_status read_all(const kvl_gguf *gguf, const kvl_gguf_string *texts, uint64_t n,
                           kvl_tokenizer *tok) {
    bool space_prefix = false;
    KVL_TRY(read_pre(gguf, tok));
    KVL_TRY(read_tokens(gguf, texts, n, tok));
    KVL_TRY(read_merges(gguf, tok));
    KVL_TRY(kvl_gguf_bool(gguf, KEY("add_space_prefix"), false, &space_prefix));
    if (space_prefix)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: " KEY("add_space_prefix") " true",
                        kvl_gguf_path(gguf));
    KVL_TRY(read_id(gguf, KEY("bos_token_id"), tok, &tok->bos_id));
    KVL_TRY(read_id(gguf, KEY("eos_token_id"), tok, &tok->eos_id));
    KVL_TRY(read_add(gguf, KEY("add_bos_token"), KEY("bos_token_id"), tok->bos_id, tok->prefix,
                     &tok->n_prefix));
    KVL_TRY(read_add(gguf, KEY("add_eos_token"), KEY("eos_token_id"), tok->eos_id, tok->suffix,
                     &tok->n_suffix));
    return kvl_tok_finish(tok);
}

kvl_status kvl_tokenizer_from_gguf(const kvl_gguf *gguf, kvl_tokenizer **out) {
    const kvl_gguf_string *texts = NULL;
    uint64_t n = 0;
    kvl_tokenizer *tok = NULL;
    KVL_TRY(read_model(gguf));
    KVL_TRY(kvl_gguf_strings(gguf, KEY("tokens"), true, &n, &texts));
    if (n < 1 || n > KVL_VOCAB_MAX)
        return kvl_fail(KVL_ERR_INPUT, "%s: " KEY("tokens") " has %llu elements: 1 to %d",
                        kvl_gguf_path(gguf), (unsigned long long)n, KVL_VOCAB_MAX);
    KVL_TRY(kvl_tok_new(kvl_gguf_path(gguf), (int32_t)n, &tok));
    kvl_status status = read_all(gguf, texts, n, tok);
    if (status != KVL_OK) {
        kvl_tokenizer_free(tok);
        return status;
    }
    *out = tok;
    return KVL_OK;
}
