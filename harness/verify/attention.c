#include "harness/verify/attention.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/threads.h"
#include "harness/verify/codec.h"

/* All that the checks of one case share. */
typedef struct bench {
    const kvl_attention *module;
    const kvl_verify_case *c;
    kvl_verify_problem *p;
    kvl_verify_cache cache;
    kvl_verify_truth truth;
    kvl_verify_output base, other;
    kvl_verify_result *result;
} bench;

/* A call that did not succeed: unsupported and out of memory are skips, anything else fails. */
static void not_ok(kvl_verify_result *result, kvl_status status, const char *what) {
    if (status == KVL_ERR_UNSUPPORTED || status == KVL_ERR_OOM)
        kvl_verify_skipped(result, kvl_message());
    else
        kvl_verify_failed(result, "%s%s", what, kvl_message());
}

/* ---- exact properties -------------------------------------------------------------------------
 */

/* Rows of b->other that differ from b->base in any bit fail the case. */
static void same_bits(bench *b, int64_t row_first, int64_t n_rows, const char *what) {
    size_t row = (size_t)b->p->head_dim * kvl_dtype_bytes(b->base.o_dtype);
    for (int64_t r = row_first; r < row_first + n_rows; r++) {
        const uint8_t *x = (const uint8_t *)b->base.o + (size_t)r * row;
        const uint8_t *y = (const uint8_t *)b->other.o + (size_t)r * row;
        if (memcmp(x, y, row) == 0 &&
            memcmp(&b->base.lse[r], &b->other.lse[r], sizeof *b->base.lse) == 0)
            continue;
        int64_t d = 0, bytes = (int64_t)kvl_dtype_bytes(b->base.o_dtype);
        while (d + 1 < b->p->head_dim && memcmp(x + d * bytes, y + d * bytes, (size_t)bytes) == 0)
            d++;
        kvl_verify_failed(b->result, "%s: token %lld head %lld: bits differ: %.9g and %.9g", what,
                          (long long)(r / b->p->n_q_heads), (long long)(r % b->p->n_q_heads),
                          kvl_verify_value_at(b->base.o_dtype, x, d),
                          kvl_verify_value_at(b->base.o_dtype, y, d));
        return;
    }
}

static bool call_again(bench *b, const kvl_verify_cache *cache, const kvl_verify_part *part,
                       int32_t n_threads, const char *what) {
    kvl_status status = kvl_verify_call(b->module, b->p, cache, part, n_threads, &b->other);
    if (status == KVL_OK) return true;
    kvl_verify_failed(b->result, "%s: %s", what, kvl_message());
    return false;
}

static void check_threads(bench *b) {
    static const int32_t counts[] = {1, 2, 3, 8};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char what[32];
        snprintf(what, sizeof what, "%d threads", counts[i]);
        if (!call_again(b, &b->cache, NULL, counts[i], what)) return;
        same_bits(b, 0, b->truth.n_rows, what);
    }
}

static void check_batch(bench *b) {
    for (int32_t s = 0; s < b->p->n_seqs; s++) {
        int32_t q_start[2] = {0, b->p->q_start[s + 1] - b->p->q_start[s]};
        kvl_verify_part part = {.seq_first = s,
                                .n_seqs = 1,
                                .q_start = q_start,
                                .kv_lens = &b->p->kv_lens[s],
                                .token_first = b->p->q_start[s]};
        char what[48];
        snprintf(what, sizeof what, "sequence %d alone", s);
        if (!call_again(b, &b->cache, &part, kvl_threads(), what)) return;
        same_bits(b, part.token_first * b->p->n_q_heads, (int64_t)q_start[1] * b->p->n_q_heads,
                  what);
    }
}

static void check_chunk(bench *b) {
    static const int32_t sizes[] = {1, 7, 64};
    if (!b->c->causal) {
        kvl_verify_skipped(
            b->result, "attn-chunk needs a causal mask: later keys of a chunk are not yet there");
        return;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char what[32];
        snprintf(what, sizeof what, "chunks of %d", sizes[i]);
        for (int32_t s = 0; s < b->p->n_seqs; s++) {
            int32_t q_len = b->p->q_start[s + 1] - b->p->q_start[s];
            for (int32_t from = 0; from < q_len; from += sizes[i]) {
                int32_t n = q_len - from < sizes[i] ? q_len - from : sizes[i];
                /* Below 0 (more queries than keys) no key is seen, with or without this. */
                int32_t kv_len = b->p->kv_lens[s] - q_len + from + n;
                int32_t q_start[2] = {0, n}, kv_lens[1] = {kv_len > 0 ? kv_len : 0};
                kvl_verify_part part = {.seq_first = s,
                                        .n_seqs = 1,
                                        .q_start = q_start,
                                        .kv_lens = kv_lens,
                                        .token_first = b->p->q_start[s] + from};
                if (!call_again(b, &b->cache, &part, kvl_threads(), what)) return;
            }
        }
        same_bits(b, 0, b->truth.n_rows, what);
    }
}

static void check_paged(bench *b) {
    static const struct {
        int64_t page_tokens;
        bool token_major;
        const char *what;
    } all[] = {{0, false, "contiguous"},    {0, true, "contiguous, token by token"},
               {1, false, "pages of 1"},    {15, false, "pages of 15"},
               {16, false, "pages of 16"},  {16, true, "pages of 16, token by token"},
               {17, false, "pages of 17"},  {64, false, "pages of 64"},
               {256, false, "pages of 256"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        /* Scales of several tokens are other ones in pages that cut them elsewhere. */
        if (b->c->scale_tokens > 1 && all[i].page_tokens % b->c->scale_tokens) continue;
        kvl_verify_layout layout = {
            .page_tokens = all[i].page_tokens, .shuffled = true, .token_major = all[i].token_major};
        kvl_verify_cache cache;
        const char *what = all[i].what;
        if (kvl_verify_cache_create(b->p, &layout, b->c->seed + i, &cache) != KVL_OK) {
            kvl_verify_failed(b->result, "%s: %s", what, kvl_message());
            return;
        }
        bool ran = call_again(b, &cache, NULL, kvl_threads(), what);
        kvl_verify_cache_free(&cache);
        if (!ran) return;
        same_bits(b, 0, b->truth.n_rows, what);
    }
}

/* Folds the part just computed (in b->other) into b->base. */
static void merge_rows(bench *b) {
    float *into = b->base.o, *from = b->other.o;
    for (int64_t r = 0; r < b->truth.n_rows; r++)
        kvl_attention_merge(into + r * b->p->head_dim, &b->base.lse[r], from + r * b->p->head_dim,
                            b->other.lse[r], b->p->head_dim);
}

/* Every sequence's keys in n_parts disjoint runs; one of three is empty for some lengths. */
static bool merge_parts(bench *b, int32_t n_parts) {
    for (int64_t r = 0; r < b->truth.n_rows; r++) b->base.lse[r] = -INFINITY;
    memset(b->base.o, 0, (size_t)(b->truth.n_rows * b->p->head_dim) * sizeof(float));
    for (int32_t i = 0; i < n_parts; i++) {
        for (int32_t s = 0; s < b->p->n_seqs; s++) {
            int64_t kv = b->p->kv_lens[s], first = kv * i / n_parts;
            int32_t q_start[2] = {0, b->p->q_start[s + 1] - b->p->q_start[s]};
            int32_t kv_lens[1] = {(int32_t)(kv * (i + 1) / n_parts - first)};
            kvl_verify_part part = {.seq_first = s,
                                    .n_seqs = 1,
                                    .q_start = q_start,
                                    .kv_lens = kv_lens,
                                    .token_first = b->p->q_start[s],
                                    .key_first = first,
                                    .no_sinks = i > 0};
            if (!call_again(b, &b->cache, &part, kvl_threads(), "part of the keys")) return false;
        }
        merge_rows(b);
    }
    return true;
}

static void check_merge(bench *b) {
    static const int32_t counts[] = {2, 3};
    const kvl_verify_case *c = b->c;
    if (c->layout.page_tokens || c->causal || c->window || c->o_dtype != KVL_F32) {
        kvl_verify_skipped(b->result, "attn-merge needs contig, full, no window and an f32 output");
        return;
    }
    for (size_t i = 0; i < 2 && b->result->state == KVL_VERIFY_PASS; i++) {
        if (!merge_parts(b, counts[i])) return;
        kvl_verify_gate(b->p, &b->truth, &b->base, false, b->result);
    }
}

/* A score ahead of all others by 120 leaves exp(-120) < 2^-149 to them in float32, so that P is
 * exactly 1 and O exactly the row. */
static void check_onehot(bench *b) {
    const kvl_verify_problem *p = b->p;
    int32_t group = p->n_q_heads / p->n_kv_heads, s = 0;
    for (int64_t r = 0; r < b->truth.n_rows; r++) {
        const kvl_verify_row *row = &b->truth.rows[r];
        while (r / p->n_q_heads >= p->q_start[s + 1]) s++;
        if (row->best < 0 || !(row->margin > 120)) continue;
        int64_t kv_head = r % p->n_q_heads / group;
        const double *v =
            p->v + ((p->kv_start[s] + row->best) * p->n_kv_heads + kv_head) * p->head_dim;
        for (int32_t d = 0; d < p->head_dim; d++) {
            double got = kvl_verify_value_at(b->base.o_dtype, b->base.o, r * p->head_dim + d);
            double want = kvl_verify_round(b->base.o_dtype, (double)(float)v[d]);
            if (got == want) continue;
            kvl_verify_failed(b->result,
                              "token %lld head %lld: one key has the whole softmax, O[%d] is %.9g, "
                              "its V %.9g",
                              (long long)(r / p->n_q_heads), (long long)(r % p->n_q_heads), d, got,
                              want);
            return;
        }
    }
}

/* ---- one case ---------------------------------------------------------------------------------
 */

static void check_property(bench *b) {
    static void (*const checks[KVL_VERIFY_N_KINDS])(bench *) = {
        [KVL_VERIFY_THREADS] = check_threads, [KVL_VERIFY_BATCH] = check_batch,
        [KVL_VERIFY_CHUNK] = check_chunk,     [KVL_VERIFY_PAGED] = check_paged,
        [KVL_VERIFY_MERGE] = check_merge,
    };
    if (b->c->pattern == KVL_PATTERN_ONEHOT && b->c->softcap == 0) check_onehot(b);
    if (checks[b->c->kind] && b->result->state == KVL_VERIFY_PASS) checks[b->c->kind](b);
}

static void compare(const kvl_attention *module, const kvl_verify_problem *p,
                    const kvl_verify_cache *cache, bool flat_bound, kvl_verify_truth *truth,
                    kvl_verify_output *output, kvl_verify_result *result) {
    kvl_isa isa;
    kvl_status status = kvl_verify_supports(module, p, cache, output->o_dtype, result->kernel,
                                            sizeof result->kernel, &isa);
    if (status == KVL_OK) status = kvl_verify_call(module, p, cache, NULL, kvl_threads(), output);
    if (status == KVL_OK) status = kvl_verify_naive(p, module->p_dtype, output->o_dtype, truth);
    if (status != KVL_OK) {
        not_ok(result, status, "");
        return;
    }
    kvl_verify_gate(p, truth, output, flat_bound, result);
}

static void run_case(bench *b) {
    kvl_status status = kvl_verify_problem_make(b->c, &b->p);
    if (status == KVL_OK)
        status = kvl_verify_cache_create(b->p, &b->c->layout, b->c->seed, &b->cache);
    if (status == KVL_OK) status = kvl_verify_output_create(b->p, b->c->o_dtype, &b->base);
    if (status == KVL_OK) status = kvl_verify_output_create(b->p, b->c->o_dtype, &b->other);
    if (status == KVL_OK) status = kvl_verify_truth_create(b->p, &b->truth);
    if (status != KVL_OK) {
        not_ok(b->result, status, "");
        return;
    }
    compare(b->module, b->p, &b->cache, false, &b->truth, &b->base, b->result);
    if (b->result->state == KVL_VERIFY_PASS) check_property(b);
}

void kvl_verify_attention_case(const kvl_attention *module, const kvl_verify_case *c,
                               kvl_verify_result *result) {
    uint64_t start_ns = kvl_now_ns();
    kvl_verify_result_clear(result, "");
    kvl_verify_case_format(c, result->id, sizeof result->id);
    kvl_isa before = kvl_isa_current();
    if (kvl_isa_force(c->isa) != KVL_OK) {
        kvl_verify_skipped(result, kvl_message());
        return;
    }
    bench b = {.module = module, .c = c, .result = result};
    run_case(&b);
    kvl_verify_output_free(&b.base);
    kvl_verify_output_free(&b.other);
    kvl_verify_truth_free(&b.truth);
    kvl_verify_cache_free(&b.cache);
    kvl_verify_problem_free(b.p);
    kvl_isa_force(before);
    result->ms = (double)(kvl_now_ns() - start_ns) / 1e6;
}

void kvl_verify_attention_problem(const kvl_attention *module, const kvl_verify_problem *p,
                                  const kvl_verify_layout *layout, uint64_t seed, kvl_dtype o_dtype,
                                  bool flat_bound, kvl_verify_truth *truth,
                                  kvl_verify_result *result) {
    kvl_verify_cache cache = {0};
    kvl_verify_output output = {0};
    kvl_status status = kvl_verify_cache_create(p, layout, seed, &cache);
    if (status == KVL_OK) status = kvl_verify_output_create(p, o_dtype, &output);
    if (status == KVL_OK)
        compare(module, p, &cache, flat_bound, truth, &output, result);
    else
        not_ok(result, status, "");
    kvl_verify_output_free(&output);
    kvl_verify_cache_free(&cache);
}

/* Instruction set that `module` really uses when `isa` is the current one, judged on a small
 * decode case in bf16, for which every set has a variant if for anything. */
static kvl_isa effective_isa(const kvl_attention *module, kvl_isa isa) {
    kvl_verify_case c = {.isa = isa,
                         .head_dim = 64,
                         .n_q_heads = 2,
                         .n_kv_heads = 1,
                         .n_seqs = 1,
                         .q_lens = {1},
                         .kv_lens = {17},
                         .causal = true,
                         .k_dtype = KVL_BF16,
                         .v_dtype = KVL_BF16,
                         .q_dtype = KVL_BF16};
    kvl_isa before = kvl_isa_current(), effective = KVL_ISA_SCALAR;
    kvl_verify_problem *p = NULL;
    kvl_verify_cache cache = {0};
    char kernel[64];
    if (kvl_isa_force(isa) == KVL_OK && kvl_verify_problem_make(&c, &p) == KVL_OK &&
        kvl_verify_cache_create(p, &c.layout, 0, &cache) == KVL_OK)
        kvl_verify_supports(module, p, &cache, KVL_F32, kernel, sizeof kernel, &effective);
    kvl_verify_cache_free(&cache);
    kvl_verify_problem_free(p);
    kvl_isa_force(before);
    return effective;
}

int kvl_verify_engines(const kvl_verify_scope *scope,
                       kvl_verify_engine engines[KVL_VERIFY_MAX_ENGINES]) {
    int n = 0;
    for (size_t m = 0; m < scope->n_modules; m++) {
        for (size_t i = 0; i < scope->n_isas; i++) {
            bool lower_in_scope = false;
            if (!kvl_isa_has(scope->isas[i])) continue;
            kvl_isa effective = effective_isa(scope->modules[m], scope->isas[i]);
            for (size_t j = 0; j < scope->n_isas; j++)
                lower_in_scope = lower_in_scope || scope->isas[j] == effective;
            if (effective == scope->isas[i] || !lower_in_scope)
                engines[n++] = (kvl_verify_engine){scope->modules[m], scope->isas[i]};
        }
    }
    return n;
}
