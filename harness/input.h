/* Text and token ids from the command line, a file or standard input. */
#ifndef KVL_HARNESS_INPUT_H
#define KVL_HARNESS_INPUT_H

#include <stdint.h>

#include "core/buffer.h"
#include "core/status.h"

/* Fills `out` from exactly one of: the argument ("-" = standard input), or the regular file `file`.
 * Standard input is read to its end, 256 MiB at most. `what` names the input in messages. */
kvl_status kvl_read_input(const char *argument, const char *file, const char *what,
                          kvl_buffer *out);

/* A JSON array of ids (0 .. 2^31 - 1) into a malloc'ed array; anything else is refused with its
 * place. */
kvl_status kvl_parse_ids(const char *label, const char *text, uint64_t bytes, int32_t **ids,
                         int64_t *n_ids);

/* Prints ids as one JSON array and a newline to stdout. */
void kvl_print_ids(const int32_t *ids, int64_t n_ids);

#endif
