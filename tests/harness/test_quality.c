/* Quality: the mathematics against hand-made logits, a configuration against itself and against a
 * rounded one on a small model, rounding errors of formats, and what is refused. */
#include "tests/test.h"

#include <math.h>

#include "core/isa.h"
#include "core/rng.h"
#include "core/threads.h"
#include "harness/quality/format_error.h"
#include "harness/quality/quality.h"
#include "harness/sweep/experiment.h"

#define MODEL KVL_SOURCE_DIR "/tests/golden/models/llama"
#define TEXT KVL_SOURCE_DIR "/tests/text/us-constitution.txt"

static void near(double got, double want, double bound) {
    if (!(fabs(got - want) <= bound)) fail_msg("%.17g is not %.17g", got, want);
}

/* ---- mathematics ------------------------------------------------------------------------------
 */

static void hand_made_logits(void **state) {
    /* softmax: reference 1/2, 1/4, 1/4 and 1/4, 1/4, 1/2; measured 1/4, 1/2, 1/4 and the same. */
    const float r[6] = {logf(2), 0, 0, 0, 0, logf(2)};
    const float x[6] = {3, 3 + logf(2), 3, -7, -7, -7 + logf(2)};
    const int32_t next[2] = {0, 2};
    kvl_quality_token t[2];
    kvl_quality_score(x, r, 2, 3, next, t);
    near(t[0].nll, log(4), 1e-6);
    near(t[0].nll_f32, log(2), 1e-6);
    near(t[0].kld, 0.25 * log(2), 1e-6); /* 1/2 ln 2 + 1/4 ln 1/2 */
    assert_false(t[0].same_top1);
    near(t[1].nll, log(2), 1e-6);
    near(t[1].kld, 0, 1e-6);
    assert_true(t[1].same_top1);
}

static void extreme_logits(void **state) {
    /* Without taking the largest out first, exp would overflow; the second token's probability
     * underflows in the reference and adds nothing. */
    const float r[3] = {30000, -30000, -30000}, x[3] = {20000, 20000, 20000};
    const int32_t next = 0;
    kvl_quality_token t;
    kvl_quality_score(x, r, 1, 3, &next, &t);
    near(t.kld, log(3), 1e-12);
    near(t.nll, log(3), 1e-12);
    near(t.nll_f32, 0, 0);
    assert_true(t.same_top1); /* the first of equal ones */
    const float bad[3] = {0, NAN, 0};
    kvl_quality_score(bad, r, 1, 3, &next, &t);
    assert_true(isnan(t.nll) && isnan(t.kld));
    kvl_quality_score(x, bad, 1, 3, &next, &t);
    assert_true(isnan(t.nll_f32) && isnan(t.kld));
}

/* Random logits against sums written out in long double. */
static void random_logits(void **state) {
    enum { ROWS = 5, VOCAB = 1000 };
    static float x[ROWS * VOCAB], r[ROWS * VOCAB];
    int32_t next[ROWS];
    kvl_quality_token t[ROWS];
    kvl_rng_fill_normal(1, 1, 3, x, ROWS * VOCAB);
    kvl_rng_fill_normal(1, 2, 3, r, ROWS * VOCAB);
    for (int i = 0; i < ROWS; i++) next[i] = i * 199;
    kvl_quality_score(x, r, ROWS, VOCAB, next, t);
    for (int i = 0; i < ROWS; i++) {
        long double sx = 0, sr = 0, kld = 0;
        for (int v = 0; v < VOCAB; v++) {
            sx += expl(x[i * VOCAB + v]);
            sr += expl(r[i * VOCAB + v]);
        }
        for (int v = 0; v < VOCAB; v++) {
            long double p = expl(r[i * VOCAB + v]) / sr, q = expl(x[i * VOCAB + v]) / sx;
            kld += p * logl(p / q);
        }
        near(t[i].kld, (double)kld, 1e-11);
        near(t[i].nll, (double)-logl(expl(x[i * VOCAB + next[i]]) / sx), 1e-11);
    }
}

static void summaries(void **state) {
    enum { N = 20 };
    kvl_quality_token t[N];
    kvl_quality_summary s;
    for (int i = 0; i < N; i++)
        t[i] = (kvl_quality_token){
            .nll = 1 + i % 2, .nll_f32 = 2, .kld = i * i, .same_top1 = i % 4 == 0};
    assert_ok(kvl_quality_summarise(t, N, &s));
    near(s.ppl, exp(1.5), 1e-12);
    near(s.ppl_f32, exp(2), 1e-12);
    near(s.mean_kld, 2470.0 / N, 1e-12); /* sum of squares 0 .. 19 */
    near(s.median_kld, (81 + 100) / 2.0, 1e-12);
    near(s.p99_kld, 324 + 0.81 * (361 - 324), 1e-9); /* rank 0.99 x 19 = 18.81 */
    near(s.same_top1, 0.25, 0);
    assert_int_equal(s.n_buckets, 8);
    int64_t next = 0;
    double kld = 0;
    for (int b = 0; b < 8; b++) {
        assert_int_equal(s.buckets[b].first, next);
        assert_in_range(s.buckets[b].n, 2, 3);
        next += s.buckets[b].n;
        kld += s.buckets[b].mean_kld * (double)s.buckets[b].n;
    }
    assert_int_equal(next, N);
    near(kld, 2470, 1e-9);
    near(s.buckets[0].mean_kld, 0.5, 1e-12);
    assert_ok(kvl_quality_summarise(t, 1, &s));
    assert_int_equal(s.n_buckets, 1);
    near(s.p99_kld, 0, 0);
    assert_refused(kvl_quality_summarise(t, 0, &s), KVL_ERR_INPUT, "at least 2 tokens");
}

/* ---- a small model ----------------------------------------------------------------------------
 */

static json_t *make_spec(const char *kv_dtype, const char *weights, int tokens) {
    return json_pack("{s:{s:s,s:i,s:i,s:s},s:{s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:s,s:s}}",
                     "workload", "name", "quality", "seed", 3, "chunk", 7, "text", TEXT, "axes",
                     "model", MODEL, "allocator", "paged", "attention", "flash", "kv_dtype",
                     kv_dtype, "weights", weights, "compute_dtype", "f32", "prompt", tokens,
                     "page_tokens", 16, "threads", 2, "isa", kvl_isa_name(kvl_isa_current()),
                     "device", "cpu");
}

static json_t *answer_of(json_t *spec, const char *outcome, const char *reason) {
    json_t *answer;
    assert_ok(kvl_quality_trial_run(spec, &answer));
    json_decref(spec);
    if (strcmp(json_string_value(json_object_get(answer, "outcome")), outcome) != 0 ||
        !strstr(json_string_value(json_object_get(answer, "reason")), reason))
        fail_msg("%s: %s", json_string_value(json_object_get(answer, "outcome")),
                 json_string_value(json_object_get(answer, "reason")));
    return answer;
}

static double metric(const json_t *answer, const char *name) {
    const json_t *value = json_object_get(json_object_get(answer, "metrics"), name);
    if (!json_is_number(value)) fail_msg("no metric %s", name);
    return json_number_value(value);
}

static void a_configuration_against_itself(void **state) {
    json_t *a = answer_of(make_spec("f32", "f32", 50), "ok", "");
    assert_true(metric(a, "mean_kld") == 0);
    assert_true(metric(a, "median_kld") == 0);
    assert_true(metric(a, "p99_kld") == 0);
    assert_true(metric(a, "same_top1") == 1);
    assert_true(metric(a, "ppl") == metric(a, "ppl_f32"));
    assert_true(metric(a, "n_tokens") == 50);
    assert_true(metric(a, "prefill_tok_s") > 0 && metric(a, "decode_tok_s") > 0);
    json_t *metrics = json_object_get(a, "metrics"), *samples = json_object_get(a, "samples");
    assert_true(json_is_null(json_object_get(metrics, "rss_peak_bytes")));
    assert_int_equal(json_array_size(json_object_get(samples, "bucket_kld")), 8);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(a, "effective"), "source_weights")),
        "f32");
    json_decref(a);
}

static void rounding_costs_something(void **state) {
    double worst = 0, ppl_f32 = 0;
    static const char *const kv[] = {"f16", "bf16", "fp8_e4m3"};
    for (int i = 0; i < 3; i++) { /* each coarser than the one before */
        json_t *a = answer_of(make_spec(kv[i], "f32", 50), "ok", "");
        if (!(metric(a, "mean_kld") > worst)) fail_msg("%s: %g", kv[i], metric(a, "mean_kld"));
        worst = metric(a, "mean_kld");
        if (i) assert_true(metric(a, "ppl_f32") == ppl_f32);
        ppl_f32 = metric(a, "ppl_f32");
        json_decref(a);
    }
    json_t *whole = make_spec("fp8_e4m3", "f32", 50); /* chunks and allocators play no part */
    json_object_set_new(json_object_get(whole, "workload"), "chunk", json_integer(0));
    json_object_set_new(json_object_get(whole, "axes"), "allocator", json_string("contiguous"));
    json_object_set_new(json_object_get(whole, "axes"), "page_tokens", json_integer(0));
    json_t *a = answer_of(whole, "ok", "");
    assert_true(metric(a, "mean_kld") == worst);
    json_decref(a);
    a = answer_of(make_spec("f32", "nf4", 50), "ok", "");
    assert_true(metric(a, "mean_kld") > 0);
    assert_true(metric(a, "bits_per_weight") > 4 && metric(a, "bits_per_weight") < 32);
    json_decref(a);
}

/* Which token is predicted from which logits, against one step over the whole text. */
static void each_token_predicts_the_next(void **state) {
    enum { N = 45 };
    kvl_model *model;
    kvl_quality_token tokens[N - 1];
    int32_t ids[N];
    kvl_quality_pass pass = {.ids = ids, .n_tokens = N, .chunk = 8, .tokens = tokens};
    kvl_seq seq;
    assert_ok(kvl_model_open(MODEL, 0, &model));
    int32_t vocab = model->config.vocab_size;
    for (int i = 0; i < N; i++) ids[i] = (i * i * 7 + 11) % vocab;
    kvl_engine_options options = kvl_engine_defaults();
    options.compute_dtype = "f32", options.max_seq_tokens = N;
    assert_ok(kvl_engine_create(model, &options, NULL, NULL, &pass.measured));
    assert_ok(kvl_quality_reference(model, N, 8, &pass.reference));
    assert_ok(kvl_quality_pass_run(&pass));
    float *logits = malloc((size_t)(N - 1) * (size_t)vocab * sizeof *logits);
    kvl_engine *engines[2] = {pass.measured, pass.reference};
    for (int e = 0; e < 2; e++) {
        assert_ok(kvl_engine_add(engines[e], N - 1, 0, &seq));
        kvl_step_item item = {seq, ids, N - 1, N - 1};
        assert_ok(kvl_engine_step(engines[e], &item, 1, logits));
        for (int t = 0; t < N - 1; t++) {
            long double sum = 0;
            for (int v = 0; v < vocab; v++) sum += expl(logits[t * vocab + v]);
            double nll = (double)(logl(sum) - logits[t * vocab + ids[t + 1]]);
            near(e ? tokens[t].nll_f32 : tokens[t].nll, nll, 1e-9);
        }
    }
    assert_int_equal(pass.times.prefill.tokens, N - 1);
    assert_int_equal(pass.times.n_steps, 32);
    assert_int_equal(pass.times.decode.tokens, 32);
    assert_int_equal(pass.times.memory.kv_live_bytes,
                     (N - 1) * pass.times.memory.kv_bytes_per_token);
    free(logits);
    kvl_trial_times_free(&pass.times);
    kvl_engine_destroy(pass.measured);
    kvl_engine_destroy(pass.reference);
    kvl_model_close(model);
}

static void what_is_refused(void **state) {
    json_t *answer, *spec = make_spec("f32", "f32", 1);
    assert_refused(kvl_quality_trial_run(spec, &answer), KVL_ERR_INPUT, "prompt");
    json_object_del(json_object_get(spec, "axes"), "weights");
    assert_refused(kvl_quality_trial_run(spec, &answer), KVL_ERR_INPUT, "weights");
    json_decref(spec);
    spec = make_spec("f32", "f32", 20);
    json_object_del(json_object_get(spec, "workload"), "text");
    assert_refused(kvl_quality_trial_run(spec, &answer), KVL_ERR_INPUT, "text");
    json_decref(spec);
    json_decref(answer_of(make_spec("f32", "f32", 1 << 30), "unsupported", "tokens"));
    spec = make_spec("f32", "f32", 20);
    json_object_set_new(json_object_get(spec, "workload"), "text", json_string("/no/such/file"));
    answer = NULL;
    assert_ok(kvl_quality_trial_run(spec, &answer));
    assert_non_null(strstr(json_string_value(json_object_get(answer, "reason")), "/no/such/file"));
    json_decref(answer);
    json_object_set_new(json_object_get(spec, "workload"), "text", json_string(TEXT));
    json_object_set_new(spec, "model_digest", json_string("0000000000000000"));
    json_decref(answer_of(spec, "mismatch", "model file changed"));
    kvl_quality_pass pass = {.n_tokens = 1, .chunk = 1};
    kvl_model *model;
    assert_ok(kvl_model_open(MODEL, 0, &model));
    assert_ok(kvl_quality_reference(model, 16, 4, &pass.measured));
    pass.reference = pass.measured;
    assert_refused(kvl_quality_pass_run(&pass), KVL_ERR_INPUT, "at least 2");
    kvl_engine_destroy(pass.measured);
    kvl_model_close(model);
}

static void refused_points(void **state) {
    static const char *const wrong[][2] = {
        {"1", "2 at least"}, {"100000", "the model allows"}, {"20,2048", ""}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        kvl_workload workload = {.kind = &kvl_workload_quality, .seed = 1, .text = TEXT};
        const char *texts[KVL_N_AXES] = {[KVL_AXIS_MODEL] = MODEL, [KVL_AXIS_PROMPT] = wrong[i][0]};
        kvl_experiment experiment;
        kvl_trials trials;
        assert_ok(kvl_experiment_init(&experiment, &workload, texts));
        assert_ok(kvl_experiment_expand(&experiment, kvl_experiment_refuse, "b", &trials));
        assert_non_null(strstr(trials.items[0].refused, wrong[i][1]));
        char *repro = kvl_trial_repro(&experiment.workload, &trials.items[0]);
        assert_non_null(strstr(repro, "kvlab bench quality --model /"));
        assert_non_null(strstr(repro, " --tokens "));
        assert_non_null(strstr(repro, "us-constitution.txt"));
        free(repro);
        kvl_trials_free(&trials);
        kvl_experiment_free(&experiment);
    }
}

/* ---- rounding errors --------------------------------------------------------------------------
 */

typedef struct gathered {
    const kvl_error_format *format;
    int64_t block;
    kvl_error_sums sums;
    int64_t n_tensors;
} gathered;

static kvl_status gather(void *context, int32_t layer, const float *x, int64_t n) {
    gathered *g = context;
    float *y = malloc((size_t)n * sizeof *y);
    KVL_TRY(kvl_error_round_trip(g->format, g->block, x, n, y, &g->sums.saturated));
    kvl_error_add(&g->sums, x, y, n);
    g->n_tensors++;
    free(y);
    return KVL_OK;
}

static gathered of_normals(const char *format, int64_t block) {
    gathered g = {.block = block};
    assert_ok(kvl_error_format_find(format, &g.format));
    assert_ok(kvl_error_normals(1, gather, &g));
    assert_int_equal(g.sums.n, 1 << 20);
    return g;
}

static double nrmse_of(const char *format, int64_t block) {
    gathered g = of_normals(format, block);
    return kvl_error_nrmse(&g.sums);
}

/* Known values of N(0, 1); 2^20 of them give NRMSE to about 0.2 %. */
static void errors_of_normals(void **state) {
    gathered g = of_normals("nf4", 64);
    near(g.sums.abs / (double)g.sums.n, 0.0728, 0.0003);
    near(g.sums.rel / (double)g.sums.n_nonzero, 0.2034, 0.001);
    near(kvl_error_nrmse(&g.sums), 0.0920, 0.0003);
    g = of_normals("nf4", 32);
    near(kvl_error_nrmse(&g.sums), 0.0873, 0.0003);
    g = of_normals("fp8_e4m3", 0);
    near(kvl_error_nrmse(&g.sums), 0.0265, 0.0002);
    g = of_normals("fp8_e5m2", 0);
    near(kvl_error_nrmse(&g.sums), 0.0527, 0.0003);
    /* int8 with a scale for each block, as numpy has it for 2^22 normals. */
    near(nrmse_of("int8", 64), 0.00594, 0.00002);
    near(nrmse_of("int8", 32), 0.00535, 0.00002);
    /* Uniform errors within an interval: bf16 has 8 times f16's. */
    double f16 = nrmse_of("f16", 0);
    double bf16 = nrmse_of("bf16", 0);
    near(bf16 / f16, 8, 0.05);
    double nf4 = nrmse_of("nf4", 64), dq = nrmse_of("nf4_dq", 64);
    assert_true(dq != nf4 && fabs(dq / nf4 - 1) < 0.02);
    double fp4 = nrmse_of("fp4", 64);
    assert_true(fp4 > dq);
}

static void sums_by_hand(void **state) {
    const float x[4] = {1, -2, 0, 4}, y[4] = {1.5f, -2, 0, 3};
    kvl_error_sums sums = {0}, more = {0};
    kvl_error_add(&sums, x, y, 2);
    kvl_error_add(&more, x + 2, y + 2, 2);
    kvl_error_merge(&sums, &more);
    assert_int_equal(sums.n, 4);
    assert_int_equal(sums.n_nonzero, 3);
    near(sums.abs, 1.5, 0);
    near(sums.rel, 0.5 + 0.25, 0);
    near(sums.max_abs, 1, 0);
    near(kvl_error_nrmse(&sums), sqrt(1.25 / 21), 1e-15);
    const kvl_error_format *format;
    assert_ok(kvl_error_format_find("nf4_dq", &format));
    near(kvl_error_format_bits(format, 64), 4 + 8.0 / 64 + 32.0 / 64 / 256, 1e-12);
    assert_ok(kvl_error_format_find("fp8_e4m3", &format));
    near(kvl_error_format_bits(format, 0), 8, 0);
    int64_t saturated = 0;
    float back[4];
    const float big[4] = {1000, -1, INFINITY, 448};
    assert_ok(kvl_error_round_trip(format, 0, big, 4, back, &saturated));
    assert_int_equal(saturated, 2);
    near(back[0], 448, 0);
    assert_ok(kvl_error_format_find("nf4", &format));
    assert_refused(kvl_error_round_trip(format, 64, big, 4, back, &saturated), KVL_ERR_INPUT,
                   "NaN or infinity in values 0 to 63");
    assert_refused(kvl_error_round_trip(format, 48, x, 4, back, &saturated), KVL_ERR_INPUT, "48");
    assert_refused(kvl_error_format_find("nf5", &format), KVL_ERR_INPUT, "nf4");
}

static void values_of_a_model(void **state) {
    kvl_model *model;
    assert_ok(kvl_model_open(MODEL, 0, &model));
    const kvl_config *c = &model->config;
    int32_t ids[40];
    for (int i = 0; i < 40; i++) ids[i] = (i * 37 + 5) % c->vocab_size;
    gathered g = {0};
    assert_ok(kvl_error_format_find("bf16", &g.format));
    for (int which = 0; which < 2; which++) {
        memset(&g.sums, 0, sizeof g.sums), g.n_tensors = 0;
        assert_ok(kvl_error_kv(model, ids, 40, which, gather, &g));
        assert_int_equal(g.n_tensors, c->n_layers);
        assert_int_equal(g.sums.n, 40LL * c->n_layers * c->n_kv_heads * c->head_dim);
        assert_true(kvl_error_nrmse(&g.sums) > 1e-3 && kvl_error_nrmse(&g.sums) < 2.5e-3);
    }
    memset(&g.sums, 0, sizeof g.sums), g.n_tensors = 0;
    assert_ok(kvl_error_weights(model, gather, &g));
    assert_int_equal(g.n_tensors, 7 * c->n_layers);
    assert_refused(kvl_error_kv(model, ids, 0, 0, gather, &g), KVL_ERR_INPUT, "0 tokens");
    kvl_model_close(model);
}

static json_t *error_answer(const char *data, const char *format, int block, const char *outcome) {
    json_t *answer,
        *spec = json_pack("{s:{s:s,s:i,s:s},s:{s:s,s:s,s:s,s:i,s:i,s:i}}", "workload", "name",
                          "format_error", "seed", 1, "text", TEXT, "axes", "model", MODEL, "data",
                          data, "format", format, "block", block, "prompt",
                          strcmp(data, "k") == 0 || strcmp(data, "v") == 0 ? 30 : 0, "threads", 2);
    assert_ok(kvl_format_error_trial_run(spec, &answer));
    json_decref(spec);
    if (strcmp(json_string_value(json_object_get(answer, "outcome")), outcome) != 0)
        fail_msg("%s", json_string_value(json_object_get(answer, "reason")));
    return answer;
}

static void error_trials(void **state) {
    static const char *const data[] = {"normal", "k", "v", "weights"};
    for (int i = 0; i < 4; i++) {
        json_t *a = error_answer(data[i], "nf4_dq", 64, "ok");
        near(metric(a, "sqnr_db"), -20 * log10(metric(a, "nrmse")), 1e-12);
        assert_true(metric(a, "nrmse") > 0.05 && metric(a, "nrmse") < 0.2);
        json_t *layers = json_object_get(json_object_get(a, "samples"), "layer_nrmse");
        assert_int_equal(json_array_size(layers), i ? 2 : 1);
        json_decref(a);
    }
    json_decref(error_answer("normal", "nf4", 33, "unsupported"));
    static const char *const wrong[][2] = {
        {"data", "q"}, {"format", "nf5"}, {"block", "64"}, {"threads", "2"}};
    for (int i = 0; i < 4; i++) {
        json_t *answer, *spec = json_pack("{s:{},s:{s:s,s:s,s:i,s:i}}", "workload", "axes", "data",
                                          "normal", "format", "nf4", "block", 64, "threads", 2);
        json_object_set_new(json_object_get(spec, "axes"), wrong[i][0], json_string(wrong[i][1]));
        assert_refused(kvl_format_error_trial_run(spec, &answer), KVL_ERR_INPUT, wrong[i][0]);
        json_decref(spec);
    }
}

/* What is read back is what was stored: V of the first layer does not depend on other tokens. */
static void read_kv(void **state) {
    kvl_model *model;
    kvl_engine *engine;
    kvl_seq seq, other;
    float k[2][512], v[2][512], k9[512], v9[512];
    assert_ok(kvl_model_open(MODEL, 0, &model));
    int64_t width = (int64_t)model->config.n_kv_heads * model->config.head_dim;
    assert_true(width <= 512 && model->config.n_layers > 1);
    kvl_engine_options options = kvl_engine_defaults();
    options.kv_dtype = options.weights = options.compute_dtype = "f32";
    options.max_seqs = 2, options.max_seq_tokens = 40;
    assert_ok(kvl_engine_create(model, &options, NULL, NULL, &engine));
    int32_t ids[20];
    for (int i = 0; i < 20; i++) ids[i] = i + 3;
    assert_ok(kvl_engine_add(engine, 20, 0, &seq));
    assert_ok(kvl_engine_add(engine, 20, 0, &other));
    kvl_step_item items[2] = {{seq, ids, 20, 0}, {other, ids + 18, 1, 0}};
    assert_ok(kvl_engine_step(engine, items, 2, NULL));
    assert_ok(kvl_engine_read_kv(engine, seq, 0, 18, 1, k[0], v[0]));
    assert_ok(kvl_engine_read_kv(engine, other, 0, 0, 1, k[1], v[1]));
    assert_memory_equal(v[0], v[1], (size_t)width * sizeof(float));
    assert_memory_not_equal(k[0], k[1], (size_t)width * sizeof(float)); /* other positions */
    assert_ok(kvl_engine_read_kv(engine, seq, 0, 18, 1, k9, NULL));
    assert_memory_equal(k9, k[0], (size_t)width * sizeof(float));
    assert_ok(kvl_engine_read_kv(engine, seq, 1, 18, 1, NULL, v9));
    assert_memory_not_equal(v9, v[0], (size_t)width * sizeof(float));
    assert_refused(kvl_engine_read_kv(engine, seq, 0, 18, 3, k9, v9), KVL_ERR_INPUT, "has 20");
    assert_refused(kvl_engine_read_kv(engine, seq, 99, 0, 1, k9, v9), KVL_ERR_INPUT, "layer 99");
    assert_refused(kvl_engine_read_kv(engine, 7, 0, 0, 1, k9, v9), KVL_ERR_INPUT, "not alive");
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

static int setup(void **state) {
    return kvl_isa_init() == KVL_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hand_made_logits),
        cmocka_unit_test(extreme_logits),
        cmocka_unit_test(random_logits),
        cmocka_unit_test(summaries),
        cmocka_unit_test(a_configuration_against_itself),
        cmocka_unit_test(rounding_costs_something),
        cmocka_unit_test(each_token_predicts_the_next),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(refused_points),
        cmocka_unit_test(errors_of_normals),
        cmocka_unit_test(sums_by_hand),
        cmocka_unit_test(values_of_a_model),
        cmocka_unit_test(error_trials),
        cmocka_unit_test(read_kv),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
