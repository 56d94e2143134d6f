#include "harness/serve/cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/figures/group.h"

const char *const kvl_cost_names[KVL_COST_FEATURES] = {"step", "token", "sequence", "decode_key",
                                                       "prefill_pair"};
enum { STEP, TOKEN, SEQUENCE, DECODE_KEY, PREFILL_PAIR };

void kvl_cost_features(const kvl_serve_item *items, int32_t n_items,
                       double features[KVL_COST_FEATURES]) {
    memset(features, 0, KVL_COST_FEATURES * sizeof *features);
    features[STEP] = 1;
    for (int32_t i = 0; i < n_items; i++) {
        const kvl_serve_item *it = &items[i];
        double n = it->n_tokens, start = (double)it->start;
        features[TOKEN] += n;
        features[SEQUENCE] += it->emits;
        if (it->decodes)
            features[DECODE_KEY] += start + 1;
        else /* query k of the chunk sees start + k keys, k from 1 */
            features[PREFILL_PAIR] += n * start + n * (n + 1) / 2;
    }
}

static double predict(const kvl_cost *cost, const double features[KVL_COST_FEATURES]) {
    double seconds = 0;
    for (int f = 0; f < KVL_COST_FEATURES; f++) seconds += cost->seconds[f] * features[f];
    return seconds;
}

static kvl_status step(void *user, const kvl_serve_item *items, int32_t n_items, int64_t swapped,
                       int64_t *ns) {
    const kvl_cost *cost = user;
    double features[KVL_COST_FEATURES];
    kvl_cost_features(items, n_items, features);
    double seconds = predict(cost, features) + cost->swap_token * (double)swapped;
    if (!(seconds < 1e6))
        return kvl_fail(KVL_ERR_INPUT, "a step of %d sequences would take %g s", n_items, seconds);
    *ns = (int64_t)(seconds * 1e9) + 1;
    return KVL_OK;
}

kvl_serve_backend kvl_cost_backend(const kvl_cost *cost) {
    return (kvl_serve_backend){.user = (void *)cost, .step = step};
}

/* ---- fit ------------------------------------------------------------------------------------ */

typedef struct point {
    double features[KVL_COST_FEATURES], seconds;
} point;

typedef struct points {
    point *items;
    size_t n;
} points;

static double axis(const json_t *row, const char *name) {
    return json_number_value(json_object_get(json_object_get(row, "axes"), name));
}

/* A prefill of batch x prompt tokens in engine steps of `chunk`, as the engine cuts them: end to
 * end, sequence after sequence. */
static void add_prefill(points *out, double batch, double prompt, double chunk, double seconds) {
    point *p = &out->items[out->n++];
    double steps = ceil(batch * prompt / chunk);
    *p = (point){{steps, batch * prompt, batch, 0, batch * prompt * (prompt + 1) / 2}, seconds};
}

static void add_decode(points *out, double batch, double keys, double seconds) {
    out->items[out->n++] = (point){{1, batch, batch, batch * keys, 0}, seconds};
}

static void add_row(points *out, const kvl_group *group) {
    const json_t *row = group->rows[0];
    double batch = axis(row, "batch"), prompt = axis(row, "prompt"), output = axis(row, "output"),
           context = axis(row, "context");
    double ttft = kvl_group_median(group, "ttft_ms"), tpot = kvl_group_median(group, "tpot_ms");
    double chunk =
        json_number_value(json_object_get(json_object_get(row, "effective"), "chunk_tokens"));
    if (isfinite(ttft) && prompt > 0)
        add_prefill(out, batch, prompt, chunk > 0 ? chunk : 512, ttft * 1e-3);
    if (isfinite(tpot) && output > 1)
        add_decode(out, batch, prompt + context + output / 2, tpot * 1e-3);
}

/* Coordinate descent on sum ((x . c) / t - 1)^2 with c >= 0: convex, so it ends at the minimum. */
static void solve(const points *p, double c[KVL_COST_FEATURES]) {
    double a[KVL_COST_FEATURES][KVL_COST_FEATURES] = {{0}}, b[KVL_COST_FEATURES] = {0};
    for (size_t i = 0; i < p->n; i++) {
        for (int f = 0; f < KVL_COST_FEATURES; f++) {
            double x = p->items[i].features[f] / p->items[i].seconds;
            b[f] += x;
            for (int g = 0; g < KVL_COST_FEATURES; g++)
                a[f][g] += x * p->items[i].features[g] / p->items[i].seconds;
        }
    }
    memset(c, 0, KVL_COST_FEATURES * sizeof *c);
    for (int round = 0; round < 200000; round++) {
        double moved = 0;
        for (int f = 0; f < KVL_COST_FEATURES; f++) {
            double rest = b[f];
            for (int g = 0; g < KVL_COST_FEATURES; g++) rest -= g == f ? 0 : a[f][g] * c[g];
            double next = a[f][f] > 0 && rest > 0 ? rest / a[f][f] : 0;
            moved += fabs(next - c[f]) * sqrt(a[f][f]);
            c[f] = next;
        }
        if (moved < 1e-13 * (double)p->n) break;
    }
}

static void measure_error(const points *p, kvl_cost *cost) {
    for (size_t i = 0; i < p->n; i++) {
        double off = 100 * fabs(predict(cost, p->items[i].features) / p->items[i].seconds - 1);
        cost->mean_error_pct += off / (double)p->n;
        if (off > cost->max_error_pct) cost->max_error_pct = off;
    }
    cost->n_points = (int64_t)p->n;
}

/* Rows of two kernels, formats or machines are no sample of one cost. */
static kvl_status check_same(const char *path, const json_t *first, const json_t *row) {
    static const char *const axes[] = {
        "system",  "model", "allocator", "attention",   "kv_dtype", "weights", "compute_dtype",
        "threads", "isa",   "device",    "page_tokens", "reserve",  "map_kib"};
    char a[256], b[256];
    kvl_row_axis_text(row, "prefix_cache", a, sizeof a);
    if (strcmp(a, "on") == 0)
        return kvl_fail(
            KVL_ERR_INPUT,
            "--cost %s: rows with a prefix cache do not say what a prefill costs: kvlab "
            "bench decode --prefix-cache off",
            path);
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        kvl_row_axis_text(first, axes[i], a, sizeof a);
        kvl_row_axis_text(row, axes[i], b, sizeof b);
        if (strcmp(a, b) != 0)
            return kvl_fail(KVL_ERR_INPUT,
                            "--cost %s: rows of %s %s and %s: one configuration is needed", path,
                            axes[i], a, b);
    }
    const json_t *h = json_object_get(json_object_get(first, "env"), "host"),
                 *k = json_object_get(json_object_get(row, "env"), "host");
    if (!json_equal(h, k)) return kvl_fail(KVL_ERR_INPUT, "--cost %s: rows of two machines", path);
    return KVL_OK;
}

static void describe(const kvl_group *group, kvl_cost *out) {
    const json_t *row = group->rows[0];
    double tokens =
        axis(row, "batch") * (axis(row, "prompt") + axis(row, "context") + axis(row, "output"));
    double kv = kvl_group_median(group, "kv_bytes_formula"),
           weights = kvl_group_median(group, "weight_bytes"),
           memory = json_number_value(json_object_get(json_object_get(row, "env"), "memory_bytes"));
    kvl_row_axis_text(row, "model", out->model, sizeof out->model);
    if (isfinite(kv) && tokens > 0) out->kv_bytes_per_token = (uint64_t)(kv / tokens + 0.5);
    if (isfinite(weights)) out->weight_bytes = (uint64_t)weights;
    if (memory > 0) out->memory_bytes = (uint64_t)memory;
}

static kvl_status collect(const char *path, const kvl_groups *groups, points *out, kvl_cost *cost) {
    const kvl_group *first = NULL;
    for (size_t i = 0; i < groups->n; i++) {
        const kvl_group *group = &groups->items[i];
        const char *workload = json_string_value(json_object_get(group->rows[0], "workload"));
        if (strcmp(kvl_group_outcome(group), "ok") != 0 || !workload ||
            strcmp(workload, "decode") != 0)
            continue;
        if (!first) {
            first = group;
            describe(group, cost);
        }
        KVL_TRY(check_same(path, first->rows[0], group->rows[0]));
        add_row(out, group);
    }
    if (out->n < KVL_COST_FEATURES)
        return kvl_fail(
            KVL_ERR_INPUT,
            "--cost %s: %zu measured phases, at least %d are needed: kvlab bench decode "
            "--prompt 64-1024*4 --batch 1,4,16",
            path, out->n, KVL_COST_FEATURES);
    return KVL_OK;
}

kvl_status kvl_cost_fit(const char *path, kvl_cost *out) {
    json_t *rows = NULL;
    kvl_groups groups = {0};
    points p = {0};
    int n_torn;
    *out = (kvl_cost){0};
    KVL_TRY(kvl_rows_load_all(&path, 1, &rows, &n_torn));
    kvl_status status = kvl_groups_make(rows, &groups);
    if (status == KVL_OK) {
        p.items = calloc(2 * groups.n + 1, sizeof *p.items);
        status = p.items ? collect(path, &groups, &p, out) : kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    if (status == KVL_OK) {
        solve(&p, out->seconds);
        measure_error(&p, out);
    }
    free(p.items);
    kvl_groups_free(&groups);
    json_decref(rows);
    return status;
}
