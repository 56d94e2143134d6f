#define _GNU_SOURCE
#include "harness/replay/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "harness/replay/heap.h"
#include "harness/replay/pool.h"

const char *const kvl_replay_columns[KVL_REPLAY_COLUMNS] = {
    "live", "reserved", "internal", "cached",  "padding",           "free",
    "pool", "external", "running",  "waiting", "largest_admissible"};

enum { NONE = -1 };
static const int64_t NEVER = INT64_MAX;

/* A sequence that runs, by its handle. */
typedef struct running {
    int64_t request;      /* in the trace; NONE: the handle is free */
    int64_t admission;    /* its number: 0, 1, ... over the run */
    int64_t start;        /* step in which its first token of this admission came */
    int64_t done;         /* tokens generated before this admission */
    int64_t appended;     /* the last step whose token the allocator knows */
    int32_t older, newer; /* neighbours in order of admission; NONE at the ends */
    bool whole;           /* everything it needs is set aside */
} running;

typedef struct replay {
    const kvl_trace *trace;
    const kvl_replay_options *options;
    kvl_replay_result *result;
    kvl_series *series;
    kvl_map *map;
    kvl_pool pool;
    bool unlimited;
    bool grows;   /* sequences take slots after admission: they may be preempted */
    int64_t room; /* unlimited: slot numbers are below this many times the peak */
    int32_t max_seqs;
    running *seqs;   /* [max_seqs] */
    int64_t *owners; /* [max_seqs]: seqs[].request, for maps */
    int32_t oldest, newest;
    kvl_heap events; /* what: seq | admission, see event_of */
    int64_t *queue;  /* ring [trace.n]: requests that wait */
    int64_t queue_head, n_waiting;
    int32_t *done;        /* [trace.n] tokens generated before the last preemption */
    uint8_t *preemptions; /* [trace.n] */
    int64_t next_arrival; /* first request that has not arrived */
    int64_t n_running, n_admissions;
    int64_t appended_sum; /* of running sequences' `appended` */
    bool blocked;         /* the head of the queue was refused; nothing was freed since */
} replay;

/* ---- time ----------------------------------------------------------------------------------- */

static int64_t arrival_step(const replay *r, int64_t request) {
    double step = ceil((double)r->trace->requests[request].arrival_ns / (r->options->step_s * 1e9));
    return (int64_t)step;
}

static int64_t need_of(const replay *r, int64_t request) {
    return (int64_t)r->trace->requests[request].prompt + r->trace->requests[request].output;
}

/* The first step in which it runs no more. */
static int64_t end_step(const replay *r, const running *s) {
    return s->start + r->trace->requests[s->request].output - s->done;
}

/* Tokens at step `step`, its token included. */
static int64_t length_at(const replay *r, const running *s, int64_t step) {
    return r->trace->requests[s->request].prompt + s->done + (step - s->start + 1);
}

/* When it must be looked at next: its end, or the first step whose token may take new slots. Ends
 * come first in a step, so that what they free can be used in it. */
static kvl_status schedule(replay *r, int32_t seq) {
    const running *s = &r->seqs[seq];
    int64_t end = end_step(r, s), length = length_at(r, s, s->appended);
    int64_t grow = s->appended + 1 + kvl_pool_room(&r->pool, length, need_of(r, s->request));
    bool ends = end <= grow;
    int64_t order = ends ? s->admission : s->admission + (INT64_C(1) << 40);
    return kvl_heap_push(&r->events, (kvl_event){ends ? end : grow, order, seq});
}

static bool is_current(const replay *r, const kvl_event *event) {
    const running *s = &r->seqs[event->what];
    return s->request != NONE && s->admission == (event->order & ((INT64_C(1) << 40) - 1));
}

/* ---- sequences ------------------------------------------------------------------------------ */

static void link_newest(replay *r, int32_t seq) {
    r->seqs[seq].older = r->newest;
    r->seqs[seq].newer = NONE;
    if (r->newest != NONE) r->seqs[r->newest].newer = seq;
    if (r->oldest == NONE) r->oldest = seq;
    r->newest = seq;
}

static kvl_status leave(replay *r, int32_t seq) {
    running *s = &r->seqs[seq];
    if (s->older != NONE) r->seqs[s->older].newer = s->newer;
    if (s->newer != NONE) r->seqs[s->newer].older = s->older;
    if (r->oldest == seq) r->oldest = s->newer;
    if (r->newest == seq) r->newest = s->older;
    r->n_running--;
    r->appended_sum -= s->appended;
    r->blocked = false;
    s->request = r->owners[seq] = NONE;
    return r->pool.module->release(r->pool.state, seq);
}

/* Tells the allocator of the tokens up to and including step `step`. */
static kvl_status append_to(replay *r, int32_t seq, int64_t step) {
    running *s = &r->seqs[seq];
    if (step == s->appended) return KVL_OK;
    KVL_TRY(kvl_pool_append(&r->pool, seq, step - s->appended));
    r->appended_sum += step - s->appended;
    s->appended = step;
    return KVL_OK;
}

static double handed_out(const kvl_ledger *ledger) {
    return (double)(ledger->live + ledger->reserved + ledger->internal);
}

/* What its last step held alone: the difference that its release makes. */
static kvl_status finish(replay *r, int32_t seq, int64_t step) {
    kvl_ledger before, after;
    KVL_TRY(append_to(r, seq, step - 1));
    r->pool.module->stats(r->pool.state, 0, &before);
    KVL_TRY(leave(r, seq));
    r->pool.module->stats(r->pool.state, 0, &after);
    r->result->end_slots += handed_out(&before) - handed_out(&after);
    r->result->end_tokens += (double)(before.live - after.live);
    r->result->finished++;
    return KVL_OK;
}

static void queue_back(replay *r, int64_t request) {
    r->queue[(r->queue_head + r->n_waiting++) % r->trace->n] = request;
}

static void queue_front(replay *r, int64_t request) {
    r->queue_head = (r->queue_head + r->trace->n - 1) % r->trace->n;
    r->queue[r->queue_head] = request;
    r->n_waiting++;
}

static void queue_drop(replay *r) {
    r->queue_head = (r->queue_head + 1) % r->trace->n;
    r->n_waiting--;
}

/* ---- growth and preemption ------------------------------------------------------------------ */

static kvl_status preempt(replay *r, int32_t seq, int64_t step) {
    running *s = &r->seqs[seq];
    int64_t request = s->request;
    /* The tokens of all steps before this one; in this one it has not run. */
    r->done[request] = (int32_t)(s->done + step - s->start);
    r->result->preempted++;
    r->result->preempted_requests += r->preemptions[request] == 0;
    if (++r->preemptions[request] > r->result->preempted_most)
        r->result->preempted_most = r->preemptions[request];
    KVL_TRY(leave(r, seq));
    queue_front(r, request);
    return KVL_OK;
}

/* The one admitted last that may be chosen. */
static int32_t victim(const replay *r) {
    int32_t seq = r->newest;
    while (seq != NONE && r->seqs[seq].whole) seq = r->seqs[seq].older;
    return seq;
}

static kvl_status grow(replay *r, int32_t seq, int64_t step) {
    KVL_TRY(append_to(r, seq, step - 1)); /* within what it has */
    for (;;) {
        kvl_status status = append_to(r, seq, step);
        if (status != KVL_ERR_OOM) return status == KVL_OK ? schedule(r, seq) : status;
        if (r->unlimited) return status;
        int32_t other = victim(r);
        if (other == NONE)
            return kvl_fail(KVL_ERR_INTERNAL, "a sequence with everything set aside was refused");
        KVL_TRY(preempt(r, other, step));
        if (other == seq) return KVL_OK;
    }
}

/* ---- admission ------------------------------------------------------------------------------ */

static kvl_status admit_head(replay *r, int64_t step, bool *admitted) {
    int64_t request = r->queue[r->queue_head];
    const kvl_trace_request *t = &r->trace->requests[request];
    kvl_admission got;
    kvl_pool_request in = {.index = request,
                           .n_tokens = (int64_t)t->prompt + r->done[request],
                           .max_new = t->output - r->done[request],
                           .max_cached = t->prompt,
                           .readmitted = r->preemptions[request] > 0,
                           .whole = r->preemptions[request] >= KVL_REPLAY_MAX_PREEMPTIONS};
    *admitted = false;
    kvl_status status = kvl_pool_admit(&r->pool, &in, &got);
    if (status != KVL_OK) return status;
    status = kvl_pool_append(&r->pool, got.seq, in.n_tokens + 1 - got.n_cached);
    if (status != KVL_OK) { /* its first token has no place */
        KVL_TRY(r->pool.module->release(r->pool.state, got.seq));
        return kvl_fail(status, "no slot for the first token");
    }
    r->seqs[got.seq] = (running){.request = request,
                                 .admission = r->n_admissions++,
                                 .start = step,
                                 .done = r->done[request],
                                 .appended = step,
                                 .whole = in.whole};
    r->owners[got.seq] = request;
    link_newest(r, got.seq);
    r->appended_sum += step;
    if (in.readmitted) r->result->recomputed_tokens += in.n_tokens - got.n_cached;
    if (++r->n_running > r->result->largest_batch) r->result->largest_batch = r->n_running;
    queue_drop(r);
    *admitted = true;
    return schedule(r, got.seq);
}

/* Where sequences grow, filling the pool to its last slot at admission would only have them thrown
 * out again: one in a hundred slots stays free as in vLLM, and a request that was preempted before
 * waits until a third, two thirds of what it will still need are free. Not when nothing runs. */
static bool has_headroom(const replay *r) {
    int64_t request = r->queue[r->queue_head], preempted = r->preemptions[request];
    if (!r->grows || r->unlimited || r->n_running == 0 || preempted >= KVL_REPLAY_MAX_PREEMPTIONS)
        return true;
    const kvl_trace_request *t = &r->trace->requests[request];
    int64_t done = r->done[request], head = r->pool.config.pool_tokens / 100;
    int64_t share = (t->output - done) * preempted / KVL_REPLAY_MAX_PREEMPTIONS;
    kvl_ledger ledger;
    r->pool.module->stats(r->pool.state, 0, &ledger);
    if (need_of(r, request) > ledger.pool - ledger.padding) return true; /* to be refused */
    return ledger.free + ledger.cached >= t->prompt + done + 1 + (share > head ? share : head);
}

static kvl_status admit_all(replay *r, int64_t step) {
    while (r->n_waiting && !r->blocked && r->n_running < r->max_seqs) {
        bool admitted;
        if (!has_headroom(r)) {
            r->blocked = true;
            break;
        }
        kvl_status status = admit_head(r, step, &admitted);
        if (admitted) {
            KVL_TRY(status);
        } else if (status == KVL_ERR_INPUT) { /* the empty pool could not hold it */
            queue_drop(r);
            r->result->refused++;
        } else if (status == KVL_ERR_OOM && !r->unlimited) {
            r->blocked = true;
        } else {
            return status;
        }
    }
    return KVL_OK;
}

static void take_arrivals(replay *r, int64_t step) {
    while (r->next_arrival < r->trace->n && arrival_step(r, r->next_arrival) <= step) {
        if (need_of(r, r->next_arrival) > r->pool.config.max_seq_tokens)
            r->result->refused++;
        else
            queue_back(r, r->next_arrival);
        r->next_arrival++;
    }
    if (r->n_waiting > r->result->largest_queue) r->result->largest_queue = r->n_waiting;
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* The ledger at `step`: as the allocator has it, and one slot for each token it does not know yet.
 */
static void ledger_at(const replay *r, int64_t step, kvl_ledger *ledger) {
    int64_t wanted = r->options->wanted_tokens;
    if (!wanted && r->n_waiting) wanted = need_of(r, r->queue[r->queue_head]);
    r->pool.module->stats(r->pool.state, wanted, ledger);
    int64_t unknown = r->n_running * step - r->appended_sum;
    ledger->live += unknown;
    ledger->reserved -= unknown;
}

static void add_sums(kvl_replay_sums *sums, const kvl_ledger *l, int64_t n_running, int64_t n) {
    double steps = (double)n, grown = (double)n_running * steps * (steps - 1) / 2;
    sums->pool += (double)l->pool * steps;
    sums->live += (double)l->live * steps + grown;
    sums->reserved += (double)l->reserved * steps - grown;
    sums->internal += (double)l->internal * steps;
    sums->cached += (double)l->cached * steps;
    sums->padding += (double)l->padding * steps;
    sums->free += (double)l->free * steps;
    sums->external += (double)l->external * steps;
    sums->steps += n;
}

/* Steps [step, next): nothing changes in them but lengths. */
static kvl_status account(replay *r, int64_t step, int64_t next) {
    kvl_ledger l;
    int64_t n = next - step;
    kvl_replay_result *out = r->result;
    ledger_at(r, step, &l);
    if (l.live + l.reserved + l.internal + l.cached + l.padding + l.free != l.pool ||
        l.reserved < 0)
        return kvl_fail(KVL_ERR_INTERNAL, "step %lld: the ledger does not add up", (long long)step);
    int64_t live_end = l.live + r->n_running * (n - 1), used = l.live + l.reserved + l.internal;
    if (live_end > out->live_peak) out->live_peak = live_end;
    if (used > out->used_peak) out->used_peak = used;
    if (r->n_running) {
        add_sums(&out->all, &l, r->n_running, n);
        if (r->n_waiting) add_sums(&out->full, &l, r->n_running, n);
        out->batch_sum += (double)r->n_running * (double)n;
    }
    if (r->map) kvl_map_take(r->map, next, &r->pool, r->owners);
    if (!r->series) return KVL_OK;
    const double running = (double)r->n_running;
    const double values[KVL_REPLAY_COLUMNS] = {
        (double)l.live,       (double)l.reserved,          (double)l.internal,
        (double)l.cached,     (double)l.padding,           (double)l.free,
        (double)l.pool,       (double)l.external,          running,
        (double)r->n_waiting, (double)l.largest_admissible};
    const double slopes[KVL_REPLAY_COLUMNS] = {running, -running};
    kvl_series_add(r->series, step, n, values, slopes);
    return KVL_OK;
}

/* ---- the run -------------------------------------------------------------------------------- */

static int64_t next_step(const replay *r) {
    int64_t next = r->events.n ? r->events.events[0].time : NEVER;
    if (r->next_arrival < r->trace->n) {
        int64_t arrival = arrival_step(r, r->next_arrival);
        if (arrival < next) next = arrival;
    }
    return next;
}

static kvl_status take_events(replay *r, int64_t step) {
    while (r->events.n && r->events.events[0].time == step) {
        kvl_event event = kvl_heap_pop(&r->events);
        int32_t seq = (int32_t)event.what;
        if (!is_current(r, &event)) continue; /* of a sequence that was preempted */
        bool ends = end_step(r, &r->seqs[seq]) == step;
        KVL_TRY(ends ? finish(r, seq, step) : grow(r, seq, step));
    }
    return KVL_OK;
}

static kvl_status check_end(const replay *r) {
    char why[256];
    const kvl_replay_result *out = r->result;
    if (out->finished + out->refused != out->requests || r->n_waiting || r->n_running)
        return kvl_fail(KVL_ERR_INTERNAL,
                        "%lld requests: %lld finished, %lld refused, %lld wait, %lld run",
                        (long long)out->requests, (long long)out->finished, (long long)out->refused,
                        (long long)r->n_waiting, (long long)r->n_running);
    if (r->n_admissions != out->finished + out->preempted)
        return kvl_fail(KVL_ERR_INTERNAL, "%lld admissions, %lld finished and %lld preempted",
                        (long long)r->n_admissions, (long long)out->finished,
                        (long long)out->preempted);
    if (out->preempted_most > KVL_REPLAY_MAX_PREEMPTIONS)
        return kvl_fail(KVL_ERR_INTERNAL, "a request was preempted %lld times",
                        (long long)out->preempted_most);
    if (out->ledger.live || out->ledger.reserved || out->ledger.internal)
        return kvl_fail(KVL_ERR_INTERNAL, "%lld slots are handed out after the last request",
                        (long long)handed_out(&out->ledger));
    if (!r->pool.module->is_valid(r->pool.state, why, sizeof why))
        return kvl_fail(KVL_ERR_INTERNAL, "%s", why);
    return KVL_OK;
}

static kvl_status loop(replay *r) {
    int64_t step = 0;
    while (step != NEVER) {
        KVL_TRY(take_events(r, step));
        take_arrivals(r, step);
        KVL_TRY(admit_all(r, step));
        int64_t next = next_step(r);
        if (next != NEVER) KVL_TRY(account(r, step, next));
        if (next != NEVER) r->result->steps = next;
        step = next;
    }
    r->pool.module->stats(r->pool.state, 0, &r->result->ledger);
    return check_end(r);
}

/* Slots that a request may come to hold. */
static int64_t slots_bound(const kvl_allocator_config *config, const kvl_trace_request *t) {
    int64_t page = config->page_tokens, need = (int64_t)t->prompt + t->output;
    int64_t paged = (need + page - 1) / page * page, set_aside;
    if (need > config->max_seq_tokens) return 0;
    set_aside = kvl_reserve_slots(config, t->prompt, t->output);
    return paged > set_aside ? paged : set_aside;
}

/* Sequences and slots that are in use at once when nobody waits: what an unlimited pool comes to.
 * With a cache that never gives up anything, all prompts together. */
static kvl_status peak_of(replay *r, const kvl_allocator_config *config, int64_t *n_seqs,
                          int64_t *n_slots) {
    kvl_heap ends = {0};
    int64_t slots = 0;
    kvl_status status = KVL_OK;
    *n_seqs = 1;
    *n_slots = config->max_seq_tokens; /* the least that every module takes */
    for (int64_t i = 0; status == KVL_OK && i < r->trace->n; i++) {
        const kvl_trace_request *t = &r->trace->requests[i];
        int64_t at = arrival_step(r, i);
        while (ends.n && ends.events[0].time <= at) {
            int64_t request = kvl_heap_pop(&ends).what;
            if (config->prefix == KVL_PREFIX_OFF)
                slots -= slots_bound(config, &r->trace->requests[request]);
        }
        status = kvl_heap_push(&ends, (kvl_event){at + t->output, i, i});
        if (__builtin_add_overflow(slots, slots_bound(config, t), &slots))
            status = kvl_fail(KVL_ERR_INPUT, "the trace needs more than 2^63 slots at once");
        if (ends.n > *n_seqs) *n_seqs = ends.n;
        if (slots > *n_slots) *n_slots = slots;
    }
    kvl_heap_free(&ends);
    return status;
}

/* What the smallest request holds at least. */
static int64_t least_slots(const replay *r, const kvl_allocator_config *config) {
    int64_t least = INT64_MAX;
    for (int64_t i = 0; i < r->trace->n; i++) {
        int64_t prompt = r->trace->requests[i].prompt;
        if (prompt < least) least = prompt;
    }
    return least > config->page_tokens ? least : config->page_tokens;
}

/* Slot numbers of an unlimited pool: holes between slabs make it spread further than its peak.
 * Whole pages, and no more of them than a page table can number. */
static int64_t roomy(int64_t n_slots, int64_t room, int64_t page) {
    int64_t most = INT64_C(1) << 40, slots = n_slots < most / room ? n_slots * room : most;
    int64_t n_pages = slots / page + 1;
    if (n_pages > INT32_MAX) n_pages = INT32_MAX;
    return n_pages * page;
}

static kvl_status configure(replay *r, kvl_allocator_config *config) {
    const kvl_replay_options *o = r->options;
    int64_t n_seqs, n_slots;
    *config = (kvl_allocator_config){.pool_tokens = o->pool_tokens,
                                     .page_tokens = o->page_tokens > 0 ? o->page_tokens : 1,
                                     .max_seq_tokens =
                                         o->max_seq_tokens ? o->max_seq_tokens : r->trace->longest,
                                     .reserve = o->reserve,
                                     .unlimited = r->unlimited,
                                     .prefix = o->share ? KVL_PREFIX_KEYS : KVL_PREFIX_OFF};
    KVL_TRY(peak_of(r, config, &n_seqs, &n_slots));
    if (r->unlimited) config->pool_tokens = roomy(n_slots, r->room, config->page_tokens);
    /* A queue that dissolves can make more run at once than arrive at once; each has a page. */
    if (!r->unlimited) n_seqs = (config->pool_tokens + 1) / least_slots(r, config) + 1;
    if (n_seqs > r->trace->n) n_seqs = r->trace->n;
    if (o->max_seqs && n_seqs > o->max_seqs) n_seqs = o->max_seqs;
    if (n_seqs > INT32_MAX) n_seqs = INT32_MAX;
    config->max_seqs = r->max_seqs = (int32_t)n_seqs;
    return KVL_OK;
}

static kvl_status make(replay *r, const kvl_allocator_config *config) {
    size_t n = (size_t)r->trace->n;
    r->seqs = malloc((size_t)r->max_seqs * sizeof *r->seqs);
    r->owners = malloc((size_t)r->max_seqs * sizeof *r->owners);
    r->queue = malloc(n * sizeof *r->queue);
    r->done = calloc(n, sizeof *r->done);
    r->preemptions = calloc(n, sizeof *r->preemptions);
    if (!r->seqs || !r->owners || !r->queue || !r->done || !r->preemptions)
        return kvl_fail(KVL_ERR_OOM, "%zu requests: out of memory", n);
    for (int32_t i = 0; i < r->max_seqs; i++) r->seqs[i].request = r->owners[i] = NONE;
    r->oldest = r->newest = NONE;
    KVL_TRY(kvl_pool_open(&r->pool, r->options->allocator, config, r->trace));
    r->grows = kvl_pool_room(&r->pool, 1, 1 + config->page_tokens) < config->page_tokens;
    return KVL_OK;
}

static void destroy(replay *r) {
    kvl_pool_close(&r->pool);
    kvl_heap_free(&r->events);
    free(r->seqs);
    free(r->owners);
    free(r->queue);
    free(r->done);
    free(r->preemptions);
}

static kvl_status check_options(const kvl_trace *trace, const kvl_replay_options *o) {
    double last_s = (double)trace->requests[trace->n - 1].arrival_ns * 1e-9;
    if (!(o->step_s > 0) || last_s / o->step_s > 1e12)
        return kvl_fail(KVL_ERR_INPUT, "--step-ms %g: the trace has more than 10^12 steps",
                        o->step_s * 1e3);
    if (o->share && !o->allocator->admit)
        return kvl_fail(KVL_ERR_INPUT, "--share: %s shares no prefixes", o->allocator->name);
    if (o->share && !trace->n_blocks)
        return kvl_fail(KVL_ERR_INPUT, "--share: the trace does not say what its prompts hold");
    return KVL_OK;
}

kvl_status kvl_replay_run(const kvl_trace *trace, const kvl_replay_options *options,
                          kvl_series *series, kvl_map *map, kvl_replay_result *out) {
    kvl_allocator_config config;
    KVL_TRY(check_options(trace, options));
    kvl_status status = KVL_ERR_OOM;
    for (int64_t room = 2; status == KVL_ERR_OOM && room <= 128; room *= 4) {
        replay r = {.trace = trace,
                    .options = options,
                    .result = out,
                    .series = series,
                    .map = map,
                    .unlimited = options->pool_tokens == 0,
                    .room = room};
        *out = (kvl_replay_result){.requests = trace->n};
        if (series) kvl_series_start(series, kvl_replay_columns, KVL_REPLAY_COLUMNS);
        KVL_TRY(configure(&r, &config));
        status = make(&r, &config);
        if (status == KVL_OK) status = loop(&r);
        destroy(&r);
        if (!r.unlimited) break;
    }
    return status;
}
