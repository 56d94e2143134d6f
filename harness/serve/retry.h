/* What a client does when it is turned away.
 *
 *   none              gives up
 *   fixed:S:N         tries again after S seconds, N times
 *   backoff:S:N       after S, 2 S, 4 S, ... seconds (at most 64 S), N times
 *   jitter:S:N        after a random share of that (full jitter: Brooker, "Exponential Backoff and
 *                     Jitter", 2015), N times
 *
 * S is a decimal in 0.001 to 3600, N a whole number in 1 to 100.
 */
#ifndef KVL_HARNESS_RETRY_H
#define KVL_HARNESS_RETRY_H

#include "harness/sweep/axis.h"

typedef enum kvl_retry_kind {
    KVL_RETRY_NONE = 0,
    KVL_RETRY_FIXED,
    KVL_RETRY_BACKOFF,
    KVL_RETRY_JITTER
} kvl_retry_kind;

typedef struct kvl_retry {
    kvl_retry_kind kind;
    int64_t base_ns;
    int32_t tries;
} kvl_retry;

kvl_status kvl_retry_parse(const char *text, size_t length, kvl_retry *out);
/* Grammar of the axis `retry`. */
kvl_status kvl_retry_canonical(const char *text, size_t length,
                               char canonical[KVL_AXIS_TEXT_BYTES]);

/* Wait before try `attempt` (1: the first retry) of `request`; -1: gives up. */
int64_t kvl_retry_wait_ns(const kvl_retry *retry, uint64_t seed, int64_t request, int32_t attempt);

#endif
