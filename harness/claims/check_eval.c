/* A check against the rows of its sweep: place by place, over rounds. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/claims/check.h"
#include "harness/compare/interval.h"
#include "harness/figures/dictionary.h"
#include "harness/figures/stats.h"
#include "harness/sweep/axis.h"

enum { TEXT = 128, MAX_SIDES = 2 * KVL_CHECK_MAX_NODES };
static const double CONFIDENCE = 0.995;
/* Rounds whose extremes hold a median with 99.5 %: 1 - 2^-8. */
enum { SIGN_ROUNDS = 9 };

/* One place: without ratios a single trial; with them, the trials that are equal but for
 * check->axis. */
typedef struct place {
    const kvl_check *check;
    const kvl_groups *groups;
    const kvl_group *first;
    const bool *here; /* [groups->n] */
} place;

const char *kvl_finding_name(kvl_finding finding) {
    static const char *const names[] = {"holds", "does not hold", "cannot tell here"};
    return names[finding];
}

/* ---- values -------------------------------------------------------------------------------------
 */

static void axis_text(const kvl_group *group, const char *name, char out[TEXT]) {
    kvl_row_axis_text(group->rows[0], name, out, TEXT);
}

/* The trial of the place at one value of the ratios' axis; NULL: the sweep has none. */
static const kvl_group *at_value(const place *at, const char *value) {
    char text[TEXT];
    for (size_t i = 0; i < at->groups->n; i++) {
        if (!at->here[i]) continue;
        axis_text(&at->groups->items[i], at->check->axis, text);
        if (strcmp(text, value) == 0) return &at->groups->items[i];
    }
    return NULL;
}

static const json_t *row_of(const kvl_group *group, json_int_t round) {
    for (size_t i = 0; group && i < group->n_rows; i++)
        if (json_integer_value(json_object_get(group->rows[i], "round")) == round)
            return group->rows[i];
    return NULL;
}

static double metric_of(const kvl_group *group, json_int_t round, const char *name) {
    const json_t *row = row_of(group, round);
    const json_t *value = json_object_get(json_object_get(row, "metrics"), name);
    return row && kvl_row_is_ok(row) && json_is_number(value) ? json_number_value(value) : NAN;
}

static double ratio_of(const place *at, const kvl_expr *node, json_int_t round) {
    double a = metric_of(at_value(at, node->value_a), round, node->name);
    double b = metric_of(at_value(at, node->value_b), round, node->name);
    const kvl_name *known = kvl_name_find(node->name);
    bool turned = node->kind == KVL_EXPR_SPEEDUP && known && known->better == KVL_BETTER_LOWER;
    return turned ? b / a : a / b;
}

static double value_of(const place *at, int index, json_int_t round) {
    const kvl_expr *node = &at->check->nodes[index];
    double left = node->left >= 0 ? value_of(at, node->left, round) : 0;
    double right = node->right >= 0 ? value_of(at, node->right, round) : 0;
    switch (node->kind) {
    case KVL_EXPR_NUMBER:
        return node->number;
    case KVL_EXPR_METRIC:
        return metric_of(at->first, round, node->name);
    case KVL_EXPR_AXIS: {
        const json_t *axes = json_object_get(at->first->rows[0], "axes");
        const json_t *value = json_object_get(axes, node->name);
        return json_is_number(value) ? json_number_value(value) : NAN;
    }
    case KVL_EXPR_ADD:
        return left + right;
    case KVL_EXPR_SUBTRACT:
        return left - right;
    case KVL_EXPR_MULTIPLY:
        return left * right;
    case KVL_EXPR_DIVIDE:
        return left / right;
    case KVL_EXPR_NEGATE:
        return -left;
    case KVL_EXPR_RATIO:
    case KVL_EXPR_SPEEDUP:
        return ratio_of(at, node, round);
    default:
        return NAN; /* texts are compared elsewhere */
    }
}

/* ---- findings -----------------------------------------------------------------------------------
 */

/* Counts of bytes, operations and tokens, and qualities of a seeded run, are equal in all rounds:
 * one is enough. */
static bool is_exact(const kvl_check *check) {
    static const char *const units[] = {"bytes", "flop", "tokens", "bits", "nats"};
    for (int i = 0; i < check->n_nodes; i++) {
        const kvl_expr *node = &check->nodes[i];
        bool measured = node->kind == KVL_EXPR_METRIC || node->kind == KVL_EXPR_RATIO ||
                        node->kind == KVL_EXPR_SPEEDUP;
        if (!measured) continue;
        const kvl_name *known = kvl_name_find(node->name);
        bool exact = false;
        for (size_t u = 0; known && u < sizeof units / sizeof *units; u++)
            exact = exact || strcmp(known->unit, units[u]) == 0;
        if (!exact || strncmp(node->name, "rss_", 4) == 0) return false;
    }
    return true;
}

static bool all_equal(const double *x, size_t n) {
    for (size_t i = 1; i < n; i++)
        if (x[i] != x[0]) return false;
    return true;
}

/* Of numbers without noise. Sums of doubles that should be equal may differ in their last bits. */
static bool is_true(const kvl_check *check, double left, double right) {
    bool equal = fabs(left - right) <= 1e-12 * fmax(fabs(left), fabs(right));
    switch (check->relation) {
    case KVL_REL_GREATER:
        return left > right && !equal;
    case KVL_REL_GREATER_EQUAL:
        return left >= right || equal;
    case KVL_REL_LESS:
        return left < right && !equal;
    case KVL_REL_LESS_EQUAL:
        return left <= right || equal;
    case KVL_REL_EQUAL:
        return equal;
    case KVL_REL_NOT_EQUAL:
        return !equal;
    default:
        return left >= check->low * (1 - 1e-12) && left <= check->high * (1 + 1e-12);
    }
}

/* [lo, hi] holds the left side (divided by the right one, whose bounds are 1). */
static kvl_finding of_interval(const kvl_check *check, double lo, double hi, double low,
                               double high) {
    switch (check->relation) {
    case KVL_REL_GREATER:
    case KVL_REL_GREATER_EQUAL:
        return lo > high ? KVL_HOLDS : hi < low ? KVL_HOLDS_NOT : KVL_CANNOT_TELL;
    case KVL_REL_LESS:
    case KVL_REL_LESS_EQUAL:
        return hi < low ? KVL_HOLDS : lo > high ? KVL_HOLDS_NOT : KVL_CANNOT_TELL;
    case KVL_REL_EQUAL: /* never proved of noisy numbers */
        return hi < low || lo > high ? KVL_HOLDS_NOT : KVL_CANNOT_TELL;
    case KVL_REL_NOT_EQUAL:
        return hi < low || lo > high ? KVL_HOLDS : KVL_CANNOT_TELL;
    default:
        return lo >= low && hi <= high ? KVL_HOLDS
               : hi < low || lo > high ? KVL_HOLDS_NOT
                                       : KVL_CANNOT_TELL;
    }
}

static void say(kvl_evidence *e, const char *reason) {
    snprintf(e->reason, sizeof e->reason, "%s", reason);
}

/* Numbers that have no ratio: their differences, whose extremes hold the median when rounds are
 * enough. */
static void find_by_differences(const kvl_check *check, const double *left, const double *right,
                                size_t n, kvl_evidence *e) {
    double lo = INFINITY, hi = -INFINITY, low = 0, high = 0;
    if (n < SIGN_ROUNDS) {
        say(e, "values of 0 or below have no ratio, and rounds are too few for their differences");
        return;
    }
    if (check->relation == KVL_REL_IN) low = check->low, high = check->high;
    for (size_t i = 0; i < n; i++) {
        double d = left[i] - (check->relation == KVL_REL_IN ? 0 : right[i]);
        lo = d < lo ? d : lo;
        hi = d > hi ? d : hi;
    }
    e->finding = of_interval(check, lo, hi, low, high);
    if (e->finding == KVL_CANNOT_TELL) say(e, "noise: the difference's interval meets 0");
}

static kvl_status find_by_ratio(const kvl_check *check, const double *left, double *right, size_t n,
                                kvl_evidence *e) {
    bool in = check->relation == KVL_REL_IN;
    kvl_change change;
    for (size_t i = 0; in && i < n; i++) right[i] = 1;
    KVL_TRY(kvl_change_of(right, n, left, n, true, CONFIDENCE, &change));
    if (!change.exists) {
        find_by_differences(check, left, right, n, e);
        return KVL_OK;
    }
    e->ratio = change.ratio, e->lo = change.lo, e->hi = change.hi;
    e->finding =
        of_interval(check, change.lo, change.hi, in ? check->low : 1, in ? check->high : 1);
    if (e->finding != KVL_CANNOT_TELL) return KVL_OK;
    if (n < 2)
        say(e, "one round does not show the spread");
    else if (check->relation == KVL_REL_EQUAL)
        say(e, "noisy numbers are never proved equal: a range says how close (in LOW..HIGH)");
    else
        say(e, "noise: the interval meets the threshold");
    return KVL_OK;
}

/* Why there is not a single round with all values. */
static void explain_nothing(const place *at, kvl_evidence *e) {
    for (size_t i = 0; i < at->groups->n; i++) {
        const kvl_group *group = &at->groups->items[i];
        const char *outcome = kvl_group_outcome(group);
        if (!at->here[i] || strcmp(outcome, "ok") == 0) continue;
        const char *why = json_string_value(json_object_get(group->rows[0], "reason"));
        snprintf(e->reason, sizeof e->reason, "%s: %.150s", outcome, why ? why : "");
        return;
    }
    say(e, "no round holds all values of it");
}

static kvl_status find_numbers(const place *at, json_int_t n_rounds, kvl_evidence *e) {
    const kvl_check *check = at->check;
    double *left = malloc(((size_t)n_rounds + 1) * sizeof *left);
    double *right = malloc(((size_t)n_rounds + 1) * sizeof *right);
    kvl_status status = left && right ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    size_t n = 0;
    for (json_int_t r = 0; status == KVL_OK && r < n_rounds; r++) {
        left[n] = value_of(at, check->left, r);
        right[n] = check->relation == KVL_REL_IN ? 0 : value_of(at, check->right, r);
        n += isfinite(left[n]) && isfinite(right[n]);
    }
    e->n_rounds = n;
    if (status == KVL_OK && n == 0) {
        explain_nothing(at, e);
    } else if (status == KVL_OK && all_equal(left, n) && all_equal(right, n) &&
               (n > 1 || is_exact(check))) {
        e->finding = is_true(check, left[0], right[0]) ? KVL_HOLDS : KVL_HOLDS_NOT;
        e->ratio = e->lo = e->hi = check->relation == KVL_REL_IN ? left[0] : left[0] / right[0];
        e->left = left[0], e->right = right[0];
    } else if (status == KVL_OK) {
        double *copy = malloc(2 * n * sizeof *copy);
        if (copy) {
            memcpy(copy, left, n * sizeof *copy);
            memcpy(copy + n, right, n * sizeof *copy);
            e->left = kvl_quantile(copy, n, 0.5);
            e->right = kvl_quantile(copy + n, n, 0.5);
        }
        free(copy);
        status = find_by_ratio(check, left, right, n, e);
    }
    if (check->relation == KVL_REL_IN) e->right = NAN;
    free(left);
    free(right);
    return status;
}

/* A text of each row: all, none or some of the rounds have it. `outcome` counts failed ones too. */
static void find_text(const place *at, kvl_evidence *e) {
    const kvl_expr *name = &at->check->nodes[at->check->left];
    const char *wanted = at->check->nodes[at->check->right].name;
    bool outcome = strcmp(name->name, "outcome") == 0;
    size_t n = 0, n_equal = 0;
    for (size_t i = 0; i < at->first->n_rows; i++) {
        const json_t *row = at->first->rows[i];
        const json_t *from = outcome ? row : json_object_get(row, "effective");
        const char *text = json_string_value(json_object_get(from, name->name));
        if (!text || (!outcome && !kvl_row_is_ok(row))) continue;
        if (outcome && strcmp(text, "skipped") == 0) continue; /* follows from an earlier round */
        n++;
        n_equal += strcmp(text, wanted) == 0;
        snprintf(e->reason, sizeof e->reason, "%s is %.100s", name->name, text);
    }
    e->n_rounds = n;
    if (n == 0) {
        explain_nothing(at, e);
    } else if (n_equal == n || n_equal == 0) {
        bool equal = n_equal == n;
        e->finding = equal == (at->check->relation == KVL_REL_EQUAL) ? KVL_HOLDS : KVL_HOLDS_NOT;
    } else {
        snprintf(e->reason, sizeof e->reason, "%s is %.60s in %zu of %zu rounds", name->name,
                 wanted, n_equal, n);
    }
}

/* ---- places -------------------------------------------------------------------------------------
 */

static bool meets(const kvl_check *check, const kvl_group *group) {
    char text[TEXT];
    for (int i = 0; i < check->n_conditions; i++) {
        const kvl_condition *c = &check->conditions[i];
        axis_text(group, c->axis, text);
        double x = strtod(text, NULL), y = strtod(c->value, NULL);
        bool good = c->relation == KVL_REL_EQUAL           ? strcmp(text, c->value) == 0
                    : c->relation == KVL_REL_NOT_EQUAL     ? strcmp(text, c->value) != 0
                    : c->relation == KVL_REL_GREATER       ? x > y
                    : c->relation == KVL_REL_GREATER_EQUAL ? x >= y
                    : c->relation == KVL_REL_LESS          ? x < y
                                                           : x <= y;
        if (!good) return false;
    }
    return true;
}

/* Pages belong to their allocator: they differ where it is what is compared. */
static bool plays_no_part(const kvl_check *check, const char *axis) {
    return strcmp(axis, check->axis) == 0 ||
           (strcmp(check->axis, "allocator") == 0 && strcmp(axis, "page_tokens") == 0);
}

static bool same_place(const kvl_check *check, const kvl_group *a, const kvl_group *b) {
    char x[TEXT], y[TEXT];
    for (int i = 0; i < KVL_N_AXES; i++) {
        const char *name = kvl_axis_of((kvl_axis_id)i)->name;
        if (check->axis[0] && plays_no_part(check, name)) continue;
        axis_text(a, name, x);
        axis_text(b, name, y);
        if (strcmp(x, y) != 0) return false;
    }
    return true;
}

static void label(const place *at, char *out, size_t bytes) {
    char text[TEXT], other[TEXT];
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < KVL_N_AXES && n < bytes; i++) {
        const char *name = kvl_axis_of((kvl_axis_id)i)->name;
        bool varies = false;
        if (at->check->axis[0] && plays_no_part(at->check, name)) continue;
        axis_text(at->first, name, text);
        for (size_t g = 0; g < at->groups->n && !varies; g++) {
            axis_text(&at->groups->items[g], name, other);
            varies = strcmp(text, other) != 0;
        }
        if (!varies) continue;
        int wrote = snprintf(out + n, bytes - n, "%s%s %.60s", n ? ", " : "", name, text);
        n += wrote > 0 ? (size_t)wrote : 0;
    }
    if (out[0] == '\0') snprintf(out, bytes, "everywhere");
}

static json_int_t rounds_of(const kvl_groups *groups) {
    json_int_t most = 0;
    for (size_t g = 0; g < groups->n; g++) {
        for (size_t i = 0; i < groups->items[g].n_rows; i++) {
            json_int_t round =
                json_integer_value(json_object_get(groups->items[g].rows[i], "round"));
            if (round < 100000 && round + 1 > most) most = round + 1;
        }
    }
    return most;
}

static kvl_status evaluate_place(const place *at, json_int_t n_rounds, kvl_evidence *e) {
    *e = (kvl_evidence){
        .left = NAN, .right = NAN, .ratio = NAN, .lo = NAN, .hi = NAN, .finding = KVL_CANNOT_TELL};
    label(at, e->place, sizeof e->place);
    if (at->check->nodes[at->check->left].kind != KVL_EXPR_TEXT)
        return find_numbers(at, n_rounds, e);
    find_text(at, e);
    return KVL_OK;
}

/* Places that `where` leaves, each once, by its first trial. */
static kvl_status evaluate_all(const kvl_check *check, const kvl_groups *groups, bool *here,
                               bool *done, kvl_check_result *out) {
    json_int_t n_rounds = rounds_of(groups);
    for (size_t i = 0; i < groups->n; i++) {
        const kvl_group *first = &groups->items[i];
        if (done[i] || !meets(check, first)) continue;
        for (size_t j = 0; j < groups->n; j++) {
            here[j] = check->axis[0] ? same_place(check, first, &groups->items[j]) : i == j;
            done[j] = done[j] || here[j];
        }
        place at = {check, groups, first, here};
        KVL_TRY(evaluate_place(&at, n_rounds, &out->items[out->n++]));
    }
    if (out->n == 0)
        return kvl_fail(KVL_ERR_INPUT, "check '%s': no point of the sweep is left by `where`",
                        check->text);
    return KVL_OK;
}

kvl_status kvl_check_evaluate(const kvl_check *check, const kvl_groups *groups,
                              kvl_check_result *out) {
    bool *here = calloc(groups->n + 1, sizeof *here), *done = calloc(groups->n + 1, sizeof *done);
    *out = (kvl_check_result){.items = calloc(groups->n + 1, sizeof *out->items)};
    kvl_status status =
        here && done && out->items ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status == KVL_OK) status = evaluate_all(check, groups, here, done, out);
    free(here);
    free(done);
    out->finding = KVL_HOLDS;
    for (size_t i = 0; i < out->n; i++) {
        if (out->items[i].finding == KVL_HOLDS_NOT) out->finding = KVL_HOLDS_NOT;
        if (out->items[i].finding == KVL_CANNOT_TELL && out->finding == KVL_HOLDS)
            out->finding = KVL_CANNOT_TELL;
    }
    if (status != KVL_OK) kvl_check_result_free(out);
    return status;
}

void kvl_check_result_free(kvl_check_result *result) {
    free(result->items);
    *result = (kvl_check_result){0};
}
