/* A model as found: configuration, tensors, tokenizer and chat template of a GGUF file, a Hugging
 * Face directory, or a synthetic preset. Nothing is decoded until asked for. */
#ifndef KVL_DECODER_MODEL_H
#define KVL_DECODER_MODEL_H

#include "decoder/config.h"
#include "decoder/kv_scales.h"
#include "decoder/source.h"
#include "decoder/tokenizer.h"

typedef struct kvl_model {
    kvl_config config;
    kvl_source source;
    kvl_tokenizer *tokenizer; /* NULL when the model has none (synthetic, bare directory) */
    char *tokenizer_why;      /* why it has none, or which refusal; NULL when there is one */
    char *chat_template;      /* template text, or NULL */
    kvl_kv_scales *kv_scales; /* of a calibration pass, or NULL */
    char digest[17]; /* 64-bit xxhash in hex of names, sizes and bytes of all files: all bytes up to
                        4 GiB in sum, beyond that the first 64 KiB of each MiB */
    uint64_t file_bytes;
} kvl_model;

/* `spec`: a .gguf file, a directory with config.json, or "synthetic:NAME" (NAME of
 * kvl_synthetic_count/at; nearest name in the message). Weights of presets are seeded by `seed`. */
kvl_status kvl_model_open(const char *spec, uint64_t seed, kvl_model **out);
void kvl_model_close(kvl_model *model);

/* Presets with real shapes: "tiny", "SmolLM2-135M", "Llama-3.2-1B", "Llama-3.1-8B", "Qwen2.5-7B",
 * "Mistral-7B". */
size_t kvl_synthetic_count(void);
const char *kvl_synthetic_at(size_t index);
kvl_status kvl_synthetic_config(const char *name, kvl_config *config);
kvl_status kvl_synthetic_source(const kvl_config *config, uint64_t seed, kvl_source *source);

#endif
