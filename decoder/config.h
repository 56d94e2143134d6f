/* What a decoder is: shape and constants, as read from GGUF metadata, config.json or a preset. */
#ifndef KVL_DECODER_CONFIG_H
#define KVL_DECODER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { KVL_MAX_EOS = 16, KVL_MAX_HEAD_DIM = 256 };

/* What no model here passes; products of any of them fit 64 bits. */
enum {
    KVL_MAX_LAYERS = 1024,
    KVL_MAX_HIDDEN = 1 << 20,
    KVL_MAX_INTERMEDIATE = 1 << 22,
    KVL_MAX_HEADS = 1024,
    KVL_MAX_VOCAB = 1 << 24,
    KVL_MAX_POSITION = 1 << 30,
};

typedef enum kvl_family {
    KVL_FAMILY_LLAMA = 0,
    KVL_FAMILY_MISTRAL, /* sliding window */
    KVL_FAMILY_QWEN2,   /* biases on q, k, v */
    KVL_FAMILY_QWEN3,   /* RMS norm on each head of q and k before RoPE */
} kvl_family;

typedef enum kvl_rope_type {
    KVL_ROPE_DEFAULT = 0,
    KVL_ROPE_LINEAR, /* positions divided by factor */
    KVL_ROPE_LLAMA3, /* frequency bands scaled, Llama 3.1 */
} kvl_rope_type;

typedef struct kvl_config {
    kvl_family family;
    char name[128]; /* general.name, folder name, or "synthetic:NAME" */

    int32_t n_layers, hidden_size, intermediate_size;
    int32_t n_q_heads, n_kv_heads, head_dim; /* head_dim need not be hidden_size / n_q_heads */
    int32_t vocab_size;
    int32_t max_position; /* longest sequence the model allows */
    float rms_norm_eps;
    int32_t sliding_window; /* 0 = none; W: a token sees itself and the W - 1 before it */
    bool tie_embeddings;    /* lm_head is the embedding */
    bool qkv_bias, qk_norm;

    kvl_rope_type rope_type;
    double rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int32_t rope_original_max_position;
    /* Per-frequency divisors from GGUF rope_freqs.weight; has_rope_divisors selects them. */
    bool has_rope_divisors;
    float rope_divisors[KVL_MAX_HEAD_DIM / 2];

    int32_t bos_id, pad_id; /* -1 = none */
    int32_t eos_ids[KVL_MAX_EOS];
    int32_t n_eos;
    char source_weights[32]; /* how the file stores most of its weights: "q4_1", "bf16", "f32",
                                "synthetic" */
} kvl_config;

/* From the metadata of a GGUF file of architecture llama, qwen2 or qwen3 (and from
 * rope_freqs.weight and the shapes of token_embd and output). What is not implemented (yarn,
 * partial rotary, experts, biases of llama, ...) is KVL_ERR_UNSUPPORTED by key; bad values are
 * KVL_ERR_INPUT by key and byte offset. The result has passed kvl_config_check. */
struct kvl_gguf;
kvl_status kvl_config_from_gguf(const struct kvl_gguf *gguf, kvl_config *config);

/* From config.json and, when present, generation_config.json (its end tokens are added) of a folder
 * as Transformers 4 or 5 write them: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM,
 * Qwen3ForCausalLM. Refusals as above. source_weights is left "". */
kvl_status kvl_config_from_dir(const char *dir, kvl_config *config);

/* Checks every field against its range and the others (heads divide, head_dim even and <= 256,
 * positive sizes, products that fit). KVL_ERR_INPUT names the key as the file spells it via `keys`:
 * pass "gguf" or "hf" so that messages say llama.attention.head_count or num_attention_heads. */
kvl_status kvl_config_check(const kvl_config *config, const char *keys);

/* Inverse frequencies [head_dim / 2] after scaling, in the float32 steps of Transformers, whose
 * bits they have (at position 8,000 a last bit of theirs turns an angle by 5e-4). */
void kvl_config_inv_freq(const kvl_config *config, float *inv_freq);

/* KV bytes of one token over all layers: 2 * n_layers * n_kv_heads * head_dim * bytes. */
uint64_t kvl_config_kv_bytes_per_token(const kvl_config *config, uint64_t elem_bytes);

/* Parameters in the linear layers, norms and embeddings (tied counted once). */
uint64_t kvl_config_parameters(const kvl_config *config);

/* Sets config->name, cut to fit, whatever the bytes: control characters, and what is not UTF-8,
 * become '?'. */
void kvl_config_set_name(kvl_config *config, const char *text, size_t bytes);

/* Fills n_eos and eos_ids with `id` when it is not there yet. False when there is no room. */
bool kvl_config_add_eos(kvl_config *config, int32_t id);

#endif
