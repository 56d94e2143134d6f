/* bench allocator: what one call costs, on one core, in a pool of 4,194,304 slots.
 *
 *   churn    256 sequences of 4,096 tokens are released and admitted in seeded random order, so
 *            that free pages are scattered; an operation is one page (or slab) taken or given back
 *   append   256 sequences get a token each, in turn, from 2,048 tokens to 4,096: the call alone,
 * not the copies that it orders prefix   a prompt of 4,096 tokens is found in the prefix cache
 * whole: ids hashed, compared, shared; then released. `paged` only
 *
 * The ledger is looked at before each number is believed: what was handed out is what was asked. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/isa.h"
#include "core/rng.h"
#include "core/threads.h"
#include "harness/allocators/subject.h"
#include "harness/figures/stats.h"
#include "harness/kernels/axes.h"

enum { POOL = 1 << 22, N_SEQS = 256, SEQ_TOKENS = 4096, APPENDED = 2048 };

typedef struct bench {
    kvl_subject subject;
    kvl_seq seqs[N_SEQS];
    int32_t order[N_SEQS]; /* in which they are released and admitted again */
    kvl_rng rng;
    int32_t *ids; /* [SEQ_TOKENS] of the shared prompt */
    kvl_status status;
} bench;

static kvl_status fill(bench *b, int64_t n_prompt) {
    const kvl_allocator *a = b->subject.allocator;
    for (int i = 0; i < N_SEQS; i++) {
        KVL_TRY(a->reserve(b->subject.state, n_prompt, SEQ_TOKENS - n_prompt, &b->seqs[i]));
        KVL_TRY(a->append(b->subject.state, b->seqs[i], n_prompt));
        kvl_subject_drop_orders(&b->subject);
    }
    return KVL_OK;
}

static void shuffle(void *context, int64_t index) {
    bench *b = context;
    for (int32_t i = 0; i < N_SEQS; i++) b->order[i] = i;
    for (int32_t i = N_SEQS - 1; i > 0; i--) {
        int32_t j = (int32_t)kvl_rng_below(&b->rng, (uint64_t)i + 1), kept = b->order[i];
        b->order[i] = b->order[j];
        b->order[j] = kept;
    }
}

static kvl_status churn(void *context) {
    bench *b = context;
    const kvl_allocator *a = b->subject.allocator;
    for (int i = 0; i < N_SEQS; i += 2) { /* two at a time, so that their pages mix */
        kvl_seq *first = &b->seqs[b->order[i]], *second = &b->seqs[b->order[i + 1]];
        KVL_TRY(a->release(b->subject.state, *first));
        KVL_TRY(a->release(b->subject.state, *second));
        KVL_TRY(a->reserve(b->subject.state, SEQ_TOKENS, 0, second));
        KVL_TRY(a->reserve(b->subject.state, SEQ_TOKENS, 0, first));
        kvl_subject_drop_orders(&b->subject);
    }
    return KVL_OK;
}

/* Everybody anew: a slab that was cut would not have to grow again. */
static void restart(void *context, int64_t index) {
    bench *b = context;
    for (int i = 0; i < N_SEQS && b->status == KVL_OK; i++)
        b->status = b->subject.allocator->release(b->subject.state, b->seqs[i]);
    if (b->status == KVL_OK) b->status = fill(b, SEQ_TOKENS - APPENDED);
}

static kvl_status append(void *context) {
    bench *b = context;
    KVL_TRY(b->status);
    for (int t = 0; t < APPENDED; t++) {
        for (int i = 0; i < N_SEQS; i++)
            KVL_TRY(b->subject.allocator->append(b->subject.state, b->seqs[i], 1));
        kvl_subject_drop_orders(&b->subject);
    }
    return KVL_OK;
}

static kvl_status find_prefix(void *context) {
    bench *b = context;
    const kvl_request request = {
        .n_prompt = SEQ_TOKENS, .tokens = b->ids, .max_cached = SEQ_TOKENS, .readmitted = true};
    kvl_admission found;
    for (int i = 0; i < N_SEQS; i++) {
        KVL_TRY(kvl_allocator_admit(b->subject.allocator, b->subject.state, &request, &found));
        int64_t page = b->subject.config.page_tokens;
        if (found.n_cached != SEQ_TOKENS / page * page)
            return kvl_fail(KVL_ERR_INTERNAL, "%lld tokens of the prompt were found",
                            (long long)found.n_cached);
        KVL_TRY(b->subject.allocator->release(b->subject.state, found.seq));
    }
    return KVL_OK;
}

static bool is_right(void *context) {
    bench *b = context;
    kvl_ledger l;
    b->subject.allocator->stats(b->subject.state, 0, &l);
    return l.pool == l.live + l.reserved + l.internal + l.cached + l.padding + l.free &&
           l.live + l.reserved == (int64_t)N_SEQS * SEQ_TOKENS;
}

/* Median time of a call, in ns. */
static kvl_status time_call(bench *b, void (*prepare)(void *, int64_t), kvl_status (*call)(void *),
                            bool (*right)(void *), double *ns) {
    kvl_timed timed = {.prepare = prepare, .call = call, .is_right = right, .context = b};
    kvl_timings timings;
    KVL_TRY(kvl_time_calls(&timed, &timings));
    *ns = kvl_quantile(timings.ns, timings.n, 0.5);
    bool wrong = timings.wrong;
    kvl_timings_free(&timings);
    return wrong ? kvl_fail(KVL_ERR_INTERNAL, "the ledger is not what was asked for") : KVL_OK;
}

static kvl_status time_prefix(bench *b, const char *name, int64_t page_tokens, kvl_findings *f) {
    double ns;
    kvl_subject_close(&b->subject);
    KVL_TRY(kvl_subject_open(name, page_tokens, POOL, N_SEQS, SEQ_TOKENS, KVL_PREFIX_TOKENS,
                             &b->subject));
    b->ids = malloc(SEQ_TOKENS * sizeof *b->ids);
    if (!b->ids) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (int i = 0; i < SEQ_TOKENS; i++) b->ids[i] = (int32_t)kvl_rng_below(&b->rng, 32000);
    const kvl_request request = {.n_prompt = SEQ_TOKENS, .tokens = b->ids};
    kvl_admission first;
    KVL_TRY(kvl_allocator_admit(b->subject.allocator, b->subject.state, &request, &first));
    KVL_TRY(b->subject.allocator->append(b->subject.state, first.seq, SEQ_TOKENS));
    KVL_TRY(b->subject.allocator->release(b->subject.state, first.seq));
    KVL_TRY(time_call(b, NULL, find_prefix, NULL, &ns));
    kvl_set_number(f->metrics, "prefix_token_ns", ns / N_SEQS / SEQ_TOKENS);
    return KVL_OK;
}

static kvl_status measure(bench *b, const char *name, int64_t page_tokens, kvl_findings *f) {
    kvl_ledger l;
    double ns;
    KVL_TRY(
        kvl_subject_open(name, page_tokens, POOL, N_SEQS, SEQ_TOKENS, KVL_PREFIX_OFF, &b->subject));
    KVL_TRY(fill(b, SEQ_TOKENS));
    for (int i = 0; i < 16; i++) { /* scatter the free pages first */
        shuffle(b, 0);
        KVL_TRY(churn(b));
    }
    KVL_TRY(time_call(b, shuffle, churn, is_right, &ns));
    int64_t pages = page_tokens ? (SEQ_TOKENS + page_tokens - 1) / page_tokens : 1;
    kvl_set_number(f->metrics, "page_op_m_s", 2e3 * N_SEQS * (double)pages / ns);
    kvl_set_number(f->metrics, "admit_ns", ns / N_SEQS);
    KVL_TRY(time_call(b, restart, append, is_right, &ns));
    kvl_set_number(f->metrics, "append_ns", ns / N_SEQS / APPENDED);
    b->subject.allocator->stats(b->subject.state, 0, &l);
    kvl_set_count(f->metrics, "metadata_bytes", (uint64_t)l.metadata_bytes);
    kvl_set_number(f->metrics, "prefix_token_ns", NAN);
    return b->subject.allocator->admit ? time_prefix(b, name, page_tokens, f) : KVL_OK;
}

kvl_status kvl_allocator_trial_run(const json_t *spec, json_t **answer) {
    const json_t *axes = json_object_get(spec, "axes");
    const json_t *workload = json_object_get(spec, "workload");
    const char *name;
    int64_t page_tokens;
    *answer = NULL;
    KVL_TRY(kvl_spec_text(axes, "allocator", &name));
    KVL_TRY(kvl_spec_number(axes, "page_tokens", 0, POOL, &page_tokens));
    bench *b = calloc(1, sizeof *b);
    if (!b) return kvl_fail(KVL_ERR_OOM, "out of memory");
    b->rng = kvl_rng_make((uint64_t)json_integer_value(json_object_get(workload, "seed")), 21);
    kvl_findings f = {
        .effective = json_object(), .metrics = json_object(), .samples = json_object()};
    kvl_status status = kvl_threads_set(1, 1);
    kvl_set_text(f.effective, "isa", kvl_isa_name(kvl_isa_current()));
    kvl_set_text(f.effective, "allocator", name);
    kvl_set_count(f.effective, "page_tokens", (uint64_t)page_tokens);
    kvl_set_count(f.effective, "threads", 1);
    if (status == KVL_OK) status = measure(b, name, page_tokens, &f);
    kvl_subject_close(&b->subject);
    free(b->ids);
    free(b);
    return kvl_findings_answer(&f, status, answer);
}
