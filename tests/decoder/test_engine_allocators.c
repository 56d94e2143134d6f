/* Allocators under the real decoder: what holds no token is NaN at every step, pages before a
 * window are given back, memory is mapped and unmapped, prefixes are found again; and not a bit of
 * the logits changes (float32). */
#include "core/rng.h"
#include "decoder/engine_internal.h"
#include "tests/decoder/engine_fixture.h"

enum { VOCAB = 384, N_TOKENS = 60, N_TURNS = 3 };

static kvl_engine *open_engine(const kvl_model *model, const char *allocator, bool prefix_cache) {
    kvl_engine_options options = f32_options();
    options.allocator = allocator;
    options.page_tokens = 4;
    options.map_bytes = 4096;
    options.max_seqs = 4;
    options.max_seq_tokens = 128;
    options.prefix_cache = prefix_cache;
    return make_engine(model, &options);
}

/* ---- poison --------------------------------------------------------------------------------- */

/* Offset of KV head h of a slot. */
static int64_t slot_offset(const kvl_kv_view *view, int64_t slot, int64_t h) {
    return slot / view->page_tokens * view->page_stride + h * view->head_stride +
           slot % view->page_tokens * view->token_stride;
}

static void poison_run(void *user, const kvl_slot_run *run) {
    kvl_engine *engine = user;
    kvl_kv_cache *cache = &engine->cache;
    kvl_kv_view view;
    if (run->cached) return;
    kvl_kv_cache_view(cache, NULL, NULL, 0, &view);
    for (int64_t slot = run->slot + run->n_live; slot < run->slot + run->n_slots; slot++) {
        for (int32_t i = 0; i < cache->n_layers; i++) {
            for (int32_t h = 0; h < view.n_kv_heads; h++) {
                float *k = (float *)cache->k_pools[i] + slot_offset(&view, slot, h);
                float *v = (float *)cache->v_pools[i] + slot_offset(&view, slot, h);
                for (int32_t d = 0; d < view.head_dim; d++) k[d] = v[d] = NAN;
            }
        }
    }
}

static void poison(kvl_engine *engine) {
    char why[200];
    if (!engine->cache.allocator->is_valid(engine->cache.state, why, sizeof why))
        fail_msg("%s", why);
    engine->cache.allocator->walk(engine->cache.state, poison_run, engine);
}

/* Turns of one sequence after another, a neighbour living beside them. */
static void decode(const kvl_model *model, const char *allocator, float *logits,
                   kvl_ledger *ledger) {
    kvl_engine *engine = open_engine(model, allocator, false);
    kvl_rng rng = kvl_rng_make(5, 1);
    kvl_seq seq, neighbour;
    float other[VOCAB];
    kvl_engine_memory memory;
    assert_ok(kvl_engine_add(engine, 1, N_TURNS * N_TOKENS / 2, &neighbour));
    for (int turn = 0; turn < N_TURNS; turn++) {
        int n_prompt = 7 + 11 * turn, n_logits = 0;
        int32_t ids[N_TOKENS];
        for (int t = 0; t < N_TOKENS; t++) ids[t] = (int32_t)kvl_rng_below(&rng, VOCAB);
        assert_ok(kvl_engine_add(engine, n_prompt, N_TOKENS - n_prompt, &seq));
        for (int at = 0; at < N_TOKENS; n_logits++) {
            int n = at ? 1 : n_prompt;
            const kvl_step_item items[] = {{seq, ids + at, n, 1}, {neighbour, ids + at, 1, 0}};
            poison(engine);
            assert_ok(kvl_engine_step(engine, items, at % 3 == 0 ? 2 : 1, other));
            memcpy(logits + (turn * N_TOKENS + n_logits) * VOCAB, other, sizeof other);
            at += n;
        }
        assert_ok(kvl_engine_remove(engine, seq));
    }
    kvl_engine_memory_get(engine, &memory);
    *ledger = memory.ledger;
    kvl_engine_destroy(engine);
}

static void check_poisoned(const char *family, bool window) {
    static float expected[N_TURNS * N_TOKENS * VOCAB], seen[N_TURNS * N_TOKENS * VOCAB];
    kvl_model *model = open_family(family);
    kvl_ledger ledger;
    memset(expected, 0, sizeof expected);
    decode(model, "contiguous", expected, &ledger);
    assert_true(max_diff(expected, expected, N_TURNS * N_TOKENS * VOCAB) == 0); /* no NaN */
    for (size_t a = 0; a < kvl_allocator_count(); a++) {
        const char *name = kvl_allocator_at(a)->name;
        memset(seen, 0, sizeof seen);
        decode(model, name, seen, &ledger);
        if (memcmp(expected, seen, sizeof seen) != 0)
            fail_msg("%s, %s: logits differ by %g", family, name,
                     max_diff(expected, seen, N_TURNS * N_TOKENS * VOCAB));
        bool paged = strcmp(name, "paged") == 0;
        assert_int_equal(ledger.windowed_pages > 10, window && paged);
        assert_int_equal(ledger.mapped_pages > 3, strcmp(name, "virtual") == 0);
        assert_int_equal(ledger.copied_slots > 100, strcmp(name, "growing") == 0);
    }
    kvl_model_close(model);
}

static void unused_slots_are_never_read(void **state) {
    check_poisoned("llama", false);
    check_poisoned("mistral-window", true);
}

/* ---- prefix cache --------------------------------------------------------------------------- */

/* Runs ids[n] of a new sequence behind what the cache has; logits of the last token. */
static int64_t run_prompt(kvl_engine *engine, const int32_t *ids, int32_t n, float *logits) {
    kvl_seq seq;
    int64_t n_cached;
    assert_ok(kvl_engine_admit(engine, ids, n, 20, false, &seq, &n_cached));
    assert_int_equal(kvl_engine_length(engine, seq), n_cached);
    poison(engine);
    const kvl_step_item item = {seq, ids + n_cached, n - (int32_t)n_cached, 1};
    assert_ok(kvl_engine_step(engine, &item, 1, logits));
    assert_ok(kvl_engine_remove(engine, seq));
    return n_cached;
}

static void prefixes_are_found_again(void **state) {
    kvl_model *model = open_family("llama");
    kvl_engine *engine = open_engine(model, "paged", true);
    kvl_engine *plain = open_engine(model, "contiguous", false);
    kvl_rng rng = kvl_rng_make(8, 2);
    int32_t ids[40], other[40];
    float expected[VOCAB], seen[VOCAB];
    for (int i = 0; i < 40; i++) ids[i] = other[i] = (int32_t)kvl_rng_below(&rng, VOCAB);
    other[2] ^= 1; /* the pages behind it hold the same tokens, after another beginning */
    run_prompt(plain, ids, 40, expected);
    assert_int_equal(run_prompt(engine, ids, 22, seen), 0);
    assert_int_equal(run_prompt(engine, ids, 40, seen), 20); /* 5 whole pages of 4 */
    assert_memory_equal(seen, expected, sizeof seen);
    assert_int_equal(run_prompt(engine, ids, 40, seen), 39); /* all but one: a page is copied */
    assert_memory_equal(seen, expected, sizeof seen);
    assert_int_equal(run_prompt(engine, other, 40, seen), 0);
    run_prompt(plain, other, 40, expected);
    assert_memory_equal(seen, expected, sizeof seen);
    kvl_engine_memory memory;
    kvl_engine_memory_get(engine, &memory);
    assert_int_equal(memory.ledger.asked_tokens, 22 + 3 * 40);
    assert_int_equal(memory.ledger.hit_tokens, 20 + 39);
    kvl_engine_destroy(engine);
    kvl_engine_destroy(plain);
    kvl_model_close(model);
}

/* An answer's tokens are learned as they are stepped: the next turn finds them. */
static void answers_are_found_again(void **state) {
    kvl_model *model = open_family("llama");
    kvl_engine *engine = open_engine(model, "paged", true);
    int32_t ids[30];
    float logits[VOCAB];
    kvl_seq seq;
    int64_t n_cached;
    for (int i = 0; i < 30; i++) ids[i] = 7 * i % VOCAB;
    assert_ok(kvl_engine_admit(engine, ids, 10, 15, false, &seq, &n_cached));
    for (int at = 0; at < 23;) {
        const kvl_step_item item = {seq, ids + at, at ? 1 : 10, 1};
        assert_ok(kvl_engine_step(engine, &item, 1, logits));
        at += item.n_ids;
    }
    assert_ok(kvl_engine_truncate(engine, seq, 21)); /* the last page, of 20 .. 23, is cut */
    assert_ok(kvl_engine_remove(engine, seq));
    assert_int_equal(run_prompt(engine, ids, 30, logits), 20);
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

static void refusals(void **state) {
    kvl_model *model = open_family("mistral-window");
    kvl_engine_options options = f32_options();
    kvl_engine *engine;
    options.allocator = "buddy";
    options.prefix_cache = true;
    assert_refused(kvl_engine_create(model, &options, NULL, NULL, &engine), KVL_ERR_UNSUPPORTED,
                   "buddy has no prefix cache");
    options.prefix_cache = false;
    options.reserve = "half";
    assert_refused(kvl_engine_create(model, &options, NULL, NULL, &engine), KVL_ERR_INPUT,
                   "unknown reserve policy 'half'");
    options.reserve = NULL;
    options.map_bytes = 5000;
    assert_refused(kvl_engine_create(model, &options, NULL, NULL, &engine), KVL_ERR_INPUT,
                   "multiple of 4096");
    /* Tokens before the window are gone; so is the way back to them. */
    engine = open_engine(model, "paged", false);
    int32_t ids[40] = {0};
    float values[64 * 64], logits[VOCAB];
    kvl_seq seq;
    assert_ok(kvl_engine_add(engine, 40, 20, &seq));
    const kvl_step_item prompt = {seq, ids, 40, 1}, next = {seq, ids, 1, 1};
    assert_ok(kvl_engine_step(engine, &prompt, 1, logits));
    assert_ok(kvl_engine_read_kv(engine, seq, 0, 0, 4, values, NULL));
    assert_ok(kvl_engine_step(engine, &next, 1, logits));
    assert_refused(kvl_engine_read_kv(engine, seq, 0, 0, 4, values, NULL), KVL_ERR_INPUT,
                   "before its window");
    assert_ok(kvl_engine_read_kv(engine, seq, 0, 32, 8, values, NULL));
    assert_refused(kvl_engine_truncate(engine, seq, 20), KVL_ERR_UNSUPPORTED, "window of 9");
    assert_ok(kvl_engine_truncate(engine, seq, 40));
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unused_slots_are_never_read),
        cmocka_unit_test(prefixes_are_found_again),
        cmocka_unit_test(answers_are_found_again),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, test_setup, NULL);
}
