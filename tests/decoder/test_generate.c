/* Generation: cached and recomputed runs agree to the bit, chunks and stops, refusals. */
#include "tests/decoder/engine_fixture.h"

enum { VOCAB = 384, N_NEW = 12 };

typedef struct recording {
    float logits[N_NEW][VOCAB];
    int32_t ids[N_NEW];
    int n, stop_after; /* 0 = never */
} recording;

static bool record(void *user, int32_t id, const float *logits) {
    recording *r = user;
    memcpy(r->logits[r->n], logits, sizeof r->logits[0]);
    r->ids[r->n++] = id;
    return r->n != r->stop_after;
}

static kvl_generate_options options_for(recording *r) {
    return (kvl_generate_options){.max_tokens = N_NEW,
                                  .sampler = kvl_sampler_defaults(),
                                  .ignore_eos = true,
                                  .on_token = record,
                                  .user = r};
}

static void generate(kvl_engine *engine, kvl_generate_options options, recording *r) {
    static const int32_t prompt[9] = {3, 14, 159, 265, 35, 89, 79, 323, 84};
    kvl_generate_result result;
    r->n = 0;
    options.user = r;
    assert_ok(kvl_generate(engine, prompt, 9, &options, &result));
    assert_int_equal(result.n_ids, r->n);
    assert_memory_equal(result.ids, r->ids, (size_t)r->n * sizeof(int32_t));
    assert_true(result.ttft_ms > 0.0);
    assert_true(r->n < 2 ? result.tpot_ms == 0.0 : result.tpot_ms > 0.0);
    kvl_generate_result_free(&result);
    kvl_engine_memory memory;
    kvl_engine_memory_get(engine, &memory);
    assert_int_equal(memory.ledger.live, 0); /* the sequence is gone */
}

static void test_no_cache_and_chunks(void **state) {
    static const char *const families[] = {"llama", "mistral-window", "qwen3"};
    for (int f = 0; f < 3; f++) {
        kvl_model *model = open_family(families[f]);
        kvl_engine_options engine_options = f32_options();
        kvl_engine *engine = make_engine(model, &engine_options);
        static recording cached, other;
        kvl_generate_options options = options_for(&cached);
        generate(engine, options, &cached);
        assert_int_equal(cached.n, N_NEW);
        options.no_cache = true;
        generate(engine, options, &other);
        assert_memory_equal(cached.logits, other.logits, sizeof cached.logits);
        options.chunk_tokens = 4;
        generate(engine, options, &other);
        assert_memory_equal(cached.logits, other.logits, sizeof cached.logits);
        options.no_cache = false;
        generate(engine, options, &other);
        assert_memory_equal(cached.logits, other.logits, sizeof cached.logits);
        kvl_engine_destroy(engine);
        kvl_model_close(model);
    }
}

static void test_stops(void **state) {
    kvl_model *model = open_family("llama");
    kvl_engine_options engine_options = f32_options();
    static recording free_run, r;
    kvl_engine *engine = make_engine(model, &engine_options);
    kvl_generate_options options = options_for(&free_run);
    generate(engine, options, &free_run);
    r.stop_after = 3;
    generate(engine, options, &r);
    assert_int_equal(r.n, 3);
    r.stop_after = 0;
    options.max_tokens = 1;
    generate(engine, options, &r);
    assert_int_equal(r.n, 1);
    kvl_engine_destroy(engine);

    /* The fourth token as the end token: the run ends with the first token of that id. */
    kvl_model copy = *model;
    copy.config.eos_ids[0] = free_run.ids[3];
    copy.config.n_eos = 1;
    int expected = 1;
    while (free_run.ids[expected - 1] != free_run.ids[3]) expected++;
    engine = make_engine(&copy, &engine_options);
    options = options_for(&r);
    options.ignore_eos = false;
    generate(engine, options, &r);
    assert_int_equal(r.n, expected);
    assert_int_equal(r.ids[expected - 1], free_run.ids[3]);
    options.ignore_eos = true;
    generate(engine, options, &r);
    assert_int_equal(r.n, N_NEW);
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

static void test_forced(void **state) {
    kvl_model *model = open_family("llama");
    kvl_engine_options engine_options = f32_options();
    kvl_engine *engine = make_engine(model, &engine_options);
    static recording plain, forced;
    kvl_generate_options options = options_for(&plain);
    generate(engine, options, &plain);
    int32_t fed[N_NEW];
    memcpy(fed, plain.ids, sizeof fed);
    options.forced = fed;
    generate(engine, options, &forced);
    assert_memory_equal(plain.logits, forced.logits, sizeof plain.logits);
    fed[4] = (fed[4] + 1) % VOCAB; /* from here on another text */
    generate(engine, options, &forced);
    assert_memory_equal(plain.logits, forced.logits, 5 * sizeof plain.logits[0]);
    assert_true(max_diff(plain.logits[5], forced.logits[5], VOCAB) > 1e-4);
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

static void test_refused(void **state) {
    kvl_model *model = open_family("llama");
    kvl_engine_options engine_options = f32_options();
    kvl_engine *engine = make_engine(model, &engine_options);
    int32_t ids[3] = {1, 2, VOCAB};
    kvl_generate_result result;
    kvl_generate_options options = {.max_tokens = 4, .sampler = kvl_sampler_defaults()};
    assert_refused(kvl_generate(engine, ids, 0, &options, &result), KVL_ERR_INPUT,
                   "prompt of 0 tokens");
    assert_refused(kvl_generate(engine, ids, 3, &options, &result), KVL_ERR_INPUT,
                   "prompt token 2: id 384");
    options.max_tokens = 510;
    assert_refused(kvl_generate(engine, ids, 3, &options, &result), KVL_ERR_INPUT,
                   "prompt of 3 tokens + 510 new: model llama allows 512");
    options.max_tokens = 0;
    assert_refused(kvl_generate(engine, ids, 2, &options, &result), KVL_ERR_INPUT, "max_tokens 0");
    options.max_tokens = 4;
    options.sampler.top_p = -1.0f;
    assert_refused(kvl_generate(engine, ids, 2, &options, &result), KVL_ERR_INPUT, "top_p");
    options.sampler = kvl_sampler_defaults();
    int32_t forced[4] = {0, VOCAB, 0, 0};
    options.forced = forced;
    options.ignore_eos = true;
    assert_refused(kvl_generate(engine, ids, 2, &options, &result), KVL_ERR_INPUT, "id 384");
    assert_null(result.ids);
    options.forced = NULL;
    assert_ok(kvl_generate(engine, ids, 2, &options, &result)); /* nothing was left behind */
    kvl_generate_result_free(&result);
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_cache_and_chunks),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_forced),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, test_setup, NULL);
}
