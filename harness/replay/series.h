/* A time series in a fixed number of buckets that loses no extreme.
 *
 * Every step counts: a bucket holds the sum, the least and the greatest value over its steps. When
 * time passes the last bucket, neighbours are joined and buckets become twice as long, so that the
 * length of a run need not be known.
 */
#ifndef KVL_HARNESS_SERIES_H
#define KVL_HARNESS_SERIES_H

#include <stdint.h>

#include "core/buffer.h"

enum { KVL_SERIES_BUCKETS = 256, KVL_SERIES_MAX_COLUMNS = 12 };

typedef struct kvl_series_cell {
    double sum, least, greatest;
} kvl_series_cell;

typedef struct kvl_series {
    const char *const *names; /* [n_columns] */
    int n_columns;
    int64_t bucket_steps;               /* steps of a bucket: a power of two */
    int64_t counts[KVL_SERIES_BUCKETS]; /* steps seen in it */
    kvl_series_cell cells[KVL_SERIES_BUCKETS][KVL_SERIES_MAX_COLUMNS];
} kvl_series;

void kvl_series_start(kvl_series *series, const char *const *names, int n_columns);

/* n_steps steps from `step` on (not before any given earlier), in which column c goes
 * values[c], values[c] + slopes[c], ... */
void kvl_series_add(kvl_series *series, int64_t step, int64_t n_steps, const double *values,
                    const double *slopes);

/* CSV: first_step, steps, time_s, then <name>, <name>_min, <name>_max (mean, least, greatest) for
 * every bucket that saw a step. */
void kvl_series_csv(const kvl_series *series, double step_s, kvl_buffer *out);

#endif
