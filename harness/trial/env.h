/* Where a row was measured: host, build and load, for env{} and for the key of a trial. */
#ifndef KVL_HARNESS_ENV_H
#define KVL_HARNESS_ENV_H

#include <jansson.h>
#include <stdint.h>

#include "core/status.h"

/* 64-bit xxhash in hex of the running executable: rows of two builds never mix. */
kvl_status kvl_build_id(char out[17]);

/* The same of CPU model and physical cores: the host as far as results go, without naming it. */
void kvl_host_id(char out[17]);

/* env{} of this run: cpu, cores, threads of the machine, isa levels, caches, memory, kernel,
 * compiler, build, host, versions. A new reference; NULL when out of memory. */
json_t *kvl_env_static(const char *build_id);

/* A copy of `env` with the load average, the noise (harness/trial/noise.h, 30 ms) and the time of
 * now. */
json_t *kvl_env_now(const json_t *env);

/* Bytes of the last-level cache; 0 when unknown. */
uint64_t kvl_llc_bytes(void);

/* Memory that a process may still take: MemAvailable, lowered by a cgroup limit; 0 = unknown. */
uint64_t kvl_memory_available(void);

#endif
