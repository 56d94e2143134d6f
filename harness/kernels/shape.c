#include "harness/kernels/shape.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define BATCH_FORM "[N]qLEN[sLEN] groups joined by _, such as 8q1s4096, q2k or 2q512s512_32q1s4096"
#define PRODUCT_FORM "ROWSxINxOUT, such as 1x4096x4096 or 512x576x1536"
#define HEADS_FORM "QUERY/KV, such as 32/8"

typedef struct reader {
    const char *text;
    size_t length, at;
    const char *form;
} reader;

/* Positions count from 1, as a reader of the command line would. */
static kvl_status fault(const reader *r, size_t at, const char *what) {
    return kvl_fail(KVL_ERR_INPUT, "character %zu: %s (form: %s)", at + 1, what, r->form);
}

static bool is_digit(const reader *r) {
    return r->at < r->length && r->text[r->at] >= '0' && r->text[r->at] <= '9';
}

static bool take(reader *r, char c) {
    if (r->at >= r->length || r->text[r->at] != c) return false;
    r->at++;
    return true;
}

/* Digits, or digits and k; `what` names the number in the message. */
static kvl_status take_number(reader *r, const char *what, int64_t max, int64_t *out) {
    char line[96];
    size_t start = r->at;
    int64_t value = 0;
    if (!is_digit(r)) {
        snprintf(line, sizeof line, "%s is missing: digits, or digits and k", what);
        return fault(r, start, line);
    }
    for (; is_digit(r); r->at++) {
        if (value <= max) value = value * 10 + (r->text[r->at] - '0');
    }
    if (take(r, 'k')) value *= 1024; /* below 2^40 x 1,024 */
    if (value < 1 || value > max) {
        snprintf(line, sizeof line, "%s must lie in 1 to %lld", what, (long long)max);
        return fault(r, start, line);
    }
    *out = value;
    return KVL_OK;
}

/* ---- batches ----------------------------------------------------------------------------------
 */

static kvl_status take_group(reader *r, kvl_batch_group *group) {
    size_t start = r->at;
    group->n_seqs = 1;
    if (is_digit(r))
        KVL_TRY(take_number(r, "the count of sequences", KVL_BATCH_MAX_SEQS, &group->n_seqs));
    if (!take(r, 'q')) return fault(r, r->at, "q is expected");
    KVL_TRY(take_number(r, "the count of query tokens", 1 << 24, &group->q_tokens));
    group->kv_tokens = group->q_tokens;
    if (take(r, 's')) KVL_TRY(take_number(r, "the count of keys", 1 << 30, &group->kv_tokens));
    if (group->kv_tokens < group->q_tokens) return fault(r, start, "fewer keys than query tokens");
    return KVL_OK;
}

kvl_status kvl_batch_shape_parse(const char *text, size_t length, kvl_batch_shape *out) {
    reader r = {text, length, 0, BATCH_FORM};
    memset(out, 0, sizeof *out);
    do {
        kvl_batch_group group;
        size_t start = r.at;
        KVL_TRY(take_group(&r, &group));
        out->n_seqs += group.n_seqs;
        out->q_tokens += group.n_seqs * group.q_tokens; /* below 2^40 a group */
        if (group.kv_tokens > out->kv_longest) out->kv_longest = group.kv_tokens;
        if (out->n_seqs > KVL_BATCH_MAX_SEQS)
            return fault(&r, start, "more than 65536 sequences up to here");
        if (out->q_tokens > 1 << 30)
            return fault(&r, start, "more than 2^30 query tokens up to here");
        kvl_batch_group *last = out->n_groups ? &out->groups[out->n_groups - 1] : NULL;
        if (last && last->q_tokens == group.q_tokens && last->kv_tokens == group.kv_tokens) {
            last->n_seqs += group.n_seqs;
        } else {
            if (out->n_groups == KVL_BATCH_MAX_GROUPS)
                return fault(&r, start, "more than 32 groups");
            out->groups[out->n_groups++] = group;
        }
    } while (take(&r, '_'));
    if (r.at < r.length) return fault(&r, r.at, "s, _ or the end is expected");
    return KVL_OK;
}

kvl_status kvl_batch_shape_canonical(const char *text, size_t length,
                                     char canonical[KVL_AXIS_TEXT_BYTES]) {
    kvl_batch_shape shape;
    size_t n = 0;
    KVL_TRY(kvl_batch_shape_parse(text, length, &shape));
    for (int i = 0; i < shape.n_groups; i++) {
        const kvl_batch_group *group = &shape.groups[i];
        n += (size_t)snprintf(canonical + n, KVL_AXIS_TEXT_BYTES - n, "%s%lldq%llds%lld",
                              i ? "_" : "", (long long)group->n_seqs, (long long)group->q_tokens,
                              (long long)group->kv_tokens);
        if (n >= KVL_AXIS_TEXT_BYTES)
            return kvl_fail(KVL_ERR_INPUT, "longer than %d characters, spelled out",
                            KVL_AXIS_TEXT_BYTES - 1);
    }
    return KVL_OK;
}

/* ---- products and heads -----------------------------------------------------------------------
 */

kvl_status kvl_product_shape_parse(const char *text, size_t length, kvl_product_shape *out) {
    reader r = {text, length, 0, PRODUCT_FORM};
    const int64_t max = 1 << 24;
    KVL_TRY(take_number(&r, "the count of rows", max, &out->n_rows));
    if (!take(&r, 'x')) return fault(&r, r.at, "x is expected");
    KVL_TRY(take_number(&r, "the count of inputs", max, &out->n_in));
    if (!take(&r, 'x')) return fault(&r, r.at, "x is expected");
    KVL_TRY(take_number(&r, "the count of outputs", max, &out->n_out));
    if (r.at < r.length) return fault(&r, r.at, "the end is expected");
    return KVL_OK;
}

kvl_status kvl_product_shape_canonical(const char *text, size_t length,
                                       char canonical[KVL_AXIS_TEXT_BYTES]) {
    kvl_product_shape shape = {0};
    KVL_TRY(kvl_product_shape_parse(text, length, &shape));
    snprintf(canonical, KVL_AXIS_TEXT_BYTES, "%lldx%lldx%lld", (long long)shape.n_rows,
             (long long)shape.n_in, (long long)shape.n_out);
    return KVL_OK;
}

kvl_status kvl_heads_parse(const char *text, size_t length, kvl_heads *out) {
    reader r = {text, length, 0, HEADS_FORM};
    int64_t n_q = 0, n_kv = 1;
    KVL_TRY(take_number(&r, "the count of query heads", 4096, &n_q));
    if (!take(&r, '/')) return fault(&r, r.at, "/ is expected");
    size_t start = r.at;
    KVL_TRY(take_number(&r, "the count of KV heads", 4096, &n_kv));
    if (r.at < r.length) return fault(&r, r.at, "the end is expected");
    if (n_q % n_kv != 0)
        return fault(&r, start, "the query heads must be a multiple of the KV heads");
    *out = (kvl_heads){(int32_t)n_q, (int32_t)n_kv};
    return KVL_OK;
}

kvl_status kvl_heads_canonical(const char *text, size_t length,
                               char canonical[KVL_AXIS_TEXT_BYTES]) {
    kvl_heads heads = {0};
    KVL_TRY(kvl_heads_parse(text, length, &heads));
    snprintf(canonical, KVL_AXIS_TEXT_BYTES, "%d/%d", heads.n_q, heads.n_kv);
    return KVL_OK;
}
