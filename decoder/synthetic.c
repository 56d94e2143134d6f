/* Models without a file: real shapes, seeded weights. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/names.h"
#include "core/rng.h"
#include "decoder/model.h"
#include "decoder/name_index.h"
#include "decoder/tensor_spec.h"

/* Standard deviation of weights and biases; norms are 1. */
#define WEIGHT_SIGMA 0.02f

/* Shapes and constants of the published config.json of each model (Mistral-7B: v0.1, the one with
 * a window). tiny has a head_dim that is not hidden / heads, so that nothing can rely on it. */
static const struct {
    const char *name;
    kvl_config config;
} presets[] = {
    {"tiny",
     {.n_layers = 2,
      .hidden_size = 64,
      .intermediate_size = 160,
      .n_q_heads = 4,
      .n_kv_heads = 2,
      .head_dim = 32,
      .vocab_size = 512,
      .max_position = 4096,
      .rms_norm_eps = 1e-5f,
      .tie_embeddings = true,
      .rope_theta = 10000.0,
      .bos_id = 1,
      .pad_id = -1,
      .eos_ids = {2},
      .n_eos = 1}},
    {"SmolLM2-135M",
     {.n_layers = 30,
      .hidden_size = 576,
      .intermediate_size = 1536,
      .n_q_heads = 9,
      .n_kv_heads = 3,
      .head_dim = 64,
      .vocab_size = 49152,
      .max_position = 8192,
      .rms_norm_eps = 1e-5f,
      .tie_embeddings = true,
      .rope_theta = 100000.0,
      .bos_id = 1,
      .pad_id = 2,
      .eos_ids = {2},
      .n_eos = 1}},
    {"Llama-3.2-1B",
     {.n_layers = 16,
      .hidden_size = 2048,
      .intermediate_size = 8192,
      .n_q_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 64,
      .vocab_size = 128256,
      .max_position = 131072,
      .rms_norm_eps = 1e-5f,
      .tie_embeddings = true,
      .rope_type = KVL_ROPE_LLAMA3,
      .rope_theta = 500000.0,
      .rope_factor = 32.0,
      .rope_low_freq_factor = 1.0,
      .rope_high_freq_factor = 4.0,
      .rope_original_max_position = 8192,
      .bos_id = 128000,
      .pad_id = -1,
      .eos_ids = {128001},
      .n_eos = 1}},
    {"Llama-3.1-8B",
     {.n_layers = 32,
      .hidden_size = 4096,
      .intermediate_size = 14336,
      .n_q_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 128,
      .vocab_size = 128256,
      .max_position = 131072,
      .rms_norm_eps = 1e-5f,
      .rope_type = KVL_ROPE_LLAMA3,
      .rope_theta = 500000.0,
      .rope_factor = 8.0,
      .rope_low_freq_factor = 1.0,
      .rope_high_freq_factor = 4.0,
      .rope_original_max_position = 8192,
      .bos_id = 128000,
      .pad_id = -1,
      .eos_ids = {128001},
      .n_eos = 1}},
    {"Qwen2.5-7B",
     {.family = KVL_FAMILY_QWEN2,
      .n_layers = 28,
      .hidden_size = 3584,
      .intermediate_size = 18944,
      .n_q_heads = 28,
      .n_kv_heads = 4,
      .head_dim = 128,
      .vocab_size = 152064,
      .max_position = 131072,
      .rms_norm_eps = 1e-6f,
      .qkv_bias = true,
      .rope_theta = 1000000.0,
      .bos_id = 151643,
      .pad_id = -1,
      .eos_ids = {151643},
      .n_eos = 1}},
    {"Mistral-7B",
     {.family = KVL_FAMILY_MISTRAL,
      .n_layers = 32,
      .hidden_size = 4096,
      .intermediate_size = 14336,
      .n_q_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 128,
      .vocab_size = 32000,
      .max_position = 32768,
      .rms_norm_eps = 1e-5f,
      .sliding_window = 4096,
      .rope_theta = 10000.0,
      .bos_id = 1,
      .pad_id = -1,
      .eos_ids = {2},
      .n_eos = 1}},
};
enum { N_PRESETS = sizeof presets / sizeof *presets };

size_t kvl_synthetic_count(void) {
    return N_PRESETS;
}

const char *kvl_synthetic_at(size_t index) {
    return presets[index].name;
}

kvl_status kvl_synthetic_config(const char *name, kvl_config *config) {
    const char *names[N_PRESETS];
    for (size_t i = 0; i < N_PRESETS; i++) names[i] = presets[i].name;
    int number = kvl_names_find(name, names, N_PRESETS);
    if (number < 0) {
        char line[400];
        kvl_names_unknown(line, sizeof line, "synthetic model", name, names, N_PRESETS);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *config = presets[number].config;
    snprintf(config->name, sizeof config->name, "synthetic:%s", name);
    snprintf(config->source_weights, sizeof config->source_weights, "synthetic");
    return kvl_config_check(config, "hf");
}

typedef struct synthetic {
    kvl_tensor_spec *specs; /* [kvl_tensor_spec_count] */
    kvl_name_index index;   /* name -> spec */
    uint64_t seed;
} synthetic;

static const kvl_tensor_spec *find(const kvl_source *source, const char *name) {
    const synthetic *self = source->self;
    int64_t number = kvl_name_index_find(&self->index, name, strlen(name));
    return number < 0 ? NULL : &self->specs[number];
}

static bool shape(const kvl_source *source, const char *name, int64_t *rows, int64_t *cols) {
    const kvl_tensor_spec *spec = find(source, name);
    if (!spec) return false;
    *rows = spec->rows;
    *cols = spec->cols;
    return true;
}

/* Elements first .. first + n of a stream: each is the sum of the four 16-bit parts of one 64-bit
 * counter hash (SplitMix64's, as in core/rng.h), which is close to normal (Irwin-Hall of four,
 * within +-3.46 sigma) and several times cheaper than a logarithm and a cosine. */
static void fill_weights(uint64_t key, uint64_t first, int64_t n, float *out) {
    const float scale = WEIGHT_SIGMA / 37837.2f; /* sqrt(4 * (65536^2 - 1) / 12) = 37837.2 */
    for (int64_t i = 0; i < n; i++) {
        uint64_t z = key + (first + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        uint64_t pairs = (z & 0x0000ffff0000ffffu) + (z >> 16 & 0x0000ffff0000ffffu);
        int32_t sum = (int32_t)(pairs & 0xffffffffu) + (int32_t)(pairs >> 32);
        out[i] = (float)(sum - 2 * 65535) * scale;
    }
}

static kvl_status read_rows(const kvl_source *source, const char *name, int64_t first,
                            int64_t n_rows, float *out) {
    const synthetic *self = source->self;
    const kvl_tensor_spec *spec = find(source, name);
    if (!spec) return kvl_fail(KVL_ERR_INPUT, "tensor '%s' is not in the model", name);
    if (first < 0 || n_rows < 0 || first > spec->rows || n_rows > spec->rows - first)
        return kvl_fail(KVL_ERR_INPUT,
                        "tensor '%s': rows %" PRId64 " + %" PRId64 ": it has %" PRId64, name, first,
                        n_rows, spec->rows);
    int64_t n = n_rows * spec->cols;
    if (spec->kind == KVL_TENSOR_NORM) {
        for (int64_t i = 0; i < n; i++) out[i] = 1.0f;
        return KVL_OK;
    }
    /* The stream is named, not numbered: the same tensor in another shape begins alike. */
    uint64_t stream = XXH64(name, strlen(name), 0);
    fill_weights(kvl_rng_make(self->seed, stream).key, (uint64_t)(first * spec->cols), n, out);
    return KVL_OK;
}

static void free_self(synthetic *self) {
    if (!self) return;
    kvl_name_index_free(&self->index);
    free(self->specs);
    free(self);
}

static void close_source(kvl_source *source) {
    free_self(source->self);
    *source = (kvl_source){0};
}

kvl_status kvl_synthetic_source(const kvl_config *config, uint64_t seed, kvl_source *source) {
    synthetic *self = calloc(1, sizeof *self);
    size_t n = kvl_tensor_spec_count(config);
    if (!self || !(self->specs = calloc(n, sizeof *self->specs)) ||
        !kvl_name_index_init(&self->index, n)) {
        free_self(self);
        return kvl_fail(KVL_ERR_OOM, "%s: out of memory", config->name);
    }
    self->seed = seed;
    for (size_t i = 0; i < n; i++) {
        kvl_tensor_spec_at(config, i, &self->specs[i]);
        kvl_name_index_add(&self->index, self->specs[i].name, strlen(self->specs[i].name));
    }
    *source = (kvl_source){self, shape, read_rows, close_source, NULL};
    return KVL_OK;
}
