/* Serving on the engine: with chunks, preemption and changing batches, every request's tokens are
 * those of a request alone (float32: the same bits), under each schedule and allocator. */
#include "tests/test.h"

#include "decoder/generate.h"
#include "harness/serve/real.h"

enum { N = 12 };

static kvl_model *model;
static kvl_engine_options names;
static int32_t *wanted[N]; /* output of each alone */

static void make_trace(kvl_trace_request requests[N], kvl_trace *t) {
    *t = (kvl_trace){.requests = requests, .n = N};
    for (int i = 0; i < N; i++) {
        requests[i] = (kvl_trace_request){
            .arrival_ns = i / 4, .prompt = 1 + 7 * i % 40, .output = 1 + 11 * i % 23};
        int32_t need = requests[i].prompt + requests[i].output;
        if (need > t->longest) t->longest = need;
        t->sum_prompt += requests[i].prompt;
        t->sum_output += requests[i].output;
    }
}

static kvl_serve_options options_of(const char *allocator) {
    kvl_serve_options o = {.page_tokens = 4,
                           .pool_tokens = 1024,
                           .max_seqs = 8,
                           .max_batched_tokens = 16,
                           .chunked = true,
                           .aging_ns = INT64_C(60000000000)};
    assert_ok(kvl_allocator_find(allocator, &o.allocator));
    return o;
}

/* Prompts are made by seed, so a first run says what they are; then each is generated alone. */
static void generate_alone(const kvl_real *real, const kvl_trace *t) {
    kvl_engine_options options = names;
    kvl_engine *engine = NULL;
    options.max_seqs = 1;
    options.max_seq_tokens = t->longest;
    assert_ok(kvl_engine_create(model, &options, NULL, NULL, &engine));
    for (int i = 0; i < N; i++) {
        kvl_generate_options g = {.max_tokens = t->requests[i].output,
                                  .ignore_eos = true,
                                  .sampler = kvl_sampler_defaults()};
        kvl_generate_result result;
        assert_ok(kvl_generate(engine, kvl_real_ids(real, i), t->requests[i].prompt, &g, &result));
        assert_int_equal(result.n_ids, t->requests[i].output);
        wanted[i] = result.ids;
    }
    kvl_engine_destroy(engine);
}

static int64_t run(const kvl_serve_options *o) {
    kvl_trace_request requests[N];
    kvl_trace t;
    kvl_serve_result r;
    kvl_real *real = NULL;
    make_trace(requests, &t);
    assert_ok(kvl_real_open(model, &names, o, &t, NULL, 0, 3, &real));
    if (!wanted[0]) generate_alone(real, &t);
    kvl_serve_backend backend = kvl_real_backend(real);
    assert_ok(kvl_serve_run(&t, o, &backend, NULL, &r));
    assert_int_equal(r.finished, N);
    for (int i = 0; i < N; i++) {
        const int32_t *ids = kvl_real_ids(real, i) + requests[i].prompt;
        assert_memory_equal(ids, wanted[i], (size_t)requests[i].output * sizeof *ids);
        for (int k = 0; k < requests[i].output; k++)
            assert_true(kvl_real_margins(real, i)[requests[i].prompt + k] >= 0);
        assert_true(r.requests[i].first_ns > 0 && r.requests[i].last_ns >= r.requests[i].first_ns);
    }
    int64_t preempted = r.preempted;
    kvl_serve_result_free(&r);
    kvl_real_close(real);
    return preempted;
}

static void tokens_are_those_of_each_alone(void **state) {
    (void)state;
    kvl_serve_options o = options_of("paged");
    for (int s = KVL_DECODE_FIRST; s <= KVL_STATIC; s++) {
        o.schedule = (kvl_serve_schedule)s;
        assert_int_equal(run(&o), 0);
    }
    o = options_of("contiguous");
    o.reserve = KVL_RESERVE_ORACLE;
    run(&o);
    o.max_batched_tokens = 8;
    run(&o);
}

static void preempted_ones_go_on_where_they_were(void **state) {
    (void)state;
    kvl_serve_options o = options_of("paged");
    o.pool_tokens = 72;
    assert_true(run(&o) > 0);
    o.schedule = KVL_PREFILL_FIRST;
    assert_true(run(&o) > 0);
}

static int open_model(void **state) {
    (void)state;
    names = kvl_engine_defaults();
    names.kv_dtype = names.weights = names.compute_dtype = "f32";
    return kvl_model_open(KVL_SOURCE_DIR "/tests/golden/models/llama", 1, &model) != KVL_OK;
}

static int close_model(void **state) {
    (void)state;
    for (int i = 0; i < N; i++) free(wanted[i]);
    kvl_model_close(model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_are_those_of_each_alone),
                                       cmocka_unit_test(preempted_ones_go_on_where_they_were)};
    return cmocka_run_group_tests(tests, open_model, close_model);
}
