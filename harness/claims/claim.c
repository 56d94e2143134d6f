#define _GNU_SOURCE
#include "harness/claims/claim.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/names.h"
#include "harness/figures/dictionary.h"

#define TEXT_MEMBER(name, field, needed, help) \
    { name, KVL_MEMBER_TEXT, needed, offsetof(kvl_claim, field), 0, 0, help }

static const kvl_member members[] = {
    TEXT_MEMBER("claim", claim, true, "what is claimed, in one sentence"),
    TEXT_MEMBER("source", source, true, "who claims it, or where it is derived"),
    TEXT_MEMBER("note", note, false, "what a reader of the report should know"),
    TEXT_MEMBER("workload", workload, true, "kvlab bench WORKLOAD"),
    {"axes", KVL_MEMBER_AXES, true, 0, 0, 0, "the sweep, as options of kvlab bench"},
    TEXT_MEMBER("metric", metric, true, "what ratio(a, b) divides and the figure shows"),
    {"checks", KVL_MEMBER_CHECKS, true, 0, 0, 0,
     "comparisons that must hold: ratio(flash, eager) > 1.5 where prompt >= 4096"},
    {"plot", KVL_MEMBER_PLOT, false, 0, 0, 0, "the figure"},
    {"rounds", KVL_MEMBER_INT, false, offsetof(kvl_claim, values.rounds), 1, 10000,
     "times each trial is measured"},
    {"until_ci", KVL_MEMBER_REAL, false, offsetof(kvl_claim, values.until_ci_pct), 0.001, 1000,
     "then more, until intervals reach this many per cent to either side"},
    {"max_rounds", KVL_MEMBER_INT, false, offsetof(kvl_claim, values.max_rounds), 1, 10000,
     "... at most"},
    {"max_time_s", KVL_MEMBER_REAL, false, offsetof(kvl_claim, values.max_time_s), 0.001, 1e9,
     "no trial starts later"},
    {"timeout_s", KVL_MEMBER_REAL, false, offsetof(kvl_claim, values.timeout_s), 0.001, 1e9,
     "a trial and round is ended after"},
    {"memory_limit_mib", KVL_MEMBER_INT, false, offsetof(kvl_claim, values.memory_limit_mib), 1,
     1 << 30, "... or above"},
    {"seed", KVL_MEMBER_INT, false, offsetof(kvl_claim, values.seed), 0, 9007199254740992.0,
     "of inputs, synthetic data and the order of trials"},
    {"chunk", KVL_MEMBER_INT, false, offsetof(kvl_claim, values.chunk), 1, 1 << 20,
     "prompt tokens in one engine step"},
    {"nf4_block", KVL_MEMBER_INT, false, offsetof(kvl_claim, values.nf4_block), 32, 4096,
     "weights of a block of nf4, nf4_dq, fp4"},
    {"deterministic", KVL_MEMBER_FLAG, false, offsetof(kvl_claim, values.deterministic), 0, 0,
     "own kernels and fixed shapes"},
};

static const kvl_member plot_members[] = {
    TEXT_MEMBER("x", plot_x, false, "axis"),
    TEXT_MEMBER("y", plot_y, false, "metric (the experiment's)"),
    TEXT_MEMBER("by", plot_by, false, "axes of series, then panels"),
    TEXT_MEMBER("where", plot_where, false, "AXIS=VALUE,...: only these trials"),
    TEXT_MEMBER("kind", plot_kind, false, "line, bars or stack"),
};

static const kvl_workload_kind *const kinds[] = {
    &kvl_workload_decode,  &kvl_workload_attention,          &kvl_workload_matmul,
    &kvl_workload_quality, &kvl_workload_format_error_model, &kvl_workload_replay,
    &kvl_workload_serve,   &kvl_workload_allocator,          &kvl_workload_soak,
};
enum { N_KINDS = sizeof kinds / sizeof *kinds, MAX_NAMES = 256 };

const kvl_member *kvl_claim_members(size_t *n) {
    *n = sizeof members / sizeof *members;
    return members;
}

const kvl_member *kvl_claim_plot_members(size_t *n) {
    *n = sizeof plot_members / sizeof *plot_members;
    return plot_members;
}

/* ---- faults -------------------------------------------------------------------------------------
 */

static kvl_status unknown(kvl_claim *c, int line, int column, const char *what, const char *name,
                          const char *const *known, size_t n) {
    const char *near = kvl_names_nearest(name, known, n);
    return kvl_yaml_fault(&c->yaml, line, column, "unknown %s '%.60s'%s%s%s", what, name,
                          near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static kvl_status at_node(kvl_claim *c, const kvl_yaml_node *node, const char *reason) {
    return kvl_yaml_fault(&c->yaml, node->line, node->column, "%s", reason);
}

/* Every key of the map is a member. */
static kvl_status check_keys(kvl_claim *c, const kvl_yaml_node *map, const kvl_member *known,
                             size_t n_known, const char *what) {
    const char *names[MAX_NAMES];
    for (size_t i = 0; i < n_known; i++) names[i] = known[i].name;
    for (size_t i = 0; i < map->n_items; i++) {
        const kvl_yaml_node *item = &map->items[i];
        if (kvl_names_find(item->key, names, n_known) < 0)
            return unknown(c, item->key_line, item->key_column, what, item->key, names, n_known);
    }
    return KVL_OK;
}

/* ---- scalars ------------------------------------------------------------------------------------
 */

static kvl_status set_number(kvl_claim *c, const kvl_member *member, const kvl_yaml_node *node) {
    char *end;
    errno = 0;
    double value = strtod(node->text, &end);
    bool whole = member->type != KVL_MEMBER_INT || value == floor(value);
    if (end == node->text || *end || !isfinite(value) || !whole)
        return kvl_yaml_fault(&c->yaml, node->line, node->column, "%s: '%.40s' is not a %snumber",
                              member->name, node->text,
                              member->type == KVL_MEMBER_INT ? "whole " : "");
    if (value < member->min || value > member->max)
        return kvl_yaml_fault(&c->yaml, node->line, node->column,
                              "%s: %.40s must lie in %.15g to %.15g", member->name, node->text,
                              member->min, member->max);
    if (member->type == KVL_MEMBER_INT)
        *(int64_t *)((char *)c + member->offset) = (int64_t)value;
    else
        *(double *)((char *)c + member->offset) = value;
    return KVL_OK;
}

static kvl_status set_scalar(kvl_claim *c, const kvl_member *member, const kvl_yaml_node *node) {
    if (node->kind != KVL_YAML_SCALAR)
        return kvl_yaml_fault(&c->yaml, node->line, node->column, "%s: one value is needed here",
                              member->name);
    if (!node->text[0]) /* what is not there has no place of its own */
        return kvl_yaml_fault(&c->yaml, node->key_line, node->key_column, "%s: it is empty",
                              member->name);
    if (member->type == KVL_MEMBER_INT || member->type == KVL_MEMBER_REAL)
        return set_number(c, member, node);
    if (member->type == KVL_MEMBER_TEXT) {
        *(const char **)((char *)c + member->offset) = node->text;
        return KVL_OK;
    }
    bool yes = strcmp(node->text, "true") == 0;
    if (!yes && strcmp(node->text, "false") != 0)
        return kvl_yaml_fault(&c->yaml, node->line, node->column, "%s: true or false is needed",
                              member->name);
    *(bool *)((char *)c + member->offset) = yes;
    return KVL_OK;
}

/* ---- axes ---------------------------------------------------------------------------------------
 */

/* "a, b" as the command line has it: no blanks behind commas. */
static void add_without_blanks(kvl_buffer *out, const char *text) {
    for (const char *at = text; *at; at++) {
        kvl_buffer_add(out, at, 1);
        if (*at == ',') at += strspn(at + 1, " ");
    }
}

/* [a, b] as "a,b"; malloc'ed. */
static kvl_status join_list(kvl_claim *c, const kvl_yaml_node *node, char **out) {
    kvl_buffer text = {0};
    if (node->kind == KVL_YAML_MAP) return at_node(c, node, "a value or a list is needed here");
    for (size_t i = 0; i < node->n_items; i++) {
        const kvl_yaml_node *item = &node->items[i];
        if (item->kind != KVL_YAML_SCALAR || !item->text[0]) {
            kvl_buffer_free(&text);
            return at_node(c, item, "one value is needed here");
        }
        kvl_buffer_printf(&text, "%s%s", i ? "," : "", item->text);
    }
    if (node->kind == KVL_YAML_SCALAR) add_without_blanks(&text, node->text);
    if (!text.bytes) {
        kvl_buffer_free(&text);
        return kvl_yaml_fault(&c->yaml, node->key_line, node->key_column, "%s: it has no value",
                              node->key);
    }
    if (text.failed) {
        kvl_buffer_free(&text);
        return kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    *out = text.data;
    return KVL_OK;
}

static kvl_status set_axis(kvl_claim *c, const kvl_yaml_node *node) {
    const char *names[KVL_N_AXES];
    char reason[800];
    size_t n = c->kind->n_axes;
    for (size_t i = 0; i < n; i++) names[i] = kvl_axis_of(c->kind->axes[i].id)->name;
    int index = kvl_names_find(node->key, names, n);
    if (index < 0)
        return unknown(c, node->key_line, node->key_column, "axis of this workload", node->key,
                       names, n);
    kvl_axis_id id = c->kind->axes[index].id;
    KVL_TRY(join_list(c, node, &c->axis_texts[id]));
    c->values.axes[id] = c->axis_texts[id];
    kvl_status status =
        kvl_experiment_parse_axis(c->kind, id, c->axis_texts[id], &c->axis_values[id]);
    if (status == KVL_OK) return KVL_OK;
    snprintf(reason, sizeof reason, "%s", kvl_message());
    return kvl_yaml_fault(&c->yaml, node->line, node->column, "%s", reason);
}

static kvl_status set_axes(kvl_claim *c, const kvl_yaml_node *node) {
    if (node->kind != KVL_YAML_MAP) return at_node(c, node, "axes: a map of axes is needed here");
    for (size_t i = 0; i < node->n_items; i++) KVL_TRY(set_axis(c, &node->items[i]));
    return KVL_OK;
}

static kvl_status set_workload(kvl_claim *c) {
    const kvl_yaml_node *node = kvl_yaml_member(c->yaml.root, "workload");
    const char *names[N_KINDS];
    for (int i = 0; i < N_KINDS; i++) names[i] = kinds[i]->name;
    int index = kvl_names_find(c->workload, names, N_KINDS);
    if (index < 0)
        return unknown(c, node->line, node->column, "workload", c->workload, names, N_KINDS);
    c->kind = kinds[index];
    return KVL_OK;
}

static kvl_status check_metric(kvl_claim *c, const kvl_yaml_node *node, const char *name) {
    const char *names[MAX_NAMES];
    size_t n = kvl_metric_count() < MAX_NAMES ? kvl_metric_count() : MAX_NAMES;
    for (size_t i = 0; i < n; i++) names[i] = kvl_metric_at(i)->name;
    if (kvl_names_find(name, names, n) >= 0) return KVL_OK;
    return unknown(c, node->line, node->column, "metric", name, names, n);
}

/* ---- checks -------------------------------------------------------------------------------------
 */

/* Names of a sweep as the checks' grammar wants them; texts of numbers are malloc'ed. */
typedef struct sweep_names {
    const char *axes[KVL_N_AXES];
    bool numeric[KVL_N_AXES];
    const char *const *values[KVL_N_AXES];
    size_t n_values[KVL_N_AXES];
    char **texts[KVL_N_AXES];
} sweep_names;

static void free_names(sweep_names *names, size_t n) {
    for (size_t a = 0; a < n; a++) {
        for (size_t i = 0; names->texts[a] && i < names->n_values[a]; i++) free(names->texts[a][i]);
        free(names->texts[a]);
    }
}

static kvl_status fill_names(const kvl_claim *c, sweep_names *names) {
    for (size_t a = 0; a < c->kind->n_axes; a++) {
        kvl_axis_id id = c->kind->axes[a].id;
        const kvl_axis *axis = kvl_axis_of(id);
        const kvl_axis_values *values = &c->axis_values[id];
        names->axes[a] = axis->name;
        names->numeric[a] = axis->numeric;
        names->n_values[a] = values->n;
        names->values[a] = (const char *const *)values->names;
        if (!axis->numeric || !values->n) continue;
        names->texts[a] = calloc(values->n, sizeof *names->texts[a]);
        if (!names->texts[a]) return kvl_fail(KVL_ERR_OOM, "out of memory");
        for (size_t i = 0; i < values->n; i++)
            if (asprintf(&names->texts[a][i], "%lld", (long long)values->numbers[i]) < 0)
                return kvl_fail(KVL_ERR_OOM, "out of memory");
        names->values[a] = (const char *const *)names->texts[a];
    }
    return KVL_OK;
}

static kvl_status add_check(kvl_claim *c, const sweep_names *names, const kvl_yaml_node *node) {
    kvl_check_names known = {c->metric,       names->axes,
                             names->numeric,  (const char *const **)names->values,
                             names->n_values, c->kind->n_axes};
    char reason[800];
    int position;
    if (node->kind != KVL_YAML_SCALAR)
        return at_node(c, node, "a check is one text; quote it where it holds ': ' or ' #'");
    kvl_status status = kvl_check_parse(node->text, &known, &c->checks[c->n_checks], &position);
    if (status == KVL_OK) {
        c->n_checks++;
        return KVL_OK;
    }
    snprintf(reason, sizeof reason, "%s", kvl_message());
    return kvl_yaml_fault(&c->yaml, node->line, node->column + position, "%s", reason);
}

static kvl_status set_checks(kvl_claim *c, const kvl_yaml_node *node) {
    sweep_names names = {0};
    if (node->kind != KVL_YAML_LIST || node->n_items == 0)
        return at_node(c, node, "checks: a list of comparisons is needed here");
    if (node->n_items > KVL_CLAIM_MAX_CHECKS) return at_node(c, node, "checks: more than 32");
    c->checks = calloc(node->n_items, sizeof *c->checks);
    if (!c->checks) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_status status = fill_names(c, &names);
    for (size_t i = 0; status == KVL_OK && i < node->n_items; i++)
        status = add_check(c, &names, &node->items[i]);
    free_names(&names, c->kind->n_axes);
    return status;
}

/* ---- plot ---------------------------------------------------------------------------------------
 */

static kvl_status set_plot(kvl_claim *c, const kvl_yaml_node *node) {
    static const char *const figure_kinds[] = {"line", "bars", "stack"};
    size_t n;
    const kvl_member *known = kvl_claim_plot_members(&n);
    if (node->kind != KVL_YAML_MAP) return at_node(c, node, "plot: a map is needed here");
    KVL_TRY(check_keys(c, node, known, n, "member of plot"));
    for (size_t i = 0; i < n; i++) {
        const kvl_yaml_node *item = kvl_yaml_member(node, known[i].name);
        if (!item) continue;
        if (strcmp(known[i].name, "by") == 0) {
            KVL_TRY(join_list(c, item, &c->plot_by_text));
            c->plot_by = c->plot_by_text;
            continue;
        }
        KVL_TRY(set_scalar(c, &known[i], item));
        if (strcmp(known[i].name, "y") == 0) KVL_TRY(check_metric(c, item, c->plot_y));
        if (strcmp(known[i].name, "kind") == 0 && kvl_names_find(c->plot_kind, figure_kinds, 3) < 0)
            return unknown(c, item->line, item->column, "kind of figure", c->plot_kind,
                           figure_kinds, 3);
    }
    return KVL_OK;
}

/* ---- all ----------------------------------------------------------------------------------------
 */

static kvl_status read_members(kvl_claim *c) {
    size_t n;
    const kvl_member *known = kvl_claim_members(&n);
    const kvl_yaml_node *root = c->yaml.root;
    KVL_TRY(check_keys(c, root, known, n, "member"));
    for (size_t i = 0; i < n; i++) {
        const kvl_yaml_node *node = kvl_yaml_member(root, known[i].name);
        if (!node && known[i].needed)
            return kvl_yaml_fault(&c->yaml, root->line, root->column, "'%s' is missing: %s",
                                  known[i].name, known[i].help);
        if (node && known[i].type <= KVL_MEMBER_FLAG) KVL_TRY(set_scalar(c, &known[i], node));
    }
    KVL_TRY(set_workload(c));
    KVL_TRY(set_axes(c, kvl_yaml_member(root, "axes")));
    KVL_TRY(check_metric(c, kvl_yaml_member(root, "metric"), c->metric));
    KVL_TRY(set_checks(c, kvl_yaml_member(root, "checks")));
    const kvl_yaml_node *plot = kvl_yaml_member(root, "plot");
    return plot ? set_plot(c, plot) : KVL_OK;
}

static void start(const char *path, kvl_claim *claim) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t length = strlen(base);
    memset(claim, 0, sizeof *claim);
    claim->values = kvl_bench_defaults();
    if (length > 5 && strcmp(base + length - 5, ".yaml") == 0) length -= 5;
    snprintf(claim->name, sizeof claim->name, "%.*s", (int)length, base);
}

kvl_status kvl_claim_parse(const char *path, const char *text, size_t bytes, kvl_claim *claim) {
    start(path, claim);
    KVL_TRY(kvl_yaml_parse(path, text, bytes, &claim->yaml));
    return read_members(claim);
}

kvl_status kvl_claim_open(const char *path, kvl_claim *claim) {
    start(path, claim);
    KVL_TRY(kvl_yaml_open(path, &claim->yaml));
    return read_members(claim);
}

void kvl_claim_free(kvl_claim *claim) {
    for (int a = 0; a < KVL_N_AXES; a++) {
        free(claim->axis_texts[a]);
        kvl_axis_values_free(&claim->axis_values[a]);
    }
    free(claim->checks);
    free(claim->plot_by_text);
    kvl_yaml_free(&claim->yaml);
    memset(claim, 0, sizeof *claim);
}

/* ---- rows and findings --------------------------------------------------------------------------
 */

static bool answers(const kvl_claim *claim, const json_t *row) {
    char text[KVL_AXIS_TEXT_BYTES];
    const char *workload = json_string_value(json_object_get(row, "workload"));
    if (!workload || strcmp(workload, claim->kind->name) != 0) return false;
    for (int a = 0; a < KVL_N_AXES; a++) {
        const kvl_axis *axis = kvl_axis_of((kvl_axis_id)a);
        const kvl_axis_values *values = &claim->axis_values[a];
        bool found = values->n == 0;
        kvl_row_axis_text(row, axis->name, text, sizeof text);
        for (size_t i = 0; i < values->n && !found; i++)
            found = axis->numeric ? strtoll(text, NULL, 10) == values->numbers[i]
                                  : strcmp(text, values->names[i]) == 0;
        /* Pages are no axis of an allocator without them. */
        if (a == KVL_AXIS_PAGE_TOKENS && strcmp(text, "0") == 0) found = true;
        if (!found) return false;
    }
    return true;
}

json_t *kvl_claim_select(const kvl_claim *claim, const json_t *rows) {
    json_t *chosen = json_array();
    for (size_t i = 0; chosen && i < json_array_size(rows); i++)
        if (answers(claim, json_array_get(rows, i)))
            json_array_append(chosen, json_array_get(rows, i));
    return chosen;
}

kvl_status kvl_claim_evaluate(const kvl_claim *claim, const json_t *rows, kvl_claim_result *out) {
    memset(out, 0, sizeof *out);
    out->checks = calloc(claim->n_checks + 1, sizeof *out->checks);
    kvl_status status =
        out->checks ? kvl_groups_make(rows, &out->groups) : kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status == KVL_OK) kvl_groups_sort(&out->groups); /* rounds ran in random order */
    for (size_t i = 0; status == KVL_OK && i < claim->n_checks; i++) {
        status = kvl_check_evaluate(&claim->checks[i], &out->groups, &out->checks[i]);
        out->n_checks = i + 1;
        kvl_finding finding = out->checks[i].finding;
        if (finding == KVL_HOLDS_NOT || (finding == KVL_CANNOT_TELL && out->finding == KVL_HOLDS))
            out->finding = finding;
    }
    if (status != KVL_OK) kvl_claim_result_free(out);
    return status;
}

void kvl_claim_result_free(kvl_claim_result *result) {
    for (size_t i = 0; i < result->n_checks; i++) kvl_check_result_free(&result->checks[i]);
    free(result->checks);
    kvl_groups_free(&result->groups);
    memset(result, 0, sizeof *result);
}

/* ---- schema -------------------------------------------------------------------------------------
 */

static json_t *one_or_list(void) {
    json_t *scalar = json_pack("{s:[s,s]}", "type", "string", "number");
    return json_pack("{s:[O,{s:s,s:o}]}", "anyOf", scalar, "type", "array", "items", scalar);
}

static json_t *member_schema(const kvl_member *member) {
    static const char *const types[] = {"string", "integer", "number", "boolean"};
    json_t *out = json_object();
    if (member->type <= KVL_MEMBER_FLAG)
        json_object_set_new(out, "type", json_string(types[member->type]));
    if (member->max > member->min) {
        json_object_set_new(out, "minimum", json_real(member->min));
        json_object_set_new(out, "maximum", json_real(member->max));
    }
    json_object_set_new(out, "description", json_string(member->help));
    return out;
}

/* A strict map: members alone, those needed required. */
static json_t *map_schema(const kvl_member *list, size_t n) {
    json_t *properties = json_object(), *needed = json_array();
    for (size_t i = 0; i < n; i++) {
        json_object_set_new(properties, list[i].name, member_schema(&list[i]));
        if (list[i].needed) json_array_append_new(needed, json_string(list[i].name));
    }
    json_t *out = json_pack("{s:s,s:b,s:o}", "type", "object", "additionalProperties", 0,
                            "properties", properties);
    if (json_array_size(needed)) json_object_set(out, "required", needed);
    json_decref(needed);
    return out;
}

json_t *kvl_claim_schema(void) {
    size_t n, n_plot;
    const kvl_member *list = kvl_claim_members(&n), *plot = kvl_claim_plot_members(&n_plot);
    json_t *out = map_schema(list, n), *axes = json_object(), *names = json_array();
    json_t *properties = json_object_get(out, "properties");
    json_object_set_new(out, "$schema",
                        json_string("https://json-schema.org/draft/2020-12/schema"));
    json_object_set_new(out, "title", json_string("kvlab experiment"));
    for (int a = 0; a < KVL_N_AXES; a++)
        json_object_set_new(axes, kvl_axis_of((kvl_axis_id)a)->name, one_or_list());
    json_object_update_new(json_object_get(properties, "axes"),
                           json_pack("{s:s,s:b,s:o}", "type", "object", "additionalProperties", 0,
                                     "properties", axes));
    for (int i = 0; i < N_KINDS; i++) json_array_append_new(names, json_string(kinds[i]->name));
    json_object_set_new(json_object_get(properties, "workload"), "enum", names);
    json_object_update_new(json_object_get(properties, "checks"),
                           json_pack("{s:s,s:i,s:i,s:{s:s}}", "type", "array", "minItems", 1,
                                     "maxItems", KVL_CLAIM_MAX_CHECKS, "items", "type", "string"));
    json_t *figure = map_schema(plot, n_plot);
    json_object_set_new(json_object_get(figure, "properties"), "by", one_or_list());
    json_object_update(json_object_get(properties, "plot"), figure);
    json_decref(figure);
    return out;
}
