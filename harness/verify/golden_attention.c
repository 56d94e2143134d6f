/* attention.json and attention.safetensors: each case on each kernel and instruction set, with an
 * f32 output and one in Q's dtype, contiguous and paged. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/names.h"
#include "decoder/json.h"
#include "harness/verify/attention.h"
#include "harness/verify/codec.h"
#include "harness/verify/golden.h"

typedef struct golden_case {
    const char *id;
    kvl_verify_case c; /* shape, mask and dtypes only */
    char label[4200];  /* "attention.json: att00", for messages */
} golden_case;

static kvl_status torch_dtype(const char *label, const json_t *object, const char *key,
                              kvl_dtype max, kvl_dtype *out) {
    static const char *const names[] = {"float32", "float16", "bfloat16", "float8_e4m3fn",
                                        "float8_e5m2"};
    const char *name = NULL;
    KVL_TRY(kvl_json_string(label, object, key, true, &name));
    int index = kvl_names_find(name, names, 5);
    if (index < 0 || index > (int)max)
        return kvl_fail(KVL_ERR_INPUT, "%s: %s '%s' is not a dtype it can have", label, key, name);
    *out = (kvl_dtype)index;
    return KVL_OK;
}

static kvl_status int_list(const char *label, const json_t *object, const char *key, int64_t max,
                           int32_t *out, int32_t *n) {
    const json_t *array = json_object_get(object, key);
    size_t count = json_array_size(array);
    if (!json_is_array(array) || count < 1 || count > KVL_VERIFY_MAX_SEQS)
        return kvl_fail(KVL_ERR_INPUT, "%s: %s: must be an array of 1 to %d lengths", label, key,
                        KVL_VERIFY_MAX_SEQS);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t value = json_integer_value(item);
        if (!json_is_integer(item) || value < 0 || value > max)
            return kvl_fail(KVL_ERR_INPUT, "%s: %s[%zu]: must be 0 to %lld", label, key, i,
                            (long long)max);
        out[i] = (int32_t)value;
    }
    *n = (int32_t)count;
    return KVL_OK;
}

static kvl_status read_shape(const json_t *object, golden_case *g) {
    const char *at = g->label;
    int64_t heads = 0, kv_heads = 0, dim = 0, window = 0;
    double scale = 0, softcap = 0;
    int32_t n_kv = 0;
    kvl_verify_case *c = &g->c;
    KVL_TRY(int_list(at, object, "q_lens", 1 << 20, c->q_lens, &c->n_seqs));
    KVL_TRY(int_list(at, object, "kv_lens", 1 << 24, c->kv_lens, &n_kv));
    if (n_kv != c->n_seqs)
        return kvl_fail(KVL_ERR_INPUT, "%s: %d q_lens, %d kv_lens", at, c->n_seqs, n_kv);
    KVL_TRY(kvl_json_int(at, object, "n_q_heads", true, 1, 1024, &heads));
    KVL_TRY(kvl_json_int(at, object, "n_kv_heads", true, 1, 1024, &kv_heads));
    KVL_TRY(kvl_json_int(at, object, "head_dim", true, 1, 4096, &dim));
    KVL_TRY(kvl_json_int(at, object, "window", true, 0, INT32_MAX, &window));
    KVL_TRY(kvl_json_number(at, object, "scale", true, -1e6, 1e6, &scale));
    KVL_TRY(kvl_json_number(at, object, "softcap", true, 0, 1e6, &softcap));
    KVL_TRY(kvl_json_bool(at, object, "causal", true, &c->causal));
    KVL_TRY(kvl_json_bool(at, object, "sinks", true, &c->sinks));
    KVL_TRY(kvl_json_bool(at, object, "kv_scaled", true, &c->scaled));
    KVL_TRY(torch_dtype(at, object, "kv_dtype", KVL_FP8_E5M2, &c->k_dtype));
    c->v_dtype = c->k_dtype;
    KVL_TRY(torch_dtype(at, object, "q_dtype", KVL_BF16, &c->q_dtype));
    if (heads % kv_heads)
        return kvl_fail(KVL_ERR_INPUT, "%s: n_q_heads %lld: not a multiple of n_kv_heads %lld", at,
                        (long long)heads, (long long)kv_heads);
    c->n_q_heads = (int32_t)heads, c->n_kv_heads = (int32_t)kv_heads;
    c->head_dim = (int32_t)dim, c->window = (int32_t)window;
    c->scale = (float)scale, c->softcap = (float)softcap;
    return KVL_OK;
}

static kvl_status tensor(const kvl_safetensors *st, const char *path, const golden_case *g,
                         const char *suffix, kvl_dtype dtype, int64_t n,
                         const kvl_st_tensor **out) {
    char name[256];
    snprintf(name, sizeof name, "%.200s.%s", g->id, suffix);
    return kvl_verify_golden_tensor(st, path, name, dtype, n, out);
}

static kvl_status copy_floats(const kvl_safetensors *st, const char *path, const golden_case *g,
                              const char *suffix, int64_t n, float *into) {
    const kvl_st_tensor *t;
    KVL_TRY(tensor(st, path, g, suffix, KVL_F32, n, &t));
    return kvl_st_read_f32(t, 0, n, into);
}

/* Problem and golden truth of a case; the oracle's row facts (masses, naive pass) stay our own. */
static kvl_status load_tensors(const kvl_safetensors *st, const char *path, const golden_case *g,
                               kvl_verify_problem *p, const kvl_st_tensor **o,
                               const kvl_st_tensor **lse) {
    int64_t rows = kvl_verify_n_q(p) * p->n_q_heads, n_q = rows * p->head_dim;
    int64_t n_kv = p->kv_start[p->n_seqs] * p->n_kv_heads * p->head_dim;
    const kvl_st_tensor *q, *k, *v;
    KVL_TRY(tensor(st, path, g, "q", p->q_dtype, n_q, &q));
    KVL_TRY(tensor(st, path, g, "k", p->k_dtype, n_kv, &k));
    KVL_TRY(tensor(st, path, g, "v", p->v_dtype, n_kv, &v));
    KVL_TRY(tensor(st, path, g, "o", KVL_F32, n_q, o));
    KVL_TRY(tensor(st, path, g, "lse", KVL_F64, rows, lse));
    memcpy(p->q_codes, q->data, q->bytes);
    memcpy(p->k_codes, k->data, k->bytes);
    memcpy(p->v_codes, v->data, v->bytes);
    if (p->sinks) KVL_TRY(copy_floats(st, path, g, "sinks", p->n_q_heads, p->sinks));
    if (p->k_scale) KVL_TRY(copy_floats(st, path, g, "k_scale", p->n_kv_heads, p->k_scale));
    if (p->v_scale) KVL_TRY(copy_floats(st, path, g, "v_scale", p->n_kv_heads, p->v_scale));
    p->scale = g->c.scale, p->softcap = g->c.softcap;
    p->causal = g->c.causal, p->window = g->c.window;
    kvl_verify_problem_decode(p);
    return KVL_OK;
}

/* Our own oracle against the golden (O is stored in float32 there), and the golden put in its
 * place. */
static void adopt_golden(const kvl_verify_problem *p, const kvl_st_tensor *o,
                         const kvl_st_tensor *lse, kvl_verify_truth *truth,
                         kvl_verify_result *result) {
    result->max_abs = result->bound = 0;
    for (int64_t r = 0; r < truth->n_rows; r++) {
        double want_lse;
        memcpy(&want_lse, (const uint8_t *)lse->data + r * 8, sizeof want_lse);
        double lse_error = isinf(want_lse) ? (truth->rows[r].lse == want_lse ? 0 : INFINITY)
                                           : fabs(truth->rows[r].lse - want_lse);
        /* The JSON's scale and softcap are float64 there, float32 in kvlab's seam. */
        double scale_error = 0x1p-24 * (truth->rows[r].s_mass + 1);
        if (!(lse_error <= 1e-9 + 2 * scale_error))
            kvl_verify_failed(result, "row %lld: LSE %.12g, golden %.12g", (long long)r,
                              truth->rows[r].lse, want_lse);
        truth->rows[r].lse = want_lse;
        for (int64_t i = r * p->head_dim; i < (r + 1) * p->head_dim; i++) {
            double want = kvl_verify_value_at(KVL_F32, o->data, i),
                   error = fabs(truth->o[i] - want);
            double bound = 1e-9 + 0x1p-24 * fabs(want) + 2 * scale_error * truth->rows[r].v_mean;
            if (!isnan(result->max_abs) && !(error <= result->max_abs))
                result->max_abs = error, result->bound = bound;
            if (!(error <= bound))
                kvl_verify_failed(result, "row %lld: oracle %.9g, golden %.9g", (long long)r,
                                  truth->o[i], want);
            truth->o[i] = want;
        }
    }
    result->n_rows = truth->n_rows;
}

static void run_engines(kvl_verify_golden_run *run, const golden_case *g,
                        const kvl_verify_problem *p, kvl_verify_truth *truth) {
    static const kvl_verify_layout layouts[] = {{.shuffled = true},
                                                {.page_tokens = 16, .shuffled = true}};
    static const char *const layout_names[] = {"contig.shuf", "page16.shuf"};
    kvl_verify_engine engines[KVL_VERIFY_MAX_ENGINES];
    kvl_verify_result result;
    int n = kvl_verify_engines(&run->scope, engines);
    kvl_isa before = kvl_isa_current();
    for (int e = 0; e < n; e++) {
        kvl_isa_force(engines[e].isa);
        for (int i = 0; i < 4; i++) {
            kvl_dtype o_dtype = i < 2 ? KVL_F32 : p->q_dtype;
            if (i >= 2 && o_dtype == KVL_F32) continue;
            if (!kvl_verify_golden_wants(run, &result, "golden/attention/%.64s/%s/%s/%so/%s", g->id,
                                         engines[e].module->name, kvl_isa_name(engines[e].isa),
                                         kvl_dtype_name(o_dtype), layout_names[i % 2]))
                continue;
            kvl_verify_attention_problem(engines[e].module, p, &layouts[i % 2], 1, o_dtype, true,
                                         truth, &result);
            kvl_verify_golden_report(run, &result);
        }
    }
    kvl_isa_force(before);
}

static kvl_status run_case(kvl_verify_golden_run *run, const kvl_safetensors *st,
                           const char *st_path, const char *json_path, const json_t *object) {
    golden_case g = {0};
    kvl_verify_problem *p = NULL;
    kvl_verify_truth truth = {0};
    kvl_verify_result result;
    const kvl_st_tensor *o = NULL, *lse = NULL;
    KVL_TRY(kvl_json_string(json_path, object, "id", true, &g.id));
    snprintf(g.label, sizeof g.label, "%.4000s: %.64s", json_path, g.id);
    KVL_TRY(read_shape(object, &g));
    const kvl_verify_case *c = &g.c;
    KVL_TRY(kvl_verify_problem_create(c, &p));
    kvl_status status = load_tensors(st, st_path, &g, p, &o, &lse);
    if (status == KVL_OK) status = kvl_verify_truth_create(p, &truth);
    if (status == KVL_OK) {
        bool wanted = kvl_verify_golden_wants(run, &result, "golden/attention/%.64s/oracle", g.id);
        adopt_golden(p, o, lse, &truth, &result);
        if (wanted) kvl_verify_golden_report(run, &result);
        run_engines(run, &g, p, &truth);
    }
    kvl_verify_truth_free(&truth);
    kvl_verify_problem_free(p);
    return status;
}

kvl_status kvl_verify_golden_attention(kvl_verify_golden_run *run) {
    char json_path[4096], st_path[4096];
    json_t *cases = NULL;
    kvl_safetensors *st = NULL;
    bool json = kvl_verify_golden_path(run->dir, "attention.json", json_path, sizeof json_path);
    bool tensors =
        kvl_verify_golden_path(run->dir, "attention.safetensors", st_path, sizeof st_path);
    if (!json && !tensors) return KVL_OK;
    if (!json || !tensors)
        return kvl_fail(KVL_ERR_INPUT, "%s is missing beside %s", json ? st_path : json_path,
                        json ? json_path : st_path);
    kvl_status status = kvl_json_load(json_path, &cases);
    if (status == KVL_OK && !json_is_array(cases))
        status = kvl_fail(KVL_ERR_INPUT, "%s: must be an array of cases", json_path);
    if (status == KVL_OK) status = kvl_st_open(st_path, &st);
    for (size_t i = 0; status == KVL_OK && i < json_array_size(cases); i++) {
        const json_t *object = json_array_get(cases, i);
        if (!json_is_object(object))
            status = kvl_fail(KVL_ERR_INPUT, "%s: [%zu]: must be an object", json_path, i);
        else
            status = run_case(run, st, st_path, json_path, object);
    }
    kvl_st_close(st);
    json_decref(cases);
    return status;
}
