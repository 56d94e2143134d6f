/* Ratios of kvlab to other systems on the same work: rows whose axes name a `work` item and a
 * `system`, with effective.compared_metric and compared_better saying what is compared, and whether
 * lower or higher is better (experiments/peers/).
 *
 * A ratio is the median, over the rounds in which both ended ok, of kvlab's value to the other's in
 * that round (the other's to kvlab's where lower is better): above 1, kvlab is ahead. Rounds are
 * interleaved, so that what disturbs the machine for a while disturbs both.
 */
#ifndef KVL_HARNESS_RATIO_H
#define KVL_HARNESS_RATIO_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buffer.h"
#include "core/status.h"
#include "harness/figures/group.h"

typedef struct kvl_ratio_entry {
    const kvl_group *group; /* borrowed */
    char work[96], system[64];
    double median;              /* of the compared metric; NaN when no round ended ok */
    double ratio, lo, hi;       /* NaN for kvlab itself and where no round has both */
    size_t n_rounds;            /* that ended ok */
    size_t n_pairs;             /* rounds with both */
    bool is_base, is_best_peer; /* best: the peer with the best median of its work item */
} kvl_ratio_entry;

typedef struct kvl_ratios {
    kvl_ratio_entry *items; /* by work item in order of first appearance, kvlab first, then the
                               peers from best to worst, those without a value last */
    size_t n;
} kvl_ratios;

/* `bootstrap`: lo and hi are a 95 % interval of the median from 3 pairs on, else minimum and
 * maximum. `where`: comma list axis=value, NULL for all. KVL_ERR_INPUT: no row names a work item;
 * two trials of one system and work item ended ok (another build, host or seed); a work item's
 * trials compare different metrics. */
kvl_status kvl_ratios_make(const kvl_groups *groups, const char *where, bool bootstrap,
                           kvl_ratios *out);
void kvl_ratios_free(kvl_ratios *ratios);

/* What the trials of an entry's work item are compared by: "decode_tok_s". */
const char *kvl_ratio_metric(const kvl_ratio_entry *entry);

/* place (from 1, top down, with a free place between work items), kind (work or system), label,
 * ratio, lo, hi, rounds, outcome, value, metric: what ratio.gp draws. */
kvl_status kvl_ratios_csv(const kvl_ratios *ratios, kvl_buffer *out);

/* Markdown: one line a work item and system: median, rounds, ratio with its interval; the best
 * peer is bold, systems without a value say why. */
kvl_status kvl_ratios_markdown(const kvl_ratios *ratios, kvl_buffer *out);

/* "kvlab is ahead of the best peer in 5 of 7 work items; ..." */
void kvl_ratios_insight(const kvl_ratios *ratios, char *out, size_t out_bytes);

#endif
