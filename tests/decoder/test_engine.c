/* Behaviour of the engine: refusals, all or nothing, sharing, synthetic fill, counters. */
#include "core/memory.h"
#include "tests/decoder/engine_fixture.h"

enum { VOCAB = 384 };

/* ids [n]: a fixed pattern that differs by `salt`. */
static void make_ids(int32_t *ids, int32_t n, int32_t salt) {
    for (int32_t i = 0; i < n; i++) ids[i] = (i * 37 + salt * 101 + 5) % VOCAB;
}

static void step(kvl_engine *engine, kvl_seq seq, const int32_t *ids, int32_t n, float *last) {
    kvl_step_item item = {.seq = seq, .ids = ids, .n_ids = n, .n_logits = last ? 1 : 0};
    assert_ok(kvl_engine_step(engine, &item, 1, last));
}

static kvl_engine_options paged_options(void) {
    kvl_engine_options options = f32_options();
    options.max_seqs = 4;
    options.max_seq_tokens = 128;
    return options;
}

/* ---- refusals ------------------------------------------------------------------------------ */

static void check_option(const kvl_model *model, const kvl_engine_options *options, kvl_status code,
                         const char *part) {
    kvl_engine *engine = NULL;
    assert_refused(kvl_engine_create(model, options, NULL, NULL, &engine), code, part);
    assert_null(engine);
}

static void test_options_refused(void **state) {
    kvl_model *model = open_family("llama");
    uint64_t before = kvl_mem_live_bytes();
    kvl_engine_options good = f32_options(), bad = good;
    bad.attention = "flsh";
    check_option(model, &bad, KVL_ERR_INPUT, "flash");
    bad = good, bad.allocator = "page";
    check_option(model, &bad, KVL_ERR_INPUT, "paged");
    bad = good, bad.kv_dtype = "fp8_e4m2";
    check_option(model, &bad, KVL_ERR_INPUT, "fp8_e4m3");
    bad = good, bad.weights = "bf61";
    check_option(model, &bad, KVL_ERR_INPUT, "bf16");
    bad = good, bad.compute_dtype = "bf61";
    check_option(model, &bad, KVL_ERR_INPUT, "did you mean 'bf16'");
    bad = good, bad.device = "cpuu";
    check_option(model, &bad, KVL_ERR_INPUT, "cpu");
    bad = good, bad.weights = NULL;
    check_option(model, &bad, KVL_ERR_INPUT, "weights: no name");
    bad = good, bad.max_seq_tokens = 513;
    check_option(model, &bad, KVL_ERR_INPUT, "max_seq_tokens 513: model llama allows 512");
    bad = good, bad.page_tokens = 0;
    check_option(model, &bad, KVL_ERR_INPUT, "page_tokens 0");
    bad = good, bad.max_seqs = 0;
    check_option(model, &bad, KVL_ERR_INPUT, "max_seqs 0");
    bad = good, bad.max_batch_tokens = -1;
    check_option(model, &bad, KVL_ERR_INPUT, "max_batch_tokens -1");
    bad = good, bad.pool_tokens = INT64_MAX / 2;
    check_option(model, &bad, KVL_ERR_INPUT, "");
    bad = good, bad.page_tokens = INT64_MAX, bad.max_seqs = 3;
    check_option(model, &bad, KVL_ERR_INPUT, "overflows");
    assert_int_equal(kvl_mem_live_bytes(), before);
    kvl_model_close(model);
}

static void test_lengths_refused(void **state) {
    kvl_model *model = open_family("llama");
    kvl_engine_options options = f32_options();
    kvl_engine *engine = make_engine(model, &options);
    kvl_seq seq;
    assert_refused(kvl_engine_add(engine, 500, 13, &seq), KVL_ERR_INPUT,
                   "prompt of 500 tokens + 13 new: model llama allows 512");
    assert_refused(kvl_engine_add(engine, INT64_MAX, INT64_MAX, &seq), KVL_ERR_INPUT, "512");
    assert_refused(kvl_engine_add(engine, 0, 1, &seq), KVL_ERR_INPUT, "prompt of 0 tokens");
    assert_ok(kvl_engine_add(engine, 500, 12, &seq));
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

/* A refused step changes nothing: not the lengths, not the ledger. */
static void check_step(kvl_engine *engine, const kvl_step_item *items, int32_t n, kvl_status code,
                       const char *part) {
    static float logits[16 * VOCAB];
    kvl_engine_memory before, after;
    int64_t lengths[4];
    for (int s = 0; s < 4; s++) lengths[s] = kvl_engine_length(engine, s);
    kvl_engine_memory_get(engine, &before);
    assert_refused(kvl_engine_step(engine, items, n, logits), code, part);
    for (int s = 0; s < 4; s++) assert_int_equal(kvl_engine_length(engine, s), lengths[s]);
    kvl_engine_memory_get(engine, &after);
    assert_int_equal(before.ledger.live, after.ledger.live);
    assert_int_equal(before.ledger.free, after.ledger.free);
}

static void test_steps_refused(void **state) {
    kvl_model *model = open_family("llama");
    kvl_engine_options options = paged_options();
    kvl_engine *engine = make_engine(model, &options);
    int32_t ids[130];
    kvl_seq a, b;
    make_ids(ids, 130, 0);
    assert_ok(kvl_engine_add(engine, 8, 8, &a));
    assert_ok(kvl_engine_add(engine, 8, 8, &b));
    const kvl_step_item good = {.seq = a, .ids = ids, .n_ids = 8, .n_logits = 1};
    kvl_step_item items[2] = {good, good};
    check_step(engine, items, 2, KVL_ERR_INPUT, "twice");
    int32_t wrong[2] = {3, VOCAB};
    items[1] = (kvl_step_item){.seq = b, .ids = wrong, .n_ids = 2};
    check_step(engine, items, 2, KVL_ERR_INPUT, "id 384, the vocabulary has 384");
    wrong[1] = -1;
    check_step(engine, items, 2, KVL_ERR_INPUT, "id -1");
    items[1] = (kvl_step_item){.seq = b, .ids = ids, .n_ids = 0};
    check_step(engine, items, 2, KVL_ERR_INPUT, "0 new tokens");
    items[1] = (kvl_step_item){.seq = b, .ids = ids, .n_ids = 2, .n_logits = 3};
    check_step(engine, items, 2, KVL_ERR_INPUT, "logits of 3 of 2");
    items[1] = (kvl_step_item){.seq = b, .ids = ids, .n_ids = 129};
    check_step(engine, items, 2, KVL_ERR_INPUT, "at most 128");
    items[1] = (kvl_step_item){.seq = 3, .ids = ids, .n_ids = 1};
    check_step(engine, items, 2, KVL_ERR_INPUT, "sequence 3 is not alive");
    items[1].seq = 1000;
    check_step(engine, items, 2, KVL_ERR_INPUT, "sequence 1000 is not alive");
    check_step(engine, items, 5, KVL_ERR_INPUT, "step of 5 sequences: at most 4");
    kvl_step_item no_place = good;
    assert_refused(kvl_engine_step(engine, &no_place, 1, NULL), KVL_ERR_INPUT, "no place");
    assert_refused(kvl_engine_truncate(engine, a, 1), KVL_ERR_INPUT, "it has 0");
    assert_refused(kvl_engine_remove(engine, -1), KVL_ERR_INPUT, "not alive");
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

/* The pool runs out at the second item: the first one's slot goes back. */
static void test_pool_exhausted(void **state) {
    kvl_model *model = open_family("llama");
    kvl_engine_options options = paged_options();
    options.pool_tokens = 48;
    kvl_engine *engine = make_engine(model, &options);
    int32_t ids[16];
    float expected[VOCAB], seen[VOCAB];
    kvl_seq a, b;
    make_ids(ids, 16, 1);
    assert_ok(kvl_engine_add(engine, 16, 16, &a));
    assert_ok(kvl_engine_add(engine, 16, 16, &b));
    step(engine, a, ids, 16, NULL);
    step(engine, b, ids, 16, NULL);
    kvl_step_item items[2] = {{.seq = a, .ids = ids, .n_ids = 1, .n_logits = 1},
                              {.seq = b, .ids = ids, .n_ids = 1, .n_logits = 1}};
    check_step(engine, items, 2, KVL_ERR_OOM, "");
    step(engine, a, ids, 1, expected);
    assert_ok(kvl_engine_remove(engine, a));
    step(engine, b, ids, 1, seen);
    assert_memory_equal(expected, seen, sizeof seen);
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

/* ---- sources that fail --------------------------------------------------------------------- */

typedef struct broken_source {
    const kvl_source *inner;
    const char *hidden, *reshaped, *unreadable; /* tensor names, or NULL */
} broken_source;

static bool broken_shape(const kvl_source *source, const char *name, int64_t *rows, int64_t *cols) {
    const broken_source *broken = source->self;
    if (broken->hidden && strcmp(name, broken->hidden) == 0) return false;
    bool found = broken->inner->shape(broken->inner, name, rows, cols);
    if (broken->reshaped && strcmp(name, broken->reshaped) == 0) (*rows)++;
    return found;
}

static kvl_status broken_read(const kvl_source *source, const char *name, int64_t first,
                              int64_t n_rows, float *out) {
    const broken_source *broken = source->self;
    if (broken->unreadable && strcmp(name, broken->unreadable) == 0)
        return kvl_fail(KVL_ERR_IO, "%s: cannot be read", name);
    return broken->inner->read_rows(broken->inner, name, first, n_rows, out);
}

static void test_broken_weights(void **state) {
    kvl_model *model = open_family("qwen2");
    kvl_engine_options options = f32_options();
    broken_source broken = {.inner = &model->source};
    kvl_model copy = *model;
    copy.source = (kvl_source){.self = &broken, .shape = broken_shape, .read_rows = broken_read};
    uint64_t before = kvl_mem_live_bytes();
    broken.hidden = "model.layers.1.self_attn.k_proj.bias";
    check_option(&copy, &options, KVL_ERR_INPUT, broken.hidden);
    broken.hidden = "lm_head.weight";
    check_option(&copy, &options, KVL_ERR_INPUT, broken.hidden);
    broken.hidden = NULL;
    broken.reshaped = "model.layers.0.mlp.up_proj.weight";
    check_option(&copy, &options, KVL_ERR_INPUT, "[193, 128], the configuration says [192, 128]");
    broken.reshaped = NULL;
    /* With two threads, either may meet these: the message must reach the caller. */
    assert_ok(kvl_threads_set(2, 0));
    broken.unreadable = "model.layers.1.mlp.down_proj.weight";
    check_option(&copy, &options, KVL_ERR_IO, "down_proj.weight: cannot be read");
    broken.unreadable = "model.norm.weight";
    check_option(&copy, &options, KVL_ERR_IO, "model.norm.weight: cannot be read");
    broken.unreadable = "model.layers.0.self_attn.v_proj.bias";
    check_option(&copy, &options, KVL_ERR_IO, "v_proj.bias: cannot be read");
    assert_ok(kvl_threads_set(1, 0));
    assert_int_equal(kvl_mem_live_bytes(), before);
    kvl_model_close(model);
}

/* ---- sharing ------------------------------------------------------------------------------- */

/* A sequence of prompt + tail, alone. */
static void run_alone(const kvl_model *model, const int32_t *prompt, int32_t n_prompt,
                      const int32_t *tail, int32_t n_tail, float *last) {
    kvl_engine_options options = paged_options();
    kvl_engine *engine = make_engine(model, &options);
    kvl_seq seq;
    assert_ok(kvl_engine_add(engine, n_prompt, n_tail, &seq));
    step(engine, seq, prompt, n_prompt, NULL);
    for (int32_t i = 0; i < n_tail; i++) step(engine, seq, tail + i, 1, last);
    kvl_engine_destroy(engine);
}

/* Parent and child write their own tails into what was one page: neither sees the other. */
static void test_fork(void **state) {
    kvl_model *model = open_family("llama");
    kvl_engine_options options = paged_options();
    kvl_engine *engine = make_engine(model, &options);
    int32_t prompt[20], tail_a[30], tail_b[30];
    float alone_a[VOCAB], alone_b[VOCAB], seen_a[VOCAB], seen_b[VOCAB];
    make_ids(prompt, 20, 2);
    make_ids(tail_a, 30, 3);
    make_ids(tail_b, 30, 4);
    run_alone(model, prompt, 20, tail_a, 30, alone_a);
    run_alone(model, prompt, 20, tail_b, 30, alone_b);
    kvl_seq a, b;
    assert_ok(kvl_engine_add(engine, 20, 30, &a));
    step(engine, a, prompt, 20, NULL);
    assert_ok(kvl_engine_fork(engine, a, &b));
    assert_int_equal(kvl_engine_length(engine, b), 20);
    for (int i = 0; i < 30; i++) {
        float both[2 * VOCAB];
        kvl_step_item items[2] = {{.seq = a, .ids = tail_a + i, .n_ids = 1, .n_logits = 1},
                                  {.seq = b, .ids = tail_b + i, .n_ids = 1, .n_logits = 1}};
        assert_ok(kvl_engine_step(engine, items, 2, both));
        memcpy(seen_a, both, sizeof seen_a);
        memcpy(seen_b, both + VOCAB, sizeof seen_b);
    }
    assert_memory_equal(alone_a, seen_a, sizeof seen_a);
    assert_memory_equal(alone_b, seen_b, sizeof seen_b);
    kvl_engine_memory memory;
    kvl_engine_memory_get(engine, &memory);
    assert_true(memory.ledger.copied_slots > 0);
    assert_int_equal(memory.ledger.shared_saved, 16); /* the full first page stays shared */
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

static void test_truncate_and_go_on(void **state) {
    kvl_model *model = open_family("mistral-window");
    kvl_engine_options options = paged_options();
    kvl_engine *engine = make_engine(model, &options);
    int32_t prompt[40], tail[8], other[8];
    float expected[VOCAB], seen[VOCAB];
    make_ids(prompt, 40, 5);
    make_ids(tail, 8, 6);
    make_ids(other, 8, 7);
    run_alone(model, prompt, 40, tail, 8, expected);
    kvl_seq seq;
    assert_ok(kvl_engine_add(engine, 40, 8, &seq));
    step(engine, seq, prompt, 40, NULL);
    step(engine, seq, other, 8, NULL);
    assert_ok(kvl_engine_truncate(engine, seq, 40));
    for (int i = 0; i < 8; i++) step(engine, seq, tail + i, 1, seen);
    assert_memory_equal(expected, seen, sizeof seen);
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

/* ---- synthetic fill, counters -------------------------------------------------------------- */

static void fill_and_step(const kvl_model *model, const char *allocator, int64_t page_tokens,
                          int32_t max_batch, uint64_t seed, float *logits) {
    kvl_engine_options options = paged_options();
    options.allocator = allocator;
    options.page_tokens = page_tokens;
    options.max_batch_tokens = max_batch;
    kvl_engine *engine = make_engine(model, &options);
    kvl_seq seq;
    int32_t id = 9;
    assert_ok(kvl_engine_add(engine, 100, 4, &seq));
    assert_ok(kvl_engine_fill_synthetic(engine, seq, 100, seed));
    assert_int_equal(kvl_engine_length(engine, seq), 100);
    assert_refused(kvl_engine_fill_synthetic(engine, seq, 29, seed), KVL_ERR_INPUT, "at most 128");
    step(engine, seq, &id, 1, logits);
    kvl_engine_destroy(engine);
}

/* What is filled depends on the seed alone, not on pages or pieces. */
static void test_fill(void **state) {
    kvl_model *model = open_family("llama");
    float a[VOCAB], b[VOCAB];
    fill_and_step(model, "contiguous", 16, 512, 1, a);
    fill_and_step(model, "paged", 7, 64, 1, b);
    assert_memory_equal(a, b, sizeof a);
    fill_and_step(model, "paged", 16, 512, 2, b);
    assert_true(max_diff(a, b, VOCAB) > 1e-4);
    for (int i = 0; i < VOCAB; i++) assert_true(isfinite(a[i]));
    kvl_model_close(model);
}

static void test_counters(void **state) {
    kvl_model *model = open_family("llama");
    kvl_engine_options options = paged_options();
    kvl_engine *engine = make_engine(model, &options);
    const kvl_config *c = kvl_engine_config(engine);
    kvl_engine_stats stats;
    kvl_engine_memory memory;
    int32_t ids[50];
    float logits[VOCAB];
    kvl_seq seq;
    make_ids(ids, 50, 8);
    assert_ok(kvl_engine_add(engine, 50, 10, &seq));
    step(engine, seq, ids, 50, NULL);
    kvl_engine_stats_reset(engine);
    step(engine, seq, ids, 1, logits);
    kvl_engine_stats_get(engine, &stats);
    kvl_engine_memory_get(engine, &memory);
    assert_int_equal(stats.steps, 1);
    assert_int_equal(stats.tokens, 1);
    assert_int_equal(stats.kv_saturated, 0);
    assert_int_equal(stats.kv_saturated_layer, -1);
    assert_true(stats.attention_ns > 0 && stats.matmul_ns > 0 && stats.other_ns > 0);
    /* 2 layers x (K, V) x 2 heads x 32 x 4 bytes; 51 keys; untied embedding rows are not counted.
     */
    assert_int_equal(memory.kv_bytes_per_token, 1024);
    double kv = 51.0 * 1024, q = 2.0 * c->n_q_heads * c->head_dim * 4;
    double weights = (double)memory.weight_bytes - 4.0 * VOCAB * c->hidden_size;
    assert_true(stats.read_bytes >= weights + kv && stats.read_bytes <= weights + kv + q);
    assert_int_equal(memory.kv_pool_bytes, 4 * 128 * 1024);
    assert_int_equal(memory.kv_live_bytes, 51 * 1024);
    assert_true(memory.kv_allocated_bytes >= memory.kv_live_bytes);
    kvl_engine_effective effective;
    kvl_engine_effective_get(engine, 50, 1, &effective);
    assert_string_equal(effective.attention, "flash");
    assert_string_equal(effective.allocator, "paged");
    assert_string_equal(effective.compute_dtype, "f32");
    assert_int_equal(effective.page_tokens, 16);
    assert_true(strlen(effective.matmul_prefill) > 0 && strlen(effective.isa) > 0);
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

static void note_progress(void *user, double share) {
    double *last = user;
    assert_true(share >= *last && share <= 1.0);
    *last = share;
}

static void test_progress(void **state) {
    kvl_model *model = open_family("llama");
    kvl_engine_options options = f32_options();
    kvl_engine *engine;
    double last = 0.0;
    assert_ok(kvl_engine_create(model, &options, note_progress, &last, &engine));
    assert_true(last == 1.0);
    kvl_engine_destroy(engine);
    kvl_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_refused),    cmocka_unit_test(test_lengths_refused),
        cmocka_unit_test(test_steps_refused),      cmocka_unit_test(test_pool_exhausted),
        cmocka_unit_test(test_broken_weights),     cmocka_unit_test(test_fork),
        cmocka_unit_test(test_truncate_and_go_on), cmocka_unit_test(test_fill),
        cmocka_unit_test(test_counters),           cmocka_unit_test(test_progress),
    };
    return cmocka_run_group_tests(tests, test_setup, NULL);
}
