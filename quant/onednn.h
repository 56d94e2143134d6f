/* The only door to oneDNN: plain row-major matrix products C = A B, one primitive per (m, k).
 *
 * A products object belongs to one layer: n, k and the element type are fixed, m is rounded up to a
 * multiple of KVL_ONEDNN_ROWS so that few primitives serve every row count. Primitives are made on
 * first use for one thread each (the caller splits the work over threads) and kept. */
#ifndef KVL_QUANT_ONEDNN_H
#define KVL_QUANT_ONEDNN_H

#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/status.h"

enum { KVL_ONEDNN_ROWS = 32, KVL_ONEDNN_MAX_ROWS = 512 };

typedef struct kvl_onednn kvl_onednn;

/* C float32 [m][n] = A [m][k] B [k][n], A and B of `dtype` (f32, bf16), all contiguous.
 * KVL_ERR_UNSUPPORTED, with oneDNN's reason, when it has no kernel for this here. */
kvl_status kvl_onednn_create(kvl_dtype dtype, int64_t n, int64_t k, kvl_onednn **out);
void kvl_onednn_destroy(kvl_onednn *products); /* NULL is allowed */

/* Makes the primitive for m rows (1 .. KVL_ONEDNN_MAX_ROWS) if it is not there yet; must have
 * succeeded before kvl_onednn_run for that m. scratch_bytes: what each run needs. Any thread. */
kvl_status kvl_onednn_prepare(kvl_onednn *products, int64_t m, uint64_t *scratch_bytes);

/* a and c hold m rounded up to KVL_ONEDNN_ROWS rows; scratch is 64-byte aligned. Runs on the
 * calling thread alone; any number of threads may call at once, each with its own c and scratch. */
kvl_status kvl_onednn_run(const kvl_onednn *products, int64_t m, const void *a, const void *b,
                          float *c, void *scratch);

/* "2.6.3": of the library loaded. */
void kvl_onednn_version(char *out, size_t out_bytes);

#endif
