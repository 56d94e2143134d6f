/* flash's AVX512_BF16 variant on any CPU with AVX2, by emulated instructions: against the float64
 * oracle, and to the bit for any splits, chunks and pages. */
#include "tests/attention/oracle.h"

#include "attention/flash.h"
#include "core/isa.h"

void kvl_flash_block_emulated_avx512_bf16(const kvl_flash_task *task, float *scratch);
void kvl_flash_merge_emulated_avx512_bf16(const kvl_flash_task *task, int32_t row);

static void supports(const kvl_attention_args *args, kvl_attention_choice *choice) {
    kvl_attention_supports(args, "flash", KVL_ISA_AVX512_BF16, KVL_FLASH_HEAD_DIM_MAX, choice);
}

static int64_t n_splits_of(const kvl_attention_args *args) {
    int64_t longest = 1;
    for (int32_t s = 0; s < args->kv->n_seqs; s++)
        longest = args->kv->kv_lens[s] > longest ? args->kv->kv_lens[s] : longest;
    return (longest + KVL_SPLIT_KEYS - 1) / KVL_SPLIT_KEYS;
}

/* Exactly what the kernel asks for: what is written past it is found by sanitizers. */
static uint64_t workspace_bytes(const kvl_attention_args *args) {
    return (uint64_t)(KVL_BLOCK_ROWS * n_splits_of(args) * kvl_flash_partial(args) +
                      kvl_flash_scratch(args)) *
           sizeof(float);
}

/* One thread; n_threads > 1 stands for splits that are kept apart and merged. */
static void run_block(const kvl_attention_args *args, kvl_flash_task task, float *scratch) {
    int64_t n_splits = task.split_last;
    if (args->n_threads == 1) {
        task.n_states = 1;
        task.fresh = task.store = true;
        kvl_flash_block_emulated_avx512_bf16(&task, scratch);
        return;
    }
    task.n_states = n_splits;
    for (int64_t split = 0; split < n_splits; split++) {
        task.split_first = split;
        task.split_last = split + 1;
        task.fresh = true;
        kvl_flash_block_emulated_avx512_bf16(&task, scratch);
    }
    task.split_first = 0;
    for (int32_t r = 0; r < task.block.n_rows; r++) kvl_flash_merge_emulated_avx512_bf16(&task, r);
}

static kvl_status run(const kvl_attention_args *args) {
    float *scratch = args->workspace, *states = scratch + kvl_flash_scratch(args);
    int64_t n_splits = n_splits_of(args);
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        for (int64_t b = 0; b < kvl_seq_blocks(args, s); b++) {
            for (int32_t h = 0; h < args->kv->n_kv_heads; h++) {
                kvl_flash_task task = {.block = kvl_block_of(args, s, b, h),
                                       .split_last = n_splits,
                                       .states = states,
                                       .next_key = -1};
                run_block(args, task, scratch);
            }
        }
    }
    return KVL_OK;
}

static const kvl_attention emulated = {.name = "emulated",
                                       .p_dtype = KVL_F32,
                                       .acc_dtype = KVL_F32,
                                       .supports = supports,
                                       .workspace_bytes = workspace_bytes,
                                       .run_cpu = run};

#define BF16 .kv_dtype = KVL_BF16, .q_dtype = KVL_BF16, .o_dtype = KVL_F32
static const shape shapes[] = {
    {.n_seqs = 3,
     .q_lens = {70, 1, 30},
     .kv_lens = {70, 1153, 600},
     .n_q_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 64,
     .scale = 0.3f,
     .causal = true,
     BF16},
    {.n_seqs = 2,
     .q_lens = {65, 20},
     .kv_lens = {700, 90},
     .n_q_heads = 5,
     .n_kv_heads = 1,
     .head_dim = 44,
     .scale = 0.2f,
     .causal = true,
     .window = 530,
     .scaled = true,
     BF16},
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
     BF16},
    {.n_seqs = 2,
     .q_lens = {9, 3},
     .kv_lens = {530, 3},
     .n_q_heads = 8,
     .n_kv_heads = 1,
     .head_dim = 128,
     .scale = 0.2f,
     .window = 40,
     BF16},
    {.n_seqs = 2,
     .q_lens = {5, 0},
     .kv_lens = {2, 7},
     .n_q_heads = 3,
     .n_kv_heads = 3,
     .head_dim = 1,
     .scale = 1,
     .causal = true,
     BF16},
    {.n_seqs = 1,
     .q_lens = {2},
     .kv_lens = {65},
     .n_q_heads = 2,
     .n_kv_heads = 2,
     .head_dim = 256,
     .scale = 0.06f,
     .causal = true,
     .kv_dtype = KVL_BF16,
     .q_dtype = KVL_BF16,
     .o_dtype = KVL_BF16},
    {.n_seqs = 2,
     .q_lens = {20, 1},
     .kv_lens = {530, 70},
     .n_q_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 48,
     .scale = 0.2f,
     .causal = true,
     .kv_dtype = KVL_FP8_E4M3,
     .q_dtype = KVL_BF16,
     .o_dtype = KVL_F16,
     .scaled = true},
    {.n_seqs = 2,
     .q_lens = {20, 1},
     .kv_lens = {130, 70},
     .n_q_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 20,
     .scale = 0.2f,
     .causal = true,
     .softcap = 9,
     .kv_dtype = KVL_FP8_E5M2,
     .q_dtype = KVL_BF16,
     .o_dtype = KVL_BF16},
    {.n_seqs = 1,
     .q_lens = {5},
     .kv_lens = {70},
     .n_q_heads = 4,
     .n_kv_heads = 1,
     .head_dim = 32,
     .scale = 0.2f,
     .causal = true,
     .kv_dtype = KVL_F16,
     .q_dtype = KVL_F32,
     .o_dtype = KVL_F32},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static bool skipped(void) {
    if (kvl_isa_has(KVL_ISA_AVX2)) return false;
    print_message("[  SKIPPED ] emulation: this CPU has no AVX2\n");
    return true;
}

static void same_call(const tensors *t, const call *a, const call *b, const char *what) {
    size_t bytes = (size_t)(t->n_q * t->shape.n_q_heads * t->shape.head_dim) *
                   kvl_dtype_bytes(t->shape.o_dtype);
    if (memcmp(a->o, b->o, bytes) != 0) fail_msg("%s: bits differ", what);
    assert_memory_equal(a->lse, b->lse, (size_t)(t->n_q * t->shape.n_q_heads) * 4);
}

static void oracle_pages_and_splits(void **state) {
    static const int64_t pages[] = {1, 7, 16, 64};
    for (size_t i = 0; i < N_SHAPES && !skipped(); i++) {
        tensors t = tensors_make(&shapes[i], i + 5);
        expected e = expected_make(&t);
        call whole, other;
        call_make(&whole, &t, 0, 1);
        assert_ok(call_run(&whole, &emulated));
        check_outputs(&whole, &t, &e, "emulated");
        for (size_t p = 0; p < sizeof pages / sizeof *pages; p++) {
            call_make(&other, &t, pages[p], p % 2 ? 2 : 1);
            assert_ok(call_run(&other, &emulated));
            same_call(&t, &whole, &other, p % 2 ? "pages, splits apart" : "pages");
            call_free(&other);
        }
        call_make(&other, &t, 0, 2);
        assert_ok(call_run(&other, &emulated));
        same_call(&t, &whole, &other, "splits apart");
        call_free(&other);
        call_free(&whole);
        expected_free(&e);
        tensors_free(&t);
    }
}

/* Each token of the first sequence alone, and NaN and inf in the keys that it does not see. */
static void tokens_alone_and_unseen_keys(void **state) {
    for (size_t i = 0; i < N_SHAPES && !skipped(); i++) {
        tensors t = tensors_make(&shapes[i], i + 5);
        if (!shapes[i].causal) {
            tensors_free(&t);
            continue;
        }
        call whole;
        call_make(&whole, &t, 0, 1);
        assert_ok(call_run(&whole, &emulated));
        const shape *s = &t.shape;
        size_t row = (size_t)(s->n_q_heads * s->head_dim) * kvl_dtype_bytes(s->o_dtype);
        for (int32_t q = 0; q < s->q_lens[0]; q += 13) {
            call dirty;
            call_make(&dirty, &t, 16, 1);
            int64_t seen = s->kv_lens[0] - s->q_lens[0] + q + 1, size = s->head_dim;
            for (int64_t j = seen > 0 ? seen : 0; j < s->kv_lens[0]; j++) {
                for (int32_t h = 0; h < s->n_kv_heads; h++) {
                    int64_t at = kvl_kv_offset(&dirty.view, 0, j, h);
                    for (int64_t d = 0; d < size; d++) {
                        set_value(s->kv_dtype, dirty.k_pool, at + d, NAN);
                        set_value(s->kv_dtype, dirty.v_pool, at + d, d % 2 ? NAN : INFINITY);
                    }
                }
            }
            assert_ok(call_run(&dirty, &emulated));
            assert_memory_equal(dirty.o, whole.o, (size_t)(q + 1) * row);
            call_free(&dirty);
            tensors part = t;
            part.shape.n_seqs = 1;
            part.shape.q_lens[0] = 1;
            part.shape.kv_lens[0] -= s->q_lens[0] - q - 1;
            if (part.shape.kv_lens[0] < 1) continue;
            part.n_q = 1;
            part.q += (size_t)(q * s->n_q_heads * s->head_dim) * kvl_dtype_bytes(s->q_dtype);
            call_make(&dirty, &part, 0, 1);
            assert_ok(call_run(&dirty, &emulated));
            assert_memory_equal(dirty.o, whole.o + (size_t)q * row, row);
            call_free(&dirty);
        }
        call_free(&whole);
        tensors_free(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_pages_and_splits),
        cmocka_unit_test(tokens_alone_and_unseen_keys),
    };
    if (kvl_isa_init() != KVL_OK) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
