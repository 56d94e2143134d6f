#include <string.h>

#include "allocators/allocator.h"
#include "core/checked.h"
#include "harness/kernels/attention.h"
#include "harness/kernels/axes.h"
#include "quant/kv_format.h"

enum { MAX_COPIES = 65536 };

static kvl_status read_names(const json_t *axes, kvl_attention_setup *s) {
    const kvl_allocator *allocator;
    bool is_full;
    KVL_TRY(kvl_spec_text(axes, "attention", &s->attention));
    KVL_TRY(kvl_spec_text(axes, "allocator", &s->allocator));
    KVL_TRY(kvl_spec_text(axes, "device", &s->device));
    const char *pair;
    KVL_TRY(kvl_spec_text(axes, "kv_dtype", &pair));
    KVL_TRY(kvl_kv_pair_parse(pair, &s->k_dtype, &s->v_dtype));
    KVL_TRY(kvl_spec_dtype(axes, "compute_dtype", &s->q_dtype));
    KVL_TRY(kvl_spec_choice(axes, "causal", "on", "off", &is_full));
    KVL_TRY(kvl_spec_choice(axes, "cache", "warm", "cold", &s->cold));
    KVL_TRY(kvl_allocator_find(s->allocator, &allocator));
    s->causal = !is_full;
    s->paged = allocator->uses_pages;
    if (!s->paged && strcmp(allocator->name, "contiguous") != 0)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "allocator %s: a kernel alone sees pages (paged) or equal slabs "
                        "(contiguous)",
                        allocator->name);
    return KVL_OK;
}

static kvl_status read_numbers(const json_t *axes, kvl_attention_setup *s) {
    int64_t head_dim, window, softcap, threads;
    const char *heads, *shape;
    KVL_TRY(kvl_spec_text(axes, "heads", &heads));
    KVL_TRY(kvl_spec_text(axes, "shape", &shape));
    KVL_TRY(kvl_heads_parse(heads, strlen(heads), &s->heads));
    KVL_TRY(kvl_batch_shape_parse(shape, strlen(shape), &s->shape));
    KVL_TRY(kvl_spec_number(axes, "head_dim", 1, 4096, &head_dim));
    KVL_TRY(kvl_spec_number(axes, "window", 0, 1 << 30, &window));
    KVL_TRY(kvl_spec_number(axes, "softcap", 0, 1 << 20, &softcap));
    KVL_TRY(kvl_spec_number(axes, "threads", 1, 1024, &threads));
    KVL_TRY(kvl_spec_number(axes, "page_tokens", s->paged ? 1 : 0, 1 << 30, &s->page_tokens));
    s->head_dim = (int32_t)head_dim;
    s->window = (int32_t)window;
    s->softcap = (float)softcap;
    s->n_threads = (int32_t)threads;
    return KVL_OK;
}

/* Sums of the batch: tokens that are seen, and slots taken. At most 65,536 sequences of 2^30. */
static void count_tokens(kvl_attention_setup *s, int64_t *seen, int64_t *slots) {
    *seen = *slots = 0;
    for (int i = 0; i < s->shape.n_groups; i++) {
        const kvl_batch_group *group = &s->shape.groups[i];
        int64_t reach = s->window + group->q_tokens - 1, pages = 0;
        if (!s->window || reach > group->kv_tokens) reach = group->kv_tokens;
        if (s->paged) pages = (group->kv_tokens + s->page_tokens - 1) / s->page_tokens;
        *seen += group->n_seqs * reach;
        s->n_pages += group->n_seqs * pages;
        *slots += group->n_seqs * (s->paged ? pages * s->page_tokens : s->shape.kv_longest);
    }
}

/* Everything that is allocated before the workspace, the check's float64 copies of one sequence of
 * one KV head included. */
static bool sum_up(kvl_attention_setup *s) {
    uint64_t k = kvl_dtype_bytes(s->k_dtype), v = kvl_dtype_bytes(s->v_dtype), checked, ids, all;
    uint64_t sum = 0;
    uint64_t q_row = (uint64_t)s->heads.n_q * (uint64_t)s->head_dim * kvl_dtype_bytes(s->q_dtype);
    uint64_t entry = s->paged ? (uint64_t)s->table_stride * sizeof(int32_t) : sizeof(int64_t);
    s->q_bytes = (uint64_t)s->shape.q_tokens * q_row; /* 2^30 x 2^12 x 2^12 x 4 at most */
    checked = (uint64_t)s->shape.kv_longest * (uint64_t)s->head_dim *
              (2 * sizeof(double) + k + v); /* 2^30 x 2^12 x 2^5 at most */
    if (!kvl_mul_u64((uint64_t)s->copy_elems, (uint64_t)s->n_copies, &all) || all >= (uint64_t)1
                                                                                         << 57)
        return false;
    s->k_bytes = all * k;
    s->v_bytes = all * v;
    bool scaled = s->k_dtype == KVL_I8 || s->v_dtype == KVL_I8;
    s->scale_bytes = scaled ? all / (uint64_t)s->head_dim * sizeof(float) : 0;
    return kvl_mul_u64((uint64_t)s->shape.n_seqs * (uint64_t)s->n_copies, entry, &ids) &&
           kvl_add_u64(s->k_bytes + s->v_bytes + s->scale_bytes, ids, &sum) &&
           kvl_add_u64(sum, checked, &sum) && kvl_add_u64(sum, 3 * s->q_bytes, &s->sum_bytes) &&
           (s->table_bytes = ids) == ids;
}

static kvl_status overflows(void) {
    return kvl_fail(KVL_ERR_UNSUPPORTED, "the K/V pools of this shape overflow 64 bits");
}

/* K and V of a token, scales included. */
static uint64_t row_bytes(const kvl_attention_setup *s) {
    uint64_t scales = (s->k_dtype == KVL_I8) + (s->v_dtype == KVL_I8);
    return (uint64_t)s->heads.n_kv *
           ((uint64_t)s->head_dim * (kvl_dtype_bytes(s->k_dtype) + kvl_dtype_bytes(s->v_dtype)) +
            scales * sizeof(float));
}

kvl_status kvl_attention_setup_make(const json_t *axes, kvl_attention_setup *out) {
    kvl_attention_setup s = {0};
    int64_t seen, slots;
    KVL_TRY(read_names(axes, &s));
    KVL_TRY(read_numbers(axes, &s));
    count_tokens(&s, &seen, &slots);
    if (!s.paged) s.page_tokens = s.shape.kv_longest;
    s.table_stride = (s.shape.kv_longest + s.page_tokens - 1) / s.page_tokens;
    int64_t row = (int64_t)s.heads.n_kv * s.head_dim; /* 2^24 at most; seen: 2^46 */
    if (!kvl_mul_i64(slots, row, &s.copy_elems) ||
        !kvl_mul_u64((uint64_t)seen, row_bytes(&s), &s.kv_read_bytes))
        return overflows();
    s.n_copies = 1;
    if (s.cold) KVL_TRY(kvl_cold_copies(s.kv_read_bytes, MAX_COPIES, &s.n_copies));
    if (!sum_up(&s)) return overflows();
    if (s.n_pages * s.n_copies > INT32_MAX)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%lld pages: their ids exceed 32 bits",
                        (long long)(s.n_pages * s.n_copies));
    s.working_set_bytes = s.kv_read_bytes * (uint64_t)s.n_copies + s.q_bytes;
    *out = s;
    return KVL_OK;
}
