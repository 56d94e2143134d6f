#include "quant/onednn.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what differs between oneDNN 2.x and 3.x: memory descriptors became opaque, and operation
 * descriptors vanished. Nothing below this section knows the version. ---- */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t shape;
typedef const_dnnl_memory_desc_t shape_ref;

static dnnl_status_t shape_make(shape *out, const dnnl_dims_t dims, dnnl_data_type_t type) {
    const dnnl_dims_t strides = {dims[1], 1};
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}
static shape_ref shape_see(const shape *of) {
    return *of;
}
static void shape_drop(shape *of) {
    if (*of) dnnl_memory_desc_destroy(*of);
}
static dnnl_status_t matmul_make(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const shape *a,
                                 const shape *b, const shape *c, const_dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(out, engine, *a, *b, NULL, *c, attr);
}
#else
typedef dnnl_memory_desc_t shape;
typedef const dnnl_memory_desc_t *shape_ref;

static dnnl_status_t shape_make(shape *out, const dnnl_dims_t dims, dnnl_data_type_t type) {
    const dnnl_dims_t strides = {dims[1], 1};
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}
static shape_ref shape_see(const shape *of) {
    return of;
}
static void shape_drop(shape *of) {
    (void)of;
}
static dnnl_status_t matmul_make(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const shape *a,
                                 const shape *b, const shape *c, const_dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, a, b, NULL, c);
    if (status != dnnl_success) return status;
    return dnnl_primitive_desc_create(out, &operation, attr, engine, NULL);
}
#endif

/* ---- products ------------------------------------------------------------------------------- */

enum { N_SLOTS = KVL_ONEDNN_MAX_ROWS / KVL_ONEDNN_ROWS };

typedef struct product {
    dnnl_primitive_t primitive; /* NULL until prepared */
    shape a, b, c;
    dnnl_primitive_desc_t desc; /* owns the scratchpad's shape */
    uint64_t scratch_bytes;
} product;

struct kvl_onednn {
    dnnl_engine_t engine;
    dnnl_data_type_t type;
    int64_t n, k;
    pthread_mutex_t lock; /* for prepare; a prepared product is never changed again */
    product products[N_SLOTS];
};

static const char *reason(dnnl_status_t status) {
    switch (status) {
    case dnnl_unimplemented:
        return "not implemented for this CPU and type";
    case dnnl_out_of_memory:
        return "out of memory";
    case dnnl_invalid_arguments:
        return "invalid arguments";
    default:
        return "runtime error";
    }
}

static void product_drop(product *p) {
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    if (p->desc) dnnl_primitive_desc_destroy(p->desc);
    shape_drop(&p->a);
    shape_drop(&p->b);
    shape_drop(&p->c);
    *p = (product){0};
}

static dnnl_status_t product_make(const kvl_onednn *o, int64_t m, product *p) {
    const dnnl_dims_t a = {m, o->k}, b = {o->k, o->n}, c = {m, o->n};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(&attr);
    /* The library's own scratchpad belongs to one thread; ours comes with each run. */
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success) status = shape_make(&p->a, a, o->type);
    if (status == dnnl_success) status = shape_make(&p->b, b, o->type);
    if (status == dnnl_success) status = shape_make(&p->c, c, dnnl_f32);
    if (status == dnnl_success)
        status = matmul_make(&p->desc, o->engine, &p->a, &p->b, &p->c, attr);
    if (status == dnnl_success) {
        p->scratch_bytes = dnnl_memory_desc_get_size(
            dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0));
        status = dnnl_primitive_create(&p->primitive, p->desc);
    }
    if (attr) dnnl_primitive_attr_destroy(attr);
    if (status != dnnl_success) product_drop(p);
    return status;
}

static int64_t slot_of(int64_t m) {
    return (m + KVL_ONEDNN_ROWS - 1) / KVL_ONEDNN_ROWS - 1;
}

kvl_status kvl_onednn_prepare(kvl_onednn *o, int64_t m, uint64_t *scratch_bytes) {
    if (m < 1 || m > KVL_ONEDNN_MAX_ROWS)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "onednn: rows %lld: 1 to %d", (long long)m,
                        KVL_ONEDNN_MAX_ROWS);
    product *p = &o->products[slot_of(m)];
    dnnl_status_t status = dnnl_success;
    pthread_mutex_lock(&o->lock);
    if (!p->primitive) {
        /* A primitive is laid out for the thread count that OpenMP names at this moment. */
        int n_threads = omp_get_max_threads();
        omp_set_num_threads(1);
        status = product_make(o, (slot_of(m) + 1) * KVL_ONEDNN_ROWS, p);
        omp_set_num_threads(n_threads);
    }
    *scratch_bytes = p->scratch_bytes;
    pthread_mutex_unlock(&o->lock);
    if (status == dnnl_success) return KVL_OK;
    char version[32];
    kvl_onednn_version(version, sizeof version);
    return kvl_fail(KVL_ERR_UNSUPPORTED, "onednn %s: %s product %lld x %lld x %lld: %s", version,
                    o->type == dnnl_bf16 ? "bf16" : "f32", (long long)m, (long long)o->k,
                    (long long)o->n, reason(status));
}

kvl_status kvl_onednn_create(kvl_dtype dtype, int64_t n, int64_t k, kvl_onednn **out) {
    if (dtype != KVL_F32 && dtype != KVL_BF16)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "onednn: type %s: f32 or bf16", kvl_dtype_name(dtype));
    kvl_onednn *o = calloc(1, sizeof *o);
    if (!o) return kvl_fail(KVL_ERR_OOM, "out of memory: oneDNN products");
    o->type = dtype == KVL_BF16 ? dnnl_bf16 : dnnl_f32;
    o->n = n;
    o->k = k;
    pthread_mutex_init(&o->lock, NULL);
    dnnl_status_t status = dnnl_engine_create(&o->engine, dnnl_cpu, 0);
    uint64_t scratch_bytes;
    kvl_status result =
        status == dnnl_success
            ? kvl_onednn_prepare(o, KVL_ONEDNN_MAX_ROWS, &scratch_bytes)
            : kvl_fail(KVL_ERR_UNSUPPORTED, "onednn: no CPU engine: %s", reason(status));
    if (result != KVL_OK) {
        kvl_onednn_destroy(o);
        return result;
    }
    *out = o;
    return KVL_OK;
}

void kvl_onednn_destroy(kvl_onednn *o) {
    if (!o) return;
    for (int i = 0; i < N_SLOTS; i++) product_drop(&o->products[i]);
    if (o->engine) dnnl_engine_destroy(o->engine);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

kvl_status kvl_onednn_run(const kvl_onednn *o, int64_t m, const void *a, const void *b, float *c,
                          void *scratch) {
    enum { A, B, C, SCRATCH, N_MEMORIES };
    const product *p = &o->products[slot_of(m)];
    const shape_ref shapes[N_MEMORIES] = {
        shape_see(&p->a), shape_see(&p->b), shape_see(&p->c),
        dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0)};
    /* The C interface has no const data; A and B are only read. */
    void *const data[N_MEMORIES] = {(void *)(uintptr_t)a, (void *)(uintptr_t)b, c, scratch};
    static const int names[N_MEMORIES] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                          DNNL_ARG_SCRATCHPAD};
    dnnl_exec_arg_t args[N_MEMORIES];
    dnnl_memory_t memories[N_MEMORIES] = {NULL};
    dnnl_stream_t stream = NULL;
    dnnl_status_t status = dnnl_stream_create(&stream, o->engine, dnnl_stream_default_flags);
    for (int i = 0; i < N_MEMORIES && status == dnnl_success; i++) {
        status = dnnl_memory_create(&memories[i], shapes[i], o->engine, data[i]);
        args[i] = (dnnl_exec_arg_t){names[i], memories[i]};
    }
    if (status == dnnl_success)
        status = dnnl_primitive_execute(p->primitive, stream, N_MEMORIES, args);
    if (status == dnnl_success) status = dnnl_stream_wait(stream);
    for (int i = 0; i < N_MEMORIES; i++) {
        if (memories[i]) dnnl_memory_destroy(memories[i]);
    }
    if (stream) dnnl_stream_destroy(stream);
    if (status != dnnl_success)
        return kvl_fail(KVL_ERR_INTERNAL, "onednn: product of %lld rows: %s", (long long)m,
                        reason(status));
    return KVL_OK;
}

void kvl_onednn_version(char *out, size_t out_bytes) {
    const dnnl_version_t *v = dnnl_version();
    snprintf(out, out_bytes, "%d.%d.%d", v->major, v->minor, v->patch);
}
