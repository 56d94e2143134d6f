/* The grammar of check.h by recursive descent; each error knows its place. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/names.h"
#include "harness/claims/check.h"
#include "harness/figures/dictionary.h"

enum { MAX_DEPTH = 32, MAX_NAMES = 320 };

typedef enum token_kind { END = 0, NUMBER, WORD, SIGN } token_kind;

typedef struct token {
    token_kind kind;
    char text[KVL_CHECK_NAME_BYTES]; /* of a word, its quotes left out; or of a sign: ">=" */
    bool quoted;
    double number;
    int at; /* index in the text */
} token;

typedef struct parser {
    const char *text;
    int at; /* behind the token */
    token token;
    const kvl_check_names *names;
    kvl_check *check;
    int depth, fault_at, axis_at; /* axis_at: where check->axis was found */
    bool has_metric;              /* outside of ratios */
    int metric_at;
} parser;

static const char *const texts[] = {"decode_bound", "prefill_bound", "outcome"};
enum { N_TEXTS = 3 };

/* ---- tokens -------------------------------------------------------------------------------------
 */

static kvl_status fault(parser *p, int at, const char *reason) {
    p->fault_at = at;
    return kvl_fail(KVL_ERR_INPUT, "%s", reason);
}

static kvl_status copy_text(parser *p, const char *from, int length) {
    if (length >= KVL_CHECK_NAME_BYTES) return fault(p, p->token.at, "a name above 127 bytes");
    snprintf(p->token.text, sizeof p->token.text, "%.*s", length, from);
    return KVL_OK;
}

static bool in_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

/* Digits, with a fraction unless the '.' begins "..", and an exponent; what has letters behind it
 * is a word ("8q1s4096"). */
static int number_length(const char *s) {
    int n = 0;
    while (isdigit((unsigned char)s[n])) n++;
    if (s[n] == '.' && isdigit((unsigned char)s[n + 1]))
        for (n++; isdigit((unsigned char)s[n]);) n++;
    int sign = s[n] && (s[n + 1] == '-' || s[n + 1] == '+');
    if ((s[n] == 'e' || s[n] == 'E') && isdigit((unsigned char)s[n + 1 + sign]))
        for (n += 1 + sign; isdigit((unsigned char)s[n]);) n++;
    return in_word(s[n]) ? 0 : n;
}

static kvl_status next(parser *p) {
    static const char *const signs[] = {">=", "<=", "==", "!=", "..", ">", "<", "=",
                                        "+",  "-",  "*",  "/",  "(",  ")", ",", "%"};
    const char *s;
    while (isspace((unsigned char)p->text[p->at])) p->at++;
    s = p->text + p->at;
    p->token = (token){.kind = END, .at = p->at};
    if (!*s) return KVL_OK;
    int n = isdigit((unsigned char)*s) ? number_length(s) : 0;
    if (n) {
        p->token.kind = NUMBER;
        KVL_TRY(copy_text(p, s, n));
        p->token.number = strtod(p->token.text, NULL);
        p->at += n;
        return KVL_OK;
    }
    if (*s == '"' || *s == '\'') {
        const char *end = strchr(s + 1, *s);
        if (!end) return fault(p, p->at, "the quote is not closed");
        p->token.kind = WORD;
        p->token.quoted = true;
        p->at += (int)(end - s) + 1;
        return copy_text(p, s + 1, (int)(end - s) - 1);
    }
    if (in_word(*s)) {
        for (n = 1; in_word(s[n]) || (s[n] == '.' && in_word(s[n + 1]));) n++;
        p->token.kind = WORD;
        p->at += n;
        return copy_text(p, s, n);
    }
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        if (strncmp(s, signs[i], strlen(signs[i])) != 0) continue;
        p->token.kind = SIGN;
        p->at += (int)strlen(signs[i]);
        return copy_text(p, signs[i], (int)strlen(signs[i]));
    }
    return fault(p, p->at, "a sign that checks do not have; quote a text that holds it");
}

static bool is_sign(const parser *p, const char *text) {
    return p->token.kind == SIGN && strcmp(p->token.text, text) == 0;
}

static bool is_keyword(const parser *p, const char *text) {
    return p->token.kind == WORD && !p->token.quoted && strcmp(p->token.text, text) == 0;
}

static kvl_status need(parser *p, const char *sign) {
    char reason[64];
    if (is_sign(p, sign)) return next(p);
    snprintf(reason, sizeof reason, "'%s' is needed here", sign);
    return fault(p, p->token.at, reason);
}

/* ---- names --------------------------------------------------------------------------------------
 */

static int axis_index(const parser *p, const char *name) {
    return kvl_names_find(name, p->names->axes, p->names->n_axes);
}

static bool is_metric(const char *name) {
    for (size_t i = 0; i < kvl_metric_count(); i++)
        if (strcmp(kvl_metric_at(i)->name, name) == 0) return true;
    return false;
}

static kvl_status unknown(parser *p, int at, const char *what, const char *name,
                          const char *const *known, size_t n_known) {
    char line[512];
    const char *near = kvl_names_nearest(name, known, n_known);
    int n = snprintf(line, sizeof line, "unknown %s '%.60s'%s%s%s", what, name,
                     near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    if (n_known > 0 && n_known <= 8) { /* a list that a line can hold */
        for (size_t i = 0; i < n_known && n < (int)sizeof line; i++)
            n += snprintf(line + n, sizeof line - (size_t)n, "%s%.40s",
                          i ? ", " : " (known: ", known[i]);
        if (n < (int)sizeof line) snprintf(line + n, sizeof line - (size_t)n, ")");
    }
    return fault(p, at, line);
}

static kvl_status unknown_name(parser *p, int at, const char *name) {
    const char *known[MAX_NAMES];
    size_t n = 0;
    for (size_t i = 0; i < kvl_metric_count() && n < MAX_NAMES / 2; i++)
        known[n++] = kvl_metric_at(i)->name;
    for (size_t i = 0; i < p->names->n_axes && n < MAX_NAMES - 8; i++)
        known[n++] = p->names->axes[i];
    for (size_t i = 0; i < N_TEXTS; i++) known[n++] = texts[i];
    known[n++] = "ratio", known[n++] = "speedup";
    return unknown(p, at, "metric or axis", name, known, n);
}

static bool has_value(const parser *p, size_t axis, const char *value) {
    return kvl_names_find(value, p->names->values[axis], p->names->n_values[axis]) >= 0;
}

/* The axis whose values of the sweep hold `value`. */
static kvl_status find_axis_of(parser *p, int at, const char *value, int *axis) {
    const char *known[MAX_NAMES];
    char reason[320];
    size_t n = 0;
    *axis = -1;
    for (size_t a = 0; a < p->names->n_axes; a++) {
        for (size_t i = 0; i < p->names->n_values[a] && n < MAX_NAMES; i++)
            known[n++] = p->names->values[a][i];
        if (!has_value(p, a, value)) continue;
        if (*axis >= 0) {
            snprintf(reason, sizeof reason, "%.60s is a value of %s and of %s: write %s=%.60s",
                     value, p->names->axes[*axis], p->names->axes[a], p->names->axes[a], value);
            return fault(p, at, reason);
        }
        *axis = (int)a;
    }
    return *axis >= 0 ? KVL_OK : unknown(p, at, "value of an axis of this sweep", value, known, n);
}

/* value | axis = value */
static kvl_status selector(parser *p, char value[KVL_CHECK_NAME_BYTES]) {
    int at = p->token.at, axis;
    if (p->token.kind != WORD && p->token.kind != NUMBER)
        return fault(p, at, "a value of an axis is needed here");
    snprintf(value, KVL_CHECK_NAME_BYTES, "%s", p->token.text);
    KVL_TRY(next(p));
    if (is_sign(p, "=")) {
        axis = axis_index(p, value);
        if (axis < 0) return unknown(p, at, "axis", value, p->names->axes, p->names->n_axes);
        KVL_TRY(next(p));
        at = p->token.at;
        if (p->token.kind != WORD && p->token.kind != NUMBER)
            return fault(p, at, "a value of the axis is needed here");
        snprintf(value, KVL_CHECK_NAME_BYTES, "%s", p->token.text);
        if (!has_value(p, (size_t)axis, value))
            return unknown(p, at, "value of the sweep's axis", value, p->names->values[axis],
                           p->names->n_values[axis]);
        KVL_TRY(next(p));
    } else {
        KVL_TRY(find_axis_of(p, at, value, &axis));
    }
    const char *name = p->names->axes[axis];
    if (p->check->axis[0] && strcmp(p->check->axis, name) != 0)
        return fault(p, at, "all selectors of a check lie on one axis");
    snprintf(p->check->axis, sizeof p->check->axis, "%s", name);
    p->axis_at = at;
    return KVL_OK;
}

/* ---- expressions --------------------------------------------------------------------------------
 */

static kvl_status add_node(parser *p, kvl_expr_kind kind, int left, int right, int *out) {
    if (p->check->n_nodes == KVL_CHECK_MAX_NODES)
        return fault(p, p->token.at, "longer than a check can be");
    *out = p->check->n_nodes++;
    p->check->nodes[*out] = (kvl_expr){.kind = kind, .left = left, .right = right};
    return KVL_OK;
}

static kvl_status expression(parser *p, int *out);

static kvl_status ratio(parser *p, kvl_expr_kind kind, int *out) {
    KVL_TRY(add_node(p, kind, -1, -1, out));
    kvl_expr *node = &p->check->nodes[*out];
    KVL_TRY(need(p, "("));
    KVL_TRY(selector(p, node->value_a));
    KVL_TRY(need(p, ","));
    KVL_TRY(selector(p, node->value_b));
    snprintf(node->name, sizeof node->name, "%s", p->names->metric);
    if (is_sign(p, ",")) {
        KVL_TRY(next(p));
        if (p->token.kind != WORD || !is_metric(p->token.text))
            return unknown_name(p, p->token.at, p->token.text);
        snprintf(node->name, sizeof node->name, "%s", p->token.text);
        KVL_TRY(next(p));
    }
    const kvl_name *known = kvl_name_find(node->name);
    if (kind == KVL_EXPR_SPEEDUP && (!known || known->better == KVL_BETTER_NONE))
        return fault(p, p->token.at, "neither direction of this metric is better: use ratio");
    return need(p, ")");
}

static kvl_status name(parser *p, int *out) {
    int at = p->token.at;
    char text[KVL_CHECK_NAME_BYTES];
    snprintf(text, sizeof text, "%s", p->token.text);
    bool quoted = p->token.quoted;
    KVL_TRY(next(p));
    if (!quoted && strcmp(text, "ratio") == 0) return ratio(p, KVL_EXPR_RATIO, out);
    if (!quoted && strcmp(text, "speedup") == 0) return ratio(p, KVL_EXPR_SPEEDUP, out);
    int axis = axis_index(p, text);
    kvl_expr_kind kind = KVL_EXPR_WORD;
    if (quoted)
        kind = KVL_EXPR_WORD;
    else if (axis >= 0 && p->names->numeric[axis])
        kind = KVL_EXPR_AXIS;
    else if (is_metric(text))
        kind = KVL_EXPR_METRIC, p->has_metric = true, p->metric_at = at;
    else if (kvl_names_find(text, texts, N_TEXTS) >= 0)
        kind = KVL_EXPR_TEXT, p->has_metric = true, p->metric_at = at;
    else if (axis >= 0)
        return fault(p, at, "an axis of names stands behind `where` or in ratio() only");
    else
        return unknown_name(p, at, text);
    KVL_TRY(add_node(p, kind, -1, -1, out));
    snprintf(p->check->nodes[*out].name, KVL_CHECK_NAME_BYTES, "%s", text);
    return KVL_OK;
}

static kvl_status factor(parser *p, int *out) {
    int inner;
    if (p->depth >= MAX_DEPTH)
        return fault(p, p->token.at, "nested more deeply than a check can be");
    if (p->token.kind == NUMBER) {
        KVL_TRY(add_node(p, KVL_EXPR_NUMBER, -1, -1, out));
        double number = p->token.number;
        KVL_TRY(next(p));
        if (is_sign(p, "%")) {
            number /= 100;
            KVL_TRY(next(p));
        }
        p->check->nodes[*out].number = number;
        return KVL_OK;
    }
    if (p->token.kind == WORD) return name(p, out);
    if (is_sign(p, "-")) {
        KVL_TRY(next(p));
        p->depth++;
        KVL_TRY(factor(p, &inner));
        p->depth--;
        return add_node(p, KVL_EXPR_NEGATE, inner, -1, out);
    }
    if (!is_sign(p, "(")) return fault(p, p->token.at, "a number, a name or '(' is needed here");
    KVL_TRY(next(p));
    p->depth++;
    KVL_TRY(expression(p, out));
    p->depth--;
    return need(p, ")");
}

static kvl_status term(parser *p, int *out) {
    KVL_TRY(factor(p, out));
    while (is_sign(p, "*") || is_sign(p, "/")) {
        kvl_expr_kind kind = is_sign(p, "*") ? KVL_EXPR_MULTIPLY : KVL_EXPR_DIVIDE;
        int left = *out, right;
        KVL_TRY(next(p));
        KVL_TRY(factor(p, &right));
        KVL_TRY(add_node(p, kind, left, right, out));
    }
    return KVL_OK;
}

static kvl_status expression(parser *p, int *out) {
    KVL_TRY(term(p, out));
    while (is_sign(p, "+") || is_sign(p, "-")) {
        kvl_expr_kind kind = is_sign(p, "+") ? KVL_EXPR_ADD : KVL_EXPR_SUBTRACT;
        int left = *out, right;
        KVL_TRY(next(p));
        KVL_TRY(term(p, &right));
        KVL_TRY(add_node(p, kind, left, right, out));
    }
    return KVL_OK;
}

/* ---- relation and conditions --------------------------------------------------------------------
 */

static kvl_status relation(parser *p, kvl_relation *out) {
    static const char *const signs[] = {">", ">=", "<", "<=", "==", "!="};
    for (int i = 0; i < 6; i++) {
        if (!is_sign(p, signs[i])) continue;
        *out = (kvl_relation)i;
        return next(p);
    }
    return fault(p, p->token.at,
                 is_sign(p, "=") ? "'==' compares; one '=' picks a value in ratio()"
                                 : "one of > >= < <= == != is needed here (or: in LOW..HIGH)");
}

static kvl_status number(parser *p, double *out) {
    double sign = 1;
    if (is_sign(p, "-")) {
        sign = -1;
        KVL_TRY(next(p));
    }
    if (p->token.kind != NUMBER) return fault(p, p->token.at, "a number is needed here");
    *out = sign * p->token.number;
    KVL_TRY(next(p));
    if (!is_sign(p, "%")) return KVL_OK;
    *out /= 100;
    return next(p);
}

/* A text is compared with a word, by == and != alone. */
static kvl_status check_texts(parser *p, int at) {
    kvl_check *check = p->check;
    bool is_text = false, only = check->nodes[check->left].kind == KVL_EXPR_TEXT;
    for (int i = 0; i < check->n_nodes; i++)
        is_text = is_text || check->nodes[i].kind == KVL_EXPR_TEXT ||
                  check->nodes[i].kind == KVL_EXPR_WORD;
    if (!is_text) return KVL_OK;
    bool equality = check->relation == KVL_REL_EQUAL || check->relation == KVL_REL_NOT_EQUAL;
    if (only && equality && check->n_nodes == 2 && check->nodes[check->right].kind == KVL_EXPR_WORD)
        return KVL_OK;
    return fault(p, at, "a text of rows is compared as NAME == WORD or NAME != WORD");
}

static kvl_status comparison(parser *p) {
    kvl_check *check = p->check;
    KVL_TRY(expression(p, &check->left));
    int at = p->token.at;
    if (is_keyword(p, "in")) {
        check->relation = KVL_REL_IN;
        KVL_TRY(next(p));
        KVL_TRY(number(p, &check->low));
        KVL_TRY(need(p, ".."));
        KVL_TRY(number(p, &check->high));
        if (!(check->low <= check->high)) return fault(p, at, "the range is empty");
        return check_texts(p, at);
    }
    KVL_TRY(relation(p, &check->relation));
    /* `decode_bound == memory`: the word needs no quotes. */
    if (check->nodes[check->left].kind == KVL_EXPR_TEXT && p->token.kind == WORD)
        p->token.quoted = true;
    KVL_TRY(expression(p, &check->right));
    return check_texts(p, at);
}

static kvl_status condition(parser *p) {
    kvl_check *check = p->check;
    int at = p->token.at;
    if (check->n_conditions == KVL_CHECK_MAX_CONDITIONS)
        return fault(p, at, "more conditions than a check can have (8)");
    kvl_condition *c = &check->conditions[check->n_conditions++];
    if (p->token.kind != WORD) return fault(p, at, "an axis is needed here");
    int axis = axis_index(p, p->token.text);
    if (axis < 0) return unknown(p, at, "axis", p->token.text, p->names->axes, p->names->n_axes);
    snprintf(c->axis, sizeof c->axis, "%s", p->token.text);
    KVL_TRY(next(p));
    if (is_sign(p, "=")) /* as --where has it */
        snprintf(p->token.text, sizeof p->token.text, "==");
    int relation_at = p->token.at;
    KVL_TRY(relation(p, &c->relation));
    bool order = c->relation != KVL_REL_EQUAL && c->relation != KVL_REL_NOT_EQUAL;
    if (order && !p->names->numeric[axis])
        return fault(p, relation_at, "this axis has names: == or != is needed here");
    if (p->token.kind != WORD && p->token.kind != NUMBER)
        return fault(p, p->token.at, "a value is needed here");
    if (p->names->numeric[axis] && p->token.kind != NUMBER)
        return fault(p, p->token.at, "this axis has numbers");
    if (!order && !has_value(p, (size_t)axis, p->token.text))
        return unknown(p, p->token.at, "value of the sweep's axis", p->token.text,
                       p->names->values[axis], p->names->n_values[axis]);
    snprintf(c->value, sizeof c->value, "%s", p->token.text);
    if (strcmp(c->axis, check->axis) == 0)
        return fault(p, at, "this axis is what ratio() compares: it cannot be a condition too");
    return next(p);
}

static kvl_status parse(parser *p) {
    KVL_TRY(next(p));
    KVL_TRY(comparison(p));
    if (p->check->axis[0] && p->has_metric)
        return fault(p, p->metric_at,
                     "beside ratio() a metric has two values here: write "
                     "ratio(A, B, METRIC)");
    if (is_keyword(p, "where")) {
        do {
            KVL_TRY(next(p));
            KVL_TRY(condition(p));
        } while (is_keyword(p, "and"));
    }
    return p->token.kind == END ? KVL_OK : fault(p, p->token.at, "the check should end here");
}

kvl_status kvl_check_parse(const char *text, const kvl_check_names *names, kvl_check *out,
                           int *position) {
    parser p = {.text = text, .names = names, .check = out};
    memset(out, 0, sizeof *out);
    *position = 0;
    if (strlen(text) >= sizeof out->text)
        return kvl_fail(KVL_ERR_INPUT, "a check has at most %zu characters", sizeof out->text - 1);
    snprintf(out->text, sizeof out->text, "%s", text);
    kvl_status status = parse(&p);
    *position = p.fault_at;
    return status;
}
