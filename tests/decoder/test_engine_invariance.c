/* Logits have the same bits for any thread count, batch, chunking, allocator and page size: in
 * float32, and in bf16 with `deterministic`. */
#include "core/rng.h"
#include "tests/decoder/engine_fixture.h"

enum { N_SEQS = 8, N_DECODE = 5, MAX_TOKENS = 100, VOCAB = 384 };

/* Eight sequences of different lengths with seeded ids; the last N_DECODE of each are fed one by
 * one. */
typedef struct script {
    int32_t ids[N_SEQS][MAX_TOKENS];
    int32_t n_tokens[N_SEQS];
    float *logits[N_SEQS]; /* [n_tokens][VOCAB] */
} script;

static const int32_t prompt_tokens[N_SEQS] = {1, 2, 15, 16, 17, 33, 66, 90};

static script *script_new(void) {
    script *s = calloc(1, sizeof *s);
    kvl_rng rng = kvl_rng_make(7, 0);
    for (int i = 0; i < N_SEQS; i++) {
        s->n_tokens[i] = prompt_tokens[i] + N_DECODE;
        for (int t = 0; t < s->n_tokens[i]; t++) s->ids[i][t] = (int32_t)kvl_rng_below(&rng, VOCAB);
        s->logits[i] = calloc((size_t)s->n_tokens[i] * VOCAB, sizeof(float));
    }
    return s;
}

static void script_free(script *s) {
    for (int i = 0; i < N_SEQS; i++) free(s->logits[i]);
    free(s);
}

typedef struct variant {
    const char *label;
    int threads;
    int32_t n_together; /* sequences side by side */
    int32_t chunk;      /* prompt tokens in a step */
    int32_t max_batch;  /* the engine's own cut */
    const char *allocator;
    int64_t page_tokens;
} variant;

/* One step over sequences first .. first + n, each up to `chunk` further tokens of its prompt, or
 * one of its last N_DECODE. Returns how many tokens were fed. */
static int32_t feed_once(kvl_engine *engine, script *s, const kvl_seq *seqs, int32_t *done,
                         int first, int n, int32_t chunk) {
    static float together[(N_SEQS * MAX_TOKENS) * VOCAB];
    kvl_step_item items[N_SEQS];
    int32_t n_items = 0, fed = 0, of[N_SEQS];
    for (int i = first; i < first + n; i++) {
        int32_t left = prompt_tokens[i] - done[i];
        int32_t take = left > chunk ? chunk : left > 0 ? left : s->n_tokens[i] > done[i];
        if (!take) continue;
        of[n_items] = i;
        items[n_items++] = (kvl_step_item){
            .seq = seqs[i], .ids = s->ids[i] + done[i], .n_ids = take, .n_logits = take};
    }
    assert_ok(kvl_engine_step(engine, items, n_items, together));
    for (int k = 0; k < n_items; k++) {
        int i = of[k];
        memcpy(s->logits[i] + (int64_t)done[i] * VOCAB, together + (int64_t)fed * VOCAB,
               (size_t)items[k].n_ids * VOCAB * sizeof(float));
        done[i] += items[k].n_ids;
        fed += items[k].n_ids;
    }
    return fed;
}

typedef struct setting {
    const char *attention;
    bool bf16;
    const char *kv_dtype, *kv_scale; /* NULL: as the others */
} setting;

static void run_script(const kvl_model *model, const variant *v, const setting *set, script *s) {
    kvl_engine_options options = set->bf16 ? kvl_engine_defaults() : f32_options();
    if (set->kv_dtype) options.kv_dtype = set->kv_dtype;
    options.kv_scale = set->kv_scale;
    options.deterministic = set->bf16;
    options.attention = set->attention;
    options.allocator = v->allocator;
    options.page_tokens = v->page_tokens;
    options.map_bytes = 4096; /* as small as may be: sequences of `virtual` cross pages */
    options.max_seqs = N_SEQS;
    options.max_seq_tokens = MAX_TOKENS;
    options.max_batch_tokens = v->max_batch;
    assert_ok(kvl_threads_set(v->threads, 0));
    kvl_engine *engine = make_engine(model, &options);
    kvl_seq seqs[N_SEQS];
    int32_t done[N_SEQS] = {0};
    for (int i = 0; i < N_SEQS; i++)
        assert_ok(kvl_engine_add(engine, prompt_tokens[i], N_DECODE, &seqs[i]));
    for (int first = 0; first < N_SEQS; first += v->n_together) {
        while (feed_once(engine, s, seqs, done, first, v->n_together, v->chunk)) {
        }
    }
    for (int i = 0; i < N_SEQS; i++) {
        assert_int_equal(done[i], s->n_tokens[i]);
        assert_int_equal(kvl_engine_length(engine, seqs[i]), s->n_tokens[i]);
    }
    kvl_engine_destroy(engine);
}

static const variant variants[] = {
    {"two threads", 2, 1, 512, 512, "contiguous", 16},
    {"batch 8", 2, 8, 512, 512, "contiguous", 16},
    {"batch 8, engine cuts at 13", 2, 8, 512, 13, "contiguous", 16},
    {"chunks of 1", 1, 1, 1, 512, "contiguous", 16},
    {"chunks of 7", 2, 1, 7, 512, "paged", 16},
    {"chunks of 64", 1, 1, 64, 512, "paged", 16},
    {"chunks of 7, batch 8", 2, 8, 7, 512, "paged", 17},
    {"pages of 1", 2, 8, 512, 512, "paged", 1},
    {"pages of 16", 2, 8, 512, 512, "paged", 16},
    {"pages of 17", 1, 4, 512, 512, "paged", 17},
    {"pages of 256", 2, 2, 512, 100, "paged", 256},
    {"buddy", 2, 8, 7, 512, "buddy", 16},
    {"growing", 2, 4, 7, 512, "growing", 16},
    {"virtual", 2, 8, 7, 512, "virtual", 16},
};

/* A scale that a page of tokens shares is another one in pages of another size; and a query of an
 * earlier chunk has seen the page's codes before later tokens made its scale grow, which rounds
 * what falls among the subnormals once more. */
static bool same_groups(const setting *set, const variant *v) {
    return !set->kv_scale || strcmp(set->kv_scale, "page") != 0 ||
           (v->page_tokens == 16 && v->chunk == 512 && v->max_batch == 512);
}

static void check_setting(const char *family, const setting *set) {
    const variant plain = {"plain", 1, 1, 512, 512, "contiguous", 16};
    kvl_model *model = open_family(family);
    script *expected = script_new(), *seen = script_new();
    run_script(model, &plain, set, expected);
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        if (!same_groups(set, &variants[v])) continue;
        run_script(model, &variants[v], set, seen);
        for (int i = 0; i < N_SEQS; i++) {
            size_t n = (size_t)seen->n_tokens[i] * VOCAB;
            if (memcmp(expected->logits[i], seen->logits[i], n * sizeof(float)) != 0)
                fail_msg("%s, %s, %s, sequence %d: logits differ by %g", family, set->attention,
                         variants[v].label, i,
                         max_diff(expected->logits[i], seen->logits[i], (int64_t)n));
        }
    }
    script_free(expected);
    script_free(seen);
    kvl_model_close(model);
}

static void check_invariance(const char *family, const char *attention, bool bf16) {
    const setting set = {attention, bf16, NULL, NULL};
    check_setting(family, &set);
}

/* Formats with scales that follow the data: whatever the chunks and the batch, the same bits. */
static void test_dynamic_scales(void **state) {
    static const setting settings[] = {{"flash", false, "int8", "token"},
                                       {"eager", false, "fp8_e4m3", "page"},
                                       {"flash", false, "int8:fp8_e5m2", "page"},
                                       {"reference", false, "fp8_e4m3:fp8_e5m2", "token"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        check_setting(i % 2 ? "llama" : "mistral-window", &settings[i]);
}

static void test_f32(void **state) {
    for (size_t m = 0; m < kvl_attention_count(); m++)
        check_invariance("llama", kvl_attention_at(m)->name, false);
    check_invariance("mistral-window", "flash", false);
    check_invariance("qwen3", "flash", false);
}

static void test_bf16_deterministic(void **state) {
    check_invariance("llama", "flash", true);
    check_invariance("qwen2", "eager", true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_dynamic_scales),
        cmocka_unit_test(test_bf16_deterministic),
    };
    return cmocka_run_group_tests(tests, test_setup, NULL);
}
