#include "harness/serve/real.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/rng.h"
#include "core/threads.h"
#include "decoder/sampler.h"

struct kvl_real {
    kvl_engine *engine;
    const kvl_trace *trace;
    int64_t vocab;
    int32_t max_seqs;
    int32_t *ids;         /* of all requests, end to end */
    float *margins;       /* the same places: logit of a generated token less the next best */
    int64_t *first;       /* [trace.n] where a request's ids begin */
    kvl_seq *seqs;        /* [max_seqs] the engine's handle of a pool's handle */
    kvl_step_item *items; /* [max_seqs] */
    float *logits;        /* [max_seqs][vocab] */
    uint64_t last_ns;     /* end of the step before; 0: none */
};

static kvl_status make_prompts(kvl_real *r, const int32_t *text, int64_t n_text, uint64_t seed) {
    int64_t n = r->trace->sum_prompt + r->trace->sum_output, at = 0;
    r->ids = malloc((size_t)n * sizeof *r->ids);
    r->margins = calloc((size_t)n, sizeof *r->margins);
    r->first = malloc((size_t)r->trace->n * sizeof *r->first);
    if (!r->ids || !r->margins || !r->first)
        return kvl_fail(KVL_ERR_OOM, "%lld tokens: out of memory", (long long)n);
    for (int64_t i = 0; i < r->trace->n; i++) {
        const kvl_trace_request *q = &r->trace->requests[i];
        kvl_rng rng = kvl_rng_make(seed, (uint64_t)i);
        uint64_t start = text ? kvl_rng_below(&rng, (uint64_t)n_text) : 0;
        r->first[i] = at;
        for (int32_t k = 0; k < q->prompt; k++)
            r->ids[at + k] = text ? text[(start + (uint64_t)k) % (uint64_t)n_text]
                                  : (int32_t)kvl_rng_below(&rng, (uint64_t)r->vocab);
        for (int32_t k = 0; k < q->output; k++) r->ids[at + q->prompt + k] = -1;
        at += (int64_t)q->prompt + q->output;
    }
    return KVL_OK;
}

static kvl_status admit(void *user, kvl_seq seq, int64_t request, int64_t n_tokens, int64_t max_new,
                        bool whole) {
    kvl_real *r = user;
    (void)request;
    return kvl_engine_add(r->engine, whole ? n_tokens + max_new : n_tokens, whole ? 0 : max_new,
                          &r->seqs[seq]);
}

static kvl_status release(void *user, kvl_seq seq) {
    kvl_real *r = user;
    return kvl_engine_remove(r->engine, r->seqs[seq]);
}

static float margin_of(const float *logits, int32_t best, int64_t vocab) {
    float next = -INFINITY;
    for (int64_t i = 0; i < vocab; i++) {
        float value = i == best ? -INFINITY : logits[i];
        next = value > next ? value : next;
    }
    return logits[best] - next;
}

/* The next token of each item that emits one, where the request's ids end so far. */
static void pick_tokens(kvl_real *r, const kvl_serve_item *items, int32_t n_items) {
#pragma omp parallel for num_threads(kvl_threads()) schedule(static) if (n_items > 1)
    for (int32_t i = 0; i < n_items; i++) {
        int64_t row = 0;
        for (int32_t k = 0; k < i; k++) row += items[k].emits;
        if (!items[i].emits) continue;
        const float *logits = r->logits + row * r->vocab;
        int64_t place = r->first[items[i].request] + items[i].start + items[i].n_tokens;
        int32_t best = kvl_argmax(logits, (int32_t)r->vocab);
        r->ids[place] = best;
        r->margins[place] = best < 0 ? 0 : margin_of(logits, best, r->vocab);
    }
}

static kvl_status step(void *user, const kvl_serve_item *items, int32_t n_items, int64_t swapped,
                       int64_t *ns) {
    kvl_real *r = user;
    if (swapped) return kvl_fail(KVL_ERR_UNSUPPORTED, "--preempt swap: not on the engine");
    uint64_t start = r->last_ns ? r->last_ns : kvl_now_ns(); /* what the scheduler took counts */
    for (int32_t i = 0; i < n_items; i++)
        r->items[i] = (kvl_step_item){r->seqs[items[i].seq],
                                      r->ids + r->first[items[i].request] + items[i].start,
                                      items[i].n_tokens, items[i].emits};
    KVL_TRY(kvl_engine_step(r->engine, r->items, n_items, r->logits));
    pick_tokens(r, items, n_items);
    for (int32_t i = 0; i < n_items; i++) {
        if (items[i].emits &&
            r->ids[r->first[items[i].request] + items[i].start + items[i].n_tokens] < 0)
            return kvl_fail(KVL_ERR_INTERNAL, "request %lld: logits are not finite",
                            (long long)items[i].request);
    }
    r->last_ns = kvl_now_ns();
    *ns = (int64_t)(r->last_ns - start) + 1;
    return KVL_OK;
}

/* A prompt that fills a step, then decode steps: kernels, pages and buffers are touched once. */
static kvl_status warm_up(kvl_real *r, int32_t n, int64_t longest) {
    enum { STEPS = 8 };
    kvl_seq seq;
    if (n > longest - STEPS) n = (int32_t)(longest - STEPS);
    if (n < 1) return KVL_OK;
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    if (!ids) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_status status = kvl_engine_add(r->engine, n, STEPS, &seq);
    for (int k = 0; status == KVL_OK && k <= STEPS; k++) {
        kvl_step_item item = {seq, ids, k ? 1 : n, 1};
        if (k < STEPS) status = kvl_engine_step(r->engine, &item, 1, r->logits);
    }
    if (status == KVL_OK) status = kvl_engine_remove(r->engine, seq);
    free(ids);
    return status;
}

kvl_status kvl_real_open(const kvl_model *model, const kvl_engine_options *names,
                         const kvl_serve_options *serve, const kvl_trace *trace,
                         const int32_t *text, int64_t n_text, uint64_t seed, kvl_real **out) {
    kvl_engine_options options = *names;
    options.allocator = serve->allocator->name;
    options.page_tokens = serve->page_tokens;
    options.pool_tokens = serve->pool_tokens;
    options.populate = true;
    options.max_seqs = serve->max_seqs;
    options.max_seq_tokens = serve->max_model_len ? serve->max_model_len : trace->longest;
    options.max_batch_tokens = serve->max_batched_tokens;
    options.reserve = kvl_reserve_policy_name(serve->reserve);
    *out = NULL;
    kvl_real *r = calloc(1, sizeof *r);
    if (!r) return kvl_fail(KVL_ERR_OOM, "out of memory");
    r->trace = trace;
    r->vocab = model->config.vocab_size;
    r->max_seqs = serve->max_seqs;
    r->seqs = malloc((size_t)r->max_seqs * sizeof *r->seqs);
    r->items = malloc((size_t)r->max_seqs * sizeof *r->items);
    r->logits = malloc((size_t)r->max_seqs * (size_t)r->vocab * sizeof *r->logits);
    kvl_status status =
        r->seqs && r->items && r->logits ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status == KVL_OK) status = make_prompts(r, text, n_text, seed);
    if (status == KVL_OK) status = kvl_engine_create(model, &options, NULL, NULL, &r->engine);
    if (status == KVL_OK) status = warm_up(r, serve->max_batched_tokens, options.max_seq_tokens);
    if (status == KVL_OK)
        *out = r;
    else
        kvl_real_close(r);
    return status;
}

void kvl_real_close(kvl_real *r) {
    if (!r) return;
    kvl_engine_destroy(r->engine);
    free(r->ids);
    free(r->margins);
    free(r->first);
    free(r->seqs);
    free(r->items);
    free(r->logits);
    free(r);
}

kvl_serve_backend kvl_real_backend(kvl_real *r) {
    return (kvl_serve_backend){.user = r, .admit = admit, .release = release, .step = step};
}

kvl_engine *kvl_real_engine(kvl_real *r) {
    return r->engine;
}

const int32_t *kvl_real_ids(const kvl_real *r, int64_t request) {
    return r->ids + r->first[request];
}

const float *kvl_real_margins(const kvl_real *r, int64_t request) {
    return r->margins + r->first[request];
}
