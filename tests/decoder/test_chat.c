/* Chat prompts against what Jinja prints for the same templates, and what is refused. */
#include "decoder/chat.h"

#include "decoder/chat_canon.h"
#include "decoder/gguf.h"
#include "decoder/json.h"
#include "decoder/safetensors.h"
#include "decoder/tokenizer.h"
#include "tests/decoder/chat_templates.h"
#include "tests/test.h"

#define GOLDEN KVL_SOURCE_DIR "/tests/golden/smollm2"
#define MODEL KVL_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"

static void assert_render(const char *text, const char *system, const char *user, const char *bos,
                          const char *want) {
    kvl_buffer out = {0};
    assert_ok(kvl_chat_render(text, system, user, bos, &out));
    assert_string_equal(out.data, want);
    kvl_buffer_free(&out);
}

static void test_kinds(void **state) {
    static const struct {
        const char *text;
        kvl_chat_kind kind;
    } cases[] = {
        {template_chatml, KVL_CHAT_CHATML},       {template_smollm2, KVL_CHAT_CHATML},
        {template_qwen2, KVL_CHAT_CHATML},        {template_qwen25, KVL_CHAT_CHATML},
        {template_qwen3, KVL_CHAT_CHATML},        {template_qwen3_thinking, KVL_CHAT_CHATML},
        {template_llama3, KVL_CHAT_LLAMA3},       {template_llama31, KVL_CHAT_LLAMA3},
        {template_mistral_v02, KVL_CHAT_MISTRAL}, {template_mistral_v3, KVL_CHAT_MISTRAL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvl_chat_kind kind = (kvl_chat_kind)-1;
        assert_ok(kvl_chat_recognise(cases[i].text, &kind));
        assert_int_equal(kind, cases[i].kind);
    }
}

#define USER "<|im_start|>user\n Hi 'x' \\n <|im_end|>\n<|im_start|>assistant\n"

static void test_chatml(void **state) {
    const char *user = " Hi 'x' \\n "; /* not trimmed, not unescaped */
    assert_render(template_chatml, NULL, user, "<s>", USER);
    assert_render(template_chatml, "Be brief.", user, "",
                  "<|im_start|>system\nBe brief.<|im_end|>\n" USER);
    assert_render(template_smollm2, NULL, user, "",
                  "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
                  "Hugging Face<|im_end|>\n" USER);
    assert_render(template_smollm2, "", user, "", "<|im_start|>system\n<|im_end|>\n" USER);
    assert_render(template_qwen2, NULL, user, "",
                  "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" USER);
    assert_render(template_qwen25, NULL, user, "",
                  "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
                  "assistant.<|im_end|>\n" USER);
    assert_render(template_qwen25, "S", user, "", "<|im_start|>system\nS<|im_end|>\n" USER);
    assert_render(template_qwen3, NULL, user, "", USER);
    assert_render(template_qwen3, "S", user, "", "<|im_start|>system\nS<|im_end|>\n" USER);
    assert_render(template_qwen3_thinking, NULL, user, "", USER "<think>\n");
}

#define HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"

static void test_llama3(void **state) {
    const char *rest = HEADER("user") "Hi<|eot_id|>" HEADER("assistant");
    char want[512];
    snprintf(want, sizeof want, "<|begin_of_text|>%s", rest);
    assert_render(template_llama3, NULL, " \n\xc2\xa0Hi\xe3\x80\x80\t\n", "<|begin_of_text|>",
                  want);
    assert_render(template_llama3, NULL, "Hi", "", rest);
    snprintf(want, sizeof want, "<b>" HEADER("system") "S<|eot_id|>%s", rest);
    assert_render(template_llama3, " S ", "Hi", "<b>", want);
    snprintf(want, sizeof want,
             "<b>" HEADER("system") "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul "
                                    "2024\n\n%s<|eot_id|>%s",
             "", rest);
    assert_render(template_llama31, NULL, "Hi", "<b>", want);
    snprintf(want, sizeof want,
             "<b>" HEADER("system") "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul "
                                    "2024\n\n%s<|eot_id|>%s",
             "S", rest);
    assert_render(template_llama31, "S\n", "Hi", "<b>", want);
}

static void test_mistral(void **state) {
    assert_render(template_mistral_v02, NULL, "Hi ", "<s>", "<s>[INST] Hi  [/INST]");
    assert_render(template_mistral_v3, NULL, "Hi", "<s>", "<s>[INST] Hi[/INST]");
    assert_render(template_mistral_v3, "S", "Hi", "<s>", "<s>[INST] S\n\nHi[/INST]");
    kvl_buffer out = {0};
    assert_refused(kvl_chat_render(template_mistral_v02, "S", "Hi", "<s>", &out),
                   KVL_ERR_UNSUPPORTED, "no place for a system message");
    assert_int_equal(out.bytes, 0);
    kvl_buffer_free(&out);
}

static void test_refused(void **state) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "empty"},
        {"{{ bos_token }}<start_of_turn>user\n{{ message }}", "<start_of_turn>"},
        {"{% for m in messages %}<|user|>{{ m }}<|end|>{% endfor %}", "<|user|>"},
        {"{{ '<|im_start|>' + role }}", "form that is not known"},
        {"{% for message in messages %}{{'<|im_start|>' + message.role + '\\n' + message.content "
         "+ '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
         "'<|im_start|>assistant\\nSure! ' }}{% endif %}",
         "generation prompt"},
        {"[INST] <<SYS>> {{ x }} [/INST]", "<<SYS>>"},
        {"{{ '[INST] ' }}[SYSTEM_PROMPT]", "[SYSTEM_PROMPT]"},
        {"{{ '<|im_start|>' ", "does not end"},
        {"{{ '<|start_header_id|>' }}", "llama-3"},
    };
    kvl_chat_kind kind;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvl_status status = kvl_chat_recognise(cases[i].text, &kind);
        assert_true(status == KVL_ERR_UNSUPPORTED || status == KVL_ERR_INPUT);
        if (!strstr(kvl_message(), cases[i].part))
            fail_msg("'%s' is not in: %s", cases[i].part, kvl_message());
    }
    assert_refused(kvl_chat_recognise(template_llama32, &kind), KVL_ERR_UNSUPPORTED,
                   "strftime_now");
}

/* No prefix and no changed byte of a template may crash or hang; most are refused. */
static void test_hostile(void **state) {
    char text[sizeof template_llama31];
    kvl_chat_kind kind;
    for (size_t n = 0; n < sizeof text; n++) {
        memcpy(text, template_llama31, n);
        text[n] = 0;
        kvl_chat_recognise(text, &kind);
        memcpy(text, template_llama31, sizeof text);
        if (n + 1 < sizeof text) text[n] = "{}'\"%-\\#\n"[n % 9];
        kvl_chat_recognise(text, &kind);
    }
}

static void test_canon(void **state) {
    static const char *const cases[][2] = {
        {"a {{ x }} b\n", "a {{x}} b"},
        {"a {{- x -}} b", "a{{x}}b"},
        {"{% if x %}\n  {% endif %}\nz", "{%ifx%}{%endif%}z"},
        {"{{ x }}\n{% y %}", "{{x}}\\n{%y%}"},
        {"{{ x }}  {% y %}", "{{x}}  {%y%}"},
        {"{# c '{{ #}{{ m[\"role\"] + \"it's \\\"q\\\"\" }}", "{{m.role+'it\\'s \"q\"'}}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvl_buffer out = {0};
        assert_ok(kvl_chat_canon(cases[i][0], &out));
        assert_string_equal(out.data, cases[i][1]);
        kvl_buffer_free(&out);
    }
}

/* The default model's own template, against prompts that Transformers made. */
static void test_golden(void **state) {
    kvl_gguf *gguf;
    if (kvl_gguf_open(MODEL, &gguf) != KVL_OK) {
        print_message("skipped: the default model is not there: %s\n", kvl_message());
        skip();
    }
    kvl_tokenizer *tok;
    kvl_safetensors *st;
    kvl_gguf_string found;
    json_t *cases, *item;
    size_t i, n_checked = 0;
    assert_ok(kvl_tokenizer_from_gguf(gguf, &tok));
    assert_ok(kvl_gguf_str(gguf, "tokenizer.chat_template", true, &found));
    char *text = strndup(found.data, found.bytes);
    assert_ok(kvl_st_open(GOLDEN "/golden.safetensors", &st));
    assert_ok(kvl_json_load(GOLDEN "/golden.json", &cases));
    json_array_foreach(cases, i, item) {
        if (!json_is_true(json_object_get(item, "chat"))) continue;
        kvl_buffer out = {0};
        assert_ok(kvl_chat_render(text, NULL, json_string_value(json_object_get(item, "text")), "",
                                  &out));
        assert_string_equal(out.data, json_string_value(json_object_get(item, "templated")));
        char name[32];
        snprintf(name, sizeof name, "%.16s.ids", json_string_value(json_object_get(item, "id")));
        const kvl_st_tensor *want = kvl_st_find(st, name);
        assert_non_null(want);
        int32_t *ids;
        int64_t n;
        assert_ok(kvl_tokenizer_encode_alloc(tok, out.data, out.bytes, false, &ids, &n));
        assert_int_equal(n, want->n_elems);
        assert_memory_equal(ids, want->data, (size_t)n * sizeof *ids);
        free(ids);
        kvl_buffer_free(&out);
        n_checked++;
    }
    assert_int_equal(n_checked, 3);
    json_decref(cases);
    kvl_st_close(st);
    free(text);
    kvl_tokenizer_free(tok);
    kvl_gguf_close(gguf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),   cmocka_unit_test(test_chatml),
        cmocka_unit_test(test_llama3),  cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_canon),   cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
