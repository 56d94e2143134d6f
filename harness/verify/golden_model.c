#include "harness/verify/golden_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/json.h"
#include "decoder/sampler.h"
#include "harness/verify/oracle.h"

/* An I32 tensor as an array of ids below `limit`. */
static kvl_status load_ids(const kvl_safetensors *st, const char *path, const char *prompt,
                           const char *suffix, int32_t limit, int32_t **out, int64_t *n) {
    char name[128];
    const kvl_st_tensor *t;
    snprintf(name, sizeof name, "%.64s.%s", prompt, suffix);
    KVL_TRY(kvl_verify_golden_tensor(st, path, name, KVL_I32, -1, &t));
    if (t->n_elems < 1 || t->n_elems > 1 << 20)
        return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s': %lld ids", path, name,
                        (long long)t->n_elems);
    *out = malloc(t->bytes);
    if (!*out) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", path);
    memcpy(*out, t->data, t->bytes);
    *n = t->n_elems;
    for (int64_t i = 0; i < *n; i++) {
        if ((*out)[i] < 0 || (*out)[i] >= limit)
            return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s'[%lld]: id %d of %d", path, name,
                            (long long)i, (*out)[i], limit);
    }
    return KVL_OK;
}

/* "<prompt>.greedy_margin": without it a token that differs could not be told from a tie. */
static kvl_status load_margin(const kvl_safetensors *st, const char *path, const char *prompt,
                              kvl_golden_prompt *out) {
    char name[128];
    const kvl_st_tensor *t;
    snprintf(name, sizeof name, "%.64s.greedy_margin", prompt);
    KVL_TRY(kvl_verify_golden_tensor(st, path, name, KVL_F32, out->n_greedy, &t));
    out->margin = malloc(t->bytes);
    if (!out->margin) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", path);
    KVL_TRY(kvl_st_read_f32(t, 0, t->n_elems, out->margin));
    for (int64_t i = 0; i < t->n_elems; i++)
        if (isnan(out->margin[i]))
            return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s'[%lld]: NaN is no margin", path, name,
                            (long long)i);
    return KVL_OK;
}

kvl_status kvl_golden_prompt_load(const kvl_safetensors *st, const char *path, const char *name,
                                  int32_t vocab_size, bool with_margins, kvl_golden_prompt *out) {
    memset(out, 0, sizeof *out);
    kvl_status status = load_ids(st, path, name, "ids", vocab_size, &out->ids, &out->n_ids);
    if (status == KVL_OK)
        status = load_ids(st, path, name, "greedy", vocab_size, &out->greedy, &out->n_greedy);
    if (status == KVL_OK && with_margins) status = load_margin(st, path, name, out);
    if (status != KVL_OK) kvl_golden_prompt_free(out);
    return status;
}

void kvl_golden_prompt_free(kvl_golden_prompt *prompt) {
    free(prompt->ids);
    free(prompt->greedy);
    free(prompt->margin);
    memset(prompt, 0, sizeof *prompt);
}

kvl_status kvl_golden_engine(const kvl_model *model, const char *allocator, const char *attention,
                             const char *weights, int64_t max_tokens, kvl_engine **out) {
    kvl_engine_options options = kvl_engine_defaults();
    options.allocator = allocator, options.attention = attention;
    options.kv_dtype = options.compute_dtype = "f32", options.weights = weights;
    options.max_seqs = 1;
    options.max_seq_tokens = max_tokens;
    options.deterministic = true;
    return kvl_engine_create(model, &options, NULL, NULL, out);
}

kvl_status kvl_golden_prefill(kvl_engine *engine, const kvl_golden_prompt *prompt, bool every,
                              kvl_seq *seq, float *logits) {
    KVL_TRY(kvl_engine_add(engine, prompt->n_ids, prompt->n_greedy, seq));
    kvl_step_item item = {.seq = *seq,
                          .ids = prompt->ids,
                          .n_ids = (int32_t)prompt->n_ids,
                          .n_logits = every ? (int32_t)prompt->n_ids : 1};
    kvl_status status = kvl_engine_step(engine, &item, 1, logits);
    if (status != KVL_OK) kvl_engine_remove(engine, *seq);
    return status;
}

void kvl_golden_logits(const float *got, const kvl_st_tensor *want, double bound,
                       kvl_verify_result *result) {
    result->max_abs = 0;
    result->bound = bound;
    result->n_rows = want->n_elems;
    double squares = 0, errors = 0;
    for (int64_t i = 0; i < want->n_elems; i++) {
        float expected;
        memcpy(&expected, (const uint8_t *)want->data + i * 4, sizeof expected);
        double error = fabs((double)got[i] - expected);
        if (!isfinite(got[i])) result->n_nonfinite++;
        /* A NaN, ours or the golden's, stays: no later number may take its place. */
        if (!isnan(result->max_abs) && !(error <= result->max_abs)) result->max_abs = error;
        squares += (double)expected * expected;
        errors += error * error;
    }
    result->nmse = squares > 0 ? errors / squares : errors;
    if (!(result->max_abs <= bound) || result->n_nonfinite)
        kvl_verify_failed(result, "logits differ by %.3g, past %.3g", result->max_abs, bound);
}

kvl_status kvl_golden_greedy(kvl_engine *engine, kvl_seq seq, const kvl_golden_prompt *prompt,
                             float *logits, kvl_verify_result *result) {
    int32_t vocab = kvl_engine_config(engine)->vocab_size;
    kvl_status status = KVL_OK;
    int ties = 0;
    for (int64_t i = 0; i < prompt->n_greedy && status == KVL_OK; i++) {
        int32_t got = kvl_argmax(logits, vocab), want = prompt->greedy[i];
        result->n_rows++;
        if (got < 0) {
            kvl_verify_failed(result, "step %lld: NaN logits", (long long)i);
            break;
        }
        double margin = prompt->margin ? prompt->margin[i] : (double)logits[got] - logits[want];
        if (got != want && !(margin < 1e-3))
            kvl_verify_failed(result, "step %lld: token %d, golden %d (margin %.3g)", (long long)i,
                              got, want, margin);
        ties += got != want && margin < 1e-3;
        if (i + 1 == prompt->n_greedy) break;
        kvl_step_item item = {.seq = seq, .ids = &prompt->greedy[i], .n_ids = 1, .n_logits = 1};
        status = kvl_engine_step(engine, &item, 1, logits);
    }
    if (ties && result->state == KVL_VERIFY_PASS)
        snprintf(result->reason, sizeof result->reason, "%d ties (margin under 1e-3)", ties);
    kvl_status removed = kvl_engine_remove(engine, seq);
    return status != KVL_OK ? status : removed;
}

/* ---- tokenizer --------------------------------------------------------------------------------
 */

static void one_text(const kvl_tokenizer *tokenizer, size_t index, const char *text, size_t bytes,
                     const json_t *want, kvl_verify_result *result) {
    int32_t *ids = NULL;
    int64_t n = 0;
    kvl_buffer back = {0};
    if (kvl_tokenizer_encode_alloc(tokenizer, text, bytes, false, &ids, &n) != KVL_OK) {
        kvl_verify_failed(result, "text %zu: %s", index, kvl_message());
        return;
    }
    if (n != (int64_t)json_array_size(want))
        kvl_verify_failed(result, "text %zu: %lld ids, golden %zu", index, (long long)n,
                          json_array_size(want));
    for (int64_t i = 0; i < n && result->state == KVL_VERIFY_PASS; i++) {
        json_int_t expected = json_integer_value(json_array_get(want, (size_t)i));
        if (ids[i] != expected)
            kvl_verify_failed(result, "text %zu: id[%lld] is %d, golden %lld", index, (long long)i,
                              ids[i], (long long)expected);
    }
    if (kvl_tokenizer_decode(tokenizer, ids, n, false, &back) != KVL_OK)
        kvl_verify_failed(result, "text %zu: decode: %s", index, kvl_message());
    else if (back.bytes != bytes || (bytes && memcmp(back.data, text, bytes) != 0))
        kvl_verify_failed(result, "text %zu: decode gives another text", index);
    kvl_buffer_free(&back);
    free(ids);
    result->n_rows++;
}

kvl_status kvl_golden_tokenizer(kvl_verify_golden_run *run, const char *dir, const char *prefix,
                                const kvl_model *model) {
    char path[4096];
    json_t *cases = NULL;
    kvl_verify_result result;
    if (!kvl_verify_golden_path(dir, "tokenizer_golden.json", path, sizeof path)) return KVL_OK;
    if (!kvl_verify_golden_wants(run, &result, "%s/tokenizer", prefix)) return KVL_OK;
    KVL_TRY(kvl_json_load(path, &cases));
    kvl_status status =
        json_is_array(cases) ? KVL_OK : kvl_fail(KVL_ERR_INPUT, "%s: must be an array", path);
    if (status == KVL_OK && !model->tokenizer)
        kvl_verify_failed(&result, "no tokenizer: %s",
                          model->tokenizer_why ? model->tokenizer_why : "the model has none");
    for (size_t i = 0; status == KVL_OK && model->tokenizer && i < json_array_size(cases); i++) {
        const json_t *item = json_array_get(cases, i), *text = json_object_get(item, "text"),
                     *ids = json_object_get(item, "ids");
        if (!json_is_string(text) || !json_is_array(ids))
            status = kvl_fail(KVL_ERR_INPUT, "%s: [%zu]: needs text and ids", path, i);
        else
            one_text(model->tokenizer, i, json_string_value(text), json_string_length(text), ids,
                     &result);
    }
    json_decref(cases);
    if (status == KVL_OK) kvl_verify_golden_report(run, &result);
    return status;
}
