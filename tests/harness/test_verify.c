/* A test that cannot fail is a defect: attention modules broken on purpose must each be failed by
 * verify, while their right twin passes. Ids round-trip, names are checked, exit codes hold. */
#include "tests/test.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/isa.h"
#include "core/threads.h"
#include "decoder/safetensors.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "harness/verify/case.h"
#include "harness/verify/codec.h"
#include "harness/verify/cover.h"
#include "harness/verify/verify.h"

/* ---- modules broken on purpose ----------------------------------------------------------------
 */

typedef enum defect {
    NONE,
    MASK_OFF_BY_ONE, /* causal mask lets the next key in */
    HEAD_MODULO,     /* query head h reads KV head h % n_kv_heads */
    F16_SUMS,        /* sums kept in f16 */
    READS_PAST_END,  /* 0 x the V slot past the sequence's end */
    NAN_OUTPUT,      /* one NaN in one row */
    WINDOW_PLUS_ONE, /* W + 1 keys */
    NO_V_SCALE,
    NO_DYNAMIC_SCALE,    /* only static ones */
    SCALE_OF_HEAD_0,     /* every head's scale is the first one's */
    SCALE_OF_FIRST_PAGE, /* of the right slot, in the sequence's first page */
    SCALE_OF_NEXT_TOKEN,
    NO_SOFTCAP,
    NO_SINK,
    STALE_ROW, /* the last key's V is counted twice, with a small weight */
    LSE_BASE_2,
    WRITES_PAST_ROW,
    THREADS_MATTER, /* one bit, with more than one thread */
    INT32_OFFSETS,
    OWN_STRIDES, /* pages and slabs are taken for (kv_head, token, head_dim), whatever the view says
                  */
    N_DEFECTS
} defect;

/* Value of element i of a pool or of Q. */
static double at(kvl_dtype dtype, const void *base, int64_t i) {
    return kvl_verify_value_at(dtype, base, i);
}

typedef struct row_view {
    const kvl_attention_args *args;
    int64_t seq, row;
    int32_t head, kv_head;
} row_view;

static int64_t offset_of(const row_view *v, defect d, int64_t t) {
    kvl_kv_view kv = *v->args->kv;
    if (d == OWN_STRIDES)
        kv.head_stride = kv.page_tokens * kv.head_dim, kv.token_stride = kv.head_dim;
    int64_t offset = kvl_kv_offset(&kv, v->seq, t, v->kv_head);
    if (d != INT32_OFFSETS) return offset;
    int64_t wrapped = (int32_t)(uint32_t)offset;
    return wrapped < 0 ? 0 : wrapped;
}

static double scale_of(const row_view *v, defect d, const float *scales, int64_t scale_tokens,
                       int64_t t) {
    const kvl_kv_view *kv = v->args->kv;
    int32_t head = d == SCALE_OF_HEAD_0 ? 0 : v->kv_head;
    if (!scales || (d == NO_DYNAMIC_SCALE && scale_tokens)) return 1.0;
    if (d == SCALE_OF_FIRST_PAGE && scale_tokens) t %= kv->page_tokens;
    if (d == SCALE_OF_NEXT_TOKEN && t + 1 < kv->kv_lens[v->seq]) t++;
    return scales[kvl_kv_scale_index(kv, scale_tokens, v->seq, t, head)];
}

static double score(const row_view *v, defect d, int64_t t) {
    const kvl_attention_args *a = v->args;
    int64_t k = offset_of(v, d, t), q = v->row * a->q_row_stride + v->head * a->kv->head_dim;
    double sum = 0;
    for (int32_t i = 0; i < a->kv->head_dim; i++)
        sum += at(a->q_dtype, a->q, q + i) * at(a->kv->k_dtype, a->kv->k_pool, k + i);
    sum *= a->scale * scale_of(v, d, a->kv->k_scale, a->kv->k_scale_tokens, t);
    return a->softcap > 0 && d != NO_SOFTCAP ? a->softcap * tanh(sum / a->softcap) : sum;
}

static void add_value(const row_view *v, defect d, int64_t t, double weight, double *o) {
    const kvl_kv_view *kv = v->args->kv;
    int64_t offset = offset_of(v, d, t);
    double scale = d == NO_V_SCALE ? 1.0 : scale_of(v, d, kv->v_scale, kv->v_scale_tokens, t);
    for (int32_t i = 0; i < kv->head_dim; i++) {
        o[i] += weight * at(kv->v_dtype, kv->v_pool, offset + i) * scale;
        if (d == F16_SUMS) o[i] = kvl_verify_round(KVL_F16, o[i]);
    }
}

static void store(const row_view *v, defect d, const double *o, double lse) {
    const kvl_attention_args *a = v->args;
    int64_t base = v->row * a->o_row_stride + v->head * a->kv->head_dim;
    int32_t n = a->kv->head_dim + (d == WRITES_PAST_ROW && v->head == a->n_q_heads - 1);
    for (int32_t i = 0; i < n; i++) {
        double x = i < a->kv->head_dim ? o[i] : 0;
        if (d == NAN_OUTPUT && v->row == 1 && i == 3) x = NAN;
        if (d == THREADS_MATTER && a->n_threads > 1 && i == 0) x = nextafterf((float)x, 9e9f);
        kvl_verify_code_put(a->o_dtype, a->o, base + i, kvl_verify_code(a->o_dtype, x));
    }
    if (a->lse)
        a->lse[v->row * a->n_q_heads + v->head] = (float)(d == LSE_BASE_2 ? lse / log(2) : lse);
}

static void one_row(const row_view *v, defect d, int64_t position, int64_t kv_len) {
    const kvl_attention_args *a = v->args;
    double o[256] = {0}, top = -INFINITY, sum = 0;
    int64_t window = a->window && d == WINDOW_PLUS_ONE ? a->window + 1 : a->window, first, last;
    int64_t seen = position + (d == MASK_OFF_BY_ONE);
    kvl_attention_range(position, kv_len, a->causal, window, &first, &last);
    if (a->causal && seen + 1 <= kv_len && seen + 1 > last) last = seen + 1;
    /* A page outside every window is -1: a broken kernel would read anything, this one must not. */
    while (first < last && kvl_kv_offset(a->kv, v->seq, first, 0) < 0) first++;
    bool sink = a->sinks && d != NO_SINK;
    for (int64_t t = first; t < last; t++) top = fmax(top, score(v, d, t));
    if (sink) top = fmax(top, a->sinks[v->head]);
    if (sink) sum = exp(a->sinks[v->head] - top);
    for (int64_t t = first; t < last; t++) {
        double weight = exp(score(v, d, t) - top);
        sum += weight;
        if (d == F16_SUMS) sum = kvl_verify_round(KVL_F16, sum);
        add_value(v, d, t, weight, o);
    }
    if (d == STALE_ROW && last > first) add_value(v, d, last - 1, 1e-3 * sum, o);
    /* Only where the slot exists: a page with room left, or a slab. */
    if (d == READS_PAST_END && kv_len % a->kv->page_tokens) add_value(v, d, kv_len, 0.0, o);
    for (int32_t i = 0; i < a->kv->head_dim && sum > 0; i++) o[i] /= sum;
    store(v, d, o, sum > 0 ? top + log(sum) : -INFINITY);
}

static kvl_status run_with(const kvl_attention_args *a, defect d) {
    for (int32_t s = 0; s < a->kv->n_seqs; s++) {
        int64_t q_len = a->q_start[s + 1] - a->q_start[s], kv_len = a->kv->kv_lens[s];
        for (int64_t i = 0; i < q_len; i++) {
            for (int32_t h = 0; h < a->n_q_heads; h++) {
                int32_t n_kv = a->kv->n_kv_heads;
                row_view v = {.args = a, .seq = s, .row = a->q_start[s] + i, .head = h};
                v.kv_head = d == HEAD_MODULO ? h % n_kv : h / (a->n_q_heads / n_kv);
                one_row(&v, d, kv_len - q_len + i, kv_len);
            }
        }
    }
    return KVL_OK;
}

static void supports(const kvl_attention_args *args, kvl_attention_choice *choice) {
    *choice = (kvl_attention_choice){.supported = args->kv->head_dim <= 256, .kernel = "fake"};
    snprintf(choice->reason, sizeof choice->reason, "head_dim up to 256");
}

static uint64_t no_workspace(const kvl_attention_args *args) {
    return 0;
}

#define FAKE(defect) \
    static kvl_status run_##defect(const kvl_attention_args *args) { \
        return run_with(args, defect); \
    }
FAKE(NONE)
FAKE(MASK_OFF_BY_ONE)
FAKE(HEAD_MODULO)
FAKE(F16_SUMS)
FAKE(READS_PAST_END)
FAKE(NAN_OUTPUT)
FAKE(WINDOW_PLUS_ONE)
FAKE(NO_V_SCALE)
FAKE(NO_DYNAMIC_SCALE)
FAKE(SCALE_OF_HEAD_0)
FAKE(SCALE_OF_FIRST_PAGE)
FAKE(SCALE_OF_NEXT_TOKEN)
FAKE(NO_SOFTCAP)
FAKE(NO_SINK)
FAKE(STALE_ROW)
FAKE(LSE_BASE_2)
FAKE(WRITES_PAST_ROW)
FAKE(THREADS_MATTER)
FAKE(INT32_OFFSETS)
FAKE(OWN_STRIDES)

#define MODULE(defect) \
    [defect] = {.name = "fake", \
                .p_dtype = KVL_F32, \
                .acc_dtype = KVL_F32, \
                .supports = supports, \
                .workspace_bytes = no_workspace, \
                .run_cpu = run_##defect}
static const kvl_attention fakes[N_DEFECTS] = {
    MODULE(NONE),
    MODULE(MASK_OFF_BY_ONE),
    MODULE(HEAD_MODULO),
    MODULE(F16_SUMS),
    MODULE(READS_PAST_END),
    MODULE(NAN_OUTPUT),
    MODULE(WINDOW_PLUS_ONE),
    MODULE(NO_V_SCALE),
    MODULE(NO_DYNAMIC_SCALE),
    MODULE(SCALE_OF_HEAD_0),
    MODULE(SCALE_OF_FIRST_PAGE),
    MODULE(SCALE_OF_NEXT_TOKEN),
    MODULE(NO_SOFTCAP),
    MODULE(NO_SINK),
    MODULE(STALE_ROW),
    MODULE(LSE_BASE_2),
    MODULE(WRITES_PAST_ROW),
    MODULE(THREADS_MATTER),
    MODULE(INT32_OFFSETS),
    MODULE(OWN_STRIDES),
};

/* Listed cases that between them touch every defect, small enough for the slow fakes. */
static const char *const listed = "/seed1/flat,/seed7/,/seed13/,/seed17/,/seed18/,/seed19/,"
                                  "/seed23/,/seed24/,/seed26/,/seed27/,/seed32/,/seed48/";

static void run_fake(defect d, kvl_verify_totals *totals) {
    const kvl_attention *modules[] = {&fakes[d]};
    kvl_verify_options options = {.level = KVL_VERIFY_QUICK,
                                  .attention = "fake",
                                  .isa = "scalar",
                                  .filter = listed,
                                  .kv_dtype = "bf16,fp8_e4m3",
                                  .modules = modules,
                                  .n_modules = 1};
    assert_ok(kvl_verify_run(&options, totals));
}

static void right_twin_passes(void **state) {
    kvl_verify_totals totals;
    run_fake(NONE, &totals);
    assert_int_equal(totals.failed, 0);
    assert_int_equal(totals.skipped, 0);
    assert_true(totals.passed >= 14);
}

static void every_defect_fails(void **state) {
    for (int d = NONE + 1; d < N_DEFECTS; d++) {
        kvl_verify_totals totals;
        run_fake((defect)d, &totals);
        if (totals.failed == 0) fail_msg("defect %d passed all %d cases", d, (int)totals.passed);
    }
}

/* ---- ids --------------------------------------------------------------------------------------
 */

static void check_id(void *user, const kvl_verify_result *result) {
    kvl_verify_case c;
    char again[KVL_VERIFY_ID_BYTES];
    ++*(int *)user;
    if (strncmp(result->id, "attn", 4) != 0) return;
    assert_ok(kvl_verify_case_parse(result->id, &c));
    kvl_verify_case_format(&c, again, sizeof again);
    assert_string_equal(again, result->id);
}

static void listed_ids_round_trip(void **state) {
    for (int level = KVL_VERIFY_QUICK; level <= KVL_VERIFY_DEFAULT; level++) {
        int n = 0;
        kvl_verify_options options = {
            .level = (kvl_verify_level)level, .list = true, .on_result = check_id, .user = &n};
        kvl_verify_totals totals;
        assert_ok(kvl_verify_run(&options, &totals));
        assert_int_equal(n, totals.skipped);
        assert_true(n > 300);
    }
}

static void ids_hold_everything(void **state) {
    static const char id[] =
        "attn-chunk/flash/avx2/fp8_e5m2k.int8v.f16q.bf16o/hd80.h14:2/"
        "page17.shuf.shared.far.tok/1q513+7q40x3/full.w33.cap0.5.sinks.scaled17"
        ".scale0.25/seed9/rising";
    kvl_verify_case c;
    char again[KVL_VERIFY_ID_BYTES];
    assert_ok(kvl_verify_case_parse(id, &c));
    assert_int_equal(c.kind, KVL_VERIFY_CHUNK);
    assert_int_equal(c.k_dtype, KVL_FP8_E5M2);
    assert_int_equal(c.v_dtype, KVL_I8);
    assert_int_equal(c.q_dtype, KVL_F16);
    assert_int_equal(c.o_dtype, KVL_BF16);
    assert_int_equal(c.n_seqs, 4);
    assert_int_equal(c.q_lens[3], 7);
    assert_int_equal(c.kv_lens[0], 513);
    assert_int_equal(c.layout.page_tokens, 17);
    assert_true(c.layout.shared && c.layout.far && c.layout.token_major && !c.causal);
    assert_true(c.softcap == 0.5f && c.scale == 0.25f && c.sinks && c.scaled &&
                c.scale_tokens == 17);
    kvl_verify_case_format(&c, again, sizeof again);
    assert_string_equal(again, id);
}

static void malformed_ids_are_refused(void **state) {
    static const char *const bad[][2] = {
        {"attn", "must be kind/kernel"},
        {"atn/f/avx2/f32kv.f32q/hd64.h1:1/contig/1q1/causal/seed1/normal", "did you mean 'attn'"},
        {"attn/f/avx3/f32kv.f32q/hd64.h1:1/contig/1q1/causal/seed1/normal", "'avx2'"},
        {"attn/f/avx2/f33kv.f32q/hd64.h1:1/contig/1q1/causal/seed1/normal", "f33"},
        {"attn/f/avx2/f32kv.u8q/hd64.h1:1/contig/1q1/causal/seed1/normal", "cannot be u8"},
        {"attn/f/avx2/f32kv.f32q/hd64.h3:2/contig/1q1/causal/seed1/normal", "heads 'hd64.h3:2'"},
        {"attn/f/avx2/f32kv.f32q/hd0.h1:1/contig/1q1/causal/seed1/normal", "heads"},
        {"attn/f/avx2/f32kv.f32q/hd64.h1:1/page0/1q1/causal/seed1/normal", "layout 'page0'"},
        {"attn/f/avx2/f32kv.f32q/hd64.h1:1/contig.shared/1q1/causal/seed1/normal", "layout"},
        {"attn/f/avx2/f32kv.f32q/hd64.h1:1/contig/1q1+/causal/seed1/normal", "lengths '1q1+'"},
        {"attn/f/avx2/f32kv.f32q/hd64.h1:1/contig/1q1x99/causal/seed1/normal", "lengths"},
        {"attn/f/avx2/f32kv.f32q/hd64.h1:1/contig/1q1/causal.w0/seed1/normal", "mask"},
        {"attn/f/avx2/f32kv.f32q/hd64.h1:1/contig/1q1/causal.w1.w1/seed1/normal", "mask"},
        {"attn/f/avx2/f32kv.f32q/hd64.h1:1/contig/1q1/causal/seed/normal", "seed"},
        {"attn/f/avx2/f32kv.f32q/hd64.h1:1/contig/1q1/causal/seed1/norma", "'normal'"},
    };
    kvl_verify_case c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_refused(kvl_verify_case_parse(bad[i][0], &c), KVL_ERR_INPUT, bad[i][1]);
}

static void keep_result(void *user, const kvl_verify_result *result) {
    *(kvl_verify_result *)user = *result;
}

/* The id alone gives the same numbers again, listed or not. */
static void a_case_reproduces(void **state) {
    kvl_verify_result first, second;
    kvl_verify_totals totals;
    kvl_verify_options options = {
        .case_id =
            "attn/flash/scalar/f16kv.bf16q/hd48.h6:2/page7.shuf/3q41/causal.w9/seed77/normal",
        .on_result = keep_result,
        .user = &first};
    assert_ok(kvl_verify_run(&options, &totals));
    assert_int_equal(totals.passed, 1);
    options.case_id = first.id;
    options.user = &second;
    assert_ok(kvl_verify_run(&options, &totals));
    assert_string_equal(first.id, second.id);
    assert_true(first.max_abs == second.max_abs && first.bound == second.bound);
    assert_true(first.max_abs > 0 && first.bound > 0 && first.format_error > 0);
}

/* ---- the parts --------------------------------------------------------------------------------
 */

static void codec_values(void **state) {
    assert_true(kvl_verify_value(KVL_FP8_E4M3, 0x7e) == 448);
    assert_true(kvl_verify_value(KVL_FP8_E4M3, 0x01) == 0x1p-9);
    assert_true(isnan(kvl_verify_value(KVL_FP8_E4M3, 0xff)));
    assert_true(kvl_verify_value(KVL_FP8_E5M2, 0x7b) == 57344);
    assert_true(kvl_verify_value(KVL_FP8_E5M2, 0xfc) == -INFINITY);
    assert_true(kvl_verify_value(KVL_F16, 0x7bff) == 65504);
    assert_true(kvl_verify_value(KVL_F16, 0x8001) == -0x1p-24);
    assert_true(kvl_verify_value(KVL_BF16, 0x3f80) == 1);
    assert_int_equal(kvl_verify_code(KVL_FP8_E4M3, 1e9), 0x7e);
    assert_int_equal(kvl_verify_code(KVL_FP8_E5M2, -INFINITY), 0xfb);
    assert_int_equal(kvl_verify_code(KVL_F16, 65519.9), 0x7bff);
    assert_int_equal(kvl_verify_code(KVL_F16, 65520), 0x7c00);
    /* Ties go to even: 2049 -> 2048, 2051 -> 2052. */
    assert_true(kvl_verify_round(KVL_F16, 2049) == 2048);
    assert_true(kvl_verify_round(KVL_F16, 2051) == 2052);
    assert_int_equal(kvl_verify_code(KVL_F16, 0x1p-25), 0);
    assert_int_equal(kvl_verify_code(KVL_F16, 0x1.8p-24), 2);
}

static void cover_has_every_pair(void **state) {
    static const int sizes[] = {7, 3, 1, 5, 2, 4};
    kvl_cover cover;
    assert_ok(kvl_cover_make(sizes, 6, 1, &cover));
    for (int a = 0; a < 6; a++) {
        for (int b = a + 1; b < 6; b++) {
            bool seen[7][7] = {{false}};
            for (int64_t r = 0; r < cover.n_rows; r++)
                seen[cover.rows[r * 6 + a]][cover.rows[r * 6 + b]] = true;
            for (int x = 0; x < sizes[a]; x++)
                for (int y = 0; y < sizes[b]; y++) assert_true(seen[x][y]);
        }
    }
    assert_true(cover.n_rows >= 35 && cover.n_rows < 60);
    free(cover.rows);
}

static kvl_status configured(const char *kernel, int32_t n_q_heads, int32_t n_kv_heads,
                             int32_t head_dim, int64_t page_tokens, kvl_verify_result *out) {
    kvl_verify_case c = {.k_dtype = KVL_BF16,
                         .v_dtype = KVL_BF16,
                         .q_dtype = KVL_BF16,
                         .n_q_heads = n_q_heads,
                         .n_kv_heads = n_kv_heads,
                         .head_dim = head_dim,
                         .layout = {.page_tokens = page_tokens, .token_major = !page_tokens}};
    snprintf(c.kernel, sizeof c.kernel, "%s", kernel);
    return kvl_verify_attention_config(&c, out);
}

static void every_module_verifies_a_configuration(void **state) {
    for (size_t i = 0; i < kvl_attention_count(); i++) {
        kvl_verify_result result;
        assert_ok(configured(kvl_attention_at(i)->name, 9, 3, 64, 16, &result));
        if (result.state != KVL_VERIFY_PASS) fail_msg("%s: %s", result.id, result.reason);
    }
    kvl_verify_result result;
    /* What is checked is the order asked for. */
    assert_ok(configured("flash", 9, 3, 64, 0, &result));
    assert_int_equal(result.state, KVL_VERIFY_PASS);
    assert_non_null(strstr(result.id, "/contig.shuf.tok/"));
    assert_ok(configured("flash", 1, 1, 320, 0, &result));
    assert_int_equal(result.state, KVL_VERIFY_SKIP);
    assert_true(strstr(result.reason, "320") != NULL);
    assert_ok(configured("flash", 9, 3, 64, 1000000, &result));
    assert_int_equal(result.state, KVL_VERIFY_PASS);
    assert_true(strstr(result.id, "page512") != NULL && result.ms < 2000);
    assert_refused(configured("flahs", 1, 1, 64, 0, &result), KVL_ERR_INPUT, "flash");
    assert_refused(configured("flash", 3, 2, 64, 0, &result), KVL_ERR_INPUT, "3:2");
}

/* ---- the command ------------------------------------------------------------------------------
 */

/* Exit code of `kvlab verify ARGS...`, with its output thrown away. */
static int command(const char *a, const char *b, const char *c, const char *d) {
    const char *words[] = {"verify", a, b, c, d, NULL};
    char *argv[6] = {0};
    int argc = 0;
    for (; argc < 5 && words[argc]; argc++) argv[argc] = (char *)(uintptr_t)words[argc];
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_non_null(freopen("/dev/null", "w", stdout));
    int code = kvl_command_verify.run(&kvl_command_verify, argc, argv);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    return code;
}

static void exit_codes(void **state) {
    assert_int_equal(command("--filter", "kv/fp8_e4m3/codes", "--json", NULL), KVL_EXIT_OK);
    assert_int_equal(command("--case", "nothing*", NULL, NULL), KVL_EXIT_NOTHING);
    assert_int_equal(command("--filter", "zzz", NULL, NULL), KVL_EXIT_NOTHING);
    assert_int_equal(command("--case", "nothing", NULL, NULL), KVL_EXIT_INPUT);
    assert_int_equal(command("--attention", "flahs", NULL, NULL), KVL_EXIT_INPUT);
    assert_int_equal(command("--kv-dtype", "fp7", NULL, NULL), KVL_EXIT_INPUT);
    assert_int_equal(command("--isa", "avx3", NULL, NULL), KVL_EXIT_INPUT);
    assert_int_equal(command("--device", "cpux", NULL, NULL), KVL_EXIT_INPUT);
    assert_int_equal(command("--level", "quik", NULL, NULL), KVL_EXIT_INPUT);
    assert_int_equal(command("--golden", "/nowhere", NULL, NULL), KVL_EXIT_INPUT);
    assert_int_equal(command("--list", "--filter", "kv/", NULL), KVL_EXIT_OK);
    static const char one[] =
        "attn/flash/scalar/f16kv.bf16q/hd48.h6:2/page7.shuf/3q41/causal.w9/seed77/normal";
    static const char *const others[][2] = {
        {"--isa", "avx2"}, {"--kv-dtype", "f32"}, {"--attention", "sdpa"}, {"--filter", "zzz"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(command("--case", one, others[i][0], others[i][1]), KVL_EXIT_NOTHING);
    assert_int_equal(command("--case", one, "--isa", "scalar"), KVL_EXIT_OK);
    assert_int_equal(command("--golden", "/tmp", "--model", "/nowhere"), KVL_EXIT_INPUT);
}

/* ---- golden folders ---------------------------------------------------------------------------
 */

static void write_text(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void remove_file(const char *dir, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static const char one_case[] =
    "[{\"id\": \"a\", \"q_lens\": [1], \"kv_lens\": [2], \"n_q_heads\": 1, \"n_kv_heads\": 1,"
    " \"head_dim\": 2, \"scale\": 1.0, \"causal\": true, \"window\": 0, \"softcap\": 0.0,"
    " \"sinks\": false, \"kv_scaled\": false, \"kv_dtype\": \"float32\","
    " \"q_dtype\": \"float32\"}]";

/* Q = 0: O is the mean of both V rows, (2, 3), LSE = ln 2. */
static void write_case(const char *dir, float o0) {
    float q[2] = {0, 0}, k[4] = {1, 2, 3, 4}, v[4] = {1, 2, 3, 4}, o[2] = {o0, 3};
    double lse[1] = {log(2)};
    kvl_st_tensor tensors[] = {
        {.name = "a.q", .dtype = KVL_F32, .n_dims = 3, .dims = {1, 1, 2}, .data = q, .bytes = 8},
        {.name = "a.k", .dtype = KVL_F32, .n_dims = 3, .dims = {2, 1, 2}, .data = k, .bytes = 16},
        {.name = "a.v", .dtype = KVL_F32, .n_dims = 3, .dims = {2, 1, 2}, .data = v, .bytes = 16},
        {.name = "a.o", .dtype = KVL_F32, .n_dims = 3, .dims = {1, 1, 2}, .data = o, .bytes = 8},
        {.name = "a.lse", .dtype = KVL_F64, .n_dims = 2, .dims = {1, 1}, .data = lse, .bytes = 8}};
    char path[512];
    for (int i = 0; i < 5; i++)
        tensors[i].n_elems = (int64_t)(tensors[i].bytes / kvl_dtype_bytes(tensors[i].dtype));
    snprintf(path, sizeof path, "%s/attention.safetensors", dir);
    assert_ok(kvl_st_write(path, tensors, 5));
}

static void golden_folders(void **state) {
    char dir[] = "/tmp/kvlab_golden_XXXXXX";
    assert_non_null(mkdtemp(dir));
    assert_int_equal(command("--golden", dir, NULL, NULL), KVL_EXIT_NOTHING);
    write_text(dir, "attention.json", one_case);
    assert_int_equal(command("--golden", dir, NULL, NULL), KVL_EXIT_INPUT); /* no tensors */
    write_case(dir, 2);
    assert_int_equal(command("--golden", dir, NULL, NULL), KVL_EXIT_OK);
    write_case(dir, 2.0002f); /* a golden that says otherwise fails every kernel */
    assert_int_equal(command("--golden", dir, NULL, NULL), KVL_EXIT_NEGATIVE);
    write_text(dir, "attention.json", "[{\"id\": \"a\"}]");
    assert_int_equal(command("--golden", dir, NULL, NULL), KVL_EXIT_INPUT);
    write_text(dir, "attention.json", "[{\"id\": \"a\", ");
    assert_int_equal(command("--golden", dir, NULL, NULL), KVL_EXIT_INPUT);
    remove_file(dir, "attention.json");
    remove_file(dir, "attention.safetensors");
    write_text(dir, "fp8.safetensors", "not a file of tensors");
    assert_int_equal(command("--golden", dir, NULL, NULL), KVL_EXIT_INPUT);
    remove_file(dir, "fp8.safetensors");
    rmdir(dir);
}

/* A copy of the golden `llama` of which one tensor is changed by `change`. */
typedef void (*tensor_change)(kvl_st_tensor *tensors, size_t *n);

static kvl_st_tensor *named(kvl_st_tensor *tensors, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* A NaN as the first element, then numbers. */
static void put_nan(kvl_st_tensor *t) {
    static float copy[40 * 384];
    assert_true(t->bytes <= sizeof copy);
    memcpy(copy, t->data, t->bytes);
    copy[0] = NAN;
    t->data = copy;
}

static void nan_logits(kvl_st_tensor *tensors, size_t *n) {
    put_nan(named(tensors, *n, "p1.logits"));
}
static void nan_margin(kvl_st_tensor *tensors, size_t *n) {
    put_nan(named(tensors, *n, "p1.greedy_margin"));
}
static void no_ids(kvl_st_tensor *tensors, size_t *n) {
    *named(tensors, *n, "p2.ids") = tensors[*n - 1];
    --*n;
}
static void no_margin(kvl_st_tensor *tensors, size_t *n) {
    *named(tensors, *n, "p0.greedy_margin") = tensors[*n - 1];
    --*n;
}
static void turned_logits(kvl_st_tensor *tensors, size_t *n) {
    kvl_st_tensor *t = named(tensors, *n, "p1.logits");
    t->dims[0] = 384, t->dims[1] = 7;
}
static void no_change(kvl_st_tensor *tensors, size_t *n) {
}

static kvl_status changed_llama(const char *dir, tensor_change change, kvl_verify_totals *totals) {
    char path[600];
    kvl_safetensors *st;
    kvl_st_tensor tensors[16];
    kvl_verify_options options = {.attention = "reference", .filter = "/contiguous.reference/"};
    assert_ok(kvl_st_open(KVL_SOURCE_DIR "/tests/golden/models/llama/golden.safetensors", &st));
    size_t n = kvl_st_count(st);
    assert_true(n <= 16);
    for (size_t i = 0; i < n; i++) tensors[i] = *kvl_st_at(st, i);
    change(tensors, &n);
    snprintf(path, sizeof path, "%s/models/llama/golden.safetensors", dir);
    assert_ok(kvl_st_write(path, tensors, n));
    kvl_st_close(st);
    return kvl_verify_golden(dir, &options, totals);
}

static void golden_models(void **state) {
    static const struct {
        tensor_change change;
        const char *tensor;
    } refused[] = {{no_ids, "'p2.ids'"},
                   {no_margin, "'p0.greedy_margin'"},
                   {nan_margin, "'p1.greedy_margin'"},
                   {turned_logits, "'p1.logits'"}};
    char root[] = "/tmp/kvlab_golden_XXXXXX", line[1200];
    kvl_verify_totals totals;
    assert_non_null(mkdtemp(root));
    snprintf(line, sizeof line, "mkdir %s/models && cp -r %s %s/models/llama", root,
             KVL_SOURCE_DIR "/tests/golden/models/llama", root);
    assert_int_equal(system(line), 0);
    assert_ok(changed_llama(root, no_change, &totals));
    assert_int_equal(totals.failed, 0);
    assert_int_equal(totals.passed, 6);
    assert_ok(changed_llama(root, nan_logits, &totals));
    assert_int_equal(totals.failed, 1);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_refused(changed_llama(root, refused[i].change, &totals), KVL_ERR_INPUT,
                       refused[i].tensor);
    snprintf(line, sizeof line, "rm -r %s", root);
    assert_int_equal(system(line), 0);
}

static void golden_formats(void **state) {
    kvl_verify_options options = {.filter = "golden/fp8,golden/gguf_blocks,golden/nf4/"};
    kvl_verify_totals totals;
    assert_ok(kvl_verify_golden(KVL_SOURCE_DIR "/tests/golden", &options, &totals));
    assert_int_equal(totals.failed, 0);
    assert_int_equal(totals.passed, 44);
    assert_int_equal(totals.skipped, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codec_values),
        cmocka_unit_test(cover_has_every_pair),
        cmocka_unit_test(ids_hold_everything),
        cmocka_unit_test(malformed_ids_are_refused),
        cmocka_unit_test(listed_ids_round_trip),
        cmocka_unit_test(right_twin_passes),
        cmocka_unit_test(every_defect_fails),
        cmocka_unit_test(a_case_reproduces),
        cmocka_unit_test(every_module_verifies_a_configuration),
        cmocka_unit_test(exit_codes),
        cmocka_unit_test(golden_folders),
        cmocka_unit_test(golden_formats),
        cmocka_unit_test(golden_models),
    };
    if (kvl_isa_init() != KVL_OK || kvl_threads_set(0, 0) != KVL_OK) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
