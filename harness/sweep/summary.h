/* The short table at the end of a sweep. */
#ifndef KVL_HARNESS_SUMMARY_H
#define KVL_HARNESS_SUMMARY_H

#include <jansson.h>
#include <stdio.h>

#include "core/status.h"

/* One line a trial: the axes that vary, medians over rounds of prefill tok/s, decode tok/s and the
 * share of the read ceiling ("!" above 100 %), or the outcome that is not ok with its reason. */
kvl_status kvl_summary_print(FILE *out, const json_t *rows);

#endif
