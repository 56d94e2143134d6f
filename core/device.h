/* The device seam: memory, and the decoder's plain operations. `cpu` now; `cuda` and `simt` plug in
 * here as registry lines. Tensors are float32, row-major, at the device's place; strides in
 * elements. */
#ifndef KVL_CORE_DEVICE_H
#define KVL_CORE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/kv_view.h"
#include "core/status.h"
#include "core/team.h"

/* Operations take a worker: every worker of a team calls with equal arguments and does its share of
 * the rows (the same rows in every operation of equally many, so that these need no barrier between
 * them). NULL: the whole call, on a region of its own where that pays. */
typedef struct kvl_device {
    const char *name;    /* "cpu" */
    const char *summary; /* one line for `kvlab info` */

    /* True when usable on this machine; otherwise the reason in `why`. Starts nothing. */
    bool (*available)(char *why, size_t why_bytes);

    kvl_status (*alloc)(uint64_t bytes, void **out);
    void (*release)(void *pointer, uint64_t bytes);
    /* Makes sure that allocated memory is there before it is used; NULL where it always is. */
    kvl_status (*populate)(void *at, uint64_t bytes);
    /* Address space that memory is mapped into piece by piece (core/memory.h); NULL where the
     * device has none. */
    kvl_status (*reserve)(uint64_t bytes, void **out);
    void (*unreserve)(void *pointer, uint64_t bytes, uint64_t mapped_bytes);
    kvl_status (*map)(void *at, uint64_t bytes, bool huge);
    kvl_status (*unmap)(void *at, uint64_t bytes);
    kvl_status (*upload)(void *device_dst, const void *host_src, uint64_t bytes);
    kvl_status (*download)(void *host_dst, const void *device_src, uint64_t bytes);
    kvl_status (*sync)(void);

    /* out [n][dim] = x / sqrt(mean(x^2) + eps) * weight [dim]; in place allowed. With `groups` > 1
     * each row is `groups` vectors of `dim` that share `weight` (Q/K norm per head). */
    kvl_status (*rmsnorm)(kvl_worker *worker, const float *x, const float *weight, float eps,
                          int64_t n_rows, int64_t groups, int64_t dim, int64_t x_stride, float *out,
                          int64_t out_stride);

    /* Rotates pairs (i, i + head_dim / 2) of each head in place by position * inv_freq[i]
     * (half-split order). x [n][n_heads * head_dim]. Angles: float32 position * inv_freq product,
     * cos and sin in float32, as Transformers computes them. positions [n]; inv_freq [head_dim /
     * 2]. */
    kvl_status (*rope)(kvl_worker *worker, float *x, int64_t x_stride, int64_t n_rows,
                       int32_t n_heads, int32_t head_dim, const int32_t *positions,
                       const float *inv_freq);

    /* out [n][dim] = silu(gate) * up. Shares are pieces of rows. */
    kvl_status (*swiglu)(kvl_worker *worker, const float *gate, const float *up, int64_t in_stride,
                         int64_t n_rows, int64_t dim, float *out, int64_t out_stride);

    /* Converts n_rows rows of n elements to or from a 16-bit or fp8 dtype (round to nearest even).
     */
    kvl_status (*convert)(kvl_worker *worker, int64_t n_rows, int64_t n, const void *src,
                          kvl_dtype src_dtype, int64_t src_stride, void *dst, kvl_dtype dst_dtype,
                          int64_t dst_stride);

    /* Appends k, v [n_tokens][n_kv_heads * head_dim] (row strides given) to the cache: the i-th new
     * token of sequence s goes to position kv_lens[s] - q_len + i, encoded in the view's dtypes and
     * scales (core/kv_store.h). saturated [2][n_kv_heads] += values of K and of V that saturated or
     * overflowed, by head, atomically (NULL: not counted). Scales that tokens share bring a barrier
     * with them. */
    kvl_status (*kv_append)(kvl_worker *worker, const kvl_kv_view *view, const int32_t *q_start,
                            const float *k, int64_t k_stride, const float *v, int64_t v_stride,
                            int64_t *saturated);
    /* Copies n_slots slots (all heads, K and V) inside the pools, for allocator orders. */
    kvl_status (*kv_copy)(const kvl_kv_view *view, int64_t src_slot, int64_t dst_slot,
                          int64_t n_slots);
} kvl_device;

size_t kvl_device_count(void);
const kvl_device *kvl_device_at(size_t index);
kvl_status kvl_device_find(const char *name, const kvl_device **out);

#endif
