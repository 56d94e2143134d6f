/* Ceilings of this machine, measured in the run that uses them: what a perfect kernel could reach.
 *
 *   read_bytes_per_s   read-only bandwidth, all threads of the trial summing a buffer of the same
 *                      size class as what a decode step reads; the faster of one and of eight
 *                      streams a thread
 *   f32_flops_per_s    float32 multiply-adds in registers, all threads
 *   bf16_flops_per_s   the faster of float32 and a bf16 matrix product, 512 rows
 */
#ifndef KVL_HARNESS_CEILING_H
#define KVL_HARNESS_CEILING_H

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "harness/sweep/experiment.h"

/* Calibrations of one run: an object by kind ("threads/isa/class"). Zero-initialise. */
typedef struct kvl_ceilings {
    json_t *by_kind;
    json_t *none; /* what trials without a calibration get: {} */
} kvl_ceilings;

/* Size class of a working set: the next power of two, from 1 MiB to max(256 MiB, 4 x the last-level
 * cache): above that, a larger buffer reads no slower. */
uint64_t kvl_ceiling_class(uint64_t bytes);

bool kvl_ceilings_known(const kvl_ceilings *ceilings, const kvl_trial *trial);
/* Runs `executable trial {"calibrate": ...}` as a child of its own. When that fails, the kind is
 * known as {} from then on: trials run without ceilings. */
kvl_status kvl_ceilings_calibrate(kvl_ceilings *ceilings, const kvl_trial *trial,
                                  const char *executable, const volatile sig_atomic_t *stop);
/* ceilings{} of the trial's rows; borrowed. */
const json_t *kvl_ceilings_of(kvl_ceilings *ceilings, const kvl_trial *trial);
void kvl_ceilings_free(kvl_ceilings *ceilings);

/* In the child: measures with kvl_threads() threads on the current instruction set. A new
 * reference, NULL with a message on failure. */
json_t *kvl_ceiling_measure(uint64_t buffer_bytes);

#endif
