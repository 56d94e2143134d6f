/* Builds small tokenizer.json texts: the 256 byte symbols as ids 0 to 255, then what a test adds.
 */
#ifndef KVL_TESTS_TOKENIZER_MAKER_H
#define KVL_TESTS_TOKENIZER_MAKER_H

#include "core/buffer.h"
#include "decoder/json.h"
#include "decoder/tokenizer_internal.h"
#include "tests/test.h"

/* Members of the document; NULL fields take the default after the colon. */
typedef struct maker {
    const char *vocab;   /* ",\"ab\":256": nothing */
    const char *merges;  /* "[\"a b\"]": [] */
    const char *added;   /* [] */
    const char *normal;  /* null */
    const char *pre;     /* ByteLevel without its regex: one piece */
    const char *post;    /* null */
    const char *decoder; /* ByteLevel */
    const char *model;   /* ",\"ignore_merges\":true": nothing */
    const char *type;    /* BPE */
    const char *extra;   /* more members of the document, each followed by a comma: nothing */
    bool without_a;      /* leave out the symbol of byte 'a' */
} maker;

static inline const char *or_else(const char *text, const char *other) {
    return text ? text : other;
}

static inline void put_alphabet(kvl_buffer *b, bool without_a) {
    for (int byte = 0, n = 0; byte < 256; byte++) {
        uint32_t code = kvl_byte_code((uint8_t)byte);
        if (without_a && byte == 'a') continue;
        kvl_buffer_printf(b, "%s\"\\u%04x\":%d", n++ ? "," : "", code, byte);
    }
}

static inline void make_json(const maker *m, kvl_buffer *b) {
    kvl_buffer_printf(b, "{%s\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,",
                      or_else(m->extra, ""), or_else(m->added, "[]"), or_else(m->normal, "null"),
                      or_else(m->pre, "{\"type\":\"ByteLevel\",\"use_regex\":false}"));
    kvl_buffer_printf(b, "\"post_processor\":%s,\"decoder\":%s,\"model\":{\"type\":\"%s\"%s,",
                      or_else(m->post, "null"), or_else(m->decoder, "{\"type\":\"ByteLevel\"}"),
                      or_else(m->type, "BPE"), or_else(m->model, ""));
    kvl_buffer_text(b, "\"vocab\":{");
    put_alphabet(b, m->without_a);
    kvl_buffer_printf(b, "%s},\"merges\":%s}}", or_else(m->vocab, ""), or_else(m->merges, "[]"));
    assert_false(b->failed);
}

/* Parses the text and builds a tokenizer from it. */
static inline kvl_status build_text(const char *text, size_t bytes, const char *config_text,
                                    kvl_tokenizer **tok) {
    json_t *root = NULL, *config = NULL;
    kvl_status status = kvl_json_parse("t.json", text, bytes, &root);
    if (status == KVL_OK && config_text)
        status = kvl_json_parse("c.json", config_text, strlen(config_text), &config);
    if (status == KVL_OK) status = kvl_tokenizer_from_json("t.json", root, config, tok);
    json_decref(root);
    json_decref(config);
    return status;
}

static inline kvl_status build(maker m, const char *config, kvl_tokenizer **tok) {
    kvl_buffer b = {0};
    make_json(&m, &b);
    kvl_status status = build_text(b.data, b.bytes, config, tok);
    kvl_buffer_free(&b);
    return status;
}

#endif
