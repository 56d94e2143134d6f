/* The default model against Transformers in float32: last logits of all prompts; greedy tokens of
 * two prompts and a chat, since 64 steps in float32 take seconds each (`kvlab verify --golden` does
 * them all, and the perplexity). */
#include <unistd.h>

#include "tests/decoder/engine_fixture.h"

#define MODEL KVL_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"

static bool model_missing(void) {
    if (access(MODEL, R_OK) == 0) return false;
    print_message("skipped: models/SmolLM2-135M-Instruct.Q4_1.gguf is missing (quickstart.sh gets "
                  "it)\n");
    return true;
}

static void check_last_logits(kvl_engine *engine, const kvl_safetensors *st, const char *id) {
    int64_t n_ids, vocab;
    int32_t *ids = golden_ids(st, id, "ids", &n_ids);
    float *golden = golden_floats(st, id, "last_logits", &vocab);
    assert_int_equal(vocab, kvl_engine_config(engine)->vocab_size);
    float *logits = malloc((size_t)vocab * sizeof *logits);
    kvl_seq seq;
    assert_ok(kvl_engine_add(engine, n_ids, 0, &seq));
    kvl_step_item item = {.seq = seq, .ids = ids, .n_ids = (int32_t)n_ids, .n_logits = 1};
    assert_ok(kvl_engine_step(engine, &item, 1, logits));
    assert_ok(kvl_engine_remove(engine, seq));
    double error = max_diff(logits, golden, vocab);
    if (!(error <= 2e-3)) fail_msg("%s: last logits off by %g", id, error);
    free(ids);
    free(golden);
    free(logits);
}

static void test_smollm2(void **state) {
    static const char *const plain[] = {"p0", "p1", "p2", "p3", "p4", "p5"};
    if (model_missing()) skip();
    kvl_safetensors *st = open_golden("smollm2");
    kvl_model *model;
    assert_ok(kvl_model_open(MODEL, 0, &model));
    kvl_engine_options options = f32_options();
    options.max_seq_tokens = 256;
    kvl_engine *engine = make_engine(model, &options);
    for (int i = 0; i < 6; i++) check_last_logits(engine, st, plain[i]);
    for (int i = 0; i < 2; i++) check_greedy(engine, st, plain[i], true);
    check_greedy(engine, st, "c0", false);
    kvl_engine_destroy(engine);
    kvl_model_close(model);
    kvl_st_close(st);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),
    };
    return cmocka_run_group_tests(tests, test_setup, NULL);
}
