/* Tensor sources: GGUF, safetensors folders and presets, and GGUF configurations. */
#include "tests/test.h"

#include <math.h>

#include "core/clock.h"
#include "decoder/config.h"
#include "decoder/gguf.h"
#include "decoder/model.h"
#include "decoder/shards.h"
#include "tests/decoder/temporary.h"
#include "tests/decoder/tiny_gguf.h"

#define MODELS KVL_SOURCE_DIR "/tests/golden/models/"
#define SMOLLM2 KVL_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"

/* Writes, opens, configures; on success the source is open. */
static kvl_status open_tiny(const tiny_gguf *t, kvl_config *config, kvl_source *source) {
    kvl_buffer b = {0};
    tiny_write(t, &b);
    char path[] = "/tmp/kvl_tiny_XXXXXX";
    write_temporary(path, b.data, b.bytes);
    kvl_buffer_free(&b);
    kvl_gguf *gguf;
    kvl_status status = kvl_gguf_open(path, &gguf);
    unlink(path);
    if (status != KVL_OK) return status;
    status = kvl_config_from_gguf(gguf, config);
    if (status == KVL_OK) status = kvl_source_from_gguf(gguf, config, source);
    if (status != KVL_OK) kvl_gguf_close(gguf);
    return status;
}

static void gguf_configuration_is_read(void **state) {
    tiny_gguf t = tiny_make();
    kvl_config c;
    kvl_source source;
    assert_ok(open_tiny(&t, &c, &source));
    assert_int_equal(c.family, KVL_FAMILY_LLAMA);
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.hidden_size, 16);
    assert_int_equal(c.intermediate_size, 24);
    assert_int_equal(c.n_q_heads, 2);
    assert_int_equal(c.n_kv_heads, 1);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.vocab_size, 12);
    assert_int_equal(c.max_position, 64);
    assert_true(c.rope_theta == 1000.0);
    assert_true(c.rms_norm_eps == 1e-5f);
    assert_true(c.tie_embeddings);
    assert_int_equal(c.bos_id, 1);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_ids[0], 2);
    assert_string_equal(c.source_weights, "f32");
    source.close(&source);

    tiny_set(&t, "llama.attention.sliding_window", T_U32, 20, NULL);
    tiny_set(&t, "llama.rope.scaling.type", T_STRING, 0, "linear");
    tiny_set(&t, "llama.rope.scaling.factor", T_F32, f32_bits(2.0f), NULL);
    tiny_set(&t, "tokenizer.ggml.eot_token_id", T_U32, 5, NULL);
    tiny_set(&t, "general.name", T_STRING, 0, "A tiny one");
    tiny_add(&t, "rope_freqs.weight", TINY_HEAD / 2, 0);
    tiny_add(&t, "output.weight", TINY_HIDDEN, TINY_VOCAB);
    assert_ok(open_tiny(&t, &c, &source));
    assert_int_equal(c.family, KVL_FAMILY_MISTRAL);
    assert_int_equal(c.sliding_window, 20);
    assert_int_equal(c.rope_type, KVL_ROPE_LINEAR);
    assert_true(c.rope_factor == 2.0);
    assert_int_equal(c.eos_ids[1], 5);
    assert_string_equal(c.name, "A tiny one");
    assert_true(c.has_rope_divisors);
    assert_true(c.rope_divisors[3] == tiny_value(t.n_tensors - 2, 3));
    assert_false(c.tie_embeddings);
    int64_t rows, cols;
    assert_true(source.shape(&source, "lm_head.weight", &rows, &cols));
    assert_int_equal(rows, 12);
    source.close(&source);
}

/* Qwen files have other rows (biases, head norms) and no interleaving. */
static void qwen_gguf_is_read(void **state) {
    static const char *const archs[] = {"qwen2", "qwen3"};
    for (int a = 0; a < 2; a++) {
        tiny_gguf t = tiny_make();
        static char keys[32][64];
        for (size_t i = 0; i < t.n_keys; i++) {
            if (strncmp(t.keys[i].key, "llama.", 6) != 0) continue;
            snprintf(keys[i], sizeof keys[i], "%s.%s", archs[a], t.keys[i].key + 6);
            t.keys[i].key = keys[i];
        }
        tiny_set(&t, "general.architecture", T_STRING, 0, archs[a]);
        for (int layer = 0; layer < 2; layer++) {
            static const char *const names[2][3] = {{"attn_q.bias", "attn_k.bias", "attn_v.bias"},
                                                    {"attn_q_norm.weight", "attn_k_norm.weight"}};
            const uint64_t sizes[2][3] = {{16, 8, 8}, {8, 8}};
            for (int i = 0; i < 3 - a; i++) {
                char name[64];
                snprintf(name, sizeof name, "blk.%d.%s", layer, names[a][i]);
                tiny_add(&t, name, sizes[a][i], 0);
            }
        }
        kvl_config c;
        kvl_source source;
        assert_ok(open_tiny(&t, &c, &source));
        assert_int_equal(c.qkv_bias, a == 0);
        assert_int_equal(c.qk_norm, a == 1);
        float row[16], want = tiny_value(2, 5 * 16);
        assert_ok(source.read_rows(&source, "model.layers.0.self_attn.q_proj.weight", 5, 1, row));
        assert_true(row[0] == want);
        const char *last =
            a ? "model.layers.1.self_attn.k_norm.weight" : "model.layers.1.self_attn.v_proj.bias";
        assert_ok(source.read_rows(&source, last, 3, 5, row));
        assert_true(row[4] == tiny_value(t.n_tensors - 1, 7));
        source.close(&source);
    }
}

/* Row (half, j) of a head of 8 stands at row 2 j + half of that head in the file. */
static void llama_rows_are_put_back(void **state) {
    tiny_gguf t = tiny_make();
    kvl_config c;
    kvl_source source;
    assert_ok(open_tiny(&t, &c, &source));
    static const int stored[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    float all[16 * 16], row[16];
    assert_ok(source.read_rows(&source, "model.layers.0.self_attn.q_proj.weight", 0, 16, all));
    for (int r = 0; r < 16; r++) {
        int from = r / 8 * 8 + stored[r % 8];
        for (int k = 0; k < 16; k++)
            assert_true(all[r * 16 + k] == tiny_value(2, (uint64_t)(from * 16 + k)));
        assert_ok(source.read_rows(&source, "model.layers.0.self_attn.q_proj.weight", r, 1, row));
        assert_memory_equal(row, all + r * 16, sizeof row);
    }
    assert_ok(source.read_rows(&source, "model.layers.1.self_attn.k_proj.weight", 6, 1, row));
    assert_true(row[3] == tiny_value(12, 5 * 16 + 3));
    assert_ok(source.read_rows(&source, "model.layers.1.self_attn.v_proj.weight", 6, 1, row));
    assert_true(row[3] == tiny_value(13, 6 * 16 + 3));
    float norm[4];
    assert_ok(source.read_rows(&source, "model.norm.weight", 12, 4, norm));
    assert_true(norm[3] == tiny_value(t.n_tensors - 1, 15));
    assert_refused(source.read_rows(&source, "model.norm.weight", 13, 4, norm), KVL_ERR_INPUT,
                   "16");
    assert_refused(source.read_rows(&source, "lm_head.weight", 0, 1, norm), KVL_ERR_INPUT,
                   "lm_head.weight");
    int64_t rows, cols;
    assert_false(source.shape(&source, "lm_head.weight", &rows, &cols));
    assert_true(source.shape(&source, "model.layers.1.mlp.down_proj.weight", &rows, &cols));
    assert_int_equal(rows, 16);
    assert_int_equal(cols, 24);
    source.close(&source);
}

/* Values by the gguf Python package, Q and K rows put back as Transformers does when it loads it.
 */
static void the_default_model_has_the_reference_rows(void **state) {
    if (access(SMOLLM2, R_OK) != 0) skip();
    kvl_gguf *gguf;
    kvl_config c;
    kvl_source source;
    uint64_t start = kvl_now_ns();
    assert_ok(kvl_gguf_open(SMOLLM2, &gguf));
    assert_ok(kvl_config_from_gguf(gguf, &c));
    assert_ok(kvl_source_from_gguf(gguf, &c, &source));
    assert_true(kvl_now_ns() - start < 500000000);
    assert_int_equal(c.n_layers, 30);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.vocab_size, 49152);
    assert_true(c.rope_theta == 100000.0);
    assert_true(c.tie_embeddings);
    assert_string_equal(c.source_weights, "q4_1");
    assert_int_equal(kvl_config_parameters(&c), 134515008);
    const struct {
        const char *name;
        int64_t row, n;
        float first[3];
        double sum;
    } want[] = {
        {"model.layers.3.self_attn.q_proj.weight",
         70,
         576,
         {-0x1.0c08p-2f, -0x1.48bp-2f, -0x1.48bp-2f},
         1.44415283203125},
        {"model.layers.3.self_attn.q_proj.weight",
         101,
         576,
         {-0x1.40dp-2f, 0x1.fbfp-2f, -0x1.6d6p-3f},
         -8.08258056640625},
        {"model.layers.3.self_attn.k_proj.weight",
         33,
         576,
         {0x1.168p-5f, -0x1.862p-3f, -0x1.408p-4f},
         1.5782470703125},
        {"model.embed_tokens.weight",
         12345,
         576,
         {0x1.018ep-4f, -0x1.cb6cp-5f, 0x1.20e1p-3f},
         0.11264610290527344},
        {"model.layers.29.mlp.down_proj.weight",
         575,
         1536,
         {-0x1.d56p-3f, -0x1.408p-5f, -0x1.1b58p-2f},
         -5.229949951171875},
        {"model.layers.7.post_attention_layernorm.weight", 575, 1, {0x1.02p-2f}, 0.251953125},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        float row[1536];
        assert_ok(source.read_rows(&source, want[i].name, want[i].row, 1, row));
        double sum = 0;
        for (int64_t k = 0; k < want[i].n; k++) sum += (double)row[k];
        assert_true(fabs(sum - want[i].sum) < 1e-6);
        assert_memory_equal(row, want[i].first, (want[i].n < 3 ? 1u : 3u) * sizeof(float));
    }
    source.close(&source);
}

/* ---- metadata that is refused, in the layer that knows the model ---- */

typedef struct refusal {
    const char *key;
    uint32_t type;
    uint64_t bits;
    const char *text; /* of strings */
    kvl_status code;
    const char *part;
} refusal;

/* Takes the key out. */
#define REMOVE T_ARRAY, 0, NULL

static void gguf_metadata_are_held_to_limits(void **state) {
    const refusal cases[] = {
        {"general.architecture", T_STRING, 0, "mamba", KVL_ERR_UNSUPPORTED, "'mamba'"},
        {"general.architecture", T_STRING, 0, "", KVL_ERR_UNSUPPORTED, "general.architecture"},
        {"general.architecture", T_U32, 1, NULL, KVL_ERR_INPUT, "general.architecture (byte "},
        {"general.architecture", REMOVE, KVL_ERR_INPUT, "general.architecture is missing"},
        {"llama.block_count", T_STRING, 0, "30", KVL_ERR_INPUT, "llama.block_count (byte "},
        {"llama.block_count", T_U32, 0, NULL, KVL_ERR_INPUT, ") 0: 1 to 1024"},
        {"llama.block_count", T_I32, UINT32_MAX, NULL, KVL_ERR_INPUT, ") -1: 1 to 1024"},
        {"llama.block_count", T_U32, INT32_MAX, NULL, KVL_ERR_INPUT, ") 2147483647: 1 to"},
        {"llama.block_count", T_U64, UINT64_MAX, NULL, KVL_ERR_INPUT, ") 18446744073709551615:"},
        {"llama.block_count", T_F32, 0, NULL, KVL_ERR_INPUT, "is f32: an integer"},
        {"llama.block_count", T_U32, 3, NULL, KVL_ERR_INPUT, "'blk.2.attn_norm.weight' is missing"},
        {"llama.block_count", T_U32, 1, NULL, KVL_ERR_UNSUPPORTED,
         "'blk.1.attn_norm.weight' has no"},
        {"llama.block_count", REMOVE, KVL_ERR_INPUT, "llama.block_count is missing"},
        {"llama.attention.head_count", T_U32, 0, NULL, KVL_ERR_INPUT, "head_count (byte "},
        {"llama.attention.head_count", T_U32, 3, NULL, KVL_ERR_INPUT,
         "llama.embedding_length 16: no multiple of llama.attention.head_count 3"},
        {"llama.attention.head_count_kv", T_U32, 0, NULL, KVL_ERR_INPUT, "head_count_kv (byte "},
        {"llama.attention.head_count_kv", T_U32, 1025, NULL, KVL_ERR_INPUT, "1025: 1 to 1024"},
        {"llama.attention.head_count_kv", T_U32, 4, NULL, KVL_ERR_INPUT,
         "llama.attention.head_count_kv 4 with 2"},
        {"llama.attention.head_count_kv", T_U32, 2, NULL, KVL_ERR_INPUT,
         "'blk.0.attn_k.weight' has"},
        {"llama.embedding_length", T_U32, 0, NULL, KVL_ERR_INPUT, "embedding_length (byte "},
        {"llama.embedding_length", T_U32, 32, NULL, KVL_ERR_UNSUPPORTED, "rope.dimension_count 8"},
        {"llama.feed_forward_length", T_U32, 0, NULL, KVL_ERR_INPUT, "feed_forward_length (byte "},
        {"llama.feed_forward_length", T_U32, 25, NULL, KVL_ERR_INPUT,
         "'blk.0.ffn_gate.weight' has"},
        {"llama.context_length", T_U32, 0, NULL, KVL_ERR_INPUT, "context_length (byte "},
        {"llama.attention.key_length", T_U32, 7, NULL, KVL_ERR_UNSUPPORTED, "partial rotary"},
        {"llama.attention.key_length", T_U32, 257, NULL, KVL_ERR_INPUT, "257: 2 to 256"},
        {"llama.attention.value_length", T_U32, 4, NULL, KVL_ERR_UNSUPPORTED, "value_length 4"},
        {"llama.rope.dimension_count", T_U32, 4, NULL, KVL_ERR_UNSUPPORTED, "dimension_count 4"},
        {"llama.rope.freq_base", T_F32, 0, NULL, KVL_ERR_INPUT, "llama.rope.freq_base 0"},
        {"llama.rope.freq_base", T_F32, 0x7f800000, NULL, KVL_ERR_INPUT, "freq_base (byte "},
        {"llama.rope.freq_base", T_U32, 10000, NULL, KVL_ERR_INPUT, "freq_base (byte "},
        {"llama.rope.scaling.type", T_STRING, 0, "yarn", KVL_ERR_UNSUPPORTED, "type 'yarn'"},
        {"llama.rope.scaling.type", T_STRING, 0, "longrope", KVL_ERR_UNSUPPORTED, "'longrope'"},
        {"llama.rope.scaling.type", T_STRING, 0, "linear", KVL_ERR_INPUT, "factor is missing"},
        {"llama.attention.layer_norm_rms_epsilon", REMOVE, KVL_ERR_INPUT, "epsilon is missing"},
        {"llama.attention.layer_norm_rms_epsilon", T_F32, 0, NULL, KVL_ERR_INPUT, "epsilon 0"},
        {"llama.attention.layer_norm_rms_epsilon", T_F32, 0x7fc00000, NULL, KVL_ERR_INPUT,
         "epsilon (byte "},
        {"llama.attention.sliding_window", T_I32, UINT32_MAX, NULL, KVL_ERR_INPUT, "window (byte "},
        {"llama.vocab_size", T_U32, 13, NULL, KVL_ERR_INPUT, "vocab_size (byte "},
        {"llama.expert_count", T_U32, 8, NULL, KVL_ERR_UNSUPPORTED, "llama.expert_count 8"},
        {"llama.final_logit_softcapping", T_F32, f32_bits(30.0f), NULL, KVL_ERR_UNSUPPORTED,
         "final_logit_softcapping 30"},
        {"llama.attention.causal", T_BOOL, 0, NULL, KVL_ERR_UNSUPPORTED, "attention.causal false"},
        {"llama.attention.causal", T_BOOL, 2, NULL, KVL_ERR_INPUT, "attention.causal (byte "},
        {"split.count", T_U32, 3, NULL, KVL_ERR_UNSUPPORTED, "split.count 3"},
        {"tokenizer.ggml.bos_token_id", T_U32, 12, NULL, KVL_ERR_INPUT, "bos_token_id (byte "},
        {"tokenizer.ggml.eos_token_id", T_U32, UINT32_MAX, NULL, KVL_ERR_INPUT,
         "eos_token_id (byte "},
        {"tokenizer.ggml.tokens", T_STRING, 0, "x", KVL_ERR_INPUT, "tokens (byte "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tiny_gguf t = tiny_make();
        if (cases[i].type == T_ARRAY)
            tiny_drop_key(&t, cases[i].key);
        else
            tiny_set(&t, cases[i].key, cases[i].type, cases[i].bits, cases[i].text);
        kvl_config c;
        kvl_source source;
        assert_refused(open_tiny(&t, &c, &source), cases[i].code, cases[i].part);
        assert_non_null(strstr(kvl_message(), "/tmp/kvl_tiny_"));
    }
}

static void gguf_tensors_must_fit_the_metadata(void **state) {
    const struct {
        const char *name;
        uint64_t dim0, dim1; /* 0 removes the tensor by renaming it */
        uint32_t type;
        kvl_status code;
        const char *part;
    } cases[] = {
        {"token_embd.weight", 0, 0, 0, KVL_ERR_INPUT, "'token_embd.weight' is missing"},
        {"token_embd.weight", 8, 24, 0, KVL_ERR_INPUT, "'token_embd.weight' has"},
        {"output_norm.weight", 0, 0, 0, KVL_ERR_INPUT, "'output_norm.weight' is missing"},
        {"output_norm.weight", 8, 2, 0, KVL_ERR_INPUT, "'output_norm.weight' has"},
        {"blk.1.attn_v.weight", 8, 16, 0, KVL_ERR_INPUT, "'blk.1.attn_v.weight' has"},
        {"blk.0.ffn_norm.weight", 0, 0, 0, KVL_ERR_INPUT, "'blk.0.ffn_norm.weight' is missing"},
        {"blk.0.ffn_norm.weight", 16, 0, 26, KVL_ERR_UNSUPPORTED, "'blk.0.ffn_norm.weight' is i32"},
    };
    kvl_config c;
    kvl_source source;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tiny_gguf t = tiny_make();
        tiny_tensor *tensor = tiny_find(&t, cases[i].name);
        if (!cases[i].dim0) {
            snprintf(tensor->name, sizeof tensor->name, "elsewhere");
        } else {
            tensor->dims[0] = cases[i].dim0;
            tensor->dims[1] = cases[i].dim1 ? cases[i].dim1 : 1;
            if (cases[i].dim1) tensor->n_dims = 2;
            tensor->type = cases[i].type;
        }
        assert_refused(open_tiny(&t, &c, &source), cases[i].code, cases[i].part);
    }
    static const char *const strangers[] = {"blk.0.attn_q.bias", "blk.1.ffn_gate_inp.weight",
                                            "v.patch_embd.weight"};
    for (int i = 0; i < 3; i++) {
        tiny_gguf t = tiny_make();
        tiny_add(&t, strangers[i], 16, 0);
        assert_refused(open_tiny(&t, &c, &source), KVL_ERR_UNSUPPORTED, strangers[i]);
    }
    tiny_gguf t = tiny_make();
    tiny_add(&t, "rope_freqs.weight", 5, 0);
    assert_refused(open_tiny(&t, &c, &source), KVL_ERR_INPUT, "rope_freqs.weight");
    t = tiny_make();
    tiny_add(&t, "rope_freqs.weight", 4, 0); /* first in the file: its values begin with 0 */
    tiny_tensor first = t.tensors[0];
    t.tensors[0] = t.tensors[t.n_tensors - 1];
    t.tensors[t.n_tensors - 1] = first;
    assert_refused(open_tiny(&t, &c, &source), KVL_ERR_INPUT, "rope_freqs.weight[0] 0");
}

/* ---- safetensors folders ---- */

static kvl_status open_dir(const char *dir, kvl_config *c, kvl_source *source) {
    KVL_TRY(kvl_config_from_dir(dir, c));
    kvl_shards shards;
    KVL_TRY(kvl_shards_open(dir, &shards));
    kvl_status status = kvl_source_from_shards(dir, &shards, c, c->source_weights, source);
    if (status != KVL_OK) kvl_shards_close(&shards);
    return status;
}

static void folder_rows_are_the_files_values(void **state) {
    kvl_config c;
    kvl_source source;
    assert_ok(open_dir(MODELS "llama", &c, &source));
    assert_string_equal(c.source_weights, "f32");
    kvl_safetensors *st;
    assert_ok(kvl_st_open(MODELS "llama/model-00002-of-00010.safetensors", &st));
    const char *name = "model.layers.0.self_attn.q_proj.weight";
    float got[3 * 128], want[3 * 128];
    assert_ok(source.read_rows(&source, name, 200, 3, got));
    assert_ok(kvl_st_read_f32(kvl_st_find(st, name), 200 * 128, 3 * 128, want));
    assert_memory_equal(got, want, sizeof got);
    assert_refused(source.read_rows(&source, name, 254, 3, got), KVL_ERR_INPUT, "it has 256");
    kvl_st_close(st);
    source.close(&source);

    assert_ok(open_dir(MODELS "qwen2", &c, &source));
    assert_string_equal(c.source_weights, "bf16");
    int64_t rows, cols;
    assert_true(source.shape(&source, "model.layers.1.self_attn.k_proj.bias", &rows, &cols));
    assert_int_equal(rows, 32);
    assert_int_equal(cols, 1);
    source.close(&source);
    assert_ok(open_dir(MODELS "llama3-rope", &c, &source));
    assert_false(source.shape(&source, "lm_head.weight", &rows, &cols));
    source.close(&source);
}

/* ---- presets ---- */

static void synthetic_rows_do_not_depend_on_the_order(void **state) {
    kvl_config c;
    kvl_source source, again, other;
    assert_ok(kvl_synthetic_config("tiny", &c));
    assert_ok(kvl_synthetic_source(&c, 7, &source));
    assert_ok(kvl_synthetic_source(&c, 7, &again));
    assert_ok(kvl_synthetic_source(&c, 8, &other));
    const char *name = "model.layers.1.mlp.gate_proj.weight";
    static float all[160 * 64], parts[160 * 64], different[160 * 64];
    assert_ok(source.read_rows(&source, name, 0, 160, all));
    for (int64_t r = 159; r >= 0; r--)
        assert_ok(again.read_rows(&again, name, r, 1, parts + r * 64));
    assert_memory_equal(all, parts, sizeof all);
    assert_ok(other.read_rows(&other, name, 0, 160, different));
    assert_memory_not_equal(all, different, sizeof all);
    assert_ok(source.read_rows(&source, "model.layers.0.mlp.gate_proj.weight", 0, 160, different));
    assert_memory_not_equal(all, different, sizeof all);
    assert_ok(source.read_rows(&source, "model.norm.weight", 0, 64, different));
    for (int i = 0; i < 64; i++) assert_true(different[i] == 1.0f);
    assert_refused(source.read_rows(&source, name, 160, 1, parts), KVL_ERR_INPUT, "it has 160");
    source.close(&source);
    again.close(&again);
    other.close(&other);
}

/* Moments of 7 million weights: N(0, 0.02) but for the tails, which end at 3.46 sigma (kurtosis of
 * a sum of four uniforms: 3 - 1.2 / 4 = 2.7). */
static void synthetic_weights_are_close_to_normal(void **state) {
    kvl_config c;
    kvl_source source;
    assert_ok(kvl_synthetic_config("SmolLM2-135M", &c));
    assert_ok(kvl_synthetic_source(&c, 1, &source));
    static float rows[64 * 576];
    double n = 0, m1 = 0, m2 = 0, m4 = 0, most = 0, lag = 0;
    for (int64_t r = 0; r < 12288; r += 64) {
        assert_ok(source.read_rows(&source, "model.embed_tokens.weight", r, 64, rows));
        for (int i = 0; i < 64 * 576; i++) {
            double x = (double)rows[i] / 0.02;
            n++, m1 += x, m2 += x * x, m4 += x * x * x * x;
            if (i) lag += x * (double)rows[i - 1] / 0.02;
            if (fabs(x) > most) most = fabs(x);
        }
    }
    assert_true(fabs(m1 / n) < 0.002);
    assert_true(fabs(m2 / n - 1) < 0.003);
    assert_true(fabs(m4 / n - 2.7) < 0.02);
    assert_true(fabs(lag / n) < 0.002);
    assert_true(most > 3.2 && most < 3.465);
    source.close(&source);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_configuration_is_read),
        cmocka_unit_test(qwen_gguf_is_read),
        cmocka_unit_test(llama_rows_are_put_back),
        cmocka_unit_test(the_default_model_has_the_reference_rows),
        cmocka_unit_test(gguf_metadata_are_held_to_limits),
        cmocka_unit_test(gguf_tensors_must_fit_the_metadata),
        cmocka_unit_test(folder_rows_are_the_files_values),
        cmocka_unit_test(synthetic_rows_do_not_depend_on_the_order),
        cmocka_unit_test(synthetic_weights_are_close_to_normal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
