/* What ratios say in text: the figure's CSV, a Markdown table, one line of insight. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/figures/dictionary.h"
#include "harness/figures/export.h"
#include "harness/figures/ratio.h"

static bool starts_work(const kvl_ratios *ratios, size_t i) {
    return i == 0 || strcmp(ratios->items[i - 1].work, ratios->items[i].work) != 0;
}

static const char *reason_of(const kvl_ratio_entry *entry) {
    const char *reason = json_string_value(json_object_get(entry->group->rows[0], "reason"));
    return reason ? reason : "";
}

static const char *unit_of(const kvl_ratio_entry *entry) {
    const kvl_name *known = kvl_name_find(kvl_ratio_metric(entry));
    return known ? known->unit : kvl_ratio_metric(entry);
}

static void add_number(kvl_buffer *out, double value) {
    kvl_buffer_text(out, ",");
    if (isfinite(value)) kvl_buffer_printf(out, "%.6g", value);
}

/* Three digits that carry, without an exponent: 0.0123, 1.23, 12.3, 1230. */
static void three_digits(double value, char *out, size_t bytes) {
    double size = fabs(value);
    int places = size >= 100 || size == 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
    snprintf(out, bytes, "%.*f", places, value);
}

static void csv_work(const kvl_ratio_entry *entry, int place, kvl_buffer *out) {
    char label[192];
    snprintf(label, sizeof label, "%s (%s)", entry->work, unit_of(entry));
    kvl_buffer_printf(out, "%d,work,", place);
    kvl_csv_field(out, label);
    kvl_buffer_text(out, ",,,,,,,\n");
}

kvl_status kvl_ratios_csv(const kvl_ratios *ratios, kvl_buffer *out) {
    int place = 0;
    char label[128], value[32];
    kvl_buffer_text(out, "place,kind,label,ratio,lo,hi,rounds,outcome,value,metric\n");
    for (size_t i = 0; i < ratios->n; i++) {
        const kvl_ratio_entry *entry = &ratios->items[i];
        if (starts_work(ratios, i)) {
            place += place ? 2 : 1;
            csv_work(entry, place, out);
        }
        three_digits(entry->median, value, sizeof value);
        if (isfinite(entry->median))
            snprintf(label, sizeof label, "%s %s", entry->system, value);
        else
            snprintf(label, sizeof label, "%s", entry->system);
        kvl_buffer_printf(out, "%d,%s,", ++place, entry->is_base ? "base" : "system");
        kvl_csv_field(out, label);
        add_number(out, entry->ratio);
        add_number(out, entry->lo);
        add_number(out, entry->hi);
        kvl_buffer_printf(out, ",%zu,%s", entry->is_base ? entry->n_rounds : entry->n_pairs,
                          kvl_group_outcome(entry->group));
        add_number(out, entry->median);
        kvl_buffer_printf(out, ",%s\n", kvl_ratio_metric(entry));
    }
    return out->failed ? kvl_fail(KVL_ERR_OOM, "out of memory") : KVL_OK;
}

/* Text in a table cell: a bar would end it. */
static void cell(kvl_buffer *out, const char *text) {
    for (; *text; text++) kvl_buffer_add(out, *text == '|' ? "/" : text, 1);
}

static void markdown_line(const kvl_ratio_entry *entry, kvl_buffer *out) {
    char median[32], ratio[32], lo[32], hi[32];
    const char *mark = entry->is_best_peer ? "**" : "";
    three_digits(entry->median, median, sizeof median);
    three_digits(entry->ratio, ratio, sizeof ratio);
    three_digits(entry->lo, lo, sizeof lo);
    three_digits(entry->hi, hi, sizeof hi);
    kvl_buffer_text(out, "| ");
    cell(out, entry->work);
    kvl_buffer_printf(out, " | %s", mark);
    cell(out, entry->system);
    kvl_buffer_printf(out, "%s | ", mark);
    if (isfinite(entry->median))
        kvl_buffer_printf(out, "%s %s | %zu | ", median, unit_of(entry), entry->n_rounds);
    else
        kvl_buffer_printf(out, "%s | 0 | ", kvl_group_outcome(entry->group));
    if (isfinite(entry->ratio))
        kvl_buffer_printf(out, "%s%s%s (%s to %s) |", mark, ratio, mark, lo, hi);
    else if (!isfinite(entry->median))
        cell(out, reason_of(entry)), kvl_buffer_text(out, " |");
    else
        kvl_buffer_text(out, entry->is_base ? "1 |" : "kvlab has no value |");
    kvl_buffer_text(out, "\n");
}

kvl_status kvl_ratios_markdown(const kvl_ratios *ratios, kvl_buffer *out) {
    kvl_buffer_text(out, "| work | system | median | rounds | kvlab to system, ratio |\n"
                         "|---|---|---:|---:|---|\n");
    for (size_t i = 0; i < ratios->n; i++) markdown_line(&ratios->items[i], out);
    return out->failed ? kvl_fail(KVL_ERR_OOM, "out of memory") : KVL_OK;
}

void kvl_ratios_insight(const kvl_ratios *ratios, char *out, size_t out_bytes) {
    const kvl_ratio_entry *least = NULL, *most = NULL;
    int n_works = 0, n_ahead = 0;
    char low[32], high[32];
    for (size_t i = 0; i < ratios->n; i++) {
        const kvl_ratio_entry *entry = &ratios->items[i];
        if (!entry->is_best_peer || !isfinite(entry->ratio)) continue;
        n_works++;
        n_ahead += entry->ratio > 1;
        if (!least || entry->ratio < least->ratio) least = entry;
        if (!most || entry->ratio > most->ratio) most = entry;
    }
    if (!least) {
        snprintf(out, out_bytes, "no work item has a value of kvlab and of a peer");
        return;
    }
    three_digits(least->ratio, low, sizeof low);
    three_digits(most->ratio, high, sizeof high);
    snprintf(
        out, out_bytes,
        "kvlab is ahead of the best peer in %d of %d work items, from %sx (%s, %s) to %sx (%s, %s)",
        n_ahead, n_works, low, least->work, least->system, high, most->work, most->system);
}
