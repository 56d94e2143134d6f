/* JSON from files, through jansson, with the limits hostile input needs: UTF-8 checked, duplicate
 * keys refused, nesting capped (jansson's parser depth), sizes capped, messages with file and line.
 */
#ifndef KVL_DECODER_JSON_H
#define KVL_DECODER_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

/* Parses `bytes` of text. `label` (a path) opens the message "label:line:column: reason in 'field'
 * (byte N)". The caller owns *out. */
kvl_status kvl_json_parse(const char *label, const void *text, uint64_t bytes, json_t **out);
/* The same for text that stands at byte `offset` of a file: messages count from its start. */
kvl_status kvl_json_parse_at(const char *label, const void *text, uint64_t bytes, uint64_t offset,
                             json_t **out);
kvl_status kvl_json_load(const char *path, json_t **out);

/* Typed members of an object. Absent or null: *out untouched, KVL_OK when !required. A wrong type
 * or a value outside [min, max] is refused by label, key and value. */
kvl_status kvl_json_int(const char *label, const json_t *object, const char *key, bool required,
                        int64_t min, int64_t max, int64_t *out);
kvl_status kvl_json_number(const char *label, const json_t *object, const char *key, bool required,
                           double min, double max, double *out);
kvl_status kvl_json_bool(const char *label, const json_t *object, const char *key, bool required,
                         bool *out);
/* Borrowed string. */
kvl_status kvl_json_string(const char *label, const json_t *object, const char *key, bool required,
                           const char **out);

#endif
