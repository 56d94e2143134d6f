#define _GNU_SOURCE
#include "harness/figures/ratio.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/figures/figure.h"
#include "harness/figures/stats.h"

static const char base_system[] = "kvlab";

const char *kvl_ratio_metric(const kvl_ratio_entry *entry) {
    const char *name = json_string_value(
        json_object_get(json_object_get(entry->group->rows[0], "effective"), "compared_metric"));
    return name ? name : "";
}

static bool lower_is_better(const kvl_ratio_entry *entry) {
    const char *better = json_string_value(
        json_object_get(json_object_get(entry->group->rows[0], "effective"), "compared_better"));
    return better && strcmp(better, "lower") == 0;
}

static json_int_t round_of(const json_t *row) {
    return json_integer_value(json_object_get(row, "round"));
}

static double value_of(const json_t *row, const char *metric) {
    const json_t *value = json_object_get(json_object_get(row, "metrics"), metric);
    return kvl_row_is_ok(row) && json_is_number(value) ? json_number_value(value) : NAN;
}

/* Ratio of each round that both have; returns how many. */
static size_t pair_ratios(const kvl_group *base, const kvl_group *peer, const char *metric,
                          bool lower, double *ratios) {
    size_t n = 0;
    for (size_t i = 0; i < peer->n_rows; i++) {
        for (size_t j = 0; j < base->n_rows; j++) {
            if (round_of(base->rows[j]) != round_of(peer->rows[i])) continue;
            double own = value_of(base->rows[j], metric), other = value_of(peer->rows[i], metric);
            double ratio = lower ? other / own : own / other;
            if (isfinite(ratio) && ratio > 0) ratios[n++] = ratio;
        }
    }
    return n;
}

/* A trial that did not end ok gives way to one of its system that did (a peer installed later). */
static kvl_status add_group(kvl_ratios *ratios, const kvl_group *group) {
    kvl_ratio_entry entry = {.group = group};
    kvl_figure_axis_text(group, "work", entry.work, sizeof entry.work);
    kvl_figure_axis_text(group, "system", entry.system, sizeof entry.system);
    if (!entry.work[0] || !entry.system[0]) return KVL_OK;
    entry.is_base = strcmp(entry.system, base_system) == 0;
    for (size_t i = 0; i < ratios->n; i++) {
        kvl_ratio_entry *other = &ratios->items[i];
        if (strcmp(other->work, entry.work) != 0) continue;
        if (strcmp(kvl_ratio_metric(other), kvl_ratio_metric(&entry)) != 0)
            return kvl_fail(KVL_ERR_INPUT,
                            "work '%s' is compared by %s in one row, by %s in another", entry.work,
                            kvl_ratio_metric(other), kvl_ratio_metric(&entry));
        if (strcmp(other->system, entry.system) != 0) continue;
        bool was_ok = strcmp(kvl_group_outcome(other->group), "ok") == 0;
        bool is_ok = strcmp(kvl_group_outcome(group), "ok") == 0;
        if (was_ok && is_ok)
            return kvl_fail(KVL_ERR_INPUT,
                            "'%s' of %s was measured as trials %s and %s (another build, host or "
                            "seed): pick one with --where",
                            entry.work, entry.system, other->group->trial, group->trial);
        if (is_ok || !was_ok) *other = entry;
        return KVL_OK;
    }
    ratios->items[ratios->n++] = entry;
    return KVL_OK;
}

static const kvl_ratio_entry *base_of(const kvl_ratios *ratios, const char *work) {
    for (size_t i = 0; i < ratios->n; i++) {
        const kvl_ratio_entry *entry = &ratios->items[i];
        if (entry->is_base && strcmp(entry->work, work) == 0) return entry;
    }
    return NULL;
}

static kvl_status measure(const kvl_ratios *ratios, kvl_ratio_entry *entry, bool bootstrap) {
    const char *metric = kvl_ratio_metric(entry);
    const kvl_ratio_entry *base = base_of(ratios, entry->work);
    double *values = malloc((entry->group->n_rows + 1) * sizeof *values);
    if (!values) return kvl_fail(KVL_ERR_OOM, "out of memory");
    entry->n_rounds = kvl_group_metric(entry->group, metric, values);
    entry->median = kvl_quantile(values, entry->n_rounds, 0.5);
    entry->ratio = entry->lo = entry->hi = NAN;
    if (base && !entry->is_base) {
        entry->n_pairs =
            pair_ratios(base->group, entry->group, metric, lower_is_better(entry), values);
        entry->ratio = kvl_quantile(values, entry->n_pairs, 0.5);
        entry->lo = kvl_quantile(values, entry->n_pairs, 0);
        entry->hi = kvl_quantile(values, entry->n_pairs, 1);
        if (bootstrap && entry->n_pairs)
            kvl_median_interval(values, entry->n_pairs, &entry->lo, &entry->hi);
    }
    free(values);
    return KVL_OK;
}

/* Place of a work item: that of its first row in the files. */
static size_t place_of(const kvl_ratios *order, const char *work) {
    size_t i = 0;
    while (i < order->n && strcmp(order->items[i].work, work) != 0) i++;
    return i;
}

static int compare(const void *a, const void *b, void *order) {
    const kvl_ratio_entry *p = a, *q = b;
    size_t x = place_of(order, p->work), y = place_of(order, q->work);
    if (x != y) return x < y ? -1 : 1;
    if (p->is_base != q->is_base) return p->is_base ? -1 : 1;
    bool has_p = isfinite(p->median), has_q = isfinite(q->median);
    if (has_p != has_q) return has_p ? -1 : 1;
    if (has_p && p->median != q->median)
        return ((p->median > q->median) != lower_is_better(p)) ? -1 : 1;
    return strcmp(p->system, q->system);
}

static kvl_status sort(kvl_ratios *ratios) {
    kvl_ratios order = {malloc((ratios->n + 1) * sizeof *order.items), ratios->n};
    if (!order.items) return kvl_fail(KVL_ERR_OOM, "out of memory");
    memcpy(order.items, ratios->items, ratios->n * sizeof *order.items);
    qsort_r(ratios->items, ratios->n, sizeof *ratios->items, compare, &order);
    free(order.items);
    for (size_t i = 0; i < ratios->n; i++) {
        kvl_ratio_entry *entry = &ratios->items[i];
        bool first = i == 0 || strcmp(entry[-1].work, entry->work) != 0;
        bool follows_base = !first && entry[-1].is_base;
        entry->is_best_peer = !entry->is_base && isfinite(entry->median) && (first || follows_base);
    }
    return KVL_OK;
}

kvl_status kvl_ratios_make(const kvl_groups *groups, const char *where, bool bootstrap,
                           kvl_ratios *out) {
    const kvl_group **chosen = NULL;
    size_t n = 0;
    *out = (kvl_ratios){0};
    KVL_TRY(kvl_figure_select(groups, where, &chosen, &n));
    out->items = calloc(n + 1, sizeof *out->items);
    kvl_status status = out->items ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    for (size_t i = 0; status == KVL_OK && i < n; i++) status = add_group(out, chosen[i]);
    free(chosen);
    if (status == KVL_OK && out->n == 0)
        status =
            kvl_fail(KVL_ERR_INPUT, "no row names a work item and a system (axes.work): ratios "
                                    "need rows of experiments/peers");
    for (size_t i = 0; status == KVL_OK && i < out->n; i++)
        status = measure(out, &out->items[i], bootstrap);
    if (status == KVL_OK) status = sort(out);
    if (status != KVL_OK) kvl_ratios_free(out);
    return status;
}

void kvl_ratios_free(kvl_ratios *ratios) {
    free(ratios->items);
    *ratios = (kvl_ratios){0};
}
