/* The report of experiments: one HTML page that needs nothing beside it. */
#ifndef KVL_HARNESS_REPORT_H
#define KVL_HARNESS_REPORT_H

#include <jansson.h>

#include "core/buffer.h"
#include "harness/claims/claim.h"

/* One experiment as the report shows it. */
typedef struct kvl_report_item {
    const kvl_claim *claim;
    const kvl_claim_result *result; /* NULL: it did not run, `error` says why */
    const char *error;
    const char *svg; /* the figure as a file of its own, or NULL: `no_figure` says why */
    const char *no_figure;
    const char *command; /* that repeats it */
} kvl_report_item;

/* The whole page. `env`: of a row; NULL: none. */
void kvl_report_html(const kvl_report_item *items, size_t n, const json_t *env, kvl_buffer *out);

/* Lines for a terminal: the finding, each check with its finding, and where it does not hold or
 * cannot be told, the places with their numbers. */
void kvl_report_text(const kvl_report_item *item, kvl_buffer *out);

/* {name, claim, finding, checks[{text, finding, places[]}]}: a new reference. */
json_t *kvl_report_json(const kvl_report_item *item);

/* The metrics that a claim speaks of, its own first: at most `max` names into names[]. */
size_t kvl_report_metrics(const kvl_claim *claim, const char **names, size_t max);

#endif
