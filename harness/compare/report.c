/* What a comparison says: lines for people, JSON for programs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/compare/compare.h"

static const char *unit_of(const char *metric) {
    const kvl_name *known = kvl_name_find(metric);
    return known ? known->unit : "";
}

/* Times and rates are faster or slower; bytes, errors and shares better or worse. */
static bool is_speed(const char *metric) {
    static const char *const units[] = {"ms", "us", "s", "tok/s", "GB/s", "GFLOP/s", "req/s", "%"};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(units[i], unit_of(metric)) == 0) return true;
    return false;
}

static const char *word_of(const kvl_comparison *item) {
    if (item->verdict == KVL_VERDICT_FASTER) return is_speed(item->metric) ? "faster" : "better";
    if (item->verdict == KVL_VERDICT_SLOWER) return is_speed(item->metric) ? "slower" : "worse";
    return kvl_verdict_name(item->verdict);
}

static void unsure_text(const kvl_comparison *item, kvl_buffer *out) {
    kvl_buffer_text(out, "cannot tell");
    if (item->reason[0])
        kvl_buffer_printf(out, ": %s", item->reason);
    else if (item->more_rounds == KVL_ROUNDS_UNKNOWN)
        kvl_buffer_printf(out, ", more than %d rounds would be needed", KVL_ROUNDS_MAX);
    else
        kvl_buffer_printf(out, ", %ld more rounds would settle it", item->more_rounds);
}

static void line(const kvl_comparison *item, kvl_buffer *out) {
    const char *unit = unit_of(item->metric);
    kvl_buffer_printf(out, "%s: ", item->pair->label);
    if (item->metric[0]) kvl_buffer_printf(out, "%s ", item->metric);
    if (isfinite(item->a_median) && isfinite(item->b_median))
        kvl_buffer_printf(out, "%.4g -> %.4g%s%s, ", item->a_median, item->b_median,
                          unit[0] ? " " : "", unit);
    if (item->change.exists && item->change.hi < 1000 && item->change.lo > 0.001)
        kvl_buffer_printf(out, "x%.3f (%.3f to %.3f), ", item->change.ratio, item->change.lo,
                          item->change.hi);
    else if (item->change.exists)
        kvl_buffer_printf(out, "x%.3f (any), ", item->change.ratio);
    if (item->verdict == KVL_VERDICT_UNSURE)
        unsure_text(item, out);
    else
        kvl_buffer_printf(out, "%s%s%s", word_of(item), item->reason[0] ? ": " : "", item->reason);
    kvl_buffer_text(out, "\n");
}

void kvl_compare_text(const kvl_compare_result *result, kvl_buffer *out) {
    for (size_t i = 0; i < result->n; i++) line(&result->items[i], out);
    if (result->signal) return;
    kvl_buffer_printf(out, "%s:",
                      result->verdict == KVL_VERDICT_UNSURE ? "cannot tell"
                                                            : kvl_verdict_name(result->verdict));
    for (int v = 0; v < KVL_N_VERDICTS; v++)
        if (result->counts[v])
            kvl_buffer_printf(out, " %zu %s,", result->counts[v], kvl_verdict_name(v));
    kvl_buffer_printf(out, " by %.1f %% intervals of B/A\n", 100 * KVL_COMPARE_CONFIDENCE);
}

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *item_json(const kvl_comparison *item) {
    const kvl_change *change = &item->change;
    bool known = item->metric[0] && change->exists;
    json_t *out = json_object();
    json_object_set_new(out, "place", json_string(item->pair->label));
    json_object_set_new(out, "trial_a",
                        item->pair->a ? json_string(item->pair->a->trial) : json_null());
    json_object_set_new(out, "trial_b",
                        item->pair->b ? json_string(item->pair->b->trial) : json_null());
    json_object_set_new(out, "metric", item->metric[0] ? json_string(item->metric) : json_null());
    json_object_set_new(out, "unit", json_string(unit_of(item->metric)));
    json_object_set_new(out, "better",
                        item->better == KVL_BETTER_HIGHER  ? json_string("higher")
                        : item->better == KVL_BETTER_LOWER ? json_string("lower")
                                                           : json_null());
    json_object_set_new(out, "effect_pct", json_real(100 * item->effect));
    json_object_set_new(out, "median_a", number(item->a_median));
    json_object_set_new(out, "median_b", number(item->b_median));
    json_object_set_new(out, "ratio", known ? number(change->ratio) : json_null());
    json_object_set_new(out, "ratio_lo", known ? number(change->lo) : json_null());
    json_object_set_new(out, "ratio_hi", known ? number(change->hi) : json_null());
    json_object_set_new(out, "rounds_a", json_integer((json_int_t)change->n_a));
    json_object_set_new(out, "rounds_b", json_integer((json_int_t)change->n_b));
    json_object_set_new(out, "paired", json_boolean(change->paired));
    json_object_set_new(out, "verdict", json_string(kvl_verdict_name(item->verdict)));
    json_object_set_new(out, "more_rounds",
                        item->verdict == KVL_VERDICT_UNSURE &&
                                item->more_rounds != KVL_ROUNDS_UNKNOWN
                            ? json_integer(item->more_rounds)
                            : json_null());
    json_object_set_new(out, "reason", json_string(item->reason));
    return out;
}

json_t *kvl_compare_json(const kvl_compare_result *result, int exit_code) {
    json_t *out = json_object(), *counts = json_object(), *items = json_array();
    for (int v = 0; v < KVL_N_VERDICTS; v++)
        if (v != KVL_VERDICT_CROSSED)
            json_object_set_new(counts, kvl_verdict_name(v),
                                json_integer((json_int_t)result->counts[v]));
    for (size_t i = 0; i < result->n; i++)
        json_array_append_new(items, item_json(&result->items[i]));
    json_object_set_new(out, "schema_version", json_integer(KVL_COMPARE_SCHEMA));
    json_object_set_new(out, "command", json_string("compare"));
    json_object_set_new(out, "verdict", json_string(kvl_verdict_name(result->verdict)));
    json_object_set_new(out, "exit_code", json_integer(exit_code));
    json_object_set_new(out, "interval_pct", json_real(100 * KVL_COMPARE_CONFIDENCE));
    json_object_set_new(out, "interleaved", json_boolean(!result->other_run));
    json_object_set_new(out, "counts", counts);
    json_object_set_new(out, "comparisons", items);
    return out;
}
