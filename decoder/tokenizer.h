/* Byte-level BPE tokenizer, from GGUF metadata or tokenizer.json.
 *
 * encode: special tokens that stand in the text are recognised first (longest match, leftmost), the
 * rest is normalised where the file asks (NFC by utf8proc), split by the pre-tokenizer (PCRE2 with
 * Unicode, with a step limit), mapped to byte-level symbols and merged by rank, linear-log in time
 * on a flat stack. decode: loss-free; decode(encode(text)) == text without a normaliser. Sources:
 * GPT-2 encoder.py (byte map, merges); Hugging Face tokenizers (tokenizer.json fields).
 *
 * Some vocabularies have no symbol for a few bytes (the default model lacks six control characters
 * and bytes that begin unassigned planes). Other systems drop such bytes; here they become the
 * file's unknown token where tokenizer.json names one, and are refused with their offset otherwise.
 */
#ifndef KVL_DECODER_TOKENIZER_H
#define KVL_DECODER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buffer.h"
#include "core/status.h"
#include "decoder/gguf.h"

typedef struct kvl_tokenizer kvl_tokenizer;

/* From `tokenizer.ggml.*` of a GGUF file. Pre-tokenizers: llama-bpe/llama3, qwen2, gpt-2, smollm,
 * default; others, and models other than gpt2-style BPE, are refused by name. */
kvl_status kvl_tokenizer_from_gguf(const kvl_gguf *gguf, kvl_tokenizer **out);

/* From a Hugging Face directory's tokenizer.json (merges as strings or pairs;
 * Split/ByteLevel/Digits pre-tokenizers in sequences; NFC or no normaliser) and, when present,
 * tokenizer_config.json (bos, eos, add_bos_token). */
kvl_status kvl_tokenizer_from_dir(const char *dir, kvl_tokenizer **out);
void kvl_tokenizer_free(kvl_tokenizer *tokenizer);

/* Token ids of `text` (any bytes; invalid UTF-8 is KVL_ERR_INPUT with the byte offset).
 * Library convention: writes at most `capacity` ids and always sets *n_ids to the needed count;
 * capacity <= 0 writes nothing. `add_special`: BOS (and EOS) where the file says so. */
kvl_status kvl_tokenizer_encode(const kvl_tokenizer *tokenizer, const char *text, size_t bytes,
                                bool add_special, int32_t *ids, int64_t capacity, int64_t *n_ids);
/* The same into a malloc'ed array (never NULL, for 0 ids too). */
kvl_status kvl_tokenizer_encode_alloc(const kvl_tokenizer *tokenizer, const char *text,
                                      size_t bytes, bool add_special, int32_t **ids,
                                      int64_t *n_ids);

/* Appends the bytes of the ids; special tokens as their text, or nothing when skip_special.
 * An id out of range is KVL_ERR_INPUT. */
kvl_status kvl_tokenizer_decode(const kvl_tokenizer *tokenizer, const int32_t *ids, int64_t n_ids,
                                bool skip_special, kvl_buffer *out);

/* Streaming decode: feed ids one by one; only whole UTF-8 characters come out, the rest is held
 * back; flush gives what is left (bytes as they are). */
typedef struct kvl_stream {
    const kvl_tokenizer *tokenizer;
    bool skip_special;
    unsigned char held[8];
    size_t n_held;
} kvl_stream;
void kvl_stream_init(kvl_stream *stream, const kvl_tokenizer *tokenizer, bool skip_special);
kvl_status kvl_stream_put(kvl_stream *stream, int32_t id, kvl_buffer *out);
void kvl_stream_flush(kvl_stream *stream, kvl_buffer *out);

int32_t kvl_tokenizer_vocab_size(const kvl_tokenizer *tokenizer);
int32_t kvl_tokenizer_bos(const kvl_tokenizer *tokenizer); /* -1 = none */
int32_t kvl_tokenizer_eos(const kvl_tokenizer *tokenizer);
bool kvl_tokenizer_is_special(const kvl_tokenizer *tokenizer, int32_t id);
/* Id of a token by its text, or -1. */
int32_t kvl_tokenizer_find(const kvl_tokenizer *tokenizer, const char *text);

#endif
