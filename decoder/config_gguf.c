/* kvl_config from GGUF metadata. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "decoder/config.h"
#include "decoder/gguf.h"
#include "quant/gguf_blocks.h"

/* The file, its architecture, and room for a key. */
typedef struct reader {
    const kvl_gguf *gguf;
    const char *arch;
    char key[96];
} reader;

/* "<arch>.<name>" */
static const char *key_of(reader *r, const char *name) {
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
    return r->key;
}

static kvl_status read_int(reader *r, const char *name, bool required, int64_t min, int64_t max,
                           int32_t *out) {
    int64_t value = *out;
    KVL_TRY(kvl_gguf_int(r->gguf, key_of(r, name), required, min, max, &value));
    *out = (int32_t)value;
    return KVL_OK;
}

static kvl_status read_arch(reader *r, kvl_family *family) {
    static const struct {
        const char *name;
        kvl_family family;
    } known[] = {
        {"llama", KVL_FAMILY_LLAMA}, {"qwen2", KVL_FAMILY_QWEN2}, {"qwen3", KVL_FAMILY_QWEN3}};
    kvl_gguf_string text = {0};
    KVL_TRY(kvl_gguf_str(r->gguf, "general.architecture", true, &text));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].name) != text.bytes) continue;
        if (memcmp(known[i].name, text.data, text.bytes) != 0) continue;
        r->arch = known[i].name;
        *family = known[i].family;
        return KVL_OK;
    }
    return kvl_fail(KVL_ERR_UNSUPPORTED,
                    "%s: general.architecture '%.*s': llama, qwen2 and qwen3 are implemented",
                    kvl_gguf_path(r->gguf), (int)(text.bytes < 40 ? text.bytes : 40), text.data);
}

/* Features that change the arithmetic and are not implemented: present and not neutral is refused.
 */
static kvl_status refuse_features(reader *r) {
    static const char *const counts[] = {"expert_count", "leading_dense_block_count",
                                         "expert_used_count"};
    static const char *const scales[] = {"attention.scale",
                                         "attention.output_scale",
                                         "attention.clamp_kqv",
                                         "attention.max_alibi_bias",
                                         "attn_logit_softcapping",
                                         "final_logit_softcapping",
                                         "logit_scale",
                                         "residual_scale",
                                         "embedding_scale"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t value = 0;
        KVL_TRY(kvl_gguf_int(r->gguf, key_of(r, counts[i]), false, INT64_MIN, INT64_MAX, &value));
        if (value)
            return kvl_fail(KVL_ERR_UNSUPPORTED,
                            "%s: %s %" PRId64 ": mixtures of experts are not implemented",
                            kvl_gguf_path(r->gguf), r->key, value);
    }
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        double value = 0;
        KVL_TRY(kvl_gguf_float(r->gguf, key_of(r, scales[i]), false, &value));
        if (value != 0.0)
            return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: %s %g: not implemented",
                            kvl_gguf_path(r->gguf), r->key, value);
    }
    bool causal = true;
    KVL_TRY(kvl_gguf_bool(r->gguf, key_of(r, "attention.causal"), false, &causal));
    if (!causal)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: %s false: not implemented",
                        kvl_gguf_path(r->gguf), r->key);
    int64_t parts = 1;
    KVL_TRY(kvl_gguf_int(r->gguf, "split.count", false, 0, INT64_MAX, &parts));
    if (parts > 1)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "%s: split.count %" PRId64 ": merge the parts of a split file first",
                        kvl_gguf_path(r->gguf), parts);
    return KVL_OK;
}

static kvl_status read_heads(reader *r, kvl_config *c) {
    const char *path = kvl_gguf_path(r->gguf);
    KVL_TRY(read_int(r, "attention.head_count", true, 1, KVL_MAX_HEADS, &c->n_q_heads));
    c->n_kv_heads = c->n_q_heads;
    KVL_TRY(read_int(r, "attention.head_count_kv", false, 1, KVL_MAX_HEADS, &c->n_kv_heads));
    c->head_dim = 0;
    KVL_TRY(read_int(r, "attention.key_length", false, 2, KVL_MAX_HEAD_DIM, &c->head_dim));
    if (!c->head_dim) {
        if (c->hidden_size % c->n_q_heads)
            return kvl_fail(KVL_ERR_INPUT,
                            "%s: %s.embedding_length %" PRId32 ": no multiple of %s.attention."
                            "head_count %" PRId32 ", and no attention.key_length is given",
                            path, r->arch, c->hidden_size, r->arch, c->n_q_heads);
        c->head_dim = c->hidden_size / c->n_q_heads;
    }
    int32_t value_length = c->head_dim, rotated = c->head_dim;
    KVL_TRY(read_int(r, "attention.value_length", false, 1, INT32_MAX, &value_length));
    if (value_length != c->head_dim)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "%s: %s %" PRId32 ": values as wide as keys (%" PRId32 ") are implemented",
                        path, r->key, value_length, c->head_dim);
    KVL_TRY(read_int(r, "rope.dimension_count", false, 1, INT32_MAX, &rotated));
    if (rotated != c->head_dim)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "%s: %s %" PRId32 ": partial rotary embedding (of head_dim %" PRId32
                        ") is not implemented",
                        path, r->key, rotated, c->head_dim);
    return KVL_OK;
}

/* rope_freqs.weight: what the base frequencies are divided by, as Llama 3.1 converters write it. */
static kvl_status read_divisors(const kvl_gguf *gguf, kvl_config *c) {
    const kvl_gguf_tensor *tensor = kvl_gguf_find(gguf, "rope_freqs.weight");
    if (!tensor) return KVL_OK;
    if (tensor->ggml_type != 0 || tensor->n_dims != 1 || tensor->dims[0] != c->head_dim / 2)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: tensor 'rope_freqs.weight' is %s of %" PRId64
                        ": f32 of head_dim / 2 = %" PRId32 " is needed",
                        kvl_gguf_path(gguf), kvl_ggml_type_name(tensor->ggml_type), tensor->dims[0],
                        c->head_dim / 2);
    memcpy(c->rope_divisors, tensor->data, tensor->bytes);
    c->has_rope_divisors = true;
    return KVL_OK;
}

static kvl_status read_rope(reader *r, kvl_config *c) {
    c->rope_theta = 10000.0;
    KVL_TRY(kvl_gguf_float(r->gguf, key_of(r, "rope.freq_base"), false, &c->rope_theta));
    kvl_gguf_string kind = {"none", 4};
    KVL_TRY(kvl_gguf_str(r->gguf, key_of(r, "rope.scaling.type"), false, &kind));
    if (kind.bytes == 6 && memcmp(kind.data, "linear", 6) == 0) {
        c->rope_type = KVL_ROPE_LINEAR;
        KVL_TRY(kvl_gguf_float(r->gguf, key_of(r, "rope.scaling.factor"), true, &c->rope_factor));
    } else if (kind.bytes != 4 || memcmp(kind.data, "none", 4) != 0) {
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: %s '%.*s': none and linear are implemented",
                        kvl_gguf_path(r->gguf), r->key, (int)(kind.bytes < 40 ? kind.bytes : 40),
                        kind.data);
    }
    return read_divisors(r->gguf, c);
}

/* The embedding's shape decides; the metadata must agree with it. */
static kvl_status read_vocabulary(reader *r, kvl_config *c) {
    const char *path = kvl_gguf_path(r->gguf);
    const kvl_gguf_tensor *embed = kvl_gguf_find(r->gguf, "token_embd.weight");
    if (!embed) return kvl_fail(KVL_ERR_INPUT, "%s: tensor 'token_embd.weight' is missing", path);
    if (embed->n_dims != 2 || embed->dims[1] > KVL_MAX_VOCAB)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: tensor 'token_embd.weight' has %" PRId32 " dims, dim[1] %" PRId64
                        ": 2 dims and at most %d tokens",
                        path, embed->n_dims, embed->dims[1], KVL_MAX_VOCAB);
    c->vocab_size = (int32_t)embed->dims[1];
    c->tie_embeddings = !kvl_gguf_find(r->gguf, "output.weight");
    KVL_TRY(read_int(r, "vocab_size", false, c->vocab_size, c->vocab_size, &c->vocab_size));
    uint64_t n_tokens = (uint64_t)c->vocab_size;
    const kvl_gguf_string *tokens;
    KVL_TRY(kvl_gguf_strings(r->gguf, "tokenizer.ggml.tokens", false, &n_tokens, &tokens));
    if (n_tokens != (uint64_t)c->vocab_size)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: tokenizer.ggml.tokens has %" PRIu64
                        " tokens: the embedding has %" PRId32,
                        path, n_tokens, c->vocab_size);
    return KVL_OK;
}

static kvl_status read_ids(const kvl_gguf *gguf, kvl_config *c) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t id = -1;
    KVL_TRY(kvl_gguf_int(gguf, "tokenizer.ggml.bos_token_id", false, 0, c->vocab_size - 1, &id));
    c->bos_id = (int32_t)id;
    id = -1;
    /* Padding plays no part here: an id outside the vocabulary means none. */
    KVL_TRY(
        kvl_gguf_int(gguf, "tokenizer.ggml.padding_token_id", false, INT64_MIN, INT64_MAX, &id));
    c->pad_id = id >= 0 && id < c->vocab_size ? (int32_t)id : -1;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        id = -1;
        KVL_TRY(kvl_gguf_int(gguf, ends[i], false, 0, c->vocab_size - 1, &id));
        if (id >= 0) kvl_config_add_eos(c, (int32_t)id);
    }
    return KVL_OK;
}

/* The type that most elements are stored in. */
static void name_source_weights(const kvl_gguf *gguf, kvl_config *c) {
    int64_t elems[64] = {0}, most = 0;
    for (size_t i = 0; i < kvl_gguf_n_tensors(gguf); i++) {
        const kvl_gguf_tensor *t = kvl_gguf_tensor_at(gguf, i);
        if (t->ggml_type >= 64) continue;
        elems[t->ggml_type] += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        if (elems[t->ggml_type] <= most) continue;
        most = elems[t->ggml_type];
        const char *name = kvl_ggml_type_name(t->ggml_type);
        snprintf(c->source_weights, sizeof c->source_weights, "%s", name ? name : "unknown");
    }
}

static void name_model(const kvl_gguf *gguf, kvl_config *c) {
    const char *path = kvl_gguf_path(gguf), *slash = strrchr(path, '/');
    kvl_gguf_string name = {0};
    if (kvl_gguf_str(gguf, "general.name", false, &name) != KVL_OK || !name.bytes)
        name = (kvl_gguf_string){slash ? slash + 1 : path, strlen(slash ? slash + 1 : path)};
    kvl_config_set_name(c, name.data, name.bytes);
}

kvl_status kvl_config_from_gguf(const kvl_gguf *gguf, kvl_config *config) {
    kvl_config *c = config;
    *c = (kvl_config){.bos_id = -1, .pad_id = -1};
    reader r = {.gguf = gguf};
    KVL_TRY(read_arch(&r, &c->family));
    KVL_TRY(refuse_features(&r));
    KVL_TRY(read_int(&r, "block_count", true, 1, KVL_MAX_LAYERS, &c->n_layers));
    KVL_TRY(read_int(&r, "embedding_length", true, 1, KVL_MAX_HIDDEN, &c->hidden_size));
    KVL_TRY(
        read_int(&r, "feed_forward_length", true, 1, KVL_MAX_INTERMEDIATE, &c->intermediate_size));
    KVL_TRY(read_int(&r, "context_length", true, 1, KVL_MAX_POSITION, &c->max_position));
    KVL_TRY(read_heads(&r, c));
    double eps = 0;
    KVL_TRY(kvl_gguf_float(gguf, key_of(&r, "attention.layer_norm_rms_epsilon"), true, &eps));
    c->rms_norm_eps = (float)eps;
    KVL_TRY(read_int(&r, "attention.sliding_window", false, 0, INT32_MAX, &c->sliding_window));
    if (c->family == KVL_FAMILY_LLAMA && c->sliding_window) c->family = KVL_FAMILY_MISTRAL;
    c->qkv_bias = c->family == KVL_FAMILY_QWEN2;
    c->qk_norm = c->family == KVL_FAMILY_QWEN3;
    KVL_TRY(read_rope(&r, c));
    KVL_TRY(read_vocabulary(&r, c));
    KVL_TRY(read_ids(gguf, c));
    name_source_weights(gguf, c);
    name_model(gguf, c);
    kvl_status status = kvl_config_check(c, "gguf");
    return status == KVL_OK ? status : kvl_fail_prefix(status, "%s", kvl_gguf_path(gguf));
}
