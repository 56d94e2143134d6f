/* Kernels alone: shapes as words, sizes, work, rows, and that a wrong kernel is never timed. This
 * binary plays the child of its own sweeps. */
#include "tests/test.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attention/modules.h"
#include "core/isa.h"
#include "core/threads.h"
#include "harness/commands.h"
#include "harness/kernels/attention.h"
#include "harness/kernels/axes.h"
#include "harness/kernels/matmul.h"
#include "harness/sweep/row.h"
#include "harness/sweep/sweep.h"

/* ---- grammar ----------------------------------------------------------------------------------
 */

static void batches(void **state) {
    static const char *const good[][2] = {
        {"8q1s4096", "8q1s4096"},
        {"q2k", "1q2048s2048"},
        {"q1s1k", "1q1s1024"},
        {"2q512s512_32q1s4096", "2q512s512_32q1s4096"},
        {"4q1s64_4q1s64_q1s65", "8q1s64_1q1s65"},
        {"00065536q1", "65536q1s1"},
        {"q16384ks1048576k", "1q16777216s1073741824"},
    };
    char canonical[KVL_AXIS_TEXT_BYTES];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(kvl_batch_shape_canonical(good[i][0], strlen(good[i][0]), canonical));
        assert_string_equal(canonical, good[i][1]);
    }
    kvl_batch_shape shape;
    assert_ok(kvl_batch_shape_parse("2q512s600_32q1s4kX", 17, &shape));
    assert_int_equal(shape.n_groups, 2);
    assert_int_equal(shape.n_seqs, 34);
    assert_int_equal(shape.q_tokens, 2 * 512 + 32);
    assert_int_equal(shape.kv_longest, 4096);
    assert_int_equal(shape.groups[0].kv_tokens, 600);
}

static void malformed_batches(void **state) {
    static const char *const bad[][2] = {
        {"", "character 1: q is expected"},
        {"8", "character 2: q is expected"},
        {"8q", "character 3: the count of query tokens is missing"},
        {"8q1x4096", "character 4: s, _ or the end is expected"},
        {"8q1s", "character 5: the count of keys is missing"},
        {"q1_", "character 4: q is expected"},
        {"q1s4096 ", "character 8: s, _ or the end"},
        {"q-1", "character 2: the count of query tokens is missing"},
        {"q1s1kk", "character 6: s, _ or the end"},
        {"q1.5k", "character 3: s, _ or the end"},
        {"q2s1", "character 1: fewer keys than query tokens"},
        {"q1_q2s1", "character 4: fewer keys than query tokens"},
        {"0q1", "character 1: the count of sequences must lie in 1 to 65536"},
        {"q0", "character 2: the count of query tokens must lie in 1 to 16777216"},
        {"q1s1073741825", "character 4: the count of keys must lie in 1 to 1073741824"},
        {"q99999999999999999999999k", "character 2: the count of query tokens must lie in"},
        {"65536q1_1q1", "character 9: more than 65536 sequences"},
        {"65q16777216", "character 1: more than 2^30 query tokens"},
        {"q1_q2_q1_q2_q1_q2_q1_q2_q1_q2_q1_q2_q1_q2_q1_q2_q1_q2_q1_q2_q1_q2_q1_q2_q1_q2_q1_q2_q1_q2"
         "_q1_q2_q1",
         "more than 32 groups"},
        {"q16777000s99999999_q16777001s99999998_q16777000s99999997_q16777001s99999996_"
         "q16777000s99999995_q16777001s99999994_q16777001s99999993",
         "longer than 127 characters"},
    };
    char canonical[KVL_AXIS_TEXT_BYTES];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_refused(kvl_batch_shape_canonical(bad[i][0], strlen(bad[i][0]), canonical),
                       KVL_ERR_INPUT, bad[i][1]);
    assert_refused(kvl_batch_shape_canonical("8q1x", 4, canonical), KVL_ERR_INPUT,
                   "form: [N]qLEN[sLEN] groups joined by _");
}

static void products_and_heads(void **state) {
    char canonical[KVL_AXIS_TEXT_BYTES];
    kvl_product_shape product;
    kvl_heads heads;
    assert_ok(kvl_product_shape_canonical("1x4kx16384k", 11, canonical));
    assert_string_equal(canonical, "1x4096x16777216");
    assert_ok(kvl_product_shape_parse("512x576x1536", 12, &product));
    assert_int_equal(product.n_rows, 512);
    assert_int_equal(product.n_in, 576);
    assert_int_equal(product.n_out, 1536);
    static const char *const bad[][2] = {{"1x2", "character 4: x is expected"},
                                         {"x2x3", "character 1: the count of rows is missing"},
                                         {"1x2x3x4", "character 6: the end is expected"},
                                         {"1x0x3", "character 3: the count of inputs must lie in"},
                                         {"1x2x16385k", "character 5: the count of outputs must"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_refused(kvl_product_shape_canonical(bad[i][0], strlen(bad[i][0]), canonical),
                       KVL_ERR_INPUT, bad[i][1]);
    assert_ok(kvl_heads_parse("9/3", 3, &heads));
    assert_int_equal(heads.n_q, 9);
    assert_int_equal(heads.n_kv, 3);
    static const char *const bad_heads[][2] = {
        {"32", "character 3: / is expected"},
        {"32/5", "character 4: the query heads must be a multiple"},
        {"8/32", "a multiple"},
        {"32/8/", "character 5: the end"},
        {"4097/1", "must lie in 1 to 4096"}};
    for (size_t i = 0; i < sizeof bad_heads / sizeof *bad_heads; i++)
        assert_refused(kvl_heads_parse(bad_heads[i][0], strlen(bad_heads[i][0]), &heads),
                       KVL_ERR_INPUT, bad_heads[i][1]);
}

/* ---- sizes ------------------------------------------------------------------------------------
 */

static json_t *attention_axes(const char *shape, const char *allocator, const char *cache) {
    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:i,s:s,s:i,s:i,s:s,s:s,s:i,s:i,s:s,s:s}", "allocator",
                     allocator, "attention", "flash", "kv_dtype", "bf16", "compute_dtype", "f32",
                     "heads", "6/2", "head_dim", 32, "shape", shape, "window", 0, "softcap", 0,
                     "causal", "on", "cache", cache, "page_tokens",
                     strcmp(allocator, "paged") == 0 ? 16 : 0, "threads", 1, "isa",
                     kvl_isa_name(kvl_isa_current()), "device", "cpu");
}

static void sizes_of_attention(void **state) {
    kvl_attention_setup s;
    json_t *axes = attention_axes("2q5s20_q1s100", "paged", "warm");
    assert_ok(kvl_attention_setup_make(axes, &s));
    assert_int_equal(s.n_copies, 1);
    assert_int_equal(s.n_pages, 2 * 2 + 7);
    assert_int_equal(s.table_stride, 7);
    assert_int_equal(s.copy_elems, 11 * 16 * 2 * 32);
    assert_int_equal(s.kv_read_bytes,
                     140 * 2 * 2 * 32 * 2); /* tokens, K and V, heads, dims, bytes */
    assert_int_equal(s.k_bytes, 2 * s.copy_elems);
    assert_int_equal(s.q_bytes, 11 * 6 * 32 * 4);
    assert_int_equal(s.working_set_bytes, s.kv_read_bytes + s.q_bytes);
    /* Of 20 keys, 5 queries with a window of 3 see the last 7; one query sees 3 of 100. */
    json_object_set_new(axes, "window", json_integer(3));
    assert_ok(kvl_attention_setup_make(axes, &s));
    assert_int_equal(s.kv_read_bytes, (2 * 7 + 3) * 2 * 2 * 32 * 2);
    json_decref(axes);
    axes = attention_axes("2q5s20_q1s100", "contiguous", "cold");
    assert_ok(kvl_attention_setup_make(axes, &s));
    assert_int_equal(s.page_tokens, 100);
    assert_int_equal(s.copy_elems, 3 * 100 * 2 * 32);
    assert_true(s.working_set_bytes >= 256 << 20);
    assert_int_equal(s.n_copies, (s.working_set_bytes - s.q_bytes) / s.kv_read_bytes);
    json_decref(axes);
}

static void absurd_sizes_are_refused(void **state) {
    kvl_attention_setup s;
    kvl_matmul_setup m;
    json_t *axes = attention_axes("65536q1s1073741824", "paged", "warm");
    json_object_set_new(axes, "heads", json_string("4096/4096"));
    json_object_set_new(axes, "head_dim", json_integer(4096));
    json_object_set_new(axes, "kv_dtype", json_string("f32"));
    assert_refused(kvl_attention_setup_make(axes, &s), KVL_ERR_UNSUPPORTED, "overflow");
    json_object_set_new(axes, "head_dim", json_integer(1));
    json_object_set_new(axes, "heads", json_string("1/1"));
    json_object_set_new(axes, "page_tokens", json_integer(1));
    assert_refused(kvl_attention_setup_make(axes, &s), KVL_ERR_UNSUPPORTED, "pages");
    json_object_set_new(axes, "page_tokens", json_integer(1 << 30));
    assert_ok(kvl_attention_setup_make(axes, &s));
    assert_refused(kvl_memory_suffices(s.sum_bytes), KVL_ERR_UNSUPPORTED, "GiB of memory");
    json_object_set_new(axes, "shape", json_string("1q1s1"));
    json_object_set_new(axes, "cache", json_string("cold"));
    assert_refused(kvl_attention_setup_make(axes, &s), KVL_ERR_UNSUPPORTED, "too few");
    json_object_set_new(axes, "cache", json_string("tepid"));
    assert_refused(kvl_attention_setup_make(axes, &s), KVL_ERR_INPUT, "tepid");
    json_decref(axes);
    axes = json_pack("{s:s,s:s,s:s,s:s,s:s,s:i,s:s}", "weights", "f32", "compute_dtype", "f32",
                     "kernel", "auto", "shape", "16777216x16777216x16777216", "cache", "warm",
                     "threads", 1, "device", "cpu");
    assert_ok(kvl_matmul_setup_make(axes, &m));
    assert_true(m.weight_bytes == (uint64_t)1 << 50);
    assert_refused(kvl_memory_suffices(m.sum_bytes), KVL_ERR_UNSUPPORTED, "GiB of memory");
    json_decref(axes);
}

/* ---- one trial --------------------------------------------------------------------------------
 */

static json_t *make_spec(const char *workload, json_t *axes) {
    return json_pack("{s:{s:s,s:i},s:o,s:{s:f,s:f,s:f}}", "workload", "name", workload, "seed", 3,
                     "axes", axes, "ceilings", "read_bytes_per_s", 1e9, "f32_flops_per_s", 2e9,
                     "bf16_flops_per_s", 4e9);
}

static double metric(const json_t *answer, const char *name) {
    const json_t *value = json_object_get(json_object_get(answer, "metrics"), name);
    if (!json_is_number(value)) fail_msg("no metric %s", name);
    return json_number_value(value);
}

static const char *effective(const json_t *answer, const char *name) {
    return json_string_value(json_object_get(json_object_get(answer, "effective"), name));
}

static bool is_near(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static json_t *attention_answer(const kvl_attention *module, json_t *axes, const char *outcome,
                                const char *reason) {
    json_t *spec = make_spec("attention", axes), *answer;
    assert_ok(kvl_attention_trial_run(module, spec, &answer));
    json_decref(spec);
    if (strcmp(json_string_value(json_object_get(answer, "outcome")), outcome) != 0 ||
        !strstr(json_string_value(json_object_get(answer, "reason")), reason))
        fail_msg("%s: %s", json_string_value(json_object_get(answer, "outcome")),
                 json_string_value(json_object_get(answer, "reason")));
    return answer;
}

/* What holds whatever the kernel. */
static void times_add_up(const json_t *a, double flops_ceiling) {
    double s = metric(a, "time_us") * 1e-6, read = metric(a, "work_read_bytes");
    double flops = metric(a, "work_flops");
    assert_true(is_near(metric(a, "read_gb_s"), read / s * 1e-9));
    assert_true(is_near(metric(a, "gflop_s"), flops / s * 1e-9));
    assert_true(is_near(metric(a, "read_ceiling_pct"), 100 * read / s / 1e9));
    assert_true(is_near(metric(a, "flops_ceiling_pct"), 100 * flops / s / flops_ceiling));
    assert_true(is_near(metric(a, "predicted_us"), 1e6 * fmax(read / 1e9, flops / flops_ceiling)));
    assert_true(is_near(metric(a, "roofline_pct"),
                        fmax(metric(a, "read_ceiling_pct"), metric(a, "flops_ceiling_pct"))));
    assert_true(metric(a, "calls") >= 5);
    json_t *samples = json_object_get(json_object_get(a, "samples"), "time_us");
    assert_true((double)json_array_size(samples) == metric(a, "calls"));
    assert_true(json_is_true(json_object_get(json_object_get(a, "effective"), "above_ceiling")) ==
                (metric(a, "roofline_pct") > 100));
}

static void decode_of_a_paged_batch(void **state) {
    json_t *a = attention_answer(NULL, attention_axes("2q1s20_q1s100", "paged", "warm"), "ok", "");
    /* 140 keys of 2 heads of 32, K and V in bf16; 3 queries and outputs of 6 heads in f32. */
    assert_true(metric(a, "kv_bytes_scanned") == 140 * 2 * 32 * 2 * 2);
    assert_true(metric(a, "work_read_bytes") == 140 * 2 * 32 * 2 * 2 + 3 * 6 * 32 * 4);
    assert_true(metric(a, "work_write_bytes") == 3 * 6 * 32 * 4);
    assert_true(metric(a, "work_flops") == 4 * 32 * 140 * 6);
    times_add_up(a, 2e9);
    assert_true(
        is_near(metric(a, "kv_gb_s"), metric(a, "kv_bytes_scanned") * 1e-3 / metric(a, "time_us")));
    assert_string_equal(effective(a, "attention"), "flash");
    assert_string_equal(effective(a, "cache"), "warm");
    assert_string_equal(effective(a, "verified"), "float64: 18 of 18 rows");
    json_t *facts = json_object_get(a, "effective");
    assert_int_equal(json_integer_value(json_object_get(facts, "page_tokens")), 16);
    assert_int_equal(json_integer_value(json_object_get(facts, "copies")), 1);
    assert_true(json_number_value(json_object_get(facts, "verified_max_abs")) <=
                json_number_value(json_object_get(facts, "verified_bound")));
    json_decref(a);
}

static void masks_and_dtypes(void **state) {
    json_t *axes = attention_axes("q9s12", "contiguous", "warm");
    json_object_set_new(axes, "compute_dtype", json_string("bf16"));
    json_object_set_new(axes, "kv_dtype", json_string("fp8_e4m3"));
    json_t *a = attention_answer(NULL, json_deep_copy(axes), "ok", "");
    /* Queries at 3 .. 11 see 4 .. 12 keys: 72 pairs. */
    assert_true(metric(a, "work_flops") == 4 * 32 * 72 * 6);
    assert_true(metric(a, "kv_bytes_scanned") == 12 * 2 * 32 * 2);
    times_add_up(a, 4e9);
    json_decref(a);
    json_object_set_new(axes, "window", json_integer(4));
    json_object_set_new(axes, "softcap", json_integer(2));
    a = attention_answer(NULL, json_deep_copy(axes), "ok", "");
    assert_true(metric(a, "work_flops") == 4 * 32 * 36 * 6);
    json_decref(a);
    /* Without the mask: 9 x 12 pairs; with the window from 4 .. 12 keys down to 4. */
    json_object_set_new(axes, "causal", json_string("off"));
    a = attention_answer(NULL, json_deep_copy(axes), "ok", "");
    assert_true(metric(a, "work_flops") == 4 * 32 * (12 + 11 + 10 + 9 + 8 + 7 + 6 + 5 + 4) * 6);
    json_decref(a);
    json_object_set_new(axes, "window", json_integer(0));
    a = attention_answer(NULL, axes, "ok", "");
    assert_true(metric(a, "work_flops") == 4 * 32 * 108 * 6);
    json_decref(a);
}

/* Copies past the cache, pages all over them; a sample of the rows is verified. */
static void cold_and_sampled(void **state) {
    json_t *axes = attention_axes("q600_2q1s3000", "paged", "cold");
    json_object_set_new(axes, "heads", json_string("64/32"));
    json_t *a = attention_answer(NULL, axes, "ok", "");
    json_t *facts = json_object_get(a, "effective");
    double copies = json_number_value(json_object_get(facts, "copies"));
    assert_true(copies >= 2);
    assert_true(metric(a, "working_set_bytes") >= 256 << 20);
    assert_true(metric(a, "kv_bytes_scanned") == 6600.0 * 32 * 32 * 2 * 2);
    int checked, all;
    assert_int_equal(sscanf(effective(a, "verified"), "float64: %d of %d rows", &checked, &all), 2);
    assert_int_equal(all, 602 * 64);
    assert_true(checked >= 8 && checked < all);
    assert_true(metric(a, "rss_peak_bytes") > 256 << 20);
    json_decref(a);
}

static void what_cannot_run_is_an_answer(void **state) {
    json_t *axes = attention_axes("q1s16", "paged", "warm");
    json_object_set_new(axes, "head_dim", json_integer(320));
    json_decref(attention_answer(NULL, json_deep_copy(axes), "unsupported", "320"));
    json_object_set_new(axes, "device", json_string("gpu"));
    json_decref(attention_answer(NULL, json_deep_copy(axes), "unsupported", "device gpu"));
    json_object_set_new(axes, "shape", json_string("nonsense"));
    json_t *spec = make_spec("attention", axes), *answer;
    assert_refused(kvl_attention_trial_run(NULL, spec, &answer), KVL_ERR_INPUT, "character 1");
    json_decref(spec);
}

/* ---- wrong kernels ----------------------------------------------------------------------------
 */

static int64_t n_calls;

/* Leaves out the last key of every sequence, as a mask off by one would. */
static kvl_status run_short(const kvl_attention_args *args) {
    kvl_kv_view view = *args->kv;
    int32_t lens[64];
    for (int32_t s = 0; s < view.n_seqs; s++) lens[s] = view.kv_lens[s] - 1;
    view.kv_lens = lens;
    kvl_attention_args shorter = *args;
    shorter.kv = &view;
    return kvl_attention_flash.run_cpu(&shorter);
}

/* One value of the last row is off by 1 %: only a check of that row sees it. */
static kvl_status run_last_off(const kvl_attention_args *args) {
    KVL_TRY(kvl_attention_flash.run_cpu(args));
    int64_t token = args->q_start[args->kv->n_seqs] - 1;
    float *row = (float *)args->o + token * args->o_row_stride;
    for (int32_t i = 0; i < args->n_q_heads * args->kv->head_dim; i++) row[i] *= 1.01f;
    return KVL_OK;
}

/* Right when it is verified, one bit off in the 7th call. */
static kvl_status run_later_off(const kvl_attention_args *args) {
    KVL_TRY(kvl_attention_flash.run_cpu(args));
    float *o = args->o;
    if (++n_calls == 7) o[0] = nextafterf(o[0], 9.0f);
    return KVL_OK;
}

static void wrong_kernels_are_not_timed(void **state) {
    kvl_attention module = kvl_attention_flash;
    json_t *axes = attention_axes("3q2s40", "paged", "warm");
    module.run_cpu = run_short;
    json_t *a = attention_answer(&module, json_deep_copy(axes), "mismatch", "query token");
    assert_int_equal(json_object_size(json_object_get(a, "metrics")), 0);
    assert_non_null(effective(a, "verified"));
    json_decref(a);
    module.run_cpu = run_last_off;
    json_decref(attention_answer(&module, json_deep_copy(axes), "mismatch", "query token 5"));
    /* Among thousands of rows, of which a sample is checked, the last is always one. */
    json_t *large = attention_axes("q2500", "paged", "warm");
    json_object_set_new(large, "heads", json_string("6/1"));
    json_decref(attention_answer(&module, large, "mismatch", "query token 2499"));
    module.run_cpu = run_later_off;
    n_calls = 0;
    a = attention_answer(&module, axes, "mismatch", "other bits");
    assert_int_equal(json_object_size(json_object_get(a, "metrics")), 0);
    json_decref(a);
}

/* ---- matmul -----------------------------------------------------------------------------------
 */

static json_t *matmul_axes(const char *shape, const char *weights, const char *cache) {
    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:i,s:s}", "weights", weights, "compute_dtype", "bf16",
                     "kernel", "auto", "shape", shape, "cache", cache, "threads", 1, "device",
                     "cpu");
}

static json_t *matmul_answer(json_t *axes) {
    json_t *spec = make_spec("matmul", axes), *answer;
    assert_ok(kvl_matmul_trial_run(spec, &answer));
    json_decref(spec);
    if (strcmp(json_string_value(json_object_get(answer, "outcome")), "ok") != 0)
        fail_msg("%s", json_string_value(json_object_get(answer, "reason")));
    return answer;
}

static void one_product(void **state) {
    json_t *a = matmul_answer(matmul_axes("7x96x64", "bf16", "warm"));
    assert_true(metric(a, "weight_bytes") == 96 * 64 * 2);
    assert_true(metric(a, "work_flops") == 2 * 7 * 96 * 64);
    assert_true(metric(a, "work_read_bytes") >= 96 * 64 * 2 + 7 * 96 * 2);
    times_add_up(a, 4e9);
    assert_true(is_near(metric(a, "weights_gb_s"), 96 * 64 * 2 * 1e-3 / metric(a, "time_us")));
    assert_string_equal(effective(a, "verified"), "float64: 448 of 448 outputs");
    assert_non_null(effective(a, "matmul"));
    json_decref(a);
    a = matmul_answer(matmul_axes("2x1024x512", "f16", "cold"));
    assert_true(metric(a, "working_set_bytes") >= 256 << 20);
    assert_true(json_integer_value(json_object_get(json_object_get(a, "effective"), "copies")) >
                200);
    json_decref(a);
}

static void wrong_products_fail(void **state) {
    json_t *axes = matmul_axes("5x300x70", "f32", "warm");
    kvl_matmul_setup setup;
    kvl_matmul_inputs in;
    kvl_verify_result result;
    assert_ok(kvl_matmul_setup_make(axes, &setup));
    assert_ok(kvl_matmul_inputs_make(&setup, 1, &in));
    assert_ok(kvl_linear_run(in.layers[0], in.x, 300, 5, in.y, 70, false));
    assert_ok(kvl_matmul_inputs_check(&in, 1, &result));
    assert_int_equal(result.state, KVL_VERIFY_PASS);
    assert_int_equal(result.n_rows, 350);
    in.y[3 * 70 + 69] += 2e-5f;
    assert_ok(kvl_matmul_inputs_check(&in, 1, &result));
    assert_int_equal(result.state, KVL_VERIFY_FAIL);
    assert_non_null(strstr(result.reason, "row 3 output 69"));
    in.y[3 * 70 + 69] = NAN;
    assert_ok(kvl_matmul_inputs_check(&in, 1, &result));
    assert_int_equal(result.state, KVL_VERIFY_FAIL);
    kvl_matmul_inputs_free(&in);
    json_decref(axes);
}

/* ---- experiments and sweeps -------------------------------------------------------------------
 */

static void expand(const kvl_workload_kind *kind, const char *const texts[KVL_N_AXES],
                   kvl_experiment *experiment, kvl_trials *trials) {
    kvl_workload workload = {.kind = kind, .seed = 1};
    assert_ok(kvl_experiment_init(experiment, &workload, texts));
    assert_ok(kvl_experiment_expand(experiment, kvl_experiment_refuse, "build", trials));
}

static void axes_are_the_workloads(void **state) {
    kvl_experiment experiment;
    kvl_trials trials;
    const char *texts[KVL_N_AXES] = {[KVL_AXIS_ALLOCATOR] = "contiguous,paged",
                                     [KVL_AXIS_PAGE_TOKENS] = "16,32",
                                     [KVL_AXIS_SHAPE] = "q2k,1q2048s2048,8q1s4k,65536q1s1048576k",
                                     [KVL_AXIS_ISA] = "scalar",
                                     [KVL_AXIS_THREADS] = "1"};
    expand(&kvl_workload_attention, texts, &experiment, &trials);
    assert_int_equal(trials.n, 3 * 3);
    assert_int_equal(trials.n_duplicates, 3);
    assert_int_equal(trials.n_refused, 3);
    json_t *axes = kvl_trial_axes(&trials.items[0]);
    assert_int_equal(json_object_size(axes), 1 + kvl_workload_attention.n_axes);
    assert_null(json_object_get(axes, "model"));
    assert_null(json_object_get(axes, "prompt"));
    assert_string_equal(json_string_value(json_object_get(axes, "shape")), "1q2048s2048");
    json_decref(axes);
    char *line = kvl_trial_repro(&experiment.workload, &trials.items[3]);
    assert_string_equal(line,
                        "kvlab bench attention --allocator paged --attention flash --kv-dtype "
                        "bf16 --q-dtype bf16 --heads 32/8 --head-dim 128 --shape 1q2048s2048 "
                        "--causal on --cache cold --page-tokens 16 --threads 1 --isa scalar "
                        "--device cpu --seed 1 --rounds 1 --out -");
    free(line);
    kvl_trials_free(&trials);
    kvl_experiment_free(&experiment);
    const char *bad[KVL_N_AXES] = {[KVL_AXIS_SHAPE] = "q2k,8q1x4096"};
    kvl_workload workload = {.kind = &kvl_workload_attention};
    assert_refused(kvl_experiment_init(&experiment, &workload, bad), KVL_ERR_INPUT,
                   "--shape '8q1x4096': character 4");
    bad[KVL_AXIS_SHAPE] = "1x2x3";
    assert_refused(kvl_experiment_init(&experiment, &workload, bad), KVL_ERR_INPUT, "--shape");
    bad[KVL_AXIS_SHAPE] = NULL;
    bad[KVL_AXIS_COMPUTE_DTYPE] = "fp8_e4m3";
    assert_refused(kvl_experiment_init(&experiment, &workload, bad), KVL_ERR_INPUT, "--q-dtype");
}

/* Rows of both workloads through real children; the second run finds them all. */
static void sweeps_resume(void **state) {
    static const kvl_workload_kind *const kinds[] = {&kvl_workload_attention, &kvl_workload_matmul};
    static const char *const shapes[] = {"2q1s64,q32", "3x64x64"};
    char path[] = "/tmp/kvlab_kernels_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (int k = 0; k < 2; k++) {
        kvl_experiment experiment;
        kvl_trials trials;
        const char *texts[KVL_N_AXES] = {
            [KVL_AXIS_SHAPE] = shapes[k], [KVL_AXIS_CACHE] = "warm", [KVL_AXIS_THREADS] = "1"};
        expand(kinds[k], texts, &experiment, &trials);
        kvl_sweep_options options = {.workload = &experiment.workload,
                                     .trials = &trials,
                                     .rounds = 1,
                                     .out = path,
                                     .timeout_s = 100,
                                     .executable = "/proc/self/exe",
                                     .build_id = "build",
                                     .quiet = true};
        for (int run = 0; run < 2; run++) {
            kvl_sweep_summary summary;
            assert_ok(kvl_sweep_run(&options, &summary));
            if (summary.n_rows[KVL_OUTCOME_OK] != trials.n)
                fail_msg("%s", json_string_value(
                                   json_object_get(json_array_get(summary.rows, 0), "reason")));
            assert_int_equal(summary.n_written, run ? 0 : trials.n);
            assert_int_equal(summary.n_resumed, run ? trials.n : 0);
            kvl_sweep_summary_free(&summary);
        }
        kvl_trials_free(&trials);
        kvl_experiment_free(&experiment);
    }
    json_t *rows;
    int n_torn;
    assert_ok(kvl_rows_load(path, &rows, &n_torn));
    assert_int_equal(json_array_size(rows), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_string_equal(json_string_value(json_object_get(row, "workload")),
                            i < 2 ? "attention" : "matmul");
        assert_null(json_object_get(json_object_get(row, "effective"), "model_digest"));
        assert_true(metric(row, "read_ceiling_pct") > 0 && metric(row, "predicted_us") > 0);
        assert_true(json_number_value(json_object_get(json_object_get(row, "ceilings"),
                                                      "read_buffer_bytes")) == 1 << 20);
    }
    json_decref(rows);
    unlink(path);
}

int main(int argc, char **argv) {
    if (kvl_isa_init() != KVL_OK || kvl_threads_set(1, 0) != KVL_OK) return 1;
    if (argc == 3 && strcmp(argv[1], "trial") == 0)
        return kvl_command_trial.run(&kvl_command_trial, argc - 1, argv + 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches),
        cmocka_unit_test(malformed_batches),
        cmocka_unit_test(products_and_heads),
        cmocka_unit_test(sizes_of_attention),
        cmocka_unit_test(absurd_sizes_are_refused),
        cmocka_unit_test(decode_of_a_paged_batch),
        cmocka_unit_test(masks_and_dtypes),
        cmocka_unit_test(cold_and_sampled),
        cmocka_unit_test(what_cannot_run_is_an_answer),
        cmocka_unit_test(wrong_kernels_are_not_timed),
        cmocka_unit_test(one_product),
        cmocka_unit_test(wrong_products_fail),
        cmocka_unit_test(axes_are_the_workloads),
        cmocka_unit_test(sweeps_resume),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
