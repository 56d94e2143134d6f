#include "harness/verify/case.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/names.h"

static const char *const kind_names[KVL_VERIFY_N_KINDS] = {
    "attn", "attn-threads", "attn-batch", "attn-chunk", "attn-paged", "attn-merge"};
static const char *const pattern_names[KVL_N_PATTERNS] = {"normal", "flat", "vmax", "onehot",
                                                          "rising", "alt",  "big"};

/* ---- writing ----------------------------------------------------------------------------------
 */

typedef struct writer {
    char *out;
    size_t used, bytes;
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int n = vsnprintf(w->out + w->used, w->bytes - w->used, format, list);
    va_end(list);
    if (n > 0) w->used += (size_t)n < w->bytes - w->used ? (size_t)n : w->bytes - w->used - 1;
}

static void put_layout(writer *w, const kvl_verify_layout *layout) {
    if (layout->page_tokens)
        put(w, "/page%lld", (long long)layout->page_tokens);
    else
        put(w, "/contig");
    put(w, "%s%s%s%s", layout->shuffled ? ".shuf" : "", layout->shared ? ".shared" : "",
        layout->far ? ".far" : "", layout->token_major ? ".tok" : "");
}

static void put_lengths(writer *w, const kvl_verify_case *c) {
    for (int32_t s = 0; s < c->n_seqs;) {
        int32_t n = 1;
        while (s + n < c->n_seqs && c->q_lens[s + n] == c->q_lens[s] &&
               c->kv_lens[s + n] == c->kv_lens[s])
            n++;
        put(w, "%c%dq%d", s ? '+' : '/', c->q_lens[s], c->kv_lens[s]);
        if (n > 1) put(w, "x%d", n);
        s += n;
    }
}

void kvl_verify_case_format(const kvl_verify_case *c, char *out, size_t out_bytes) {
    writer w = {out, 0, out_bytes};
    out[0] = '\0';
    put(&w, "%s/%s/%s/%s", kind_names[c->kind], c->kernel, kvl_isa_name(c->isa),
        kvl_dtype_name(c->k_dtype));
    if (c->v_dtype == c->k_dtype)
        put(&w, "kv.%sq", kvl_dtype_name(c->q_dtype));
    else
        put(&w, "k.%sv.%sq", kvl_dtype_name(c->v_dtype), kvl_dtype_name(c->q_dtype));
    if (c->o_dtype != KVL_F32) put(&w, ".%so", kvl_dtype_name(c->o_dtype));
    put(&w, "/hd%d.h%d:%d", c->head_dim, c->n_q_heads, c->n_kv_heads);
    put_layout(&w, &c->layout);
    put_lengths(&w, c);
    put(&w, "/%s", c->causal ? "causal" : "full");
    if (c->window) put(&w, ".w%d", c->window);
    if (c->softcap > 0) put(&w, ".cap%.9g", (double)c->softcap);
    put(&w, "%s%s", c->sinks ? ".sinks" : "", c->scaled ? ".scaled" : "");
    if (c->scale_tokens) put(&w, "%lld", (long long)c->scale_tokens);
    if (c->scale > 0) put(&w, ".scale%.9g", (double)c->scale);
    put(&w, "/seed%llu/%s", (unsigned long long)c->seed, pattern_names[c->pattern]);
}

/* ---- reading ----------------------------------------------------------------------------------
 */

/* A decimal number in [min, max] at *text, which is moved past it. */
static bool number(const char **text, int64_t min, int64_t max, int64_t *out) {
    if (**text < '0' || **text > '9') return false;
    char *end;
    unsigned long long value = strtoull(*text, &end, 10);
    if (value > (unsigned long long)max || (int64_t)value < min) return false;
    *text = end;
    *out = (int64_t)value;
    return true;
}

static bool number32(const char **text, int64_t min, int64_t max, int32_t *out) {
    int64_t value;
    if (!number(text, min, max, &value)) return false;
    *out = (int32_t)value;
    return true;
}

/* Moves past `word` when *text starts with it. */
static bool eat(const char **text, const char *word) {
    size_t n = strlen(word);
    if (strncmp(*text, word, n) != 0) return false;
    *text += n;
    return true;
}

static kvl_status wrong(const char *part, const char *seen, const char *form) {
    return kvl_fail(KVL_ERR_INPUT, "case id: %s '%s': must be %s", part, seen, form);
}

static kvl_status unknown(const char *what, const char *name, const char *const *names,
                          size_t n_names) {
    char line[512];
    kvl_names_unknown(line, sizeof line, what, name, names, n_names);
    return kvl_fail(KVL_ERR_INPUT, "case id: %s", line);
}

/* "bf16kv" with suffix "kv" -> bf16. */
static kvl_status parse_dtype(char *word, const char *suffix, kvl_dtype max, kvl_dtype *out) {
    size_t n = strlen(word), m = strlen(suffix);
    if (n <= m || strcmp(word + n - m, suffix) != 0)
        return wrong("dtypes", word, "<dtype>kv.<dtype>q or <dtype>kv.<dtype>q.<dtype>o");
    word[n - m] = '\0';
    if (kvl_dtype_parse(word, out) != KVL_OK) return kvl_fail_prefix(KVL_ERR_INPUT, "case id");
    if (*out > max) return kvl_fail(KVL_ERR_INPUT, "case id: %s cannot be %s", suffix, word);
    return KVL_OK;
}

static kvl_status parse_dtypes(char *text, kvl_verify_case *c) {
    static const char *const form =
        "<dtype>kv.<dtype>q or <dtype>kv.<dtype>q.<dtype>o (or <dtype>k.<dtype>v for kv)";
    char *save = NULL, *k = strtok_r(text, ".", &save), *v = k;
    size_t n = k ? strlen(k) : 0;
    bool both = n > 2 && strcmp(k + n - 2, "kv") == 0;
    if (!both) v = strtok_r(NULL, ".", &save);
    char *q = strtok_r(NULL, ".", &save), *o = strtok_r(NULL, ".", &save);
    if (!k || !v || !q || strtok_r(NULL, ".", &save)) return wrong("dtypes", k ? k : "", form);
    KVL_TRY(parse_dtype(k, both ? "kv" : "k", KVL_KV_DTYPE_LAST, &c->k_dtype));
    c->v_dtype = c->k_dtype;
    if (!both) KVL_TRY(parse_dtype(v, "v", KVL_KV_DTYPE_LAST, &c->v_dtype));
    KVL_TRY(parse_dtype(q, "q", KVL_BF16, &c->q_dtype));
    c->o_dtype = KVL_F32;
    return o ? parse_dtype(o, "o", KVL_BF16, &c->o_dtype) : KVL_OK;
}

static kvl_status parse_heads(const char *text, kvl_verify_case *c) {
    const char *at = text;
    if (!eat(&at, "hd") || !number32(&at, 1, 4096, &c->head_dim) || !eat(&at, ".h") ||
        !number32(&at, 1, 1024, &c->n_q_heads) || !eat(&at, ":") ||
        !number32(&at, 1, 1024, &c->n_kv_heads) || *at || c->n_q_heads % c->n_kv_heads)
        return wrong("heads", text,
                     "hd<head_dim>.h<n_q_heads>:<n_kv_heads>, a multiple of the KV heads");
    return KVL_OK;
}

kvl_status kvl_verify_layout_parse(const char *text, kvl_verify_layout *out) {
    const char *at = text;
    memset(out, 0, sizeof *out);
    bool ok =
        eat(&at, "contig") || (eat(&at, "page") && number(&at, 1, 1 << 20, &out->page_tokens));
    while (ok && *at) {
        bool *flag = eat(&at, ".shuf")     ? &out->shuffled
                     : eat(&at, ".shared") ? &out->shared
                     : eat(&at, ".far")    ? &out->far
                     : eat(&at, ".tok")    ? &out->token_major
                                           : NULL;
        ok = flag && !*flag;
        if (ok) *flag = true;
    }
    if (!ok || (out->shared && !out->page_tokens))
        return wrong("layout", text,
                     "contig or page<tokens>, then .shuf .shared (pages only) .far .tok");
    return KVL_OK;
}

kvl_status kvl_verify_case_lengths(const char *text, kvl_verify_case *out) {
    const char *at = text;
    out->n_seqs = 0;
    do {
        int32_t q, kv, n = 1;
        if (!number32(&at, 0, 1 << 20, &q) || !eat(&at, "q") || !number32(&at, 0, 1 << 24, &kv) ||
            (eat(&at, "x") && !number32(&at, 1, KVL_VERIFY_MAX_SEQS, &n)) ||
            out->n_seqs + n > KVL_VERIFY_MAX_SEQS)
            return wrong("lengths", text, "<q_len>q<kv_len> joined by +, at most 32 sequences");
        for (int32_t i = 0; i < n; i++) {
            out->q_lens[out->n_seqs] = q;
            out->kv_lens[out->n_seqs++] = kv;
        }
    } while (eat(&at, "+"));
    return *at ? wrong("lengths", text, "<q_len>q<kv_len> joined by +") : KVL_OK;
}

/* A positive, finite float after a word, as %.9g writes it. */
static bool positive(const char **text, float *out) {
    if (**text < '0' || **text > '9') return false;
    char *end;
    float value = strtof(*text, &end);
    /* "cap30.sinks": the dot that opens the next word is not a part of the number. */
    if (end > *text && end[-1] == '.') end--;
    *text = end;
    *out = value;
    return value > 0 && value < 1e30f;
}

static kvl_status parse_mask(const char *text, kvl_verify_case *c) {
    const char *at = text;
    bool ok = true;
    c->causal = eat(&at, "causal");
    if (!c->causal) ok = eat(&at, "full");
    while (ok && *at) {
        if (eat(&at, ".scaled")) {
            ok = !c->scaled && (*at == '.' || !*at || number(&at, 1, 1 << 20, &c->scale_tokens));
            c->scaled = true;
        } else if (eat(&at, ".scale"))
            ok = c->scale == 0 && positive(&at, &c->scale);
        else if (eat(&at, ".sinks"))
            ok = !c->sinks, c->sinks = true;
        else if (eat(&at, ".cap"))
            ok = c->softcap == 0 && positive(&at, &c->softcap);
        else
            ok = eat(&at, ".w") && c->window == 0 && number32(&at, 1, INT_MAX, &c->window);
    }
    return ok ? KVL_OK
              : wrong(
                    "mask", text,
                    "causal or full, then .w<window> .cap<softcap> .sinks .scaled[<n>] .scale<x>");
}

static kvl_status parse_seed(const char *text, uint64_t *out) {
    const char *at = text;
    int64_t value;
    if (!eat(&at, "seed") || !number(&at, 0, INT64_MAX, &value) || *at)
        return wrong("seed", text, "seed<number>");
    *out = (uint64_t)value;
    return KVL_OK;
}

kvl_status kvl_verify_case_parse(const char *id, kvl_verify_case *out) {
    enum { PARTS = 10 };
    char copy[1024], *parts[PARTS + 1], *save = NULL;
    memset(out, 0, sizeof *out);
    if (strlen(id) >= sizeof copy) return kvl_fail(KVL_ERR_INPUT, "case id: over 1,023 bytes");
    snprintf(copy, sizeof copy, "%s", id);
    int n = 0;
    for (char *p = strtok_r(copy, "/", &save); p && n <= PARTS; p = strtok_r(NULL, "/", &save))
        parts[n++] = p;
    if (n != PARTS)
        return kvl_fail(KVL_ERR_INPUT,
                        "case id '%s': must be kind/kernel/isa/dtypes/heads/layout/lengths/mask/"
                        "seed/data; see 'kvlab verify --list'",
                        id);
    int kind = kvl_names_find(parts[0], kind_names, KVL_VERIFY_N_KINDS);
    if (kind < 0) return unknown("kind", parts[0], kind_names, KVL_VERIFY_N_KINDS);
    out->kind = (kvl_verify_kind)kind;
    if (strlen(parts[1]) >= sizeof out->kernel)
        return wrong("kernel", parts[1], "at most 31 bytes");
    snprintf(out->kernel, sizeof out->kernel, "%s", parts[1]);
    if (kvl_isa_parse(parts[2], &out->isa) != KVL_OK)
        return kvl_fail_prefix(KVL_ERR_INPUT, "case id");
    KVL_TRY(parse_dtypes(parts[3], out));
    KVL_TRY(parse_heads(parts[4], out));
    KVL_TRY(kvl_verify_layout_parse(parts[5], &out->layout));
    KVL_TRY(kvl_verify_case_lengths(parts[6], out));
    KVL_TRY(parse_mask(parts[7], out));
    KVL_TRY(parse_seed(parts[8], &out->seed));
    int pattern = kvl_names_find(parts[9], pattern_names, KVL_N_PATTERNS);
    if (pattern < 0) return unknown("data", parts[9], pattern_names, KVL_N_PATTERNS);
    out->pattern = (kvl_verify_pattern)pattern;
    return KVL_OK;
}
