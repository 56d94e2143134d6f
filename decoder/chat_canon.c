#include "decoder/chat_canon.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* One tag: {{ }}, {% %} or {# #}. `begin` is its brace, `end` is past its last brace. */
typedef struct tag {
    const char *begin, *inner, *inner_end, *end;
    char kind; /* '{', '%' or '#' */
    bool strip_before, strip_after, keep_before;
} tag;

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}

/* First tag at or after `text`; false when there is none. */
static bool tag_begin(const char *text, tag *out) {
    for (const char *p = text; (p = strchr(p, '{')); p++) {
        if (p[1] != '{' && p[1] != '%' && p[1] != '#') continue;
        *out = (tag){.begin = p, .inner = p + 2, .kind = p[1]};
        if (*out->inner == '-') out->strip_before = true;
        if (*out->inner == '+') out->keep_before = true;
        if (out->strip_before || out->keep_before) out->inner++;
        return true;
    }
    return false;
}

/* Finds the end, which does not count inside quotes. */
static kvl_status tag_end(tag *t) {
    char closing[3] = {t->kind == '{' ? '}' : t->kind, '}', 0}, quote = 0;
    const char *p = t->inner;
    for (; *p; p++) {
        if (quote) {
            if (*p == '\\' && p[1])
                p++;
            else if (*p == quote)
                quote = 0;
        } else if (!strncmp(p, closing, 2))
            break;
        else if (t->kind != '#' && (*p == '\'' || *p == '"'))
            quote = *p;
    }
    if (!*p) return kvl_fail(KVL_ERR_INPUT, "chat template: tag {%c does not end", t->kind);
    t->end = p + 2;
    t->inner_end = p;
    if (p > t->inner && (p[-1] == '-' || p[-1] == '+')) {
        t->strip_after = p[-1] == '-';
        t->inner_end--;
    }
    return KVL_OK;
}

static void add_char(kvl_buffer *out, char c) {
    if (c == '\n')
        kvl_buffer_text(out, "\\n");
    else
        kvl_buffer_add(out, &c, 1);
}

/* The string that opens at p, in single quotes; returns past its end. */
static const char *add_string(const char *p, const char *end, kvl_buffer *out) {
    char quote = *p++;
    kvl_buffer_text(out, "'");
    for (; p < end && *p != quote; p++) {
        if (*p == '\\' && p + 1 < end) {
            p++;
            if (*p == '"')
                add_char(out, '"'); /* needs no escape between single quotes */
            else {
                kvl_buffer_text(out, "\\");
                add_char(out, *p);
            }
        } else if (*p == '\'')
            kvl_buffer_text(out, "\\'");
        else
            add_char(out, *p);
    }
    kvl_buffer_text(out, "'");
    return p < end ? p + 1 : p;
}

/* Length of ['name'] or ["name"] at p, or 0. */
static size_t subscript_bytes(const char *p, const char *end) {
    if (end - p < 5 || p[0] != '[' || (p[1] != '\'' && p[1] != '"')) return 0;
    const char *q = p + 2;
    while (q < end && ((*q >= 'a' && *q <= 'z') || *q == '_')) q++;
    return q > p + 2 && end - q >= 2 && *q == p[1] && q[1] == ']' ? (size_t)(q + 2 - p) : 0;
}

static void add_tag(const tag *t, kvl_buffer *out) {
    if (t->kind == '#') return;
    kvl_buffer_add(out, t->begin, 2);
    for (const char *p = t->inner; p < t->inner_end;) {
        size_t name = subscript_bytes(p, t->inner_end);
        if (name) {
            kvl_buffer_text(out, ".");
            kvl_buffer_add(out, p + 2, name - 4);
            p += name;
        } else if (*p == '\'' || *p == '"')
            p = add_string(p, t->inner_end, out);
        else {
            if (!is_space(*p)) kvl_buffer_add(out, p, 1);
            p++;
        }
    }
    kvl_buffer_text(out, t->kind == '{' ? "}}" : "%}");
}

/* Text between two tags (NULL at either end of the template), as it is printed. */
static void add_text(const char *text, const char *end, const tag *before, const tag *after,
                     kvl_buffer *out) {
    if (before && before->strip_after) {
        while (text < end && is_space(*text)) text++;
    } else if (before && before->kind != '{' && text < end && *text == '\n')
        text++;
    if (!after) {
        if (text < end && end[-1] == '\n') end--; /* Jinja drops the file's last newline */
    } else if (after->strip_before) {
        while (text < end && is_space(end[-1])) end--;
    } else if (after->kind != '{' && !after->keep_before) {
        const char *p = end;
        while (p > text && (p[-1] == ' ' || p[-1] == '\t')) p--;
        if (p == text ? !before || text > before->end : p[-1] == '\n') end = p;
    }
    for (; text < end; text++) add_char(out, *text);
}

kvl_status kvl_chat_canon(const char *text, kvl_buffer *out) {
    tag last, next;
    const tag *before = NULL;
    while (tag_begin(text, &next)) {
        KVL_TRY(tag_end(&next));
        add_text(text, next.begin, before, &next, out);
        add_tag(&next, out);
        text = next.end;
        last = next;
        before = &last;
    }
    add_text(text, text + strlen(text), before, NULL, out);
    return out->failed ? kvl_fail(KVL_ERR_OOM, "chat template: out of memory") : KVL_OK;
}
