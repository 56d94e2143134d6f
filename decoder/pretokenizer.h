/* Pre-tokenizers: how text is cut into the pieces within which pairs are merged. A pre-tokenizer is
 * a sequence of splits by regular expression; each step sees only its piece, as in Hugging Face
 * tokenizers, and both matches and what lies between them are pieces ("Isolated").
 *
 * Patterns run on PCRE2 with UTF and UCP, under a match, depth and heap limit, so that a hostile
 * pattern ends in an error. They are written for Oniguruma, whose \s and \w differ from PCRE2's:
 * those are spelled out as classes, and escapes that mean something else here are refused. */
#ifndef KVL_DECODER_PRETOKENIZER_H
#define KVL_DECODER_PRETOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { KVL_PRETOKENIZER_MAX_STEPS = 8, KVL_PATTERN_MAX_BYTES = 8192 };

typedef struct kvl_pretokenizer kvl_pretokenizer;

extern const char kvl_pattern_gpt2[], kvl_pattern_llama3[], kvl_pattern_qwen2[],
    kvl_pattern_digit[], kvl_pattern_digits[];

kvl_status kvl_pretokenizer_create(kvl_pretokenizer **out);
void kvl_pretokenizer_free(kvl_pretokenizer *pre);

/* Appends a split. `label` opens messages (file and field). */
kvl_status kvl_pretokenizer_add(kvl_pretokenizer *pre, const char *label, const char *pattern,
                                size_t bytes);

/* Time limit of one text, however many splits it takes. */
typedef struct kvl_split_clock {
    uint64_t start_ns, start_cpu_ns, budget_ns;
} kvl_split_clock;
kvl_split_clock kvl_split_clock_start(size_t text_bytes);

/* Calls `piece` for each non-empty piece of valid UTF-8 `text`, in order. */
typedef kvl_status (*kvl_piece_fn)(void *user, const uint8_t *piece, size_t bytes);
kvl_status kvl_pretokenizer_split(const kvl_pretokenizer *pre, const uint8_t *text, size_t bytes,
                                  const kvl_split_clock *clock, kvl_piece_fn piece, void *user);

#endif
