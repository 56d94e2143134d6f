/* bench soak: does an allocator get worse with age? Requests of shifting lengths go through a pool
 * of 1,048,576 slots that is kept nearly full; each operation is one call (an admission, a token
 * appended, a release). Every million operations the mix of lengths changes:
 *
 *   chat        prompts of 16 to 511 tokens, outputs of 32 to 543
 *   documents   prompts of 4,096 to 20,479, outputs of 16 to 143
 *   reasoning   prompts of 128 to 1,151, outputs of 512 to 4,607
 *   all three   a third each
 *
 * A run of N operations is the beginning of any longer one with its seed. The row's metrics are
 * those of its last million operations; the series of the whole run are its samples. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/isa.h"
#include "core/rng.h"
#include "core/threads.h"
#include "harness/allocators/subject.h"
#include "harness/kernels/axes.h"

enum {
    POOL = 1 << 20,
    LONGEST = 1 << 17, /* tokens of a request at most */
    MAX_LIVE = 2048,
    SHIFT = 1000000, /* operations before the mix changes */
    WINDOW = 100000, /* of a point of the series */
    PROBE = 1000,    /* operations between looks at the ledger */
    WANTED = 16384   /* tokens of the request that `external_pct` asks about */
};

typedef struct request {
    kvl_seq seq;
    int32_t left; /* tokens to generate */
} request;

typedef struct range {
    int32_t prompt_least, prompt_span, output_least, output_span;
} range;

static const range mixes[3] = {{16, 496, 32, 512}, {4096, 16384, 16, 128}, {128, 1024, 512, 4096}};

/* Sums over the operations of one window. */
typedef struct window {
    uint64_t ns;
    int64_t n_probes, admissible, at_best, least_admissible, free, external, live;
    int64_t refused, refused_with_room, preempted, completed;
} window;

typedef struct soak {
    kvl_subject subject;
    request live[MAX_LIVE];
    int32_t n_live;
    int32_t prompt, output; /* the request that waits; prompt 0: none */
    int64_t done, hold;     /* operations; admissions wait for a release */
    kvl_rng rng;
    window now;
} soak;

static int32_t draw(soak *s, int32_t least, int32_t span) {
    return least + (int32_t)kvl_rng_below(&s->rng, (uint64_t)span);
}

static void next_request(soak *s) {
    int64_t phase = s->done / SHIFT % 4;
    const range *mix = &mixes[phase < 3 ? phase : (int64_t)kvl_rng_below(&s->rng, 3)];
    s->prompt = draw(s, mix->prompt_least, mix->prompt_span);
    s->output = draw(s, mix->output_least, mix->output_span);
}

static kvl_status end(soak *s, int32_t index) {
    KVL_TRY(s->subject.allocator->release(s->subject.state, s->live[index].seq));
    s->live[index] = s->live[--s->n_live];
    s->hold = 0;
    return KVL_OK;
}

/* The waiting request, when the pool takes it; else it waits until somebody leaves. */
static kvl_status admit(soak *s) {
    kvl_ledger l;
    kvl_seq seq;
    kvl_status status = s->subject.allocator->reserve(s->subject.state, s->prompt, s->output, &seq);
    if (status == KVL_ERR_OOM) {
        s->subject.allocator->stats(s->subject.state, 0, &l);
        s->now.refused++;
        s->now.refused_with_room += l.free >= s->prompt + s->output;
        s->hold = 1;
        return KVL_OK;
    }
    KVL_TRY(status);
    KVL_TRY(s->subject.allocator->append(s->subject.state, seq, s->prompt));
    s->live[s->n_live++] = (request){seq, s->output};
    s->prompt = 0;
    return KVL_OK;
}

/* One token for a random sequence; one that the pool has no room for is preempted, for good. */
static kvl_status generate(soak *s) {
    int32_t index = (int32_t)kvl_rng_below(&s->rng, (uint64_t)s->n_live);
    kvl_status status = s->subject.allocator->append(s->subject.state, s->live[index].seq, 1);
    if (status == KVL_ERR_OOM) {
        s->now.preempted++;
        return end(s, index);
    }
    KVL_TRY(status);
    if (--s->live[index].left > 0) return KVL_OK;
    s->now.completed++;
    return end(s, index);
}

static kvl_status operate(soak *s) {
    if (!s->prompt) next_request(s);
    bool admits = !s->hold && s->n_live < MAX_LIVE && (s->n_live == 0 || s->done % 8 == 0);
    KVL_TRY(admits ? admit(s) : s->n_live ? generate(s) : KVL_OK);
    if (!s->n_live && s->hold)
        return kvl_fail(KVL_ERR_INTERNAL, "an empty pool refuses %d + %d tokens", s->prompt,
                        s->output);
    kvl_subject_drop_orders(&s->subject);
    s->done++;
    return KVL_OK;
}

static kvl_status probe(soak *s) {
    kvl_ledger l;
    s->subject.allocator->stats(s->subject.state, WANTED, &l);
    if (l.pool != l.live + l.reserved + l.internal + l.cached + l.padding + l.free)
        return kvl_fail(KVL_ERR_INTERNAL, "the ledger does not add up to %lld", (long long)l.pool);
    window *w = &s->now;
    if (!w->n_probes++ || l.largest_admissible < w->least_admissible)
        w->least_admissible = l.largest_admissible;
    w->admissible += l.largest_admissible;
    w->at_best += l.free < LONGEST ? l.free : LONGEST;
    w->free += l.free;
    w->external += l.external;
    w->live += l.live;
    return KVL_OK;
}

/* WINDOW operations; time is that of the operations, probes left out. */
static kvl_status run_window(soak *s) {
    s->now = (window){0};
    for (int64_t i = 0; i < WINDOW; i += PROBE) {
        uint64_t start = kvl_now_ns();
        for (int64_t k = 0; k < PROBE; k++) KVL_TRY(operate(s));
        s->now.ns += kvl_now_ns() - start;
        KVL_TRY(probe(s));
    }
    return KVL_OK;
}

/* ---- the row -------------------------------------------------------------------------------- */

static double share(int64_t part, int64_t whole) {
    return whole ? 100.0 * (double)part / (double)whole : NAN;
}

static void add(window *sum, const window *w) {
    if (!sum->n_probes || w->least_admissible < sum->least_admissible)
        sum->least_admissible = w->least_admissible;
    sum->ns += w->ns;
    sum->n_probes += w->n_probes;
    sum->admissible += w->admissible;
    sum->at_best += w->at_best;
    sum->free += w->free;
    sum->external += w->external;
    sum->live += w->live;
    sum->refused += w->refused;
    sum->refused_with_room += w->refused_with_room;
    sum->preempted += w->preempted;
    sum->completed += w->completed;
}

static void report(const window *w, int64_t operations, kvl_findings *f) {
    json_t *m = f->metrics;
    kvl_set_number(m, "operation_ns", (double)w->ns / (double)operations);
    kvl_set_number(m, "admissible_pct", share(w->admissible, w->at_best));
    kvl_set_number(m, "admissible_tokens", (double)w->admissible / (double)w->n_probes);
    kvl_set_count(m, "admissible_least_tokens", (uint64_t)w->least_admissible);
    kvl_set_number(m, "external_pct", share(w->external, w->n_probes * POOL));
    kvl_set_number(m, "free_pct", share(w->free, w->n_probes * POOL));
    kvl_set_number(m, "slots_live_pct", share(w->live, w->n_probes * POOL));
    kvl_set_count(m, "refused", (uint64_t)w->refused);
    kvl_set_count(m, "refused_with_room", (uint64_t)w->refused_with_room);
    kvl_set_count(m, "preempted", (uint64_t)w->preempted);
    kvl_set_count(m, "completed", (uint64_t)w->completed);
}

static void sample(json_t *samples, const char *name, double value) {
    json_t *array = json_object_get(samples, name);
    if (!array) json_object_set_new(samples, name, array = json_array());
    json_array_append_new(array, isfinite(value) ? json_real(value) : json_null());
}

static kvl_status run(soak *s, int64_t operations, kvl_findings *f) {
    window last = {0};
    int64_t counted = 0;
    for (int64_t done = 0; done < operations; done += WINDOW) {
        KVL_TRY(run_window(s));
        sample(f->samples, "operation_ns", (double)s->now.ns / WINDOW);
        sample(f->samples, "admissible_pct", share(s->now.admissible, s->now.at_best));
        sample(f->samples, "admissible_least_tokens", (double)s->now.least_admissible);
        sample(f->samples, "free_pct", share(s->now.free, s->now.n_probes * POOL));
        sample(f->samples, "slots_live_pct", share(s->now.live, s->now.n_probes * POOL));
        if (operations - done > SHIFT) continue; /* the row is about the last million */
        add(&last, &s->now);
        counted += WINDOW;
    }
    report(&last, counted, f);
    char why[200];
    if (!s->subject.allocator->is_valid(s->subject.state, why, sizeof why))
        return kvl_fail(KVL_ERR_INTERNAL, "after %lld operations: %s", (long long)operations, why);
    return KVL_OK;
}

kvl_status kvl_soak_trial_run(const json_t *spec, json_t **answer) {
    const json_t *axes = json_object_get(spec, "axes");
    const json_t *workload = json_object_get(spec, "workload");
    const char *name;
    int64_t page_tokens, operations;
    *answer = NULL;
    KVL_TRY(kvl_spec_text(axes, "allocator", &name));
    KVL_TRY(kvl_spec_number(axes, "page_tokens", 0, POOL, &page_tokens));
    KVL_TRY(kvl_spec_number(axes, "operations", WINDOW, INT64_C(1) << 40, &operations));
    soak *s = calloc(1, sizeof *s);
    if (!s) return kvl_fail(KVL_ERR_OOM, "out of memory");
    s->rng = kvl_rng_make((uint64_t)json_integer_value(json_object_get(workload, "seed")), 22);
    kvl_findings f = {
        .effective = json_object(), .metrics = json_object(), .samples = json_object()};
    kvl_status status = kvl_threads_set(1, 1);
    if (status == KVL_OK)
        status = kvl_subject_open(name, page_tokens, POOL, MAX_LIVE + 1, LONGEST, KVL_PREFIX_OFF,
                                  &s->subject);
    kvl_set_text(f.effective, "isa", kvl_isa_name(kvl_isa_current()));
    kvl_set_text(f.effective, "allocator", name);
    kvl_set_count(f.effective, "page_tokens", (uint64_t)page_tokens);
    kvl_set_count(f.effective, "threads", 1);
    if (status == KVL_OK) status = run(s, (operations + WINDOW - 1) / WINDOW * WINDOW, &f);
    kvl_subject_close(&s->subject);
    free(s);
    return kvl_findings_answer(&f, status, answer);
}
