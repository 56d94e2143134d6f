/* Writes a model as a Hugging Face folder that Transformers and bitsandbytes load in 4 bits. */
#ifndef KVL_DECODER_BNB_WRITE_H
#define KVL_DECODER_BNB_WRITE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "decoder/model.h"

typedef struct kvl_bnb_write_options {
    kvl_nf4_type type;
    bool nested;           /* double quantisation */
    int64_t block;         /* a power of two from 32 to 4096 */
    const char *skip;      /* modules that stay, as kvl_weights_options.nf4_skip; NULL: lm_head */
    kvl_dtype other_dtype; /* of tensors that stay: f32, f16 or bf16 */
    bool allow_nonfinite;  /* NaN and infinities are written, not refused */
    /* Static scales of the KV cache to write along (decoder/kv_scales.h), or NULL. */
    const kvl_kv_scales *kv_scales;
    const char *kv_text; /* what they were made from */
    int64_t kv_tokens;
    const volatile sig_atomic_t *stop; /* not 0: end at once, leaving nothing; or NULL */
} kvl_bnb_write_options;

/* Writes `out` (which must not exist): config.json with its quantization_config, model.safetensors
 * and, when `source` is a folder, its tokenizer and generation files. All of it is made under a
 * temporary name beside and renamed at the end; a failure (full disk, bad weight) leaves nothing.
 * Works with all threads; `progress` (may be NULL) is called from the calling thread with 0..1. */
kvl_status kvl_bnb_write(const kvl_model *model, const char *source,
                         const kvl_bnb_write_options *options, const char *out,
                         void (*progress)(void *user, double share), void *user);

/* decoder/bnb_config.c: the text of config.json. From the source folder's own where there is one,
 * else from what the model is; malloc'ed. */
kvl_status kvl_bnb_config(const kvl_model *model, const char *source,
                          const kvl_bnb_write_options *options, char **out);

#endif
