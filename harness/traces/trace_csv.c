/* CSV traces: one table of columns a format, found by name in the header. */
#include <stdio.h>
#include <string.h>

#include "harness/traces/trace_internal.h"

enum { MAX_FIELDS = 64, ARRIVAL = 0, PROMPT, OUTPUT, CLASS, N_COLUMNS };

typedef struct csv_format {
    const char *name;
    const char *columns[N_COLUMNS]; /* in the header; NULL: the format has none */
    bool datetime;                  /* arrivals are dates, else seconds */
} csv_format;

static const csv_format formats[] = {
    {"azure", {"TIMESTAMP", "ContextTokens", "GeneratedTokens", NULL}, true},
    {"burstgpt", {"Timestamp", "Request tokens", "Response tokens", NULL}, false},
    {"kvlab", {"arrival_s", "prompt", "output", "class"}, false},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

typedef struct field {
    const char *text;
    size_t length, column; /* from 1 */
} field;

typedef struct reader {
    const csv_format *format;
    int at[N_COLUMNS]; /* index of the field; -1: not in this file */
    int n_fields;
    kvl_trace_builder *builder;
} reader;

/* Fields hold no quotes in these formats: a quote or a NUL is a fault, not part of a value. */
static kvl_status split(const kvl_trace_line *line, field fields[MAX_FIELDS], int *n) {
    *n = 0;
    for (size_t start = 0, i = 0; i <= line->length; i++) {
        if (i < line->length && (line->text[i] == '"' || line->text[i] == '\0'))
            return kvl_trace_fail(line, i + 1, "%s within a field: fields are plain here",
                                  line->text[i] ? "a quote" : "a NUL byte");
        if (i < line->length && line->text[i] != ',') continue;
        if (*n == MAX_FIELDS)
            return kvl_trace_fail(line, start + 1, "more than %d fields", MAX_FIELDS);
        fields[(*n)++] = (field){line->text + start, i - start, start + 1};
        start = i + 1;
    }
    return KVL_OK;
}

static int find_field(const field *fields, int n, const char *name) {
    for (int i = 0; name && i < n; i++) {
        if (fields[i].length == strlen(name) && memcmp(fields[i].text, name, fields[i].length) == 0)
            return i;
    }
    return -1;
}

static kvl_status read_header(const kvl_trace_line *line, reader *r) {
    field fields[MAX_FIELDS];
    KVL_TRY(split(line, fields, &r->n_fields));
    for (int f = 0; f < N_FORMATS; f++) {
        r->format = &formats[f];
        for (int c = 0; c < N_COLUMNS; c++)
            r->at[c] = find_field(fields, r->n_fields, formats[f].columns[c]);
        if (r->at[ARRIVAL] >= 0 && r->at[PROMPT] >= 0 && r->at[OUTPUT] >= 0) return KVL_OK;
    }
    return kvl_trace_fail(line, 1,
                          "not a trace: a header is needed with TIMESTAMP,ContextTokens,"
                          "GeneratedTokens (Azure), Timestamp,Request tokens,Response tokens "
                          "(BurstGPT) or arrival_s,prompt,output (kvlab)");
}

static kvl_status read_tokens(const kvl_trace_line *line, const field *f, const char *what,
                              int32_t *out) {
    int64_t value = 0;
    for (size_t i = 0; i < f->length; i++) {
        char c = f->text[i];
        if (c < '0' || c > '9')
            return kvl_trace_fail(line, f->column + i, "%s '%.*s': a number of tokens is needed",
                                  what, (int)(f->length < 40 ? f->length : 40), f->text);
        value = value * 10 + (c - '0');
        if (value > INT32_MAX)
            return kvl_trace_fail(line, f->column, "%s '%.*s': at most %d tokens", what,
                                  (int)(f->length < 40 ? f->length : 40), f->text, INT32_MAX);
    }
    if (f->length == 0) return kvl_trace_fail(line, f->column, "%s is empty", what);
    *out = (int32_t)value;
    return KVL_OK;
}

static kvl_status read_class(const kvl_trace_line *line, const field *f, kvl_request_class *out) {
    static const char *const names[] = {
        [KVL_CLASS_INTERACTIVE] = "interactive", [KVL_CLASS_BATCH] = "batch"};
    for (int i = 0; i < 2; i++) {
        if (find_field(f, 1, names[i]) == 0) return *out = (kvl_request_class)i, KVL_OK;
    }
    return kvl_trace_fail(line, f->column, "class '%.*s': interactive or batch",
                          (int)(f->length < 40 ? f->length : 40), f->text);
}

static kvl_status take(void *context, const kvl_trace_line *line) {
    reader *r = context;
    field fields[MAX_FIELDS];
    kvl_trace_request request = {0};
    int n;
    KVL_TRY(split(line, fields, &n));
    if (n != r->n_fields)
        return kvl_trace_fail(line, fields[n - 1].column, "%d fields, the header has %d", n,
                              r->n_fields);
    const field *time = &fields[r->at[ARRIVAL]];
    size_t fault;
    const char *why;
    bool good =
        r->format->datetime
            ? kvl_parse_datetime(time->text, time->length, &request.arrival_ns, &fault, &why)
            : kvl_parse_seconds(time->text, time->length, &request.arrival_ns, &fault, &why);
    if (!good)
        return kvl_trace_fail(line, time->column + fault, "%s '%.*s': %s",
                              r->format->columns[ARRIVAL],
                              (int)(time->length < 40 ? time->length : 40), time->text, why);
    const field *prompt = &fields[r->at[PROMPT]], *output = &fields[r->at[OUTPUT]];
    KVL_TRY(read_tokens(line, prompt, r->format->columns[PROMPT], &request.prompt));
    KVL_TRY(read_tokens(line, output, r->format->columns[OUTPUT], &request.output));
    if (r->at[CLASS] >= 0) KVL_TRY(read_class(line, &fields[r->at[CLASS]], &request.class));
    const int64_t columns[2] = {(int64_t)prompt->column, (int64_t)output->column};
    return kvl_trace_add(r->builder, line, &request, columns, NULL);
}

kvl_status kvl_trace_read_csv(const kvl_file *file, const kvl_trace_line *first,
                              kvl_trace_builder *builder) {
    reader r = {.builder = builder};
    KVL_TRY(read_header(first, &r));
    builder->trace->format = r.format->name;
    return kvl_trace_lines(file, 2, take, &r);
}
