/* Trials of A beside trials of B that are alike in every axis but those in which they may differ.
 *
 * Law: an axis that differs, within a side or between the sides, is either one that pairs are made
 * on (the same value on both sides), or one that was named as what is compared (`across`). Anything
 * else is refused by name. Builds may differ: they are what a change of the code is compared by.
 */
#ifndef KVL_HARNESS_PAIR_H
#define KVL_HARNESS_PAIR_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "harness/figures/group.h"

/* One side: a file, and which of its trials ("attention=eager,prompt=512"; NULL: all). */
typedef struct kvl_side {
    const char *name; /* for messages: "A (results/x.jsonl)" */
    const char *where;
    const kvl_groups *groups;
} kvl_side;

typedef struct kvl_pair {
    const kvl_group *a, *b; /* borrowed; NULL where the other side has no partner */
    char label[256];        /* what is compared and where: "attention eager -> flash, prompt 512" */
} kvl_pair;

typedef struct kvl_pairs {
    kvl_pair *items; /* in A's order, then what B alone has */
    size_t n;
} kvl_pairs;

/* `by`: comma list of the axes that pairs are made on (NULL: all). `across`: those in which A and B
 * may differ (NULL: those that either `where` names). KVL_ERR_INPUT: an axis that differs and is
 * not named, two hosts, two trials of a side in one place, a `where` that leaves nothing, an
 * unknown axis. */
kvl_status kvl_pairs_make(const kvl_side *a, const kvl_side *b, const char *by, const char *across,
                          kvl_pairs *out);
void kvl_pairs_free(kvl_pairs *pairs);

/* Values of `metric` over the rounds of a pair that ended ok, into a[] and b[] (room for the rows
 * of each). True when they are paired: five rounds and three quarters of the shorter side's have a
 * partner of the same run and round, and only those are given. */
bool kvl_pair_values(const kvl_pair *pair, const char *metric, double *a, size_t *n_a, double *b,
                     size_t *n_b);

#endif
