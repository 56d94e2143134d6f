/* Registry, checks, merge, work, and what sdpa picks. */
#include "tests/attention/oracle.h"

#include "core/isa.h"

static const shape small = {.n_seqs = 2,
                            .q_lens = {3, 1},
                            .kv_lens = {5, 40},
                            .n_q_heads = 4,
                            .n_kv_heads = 2,
                            .head_dim = 16,
                            .scale = 0.25f,
                            .causal = true,
                            .kv_dtype = KVL_BF16,
                            .q_dtype = KVL_F32,
                            .o_dtype = KVL_F32};

static const kvl_attention *module(const char *name) {
    const kvl_attention *found = NULL;
    assert_ok(kvl_attention_find(name, &found));
    assert_string_equal(found->name, name);
    return found;
}

static void names(void **state) {
    const kvl_attention *found;
    static const char *const known[] = {"reference", "eager", "sdpa", "flash"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) module(known[i]);
    assert_true(kvl_attention_count() >= sizeof known / sizeof *known);
    assert_null(kvl_attention_at(kvl_attention_count()));
    for (size_t i = 0; i < kvl_attention_count(); i++)
        assert_ptr_equal(module(kvl_attention_at(i)->name), kvl_attention_at(i));
    assert_refused(kvl_attention_find("flahs", &found), KVL_ERR_INPUT, "'flash'");
    assert_refused(kvl_attention_find("", &found), KVL_ERR_INPUT, "eager");
}

typedef void (*breaker)(call *c);
static void bad_heads(call *c) {
    c->args.n_q_heads = 3;
}
static void bad_stride(call *c) {
    c->args.q_row_stride = 63;
}
static void bad_start(call *c) {
    c->q_start[0] = 1;
}
static void falling(call *c) {
    c->q_start[1] = 9;
}
static void nan_scale(call *c) {
    c->args.scale = NAN;
}
static void bad_cap(call *c) {
    c->args.softcap = -1;
}
static void bad_window(call *c) {
    c->args.window = -1;
}
static void no_threads(call *c) {
    c->args.n_threads = 0;
}
static void no_q(call *c) {
    c->args.q = NULL;
}
static void hole(call *c) {
    c->page_table[1] = -1; /* a page of sequence 0 that every query sees */
}
static void outside(call *c) {
    c->page_table[0] = 1000;
}
static void fp8_query(call *c) {
    c->args.q_dtype = KVL_FP8_E4M3;
}
static void f64_output(call *c) {
    c->args.o_dtype = KVL_F64;
}

static void refusals(void **state) {
    static const struct {
        breaker broke;
        kvl_status status;
        const char *part;
    } cases[] = {
        {bad_heads, KVL_ERR_INPUT, "n_q_heads 3: must be a multiple of n_kv_heads 2"},
        {bad_stride, KVL_ERR_INPUT, "q_row_stride 63"},
        {bad_start, KVL_ERR_INPUT, "q_start[0] = 1"},
        {falling, KVL_ERR_INPUT, "q_start[1..2] = 9..4"},
        {nan_scale, KVL_ERR_INPUT, "scale nan"},
        {bad_cap, KVL_ERR_INPUT, "softcap -1"},
        {bad_window, KVL_ERR_INPUT, "window -1"},
        {no_threads, KVL_ERR_INPUT, "n_threads 0"},
        {no_q, KVL_ERR_INPUT, "q or o is missing"},
        {hole, KVL_ERR_INPUT, "sequence 0: token 2 is seen, its page is -1"},
        {outside, KVL_ERR_INPUT, "id 1000"},
        {fp8_query, KVL_ERR_UNSUPPORTED, "q_dtype fp8_e4m3"},
        {f64_output, KVL_ERR_UNSUPPORTED, "o_dtype f64"},
    };
    tensors t = tensors_make(&small, 3);
    uint64_t bytes = 1 << 22;
    void *workspace = must_alloc(bytes);
    for (size_t m = 0; m < kvl_attention_count(); m++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            call c;
            call_make(&c, &t, 2, 1);
            c.args.workspace = workspace, c.args.workspace_bytes = bytes;
            assert_ok(kvl_attention_run(kvl_attention_at(m), &c.args));
            cases[i].broke(&c);
            assert_refused(kvl_attention_run(kvl_attention_at(m), &c.args), cases[i].status,
                           cases[i].part);
            call_free(&c);
        }
    }
    free(workspace);
    tensors_free(&t);
}

static void workspace_is_checked(void **state) {
    tensors t = tensors_make(&small, 3);
    uint64_t bytes = 1 << 22;
    uint8_t *workspace = must_alloc(bytes);
    for (size_t m = 0; m < kvl_attention_count(); m++) {
        const kvl_attention *a = kvl_attention_at(m);
        call c;
        call_make(&c, &t, 0, 2);
        uint64_t need = a->workspace_bytes(&c.args);
        assert_in_range(need, 1, bytes);
        assert_refused(kvl_attention_run(a, &c.args), KVL_ERR_INPUT, "workspace of 0 bytes");
        c.args.workspace = workspace, c.args.workspace_bytes = need - 1;
        assert_refused(kvl_attention_run(a, &c.args), KVL_ERR_INPUT, a->name);
        c.args.workspace = workspace + 8, c.args.workspace_bytes = need;
        assert_refused(kvl_attention_run(a, &c.args), KVL_ERR_INPUT, "not 64-byte aligned");
        c.args.workspace = workspace;
        assert_ok(kvl_attention_run(a, &c.args));
        call_free(&c);
    }
    free(workspace);
    tensors_free(&t);
}

static kvl_attention_choice choice_of(const char *name, shape s) {
    kvl_attention_choice choice;
    kvl_kv_view view = {.k_dtype = s.kv_dtype,
                        .v_dtype = s.kv_dtype,
                        .n_seqs = 0,
                        .n_kv_heads = 1,
                        .head_dim = s.head_dim};
    float sink = 0;
    kvl_attention_args args = {.kv = &view,
                               .n_q_heads = 1,
                               .q_dtype = s.q_dtype,
                               .o_dtype = s.o_dtype,
                               .causal = s.causal,
                               .window = s.window,
                               .softcap = s.softcap,
                               .sinks = s.sinks ? &sink : NULL};
    module(name)->supports(&args, &choice);
    return choice;
}

static void choices(void **state) {
    shape s = small;
    assert_string_equal(choice_of("sdpa", s).kernel, "flash");
    s.window = 8;
    assert_string_equal(choice_of("sdpa", s).kernel, "mem_efficient");
    assert_non_null(strstr(choice_of("sdpa", s).reason, "window 8"));
    s.softcap = 30;
    assert_string_equal(choice_of("sdpa", s).kernel, "math");
    assert_non_null(strstr(choice_of("sdpa", s).reason, "softcap"));
    s.softcap = 0, s.sinks = true;
    assert_string_equal(choice_of("sdpa", s).kernel, "math");
    s = small;
    s.head_dim = 320;
    assert_string_equal(choice_of("sdpa", s).kernel, "math");
    assert_false(choice_of("flash", s).supported);
    assert_string_equal(choice_of("flash", s).reason, "head_dim 320: flash handles 1 to 256");
    assert_true(choice_of("eager", s).supported && choice_of("reference", s).supported);
    assert_ok(kvl_isa_force(KVL_ISA_SCALAR));
    assert_int_equal(choice_of("flash", small).isa, KVL_ISA_SCALAR);
    assert_ok(kvl_isa_init());
}

static void work(void **state) {
    tensors t = tensors_make(&small, 3);
    call c;
    call_make(&c, &t, 0, 1);
    /* causal: rows see 3 + 4 + 5 and 40 keys; keys seen 5 + 40. */
    kvl_work w = kvl_attention_work(&c.args);
    assert_true(w.flops == 4.0 * 16 * 52 * 4);
    assert_true(w.read_bytes == 2.0 * 45 * 2 * 16 * 2 + 4.0 * 4 * 16 * 4);
    assert_true(w.write_bytes == 4.0 * 4 * 16 * 4 + 4.0 * 4 * 4);
    c.args.window = 2, c.args.lse = NULL; /* 2 + 2 + 2 and 2; keys 4 and 2 */
    w = kvl_attention_work(&c.args);
    assert_true(w.flops == 4.0 * 16 * 8 * 4);
    assert_true(w.read_bytes == 2.0 * 6 * 2 * 16 * 2 + 4.0 * 4 * 16 * 4);
    assert_true(w.write_bytes == 4.0 * 4 * 16 * 4);
    call_free(&c);
    tensors_free(&t);
}

static void merges(void **state) {
    float a[2] = {1, 2}, b[2] = {3, 6}, lse = logf(1), empty[2] = {0, 0}, none = -INFINITY;
    kvl_attention_merge(a, &lse, b, logf(3), 2); /* weights 1/4 and 3/4 */
    assert_true(fabsf(a[0] - 2.5f) < 1e-6f && fabsf(a[1] - 5) < 1e-6f);
    assert_true(fabsf(lse - logf(4)) < 1e-6f);
    kvl_attention_merge(a, &lse, empty, -INFINITY, 2);
    assert_true(fabsf(a[0] - 2.5f) < 1e-6f && fabsf(lse - logf(4)) < 1e-6f);
    kvl_attention_merge(empty, &none, empty, -INFINITY, 2);
    assert_true(empty[0] == 0 && empty[1] == 0 && none == -INFINITY);
    float junk[2] = {NAN, NAN};
    none = -INFINITY;
    kvl_attention_merge(junk, &none, b, 700.0f, 2); /* an empty side's o is left out */
    assert_true(junk[0] == 3 && junk[1] == 6 && none == 700.0f);
}

/* One query over 100 keys equals the merge of it over any two parts of them. */
static void merge_equals_unsplit(void **state) {
    for (int32_t cut = 0; cut <= 100; cut += 20) {
        shape s = {.n_seqs = 1,
                   .q_lens = {1},
                   .kv_lens = {100},
                   .n_q_heads = 1,
                   .n_kv_heads = 1,
                   .head_dim = 64,
                   .scale = 0.5f,
                   .kv_dtype = KVL_F32,
                   .q_dtype = KVL_F32,
                   .o_dtype = KVL_F32};
        tensors whole = tensors_make(&s, 9), low = whole, high = whole;
        low.shape.kv_lens[0] = low.n_kv = cut;
        high.shape.kv_lens[0] = high.n_kv = 100 - cut;
        high.k += (size_t)cut * 64 * 4, high.v += (size_t)cut * 64 * 4;
        call a, b, c;
        call_make(&a, &whole, 0, 1), call_make(&b, &low, 0, 1), call_make(&c, &high, 0, 1);
        assert_ok(call_run(&a, module("flash")));
        assert_ok(call_run(&b, module("flash")));
        assert_ok(call_run(&c, module("flash")));
        float o[64], lse = b.lse[0];
        memcpy(o, b.o, sizeof o);
        kvl_attention_merge(o, &lse, (float *)(void *)c.o, c.lse[0], 64);
        assert_true(fabsf(lse - a.lse[0]) <= 1e-5f * (1 + fabsf(lse)));
        for (int i = 0; i < 64; i++)
            assert_true(fabs((double)o[i] - value_at(KVL_F32, a.o, i)) < 1e-5);
        call_free(&a), call_free(&b), call_free(&c);
        tensors_free(&whole);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(refusals),
        cmocka_unit_test(workspace_is_checked),
        cmocka_unit_test(choices),
        cmocka_unit_test(work),
        cmocka_unit_test(merges),
        cmocka_unit_test(merge_equals_unsplit),
    };
    if (kvl_isa_init() != KVL_OK) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
