#include "harness/replay/series.h"

#include <string.h>

void kvl_series_start(kvl_series *series, const char *const *names, int n_columns) {
    memset(series, 0, sizeof *series);
    series->names = names;
    series->n_columns = n_columns;
    series->bucket_steps = 1;
}

static void merge_cell(kvl_series_cell *into, const kvl_series_cell *from, bool fresh) {
    if (fresh) {
        *into = *from;
        return;
    }
    into->sum += from->sum;
    if (from->least < into->least) into->least = from->least;
    if (from->greatest > into->greatest) into->greatest = from->greatest;
}

/* Neighbours become one. */
static void double_buckets(kvl_series *s) {
    for (int b = 0; b < KVL_SERIES_BUCKETS; b++) {
        int to = b / 2;
        int64_t n = s->counts[b];
        if (to == b) continue; /* bucket 0 stays */
        if (b % 2 == 0) s->counts[to] = 0;
        for (int c = 0; n && c < s->n_columns; c++)
            merge_cell(&s->cells[to][c], &s->cells[b][c], s->counts[to] == 0);
        s->counts[to] += n;
        s->counts[b] = 0;
    }
    s->bucket_steps *= 2;
}

void kvl_series_add(kvl_series *s, int64_t step, int64_t n_steps, const double *values,
                    const double *slopes) {
    for (int64_t done = 0; done < n_steps;) {
        int64_t at = step + done;
        while (at / s->bucket_steps >= KVL_SERIES_BUCKETS) double_buckets(s);
        int64_t b = at / s->bucket_steps, n = (b + 1) * s->bucket_steps - at;
        if (n > n_steps - done) n = n_steps - done;
        for (int c = 0; c < s->n_columns; c++) {
            double first = values[c] + slopes[c] * (double)done,
                   last = first + slopes[c] * (double)(n - 1);
            kvl_series_cell cell = {(first + last) / 2 * (double)n, first < last ? first : last,
                                    first < last ? last : first};
            merge_cell(&s->cells[b][c], &cell, s->counts[b] == 0);
        }
        s->counts[b] += n;
        done += n;
    }
}

void kvl_series_csv(const kvl_series *s, double step_s, kvl_buffer *out) {
    kvl_buffer_text(out, "first_step,steps,time_s");
    for (int c = 0; c < s->n_columns; c++)
        kvl_buffer_printf(out, ",%s,%s_min,%s_max", s->names[c], s->names[c], s->names[c]);
    kvl_buffer_text(out, "\n");
    for (int64_t b = 0; b < KVL_SERIES_BUCKETS; b++) {
        if (!s->counts[b]) continue;
        int64_t first = b * s->bucket_steps;
        kvl_buffer_printf(out, "%lld,%lld,%.9g", (long long)first, (long long)s->counts[b],
                          (double)first * step_s);
        for (int c = 0; c < s->n_columns; c++) {
            const kvl_series_cell *cell = &s->cells[b][c];
            kvl_buffer_printf(out, ",%.12g,%.12g,%.12g", cell->sum / (double)s->counts[b],
                              cell->least, cell->greatest);
        }
        kvl_buffer_text(out, "\n");
    }
}
