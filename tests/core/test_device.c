#include "tests/test.h"

#include <math.h>

#include "core/device.h"
#include "core/isa.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/threads.h"
#include "quant/kv_format.h"

static const kvl_isa isas[] = {KVL_ISA_SCALAR, KVL_ISA_AVX2, KVL_ISA_AVX512};
static const int thread_counts[] = {1, 2, 3};
static const kvl_device *cpu;

/* Calls body once for each instruction set of this CPU. */
static void each_isa(void (*body)(void)) {
    int n = 0;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (kvl_isa_force(isas[i]) != KVL_OK) {
            print_message("[  SKIPPED ] %s: not on this CPU\n", kvl_isa_name(isas[i]));
            continue;
        }
        body();
        n++;
    }
    assert_true(n >= 1);
}

static float *normals(uint64_t stream, int64_t n) {
    float *x = malloc(sizeof *x * (size_t)(n ? n : 1));
    assert_non_null(x);
    kvl_rng_fill_normal(3, stream, 2.0f, x, n);
    return x;
}

static void near(const char *what, int64_t i, double got, double want, double allowed) {
    if (!(fabs(got - want) <= allowed))
        fail_msg("%s[%lld] = %.9g, not %.9g (allowed %.3g)", what, (long long)i, got, want,
                 allowed);
}

/* ---- rmsnorm -------------------------------------------------------------------------------- */

enum { ROWS = 67 };

static void rmsnorm_rows(int64_t groups, int64_t dim) {
    int64_t stride = groups * dim + 3, out_stride = groups * dim + 1;
    float *x = normals(1, ROWS * stride), *weight = normals(2, dim);
    float *out = calloc((size_t)(ROWS * out_stride), sizeof *out);
    float *again = malloc(sizeof *again * (size_t)stride);
    x[5] = 300.0f;
    for (int64_t i = 0; i < dim; i++) x[2 * stride + i] = 0; /* only eps keeps this row finite */
    for (size_t t = 0; t < 3; t++) {
        assert_ok(kvl_threads_set(thread_counts[t], 0));
        memset(out, 0x55, sizeof *out * (size_t)(ROWS * out_stride));
        assert_ok(cpu->rmsnorm(NULL, x, weight, 1e-5f, ROWS, groups, dim, stride, out, out_stride));
        for (int64_t r = 0; r < ROWS; r++) {
            for (int64_t g = 0; g < groups; g++) {
                const float *in = x + r * stride + g * dim, *got = out + r * out_stride + g * dim;
                double sum = 0;
                for (int64_t i = 0; i < dim; i++) sum += (double)in[i] * in[i];
                double factor = 1.0 / sqrt(sum / (double)dim + (double)1e-5f);
                for (int64_t i = 0; i < dim; i++) {
                    double want = in[i] * factor * weight[i];
                    near("rmsnorm", i, got[i], want, 5e-7 * fabs(want) + 1e-30);
                }
            }
            /* One row alone, in place: the same bits. */
            memcpy(again, x + r * stride, sizeof *x * (size_t)stride);
            assert_ok(
                cpu->rmsnorm(NULL, again, weight, 1e-5f, 1, groups, dim, stride, again, stride));
            assert_memory_equal(again, out + r * out_stride, sizeof *x * (size_t)(groups * dim));
            uint32_t past;
            memcpy(&past, out + r * out_stride + groups * dim, 4);
            assert_int_equal(past, 0x55555555);
        }
    }
    free(x);
    free(weight);
    free(out);
    free(again);
}

static void rmsnorm_shapes(void) {
    rmsnorm_rows(1, 576);
    rmsnorm_rows(9, 64);
    rmsnorm_rows(1, 1);
    rmsnorm_rows(3, 37);
    rmsnorm_rows(1, 4099);
}

static void rmsnorm(void **state) {
    each_isa(rmsnorm_shapes);
    assert_refused(cpu->rmsnorm(NULL, NULL, NULL, 0, 1, 0, 4, 4, NULL, 4), KVL_ERR_INPUT,
                   "0 groups");
}

/* ---- rope ----------------------------------------------------------------------------------- */

static void rope_rows(int32_t n_heads, int32_t head_dim, double base) {
    int64_t dim = (int64_t)n_heads * head_dim, stride = dim + 5;
    int half = head_dim / 2;
    float *x = normals(4, ROWS * stride), *out = malloc(sizeof *out * (size_t)(ROWS * stride));
    float *alone = malloc(sizeof *alone * (size_t)stride), inv_freq[256];
    int32_t positions[ROWS];
    for (int i = 0; i < half; i++) inv_freq[i] = (float)pow(base, -2.0 * i / head_dim);
    for (int r = 0; r < ROWS; r++) positions[r] = r < 40 ? r : r < 60 ? r * 97 : r * r * 29;
    positions[ROWS - 1] = 131071;
    for (size_t t = 0; t < 3; t++) {
        assert_ok(kvl_threads_set(thread_counts[t], 0));
        memcpy(out, x, sizeof *x * (size_t)(ROWS * stride));
        assert_ok(cpu->rope(NULL, out, stride, ROWS, n_heads, head_dim, positions, inv_freq));
        for (int64_t r = 0; r < ROWS; r++) {
            for (int64_t h = 0; h < n_heads; h++) {
                const float *in = x + r * stride + h * head_dim;
                const float *got = out + r * stride + h * head_dim;
                for (int i = 0; i < half; i++) {
                    float angle = (float)positions[r] * inv_freq[i];
                    double c = cos(angle), s = sin(angle), a = in[i], b = in[i + half];
                    double allowed = 1.8e-7 * (fabs(a) + fabs(b));
                    near("rope", i, got[i], a * c - b * s, allowed);
                    near("rope", i + half, got[i + half], b * c + a * s, allowed);
                }
            }
            memcpy(alone, x + r * stride, sizeof *x * (size_t)stride);
            assert_ok(
                cpu->rope(NULL, alone, stride, 1, n_heads, head_dim, positions + r, inv_freq));
            assert_memory_equal(alone, out + r * stride, sizeof *x * (size_t)stride);
        }
    }
    free(x);
    free(out);
    free(alone);
}

static void rope_shapes(void) {
    rope_rows(9, 64, 10000);
    rope_rows(3, 128, 500000);
    rope_rows(1, 2, 10000);
    rope_rows(5, 40, 100000);
    rope_rows(2, 320, 10000); /* more frequencies than one block */
}

static void rope(void **state) {
    each_isa(rope_shapes);
    assert_refused(cpu->rope(NULL, NULL, 0, 1, 1, 7, NULL, NULL), KVL_ERR_INPUT, "head_dim 7");
}

/* ---- elementwise ---------------------------------------------------------------------------- */

static void swiglu_rows(int64_t dim) {
    int64_t stride = dim + 2, out_stride = dim + 1;
    float *gate = normals(5, ROWS * stride), *up = normals(6, ROWS * stride);
    float *out = malloc(sizeof *out * (size_t)(ROWS * out_stride)),
          *alone = malloc(sizeof *out * (size_t)dim);
    gate[0] = -100.0f, gate[stride] = 100.0f, gate[2 * stride] = 0.0f;
    for (size_t t = 0; t < 3; t++) {
        assert_ok(kvl_threads_set(thread_counts[t], 0));
        memset(out, 0x55, sizeof *out * (size_t)(ROWS * out_stride));
        assert_ok(cpu->swiglu(NULL, gate, up, stride, ROWS, dim, out, out_stride));
        for (int64_t r = 0; r < ROWS; r++) {
            for (int64_t i = 0; i < dim; i++) {
                double g = gate[r * stride + i];
                double want = g / (1 + exp(-g)) * up[r * stride + i];
                near("swiglu", i, out[r * out_stride + i], want, 6e-7 * fabs(want) + 1e-34);
            }
            assert_ok(
                cpu->swiglu(NULL, gate + r * stride, up + r * stride, stride, 1, dim, alone, dim));
            assert_memory_equal(alone, out + r * out_stride, sizeof *out * (size_t)dim);
            uint32_t past;
            memcpy(&past, out + r * out_stride + dim, 4);
            assert_int_equal(past, 0x55555555);
        }
    }
    free(gate);
    free(up);
    free(out);
    free(alone);
}

static void elementwise_shapes(void) {
    swiglu_rows(1536);
    swiglu_rows(1);
    swiglu_rows(77);
}

static void elementwise(void **state) {
    each_isa(elementwise_shapes);
}

static kvl_status convert_rows(const void *src, kvl_dtype src_dtype, void *dst, kvl_dtype dst_dtype,
                               int64_t n_rows, int64_t n) {
    return cpu->convert(NULL, n_rows, n, src, src_dtype, n, dst, dst_dtype, n);
}

static void conversions(void) {
    enum { ROW = 1003, N = 41 * ROW };
    float *x = normals(9, N), *back = malloc(sizeof *back * N);
    uint16_t *half = malloc(2 * N), *direct = malloc(2 * N);
    uint8_t *fp8 = malloc(N), *through = malloc(N);
    assert_ok(convert_rows(x, KVL_F32, half, KVL_BF16, N / ROW, ROW));
    for (int i = 0; i < N; i++) assert_int_equal(half[i], kvl_f32_to_bf16(x[i]));
    assert_ok(convert_rows(half, KVL_BF16, back, KVL_F32, N / ROW, ROW));
    for (int i = 0; i < N; i++) assert_true(back[i] == kvl_bf16_to_f32(half[i]));
    assert_ok(convert_rows(half, KVL_BF16, fp8, KVL_FP8_E4M3, N / ROW,
                           ROW)); /* neither side is float32 */
    kvl_encode(KVL_FP8_E4M3, back, N, 1.0f, through);
    assert_memory_equal(fp8, through, N);
    assert_ok(convert_rows(x, KVL_F32, back, KVL_F32, N / ROW, ROW));
    assert_memory_equal(x, back, sizeof *x * N);
    assert_ok(convert_rows(fp8, KVL_FP8_E4M3, direct, KVL_F16, N / ROW, ROW));
    for (int i = 0; i < N; i++) assert_true(kvl_f16_to_f32(direct[i]) == kvl_e4m3_to_f32(fp8[i]));
    /* Strided rows: what lies between them stays. */
    memset(direct, 0xff, 2 * N);
    assert_ok(cpu->convert(NULL, 41, 7, x, KVL_F32, ROW, direct, KVL_BF16, 11));
    for (int r = 0; r < 41; r++) {
        for (int i = 0; i < 11; i++)
            assert_int_equal(direct[r * 11 + i], i < 7 ? kvl_f32_to_bf16(x[r * ROW + i]) : 0xffff);
    }
    assert_refused(convert_rows(x, KVL_F32, back, KVL_I32, N / ROW, ROW), KVL_ERR_UNSUPPORTED,
                   "f32 to i32");
    free(x);
    free(back);
    free(half);
    free(direct);
    free(fp8);
    free(through);
}

static void converts(void **state) {
    each_isa(conversions);
}

/* ---- the KV cache --------------------------------------------------------------------------- */

enum { SEQS = 3, HEADS = 3, DIM = 20, PAGES = 24, PAGE = 5, TABLE = 8, SLOTS = PAGES * PAGE };

typedef struct cache {
    kvl_kv_view view;
    int32_t kv_lens[SEQS], q_start[SEQS + 1], table[SEQS * TABLE];
    int64_t slab_start[SEQS];
    float k_scale[HEADS], v_scale[HEADS];
    uint8_t k_pool[SLOTS * HEADS * DIM * 4], v_pool[SLOTS * HEADS * DIM * 4];
} cache;

/* Three sequences of 17, 5 and 30 tokens, of which 9, 0 and 30 are new; pages shuffled. `order` 1
 * puts heads inside tokens, the other way round than the default. */
static void make_cache(cache *c, kvl_dtype dtype, int paged, int order, int scaled) {
    memset(c, 0, sizeof *c);
    const int32_t lens[SEQS] = {17, 5, 30}, starts[SEQS + 1] = {0, 9, 9, 39};
    memcpy(c->kv_lens, lens, sizeof lens);
    memcpy(c->q_start, starts, sizeof starts);
    int64_t page = paged ? PAGE : 40;
    for (int s = 0; s < SEQS; s++) {
        for (int p = 0; p < TABLE; p++)
            c->table[s * TABLE + p] = p * PAGE < lens[s] ? (s * TABLE + p) * 7 % PAGES : -1;
        c->slab_start[s] = (int64_t)(SEQS - 1 - s) * page * HEADS * DIM;
    }
    for (int h = 0; h < HEADS; h++) c->k_scale[h] = 0.5f + (float)h, c->v_scale[h] = 0.1f;
    c->view = (kvl_kv_view){.k_pool = c->k_pool,
                            .v_pool = c->v_pool,
                            .k_dtype = dtype,
                            .v_dtype = dtype,
                            .n_seqs = SEQS,
                            .n_kv_heads = HEADS,
                            .head_dim = DIM,
                            .kv_lens = c->kv_lens,
                            .page_tokens = page,
                            .page_stride = page * HEADS * DIM,
                            .head_stride = order ? DIM : page * DIM,
                            .token_stride = order ? HEADS * DIM : DIM,
                            .page_table = paged ? c->table : NULL,
                            .table_stride = TABLE,
                            .slab_start = c->slab_start,
                            .n_pages = paged ? PAGES : 3,
                            .pool_elems = SLOTS * HEADS * DIM,
                            .k_scale = scaled ? c->k_scale : NULL,
                            .v_scale = scaled ? c->v_scale : NULL};
    memset(c->k_pool, 0xee, sizeof c->k_pool);
    memset(c->v_pool, 0xee, sizeof c->v_pool);
    assert_ok(kvl_kv_view_check(&c->view));
}

/* Writes the expected pools value by value, through the definition of the formats. */
static void expect(const cache *c, const float *k, const float *v, int64_t stride, uint8_t *k_want,
                   uint8_t *v_want, int64_t *over) {
    const kvl_kv_view *view = &c->view;
    const kvl_kv_format *format = kvl_kv_format_of(view->k_dtype);
    int64_t bytes = (int64_t)kvl_dtype_bytes(view->k_dtype);
    memset(k_want, 0xee, sizeof c->k_pool);
    memset(v_want, 0xee, sizeof c->v_pool);
    for (int s = 0; s < SEQS; s++) {
        int n_new = c->q_start[s + 1] - c->q_start[s];
        for (int i = 0; i < n_new; i++) {
            for (int h = 0; h < HEADS; h++) {
                int64_t to = kvl_kv_offset(view, s, c->kv_lens[s] - n_new + i, h) * bytes;
                int64_t from = (c->q_start[s] + i) * stride + h * DIM;
                over[h] +=
                    format->encode(k + from, DIM, view->k_scale ? c->k_scale[h] : 1, k_want + to);
                over[HEADS + h] +=
                    format->encode(v + from, DIM, view->v_scale ? c->v_scale[h] : 1, v_want + to);
            }
        }
    }
}

static void append_everywhere(void) {
    static cache c;
    static uint8_t k_want[sizeof c.k_pool], v_want[sizeof c.v_pool];
    int64_t stride = HEADS * DIM + 7, over_total = 0;
    float *k = normals(10, 39 * stride), *v = normals(11, 39 * stride);
    for (int i = 0; i < 39 * stride; i += 50) k[i] *= 1e6f; /* some saturate */
    for (int variant = 0; variant < 8; variant++) {
        for (size_t f = 0; f < kvl_kv_format_count(); f++) {
            for (size_t t = 0; t < 3; t++) {
                assert_ok(kvl_threads_set(thread_counts[t], 0));
                make_cache(&c, kvl_kv_format_at(f)->dtype, variant & 1, variant >> 1 & 1,
                           variant >> 2);
                int64_t saturated[2 * HEADS] = {5}, want[2 * HEADS] = {5};
                expect(&c, k, v, stride, k_want, v_want, want);
                assert_ok(
                    cpu->kv_append(NULL, &c.view, c.q_start, k, stride, v, stride, saturated));
                assert_memory_equal(saturated, want, sizeof want);
                assert_memory_equal(c.k_pool, k_want, sizeof k_want);
                assert_memory_equal(c.v_pool, v_want, sizeof v_want);
                for (int i = 1; i < 2 * HEADS; i++) over_total += saturated[i];
            }
        }
    }
    assert_true(over_total > 0);
    free(k);
    free(v);
}

/* As many tokens as make the call parallel. */
static void append_in_parallel(void) {
    enum { N = 300, H = 4, D = 64 };
    float *k = normals(12, N * H * D), *v = normals(13, N * H * D);
    uint16_t *pools[3];
    int32_t kv_len = N, q_start[2] = {0, N}, table[N];
    int64_t counts[3][2 * H] = {{0}};
    for (int i = 0; i < N; i++) table[i] = N - 1 - i;
    k[N * H * D - 1] = 1e20f;
    for (size_t t = 0; t < 3; t++) {
        pools[t] = calloc(2 * N * H * D, sizeof *pools[t]);
        kvl_kv_view view = {.k_pool = pools[t],
                            .v_pool = pools[t] + N * H * D,
                            .k_dtype = KVL_F16,
                            .v_dtype = KVL_F16,
                            .n_seqs = 1,
                            .n_kv_heads = H,
                            .head_dim = D,
                            .kv_lens = &kv_len,
                            .page_tokens = 1,
                            .page_stride = H * D,
                            .head_stride = D,
                            .token_stride = D,
                            .page_table = table,
                            .table_stride = N,
                            .n_pages = N,
                            .pool_elems = N * H * D};
        assert_ok(kvl_threads_set(thread_counts[t], 0));
        assert_ok(cpu->kv_append(NULL, &view, q_start, k, H * D, v, H * D, counts[t]));
        for (int i = 0; i < 2 * H; i++) assert_int_equal(counts[t][i], i == H - 1);
        if (t) assert_memory_equal(pools[t], pools[0], 2 * N * H * D * sizeof **pools);
    }
    for (int i = 0; i < N * H * D; i++) {
        int64_t row = i / (H * D), at = (N - 1 - row) * H * D + i % (H * D);
        assert_int_equal(pools[0][at], kvl_f32_to_f16(k[i]));
        assert_int_equal(pools[0][N * H * D + at], kvl_f32_to_f16(v[i]));
    }
    for (int t = 0; t < 3; t++) free(pools[t]);
    free(k);
    free(v);
}

static void kv_append(void **state) {
    each_isa(append_everywhere);
    each_isa(append_in_parallel);
}

static void kv_append_refusals(void **state) {
    static cache c;
    float k[39 * HEADS * DIM] = {0};
    int64_t saturated[2 * HEADS] = {0}, stride = HEADS * DIM;
    make_cache(&c, KVL_F32, 1, 0, 0);
    c.view.v_dtype = KVL_U8;
    assert_refused(cpu->kv_append(NULL, &c.view, c.q_start, k, stride, k, stride, saturated),
                   KVL_ERR_UNSUPPORTED, "dtype u8");
    make_cache(&c, KVL_F32, 1, 0, 0);
    c.table[2 * TABLE + 5] = -1;
    assert_refused(cpu->kv_append(NULL, &c.view, c.q_start, k, stride, k, stride, saturated),
                   KVL_ERR_INPUT, "sequence 2, token 25 has no slot");
    c.table[2 * TABLE + 5] = PAGES;
    assert_refused(cpu->kv_append(NULL, &c.view, c.q_start, k, stride, k, stride, saturated),
                   KVL_ERR_INPUT, "sequence 2, token 29 ends at element");
    make_cache(&c, KVL_F32, 1, 0, 0);
    c.kv_lens[2] = 29; /* more new tokens than there are */
    assert_refused(cpu->kv_append(NULL, &c.view, c.q_start, k, stride, k, stride, saturated),
                   KVL_ERR_INPUT, "30 new tokens of 29");
    c.kv_lens[2] = TABLE * PAGE + 1; /* past the table */
    c.table[2 * TABLE + 6] = c.table[2 * TABLE + 7] = 0;
    assert_refused(cpu->kv_append(NULL, &c.view, c.q_start, k, stride, k, stride, saturated),
                   KVL_ERR_INPUT, "token 40 has no slot");
    make_cache(&c, KVL_F32, 0, 0, 0);
    c.kv_lens[2] = 41; /* past the slab */
    assert_refused(cpu->kv_append(NULL, &c.view, c.q_start, k, stride, k, stride, saturated),
                   KVL_ERR_INPUT, "token 40 has no slot");
    for (size_t i = 0; i < sizeof c.k_pool; i++) assert_int_equal(c.k_pool[i], 0xee);
    for (int i = 0; i < 2 * HEADS; i++) assert_int_equal(saturated[i], 0);
}

/* Slots of pools whose every element is its own number, moved by the definition of a slot. */
static void kv_copy(void **state) {
    static cache c;
    const struct {
        int64_t src, dst, n;
    } moves[] = {{0, 5, 3},   {3, 11, 9}, {10, 12, 20}, {30, 27, 20},
                 {119, 0, 1}, {7, 7, 5},  {4, 9, 0}};
    for (int order = 0; order < 2; order++) {
        for (size_t m = 0; m < sizeof moves / sizeof *moves; m++) {
            make_cache(&c, KVL_F32, 1, order, 0);
            float *k = (float *)c.k_pool, *v = (float *)c.v_pool;
            for (int i = 0; i < SLOTS * HEADS * DIM; i++) k[i] = (float)i, v[i] = (float)-i;
            assert_ok(cpu->kv_copy(&c.view, moves[m].src, moves[m].dst, moves[m].n));
            for (int64_t slot = 0; slot < SLOTS; slot++) {
                int64_t from = slot - moves[m].dst;
                from = from >= 0 && from < moves[m].n ? from + moves[m].src : slot;
                for (int h = 0; h < HEADS; h++) {
                    int64_t head = h * c.view.head_stride;
                    int64_t a =
                        slot / PAGE * c.view.page_stride + slot % PAGE * c.view.token_stride;
                    int64_t b =
                        from / PAGE * c.view.page_stride + from % PAGE * c.view.token_stride;
                    for (int d = 0; d < DIM; d++) {
                        assert_true(k[a + head + d] == (float)(b + head + d));
                        assert_true(v[a + head + d] == -(float)(b + head + d));
                    }
                }
            }
        }
    }
    assert_refused(cpu->kv_copy(&c.view, 0, SLOTS, 1), KVL_ERR_INPUT, "pool has 120");
    assert_refused(cpu->kv_copy(&c.view, -1, 0, 1), KVL_ERR_INPUT, "from -1");
    assert_refused(cpu->kv_copy(&c.view, 0, 1, INT64_MAX), KVL_ERR_INPUT, "pool has 120");
    c.view.page_stride = 0;
    assert_refused(cpu->kv_copy(&c.view, 0, 1, 1), KVL_ERR_UNSUPPORTED, "page_stride");
}

/* 65,536 blocks of 32 x 16 x 128 elements: the last lie past 2^31 elements. Memory is only touched
 * where it is written. */
static void offsets_past_32_bits(void **state) {
    enum { N = 65536, H = 32, P = 16, D = 128 };
    const int64_t elems = (int64_t)N * H * P * D;
    void *pool;
    if (kvl_mem_alloc((uint64_t)elems, &pool) != KVL_OK) {
        print_message("[  SKIPPED ] %s\n", kvl_message());
        return;
    }
    float *k = normals(14, H * D);
    int32_t kv_len = P, q_start[2] = {0, 1}, table[1] = {N - 1};
    int64_t last = elems - 1;
    kvl_kv_view view = {.k_pool = pool,
                        .v_pool = pool,
                        .k_dtype = KVL_FP8_E5M2,
                        .v_dtype = KVL_FP8_E5M2,
                        .n_seqs = 1,
                        .n_kv_heads = H,
                        .head_dim = D,
                        .kv_lens = &kv_len,
                        .page_tokens = P,
                        .page_stride = H * P * D,
                        .head_stride = P * D,
                        .token_stride = D,
                        .page_table = table,
                        .table_stride = 1,
                        .n_pages = N,
                        .pool_elems = elems};
    assert_ok(cpu->kv_append(NULL, &view, q_start, k, H * D, k, H * D, NULL));
    assert_int_equal(((uint8_t *)pool)[last], kvl_f32_to_e5m2(k[H * D - 1]));
    assert_ok(cpu->kv_copy(&view, (int64_t)N * P - 1, (int64_t)(N - 1) * P, 1));
    assert_int_equal(((uint8_t *)pool)[last - (P - 1) * D], kvl_f32_to_e5m2(k[H * D - 1]));
    kvl_mem_free(pool, (uint64_t)elems);
    free(k);
}

/* ---- memory and registry -------------------------------------------------------------------- */

static void memory_and_registry(void **state) {
    const kvl_device *device;
    char why[64];
    void *memory;
    int value = 42, back = 0;
    assert_true(kvl_device_count() >= 1);
    assert_ptr_equal(kvl_device_at(0), cpu);
    assert_null(kvl_device_at(kvl_device_count()));
    assert_refused(kvl_device_find("cpuu", &device), KVL_ERR_INPUT, "did you mean 'cpu'?");
    assert_true(cpu->available(why, sizeof why));
    assert_ok(cpu->alloc(sizeof value, &memory));
    assert_ok(cpu->upload(memory, &value, sizeof value));
    assert_ok(cpu->sync());
    assert_ok(cpu->download(&back, memory, sizeof value));
    assert_int_equal(back, 42);
    assert_ok(cpu->upload(memory, NULL, 0));
    cpu->release(memory, sizeof value);
}

static int setup(void **state) {
    return kvl_device_find("cpu", &cpu) == KVL_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm),
        cmocka_unit_test(rope),
        cmocka_unit_test(elementwise),
        cmocka_unit_test(converts),
        cmocka_unit_test(kv_append),
        cmocka_unit_test(kv_append_refusals),
        cmocka_unit_test(kv_copy),
        cmocka_unit_test(offsets_past_32_bits),
        cmocka_unit_test(memory_and_registry),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
