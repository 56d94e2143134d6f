/* Continuous batching over a trace: what a server's scheduler does, in virtual time or on the
 * engine.
 *
 * A step takes at most max_batched_tokens new tokens: one for each sequence that decodes, chunks of
 * prompts for the others. The backend says how long it took. Between steps requests arrive, are
 * queued, turned away (429) and tried again; the pool decides who is admitted; a sequence that
 * cannot grow has another one preempted. Time is whole nanoseconds: the same trace, options and
 * backend times give the same run.
 *
 * Laws, checked while it runs (KVL_ERR_INTERNAL names the one that is broken):
 *   progress    every step moves a token, or time goes to the next event; when neither can be, all
 *               requests have ended
 *   nothing lost  requests = finished + refused + gave_up, output tokens as asked for, and the pool
 *               is empty in the end and valid
 *   no ping-pong  a request is preempted at most KVL_SERVE_MAX_PREEMPTIONS times; then it comes
 * back with its whole need set aside and is not chosen again no starving   nobody is admitted
 * before a request that came earlier and has waited aging_s
 */
#ifndef KVL_HARNESS_SERVE_H
#define KVL_HARNESS_SERVE_H

#include "allocators/allocator.h"
#include "harness/replay/pool.h"
#include "harness/replay/series.h"
#include "harness/serve/retry.h"
#include "harness/traces/trace.h"

enum { KVL_SERVE_MAX_PREEMPTIONS = 3, KVL_SERVE_COLUMNS = 10 };
extern const char *const kvl_serve_columns[KVL_SERVE_COLUMNS];

typedef enum kvl_serve_schedule {
    KVL_DECODE_FIRST = 0, /* decodes, then prompts in what is left of the step (vLLM V1) */
    KVL_PREFILL_FIRST,    /* a step of prompts alone while there are any: decodes wait (vLLM V0) */
    KVL_STATIC            /* a batch is taken in and nobody else until its last one is done */
} kvl_serve_schedule;

/* One sequence's part of a step. */
typedef struct kvl_serve_item {
    kvl_seq seq;
    int64_t request;
    int64_t start;    /* tokens in its cache before the step */
    int32_t n_tokens; /* new ones */
    bool decodes;     /* n_tokens is 1 and it is the token generated last */
    bool emits;       /* the step gives its next token */
} kvl_serve_item;

/* Who does the work. admit and release may be NULL. */
typedef struct kvl_serve_backend {
    void *user;
    /* `seq` is the pool's handle; n_tokens are to be given in items, max_new may follow; `whole`:
     * everything is set aside now. */
    kvl_status (*admit)(void *user, kvl_seq seq, int64_t request, int64_t n_tokens, int64_t max_new,
                        bool whole);
    kvl_status (*release)(void *user, kvl_seq seq);
    /* Runs the step; swapped: tokens whose K and V go out or in before it. *ns >= 1. */
    kvl_status (*step)(void *user, const kvl_serve_item *items, int32_t n_items, int64_t swapped,
                       int64_t *ns);
} kvl_serve_backend;

typedef struct kvl_serve_options {
    const kvl_allocator *allocator;
    kvl_reserve_policy reserve;
    int64_t page_tokens, pool_tokens, max_model_len; /* 0: the trace's longest */
    int32_t max_seqs;
    int32_t max_batched_tokens;
    kvl_serve_schedule schedule;
    bool chunked;        /* prompts may be cut; else one that exceeds a step is refused */
    bool swap;           /* preemption saves K and V instead of computing them again */
    bool share;          /* prompts with known content share prefixes */
    int64_t queue_limit; /* requests that wait; more are turned away; 0 = no limit */
    kvl_retry retry;
    uint64_t seed;    /* of jitter */
    int64_t aging_ns; /* a batch request that waited so long goes before interactive ones */
    double slo_ttft_ms, slo_tpot_ms;
} kvl_serve_options;

/* What became of a request; times since the trace's start. */
typedef struct kvl_served {
    enum { KVL_SERVED_NOT = 0, KVL_SERVED, KVL_SERVED_REFUSED, KVL_SERVED_GAVE_UP } end;
    int64_t arrival_ns, admitted_ns, first_ns, last_ns; /* first and last token */
    int32_t attempts, preemptions;
    int64_t longest_gap_ns; /* between two tokens */
} kvl_served;

typedef struct kvl_serve_result {
    kvl_served *requests;                            /* [trace.n], malloc'ed */
    int64_t finished, refused, gave_up, turned_away; /* turned_away: 429 answers, retries too */
    int64_t preempted, preempted_requests, preempted_most, recomputed_tokens, swapped_tokens;
    int64_t steps, busy_ns, end_ns;
    int64_t output_tokens, computed_tokens; /* given out; run through the model, recompute too */
    int64_t largest_batch, largest_queue;
    double batch_ns, queue_ns; /* sequences, waiting requests x time */
    double live_ns, used_ns;   /* slots x time */
    kvl_ledger ledger;         /* at the end */
    uint64_t *gaps;            /* histogram of times between tokens (serve_report.h), malloc'ed */
} kvl_serve_result;

/* `series` may be NULL. A result must be freed whatever came back. */
kvl_status kvl_serve_run(const kvl_trace *trace, const kvl_serve_options *options,
                         const kvl_serve_backend *backend, kvl_series *series,
                         kvl_serve_result *out);
void kvl_serve_result_free(kvl_serve_result *result);

/* Gaps are counted in buckets of 0.1 %: bucket of `ns`, and the middle of a bucket. */
enum { KVL_GAP_BUCKETS = 32768 };
int32_t kvl_gap_bucket(int64_t ns);
double kvl_gap_ns(int32_t bucket);
/* The q-quantile of all gaps, to 0.1 %; NaN when there are none. */
double kvl_gap_quantile(const uint64_t *gaps, double q);

#endif
