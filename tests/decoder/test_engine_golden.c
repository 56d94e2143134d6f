/* The decoder against Transformers in float32: logits of every position and greedy tokens of each
 * family, for every attention module and allocator. */
#include "tests/decoder/engine_fixture.h"

static const char *const families[] = {"llama", "llama3-rope", "mistral-window", "qwen2", "qwen3"};
static const char *const allocators[] = {"contiguous", "buddy", "growing", "paged", "virtual"};

/* Root mean square of the difference over that of the golden; NaN when a value is. */
static double relative_rms(const float *seen, const float *golden, int64_t n) {
    double error = 0.0, scale = 0.0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)seen[i] - golden[i]) * ((double)seen[i] - golden[i]);
        scale += (double)golden[i] * golden[i];
    }
    return sqrt(error / scale);
}

/* Largest absolute error of the prompt's logits at every position. */
static double logits_error(kvl_engine *engine, const kvl_safetensors *st, const char *id,
                           double *rms) {
    int64_t n_ids, n_logits, vocab = kvl_engine_config(engine)->vocab_size;
    int32_t *ids = golden_ids(st, id, "ids", &n_ids);
    float *golden = golden_floats(st, id, "logits", &n_logits);
    assert_int_equal(n_logits, n_ids * vocab);
    float *logits = malloc((size_t)n_logits * sizeof *logits);
    kvl_seq seq;
    assert_ok(kvl_engine_add(engine, n_ids, 0, &seq));
    kvl_step_item item = {
        .seq = seq, .ids = ids, .n_ids = (int32_t)n_ids, .n_logits = (int32_t)n_ids};
    assert_ok(kvl_engine_step(engine, &item, 1, logits));
    assert_ok(kvl_engine_remove(engine, seq));
    double error = max_diff(logits, golden, n_logits);
    *rms = relative_rms(logits, golden, n_logits);
    free(ids);
    free(golden);
    free(logits);
    return error;
}

static void check_family(const char *family, const char *allocator, const char *attention) {
    char folder[64];
    snprintf(folder, sizeof folder, "models/%s", family);
    kvl_safetensors *st = open_golden(folder);
    kvl_model *model = open_family(family);
    kvl_engine_options options = f32_options();
    options.allocator = allocator;
    options.attention = attention;
    kvl_engine *engine = make_engine(model, &options);
    for (int p = 0; p < 3; p++) {
        char id[16];
        snprintf(id, sizeof id, "p%d", p);
        double rms, error = logits_error(engine, st, id, &rms);
        if (!(error <= 2e-4))
            fail_msg("%s, %s, %s, %s: logits off by %g", family, allocator, attention, id, error);
        check_greedy(engine, st, id, true);
    }
    kvl_engine_destroy(engine);
    kvl_model_close(model);
    kvl_st_close(st);
}

static void test_families(void **state) {
    assert_true(kvl_attention_count() > 0);
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        for (size_t a = 0; a < 2; a++) {
            for (size_t m = 0; m < kvl_attention_count(); m++)
                check_family(families[f], allocators[a], kvl_attention_at(m)->name);
        }
    }
}

/* 16-bit weights, KV and activations: the same model within the rounding of bf16. */
static void test_bf16_is_near(void **state) {
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        char folder[64];
        snprintf(folder, sizeof folder, "models/%s", families[f]);
        kvl_safetensors *st = open_golden(folder);
        kvl_model *model = open_family(families[f]);
        kvl_engine_options options = kvl_engine_defaults();
        kvl_engine *engine = make_engine(model, &options);
        double rms;
        logits_error(engine, st, "p2", &rms);
        /* 2^-9 a rounding, a few dozen of them deep. */
        if (!(rms > 1e-4 && rms < 0.03)) fail_msg("%s: logits off by %g", families[f], rms);
        kvl_engine_destroy(engine);
        kvl_model_close(model);
        kvl_st_close(st);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_bf16_is_near),
    };
    return cmocka_run_group_tests(tests, test_setup, NULL);
}
