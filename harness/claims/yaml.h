/* A small, strict YAML document: maps, lists and scalars with their places in the file.
 *
 * libfyaml reads the syntax; this layer refuses what an experiment never needs and a hostile file
 * lives on: anchors and aliases, tags, several documents, keys that are no plain scalars, a key
 * given twice, nesting below KVL_YAML_MAX_DEPTH, more nodes, longer scalars or files than below.
 */
#ifndef KVL_HARNESS_YAML_H
#define KVL_HARNESS_YAML_H

#include <stddef.h>

#include "core/buffer.h"
#include "core/status.h"

enum {
    KVL_YAML_MAX_BYTES = 256 * 1024,
    KVL_YAML_MAX_DEPTH = 8,
    KVL_YAML_MAX_NODES = 10000,
    KVL_YAML_MAX_SCALAR = 4096
};

typedef enum kvl_yaml_kind { KVL_YAML_SCALAR = 0, KVL_YAML_LIST, KVL_YAML_MAP } kvl_yaml_kind;

typedef struct kvl_yaml_node {
    kvl_yaml_kind kind;
    char *key; /* of a map's member; NULL elsewhere */
    int key_line, key_column;
    char *text;       /* of a scalar, NUL-terminated, no NUL inside */
    int line, column; /* from 1; of a list or map: where it begins */
    struct kvl_yaml_node *items;
    size_t n_items, capacity;
} kvl_yaml_node;

/* A file with its text, so that errors can show it. */
typedef struct kvl_yaml {
    char *path, *text;
    size_t bytes;
    kvl_yaml_node *root;
    int error_line, error_column; /* of the last kvl_yaml_fault; 0: none */
} kvl_yaml;

/* KVL_ERR_INPUT "path:line:column: reason" (kvl_yaml_excerpt then shows the line), KVL_ERR_IO.
 * `yaml` must be freed in any case. */
kvl_status kvl_yaml_open(const char *path, kvl_yaml *yaml);
/* The same from memory; `path` is for messages. */
kvl_status kvl_yaml_parse(const char *path, const char *text, size_t bytes, kvl_yaml *yaml);
void kvl_yaml_free(kvl_yaml *yaml);

/* Member `name` of a map; NULL. */
const kvl_yaml_node *kvl_yaml_member(const kvl_yaml_node *map, const char *name);

/* Notes the place and returns KVL_ERR_INPUT with "path:line:column: " before the reason. */
kvl_status kvl_yaml_fault(kvl_yaml *yaml, int line, int column, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The line of the last fault and a caret under its column; nothing when there was none. */
void kvl_yaml_excerpt(const kvl_yaml *yaml, kvl_buffer *out);

#endif
