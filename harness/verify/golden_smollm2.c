/* smollm2/: a real model's last logits within 2e-3, its greedy tokens, chat rendering, tokenizer,
 * and the perplexity of a text within 0.05 %; float32 throughout, paged and flash. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/chat.h"
#include "decoder/json.h"
#include "decoder/model.h"
#include "harness/verify/golden_model.h"
#include "harness/verify/oracle.h"

static const char DEFAULT_MODEL[] = "models/SmolLM2-135M-Instruct.Q4_1.gguf";

enum { CHUNK = 256 }; /* tokens whose logits are held at once: 50 MB for this vocabulary */

typedef struct real {
    kvl_verify_golden_run *run;
    char dir[3072], st_path[4096], json_path[4096];
    kvl_safetensors *st;
    json_t *meta;
    kvl_model *model;
    kvl_engine *engine;
    float *logits; /* [CHUNK][vocab] */
} real;

static void refused(kvl_status status, kvl_verify_result *result) {
    kvl_verify_failed(result, "%s: %s", kvl_status_name(status), kvl_message());
}

/* Ids of a text against the golden's. */
static void same_ids(const real *r, const char *text, const kvl_golden_prompt *prompt,
                     kvl_verify_result *result) {
    int32_t *ids = NULL;
    int64_t n = 0;
    kvl_status status =
        kvl_tokenizer_encode_alloc(r->model->tokenizer, text, strlen(text), false, &ids, &n);
    if (status != KVL_OK)
        refused(status, result);
    else if (n != prompt->n_ids || memcmp(ids, prompt->ids, (size_t)n * sizeof *ids) != 0)
        kvl_verify_failed(result, "%lld ids that are not the golden's %lld", (long long)n,
                          (long long)prompt->n_ids);
    free(ids);
    result->n_rows = n;
}

/* Plain: the text's ids. Chat: the rendered template, and its ids. */
static kvl_status check_text(const real *r, const json_t *entry, const char *id,
                             const kvl_golden_prompt *prompt) {
    const char *text = NULL, *templated = NULL;
    kvl_verify_result result;
    if (!kvl_verify_golden_wants(r->run, &result, "golden/smollm2/%s.text", id)) return KVL_OK;
    KVL_TRY(kvl_json_string(r->json_path, entry, "text", true, &text));
    KVL_TRY(kvl_json_string(r->json_path, entry, "templated", false, &templated));
    if (!r->model->tokenizer) {
        kvl_verify_failed(&result, "no tokenizer: %s", r->model->tokenizer_why);
    } else if (!templated) {
        same_ids(r, text, prompt, &result);
    } else if (!r->model->chat_template) {
        kvl_verify_failed(&result, "the model has no chat template");
    } else {
        kvl_buffer out = {0};
        kvl_status status = kvl_chat_render(r->model->chat_template, NULL, text, "", &out);
        if (status != KVL_OK)
            refused(status, &result);
        else if (strcmp(out.data ? out.data : "", templated) != 0)
            kvl_verify_failed(&result, "the chat renders as another text");
        else
            same_ids(r, templated, prompt, &result);
        kvl_buffer_free(&out);
    }
    kvl_verify_golden_report(r->run, &result);
    return KVL_OK;
}

static kvl_status run_prompt(real *r, const json_t *entry, const char *id) {
    kvl_golden_prompt prompt;
    kvl_verify_result result;
    const kvl_st_tensor *want = NULL;
    kvl_seq seq;
    char name[128];
    int32_t vocab = r->model->config.vocab_size;
    KVL_TRY(kvl_golden_prompt_load(r->st, r->st_path, id, vocab, true, &prompt));
    kvl_status status = check_text(r, entry, id, &prompt);
    snprintf(name, sizeof name, "%s.last_logits", id);
    if (status == KVL_OK && kvl_st_find(r->st, name))
        status = kvl_verify_golden_tensor(r->st, r->st_path, name, KVL_F32, vocab, &want);
    if (status != KVL_OK) {
        kvl_golden_prompt_free(&prompt);
        return status;
    }
    kvl_status ran = kvl_golden_prefill(r->engine, &prompt, false, &seq, r->logits);
    if (want && kvl_verify_golden_wants(r->run, &result, "golden/smollm2/%s.last_logits", id)) {
        if (ran == KVL_OK)
            kvl_golden_logits(r->logits, want, 2e-3, &result);
        else
            refused(ran, &result);
        kvl_verify_golden_report(r->run, &result);
    }
    if (kvl_verify_golden_wants(r->run, &result, "golden/smollm2/%s.greedy", id)) {
        if (ran == KVL_OK) ran = kvl_golden_greedy(r->engine, seq, &prompt, r->logits, &result);
        if (ran != KVL_OK) refused(ran, &result);
        kvl_verify_golden_report(r->run, &result);
    } else if (ran == KVL_OK) {
        kvl_engine_remove(r->engine, seq);
    }
    kvl_golden_prompt_free(&prompt);
    return KVL_OK;
}

/* -log softmax(logits)[id], in float64. */
static double nll_of(const float *logits, int32_t vocab, int32_t id) {
    double top = logits[0], sum = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > top) top = logits[i];
    for (int32_t i = 0; i < vocab; i++) sum += exp(logits[i] - top);
    return top + log(sum) - logits[id];
}

/* Negative log-likelihood of ids[1..n) given what stands before each. */
static kvl_status text_nll(real *r, const int32_t *ids, int64_t n, double *nll) {
    int32_t vocab = r->model->config.vocab_size;
    kvl_seq seq;
    KVL_TRY(kvl_engine_add(r->engine, n - 1, 0, &seq));
    kvl_status status = KVL_OK;
    for (int64_t from = 0; from < n - 1 && status == KVL_OK; from += CHUNK) {
        int32_t count = n - 1 - from < CHUNK ? (int32_t)(n - 1 - from) : CHUNK;
        kvl_step_item item = {.seq = seq, .ids = ids + from, .n_ids = count, .n_logits = count};
        status = kvl_engine_step(r->engine, &item, 1, r->logits);
        for (int32_t i = 0; status == KVL_OK && i < count; i++)
            nll[from + i] = nll_of(r->logits + (int64_t)i * vocab, vocab, ids[from + i + 1]);
    }
    kvl_engine_remove(r->engine, seq);
    return status;
}

static void compare_nll(const double *nll, const kvl_st_tensor *want, kvl_verify_result *result) {
    double ours = 0, theirs = 0;
    for (int64_t i = 0; i < want->n_elems; i++) {
        float expected;
        memcpy(&expected, (const uint8_t *)want->data + i * 4, sizeof expected);
        ours += nll[i], theirs += expected;
    }
    double n = (double)want->n_elems;
    double error = fabs(exp(ours / n) / exp(theirs / n) - 1);
    result->max_rel = error;
    result->n_rows = want->n_elems;
    if (!(error <= 5e-4))
        kvl_verify_failed(result, "perplexity %.6g, golden %.6g: apart by more than 0.05 %%",
                          exp(ours / n), exp(theirs / n));
}

static kvl_status run_text(real *r) {
    const kvl_st_tensor *ids_tensor, *want;
    kvl_verify_result result;
    if (!kvl_st_find(r->st, "text.ids")) return KVL_OK;
    if (!kvl_verify_golden_wants(r->run, &result, "golden/smollm2/text.ppl")) return KVL_OK;
    KVL_TRY(kvl_verify_golden_tensor(r->st, r->st_path, "text.ids", KVL_I32, -1, &ids_tensor));
    int64_t n = ids_tensor->n_elems;
    if (n < 2) return kvl_fail(KVL_ERR_INPUT, "%s: text.ids: %lld ids", r->st_path, (long long)n);
    KVL_TRY(kvl_verify_golden_tensor(r->st, r->st_path, "text.nll", KVL_F32, n - 1, &want));
    int32_t *ids = malloc(ids_tensor->bytes);
    double *nll = malloc((size_t)n * sizeof *nll);
    kvl_status status =
        ids && nll ? KVL_OK : kvl_fail(KVL_ERR_OOM, "%s: out of memory", r->st_path);
    if (status == KVL_OK) {
        memcpy(ids, ids_tensor->data, ids_tensor->bytes);
        for (int64_t i = 0; i < n && status == KVL_OK; i++)
            if (ids[i] < 0 || ids[i] >= r->model->config.vocab_size)
                status = kvl_fail(KVL_ERR_INPUT, "%s: text.ids[%lld]: id %d", r->st_path,
                                  (long long)i, ids[i]);
    }
    if (status == KVL_OK) {
        kvl_status ran = text_nll(r, ids, n, nll);
        if (ran == KVL_OK)
            compare_nll(nll, want, &result);
        else
            refused(ran, &result);
        kvl_verify_golden_report(r->run, &result);
    }
    free(ids);
    free(nll);
    return status;
}

static kvl_status run_entries(real *r) {
    for (size_t i = 0; i < json_array_size(r->meta); i++) {
        const json_t *entry = json_array_get(r->meta, i);
        const char *id = NULL;
        KVL_TRY(kvl_json_string(r->json_path, entry, "id", true, &id));
        if (strlen(id) > 32) return kvl_fail(KVL_ERR_INPUT, "%s: id '%.40s'", r->json_path, id);
        if (strcmp(id, "text") != 0) KVL_TRY(run_prompt(r, entry, id));
    }
    return run_text(r);
}

/* Longest sequence that any part needs. */
static int64_t longest(const real *r) {
    int64_t most = 1;
    for (size_t i = 0; i < kvl_st_count(r->st); i++) {
        const kvl_st_tensor *t = kvl_st_at(r->st, i);
        if (t->dtype == KVL_I32 && t->n_elems + 128 > most) most = t->n_elems + 128;
    }
    return most;
}

static kvl_status run_opened(real *r) {
    KVL_TRY(kvl_golden_tokenizer(r->run, r->dir, "golden/smollm2", r->model));
    if (r->run->options->list) return run_entries(r);
    KVL_TRY(kvl_golden_engine(r->model, "paged", "flash", "f32", longest(r), &r->engine));
    r->logits = malloc((size_t)CHUNK * (size_t)r->model->config.vocab_size * sizeof *r->logits);
    if (!r->logits) return kvl_fail(KVL_ERR_OOM, "out of memory for logits");
    return run_entries(r);
}

kvl_status kvl_verify_golden_smollm2(kvl_verify_golden_run *run) {
    real r = {.run = run};
    kvl_verify_result result;
    const char *given = run->options->model;
    char probe[4096];
    snprintf(r.dir, sizeof r.dir, "%.3000s/smollm2", run->dir);
    if (!kvl_verify_golden_path(r.dir, "golden.safetensors", r.st_path, sizeof r.st_path))
        return KVL_OK;
    if (!kvl_verify_golden_path(r.dir, "golden.json", r.json_path, sizeof r.json_path))
        return kvl_fail(KVL_ERR_INPUT, "%s is missing beside %s", r.json_path, r.st_path);
    if (!given && !kvl_verify_golden_path(".", DEFAULT_MODEL, probe, sizeof probe)) {
        if (kvl_verify_golden_wants(run, &result, "golden/smollm2")) {
            kvl_verify_skipped(&result, "no model: give it with --model");
            kvl_verify_golden_report(run, &result);
        }
        return KVL_OK;
    }
    kvl_status status = kvl_model_open(given ? given : DEFAULT_MODEL, 0, &r.model);
    if (status == KVL_OK) status = kvl_st_open(r.st_path, &r.st);
    if (status == KVL_OK) status = kvl_json_load(r.json_path, &r.meta);
    if (status == KVL_OK && !json_is_array(r.meta))
        status = kvl_fail(KVL_ERR_INPUT, "%s: must be an array", r.json_path);
    if (status == KVL_OK) status = run_opened(&r);
    kvl_engine_destroy(r.engine);
    free(r.logits);
    json_decref(r.meta);
    kvl_st_close(r.st);
    kvl_model_close(r.model);
    return status;
}
