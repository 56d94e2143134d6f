/* Host memory for tensors: 64-byte aligned, huge pages asked for above 4 MiB, zeroed lazily by the
 * kernel, and accounted, so that a row can say how many bytes weights, KV and workspace took. */
#ifndef KVL_CORE_MEMORY_H
#define KVL_CORE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Allocates `bytes` (0 gives a valid pointer) of zeroed memory. KVL_ERR_OOM names the size. */
kvl_status kvl_mem_alloc(uint64_t bytes, void **out);

/* Frees what kvl_mem_alloc gave; `bytes` as then. NULL is allowed. */
void kvl_mem_free(void *pointer, uint64_t bytes);

/* Bytes now held through kvl_mem_alloc by this process. */
uint64_t kvl_mem_live_bytes(void);

/* Resident set of this process from /proc: now, and its high-water mark; 0 where unreadable. */
uint64_t kvl_rss_bytes(void);
uint64_t kvl_rss_peak_bytes(void);

#endif
