/* tokenizer.json of the Hugging Face tokenizers library, as Transformers 4 and 5 write it: model
 * BPE over bytes, merges as "a b" or ["a", "b"]. What a file asks for and kvlab does not do is
 * refused by name; truncation and padding are not, since they play no part in encoding one text. */
#include <stdio.h>
#include <string.h>

#include "decoder/json.h"
#include "decoder/tokenizer_internal.h"
#include "decoder/tokenizer_json.h"

typedef struct reader {
    const char *label;
    const json_t *root, *model;
    kvl_tokenizer *tok;
} reader;

static kvl_status refuse(const reader *r, const char *what) {
    return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: %s is not supported", r->label, what);
}

static kvl_status need(const reader *r, const json_t *value, bool good, const char *what) {
    if (value && good) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "%s: %s %s", r->label, what,
                    value ? "has another type" : "is missing");
}

/* A flag that must be false or absent. */
static kvl_status must_be_false(const reader *r, const json_t *object, const char *key) {
    bool value = false;
    KVL_TRY(kvl_json_bool(r->label, object, key, false, &value));
    if (!value) return KVL_OK;
    return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: %s true is not supported", r->label, key);
}

/* ---- model -------------------------------------------------------------------------------------
 */

static kvl_status check_model(const reader *r) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = "BPE"; /* files older than the field have merges */
    KVL_TRY(need(r, r->model, json_is_object(r->model), "model"));
    KVL_TRY(kvl_json_string(r->label, r->model, "type", false, &type));
    if (strcmp(type, "BPE"))
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: model.type '%.64s': only BPE", r->label, type);
    KVL_TRY(must_be_false(r, r->model, "byte_fallback"));
    for (int i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(r->model, affixes[i]);
        if (!affix || json_is_null(affix)) continue;
        KVL_TRY(need(r, affix, json_is_string(affix), affixes[i]));
        if (json_string_length(affix))
            return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: model.%s '%.64s' is not supported", r->label,
                            affixes[i], json_string_value(affix));
    }
    const json_t *dropout = json_object_get(r->model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return refuse(r, "model.dropout");
    return KVL_OK;
}

static kvl_status check_id(const reader *r, const char *what, const json_t *value, int32_t *id) {
    KVL_TRY(need(r, value, json_is_integer(value), what));
    json_int_t number = json_integer_value(value);
    if (number < 0 || number >= KVL_VOCAB_MAX)
        return kvl_fail(KVL_ERR_INPUT, "%s: %s %lld: 0 to %d", r->label, what, (long long)number,
                        KVL_VOCAB_MAX - 1);
    *id = (int32_t)number;
    return KVL_OK;
}

/* Largest id in the vocabulary and among the added tokens. */
static kvl_status last_id(const reader *r, const json_t *vocab, const json_t *added,
                          int32_t *last) {
    const char *text;
    json_t *value;
    size_t i;
    int32_t id = -1;
    *last = -1;
    json_object_foreach((json_t *)vocab, text, value) {
        KVL_TRY(check_id(r, "model.vocab id", value, &id));
        if (id > *last) *last = id;
    }
    json_array_foreach(added, i, value) {
        KVL_TRY(check_id(r, "added_tokens id", json_object_get(value, "id"), &id));
        if (id > *last) *last = id;
    }
    return KVL_OK;
}

static kvl_status read_added(const reader *r, const json_t *entry) {
    bool special = false, normalized = false;
    int32_t id = -1;
    const json_t *content = json_object_get(entry, "content");
    KVL_TRY(need(r, content, json_is_string(content), "added_tokens content"));
    KVL_TRY(check_id(r, "added_tokens id", json_object_get(entry, "id"), &id));
    KVL_TRY(kvl_json_bool(r->label, entry, "special", false, &special));
    KVL_TRY(kvl_json_bool(r->label, entry, "normalized", false, &normalized));
    static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
    for (int i = 0; i < 3; i++) {
        kvl_status status = must_be_false(r, entry, flags[i]);
        if (status != KVL_OK)
            return kvl_fail_prefix(status, "added token '%.64s'", json_string_value(content));
    }
    return kvl_tok_set(r->tok, id, json_string_value(content), json_string_length(content),
                       special ? KVL_TOKEN_SPECIAL : KVL_TOKEN_ADDED, normalized);
}

/* Added tokens first: most of them stand in the vocabulary too, under the same id and text. */
static kvl_status read_vocab(const reader *r, const json_t *vocab, const json_t *added) {
    const char *text;
    json_t *value;
    size_t i;
    json_array_foreach(added, i, value) KVL_TRY(read_added(r, value));
    json_object_foreach((json_t *)vocab, text, value) {
        int32_t id = (int32_t)json_integer_value(value);
        const kvl_token *token = &r->tok->tokens[id];
        if (token->kind == KVL_TOKEN_ADDED || token->kind == KVL_TOKEN_SPECIAL) {
            if (strlen(text) == token->text_bytes &&
                !memcmp(text, r->tok->store.data + token->text_at, token->text_bytes))
                continue;
            return kvl_fail(
                KVL_ERR_INPUT, "%s: id %d is '%.64s' in model.vocab, but '%.*s' in added_tokens",
                r->label, id, text, (int)token->text_bytes, r->tok->store.data + token->text_at);
        }
        KVL_TRY(kvl_tok_set(r->tok, id, text, strlen(text), KVL_TOKEN_NORMAL, false));
    }
    return kvl_tok_index(r->tok);
}

static kvl_status read_merge(const reader *r, size_t i, const json_t *merge) {
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge);
        size_t bytes = json_string_length(merge);
        const char *space = bytes > 2 ? memchr(text + 1, ' ', bytes - 2) : NULL;
        if (!space)
            return kvl_fail(KVL_ERR_INPUT, "%s: model.merges[%zu] '%.64s': no space in it",
                            r->label, i, text);
        size_t left = (size_t)(space - text);
        return kvl_tok_merge(r->tok, "model.merges", (uint32_t)i, text, left, space + 1,
                             bytes - left - 1);
    }
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    if (json_array_size(merge) != 2 || !json_is_string(left) || !json_is_string(right))
        return kvl_fail(KVL_ERR_INPUT, "%s: model.merges[%zu]: neither 'a b' nor ['a', 'b']",
                        r->label, i);
    return kvl_tok_merge(r->tok, "model.merges", (uint32_t)i, json_string_value(left),
                         json_string_length(left), json_string_value(right),
                         json_string_length(right));
}

/* The token that stands for bytes without a symbol. It plays a part only where there are such. */
static kvl_status read_unknown(const reader *r) {
    const json_t *unknown = json_object_get(r->model, "unk_token");
    bool complete = true, fuse = false;
    for (int byte = 0; byte < 256; byte++) complete = complete && r->tok->byte_ids[byte] >= 0;
    if (!unknown || json_is_null(unknown) || complete) return KVL_OK;
    KVL_TRY(need(r, unknown, json_is_string(unknown), "model.unk_token"));
    r->tok->unknown_id =
        kvl_tok_find(r->tok, json_string_value(unknown), json_string_length(unknown));
    if (r->tok->unknown_id < 0)
        return kvl_fail(KVL_ERR_INPUT, "%s: model.unk_token '%.64s' is not in the vocabulary",
                        r->label, json_string_value(unknown));
    KVL_TRY(kvl_json_bool(r->label, r->model, "fuse_unk", false, &fuse));
    return fuse ? refuse(r, "model.fuse_unk true") : KVL_OK;
}

static kvl_status read_model(reader *r) {
    const json_t *vocab = json_object_get(r->model, "vocab");
    const json_t *merges = json_object_get(r->model, "merges");
    const json_t *added = json_object_get(r->root, "added_tokens");
    json_t *merge;
    size_t i;
    int32_t last = -1;
    KVL_TRY(need(r, vocab, json_is_object(vocab), "model.vocab"));
    KVL_TRY(need(r, merges, json_is_array(merges), "model.merges"));
    if (added && !json_is_null(added))
        KVL_TRY(need(r, added, json_is_array(added), "added_tokens"));
    KVL_TRY(last_id(r, vocab, added, &last));
    /* A few ids may be holes; a table much larger than what is in it is a broken or hostile file.
     */
    uint64_t given = (uint64_t)json_object_size(vocab) + json_array_size(added);
    if ((uint64_t)last + 1 > 2 * given + 1024)
        return kvl_fail(KVL_ERR_INPUT, "%s: largest token id %d, but only %llu tokens", r->label,
                        last, (unsigned long long)given);
    KVL_TRY(kvl_tok_new(r->label, last + 1, &r->tok));
    KVL_TRY(kvl_tok_read_normalizer(r->label, json_object_get(r->root, "normalizer"), r->tok));
    KVL_TRY(read_vocab(r, vocab, added));
    json_array_foreach(merges, i, merge) KVL_TRY(read_merge(r, i, merge));
    KVL_TRY(read_unknown(r));
    return kvl_json_bool(r->label, r->model, "ignore_merges", false, &r->tok->ignore_merges);
}

/* ---- tokenizer_config.json ---------------------------------------------------------------------
 */

/* bos_token and eos_token are null, a string, or an object with content. */
static kvl_status config_token(const reader *r, const json_t *config, const char *key,
                               int32_t *id) {
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    if (!value || json_is_null(value)) return KVL_OK;
    KVL_TRY(need(r, value, json_is_string(value), key));
    *id = kvl_tok_find(r->tok, json_string_value(value), json_string_length(value));
    if (*id >= 0) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT,
                    "%s: %s '%.64s' of tokenizer_config.json is not in the vocabulary", r->label,
                    key, json_string_value(value));
}

/* add_bos_token and add_eos_token, where given, overrule the post-processor. */
static kvl_status config_add(const reader *r, const json_t *config, const char *key, int32_t id,
                             int32_t *list, int32_t *n) {
    const json_t *value = json_object_get(config, key);
    bool add = false;
    if (!value || json_is_null(value)) return KVL_OK;
    KVL_TRY(kvl_json_bool(r->label, config, key, false, &add));
    if (add && id < 0)
        return kvl_fail(KVL_ERR_INPUT, "%s: %s is true, but tokenizer_config.json names no token",
                        r->label, key);
    *n = add ? 1 : 0;
    list[0] = id;
    return KVL_OK;
}

static kvl_status read_config(const reader *r, const json_t *config) {
    kvl_tokenizer *tok = r->tok;
    KVL_TRY(need(r, config, json_is_object(config), "tokenizer_config.json"));
    KVL_TRY(config_token(r, config, "bos_token", &tok->bos_id));
    KVL_TRY(config_token(r, config, "eos_token", &tok->eos_id));
    KVL_TRY(config_add(r, config, "add_bos_token", tok->bos_id, tok->prefix, &tok->n_prefix));
    return config_add(r, config, "add_eos_token", tok->eos_id, tok->suffix, &tok->n_suffix);
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

static kvl_status read_all(reader *r, const json_t *config) {
    KVL_TRY(need(r, r->root, json_is_object(r->root), "the document"));
    r->model = json_object_get(r->root, "model");
    KVL_TRY(check_model(r));
    KVL_TRY(read_model(r));
    KVL_TRY(kvl_tok_read_pre(r->label, json_object_get(r->root, "pre_tokenizer"), r->tok));
    KVL_TRY(kvl_tok_read_decoder(r->label, json_object_get(r->root, "decoder")));
    KVL_TRY(kvl_tok_read_post(r->label, json_object_get(r->root, "post_processor"), r->tok));
    if (config) KVL_TRY(read_config(r, config));
    return kvl_tok_finish(r->tok);
}

kvl_status kvl_tokenizer_from_json(const char *label, const json_t *root, const json_t *config,
                                   kvl_tokenizer **out) {
    reader r = {.label = label, .root = root};
    kvl_status status = read_all(&r, config);
    if (status != KVL_OK) {
        kvl_tokenizer_free(r.tok);
        return status;
    }
    *out = r.tok;
    return KVL_OK;
}

static bool is_there(const char *path) {
    FILE *file = fopen(path, "re");
    if (file) fclose(file);
    return file != NULL;
}

kvl_status kvl_tokenizer_from_dir(const char *dir, kvl_tokenizer **out) {
    kvl_buffer path = {0}, config_path = {0};
    json_t *root = NULL, *config = NULL;
    kvl_status status = KVL_OK;
    kvl_buffer_printf(&path, "%s/tokenizer.json", dir);
    kvl_buffer_printf(&config_path, "%s/tokenizer_config.json", dir);
    if (path.failed || config_path.failed) status = kvl_fail(KVL_ERR_OOM, "%s: out of memory", dir);
    if (status == KVL_OK) status = kvl_json_load(path.data, &root);
    if (status == KVL_OK && is_there(config_path.data))
        status = kvl_json_load(config_path.data, &config);
    if (status == KVL_OK) status = kvl_tokenizer_from_json(path.data, root, config, out);
    json_decref(root);
    json_decref(config);
    kvl_buffer_free(&path);
    kvl_buffer_free(&config_path);
    return status;
}
