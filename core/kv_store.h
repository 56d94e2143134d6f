/* What a KV cache in host memory does with new tokens: encodes them, with scales that follow the
 * data where the view has such (k_scale_tokens, v_scale_tokens above 0). Only the cpu device uses
 * this; the arithmetic of one value is quant/kv_format.h.
 *
 * A dynamic scale belongs to a group of tokens of one KV head. Its first token sets it, anew; when
 * a later one needs a larger one it grows, and the codes of the group that are there already are
 * encoded again. Scales of floating-point formats are powers of two, so that this moves exponents
 * only: the value stays the same, but for what falls below the format's normal range. int8 takes
 * absmax / 127 and is meant for groups of one token. Tokens of a group are taken one after another
 * in rising order whatever the chunk they come in, so that chunking plays no part in what is
 * stored. What a query saw of a group that grew after it, it saw before: there, attention in chunks
 * may differ by that second rounding. What a truncation cut off may leave a larger scale behind. */
#ifndef KVL_CORE_KV_STORE_H
#define KVL_CORE_KV_STORE_H

#include <stdbool.h>

#include "core/kv_view.h"

/* New tokens, as kv_append of core/device.h takes them. */
typedef struct kvl_kv_new {
    const kvl_kv_view *view;
    const int32_t *q_start;
    const float *k, *v;
    int64_t k_stride, v_stride;
    int64_t *saturated; /* [2][n_kv_heads]: of K and of V by head, added to atomically; NULL: not
                           counted */
} kvl_kv_new;

/* Whether tokens of a call share a scale, so that all of one head must go to one worker. */
bool kvl_kv_store_in_order(const kvl_kv_new *call);

/* Encodes rows [first, last) of the call's tokens for heads [head_first, head_last). */
void kvl_kv_store(const kvl_kv_new *call, int64_t first, int64_t last, int32_t head_first,
                  int32_t head_last);

/* Copies slot `src` to `dst`, all heads, K and V, and the scale that lies there. A group must be
 * copied from its first slot on, into the first slots of a group. */
void kvl_kv_copy_slot(const kvl_kv_view *view, int64_t src, int64_t dst);

/* The dynamic scale that `n` values ask for (0: none). Infinities and NaN have no say. */
float kvl_kv_scale_for(kvl_dtype dtype, const float *x, int64_t n);

#endif
