/* Internal to traces/: a line under the reader's eye, and what every format adds to. */
#ifndef KVL_HARNESS_TRACE_INTERNAL_H
#define KVL_HARNESS_TRACE_INTERNAL_H

#include <stddef.h>

#include "core/file.h"
#include "harness/traces/trace.h"

/* One line of the file, without its end (LF or CRLF). */
typedef struct kvl_trace_line {
    const char *path, *text;
    size_t length;
    int64_t number; /* from 1 */
} kvl_trace_line;

/* What a file is read into. */
typedef struct kvl_trace_builder {
    kvl_trace *trace;
    const kvl_trace_options *options;
    int64_t capacity, block_capacity; /* of the trace's arrays */
    int64_t previous_ns;              /* arrival of the line above */
} kvl_trace_builder;

/* KVL_ERR_INPUT "path:line:column: ..."; `column` counts bytes from 1. */
kvl_status kvl_trace_fail(const kvl_trace_line *line, size_t column, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Calls `take` for every line of the file from `first_line` on; blank lines at the end are no
 * lines, elsewhere they are refused. */
kvl_status kvl_trace_lines(const kvl_file *file, int64_t first_line,
                           kvl_status (*take)(void *context, const kvl_trace_line *line),
                           void *context);

/* Adds one request: prompt and output are >= 0 and came from the given columns. `blocks` are
 * copied.
 */
kvl_status kvl_trace_add(kvl_trace_builder *builder, const kvl_trace_line *line,
                         const kvl_trace_request *request, const int64_t columns[2],
                         const uint64_t *blocks);

/* The formats. */
kvl_status kvl_trace_read_csv(const kvl_file *file, const kvl_trace_line *first,
                              kvl_trace_builder *builder);
kvl_status kvl_trace_read_jsonl(const kvl_file *file, kvl_trace_builder *builder);

/* Digits with at most nine decimals, as nanoseconds; text[0..length). False with the offset of the
 * fault and why. */
bool kvl_parse_seconds(const char *text, size_t length, int64_t *ns, size_t *fault,
                       const char **why);
/* "2023-11-16 18:15:46.6805900", also with T, Z, +HH:MM: nanoseconds since 1970. */
bool kvl_parse_datetime(const char *text, size_t length, int64_t *ns, size_t *fault,
                        const char **why);

#endif
