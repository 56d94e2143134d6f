#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/rng.h"
#include "harness/kernels/attention.h"
#include "quant/kv_format.h"

/* Rows of K and V are windows, at seeded places, of a table of normals: making every value of a
 * working set of many times the cache by itself would take longer than measuring it. */
enum { TABLE_VALUES = 1 << 20 };
/* Of every token: what it is plays no part in the time. */
#define INT8_SCALE (5.0f / 127)
enum { STREAM_TABLE = 1, STREAM_ROWS, STREAM_PAGES, STREAM_Q };

typedef struct filler {
    const kvl_attention_inputs *inputs;
    const uint8_t *k_table, *v_table; /* [TABLE_VALUES + head_dim] codes */
    kvl_rng rng;
} filler;

/* A token of one KV head: the same values in every copy. */
static void fill_row(const filler *f, const kvl_kv_view *view, int64_t s, int64_t t, int64_t h) {
    const size_t k = kvl_dtype_bytes(view->k_dtype), v = kvl_dtype_bytes(view->v_dtype);
    const size_t offset = (size_t)kvl_kv_offset(view, s, t, h), n = (size_t)view->head_dim;
    uint64_t index = ((uint64_t)s << 31 | (uint64_t)t) * (uint64_t)view->n_kv_heads + (uint64_t)h;
    uint64_t bits = kvl_rng_at(&f->rng, index);
    memcpy((uint8_t *)view->k_pool + offset * k, f->k_table + bits % TABLE_VALUES * k, n * k);
    memcpy((uint8_t *)view->v_pool + offset * v, f->v_table + (bits >> 32) % TABLE_VALUES * v,
           n * v);
}

static void fill_copy(const filler *f, const kvl_kv_view *view) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t s = 0; s < view->n_seqs; s++) {
        for (int64_t h = 0; h < view->n_kv_heads; h++) {
            for (int64_t t = 0; t < view->kv_lens[s]; t++) fill_row(f, view, s, t, h);
        }
    }
}

static kvl_status fill_kv(kvl_attention_inputs *in, uint64_t seed) {
    const kvl_attention_setup *s = in->setup;
    int64_t n = TABLE_VALUES + s->head_dim;
    float *values = malloc((size_t)n * sizeof *values);
    uint8_t *k = malloc((size_t)n * kvl_dtype_bytes(s->k_dtype));
    uint8_t *v = malloc((size_t)n * kvl_dtype_bytes(s->v_dtype));
    bool filled = values && k && v;
    if (filled) {
        kvl_rng_fill_normal(seed, STREAM_TABLE, 1.0f, values, n);
        kvl_encode(s->k_dtype, values, n, s->k_dtype == KVL_I8 ? INT8_SCALE : 1.0f, k);
        kvl_encode(s->v_dtype, values, n, s->v_dtype == KVL_I8 ? INT8_SCALE : 1.0f, v);
        for (uint64_t i = 0; i < s->scale_bytes / sizeof(float); i++)
            ((float *)in->scales)[i] = INT8_SCALE;
        filler f = {in, k, v, kvl_rng_make(seed, STREAM_ROWS)};
        for (int64_t copy = 0; copy < s->n_copies; copy++) {
            kvl_attention_inputs_select(in, copy);
            fill_copy(&f, &in->view);
        }
    }
    free(values);
    free(k);
    free(v);
    return filled ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
}

static kvl_status fill_q(kvl_attention_inputs *in, uint64_t seed) {
    const kvl_attention_setup *s = in->setup;
    int64_t n = (int64_t)(s->q_bytes / kvl_dtype_bytes(s->q_dtype));
    enum { BLOCK = 1 << 20 };
    float *values = malloc(BLOCK * sizeof *values);
    if (!values) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t count = n - i < BLOCK ? n - i : BLOCK;
        kvl_rng_fill_normal(seed, STREAM_Q + (uint64_t)(i / BLOCK), 1.0f, values, count);
        kvl_encode(s->q_dtype, values, count, 1.0f,
                   (uint8_t *)in->q + (size_t)i * kvl_dtype_bytes(s->q_dtype));
    }
    free(values);
    return KVL_OK;
}

/* Ids of all pages in random order, handed out to the sequences of one copy after another. */
static kvl_status place_pages(kvl_attention_inputs *in, uint64_t seed) {
    const kvl_attention_setup *s = in->setup;
    int64_t n = s->n_pages * s->n_copies, next = 0;
    kvl_rng rng = kvl_rng_make(seed, STREAM_PAGES);
    int32_t *ids = malloc((size_t)n * sizeof *ids), *table = in->tables;
    if (!ids) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)i;
    for (int64_t i = n; i > 1; i--) { /* Fisher-Yates */
        int64_t j = (int64_t)kvl_rng_below(&rng, (uint64_t)i);
        int32_t swap = ids[i - 1];
        ids[i - 1] = ids[j];
        ids[j] = swap;
    }
    for (int64_t copy = 0; copy < s->n_copies; copy++) {
        for (int64_t i = 0; i < s->shape.n_seqs; i++, table += s->table_stride) {
            int64_t pages = (in->kv_lens[i] + s->page_tokens - 1) / s->page_tokens;
            for (int64_t p = 0; p < s->table_stride; p++) table[p] = p < pages ? ids[next++] : -1;
        }
    }
    free(ids);
    return KVL_OK;
}

static void place_slabs(kvl_attention_inputs *in) {
    const kvl_attention_setup *s = in->setup;
    int64_t slab = s->copy_elems / s->shape.n_seqs;
    for (int64_t i = 0; i < s->shape.n_seqs * s->n_copies; i++) in->slabs[i] = i * slab;
}

static void set_lengths(kvl_attention_inputs *in) {
    const kvl_batch_shape *shape = &in->setup->shape;
    int64_t s = 0;
    for (int g = 0; g < shape->n_groups; g++) {
        for (int64_t i = 0; i < shape->groups[g].n_seqs; i++, s++) {
            in->q_start[s + 1] = in->q_start[s] + (int32_t)shape->groups[g].q_tokens;
            in->kv_lens[s] = (int32_t)shape->groups[g].kv_tokens;
        }
    }
}

static void set_view(kvl_attention_inputs *in) {
    const kvl_attention_setup *s = in->setup;
    int64_t slot_row = s->page_tokens * s->head_dim;
    in->view = (kvl_kv_view){.k_pool = in->k_pool,
                             .v_pool = in->v_pool,
                             .k_dtype = s->k_dtype,
                             .v_dtype = s->v_dtype,
                             .n_seqs = (int32_t)s->shape.n_seqs,
                             .n_kv_heads = s->heads.n_kv,
                             .head_dim = s->head_dim,
                             .kv_lens = in->kv_lens,
                             .page_tokens = s->page_tokens,
                             .page_stride = s->heads.n_kv * slot_row,
                             .head_stride = slot_row,
                             .token_stride = s->head_dim,
                             .table_stride = s->paged ? s->table_stride : 0,
                             .n_pages = s->n_pages * s->n_copies,
                             .pool_elems = s->copy_elems * s->n_copies};
    const int64_t n_scales = (int64_t)(s->scale_bytes / sizeof(float));
    if (s->k_dtype == KVL_I8)
        in->view.k_scale = in->scales, in->view.k_scale_tokens = 1, in->view.n_k_scales = n_scales;
    if (s->v_dtype == KVL_I8)
        in->view.v_scale = in->scales, in->view.v_scale_tokens = 1, in->view.n_v_scales = n_scales;
    int64_t width = (int64_t)s->heads.n_q * s->head_dim;
    in->args = (kvl_attention_args){.kv = &in->view,
                                    .q_start = in->q_start,
                                    .n_q_heads = s->heads.n_q,
                                    .q = in->q,
                                    .q_dtype = s->q_dtype,
                                    .q_row_stride = width,
                                    .o = in->o,
                                    .o_dtype = s->q_dtype,
                                    .o_row_stride = width,
                                    .scale = (float)(1.0 / sqrt((double)s->head_dim)),
                                    .causal = s->causal,
                                    .window = s->window,
                                    .softcap = s->softcap,
                                    .n_threads = s->n_threads};
    kvl_attention_inputs_select(in, 0);
}

static kvl_status allocate(kvl_attention_inputs *in) {
    const kvl_attention_setup *s = in->setup;
    void *ids;
    in->q_start = calloc((size_t)s->shape.n_seqs + 1, sizeof *in->q_start);
    in->kv_lens = calloc((size_t)s->shape.n_seqs, sizeof *in->kv_lens);
    if (!in->q_start || !in->kv_lens) return kvl_fail(KVL_ERR_OOM, "out of memory");
    KVL_TRY(kvl_mem_alloc(s->k_bytes, &in->k_pool));
    KVL_TRY(kvl_mem_alloc(s->v_bytes, &in->v_pool));
    if (s->scale_bytes) KVL_TRY(kvl_mem_alloc(s->scale_bytes, &in->scales));
    KVL_TRY(kvl_mem_alloc(s->q_bytes, &in->q));
    KVL_TRY(kvl_mem_alloc(s->q_bytes, &in->o));
    KVL_TRY(kvl_mem_alloc(s->q_bytes, &in->checked));
    KVL_TRY(kvl_mem_alloc(s->table_bytes, &ids));
    if (s->paged)
        in->tables = ids;
    else
        in->slabs = ids;
    return KVL_OK;
}

kvl_status kvl_attention_inputs_make(const kvl_attention_setup *setup, uint64_t seed,
                                     kvl_attention_inputs *out) {
    memset(out, 0, sizeof *out);
    out->setup = setup;
    kvl_status status = allocate(out);
    if (status == KVL_OK) {
        set_lengths(out);
        if (setup->paged)
            status = place_pages(out, seed);
        else
            place_slabs(out);
    }
    if (status == KVL_OK) {
        set_view(out);
        status = fill_kv(out, seed);
    }
    if (status == KVL_OK) status = fill_q(out, seed);
    if (status != KVL_OK) kvl_attention_inputs_free(out);
    return status;
}

void kvl_attention_inputs_select(kvl_attention_inputs *in, int64_t index) {
    int64_t first = index * in->setup->shape.n_seqs;
    in->view.page_table = in->tables ? in->tables + first * in->setup->table_stride : NULL;
    in->view.slab_start = in->slabs ? in->slabs + first : NULL;
}

void kvl_attention_inputs_free(kvl_attention_inputs *in) {
    if (!in->setup) return;
    const kvl_attention_setup *s = in->setup;
    free(in->q_start);
    free(in->kv_lens);
    kvl_mem_free(in->k_pool, s->k_bytes);
    kvl_mem_free(in->v_pool, s->v_bytes);
    kvl_mem_free(in->scales, s->scale_bytes);
    kvl_mem_free(in->q, s->q_bytes);
    kvl_mem_free(in->o, s->q_bytes);
    kvl_mem_free(in->checked, s->q_bytes);
    kvl_mem_free(in->tables, s->table_bytes);
    kvl_mem_free(in->slabs, s->table_bytes);
    kvl_mem_free(in->workspace, in->workspace_bytes);
    memset(in, 0, sizeof *in);
}
