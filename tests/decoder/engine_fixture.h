/* What the engine's tests share: tiny golden models, engines over them, tensors of the goldens. */
#ifndef KVL_TESTS_ENGINE_FIXTURE_H
#define KVL_TESTS_ENGINE_FIXTURE_H

#include <math.h>

#include "core/isa.h"
#include "core/threads.h"
#include "decoder/engine.h"
#include "decoder/generate.h"
#include "decoder/safetensors.h"
#include "tests/test.h"

#define MODELS KVL_SOURCE_DIR "/tests/golden/models/"

/* Everything float32, one sequence. */
static inline kvl_engine_options f32_options(void) {
    kvl_engine_options options = kvl_engine_defaults();
    options.kv_dtype = options.weights = options.compute_dtype = "f32";
    return options;
}

static inline kvl_model *open_family(const char *family) {
    char path[512];
    kvl_model *model;
    snprintf(path, sizeof path, MODELS "%s", family);
    assert_ok(kvl_model_open(path, 0, &model));
    return model;
}

static inline kvl_engine *make_engine(const kvl_model *model, const kvl_engine_options *options) {
    kvl_engine *engine;
    assert_ok(kvl_engine_create(model, options, NULL, NULL, &engine));
    return engine;
}

static inline kvl_safetensors *open_golden(const char *folder) {
    char path[512];
    kvl_safetensors *st;
    snprintf(path, sizeof path, KVL_SOURCE_DIR "/tests/golden/%s/golden.safetensors", folder);
    assert_ok(kvl_st_open(path, &st));
    return st;
}

/* A copy of int32 tensor "<id>.<field>". */
static inline int32_t *golden_ids(const kvl_safetensors *st, const char *id, const char *field,
                                  int64_t *n) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", id, field);
    const kvl_st_tensor *tensor = kvl_st_find(st, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, KVL_I32);
    int32_t *out = malloc(tensor->bytes);
    memcpy(out, tensor->data, tensor->bytes);
    *n = tensor->n_elems;
    return out;
}

static inline float *golden_floats(const kvl_safetensors *st, const char *id, const char *field,
                                   int64_t *n) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", id, field);
    const kvl_st_tensor *tensor = kvl_st_find(st, name);
    assert_non_null(tensor);
    float *out = malloc((size_t)tensor->n_elems * sizeof *out);
    assert_ok(kvl_st_read_f32(tensor, 0, tensor->n_elems, out));
    *n = tensor->n_elems;
    return out;
}

/* Largest absolute difference; infinity when any value is NaN. */
static inline double max_diff(const float *a, const float *b, int64_t n) {
    double worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double diff = fabs((double)a[i] - (double)b[i]);
        if (!(diff <= worst)) worst = diff == diff ? diff : INFINITY;
    }
    return worst;
}

/* Greedy tokens with the golden's own fed back, by the tie rule of tests/golden/README.md: a
 * different token is allowed only where the golden's margin is under 1e-3. */
static inline void check_greedy(kvl_engine *engine, const kvl_safetensors *st, const char *id,
                                bool ignore_eos) {
    int64_t n_prompt, n_greedy, n_margin;
    int32_t *prompt = golden_ids(st, id, "ids", &n_prompt);
    int32_t *greedy = golden_ids(st, id, "greedy", &n_greedy);
    float *margin = golden_floats(st, id, "greedy_margin", &n_margin);
    kvl_generate_options options = {.max_tokens = n_greedy,
                                    .sampler = kvl_sampler_defaults(),
                                    .ignore_eos = ignore_eos,
                                    .forced = greedy};
    kvl_generate_result result;
    assert_ok(kvl_generate(engine, prompt, n_prompt, &options, &result));
    assert_int_equal(n_margin, n_greedy);
    assert_int_equal(result.n_ids, n_greedy);
    for (int64_t i = 0; i < n_greedy; i++) {
        if (result.ids[i] != greedy[i] && !(margin[i] < 1e-3f))
            fail_msg("%s: token %lld is %d, golden %d with margin %g", id, (long long)i,
                     result.ids[i], greedy[i], (double)margin[i]);
    }
    kvl_generate_result_free(&result);
    free(prompt);
    free(greedy);
    free(margin);
}

/* One thread: two that wait for each other on a busy machine take many times longer. */
static inline int test_setup(void **state) {
    assert_ok(kvl_isa_init());
    assert_ok(kvl_threads_set(1, 0));
    return 0;
}

#endif
