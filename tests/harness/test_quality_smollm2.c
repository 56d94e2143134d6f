/* The default model over 2,048 tokens of the Constitution against tests/golden/smollm2/quality.json
 * (torch, float32 arithmetic). One KV and one weight format; all with KVL_FULL=1. */
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "core/isa.h"
#include "core/threads.h"
#include "harness/quality/quality.h"

#define MODEL KVL_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define TEXT KVL_SOURCE_DIR "/tests/text/us-constitution.txt"
#define GOLDEN KVL_SOURCE_DIR "/tests/golden/smollm2/quality.json"

enum { TOKENS = 2048, CHUNK = 512 };

static const struct {
    const char *kind, *name; /* in the golden file */
    double ppl_share, kld_share;
    bool always;
} cases[] = {
    {"kv", "f16", 5e-4, 0.15, false},        {"kv", "bf16", 5e-4, 0.15, false},
    {"kv", "fp8_e4m3", 0.03, 0.10, true},    {"kv", "fp8_e5m2", 0.03, 0.10, false},
    {"weights", "bf16", 2e-3, 0.05, false},  {"weights", "nf4", 2e-3, 0.05, false},
    {"weights", "nf4_dq", 2e-3, 0.05, true},
};

static double golden(const json_t *file, size_t i, const char *name) {
    const json_t *entry = json_object_get(json_object_get(file, cases[i].kind), cases[i].name);
    if (!json_is_number(json_object_get(entry, name))) fail_msg("%s: no %s", cases[i].name, name);
    return json_number_value(json_object_get(entry, name));
}

static void close_to(const char *what, size_t i, double got, double want, double share) {
    print_message("%s %s: %s %.6g, golden %.6g (%+.2f %%)\n", cases[i].kind, cases[i].name, what,
                  got, want, 100 * (got / want - 1));
    if (!(fabs(got / want - 1) <= share))
        fail_msg("%s %s: %s %g, golden %g", cases[i].kind, cases[i].name, what, got, want);
}

static void check(const kvl_model *model, const int32_t *ids, const json_t *file, size_t i) {
    kvl_quality_pass pass = {.ids = ids, .n_tokens = TOKENS, .chunk = CHUNK};
    kvl_quality_summary s;
    kvl_engine_options options = kvl_engine_defaults();
    options.kv_dtype = options.weights = options.compute_dtype = "f32";
    options.max_seq_tokens = TOKENS;
    if (strcmp(cases[i].kind, "kv") == 0)
        options.kv_dtype = cases[i].name;
    else
        options.weights = cases[i].name;
    assert_ok(kvl_engine_create(model, &options, NULL, NULL, &pass.measured));
    assert_ok(kvl_quality_reference(model, TOKENS, CHUNK, &pass.reference));
    pass.tokens = malloc(TOKENS * sizeof *pass.tokens);
    assert_ok(kvl_quality_pass_run(&pass));
    assert_int_equal(pass.times.nonfinite, 0);
    assert_ok(kvl_quality_summarise(pass.tokens, TOKENS - 1, &s));
    close_to("ppl", i, s.ppl, golden(file, i, "ppl"), cases[i].ppl_share);
    close_to("mean KLD", i, s.mean_kld, golden(file, i, "mean_kld"), cases[i].kld_share);
    if (!(fabs(s.same_top1 - golden(file, i, "same_top1")) <= 0.01))
        fail_msg("same top-1 %g, golden %g", s.same_top1, golden(file, i, "same_top1"));
    double f32 = json_number_value(
        json_object_get(json_object_get(json_object_get(file, "kv"), "f32"), "ppl"));
    if (!(fabs(s.ppl_f32 / f32 - 1) <= 1e-5)) fail_msg("float32: %g, golden %g", s.ppl_f32, f32);
    kvl_engine_destroy(pass.measured);
    kvl_engine_destroy(pass.reference);
    kvl_trial_times_free(&pass.times);
    free(pass.tokens);
}

static void against_torch(void **state) {
    if (access(MODEL, R_OK) != 0) {
        print_message("skipped: models/SmolLM2-135M-Instruct.Q4_1.gguf is missing (quickstart.sh "
                      "gets it)\n");
        skip();
    }
    const char *full = getenv("KVL_FULL");
    json_error_t error;
    json_t *file = json_load_file(GOLDEN, 0, &error);
    assert_non_null(file);
    assert_int_equal(json_integer_value(json_object_get(file, "n_tokens")), TOKENS);
    kvl_model *model;
    int32_t *ids;
    assert_ok(kvl_model_open(MODEL, 0, &model));
    kvl_trial_spec_values spec = {.text = TEXT, .prompt = TOKENS, .batch = 1};
    assert_ok(kvl_trial_prompts(model, &spec, &ids));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cases[i].always || (full && *full)) check(model, ids, file, i);
    free(ids);
    kvl_model_close(model);
    json_decref(file);
}

static int setup(void **state) {
    if (kvl_isa_init() != KVL_OK) return -1;
    return kvl_threads_set(kvl_physical_cores(), 0) == KVL_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_torch),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
