/* Host memory for tensors: 64-byte aligned, huge pages asked for above 4 MiB, zeroed lazily by the
 * kernel, and accounted, so that a row can say how many bytes weights, KV and workspace took. */
#ifndef KVL_CORE_MEMORY_H
#define KVL_CORE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* Allocates `bytes` (0 gives a valid pointer) of zeroed memory. KVL_ERR_OOM names the size. */
kvl_status kvl_mem_alloc(uint64_t bytes, void **out);

/* Frees what kvl_mem_alloc gave; `bytes` as then. NULL is allowed. */
void kvl_mem_free(void *pointer, uint64_t bytes);

/* Brings the pages of memory from kvl_mem_alloc in, so that no later write waits for the system to
 * find and clear them. KVL_ERR_OOM when there are not as many. */
kvl_status kvl_mem_populate(void *at, uint64_t bytes);

/* Address space without memory: touching it is a fault until kvl_mem_map. Starts at a multiple of 2
 * MiB. */
kvl_status kvl_mem_reserve(uint64_t bytes, void **out);
/* `mapped_bytes`: what is still mapped of it. */
void kvl_mem_unreserve(void *pointer, uint64_t bytes, uint64_t mapped_bytes);
/* Backs [at, at + bytes) of reserved address space with zeroed memory at once, so that running out
 * is an error here and no fault later; both multiples of 4 KiB. `huge`: whole pages of 2 MiB are
 * asked for. unmap gives the memory back to the system, and the range faults again. */
kvl_status kvl_mem_map(void *at, uint64_t bytes, bool huge);
kvl_status kvl_mem_unmap(void *at, uint64_t bytes);

/* Bytes now held through kvl_mem_alloc and kvl_mem_map by this process. */
uint64_t kvl_mem_live_bytes(void);

/* Resident set of this process from /proc: now, and its high-water mark; 0 where unreadable. */
uint64_t kvl_rss_bytes(void);
uint64_t kvl_rss_peak_bytes(void);

#endif
