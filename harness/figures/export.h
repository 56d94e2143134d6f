/* Rows as CSV: axes, metrics and what really ran, one line a row or, with medians, one a trial. */
#ifndef KVL_HARNESS_EXPORT_H
#define KVL_HARNESS_EXPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/buffer.h"
#include "core/status.h"

typedef struct kvl_export_options {
    const char *columns; /* comma list; NULL: all */
    bool median;         /* one line a trial: medians over its ok rounds */
    bool interval;       /* with median: 95 % bootstrap interval of it, <metric>_lo and _hi */
} kvl_export_options;

/* Appends CSV to `out`: a header line, then data; fields quoted as RFC 4180 asks, lines end in \n.
 * Columns: run trial round workload outcome reason seed, the axes, the metrics in the dictionary's
 * order and then others by name, effective.<name> by name. More can be asked for by name:
 * env.<name>, ceilings.<name>, repro, schema. KVL_ERR_INPUT names an unknown column and the
 * nearest. */
kvl_status kvl_export_csv(const json_t *rows, const kvl_export_options *options, kvl_buffer *out);

/* One field, quoted where needed. */
void kvl_csv_field(kvl_buffer *out, const char *text);

#endif
