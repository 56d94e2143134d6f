/* Figures of what lies beside the rows: the ledger over time and maps of the pool, one panel a
 * trial, from the CSV files that `kvlab bench replay --series` and `bench serve --series` keep. */
#ifndef KVL_HARNESS_SIDE_H
#define KVL_HARNESS_SIDE_H

#include "core/buffer.h"
#include "core/status.h"
#include "harness/figures/group.h"

enum { KVL_SIDE_MAX_PANELS = 6, KVL_SIDE_LABEL_BYTES = 160 };

typedef struct kvl_side {
    const char *what; /* "ledger" or "map": effective.<what> names the file */
    kvl_buffer csv;   /* panel_id, then the columns of the files */
    char labels[KVL_SIDE_MAX_PANELS][KVL_SIDE_LABEL_BYTES]; /* by what trials differ in */
    int n_panels;
    char insight[512];
} kvl_side;

/* `rows_path`: a side file that is not found as named is looked for beside the rows. `where`: comma
 * list axis=value, NULL for all. KVL_ERR_INPUT: no trial has such a file, or more than six do. */
kvl_status kvl_side_make(const kvl_groups *groups, const char *what, const char *where,
                         const char *rows_path, kvl_side *out);
void kvl_side_free(kvl_side *side);

/* What tells trial `at` of groups[n] from the others: "contiguous, max, pool_tokens 65536". `out`
 * has KVL_SIDE_LABEL_BYTES. */
void kvl_side_label(const kvl_group *const *groups, size_t n, size_t at, char *out);

#endif
