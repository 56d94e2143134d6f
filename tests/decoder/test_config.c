/* Configurations from config.json: what Transformers 4 and 5 write, and what is refused by name. */
#include "tests/test.h"

#include <math.h>

#include "decoder/config.h"
#include "decoder/json.h"
#include "decoder/model.h"
#include "tests/decoder/temporary.h"

#define MODELS KVL_SOURCE_DIR "/tests/golden/models/"

static void golden_configs_read_as_written(void **state) {
    const struct {
        const char *name;
        kvl_family family;
        int32_t n_q_heads, n_kv_heads, head_dim, window;
        bool tied;
        kvl_rope_type rope;
    } want[] = {
        {"llama", KVL_FAMILY_LLAMA, 8, 2, 32, 0, false, KVL_ROPE_DEFAULT},
        {"llama3-rope", KVL_FAMILY_LLAMA, 8, 2, 32, 0, true, KVL_ROPE_LLAMA3},
        {"mistral-window", KVL_FAMILY_MISTRAL, 8, 2, 32, 9, false, KVL_ROPE_DEFAULT},
        {"qwen2", KVL_FAMILY_QWEN2, 4, 1, 32, 0, false, KVL_ROPE_DEFAULT},
        {"qwen3", KVL_FAMILY_QWEN3, 8, 2, 48, 0, false, KVL_ROPE_DEFAULT},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char dir[256];
        snprintf(dir, sizeof dir, MODELS "%s/", want[i].name);
        kvl_config c;
        assert_ok(kvl_config_from_dir(dir, &c));
        assert_string_equal(c.name, want[i].name);
        assert_int_equal(c.family, want[i].family);
        assert_int_equal(c.n_layers, 2);
        assert_int_equal(c.hidden_size, 128);
        assert_int_equal(c.intermediate_size, 192);
        assert_int_equal(c.n_q_heads, want[i].n_q_heads);
        assert_int_equal(c.n_kv_heads, want[i].n_kv_heads);
        assert_int_equal(c.head_dim, want[i].head_dim);
        assert_int_equal(c.vocab_size, 384);
        assert_int_equal(c.max_position, 512);
        assert_true(c.rms_norm_eps == 1e-5f);
        assert_int_equal(c.sliding_window, want[i].window);
        assert_int_equal(c.tie_embeddings, want[i].tied);
        assert_int_equal(c.qkv_bias, want[i].family == KVL_FAMILY_QWEN2);
        assert_int_equal(c.qk_norm, want[i].family == KVL_FAMILY_QWEN3);
        assert_int_equal(c.rope_type, want[i].rope);
        assert_int_equal(c.bos_id, 0);
        assert_int_equal(c.pad_id, -1);
        assert_int_equal(c.n_eos, 1);
        assert_int_equal(c.eos_ids[0], 1);
    }
    kvl_config c;
    assert_ok(kvl_config_from_dir(MODELS "llama3-rope", &c));
    assert_true(c.rope_theta == 500000.0 && c.rope_factor == 8.0);
    assert_true(c.rope_low_freq_factor == 1.0 && c.rope_high_freq_factor == 4.0);
    assert_int_equal(c.rope_original_max_position, 64);
    /* 4-bit folders are read as what they decode to; tests/decoder/test_bnb.c looks inside. */
    kvl_config plain;
    assert_ok(kvl_config_from_dir(MODELS "llama", &plain));
    assert_ok(kvl_config_from_dir(MODELS "llama-nf4", &c));
    assert_int_equal(c.hidden_size, plain.hidden_size);
    assert_int_equal(c.n_layers, plain.n_layers);
}

/* ---- configurations made here: a good one, with members changed ---- */

static const char base_text[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_act\":\"silu\",\"hidden_size\":64,"
    "\"intermediate_size\":96,\"max_position_embeddings\":256,\"num_attention_heads\":4,"
    "\"num_hidden_layers\":3,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-5,\"vocab_size\":100,"
    "\"rope_theta\":20000.0,\"rope_scaling\":null,\"torch_dtype\":\"bfloat16\","
    "\"bos_token_id\":1,\"eos_token_id\":2,\"transformers_version\":\"4.41.0\"}";

/* The base with each "key": value of `changes` set, or removed where the value is "remove". */
static kvl_status config_with(const char *changes, kvl_config *c) {
    char dir[] = "/tmp/kvl_config_XXXXXX";
    make_folder(dir);
    json_t *root = json_loads(base_text, 0, NULL), *patch = json_loads(changes, 0, NULL), *value;
    assert_non_null(root);
    assert_non_null(patch);
    const char *key;
    json_object_foreach(patch, key, value) {
        const char *word = json_string_value(value);
        if (word && strcmp(word, "remove") == 0)
            json_object_del(root, key);
        else
            json_object_set(root, key, value);
    }
    char *text = json_dumps(root, 0);
    write_text(dir, "config.json", text);
    kvl_status status = kvl_config_from_dir(dir, c);
    free(text);
    json_decref(root);
    json_decref(patch);
    remove_folder(dir);
    return status;
}

static void transformers_4_and_5_say_the_same(void **state) {
    const char *const pairs[][2] = {
        {"{}", "{\"rope_theta\":\"remove\",\"rope_scaling\":\"remove\",\"torch_dtype\":\"remove\","
               "\"dtype\":\"bfloat16\",\"rope_parameters\":{\"rope_type\":\"default\","
               "\"rope_theta\":20000.0}}"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}",
         "{\"rope_theta\":\"remove\",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4.0,"
         "\"rope_theta\":20000.0}}"},
        {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"type\":\"llama3\",\"factor\":8,"
         "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
         "{\"rope_theta\":\"remove\",\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
         "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
         "\"original_max_position_embeddings\":64,\"rope_theta\":20000.0}}"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        kvl_config four, five;
        assert_ok(config_with(pairs[i][0], &four));
        assert_ok(config_with(pairs[i][1], &five));
        memcpy(five.name, four.name, sizeof four.name);
        assert_memory_equal(&four, &five, sizeof four);
        assert_int_equal(four.rope_type, i);
        assert_true(four.rope_theta == 20000.0);
    }
}

static void defaults_are_those_of_transformers(void **state) {
    kvl_config c;
    assert_ok(config_with("{}", &c));
    assert_int_equal(c.head_dim, 16);
    assert_false(c.tie_embeddings);
    assert_ok(config_with("{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":"
                          "\"linear\",\"factor\":4,\"rope_theta\":20000},\"rope_scaling\":{"
                          "\"type\":\"linear\",\"factor\":4.0}}",
                          &c));
    assert_int_equal(c.rope_type, KVL_ROPE_LINEAR);
    assert_ok(config_with("{\"num_key_value_heads\":\"remove\",\"rope_theta\":\"remove\","
                          "\"rms_norm_eps\":\"remove\",\"bos_token_id\":null,\"pad_token_id\":-1,"
                          "\"eos_token_id\":[2,7,2]}",
                          &c));
    assert_int_equal(c.n_kv_heads, 4);
    assert_true(c.rope_theta == 10000.0);
    assert_true(c.rms_norm_eps == 1e-6f);
    assert_int_equal(c.bos_id, -1);
    assert_int_equal(c.pad_id, -1);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[1], 7);
    assert_ok(
        config_with("{\"head_dim\":null,\"tie_word_embeddings\":true,\"pad_token_id\":100}", &c));
    assert_int_equal(c.head_dim, 16);
    assert_true(c.tie_embeddings);
    assert_int_equal(c.pad_id, -1);
}

#define QWEN2 "\"architectures\":[\"Qwen2ForCausalLM\"]"
#define MISTRAL "\"architectures\":[\"MistralForCausalLM\"]"

static void windows_follow_each_family(void **state) {
    const struct {
        const char *changes;
        int32_t window;
    } cases[] = {
        {"{\"sliding_window\":50}", 0}, /* llama has none */
        {"{" MISTRAL ",\"sliding_window\":50}", 50},
        {"{" MISTRAL ",\"sliding_window\":null}", 0},
        {"{" MISTRAL "}", 4096},
        {"{" QWEN2 ",\"sliding_window\":50,\"use_sliding_window\":false}", 0},
        {"{" QWEN2 ",\"sliding_window\":50,\"use_sliding_window\":true,\"max_window_layers\":0}",
         50},
        {"{" QWEN2 ",\"sliding_window\":50,\"use_sliding_window\":true,\"max_window_layers\":3}",
         0},
        {"{" QWEN2 ",\"sliding_window\":null,\"use_sliding_window\":true,\"max_window_layers\":1}",
         0},
        {"{" QWEN2 ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"]}",
         0},
        {"{" QWEN2 ",\"sliding_window\":50,\"use_sliding_window\":true,\"layer_types\":"
         "[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\"]}",
         50},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvl_config c;
        assert_ok(config_with(cases[i].changes, &c));
        assert_int_equal(c.sliding_window, cases[i].window);
    }
}

static void what_is_not_implemented_is_named(void **state) {
    const char *const cases[][2] = {
        {"{\"architectures\":[\"MixtralForCausalLM\"]}", "MixtralForCausalLM"},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", "rope_type yarn"},
        {"{\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":4}}", "rope_type dynamic"},
        {"{\"rope_parameters\":{\"rope_type\":\"longrope\",\"rope_theta\":1e4}}", "longrope"},
        {"{\"rope_parameters\":{\"rope_theta\":2e4},\"rope_scaling\":{\"type\":\"yarn\"}}",
         "rope_type yarn"},
        {"{\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[1,2]}}", "mrope"},
        {"{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", "layer type"},
        {"{\"partial_rotary_factor\":0.5}", "partial_rotary_factor 0.5"},
        {"{\"rope_parameters\":{\"rope_theta\":1e4,\"partial_rotary_factor\":0.25}}",
         "partial_rotary_factor 0.25"},
        {"{" QWEN2 ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"],"
         "\"sliding_window\":8,\"use_sliding_window\":true}",
         "mixed layer_types"},
        {"{" QWEN2 ",\"layer_types\":[\"linear_attention\",\"full_attention\",\"full_attention\"]}",
         "layer_types[0] linear_attention"},
        {"{" QWEN2 ",\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":1}",
         "max_window_layers"},
        {"{\"attention_bias\":true}", "attention_bias"},
        {"{\"mlp_bias\":true}", "mlp_bias"},
        {"{\"hidden_act\":\"gelu\"}", "hidden_act gelu"},
        {"{\"num_local_experts\":8}", "num_local_experts"},
        {"{\"final_logit_softcapping\":30.0}", "final_logit_softcapping"},
        {"{\"quantization_config\":{\"quant_method\":\"gptq\"}}", "quant_method gptq"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvl_config c;
        assert_refused(config_with(cases[i][0], &c), KVL_ERR_UNSUPPORTED, cases[i][1]);
        assert_non_null(strstr(kvl_message(), "config.json"));
    }
}

static void bad_values_are_named(void **state) {
    const char *const cases[][2] = {
        {"{\"architectures\":\"remove\"}", "architectures"},
        {"{\"architectures\":[\"LlamaForCausalLM\",\"x\"]}", "architectures"},
        {"{\"architectures\":[7]}", "architectures"},
        {"{\"num_hidden_layers\":0}", "num_hidden_layers 0"},
        {"{\"num_hidden_layers\":-1}", "num_hidden_layers -1"},
        {"{\"num_hidden_layers\":2147483647}", "num_hidden_layers 2147483647"},
        {"{\"num_hidden_layers\":\"3\"}", "num_hidden_layers \"3\""},
        {"{\"num_hidden_layers\":3.0}", "num_hidden_layers 3.0"},
        {"{\"num_hidden_layers\":true}", "num_hidden_layers true"},
        {"{\"num_hidden_layers\":\"remove\"}", "num_hidden_layers is missing"},
        {"{\"num_hidden_layers\":null}", "num_hidden_layers is null"},
        {"{\"hidden_size\":9007199254740993}", "hidden_size 9007199254740993"},
        {"{\"hidden_size\":62}", "hidden_size 62: no multiple of num_attention_heads 4"},
        {"{\"intermediate_size\":0}", "intermediate_size 0"},
        {"{\"num_attention_heads\":0}", "num_attention_heads 0"},
        {"{\"num_key_value_heads\":0}", "num_key_value_heads 0"},
        {"{\"num_key_value_heads\":3}", "num_key_value_heads 3 with 4"},
        {"{" QWEN2 ",\"num_key_value_heads\":\"remove\"}", "num_key_value_heads is missing"},
        {"{\"head_dim\":0}", "head_dim 0"},
        {"{\"head_dim\":33}", "head_dim 33"},
        {"{\"head_dim\":258}", "head_dim 258"},
        {"{\"vocab_size\":0}", "vocab_size 0"},
        {"{\"vocab_size\":1000000000}", "vocab_size 1000000000"},
        {"{\"max_position_embeddings\":0}", "max_position_embeddings 0"},
        {"{\"rms_norm_eps\":0}", "rms_norm_eps 0"},
        {"{\"rms_norm_eps\":2}", "rms_norm_eps 2"},
        {"{\"rms_norm_eps\":-1e-5}", "rms_norm_eps -1e-05"},
        {"{\"rope_theta\":0}", "rope_theta 0"},
        {"{\"rope_theta\":\"1e4\"}", "rope_theta \"1e4\""},
        {"{\"rope_scaling\":7}", "rope_scaling"},
        {"{\"rope_parameters\":{},\"rope_scaling\":7}", "rope_scaling is not an object"},
        {"{\"rope_parameters\":[]}", "rope_parameters is not an object"},
        {"{\"rope_parameters\":{\"rope_theta\":1e4}}", "rope_parameters.rope_theta 10000"},
        {"{\"rope_parameters\":{\"rope_type\":\"default\"},\"rope_scaling\":{\"type\":"
         "\"linear\",\"factor\":2}}",
         "rope_parameters of type default contradict rope_scaling of type linear"},
        {"{\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4},\"rope_scaling\":{"
         "\"type\":\"linear\",\"factor\":2}}",
         "rope_parameters.factor 4 contradicts rope_scaling.factor 2"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"default\",\"factor\":2}}",
         "type linear contradicts rope_type default"},
        {"{\"model_type\":\"qwen2\"}", "model_type qwen2"},
        {"{\"model_type\":7}", "model_type 7"},
        {"{\"rope_scaling\":{\"type\":\"linear\"}}", "factor is missing"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", "factor 0"},
        {"{\"rope_scaling\":{\"type\":7}}", "type 7"},
        {"{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
         "high_freq_factor 4"},
        {"{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":0}}",
         "original_max_position_embeddings 0"},
        {"{" QWEN2 ",\"layer_types\":[\"full_attention\"]}", "layer_types"},
        {"{" QWEN2 ",\"layer_types\":[1,2,3]}", "layer_types[0]"},
        {"{" QWEN2 ",\"layer_types\":[\"sliding_attention\",\"sliding_attention\","
         "\"sliding_attention\"]}",
         "layer_types sliding_attention without"},
        {"{" MISTRAL ",\"sliding_window\":-1}", "sliding_window -1"},
        {"{\"tie_word_embeddings\":1}", "tie_word_embeddings 1"},
        {"{\"bos_token_id\":100}", "bos_token_id 100"},
        {"{\"bos_token_id\":-2}", "bos_token_id -2"},
        {"{\"eos_token_id\":100}", "eos_token_id[0] 100"},
        {"{\"eos_token_id\":[2,-1]}", "eos_token_id[1] -1"},
        {"{\"eos_token_id\":\"2\"}", "eos_token_id[0]"},
        {"{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", "more than 16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvl_config c;
        assert_refused(config_with(cases[i][0], &c), KVL_ERR_INPUT, cases[i][1]);
        assert_non_null(strstr(kvl_message(), "config.json"));
    }
}

static void generation_config_adds_end_tokens(void **state) {
    char dir[] = "/tmp/kvl_config_XXXXXX";
    make_folder(dir);
    kvl_config c;
    assert_refused(kvl_config_from_dir(dir, &c), KVL_ERR_IO, "config.json");
    write_text(dir, "config.json", base_text);
    write_text(dir, "generation_config.json", "{\"eos_token_id\":[2,5,9]}");
    assert_ok(kvl_config_from_dir(dir, &c));
    assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.eos_ids[0], 2);
    assert_int_equal(c.eos_ids[2], 9);
    write_text(dir, "generation_config.json", "{\"eos_token_id\":[2,500]}");
    assert_refused(kvl_config_from_dir(dir, &c), KVL_ERR_INPUT, "generation_config.json: eos");
    write_text(dir, "generation_config.json", "[]");
    assert_refused(kvl_config_from_dir(dir, &c), KVL_ERR_INPUT, "no JSON object");
    remove_folder(dir);
}

/* Every prefix of a good config.json is refused. */
static void every_prefix_is_refused(void **state) {
    char dir[] = "/tmp/kvl_config_XXXXXX";
    make_folder(dir);
    for (size_t n = 0; n < strlen(base_text); n++) {
        write_file(dir, "config.json", base_text, n);
        kvl_config c;
        assert_refused(kvl_config_from_dir(dir, &c), KVL_ERR_INPUT, "config.json:1:");
    }
    remove_folder(dir);
}

/* Bits as Transformers 5.24 computes them (LlamaRotaryEmbedding and ROPE_INIT_FUNCTIONS). */
static void inverse_frequencies_have_the_reference_bits(void **state) {
    static const uint32_t smollm2[32] = {
        0x3f800000, 0x3f32a506, 0x3ef953cf, 0x3eadfcff, 0x3e72d423, 0x3e297409, 0x3dec7fd6,
        0x3da50956, 0x3d6655c2, 0x3d20bc1d, 0x3ce054d2, 0x3c9c8b97, 0x3c5a7bf2, 0x3c187705,
        0x3bd4ca15, 0x3b947dae, 0x3b4f3e38, 0x3b109edb, 0x3ac9d75c, 0x3a8cd9db, 0x3a44948c,
        0x3a092e02, 0x39bf74d7, 0x39859aa9, 0x393a7753, 0x39021f2b, 0x38b59b1b, 0x387d75d4,
        0x3830df52, 0x37f6da96, 0x37ac431d, 0x37706b6d};
    static const uint32_t llama32[32] = {
        0x3f800000, 0x3f29e1c6, 0x3ee177bc, 0x3e959ee3, 0x3e4693b0, 0x3e03c6a0, 0x3daee4ad,
        0x3d681e67, 0x3d1a08c8, 0x3ccc6f49, 0x3c87a9c3, 0x3c340d6d, 0x3beef74f, 0x3b9e9402,
        0x3b527720, 0x3aa9279b, 0x39e13620, 0x38cb98f7, 0x37a3418d, 0x3758ac81, 0x370fc8f8,
        0x36bed4f4, 0x367d45c3, 0x3628126b, 0x35df10c4, 0x359406cb, 0x35447610, 0x35025f34,
        0x34ad07a7, 0x3465a54d, 0x341864a7, 0x33ca41b0};
    static const uint32_t linear[32] = {
        0x3e800000, 0x3e3ff911, 0x3e0ff59a, 0x3dd7e89b, 0x3da1e89b, 0x3d72d423, 0x3d361887,
        0x3d088d77, 0x3ccccccd, 0x3c99940d, 0x3c6655c2, 0x3c2cba15, 0x3c0186e3, 0x3bc2434f,
        0x3b91ad39, 0x3b5a7bf2, 0x3b23d70a, 0x3af5b9b0, 0x3ab8449c, 0x3a8a2e77, 0x3a4f3e38,
        0x3a1b690d, 0x39e91528, 0x39aec98e, 0x3983126f, 0x3944948c, 0x39136a16, 0x38dd1725,
        0x38a5cb60, 0x3878a815, 0x383a7753, 0x380bd472};
    kvl_config c;
    float got[KVL_MAX_HEAD_DIM / 2];
    assert_ok(kvl_synthetic_config("SmolLM2-135M", &c));
    kvl_config_inv_freq(&c, got);
    assert_memory_equal(got, smollm2, sizeof smollm2);
    assert_ok(kvl_synthetic_config("Llama-3.2-1B", &c));
    kvl_config_inv_freq(&c, got);
    assert_memory_equal(got, llama32, sizeof llama32);
    c.rope_type = KVL_ROPE_LINEAR;
    c.rope_theta = 10000.0;
    c.rope_factor = 4.0;
    kvl_config_inv_freq(&c, got);
    assert_memory_equal(got, linear, sizeof linear);
    /* Divisors, as Llama 3.1 GGUF files hold them, act beside any type. */
    c.rope_type = KVL_ROPE_DEFAULT;
    c.has_rope_divisors = true;
    for (int i = 0; i < 32; i++) c.rope_divisors[i] = 4.0f;
    kvl_config_inv_freq(&c, got);
    assert_memory_equal(got, linear, sizeof linear);
}

static void presets_have_their_published_sizes(void **state) {
    const struct {
        const char *name;
        uint64_t parameters, kv_bytes; /* of one token in 16 bits */
    } want[] = {{"SmolLM2-135M", 134515008, 23040},
                {"Llama-3.2-1B", 1235814400, 32768},
                {"Llama-3.1-8B", 8030261248, 131072},
                {"Qwen2.5-7B", 7615616512, 57344},
                {"Mistral-7B", 7241732096, 131072}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        kvl_config c;
        assert_ok(kvl_synthetic_config(want[i].name, &c));
        assert_int_equal(kvl_config_parameters(&c), want[i].parameters);
        assert_int_equal(kvl_config_kv_bytes_per_token(&c, 2), want[i].kv_bytes);
    }
    kvl_config c;
    for (size_t i = 0; i < kvl_synthetic_count(); i++)
        assert_ok(kvl_synthetic_config(kvl_synthetic_at(i), &c));
    assert_refused(kvl_synthetic_config("Qwen2-7B", &c), KVL_ERR_INPUT,
                   "did you mean 'Qwen2.5-7B'");
}

static void names_are_made_printable(void **state) {
    kvl_config c = {0};
    kvl_config_set_name(&c, "a\nb\xff", 4);
    assert_string_equal(c.name, "a?b?");
    char text[200];
    for (int i = 0; i < 200; i += 2) memcpy(text + i, "\xc3\xa9", 2);
    kvl_config_set_name(&c, text + 1, 199); /* cut inside a character, and begun inside one */
    assert_true(strlen(c.name) <= 127);
    kvl_config_set_name(&c, text, 200);
    assert_int_equal(strlen(c.name), 126);
    assert_memory_equal(c.name, text, 126);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_configs_read_as_written),
        cmocka_unit_test(transformers_4_and_5_say_the_same),
        cmocka_unit_test(defaults_are_those_of_transformers),
        cmocka_unit_test(windows_follow_each_family),
        cmocka_unit_test(what_is_not_implemented_is_named),
        cmocka_unit_test(bad_values_are_named),
        cmocka_unit_test(generation_config_adds_end_tokens),
        cmocka_unit_test(every_prefix_is_refused),
        cmocka_unit_test(inverse_frequencies_have_the_reference_bits),
        cmocka_unit_test(presets_have_their_published_sizes),
        cmocka_unit_test(names_are_made_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
