#include <string.h>

#include "decoder/json.h"
#include "decoder/tokenizer_json.h"

static bool is_none(const json_t *value) {
    return !value || json_is_null(value);
}

static kvl_status type_of(const char *label, const char *stage, const json_t *value,
                          const char **type) {
    if (!json_is_object(value))
        return kvl_fail(KVL_ERR_INPUT, "%s: %s is not an object", label, stage);
    kvl_status status = kvl_json_string(label, value, "type", true, type);
    return status == KVL_OK ? status : kvl_fail_prefix(status, "%s", stage);
}

static kvl_status unknown_type(const char *label, const char *stage, const char *type) {
    return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: %s type '%.64s' is not supported", label, stage,
                    type);
}

/* Members of a Sequence; nested sequences are refused, which also bounds the depth. */
static kvl_status sequence_of(const char *label, const char *stage, const json_t *value,
                              const char *key, const json_t **list) {
    *list = json_object_get(value, key);
    if (json_is_array(*list)) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "%s: %s.%s is not an array", label, stage, key);
}

/* ---- normalizer --------------------------------------------------------------------------------
 */

static kvl_status one_normalizer(const char *label, const json_t *value, kvl_tokenizer *tok) {
    const char *type = "";
    KVL_TRY(type_of(label, "normalizer", value, &type));
    if (strcmp(type, "NFC")) return unknown_type(label, "normalizer", type);
    tok->nfc = true;
    return KVL_OK;
}

kvl_status kvl_tok_read_normalizer(const char *label, const json_t *value, kvl_tokenizer *tok) {
    const char *type = "";
    if (is_none(value)) return KVL_OK;
    KVL_TRY(type_of(label, "normalizer", value, &type));
    if (strcmp(type, "Sequence")) return one_normalizer(label, value, tok);
    const json_t *list = NULL;
    json_t *item;
    size_t i;
    KVL_TRY(sequence_of(label, "normalizer", value, "normalizers", &list));
    json_array_foreach(list, i, item) KVL_TRY(one_normalizer(label, item, tok));
    return KVL_OK;
}

/* ---- pre_tokenizer -----------------------------------------------------------------------------
 */

/* A literal pattern as a regular expression: every ASCII sign that is no letter or digit escaped.
 */
static void escape_literal(const char *text, kvl_buffer *out) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = c >= 0x80 || c <= ' ' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                     (c >= 'a' && c <= 'z') || c == '_';
        if (!plain) kvl_buffer_text(out, "\\");
        kvl_buffer_add(out, text, 1);
    }
}

static kvl_status read_split(const char *label, const json_t *value, kvl_tokenizer *tok) {
    const char *behavior = "", *text = NULL;
    bool invert = false;
    const json_t *pattern = json_object_get(value, "pattern");
    KVL_TRY(kvl_json_string(label, value, "behavior", true, &behavior));
    KVL_TRY(kvl_json_bool(label, value, "invert", false, &invert));
    if (strcmp(behavior, "Isolated") || invert)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "%s: Split with behavior '%.64s', invert %s: only Isolated, invert false",
                        label, behavior, invert ? "true" : "false");
    if (!json_is_object(pattern))
        return kvl_fail(KVL_ERR_INPUT, "%s: Split: pattern is not an object", label);
    KVL_TRY(kvl_json_string(label, pattern, "Regex", false, &text));
    if (text) return kvl_pretokenizer_add(tok->pre, label, text, strlen(text));
    KVL_TRY(kvl_json_string(label, pattern, "String", true, &text));
    kvl_buffer literal = {0};
    escape_literal(text, &literal);
    kvl_status status = literal.failed
                            ? kvl_fail(KVL_ERR_OOM, "%s: out of memory", label)
                            : kvl_pretokenizer_add(tok->pre, label, literal.data, literal.bytes);
    kvl_buffer_free(&literal);
    return status;
}

static kvl_status read_byte_level(const char *label, const json_t *value, kvl_tokenizer *tok) {
    bool prefix = false, regex = true; /* files older than the fields mean this */
    KVL_TRY(kvl_json_bool(label, value, "add_prefix_space", false, &prefix));
    KVL_TRY(kvl_json_bool(label, value, "use_regex", false, &regex));
    if (prefix)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: ByteLevel with add_prefix_space true", label);
    if (!regex) return KVL_OK;
    return kvl_pretokenizer_add(tok->pre, label, kvl_pattern_gpt2, strlen(kvl_pattern_gpt2));
}

static kvl_status read_digits(const char *label, const json_t *value, kvl_tokenizer *tok) {
    bool individual = false;
    KVL_TRY(kvl_json_bool(label, value, "individual_digits", false, &individual));
    const char *pattern = individual ? kvl_pattern_digit : kvl_pattern_digits;
    return kvl_pretokenizer_add(tok->pre, label, pattern, strlen(pattern));
}

static kvl_status one_pre(const char *label, const json_t *value, kvl_tokenizer *tok,
                          bool *byte_level) {
    const char *type = "";
    KVL_TRY(type_of(label, "pre_tokenizer", value, &type));
    /* ByteLevel maps bytes to its alphabet; a split after it would cut in that alphabet. */
    if (*byte_level)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: pre_tokenizer %.64s after ByteLevel", label,
                        type);
    if (!strcmp(type, "Split")) return read_split(label, value, tok);
    if (!strcmp(type, "Digits")) return read_digits(label, value, tok);
    if (strcmp(type, "ByteLevel")) return unknown_type(label, "pre_tokenizer", type);
    *byte_level = true;
    return read_byte_level(label, value, tok);
}

kvl_status kvl_tok_read_pre(const char *label, const json_t *value, kvl_tokenizer *tok) {
    const char *type = "none";
    bool byte_level = false;
    if (!is_none(value)) {
        KVL_TRY(type_of(label, "pre_tokenizer", value, &type));
        if (!strcmp(type, "Sequence")) {
            const json_t *list = NULL;
            json_t *item;
            size_t i;
            KVL_TRY(sequence_of(label, "pre_tokenizer", value, "pretokenizers", &list));
            json_array_foreach(list, i, item) KVL_TRY(one_pre(label, item, tok, &byte_level));
        } else
            KVL_TRY(one_pre(label, value, tok, &byte_level));
    }
    if (byte_level) return KVL_OK;
    return kvl_fail(KVL_ERR_UNSUPPORTED,
                    "%s: pre_tokenizer type '%.64s' without ByteLevel: only byte-level BPE", label,
                    type);
}

/* ---- decoder -----------------------------------------------------------------------------------
 */

kvl_status kvl_tok_read_decoder(const char *label, const json_t *value) {
    const char *type = "";
    if (is_none(value)) return KVL_OK;
    KVL_TRY(type_of(label, "decoder", value, &type));
    return strcmp(type, "ByteLevel") ? unknown_type(label, "decoder", type) : KVL_OK;
}

/* ---- post_processor ----------------------------------------------------------------------------
 */

/* The ids of one special token of a template, appended to the prefix or suffix. */
static kvl_status template_token(const char *label, const json_t *tokens, const char *name,
                                 const kvl_tokenizer *tok, int32_t *list, int32_t *n) {
    const json_t *ids = json_object_get(json_object_get(tokens, name), "ids");
    json_t *value;
    size_t i;
    if (!json_is_array(ids))
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: post_processor: the template names '%.64s', which is not among its "
                        "special_tokens",
                        label, name);
    json_array_foreach(ids, i, value) {
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id >= tok->n_tokens ||
            tok->tokens[id].kind == KVL_TOKEN_ABSENT)
            return kvl_fail(KVL_ERR_INPUT,
                            "%s: post_processor: special token '%.64s' has id %lld: 0 to %d", label,
                            name, (long long)id, tok->n_tokens - 1);
        if (*n == KVL_SPECIAL_AFFIX_MAX)
            return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: post_processor: more than %d tokens", label,
                            KVL_SPECIAL_AFFIX_MAX);
        list[(*n)++] = (int32_t)id;
    }
    return KVL_OK;
}

static kvl_status read_template(const char *label, const json_t *value, kvl_tokenizer *tok) {
    const json_t *single = json_object_get(value, "single");
    const json_t *tokens = json_object_get(value, "special_tokens");
    json_t *part;
    size_t i;
    int n_texts = 0;
    if (!json_is_array(single))
        return kvl_fail(KVL_ERR_INPUT, "%s: post_processor.single is not an array", label);
    json_array_foreach(single, i, part) {
        const json_t *special = json_object_get(part, "SpecialToken");
        if (!special && json_is_object(json_object_get(part, "Sequence"))) {
            n_texts++;
            continue;
        }
        const char *name = "";
        KVL_TRY(kvl_json_string(label, special, "id", true, &name));
        if (n_texts == 0)
            KVL_TRY(template_token(label, tokens, name, tok, tok->prefix, &tok->n_prefix));
        else
            KVL_TRY(template_token(label, tokens, name, tok, tok->suffix, &tok->n_suffix));
    }
    if (n_texts == 1) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "%s: post_processor.single holds the text %d times: once", label,
                    n_texts);
}

static kvl_status one_post(const char *label, const json_t *value, kvl_tokenizer *tok) {
    const char *type = "";
    KVL_TRY(type_of(label, "post_processor", value, &type));
    if (!strcmp(type, "ByteLevel")) return KVL_OK; /* moves offsets only */
    if (!strcmp(type, "TemplateProcessing")) return read_template(label, value, tok);
    return unknown_type(label, "post_processor", type);
}

kvl_status kvl_tok_read_post(const char *label, const json_t *value, kvl_tokenizer *tok) {
    const char *type = "";
    if (is_none(value)) return KVL_OK;
    KVL_TRY(type_of(label, "post_processor", value, &type));
    if (strcmp(type, "Sequence")) return one_post(label, value, tok);
    const json_t *list = NULL;
    json_t *item;
    size_t i;
    KVL_TRY(sequence_of(label, "post_processor", value, "processors", &list));
    json_array_foreach(list, i, item) KVL_TRY(one_post(label, item, tok));
    return KVL_OK;
}
