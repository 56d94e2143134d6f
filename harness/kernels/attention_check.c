/* Verify's oracle and gates, on rows of the call that is about to be timed. A unit is one query
 * token of one KV head: the query heads of its group against that head's keys, taken out of the
 * cache bit for bit. */
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "harness/kernels/attention.h"
#include "harness/verify/family.h"
#include "harness/verify/oracle.h"

/* K and V values that are decoded to float64 in all: a fraction of a second. */
static const double VALUES = 1.5e7;
enum { STREAM_SAMPLE = 100, MAX_UNITS = 4096 };

typedef struct unit {
    int32_t seq, kv_head;
    int64_t token; /* of all query tokens */
} unit;

/* Keys 0 .. *n_keys of the unit's sequence, for one query that stands at the last of them, and a
 * window that lets it see what it sees in the call. */
static void keys_of(const kvl_attention_inputs *in, const unit *u, int64_t *n_keys,
                    int32_t *window) {
    int64_t kv_len = in->kv_lens[u->seq];
    int64_t position = kv_len - in->q_start[u->seq + 1] + u->token, first, last;
    kvl_attention_range(position, kv_len, in->setup->causal, in->setup->window, &first, &last);
    *n_keys = last;
    *window = first > 0 ? (int32_t)(last - first) : 0;
}

static void copy_codes(const kvl_attention_inputs *in, const unit *u, kvl_verify_problem *p) {
    const kvl_kv_view *view = &in->view;
    const size_t k_bytes = kvl_dtype_bytes(p->k_dtype), v_bytes = kvl_dtype_bytes(p->v_dtype);
    const size_t dim = (size_t)p->head_dim;
    size_t q_element = kvl_dtype_bytes(p->q_dtype);
    int64_t first = (u->token * in->setup->heads.n_q + u->kv_head * p->n_q_heads) * p->head_dim;
    memcpy(p->q_codes, (const uint8_t *)in->q + (size_t)first * q_element,
           (size_t)p->n_q_heads * (size_t)p->head_dim * q_element);
    for (int64_t t = 0; t < p->kv_lens[0]; t++) {
        size_t from = (size_t)kvl_kv_offset(view, u->seq, t, u->kv_head), to = (size_t)t * dim;
        memcpy(p->k_codes + to * k_bytes, (const uint8_t *)view->k_pool + from * k_bytes,
               dim * k_bytes);
        memcpy(p->v_codes + to * v_bytes, (const uint8_t *)view->v_pool + from * v_bytes,
               dim * v_bytes);
        if (!p->scale_tokens) continue;
        p->k_scale[t] = kvl_kv_k_scale(view, u->seq, t, u->kv_head);
        p->v_scale[t] = kvl_kv_v_scale(view, u->seq, t, u->kv_head);
    }
}

/* Keeps in *worst the unit that comes nearest to its bound, or failed. */
static void fold(const kvl_verify_result *one, kvl_verify_result *worst) {
    int64_t n_rows = worst->n_rows + one->n_rows;
    bool nearer = worst->max_abs < 0 || one->max_abs * worst->bound > worst->max_abs * one->bound;
    if (worst->state == KVL_VERIFY_PASS && (one->state == KVL_VERIFY_FAIL || nearer)) *worst = *one;
    worst->n_rows = n_rows;
}

static kvl_status compare(const kvl_attention_inputs *in, const unit *u, kvl_dtype p_dtype,
                          kvl_verify_problem *p, kvl_verify_result *worst) {
    const kvl_attention_setup *s = in->setup;
    kvl_verify_truth truth;
    kvl_verify_result one;
    kvl_verify_result_clear(&one, "");
    copy_codes(in, u, p);
    kvl_verify_problem_decode(p);
    KVL_TRY(kvl_verify_truth_create(p, &truth));
    int64_t row = u->token * s->heads.n_q + u->kv_head * p->n_q_heads;
    kvl_verify_output output = {.o_dtype = in->args.o_dtype,
                                .o = (uint8_t *)in->o + (size_t)(row * s->head_dim) *
                                                            kvl_dtype_bytes(in->args.o_dtype),
                                .lse = in->args.lse + row};
    kvl_status status = kvl_verify_naive(p, p_dtype, in->args.o_dtype, &truth);
    if (status == KVL_OK) {
        kvl_verify_gate(p, &truth, &output, false, &one);
        if (one.state == KVL_VERIFY_FAIL) {
            char reason[sizeof one.reason];
            memcpy(reason, one.reason, sizeof reason);
            snprintf(one.reason, sizeof one.reason, "query token %lld, KV head %d: %.200s",
                     (long long)u->token, u->kv_head, reason);
        }
        fold(&one, worst);
    }
    kvl_verify_truth_free(&truth);
    return status;
}

static kvl_status check_unit(const kvl_attention_inputs *in, const unit *u, kvl_dtype p_dtype,
                             kvl_verify_result *worst) {
    const kvl_attention_setup *s = in->setup;
    kvl_verify_problem *p = NULL;
    int64_t n_keys;
    int32_t window;
    keys_of(in, u, &n_keys, &window);
    const kvl_verify_case c = {.n_seqs = 1,
                               .q_lens = {1},
                               .kv_lens = {(int32_t)n_keys},
                               .n_q_heads = s->heads.n_q / s->heads.n_kv,
                               .n_kv_heads = 1,
                               .head_dim = s->head_dim,
                               .k_dtype = s->k_dtype,
                               .v_dtype = s->v_dtype,
                               .scaled = s->scale_bytes > 0,
                               .scale_tokens = s->scale_bytes > 0,
                               .q_dtype = s->q_dtype};
    KVL_TRY(kvl_verify_problem_create(&c, &p));
    p->scale = in->args.scale;
    p->softcap = s->softcap;
    p->causal = true;
    p->window = window;
    kvl_status status = compare(in, u, p_dtype, p, worst);
    kvl_verify_problem_free(p);
    return status;
}

/* ---- which units ------------------------------------------------------------------------------
 */

static int32_t seq_of(const kvl_attention_inputs *in, int64_t token) {
    int32_t low = 0, high = (int32_t)in->setup->shape.n_seqs;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (in->q_start[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static unit unit_at(const kvl_attention_inputs *in, int64_t index) {
    unit u = {.kv_head = (int32_t)(index % in->setup->heads.n_kv),
              .token = index / in->setup->heads.n_kv};
    u.seq = seq_of(in, u.token);
    return u;
}

/* How many units of mean length the budget pays for. */
static int64_t affordable(const kvl_attention_setup *s) {
    double keys = 0, heads = s->heads.n_q / s->heads.n_kv;
    for (int i = 0; i < s->shape.n_groups; i++)
        keys += (double)(s->shape.groups[i].n_seqs * s->shape.groups[i].q_tokens) *
                (double)s->shape.groups[i].kv_tokens;
    /* A row of the oracle and of the naive pass costs about a tenth of a decoded one. */
    double unit = keys / (double)s->shape.q_tokens * s->head_dim * (2 + 0.4 * heads);
    return unit * MAX_UNITS < VALUES ? MAX_UNITS : (int64_t)(VALUES / unit);
}

/* First and last query token of the first and last sequence of group `g`. */
static void ends_of(const kvl_batch_shape *shape, int g, int64_t tokens[2]) {
    int64_t before = 0;
    for (int i = 0; i < g; i++) before += shape->groups[i].n_seqs * shape->groups[i].q_tokens;
    tokens[0] = before;
    tokens[1] = before + shape->groups[g].n_seqs * shape->groups[g].q_tokens - 1;
}

static kvl_status check_sample(const kvl_attention_inputs *in, uint64_t seed, int64_t n_wanted,
                               kvl_dtype p_dtype, kvl_verify_result *worst) {
    const kvl_attention_setup *s = in->setup;
    kvl_rng rng = kvl_rng_make(seed, STREAM_SAMPLE);
    int64_t n_units = s->shape.q_tokens * s->heads.n_kv, n_checked = 0;
    for (int g = 0; g < s->shape.n_groups; g++) {
        int64_t tokens[2];
        ends_of(&s->shape, g, tokens);
        for (int end = 0; end < (tokens[1] > tokens[0] ? 2 : 1); end++, n_checked++) {
            int64_t head = (int64_t)kvl_rng_below(&rng, (uint64_t)s->heads.n_kv);
            unit u = unit_at(in, tokens[end] * s->heads.n_kv + head);
            KVL_TRY(check_unit(in, &u, p_dtype, worst));
        }
    }
    for (; n_checked < n_wanted; n_checked++) {
        unit u = unit_at(in, (int64_t)kvl_rng_below(&rng, (uint64_t)n_units));
        KVL_TRY(check_unit(in, &u, p_dtype, worst));
    }
    return KVL_OK;
}

kvl_status kvl_attention_inputs_check(const kvl_attention *module, kvl_attention_inputs *in,
                                      uint64_t seed, kvl_verify_result *result) {
    const kvl_attention_setup *s = in->setup;
    kvl_attention_choice choice = {0};
    int64_t n_units = s->shape.q_tokens * s->heads.n_kv, n_wanted = affordable(s);
    kvl_verify_result_clear(result, "");
    result->n_rows = 0;
    module->supports(&in->args, &choice);
    if (n_units > n_wanted) return check_sample(in, seed, n_wanted, choice.p_dtype, result);
    for (int64_t i = 0; i < n_units; i++) {
        unit u = unit_at(in, i);
        KVL_TRY(check_unit(in, &u, choice.p_dtype, result));
    }
    return KVL_OK;
}
