/* Building a tokenizer from what a reader found: texts, look-up tables, merges, tries. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "decoder/tokenizer_internal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* GPT-2's byte map: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and on. */
static bool is_printable(unsigned byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

uint32_t kvl_byte_code(uint8_t byte) {
    if (is_printable(byte)) return byte;
    if (byte <= 32) return 256u + byte;
    return byte == 173 ? 256 + 67 : 256u + 33 + (byte - 127u);
}

int kvl_byte_of(uint32_t code) {
    if (code < 256) return is_printable(code) ? (int)code : -1;
    if (code < 256 + 33) return (int)(code - 256);
    if (code < 256 + 67) return (int)(code - 256 - 33 + 127);
    return code == 256 + 67 ? 173 : -1;
}

static kvl_status map64_grow(kvl_map64 *map) {
    uint64_t capacity = map->slots ? (map->mask + 1) * 2 : 64;
    kvl_map64_slot *slots = malloc(capacity * sizeof *slots);
    if (!slots)
        return kvl_fail(KVL_ERR_OOM, "tokenizer: table of %llu", (unsigned long long)capacity);
    memset(slots, 0xff, capacity * sizeof *slots);
    for (uint64_t i = 0; map->slots && i <= map->mask; i++) {
        if (map->slots[i].key == KVL_MAP64_EMPTY) continue;
        uint64_t at = kvl_map64_hash(map->slots[i].key) & (capacity - 1);
        while (slots[at].key != KVL_MAP64_EMPTY) at = (at + 1) & (capacity - 1);
        slots[at] = map->slots[i];
    }
    free(map->slots);
    map->slots = slots;
    map->mask = capacity - 1;
    return KVL_OK;
}

kvl_status kvl_map64_set(kvl_map64 *map, uint64_t key, uint32_t first, uint32_t second) {
    if (!map->slots || (map->used + 1) * 3 > (map->mask + 1) * 2) KVL_TRY(map64_grow(map));
    uint64_t i = kvl_map64_hash(key) & map->mask;
    while (map->slots[i].key != KVL_MAP64_EMPTY && map->slots[i].key != key)
        i = (i + 1) & map->mask;
    if (map->slots[i].key == KVL_MAP64_EMPTY) map->used++;
    map->slots[i] = (kvl_map64_slot){key, first, second};
    return KVL_OK;
}

kvl_status kvl_tok_new(const char *label, int32_t n_tokens, kvl_tokenizer **out) {
    if (n_tokens < 1 || n_tokens > KVL_VOCAB_MAX)
        return kvl_fail(KVL_ERR_INPUT, "%s: vocabulary of %d tokens: 1 to %d", label, n_tokens,
                        KVL_VOCAB_MAX);
    kvl_tokenizer *tok = calloc(1, sizeof *tok);
    if (tok) {
        tok->label = strdup(label);
        tok->tokens = calloc((size_t)n_tokens, sizeof *tok->tokens);
    }
    if (!tok || !tok->label || !tok->tokens) {
        kvl_tokenizer_free(tok);
        return kvl_fail(KVL_ERR_OOM, "%s: vocabulary of %d tokens: out of memory", label, n_tokens);
    }
    tok->n_tokens = n_tokens;
    tok->bos_id = tok->eos_id = tok->unknown_id = -1;
    kvl_status status = kvl_pretokenizer_create(&tok->pre);
    if (status != KVL_OK) {
        kvl_tokenizer_free(tok);
        return status;
    }
    *out = tok;
    return KVL_OK;
}

void kvl_tokenizer_free(kvl_tokenizer *tok) {
    if (!tok) return;
    kvl_pretokenizer_free(tok->pre);
    kvl_buffer_free(&tok->store);
    free(tok->raw.edges.slots);
    free(tok->normalised.edges.slots);
    free(tok->merges.slots);
    free(tok->by_text);
    free(tok->tokens);
    free(tok->label);
    free(tok);
}

/* Next code point of valid UTF-8. */
static uint32_t next_code(const uint8_t **p) {
    const uint8_t *s = *p;
    if (s[0] < 0x80) return *p += 1, s[0];
    if (s[0] < 0xe0) return *p += 2, (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    if (s[0] < 0xf0) return *p += 3, (s[0] & 0xfu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    return *p += 4, (s[0] & 7u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
}

/* Bytes that a byte-level text stands for; false when a character lies outside the alphabet. */
static bool decode_bytes(const char *text, size_t bytes, uint8_t *out, uint32_t *n_out) {
    const uint8_t *p = (const uint8_t *)text, *end = p + bytes;
    uint32_t n = 0;
    while (p < end) {
        int byte = kvl_byte_of(next_code(&p));
        if (byte < 0) return false;
        out[n++] = (uint8_t)byte;
    }
    *n_out = n;
    return true;
}

kvl_status kvl_tok_set(kvl_tokenizer *tok, int32_t id, const char *text, size_t bytes,
                       kvl_token_kind kind, bool after_normaliser) {
    if (id < 0 || id >= tok->n_tokens)
        return kvl_fail(KVL_ERR_INPUT, "%s: token id %d: 0 to %d", tok->label, id,
                        tok->n_tokens - 1);
    kvl_token *token = &tok->tokens[id];
    if (token->kind != KVL_TOKEN_ABSENT)
        return kvl_fail(KVL_ERR_INPUT, "%s: token id %d is given twice", tok->label, id);
    size_t limit = kind == KVL_TOKEN_NORMAL ? KVL_TOKEN_MAX_BYTES : KVL_ADDED_MAX_BYTES;
    if (bytes > limit)
        return kvl_fail(KVL_ERR_INPUT, "%s: token %d of %zu bytes: at most %zu", tok->label, id,
                        bytes, limit);
    if (!kvl_utf8_valid(text, bytes))
        return kvl_fail(KVL_ERR_INPUT, "%s: token %d: text is not UTF-8", tok->label, id);
    if (kind != KVL_TOKEN_NORMAL && bytes == 0)
        return kvl_fail(KVL_ERR_INPUT, "%s: token %d: an added token without text", tok->label, id);
    *token = (kvl_token){.text_at = tok->store.bytes,
                         .text_bytes = (uint32_t)bytes,
                         .kind = (uint8_t)kind,
                         .after_normaliser = after_normaliser};
    kvl_buffer_add(&tok->store, text, bytes);
    uint8_t decoded[KVL_TOKEN_MAX_BYTES];
    uint32_t n = 0;
    if (kind == KVL_TOKEN_NORMAL && decode_bytes(text, bytes, decoded, &n)) {
        token->decoded_at = tok->store.bytes;
        token->decoded_bytes = n;
        kvl_buffer_add(&tok->store, decoded, n);
    } else {
        token->decoded_at = token->text_at;
        token->decoded_bytes = token->text_bytes;
    }
    if (tok->store.failed) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", tok->label);
    return KVL_OK;
}

static bool same_text(const kvl_tokenizer *tok, int32_t id, const char *text, size_t bytes) {
    const kvl_token *token = &tok->tokens[id];
    return token->text_bytes == bytes && !memcmp(tok->store.data + token->text_at, text, bytes);
}

/* Slot of the text, or the empty slot where it belongs. */
static uint64_t text_slot(const kvl_tokenizer *tok, const char *text, size_t bytes) {
    uint64_t i = XXH3_64bits(text, bytes) & tok->by_text_mask;
    while (tok->by_text[i] >= 0 && !same_text(tok, tok->by_text[i], text, bytes))
        i = (i + 1) & tok->by_text_mask;
    return i;
}

int32_t kvl_tok_find(const kvl_tokenizer *tok, const char *text, size_t bytes) {
    return tok->by_text && bytes ? tok->by_text[text_slot(tok, text, bytes)] : -1;
}

static size_t put_code(uint32_t code, char *out) {
    if (code < 0x80) return out[0] = (char)code, 1;
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2; /* the byte alphabet ends at U+0143 */
}

kvl_status kvl_tok_index(kvl_tokenizer *tok) {
    uint64_t capacity = 64;
    while (capacity < (uint64_t)tok->n_tokens * 2) capacity *= 2;
    tok->by_text = malloc(capacity * sizeof *tok->by_text);
    if (!tok->by_text) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", tok->label);
    memset(tok->by_text, 0xff, capacity * sizeof *tok->by_text);
    tok->by_text_mask = capacity - 1;
    for (int32_t id = 0; id < tok->n_tokens; id++) {
        const kvl_token *token = &tok->tokens[id];
        /* Several tokens without text are padding of the table; they are found by id only. */
        if (token->kind == KVL_TOKEN_ABSENT || token->text_bytes == 0) continue;
        uint64_t slot = text_slot(tok, tok->store.data + token->text_at, token->text_bytes);
        if (tok->by_text[slot] >= 0)
            return kvl_fail(KVL_ERR_INPUT, "%s: tokens %d and %d have the same text '%.*s'",
                            tok->label, tok->by_text[slot], id,
                            (int)(token->text_bytes < 64 ? token->text_bytes : 64),
                            tok->store.data + token->text_at);
        tok->by_text[slot] = id;
    }
    for (int byte = 0; byte < 256; byte++) {
        char text[2];
        tok->byte_ids[byte] = kvl_tok_find(tok, text, put_code(kvl_byte_code((uint8_t)byte), text));
    }
    return KVL_OK;
}

/* Id of one part of a merge; refused by its name in the file when it is no token. */
static kvl_status merge_part(const kvl_tokenizer *tok, const char *field, uint32_t rank,
                             const char *what, const char *text, size_t bytes, int32_t *id) {
    *id = kvl_tok_find(tok, text, bytes);
    if (*id >= 0) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "%s: %s[%u]: %s '%.*s' is not in the vocabulary", tok->label,
                    field, rank, what, (int)(bytes < 64 ? bytes : 64), text);
}

kvl_status kvl_tok_merge(kvl_tokenizer *tok, const char *field, uint32_t rank, const char *left,
                         size_t left_bytes, const char *right, size_t right_bytes) {
    char joined[2 * KVL_TOKEN_MAX_BYTES];
    int32_t l = -1, r = -1, result = -1;
    KVL_TRY(merge_part(tok, field, rank, "left half", left, left_bytes, &l));
    KVL_TRY(merge_part(tok, field, rank, "right half", right, right_bytes, &r));
    /* Both were found, so neither is longer than a token may be. */
    memcpy(joined, left, left_bytes);
    memcpy(joined + left_bytes, right, right_bytes);
    KVL_TRY(merge_part(tok, field, rank, "result", joined, left_bytes + right_bytes, &result));
    return kvl_map64_set(&tok->merges, (uint64_t)(uint32_t)l << 32 | (uint32_t)r, rank,
                         (uint32_t)result);
}

static kvl_status trie_add(kvl_trie *trie, const char *text, size_t bytes, int32_t id) {
    uint32_t node = 0;
    if (trie->n_nodes == 0) trie->n_nodes = 1;
    trie->starts[(uint8_t)text[0]] = true;
    for (size_t i = 0; i < bytes; i++) {
        uint64_t key = (uint64_t)node << 8 | (uint8_t)text[i];
        const kvl_map64_slot *edge = kvl_map64_find(&trie->edges, key);
        uint32_t child = edge ? edge->first : trie->n_nodes++;
        uint32_t ends = i + 1 == bytes ? (uint32_t)id + 1 : edge ? edge->second : 0;
        KVL_TRY(kvl_map64_set(&trie->edges, key, child, ends));
        node = child;
    }
    return KVL_OK;
}

kvl_status kvl_tok_finish(kvl_tokenizer *tok) {
    kvl_buffer text = {0};
    kvl_status status = KVL_OK;
    for (int32_t id = 0; id < tok->n_tokens && status == KVL_OK; id++) {
        const kvl_token *token = &tok->tokens[id];
        if (token->kind != KVL_TOKEN_ADDED && token->kind != KVL_TOKEN_SPECIAL) continue;
        bool normalise = token->after_normaliser && tok->nfc;
        kvl_buffer_clear(&text);
        if (normalise)
            status = kvl_nfc(tok->store.data + token->text_at, token->text_bytes, &text);
        else
            kvl_buffer_add(&text, tok->store.data + token->text_at, token->text_bytes);
        if (status == KVL_OK && text.failed)
            status = kvl_fail(KVL_ERR_OOM, "%s: out of memory", tok->label);
        if (status == KVL_OK)
            status = trie_add(token->after_normaliser ? &tok->normalised : &tok->raw, text.data,
                              text.bytes, id);
    }
    kvl_buffer_free(&text);
    return status;
}
