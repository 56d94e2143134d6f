/* What a claim must show, as text: a comparison of measured values, for some points of the sweep.
 *
 *   check      = expression relation [ "where" condition { "and" condition } ]
 *   relation   = ( ">" | ">=" | "<" | "<=" | "==" | "!=" ) expression | "in" number ".." number
 *   expression = term { ( "+" | "-" ) term }          term = factor { ( "*" | "/" ) factor }
 *   factor     = number [ "%" ] | name | "-" factor | "(" expression ")"
 *              | ( "ratio" | "speedup" ) "(" selector "," selector [ "," metric ] ")"
 *   selector   = value | axis "=" value               condition = axis ( ">" | ... | "!=" ) value
 *
 * A name is a metric, a numeric axis, or a text that rows hold (decode_bound, prefill_bound,
 * outcome), which can only be compared with == and !=. ratio(a, b) divides the metric (the
 * experiment's own unless named) at axis value a by that at b, everything else equal; speedup is
 * above 1 where a is better, whichever way the metric counts. A value alone finds its axis among
 * the experiment's; a text of other signs stands in quotes.
 *
 *   ratio(flash, eager) > 1.5 where prompt >= 4096
 *   kv_bytes_live <= kv_bytes_formula
 *   ratio(batch=2, batch=1, kv_bytes_scanned) in 1.95..2.05
 */
#ifndef KVL_HARNESS_CHECK_H
#define KVL_HARNESS_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "harness/figures/group.h"

typedef enum kvl_expr_kind {
    KVL_EXPR_NUMBER = 0,
    KVL_EXPR_METRIC,
    KVL_EXPR_AXIS, /* numeric */
    KVL_EXPR_TEXT, /* of a row: name */
    KVL_EXPR_WORD, /* what a text is compared with: name */
    KVL_EXPR_ADD,
    KVL_EXPR_SUBTRACT,
    KVL_EXPR_MULTIPLY,
    KVL_EXPR_DIVIDE,
    KVL_EXPR_NEGATE, /* left */
    KVL_EXPR_RATIO,  /* name: metric; value_a, value_b of check->axis */
    KVL_EXPR_SPEEDUP
} kvl_expr_kind;

enum { KVL_CHECK_NAME_BYTES = 128, KVL_CHECK_MAX_CONDITIONS = 8, KVL_CHECK_MAX_NODES = 64 };

typedef struct kvl_expr {
    kvl_expr_kind kind;
    double number;
    char name[KVL_CHECK_NAME_BYTES];
    char value_a[KVL_CHECK_NAME_BYTES], value_b[KVL_CHECK_NAME_BYTES];
    int left, right; /* indices into check->nodes; -1: none */
} kvl_expr;

typedef enum kvl_relation {
    KVL_REL_GREATER = 0,
    KVL_REL_GREATER_EQUAL,
    KVL_REL_LESS,
    KVL_REL_LESS_EQUAL,
    KVL_REL_EQUAL,
    KVL_REL_NOT_EQUAL,
    KVL_REL_IN
} kvl_relation;

typedef struct kvl_condition {
    char axis[KVL_CHECK_NAME_BYTES], value[KVL_CHECK_NAME_BYTES];
    kvl_relation relation;
} kvl_condition;

typedef struct kvl_check {
    char text[512];
    kvl_expr nodes[KVL_CHECK_MAX_NODES];
    int n_nodes, left, right; /* sides of the relation; right unused for KVL_REL_IN */
    kvl_relation relation;
    double low, high;                /* KVL_REL_IN */
    char axis[KVL_CHECK_NAME_BYTES]; /* of all ratios; "" when there is none */
    kvl_condition conditions[KVL_CHECK_MAX_CONDITIONS];
    int n_conditions;
} kvl_check;

/* What names mean in an experiment. */
typedef struct kvl_check_names {
    const char *metric;         /* of ratio(a, b) */
    const char *const *axes;    /* [n_axes] of the workload */
    const bool *numeric;        /* [n_axes] */
    const char *const **values; /* [n_axes][n_values] the sweep's, as rows spell them */
    const size_t *n_values;
    size_t n_axes;
} kvl_check_names;

/* KVL_ERR_INPUT: the reason alone, *position is the index of the first wrong character. */
kvl_status kvl_check_parse(const char *text, const kvl_check_names *names, kvl_check *out,
                           int *position);

typedef enum kvl_finding { KVL_HOLDS = 0, KVL_HOLDS_NOT, KVL_CANNOT_TELL } kvl_finding;
const char *kvl_finding_name(kvl_finding finding); /* "holds", "does not hold", ... */

/* A check at one place: one trial, or the trials that a ratio needs. */
typedef struct kvl_evidence {
    char place[192];      /* "prompt 4096, batch 2" */
    double left, right;   /* medians over rounds; NaN: none, or texts */
    double ratio, lo, hi; /* left / right (KVL_REL_IN: left) with its 99.5 % interval; NaN: none */
    size_t n_rounds;
    kvl_finding finding;
    char reason[192]; /* why it cannot tell, or what a text was */
} kvl_evidence;

typedef struct kvl_check_result {
    kvl_evidence *items;
    size_t n;
    kvl_finding finding; /* holds: everywhere; not: somewhere; else cannot tell */
} kvl_check_result;

/* Evaluates over the trials of a sweep. KVL_ERR_INPUT: no trial satisfies `where`. */
kvl_status kvl_check_evaluate(const kvl_check *check, const kvl_groups *groups,
                              kvl_check_result *out);
void kvl_check_result_free(kvl_check_result *result);

#endif
