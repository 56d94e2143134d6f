#define _GNU_SOURCE
#include "harness/traces/trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/checked.h"
#include "harness/traces/trace_internal.h"

kvl_status kvl_trace_fail(const kvl_trace_line *line, size_t column, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return kvl_fail(KVL_ERR_INPUT, "%s:%lld:%zu: %s", line->path, (long long)line->number, column,
                    text);
}

/* The line that begins at `at`; *next is where the one after it begins. */
static kvl_trace_line line_at(const kvl_file *file, uint64_t at, int64_t number, uint64_t *next) {
    const char *text = (const char *)file->data + at;
    const char *newline = memchr(text, '\n', file->bytes - at);
    size_t length = newline ? (size_t)(newline - text) : (size_t)(file->bytes - at);
    *next = at + length + (newline != NULL);
    if (length && text[length - 1] == '\r') length--;
    return (kvl_trace_line){file->path, text, length, number};
}

/* Some editors put this in front of UTF-8. */
static uint64_t mark_bytes(const kvl_file *file) {
    return file->bytes >= 3 && memcmp(file->data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

static bool rest_is_blank(const kvl_file *file, uint64_t at) {
    while (at < file->bytes && strchr("\r\n", file->data[at]) && file->data[at]) at++;
    return at == file->bytes;
}

kvl_status kvl_trace_lines(const kvl_file *file, int64_t first_line,
                           kvl_status (*take)(void *context, const kvl_trace_line *line),
                           void *context) {
    uint64_t next;
    int64_t number = 1;
    for (uint64_t at = mark_bytes(file); at < file->bytes; at = next, number++) {
        kvl_trace_line line = line_at(file, at, number, &next);
        if (line.length == 0 && rest_is_blank(file, at)) return KVL_OK;
        if (number < first_line) continue;
        if (line.length == 0) return kvl_trace_fail(&line, 1, "an empty line between requests");
        KVL_TRY(take(context, &line));
    }
    return KVL_OK;
}

/* Room for one more element; doubling, checked. */
static kvl_status grow(void **array, int64_t n, int64_t more, int64_t *capacity,
                       size_t elem_bytes) {
    int64_t wanted = *capacity ? *capacity : 1024;
    uint64_t bytes;
    if (*array && n + more <= *capacity) return KVL_OK;
    while (wanted < n + more) {
        if (!kvl_mul_i64(wanted, 2, &wanted))
            return kvl_fail(KVL_ERR_OOM, "%lld elements: out of memory", (long long)n);
    }
    if (!kvl_mul_u64((uint64_t)wanted, elem_bytes, &bytes))
        return kvl_fail(KVL_ERR_OOM, "%lld elements: out of memory", (long long)n);
    void *larger = realloc(*array, bytes);
    if (!larger) return kvl_fail(KVL_ERR_OOM, "%lld elements: out of memory", (long long)wanted);
    *array = larger;
    *capacity = wanted;
    return KVL_OK;
}

static void add_totals(kvl_trace *trace, const kvl_trace_request *r) {
    int32_t need = r->prompt + r->output;
    if (need > trace->longest) trace->longest = need;
    if (r->output > trace->longest_output) trace->longest_output = r->output;
    trace->sum_prompt += r->prompt;
    trace->sum_output += r->output;
}

kvl_status kvl_trace_add(kvl_trace_builder *b, const kvl_trace_line *line,
                         const kvl_trace_request *request, const int64_t columns[2],
                         const uint64_t *blocks) {
    kvl_trace *trace = b->trace;
    kvl_trace_request r = *request;
    trace->n_out_of_order += r.arrival_ns < b->previous_ns;
    b->previous_ns = r.arrival_ns;
    if (r.output > INT32_MAX - r.prompt)
        return kvl_trace_fail(line, (size_t)columns[1],
                              "prompt of %d and output of %d tokens: at most %d in sum", r.prompt,
                              r.output, INT32_MAX);
    if (r.prompt == 0 || r.output == 0) {
        if (!b->options->skip_zero)
            return kvl_trace_fail(line, (size_t)columns[r.prompt != 0],
                                  "a request with 0 %s tokens (--skip-zero leaves such requests "
                                  "out and counts them)",
                                  r.prompt ? "output" : "prompt");
        trace->n_skipped++;
        return KVL_OK;
    }
    if (b->options->max_requests && trace->n == b->options->max_requests) {
        trace->n_beyond++;
        return KVL_OK;
    }
    KVL_TRY(grow((void **)&trace->requests, trace->n, 1, &b->capacity, sizeof r));
    r.first_block = trace->n_blocks;
    if (r.n_blocks) {
        KVL_TRY(grow((void **)&trace->blocks, trace->n_blocks, r.n_blocks, &b->block_capacity,
                     sizeof *blocks));
        memcpy(trace->blocks + trace->n_blocks, blocks, (size_t)r.n_blocks * sizeof *blocks);
        trace->n_blocks += r.n_blocks;
    }
    add_totals(trace, &r);
    trace->requests[trace->n++] = r;
    return KVL_OK;
}

/* Merge sort from the bottom up: stable, so that requests of one moment keep the file's order. */
static kvl_status sort(kvl_trace *trace) {
    int64_t n = trace->n;
    if (!trace->n_out_of_order) return KVL_OK;
    kvl_trace_request *from = trace->requests, *to = malloc((size_t)n * sizeof *to);
    if (!to) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t at = 0; at < n; at += 2 * width) {
            int64_t i = at, middle = at + width < n ? at + width : n, j = middle,
                    end = middle + width < n ? middle + width : n;
            for (int64_t k = at; k < end; k++) {
                bool left = i < middle && (j == end || from[i].arrival_ns <= from[j].arrival_ns);
                to[k] = left ? from[i++] : from[j++];
            }
        }
        kvl_trace_request *swap = from;
        from = to;
        to = swap;
    }
    trace->requests = from;
    free(to);
    return KVL_OK;
}

static kvl_status finish(const char *path, kvl_trace *trace) {
    if (trace->n == 0)
        return kvl_fail(KVL_ERR_INPUT, "%s: no request%s", path,
                        trace->n_skipped ? " that has tokens" : "");
    KVL_TRY(sort(trace));
    int64_t first = trace->requests[0].arrival_ns, last = trace->requests[trace->n - 1].arrival_ns;
    /* Both lie within +-2^62 by the limits of the parsers, so the difference fits. */
    if (last - first > INT64_MAX / 4)
        return kvl_fail(KVL_ERR_INPUT, "%s: first and last request lie more than 73 years apart",
                        path);
    for (int64_t i = 0; i < trace->n; i++) trace->requests[i].arrival_ns -= first;
    return KVL_OK;
}

kvl_status kvl_trace_read(const char *path, const kvl_trace_options *options, kvl_trace *out) {
    kvl_file file;
    uint64_t next;
    memset(out, 0, sizeof *out);
    KVL_TRY(kvl_file_open(path, &file));
    kvl_trace_builder builder = {.trace = out, .options = options, .previous_ns = INT64_MIN};
    kvl_trace_line first = line_at(&file, mark_bytes(&file), 1, &next);
    kvl_status status;
    snprintf(out->digest, sizeof out->digest, "%016llx",
             (unsigned long long)XXH64(file.data, file.bytes, 0));
    if (first.length == 0)
        status = kvl_trace_fail(&first, 1, "empty: a trace begins with a header or a JSON object");
    else if (first.text[0] == '{')
        status = kvl_trace_read_jsonl(&file, &builder);
    else
        status = kvl_trace_read_csv(&file, &first, &builder);
    if (status == KVL_OK) status = finish(path, out);
    kvl_file_close(&file);
    if (status != KVL_OK) kvl_trace_free(out);
    return status;
}

void kvl_trace_free(kvl_trace *trace) {
    free(trace->requests);
    free(trace->blocks);
    memset(trace, 0, sizeof *trace);
}
