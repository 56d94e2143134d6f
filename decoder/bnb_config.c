/* config.json of a folder in 4 bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "decoder/bnb_write.h"
#include "decoder/json.h"

static const char *torch_name(kvl_dtype dtype) {
    return dtype == KVL_F32 ? "float32" : dtype == KVL_F16 ? "float16" : "bfloat16";
}

/* Modules that stay, as Transformers wants them: a JSON array. */
static json_t *skip_list(const char *skip) {
    json_t *list = json_array();
    if (!skip) skip = "lm_head";
    while (*skip) {
        size_t n = strcspn(skip, ",");
        bool none = n == 4 && strncmp(skip, "none", 4) == 0;
        if (n && !none) json_array_append_new(list, json_stringn(skip, n));
        skip += n + (skip[n] == ',');
    }
    return list;
}

static json_t *quantization(const kvl_bnb_write_options *options) {
    return json_pack("{s:b, s:b, s:s, s:s, s:s, s:b, s:b, s:b, s:o, s:f, s:b, s:b, s:s}",
                     "_load_in_4bit", 1, "_load_in_8bit", 0, "bnb_4bit_compute_dtype",
                     torch_name(options->other_dtype), "bnb_4bit_quant_storage", "uint8",
                     "bnb_4bit_quant_type", kvl_nf4_type_name(options->type),
                     "bnb_4bit_use_double_quant", options->nested,
                     "llm_int8_enable_fp32_cpu_offload", 0, "llm_int8_has_fp16_weight", 0,
                     "llm_int8_skip_modules", skip_list(options->skip), "llm_int8_threshold", 6.0,
                     "load_in_4bit", 1, "load_in_8bit", 0, "quant_method", "bitsandbytes");
}

/* ---- from what the model is ----------------------------------------------------------------- */

static kvl_status add_rope(const kvl_config *c, json_t *root) {
    if (c->has_rope_divisors)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "model %s: rope_freqs.weight of the GGUF file has no place in config.json",
                        c->name);
    json_object_set_new(root, "rope_theta", json_real(c->rope_theta));
    json_t *scaling = NULL;
    if (c->rope_type == KVL_ROPE_LINEAR)
        scaling = json_pack("{s:s, s:f}", "rope_type", "linear", "factor", c->rope_factor);
    if (c->rope_type == KVL_ROPE_LLAMA3)
        scaling = json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor",
                            c->rope_factor, "low_freq_factor", c->rope_low_freq_factor,
                            "high_freq_factor", c->rope_high_freq_factor,
                            "original_max_position_embeddings", c->rope_original_max_position);
    if (scaling) json_object_set_new(root, "rope_scaling", scaling);
    return KVL_OK;
}

static void add_tokens(const kvl_config *c, json_t *root) {
    if (c->bos_id >= 0) json_object_set_new(root, "bos_token_id", json_integer(c->bos_id));
    if (c->pad_id >= 0) json_object_set_new(root, "pad_token_id", json_integer(c->pad_id));
    json_t *eos = json_array();
    for (int32_t i = 0; i < c->n_eos; i++) json_array_append_new(eos, json_integer(c->eos_ids[i]));
    json_object_set_new(root, "eos_token_id", c->n_eos ? json_incref(eos) : json_null());
    json_decref(eos);
}

/* The window as each family spells it: Mistral's is for all layers, Qwen's from a layer on. */
static void add_window(const kvl_config *c, json_t *root) {
    if (c->family == KVL_FAMILY_LLAMA) return;
    json_object_set_new(root, "sliding_window",
                        c->sliding_window ? json_integer(c->sliding_window) : json_null());
    if (c->family == KVL_FAMILY_MISTRAL) return;
    json_object_set_new(root, "use_sliding_window", json_boolean(c->sliding_window > 0));
    json_object_set_new(root, "max_window_layers",
                        json_integer(c->sliding_window > 0 ? 0 : c->n_layers));
}

static kvl_status describe_model(const kvl_config *c, json_t **out) {
    static const char *const types[] = {"llama", "mistral", "qwen2", "qwen3"};
    static const char *const classes[] = {"LlamaForCausalLM", "MistralForCausalLM",
                                          "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
    json_t *root = json_pack(
        "{s:[s], s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:b, s:b}", "architectures",
        classes[c->family], "model_type", types[c->family], "hidden_act", "silu", "hidden_size",
        c->hidden_size, "intermediate_size", c->intermediate_size, "num_hidden_layers", c->n_layers,
        "num_attention_heads", c->n_q_heads, "num_key_value_heads", c->n_kv_heads, "head_dim",
        c->head_dim, "vocab_size", c->vocab_size, "max_position_embeddings", c->max_position,
        "rms_norm_eps", (double)c->rms_norm_eps, "tie_word_embeddings", c->tie_embeddings,
        "attention_bias", 0);
    if (!root) return kvl_fail(KVL_ERR_OOM, "config.json: out of memory");
    kvl_status status = add_rope(c, root);
    add_tokens(c, root);
    add_window(c, root);
    if (status == KVL_OK)
        *out = root;
    else
        json_decref(root);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static kvl_status load_own(const char *source, json_t **out) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/config.json", source) >= (int)sizeof path)
        return kvl_fail(KVL_ERR_INPUT, "%.200s...: the path is too long", source);
    return kvl_json_load(path, out);
}

kvl_status kvl_bnb_config(const kvl_model *model, const char *source,
                          const kvl_bnb_write_options *options, char **out) {
    struct stat info;
    json_t *root = NULL;
    if (stat(source, &info) == 0 && S_ISDIR(info.st_mode))
        KVL_TRY(load_own(source, &root));
    else
        KVL_TRY(describe_model(&model->config, &root));
    const char *dtype = torch_name(options->other_dtype);
    json_object_del(root, "torch_dtype");
    json_object_set_new(root, "dtype", json_string(dtype));
    json_object_set_new(root, "torch_dtype", json_string(dtype));
    json_object_set_new(root, "quantization_config", quantization(options));
    *out = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(root);
    return *out ? KVL_OK : kvl_fail(KVL_ERR_OOM, "config.json: out of memory");
}
