/* Linear layers against float64:
 *
 *   linear/<weights>/<isa>/<compute>c/<n_out>x<n_in>/rows<n>/seed<n>
 *   linear/<weights>/<isa>/<compute>c/<n_out>x<n_in>/rows<n>/seed<n>/lib   library kernels allowed
 *
 * Weights are what the definition of their format rounds them to, bit for bit. A product errs, in
 * float32 sums of n_in terms t_k = x_k w_k, like a random walk of n_in steps of u = 2^-24 times the
 * running sum, whose size is about |t|_2: 4 u sqrt(n_in) |t|_2 is four times that, and 8 u |t|_1 /
 * sqrt(n_in) covers short rows. Twice the error of plain sums in the order k = 0, 1, 2 ... is
 * added. Own kernels also owe bits: a row alone, and any thread count, give those of the whole. */
#include "quant/linear.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/threads.h"
#include "harness/verify/codec.h"
#include "harness/verify/family.h"
#include "harness/verify/oracle.h"

typedef struct linear_case {
    const kvl_weight_format *format;
    kvl_isa isa;
    kvl_dtype compute;
    int64_t n_out, n_in, n_rows;
    uint64_t seed;
    bool library;
} linear_case;

enum { PAD = 5 }; /* elements after each row of x and y */

typedef struct linear_data {
    float *w, *x, *bias, *y, *again; /* x, y: rows PAD elements wider than n_in, n_out */
    kvl_linear *layer;
} linear_data;

static void release(linear_data *d) {
    free(d->w), free(d->x), free(d->bias), free(d->y), free(d->again);
    kvl_linear_destroy(d->layer);
}

static kvl_status prepare(const linear_case *c, linear_data *d) {
    int64_t n_x = c->n_rows * (c->n_in + PAD), n_y = c->n_rows * (c->n_out + PAD);
    d->w = malloc((size_t)(c->n_out * c->n_in) * sizeof(float));
    d->x = malloc((size_t)n_x * sizeof(float));
    d->bias = malloc((size_t)c->n_out * sizeof(float));
    d->y = malloc((size_t)n_y * sizeof(float));
    d->again = malloc((size_t)n_y * sizeof(float));
    if (!d->w || !d->x || !d->bias || !d->y || !d->again)
        return kvl_fail(KVL_ERR_OOM, "out of memory for a linear case");
    kvl_rng_fill_normal(c->seed, 1, 0.5f, d->w, c->n_out * c->n_in);
    kvl_rng_fill_normal(c->seed, 2, 1.0f, d->x, n_x);
    kvl_rng_fill_normal(c->seed, 3, 1.0f, d->bias, c->n_out);
    for (int64_t r = 0; r < c->n_rows; r++)
        for (int64_t i = 0; i < PAD; i++) d->x[r * (c->n_in + PAD) + c->n_in + i] = NAN;
    kvl_linear_options options = {
        .format = c->format, .compute_dtype = c->compute, .deterministic = !c->library};
    KVL_TRY(kvl_linear_create(c->n_out, c->n_in, &options, &d->layer));
    /* In two runs that do not end at a panel, the second first. */
    int64_t cut = c->n_out / 3;
    KVL_TRY(kvl_linear_set_rows(d->layer, cut, c->n_out - cut, d->w + cut * c->n_in));
    KVL_TRY(kvl_linear_set_rows(d->layer, 0, cut, d->w));
    return kvl_linear_finish(d->layer, d->bias);
}

/* Values of d->w in blocks, by quant/nf4.h's functions over the whole tensor. */
static kvl_status round_blocks(const linear_case *c, linear_data *d) {
    int64_t n = c->n_out * c->n_in, n_blocks = kvl_nf4_blocks(n, KVL_NF4_BLOCK);
    int64_t n_scales = kvl_nf4_blocks(n_blocks, KVL_NF4_NESTED_BLOCK);
    kvl_nf4_type type = strcmp(c->format->name, "fp4") == 0 ? KVL_FP4 : KVL_NF4;
    uint8_t *codes = malloc((size_t)n), *packed = malloc((size_t)(n + 1) / 2);
    uint8_t *nested = malloc((size_t)n_blocks);
    float *absmax = malloc((size_t)n_blocks * sizeof *absmax), offset;
    float *scales = malloc((size_t)n_scales * sizeof *scales);
    bool enough = codes && packed && nested && absmax && scales;
    if (enough) {
        kvl_nf4_encode(type, KVL_NF4_BLOCK, d->w, n, codes, absmax);
        kvl_nf4_pack(type, codes, n, packed);
        if (strcmp(c->format->name, "nf4_dq") == 0) {
            kvl_nf4_nest(absmax, n_blocks, nested, scales, &offset);
            kvl_nf4_unnest(nested, n_blocks, scales, KVL_NF4_NESTED_BLOCK, offset,
                           kvl_nf4_dynamic_map(), absmax);
        }
        kvl_nf4_decode(type, KVL_NF4_BLOCK, packed, absmax, 0, n, d->w);
    }
    free(codes), free(packed), free(nested), free(absmax), free(scales);
    return enough ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory for a linear case");
}

/* Rounds d->w by the definition, and checks that the layer holds the same values. */
static kvl_status check_weights(const linear_case *c, linear_data *d, kvl_verify_result *result) {
    if (c->format->in_blocks) KVL_TRY(round_blocks(c, d));
    float *row = malloc((size_t)c->n_in * sizeof *row);
    if (!row) return kvl_fail(KVL_ERR_OOM, "out of memory for a linear case");
    for (int64_t r = 0; r < c->n_out; r++) {
        kvl_linear_get_row(d->layer, r, row);
        for (int64_t k = 0; k < c->n_in; k++) {
            float *w = &d->w[r * c->n_in + k];
            if (!c->format->in_blocks) *w = (float)kvl_verify_round(c->format->dtype, *w);
            if (row[k] != *w)
                kvl_verify_failed(result, "weight [%" PRId64 "][%" PRId64 "] is %.9g, not %.9g", r,
                                  k, (double)row[k], (double)*w);
        }
    }
    free(row);
    return KVL_OK;
}

static void check_value(const linear_case *c, const linear_data *d, int64_t r, int64_t o,
                        kvl_verify_result *result) {
    const double u = 0x1p-24;
    double exact = d->bias[o], norm1 = fabs(exact), norm2 = exact * exact;
    float naive = 0;
    for (int64_t k = 0; k < c->n_in; k++) {
        double x = d->x[r * (c->n_in + PAD) + k], w = d->w[o * c->n_in + k];
        if (c->compute == KVL_BF16) x = kvl_verify_round(KVL_BF16, x);
        exact += x * w;
        norm1 += fabs(x * w);
        norm2 += x * w * x * w;
        naive += (float)x * (float)w;
    }
    naive += d->bias[o];
    double got = d->y[r * (c->n_out + PAD) + o], error = fabs(got - exact), n = (double)c->n_in;
    double bound = 2 * fabs(naive - exact) + 4 * u * sqrt(n * norm2) + 8 * u * norm1 / sqrt(n);
    result->n_rows++;
    if (!isfinite(got)) result->n_nonfinite++;
    if (result->max_abs < 0 || !(error / bound <= result->max_abs / result->bound)) {
        result->max_abs = error;
        result->bound = bound;
    }
    if (!(error <= bound))
        kvl_verify_failed(result, "row %" PRId64 " output %" PRId64 ": %.9g, not %.9g (bound %.3g)",
                          r, o, got, exact, bound);
}

static kvl_status run_rows(const linear_case *c, const linear_data *d, int64_t first, int64_t n,
                           float *y, bool accumulate) {
    int64_t x_stride = c->n_in + PAD, y_stride = c->n_out + PAD;
    return kvl_linear_run(d->layer, d->x + first * x_stride, x_stride, n, y + first * y_stride,
                          y_stride, accumulate);
}

static void compare_again(const linear_case *c, const linear_data *d, const char *what,
                          kvl_verify_result *result) {
    size_t bytes = (size_t)(c->n_rows * (c->n_out + PAD)) * sizeof(float);
    if (memcmp(d->y, d->again, bytes) != 0)
        kvl_verify_failed(result, "%s: bits differ from all rows in one call", what);
}

/* Bits: each row alone; one and three threads. */
static kvl_status check_bits(const linear_case *c, linear_data *d, kvl_verify_result *result) {
    int before = kvl_threads();
    static const int counts[] = {1, 3};
    memset(d->again, 0xa5, (size_t)(c->n_rows * (c->n_out + PAD)) * sizeof(float));
    for (int64_t r = 0; r < c->n_rows; r++) KVL_TRY(run_rows(c, d, r, 1, d->again, false));
    compare_again(c, d, "rows one by one", result);
    for (int i = 0; i < 2; i++) {
        KVL_TRY(kvl_threads_set(counts[i], 0));
        kvl_status status = run_rows(c, d, 0, c->n_rows, d->again, false);
        KVL_TRY(kvl_threads_set(before, 0));
        KVL_TRY(status);
        compare_again(c, d, counts[i] == 1 ? "1 thread" : "3 threads", result);
    }
    return KVL_OK;
}

/* y += with y = 0 gives the product, with y = 1 one more (rounded once). */
static kvl_status check_accumulate(const linear_case *c, linear_data *d,
                                   kvl_verify_result *result) {
    int64_t n = c->n_rows * (c->n_out + PAD);
    for (int64_t i = 0; i < n; i++) d->again[i] = 1.0f;
    KVL_TRY(run_rows(c, d, 0, c->n_rows, d->again, true));
    for (int64_t i = 0; i < n; i++) {
        bool pad = i % (c->n_out + PAD) >= c->n_out;
        double want = pad ? 1.0 : d->y[i] + 1.0, got = d->again[i];
        /* The product may be added term by term onto y: another rounding of the running sum. */
        double bound =
            pad ? 0 : result->bound + 4 * 0x1p-24 * (1 + fabs(want)) * sqrt((double)c->n_in);
        if (!(fabs(got - want) <= bound))
            kvl_verify_failed(result, "accumulate: y[%" PRId64 "] = %.9g, not %.9g", i, got, want);
    }
    return KVL_OK;
}

static kvl_status check(const linear_case *c, linear_data *d, kvl_verify_result *result) {
    KVL_TRY(prepare(c, d));
    KVL_TRY(check_weights(c, d, result));
    for (int64_t i = 0; kvl_linear_rounds_weights(d->layer, c->n_rows) && i < c->n_out * c->n_in;
         i++)
        d->w[i] = (float)kvl_verify_round(KVL_BF16, d->w[i]);
    memset(d->y, 0xa5, (size_t)(c->n_rows * (c->n_out + PAD)) * sizeof(float));
    snprintf(result->kernel, sizeof result->kernel, "%s", kvl_linear_kernel(d->layer, c->n_rows));
    KVL_TRY(run_rows(c, d, 0, c->n_rows, d->y, false));
    const uint8_t *bytes = (const uint8_t *)d->y;
    for (int64_t r = 0; r < c->n_rows; r++) {
        for (int64_t o = 0; o < c->n_out; o++) check_value(c, d, r, o, result);
        size_t at = (size_t)(r * (c->n_out + PAD) + c->n_out) * sizeof(float);
        for (size_t i = 0; i < PAD * sizeof(float); i++)
            if (bytes[at + i] != 0xa5)
                kvl_verify_failed(result, "row %" PRId64 ": wrote past %" PRId64 " outputs", r,
                                  c->n_out);
    }
    if (!c->library) KVL_TRY(check_bits(c, d, result));
    return check_accumulate(c, d, result);
}

/* ---- the family -------------------------------------------------------------------------------
 */

static void format_id(const linear_case *c, char *out, size_t out_bytes) {
    snprintf(out, out_bytes,
             "linear/%s/%s/%sc/%" PRId64 "x%" PRId64 "/rows%" PRId64 "/seed%" PRIu64 "%s",
             c->format->name, kvl_isa_name(c->isa), kvl_dtype_name(c->compute), c->n_out, c->n_in,
             c->n_rows, c->seed, c->library ? "/lib" : "");
}

static bool list_shapes(linear_case *c, kvl_verify_level level, kvl_verify_visit visit,
                        void *user) {
    static const int64_t shapes[][3] = {
        {1, 1, 1},     {7, 3, 2},      {64, 64, 1},   {33, 100, 5},  {129, 577, 17},
        {576, 192, 1}, {200, 1536, 3}, {96, 320, 64}, {65, 33, 130}, {48, 4096, 1},
    };
    size_t n = sizeof shapes / sizeof *shapes, step = level == KVL_VERIFY_QUICK ? 2 : 1;
    char id[KVL_VERIFY_ID_BYTES];
    int n_seeds = level == KVL_VERIFY_FULL ? 50 : 1;
    for (int seed = 1; seed <= n_seeds; seed++) {
        for (size_t i = 0; i < n; i += step) {
            c->n_out = shapes[i][0], c->n_in = shapes[i][1], c->n_rows = shapes[i][2];
            c->seed = (uint64_t)seed;
            format_id(c, id, sizeof id);
            if (!visit(user, id)) return false;
        }
    }
    return true;
}

static bool list(const kvl_verify_scope *scope, kvl_verify_visit visit, void *user) {
    for (size_t f = 0; f < kvl_weight_format_count(); f++) {
        for (size_t i = 0; i < scope->n_isas; i++) {
            for (int variant = 0; variant < 4; variant++) {
                linear_case c = {.format = kvl_weight_format_at(f),
                                 .isa = scope->isas[i],
                                 .compute = variant & 1 ? KVL_BF16 : KVL_F32,
                                 .library = variant >= 2};
                /* A library is picked at the settled level only. */
                if (c.library && c.isa != kvl_isa_current()) continue;
                if (!list_shapes(&c, scope->level, visit, user)) return false;
            }
        }
    }
    return true;
}

static kvl_status parse(const char *id, linear_case *c) {
    char format[32], isa[32], compute[32];
    int end = 0;
    memset(c, 0, sizeof *c);
    int n = sscanf(id,
                   "linear/%31[^/]/%31[^/]/%31[^/]/%" SCNd64 "x%" SCNd64 "/rows%" SCNd64
                   "/seed%" SCNu64 "%n",
                   format, isa, compute, &c->n_out, &c->n_in, &c->n_rows, &c->seed, &end);
    c->library = n == 7 && strcmp(id + end, "/lib") == 0;
    size_t letters = n >= 3 ? strlen(compute) : 0;
    if (n != 7 || (id[end] && !c->library) || letters < 2 || compute[letters - 1] != 'c' ||
        c->n_out < 1 || c->n_in < 1 || c->n_rows < 1 || c->n_out > 1 << 18 || c->n_in > 1 << 18 ||
        c->n_rows > 1 << 14)
        return kvl_fail(KVL_ERR_INPUT,
                        "case '%s': must be linear/<weights>/<isa>/<f32|bf16>c/<n_out>x<n_in>/"
                        "rows<n>/seed<n>, /lib at the end allowed",
                        id);
    compute[letters - 1] = '\0';
    if (kvl_weight_format_find(format, &c->format) != KVL_OK ||
        kvl_isa_parse(isa, &c->isa) != KVL_OK || kvl_dtype_parse(compute, &c->compute) != KVL_OK)
        return kvl_fail_prefix(KVL_ERR_INPUT, "case id");
    if (c->compute != KVL_F32 && c->compute != KVL_BF16)
        return kvl_fail(KVL_ERR_INPUT, "case id: compute dtype %s: f32 or bf16", compute);
    return KVL_OK;
}

static kvl_status run(const kvl_verify_scope *scope, const char *id, kvl_verify_result *result) {
    linear_case c;
    linear_data data = {0};
    kvl_isa before = kvl_isa_current();
    KVL_TRY(parse(id, &c));
    if (kvl_isa_force(c.isa) != KVL_OK) {
        kvl_verify_skipped(result, kvl_message());
        return KVL_OK;
    }
    kvl_status status = check(&c, &data, result);
    if (status == KVL_ERR_UNSUPPORTED || status == KVL_ERR_OOM)
        kvl_verify_skipped(result, kvl_message());
    else if (status != KVL_OK)
        kvl_verify_failed(result, "%s", kvl_message());
    release(&data);
    kvl_isa_force(before);
    return KVL_OK;
}

const kvl_verify_family kvl_verify_family_linear = {"linear/", list, run};
