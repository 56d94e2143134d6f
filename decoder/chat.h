/* Chat templates, recognised by their text and rendered by own code (no template language runs).
 * Known: chatml (SmolLM2, Qwen 2 to 3; with the default system line that stands in the template,
 * and the opening <think> of thinking variants), llama-3 (3.1 with its fixed date; templates that
 * print today's date are refused, since their text changes daily), mistral ([INST] with the
 * template's own spacing). A template is known by the pieces that print a message and the
 * generation prompt; one that prints them otherwise is refused with its opening words, not guessed
 * at. */
#ifndef KVL_DECODER_CHAT_H
#define KVL_DECODER_CHAT_H

#include "core/buffer.h"
#include "core/status.h"

typedef enum kvl_chat_kind {
    KVL_CHAT_CHATML = 0,
    KVL_CHAT_LLAMA3,
    KVL_CHAT_MISTRAL,
} kvl_chat_kind;

/* KVL_ERR_UNSUPPORTED with the template's opening words when it is none of the known. */
kvl_status kvl_chat_recognise(const char *template_text, kvl_chat_kind *kind);

/* Renders one system (NULL = the template's default, if it has one) and one user message plus the
 * generation prompt, as text to be encoded without BOS added. A template that names BOS itself gets
 * `bos_text` (may be ""). */
kvl_status kvl_chat_render(const char *template_text, const char *system, const char *user,
                           const char *bos_text, kvl_buffer *out);

#endif
