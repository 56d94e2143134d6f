/* Mooncake's JSONL: milliseconds, lengths, and one id a block of 512 prompt tokens. Ids are chained
 * by their makers: equal ids mean equal text from the prompt's start to the block's end. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "harness/traces/trace_internal.h"

enum { BLOCK_TOKENS = 512 };
static const int64_t MAX_MS = INT64_C(2147483647) * 1000, NS_PER_MS = 1000000;

typedef struct reader {
    kvl_trace_builder *builder;
    uint64_t *ids; /* of the line, reused */
    size_t capacity;
} reader;

/* Where the member's name stands in the line, from 1: where a reader looks for the fault. */
static size_t column_of(const kvl_trace_line *line, const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i + length + 2 <= line->length; i++) {
        if (line->text[i] == '"' && memcmp(line->text + i + 1, name, length) == 0 &&
            line->text[i + 1 + length] == '"')
            return i + 1;
    }
    return 1;
}

static kvl_status read_integer(const kvl_trace_line *line, const json_t *object, const char *name,
                               int64_t max, int64_t *out) {
    const json_t *value = json_object_get(object, name);
    size_t column = column_of(line, name);
    if (!value) return kvl_trace_fail(line, 1, "'%s' is missing", name);
    if (!json_is_integer(value))
        return kvl_trace_fail(line, column, "'%s' is not a whole number", name);
    *out = json_integer_value(value);
    if (*out < 0 || *out > max)
        return kvl_trace_fail(line, column, "'%s' is %lld: 0 to %lld", name, (long long)*out,
                              (long long)max);
    return KVL_OK;
}

static kvl_status read_blocks(reader *r, const kvl_trace_line *line, const json_t *object,
                              kvl_trace_request *request) {
    const json_t *ids = json_object_get(object, "hash_ids");
    size_t column = column_of(line, "hash_ids"), n = json_array_size(ids);
    if (!ids) return KVL_OK; /* lengths alone */
    if (!json_is_array(ids)) return kvl_trace_fail(line, column, "'hash_ids' is not an array");
    int64_t wanted = ((int64_t)request->prompt + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    if ((int64_t)n != wanted)
        return kvl_trace_fail(line, column,
                              "'hash_ids' has %zu ids: a prompt of %d tokens has %lld blocks of %d",
                              n, request->prompt, (long long)wanted, BLOCK_TOKENS);
    if (n > r->capacity) {
        uint64_t *larger = realloc(r->ids, n * sizeof *larger);
        if (!larger) return kvl_fail(KVL_ERR_OOM, "out of memory");
        r->ids = larger;
        r->capacity = n;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return kvl_trace_fail(line, column, "'hash_ids'[%zu] is not a whole number from 0", i);
        r->ids[i] = (uint64_t)json_integer_value(id);
    }
    request->n_blocks = (int32_t)n;
    return KVL_OK;
}

static kvl_status read_request(reader *r, const kvl_trace_line *line, const json_t *object) {
    int64_t ms, prompt, output;
    kvl_trace_request request = {0};
    if (!json_is_object(object)) return kvl_trace_fail(line, 1, "not a JSON object");
    KVL_TRY(read_integer(line, object, "timestamp", MAX_MS, &ms));
    KVL_TRY(read_integer(line, object, "input_length", INT32_MAX, &prompt));
    KVL_TRY(read_integer(line, object, "output_length", INT32_MAX, &output));
    request.arrival_ns = ms * NS_PER_MS;
    request.prompt = (int32_t)prompt;
    request.output = (int32_t)output;
    KVL_TRY(read_blocks(r, line, object, &request));
    const int64_t columns[2] = {(int64_t)column_of(line, "input_length"),
                                (int64_t)column_of(line, "output_length")};
    return kvl_trace_add(r->builder, line, &request, columns, r->ids);
}

static kvl_status take(void *context, const kvl_trace_line *line) {
    json_error_t error;
    json_t *object = json_loadb(line->text, line->length, JSON_REJECT_DUPLICATES, &error);
    if (!object)
        return kvl_trace_fail(line, error.column > 0 ? (size_t)error.column : 1, "%.200s",
                              error.text);
    kvl_status status = read_request(context, line, object);
    json_decref(object);
    return status;
}

kvl_status kvl_trace_read_jsonl(const kvl_file *file, kvl_trace_builder *builder) {
    reader r = {.builder = builder};
    builder->trace->format = "mooncake";
    kvl_status status = kvl_trace_lines(file, 1, take, &r);
    free(r.ids);
    if (builder->trace->n_blocks) builder->trace->block_tokens = BLOCK_TOKENS;
    return status;
}
