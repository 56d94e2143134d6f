/* The child's side of the ceilings: measures them. */
#include <omp.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/isa.h"
#include "core/memory.h"
#include "core/threads.h"
#include "harness/trial/ceiling.h"
#include "harness/trial/ceiling_kernels.h"
#include "quant/linear.h"

typedef struct kernels {
    float (*sums[2])(const float *x, int64_t n); /* from one place, from several */
    float (*fma)(int64_t n, double *flops);
} kernels;

static kernels pick_kernels(void) {
    if (kvl_isa_current() >= KVL_ISA_AVX512)
        return (kernels){{kvl_ceiling_sum_avx512, kvl_ceiling_sum_streams_avx512},
                         kvl_ceiling_fma_avx512};
    if (kvl_isa_current() >= KVL_ISA_AVX2)
        return (kernels){{kvl_ceiling_sum_avx2, kvl_ceiling_sum_streams_avx2},
                         kvl_ceiling_fma_avx2};
    return (kernels){{kvl_ceiling_sum_scalar, kvl_ceiling_sum_streams_scalar},
                     kvl_ceiling_fma_scalar};
}

/* The slice of thread t, in units of 256 floats, so that every kernel's step divides it. */
static int64_t slice_start(int64_t n, int t, int n_threads) {
    return n / 256 * t / n_threads * 256;
}

/* Best of the passes in half a second, either loop in turn: a ceiling is what the machine can do,
 * so anything that slows a pass (a neighbour, a first touch) is not part of it. */
static double read_bandwidth(const kernels *k, const float *x, int64_t n) {
    double best = 0;
    volatile float sink = 0;
    uint64_t begin = kvl_now_ns();
    for (int pass = 0; pass < 4 || kvl_now_ns() - begin < 500000000; pass++) {
        uint64_t start = kvl_now_ns();
#pragma omp parallel num_threads(kvl_threads())
        {
            int t = omp_get_thread_num(), n_threads = omp_get_num_threads();
            int64_t first = slice_start(n, t, n_threads), last = slice_start(n, t + 1, n_threads);
            float sum = k->sums[pass % 2](x + first, last - first);
            if (sum < 0) sink = sum; /* never: all elements are 1; keeps the reads alive */
        }
        double rate = (double)n * sizeof *x / ((double)(kvl_now_ns() - start) * 1e-9);
        if (rate > best) best = rate;
    }
    (void)sink;
    return best;
}

static double fma_peak(const kernels *k) {
    double best = 0;
    volatile float sink = 0;
    uint64_t begin = kvl_now_ns();
    /* Short passes, so that some fit between the time slices of a busy machine. */
    for (int pass = 0; pass < 5 || kvl_now_ns() - begin < 150000000; pass++) {
        double total = 0;
        uint64_t start = kvl_now_ns();
#pragma omp parallel num_threads(kvl_threads()) reduction(+ : total)
        {
            double flops;
            float sum = k->fma(200000, &flops);
            if (sum < 0) sink = sum;
            total += flops;
        }
        double rate = total / ((double)(kvl_now_ns() - start) * 1e-9);
        if (rate > best) best = rate;
    }
    (void)sink;
    return best;
}

/* A bf16 matrix product of prefill's shape, as the decoder would run it; 0 when it cannot. */
static double bf16_product(void) {
    enum { ROWS = 512, N = 1024 };
    kvl_linear_options options = {.compute_dtype = KVL_BF16};
    kvl_linear *layer = NULL;
    float *x = calloc((size_t)ROWS * N, sizeof *x), *y = calloc((size_t)ROWS * N, sizeof *y);
    double best = 0;
    if (x && y && kvl_weight_format_find("bf16", &options.format) == KVL_OK &&
        kvl_linear_create(N, N, &options, &layer) == KVL_OK &&
        kvl_linear_set_rows(layer, 0, ROWS, x) == KVL_OK &&
        kvl_linear_set_rows(layer, ROWS, N - ROWS, x) == KVL_OK &&
        kvl_linear_finish(layer, NULL) == KVL_OK) {
        for (int pass = 0; pass < 8; pass++) {
            uint64_t start = kvl_now_ns();
            if (kvl_linear_run(layer, x, N, ROWS, y, N, false) != KVL_OK) break;
            double rate = 2.0 * ROWS * N * N / ((double)(kvl_now_ns() - start) * 1e-9);
            if (rate > best) best = rate;
        }
    }
    kvl_linear_destroy(layer);
    free(x);
    free(y);
    return best;
}

json_t *kvl_ceiling_measure(uint64_t buffer_bytes) {
    kernels k = pick_kernels();
    void *buffer = NULL;
    int64_t n = (int64_t)(buffer_bytes / sizeof(float)) / 256 * 256;
    if (kvl_mem_alloc(buffer_bytes, &buffer) != KVL_OK) return NULL;
    float *x = buffer;
    /* Touched by the threads that will read it, so that it lies in their memory. */
#pragma omp parallel num_threads(kvl_threads())
    {
        int t = omp_get_thread_num(), n_threads = omp_get_num_threads();
        for (int64_t i = slice_start(n, t, n_threads); i < slice_start(n, t + 1, n_threads); i++)
            x[i] = 1.0f;
    }
    double f32 = fma_peak(&k), bf16 = bf16_product(), read = read_bandwidth(&k, x, n);
    kvl_mem_free(buffer, buffer_bytes);
    json_t *ceilings = json_object();
    json_object_set_new(ceilings, "read_bytes_per_s", json_real(read));
    json_object_set_new(ceilings, "read_buffer_bytes", json_integer((json_int_t)buffer_bytes));
    json_object_set_new(ceilings, "f32_flops_per_s", json_real(f32));
    json_object_set_new(ceilings, "bf16_flops_per_s", json_real(bf16 > f32 ? bf16 : f32));
    json_object_set_new(ceilings, "threads", json_integer(kvl_threads()));
    json_object_set_new(ceilings, "isa", json_string(kvl_isa_name(kvl_isa_current())));
    return ceilings;
}
