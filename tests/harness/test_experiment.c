/* From axes to trials: normalised, deduplicated, refused with a reason, keyed. */
#include "tests/test.h"

#include <jansson.h>

#include "harness/sweep/experiment.h"

static kvl_model_facts facts = {.digest = "00000000deadbeef",
                                .max_position = 2048,
                                .text_tokens = -1,
                                .parameters = 1000,
                                .embedding_parameters = 100,
                                .kv_values_per_token = 10};

/* Axes from texts, without registries: any name goes. */
static void init(kvl_experiment *experiment, const char *const texts[KVL_N_AXES]) {
    static const char *const defaults[KVL_N_AXES] = {"m",    "paged", "flash", "bf16", "auto",
                                                     "bf16", "bf16",  "512",   "64",   NULL,
                                                     "1",    "16",    "2",     "avx2", "cpu"};
    memset(experiment, 0, sizeof *experiment);
    experiment->workload = (kvl_workload){.kind = &kvl_workload_decode, .seed = 1};
    for (int i = 0; i < KVL_N_AXES; i++) {
        const kvl_axis_use *use = kvl_workload_use(&kvl_workload_decode, (kvl_axis_id)i);
        if (!use) continue;
        const char *text = texts[i] ? texts[i] : defaults[i] ? defaults[i] : use->fallback;
        kvl_axis_values *values = &experiment->axes[i];
        if (text) {
            assert_ok(kvl_axis_parse(kvl_axis_of((kvl_axis_id)i), text, NULL, 0, values));
        } else {
            values->numbers = calloc(1, sizeof *values->numbers);
            values->n = 1;
        }
    }
    experiment->models = calloc(experiment->axes[KVL_AXIS_MODEL].n, sizeof facts);
    for (size_t i = 0; i < experiment->axes[KVL_AXIS_MODEL].n; i++) experiment->models[i] = facts;
}

static void expand(const char *const texts[KVL_N_AXES], kvl_experiment *experiment,
                   kvl_trials *trials) {
    init(experiment, texts);
    assert_ok(kvl_experiment_expand(experiment, NULL, "build", trials));
}

static void product_in_order(void **state) {
    (void)state;
    kvl_experiment experiment;
    kvl_trials trials;
    const char *texts[KVL_N_AXES] = {
        [KVL_AXIS_ATTENTION] = "eager,flash", [KVL_AXIS_PROMPT] = "512-1024*2"};
    expand(texts, &experiment, &trials);
    assert_int_equal(trials.n, 4);
    assert_int_equal(trials.n_duplicates, 0);
    assert_string_equal(trials.items[0].names[KVL_AXIS_ATTENTION], "eager");
    assert_int_equal(trials.items[1].numbers[KVL_AXIS_PROMPT], 1024);
    assert_string_equal(trials.items[3].names[KVL_AXIS_ATTENTION], "flash");
    for (int i = 0; i < 4; i++) {
        assert_int_equal(strlen(trials.items[i].key), 16);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(trials.items[i].key, trials.items[j].key);
    }
    kvl_trials_free(&trials);
    kvl_experiment_free(&experiment);
}

static void what_plays_no_part_does_not_multiply(void **state) {
    (void)state;
    kvl_experiment experiment;
    kvl_trials trials;
    const char *texts[KVL_N_AXES] = {
        [KVL_AXIS_ALLOCATOR] = "contiguous,paged", [KVL_AXIS_PAGE_TOKENS] = "1,16,256"};
    expand(texts, &experiment, &trials);
    assert_int_equal(trials.n, 4);
    assert_int_equal(trials.n_duplicates, 2);
    assert_int_equal(trials.items[0].numbers[KVL_AXIS_PAGE_TOKENS], 0);
    assert_int_equal(trials.items[3].numbers[KVL_AXIS_PAGE_TOKENS], 256);
    kvl_trials_free(&trials);
    kvl_experiment_free(&experiment);
    /* Each setting of an allocator multiplies that allocator alone. */
    const char *settings[KVL_N_AXES] = {[KVL_AXIS_ALLOCATOR] =
                                            "contiguous,buddy,growing,paged,virtual",
                                        [KVL_AXIS_RESERVE] = "max,pow2,oracle",
                                        [KVL_AXIS_MAP_KIB] = "64-2048*2",
                                        [KVL_AXIS_PREFIX_CACHE] = "off,on"};
    static const struct {
        const char *allocator, *reserve, *prefix_cache;
        int64_t page_tokens, map_kib;
    } kept[] = {
        {"contiguous", "max", "off", 0, 0},    {"contiguous", "pow2", "off", 0, 0},
        {"contiguous", "oracle", "off", 0, 0}, {"buddy", "max", "off", 0, 0},
        {"buddy", "pow2", "off", 0, 0},        {"buddy", "oracle", "off", 0, 0},
        {"growing", "none", "off", 0, 0},      {"paged", "none", "off", 16, 0},
        {"paged", "none", "on", 16, 0},        {"virtual", "none", "off", 0, 64},
        {"virtual", "none", "off", 0, 128},    {"virtual", "none", "off", 0, 256},
        {"virtual", "none", "off", 0, 512},    {"virtual", "none", "off", 0, 1024},
        {"virtual", "none", "off", 0, 2048},
    };
    expand(settings, &experiment, &trials);
    assert_int_equal(trials.n, sizeof kept / sizeof *kept);
    assert_int_equal(trials.n + trials.n_duplicates, 5 * 3 * 6 * 2);
    assert_int_equal(trials.n_refused, 0);
    for (size_t i = 0; i < trials.n; i++) {
        const kvl_trial *t = &trials.items[i];
        assert_string_equal(t->names[KVL_AXIS_ALLOCATOR], kept[i].allocator);
        assert_string_equal(t->names[KVL_AXIS_RESERVE], kept[i].reserve);
        assert_string_equal(t->names[KVL_AXIS_PREFIX_CACHE], kept[i].prefix_cache);
        assert_int_equal(t->numbers[KVL_AXIS_PAGE_TOKENS], kept[i].page_tokens);
        assert_int_equal(t->numbers[KVL_AXIS_MAP_KIB], kept[i].map_kib);
    }
    kvl_trials_free(&trials);
    kvl_experiment_free(&experiment);
    /* A synthetic fill takes the prompt's place. */
    const char *filled[KVL_N_AXES] = {
        [KVL_AXIS_CONTEXT] = "128", [KVL_AXIS_PROMPT] = "1,2,3", [KVL_AXIS_PREFIX_CACHE] = "on"};
    expand(filled, &experiment, &trials);
    assert_int_equal(trials.n, 1);
    assert_int_equal(trials.items[0].numbers[KVL_AXIS_PROMPT], 0);
    assert_string_equal(trials.items[0].names[KVL_AXIS_PREFIX_CACHE], "off");
    kvl_trials_free(&trials);
    kvl_experiment_free(&experiment);
}

static void too_long_is_refused_with_the_sum(void **state) {
    (void)state;
    kvl_experiment experiment;
    kvl_trials trials;
    const char *texts[KVL_N_AXES] = {[KVL_AXIS_PROMPT] = "1984,1985"};
    expand(texts, &experiment, &trials);
    assert_int_equal(trials.n_refused, 1);
    assert_string_equal(trials.items[0].refused, "");
    assert_string_equal(trials.items[1].refused,
                        "prompt 1985 + output 64 = 2049 tokens: the model allows 2048");
    kvl_trials_free(&trials);
    kvl_experiment_free(&experiment);
}

static void settings_are_refused(void **state) {
    (void)state;
    kvl_experiment experiment;
    kvl_trials trials;
    const char *none[KVL_N_AXES] = {[KVL_AXIS_ALLOCATOR] = "buddy", [KVL_AXIS_RESERVE] = "none"};
    expand(none, &experiment, &trials);
    assert_string_equal(trials.items[0].refused,
                        "allocator buddy: needs --reserve max, pow2 or oracle");
    kvl_trials_free(&trials);
    kvl_experiment_free(&experiment);
    const char *odd[KVL_N_AXES] = {[KVL_AXIS_ALLOCATOR] = "virtual", [KVL_AXIS_MAP_KIB] = "64,65"};
    expand(odd, &experiment, &trials);
    assert_int_equal(trials.n_refused, 1);
    assert_string_equal(trials.items[1].refused,
                        "allocator virtual: --map-kib must be a multiple of 4, the page of the "
                        "system");
    kvl_trials_free(&trials);
    kvl_experiment_free(&experiment);
}

static void huge_products_are_refused(void **state) {
    (void)state;
    kvl_experiment experiment;
    kvl_trials trials;
    const char *texts[KVL_N_AXES] = {[KVL_AXIS_PROMPT] = "1-1000+1", [KVL_AXIS_BATCH] = "1-101+1"};
    init(&experiment, texts);
    assert_refused(kvl_experiment_expand(&experiment, NULL, "b", &trials), KVL_ERR_INPUT,
                   "more than 100000 points");
    kvl_experiment_free(&experiment);
}

/* The key changes with everything that decides a result, and with nothing else. */
static void keys_cover_what_decides(void **state) {
    (void)state;
    kvl_experiment experiment;
    kvl_trials base, other;
    const char *texts[KVL_N_AXES] = {0};
    expand(texts, &experiment, &base);
    char key[17];
    memcpy(key, base.items[0].key, sizeof key);
    kvl_trials_free(&base);
    assert_ok(kvl_experiment_expand(&experiment, NULL, "other build", &other));
    assert_string_not_equal(other.items[0].key, key);
    kvl_trials_free(&other);
    experiment.workload.seed = 2;
    assert_ok(kvl_experiment_expand(&experiment, NULL, "build", &other));
    assert_string_not_equal(other.items[0].key, key);
    kvl_trials_free(&other);
    experiment.workload.seed = 1;
    /* Scales made anew beside the model make other trials, of those that use them alone. */
    memcpy(experiment.models[0].kv_scales_digest, "0123456789abcdef", 17);
    assert_ok(kvl_experiment_expand(&experiment, NULL, "build", &other));
    assert_string_equal(other.items[0].key, key);
    kvl_trials_free(&other);
    const char *scaled[KVL_N_AXES] = {
        [KVL_AXIS_KV_DTYPE] = "fp8_e4m3", [KVL_AXIS_KV_SCALE] = "head"};
    kvl_experiment with_scales;
    expand(scaled, &with_scales, &other);
    char former[17];
    memcpy(former, other.items[0].key, sizeof former);
    kvl_trials_free(&other);
    memcpy(with_scales.models[0].kv_scales_digest, "0123456789abcdef", 17);
    assert_ok(kvl_experiment_expand(&with_scales, NULL, "build", &other));
    assert_string_not_equal(other.items[0].key, former);
    kvl_trials_free(&other);
    kvl_experiment_free(&with_scales);
    experiment.models[0].digest[0] = 'f';
    assert_ok(kvl_experiment_expand(&experiment, NULL, "build", &other));
    assert_string_not_equal(other.items[0].key, key);
    kvl_trials_free(&other);
    kvl_experiment_free(&experiment);
    /* The same model under another path is the same trial. */
    const char *moved[KVL_N_AXES] = {[KVL_AXIS_MODEL] = "elsewhere/m"};
    expand(moved, &experiment, &other);
    assert_string_equal(other.items[0].key, key);
    kvl_trials_free(&other);
    kvl_experiment_free(&experiment);
}

static void repro_is_a_shell_line(void **state) {
    (void)state;
    kvl_experiment experiment;
    kvl_trials trials;
    const char *texts[KVL_N_AXES] = {
        [KVL_AXIS_MODEL] = "my model's.gguf", [KVL_AXIS_ALLOCATOR] = "contiguous"};
    expand(texts, &experiment, &trials);
    char *line = kvl_trial_repro(&experiment.workload, &trials.items[0]);
    assert_string_equal(
        line, "kvlab bench decode --model 'my model'\\''s.gguf' --allocator "
              "contiguous --attention flash --kv-dtype bf16 --kv-scale auto --weights bf16 "
              "--compute-dtype bf16 --prompt 512 --output 64 --batch 1 --reserve max "
              "--prefix-cache off --threads 2 --isa avx2 --device cpu --seed 1 --rounds 1 --out -");
    free(line);
    /* (1000 - 100) bf16 weights and 576 tokens of 10 bf16 values. */
    assert_int_equal(kvl_trial_step_bytes(&trials.items[0]), 900 * 2 + 576 * 10 * 2);
    kvl_trials_free(&trials);
    kvl_experiment_free(&experiment);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_in_order),
        cmocka_unit_test(what_plays_no_part_does_not_multiply),
        cmocka_unit_test(too_long_is_refused_with_the_sum),
        cmocka_unit_test(settings_are_refused),
        cmocka_unit_test(huge_products_are_refused),
        cmocka_unit_test(keys_cover_what_decides),
        cmocka_unit_test(repro_is_a_shell_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
