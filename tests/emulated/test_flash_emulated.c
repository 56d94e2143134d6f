/* flash's AVX512_BF16 variant and flash on AMX on any CPU with AVX2, by emulated instructions:
 * against the float64 oracle, through verify's gates and properties, and to the bit for any
 * threads, splits, chunks and pages. */
#include "tests/attention/oracle.h"

#include "attention/flash_amx.h"
#include "core/isa.h"
#include "harness/verify/attention.h"

void kvl_flash_block_emulated_avx512_bf16(const kvl_flash_task *task, float *scratch);
void kvl_flash_merge_emulated_avx512_bf16(const kvl_flash_task *task, int32_t row);
void kvl_flash_block_emulated_amx(const kvl_flash_task *task, float *scratch);

/* flash.c, built so that it takes this CPU for one with AMX and calls the emulated kernels. */
extern const kvl_attention flash_as_on_amx;
kvl_isa isa_amx(void);
kvl_isa isa_amx(void) {
    return KVL_ISA_AMX;
}

static void dot_supports(const kvl_attention_args *args, kvl_attention_choice *choice) {
    kvl_attention_supports(args, "flash", KVL_ISA_AVX512_BF16, KVL_FLASH_HEAD_DIM_MAX, choice);
}

static void amx_supports(const kvl_attention_args *args, kvl_attention_choice *choice) {
    kvl_attention_supports(args, "flash", KVL_ISA_AMX, KVL_FLASH_HEAD_DIM_MAX, choice);
    choice->supported = choice->supported && kvl_flash_fits_amx(args);
}

static int64_t n_splits_of(const kvl_attention_args *args) {
    int64_t n = (kvl_longest_kv(args) + KVL_SPLIT_KEYS - 1) / KVL_SPLIT_KEYS;
    return n < 1 ? 1 : n;
}

/* Of one worker: exactly what the kernel asks for, since what is written past it is found by
 * sanitizers, and the states. */
static int64_t worker_floats(const kvl_attention_args *args, int64_t scratch_floats) {
    return scratch_floats + KVL_BLOCK_ROWS * n_splits_of(args) * kvl_flash_partial(args);
}
static uint64_t dot_workspace(const kvl_attention_args *args) {
    return (uint64_t)(worker_floats(args, kvl_flash_scratch(args)) * args->n_threads) *
           sizeof(float);
}
static uint64_t amx_workspace(const kvl_attention_args *args) {
    return (uint64_t)(worker_floats(args, kvl_flash_amx_scratch(args)) * args->n_threads) *
           sizeof(float);
}

typedef void (*block_fn)(const kvl_flash_task *task, float *scratch);

/* One thread: splits one after another. More: as if each split had its own, merged at the end. */
static void run_block(block_fn block, kvl_flash_task task, bool apart, float *scratch) {
    int64_t n_splits = task.split_last;
    task.n_states = apart ? n_splits : 1;
    task.fresh = true;
    if (!apart) {
        task.store = true;
        block(&task, scratch);
        return;
    }
    for (int64_t split = 0; split < n_splits; split++) {
        task.split_first = split;
        task.split_last = split + 1;
        block(&task, scratch);
    }
    task.split_first = 0;
    for (int32_t r = 0; r < task.block.n_rows; r++) kvl_flash_merge_emulated_avx512_bf16(&task, r);
}

/* Blocks go round the workers, each a thread of its own. */
static void run_worker(const kvl_attention_args *args, block_fn block, int64_t scratch_floats,
                       int32_t worker) {
    float *scratch = (float *)args->workspace + worker * worker_floats(args, scratch_floats);
    int64_t turn = 0;
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        for (int64_t b = 0; b < kvl_seq_blocks(args, s); b++) {
            for (int32_t h = 0; h < args->kv->n_kv_heads; h++) {
                if (turn++ % args->n_threads != worker) continue;
                kvl_flash_task task = {.block = kvl_block_of(args, s, b, h),
                                       .split_last = n_splits_of(args),
                                       .states = scratch + scratch_floats,
                                       .next_key = -1};
                run_block(block, task, args->n_threads > 1, scratch);
            }
        }
    }
}

static kvl_status run(const kvl_attention_args *args, block_fn block, int64_t scratch_floats) {
#pragma omp parallel for num_threads(args->n_threads) schedule(static, 1)
    for (int32_t w = 0; w < args->n_threads; w++) run_worker(args, block, scratch_floats, w);
    return KVL_OK;
}
static kvl_status dot_run(const kvl_attention_args *args) {
    return run(args, kvl_flash_block_emulated_avx512_bf16, kvl_flash_scratch(args));
}
static kvl_status amx_run(const kvl_attention_args *args) {
    return run(args, kvl_flash_block_emulated_amx, kvl_flash_amx_scratch(args));
}

static const kvl_attention modules[] = {{.name = "emulated avx512_bf16",
                                         .p_dtype = KVL_F32,
                                         .acc_dtype = KVL_F32,
                                         .supports = dot_supports,
                                         .workspace_bytes = dot_workspace,
                                         .run_cpu = dot_run},
                                        {.name = "emulated amx",
                                         .p_dtype = KVL_F32,
                                         .acc_dtype = KVL_F32,
                                         .supports = amx_supports,
                                         .workspace_bytes = amx_workspace,
                                         .run_cpu = amx_run}};
enum { DOT, AMX, N_MODULES };

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

static bool runs(const kvl_attention *module, const shape *s) {
    return module != &modules[AMX] || (s->kv_dtype == KVL_BF16 && s->q_dtype == KVL_BF16);
}

static void oracle_pages_and_splits(void **state) {
    static const int64_t pages[] = {1, 7, 16, 64};
    const kvl_attention *module = *state;
    for (size_t i = 0; i < N_SHAPES && !skipped(); i++) {
        if (!runs(module, &shapes[i])) continue;
        tensors t = tensors_make(&shapes[i], i + 5);
        expected e = expected_make(&t);
        call whole, other;
        call_make(&whole, &t, 0, 1);
        assert_ok(call_run(&whole, module));
        check_outputs(&whole, &t, &e, module->name);
        for (size_t p = 0; p < sizeof pages / sizeof *pages; p++) {
            call_make(&other, &t, pages[p], p % 2 ? 2 : 1);
            assert_ok(call_run(&other, module));
            same_call(&t, &whole, &other, p % 2 ? "pages, splits apart" : "pages");
            call_free(&other);
        }
        call_make(&other, &t, 0, 2);
        assert_ok(call_run(&other, module));
        same_call(&t, &whole, &other, "splits apart");
        call_free(&other);
        call_free(&whole);
        expected_free(&e);
        tensors_free(&t);
    }
}

/* Each token of the first sequence alone, and NaN and inf in the keys that it does not see. */
static void tokens_alone_and_unseen_keys(void **state) {
    const kvl_attention *module = *state;
    for (size_t i = 0; i < N_SHAPES && !skipped(); i++) {
        if (!runs(module, &shapes[i])) continue;
        tensors t = tensors_make(&shapes[i], i + 5);
        if (!shapes[i].causal) {
            tensors_free(&t);
            continue;
        }
        call whole;
        call_make(&whole, &t, 0, 1);
        assert_ok(call_run(&whole, module));
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
            assert_ok(call_run(&dirty, module));
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
            assert_ok(call_run(&dirty, module));
            assert_memory_equal(dirty.o, whole.o + (size_t)q * row, row);
            call_free(&dirty);
        }
        call_free(&whole);
        tensors_free(&t);
    }
}

/* Infinity in a key that is seen is infinity in O, whatever P's low part is; NaN stays in the rows
 * that see it. */
static void seen_infinity(void **state) {
    const kvl_attention *module = *state;
    if (skipped()) return;
    tensors t = tensors_make(&shapes[0], 5);
    call clean, dirty;
    call_make(&clean, &t, 16, 1);
    call_make(&dirty, &t, 16, 1);
    const shape *s = &t.shape;
    enum { KEY = 37, DIM = 5, NAN_DIM = 9 };
    set_value(s->kv_dtype, dirty.v_pool, kvl_kv_offset(&dirty.view, 0, KEY, 0) + DIM, INFINITY);
    set_value(s->kv_dtype, dirty.v_pool, kvl_kv_offset(&dirty.view, 0, KEY, 0) + NAN_DIM, NAN);
    assert_ok(call_run(&clean, module));
    assert_ok(call_run(&dirty, module));
    const float *want = (const float *)(const void *)clean.o;
    const float *got = (const float *)(const void *)dirty.o;
    int64_t row = s->n_q_heads * s->head_dim, group = s->n_q_heads / s->n_kv_heads;
    assert_memory_equal(got, want, (size_t)(KEY * row) * sizeof(float));
    for (int64_t q = KEY; q < s->q_lens[0]; q++) {
        for (int64_t i = 0; i < row; i++) {
            float w = want[q * row + i], g = got[q * row + i];
            bool sees = i / s->head_dim < group;
            if (sees && i % s->head_dim == DIM) {
                assert_true(g == INFINITY);
            } else if (sees && i % s->head_dim == NAN_DIM) {
                assert_true(isnan(g));
            } else {
                assert_true(fabsf(g - w) <= 1e-5f);
            }
        }
    }
    call_free(&clean);
    call_free(&dirty);
    tensors_free(&t);
}

/* verify's own cases, gates and properties. */
static void gates_of_verify(void **state) {
    static const char *const ids[] = {
        "attn/flash/avx2/bf16kv.bf16q.f32o/hd64.h6:2/page16.shuf/40q600+1q70/causal/seed1/normal",
        "attn/flash/avx2/bf16kv.bf16q.f32o/hd128.h4:1/contig/33q530/causal/seed2/alt",
        "attn/flash/avx2/bf16kv.bf16q.f32o/hd80.h4:2/page16/33q130/causal.cap30/seed3/rising",
        "attn/flash/avx2/bf16kv.bf16q.f32o/hd64.h4:2/contig/20q600/full/seed4/onehot",
        "attn/flash/avx2/bf16kv.bf16q.f32o/hd64.h4:2/contig/20q200/causal/seed5/big",
        "attn/flash/avx2/bf16kv.bf16q.f32o/hd64.h4:2/contig/20q200/causal/seed6/vmax",
        "attn/flash/avx2/bf16kv.bf16q.bf16o/hd64.h4:2/page7/20q200/causal.sinks/seed7/flat",
        "attn/flash/avx2/bf16kv.bf16q.f32o/hd256.h2:1/page64/20q100/causal.w33.scaled/seed8/normal",
        "attn-chunk/flash/avx2/bf16kv.bf16q.f32o/hd44.h4:2/page16/70q90/causal.w33/seed9/normal",
        "attn-chunk/flash/avx2/bf16kv.bf16q.f32o/hd32.h2:2/page16/80q80/causal/seed10/rising",
        "attn-batch/flash/avx2/bf16kv.bf16q.f32o/hd64.h3:1/page16/40q90+1q600+7q40/causal/seed11/"
        "normal",
        "attn-paged/flash/avx2/bf16kv.bf16q.f32o/hd64.h3:1/page16/40q90+1q600+7q40/causal/seed12/"
        "normal",
        "attn-threads/flash/avx2/bf16kv.bf16q.f32o/hd64.h3:1/page16/97q1100+1q600/causal/seed13/"
        "normal",
        "attn-merge/flash/avx2/bf16kv.bf16q.f32o/hd64.h3:1/contig/20q200/full/seed14/normal"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids && !skipped(); i++) {
        kvl_verify_case c;
        kvl_verify_result result = {0};
        assert_ok(kvl_verify_case_parse(ids[i], &c));
        kvl_verify_attention_case(*state, &c, &result);
        if (result.state != KVL_VERIFY_PASS) fail_msg("%s: %s", ids[i], result.reason);
    }
}

/* bf16 Q, K and V run on AMX, all else as on avx512_bf16. */
static void dispatch(void **state) {
    const kvl_attention *module = *state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        tensors t = tensors_make(&shapes[i], i);
        call c;
        kvl_attention_choice choice;
        call_make(&c, &t, 16, 1);
        module->supports(&c.args, &choice);
        assert_true(choice.supported);
        assert_int_equal(choice.isa,
                         runs(&modules[AMX], &shapes[i]) ? KVL_ISA_AMX : KVL_ISA_AVX512_BF16);
        assert_int_equal(choice.p_dtype, KVL_F32);
        call_free(&c);
        tensors_free(&t);
    }
}

#define OF(test, which) \
    { #test " " #which, test, NULL, NULL, (void *)(uintptr_t)&which }

int main(void) {
    const struct CMUnitTest tests[] = {
        OF(oracle_pages_and_splits, modules[DOT]),
        OF(tokens_alone_and_unseen_keys, modules[DOT]),
        OF(gates_of_verify, modules[DOT]),
        OF(oracle_pages_and_splits, modules[AMX]),
        OF(tokens_alone_and_unseen_keys, modules[AMX]),
        OF(gates_of_verify, modules[AMX]),
        OF(seen_infinity, modules[AMX]),
        OF(dispatch, flash_as_on_amx),
        OF(oracle_pages_and_splits, flash_as_on_amx),
        OF(gates_of_verify, flash_as_on_amx),
    };
    if (kvl_isa_init() != KVL_OK) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
