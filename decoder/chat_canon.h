/* A chat template in one spelling, so that templates can be compared by what they print.
 *
 * Jinja allows many spellings of one thing. Here comments go, white space inside tags goes (not
 * inside quotes), -  and + at the tags' edges go after they have taken the text's white space with
 * them, "..." becomes '...', ['name'] becomes .name, and a newline inside quotes or in text becomes
 * \n. Text between tags stands as Jinja would print it under trim_blocks and lstrip_blocks, which
 * is how Transformers renders templates. Source: the Jinja manual, "Whitespace Control". */
#ifndef KVL_DECODER_CHAT_CANON_H
#define KVL_DECODER_CHAT_CANON_H

#include "core/buffer.h"
#include "core/status.h"

/* Appends the canonical spelling of `text` to `out`. A tag that does not end is KVL_ERR_INPUT. */
kvl_status kvl_chat_canon(const char *text, kvl_buffer *out);

#endif
