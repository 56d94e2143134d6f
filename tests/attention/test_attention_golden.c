/* Every module, on every instruction set of this CPU, against O and LSE that torch computed. */
#include "tests/attention/oracle.h"

#include "core/isa.h"
#include "tests/golden_file.h"

static const struct {
    const char *name;
    kvl_dtype dtype;
} torch_names[] = {{"float32", KVL_F32},
                   {"float16", KVL_F16},
                   {"bfloat16", KVL_BF16},
                   {"float8_e4m3fn", KVL_FP8_E4M3},
                   {"float8_e5m2", KVL_FP8_E5M2}};

static kvl_dtype dtype_of(const json_t *item, const char *key) {
    const char *name = json_string_value(json_object_get(item, key));
    for (size_t i = 0; i < 5; i++) {
        if (name && strcmp(name, torch_names[i].name) == 0) return torch_names[i].dtype;
    }
    fail_msg("dtype %s", name ? name : "missing");
    return KVL_F32;
}

static int32_t int_of(const json_t *item, const char *key) {
    return (int32_t)json_integer_value(json_object_get(item, key));
}

static shape read_shape(const json_t *item) {
    const json_t *q_lens = json_object_get(item, "q_lens");
    const json_t *kv_lens = json_object_get(item, "kv_lens");
    shape s = {
        .n_seqs = (int32_t)json_array_size(q_lens),
        .n_q_heads = int_of(item, "n_q_heads"),
        .n_kv_heads = int_of(item, "n_kv_heads"),
        .head_dim = int_of(item, "head_dim"),
        .scale = (float)json_number_value(json_object_get(item, "scale")),
        .causal = json_is_true(json_object_get(item, "causal")),
        .window = int_of(item, "window"),
        .softcap = (float)json_number_value(json_object_get(item, "softcap")),
        .sinks = json_is_true(json_object_get(item, "sinks")),
        .scaled = json_is_true(json_object_get(item, "kv_scaled")),
        .kv_dtype = dtype_of(item, "kv_dtype"),
        .q_dtype = dtype_of(item, "q_dtype"),
        .o_dtype = KVL_F32,
    };
    assert_in_range(s.n_seqs, 1, MAX_SEQS);
    for (int32_t i = 0; i < s.n_seqs; i++) {
        s.q_lens[i] = (int32_t)json_integer_value(json_array_get(q_lens, (size_t)i));
        s.kv_lens[i] = (int32_t)json_integer_value(json_array_get(kv_lens, (size_t)i));
    }
    return s;
}

static void load(const golden_file *file, const char *id, const char *part, void *out,
                 uint64_t bytes) {
    char name[64];
    uint64_t found;
    snprintf(name, sizeof name, "%s.%s", id, part);
    const uint8_t *data = golden_bytes(file, name, &found);
    assert_int_equal(found, bytes);
    memcpy(out, data, bytes);
}

static void load_case(const golden_file *file, const json_t *item, tensors *t, expected *e) {
    const char *id = json_string_value(json_object_get(item, "id"));
    shape s = read_shape(item);
    *t = tensors_make(&s, 1);
    uint64_t width = (uint64_t)s.head_dim, rows = (uint64_t)t->n_q * (uint64_t)s.n_q_heads;
    uint64_t kv = (uint64_t)t->n_kv * (uint64_t)s.n_kv_heads * width;
    load(file, id, "q", t->q, rows * width * kvl_dtype_bytes(s.q_dtype));
    load(file, id, "k", t->k, kv * kvl_dtype_bytes(s.kv_dtype));
    load(file, id, "v", t->v, kv * kvl_dtype_bytes(s.kv_dtype));
    if (s.scaled) load(file, id, "k_scale", t->k_scale, (uint64_t)s.n_kv_heads * 4);
    if (s.scaled) load(file, id, "v_scale", t->v_scale, (uint64_t)s.n_kv_heads * 4);
    if (s.sinks) load(file, id, "sinks", t->sinks, (uint64_t)s.n_q_heads * 4);
    *e = expected_make(t);
    /* torch's numbers take the oracle's place, once the oracle was seen to agree with them. */
    float *o = must_alloc(rows * width * 4);
    double *lse = must_alloc(rows * 8);
    load(file, id, "o", o, rows * width * 4);
    load(file, id, "lse", lse, rows * 8);
    for (uint64_t i = 0; i < rows * width; i++) {
        if (!(fabs((double)o[i] - e->o[i]) <= 1e-6 + 1e-6 * fabs(e->o[i])))
            fail_msg("%s: oracle o[%d] = %g, torch %g", id, (int)i, e->o[i], (double)o[i]);
        e->o[i] = (double)o[i];
    }
    for (uint64_t i = 0; i < rows; i++) {
        if (isinf(lse[i]) ? lse[i] != e->lse[i] : !(fabs(lse[i] - e->lse[i]) <= 1e-6))
            fail_msg("%s: oracle lse[%d] = %g, torch %g", id, (int)i, e->lse[i], lse[i]);
    }
    free(o), free(lse);
}

static void check_case(const json_t *item, const tensors *t, const expected *e) {
    static const int64_t pages[] = {0, 1, 16, 17};
    for (size_t m = 0; m < kvl_attention_count(); m++) {
        const kvl_attention *module = kvl_attention_at(m);
        for (size_t p = 0; p < sizeof pages / sizeof *pages; p++) {
            call c;
            char what[128];
            call_make(&c, t, pages[p], 2);
            snprintf(what, sizeof what, "%s, %s, %s, page %lld",
                     json_string_value(json_object_get(item, "id")), module->name,
                     kvl_isa_name(kvl_isa_current()), (long long)pages[p]);
            assert_ok(call_run(&c, module));
            check_outputs(&c, t, e, what);
            call_free(&c);
        }
    }
}

static void every_case(void **state) {
    golden_file file = golden_open("attention");
    json_t *cases = json_load_file(KVL_SOURCE_DIR "/tests/golden/attention.json", 0, NULL);
    assert_int_equal(json_array_size(cases), 24);
    int n_isas = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        tensors t;
        expected e;
        load_case(&file, json_array_get(cases, i), &t, &e);
        for (int isa = KVL_ISA_SCALAR; isa < KVL_N_ISAS; isa++) {
            if (!kvl_isa_has((kvl_isa)isa)) continue;
            assert_ok(kvl_isa_force((kvl_isa)isa));
            check_case(json_array_get(cases, i), &t, &e);
            n_isas++;
        }
        expected_free(&e);
        tensors_free(&t);
    }
    assert_true(n_isas >= 24);
    json_decref(cases);
    golden_close(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_case)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
