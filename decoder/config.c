#include "decoder/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "decoder/tensor_spec.h"

/* The architecture's name in GGUF keys. */
static const char *gguf_arch(kvl_family family) {
    return family == KVL_FAMILY_QWEN2 ? "qwen2" : family == KVL_FAMILY_QWEN3 ? "qwen3" : "llama";
}

/* Fails with the field's name in the file: "llama.block_count 0: 1 to 1024 is allowed". */
static kvl_status bad(const kvl_config *c, const char *keys, const char *gguf_key,
                      const char *hf_key, const char *value, const char *rule) {
    if (strcmp(keys, "gguf") != 0) return kvl_fail(KVL_ERR_INPUT, "%s %s: %s", hf_key, value, rule);
    return kvl_fail(KVL_ERR_INPUT, "%s.%s %s: %s", gguf_arch(c->family), gguf_key, value, rule);
}

static kvl_status check_int(const kvl_config *c, const char *keys, const char *gguf_key,
                            const char *hf_key, int32_t value, int32_t min, int32_t max) {
    if (value >= min && value <= max) return KVL_OK;
    char text[16], rule[64];
    snprintf(text, sizeof text, "%" PRId32, value);
    snprintf(rule, sizeof rule, "%" PRId32 " to %" PRId32 " is allowed", min, max);
    return bad(c, keys, gguf_key, hf_key, text, rule);
}

static kvl_status check_real(const kvl_config *c, const char *keys, const char *gguf_key,
                             const char *hf_key, double value, double min, double max) {
    if (value >= min && value <= max) return KVL_OK; /* false for NaN */
    char text[32], rule[64];
    snprintf(text, sizeof text, "%g", value);
    snprintf(rule, sizeof rule, "%g to %g is allowed", min, max);
    return bad(c, keys, gguf_key, hf_key, text, rule);
}

static kvl_status check_sizes(const kvl_config *c, const char *keys) {
    const struct {
        const char *gguf_key, *hf_key;
        int32_t value, min, max;
    } fields[] = {
        {"block_count", "num_hidden_layers", c->n_layers, 1, KVL_MAX_LAYERS},
        {"embedding_length", "hidden_size", c->hidden_size, 1, KVL_MAX_HIDDEN},
        {"feed_forward_length", "intermediate_size", c->intermediate_size, 1, KVL_MAX_INTERMEDIATE},
        {"attention.head_count", "num_attention_heads", c->n_q_heads, 1, KVL_MAX_HEADS},
        {"attention.head_count_kv", "num_key_value_heads", c->n_kv_heads, 1, KVL_MAX_HEADS},
        {"attention.key_length", "head_dim", c->head_dim, 2, KVL_MAX_HEAD_DIM},
        {"vocab_size", "vocab_size", c->vocab_size, 1, KVL_MAX_VOCAB},
        {"context_length", "max_position_embeddings", c->max_position, 1, KVL_MAX_POSITION},
        {"attention.sliding_window", "sliding_window", c->sliding_window, 0, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        KVL_TRY(check_int(c, keys, fields[i].gguf_key, fields[i].hf_key, fields[i].value,
                          fields[i].min, fields[i].max));
    char text[48];
    snprintf(text, sizeof text, "%" PRId32, c->head_dim);
    if (c->head_dim % 2)
        return bad(c, keys, "attention.key_length", "head_dim", text,
                   "RoPE turns pairs, an even number is needed");
    if (c->n_q_heads % c->n_kv_heads) {
        snprintf(text, sizeof text, "%" PRId32 " with %" PRId32 " query heads", c->n_kv_heads,
                 c->n_q_heads);
        return bad(c, keys, "attention.head_count_kv", "num_key_value_heads", text,
                   "it must divide the query heads");
    }
    return KVL_OK;
}

static kvl_status check_rope(const kvl_config *c, const char *keys) {
    KVL_TRY(check_real(c, keys, "rope.freq_base", "rope_theta", c->rope_theta, 1.0, 1e15));
    for (int i = 0; c->has_rope_divisors && i < c->head_dim / 2; i++)
        if (!(c->rope_divisors[i] > 0.0f && isfinite(c->rope_divisors[i])))
            return kvl_fail(KVL_ERR_INPUT, "rope_freqs.weight[%d] %g: a positive number is needed",
                            i, (double)c->rope_divisors[i]);
    if (c->rope_type == KVL_ROPE_DEFAULT) return KVL_OK;
    KVL_TRY(check_real(c, keys, "rope.scaling.factor", "rope factor", c->rope_factor, 1.0, 1e6));
    if (c->rope_type == KVL_ROPE_LINEAR) return KVL_OK;
    KVL_TRY(check_real(c, keys, "rope.scaling.low_freq_factor", "rope low_freq_factor",
                       c->rope_low_freq_factor, 1e-3, 1e6));
    KVL_TRY(check_int(c, keys, "rope.scaling.original_context_length",
                      "rope original_max_position_embeddings", c->rope_original_max_position, 1,
                      KVL_MAX_POSITION));
    if (c->rope_high_freq_factor > c->rope_low_freq_factor && c->rope_high_freq_factor <= 1e6)
        return KVL_OK;
    char text[32];
    snprintf(text, sizeof text, "%g", c->rope_high_freq_factor);
    return bad(c, keys, "rope.scaling.high_freq_factor", "rope high_freq_factor", text,
               "a number above low_freq_factor is needed");
}

static kvl_status check_ids(const kvl_config *c, const char *keys) {
    bool gguf = strcmp(keys, "gguf") == 0;
    if (c->bos_id < -1 || c->bos_id >= c->vocab_size)
        return kvl_fail(KVL_ERR_INPUT, "%s %" PRId32 ": the vocabulary has %" PRId32 " tokens",
                        gguf ? "tokenizer.ggml.bos_token_id" : "bos_token_id", c->bos_id,
                        c->vocab_size);
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] < 0 || c->eos_ids[i] >= c->vocab_size)
            return kvl_fail(KVL_ERR_INPUT, "%s %" PRId32 ": the vocabulary has %" PRId32 " tokens",
                            gguf ? "tokenizer.ggml.eos_token_id" : "eos_token_id", c->eos_ids[i],
                            c->vocab_size);
    return KVL_OK;
}

kvl_status kvl_config_check(const kvl_config *config, const char *keys) {
    KVL_TRY(check_sizes(config, keys));
    KVL_TRY(check_real(config, keys, "attention.layer_norm_rms_epsilon", "rms_norm_eps",
                       (double)config->rms_norm_eps, 1e-12, 1.0));
    KVL_TRY(check_rope(config, keys));
    return check_ids(config, keys);
}

/* Llama 3.1: long wavelengths are stretched by the factor, short ones kept, those between blended.
 * Source: the rope_scaling of Llama 3.1's reference code. */
static float llama3_scaled(const kvl_config *c, float inv_freq) {
    float wavelength = (float)(2.0 * 3.14159265358979323846) / inv_freq;
    float original = (float)c->rope_original_max_position, factor = (float)c->rope_factor;
    float low = (float)c->rope_low_freq_factor, high = (float)c->rope_high_freq_factor;
    if (wavelength < (float)(original / c->rope_high_freq_factor)) return inv_freq;
    float stretched = inv_freq / factor;
    if (wavelength > (float)(original / c->rope_low_freq_factor)) return stretched;
    float smooth = (original / wavelength - low) / (high - low);
    return (1.0f - smooth) * inv_freq / factor + smooth * inv_freq;
}

void kvl_config_inv_freq(const kvl_config *config, float *inv_freq) {
    for (int i = 0; i < config->head_dim / 2; i++) {
        /* A float32 exponent and power, as Transformers takes them; pow in double rounds right. */
        float exponent = (float)(2 * i) / (float)config->head_dim;
        float value = 1.0f / (float)pow((double)(float)config->rope_theta, (double)exponent);
        if (config->rope_type == KVL_ROPE_LINEAR) value /= (float)config->rope_factor;
        if (config->rope_type == KVL_ROPE_LLAMA3) value = llama3_scaled(config, value);
        if (config->has_rope_divisors) value /= config->rope_divisors[i];
        inv_freq[i] = value;
    }
}

uint64_t kvl_config_kv_bytes_per_token(const kvl_config *config, uint64_t elem_bytes) {
    return 2 * (uint64_t)config->n_layers * (uint64_t)config->n_kv_heads *
           (uint64_t)config->head_dim * elem_bytes;
}

uint64_t kvl_config_parameters(const kvl_config *config) {
    uint64_t total = 0;
    for (size_t i = 0; i < kvl_tensor_spec_count(config); i++) {
        kvl_tensor_spec spec;
        kvl_tensor_spec_at(config, i, &spec);
        total += (uint64_t)spec.rows * (uint64_t)spec.cols;
    }
    return total;
}

void kvl_config_set_name(kvl_config *config, const char *text, size_t bytes) {
    size_t n = bytes < sizeof config->name - 1 ? bytes : sizeof config->name - 1;
    while (n < bytes && n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--;
    bool valid = kvl_utf8_valid(text, n);
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)text[i];
        bool bad_byte = byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !valid);
        config->name[i] = bad_byte ? '?' : text[i];
    }
    config->name[n] = 0;
}

bool kvl_config_add_eos(kvl_config *config, int32_t id) {
    for (int i = 0; i < config->n_eos; i++)
        if (config->eos_ids[i] == id) return true;
    if (config->n_eos == KVL_MAX_EOS) return false;
    config->eos_ids[config->n_eos++] = id;
    return true;
}
