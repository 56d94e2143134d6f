#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/file.h"
#include "core/rng.h"
#include "harness/trial/trial.h"

/* Control tokens in a random prompt would make some models' activations untypical. */
static bool is_plain(const kvl_model *model, int32_t id) {
    for (int32_t i = 0; i < model->config.n_eos; i++) {
        if (model->config.eos_ids[i] == id) return false;
    }
    return id != model->config.bos_id && id != model->config.pad_id &&
           !(model->tokenizer && kvl_tokenizer_is_special(model->tokenizer, id));
}

static void random_ids(const kvl_model *model, uint64_t seed, int64_t sequence, int64_t n,
                       int32_t *ids) {
    kvl_rng rng = kvl_rng_make(seed, 0x70726f6d70740000u + (uint64_t)sequence);
    for (int64_t i = 0; i < n; i++) {
        /* A vocabulary of nothing but special tokens is used as it is. */
        for (int attempt = 0; attempt < 64; attempt++) {
            ids[i] = (int32_t)kvl_rng_below(&rng, (uint64_t)model->config.vocab_size);
            if (is_plain(model, ids[i])) break;
        }
    }
}

/* Sequence s takes the text from token s * n on, so that sequences differ; it starts over where the
 * text is too short for all of them. */
static kvl_status text_ids(const kvl_model *model, const kvl_trial_spec_values *spec, int64_t n,
                           int32_t *ids) {
    kvl_file file;
    int32_t *all = NULL;
    int64_t n_all = 0;
    if (!model->tokenizer)
        return kvl_fail(KVL_ERR_INPUT, "%s: the model has no tokenizer", spec->text);
    KVL_TRY(kvl_file_open(spec->text, &file));
    kvl_status status = kvl_tokenizer_encode_alloc(model->tokenizer, (const char *)file.data,
                                                   file.bytes, false, &all, &n_all);
    kvl_file_close(&file);
    KVL_TRY(status);
    if (n_all < n)
        status = kvl_fail(KVL_ERR_INPUT, "%s has %lld tokens: the prompt needs %lld", spec->text,
                          (long long)n_all, (long long)n);
    for (int64_t s = 0; status == KVL_OK && s < spec->batch; s++)
        memcpy(ids + s * n, all + s * n % (n_all - n + 1), (size_t)n * sizeof *ids);
    free(all);
    return status;
}

kvl_status kvl_trial_prompts(const kvl_model *model, const kvl_trial_spec_values *spec,
                             int32_t **ids) {
    int64_t n = spec->context ? 1 : spec->prompt, total = 0;
    *ids = NULL;
    if (!kvl_mul_i64(n, spec->batch, &total) || total > INT32_MAX)
        return kvl_fail(KVL_ERR_INPUT, "batch %lld x prompt %lld: more than 2^31 tokens",
                        (long long)spec->batch, (long long)n);
    *ids = malloc((size_t)total * sizeof **ids);
    if (!*ids) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_status status = KVL_OK;
    if (spec->text)
        status = text_ids(model, spec, n, *ids);
    else
        for (int64_t s = 0; s < spec->batch; s++) random_ids(model, spec->seed, s, n, *ids + s * n);
    if (status != KVL_OK) {
        free(*ids);
        *ids = NULL;
    }
    return status;
}
