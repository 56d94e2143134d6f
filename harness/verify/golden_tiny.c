/* models/<family>/: logits of every position within 2e-4 and greedy tokens, for every allocator and
 * attention module, with float32 weights, KV and activations; and the tokenizer. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/json.h"
#include "decoder/model.h"
#include "harness/verify/golden_model.h"
#include "harness/verify/oracle.h"

enum { MAX_PROMPTS = 64 };

typedef struct tiny {
    kvl_verify_golden_run *run;
    const char *name;      /* "llama" */
    const char *quantised; /* weights that the folder holds in 4 bits: "nf4", or NULL */
    char st_path[4096];
    kvl_safetensors *st;
    kvl_model *model;
} tiny;

/* A call that an engine refused ends the case, not the run: unsupported is a skip. */
static void refused(kvl_status status, kvl_verify_result *result) {
    if (status == KVL_ERR_UNSUPPORTED || status == KVL_ERR_OOM)
        kvl_verify_skipped(result, kvl_message());
    else
        kvl_verify_failed(result, "%s", kvl_message());
}

static kvl_status run_prompt(tiny *t, kvl_engine *engine, const char *prefix, const char *name,
                             const kvl_golden_prompt *prompt) {
    int64_t vocab = t->model->config.vocab_size;
    char tensor[128];
    const kvl_st_tensor *want;
    kvl_verify_result result;
    kvl_seq seq;
    snprintf(tensor, sizeof tensor, "%s.logits", name);
    KVL_TRY(kvl_verify_golden_tensor(t->st, t->st_path, tensor, KVL_F32, -1, &want));
    if (want->n_dims != 2 || want->dims[0] != prompt->n_ids || want->dims[1] != vocab)
        return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%s': the shape must be [%lld, %lld]",
                        t->st_path, tensor, (long long)prompt->n_ids, (long long)vocab);
    float *logits = malloc((size_t)(prompt->n_ids * vocab) * sizeof *logits);
    if (!logits) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", t->st_path);
    kvl_status status = kvl_golden_prefill(engine, prompt, true, &seq, logits);
    bool ran = status == KVL_OK;
    if (kvl_verify_golden_wants(t->run, &result, "%s/%s.logits", prefix, name)) {
        if (ran)
            kvl_golden_logits(logits, want, 2e-4, &result);
        else
            refused(status, &result);
        kvl_verify_golden_report(t->run, &result);
    }
    if (ran && kvl_verify_golden_wants(t->run, &result, "%s/%s.greedy", prefix, name)) {
        memmove(logits, logits + (prompt->n_ids - 1) * vocab, (size_t)vocab * sizeof *logits);
        status = kvl_golden_greedy(engine, seq, prompt, logits, &result);
        if (status != KVL_OK) refused(status, &result);
        kvl_verify_golden_report(t->run, &result);
    } else if (ran) {
        kvl_engine_remove(engine, seq);
    }
    free(logits);
    return KVL_OK;
}

/* Prompts that any tensor "p<N>.<part>" speaks of, so that none is left out for want of its ids. */
static kvl_status count_prompts(const tiny *t, int *out) {
    *out = 1;
    for (size_t i = 0; i < kvl_st_count(t->st); i++) {
        const char *name = kvl_st_at(t->st, i)->name;
        char *end = NULL;
        if (name[0] != 'p' || name[1] < '0' || name[1] > '9') continue;
        long index = strtol(name + 1, &end, 10);
        if (*end != '.') continue;
        if (index >= MAX_PROMPTS)
            return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%.40s': at most %d prompts", t->st_path,
                            name, MAX_PROMPTS);
        if (index >= *out) *out = (int)index + 1;
    }
    return KVL_OK;
}

/* Every prompt p0, p1, ... on one engine. */
static kvl_status run_engine(tiny *t, const char *allocator, const char *attention,
                             const char *weights) {
    kvl_golden_prompt prompts[MAX_PROMPTS];
    int n = 0, n_prompts = 0;
    int64_t longest = 1;
    char name[32], prefix[200];
    KVL_TRY(count_prompts(t, &n_prompts));
    kvl_status status = KVL_OK;
    for (; n < n_prompts; n++) {
        snprintf(name, sizeof name, "p%d", n);
        status = kvl_golden_prompt_load(t->st, t->st_path, name, t->model->config.vocab_size,
                                        !t->quantised, &prompts[n]);
        if (status != KVL_OK) break;
        int64_t tokens = prompts[n].n_ids + prompts[n].n_greedy;
        if (tokens > longest) longest = tokens;
    }
    kvl_engine *engine = NULL;
    bool plain = strcmp(weights, "f32") == 0;
    snprintf(prefix, sizeof prefix, "golden/models/%s/%s.%s%s%s", t->name, allocator, attention,
             plain ? "" : ".", plain ? "" : weights);
    if (status == KVL_OK) {
        kvl_status created =
            kvl_golden_engine(t->model, allocator, attention, weights, longest, &engine);
        kvl_verify_result result;
        if (created != KVL_OK && kvl_verify_golden_wants(t->run, &result, "%s", prefix)) {
            refused(created, &result);
            kvl_verify_golden_report(t->run, &result);
        }
    }
    for (int i = 0; engine && i < n && status == KVL_OK; i++) {
        snprintf(name, sizeof name, "p%d", i);
        status = run_prompt(t, engine, prefix, name, &prompts[i]);
    }
    kvl_engine_destroy(engine);
    while (n > 0) kvl_golden_prompt_free(&prompts[--n]);
    return status;
}

static kvl_status run_opened(tiny *t, const char *dir) {
    char prefix[128];
    const kvl_verify_scope *scope = &t->run->scope;
    for (size_t a = 0; a < kvl_allocator_count(); a++)
        for (size_t m = 0; m < scope->n_modules; m++)
            KVL_TRY(run_engine(t, kvl_allocator_at(a)->name, scope->modules[m]->name, "f32"));
    /* The codes themselves, as the fused kernels read them. */
    if (t->quantised) KVL_TRY(run_engine(t, "paged", "flash", t->quantised));
    snprintf(prefix, sizeof prefix, "golden/models/%s", t->name);
    return kvl_golden_tokenizer(t->run, dir, prefix, t->model);
}

static kvl_status run_model(kvl_verify_golden_run *run, const char *name) {
    tiny t = {.run = run, .name = name};
    char dir[3072];
    snprintf(dir, sizeof dir, "%.2800s/models/%.200s", run->dir, name);
    if (!kvl_verify_golden_path(dir, "golden.safetensors", t.st_path, sizeof t.st_path))
        return KVL_OK;
    KVL_TRY(kvl_st_open(t.st_path, &t.st));
    kvl_status status = kvl_model_open(dir, 0, &t.model);
    if (status == KVL_OK && t.model->source.quantised) t.quantised = t.model->config.source_weights;
    if (status == KVL_OK) status = run_opened(&t, dir);
    kvl_model_close(t.model);
    kvl_st_close(t.st);
    return status;
}

static int is_name(const struct dirent *entry) {
    return entry->d_name[0] != '.' && strlen(entry->d_name) < 100;
}

kvl_status kvl_verify_golden_models(kvl_verify_golden_run *run) {
    char path[4096], first[1024] = "";
    struct dirent **entries;
    kvl_status worst = KVL_OK;
    if (!kvl_verify_golden_path(run->dir, "models", path, sizeof path)) return KVL_OK;
    int n = scandir(path, &entries, is_name, alphasort);
    if (n < 0) return kvl_fail(KVL_ERR_IO, "%s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        kvl_status status = run_model(run, entries[i]->d_name);
        if (status != KVL_OK && worst == KVL_OK) {
            worst = status;
            snprintf(first, sizeof first, "%s", kvl_message());
        }
        free(entries[i]);
    }
    free(entries);
    return worst == KVL_OK ? KVL_OK : kvl_fail(worst, "%s", first);
}
