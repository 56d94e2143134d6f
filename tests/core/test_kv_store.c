/* Scales that follow the data: what the pool holds is right for every key, whatever the chunks. */
#include "tests/test.h"

#include <math.h>

#include "core/device_kernels.h"
#include "core/kv_store.h"
#include "core/rng.h"
#include "core/threads.h"
#include "quant/kv_format.h"

enum { SEQS = 2, HEADS = 3, DIM = 40, PAGE = 16, TABLE = 6, PAGES = 14, TOKENS = 70 };
enum { SLOTS = PAGES * PAGE, ROW = HEADS * DIM };

typedef struct store {
    kvl_kv_view view;
    int32_t lens[SEQS], table[SEQS * TABLE];
    int64_t slabs[SEQS];
    float k_scale[SLOTS * HEADS], v_scale[SLOTS * HEADS];
    uint8_t k[SLOTS * ROW * 4], v[SLOTS * ROW * 4];
    int64_t saturated[2 * HEADS];
} store;

static void make(store *c, kvl_dtype k, kvl_dtype v, int64_t k_tokens, int64_t v_tokens,
                 bool paged) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < SEQS * TABLE; i++) c->table[i] = (i * 5 + 2) % PAGES;
    for (int s = 0; s < SEQS; s++) c->slabs[s] = (int64_t)(7 + (1 - s) * 90) * ROW;
    int64_t page = paged ? PAGE : 90;
    c->view = (kvl_kv_view){.k_pool = c->k,
                            .v_pool = c->v,
                            .k_dtype = k,
                            .v_dtype = v,
                            .n_seqs = SEQS,
                            .n_kv_heads = HEADS,
                            .head_dim = DIM,
                            .kv_lens = c->lens,
                            .page_tokens = page,
                            .page_stride = page * ROW,
                            .head_stride = paged ? page * DIM : DIM,
                            .token_stride = paged ? DIM : ROW,
                            .page_table = paged ? c->table : NULL,
                            .table_stride = TABLE,
                            .slab_start = c->slabs,
                            .n_pages = PAGES,
                            .pool_elems = SLOTS * ROW,
                            .k_scale = c->k_scale,
                            .v_scale = c->v_scale,
                            .k_scale_tokens = k_tokens,
                            .v_scale_tokens = v_tokens,
                            .n_k_scales = SLOTS * HEADS,
                            .n_v_scales = SLOTS * HEADS};
    for (int i = 0; i < SLOTS * HEADS; i++) c->k_scale[i] = c->v_scale[i] = NAN;
    assert_ok(kvl_kv_view_check(&c->view));
}

/* Tokens [from, to) of both sequences, from rows that lie sequence after sequence. */
static void append(store *c, const float *k, const float *v, int from, int to, bool team);

typedef struct append_call {
    store *c;
    const int32_t *q_start;
    const float *k, *v;
} append_call;

static void append_share(kvl_worker *worker, void *user) {
    append_call *a = user;
    assert_ok(kvl_device_cpu.kv_append(worker, &a->c->view, a->q_start, a->k, ROW, a->v, ROW,
                                       a->c->saturated));
}

static void append(store *c, const float *k, const float *v, int from, int to, bool team) {
    const int n = to - from;
    const int32_t q_start[SEQS + 1] = {0, n, 2 * n};
    float *rows = malloc(2 * 2 * (size_t)n * ROW * sizeof *rows), *v_rows = rows + 2 * n * ROW;
    for (int s = 0; s < SEQS; s++) {
        size_t bytes = (size_t)n * ROW * sizeof *rows;
        memcpy(rows + s * n * ROW, k + (s * TOKENS + from) * ROW, bytes);
        memcpy(v_rows + s * n * ROW, v + (s * TOKENS + from) * ROW, bytes);
        c->lens[s] = to;
    }
    append_call call = {c, q_start, rows, v_rows};
    if (team)
        kvl_team_run(3, append_share, &call, NULL);
    else
        append_share(NULL, &call);
    free(rows);
}

/* N(0, 1) times 2^(up to 9), growing within pages, with rows of zeros and tiny ones between. */
static float *data(uint64_t seed) {
    float *x = malloc(SEQS * TOKENS * ROW * sizeof *x);
    kvl_rng_fill_normal(seed, 1, 1.0f, x, SEQS * TOKENS * ROW);
    for (int t = 0; t < SEQS * TOKENS; t++) {
        float size = t % 11 == 3 ? 0.0f : t % 7 == 2 ? 1e-6f : ldexpf(1.0f, t % 9 + t % 4);
        for (int i = 0; i < ROW; i++) x[t * ROW + i] *= size * (float)(1 + i / DIM);
    }
    return x;
}

typedef struct half {
    const uint8_t *codes;
    kvl_dtype dtype;
    const float *scales;
    int64_t tokens;
} half;

static half half_of(const store *c, bool v) {
    const kvl_kv_view *view = &c->view;
    return v ? (half){c->v, view->v_dtype, c->v_scale, view->v_scale_tokens}
             : (half){c->k, view->k_dtype, c->k_scale, view->k_scale_tokens};
}

/* Every value read back is within the format's bound of what was written, at the scale that its
 * group ends with; and that scale is the smallest one that holds the group. */
static void check(const store *c, bool v, const float *x) {
    const half h = half_of(c, v);
    const kvl_kv_format *f = kvl_kv_format_of(h.dtype);
    for (int s = 0; s < SEQS; s++) {
        for (int64_t t = 0; t < c->lens[s]; t++) {
            for (int head = 0; head < HEADS; head++) {
                float got[DIM], top = 0;
                float scale = h.scales[kvl_kv_scale_index(&c->view, h.tokens, s, t, head)];
                int64_t at = kvl_kv_offset(&c->view, s, t, head);
                int64_t first = t - t % c->view.page_tokens % h.tokens;
                f->decode(h.codes + at * (int64_t)kvl_dtype_bytes(h.dtype), DIM, scale, got);
                const float *want = x + ((s * TOKENS + t) * HEADS + head) * DIM;
                for (int i = 0; i < DIM; i++) {
                    /* Encoded again, what fell among the subnormals may have been rounded twice. */
                    double bound = fmax(f->half_ulp * fabsf(want[i]), f->abs_error * scale) +
                                   (h.tokens > 1 ? f->abs_error * scale : 0) +
                                   1e-6 * fabsf(want[i]);
                    if (!(fabs((double)got[i] - want[i]) <= bound))
                        fail_msg("%s: %g read back as %g", f->name, want[i], got[i]);
                }
                for (int64_t u = first; u < first + h.tokens && u < c->lens[s] &&
                                        u / c->view.page_tokens == t / c->view.page_tokens;
                     u++) {
                    const float *row = x + ((s * TOKENS + u) * HEADS + head) * DIM;
                    for (int i = 0; i < DIM; i++) top = fmaxf(top, fabsf(row[i]));
                }
                if (top == 0) continue;
                assert_true(top / scale <= f->max_finite * 1.000001f);
                if (h.dtype != KVL_I8) assert_true(top / scale > f->max_finite / 2);
                if (h.dtype == KVL_I8) assert_true(scale == top / 127);
            }
        }
    }
}

static const struct {
    kvl_dtype k, v;
    int64_t k_tokens, v_tokens;
} forms[] = {{KVL_FP8_E4M3, KVL_FP8_E4M3, PAGE, PAGE},
             {KVL_FP8_E5M2, KVL_F16, PAGE, 4},
             {KVL_I8, KVL_I8, 1, 1},
             {KVL_I8, KVL_FP8_E4M3, 1, PAGE},
             {KVL_FP8_E4M3, KVL_FP8_E5M2, 1, 1}};
enum { N_FORMS = sizeof forms / sizeof *forms };

static void scales_follow_the_data(void **state) {
    static store c;
    float *k = data(1), *v = data(2);
    for (int i = 0; i < 2 * N_FORMS; i++) {
        int f = i / 2;
        make(&c, forms[f].k, forms[f].v, forms[f].k_tokens, forms[f].v_tokens, i & 1);
        append(&c, k, v, 0, TOKENS, false);
        check(&c, false, k);
        check(&c, true, v);
        for (int j = 0; j < 2 * HEADS; j++) assert_int_equal(c.saturated[j], 0);
    }
    free(k);
    free(v);
}

/* One by one, in chunks, at once, by one thread or three: the same pools and scales to the bit. */
static void chunks_and_threads_play_no_part(void **state) {
    static store whole, other;
    static const int chunks[] = {1, 7, 16, 33};
    float *k = data(3), *v = data(4);
    for (int i = 0; i < 2 * N_FORMS; i++) {
        int f = i / 2;
        make(&whole, forms[f].k, forms[f].v, forms[f].k_tokens, forms[f].v_tokens, i & 1);
        append(&whole, k, v, 0, TOKENS, false);
        for (int j = 0; j < 8; j++) {
            make(&other, forms[f].k, forms[f].v, forms[f].k_tokens, forms[f].v_tokens, i & 1);
            for (int t = 0; t < TOKENS; t += chunks[j / 2])
                append(&other, k, v, t, t + chunks[j / 2] < TOKENS ? t + chunks[j / 2] : TOKENS,
                       j & 1);
            assert_memory_equal(whole.k, other.k, sizeof whole.k);
            assert_memory_equal(whole.v, other.v, sizeof whole.v);
            assert_memory_equal(whole.k_scale, other.k_scale, sizeof whole.k_scale);
            assert_memory_equal(whole.v_scale, other.v_scale, sizeof whole.v_scale);
        }
    }
    free(k);
    free(v);
}

/* A page that is begun again forgets its scale; one that is cut in the middle may keep it. */
static void a_page_begun_again_forgets(void **state) {
    static store c;
    float *k = data(5), *v = data(6), *small = data(7);
    make(&c, KVL_FP8_E4M3, KVL_FP8_E4M3, PAGE, PAGE, true);
    append(&c, k, v, 0, TOKENS, false);
    for (int i = 0; i < SEQS * TOKENS * ROW; i++) small[i] = 0.01f * (i % 2 ? 1 : -1);
    for (int s = 0; s < SEQS; s++)
        memcpy(small + s * TOKENS * ROW, k + s * TOKENS * ROW, 32 * ROW * sizeof *k);
    append(&c, small, v, 32, 48, false);
    check(&c, false, small);
    free(k);
    free(v);
    free(small);
}

/* Copy-on-write of the first tokens of a page, then both go on. */
static void copies_bring_scales_along(void **state) {
    static store c;
    float *k = data(8), *v = data(9);
    make(&c, KVL_FP8_E4M3, KVL_I8, PAGE, 1, true);
    append(&c, k, v, 0, 37, false);
    int free_page = 0;
    for (int i = 0; i < SEQS * TABLE; i++) free_page |= 1 << c.table[i];
    free_page = __builtin_ctz(~(unsigned)free_page);
    int from = c.table[2];
    assert_ok(kvl_device_cpu.kv_copy(&c.view, from * PAGE, free_page * PAGE, 5));
    c.table[2] = free_page;
    check(&c, false, k);
    check(&c, true, v);
    append(&c, k, v, 37, TOKENS, false);
    check(&c, false, k);
    check(&c, true, v);
    free(k);
    free(v);
}

static void odd_values_and_bounds(void **state) {
    float x[] = {NAN, INFINITY, 3.0f, -450.0f};
    assert_true(kvl_kv_scale_for(KVL_FP8_E4M3, x, 4) == 2.0f);
    assert_true(kvl_kv_scale_for(KVL_FP8_E4M3, x, 3) == 0x1p-7f);
    assert_true(kvl_kv_scale_for(KVL_FP8_E4M3, x, 2) == 0.0f);
    assert_true(kvl_kv_scale_for(KVL_I8, x + 2, 2) == 450.0f / 127);
    assert_true(kvl_kv_scale_for(KVL_BF16, x + 2, 2) == 1.0f);
    static const float top = 448.0f, over = 449.0f, huge = 3e38f, tiny = 1e-40f;
    assert_true(kvl_kv_scale_for(KVL_FP8_E4M3, &top, 1) == 1.0f);
    assert_true(kvl_kv_scale_for(KVL_FP8_E4M3, &over, 1) == 2.0f);
    assert_true(kvl_kv_scale_for(KVL_FP8_E4M3, &huge, 1) == 0x1p64f);
    assert_true(kvl_kv_scale_for(KVL_FP8_E4M3, &tiny, 1) == 0x1p-64f);
}

static void views_are_checked(void **state) {
    static store c;
    make(&c, KVL_I8, KVL_I8, 1, 1, true);
    c.view.n_v_scales--;
    assert_refused(kvl_kv_view_check(&c.view), KVL_ERR_INPUT, "v scales, the pool needs");
    make(&c, KVL_I8, KVL_I8, 1, 1, true);
    c.view.k_scale = NULL;
    assert_refused(kvl_kv_view_check(&c.view), KVL_ERR_INPUT, "k_scale_tokens 1, but no scales");
    c.view.k_scale_tokens = -1;
    assert_refused(kvl_kv_view_check(&c.view), KVL_ERR_INPUT, "k_scale_tokens -1");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(scales_follow_the_data),
                                       cmocka_unit_test(chunks_and_threads_play_no_part),
                                       cmocka_unit_test(a_page_begun_again_forgets),
                                       cmocka_unit_test(copies_bring_scales_along),
                                       cmocka_unit_test(odd_values_and_bounds),
                                       cmocka_unit_test(views_are_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
