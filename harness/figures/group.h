/* Rows by trial: what export, plot and the summary read. */
#ifndef KVL_HARNESS_GROUP_H
#define KVL_HARNESS_GROUP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

/* Rows of several files in one array. *n_torn: files whose torn last line was left out. */
kvl_status kvl_rows_load_all(const char *const *paths, int n_paths, json_t **rows, int *n_torn);

/* One trial: its rows by round, in the order found. Of two rows of one round the later counts (a
 * failed trial that was run again). Rows are borrowed. */
typedef struct kvl_group {
    const char *trial;
    const json_t **rows;
    size_t n_rows, capacity;
} kvl_group;

typedef struct kvl_groups {
    kvl_group *items; /* in order of first appearance */
    size_t n;
} kvl_groups;

kvl_status kvl_groups_make(const json_t *rows, kvl_groups *out);
/* By the axes in their order, numbers by value, names by letters. */
void kvl_groups_sort(kvl_groups *groups);
void kvl_groups_free(kvl_groups *groups);

/* Outcome of a trial: "ok" when one of its rounds is, else that of its first row. */
const char *kvl_group_outcome(const kvl_group *group);
bool kvl_row_is_ok(const json_t *row);

/* Values of metrics.<name> over the ok rounds into values[n_rows]; returns how many. */
size_t kvl_group_metric(const kvl_group *group, const char *name, double *values);
/* Their median; NaN when there is none. */
double kvl_group_median(const kvl_group *group, const char *name);

/* Text of axes.<name> ("" when missing), numbers in decimal. */
void kvl_row_axis_text(const json_t *row, const char *name, char *out, size_t out_bytes);

#endif
