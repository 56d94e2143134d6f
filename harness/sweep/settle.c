#include "harness/sweep/settle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/figures/group.h"
#include "harness/figures/stats.h"

static size_t values_of(const json_t *rows, const char *key, const char *metric, double *out) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const json_t *value = json_object_get(json_object_get(row, "metrics"), metric);
        const char *trial = json_string_value(json_object_get(row, "trial"));
        if (trial && strcmp(trial, key) == 0 && kvl_row_is_ok(row) && json_is_number(value))
            out[n++] = json_number_value(value);
    }
    return n;
}

static bool is_narrow(double *x, size_t n, double pct) {
    double lo, hi, median = kvl_quantile(x, n, 0.5);
    kvl_median_interval(x, n, &lo, &hi);
    double reach = hi - median > median - lo ? hi - median : median - lo;
    return reach <= fabs(median) * pct / 100;
}

bool kvl_trial_is_settled(const kvl_workload_kind *kind, const json_t *rows, const char *key,
                          double pct) {
    double *x = malloc((json_array_size(rows) + 1) * sizeof *x);
    bool settled = x != NULL, seen = false;
    for (size_t c = 0; settled && c < kind->n_columns; c++) {
        size_t n = values_of(rows, key, kind->columns[c].metric, x);
        if (n == 0) continue;
        seen = true;
        settled = n >= KVL_SETTLE_ROUNDS && is_narrow(x, n, pct);
    }
    free(x);
    return settled && seen;
}
