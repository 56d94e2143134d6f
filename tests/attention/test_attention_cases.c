/* Inputs on which systems of this kind have failed, each with its right answer. */
#include "tests/attention/oracle.h"

#include <sys/mman.h>

#include "core/isa.h"

static shape one(int32_t q_len, int32_t kv_len, int32_t head_dim) {
    return (shape){.n_seqs = 1,
                   .q_lens = {q_len},
                   .kv_lens = {kv_len},
                   .n_q_heads = 2,
                   .n_kv_heads = 1,
                   .head_dim = head_dim,
                   .scale = 0.125f,
                   .causal = true,
                   .kv_dtype = KVL_F16,
                   .q_dtype = KVL_F32,
                   .o_dtype = KVL_F32};
}

/* Runs every module on every instruction set and hands each result to `check`. */
static void for_modules(const tensors *t, int64_t page_tokens,
                        void (*check)(const call *c, const tensors *t, const void *extra),
                        const void *extra) {
    for (int isa = KVL_ISA_SCALAR; isa < KVL_N_ISAS; isa++) {
        if (!kvl_isa_has((kvl_isa)isa)) continue;
        assert_ok(kvl_isa_force((kvl_isa)isa));
        for (size_t m = 0; m < kvl_attention_count(); m++) {
            call c;
            call_make(&c, t, page_tokens, 2);
            assert_ok(call_run(&c, kvl_attention_at(m)));
            check(&c, t, extra);
            call_free(&c);
        }
    }
}

static void equals_oracle(const call *c, const tensors *t, const void *extra) {
    check_outputs(c, t, extra, kvl_isa_name(kvl_isa_current()));
}

static void against_oracle(const shape *s, uint64_t seed, int64_t page_tokens) {
    tensors t = tensors_make(s, seed);
    expected e = expected_make(&t);
    for_modules(&t, page_tokens, equals_oracle, &e);
    expected_free(&e);
    tensors_free(&t);
}

static void all_equal(const call *c, const tensors *t, const void *extra) {
    float want = *(const float *)extra;
    int64_t n = t->n_q * t->shape.n_q_heads * t->shape.head_dim;
    for (int64_t i = 0; i < n; i++) {
        double got = value_at(t->shape.o_dtype, c->o, i);
        if (got != (double)want) fail_msg("o[%d] = %.9g, not %g", (int)i, got, (double)want);
    }
}

static void flat_softmax(void **state) {
    static const int32_t lens[] = {4096, 16384, 32768};
    for (size_t i = 0; i < 3; i++) {
        for (int big = 0; big < 2; big++) {
            shape s = one(1, lens[i], 64);
            s.o_dtype = big ? KVL_F16 : KVL_F32;
            float value = big ? 40.0f : 1.0f;
            tensors t = tensors_make(&s, 1);
            memset(t.q, 0, 2 * 64 * 4);
            memset(t.k, 0, (size_t)lens[i] * 64 * 2);
            for (int64_t j = 0; j < (int64_t)lens[i] * 64; j++) set_value(KVL_F16, t.v, j, value);
            for_modules(&t, i == 1 ? 16 : 0, all_equal, &value);
            tensors_free(&t);
        }
    }
}

/* Alternating rows of +V and -V under a softcap, key counts that are no multiple of a tile. */
static void alternating_rows(void **state) {
    static const int32_t lens[] = {15, 63, 65, 130, 515};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        shape s = one(5, lens[i], 80);
        s.softcap = 5;
        s.scale = 0;
        tensors t = tensors_make(&s, 2);
        for (int64_t j = 0; j < (int64_t)lens[i] * 80; j++)
            set_value(KVL_F16, t.v, j, j / 80 % 2 ? -100.0f : 100.0f);
        expected e = expected_make(&t);
        for_modules(&t, 17, equals_oracle, &e);
        expected_free(&e);
        tensors_free(&t);
    }
}

static void window_edges(void **state) {
    for (int32_t w = 15; w <= 17; w++) {
        for (int32_t q_len = 1; q_len <= 16; q_len += 15) {
            for (int32_t kv_len = 16; kv_len <= 96; kv_len += 40) {
                shape s = one(q_len, kv_len, 40);
                s.window = w;
                against_oracle(&s, (uint64_t)w, 16);
                s.causal = false;
                against_oracle(&s, (uint64_t)w, 0);
            }
        }
    }
}

/* Pages wholly before the window are gone: their table entries are -1. */
static void window_drops_pages(void **state) {
    shape s = one(3, 700, 64);
    s.window = 100;
    tensors t = tensors_make(&s, 4);
    expected e = expected_make(&t);
    for (size_t m = 0; m < kvl_attention_count(); m++) {
        call c;
        call_make(&c, &t, 16, 2);
        for (int p = 0; p < (700 - 3 - 99) / 16; p++) c.page_table[p] = -1;
        assert_ok(call_run(&c, kvl_attention_at(m)));
        check_outputs(&c, &t, &e, kvl_attention_at(m)->name);
        call_free(&c);
    }
    expected_free(&e);
    tensors_free(&t);
}

static void empty_rows(const call *c, const tensors *t, const void *extra) {
    all_equal(c, t, &(float){0});
    for (int64_t i = 0; i < t->n_q * t->shape.n_q_heads; i++)
        assert_true(t->sinks ? c->lse[i] == t->sinks[i % t->shape.n_q_heads]
                             : c->lse[i] == -INFINITY);
}

static void nothing_to_see(void **state) {
    for (int sinks = 0; sinks < 2; sinks++) {
        shape s = one(3, 0, 64);
        s.sinks = sinks;
        tensors t = tensors_make(&s, 1);
        for_modules(&t, 0, empty_rows, NULL);
        for_modules(&t, 16, empty_rows, NULL);
        tensors_free(&t);
        /* More queries than keys: the first ones stand before key 0 and see none. */
        s = one(7, 4, 64);
        s.sinks = sinks;
        against_oracle(&s, 5, 0);
        s.causal = false;
        against_oracle(&s, 5, 1);
    }
    shape idle = {.n_seqs = 0, .n_q_heads = 1, .n_kv_heads = 1, .head_dim = 8, .scale = 1};
    tensors t = tensors_make(&idle, 1);
    for_modules(&t, 0, all_equal, &(float){0});
    tensors_free(&t);
}

static void groups(void **state) {
    static const int32_t group[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 50};
    for (size_t i = 0; i < sizeof group / sizeof *group; i++) {
        shape s = one(1, 70, 64);
        s.n_kv_heads = 2;
        s.n_q_heads = 2 * group[i];
        against_oracle(&s, i, 16);
        s.q_lens[0] = 4;
        s.causal = i % 2;
        s.kv_dtype = (kvl_dtype)(i % 5);
        against_oracle(&s, i, 0);
    }
}

static void head_dims(void **state) {
    static const int32_t dims[] = {1, 3, 7, 8, 15, 17, 33, 40, 72, 80, 96, 112, 200, 255, 256};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        for (int dtype = KVL_F32; dtype <= KVL_FP8_E5M2; dtype++) {
            shape s = one(2, 37, dims[i]);
            s.kv_dtype = (kvl_dtype)dtype;
            s.q_dtype = (kvl_dtype)((dtype + (int)i) % 3);
            s.o_dtype = (kvl_dtype)((dtype + (int)i + 1) % 3);
            against_oracle(&s, i, i % 2 ? 1 : 37);
        }
    }
}

static void returns_row(const call *c, const tensors *t, const void *extra) {
    int64_t row = *(const int64_t *)extra;
    for (int32_t d = 0; d < 64; d++) {
        double got = value_at(KVL_F32, c->o, d), want = value_at(KVL_F16, t->v, row * 64 + d);
        if (got != want) fail_msg("row %d: o[%d] = %.9g, not %.9g", (int)row, d, got, want);
    }
}

static void one_hot(void **state) {
    for (int64_t row = 0; row < 1200; row += 113) {
        shape s = one(1, 1200, 64);
        s.n_q_heads = 1;
        tensors t = tensors_make(&s, 8);
        memset(t.k, 0, 1200 * 64 * 2);
        for (int32_t d = 0; d < 64; d++) {
            set_value(KVL_F32, t.q, d, 10);
            set_value(KVL_F16, t.k, row * 64 + d, 10); /* 800 above all others */
        }
        for_modules(&t, 16, returns_row, &row);
        tensors_free(&t);
    }
}

/* Scores rise by a lot with each key, so that every tile rescales all before it. */
static void rising_scores(void **state) {
    shape s = one(1, 1500, 64);
    s.kv_dtype = KVL_F32;
    tensors t = tensors_make(&s, 8);
    for (int64_t j = 0; j < 1500; j++) {
        for (int32_t d = 0; d < 64; d++) set_value(KVL_F32, t.k, j * 64 + d, (float)j * 0.01f);
    }
    for (int32_t d = 0; d < 128; d++) set_value(KVL_F32, t.q, d, 1);
    expected e = expected_make(&t);
    for_modules(&t, 0, equals_oracle, &e);
    expected_free(&e);
    tensors_free(&t);
}

/* Slot offsets past 2^31 elements, in memory that is reserved but hardly touched. */
static void far_offsets(void **state) {
    shape s = one(1, 40, 64);
    tensors t = tensors_make(&s, 6);
    expected e = expected_make(&t);
    int64_t n_pages = (int64_t)3 << 20, elems = n_pages * 16 * 64;
    assert_true(elems > INT64_C(1) << 31);
    size_t bytes = (size_t)elems * 2;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *k = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    void *v = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    assert_true(k != MAP_FAILED && v != MAP_FAILED);
    for (size_t m = 0; m < kvl_attention_count(); m++) {
        call c;
        call_make(&c, &t, 16, 1);
        int32_t pages[3] = {(int32_t)(n_pages - 1), 5, (int32_t)(n_pages - 900000)};
        for (int p = 0; p < 3; p++) {
            size_t from = (size_t)c.page_table[p] * 16 * 64 * 2;
            size_t to = (size_t)pages[p] * 16 * 64 * 2;
            memcpy((char *)k + to, c.k_pool + from, 16 * 64 * 2);
            memcpy((char *)v + to, c.v_pool + from, 16 * 64 * 2);
            c.page_table[p] = pages[p];
        }
        c.view.k_pool = k, c.view.v_pool = v;
        c.view.n_pages = n_pages, c.view.pool_elems = elems;
        assert_ok(call_run(&c, kvl_attention_at(m)));
        check_outputs(&c, &t, &e, kvl_attention_at(m)->name);
        call_free(&c);
    }
    munmap(k, bytes), munmap(v, bytes);
    expected_free(&e);
    tensors_free(&t);
}

/* One key: its weight is 1, so O is V's row to the bit, whatever the kernel does to widen it. All
 * codes of 8 bits, NaN and infinities too, by groups that take each register tile and by as many
 * rows as take the widened copy. */
static void all_codes(const call *c, const tensors *t, const void *extra) {
    const shape *s = &t->shape;
    for (int64_t i = 0; i < t->n_q * s->n_q_heads * s->head_dim; i++) {
        double got = value_at(KVL_F32, c->o, i),
               want = value_at(s->kv_dtype, t->v, i % s->head_dim);
        if (isnan(want) ? !isnan(got) : got != want)
            fail_msg("%s, %d heads: o[%d] = %g, not %g", kvl_isa_name(kvl_isa_current()),
                     s->n_q_heads, (int)i, got, want);
    }
}

static void every_fp8_code(void **state) {
    static const int32_t group[] = {1, 2, 3, 4, 5, 8, 9, 12, 13, 20};
    for (int dtype = KVL_FP8_E4M3; dtype <= KVL_FP8_E5M2; dtype++) {
        for (size_t i = 0; i < sizeof group / sizeof *group; i++) {
            shape s = one(1, 1, 256);
            s.n_q_heads = group[i];
            s.kv_dtype = (kvl_dtype)dtype;
            tensors t = tensors_make(&s, 3);
            memset(t.k, 0, 256);
            for (int code = 0; code < 256; code++) t.v[code] = (uint8_t)code;
            for_modules(&t, 0, all_codes, NULL);
            tensors_free(&t);
        }
    }
}

/* A NaN code in one key's K or V makes NaN of what sees it, by formats with a fast way that does
 * not know NaN: the rows before it keep their values to the bit. */
static void nan_reaches_what_sees_it(const call *c, const tensors *t, const void *extra) {
    const shape *s = &t->shape;
    int32_t bad = *(const int32_t *)extra;
    for (int64_t i = 0; i < t->n_q * s->n_q_heads; i++) {
        bool sees_it = s->kv_lens[0] - s->q_lens[0] + i / s->n_q_heads >= bad;
        int n_nan = 0;
        for (int32_t d = 0; d < s->head_dim; d++)
            n_nan += isnan(value_at(KVL_F32, c->o, i * s->head_dim + d));
        if (sees_it ? n_nan == 0 : n_nan != 0)
            fail_msg("%s: row %d has %d NaN, key %d", kvl_isa_name(kvl_isa_current()), (int)i,
                     n_nan, bad);
    }
}

static void nan_codes(void **state) {
    static const int32_t dims[] = {64, 72, 128}, bad[] = {0, 37, 129};
    for (int in_v = 0; in_v < 2; in_v++) {
        for (size_t i = 0; i < 3; i++) {
            for (int32_t q_len = 1; q_len <= 40; q_len += 39) {
                shape s = one(q_len, 130, dims[i]);
                s.n_q_heads = 4;
                s.kv_dtype = KVL_FP8_E4M3;
                tensors t = tensors_make(&s, 9);
                uint8_t *codes = in_v ? t.v : t.k;
                for (int64_t j = 0; j < 130 * dims[i]; j++) {
                    if ((codes[j] & 0x7f) == 0x7f) codes[j] = 0;
                }
                codes[bad[i] * dims[i] + 5] = i == 1 ? 0xff : 0x7f;
                for_modules(&t, 16, nan_reaches_what_sees_it, &bad[i]);
                tensors_free(&t);
            }
        }
    }
}

/* Decode over shuffled pages: rows that end in each part of a tile, a split and a page. */
static void decode_lengths(void **state) {
    static const int32_t lens[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1030};
    static const int32_t dims[] = {64, 80, 96, 112, 128};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        for (int dtype = KVL_F16; dtype <= KVL_FP8_E5M2; dtype++) {
            shape s = one(1, lens[i], dims[(i + (size_t)dtype) % 5]);
            s.n_kv_heads = 2;
            s.n_q_heads = 2 * (1 + (int32_t)(i + (size_t)dtype) % 8);
            s.kv_dtype = (kvl_dtype)dtype;
            s.window = i % 3 ? 0 : 70;
            against_oracle(&s, i + 1, i % 2 ? 16 : 17);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_softmax),   cmocka_unit_test(alternating_rows),
        cmocka_unit_test(window_edges),   cmocka_unit_test(window_drops_pages),
        cmocka_unit_test(nothing_to_see), cmocka_unit_test(groups),
        cmocka_unit_test(head_dims),      cmocka_unit_test(one_hot),
        cmocka_unit_test(rising_scores),  cmocka_unit_test(far_offsets),
        cmocka_unit_test(every_fp8_code), cmocka_unit_test(nan_codes),
        cmocka_unit_test(decode_lengths),
    };
    if (kvl_isa_init() != KVL_OK) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
