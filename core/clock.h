/* Monotonic time and calendar time. */
#ifndef KVL_CORE_CLOCK_H
#define KVL_CORE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t kvl_now_ns(void);

/* "20261129T140512Z" for file names, "2026-11-29T14:05:12Z" for rows. */
void kvl_utc_compact(char *out, size_t out_bytes);
void kvl_utc_iso(char *out, size_t out_bytes);

#endif
