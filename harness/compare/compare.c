#define _GNU_SOURCE
#include "harness/compare/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/names.h"
#include "harness/exit.h"

enum { MAX_METRICS = 64 };

typedef struct metric {
    char name[64];
    kvl_better better;
    double effect;
    bool used;
} metric;

typedef struct comparing {
    const kvl_compare_options *options;
    kvl_compare_result *out;
    metric metrics[MAX_METRICS];
    size_t n_metrics;
    size_t capacity;
    double *a, *b; /* values of one pair's rounds */
} comparing;

static const char *const verdicts[KVL_N_VERDICTS] = {
    [KVL_VERDICT_SAME] = "same",       [KVL_VERDICT_FASTER] = "faster",
    [KVL_VERDICT_SLOWER] = "slower",   [KVL_VERDICT_UNSURE] = "unsure",
    [KVL_VERDICT_MISSING] = "missing", [KVL_VERDICT_FAILED] = "failed",
    [KVL_VERDICT_NEW] = "new",         [KVL_VERDICT_CROSSED] = "crossed"};

const char *kvl_verdict_name(kvl_verdict verdict) {
    return (unsigned)verdict < KVL_N_VERDICTS ? verdicts[verdict] : "?";
}

/* ---- which metrics ------------------------------------------------------------------------------
 */

/* What each workload is asked about first: the metrics that are compared when none is named. */
static const char *const defaults[] = {
    "prefill_tok_s", "decode_tok_s", "time_us",        "mean_kld",    "ppl",         "nrmse",
    "output_tok_s",  "ttft_p99_ms",  "tail_waste_pct", "page_op_m_s", "operation_ns"};

static kvl_status unknown_metric(const char *option, const char *name) {
    const char *names[256];
    char line[768];
    size_t n = kvl_metric_count() < 256 ? kvl_metric_count() : 256;
    for (size_t i = 0; i < n; i++) names[i] = kvl_metric_at(i)->name;
    const char *near = kvl_names_nearest(name, names, n);
    snprintf(line, sizeof line, "unknown metric '%.60s'%s%s%s (results/README.md lists them)", name,
             near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    return kvl_fail(KVL_ERR_INPUT, "%s: %s", option, line);
}

static kvl_status add_metric(comparing *c, const char *name, size_t length, kvl_better better) {
    if (c->n_metrics == MAX_METRICS)
        return kvl_fail(KVL_ERR_INPUT, "--metric: more than %d metrics", MAX_METRICS);
    metric *m = &c->metrics[c->n_metrics];
    snprintf(m->name, sizeof m->name, "%.*s", (int)length, name);
    const kvl_name *known = kvl_name_find(m->name);
    m->effect = c->options->effect_pct / 100;
    m->better = better ? better : known ? known->better : KVL_BETTER_NONE;
    c->n_metrics++;
    return KVL_OK;
}

/* "decode_tok_s,attention_share:lower" */
static kvl_status parse_metric(comparing *c, const char *part, size_t length) {
    const char *colon = memchr(part, ':', length);
    size_t n = colon ? (size_t)(colon - part) : length;
    kvl_better better = KVL_BETTER_NONE;
    if (colon) {
        char word[16];
        snprintf(word, sizeof word, "%.*s", (int)(length - n - 1), colon + 1);
        better = strcmp(word, "lower") == 0    ? KVL_BETTER_LOWER
                 : strcmp(word, "higher") == 0 ? KVL_BETTER_HIGHER
                                               : KVL_BETTER_NONE;
        if (!better)
            return kvl_fail(KVL_ERR_INPUT, "--metric %.*s: 'lower' or 'higher' comes after the ':'",
                            (int)length, part);
    }
    KVL_TRY(add_metric(c, part, n, better));
    metric *m = &c->metrics[c->n_metrics - 1];
    if (!kvl_name_find(m->name) && !colon) return unknown_metric("--metric", m->name);
    if (!m->better)
        return kvl_fail(KVL_ERR_INPUT,
                        "--metric %s: neither direction of it is better by itself; say which: "
                        "%s:lower or %s:higher",
                        m->name, m->name, m->name);
    return KVL_OK;
}

/* "decode_tok_s=2,ttft_ms=5" */
static kvl_status parse_threshold(comparing *c, const char *part, size_t length) {
    char name[64], *end;
    const char *equals = memchr(part, '=', length);
    double pct = equals ? strtod(equals + 1, &end) : -1;
    if (!equals || end == equals + 1 || end != part + length || !(pct >= 0 && pct < 1e6))
        return kvl_fail(KVL_ERR_INPUT, "--threshold '%.*s': METRIC=PCT is needed, PCT from 0 on",
                        (int)length, part);
    snprintf(name, sizeof name, "%.*s", (int)(equals - part), part);
    for (size_t i = 0; i < c->n_metrics; i++) {
        if (strcmp(c->metrics[i].name, name) != 0) continue;
        c->metrics[i].effect = pct / 100;
        return KVL_OK;
    }
    if (!kvl_name_find(name)) return unknown_metric("--threshold", name);
    return kvl_fail(KVL_ERR_INPUT, "--threshold %s: it is not compared; add it to --metric", name);
}

static kvl_status each_part(comparing *c, const char *list,
                            kvl_status (*take)(comparing *, const char *, size_t)) {
    for (const char *part = list; part; part += strcspn(part, ",") + 1) {
        size_t length = strcspn(part, ",");
        KVL_TRY(take(c, part, length));
        if (part[length] == '\0') break;
    }
    return KVL_OK;
}

static kvl_status choose_metrics(comparing *c) {
    if (c->options->metrics) KVL_TRY(each_part(c, c->options->metrics, parse_metric));
    for (size_t i = 0; !c->options->metrics && i < sizeof defaults / sizeof *defaults; i++)
        KVL_TRY(add_metric(c, defaults[i], strlen(defaults[i]), KVL_BETTER_NONE));
    return each_part(c, c->options->thresholds, parse_threshold);
}

/* ---- one pair -----------------------------------------------------------------------------------
 */

static kvl_comparison *add_item(comparing *c, const kvl_pair *pair, const char *name) {
    kvl_compare_result *out = c->out;
    if (out->n == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 16;
        kvl_comparison *grown = realloc(out->items, capacity * sizeof *grown);
        if (!grown) return NULL;
        out->items = grown;
        c->capacity = capacity;
    }
    kvl_comparison *item = &out->items[out->n++];
    *item = (kvl_comparison){.pair = pair, .a_median = NAN, .b_median = NAN};
    snprintf(item->metric, sizeof item->metric, "%s", name);
    return item;
}

static const char *text_of(const kvl_group *group, const char *member) {
    const char *text = json_string_value(json_object_get(group->rows[0], member));
    return text ? text : "";
}

static bool failed(const char *outcome) {
    return strcmp(outcome, "ok") != 0 && strcmp(outcome, "unsupported") != 0 &&
           strcmp(outcome, "skipped") != 0;
}

/* A side that has nothing to compare. KVL_VERDICT_SAME: both have. */
static kvl_verdict without_values(const kvl_pair *pair, char *reason, size_t bytes) {
    const char *a = pair->a ? kvl_group_outcome(pair->a) : NULL;
    const char *b = pair->b ? kvl_group_outcome(pair->b) : NULL;
    const char *why = pair->b ? text_of(pair->b, "reason") : "";
    if (b && failed(b)) {
        snprintf(reason, bytes, "B ended %s%s%s", b, why[0] ? ": " : "", why);
        return KVL_VERDICT_FAILED;
    }
    if (!a || strcmp(a, "ok") != 0) {
        snprintf(reason, bytes, "A %s%s, B %s", a ? "ended " : "has no such trial", a ? a : "",
                 b ? b : "has none");
        return KVL_VERDICT_NEW;
    }
    if (!b || strcmp(b, "ok") != 0) {
        snprintf(reason, bytes, "B %s%s%s%s", b ? "ended " : "has no such trial", b ? b : "",
                 why[0] ? ": " : "", why);
        return KVL_VERDICT_MISSING;
    }
    return KVL_VERDICT_SAME;
}

static kvl_verdict verdict_of(const kvl_comparison *item) {
    switch (kvl_change_direction(&item->change, item->effect)) {
    case KVL_CHANGE_SAME:
        return KVL_VERDICT_SAME;
    case KVL_CHANGE_UP:
        return item->better == KVL_BETTER_HIGHER ? KVL_VERDICT_FASTER : KVL_VERDICT_SLOWER;
    case KVL_CHANGE_DOWN:
        return item->better == KVL_BETTER_LOWER ? KVL_VERDICT_FASTER : KVL_VERDICT_SLOWER;
    default:
        return KVL_VERDICT_UNSURE;
    }
}

static void explain_unsure(kvl_comparison *item) {
    const kvl_change *change = &item->change;
    size_t fewer = change->n_a < change->n_b ? change->n_a : change->n_b;
    item->more_rounds = kvl_change_more_rounds(change, item->effect, KVL_COMPARE_CONFIDENCE);
    if (!change->exists)
        snprintf(item->reason, sizeof item->reason, "values of 0 or below have no ratio");
    else if (fewer < 2)
        snprintf(item->reason, sizeof item->reason, "one round does not show the spread");
}

static kvl_status compare_metric(comparing *c, const kvl_pair *pair, metric *m) {
    size_t n_a, n_b;
    bool paired = kvl_pair_values(pair, m->name, c->a, &n_a, c->b, &n_b);
    if (n_a == 0 && n_b == 0) return KVL_OK; /* null on both sides: it does not exist here */
    kvl_comparison *item = add_item(c, pair, m->name);
    if (!item) return kvl_fail(KVL_ERR_OOM, "out of memory");
    m->used = true;
    item->better = m->better;
    item->effect = m->effect;
    item->a_median = kvl_group_median(pair->a, m->name);
    item->b_median = kvl_group_median(pair->b, m->name);
    if (n_a == 0 || n_b == 0) {
        item->verdict = n_a ? KVL_VERDICT_MISSING : KVL_VERDICT_NEW;
        snprintf(item->reason, sizeof item->reason, "%s has no value", n_a ? "B" : "A");
        return KVL_OK;
    }
    KVL_TRY(kvl_change_of(c->a, n_a, c->b, n_b, paired, KVL_COMPARE_CONFIDENCE, &item->change));
    item->verdict = verdict_of(item);
    if (item->verdict == KVL_VERDICT_UNSURE) explain_unsure(item);
    if (!paired && strcmp(text_of(pair->a, "run"), text_of(pair->b, "run")) != 0)
        c->out->other_run = true;
    return KVL_OK;
}

static kvl_status compare_pair(comparing *c, const kvl_pair *pair) {
    char reason[160] = "";
    kvl_verdict verdict = without_values(pair, reason, sizeof reason);
    if (verdict != KVL_VERDICT_SAME) {
        kvl_comparison *item = add_item(c, pair, "");
        if (!item) return kvl_fail(KVL_ERR_OOM, "out of memory");
        item->verdict = verdict;
        memcpy(item->reason, reason, sizeof reason);
        return KVL_OK;
    }
    for (size_t i = 0; i < c->n_metrics; i++) KVL_TRY(compare_metric(c, pair, &c->metrics[i]));
    return KVL_OK;
}

/* ---- all ----------------------------------------------------------------------------------------
 */

static kvl_verdict overall(const size_t counts[KVL_N_VERDICTS]) {
    if (counts[KVL_VERDICT_FAILED]) return KVL_VERDICT_FAILED;
    if (counts[KVL_VERDICT_SLOWER])
        return counts[KVL_VERDICT_FASTER] ? KVL_VERDICT_CROSSED : KVL_VERDICT_SLOWER;
    if (counts[KVL_VERDICT_MISSING]) return KVL_VERDICT_MISSING;
    if (counts[KVL_VERDICT_UNSURE]) return KVL_VERDICT_UNSURE;
    if (counts[KVL_VERDICT_FASTER]) return KVL_VERDICT_FASTER;
    return counts[KVL_VERDICT_SAME] ? KVL_VERDICT_SAME : KVL_VERDICT_NEW;
}

/* A metric that was asked for and that no pair has is a typing error, not a success. */
static kvl_status check_used(const comparing *c) {
    char reason[160];
    bool comparable = false;
    for (size_t i = 0; i < c->out->pairs.n && !comparable; i++)
        comparable =
            without_values(&c->out->pairs.items[i], reason, sizeof reason) == KVL_VERDICT_SAME;
    for (size_t i = 0; i < c->n_metrics; i++)
        if (c->options->metrics && comparable && !c->metrics[i].used)
            return kvl_fail(KVL_ERR_INPUT, "--metric %s: no trial has it", c->metrics[i].name);
    return KVL_OK;
}

static size_t most_rows(const kvl_pairs *pairs) {
    size_t most = 1;
    for (size_t i = 0; i < pairs->n; i++) {
        const kvl_pair *pair = &pairs->items[i];
        if (pair->a && pair->a->n_rows > most) most = pair->a->n_rows;
        if (pair->b && pair->b->n_rows > most) most = pair->b->n_rows;
    }
    return most;
}

static kvl_status compare_all(comparing *c) {
    kvl_compare_result *out = c->out;
    for (size_t i = 0; i < out->pairs.n; i++) {
        if (c->options->stop && *c->options->stop) {
            out->signal = *c->options->stop;
            return KVL_OK;
        }
        KVL_TRY(compare_pair(c, &out->pairs.items[i]));
    }
    KVL_TRY(check_used(c));
    for (size_t i = 0; i < out->n; i++) out->counts[out->items[i].verdict]++;
    out->verdict = overall(out->counts);
    return KVL_OK;
}

kvl_status kvl_compare_run(const kvl_side *a, const kvl_side *b, const kvl_compare_options *options,
                           kvl_compare_result *out) {
    int code;
    memset(out, 0, sizeof *out);
    comparing *c = calloc(1, sizeof *c);
    if (!c) return kvl_fail(KVL_ERR_OOM, "out of memory");
    *c = (comparing){.options = options, .out = out};
    kvl_status status = kvl_compare_exit(out, options->fail_on, &code); /* checks the words */
    if (status == KVL_OK) status = choose_metrics(c);
    if (status == KVL_OK) status = kvl_pairs_make(a, b, options->by, options->across, &out->pairs);
    size_t most = most_rows(&out->pairs);
    c->a = malloc(most * sizeof *c->a);
    c->b = malloc(most * sizeof *c->b);
    if (status == KVL_OK && (!c->a || !c->b)) status = kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status == KVL_OK) status = compare_all(c);
    free(c->a);
    free(c->b);
    free(c);
    if (status != KVL_OK) kvl_compare_free(out);
    return status;
}

void kvl_compare_free(kvl_compare_result *result) {
    free(result->items);
    kvl_pairs_free(&result->pairs);
    memset(result, 0, sizeof *result);
}

/* ---- exit code ----------------------------------------------------------------------------------
 */

static int default_exit(const kvl_compare_result *result) {
    const size_t *n = result->counts;
    size_t compared =
        n[KVL_VERDICT_SAME] + n[KVL_VERDICT_FASTER] + n[KVL_VERDICT_SLOWER] + n[KVL_VERDICT_UNSURE];
    if (n[KVL_VERDICT_FAILED]) return KVL_EXIT_TRIALS;
    if (n[KVL_VERDICT_SLOWER]) return KVL_EXIT_NEGATIVE;
    if (compared + n[KVL_VERDICT_MISSING] == 0) return KVL_EXIT_NOTHING;
    return n[KVL_VERDICT_UNSURE] + n[KVL_VERDICT_MISSING] ? KVL_EXIT_CANNOT_TELL : KVL_EXIT_OK;
}

kvl_status kvl_compare_exit(const kvl_compare_result *result, const char *fail_on, int *code) {
    const char *words[KVL_N_VERDICTS + 1];
    char word[32], line[512];
    if (result->signal)
        *code = result->signal == SIGTERM ? KVL_EXIT_SIGTERM : KVL_EXIT_SIGINT;
    else
        *code = default_exit(result);
    if (!fail_on || result->signal) return KVL_OK;
    int fallback = *code;
    *code = fallback == KVL_EXIT_NOTHING ? fallback : KVL_EXIT_OK;
    for (int v = 0; v < KVL_N_VERDICTS; v++) words[v] = verdicts[v];
    words[KVL_N_VERDICTS] = "none";
    for (const char *part = fail_on; part; part += strcspn(part, ",") + 1) {
        size_t length = strcspn(part, ",");
        snprintf(word, sizeof word, "%.*s", (int)length, part);
        int index = kvl_names_find(word, words, KVL_N_VERDICTS + 1);
        if (index < 0) {
            kvl_names_unknown(line, sizeof line, "verdict", word, words, KVL_N_VERDICTS + 1);
            return kvl_fail(KVL_ERR_INPUT, "--fail-on: %s", line);
        }
        bool occurs = index < KVL_N_VERDICTS &&
                      (result->counts[index] > 0 ||
                       (index == KVL_VERDICT_CROSSED && result->verdict == KVL_VERDICT_CROSSED));
        if (occurs && *code == KVL_EXIT_OK) *code = KVL_EXIT_NEGATIVE;
        if (part[length] == '\0') break;
    }
    return KVL_OK;
}
