#include "decoder/tensor_spec.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Sizes by name, so that the list of a layer's tensors can be a table. */
typedef enum extent { HIDDEN, INTER, Q_WIDTH, KV_WIDTH, HEAD, VOCAB, ONE } extent;

static int64_t extent_of(const kvl_config *c, extent e) {
    switch (e) {
    case HIDDEN:
        return c->hidden_size;
    case INTER:
        return c->intermediate_size;
    case Q_WIDTH:
        return (int64_t)c->n_q_heads * c->head_dim;
    case KV_WIDTH:
        return (int64_t)c->n_kv_heads * c->head_dim;
    case HEAD:
        return c->head_dim;
    case VOCAB:
        return c->vocab_size;
    case ONE:
        break;
    }
    return 1;
}

typedef struct row {
    const char *name, *gguf_name;
    extent rows, cols;
    kvl_tensor_kind kind;
} row;

/* The first BASE_ROWS rows are every family's; biases or head norms follow where config says so. */
enum { BASE_ROWS = 9, BIAS_ROWS = 3, HEAD_NORM_ROWS = 2 };

static const row base_rows[BASE_ROWS] = {
    {"input_layernorm.weight", "attn_norm.weight", HIDDEN, ONE, KVL_TENSOR_NORM},
    {"self_attn.q_proj.weight", "attn_q.weight", Q_WIDTH, HIDDEN, KVL_TENSOR_MATRIX},
    {"self_attn.k_proj.weight", "attn_k.weight", KV_WIDTH, HIDDEN, KVL_TENSOR_MATRIX},
    {"self_attn.v_proj.weight", "attn_v.weight", KV_WIDTH, HIDDEN, KVL_TENSOR_MATRIX},
    {"self_attn.o_proj.weight", "attn_output.weight", HIDDEN, Q_WIDTH, KVL_TENSOR_MATRIX},
    {"post_attention_layernorm.weight", "ffn_norm.weight", HIDDEN, ONE, KVL_TENSOR_NORM},
    {"mlp.gate_proj.weight", "ffn_gate.weight", INTER, HIDDEN, KVL_TENSOR_MATRIX},
    {"mlp.up_proj.weight", "ffn_up.weight", INTER, HIDDEN, KVL_TENSOR_MATRIX},
    {"mlp.down_proj.weight", "ffn_down.weight", HIDDEN, INTER, KVL_TENSOR_MATRIX},
};
static const row bias_rows[BIAS_ROWS] = {
    {"self_attn.q_proj.bias", "attn_q.bias", Q_WIDTH, ONE, KVL_TENSOR_BIAS},
    {"self_attn.k_proj.bias", "attn_k.bias", KV_WIDTH, ONE, KVL_TENSOR_BIAS},
    {"self_attn.v_proj.bias", "attn_v.bias", KV_WIDTH, ONE, KVL_TENSOR_BIAS},
};
static const row head_norm_rows[HEAD_NORM_ROWS] = {
    {"self_attn.q_norm.weight", "attn_q_norm.weight", HEAD, ONE, KVL_TENSOR_NORM},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", HEAD, ONE, KVL_TENSOR_NORM},
};
static const row embedding = {"model.embed_tokens.weight", "token_embd.weight", VOCAB, HIDDEN,
                              KVL_TENSOR_MATRIX};
static const row final_norm = {"model.norm.weight", "output_norm.weight", HIDDEN, ONE,
                               KVL_TENSOR_NORM};
static const row head = {"lm_head.weight", "output.weight", VOCAB, HIDDEN, KVL_TENSOR_MATRIX};

static size_t rows_per_layer(const kvl_config *c) {
    return BASE_ROWS + (c->qkv_bias ? BIAS_ROWS : 0u) + (c->qk_norm ? HEAD_NORM_ROWS : 0u);
}

size_t kvl_tensor_spec_count(const kvl_config *config) {
    return 2 + (size_t)config->n_layers * rows_per_layer(config) + !config->tie_embeddings;
}

static const row *layer_row(const kvl_config *c, size_t k) {
    if (k < BASE_ROWS) return &base_rows[k];
    k -= BASE_ROWS;
    if (c->qkv_bias && k < BIAS_ROWS) return &bias_rows[k];
    return &head_norm_rows[k - (c->qkv_bias ? BIAS_ROWS : 0)];
}

void kvl_tensor_spec_at(const kvl_config *config, size_t index, kvl_tensor_spec *out) {
    size_t n_rows = rows_per_layer(config), n = (size_t)config->n_layers * n_rows;
    const row *r = index == 0       ? &embedding
                   : index <= n     ? layer_row(config, (index - 1) % n_rows)
                   : index == n + 1 ? &final_norm
                                    : &head;
    *out = (kvl_tensor_spec){
        .rows = extent_of(config, r->rows), .cols = extent_of(config, r->cols), .kind = r->kind};
    if (index >= 1 && index <= n) {
        size_t layer = (index - 1) / n_rows;
        snprintf(out->name, sizeof out->name, "model.layers.%zu.%s", layer, r->name);
        snprintf(out->gguf_name, sizeof out->gguf_name, "blk.%zu.%s", layer, r->gguf_name);
    } else {
        snprintf(out->name, sizeof out->name, "%s", r->name);
        snprintf(out->gguf_name, sizeof out->gguf_name, "%s", r->gguf_name);
    }
    /* GGUF converters interleave the rows of Q and K for llama's RoPE, not for Qwen's. */
    bool llama = config->family == KVL_FAMILY_LLAMA || config->family == KVL_FAMILY_MISTRAL;
    if (llama && r == &base_rows[1]) out->permuted_heads = config->n_q_heads;
    if (llama && r == &base_rows[2]) out->permuted_heads = config->n_kv_heads;
}

static bool has_parts(const char *name, const char *key, size_t key_bytes) {
    for (const char *at = name; key_bytes && (at = strchr(at, key[0])); at++) {
        char end = strncmp(at, key, key_bytes) == 0 ? at[key_bytes] : 'x';
        if ((at == name || at[-1] == '.') && (end == '.' || end == '\0')) return true;
    }
    return false;
}

bool kvl_tensor_listed(const char *list, const char *name) {
    while (*list) {
        size_t n = strcspn(list, ",");
        if (has_parts(name, list, n)) return true;
        list += n + (list[n] == ',');
    }
    return false;
}

static bool is_in_model(const kvl_config *config, const char *key, size_t key_bytes) {
    if (has_parts("lm_head.weight", key, key_bytes)) return true;
    for (size_t i = 0; i < kvl_tensor_spec_count(config); i++) {
        kvl_tensor_spec spec;
        kvl_tensor_spec_at(config, i, &spec);
        if (has_parts(spec.name, key, key_bytes)) return true;
    }
    return false;
}

kvl_status kvl_tensor_list_check(const char *label, const kvl_config *config, const char *list) {
    for (const char *at = list;; at++) {
        size_t n = strcspn(at, ",");
        bool none = n == 4 && strncmp(at, "none", 4) == 0;
        if (n == 0)
            return kvl_fail(KVL_ERR_INPUT, "%s '%.80s': an empty name in the list (none: nothing)",
                            label, list);
        if (!none && !is_in_model(config, at, n))
            return kvl_fail(KVL_ERR_INPUT,
                            "%s '%.*s': no module of model %s has that name (such as lm_head, "
                            "o_proj, layers.0)",
                            label, n < 80 ? (int)n : 80, at, config->name);
        at += n;
        if (!*at) return KVL_OK;
    }
}
