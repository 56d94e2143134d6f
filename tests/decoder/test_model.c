/* kvl_model_open: what it finds, in files, folders and presets. */
#include "tests/test.h"

#include <sys/stat.h>

#include "core/buffer.h"
#include "core/clock.h"
#include "decoder/model.h"
#include "decoder/safetensors.h"
#include "tests/decoder/temporary.h"
#include "tests/decoder/tiny_gguf.h"

#define MODELS KVL_SOURCE_DIR "/tests/golden/models/"
#define SMOLLM2 KVL_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"

static void golden_folders_open(void **state) {
    static const char *const names[] = {"llama", "llama3-rope", "mistral-window", "qwen2", "qwen3"};
    char digests[5][17];
    for (int i = 0; i < 5; i++) {
        char dir[256];
        snprintf(dir, sizeof dir, MODELS "%s", names[i]);
        kvl_model *model;
        assert_ok(kvl_model_open(dir, 0, &model));
        assert_non_null(model->tokenizer);
        assert_null(model->tokenizer_why);
        assert_null(model->chat_template);
        assert_int_equal(strlen(model->digest), 16);
        memcpy(digests[i], model->digest, 17);
        for (int k = 0; k < i; k++) assert_string_not_equal(digests[i], digests[k]);
        assert_true(model->file_bytes > 4 * 300000 / 2);
        kvl_model_close(model);
    }
}

static void the_default_model_opens(void **state) {
    if (access(SMOLLM2, R_OK) != 0) skip();
    kvl_model *model;
    uint64_t start = kvl_now_ns();
    assert_ok(kvl_model_open(SMOLLM2, 0, &model));
    assert_true(kvl_now_ns() - start < 3000000000u);
    assert_non_null(model->tokenizer);
    assert_non_null(strstr(model->chat_template, "<|im_start|>"));
    assert_int_equal(model->file_bytes, 98362432);
    kvl_model_close(model);
}

static void presets_open_and_unknown_names_are_answered(void **state) {
    kvl_model *model, *other;
    assert_ok(kvl_model_open("synthetic:tiny", 1, &model));
    assert_ok(kvl_model_open("synthetic:tiny", 2, &other));
    assert_null(model->tokenizer);
    assert_non_null(model->tokenizer_why);
    assert_string_equal(model->config.name, "synthetic:tiny");
    assert_string_equal(model->config.source_weights, "synthetic");
    assert_int_equal(model->file_bytes, 0);
    assert_string_not_equal(model->digest, other->digest);
    kvl_model_close(model);
    kvl_model_close(other);
    assert_refused(kvl_model_open("synthetic:smollm2-135m", 0, &model), KVL_ERR_INPUT,
                   "did you mean 'SmolLM2-135M'");
    assert_null(model);
    assert_refused(kvl_model_open("synthetic:", 0, &model), KVL_ERR_INPUT, "known: tiny");
    assert_refused(kvl_model_open("/nonexistent", 0, &model), KVL_ERR_IO, "/nonexistent");
    assert_refused(kvl_model_open("/dev/null", 0, &model), KVL_ERR_IO, "device");
    assert_refused(kvl_model_open("/tmp", 0, &model), KVL_ERR_IO, "/tmp/config.json");
}

/* A folder with the golden qwen2 model. */
static void copy_model(char *dir) {
    make_folder(dir);
    static const char *const files[] = {"config.json", "generation_config.json",
                                        "model.safetensors", "tokenizer.json"};
    for (int i = 0; i < 4; i++) copy_file(MODELS "qwen2", dir, files[i]);
}

static void digests_follow_the_bytes(void **state) {
    char dir[] = "/tmp/kvl_model_XXXXXX", moved[40], first[17], path[64];
    copy_model(dir);
    kvl_model *model;
    assert_ok(kvl_model_open(dir, 0, &model));
    memcpy(first, model->digest, 17);
    kvl_model_close(model);
    snprintf(moved, sizeof moved, "%s_moved", dir);
    assert_int_equal(rename(dir, moved), 0);
    assert_ok(kvl_model_open(moved, 5, &model));
    assert_string_equal(model->digest, first);
    kvl_model_close(model);
    snprintf(path, sizeof path, "%s/model.safetensors", moved);
    FILE *f = fopen(path, "r+b");
    fseek(f, 0, SEEK_END);
    long bytes = ftell(f);
    assert_true(bytes > 300000); /* places in its second half, behind the header */
    for (int i = 0; i < 8; i++) {
        for (int turn = 0; turn < 2; turn++) { /* there, and back again */
            long at = bytes - 1 - (bytes - 50000) / 7 * i / 2;
            fseek(f, at, SEEK_SET);
            int byte = fgetc(f);
            fseek(f, at, SEEK_SET);
            fputc(byte ^ 1, f);
            fflush(f);
            assert_ok(kvl_model_open(moved, 0, &model));
            assert_int_equal(strcmp(model->digest, first) == 0, turn);
            kvl_model_close(model);
        }
    }
    fclose(f);
    remove_folder(moved);
}

static void chat_templates_are_found(void **state) {
    char dir[] = "/tmp/kvl_model_XXXXXX";
    copy_model(dir);
    const struct {
        const char *name, *text, *want;
    } cases[] = {
        {"tokenizer_config.json", "{}", NULL},
        {"tokenizer_config.json", "{\"chat_template\":null}", NULL},
        {"tokenizer_config.json", "{\"chat_template\":\"plain\"}", "plain"},
        {"tokenizer_config.json",
         "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},"
         "{\"name\":\"default\",\"template\":\"listed\"}]}",
         "listed"},
        {"tokenizer_config.json", "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"no\"}]}",
         NULL},
        {"chat_template.jinja", "from a file\n", "from a file\n"},
    };
    kvl_model *model;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(dir, cases[i].name, cases[i].text);
        assert_ok(kvl_model_open(dir, 0, &model));
        if (cases[i].want)
            assert_string_equal(model->chat_template, cases[i].want);
        else
            assert_null(model->chat_template);
        kvl_model_close(model);
    }
    write_text(dir, "chat_template.jinja", "\xff");
    assert_refused(kvl_model_open(dir, 0, &model), KVL_ERR_INPUT, "chat_template.jinja");
    write_file(dir, "chat_template.jinja", "a\0b", 3);
    assert_refused(kvl_model_open(dir, 0, &model), KVL_ERR_INPUT, "without NUL");
    remove_folder(dir);
}

static void a_refused_tokenizer_does_not_stop_the_model(void **state) {
    char dir[] = "/tmp/kvl_model_XXXXXX", path[64];
    copy_model(dir);
    kvl_model *model;
    write_text(dir, "tokenizer.json", "{\"model\":");
    assert_ok(kvl_model_open(dir, 0, &model));
    assert_null(model->tokenizer);
    assert_non_null(strstr(model->tokenizer_why, "tokenizer.json"));
    kvl_model_close(model);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    assert_ok(kvl_model_open(dir, 0, &model));
    assert_non_null(strstr(model->tokenizer_why, "no tokenizer.json"));
    kvl_model_close(model);
    remove_folder(dir);
}

static void gguf_parts_are_found(void **state) {
    tiny_gguf t = tiny_make();
    tiny_set(&t, "tokenizer.chat_template", T_STRING, 0, "a template");
    for (int round = 0; round < 2; round++) {
        if (round) tiny_set(&t, "tokenizer.ggml.model", T_STRING, 0, "no-such-model");
        kvl_buffer b = {0};
        tiny_write(&t, &b);
        char path[] = "/tmp/kvl_model_XXXXXX";
        write_temporary(path, b.data, b.bytes);
        kvl_model *model;
        assert_ok(kvl_model_open(path, 0, &model));
        assert_string_equal(model->chat_template, "a template");
        assert_null(model->tokenizer);
        assert_non_null(strstr(model->tokenizer_why, round ? "no-such-model" : "no tokenizer"));
        assert_int_equal(model->file_bytes, b.bytes);
        kvl_model_close(model);
        unlink(path);
        kvl_buffer_free(&b);
    }
}

/* Tensors of a folder that do not fit its config.json. */
static void folder_tensors_must_fit(void **state) {
    char dir[] = "/tmp/kvl_model_XXXXXX", path[64];
    copy_model(dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    kvl_safetensors *st;
    assert_ok(kvl_st_open(MODELS "qwen2/model.safetensors", &st));
    size_t n = kvl_st_count(st);
    kvl_st_tensor *all = calloc(n + 1, sizeof *all), *one;
    const struct {
        const char *name, *part;
        kvl_dtype dtype;
        int64_t rows, cols;
        kvl_status code;
    } cases[] = {
        {"model.norm.weight", "tensor 'model.norm.weight' is missing", KVL_BF16, 0, 0,
         KVL_ERR_INPUT},
        {"lm_head.weight", "tensor 'lm_head.weight' has 2 dims [128, 384", KVL_BF16, 128, 384,
         KVL_ERR_INPUT},
        {"model.layers.0.mlp.up_proj.weight", "'model.layers.0.mlp.up_proj.weight' is int8", KVL_I8,
         192, 256, KVL_ERR_UNSUPPORTED},
        {"model.layers.1.self_attn.v_proj.bias",
         "tensor 'model.layers.1.self_attn.v_proj.bias' has", KVL_BF16, 32, 1, KVL_ERR_INPUT},
        {NULL, "tensor 'model.layers.0.self_attn.o_proj.bias' has no place", KVL_BF16, 0, 0,
         KVL_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t count = 0;
        for (size_t k = 0; k < n; k++) {
            all[count++] = *kvl_st_at(st, k);
            one = &all[count - 1];
            if (!cases[i].name || strcmp(one->name, cases[i].name) != 0) continue;
            if (!cases[i].rows) count--;
            one->dtype = cases[i].dtype;
            one->n_dims = 2;
            one->dims[0] = cases[i].rows;
            one->dims[1] = cases[i].cols;
        }
        if (!cases[i].name)
            all[count++] = (kvl_st_tensor){
                "model.layers.0.self_attn.o_proj.bias", KVL_U8, 1, {4}, 4, "abcd", 4};
        assert_ok(kvl_st_write(path, all, count));
        kvl_model *model;
        assert_refused(kvl_model_open(dir, 0, &model), cases[i].code, cases[i].part);
        assert_non_null(strstr(kvl_message(), dir));
    }
    free(all);
    kvl_st_close(st);
    remove_folder(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_folders_open),
        cmocka_unit_test(the_default_model_opens),
        cmocka_unit_test(presets_open_and_unknown_names_are_answered),
        cmocka_unit_test(digests_follow_the_bytes),
        cmocka_unit_test(chat_templates_are_found),
        cmocka_unit_test(a_refused_tokenizer_does_not_stop_the_model),
        cmocka_unit_test(gguf_parts_are_found),
        cmocka_unit_test(folder_tensors_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
