#define _GNU_SOURCE
#include "decoder/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/file.h"
#include "decoder/json.h"
#include "decoder/shards.h"

enum { MAX_TEMPLATE_BYTES = 1 << 20 };

/* ---- digest ---- */

/* Models up to WHOLE_BYTES are hashed whole; beyond, SAMPLE_BYTES of each CHUNK_BYTES, so that
 * opening one costs no full read from disk. */
enum { SAMPLE_BYTES = 64 << 10, CHUNK_BYTES = 1 << 20 };
static const uint64_t WHOLE_BYTES = (uint64_t)4 << 30;

static kvl_status digest_file(XXH64_state_t *hash, const char *path, uint64_t sample_bytes) {
    kvl_file file;
    KVL_TRY(kvl_file_open(path, &file));
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    XXH64_update(hash, name, strlen(name) + 1);
    XXH64_update(hash, &file.bytes, sizeof file.bytes);
    for (uint64_t at = 0; at < file.bytes; at += CHUNK_BYTES) {
        uint64_t left = file.bytes - at;
        XXH64_update(hash, file.data + at, left < sample_bytes ? left : sample_bytes);
        /* Or the whole file would count as this process's peak of resident memory. */
        madvise((void *)(file.data + at), left < CHUNK_BYTES ? left : CHUNK_BYTES, MADV_DONTNEED);
    }
    kvl_file_close(&file);
    return KVL_OK;
}

/* Digest of the files, in this order, into the model. Missing ones are passed over. */
static kvl_status digest_files(kvl_model *model, const char *const *paths, size_t n_paths) {
    XXH64_state_t *hash = XXH64_createState();
    if (!hash) return kvl_fail(KVL_ERR_OOM, "digest: out of memory");
    XXH64_reset(hash, 0);
    struct stat info;
    for (size_t i = 0; i < n_paths; i++)
        if (stat(paths[i], &info) == 0) model->file_bytes += (uint64_t)info.st_size;
    uint64_t sample_bytes = model->file_bytes <= WHOLE_BYTES ? CHUNK_BYTES : SAMPLE_BYTES;
    kvl_status status = KVL_OK;
    for (size_t i = 0; i < n_paths && status == KVL_OK; i++)
        if (access(paths[i], F_OK) == 0) status = digest_file(hash, paths[i], sample_bytes);
    snprintf(model->digest, sizeof model->digest, "%016" PRIx64, (uint64_t)XXH64_digest(hash));
    XXH64_freeState(hash);
    return status;
}

/* ---- parts that may be missing ---- */

/* Keeps a refused or missing tokenizer's reason; memory running out still fails. */
static kvl_status without_tokenizer(kvl_model *model, kvl_status status, const char *why) {
    if (status == KVL_ERR_OOM) return status;
    model->tokenizer = NULL;
    model->tokenizer_why = strdup(why);
    return model->tokenizer_why ? KVL_OK : kvl_fail(KVL_ERR_OOM, "tokenizer: out of memory");
}

static kvl_status keep_template(kvl_model *model, const char *label, const char *text,
                                uint64_t bytes) {
    if (!bytes) return KVL_OK;
    if (bytes > MAX_TEMPLATE_BYTES || !kvl_utf8_valid(text, bytes) || memchr(text, 0, bytes))
        return kvl_fail(KVL_ERR_INPUT,
                        "%s: chat template of %" PRIu64
                        " bytes: UTF-8 without NUL, at most %d bytes, is needed",
                        label, bytes, MAX_TEMPLATE_BYTES);
    model->chat_template = strndup(text, bytes);
    return model->chat_template ? KVL_OK : kvl_fail(KVL_ERR_OOM, "%s: out of memory", label);
}

/* ---- GGUF ---- */

static kvl_status finish_gguf(kvl_model *model, const kvl_gguf *gguf, const char *path) {
    kvl_gguf_string text = {0};
    KVL_TRY(kvl_gguf_str(gguf, "tokenizer.chat_template", false, &text));
    KVL_TRY(keep_template(model, path, text.data, text.bytes));
    if (!kvl_gguf_has(gguf, "tokenizer.ggml.model")) {
        KVL_TRY(without_tokenizer(model, KVL_OK, "the file holds no tokenizer"));
    } else {
        kvl_status status = kvl_tokenizer_from_gguf(gguf, &model->tokenizer);
        if (status != KVL_OK) KVL_TRY(without_tokenizer(model, status, kvl_message()));
    }
    return digest_files(model, &path, 1);
}

static kvl_status open_gguf(kvl_model *model, const char *path) {
    kvl_gguf *gguf;
    KVL_TRY(kvl_gguf_open(path, &gguf));
    kvl_status status = kvl_config_from_gguf(gguf, &model->config);
    if (status == KVL_OK) status = kvl_source_from_gguf(gguf, &model->config, &model->source);
    if (status != KVL_OK) {
        kvl_gguf_close(gguf);
        return status;
    }
    return finish_gguf(model, gguf, path); /* the source owns gguf now */
}

/* ---- Hugging Face folder ---- */

/* tokenizer_config.json holds the template as text, or as a list of named ones. */
static kvl_status template_of_config(kvl_model *model, const char *path) {
    json_t *root;
    KVL_TRY(kvl_json_load(path, &root));
    const json_t *value = json_object_get(root, "chat_template"), *item;
    for (size_t i = 0; i < json_array_size(value); i++) {
        item = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        if (!name || strcmp(name, "default") != 0) continue;
        value = json_object_get(item, "template");
        break;
    }
    kvl_status status = KVL_OK;
    if (json_is_string(value))
        status = keep_template(model, path, json_string_value(value), json_string_length(value));
    json_decref(root);
    return status;
}

static kvl_status template_of_file(kvl_model *model, const char *path) {
    kvl_file file;
    KVL_TRY(kvl_file_open(path, &file));
    kvl_status status = keep_template(model, path, (const char *)file.data, file.bytes);
    kvl_file_close(&file);
    return status;
}

/* The files beside the weights. */
enum { F_CONFIG, F_GENERATION, F_TOKENIZER, F_TOKENIZER_CONFIG, F_TEMPLATE, N_SIDE_FILES };
static const char *const side_files[N_SIDE_FILES] = {"config.json", "generation_config.json",
                                                     "tokenizer.json", "tokenizer_config.json",
                                                     "chat_template.jinja"};

static kvl_status finish_dir(kvl_model *model, const char *dir, char **side) {
    if (access(side[F_TEMPLATE], F_OK) == 0) {
        KVL_TRY(template_of_file(model, side[F_TEMPLATE]));
    } else if (access(side[F_TOKENIZER_CONFIG], F_OK) == 0) {
        KVL_TRY(template_of_config(model, side[F_TOKENIZER_CONFIG]));
    }
    if (access(side[F_TOKENIZER], F_OK) != 0)
        return without_tokenizer(model, KVL_OK, "the folder holds no tokenizer.json");
    kvl_status status = kvl_tokenizer_from_dir(dir, &model->tokenizer);
    return status == KVL_OK ? status : without_tokenizer(model, status, kvl_message());
}

static kvl_status digest_dir(kvl_model *model, char **side, const kvl_shards *shards) {
    size_t n = N_SIDE_FILES + shards->n_files;
    const char **paths = malloc(n * sizeof *paths);
    if (!paths) return kvl_fail(KVL_ERR_OOM, "digest: out of memory");
    for (size_t i = 0; i < n; i++)
        paths[i] = i < N_SIDE_FILES ? side[i] : shards->paths[i - N_SIDE_FILES];
    kvl_status status = digest_files(model, paths, n);
    free(paths);
    return status;
}

static kvl_status open_dir_parts(kvl_model *model, const char *dir, char **side) {
    KVL_TRY(kvl_config_from_dir(dir, &model->config));
    kvl_shards shards;
    KVL_TRY(kvl_shards_open(dir, &shards));
    kvl_status status = digest_dir(model, side, &shards);
    if (status == KVL_OK)
        status = kvl_kv_scales_from_shards(dir, &shards, &model->config, &model->kv_scales);
    if (status == KVL_OK)
        status = kvl_source_from_shards(dir, &shards, &model->config, model->config.source_weights,
                                        &model->source);
    if (status != KVL_OK) {
        kvl_shards_close(&shards);
        return status;
    }
    return finish_dir(model, dir, side);
}

static kvl_status open_dir(kvl_model *model, const char *dir) {
    char *side[N_SIDE_FILES] = {0};
    kvl_status status = KVL_OK;
    for (int i = 0; i < N_SIDE_FILES && status == KVL_OK; i++) {
        if (asprintf(&side[i], "%s/%s", dir, side_files[i]) >= 0) continue;
        side[i] = NULL;
        status = kvl_fail(KVL_ERR_OOM, "%s: out of memory", dir);
    }
    if (status == KVL_OK) status = open_dir_parts(model, dir, side);
    for (int i = 0; i < N_SIDE_FILES; i++) free(side[i]);
    return status;
}

/* ---- synthetic ---- */

static kvl_status open_synthetic(kvl_model *model, const char *name, uint64_t seed) {
    KVL_TRY(kvl_synthetic_config(name, &model->config));
    KVL_TRY(kvl_synthetic_source(&model->config, seed, &model->source));
    uint64_t hash = XXH64(model->config.name, strlen(model->config.name), seed);
    snprintf(model->digest, sizeof model->digest, "%016" PRIx64, hash);
    return without_tokenizer(model, KVL_OK, "a synthetic model has no tokenizer");
}

/* The file says more than the tensors: scales by head. */
static kvl_status load_kv_scales(kvl_model *model, const char *spec) {
    kvl_kv_scales *by_head = NULL;
    KVL_TRY(kvl_kv_scales_load(spec, &model->config, &by_head));
    if (!by_head) return KVL_OK;
    kvl_kv_scales_free(model->kv_scales);
    model->kv_scales = by_head;
    return KVL_OK;
}

kvl_status kvl_model_open(const char *spec, uint64_t seed, kvl_model **out) {
    *out = NULL;
    kvl_model *model = calloc(1, sizeof *model);
    if (!model) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", spec);
    struct stat info;
    kvl_status status;
    if (strncmp(spec, "synthetic:", 10) == 0)
        status = open_synthetic(model, spec + 10, seed);
    else if (stat(spec, &info) == 0 && S_ISDIR(info.st_mode))
        status = open_dir(model, spec);
    else
        status = open_gguf(model, spec);
    if (status == KVL_OK) status = load_kv_scales(model, spec);
    if (status == KVL_OK)
        *out = model;
    else
        kvl_model_close(model);
    return status;
}

void kvl_model_close(kvl_model *model) {
    if (!model) return;
    /* The tokenizer may read from the file that the source holds. */
    kvl_tokenizer_free(model->tokenizer);
    free(model->tokenizer_why);
    free(model->chat_template);
    kvl_kv_scales_free(model->kv_scales);
    if (model->source.close) model->source.close(&model->source);
    free(model);
}
