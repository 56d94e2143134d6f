/* Allocators under the real decoder: what holds no token is NaN at every step, pages before a
 * window are given back, memory is mapped and unmapped, prefixes are found again; and not a bit of
 * the logits changes (float32). */
#include "core/memory.h"
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

/* ---- one page size -------------------------------------------------------------------------- */

/* Manager and kernel with two page sizes: no crash, wrong text. What kernels see is the view alone;
 * it must say where the allocator put each token, and no two rows may share an element. */
static void check_view(kvl_engine *engine, const kvl_seq *seqs, const int32_t *lens, int32_t n) {
    kvl_kv_cache *cache = &engine->cache;
    kvl_placement placement;
    kvl_kv_view view;
    cache->allocator->placement(cache->state, &placement);
    kvl_kv_cache_view(cache, seqs, lens, n, &view);
    assert_ok(kvl_kv_view_check(&view));
    assert_int_equal(view.page_tokens, placement.page_tokens);
    uint8_t *taken = calloc((size_t)view.pool_elems, 1);
    for (int32_t s = 0; s < n; s++) {
        int64_t slab;
        const int32_t *pages = cache->allocator->pages(cache->state, seqs[s], &slab);
        for (int64_t t = 0; t < lens[s]; t++) {
            int64_t size = placement.page_tokens,
                    slot = pages ? pages[t / size] * size + t % size : slab + t;
            for (int32_t h = 0; h < view.n_kv_heads; h++) {
                int64_t at = kvl_kv_offset(&view, s, t, h);
                /* By token, slots lie one behind the other; by head, a page or slab is a block. */
                int64_t by_token = (slot * view.n_kv_heads + h) * view.head_dim;
                int64_t by_head =
                    ((slot / size * view.n_kv_heads + h) * size + slot % size) * view.head_dim;
                assert_int_equal(at, placement.slabs_vary ? by_token : by_head);
                for (int64_t i = at; i < at + view.head_dim; i++) assert_int_equal(taken[i]++, 0);
            }
        }
    }
    free(taken);
}

static void views_say_where_allocators_put_tokens(void **state) {
    static const int64_t pages[] = {1, 7, 16, 17, 64, 200};
    static const char *const policies[] = {"max", "pow2", "oracle"};
    kvl_model *model = open_family("llama");
    const int32_t lens[3] = {37, 16, 65};
    for (size_t a = 0; a < kvl_allocator_count(); a++) {
        const kvl_allocator *allocator = kvl_allocator_at(a);
        for (int i = 0; i < (allocator->uses_pages ? 6 : allocator->uses_reserve ? 3 : 1); i++) {
            kvl_engine_options options = f32_options();
            kvl_engine_effective ran;
            kvl_seq seqs[3];
            bool by_token;
            options.allocator = allocator->name;
            options.reserve = allocator->uses_reserve ? policies[i] : NULL;
            if (allocator->uses_pages) options.page_tokens = pages[i];
            options.max_seqs = 3;
            options.max_seq_tokens = 100;
            options.map_bytes = 4096;
            kvl_engine *engine = make_engine(model, &options);
            for (int s = 0; s < 3; s++) {
                assert_ok(kvl_engine_add(engine, lens[s], 3, &seqs[s]));
                assert_ok(kvl_kv_cache_append(&engine->cache, seqs[s], lens[s]));
            }
            check_view(engine, seqs, lens, 3);
            kvl_engine_effective_get(engine, 37, 3, &ran);
            assert_int_equal(ran.page_tokens, engine->cache.placement.page_tokens);
            if (allocator->uses_pages) assert_int_equal(ran.page_tokens, pages[i]);
            /* What is verified before a trial lies as what runs. */
            assert_ok(kvl_kv_cache_by_token(allocator, engine->cache.config.reserve, &by_token));
            assert_int_equal(by_token, ran.by_token);
            kvl_engine_destroy(engine);
        }
    }
    kvl_model_close(model);
}

/* ---- a device that has no more memory ------------------------------------------------------- */

static struct {
    int64_t asked, fails_at; /* counted from 1; 0: never */
    int64_t held;            /* allocations and reservations not given back */
} memory_of;

static bool is_refused(void) {
    return ++memory_of.asked == memory_of.fails_at;
}
static kvl_status faulty_alloc(uint64_t bytes, void **out) {
    if (is_refused()) return kvl_fail(KVL_ERR_OOM, "no more");
    memory_of.held++;
    return kvl_mem_alloc(bytes, out);
}
static void faulty_release(void *pointer, uint64_t bytes) {
    memory_of.held--;
    kvl_mem_free(pointer, bytes);
}
static kvl_status faulty_reserve(uint64_t bytes, void **out) {
    if (is_refused()) return kvl_fail(KVL_ERR_OOM, "no more");
    memory_of.held++;
    return kvl_mem_reserve(bytes, out);
}
static void faulty_unreserve(void *pointer, uint64_t bytes, uint64_t mapped_bytes) {
    memory_of.held--;
    kvl_mem_unreserve(pointer, bytes, mapped_bytes);
}
static kvl_status faulty_map(void *at, uint64_t bytes, bool huge) {
    if (is_refused()) return kvl_fail(KVL_ERR_OOM, "no more");
    return kvl_mem_map(at, bytes, huge);
}

/* Two layers of int8 with a scale a token: every kind of pool. */
static kvl_kv_cache faulty_cache(kvl_device *device, const kvl_allocator *allocator) {
    const kvl_device *cpu;
    assert_ok(kvl_device_find("cpu", &cpu));
    *device = *cpu;
    device->alloc = faulty_alloc;
    device->release = faulty_release;
    device->reserve = faulty_reserve;
    device->unreserve = faulty_unreserve;
    device->map = faulty_map;
    kvl_kv_cache cache = {.device = device,
                          .allocator = allocator,
                          .n_layers = 2,
                          .n_kv_heads = 2,
                          .head_dim = 64,
                          .k_dtype = KVL_I8,
                          .v_dtype = KVL_I8,
                          .k_scale_tokens = 1,
                          .v_scale_tokens = 1,
                          .config = {.page_tokens = 16,
                                     .max_seq_tokens = 200,
                                     .max_seqs = 2,
                                     .slot_bytes = 2 * 64,
                                     .map_bytes = 4096}};
    assert_ok(kvl_kv_cache_resolve(allocator, &cache.config));
    return cache;
}

static void every_pool_may_fail(void **state) {
    for (size_t a = 0; a < kvl_allocator_count(); a++) {
        kvl_device device;
        kvl_status status = KVL_ERR_OOM;
        int64_t k = 0;
        while (status != KVL_OK) {
            kvl_kv_cache cache = faulty_cache(&device, kvl_allocator_at(a));
            memory_of.asked = memory_of.held = 0;
            memory_of.fails_at = ++k;
            status = kvl_kv_cache_create(&cache);
            if (status == KVL_OK) {
                kvl_kv_cache_free(&cache);
            } else {
                assert_int_equal(status, KVL_ERR_OOM);
                assert_non_null(strstr(kvl_message(), k <= 4 ? "layer 0 of 2" : "layer 1 of 2"));
                assert_null(cache.k_pools);
            }
            assert_int_equal(memory_of.held, 0);
        }
        assert_int_equal(k, 2 * 4 + 1); /* K, V and their scales in two layers */
    }
}

/* A mapping that fails leaves memory and allocator disagreeing: the step is refused, and so is
 * every later one, with the reason; nothing leaks. */
static void every_mapping_may_fail(void **state) {
    const kvl_allocator *allocator;
    assert_ok(kvl_allocator_find("virtual", &allocator));
    for (int64_t k = 1;; k++) {
        kvl_device device;
        kvl_kv_cache cache = faulty_cache(&device, allocator);
        memory_of.asked = memory_of.held = memory_of.fails_at = 0;
        assert_ok(kvl_kv_cache_create(&cache));
        memory_of.asked = 0;
        memory_of.fails_at = k;
        const kvl_request request = {.n_prompt = 1, .max_new = 199};
        kvl_admission seq;
        kvl_status status = kvl_kv_cache_admit(&cache, &request, &seq);
        for (int t = 0; t < 200 && status == KVL_OK; t++)
            status = kvl_kv_cache_append(&cache, seq.seq, 1);
        bool failed = status != KVL_OK;
        if (failed) {
            assert_int_equal(status, KVL_ERR_OOM);
            assert_non_null(strstr(kvl_message(), "no more"));
            assert_refused(kvl_kv_cache_append(&cache, seq.seq, 1), KVL_ERR_OOM, "failed before");
            assert_refused(kvl_kv_cache_admit(&cache, &request, &seq), KVL_ERR_OOM,
                           "failed before");
        }
        kvl_kv_cache_free(&cache);
        assert_int_equal(memory_of.held, 0);
        if (failed) continue;
        assert_int_equal(k - 1, 7 * 4); /* 200 tokens of 128 bytes: 7 pages in each of 4 pools */
        return;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unused_slots_are_never_read),
        cmocka_unit_test(prefixes_are_found_again),
        cmocka_unit_test(answers_are_found_again),
        cmocka_unit_test(refusals),
        cmocka_unit_test(views_say_where_allocators_put_tokens),
        cmocka_unit_test(every_pool_may_fail),
        cmocka_unit_test(every_mapping_may_fail),
    };
    return cmocka_run_group_tests(tests, test_setup, NULL);
}
