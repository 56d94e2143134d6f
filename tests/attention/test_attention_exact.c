/* What must hold to the last bit: a row's result does not depend on threads, batch, chunking, page
 * size, or on keys that it does not see. On every instruction set of this CPU. */
#include "tests/attention/oracle.h"

#include "core/isa.h"

/* Enough keys for several splits of flash and several chunks of mem_efficient. */
static const shape shapes[] = {
    {.n_seqs = 3,
     .q_lens = {70, 1, 30},
     .kv_lens = {70, 1153, 1100},
     .n_q_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 64,
     .scale = 0.3f,
     .causal = true,
     .kv_dtype = KVL_BF16,
     .q_dtype = KVL_F32,
     .o_dtype = KVL_F32},
    {.n_seqs = 2,
     .q_lens = {65, 20},
     .kv_lens = {1100, 600},
     .n_q_heads = 5,
     .n_kv_heads = 1,
     .head_dim = 44,
     .scale = 0.2f,
     .causal = true,
     .window = 530,
     .kv_dtype = KVL_FP8_E4M3,
     .q_dtype = KVL_BF16,
     .o_dtype = KVL_F32,
     .scaled = true},
    {.n_seqs = 2,
     .q_lens = {66, 9},
     .kv_lens = {600, 30},
     .n_q_heads = 4,
     .n_kv_heads = 4,
     .head_dim = 72,
     .scale = -0.2f,
     .causal = true,
     .softcap = 20,
     .sinks = true,
     .kv_dtype = KVL_F16,
     .q_dtype = KVL_F16,
     .o_dtype = KVL_F32},
    {.n_seqs = 2,
     .q_lens = {9, 3},
     .kv_lens = {1040, 3},
     .n_q_heads = 8,
     .n_kv_heads = 1,
     .head_dim = 128,
     .scale = 0.2f,
     .causal = true,
     .kv_dtype = KVL_F32,
     .q_dtype = KVL_F32,
     .o_dtype = KVL_F32},
    /* Decode: every element of K and V read as stored, one sequence far longer than the other, so
     * that its blocks are cut between workers. */
    {.n_seqs = 3,
     .q_lens = {1, 1, 2},
     .kv_lens = {3000, 5, 700},
     .n_q_heads = 8,
     .n_kv_heads = 2,
     .head_dim = 64,
     .scale = 0.2f,
     .causal = true,
     .kv_dtype = KVL_FP8_E4M3,
     .q_dtype = KVL_BF16,
     .o_dtype = KVL_F32,
     .scaled = true},
    {.n_seqs = 1,
     .q_lens = {1},
     .kv_lens = {2900},
     .n_q_heads = 3,
     .n_kv_heads = 1,
     .head_dim = 128,
     .scale = 0.1f,
     .causal = true,
     .kv_dtype = KVL_FP8_E5M2,
     .q_dtype = KVL_BF16,
     .o_dtype = KVL_F32},
    /* bf16 throughout: dot products of pairs where the CPU has them, a head_dim of odd pairs, and
     * rows that go few and many at a time. */
    {.n_seqs = 3,
     .q_lens = {70, 1, 9},
     .kv_lens = {600, 1153, 70},
     .n_q_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 75,
     .scale = 0.1f,
     .causal = true,
     .window = 530,
     .kv_dtype = KVL_BF16,
     .q_dtype = KVL_BF16,
     .o_dtype = KVL_F32},
    {.n_seqs = 2,
     .q_lens = {40, 2},
     .kv_lens = {1100, 900},
     .n_q_heads = 8,
     .n_kv_heads = 2,
     .head_dim = 128,
     .scale = 0.1f,
     .causal = true,
     .kv_dtype = KVL_BF16,
     .q_dtype = KVL_BF16,
     .o_dtype = KVL_F32},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void for_each(void (*check)(const kvl_attention *module, const tensors *t)) {
    for (int isa = KVL_ISA_SCALAR; isa < KVL_N_ISAS; isa++) {
        if (!kvl_isa_has((kvl_isa)isa)) continue;
        assert_ok(kvl_isa_force((kvl_isa)isa));
        for (size_t i = 0; i < N_SHAPES; i++) {
            tensors t = tensors_make(&shapes[i], i + 5);
            for (size_t m = 0; m < kvl_attention_count(); m++) {
                /* The float64 reference has no variants. */
                if (isa == KVL_ISA_SCALAR || kvl_attention_at(m)->acc_dtype != KVL_F64)
                    check(kvl_attention_at(m), &t);
            }
            tensors_free(&t);
        }
    }
}

static size_t row_bytes(const tensors *t) {
    return (size_t)t->shape.n_q_heads * (size_t)t->shape.head_dim * 4;
}

/* Query tokens [a_first, + n) of one call equal [b_first, + n) of another, O and LSE. */
static void same_tokens(const tensors *t, const call *a, int64_t a_first, const call *b,
                        int64_t b_first, int64_t n, const char *what, const char *name) {
    size_t width = row_bytes(t), heads = (size_t)t->shape.n_q_heads;
    if (memcmp(a->o + (size_t)a_first * width, b->o + (size_t)b_first * width, (size_t)n * width) ||
        memcmp(a->lse + (size_t)a_first * heads, b->lse + (size_t)b_first * heads,
               (size_t)n * heads * 4))
        fail_msg("%s, %s: %s changed bits (head_dim %d)", name, kvl_isa_name(kvl_isa_current()),
                 what, t->shape.head_dim);
}

static void run(call *c, const tensors *t, int64_t page_tokens, int32_t n_threads,
                const kvl_attention *module) {
    call_make(c, t, page_tokens, n_threads);
    assert_ok(call_run(c, module));
}

static void check_threads_and_pages(const kvl_attention *module, const tensors *t) {
    static const struct {
        int64_t page;
        int32_t threads;
    } ways[] = {{0, 2}, {0, 3}, {1, 1}, {16, 2}, {17, 3}, {256, 1}};
    call base, other;
    run(&base, t, 0, 1, module);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char what[64];
        snprintf(what, sizeof what, "page %d, %d threads", (int)ways[i].page, ways[i].threads);
        run(&other, t, ways[i].page, ways[i].threads, module);
        same_tokens(t, &base, 0, &other, 0, t->n_q, what, module->name);
        call_free(&other);
    }
    call_free(&base);
}

/* A team's call: every worker makes it, twice with a barrier between, as layers do. */
typedef struct team_call {
    const call *c;
    const kvl_attention *module;
} team_call;

static void team_part(kvl_worker *worker, void *context) {
    const team_call *t = context;
    kvl_attention_args mine = t->c->args;
    mine.worker = worker;
    mine.n_threads = worker->n;
    for (int layer = 0; layer < 2; layer++) {
        if (kvl_attention_part(t->module, &mine) != KVL_OK) memset(t->c->o, 0xff, 1);
        kvl_team_barrier(worker);
    }
}

static void check_teams(const kvl_attention *module, const tensors *t) {
    call base, other;
    run(&base, t, 16, 1, module);
    for (int n = 1; n <= 3; n++) {
        call_make(&other, t, 16, n);
        uint64_t bytes = module->workspace_bytes(&other.args);
        other.args.workspace = must_alloc(bytes);
        other.args.workspace_bytes = bytes;
        memset(other.args.workspace, 0xff, bytes);
        assert_ok(kvl_attention_check(module, &other.args));
        kvl_team_run(n, team_part, &(team_call){&other, module}, NULL);
        char what[32];
        snprintf(what, sizeof what, "a team of %d", n);
        same_tokens(t, &base, 0, &other, 0, t->n_q, what, module->name);
        free(other.args.workspace);
        call_free(&other);
    }
    call_free(&base);
}

/* One sequence of `t` as a call of its own, cut to its first kv_len keys and last q_len of those
 * queries that end there: what a chunk or a decode step sees. Borrows t's memory. */
static tensors part_of(const tensors *t, int32_t seq, int32_t q_first, int32_t q_len) {
    const shape *s = &t->shape;
    tensors part = *t;
    int64_t q_before = 0, kv_before = 0;
    for (int32_t i = 0; i < seq; i++) q_before += s->q_lens[i], kv_before += s->kv_lens[i];
    part.shape.n_seqs = 1;
    part.shape.q_lens[0] = q_len;
    part.shape.kv_lens[0] = s->kv_lens[seq] - (s->q_lens[seq] - q_first - q_len);
    part.n_q = q_len;
    part.n_kv = part.shape.kv_lens[0];
    size_t q_row = (size_t)s->n_q_heads * (size_t)s->head_dim * kvl_dtype_bytes(s->q_dtype);
    size_t kv_row = (size_t)s->n_kv_heads * (size_t)s->head_dim * kvl_dtype_bytes(s->kv_dtype);
    part.q += (size_t)(q_before + q_first) * q_row;
    part.k += (size_t)kv_before * kv_row;
    part.v += (size_t)kv_before * kv_row;
    return part;
}

static void check_batch_and_chunks(const kvl_attention *module, const tensors *t) {
    static const int32_t chunks[] = {1, 7, 64, 1000000};
    call whole, piece;
    run(&whole, t, 16, 2, module);
    int64_t token = 0;
    for (int32_t seq = 0; seq < t->shape.n_seqs; seq++) {
        int32_t q_len = t->shape.q_lens[seq];
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            /* The float64 reference takes one chunk size and alone; its rows share nothing. */
            if (module->acc_dtype == KVL_F64 && i < 2) continue;
            char what[64];
            snprintf(what, sizeof what, "sequence %d in chunks of %d", seq, chunks[i]);
            /* The first and last chunks, and every eleventh in between. */
            for (int32_t first = 0, n = 0; first < q_len; first += chunks[i], n++) {
                int32_t len = chunks[i] < q_len - first ? chunks[i] : q_len - first;
                if (n > 0 && n % 11 && first + len < q_len) continue;
                tensors part = part_of(t, seq, first, len);
                run(&piece, &part, 0, 1 + n % 2, module);
                same_tokens(t, &whole, token + first, &piece, 0, len, what, module->name);
                call_free(&piece);
            }
        }
        token += q_len;
    }
    call_free(&whole);
}

/* Later keys of the same chunk that a causal row does not see turn to inf and NaN. */
static void check_unseen_keys(const kvl_attention *module, const tensors *t) {
    if (t->shape.q_lens[0] <= 5) return;
    tensors part = part_of(t, 0, 0, t->shape.q_lens[0]);
    call clean, dirty;
    run(&clean, &part, 0, 1, module);
    call_make(&dirty, &part, 0, 1);
    int32_t seen = part.shape.kv_lens[0] - 5;
    for (int64_t j = seen; j < part.shape.kv_lens[0]; j++) {
        for (int32_t h = 0; h < part.shape.n_kv_heads; h++) {
            size_t bytes = kvl_dtype_bytes(part.shape.kv_dtype);
            size_t at = (size_t)kvl_kv_offset(&dirty.view, 0, j, h) * bytes;
            memset(dirty.v_pool + at, 0xff, (size_t)part.shape.head_dim * bytes);
            memset(dirty.k_pool + at, 0xff, (size_t)part.shape.head_dim * bytes);
        }
    }
    assert_ok(call_run(&dirty, module));
    same_tokens(t, &clean, 0, &dirty, 0, part.shape.q_lens[0] - 5, "NaN in unseen keys",
                module->name);
    call_free(&clean), call_free(&dirty);
}

static void threads_and_pages(void **state) {
    for_each(check_threads_and_pages);
}
static void teams(void **state) {
    for_each(check_teams);
}
static void batch_and_chunks(void **state) {
    for_each(check_batch_and_chunks);
}
static void unseen_keys(void **state) {
    for_each(check_unseen_keys);
}

/* The shapes above are right, too, not only alike. */
static void against_the_oracle(void **state) {
    for (size_t i = 0; i < N_SHAPES; i++) {
        tensors t = tensors_make(&shapes[i], i + 5);
        expected e = expected_make(&t);
        for (int isa = KVL_ISA_SCALAR; isa < KVL_N_ISAS; isa++) {
            if (!kvl_isa_has((kvl_isa)isa)) continue;
            assert_ok(kvl_isa_force((kvl_isa)isa));
            for (size_t m = 0; m < kvl_attention_count(); m++) {
                call c;
                run(&c, &t, 17, 2, kvl_attention_at(m));
                check_outputs(&c, &t, &e, kvl_attention_at(m)->name);
                call_free(&c);
            }
        }
        expected_free(&e);
        tensors_free(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_and_pages),  cmocka_unit_test(teams),
        cmocka_unit_test(batch_and_chunks),   cmocka_unit_test(unseen_keys),
        cmocka_unit_test(against_the_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
