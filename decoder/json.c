#include "decoder/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"

/* tokenizer.json of the largest vocabularies is about 35 MB; headers of safetensors may have 100
 * MB. */
enum { MAX_JSON_BYTES = 100000000 };

/* The member name that stands last before byte `position`, for messages: jansson tells where it
 * stopped, not in which field. Writes "" when there is none. */
static void field_before(const char *text, size_t position, char *out, size_t out_bytes) {
    out[0] = 0;
    for (size_t i = position; i-- > 1;) {
        if (text[i] != ':' || text[i - 1] != '"') continue;
        size_t end = i - 1, begin = end;
        while (begin > 0 && text[begin - 1] != '"') begin--;
        snprintf(out, out_bytes, " in '%.*s'", (int)(end - begin < 64 ? end - begin : 64),
                 text + begin);
        return;
    }
}

kvl_status kvl_json_parse_at(const char *label, const void *text, uint64_t bytes, uint64_t offset,
                             json_t **out) {
    *out = NULL;
    if (bytes > MAX_JSON_BYTES)
        return kvl_fail(KVL_ERR_INPUT, "%s: %" PRIu64 " bytes of JSON: at most %d", label, bytes,
                        MAX_JSON_BYTES);
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        size_t position = error.position > 0 ? (size_t)error.position : 0;
        char field[80];
        field_before(text, position < bytes ? position : bytes, field, sizeof field);
        return kvl_fail(KVL_ERR_INPUT, "%s:%d:%d: %s%s (byte %" PRIu64 ")", label, error.line,
                        error.column, error.text, field, offset + position);
    }
    *out = root;
    return KVL_OK;
}

kvl_status kvl_json_parse(const char *label, const void *text, uint64_t bytes, json_t **out) {
    return kvl_json_parse_at(label, text, bytes, 0, out);
}

kvl_status kvl_json_load(const char *path, json_t **out) {
    *out = NULL;
    kvl_file file;
    KVL_TRY(kvl_file_open(path, &file));
    kvl_status status = kvl_json_parse(path, file.data, file.bytes, out);
    kvl_file_close(&file);
    return status;
}

/* "label: key: <value> is not <wanted>", the value cut to a few characters. */
static kvl_status wrong(const char *label, const char *key, const json_t *value,
                        const char *wanted) {
    char text[64] = "";
    size_t n = json_dumpb(value, text, sizeof text - 1, JSON_ENCODE_ANY | JSON_COMPACT);
    text[n < sizeof text ? n : sizeof text - 1] = 0;
    return kvl_fail(KVL_ERR_INPUT, "%s: %s %s%s: %s is needed", label, key, text,
                    n >= sizeof text ? "..." : "", wanted);
}

/* The member, or NULL when it is absent or null (config.json writes null for "none"). */
static kvl_status member(const char *label, const json_t *object, const char *key, bool required,
                         const json_t **out) {
    const json_t *value = json_object_get(object, key);
    *out = json_is_null(value) ? NULL : value;
    if (required && !*out)
        return kvl_fail(KVL_ERR_INPUT, "%s: %s is %s", label, key, value ? "null" : "missing");
    return KVL_OK;
}

kvl_status kvl_json_int(const char *label, const json_t *object, const char *key, bool required,
                        int64_t min, int64_t max, int64_t *out) {
    const json_t *value;
    KVL_TRY(member(label, object, key, required, &value));
    if (!value) return KVL_OK;
    if (!json_is_integer(value)) return wrong(label, key, value, "an integer");
    int64_t number = json_integer_value(value);
    if (number < min || number > max)
        return kvl_fail(KVL_ERR_INPUT, "%s: %s %" PRId64 ": %" PRId64 " to %" PRId64 " is allowed",
                        label, key, number, min, max);
    *out = number;
    return KVL_OK;
}

kvl_status kvl_json_number(const char *label, const json_t *object, const char *key, bool required,
                           double min, double max, double *out) {
    const json_t *value;
    KVL_TRY(member(label, object, key, required, &value));
    if (!value) return KVL_OK;
    if (!json_is_number(value)) return wrong(label, key, value, "a number");
    double number = json_number_value(value);
    if (!(number >= min && number <= max))
        return kvl_fail(KVL_ERR_INPUT, "%s: %s %g: %g to %g is allowed", label, key, number, min,
                        max);
    *out = number;
    return KVL_OK;
}

kvl_status kvl_json_bool(const char *label, const json_t *object, const char *key, bool required,
                         bool *out) {
    const json_t *value;
    KVL_TRY(member(label, object, key, required, &value));
    if (!value) return KVL_OK;
    if (!json_is_boolean(value)) return wrong(label, key, value, "true or false");
    *out = json_is_true(value);
    return KVL_OK;
}

kvl_status kvl_json_string(const char *label, const json_t *object, const char *key, bool required,
                           const char **out) {
    const json_t *value;
    KVL_TRY(member(label, object, key, required, &value));
    if (!value) return KVL_OK;
    if (!json_is_string(value)) return wrong(label, key, value, "a string");
    *out = json_string_value(value);
    return KVL_OK;
}
