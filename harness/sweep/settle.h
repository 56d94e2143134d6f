/* When a trial has been measured often enough. */
#ifndef KVL_HARNESS_SETTLE_H
#define KVL_HARNESS_SETTLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "harness/sweep/workload.h"

/* Rounds below which no interval counts: a bootstrap of fewer cannot show 95 %. */
enum { KVL_SETTLE_ROUNDS = 6 };

/* True when the rows of trial `key` among `rows` have KVL_SETTLE_ROUNDS ok rounds or more and the
 * 95 % bootstrap interval of the median of each column of the workload's table reaches at most
 * `pct` per cent to either side. A column that is null in all rows plays no part; a median of 0
 * must have no width. */
bool kvl_trial_is_settled(const kvl_workload_kind *kind, const json_t *rows, const char *key,
                          double pct);

#endif
