/* The scheduler: runs worked out by hand, every step of random runs checked against what the
 * backend itself remembers, clients that retry, the fit of costs. tests/harness/serve_mutants.sh
 * breaks the scheduler on purpose and demands that these tests fail. */
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "core/rng.h"
#include "harness/figures/dictionary.h"
#include "harness/serve/cost.h"
#include "harness/serve/trial.h"

static const int64_t MS = 1000000;

/* ---- a backend that remembers --------------------------------------------------------------- */

enum { MAX_SEQS = 64, MAX_REQUESTS = 80 };

typedef struct memory {
    const kvl_trace *trace;
    const kvl_serve_options *options;
    int64_t step_ns, token_ns;
    int64_t request[MAX_SEQS];   /* of a handle; -1: free */
    int64_t tokens[MAX_SEQS];    /* in its cache */
    int64_t given[MAX_REQUESTS]; /* output tokens that came out */
    int64_t n_steps, n_admitted, most_swapped;
} memory;

static kvl_status wrong(const char *what) {
    return kvl_fail(KVL_ERR_INTERNAL, "the backend sees: %s", what);
}

static kvl_status admit(void *user, kvl_seq seq, int64_t request, int64_t n_tokens, int64_t max_new,
                        bool whole) {
    memory *m = user;
    const kvl_trace_request *t = &m->trace->requests[request];
    if (seq < 0 || seq >= MAX_SEQS || m->request[seq] >= 0) return wrong("a handle twice");
    for (int i = 0; i < MAX_SEQS; i++)
        if (m->request[i] == request) return wrong("a request twice");
    if (n_tokens + max_new != t->prompt + t->output) return wrong("another need");
    m->request[seq] = request;
    m->tokens[seq] = -1; /* the first item says where it starts */
    m->n_admitted++;
    (void)whole;
    return KVL_OK;
}

static kvl_status release(void *user, kvl_seq seq) {
    memory *m = user;
    if (seq < 0 || seq >= MAX_SEQS || m->request[seq] < 0) return wrong("a double release");
    m->request[seq] = -1;
    return KVL_OK;
}

static kvl_status check_item(memory *m, const kvl_serve_item *it) {
    const kvl_trace_request *t = &m->trace->requests[it->request];
    int64_t known = t->prompt + m->given[it->request]; /* tokens whose ids are there */
    if (m->request[it->seq] != it->request) return wrong("an item of a sequence that is not there");
    if (m->tokens[it->seq] < 0) m->tokens[it->seq] = it->start;
    if (it->start != m->tokens[it->seq]) return wrong("a gap in a sequence");
    if (it->n_tokens < 1 || it->start + it->n_tokens > known) return wrong("tokens not known yet");
    if (it->emits != (it->start + it->n_tokens == known)) return wrong("a token too early or late");
    if (it->decodes && it->n_tokens != 1) return wrong("a decode of several tokens");
    m->tokens[it->seq] += it->n_tokens;
    m->given[it->request] += it->emits;
    if (m->given[it->request] > t->output) return wrong("more output than asked for");
    return KVL_OK;
}

static kvl_status step(void *user, const kvl_serve_item *items, int32_t n_items, int64_t swapped,
                       int64_t *ns) {
    memory *m = user;
    int64_t n = 0, held = 0, page = m->options->page_tokens;
    bool seen[MAX_SEQS] = {false};
    if (n_items < 1) return wrong("an empty step");
    for (int32_t i = 0; i < n_items; i++) {
        if (seen[items[i].seq]) return wrong("a sequence twice in a step");
        seen[items[i].seq] = true;
        n += items[i].n_tokens;
        KVL_TRY(check_item(m, &items[i]));
    }
    if (n > m->options->max_batched_tokens) return wrong("a step that is too large");
    for (int i = 0; i < MAX_SEQS; i++)
        if (m->request[i] >= 0 && m->tokens[i] > 0) held += (m->tokens[i] + page - 1) / page * page;
    if (!m->options->share && held > m->options->pool_tokens) return wrong("more than the pool");
    if (swapped > m->most_swapped) m->most_swapped = swapped;
    m->n_steps++;
    *ns = m->step_ns + n * m->token_ns;
    return KVL_OK;
}

static void remember(memory *m, const kvl_trace *t, const kvl_serve_options *o) {
    *m = (memory){.trace = t, .options = o, .step_ns = MS};
    for (int i = 0; i < MAX_SEQS; i++) m->request[i] = -1;
}

static kvl_serve_backend backend_of(memory *m) {
    return (kvl_serve_backend){m, admit, release, step};
}

static kvl_serve_options options_of(const char *allocator) {
    kvl_serve_options o = {.page_tokens = 4,
                           .pool_tokens = 4096,
                           .max_seqs = 8,
                           .max_batched_tokens = 16,
                           .chunked = true,
                           .aging_ns = INT64_C(60000000000),
                           .slo_ttft_ms = 1e9,
                           .slo_tpot_ms = 1e9};
    assert_ok(kvl_allocator_find(allocator, &o.allocator));
    return o;
}

static kvl_trace trace_of(kvl_trace_request *requests, int64_t n) {
    kvl_trace t = {.requests = requests, .n = n};
    for (int64_t i = 0; i < n; i++) {
        int32_t need = requests[i].prompt + requests[i].output;
        if (need > t.longest) t.longest = need;
    }
    return t;
}

/* ---- by hand -------------------------------------------------------------------------------- */

static void expect_times(const kvl_trace *t, const kvl_serve_options *o, const int64_t *first_ms,
                         const int64_t *last_ms) {
    memory m;
    kvl_serve_result r;
    remember(&m, t, o);
    kvl_serve_backend b = backend_of(&m);
    assert_ok(kvl_serve_run(t, o, &b, NULL, &r));
    for (int64_t i = 0; i < t->n; i++) {
        assert_int_equal(r.requests[i].end, KVL_SERVED);
        assert_int_equal(r.requests[i].first_ns, first_ms[i] * MS);
        assert_int_equal(r.requests[i].last_ns, last_ms[i] * MS);
    }
    kvl_serve_result_free(&r);
}

/* Steps of 1 ms and 16 tokens; prompts of 10 and 20, outputs of 3 and 2. */
static void schedules(void **state) {
    (void)state;
    kvl_trace_request requests[] = {{.prompt = 10, .output = 3}, {.prompt = 20, .output = 2}};
    kvl_trace t = trace_of(requests, 2);
    kvl_serve_options o = options_of("paged");
    /* 10 + 6 | 1 + 14 | 1 + 1 */
    expect_times(&t, &o, (int64_t[]){1, 2}, (int64_t[]){3, 3});
    /* 10 + 6 | 14, the first one waits | 1 + 1 | 1 */
    o.schedule = KVL_PREFILL_FIRST;
    expect_times(&t, &o, (int64_t[]){1, 2}, (int64_t[]){4, 3});
    /* one after another: 10 | 1 | 1 | 16 | 4 | 1 */
    o.schedule = KVL_STATIC;
    o.max_seqs = 1;
    expect_times(&t, &o, (int64_t[]){1, 5}, (int64_t[]){3, 6});
    /* Two at once, a third comes while they run: it waits for both under static only. */
    kvl_trace_request three[] = {{.prompt = 4, .output = 2},
                                 {.prompt = 4, .output = 5},
                                 {.arrival_ns = 1, .prompt = 4, .output = 1}};
    kvl_trace t3 = trace_of(three, 3);
    o.max_seqs = 2;
    expect_times(&t3, &o, (int64_t[]){1, 1, 6}, (int64_t[]){2, 5, 6});
    o.schedule = KVL_DECODE_FIRST;
    expect_times(&t3, &o, (int64_t[]){1, 1, 3}, (int64_t[]){2, 5, 3});
}

/* Prompts that are not cut: 12 has a step of its own when 10 is in it already; 20 is refused. */
static void unchunked(void **state) {
    (void)state;
    kvl_trace_request requests[] = {{.prompt = 10, .output = 2}, {.prompt = 12, .output = 2}};
    kvl_trace t = trace_of(requests, 2);
    kvl_serve_options o = options_of("paged");
    o.chunked = false;
    o.schedule = KVL_PREFILL_FIRST;
    expect_times(&t, &o, (int64_t[]){1, 2}, (int64_t[]){3, 3});
    requests[1].prompt = 20;
    t = trace_of(requests, 2);
    memory m;
    kvl_serve_result r;
    remember(&m, &t, &o);
    kvl_serve_backend b = backend_of(&m);
    assert_ok(kvl_serve_run(&t, &o, &b, NULL, &r));
    assert_int_equal(r.requests[1].end, KVL_SERVED_REFUSED);
    assert_int_equal(r.refused, 1);
    kvl_serve_result_free(&r);
}

/* The pool holds one and a half of them: the younger gives way, comes back and recomputes all it
 * had, and the tokens are the same number. Pages of 4 in 24 slots. */
static void preemption(void **state) {
    (void)state;
    kvl_trace_request requests[] = {{.prompt = 8, .output = 8}, {.prompt = 8, .output = 8}};
    kvl_trace t = trace_of(requests, 2);
    kvl_serve_options o = options_of("paged");
    o.pool_tokens = 24;
    for (int swap = 0; swap < 2; swap++) {
        memory m;
        kvl_serve_result r;
        o.swap = swap;
        remember(&m, &t, &o);
        kvl_serve_backend b = backend_of(&m);
        assert_ok(kvl_serve_run(&t, &o, &b, NULL, &r));
        assert_int_equal(r.finished, 2);
        assert_int_equal(r.preempted, 1);
        assert_int_equal(r.requests[1].preemptions, 1);
        /* Both hold 12 tokens and fill the pool when the older one needs a page for its 13th. */
        assert_int_equal(r.recomputed_tokens, swap ? 0 : 12);
        assert_int_equal(r.swapped_tokens, swap ? 24 : 0);
        assert_int_equal(m.most_swapped, swap ? 12 : 0);
        assert_int_equal(r.output_tokens, 16);
        kvl_serve_result_free(&r);
    }
}

static void classes(void **state) {
    (void)state;
    /* One at a time; a batch request came first, two interactive ones a moment later. */
    kvl_trace_request requests[] = {
        {.prompt = 4, .output = 4},
        {.arrival_ns = 1, .prompt = 4, .output = 1, .class = KVL_CLASS_BATCH},
        {.arrival_ns = 2, .prompt = 4, .output = 2},
        {.arrival_ns = 3, .prompt = 4, .output = 2}};
    kvl_trace t = trace_of(requests, 4);
    kvl_serve_options o = options_of("paged");
    o.max_seqs = 1;
    expect_times(&t, &o, (int64_t[]){1, 9, 5, 7}, (int64_t[]){4, 9, 6, 8});
    o.aging_ns = 5 * MS; /* after 5 ms it goes before the second of them */
    expect_times(&t, &o, (int64_t[]){1, 7, 5, 8}, (int64_t[]){4, 7, 6, 9});
}

/* ---- clients -------------------------------------------------------------------------------- */

static void queue_limits(void **state) {
    (void)state;
    kvl_trace_request requests[6];
    for (int i = 0; i < 6; i++) requests[i] = (kvl_trace_request){.prompt = 4, .output = 10};
    kvl_trace t = trace_of(requests, 6);
    kvl_serve_options o = options_of("paged");
    o.max_seqs = 1;
    o.queue_limit = 2;
    memory m;
    kvl_serve_result r;
    kvl_serve_backend b = backend_of(&m);
    remember(&m, &t, &o);
    assert_ok(kvl_serve_run(&t, &o, &b, NULL, &r));
    assert_int_equal(r.finished, 2); /* none had been admitted when the others came */
    assert_int_equal(r.gave_up, 4);
    assert_int_equal(r.turned_away, 4);
    assert_int_equal(r.largest_queue, 2);
    kvl_serve_result_free(&r);
    assert_ok(kvl_retry_parse("fixed:0.015:9", 13, &o.retry));
    remember(&m, &t, &o);
    assert_ok(kvl_serve_run(&t, &o, &b, NULL, &r));
    assert_int_equal(r.finished, 6);
    assert_int_equal(r.gave_up, 0);
    assert_true(r.turned_away > 4);
    kvl_serve_result_free(&r);
}

static void retries(void **state) {
    (void)state;
    kvl_retry r;
    char out[KVL_AXIS_TEXT_BYTES];
    const char *const bad[] = {
        "",          "non",      "none:1:1",     "fixed",       "fixed:1",
        "fixed:1:",  "fixed::3", "fixed:0:3",    "fixed:1:0",   "fixed:1:101",
        "fixed:1:x", "jitter:",  "backoff:-1:3", "fixed:3601:3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_refused(kvl_retry_parse(bad[i], strlen(bad[i]), &r), KVL_ERR_INPUT, "none, fixed");
    assert_ok(kvl_retry_canonical("backoff:0.50:05", 15, out));
    assert_string_equal(out, "backoff:0.5:5");
    assert_ok(kvl_retry_parse("backoff:1:9", 11, &r));
    const int64_t waits[] = {1, 2, 4, 8, 16, 32, 64, 64, 64};
    for (int i = 0; i < 9; i++)
        assert_int_equal(kvl_retry_wait_ns(&r, 1, 7, i + 1), waits[i] * 1000 * MS);
    assert_int_equal(kvl_retry_wait_ns(&r, 1, 7, 10), -1);
    assert_ok(kvl_retry_parse("jitter:1:9", 10, &r));
    double sum = 0;
    for (int64_t i = 0; i < 1000; i++) {
        int64_t wait = kvl_retry_wait_ns(&r, 1, i, 3);
        assert_in_range(wait, 1, 4000 * MS);
        assert_int_equal(wait, kvl_retry_wait_ns(&r, 1, i, 3));
        sum += (double)wait;
    }
    assert_true(fabs(sum / 1000 / (double)(2000 * MS) - 1) <
                0.1); /* uniform: mean 2 s, 5 sigma 0.09 */
}

/* ---- random runs ---------------------------------------------------------------------------- */

static void random_trace(kvl_rng *rng, kvl_trace_request *requests, kvl_trace *t) {
    int64_t n = 1 + (int64_t)kvl_rng_below(rng, MAX_REQUESTS - 1), at = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i) at += (int64_t)kvl_rng_below(rng, 4) * 2 * MS;
        requests[i] = (kvl_trace_request){
            .arrival_ns = at,
            .prompt = 1 + (int32_t)kvl_rng_below(rng, 50),
            .output = 1 + (int32_t)kvl_rng_below(rng, 40),
            .class = kvl_rng_below(rng, 3) == 0 ? KVL_CLASS_BATCH : KVL_CLASS_INTERACTIVE};
    }
    *t = trace_of(requests, n);
}

static void random_options(kvl_rng *rng, kvl_serve_options *o) {
    static const char *const names[] = {"paged",      "paged", "paged",
                                        "contiguous", "buddy", "growing"};
    *o = options_of(names[kvl_rng_below(rng, 6)]);
    o->reserve = (kvl_reserve_policy)kvl_rng_below(rng, 3);
    o->page_tokens = 1 + (int64_t)kvl_rng_below(rng, 8);
    o->pool_tokens = 128 + (int64_t)kvl_rng_below(rng, 400);
    o->max_seqs = 1 + (int32_t)kvl_rng_below(rng, 24);
    o->max_batched_tokens = 24 + (int32_t)kvl_rng_below(rng, 100);
    o->schedule = (kvl_serve_schedule)kvl_rng_below(rng, 3);
    o->chunked = kvl_rng_below(rng, 4) != 0;
    o->swap = kvl_rng_below(rng, 2);
    o->queue_limit = (int64_t)kvl_rng_below(rng, 2) * 6;
    o->aging_ns = (int64_t)(1 + kvl_rng_below(rng, 100)) * MS;
    o->seed = kvl_rng_u64(rng);
    static const char *const laws[] = {"none", "fixed:0.005:3", "backoff:0.002:5", "jitter:0.01:6"};
    const char *law = laws[kvl_rng_below(rng, 4)];
    assert_ok(kvl_retry_parse(law, strlen(law), &o->retry));
    if (strcmp(o->allocator->name, "paged") != 0) o->page_tokens = 1;
}

/* 3,000 runs, every step of each checked by the backend; twice the same. */
static void random_runs(void **state) {
    (void)state;
    int64_t preempted = 0, most = 0, gave_up = 0, refused = 0, swapped = 0;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        kvl_rng rng = kvl_rng_make(seed, 9);
        kvl_trace_request requests[MAX_REQUESTS];
        kvl_trace t;
        kvl_serve_options o;
        memory m;
        kvl_serve_result r, again;
        random_trace(&rng, requests, &t);
        random_options(&rng, &o);
        kvl_serve_backend b = backend_of(&m);
        remember(&m, &t, &o);
        m.token_ns = (int64_t)kvl_rng_below(&rng, 2) * 100000;
        kvl_status status = kvl_serve_run(&t, &o, &b, NULL, &r);
        if (status != KVL_OK) fail_msg("seed %d: %s", (int)seed, kvl_message());
        for (int64_t i = 0; i < t.n; i++) {
            assert_int_not_equal(r.requests[i].end, KVL_SERVED_NOT);
            if (r.requests[i].end == KVL_SERVED)
                assert_int_equal(m.given[i], requests[i].output);
            else
                assert_int_equal(m.given[i], 0);
        }
        int64_t token_ns = m.token_ns;
        remember(&m, &t, &o);
        m.token_ns = token_ns;
        assert_ok(kvl_serve_run(&t, &o, &b, NULL, &again));
        assert_int_equal(r.end_ns, again.end_ns);
        assert_memory_equal(r.requests, again.requests, (size_t)t.n * sizeof *r.requests);
        preempted += r.preempted;
        most += r.preempted_most == KVL_SERVE_MAX_PREEMPTIONS;
        gave_up += r.gave_up;
        refused += r.refused;
        swapped += r.swapped_tokens;
        kvl_serve_result_free(&r);
        kvl_serve_result_free(&again);
    }
    /* What the runs are for did occur. */
    assert_true(preempted > 1000 && most > 10 && gave_up > 1000 && refused > 100 && swapped > 1000);
}

/* Prefixes: the second request of one content computes only what the cache lacks. */
static void shares(void **state) {
    (void)state;
    uint64_t blocks[] = {11, 12, 11, 12};
    kvl_trace_request requests[] = {
        {.prompt = 32, .output = 2, .n_blocks = 2},
        {.arrival_ns = 100 * MS, .prompt = 32, .output = 2, .n_blocks = 2, .first_block = 2}};
    kvl_trace t = trace_of(requests, 2);
    t.blocks = blocks;
    t.n_blocks = 4;
    t.block_tokens = 16;
    kvl_serve_options o = options_of("paged");
    o.page_tokens = 16;
    o.share = true;
    memory m;
    kvl_serve_result r;
    remember(&m, &t, &o);
    kvl_serve_backend b = backend_of(&m);
    assert_ok(kvl_serve_run(&t, &o, &b, NULL, &r));
    assert_int_equal(r.ledger.asked_pages, 4);
    /* Logits need the last token to be run, so its page is computed again: 16 found, or 31. */
    assert_int_equal(r.computed_tokens, 32 + 1 + (32 - r.ledger.hit_tokens) + 1);
    assert_true(r.ledger.hit_tokens >= 16);
    kvl_serve_result_free(&r);
}

/* ---- what breaks is noticed ----------------------------------------------------------------- */

static kvl_allocator broken;
static const kvl_allocator *good;
static int64_t calls;

static kvl_status leaky_release(void *state, kvl_seq seq) {
    return ++calls == 2 ? KVL_OK : good->release(state, seq);
}
static kvl_status deaf_append(void *state, kvl_seq seq, int64_t n) {
    return ++calls > 3 ? kvl_fail(KVL_ERR_OOM, "no slot") : good->append(state, seq, n);
}
static kvl_status no_time(void *user, const kvl_serve_item *items, int32_t n, int64_t swapped,
                          int64_t *ns) {
    (void)user, (void)items, (void)n, (void)swapped;
    *ns = 0;
    return KVL_OK;
}

static void expect_broken(kvl_serve_backend b, const kvl_allocator *allocator, const char *part) {
    kvl_trace_request requests[] = {
        {.prompt = 8, .output = 8}, {.prompt = 8, .output = 8}, {.prompt = 8, .output = 8}};
    kvl_trace t = trace_of(requests, 3);
    kvl_serve_options o = options_of("paged");
    kvl_serve_result r;
    memory m;
    o.allocator = allocator;
    remember(&m, &t, &o);
    if (!b.user) b.user = &m;
    calls = 0;
    assert_refused(kvl_serve_run(&t, &o, &b, NULL, &r), KVL_ERR_INTERNAL, part);
    kvl_serve_result_free(&r);
}

static void breaks(void **state) {
    (void)state;
    assert_ok(kvl_allocator_find("paged", &good));
    kvl_serve_backend mute = {.step = step}, stopped = {.step = no_time};
    memory m;
    (void)m;
    broken = *good;
    broken.release = leaky_release;
    kvl_serve_backend all = {NULL, admit, release, step};
    (void)mute;
    expect_broken(all, &broken, "slots are handed out after the last request");
    broken = *good;
    broken.append = deaf_append;
    expect_broken(all, &broken, "set aside was refused");
    expect_broken(stopped, good, "a step of 0 ns");
}

static void refuses_options(void **state) {
    (void)state;
    kvl_trace_request requests[] = {{.prompt = 8, .output = 8}};
    kvl_trace t = trace_of(requests, 1);
    kvl_serve_result r;
    memory m;
    kvl_serve_options o = options_of("paged");
    kvl_serve_backend b = backend_of(&m);
    o.max_batched_tokens = 4;
    assert_refused(kvl_serve_run(&t, &o, &b, NULL, &r), KVL_ERR_INPUT, "less than --max-seqs 8");
    o = options_of("paged");
    o.share = true;
    assert_refused(kvl_serve_run(&t, &o, &b, NULL, &r), KVL_ERR_INPUT, "does not say");
    o = options_of("paged");
    o.pool_tokens = 12; /* the request needs 16 */
    remember(&m, &t, &o);
    assert_ok(kvl_serve_run(&t, &o, &b, NULL, &r));
    assert_int_equal(r.refused, 1);
    kvl_serve_result_free(&r);
}

/* ---- cost ----------------------------------------------------------------------------------- */

static const double true_cost[KVL_COST_FEATURES] = {5e-3, 2e-4, 3e-5, 1e-6, 4e-7};

static json_t *decode_row(int trial, int prompt, int batch, const char *kernel) {
    char key[24];
    snprintf(key, sizeof key, "%016x", trial);
    const int output = 32;
    double steps = ceil((double)batch * prompt / 512), tokens = (double)batch * prompt;
    double ttft = steps * true_cost[0] + tokens * true_cost[1] + batch * true_cost[2] +
                  tokens * (prompt + 1) / 2 * true_cost[4];
    double tpot = true_cost[0] + batch * (true_cost[1] + true_cost[2]) +
                  batch * (prompt + output / 2.0) * true_cost[3];
    return json_pack(
        "{s:i,s:s,s:s,s:i,s:s,s:{s:s,s:s,s:i,s:i,s:i,s:i},s:{s:i},s:s,s:s,s:{s:f,s:f,s:I,s:I},s:{},"
        "s:{},s:{s:s,s:I},s:i,s:s}",
        "schema", 1, "run", "r", "trial", key, "round", 0, "workload", "decode", "axes", "model",
        "m", "attention", kernel, "prompt", prompt, "output", output, "context", 0, "batch", batch,
        "effective", "chunk_tokens", 0, "outcome", "ok", "reason", "", "metrics", "ttft_ms",
        ttft * 1e3, "tpot_ms", tpot * 1e3, "kv_bytes_formula",
        (json_int_t)batch * (prompt + output) * 100, "weight_bytes", (json_int_t)1000000, "samples",
        "ceilings", "env", "host", "h", "memory_bytes", (json_int_t)11000000, "seed", 1, "repro",
        "k");
}

static const char *write_rows(bool mixed) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/kvlab-cost-%ld.jsonl", (long)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    int n = 0;
    for (int prompt = 64; prompt <= 1024; prompt *= 4)
        for (int batch = 1; batch <= 16; batch *= 4) {
            json_t *row = decode_row(n, prompt, batch, mixed && n == 3 ? "eager" : "flash");
            char *text = json_dumps(row, JSON_COMPACT);
            fprintf(f, "%s\n", text);
            free(text);
            json_decref(row);
            n++;
        }
    fclose(f);
    return path;
}

static void fits_costs(void **state) {
    (void)state;
    kvl_cost cost;
    const char *path = write_rows(false);
    assert_ok(kvl_cost_fit(path, &cost));
    for (int f = 0; f < KVL_COST_FEATURES; f++)
        assert_true(fabs(cost.seconds[f] / true_cost[f] - 1) < 1e-3);
    assert_true(cost.max_error_pct < 0.01);
    assert_int_equal(cost.n_points, 18);
    assert_int_equal(cost.kv_bytes_per_token, 100);
    int64_t pool;
    assert_ok(kvl_serve_pool_tokens(&cost, 50, 0, &pool));
    assert_int_equal(pool, (11000000 / 2 - 1000000) / 100);
    assert_refused(kvl_serve_pool_tokens(&cost, 9, 0, &pool), KVL_ERR_INPUT, "no slot is left");
    kvl_serve_item items[] = {{.start = 99, .n_tokens = 1, .decodes = true, .emits = true},
                              {.start = 10, .n_tokens = 5, .emits = false}};
    double features[KVL_COST_FEATURES];
    kvl_cost_features(items, 2, features);
    const double wanted[KVL_COST_FEATURES] = {1, 6, 1, 100, 11 + 12 + 13 + 14 + 15};
    for (int f = 0; f < KVL_COST_FEATURES; f++) assert_true(features[f] == wanted[f]);
    assert_refused(kvl_cost_fit(write_rows(true), &cost), KVL_ERR_INPUT, "one configuration");
    unlink(path);
}

/* The child's side: every metric it names is defined. */
static void trial_answers(void **state) {
    (void)state;
    json_t *spec = json_pack(
        "{s:{s:s,s:i,s:s,s:f},s:{s:s,s:s,s:s,s:s,s:i,s:s,s:i,s:i,s:i,s:i,s:i,s:s,s:s,s:s,s:i,s:s}}",
        "workload", "name", "serve", "seed", 1, "cost", write_rows(false), "length_scale", 0.25,
        "axes", "trace", KVL_SOURCE_DIR "/tests/harness/traces/azure_llm_2023_conv_400.csv",
        "arrival", "poisson:3", "allocator", "paged", "reserve", "none", "page_tokens", 16, "share",
        "off", "pool_tokens", 0, "memory_utilization", 50, "max_model_len", 0, "max_seqs", 32,
        "max_batched_tokens", 256, "schedule", "decode_first", "chunked_prefill", "on", "preempt",
        "recompute", "queue_limit", 20, "retry", "jitter:1:5");
    json_t *answer = NULL, *value;
    const char *name;
    assert_non_null(spec);
    assert_ok(kvl_serve_trial_run(spec, &answer));
    assert_string_equal(json_string_value(json_object_get(answer, "reason")), "");
    assert_string_equal(json_string_value(json_object_get(answer, "outcome")), "ok");
    json_object_foreach(json_object_get(answer, "metrics"), name, value) {
        if (!kvl_name_find(name)) fail_msg("%s is not in the dictionary", name);
    }
    assert_int_equal(json_integer_value(
                         json_object_get(json_object_get(answer, "metrics"), "serve_pool_tokens")),
                     (11000000 / 2 - 1000000) / 100);
    json_decref(answer);
    json_decref(spec);
}

static void gaps(void **state) {
    (void)state;
    static uint64_t counts[KVL_GAP_BUCKETS];
    for (int64_t ns = 1; ns < INT64_C(4000000000000000); ns = ns * 3 / 2 + 1) {
        double middle = kvl_gap_ns(kvl_gap_bucket(ns));
        if (ns >= 1000 && ns < INT64_C(100000000000000))
            assert_true(fabs(middle / (double)ns - 1) < 0.0006);
    }
    for (int i = 1; i <= 1000; i++) counts[kvl_gap_bucket(i * MS)]++;
    assert_true(fabs(kvl_gap_quantile(counts, 0.5) / (500.5 * (double)MS) - 1) < 0.002);
    assert_true(fabs(kvl_gap_quantile(counts, 0.99) / (990 * (double)MS) - 1) < 0.002);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules),    cmocka_unit_test(unchunked),
        cmocka_unit_test(preemption),   cmocka_unit_test(classes),
        cmocka_unit_test(queue_limits), cmocka_unit_test(retries),
        cmocka_unit_test(random_runs),  cmocka_unit_test(shares),
        cmocka_unit_test(breaks),       cmocka_unit_test(refuses_options),
        cmocka_unit_test(fits_costs),   cmocka_unit_test(trial_answers),
        cmocka_unit_test(gaps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
