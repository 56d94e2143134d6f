/* The short table at the end of a sweep. */
#ifndef KVL_HARNESS_SUMMARY_H
#define KVL_HARNESS_SUMMARY_H

#include <jansson.h>
#include <stdio.h>

#include "core/status.h"
#include "harness/sweep/workload.h"

/* One line a trial: the axes that vary, medians over rounds of the workload's columns (a percentage
 * above 100 is marked "!"), or the outcome that is not ok with its reason. */
kvl_status kvl_summary_print(FILE *out, const kvl_workload_kind *kind, const json_t *rows);

#endif
