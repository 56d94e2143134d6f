/* Replay: figures of slices as a script works them out, and every sum against a model that walks
 * token by token. */
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "core/rng.h"
#include "harness/figures/dictionary.h"
#include "harness/replay/heap.h"
#include "harness/replay/replay.h"
#include "harness/replay/trial.h"
#include "harness/traces/arrivals.h"

/* ---- slices --------------------------------------------------------------------------------- */

static const char *source(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/harness/traces/%s", KVL_SOURCE_DIR, name);
    return path;
}

static void read_slice(const char *name, kvl_trace *trace) {
    const kvl_trace_options options = {0};
    assert_ok(kvl_trace_read(source(name), &options, trace));
}

static json_t *figures(void) {
    json_error_t error;
    json_t *all = json_load_file(source("slice_figures.json"), 0, &error);
    assert_non_null(all);
    return all;
}

static kvl_replay_options options_of(const char *allocator, int64_t page_tokens) {
    kvl_replay_options o = {.page_tokens = page_tokens, .step_s = 0.03};
    assert_ok(kvl_allocator_find(allocator, &o.allocator));
    return o;
}

static double share_pct(double part, double whole) {
    return 100 * part / whole;
}

/* Whole slots on both sides: what is left is the rounding of one division. */
static void check_figures(const kvl_trace *t, const kvl_replay_options *o, const json_t *wanted) {
    kvl_replay_result r;
    assert_ok(kvl_replay_run(t, o, NULL, NULL, &r));
    double out = r.all.live + r.all.reserved + r.all.internal;
    assert_int_equal(r.finished, t->n);
    assert_true(fabs(share_pct(out - r.all.live, out) -
                     json_number_value(json_object_get(wanted, "tail_waste_pct"))) < 1e-9);
    assert_true(fabs(share_pct(r.all.live, r.all.pool) -
                     json_number_value(json_object_get(wanted, "slots_live_pct"))) < 1e-9);
    assert_true(fabs(share_pct(r.end_slots - r.end_tokens, r.end_slots) -
                     json_number_value(json_object_get(wanted, "tail_waste_end_pct"))) < 1e-9);
}

static void slice_paged(void **state) {
    (void)state;
    kvl_trace t;
    json_t *all = figures(), *pages = json_object_get(all, "paged"), *wanted;
    const char *page;
    read_slice("azure_llm_2023_conv_400.csv", &t);
    assert_int_equal(t.n, json_integer_value(json_object_get(all, "requests")));
    assert_int_equal(t.longest, json_integer_value(json_object_get(all, "longest")));
    json_object_foreach(pages, page, wanted) {
        kvl_replay_options o = options_of("paged", strtoll(page, NULL, 10));
        check_figures(&t, &o, wanted);
        o.step_s = 0.5; /* arrivals and steps play no part in an unlimited pool */
        check_figures(&t, &o, wanted);
    }
    kvl_trace_free(&t);
    json_decref(all);
}

static void slice_slabs(void **state) {
    (void)state;
    kvl_trace t;
    json_t *all = figures(), *slabs = json_object_get(all, "slab");
    static const char *const names[] = {"max", "pow2", "oracle"};
    read_slice("azure_llm_2023_conv_400.csv", &t);
    for (int i = 0; i < 3; i++) {
        kvl_replay_options o = options_of("contiguous", 16);
        assert_ok(kvl_reserve_policy_parse(names[i], &o.reserve));
        check_figures(&t, &o, json_object_get(slabs, names[i]));
    }
    kvl_trace_free(&t);
    json_decref(all);
}

static void slice_prefix(void **state) {
    (void)state;
    kvl_trace t;
    kvl_replay_result r;
    json_t *all = figures(), *wanted = json_object_get(all, "prefix");
    kvl_replay_options o = options_of("paged", 512);
    o.share = true;
    read_slice("mooncake_conversation_160.jsonl", &t);
    assert_ok(kvl_replay_run(&t, &o, NULL, NULL, &r));
    int64_t blocks = json_integer_value(json_object_get(wanted, "blocks"));
    int64_t distinct = json_integer_value(json_object_get(wanted, "distinct"));
    assert_int_equal(r.ledger.asked_pages, blocks);
    assert_int_equal(r.ledger.hit_pages, blocks - distinct);
    /* Smaller pages find the same blocks, and share no more tokens than those hold. */
    o.page_tokens = 64;
    int64_t hit_tokens = r.ledger.hit_tokens;
    assert_ok(kvl_replay_run(&t, &o, NULL, NULL, &r));
    assert_int_equal(r.ledger.hit_tokens, hit_tokens);
    kvl_trace_free(&t);
    json_decref(all);
}

/* ---- against a model ------------------------------------------------------------------------ */

enum { MOST = 64 };

typedef struct model_seq {
    int request, done, admission;
    bool whole;
} model_seq;

/* Paged, one step and one token at a time, with nothing but counts of pages. */
typedef struct model {
    const kvl_trace *t;
    int64_t page, pool_pages, free_pages;
    model_seq run[MOST];
    int n_run, n_admitted, queue[4 * MOST], head, n_queue;
    int done[MOST], preempted[MOST];
    kvl_replay_result r;
} model;

static int64_t pages_for(const model *m, int64_t tokens) {
    return (tokens + m->page - 1) / m->page;
}

static int64_t tokens_of(const model *m, const model_seq *s) {
    return m->t->requests[s->request].prompt + s->done;
}

static int64_t held(const model *m, const model_seq *s) {
    const kvl_trace_request *q = &m->t->requests[s->request];
    int64_t now = pages_for(m, tokens_of(m, s)), all = pages_for(m, q->prompt + q->output);
    return s->whole ? all : now;
}

static void model_remove(model *m, int i) {
    m->free_pages += held(m, &m->run[i]);
    memmove(&m->run[i], &m->run[i + 1], (size_t)(--m->n_run - i) * sizeof *m->run);
}

static void model_preempt(model *m, int i) {
    int request = m->run[i].request;
    m->done[request] = m->run[i].done;
    m->r.preempted++;
    m->preempted[request]++;
    model_remove(m, i);
    m->queue[--m->head] = request;
    m->n_queue++;
}

/* Gives every running sequence, oldest first, its next token. */
static void model_grow(model *m) {
    int order[MOST], n = m->n_run;
    for (int i = 0; i < n; i++) order[i] = m->run[i].admission;
    for (int k = 0; k < n; k++) {
        int i = 0;
        while (i < m->n_run && m->run[i].admission != order[k]) i++;
        while (i < m->n_run) {
            int64_t more =
                pages_for(m, tokens_of(m, &m->run[i]) + 1) - pages_for(m, tokens_of(m, &m->run[i]));
            if (m->run[i].whole || more <= m->free_pages) {
                if (!m->run[i].whole) m->free_pages -= more;
                m->run[i].done++;
                break;
            }
            int v = m->n_run - 1;
            while (m->run[v].whole) v--;
            /* A victim that has its token of this step already loses it. */
            bool has = false;
            for (int j = 0; j < k; j++) has = has || order[j] == m->run[v].admission;
            if (has) {
                int64_t before = held(m, &m->run[v]);
                m->run[v].done--;
                m->free_pages += before - held(m, &m->run[v]);
            }
            model_preempt(m, v);
            if (v == i) break;
        }
    }
}

static void model_admit(model *m) {
    while (m->n_queue) {
        int request = m->queue[m->head];
        const kvl_trace_request *q = &m->t->requests[request];
        model_seq s = {request, m->done[request] + 1, m->n_admitted,
                       m->preempted[request] >= KVL_REPLAY_MAX_PREEMPTIONS};
        if (pages_for(m, q->prompt + q->output) > m->pool_pages) {
            m->head++;
            m->n_queue--;
            m->r.refused++;
            continue;
        }
        int64_t done = m->done[request], part = m->preempted[request],
                share = (q->output - done) * part / KVL_REPLAY_MAX_PREEMPTIONS,
                head = m->pool_pages * m->page / 100;
        if (m->n_run && !s.whole &&
            m->free_pages * m->page < q->prompt + done + 1 + (share > head ? share : head))
            return;
        if (held(m, &s) > m->free_pages) return;
        if (m->preempted[request]) m->r.recomputed_tokens += q->prompt + m->done[request];
        m->free_pages -= held(m, &s);
        m->run[m->n_run++] = s;
        m->n_admitted++;
        m->head++;
        m->n_queue--;
    }
}

static void model_sum(model *m) {
    if (!m->n_run) return;
    kvl_replay_sums one = {.steps = 1, .free = (double)(m->free_pages * m->page)};
    for (int i = 0; i < m->n_run; i++) {
        const kvl_trace_request *q = &m->t->requests[m->run[i].request];
        int64_t now = tokens_of(m, &m->run[i]), slots = held(m, &m->run[i]) * m->page,
                need = q->prompt + q->output, within = slots < need ? slots : need;
        one.live += (double)now;
        one.reserved += (double)(within - now);
        one.internal += (double)(slots - within);
    }
    if (m->n_run > m->r.largest_batch) m->r.largest_batch = m->n_run;
    kvl_replay_sums *sums[] = {&m->r.all, &m->r.full};
    for (int k = 0; k < (m->n_queue ? 2 : 1); k++) {
        sums[k]->steps++;
        sums[k]->live += one.live;
        sums[k]->reserved += one.reserved;
        sums[k]->internal += one.internal;
        sums[k]->free += one.free;
    }
}

static void model_run(model *m, double step_s) {
    int arrived = 0, n = (int)m->t->n;
    m->head = MOST * 2;
    for (int step = 0; m->r.finished + m->r.refused < n; step++) {
        assert_true(step < 1000000);
        for (int i = m->n_run; i-- > 0;) {
            if (m->run[i].done < m->t->requests[m->run[i].request].output) continue;
            int64_t slots = held(m, &m->run[i]) * m->page;
            m->r.end_slots += (double)slots;
            m->r.end_tokens += (double)tokens_of(m, &m->run[i]);
            m->r.finished++;
            model_remove(m, i);
        }
        model_grow(m);
        for (; arrived < n && (double)m->t->requests[arrived].arrival_ns <= step * step_s * 1e9;
             arrived++) {
            m->queue[m->head + m->n_queue++] = arrived;
            assert_true(m->head + m->n_queue < 4 * MOST);
        }
        model_admit(m);
        model_sum(m);
    }
}

static void expect_sums(const kvl_replay_sums *got, const kvl_replay_sums *wanted) {
    assert_int_equal(got->steps, wanted->steps);
    assert_true(got->live == wanted->live);
    assert_true(got->reserved == wanted->reserved);
    assert_true(got->internal == wanted->internal);
    assert_true(got->free == wanted->free);
}

/* 300 random traces of up to 60 requests; small pools, so that many are preempted. */
static void equals_token_by_token(void **state) {
    (void)state;
    int64_t n_preempted = 0, n_refused = 0, n_limit = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        kvl_rng rng = kvl_rng_make(seed, 1);
        kvl_trace_request requests[60];
        kvl_trace t = {.requests = requests, .n = 1 + (int64_t)kvl_rng_below(&rng, 60)};
        int64_t at = 0;
        for (int64_t i = 0; i < t.n; i++) {
            if (i) at += (int64_t)kvl_rng_below(&rng, 5) * 500000000;
            requests[i] = (kvl_trace_request){.arrival_ns = at,
                                              .prompt = 1 + (int32_t)kvl_rng_below(&rng, 40),
                                              .output = 1 + (int32_t)kvl_rng_below(&rng, 60)};
            int32_t need = requests[i].prompt + requests[i].output;
            if (need > t.longest) t.longest = need;
        }
        kvl_replay_options o = options_of("paged", 1 + (int64_t)kvl_rng_below(&rng, 9));
        o.pool_tokens =
            o.page_tokens * (1 + (int64_t)kvl_rng_below(&rng, 600 / (uint64_t)o.page_tokens));
        o.step_s = 1;
        model m = {.t = &t, .page = o.page_tokens, .pool_pages = o.pool_tokens / o.page_tokens};
        m.free_pages = m.pool_pages;
        kvl_replay_result r;
        model_run(&m, o.step_s);
        assert_ok(kvl_replay_run(&t, &o, NULL, NULL, &r));
        assert_int_equal(r.finished, m.r.finished);
        assert_int_equal(r.refused, m.r.refused);
        assert_int_equal(r.preempted, m.r.preempted);
        assert_int_equal(r.recomputed_tokens, m.r.recomputed_tokens);
        assert_int_equal(r.largest_batch, m.r.largest_batch);
        expect_sums(&r.all, &m.r.all);
        expect_sums(&r.full, &m.r.full);
        assert_true(r.end_slots == m.r.end_slots && r.end_tokens == m.r.end_tokens);
        assert_in_range(r.preempted_most, 0, KVL_REPLAY_MAX_PREEMPTIONS);
        n_preempted += r.preempted;
        n_refused += r.refused;
        n_limit += r.preempted_most == KVL_REPLAY_MAX_PREEMPTIONS;
    }
    /* The cases that the comparison is for did occur. */
    assert_true(n_preempted > 1000 && n_refused > 100 && n_limit > 20);
}

/* ---- parts ---------------------------------------------------------------------------------- */

static void heap_sorts(void **state) {
    (void)state;
    kvl_heap heap = {0};
    kvl_rng rng = kvl_rng_make(3, 3);
    for (int i = 0; i < 5000; i++)
        assert_ok(kvl_heap_push(&heap, (kvl_event){(int64_t)kvl_rng_below(&rng, 50), i, i}));
    kvl_event last = {-1, -1, -1};
    for (int i = 0; i < 5000; i++) {
        kvl_event e = kvl_heap_pop(&heap);
        assert_true(e.time > last.time || (e.time == last.time && e.order > last.order));
        last = e;
    }
    assert_int_equal(heap.n, 0);
    kvl_heap_free(&heap);
}

/* A spike of one step among a million stays in the series, and every step is counted. */
static void series_keeps_extremes(void **state) {
    (void)state;
    static const char *const names[] = {"a", "b"};
    static kvl_series s;
    kvl_series_start(&s, names, 2);
    const double flat[] = {5, 100}, spike[] = {1e9, -3}, still[] = {0, 0}, rising[] = {2, -1};
    kvl_series_add(&s, 0, 654321, flat, still);
    kvl_series_add(&s, 654321, 1, spike, still);
    kvl_series_add(&s, 654322, 1000000 - 654322, flat, rising);
    int64_t n = 0;
    double greatest = 0, least = 1e9, sum = 0;
    for (int b = 0; b < KVL_SERIES_BUCKETS; b++) {
        if (!s.counts[b]) continue;
        n += s.counts[b];
        sum += s.cells[b][0].sum;
        if (s.cells[b][0].greatest > greatest) greatest = s.cells[b][0].greatest;
        if (s.cells[b][1].least < least) least = s.cells[b][1].least;
    }
    double k = 1000000 - 654322;
    assert_int_equal(n, 1000000);
    assert_true(greatest == 1e9);
    assert_true(sum == 654321 * 5.0 + 1e9 + 5 * k + k * (k - 1));
    assert_true(least == 100 - (k - 1));
}

static void refuses_options(void **state) {
    (void)state;
    kvl_trace_request requests[] = {{0, 5, 5, 0, 0, 0}, {INT64_C(9000000000000000), 5, 5, 0, 0, 0}};
    kvl_trace t = {.requests = requests, .n = 2, .longest = 10};
    kvl_replay_result r;
    kvl_replay_options o = options_of("paged", 16);
    o.step_s = 1e-9;
    assert_refused(kvl_replay_run(&t, &o, NULL, NULL, &r), KVL_ERR_INPUT, "10^12 steps");
    o = options_of("paged", 16);
    o.share = true;
    assert_refused(kvl_replay_run(&t, &o, NULL, NULL, &r), KVL_ERR_INPUT, "does not say");
    o = options_of("contiguous", 16);
    o.share = true;
    assert_refused(kvl_replay_run(&t, &o, NULL, NULL, &r), KVL_ERR_INPUT, "shares no prefixes");
    o = options_of("paged", 16);
    o.max_seq_tokens = 9;
    assert_ok(kvl_replay_run(&t, &o, NULL, NULL, &r)); /* too long, each: refused, and counted */
    assert_int_equal(r.refused, 2);
}

/* The child's side: every metric it names is defined, and the side files are there and whole. */
static void trial_answers(void **state) {
    (void)state;
    char side[64], path[96];
    snprintf(side, sizeof side, "/tmp/kvlab-side-%ld", (long)getpid());
    json_t *spec =
        json_pack("{s:{s:s,s:i,s:f},s:{s:s,s:s,s:s,s:s,s:i,s:s,s:i,s:i,s:i},s:s}", "workload",
                  "name", "replay", "seed", 1, "step_ms", 30.0, "axes", "trace",
                  source("azure_llm_2023_conv_400.csv"), "arrival", "x2", "allocator", "paged",
                  "reserve", "none", "page_tokens", 16, "share", "off", "pool_tokens", 16384,
                  "max_model_len", 0, "max_seqs", 0, "side", side);
    json_t *answer = NULL, *value;
    const char *name;
    assert_non_null(spec);
    assert_ok(kvl_replay_trial_run(spec, &answer));
    assert_string_equal(json_string_value(json_object_get(answer, "outcome")), "ok");
    json_object_foreach(json_object_get(answer, "metrics"), name, value) {
        if (!kvl_name_find(name)) fail_msg("%s is not in the dictionary", name);
    }
    const char *const files[] = {"ledger", "map"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s-%s.csv", side, files[i]);
        const json_t *named = json_object_get(json_object_get(answer, "effective"), files[i]);
        assert_string_equal(json_string_value(named), path);
        assert_int_equal(unlink(path), 0);
    }
    json_decref(answer);
    /* The trace is another one than the sweep saw. */
    json_object_set_new(spec, "trace_digest", json_string("0000000000000000"));
    assert_ok(kvl_replay_trial_run(spec, &answer));
    assert_string_equal(json_string_value(json_object_get(answer, "outcome")), "mismatch");
    json_decref(answer);
    json_decref(spec);
}

/* In a map every slot of the pool has one owner: shares of cells agree with the ledger. */
static void map_agrees_with_ledger(void **state) {
    (void)state;
    kvl_trace t;
    kvl_replay_result r;
    static kvl_map map;
    kvl_replay_options o = options_of("paged", 16);
    o.pool_tokens = 128 * 16; /* a page a cell */
    o.max_seq_tokens = 1000;
    read_slice("azure_llm_2023_conv_400.csv", &t);
    assert_ok(kvl_arrivals_apply("together", 1, &t));
    kvl_map_start(&map, o.pool_tokens);
    assert_ok(kvl_replay_run(&t, &o, NULL, &map, &r));
    assert_true(map.n_rows > KVL_MAP_ROWS / 2);
    for (int i = 0; i < map.n_rows; i++) {
        assert_int_equal(map.steps[i], map.every * i);
        for (int64_t c = 0; c < map.n_cells; c++) {
            const kvl_map_cell *cell = &map.cells[i][c];
            bool owned = cell->state == KVL_MAP_LIVE || cell->state == KVL_MAP_UNWRITTEN;
            assert_true(owned ? cell->owner >= 0 && cell->owner < t.n : cell->owner == -1);
        }
    }
    int64_t n_owned = 0;
    for (int64_t c = 0; c < map.n_cells; c++) n_owned += map.cells[0][c].owner >= 0;
    assert_true(n_owned > 100); /* full at once */
    kvl_trace_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trial_answers),  cmocka_unit_test(map_agrees_with_ledger),
        cmocka_unit_test(slice_paged),    cmocka_unit_test(slice_slabs),
        cmocka_unit_test(slice_prefix),   cmocka_unit_test(equals_token_by_token),
        cmocka_unit_test(heap_sorts),     cmocka_unit_test(series_keeps_extremes),
        cmocka_unit_test(refuses_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
