/* Static scales: made from a text, written, found again by the engine, refused when malformed; and
 * where values saturate is said by layer, half and head. */
#include "tests/decoder/engine_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "decoder/bnb_write.h"
#include "decoder/kv_calibrate.h"
#include "decoder/kv_scales.h"
#include "decoder/shards.h"
#include "quant/kv_format.h"

static char folder[] = "/tmp/kvlab_kv_scales_XXXXXX";
static char path_buffer[4][512];

static const char *in_folder(int slot, const char *name) {
    snprintf(path_buffer[slot], sizeof path_buffer[slot], "%s/%s", folder, name);
    return path_buffer[slot];
}

enum { N_IDS = 40 };
static void make_ids(int32_t ids[N_IDS]) {
    for (int i = 0; i < N_IDS; i++) ids[i] = (i * 37 + 11) % 200;
}

static kvl_kv_scales *calibrated(const kvl_model *model) {
    int32_t ids[N_IDS];
    kvl_kv_scales *s;
    make_ids(ids);
    assert_ok(kvl_kv_calibrate(model, ids, N_IDS, &s));
    return s;
}

/* K and V that an engine stores for the ids, [layer] of rows. */
static void read_all(kvl_engine *engine, int32_t layer, float *k, float *v) {
    int32_t ids[N_IDS];
    kvl_seq seq;
    make_ids(ids);
    assert_ok(kvl_engine_add(engine, N_IDS, 0, &seq));
    kvl_step_item item = {.seq = seq, .ids = ids, .n_ids = N_IDS};
    assert_ok(kvl_engine_step(engine, &item, 1, NULL));
    assert_ok(kvl_engine_read_kv(engine, seq, layer, 0, N_IDS, k, v));
    assert_ok(kvl_engine_remove(engine, seq));
}

static void calibration_is_the_largest_magnitude(void **state) {
    kvl_model *model = open_family("llama");
    const kvl_config *c = &model->config;
    kvl_kv_scales *s = calibrated(model);
    kvl_engine_options options = f32_options();
    kvl_engine *engine = make_engine(model, &options);
    int32_t width = c->n_kv_heads * c->head_dim;
    float *k = malloc((size_t)(2 * N_IDS * width) * sizeof *k), *v = k + N_IDS * width;
    for (int32_t layer = 0; layer < c->n_layers; layer++) {
        read_all(engine, layer, k, v);
        for (int32_t h = 0; h < c->n_kv_heads; h++) {
            float top[2] = {0};
            for (int i = 0; i < N_IDS * c->head_dim; i++) {
                int at = i / c->head_dim * width + h * c->head_dim + i % c->head_dim;
                top[0] = fmaxf(top[0], fabsf(k[at])), top[1] = fmaxf(top[1], fabsf(v[at]));
            }
            assert_true(s->k_absmax[layer * c->n_kv_heads + h] == top[0]);
            assert_true(s->v_absmax[layer * c->n_kv_heads + h] == top[1]);
        }
    }
    free(k);
    kvl_engine_destroy(engine);
    kvl_kv_scales_free(s);
    kvl_model_close(model);
}

static void scales_hold_the_calibrated_range(void **state) {
    kvl_model *model = open_family("llama");
    const kvl_config *c = &model->config;
    kvl_kv_scales *s = calibrated(model);
    float *head = malloc((size_t)c->n_layers * (size_t)c->n_kv_heads * sizeof *head);
    float *tensor = malloc((size_t)c->n_layers * (size_t)c->n_kv_heads * sizeof *tensor);
    kvl_kv_scales_of(s, KVL_FP8_E4M3, false, true, head);
    kvl_kv_scales_of(s, KVL_FP8_E4M3, false, false, tensor);
    for (int32_t i = 0; i < c->n_layers * c->n_kv_heads; i++) {
        assert_true(s->k_absmax[i] / head[i] <= 448.0f);
        assert_true(s->k_absmax[i] / head[i] >= 447.999f);
        assert_true(tensor[i] >= head[i]);
        assert_true(tensor[i] == tensor[i / c->n_kv_heads * c->n_kv_heads]);
    }
    /* The same text saturates nothing in the first layer then. */
    model->kv_scales = s;
    static const char *const modes[] = {"head", "tensor"};
    static const char *const dtypes[] = {"fp8_e4m3", "int8", "fp8_e5m2:int8", "f16"};
    float *k = malloc((size_t)(2 * N_IDS * c->n_kv_heads * c->head_dim) * sizeof *k);
    for (int i = 0; i < 8; i++) {
        kvl_engine_options options = f32_options();
        options.kv_dtype = dtypes[i / 2], options.kv_scale = modes[i % 2];
        kvl_engine *engine = make_engine(model, &options);
        read_all(engine, 0, k, k + N_IDS * c->n_kv_heads * c->head_dim);
        /* Later layers see what these have rounded, and may pass their range. */
        for (int32_t j = 0; j < 2 * c->n_kv_heads; j++)
            assert_int_equal(kvl_engine_saturated(engine)[j], 0);
        kvl_engine_destroy(engine);
    }
    free(k);
    free(head);
    free(tensor);
    kvl_model_close(model);
}

static void a_written_file_is_found(void **state) {
    kvl_model *model = open_family("llama"), *again;
    kvl_kv_scales *s = calibrated(model);
    const char *out = in_folder(0, "model");
    kvl_bnb_write_options write = {.type = KVL_NF4,
                                   .block = 64,
                                   .other_dtype = KVL_F32,
                                   .kv_scales = s,
                                   .kv_text = "some/text.txt",
                                   .kv_tokens = N_IDS};
    assert_ok(kvl_bnb_write(model, MODELS "llama", &write, out, NULL, NULL));
    assert_ok(kvl_model_open(out, 0, &again));
    const size_t bytes = (size_t)s->n_layers * (size_t)s->n_kv_heads * sizeof(float);
    assert_non_null(again->kv_scales);
    assert_true(again->kv_scales->per_head);
    assert_memory_equal(again->kv_scales->k_absmax, s->k_absmax, bytes);
    assert_memory_equal(again->kv_scales->v_absmax, s->v_absmax, bytes);
    kvl_model_close(again);
    /* Without the file the tensors serve, one scale a layer, as other systems read them. */
    assert_int_equal(unlink(in_folder(1, "model/kv_scales.json")), 0);
    assert_ok(kvl_model_open(out, 0, &again));
    assert_non_null(again->kv_scales);
    assert_false(again->kv_scales->per_head);
    float want[64], got[64];
    kvl_kv_scales_of(s, KVL_FP8_E4M3, true, false, want);
    kvl_kv_scales_of(again->kv_scales, KVL_FP8_E4M3, true, false, got);
    for (int32_t i = 0; i < s->n_layers * s->n_kv_heads; i++)
        assert_true(fabsf(got[i] / want[i] - 1) < 1e-6f);
    kvl_engine_options options = f32_options();
    kvl_engine *engine;
    options.kv_dtype = "fp8_e4m3", options.kv_scale = "head";
    assert_refused(kvl_engine_create(again, &options, NULL, NULL, &engine), KVL_ERR_UNSUPPORTED,
                   "k_scale and v_scale tensors only, one a layer");
    options.kv_scale = "tensor";
    kvl_engine_destroy(make_engine(again, &options));
    kvl_model_close(again);
    kvl_kv_scales_free(s);
    kvl_model_close(model);
}

static void malformed_files_are_refused(void **state) {
    static const char *const bad[][2] = {
        {"{", "kv_scales.json:1:"},
        {"[]", "must be an object"},
        {"{\"format\": \"x\"}", "format 'x'"},
        {"{\"format\": \"kvlab KV scales 1\"}", "k_absmax: must hold 2 layers"},
        {"{\"format\": \"kvlab KV scales 1\", \"k_absmax\": [[1, 1], [1]]}", "k_absmax[1]"},
        {"{\"format\": \"kvlab KV scales 1\", \"k_absmax\": [[1, -1], [1, 1]]}", "k_absmax[0][1]"},
        {"{\"format\": \"kvlab KV scales 1\", \"k_absmax\": [[1, 1e39], [1, 1]]}",
         "k_absmax[0][1]"},
        {"{\"format\": \"kvlab KV scales 1\", \"k_absmax\": [[1, 1], [1, 1]]}",
         "v_absmax: must hold 2 layers"},
    };
    kvl_config config;
    kvl_kv_scales *s = NULL;
    kvl_model *model = open_family("llama");
    config = model->config;
    assert_int_equal(config.n_layers, 2);
    assert_int_equal(config.n_kv_heads, 2);
    assert_int_equal(mkdir(in_folder(0, "bad"), 0755), 0);
    const char *file = in_folder(1, "bad/kv_scales.json");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_ok(kvl_file_write_all(file, bad[i][0], strlen(bad[i][0])));
        assert_refused(kvl_kv_scales_load(in_folder(0, "bad"), &config, &s), KVL_ERR_INPUT,
                       bad[i][1]);
        assert_null(s);
    }
    assert_int_equal(unlink(file), 0);
    assert_ok(kvl_kv_scales_load(in_folder(0, "bad"), &config, &s));
    assert_null(s);
    kvl_model_close(model);
}

/* A folder of 2 layers whose first k_scale is `first` (n_elems 0 to 2); -1: it is missing. */
static kvl_status load_tensors(const kvl_config *config, float first, int64_t n_elems,
                               kvl_kv_scales **out) {
    static const char *const names[] = {
        "model.layers.0.self_attn.k_scale", "model.layers.0.self_attn.v_scale",
        "model.layers.1.self_attn.k_scale", "model.layers.1.self_attn.v_scale"};
    const float values[] = {first, first}, good = 0.5f;
    kvl_st_tensor tensors[4] = {0};
    for (int i = 0; i < 4; i++)
        tensors[i] = (kvl_st_tensor){.name = names[i],
                                     .dtype = KVL_F32,
                                     .n_dims = 1,
                                     .dims = {i ? 1 : n_elems},
                                     .n_elems = i ? 1 : n_elems,
                                     .data = i ? &good : values,
                                     .bytes = (uint64_t)(i ? 1 : n_elems) * sizeof(float)};
    const int missing = n_elems < 0;
    kvl_shards shards;
    assert_ok(kvl_st_write(in_folder(0, "scales/model.safetensors"), tensors + missing,
                           (size_t)(4 - missing)));
    assert_ok(kvl_shards_open(in_folder(1, "scales"), &shards));
    kvl_status status = kvl_kv_scales_from_shards("scales", &shards, config, out);
    kvl_shards_close(&shards);
    return status;
}

static void bad_scale_tensors_are_refused(void **state) {
    static const struct {
        float value;
        int64_t n_elems;
        const char *why;
    } bad[] = {{NAN, 1, "k_scale' is nan: above 0 and at most 7.59"},
               {0.0f, 1, "k_scale' is 0:"},
               {-1.0f, 1, "k_scale' is -1:"},
               {INFINITY, 1, "k_scale' is inf:"},
               {1e36f, 1, "k_scale' is 1e+36:"}, /* finite, but 448 times it is not */
               {1.0f, 2, "k_scale' has 2 elements: 1"},
               {1.0f, 0, "k_scale' has 0 elements: 1"},
               {1.0f, -1, "model.layers.0.self_attn.k_scale' is missing"}};
    kvl_model *model = open_family("llama");
    kvl_kv_scales *s;
    assert_int_equal(mkdir(in_folder(0, "scales"), 0755), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_refused(load_tensors(&model->config, bad[i].value, bad[i].n_elems, &s),
                       KVL_ERR_INPUT, bad[i].why);
        assert_null(s);
    }
    assert_ok(load_tensors(&model->config, 7e35f, 1, &s));
    assert_true(isfinite(s->k_absmax[0]) && s->k_absmax[0] == 7e35f * 448.0f);
    kvl_kv_scales_free(s);
    kvl_model_close(model);
}

static void tensor_names(void **state) {
    int32_t layer;
    bool is_v;
    assert_true(kvl_kv_scale_tensor("model.layers.12.self_attn.v_scale", 13, &layer, &is_v));
    assert_true(layer == 12 && is_v);
    assert_true(kvl_kv_scale_tensor("model.layers.0.self_attn.k_scale", 1, &layer, &is_v));
    assert_true(layer == 0 && !is_v);
    assert_false(kvl_kv_scale_tensor("model.layers.13.self_attn.v_scale", 13, &layer, &is_v));
    assert_false(kvl_kv_scale_tensor("model.layers.1.self_attn.q_scale", 13, &layer, &is_v));
    assert_false(kvl_kv_scale_tensor("model.layers.1.self_attn.k_scales", 13, &layer, &is_v));
}

/* A scale that is a tenth of what it must be: the places are named, the largest first. */
static void saturation_is_told_by_place(void **state) {
    kvl_model *model = open_family("llama");
    const kvl_config *c = &model->config;
    model->kv_scales = calibrated(model);
    model->kv_scales->v_absmax[1 * c->n_kv_heads + 1] *= 0.1f; /* layer 1, V, head 1 */
    kvl_engine_options options = f32_options();
    options.kv_dtype = "int8", options.kv_scale = "head";
    kvl_engine *engine = make_engine(model, &options);
    float *k = malloc((size_t)(2 * N_IDS * c->n_kv_heads * c->head_dim) * sizeof *k);
    read_all(engine, 0, k, k + N_IDS * c->n_kv_heads * c->head_dim);
    const int64_t *counts = kvl_engine_saturated(engine);
    int64_t there = counts[(2 * 1 + 1) * c->n_kv_heads + 1], all = 0;
    for (int32_t i = 0; i < 2 * c->n_layers * c->n_kv_heads; i++) all += counts[i];
    assert_true(there > 100 && all - there <= 4);
    kvl_engine_stats stats;
    char text[160];
    kvl_engine_stats_get(engine, &stats);
    assert_true(stats.kv_saturated == all);
    kvl_saturated_text(c, counts, text, sizeof text);
    assert_true(strncmp(text, "layer 1 V head 1: ", 18) == 0);
    kvl_engine_stats_reset(engine);
    kvl_saturated_text(c, kvl_engine_saturated(engine), text, sizeof text);
    assert_string_equal(text, "");
    free(k);
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

/* Conversions of a step are counted and named. */
static void casts_are_counted(void **state) {
    kvl_model *model = open_family("llama");
    const kvl_config *c = &model->config;
    const double kv = (double)c->n_kv_heads * c->head_dim * c->n_layers;
    const double q = (double)c->n_q_heads * c->head_dim;
    static const struct {
        const char *kv, *weights, *compute, *casts;
    } cases[] = {
        {"f32", "f32", "f32", "none"},
        {"f16", "f32", "f32", "k f32>f16, v f32>f16; widened k f16>f32, v f16>f32"},
        {"f32", "bf16", "f32", "none; widened weights bf16>f32"},
        {"bf16", "bf16", "bf16",
         "x and q f32>bf16, k f32>bf16, v f32>bf16; widened k bf16>f32, v bf16>f32, weights "
         "bf16>f32"},
    };
    for (int i = 0; i < 4; i++) {
        kvl_engine_options options = f32_options();
        options.kv_dtype = cases[i].kv, options.weights = cases[i].weights;
        options.compute_dtype = cases[i].compute;
        kvl_engine *engine = make_engine(model, &options);
        kvl_engine_effective effective;
        kvl_engine_stats stats;
        kvl_seq seq;
        int32_t id = 5;
        float *logits = malloc((size_t)c->vocab_size * sizeof *logits);
        assert_ok(kvl_engine_add(engine, 1, 0, &seq));
        kvl_step_item item = {.seq = seq, .ids = &id, .n_ids = 1, .n_logits = 1};
        assert_ok(kvl_engine_step(engine, &item, 1, logits));
        kvl_engine_stats_get(engine, &stats);
        kvl_engine_effective_get(engine, 1, 1, &effective);
        assert_string_equal(effective.casts, cases[i].casts);
        double inputs =
            (2.0 * c->hidden_size + 2 * q + c->intermediate_size) * c->n_layers + c->hidden_size;
        assert_true(stats.cast_elements == (i == 3 ? inputs : 0) + (i % 2 ? 2 * kv : 0));
        double weights = ((q + 2 * kv / c->n_layers) * c->hidden_size + q * c->hidden_size +
                          3.0 * c->intermediate_size * c->hidden_size) *
                             c->n_layers +
                         (double)c->vocab_size * c->hidden_size;
        assert_true(stats.widened_elements == (i >= 2 ? weights : 0) + (i % 2 ? 2 * kv : 0));
        free(logits);
        kvl_engine_destroy(engine);
    }
    kvl_model_close(model);
}

static int make_folder(void **state) {
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(calibration_is_the_largest_magnitude),
                                       cmocka_unit_test(scales_hold_the_calibrated_range),
                                       cmocka_unit_test(a_written_file_is_found),
                                       cmocka_unit_test(malformed_files_are_refused),
                                       cmocka_unit_test(bad_scale_tensors_are_refused),
                                       cmocka_unit_test(tensor_names),
                                       cmocka_unit_test(saturation_is_told_by_place),
                                       cmocka_unit_test(casts_are_counted)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
