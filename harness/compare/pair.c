#define _GNU_SOURCE
#include "harness/compare/pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buffer.h"
#include "core/names.h"
#include "harness/figures/figure.h"
#include "harness/figures/figure_axes.h"

/* From so few rounds a spread of differences is a worse guess than that of two samples. */
enum { MAX_AXES = 96, TEXT = 160, MIN_PAIRED = 5 };

/* What no axis of a sweep says, and rows must not be mixed over either. */
static const char *const others[] = {"workload", "seed", "chunk", "deterministic",
                                     "text",     "host", "build"};
/* Options that are no axes, by their name in effective{}. */
static const char *const settings[] = {"nf4_block", "step_ms", "clock"};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

typedef struct axes {
    const char *names[MAX_AXES];
    size_t n;
} axes;

typedef struct selection {
    const kvl_group **groups;
    char **places; /* [n] values of the axes that pairs are made on, as one text */
    size_t n;
} selection;

typedef struct pairing {
    const kvl_side *sides[2];
    selection chosen[2];
    axes all, by, across, picked, key, shown; /* picked: named by a `where` */
} pairing;

/* ---- names of axes ----------------------------------------------------------------------------
 */

static bool has(const axes *list, const char *name) {
    return kvl_names_find(name, list->names, list->n) >= 0;
}

static void add(axes *list, const char *name) {
    if (list->n < MAX_AXES && !has(list, name)) list->names[list->n++] = name;
}

/* Every axis of any row, whatever its workload, then the others. */
static void collect_axes(pairing *p) {
    for (int s = 0; s < 2; s++) {
        for (size_t i = 0; i < p->sides[s]->groups->n; i++) {
            const char *name;
            json_t *value;
            const json_t *row = p->sides[s]->groups->items[i].rows[0];
            json_object_foreach(json_object_get(row, "axes"), name, value) add(&p->all, name);
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) add(&p->all, others[i]);
    for (size_t i = 0; i < N_SETTINGS; i++) add(&p->all, settings[i]);
}

static kvl_status find_axis(const pairing *p, const char *option, const char *text, size_t length,
                            const char **name) {
    char typed[TEXT], line[768];
    snprintf(typed, sizeof typed, "%.*s", (int)length, text);
    int index = kvl_names_find(typed, p->all.names, p->all.n);
    if (index < 0) {
        kvl_names_unknown(line, sizeof line, "axis", typed, p->all.names, p->all.n);
        return kvl_fail(KVL_ERR_INPUT, "%s: %s", option, line);
    }
    *name = p->all.names[index];
    return KVL_OK;
}

static kvl_status parse_list(const pairing *p, const char *option, const char *text, axes *out) {
    for (const char *part = text; part; part += strcspn(part, ",") + 1) {
        size_t length = strcspn(part, ",");
        const char *name;
        KVL_TRY(find_axis(p, option, part, length, &name));
        add(out, name);
        if (part[length] == '\0') break;
    }
    return KVL_OK;
}

/* ---- values -----------------------------------------------------------------------------------
 */

static void setting_text(const kvl_group *group, const char *name, char out[TEXT]) {
    const json_t *effective = json_object_get(group->rows[0], "effective");
    const json_t *value = json_object_get(effective, name);
    if (json_is_string(value))
        snprintf(out, TEXT, "%s", json_string_value(value));
    else if (json_is_number(value))
        snprintf(out, TEXT, "%.9g", json_number_value(value));
}

/* A model is its files' digest: a path moves. */
static void value_of(const kvl_group *group, const char *name, char out[TEXT]) {
    out[0] = '\0';
    if (kvl_names_find(name, settings, N_SETTINGS) >= 0) {
        setting_text(group, name, out);
        return;
    }
    if (strcmp(name, "model") == 0) kvl_figure_axis_text(group, "model_digest", out, TEXT);
    if (!out[0]) kvl_figure_axis_text(group, name, out, TEXT);
}

/* As a user would type it. */
static void shown_value(const kvl_group *group, const char *name, char out[TEXT]) {
    out[0] = '\0';
    if (kvl_names_find(name, settings, N_SETTINGS) >= 0)
        setting_text(group, name, out);
    else
        kvl_figure_axis_text(group, name, out, TEXT);
    if (!out[0]) snprintf(out, TEXT, "none");
}

static bool is_same(const kvl_group *a, const kvl_group *b, const char *name) {
    char x[TEXT], y[TEXT];
    value_of(a, name, x);
    value_of(b, name, y);
    return strcmp(x, y) == 0;
}

/* A trial of `s` that differs from the first one in `name`; NULL when none does. */
static const kvl_group *first_other(const selection *s, const char *name) {
    for (size_t i = 1; i < s->n; i++)
        if (!is_same(s->groups[0], s->groups[i], name)) return s->groups[i];
    return NULL;
}

/* ---- selection: where -------------------------------------------------------------------------
 */

static kvl_status keep(pairing *p, int side, const char *part, size_t length) {
    const char *equals = memchr(part, '=', length), *name = NULL;
    char text[TEXT];
    const char *what = p->sides[side]->name;
    selection *s = &p->chosen[side];
    if (!equals)
        return kvl_fail(KVL_ERR_INPUT, "%s: '%.*s': AXIS=VALUE is needed", what, (int)length, part);
    KVL_TRY(find_axis(p, what, part, (size_t)(equals - part), &name));
    size_t kept = 0, n_value = length - (size_t)(equals - part) - 1;
    bool digest = strcmp(name, "build") == 0 || strcmp(name, "host") == 0;
    for (size_t i = 0; i < s->n; i++) {
        kvl_figure_axis_text(s->groups[i], name, text, sizeof text);
        bool fits = digest ? n_value >= 4 : strlen(text) == n_value; /* a digest by its beginning */
        if (fits && strncmp(text, equals + 1, n_value) == 0) s->groups[kept++] = s->groups[i];
    }
    s->n = kept;
    if (kept == 0)
        return kvl_fail(KVL_ERR_INPUT, "%s: %.*s: no trial has it", what, (int)length, part);
    add(&p->picked, name);
    return KVL_OK;
}

static kvl_status choose(pairing *p, int side) {
    const kvl_side *from = p->sides[side];
    selection *s = &p->chosen[side];
    s->groups = calloc(from->groups->n + 1, sizeof *s->groups);
    if (!s->groups) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (size_t i = 0; i < from->groups->n; i++) s->groups[s->n++] = &from->groups->items[i];
    for (const char *part = from->where; part; part += strcspn(part, ",") + 1) {
        size_t length = strcspn(part, ",");
        KVL_TRY(keep(p, side, part, length));
        if (part[length] == '\0') break;
    }
    return KVL_OK;
}

/* ---- the law ----------------------------------------------------------------------------------
 */

/* Pages, reservations and the like belong to their allocator. */
static bool is_of_allocator(const char *name) {
    const char *owner = kvl_figure_axis_owner(name);
    return owner && strcmp(owner, "allocator") == 0;
}

static bool may_differ(const pairing *p, const char *name) {
    if (has(&p->across, name) || strcmp(name, "build") == 0) return true;
    /* One value picked on each side is what is compared; else `where` only narrowed the trials. */
    if (has(&p->picked, name))
        return !first_other(&p->chosen[0], name) && !first_other(&p->chosen[1], name);
    return (is_of_allocator(name) && may_differ(p, "allocator")) ||
           (strcmp(name, "nf4_block") == 0 && may_differ(p, "weights")); /* blocks, to a format */
}

static kvl_status refuse(const kvl_group *a, const kvl_group *b, const char *name,
                         const char *where) {
    char x[TEXT], y[TEXT];
    shown_value(a, name, x);
    shown_value(b, name, y);
    if (strcmp(name, "host") == 0)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s come from two machines (hosts %.6s and %.6s): measure both on one, or "
                        "name it: --across host",
                        where, x, y);
    return kvl_fail(KVL_ERR_INPUT,
                    "%s differ in %s (%s and %s): name it as what is compared (--across %s), or "
                    "pick one value (FILE:%s=VALUE)",
                    where, name, x, y, name, name);
}

/* Does some value stand on both sides? */
static bool meet(const pairing *p, const char *name) {
    for (size_t i = 0; i < p->chosen[0].n; i++)
        for (size_t j = 0; j < p->chosen[1].n; j++)
            if (is_same(p->chosen[0].groups[i], p->chosen[1].groups[j], name)) return true;
    return false;
}

static kvl_status settle_axis(pairing *p, const char *name, bool by_given) {
    const selection *a = &p->chosen[0], *b = &p->chosen[1];
    const kvl_group *in_a = first_other(a, name), *in_b = first_other(b, name);
    bool apart = !is_same(a->groups[0], b->groups[0], name);
    if (may_differ(p, name)) return KVL_OK;
    bool pairs_on = by_given ? has(&p->by, name) : strcmp(name, "host") != 0;
    if (!pairs_on) {
        if (in_a) return refuse(a->groups[0], in_a, name, "trials of A");
        if (in_b) return refuse(b->groups[0], in_b, name, "trials of B");
        return apart ? refuse(a->groups[0], b->groups[0], name, "A and B") : KVL_OK;
    }
    if (!meet(p, name)) return refuse(a->groups[0], b->groups[0], name, "A and B");
    add(&p->key, name);
    if (in_a || in_b || apart) add(&p->shown, name);
    return KVL_OK;
}

/* ---- pairs ------------------------------------------------------------------------------------
 */

static kvl_status set_places(const pairing *p, selection *s) {
    char text[TEXT];
    s->places = calloc(s->n + 1, sizeof *s->places);
    if (!s->places) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (size_t i = 0; i < s->n; i++) {
        kvl_buffer place = {0};
        for (size_t k = 0; k < p->key.n; k++) {
            value_of(s->groups[i], p->key.names[k], text);
            kvl_buffer_printf(&place, "%s\n", text);
        }
        if (!place.data) kvl_buffer_text(&place, "\n");
        s->places[i] = place.data;
        if (place.failed || !place.data) return kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    return KVL_OK;
}

static void free_selection(selection *s) {
    for (size_t i = 0; s->places && i < s->n; i++) free(s->places[i]);
    free(s->places);
    free(s->groups);
}

static void label(const pairing *p, const kvl_group *group, char *out, size_t bytes) {
    char text[TEXT];
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < p->shown.n && n < bytes; i++) {
        shown_value(group, p->shown.names[i], text);
        int wrote = snprintf(out + n, bytes - n, "%s%s %s", i ? ", " : "", p->shown.names[i], text);
        n += wrote > 0 ? (size_t)wrote : 0;
    }
    if (!p->shown.n) snprintf(out, bytes, "all axes equal");
}

/* What is compared, in front of the place: "attention eager -> flash, prompt 512". */
static void label_pair(const pairing *p, kvl_pair *pair) {
    char place[200], x[TEXT], y[TEXT];
    size_t n = 0;
    label(p, pair->a ? pair->a : pair->b, place, sizeof place);
    for (size_t i = 0; pair->a && pair->b && i < p->all.n && n < sizeof pair->label; i++) {
        const char *name = p->all.names[i];
        bool shown = may_differ(p, name) && strcmp(name, "build") != 0 && !is_of_allocator(name) &&
                     strcmp(name, "nf4_block") != 0 && !is_same(pair->a, pair->b, name);
        if (!shown) continue;
        shown_value(pair->a, name, x);
        shown_value(pair->b, name, y);
        int wrote = snprintf(pair->label + n, sizeof pair->label - n, "%s%s %s -> %s",
                             n ? ", " : "", name, x, y);
        n += wrote > 0 ? (size_t)wrote : 0;
    }
    if (n == 0)
        snprintf(pair->label, sizeof pair->label, "%s", place);
    else if (p->shown.n && n < sizeof pair->label)
        snprintf(pair->label + n, sizeof pair->label - n, ", %.180s", place);
}

/* Two trials of a side in one place: which of them is meant? */
static kvl_status check_alone(const pairing *p, int side) {
    const selection *s = &p->chosen[side];
    char place[256], x[TEXT], y[TEXT];
    for (size_t i = 0; i < s->n; i++) {
        for (size_t j = i + 1; j < s->n; j++) {
            if (strcmp(s->places[i], s->places[j]) != 0) continue;
            const char *name = "trial"; /* equal in all that is known */
            for (size_t k = 0; k < p->all.n; k++)
                if (!is_same(s->groups[i], s->groups[j], p->all.names[k])) name = p->all.names[k];
            label(p, s->groups[i], place, sizeof place);
            shown_value(s->groups[i], name, x);
            shown_value(s->groups[j], name, y);
            return kvl_fail(KVL_ERR_INPUT,
                            "%s holds two trials of one place (%s) that differ in %s (%s and %s): "
                            "pick one with FILE:%s=VALUE",
                            p->sides[side]->name, place, name, x, y, name);
        }
    }
    return KVL_OK;
}

static kvl_status join(const pairing *p, kvl_pairs *out) {
    const selection *a = &p->chosen[0], *b = &p->chosen[1];
    out->items = calloc(a->n + b->n + 1, sizeof *out->items);
    bool *taken = calloc(b->n + 1, sizeof *taken);
    if (!out->items || !taken) {
        free(taken);
        return kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    for (size_t i = 0; i < a->n; i++) {
        kvl_pair *pair = &out->items[out->n++];
        pair->a = a->groups[i];
        for (size_t j = 0; j < b->n && !pair->b; j++) {
            if (taken[j] || strcmp(a->places[i], b->places[j]) != 0) continue;
            pair->b = b->groups[j];
            taken[j] = true;
        }
        label_pair(p, pair);
    }
    for (size_t j = 0; j < b->n; j++) {
        if (taken[j]) continue;
        kvl_pair *pair = &out->items[out->n++];
        pair->b = b->groups[j];
        label_pair(p, pair);
    }
    free(taken);
    return KVL_OK;
}

static kvl_status make(pairing *p, const char *by, const char *across, kvl_pairs *out) {
    collect_axes(p);
    KVL_TRY(parse_list(p, "--by", by, &p->by));
    KVL_TRY(parse_list(p, "--across", across, &p->across));
    for (int s = 0; s < 2; s++) KVL_TRY(choose(p, s));
    for (size_t i = 0; i < p->by.n; i++)
        if (may_differ(p, p->by.names[i]))
            return kvl_fail(KVL_ERR_INPUT, "--by %s: it is what A and B differ in", p->by.names[i]);
    for (size_t i = 0; i < p->all.n; i++) KVL_TRY(settle_axis(p, p->all.names[i], by != NULL));
    for (int s = 0; s < 2; s++) KVL_TRY(set_places(p, &p->chosen[s]));
    for (int s = 0; s < 2; s++) KVL_TRY(check_alone(p, s));
    return join(p, out);
}

kvl_status kvl_pairs_make(const kvl_side *a, const kvl_side *b, const char *by, const char *across,
                          kvl_pairs *out) {
    *out = (kvl_pairs){0};
    pairing *p = calloc(1, sizeof *p);
    if (!p) return kvl_fail(KVL_ERR_OOM, "out of memory");
    p->sides[0] = a, p->sides[1] = b;
    kvl_status status = make(p, by, across, out);
    free_selection(&p->chosen[0]);
    free_selection(&p->chosen[1]);
    free(p);
    if (status != KVL_OK) kvl_pairs_free(out);
    return status;
}

void kvl_pairs_free(kvl_pairs *pairs) {
    free(pairs->items);
    *pairs = (kvl_pairs){0};
}

/* ---- rounds of a pair -------------------------------------------------------------------------
 */

static const json_t *value_in(const json_t *row, const char *metric) {
    const json_t *value = json_object_get(json_object_get(row, "metrics"), metric);
    return kvl_row_is_ok(row) && json_is_number(value) ? value : NULL;
}

/* The value of `group` in the run and round of `row`; NULL when it has none. */
static const json_t *partner(const kvl_group *group, const json_t *row, const char *metric) {
    const char *run = json_string_value(json_object_get(row, "run"));
    json_int_t round = json_integer_value(json_object_get(row, "round"));
    for (size_t i = 0; run && i < group->n_rows; i++) {
        const char *other = json_string_value(json_object_get(group->rows[i], "run"));
        if (other && strcmp(run, other) == 0 &&
            json_integer_value(json_object_get(group->rows[i], "round")) == round)
            return value_in(group->rows[i], metric);
    }
    return NULL;
}

bool kvl_pair_values(const kvl_pair *pair, const char *metric, double *a, size_t *n_a, double *b,
                     size_t *n_b) {
    size_t n = 0;
    *n_a = kvl_group_metric(pair->a, metric, a);
    *n_b = kvl_group_metric(pair->b, metric, b);
    size_t fewer = *n_a < *n_b ? *n_a : *n_b;
    for (size_t i = 0; i < pair->a->n_rows; i++)
        n += value_in(pair->a->rows[i], metric) && partner(pair->b, pair->a->rows[i], metric);
    if (n < MIN_PAIRED || n * 4 < fewer * 3) return false;
    n = 0;
    for (size_t i = 0; i < pair->a->n_rows; i++) {
        const json_t *x = value_in(pair->a->rows[i], metric);
        const json_t *y = x ? partner(pair->b, pair->a->rows[i], metric) : NULL;
        if (y) a[n] = json_number_value(x), b[n++] = json_number_value(y);
    }
    *n_a = *n_b = n;
    return true;
}
