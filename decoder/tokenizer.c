#include "decoder/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "decoder/tokenizer_internal.h"

/* Positions inside a piece and heap entries are 32-bit. */
#define TEXT_MAX_BYTES ((size_t)1 << 30)

typedef struct encoder {
    const kvl_tokenizer *tok;
    const char *origin; /* start of the text that pieces point into, for offsets in messages */
    kvl_ids ids;
    kvl_bpe_scratch scratch;
    kvl_split_clock clock;
} encoder;

static kvl_status encode_piece(void *user, const uint8_t *piece, size_t bytes) {
    encoder *e = user;
    size_t offset = (size_t)((const char *)piece - e->origin);
    return kvl_bpe_encode(e->tok, piece, bytes, offset, &e->scratch, &e->ids);
}

static kvl_status encode_plain(encoder *e, const char *text, size_t bytes) {
    return kvl_pretokenizer_split(e->tok->pre, (const uint8_t *)text, bytes, &e->clock,
                                  encode_piece, e);
}

/* Longest added token that starts at text[0]; 0 when none does. */
static size_t trie_match(const kvl_trie *trie, const char *text, size_t bytes, int32_t *id) {
    if (!trie->starts[(uint8_t)text[0]]) return 0;
    size_t longest = 0;
    uint32_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
        const kvl_map64_slot *edge =
            kvl_map64_find(&trie->edges, (uint64_t)node << 8 | (uint8_t)text[i]);
        if (!edge) break;
        node = edge->first;
        if (edge->second) {
            longest = i + 1;
            *id = (int32_t)edge->second - 1;
        }
    }
    return longest;
}

typedef kvl_status (*plain_fn)(encoder *e, const char *text, size_t bytes);

/* Cuts out the added tokens of one trie; what lies between them goes to `plain`. */
static kvl_status encode_added(encoder *e, const kvl_trie *trie, const char *text, size_t bytes,
                               plain_fn plain) {
    size_t done = 0, at = 0;
    while (trie->n_nodes && at < bytes) {
        int32_t id = -1;
        size_t length = trie_match(trie, text + at, bytes - at, &id);
        if (length == 0) {
            at++;
            continue;
        }
        if (at > done) KVL_TRY(plain(e, text + done, at - done));
        KVL_TRY(kvl_ids_add(&e->ids, id));
        done = at = at + length;
    }
    return done < bytes ? plain(e, text + done, bytes - done) : KVL_OK;
}

static kvl_status encode_normalised(encoder *e, const char *text, size_t bytes) {
    const char *origin = e->origin;
    if (!e->tok->nfc) return encode_added(e, &e->tok->normalised, text, bytes, encode_plain);
    kvl_buffer composed = {0};
    kvl_status status = kvl_nfc(text, bytes, &composed);
    e->origin = composed.data;
    if (status == KVL_OK)
        status = encode_added(e, &e->tok->normalised, composed.data, composed.bytes, encode_plain);
    kvl_buffer_free(&composed);
    e->origin = origin;
    return status;
}

/* Length of the longest valid UTF-8 prefix; for the message only. */
static size_t valid_prefix(const char *text, size_t bytes) {
    size_t at = 0, n = 1;
    while (at < bytes && n <= 4 && n <= bytes - at) {
        bool whole = kvl_utf8_valid(text + at, n);
        at += whole ? n : 0;
        n = whole ? 1 : n + 1;
    }
    return at;
}

static kvl_status encode_text(encoder *e, const char *text, size_t bytes, bool add_special) {
    if (bytes > TEXT_MAX_BYTES)
        return kvl_fail(KVL_ERR_INPUT, "text of %zu bytes: at most %zu", bytes, TEXT_MAX_BYTES);
    if (!kvl_utf8_valid(text, bytes)) {
        size_t at = valid_prefix(text, bytes);
        return kvl_fail(KVL_ERR_INPUT, "text is not UTF-8: byte 0x%02x at offset %zu",
                        (uint8_t)text[at], at);
    }
    e->clock = kvl_split_clock_start(bytes);
    for (int32_t i = 0; add_special && i < e->tok->n_prefix; i++)
        KVL_TRY(kvl_ids_add(&e->ids, e->tok->prefix[i]));
    KVL_TRY(encode_added(e, &e->tok->raw, text, bytes, encode_normalised));
    for (int32_t i = 0; add_special && i < e->tok->n_suffix; i++)
        KVL_TRY(kvl_ids_add(&e->ids, e->tok->suffix[i]));
    return KVL_OK;
}

kvl_status kvl_tokenizer_encode_alloc(const kvl_tokenizer *tokenizer, const char *text,
                                      size_t bytes, bool add_special, int32_t **ids,
                                      int64_t *n_ids) {
    encoder e = {.tok = tokenizer, .origin = text};
    kvl_status status = encode_text(&e, text, bytes, add_special);
    kvl_bpe_scratch_free(&e.scratch);
    /* No text still gives an array that can be freed and read. */
    if (status == KVL_OK && !e.ids.data && !(e.ids.data = calloc(1, sizeof *e.ids.data)))
        status = kvl_fail(KVL_ERR_OOM, "tokenizer: out of memory");
    if (status != KVL_OK) {
        free(e.ids.data);
        return status;
    }
    *ids = e.ids.data;
    *n_ids = e.ids.n;
    return KVL_OK;
}

kvl_status kvl_tokenizer_encode(const kvl_tokenizer *tokenizer, const char *text, size_t bytes,
                                bool add_special, int32_t *ids, int64_t capacity, int64_t *n_ids) {
    int32_t *all = NULL;
    KVL_TRY(kvl_tokenizer_encode_alloc(tokenizer, text, bytes, add_special, &all, n_ids));
    int64_t n = *n_ids < capacity ? *n_ids : capacity;
    if (n > 0) memcpy(ids, all, (size_t)n * sizeof *ids);
    free(all);
    return KVL_OK;
}

/* ---- decode ------------------------------------------------------------------------------------
 */

static kvl_status token_bytes(const kvl_tokenizer *tok, int32_t id, bool skip_special,
                              const char **data, size_t *bytes) {
    if (id < 0 || id >= tok->n_tokens || tok->tokens[id].kind == KVL_TOKEN_ABSENT)
        return kvl_fail(KVL_ERR_INPUT, "token id %d: %s has %d tokens%s", id, tok->label,
                        tok->n_tokens, id >= 0 && id < tok->n_tokens ? ", not this one" : "");
    const kvl_token *token = &tok->tokens[id];
    *data = tok->store.data ? tok->store.data + token->decoded_at : "";
    *bytes = skip_special && token->kind == KVL_TOKEN_SPECIAL ? 0 : token->decoded_bytes;
    return KVL_OK;
}

kvl_status kvl_tokenizer_decode(const kvl_tokenizer *tokenizer, const int32_t *ids, int64_t n_ids,
                                bool skip_special, kvl_buffer *out) {
    for (int64_t i = 0; i < n_ids; i++) {
        const char *data = NULL;
        size_t bytes = 0;
        KVL_TRY(token_bytes(tokenizer, ids[i], skip_special, &data, &bytes));
        kvl_buffer_add(out, data, bytes);
    }
    return out->failed ? kvl_fail(KVL_ERR_OOM, "tokenizer: decoded text: out of memory") : KVL_OK;
}

void kvl_stream_init(kvl_stream *stream, const kvl_tokenizer *tokenizer, bool skip_special) {
    *stream = (kvl_stream){.tokenizer = tokenizer, .skip_special = skip_special};
}

/* Whether the n bytes can still grow into a character: a proper prefix of valid UTF-8 (Unicode
 * standard, table 3-7: the second byte's range depends on the first). */
static bool is_partial(const unsigned char *s, size_t n) {
    size_t need = s[0] >= 0xc2 && s[0] <= 0xdf   ? 2
                  : s[0] >= 0xe0 && s[0] <= 0xef ? 3
                  : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4
                                                 : 1;
    if (n >= need) return false;
    if (n > 1) {
        unsigned low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
        unsigned high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
        if (s[1] < low || s[1] > high) return false;
    }
    return n < 3 || (s[2] & 0xc0) == 0x80;
}

kvl_status kvl_stream_put(kvl_stream *stream, int32_t id, kvl_buffer *out) {
    const char *data = NULL;
    size_t bytes = 0;
    KVL_TRY(token_bytes(stream->tokenizer, id, stream->skip_special, &data, &bytes));
    for (size_t i = 0; i < bytes; i++) {
        stream->held[stream->n_held++] = (unsigned char)data[i];
        if (is_partial(stream->held, stream->n_held)) continue;
        /* Whole, or broken by this byte: then the broken part goes out as it is, and this byte may
         * begin a character of its own. */
        size_t n = stream->n_held;
        bool again =
            n > 1 && !kvl_utf8_valid(stream->held, n) && is_partial(stream->held + n - 1, 1);
        kvl_buffer_add(out, stream->held, again ? n - 1 : n);
        if (again) stream->held[0] = stream->held[n - 1];
        stream->n_held = again ? 1 : 0;
    }
    return out->failed ? kvl_fail(KVL_ERR_OOM, "tokenizer: decoded text: out of memory") : KVL_OK;
}

void kvl_stream_flush(kvl_stream *stream, kvl_buffer *out) {
    kvl_buffer_add(out, stream->held, stream->n_held);
    stream->n_held = 0;
}

/* ---- what else is known of the tokens ----------------------------------------------------------
 */

int32_t kvl_tokenizer_vocab_size(const kvl_tokenizer *tokenizer) {
    return tokenizer->n_tokens;
}

int32_t kvl_tokenizer_bos(const kvl_tokenizer *tokenizer) {
    return tokenizer->bos_id;
}

int32_t kvl_tokenizer_eos(const kvl_tokenizer *tokenizer) {
    return tokenizer->eos_id;
}

bool kvl_tokenizer_is_special(const kvl_tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->n_tokens && tokenizer->tokens[id].kind == KVL_TOKEN_SPECIAL;
}

int32_t kvl_tokenizer_find(const kvl_tokenizer *tokenizer, const char *text) {
    return kvl_tok_find(tokenizer, text, strlen(text));
}
