/* KV formats against the definitions of harness/verify/codec.c.
 *
 *   kv/<dtype>/codes          every code (f32: a seeded million) decodes to its value, and encodes
 *                             back to itself; NaN stays NaN
 *   kv/<dtype>/edges          the middle between any two neighbouring values, and the floats beside
 *                             it, rounds to nearest even; saturation is counted
 *   kv/<dtype>/random/seed<n> values of all magnitudes, with a scale
 *   kv/<dtype>/<isa>/bulk/seed<n>  kvl_encode and kvl_decode of an instruction set, every length
 *                             0..67, give the bits of encode and decode
 */
#include "quant/kv_format.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "harness/verify/codec.h"
#include "harness/verify/family.h"
#include "harness/verify/oracle.h"

static bool same_value(double a, double b) {
    return (isnan(a) && isnan(b)) || (a == b && !signbit(a) == !signbit(b));
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Encodes one value and compares code and count with the definition. */
static bool check_encode(const kvl_kv_format *f, float x, float scale, kvl_verify_result *result) {
    uint8_t stored[4] = {0};
    float scaled = x / scale;
    int64_t counted = f->encode(&x, 1, scale, stored);
    uint32_t got = kvl_verify_code_at(f->dtype, stored, 0),
             want = kvl_verify_code(f->dtype, scaled);
    double got_value = kvl_verify_value(f->dtype, got),
           want_value = kvl_verify_value(f->dtype, want);
    result->n_rows++;
    if (!same_value(got_value, want_value))
        kvl_verify_failed(result, "%.9g / %g encodes to code 0x%x (%.9g), not 0x%x (%.9g)",
                          (double)x, (double)scale, got, got_value, want, want_value);
    /* Counted: what saturated (fp8), or overflowed to infinity. An input that is infinite itself,
     * or by its scale, is left out: whether that counts is not defined. */
    bool over = f->dtype == KVL_I8         ? fabs(rint(scaled)) > INT8_MAX
                : f->dtype >= KVL_FP8_E4M3 ? fabs(scaled) > kvl_verify_max_finite(f->dtype)
                                           : isinf(want_value);
    if (isfinite(scaled) && counted != over)
        kvl_verify_failed(result, "%.9g / %g: counted %" PRId64 " saturated values", (double)x,
                          (double)scale, counted);
    return result->state == KVL_VERIFY_PASS;
}

static void check_codes(const kvl_kv_format *f, kvl_verify_result *result) {
    int bits = 8 * (int)kvl_dtype_bytes(f->dtype);
    int64_t n = bits < 32 ? (int64_t)1 << bits : 1 << 20;
    kvl_rng rng = kvl_rng_make(1, 1);
    for (int64_t i = 0; i < n && result->state == KVL_VERIFY_PASS; i++) {
        uint32_t code = bits < 32 ? (uint32_t)i : (uint32_t)kvl_rng_u64(&rng);
        uint8_t stored[4], back[4] = {0};
        float value;
        kvl_verify_code_put(f->dtype, stored, 0, code);
        f->decode(stored, 1, 1.0f, &value);
        double want = kvl_verify_value(f->dtype, code);
        if (!same_value(value, want))
            kvl_verify_failed(result, "code 0x%x decodes to %.9g, not %.9g", code, (double)value,
                              want);
        f->encode(&value, 1, 1.0f, back);
        uint32_t again = kvl_verify_code_at(f->dtype, back, 0);
        /* fp8_e5m2 has infinities that no number encodes to: they saturate. */
        if (f->dtype == KVL_I8 && code == 0x80) continue; /* -128 decodes, but nothing makes it */
        bool exact = isnan(want)   ? isnan(kvl_verify_value(f->dtype, again))
                     : isinf(want) ? again == kvl_verify_code(f->dtype, want)
                                   : again == code;
        if (!exact)
            kvl_verify_failed(result, "code 0x%x (%.9g) encodes back to 0x%x", code, want, again);
        result->n_rows++;
    }
}

static void check_edges(const kvl_kv_format *f, kvl_verify_result *result) {
    uint32_t top = kvl_verify_code(f->dtype, kvl_verify_max_finite(f->dtype));
    if (f->dtype == KVL_F32) top = 0; /* float32 itself: nothing lies between its values */
    for (uint32_t code = 0; code < top; code++) {
        double low = kvl_verify_value(f->dtype, code), high = kvl_verify_value(f->dtype, code + 1);
        float middle = (float)((low + high) / 2);
        float around[3] = {middle, nextafterf(middle, INFINITY), nextafterf(middle, 0)};
        for (int i = 0; i < 6; i++)
            if (!check_encode(f, i < 3 ? around[i] : -around[i - 3], 1.0f, result)) return;
    }
    float max = (float)kvl_verify_max_finite(f->dtype), half_ulp = max * (float)f->half_ulp;
    const float special[] = {0.0f,
                             max,
                             nextafterf(max, INFINITY),
                             max + half_ulp / 2,
                             max + half_ulp,
                             max + 2 * half_ulp,
                             2 * max,
                             INFINITY,
                             NAN,
                             1e-45f};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        if (!check_encode(f, special[i], 1.0f, result)) return;
        if (!check_encode(f, -special[i], 1.0f, result)) return;
    }
}

static void check_random(const kvl_kv_format *f, uint64_t seed, kvl_verify_result *result) {
    static const float scales[] = {1.0f, 0.37f, 3.0f, 0x1p-10f};
    kvl_rng rng = kvl_rng_make(seed, 2);
    for (int i = 0; i < 200000; i++) {
        /* Any bits, or a normal of a magnitude that the format can hold. */
        float x = i % 2 ? float_of((uint32_t)kvl_rng_u64(&rng))
                        : kvl_rng_normal(&rng) * ldexpf(1.0f, (int)kvl_rng_below(&rng, 40) - 24);
        if (!check_encode(f, x, scales[i % 4], result)) return;
    }
}

static void check_bulk(const kvl_kv_format *f, uint64_t seed, kvl_verify_result *result) {
    enum { MAX = 67, GUARD = 8 };
    float in[MAX], out[MAX + GUARD], want_out[MAX];
    uint8_t codes[4 * (MAX + GUARD)], want[4 * MAX];
    kvl_rng rng = kvl_rng_make(seed, 3);
    size_t size = kvl_dtype_bytes(f->dtype);
    for (int n = 0; n <= MAX && result->state == KVL_VERIFY_PASS; n++) {
        float scale = n % 3 ? 1.0f : 0.37f;
        for (int i = 0; i < n; i++)
            in[i] = i % 5 == 4
                        ? float_of((uint32_t)kvl_rng_u64(&rng))
                        : kvl_rng_normal(&rng) * ldexpf(1.0f, (int)kvl_rng_below(&rng, 24) - 12);
        memset(codes, 0xa5, sizeof codes);
        memset(out, 0xa5, sizeof out);
        int64_t want_count = f->encode(in, n, scale, want);
        int64_t count = kvl_encode(f->dtype, in, n, scale, codes);
        if (count != want_count || memcmp(codes, want, (size_t)n * size) != 0)
            kvl_verify_failed(result, "kvl_encode of %d values with scale %g is not encode's", n,
                              (double)scale);
        f->decode(want, n, scale, want_out);
        kvl_decode(f->dtype, want, n, scale, out);
        for (int i = 0; i < n; i++)
            if (!same_value(out[i], want_out[i]))
                kvl_verify_failed(result, "kvl_decode of %d values: [%d] is %.9g, not %.9g", n, i,
                                  (double)out[i], (double)want_out[i]);
        uint8_t guard[4 * GUARD];
        memset(guard, 0xa5, sizeof guard);
        if (memcmp(codes + (size_t)n * size, guard, GUARD * size) != 0 ||
            memcmp(out + n, guard, sizeof guard) != 0)
            kvl_verify_failed(result, "wrote past %d values", n);
        result->n_rows += n;
    }
}

/* ---- the family -------------------------------------------------------------------------------
 */

static bool list(const kvl_verify_scope *scope, kvl_verify_visit visit, void *user) {
    int n_seeds = scope->level == KVL_VERIFY_QUICK ? 1 : scope->level == KVL_VERIFY_FULL ? 20 : 3;
    char id[64];
    for (size_t i = 0; i < scope->n_kv_dtypes; i++) {
        const char *name = kvl_dtype_name(scope->kv_dtypes[i]);
        for (int part = 0; part < 2 && !scope->by_isa; part++) {
            snprintf(id, sizeof id, "kv/%s/%s", name, part ? "edges" : "codes");
            if (!visit(user, id)) return false;
        }
        for (int seed = 1; seed <= n_seeds; seed++) {
            snprintf(id, sizeof id, "kv/%s/random/seed%d", name, seed);
            if (!scope->by_isa && !visit(user, id)) return false;
            for (size_t j = 0; j < scope->n_isas; j++) {
                snprintf(id, sizeof id, "kv/%s/%s/bulk/seed%d", name, kvl_isa_name(scope->isas[j]),
                         seed);
                if (!visit(user, id)) return false;
            }
        }
    }
    return true;
}

static kvl_status wrong(const char *id) {
    return kvl_fail(KVL_ERR_INPUT,
                    "case '%s': must be kv/<dtype>/codes, /edges, /random/seed<n> or "
                    "/<isa>/bulk/seed<n>",
                    id);
}

static kvl_status run_bulk(const kvl_kv_format *f, const char *id, const char *isa_name,
                           uint64_t seed, kvl_verify_result *result) {
    kvl_isa isa, before = kvl_isa_current();
    if (kvl_isa_parse(isa_name, &isa) != KVL_OK) return kvl_fail_prefix(KVL_ERR_INPUT, "case id");
    if (kvl_isa_force(isa) != KVL_OK) {
        kvl_verify_skipped(result, kvl_message());
        return KVL_OK;
    }
    check_bulk(f, seed, result);
    kvl_isa_force(before);
    return KVL_OK;
}

static kvl_status run(const kvl_verify_scope *scope, const char *id, kvl_verify_result *result) {
    char name[32], part[32], rest[64] = "";
    const kvl_kv_format *f;
    uint64_t seed = 0;
    int end = 0, n = sscanf(id, "kv/%31[^/]/%31[^/]/%63s", name, part, rest);
    if (n < 2) return wrong(id);
    if (kvl_kv_format_find(name, &f) != KVL_OK) return kvl_fail_prefix(KVL_ERR_INPUT, "case id");
    if (n == 2 && strcmp(part, "codes") == 0)
        check_codes(f, result);
    else if (n == 2 && strcmp(part, "edges") == 0)
        check_edges(f, result);
    else if (n == 3 && strcmp(part, "random") == 0 &&
             sscanf(rest, "seed%" SCNu64 "%n", &seed, &end) == 1 && !rest[end])
        check_random(f, seed, result);
    else if (n == 3 && sscanf(rest, "bulk/seed%" SCNu64 "%n", &seed, &end) == 1 && !rest[end])
        return run_bulk(f, id, part, seed, result);
    else
        return wrong(id);
    return KVL_OK;
}

const kvl_verify_family kvl_verify_family_kv = {"kv/", list, run};
