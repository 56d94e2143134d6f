#define _GNU_SOURCE
#include "harness/claims/yaml.h"

#include <libfyaml.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"

typedef struct reader {
    kvl_yaml *yaml;
    struct fy_parser *parser;
    struct fy_diag *diag;
    kvl_yaml_node
        *open[KVL_YAML_MAX_DEPTH + 1]; /* lists and maps being filled; [0] holds the root */
    int depth;
    bool ended; /* the document has */
    size_t n_nodes;
    char *key; /* of the map member whose value comes next */
    int key_line, key_column;
} reader;

kvl_status kvl_yaml_fault(kvl_yaml *yaml, int line, int column, const char *format, ...) {
    char reason[900];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    yaml->error_line = line;
    yaml->error_column = column;
    return kvl_fail(KVL_ERR_INPUT, "%s:%d:%d: %s", yaml->path, line, column, reason);
}

void kvl_yaml_excerpt(const kvl_yaml *yaml, kvl_buffer *out) {
    enum { WIDTH = 100 };
    const char *line = yaml->text, *end = line + yaml->bytes;
    if (!line || yaml->error_line < 1) return;
    for (int i = 1; i < yaml->error_line && line < end; i++) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        line = newline ? newline + 1 : end;
    }
    int length = 0, column = yaml->error_column < 1 ? 1 : yaml->error_column;
    while (line + length < end && line[length] != '\n' && length < WIDTH) length++;
    if (column > length + 1) column = length + 1;
    /* What moves the cursor in a terminal is shown as a blank. */
    kvl_buffer_text(out, "  ");
    for (int i = 0; i < length; i++) {
        char c = line[i];
        kvl_buffer_add(out, (unsigned char)c < ' ' || c == 0x7f ? " " : &c, 1);
    }
    kvl_buffer_printf(out, "\n  %*s^\n", column - 1, "");
}

const kvl_yaml_node *kvl_yaml_member(const kvl_yaml_node *map, const char *name) {
    for (size_t i = 0; map && map->kind == KVL_YAML_MAP && i < map->n_items; i++)
        if (strcmp(map->items[i].key, name) == 0) return &map->items[i];
    return NULL;
}

static void free_node(kvl_yaml_node *node) { /* no deeper than KVL_YAML_MAX_DEPTH */
    for (size_t i = 0; i < node->n_items; i++) free_node(&node->items[i]);
    free(node->items);
    free(node->key);
    free(node->text);
}

void kvl_yaml_free(kvl_yaml *yaml) {
    if (yaml->root) free_node(yaml->root);
    free(yaml->root);
    free(yaml->path);
    free(yaml->text);
    memset(yaml, 0, sizeof *yaml);
}

/* ---- events to nodes ----------------------------------------------------------------------------
 */

static kvl_status fault_at(reader *r, struct fy_event *event, const char *reason) {
    const struct fy_mark *mark = fy_event_start_mark(event);
    int line = mark ? mark->line + 1 : 1, column = mark ? mark->column + 1 : 1;
    return kvl_yaml_fault(r->yaml, line, column, "%s", reason);
}

/* A new node in the list or map that is open; NULL when out of memory. Nodes of an open map may
 * move only while none of their own children is open, which is when they are added. */
static kvl_yaml_node *add_node(reader *r, kvl_yaml_kind kind, struct fy_event *event) {
    kvl_yaml_node *parent = r->open[r->depth];
    const struct fy_mark *mark = fy_event_start_mark(event);
    if (parent->n_items == parent->capacity) {
        size_t capacity = parent->capacity ? 2 * parent->capacity : 4;
        kvl_yaml_node *grown = realloc(parent->items, capacity * sizeof *grown);
        if (!grown) return NULL;
        parent->items = grown;
        parent->capacity = capacity;
    }
    kvl_yaml_node *node = &parent->items[parent->n_items++];
    *node = (kvl_yaml_node){.kind = kind,
                            .key = r->key,
                            .key_line = r->key_line,
                            .key_column = r->key_column,
                            .line = mark ? mark->line + 1 : 1,
                            .column = mark ? mark->column + 1 : 1};
    r->key = NULL;
    return node;
}

/* A scalar's text as a string of its own; refuses what no string can hold. */
static kvl_status take_text(reader *r, struct fy_event *event, char **out) {
    size_t length = 0;
    const char *text = fy_token_get_text(event->scalar.value, &length);
    if (!text) text = "", length = 0;
    if (length > KVL_YAML_MAX_SCALAR) return fault_at(r, event, "a text above 4096 bytes");
    if (memchr(text, '\0', length)) return fault_at(r, event, "a NUL character");
    *out = strndup(text, length);
    return *out ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
}

static kvl_status take_key(reader *r, struct fy_event *event) {
    const struct fy_mark *mark = fy_event_start_mark(event);
    if (event->type != FYET_SCALAR) return fault_at(r, event, "a key must be a plain word");
    KVL_TRY(take_text(r, event, &r->key));
    r->key_line = mark ? mark->line + 1 : 1;
    r->key_column = mark ? mark->column + 1 : 1;
    const kvl_yaml_node *map = r->open[r->depth], *first = kvl_yaml_member(map, r->key);
    if (!first) return KVL_OK;
    return kvl_yaml_fault(r->yaml, r->key_line, r->key_column,
                          "'%.60s' is given twice; first in line %d", r->key, first->key_line);
}

static kvl_status begin(reader *r, struct fy_event *event, kvl_yaml_kind kind) {
    if (r->depth == KVL_YAML_MAX_DEPTH)
        return fault_at(r, event, "nested more deeply than an experiment can be (8)");
    kvl_yaml_node *node = add_node(r, kind, event);
    if (!node) return kvl_fail(KVL_ERR_OOM, "out of memory");
    r->open[++r->depth] = node;
    return KVL_OK;
}

static kvl_status add_scalar(reader *r, struct fy_event *event) {
    char *text = NULL;
    KVL_TRY(take_text(r, event, &text));
    kvl_yaml_node *node = add_node(r, KVL_YAML_SCALAR, event);
    if (!node) {
        free(text);
        return kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    node->text = text;
    return KVL_OK;
}

static kvl_status take_event(reader *r, struct fy_event *event) {
    bool in_map = r->depth > 0 && r->open[r->depth]->kind == KVL_YAML_MAP;
    bool ends = event->type == FYET_MAPPING_END || event->type == FYET_SEQUENCE_END;
    if (event->type == FYET_STREAM_START || event->type == FYET_STREAM_END) return KVL_OK;
    if (event->type == FYET_DOCUMENT_START)
        return r->ended ? fault_at(r, event, "a second document; an experiment is one") : KVL_OK;
    if (event->type == FYET_DOCUMENT_END) {
        r->ended = true;
        return KVL_OK;
    }
    if (ends) {
        r->depth--;
        return KVL_OK;
    }
    if (++r->n_nodes > KVL_YAML_MAX_NODES) return fault_at(r, event, "more than 10000 values");
    if (event->type == FYET_ALIAS || fy_event_get_anchor_token(event))
        return fault_at(r, event,
                        "anchors and aliases (& and *) are not used in experiments; "
                        "quote a text that begins so");
    if (fy_event_get_tag_token(event))
        return fault_at(r, event,
                        "tags (!) are not used in experiments; quote a text that begins "
                        "so");
    if (in_map && !r->key) return take_key(r, event);
    if (event->type == FYET_SCALAR) return add_scalar(r, event);
    return begin(r, event, event->type == FYET_MAPPING_START ? KVL_YAML_MAP : KVL_YAML_LIST);
}

static kvl_status syntax_fault(reader *r) {
    void *previous = NULL;
    const struct fy_diag_error *error = fy_diag_errors_iterate(r->diag, &previous);
    if (!error) return kvl_yaml_fault(r->yaml, 1, 1, "not YAML");
    int line = error->line < 1 ? 1 : error->line, column = error->column < 1 ? 1 : error->column;
    return kvl_yaml_fault(r->yaml, line, column, "%s", error->msg ? error->msg : "not YAML");
}

static kvl_status read_events(reader *r) {
    kvl_yaml_node top = {.kind = KVL_YAML_LIST};
    r->open[0] = &top;
    kvl_status status = KVL_OK;
    bool more = true;
    while (status == KVL_OK && more) {
        struct fy_event *event = fy_parser_parse(r->parser);
        if (!event) {
            if (fy_parser_get_stream_error(r->parser)) status = syntax_fault(r);
            break;
        }
        more = event->type != FYET_STREAM_END;
        status = take_event(r, event);
        fy_parser_event_free(r->parser, event);
    }
    if (status == KVL_OK && (top.n_items != 1 || top.items[0].kind != KVL_YAML_MAP))
        status =
            kvl_yaml_fault(r->yaml, 1, 1, "an experiment is a map of its members (claim: ...)");
    if (status == KVL_OK) {
        r->yaml->root = malloc(sizeof *r->yaml->root);
        if (!r->yaml->root) status = kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    if (status == KVL_OK) {
        *r->yaml->root = top.items[0];
        free(top.items);
    } else {
        free_node(&top);
    }
    free(r->key);
    return status;
}

static kvl_status check_text(kvl_yaml *yaml) {
    const char *nul = memchr(yaml->text, '\0', yaml->bytes);
    if (nul || !kvl_utf8_valid(yaml->text, yaml->bytes))
        return kvl_yaml_fault(yaml, 1, 1, "not a text file (%s)",
                              nul ? "it holds NUL bytes" : "it is not valid UTF-8");
    return KVL_OK;
}

kvl_status kvl_yaml_parse(const char *path, const char *text, size_t bytes, kvl_yaml *yaml) {
    struct fy_diag_cfg diag_cfg;
    memset(yaml, 0, sizeof *yaml);
    if (bytes > KVL_YAML_MAX_BYTES)
        return kvl_fail(KVL_ERR_INPUT, "%s: %zu bytes; an experiment has at most %d", path, bytes,
                        KVL_YAML_MAX_BYTES);
    yaml->path = strdup(path);
    yaml->text = malloc(bytes + 1);
    if (!yaml->path || !yaml->text) return kvl_fail(KVL_ERR_OOM, "out of memory");
    memcpy(yaml->text, text, bytes);
    yaml->text[bytes] = '\0';
    yaml->bytes = bytes;
    KVL_TRY(check_text(yaml));
    fy_diag_cfg_default(&diag_cfg);
    diag_cfg.fp = NULL;
    reader r = {.yaml = yaml, .diag = fy_diag_create(&diag_cfg)};
    if (r.diag) fy_diag_set_collect_errors(r.diag, true);
    struct fy_parse_cfg cfg = {.flags = FYPCF_QUIET | FYPCF_DEFAULT_VERSION_1_2, .diag = r.diag};
    r.parser = r.diag ? fy_parser_create(&cfg) : NULL;
    kvl_status status = r.parser && fy_parser_set_string(r.parser, yaml->text, bytes) == 0
                            ? read_events(&r)
                            : kvl_fail(KVL_ERR_OOM, "out of memory");
    if (r.parser) fy_parser_destroy(r.parser);
    if (r.diag) fy_diag_destroy(r.diag);
    return status;
}

kvl_status kvl_yaml_open(const char *path, kvl_yaml *yaml) {
    kvl_file file;
    memset(yaml, 0, sizeof *yaml);
    KVL_TRY(kvl_file_open(path, &file));
    kvl_status status = kvl_yaml_parse(path, (const char *)file.data, file.bytes, yaml);
    kvl_file_close(&file);
    return status;
}
