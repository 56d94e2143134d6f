#include "core/kv_store.h"

#include <math.h>
#include <string.h>

#include "quant/kv_format.h"

/* One of the two pools. */
typedef struct pool {
    const kvl_kv_view *view;
    kvl_dtype dtype;
    uint8_t *codes;
    float *scales;
    int64_t scale_tokens;
} pool;

static pool k_pool(const kvl_kv_view *view) {
    return (pool){view, view->k_dtype, view->k_pool, view->k_scale, view->k_scale_tokens};
}
static pool v_pool(const kvl_kv_view *view) {
    return (pool){view, view->v_dtype, view->v_pool, view->v_scale, view->v_scale_tokens};
}

/* A power of two between these reaches every magnitude that matters, and its products with codes
 * stay far from float32's ends. */
enum { SCALE_EXP_MIN = -64, SCALE_EXP_MAX = 64 };

float kvl_kv_scale_for(kvl_dtype dtype, const float *x, int64_t n) {
    float top = 0.0f, max = kvl_kv_format_of(dtype)->max_finite;
    for (int64_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (a > top && a <= 0x1.fffffep127f) top = a;
    }
    if (top == 0.0f) return 0.0f;
    if (dtype == KVL_I8) return top / max;
    /* f32 and bf16 hold every float32 as it is. */
    if (dtype == KVL_F32 || dtype == KVL_BF16) return 1.0f;
    int e = ilogbf(top) - ilogbf(max);
    if (e < SCALE_EXP_MIN) e = SCALE_EXP_MIN;
    if (e < SCALE_EXP_MAX && top > ldexpf(max, e)) e++;
    return ldexpf(1.0f, e < SCALE_EXP_MAX ? e : SCALE_EXP_MAX);
}

/* Encodes the codes of n_rows rows again, from one scale to another. */
static void rescale(const pool *p, int64_t offset, int64_t n_rows, float from, float to) {
    enum { BLOCK = 256 };
    const int64_t bytes = (int64_t)kvl_dtype_bytes(p->dtype), head_dim = p->view->head_dim;
    float values[BLOCK];
    for (int64_t r = 0; r < n_rows; r++) {
        uint8_t *row = p->codes + (offset + r * p->view->token_stride) * bytes;
        for (int64_t i = 0; i < head_dim; i += BLOCK) {
            int64_t n = head_dim - i < BLOCK ? head_dim - i : BLOCK;
            kvl_decode(p->dtype, row + i * bytes, n, from, values);
            kvl_encode(p->dtype, values, n, to, row + i * bytes);
        }
    }
}

/* Makes the scale of a group at least `need`, its `n_before` rows from `offset` on with it. */
static float grow(const pool *p, float *scale, float need, int64_t offset, int64_t n_before) {
    if (n_before == 0) {
        *scale = need > 0.0f ? need : ldexpf(1.0f, SCALE_EXP_MIN);
    } else if (need > *scale) {
        rescale(p, offset, n_before, *scale, need);
        *scale = need;
    }
    return *scale;
}

/* One row of one token. Returns how many of its values saturated. */
static int64_t store_row(const pool *p, int32_t s, int64_t t, int32_t h, const float *x) {
    const kvl_kv_view *view = p->view;
    int64_t offset = kvl_kv_offset(view, s, t, h);
    float scale = p->scales && !p->scale_tokens ? p->scales[h] : 1.0f;
    if (p->scale_tokens) {
        int64_t before = t % view->page_tokens % p->scale_tokens;
        scale = grow(p, &p->scales[kvl_kv_scale_index(view, p->scale_tokens, s, t, h)],
                     kvl_kv_scale_for(p->dtype, x, view->head_dim),
                     offset - before * view->token_stride, before);
    }
    return kvl_encode(p->dtype, x, view->head_dim, scale,
                      p->codes + offset * (int64_t)kvl_dtype_bytes(p->dtype));
}

bool kvl_kv_store_in_order(const kvl_kv_new *call) {
    const kvl_kv_view *view = call->view;
    if (view->k_scale_tokens < 2 && view->v_scale_tokens < 2) return false;
    for (int32_t s = 0; s < view->n_seqs; s++) {
        if (call->q_start[s + 1] - call->q_start[s] > 1) return true;
    }
    return false;
}

static void count(const kvl_kv_new *call, int32_t counter, int64_t more) {
    if (more && call->saturated)
        __atomic_fetch_add(&call->saturated[counter], more, __ATOMIC_RELAXED);
}

void kvl_kv_store(const kvl_kv_new *call, int64_t first, int64_t last, int32_t head_first,
                  int32_t head_last) {
    const kvl_kv_view *view = call->view;
    const pool k = k_pool(view), v = v_pool(view);
    int32_t s = 0;
    for (int64_t row = first; row < last; row++) {
        while (row >= call->q_start[s + 1]) s++;
        int64_t t = (int64_t)view->kv_lens[s] - (call->q_start[s + 1] - row);
        for (int32_t h = head_first; h < head_last; h++) {
            int64_t at = (int64_t)h * view->head_dim;
            count(call, h, store_row(&k, s, t, h, call->k + row * call->k_stride + at));
            count(call, view->n_kv_heads + h,
                  store_row(&v, s, t, h, call->v + row * call->v_stride + at));
        }
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void copy_row(const pool *p, int64_t src, int64_t dst, int32_t h) {
    const kvl_kv_view *view = p->view;
    const int64_t bytes = (int64_t)kvl_dtype_bytes(p->dtype), page = view->page_tokens;
    int64_t head = h * view->head_stride;
    int64_t from = src / page * view->page_stride + src % page * view->token_stride + head;
    int64_t to = dst / page * view->page_stride + dst % page * view->token_stride + head;
    memcpy(p->codes + to * bytes, p->codes + from * bytes, (size_t)(view->head_dim * bytes));
    if (p->scale_tokens)
        p->scales[dst * view->n_kv_heads + h] = p->scales[src * view->n_kv_heads + h];
}

void kvl_kv_copy_slot(const kvl_kv_view *view, int64_t src, int64_t dst) {
    const pool k = k_pool(view), v = v_pool(view);
    for (int32_t h = 0; h < view->n_kv_heads; h++) {
        copy_row(&k, src, dst, h);
        copy_row(&v, src, dst, h);
    }
}
