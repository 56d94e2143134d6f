/* Findings as lines and as JSON; the page is report_html.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/claims/report.h"

size_t kvl_report_metrics(const kvl_claim *claim, const char **names, size_t max) {
    size_t n = 0;
    if (max) names[n++] = claim->metric;
    for (size_t c = 0; c < claim->n_checks; c++) {
        for (int i = 0; i < claim->checks[c].n_nodes; i++) {
            const kvl_expr *node = &claim->checks[c].nodes[i];
            bool known = node->kind != KVL_EXPR_METRIC && node->kind != KVL_EXPR_RATIO &&
                         node->kind != KVL_EXPR_SPEEDUP;
            for (size_t j = 0; j < n; j++) known = known || strcmp(names[j], node->name) == 0;
            if (!known && n < max) names[n++] = node->name;
        }
    }
    return n;
}

static void place_line(const kvl_evidence *e, kvl_buffer *out) {
    kvl_buffer_printf(out, "    %s: %s", e->place, kvl_finding_name(e->finding));
    if (isfinite(e->left)) kvl_buffer_printf(out, ", %.5g", e->left);
    if (isfinite(e->right)) kvl_buffer_printf(out, " against %.5g", e->right);
    if (isfinite(e->lo) && isfinite(e->hi) && e->hi < 1e6 && e->lo != e->hi)
        kvl_buffer_printf(out, ", %s%.4g to %.4g", isfinite(e->right) ? "ratio " : "", e->lo,
                          e->hi);
    kvl_buffer_printf(out, ", %zu rounds", e->n_rounds);
    if (e->reason[0]) kvl_buffer_printf(out, " (%s)", e->reason);
    kvl_buffer_text(out, "\n");
}

void kvl_report_text(const kvl_report_item *item, kvl_buffer *out) {
    enum { MOST_PLACES = 6 };
    if (!item->result) {
        kvl_buffer_printf(out, "%s: did not run: %s\n", item->claim->name, item->error);
        return;
    }
    kvl_buffer_printf(out, "%s: %s: %s\n", item->claim->name,
                      kvl_finding_name(item->result->finding), item->claim->claim);
    for (size_t c = 0; c < item->result->n_checks; c++) {
        const kvl_check_result *check = &item->result->checks[c];
        size_t shown = 0, n_other = 0;
        for (size_t i = 0; i < check->n; i++) n_other += check->items[i].finding != KVL_HOLDS;
        kvl_buffer_printf(out, "  %s: %s", item->claim->checks[c].text,
                          kvl_finding_name(check->finding));
        kvl_buffer_printf(out, " (%zu of %zu places)\n", check->n - n_other, check->n);
        for (size_t i = 0; i < check->n && shown < MOST_PLACES; i++) {
            bool all = n_other == 0; /* what holds everywhere has one example */
            if (all ? shown == 1 : check->items[i].finding == KVL_HOLDS) continue;
            place_line(&check->items[i], out);
            shown++;
        }
    }
}

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *place_json(const kvl_evidence *e) {
    return json_pack("{s:s,s:s,s:o,s:o,s:o,s:o,s:o,s:I,s:s}", "place", e->place, "finding",
                     kvl_finding_name(e->finding), "left", number(e->left), "right",
                     number(e->right), "ratio", number(e->ratio), "lo", number(e->lo), "hi",
                     number(e->hi), "rounds", (json_int_t)e->n_rounds, "reason", e->reason);
}

json_t *kvl_report_json(const kvl_report_item *item) {
    json_t *out = json_pack("{s:s,s:s,s:s}", "name", item->claim->name, "claim", item->claim->claim,
                            "command", item->command);
    json_t *checks = json_array();
    json_object_set_new(out, "finding",
                        item->result ? json_string(kvl_finding_name(item->result->finding))
                                     : json_null());
    if (!item->result) json_object_set_new(out, "error", json_string(item->error));
    for (size_t c = 0; item->result && c < item->result->n_checks; c++) {
        const kvl_check_result *check = &item->result->checks[c];
        json_t *places = json_array();
        for (size_t i = 0; i < check->n; i++)
            json_array_append_new(places, place_json(&check->items[i]));
        json_array_append_new(
            checks, json_pack("{s:s,s:s,s:o}", "check", item->claim->checks[c].text, "finding",
                              kvl_finding_name(check->finding), "places", places));
    }
    json_object_set_new(out, "checks", checks);
    return out;
}
