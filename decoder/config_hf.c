/* kvl_config from config.json and generation_config.json, as Transformers 4 and 5 write them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/buffer.h"
#include "decoder/config.h"
#include "decoder/json.h"

static kvl_status unsupported(const char *label, const char *what) {
    return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: %s: not implemented", label, what);
}

static kvl_status read_int(const char *label, const json_t *root, const char *key, bool required,
                           int32_t min, int32_t max, int32_t *out) {
    int64_t value = *out;
    KVL_TRY(kvl_json_int(label, root, key, required, min, max, &value));
    *out = (int32_t)value;
    return KVL_OK;
}

/* The name that says which decoder this is: the one entry of "architectures". */
static kvl_status read_family(const char *label, const json_t *root, kvl_family *out) {
    static const struct {
        const char *name, *model_type;
        kvl_family family;
    } known[] = {{"LlamaForCausalLM", "llama", KVL_FAMILY_LLAMA},
                 {"MistralForCausalLM", "mistral", KVL_FAMILY_MISTRAL},
                 {"Qwen2ForCausalLM", "qwen2", KVL_FAMILY_QWEN2},
                 {"Qwen3ForCausalLM", "qwen3", KVL_FAMILY_QWEN3}};
    const json_t *list = json_object_get(root, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (!name || json_array_size(list) != 1)
        return kvl_fail(KVL_ERR_INPUT, "%s: architectures: an array of one name is needed", label);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i].name) != 0) continue;
        const char *type = known[i].model_type;
        KVL_TRY(kvl_json_string(label, root, "model_type", false, &type));
        if (strcmp(type, known[i].model_type) != 0)
            return kvl_fail(KVL_ERR_INPUT, "%s: model_type %.60s: architectures %s needs %s", label,
                            type, name, known[i].model_type);
        *out = known[i].family;
        return KVL_OK;
    }
    return kvl_fail(KVL_ERR_UNSUPPORTED,
                    "%s: architectures %.60s: LlamaForCausalLM, MistralForCausalLM, "
                    "Qwen2ForCausalLM and Qwen3ForCausalLM are implemented",
                    label, name);
}

/* Features that change the arithmetic: refused where the file turns them on. */
static kvl_status refuse_features(const char *label, const json_t *root) {
    static const char *const flags[] = {"attention_bias", "mlp_bias"};
    static const char *const counts[] = {"num_local_experts",
                                         "num_experts",
                                         "n_routed_experts",
                                         "attn_logit_softcapping",
                                         "final_logit_softcapping",
                                         "query_pre_attn_scalar",
                                         "logit_scale"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool on = false;
        KVL_TRY(kvl_json_bool(label, root, flags[i], false, &on));
        if (!on) continue;
        char text[64];
        snprintf(text, sizeof text, "%s true", flags[i]);
        return unsupported(label, text);
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const json_t *value = json_object_get(root, counts[i]);
        if (!value || json_is_null(value) || json_number_value(value) == 0.0) continue;
        return unsupported(label, counts[i]);
    }
    const json_t *quantization = json_object_get(root, "quantization_config");
    const char *method = json_string_value(json_object_get(quantization, "quant_method"));
    bool is_4bit = json_is_true(json_object_get(quantization, "load_in_4bit"));
    /* Each tensor of bitsandbytes says itself how it is stored (decoder/bnb.h). */
    bool is_bnb = method && strcmp(method, "bitsandbytes") == 0 && is_4bit;
    if (json_is_object(quantization) && !is_bnb) {
        char text[96];
        snprintf(text, sizeof text, "quantization_config (quant_method %.32s)",
                 method ? method : "unknown");
        return unsupported(label, text);
    }
    const char *act = "silu";
    KVL_TRY(kvl_json_string(label, root, "hidden_act", false, &act));
    if (strcmp(act, "silu") != 0)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: hidden_act %.32s: silu is implemented", label,
                        act);
    return KVL_OK;
}

static kvl_status read_sizes(const char *label, const json_t *root, kvl_config *c) {
    const struct {
        const char *key;
        int32_t *out, max;
    } sizes[] = {
        {"num_hidden_layers", &c->n_layers, KVL_MAX_LAYERS},
        {"hidden_size", &c->hidden_size, KVL_MAX_HIDDEN},
        {"intermediate_size", &c->intermediate_size, KVL_MAX_INTERMEDIATE},
        {"num_attention_heads", &c->n_q_heads, KVL_MAX_HEADS},
        {"vocab_size", &c->vocab_size, KVL_MAX_VOCAB},
        {"max_position_embeddings", &c->max_position, KVL_MAX_POSITION},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        KVL_TRY(read_int(label, root, sizes[i].key, true, 1, sizes[i].max, sizes[i].out));
    /* Only Llama configurations from before grouped heads leave the key out. */
    bool named = json_object_get(root, "num_key_value_heads") != NULL;
    if (!named && c->family != KVL_FAMILY_LLAMA)
        return kvl_fail(KVL_ERR_INPUT, "%s: num_key_value_heads is missing", label);
    c->n_kv_heads = c->n_q_heads;
    KVL_TRY(read_int(label, root, "num_key_value_heads", false, 1, KVL_MAX_HEADS, &c->n_kv_heads));
    c->head_dim = 0;
    KVL_TRY(read_int(label, root, "head_dim", false, 2, KVL_MAX_HEAD_DIM, &c->head_dim));
    if (!c->head_dim) {
        if (c->hidden_size % c->n_q_heads)
            return kvl_fail(KVL_ERR_INPUT,
                            "%s: hidden_size %" PRId32
                            ": no multiple of num_attention_heads %" PRId32
                            ", and no head_dim is given",
                            label, c->hidden_size, c->n_q_heads);
        c->head_dim = c->hidden_size / c->n_q_heads;
    }
    double eps = 1e-6;
    KVL_TRY(kvl_json_number(label, root, "rms_norm_eps", false, 0.0, 1.0, &eps));
    c->rms_norm_eps = (float)eps;
    return kvl_json_bool(label, root, "tie_word_embeddings", false, &c->tie_embeddings);
}

/* The scaling of one object, under "rope_type" or its older name "type"; one that is not
 * implemented is refused by name. */
static kvl_status read_rope_kind(const char *label, const json_t *rope, const char **kind) {
    const char *older = NULL, *newer = NULL;
    KVL_TRY(kvl_json_string(label, rope, "type", false, &older));
    KVL_TRY(kvl_json_string(label, rope, "rope_type", false, &newer));
    if (older && newer && strcmp(older, newer) != 0)
        return kvl_fail(KVL_ERR_INPUT, "%s: type %.32s contradicts rope_type %.32s", label, older,
                        newer);
    *kind = newer ? newer : older ? older : "default";
    if (strcmp(*kind, "default") != 0 && strcmp(*kind, "linear") != 0 &&
        strcmp(*kind, "llama3") != 0)
        return kvl_fail(KVL_ERR_UNSUPPORTED,
                        "%s: rope_type %.32s: default, linear and llama3 are implemented", label,
                        *kind);
    return KVL_OK;
}

/* A number that two objects give must be the same in both. */
static kvl_status same_number(const char *label, const char *key, const char *name_a,
                              const json_t *a, const char *name_b, const json_t *b) {
    double x = 0, y = 0;
    KVL_TRY(kvl_json_number(label, a, key, false, -1e300, 1e300, &x));
    KVL_TRY(kvl_json_number(label, b, key, false, -1e300, 1e300, &y));
    const json_t *in_a = json_object_get(a, key), *in_b = json_object_get(b, key);
    bool both = in_a && in_b && !json_is_null(in_a) && !json_is_null(in_b);
    if (!both || x == y) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "%s: %s%s %g contradicts %s%s %g", label, name_a, key, x, name_b,
                    key, y);
}

/* Files that both generations of Transformers are to read hold both objects: they must agree. */
static kvl_status check_both_ropes(const char *label, const json_t *parameters,
                                   const json_t *scaling) {
    static const char *const numbers[] = {"factor", "low_freq_factor", "high_freq_factor",
                                          "original_max_position_embeddings", "rope_theta"};
    const char *a, *b;
    KVL_TRY(read_rope_kind(label, parameters, &a));
    KVL_TRY(read_rope_kind(label, scaling, &b));
    if (strcmp(a, b) != 0)
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: rope_parameters of type %s contradict rope_scaling of type %s", label,
                        a, b);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        KVL_TRY(same_number(label, numbers[i], "rope_parameters.", parameters, "rope_scaling.",
                            scaling));
    return KVL_OK;
}

/* The object that tells the scaling: rope_parameters (Transformers 5, with rope_theta inside) or
 * rope_scaling (4). NULL: neither, or null. */
static kvl_status find_rope(const char *label, const json_t *root, const json_t **out) {
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    const json_t *found[2];
    for (int i = 0; i < 2; i++) {
        found[i] = json_object_get(root, keys[i]);
        if (json_is_null(found[i])) found[i] = NULL;
        if (found[i] && !json_is_object(found[i]))
            return kvl_fail(KVL_ERR_INPUT, "%s: %s is not an object", label, keys[i]);
    }
    *out = found[0] ? found[0] : found[1];
    return found[0] && found[1] ? check_both_ropes(label, found[0], found[1]) : KVL_OK;
}

static kvl_status read_rope(const char *label, const json_t *root, kvl_config *c) {
    const json_t *rope = NULL;
    KVL_TRY(find_rope(label, root, &rope));
    const char *kind;
    double partial = 1.0;
    c->rope_theta = 10000.0;
    KVL_TRY(kvl_json_number(label, root, "rope_theta", false, 1.0, 1e15, &c->rope_theta));
    KVL_TRY(kvl_json_number(label, rope, "rope_theta", false, 1.0, 1e15, &c->rope_theta));
    KVL_TRY(kvl_json_number(label, root, "partial_rotary_factor", false, 0.0, 1e3, &partial));
    KVL_TRY(kvl_json_number(label, rope, "partial_rotary_factor", false, 0.0, 1e3, &partial));
    if (partial != 1.0)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: partial_rotary_factor %g: 1 is implemented",
                        label, partial);
    if (json_object_get(rope, "full_attention") || json_object_get(rope, "sliding_attention"))
        return unsupported(label, "rope_parameters for each layer type");
    KVL_TRY(read_rope_kind(label, rope, &kind));
    KVL_TRY(same_number(label, "rope_theta", "", root, "rope_parameters.", rope));
    c->rope_type = KVL_ROPE_DEFAULT;
    if (strcmp(kind, "default") == 0) return KVL_OK;
    KVL_TRY(kvl_json_number(label, rope, "factor", true, 1.0, 1e6, &c->rope_factor));
    c->rope_type = KVL_ROPE_LINEAR;
    if (strcmp(kind, "linear") == 0) return KVL_OK;
    c->rope_type = KVL_ROPE_LLAMA3;
    KVL_TRY(
        kvl_json_number(label, rope, "low_freq_factor", true, 1e-3, 1e6, &c->rope_low_freq_factor));
    KVL_TRY(kvl_json_number(label, rope, "high_freq_factor", true, 1e-3, 1e6,
                            &c->rope_high_freq_factor));
    return read_int(label, rope, "original_max_position_embeddings", true, 1, KVL_MAX_POSITION,
                    &c->rope_original_max_position);
}

/* layer_types: all equal, or refused. *sliding tells which. */
static kvl_status read_layer_types(const char *label, const json_t *types, const kvl_config *c,
                                   bool *sliding) {
    if (!json_is_array(types) || json_array_size(types) != (size_t)c->n_layers)
        return kvl_fail(KVL_ERR_INPUT, "%s: layer_types: an array of %" PRId32 " names is needed",
                        label, c->n_layers);
    const char *first = json_string_value(json_array_get(types, 0));
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *name = json_string_value(json_array_get(types, i));
        if (!name) return kvl_fail(KVL_ERR_INPUT, "%s: layer_types[%zu] is no name", label, i);
        if (strcmp(name, "full_attention") != 0 && strcmp(name, "sliding_attention") != 0)
            return kvl_fail(KVL_ERR_UNSUPPORTED,
                            "%s: layer_types[%zu] %.40s: full_attention and "
                            "sliding_attention are implemented",
                            label, i, name);
        if (strcmp(name, first) != 0)
            return unsupported(label, "mixed layer_types (full and sliding attention)");
    }
    *sliding = strcmp(first, "sliding_attention") == 0;
    return KVL_OK;
}

/* The window of all layers. Mistral applies sliding_window to every layer; Qwen to layers from
 * max_window_layers on, if use_sliding_window; layer_types overrules both. */
static kvl_status read_window(const char *label, const json_t *root, kvl_config *c) {
    c->sliding_window = 0;
    if (c->family == KVL_FAMILY_LLAMA) return KVL_OK;
    bool mistral = c->family == KVL_FAMILY_MISTRAL, used = mistral;
    int32_t window = 0, from = 28;
    if (!json_object_get(root, "sliding_window")) window = 4096; /* both families' default */
    KVL_TRY(read_int(label, root, "sliding_window", false, 0, INT32_MAX, &window));
    KVL_TRY(kvl_json_bool(label, root, "use_sliding_window", false, &used));
    KVL_TRY(read_int(label, root, "max_window_layers", false, 0, INT32_MAX, &from));
    const json_t *types = json_object_get(root, "layer_types");
    bool sliding = used && window > 0;
    if (types && !json_is_null(types)) {
        bool all = false;
        KVL_TRY(read_layer_types(label, types, c, &all));
        if (all && !sliding)
            return kvl_fail(KVL_ERR_INPUT,
                            "%s: layer_types sliding_attention without a "
                            "sliding_window in use",
                            label);
        sliding = all;
    } else if (sliding && !mistral) {
        if (from > 0 && from < c->n_layers)
            return unsupported(label, "max_window_layers that gives some layers a window");
        sliding = from == 0;
    }
    if (sliding) c->sliding_window = window;
    return KVL_OK;
}

/* eos_token_id is a number, a list of numbers, or null. */
static kvl_status read_eos(const char *label, const json_t *root, kvl_config *c) {
    const json_t *value = json_object_get(root, "eos_token_id");
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (!value || json_is_null(value)) return KVL_OK;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        json_int_t number = json_integer_value(id);
        if (!json_is_integer(id) || number < 0 || number >= c->vocab_size)
            return kvl_fail(KVL_ERR_INPUT,
                            "%s: eos_token_id[%zu] %" PRId64 ": a token from 0 to %" PRId32
                            " is needed",
                            label, i, (int64_t)number, c->vocab_size - 1);
        if (!kvl_config_add_eos(c, (int32_t)number))
            return kvl_fail(KVL_ERR_INPUT, "%s: eos_token_id: more than %d end tokens", label,
                            KVL_MAX_EOS);
    }
    return KVL_OK;
}

static kvl_status read_ids(const char *label, const json_t *root, kvl_config *c) {
    c->bos_id = -1;
    KVL_TRY(read_int(label, root, "bos_token_id", false, 0, c->vocab_size - 1, &c->bos_id));
    /* Padding plays no part here: older files hold -1, or one past the vocabulary, for none. */
    const json_t *pad = json_object_get(root, "pad_token_id");
    json_int_t id = json_is_integer(pad) ? json_integer_value(pad) : -1;
    c->pad_id = id >= 0 && id < c->vocab_size ? (int32_t)id : -1;
    return read_eos(label, root, c);
}

static kvl_status read_config(const char *label, const json_t *root, kvl_config *c) {
    KVL_TRY(read_family(label, root, &c->family));
    KVL_TRY(refuse_features(label, root));
    KVL_TRY(read_sizes(label, root, c));
    KVL_TRY(read_rope(label, root, c));
    KVL_TRY(read_window(label, root, c));
    KVL_TRY(read_ids(label, root, c));
    c->qkv_bias = c->family == KVL_FAMILY_QWEN2;
    c->qk_norm = c->family == KVL_FAMILY_QWEN3;
    kvl_status status = kvl_config_check(c, "hf");
    return status == KVL_OK ? status : kvl_fail_prefix(status, "%s", label);
}

/* End tokens of generation_config.json, which chat models keep there. */
static kvl_status read_generation_config(const char *label, const json_t *root, kvl_config *c) {
    if (!json_is_object(root)) return kvl_fail(KVL_ERR_INPUT, "%s: no JSON object", label);
    return read_eos(label, root, c);
}

/* Loads dir/name and hands it to `use`. An optional file may be missing. */
static kvl_status with_json(const char *dir, const char *name, bool required,
                            kvl_status (*use)(const char *, const json_t *, kvl_config *),
                            kvl_config *c) {
    kvl_buffer path = {0};
    kvl_buffer_printf(&path, "%s/%s", dir, name);
    if (path.failed || !path.data) {
        kvl_buffer_free(&path);
        return kvl_fail(KVL_ERR_OOM, "%s: out of memory", dir);
    }
    kvl_status status = KVL_OK;
    json_t *root = NULL;
    if (required || access(path.data, F_OK) == 0) status = kvl_json_load(path.data, &root);
    if (root) {
        status = use(path.data, root, c);
        json_decref(root);
    }
    kvl_buffer_free(&path);
    return status;
}

/* The folder's own name. */
static void name_model(const char *dir, kvl_config *c) {
    size_t end = strlen(dir);
    while (end > 1 && dir[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && dir[begin - 1] != '/') begin--;
    kvl_config_set_name(c, dir + begin, end - begin);
}

kvl_status kvl_config_from_dir(const char *dir, kvl_config *config) {
    *config = (kvl_config){.bos_id = -1, .pad_id = -1};
    name_model(dir, config);
    KVL_TRY(with_json(dir, "config.json", true, read_config, config));
    return with_json(dir, "generation_config.json", false, read_generation_config, config);
}
