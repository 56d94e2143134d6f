/* The stages around the model in tokenizer.json: normalizer, pre_tokenizer, post_processor,
 * decoder. Each reads its member (NULL or JSON null = none) into the tokenizer. */
#ifndef KVL_DECODER_TOKENIZER_JSON_H
#define KVL_DECODER_TOKENIZER_JSON_H

#include "decoder/tokenizer_internal.h"

kvl_status kvl_tok_read_normalizer(const char *label, const json_t *value, kvl_tokenizer *tok);
kvl_status kvl_tok_read_pre(const char *label, const json_t *value, kvl_tokenizer *tok);
kvl_status kvl_tok_read_post(const char *label, const json_t *value, kvl_tokenizer *tok);
kvl_status kvl_tok_read_decoder(const char *label, const json_t *value);

#endif
