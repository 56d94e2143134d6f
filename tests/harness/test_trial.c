/* One trial end to end on the tiny synthetic model: what its numbers must add up to. */
#include "tests/test.h"

#include <math.h>

#include "core/isa.h"
#include "harness/trial/trial.h"

static json_t *make_spec(int prompt, int context, int output, int batch, const char *allocator) {
    return json_pack(
        "{s:{s:s,s:i,s:i,s:b,s:n},s:{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:i},s:{s:f,s:"
        "f,s:f}}",
        "workload", "name", "decode", "seed", 1, "chunk", 8, "deterministic", 0, "text", "axes",
        "model", "synthetic:tiny", "allocator", allocator, "attention", "flash", "kv_dtype", "f16",
        "weights", "bf16", "compute_dtype", "f32", "device", "cpu", "prompt", prompt, "context",
        context, "output", output, "batch", batch, "page_tokens",
        strcmp(allocator, "paged") == 0 ? 16 : 0, "threads", 1, "ceilings", "read_bytes_per_s",
        1e15, "f32_flops_per_s", 1e15, "bf16_flops_per_s", 1.0);
}

static json_t *run_trial(int prompt, int context, int output, int batch, const char *allocator) {
    json_t *spec = make_spec(prompt, context, output, batch, allocator), *answer;
    assert_ok(kvl_trial_run(spec, &answer));
    json_decref(spec);
    if (strcmp(json_string_value(json_object_get(answer, "outcome")), "ok") != 0)
        fail_msg("%s", json_string_value(json_object_get(answer, "reason")));
    return answer;
}

static double metric(const json_t *answer, const char *name) {
    const json_t *value = json_object_get(json_object_get(answer, "metrics"), name);
    if (!value) fail_msg("no metric %s", name);
    return json_is_null(value) ? NAN : json_number_value(value);
}

static bool is_near(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static void numbers_add_up(void **state) {
    (void)state;
    kvl_config config;
    assert_ok(kvl_synthetic_config("tiny", &config));
    double token = 2.0 * config.n_layers * config.n_kv_heads * config.head_dim * 2;
    json_t *a = run_trial(20, 0, 5, 3, "paged");
    assert_true(metric(a, "kv_bytes_formula") == 3 * 25 * token);
    /* The last token is picked and never stored: 24 of each; two pages of 16 hold them. */
    assert_true(metric(a, "kv_bytes_live") == 3 * 24 * token);
    assert_true(metric(a, "kv_bytes_allocated") == 3 * 32 * token);
    /* Steps of 21, 22, 23 and 24 tokens. */
    assert_true(is_near(metric(a, "kv_bytes_scanned"), 3 * 22.5 * token));
    assert_true(metric(a, "step_read_bytes") >= metric(a, "kv_bytes_scanned"));
    assert_true(is_near(metric(a, "prefill_tok_s"), 60 / (metric(a, "ttft_ms") * 1e-3)));
    assert_true(is_near(metric(a, "decode_tok_s"), 3 / (metric(a, "tpot_ms") * 1e-3)));
    assert_true(is_near(metric(a, "e2e_ms"), metric(a, "ttft_ms") + 4 * metric(a, "tpot_ms")));
    assert_true(is_near(metric(a, "attention_share") + metric(a, "matmul_share") +
                            metric(a, "other_share") + metric(a, "idle_share"),
                        1));
    assert_true(metric(a, "attention_share") > 0 && metric(a, "other_share") > 0);
    assert_true(metric(a, "idle_share") >= 0 && metric(a, "idle_share") < 1);
    assert_true(
        is_near(metric(a, "read_ceiling_pct"), 100 * metric(a, "decode_read_gb_s") * 1e9 / 1e15));
    /* The same time is behind bytes and tokens a second. */
    assert_true(is_near(metric(a, "decode_read_gb_s") * 1e9 / metric(a, "step_read_bytes"),
                        metric(a, "decode_tok_s") / 3));
    double passes = metric(a, "passes");
    json_t *samples = json_object_get(a, "samples");
    assert_true(json_array_size(json_object_get(samples, "ttft_ms")) == passes);
    assert_true(json_array_size(json_object_get(samples, "itl_ms")) == 4 * passes);
    json_t *effective = json_object_get(a, "effective");
    assert_string_equal(json_string_value(json_object_get(effective, "attention")), "flash");
    assert_string_equal(json_string_value(json_object_get(effective, "kv_dtype")), "f16");
    assert_string_equal(json_string_value(json_object_get(effective, "source_weights")),
                        "synthetic");
    assert_true(json_is_false(json_object_get(effective, "above_ceiling")));
    json_decref(a);
}

static void one_token_has_no_decode(void **state) {
    (void)state;
    json_t *a = run_trial(20, 0, 1, 1, "contiguous");
    assert_true(metric(a, "ttft_ms") > 0);
    assert_true(isnan(metric(a, "tpot_ms")));
    assert_true(isnan(metric(a, "decode_tok_s")));
    assert_true(isnan(metric(a, "itl_p50_ms")));
    assert_true(isnan(metric(a, "read_ceiling_pct")));
    json_decref(a);
}

static void a_filled_cache_has_no_prefill(void **state) {
    (void)state;
    json_t *a = run_trial(0, 40, 6, 2, "contiguous");
    assert_true(isnan(metric(a, "ttft_ms")));
    assert_true(isnan(metric(a, "prefill_tok_s")));
    assert_true(is_near(metric(a, "decode_tok_s"), 2 / (metric(a, "tpot_ms") * 1e-3)));
    assert_true(metric(a, "kv_bytes_live") == metric(a, "kv_bytes_formula"));
    assert_int_equal(json_array_size(json_object_get(json_object_get(a, "samples"), "itl_ms")), 6);
    json_decref(a);
}

/* Runs the spec with the axes of `more`, which is stolen. */
static json_t *run_with(json_t *spec, json_t *more) {
    json_t *answer;
    json_object_update(json_object_get(spec, "axes"), more);
    assert_ok(kvl_trial_run(spec, &answer));
    json_decref(more);
    json_decref(spec);
    if (strcmp(json_string_value(json_object_get(answer, "outcome")), "ok") != 0)
        fail_msg("%s", json_string_value(json_object_get(answer, "reason")));
    return answer;
}

static const char *effective(const json_t *answer, const char *name) {
    return json_string_value(json_object_get(json_object_get(answer, "effective"), name));
}

/* What was verified lies as what was timed; slots set aside are the policy's. */
static void allocators_run_as_asked(void **state) {
    (void)state;
    kvl_config config;
    assert_ok(kvl_synthetic_config("tiny", &config));
    double token = 2.0 * config.n_layers * config.n_kv_heads * config.head_dim * 2;
    /* Two sequences of 20 + 5: 25; output rounded up: 28; chunks of a power of two: 32. The last
     * token is not stored: growing and paged of 16 hold 24 and 32 slots. */
    static const struct {
        const char *allocator, *reserve, *order, *layout;
        int map_kib, slots;
    } cases[] = {
        {"contiguous", "max", "head", "/contig.shuf/", 0, 25},
        {"contiguous", "pow2", "token", "/contig.shuf.tok/", 0, 28},
        {"contiguous", "oracle", "token", "/contig.shuf.tok/", 0, 25},
        {"buddy", "max", "token", "/contig.shuf.tok/", 0, 32},
        {"buddy", "oracle", "token", "/contig.shuf.tok/", 0, 32},
        {"growing", "none", "token", "/contig.shuf.tok/", 0, 24},
        {"paged", "none", "head", "/page16.shuf/", 0, 32},
        {"virtual", "none", "token", "/contig.shuf.tok/", 4, 0},
        {"virtual", "none", "token", "/contig.shuf.tok/", 128, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *a = run_with(make_spec(20, 0, 5, 2, cases[i].allocator),
                             json_pack("{s:s,s:i,s:s}", "reserve", cases[i].reserve, "map_kib",
                                       cases[i].map_kib, "prefix_cache", "off"));
        print_message("%s %s\n", cases[i].allocator, cases[i].reserve);
        assert_string_equal(effective(a, "allocator"), cases[i].allocator);
        assert_string_equal(effective(a, "reserve"), cases[i].reserve);
        assert_string_equal(effective(a, "kv_order"), cases[i].order);
        assert_string_equal(effective(a, "cache"), "cold");
        assert_string_equal(effective(a, "prefix_cache"), "off");
        if (!strstr(effective(a, "verified"), cases[i].layout))
            fail_msg("verified %s", effective(a, "verified"));
        json_t *map = json_object_get(json_object_get(a, "effective"), "map_bytes");
        assert_int_equal(json_integer_value(map), cases[i].map_kib * 1024);
        assert_true(metric(a, "kv_bytes_live") == 2 * 24 * token);
        if (cases[i].slots)
            assert_true(metric(a, "kv_bytes_allocated") == 2 * cases[i].slots * token);
        else /* whole physical pages: in each pool a token has 1 / (2 n_layers) of its bytes */
            assert_true(fmod(metric(a, "kv_bytes_allocated") / (2.0 * config.n_layers),
                             cases[i].map_kib * 1024.0) == 0);
        assert_true(isnan(metric(a, "prefix_hit_tokens_pct")));
        json_decref(a);
    }
}

/* From the warm-up on every pass finds the whole pages of its prompts, but never the last token, as
 * logits need one. */
static void a_warm_prefix_cache_says_so(void **state) {
    (void)state;
    static const int cases[][3] = {
        {20, 5, 16}, {32, 5, 31}, {32, 40, 31}, {33, 5, 32}, {15, 40, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *a = run_with(make_spec(cases[i][0], 0, cases[i][1], 3, "paged"),
                             json_pack("{s:s}", "prefix_cache", "on"));
        assert_string_equal(effective(a, "cache"), "warm");
        assert_string_equal(effective(a, "prefix_cache"), "on");
        assert_true(metric(a, "passes") > 1);
        double found = metric(a, "prefix_hit_tokens_pct") / 100 * cases[i][0];
        if (fabs(found - cases[i][2]) > 1e-9) fail_msg("prompt %d: found %g", cases[i][0], found);
        json_decref(a);
    }
}

static void prompts_are_seeded_and_plain(void **state) {
    (void)state;
    kvl_model *model;
    int32_t *ids[3];
    kvl_trial_spec_values spec = {.prompt = 200, .batch = 2, .output = 1, .seed = 5};
    assert_ok(kvl_model_open("synthetic:tiny", 1, &model));
    assert_ok(kvl_trial_prompts(model, &spec, &ids[0]));
    assert_ok(kvl_trial_prompts(model, &spec, &ids[1]));
    spec.seed = 6;
    assert_ok(kvl_trial_prompts(model, &spec, &ids[2]));
    assert_memory_equal(ids[0], ids[1], 400 * sizeof(int32_t));
    assert_memory_not_equal(ids[0], ids[2], 400 * sizeof(int32_t));
    assert_memory_not_equal(ids[0], ids[0] + 200, 200 * sizeof(int32_t));
    for (int i = 0; i < 400; i++) {
        assert_in_range(ids[0][i], 0, model->config.vocab_size - 1);
        for (int e = 0; e < model->config.n_eos; e++)
            assert_int_not_equal(ids[0][i], model->config.eos_ids[e]);
    }
    for (int i = 0; i < 3; i++) free(ids[i]);
    kvl_model_close(model);
}

static void malformed_specs_are_refused(void **state) {
    (void)state;
    json_t *spec = make_spec(20, 0, 5, 1, "paged"), *answer;
    json_object_set_new(json_object_get(spec, "axes"), "batch", json_integer(0));
    assert_refused(kvl_trial_run(spec, &answer), KVL_ERR_INPUT, "batch");
    json_object_del(json_object_get(spec, "axes"), "model");
    assert_refused(kvl_trial_run(spec, &answer), KVL_ERR_INPUT, "axes.model");
    json_decref(spec);
    static const struct {
        const char *name, *text;
        int number;
    } bad[] = {{"reserve", NULL, 3},
               {"map_kib", "64", 0},
               {"map_kib", NULL, -4},
               {"prefix_cache", "yes", 0},
               {"prefix_cache", NULL, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        spec = make_spec(20, 0, 5, 1, "paged");
        json_object_set_new(json_object_get(spec, "axes"), bad[i].name,
                            bad[i].text ? json_string(bad[i].text) : json_integer(bad[i].number));
        assert_refused(kvl_trial_run(spec, &answer), KVL_ERR_INPUT, bad[i].name);
        json_decref(spec);
    }
    /* What cannot run is an answer, not an error. */
    spec = make_spec(1 << 20, 0, 5, 1, "paged");
    assert_ok(kvl_trial_run(spec, &answer));
    assert_string_equal(json_string_value(json_object_get(answer, "outcome")), "unsupported");
    assert_true(strlen(json_string_value(json_object_get(answer, "reason"))) > 0);
    json_decref(answer);
    json_decref(spec);
}

int main(void) {
    if (kvl_isa_init() != KVL_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_add_up),
        cmocka_unit_test(one_token_has_no_decode),
        cmocka_unit_test(a_filled_cache_has_no_prefill),
        cmocka_unit_test(allocators_run_as_asked),
        cmocka_unit_test(a_warm_prefix_cache_says_so),
        cmocka_unit_test(prompts_are_seeded_and_plain),
        cmocka_unit_test(malformed_specs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
