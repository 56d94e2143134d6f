/* Time, arrivals, and the laws. */
#include "harness/serve/serve.h"

#include <stdlib.h>

#include "harness/serve/serve_internal.h"

const char *const kvl_serve_columns[KVL_SERVE_COLUMNS] = {
    "live", "reserved", "internal", "cached",  "padding",
    "free", "pool",     "external", "running", "waiting"};

static const int64_t NEVER = INT64_MAX;
/* One column of a series is a slice of virtual time. */
static const int64_t SLICE_NS = 1000000;

/* ---- arrivals ------------------------------------------------------------------------------- */

/* Longer than is allowed, or than a step where prompts are not cut. */
static bool is_too_long(const kvl_server *s, int64_t request) {
    const kvl_trace_request *t = &s->trace->requests[request];
    int64_t need = (int64_t)t->prompt + t->output;
    if (need > s->pool.config.max_seq_tokens) return true;
    return !s->options->chunked && need - 1 > s->options->max_batched_tokens;
}

static kvl_status turn_away(kvl_server *s, int64_t request, int64_t at_ns) {
    kvl_served *out = &s->result->requests[request];
    int64_t wait = kvl_retry_wait_ns(&s->options->retry, s->options->seed, request, out->attempts);
    s->result->turned_away++;
    if (wait < 0) {
        out->end = KVL_SERVED_GAVE_UP;
        s->result->gave_up++;
        return KVL_OK;
    }
    return kvl_heap_push(&s->retries, (kvl_event){at_ns + wait, request, request});
}

static kvl_status arrive(kvl_server *s, int64_t request, int64_t at_ns) {
    kvl_served *out = &s->result->requests[request];
    if (out->attempts++ == 0 && is_too_long(s, request)) {
        out->end = KVL_SERVED_REFUSED;
        s->result->refused++;
        return KVL_OK;
    }
    int64_t limit = s->options->queue_limit;
    if (limit && kvl_server_waiting(s) >= limit) return turn_away(s, request, at_ns);
    s->serving[request].queued_ns = at_ns;
    kvl_queue_back(&s->queues[s->trace->requests[request].class], request);
    int64_t waiting = kvl_server_waiting(s);
    if (waiting > s->result->largest_queue) s->result->largest_queue = waiting;
    return KVL_OK;
}

static int64_t next_arrival_ns(const kvl_server *s) {
    int64_t first =
        s->next_arrival < s->trace->n ? s->trace->requests[s->next_arrival].arrival_ns : NEVER;
    int64_t retry = s->retries.n ? s->retries.events[0].time : NEVER;
    return first < retry ? first : retry;
}

/* All that came up to now_ns, in order of time; of one moment the retries come last. */
static kvl_status take_arrivals(kvl_server *s) {
    for (int64_t at = next_arrival_ns(s); at <= s->now_ns; at = next_arrival_ns(s)) {
        bool first =
            s->next_arrival < s->trace->n && s->trace->requests[s->next_arrival].arrival_ns == at;
        int64_t request = first ? s->next_arrival++ : kvl_heap_pop(&s->retries).what;
        KVL_TRY(arrive(s, request, at));
    }
    return KVL_OK;
}

/* ---- sums ----------------------------------------------------------------------------------- */

static void account(kvl_server *s, kvl_series *series, int64_t from_ns) {
    kvl_serve_result *out = s->result;
    double ns = (double)(s->now_ns - from_ns);
    kvl_ledger l;
    s->pool.module->stats(s->pool.state, 0, &l);
    out->batch_ns += (double)s->n_running * ns;
    out->queue_ns += (double)kvl_server_waiting(s) * ns;
    out->live_ns += (double)l.live * ns;
    out->used_ns += (double)(l.live + l.reserved + l.internal) * ns;
    int64_t first = from_ns / SLICE_NS, last = s->now_ns / SLICE_NS;
    if (!series || last == first) return;
    const double values[KVL_SERVE_COLUMNS] = {(double)l.live,       (double)l.reserved,
                                              (double)l.internal,   (double)l.cached,
                                              (double)l.padding,    (double)l.free,
                                              (double)l.pool,       (double)l.external,
                                              (double)s->n_running, (double)kvl_server_waiting(s)};
    const double slopes[KVL_SERVE_COLUMNS] = {0};
    kvl_series_add(series, first, last - first, values, slopes);
}

/* ---- the run -------------------------------------------------------------------------------- */

static kvl_status run_step(kvl_server *s, kvl_series *series) {
    int64_t ns = 0, from = s->now_ns;
    KVL_TRY(s->backend->step(s->backend->user, s->items, s->n_items, s->swap_tokens, &ns));
    if (ns < 1) return kvl_fail(KVL_ERR_INTERNAL, "a step of %lld ns", (long long)ns);
    s->swap_tokens = 0;
    if (s->now_ns > NEVER / 2 - ns) return kvl_fail(KVL_ERR_INPUT, "virtual time passes 146 years");
    s->now_ns += ns;
    s->result->steps++;
    s->result->busy_ns += ns;
    account(s, series, from);
    return kvl_serve_take_tokens(s);
}

static kvl_status loop(kvl_server *s, kvl_series *series) {
    for (;;) {
        KVL_TRY(take_arrivals(s));
        KVL_TRY(kvl_serve_fill_step(s));
        if (s->n_items) {
            KVL_TRY(run_step(s, series));
            continue;
        }
        if (s->n_running || kvl_server_waiting(s))
            return kvl_fail(KVL_ERR_INTERNAL,
                            "no progress: %d sequences run, %lld requests wait, no token moves",
                            s->n_running, (long long)kvl_server_waiting(s));
        int64_t next = next_arrival_ns(s), from = s->now_ns;
        if (next == NEVER) return KVL_OK;
        s->now_ns = next;
        account(s, series, from);
    }
}

static kvl_status check_end(const kvl_server *s) {
    const kvl_serve_result *out = s->result;
    char why[256];
    int64_t wanted = 0;
    for (int64_t i = 0; i < s->trace->n; i++) {
        if (out->requests[i].end == KVL_SERVED_NOT)
            return kvl_fail(KVL_ERR_INTERNAL, "request %lld is lost", (long long)i);
        if (out->requests[i].end == KVL_SERVED) wanted += s->trace->requests[i].output;
    }
    if (out->finished + out->refused + out->gave_up != s->trace->n)
        return kvl_fail(KVL_ERR_INTERNAL,
                        "%lld requests: %lld finished, %lld refused, %lld gave up",
                        (long long)s->trace->n, (long long)out->finished, (long long)out->refused,
                        (long long)out->gave_up);
    if (out->output_tokens != wanted)
        return kvl_fail(KVL_ERR_INTERNAL, "%lld output tokens, not %lld",
                        (long long)out->output_tokens, (long long)wanted);
    if (out->ledger.live || out->ledger.reserved || out->ledger.internal)
        return kvl_fail(KVL_ERR_INTERNAL, "slots are handed out after the last request");
    if (!s->pool.module->is_valid(s->pool.state, why, sizeof why))
        return kvl_fail(KVL_ERR_INTERNAL, "%s", why);
    return KVL_OK;
}

static kvl_status check_options(const kvl_trace *trace, const kvl_serve_options *o) {
    if (o->max_seqs < 1 || o->max_batched_tokens < 1)
        return kvl_fail(KVL_ERR_INPUT, "--max-seqs and --max-batched-tokens: at least 1");
    if (o->max_batched_tokens < o->max_seqs && o->schedule == KVL_DECODE_FIRST)
        return kvl_fail(
            KVL_ERR_INPUT,
            "--max-batched-tokens %d: less than --max-seqs %d, so a step could not hold "
            "one token of each",
            o->max_batched_tokens, o->max_seqs);
    if (o->share && (!o->allocator->admit || !trace->n_blocks))
        return kvl_fail(KVL_ERR_INPUT, "--share on: %s",
                        !trace->n_blocks ? "the trace does not say what its prompts hold"
                                         : "the allocator shares no prefixes");
    return KVL_OK;
}

static kvl_status make(kvl_server *s) {
    const kvl_serve_options *o = s->options;
    size_t n = (size_t)s->trace->n, n_seqs = (size_t)o->max_seqs;
    kvl_allocator_config config = {.pool_tokens = o->pool_tokens,
                                   .page_tokens = o->page_tokens > 0 ? o->page_tokens : 1,
                                   .max_seq_tokens =
                                       o->max_model_len ? o->max_model_len : s->trace->longest,
                                   .max_seqs = o->max_seqs,
                                   .reserve = o->reserve,
                                   .prefix = o->share ? KVL_PREFIX_KEYS : KVL_PREFIX_OFF};
    s->serving = calloc(n, sizeof *s->serving);
    s->running = calloc(n_seqs, sizeof *s->running);
    s->items = calloc(n_seqs, sizeof *s->items);
    for (int c = 0; c < 2; c++)
        s->queues[c] = (kvl_queue){calloc(n, sizeof(int64_t)), s->trace->n, 0, 0};
    s->result->requests = calloc(n, sizeof *s->result->requests);
    s->result->gaps = calloc(KVL_GAP_BUCKETS, sizeof *s->result->gaps);
    if (!s->serving || !s->running || !s->items || !s->queues[0].ring || !s->queues[1].ring ||
        !s->result->requests || !s->result->gaps)
        return kvl_fail(KVL_ERR_OOM, "%zu requests: out of memory", n);
    for (size_t i = 0; i < n; i++) {
        kvl_served *r = &s->result->requests[i];
        r->arrival_ns = s->trace->requests[i].arrival_ns;
        r->admitted_ns = r->first_ns = r->last_ns = -1;
    }
    KVL_TRY(kvl_pool_open(&s->pool, o->allocator, &config, s->trace));
    s->grows = kvl_pool_room(&s->pool, 1, 1 + config.page_tokens) < config.page_tokens;
    return KVL_OK;
}

static void destroy(kvl_server *s) {
    kvl_pool_close(&s->pool);
    kvl_heap_free(&s->retries);
    free(s->serving);
    free(s->running);
    free(s->items);
    for (int c = 0; c < 2; c++) free(s->queues[c].ring);
}

kvl_status kvl_serve_run(const kvl_trace *trace, const kvl_serve_options *options,
                         const kvl_serve_backend *backend, kvl_series *series,
                         kvl_serve_result *out) {
    kvl_server s = {.trace = trace, .options = options, .backend = backend, .result = out};
    *out = (kvl_serve_result){0};
    KVL_TRY(check_options(trace, options));
    if (series) kvl_series_start(series, kvl_serve_columns, KVL_SERVE_COLUMNS);
    kvl_status status = make(&s);
    if (status == KVL_OK) status = loop(&s, series);
    if (status == KVL_OK) {
        out->end_ns = s.now_ns;
        s.pool.module->stats(s.pool.state, 0, &out->ledger);
        status = check_end(&s);
    }
    destroy(&s);
    return status;
}

void kvl_serve_result_free(kvl_serve_result *result) {
    free(result->requests);
    free(result->gaps);
    result->requests = NULL;
    result->gaps = NULL;
}
