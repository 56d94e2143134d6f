#include "tests/golden_file.h"

#include <math.h>

#include "core/isa.h"
#include "core/rng.h"
#include "quant/kv_format.h"

static const kvl_isa isas[] = {KVL_ISA_SCALAR, KVL_ISA_AVX2, KVL_ISA_AVX512};
enum { N_ISAS = sizeof isas / sizeof *isas };

/* ---- the oracle: values by the formats' definitions, in double ------------------------------ */

typedef struct small_float {
    int exponent_bits, mantissa_bits;
    int finite_only; /* e4m3fn: the top exponent holds values, one NaN */
    int saturates;
} small_float;

static const small_float layouts[] = {
    [KVL_F16] = {5, 10, 0, 0},
    [KVL_BF16] = {8, 7, 0, 0},
    [KVL_FP8_E4M3] = {4, 3, 1, 1},
    [KVL_FP8_E5M2] = {5, 2, 0, 1},
};

static double value_of(const small_float *f, unsigned code) {
    int bias = (1 << (f->exponent_bits - 1)) - 1, top = (1 << f->exponent_bits) - 1;
    int e = (int)(code >> f->mantissa_bits) & top, m = (int)code & ((1 << f->mantissa_bits) - 1);
    double sign = code >> (f->exponent_bits + f->mantissa_bits) & 1 ? -1 : 1;
    if (f->finite_only ? e == top && m == (1 << f->mantissa_bits) - 1 : e == top && m) return NAN;
    if (!f->finite_only && e == top) return sign * INFINITY;
    return sign * (e ? ldexp((1 << f->mantissa_bits) + m, e - bias - f->mantissa_bits)
                     : ldexp(m, 1 - bias - f->mantissa_bits));
}

/* Nearest value by binary search over the positive codes, ties to the even code. *over: saturated,
 * or a finite value that became infinite. */
static double nearest(const small_float *f, double x, int *over) {
    *over = 0;
    if (isnan(x)) return NAN;
    unsigned top = 1u << (f->exponent_bits + f->mantissa_bits); /* past the positive codes */
    unsigned largest = f->finite_only ? top - 2 : top - (1u << f->mantissa_bits) - 1;
    double a = fabs(x), most = value_of(f, largest);
    if (f->saturates && a > most) {
        *over = 1;
        return copysign(most, x);
    }
    if (isinf(x)) return x;
    unsigned low = 0, high = largest;
    while (low < high) { /* largest code whose value is at most a */
        unsigned middle = (low + high + 1) / 2;
        if (value_of(f, middle) <= a) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    double below = value_of(f, low);
    /* Past the largest value, the next step up is where infinity begins to be nearer. */
    double above = low < largest ? value_of(f, low + 1) : below + (below - value_of(f, low - 1));
    int up = a - below > above - a || (a - below == above - a && (low & 1));
    if (up && low == largest) {
        *over = 1;
        return copysign(INFINITY, x);
    }
    return copysign(up ? above : below, x);
}

/* ---- one value ------------------------------------------------------------------------------ */

static unsigned encode_one(kvl_dtype dtype, float x) {
    switch (dtype) {
    case KVL_F16:
        return kvl_f32_to_f16(x);
    case KVL_BF16:
        return kvl_f32_to_bf16(x);
    case KVL_FP8_E4M3:
        return kvl_f32_to_e4m3(x);
    default:
        return kvl_f32_to_e5m2(x);
    }
}

static float decode_one(kvl_dtype dtype, unsigned code) {
    switch (dtype) {
    case KVL_F16:
        return kvl_f16_to_f32((uint16_t)code);
    case KVL_BF16:
        return kvl_bf16_to_f32((uint16_t)code);
    case KVL_FP8_E4M3:
        return kvl_e4m3_to_f32((uint8_t)code);
    default:
        return kvl_e5m2_to_f32((uint8_t)code);
    }
}

static int same_value(double want, double got) {
    return isnan(want) ? isnan(got) : want == got && !signbit(want) == !signbit(got);
}

static void check_one(kvl_dtype dtype, float x) {
    int over;
    int64_t counted;
    uint16_t bulk = 0;
    double want = nearest(&layouts[dtype], x, &over);
    unsigned code = encode_one(dtype, x);
    if (!same_value(want, decode_one(dtype, code)))
        fail_msg("%s: %a -> %#x = %a, not %a", kvl_dtype_name(dtype), x, code,
                 decode_one(dtype, code), want);
    counted = kvl_kv_format_of(dtype)->encode(&x, 1, 1.0f, &bulk);
    if (counted != over || bulk != code)
        fail_msg("%s: %a: counted %d, not %d", kvl_dtype_name(dtype), x, (int)counted, over);
}

static void every_code_decodes_and_returns(void **state) {
    for (kvl_dtype d = KVL_F16; d <= KVL_FP8_E5M2; d++) {
        unsigned n = 1u << 8 * kvl_dtype_bytes(d);
        for (unsigned code = 0; code < n; code++) {
            double want = value_of(&layouts[d], code);
            float got = decode_one(d, code);
            if (!same_value(want, got)) fail_msg("%s %#x = %a", kvl_dtype_name(d), code, got);
            int saturating_inf = isinf(want) && layouts[d].saturates;
            if (!isnan(want) && !saturating_inf) assert_int_equal(encode_one(d, got), code);
            if (isnan(want)) { /* stays NaN, with its sign */
                assert_true(isnan(decode_one(d, encode_one(d, got))));
                assert_int_equal(encode_one(d, got) >> (8 * kvl_dtype_bytes(d) - 1),
                                 code >> (8 * kvl_dtype_bytes(d) - 1));
            }
        }
    }
}

/* The value halfway between each two neighbours, and its float32 neighbours on both sides. */
static void ties_go_to_even(void **state) {
    for (kvl_dtype d = KVL_F16; d <= KVL_FP8_E5M2; d++) {
        unsigned n = 1u << (8 * kvl_dtype_bytes(d) - 1);
        for (unsigned code = 0; code + 1 < n; code++) {
            double low = value_of(&layouts[d], code), high = value_of(&layouts[d], code + 1);
            if (isnan(low) || isnan(high) || isinf(low)) continue;
            if (isinf(high)) high = 2 * low - value_of(&layouts[d], code - 1);
            float middle = (float)(0.5 * low + 0.5 * high);
            for (int sign = -1; sign <= 1; sign += 2) {
                check_one(d, (float)sign * middle);
                check_one(d, (float)sign * nextafterf(middle, 0));
                check_one(d, (float)sign * nextafterf(middle, INFINITY));
            }
        }
    }
}

/* Any float32 pattern: all exponents, subnormals, infinities and NaN come up. */
static void random_patterns(void **state) {
    kvl_rng rng = kvl_rng_make(11, 0);
    for (kvl_dtype d = KVL_F16; d <= KVL_FP8_E5M2; d++) {
        for (int i = 0; i < 200000; i++) {
            uint32_t bits = (uint32_t)kvl_rng_u64(&rng);
            float x;
            memcpy(&x, &bits, 4);
            check_one(d, x);
            check_one(d, ldexpf(x - truncf(x), (int)kvl_rng_below(&rng, 48) - 30));
        }
        const float edges[] = {0.0f,
                               -0.0f,
                               INFINITY,
                               -INFINITY,
                               NAN,
                               448,
                               448.001f,
                               464,
                               465,
                               57344,
                               57345,
                               61440,
                               65504,
                               65519.996f,
                               65520,
                               65536,
                               3.4e38f,
                               0x1.feffffp127f,
                               0x1.fffffep127f,
                               0x1p-149f,
                               0x1p-126f};
        for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
            check_one(d, edges[i]);
            check_one(d, -edges[i]);
        }
    }
}

/* int8: the nearest integer, ties to even, -127 to 127; NaN has no code, becomes 0 and is counted.
 */
static void check_int8(float x) {
    double n = isnan(x) ? 0 : rint(fmin(fmax((double)x, -127), 127));
    int over = isnan(x) || fabs(rint((double)x)) > 127;
    int8_t bulk;
    int64_t counted = kvl_kv_format_of(KVL_I8)->encode(&x, 1, 1.0f, &bulk);
    if (kvl_f32_to_int8(x) != (int8_t)n || bulk != (int8_t)n || counted != over)
        fail_msg("int8: %a -> %d, %d, counted %d; not %g, %d", x, kvl_f32_to_int8(x), bulk,
                 (int)counted, n, over);
}

static void int8_is_the_nearest_integer(void **state) {
    kvl_rng rng = kvl_rng_make(13, 0);
    for (int code = -128; code <= 127; code++) {
        int8_t stored = (int8_t)code;
        float x;
        kvl_kv_format_of(KVL_I8)->decode(&stored, 1, 1.0f, &x);
        assert_true(x == (float)code);
        if (code > -128) assert_int_equal(kvl_f32_to_int8(x), code);
        for (int i = -2; i <= 2; i++) { /* the middle between two integers, and beside it */
            float y = x + 0.5f;
            for (int j = 0; j < abs(i); j++) y = nextafterf(y, i < 0 ? -INFINITY : INFINITY);
            check_int8(y);
        }
    }
    for (unsigned i = 0; i < 65536; i++) {
        check_int8(kvl_f16_to_f32((uint16_t)i));
        check_int8(kvl_bf16_to_f32((uint16_t)i));
    }
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)kvl_rng_u64(&rng);
        float x;
        memcpy(&x, &bits, 4);
        check_int8(x);
        check_int8(kvl_rng_normal(&rng) * 60.0f);
    }
}

/* ---- torch's conversions -------------------------------------------------------------------- */

static void compare_torch(const golden_file *golden, const char *name, kvl_dtype from,
                          const void *source, int64_t n_source, kvl_dtype to, float limit) {
    uint64_t bytes;
    const uint8_t *want = golden_bytes(golden, name, &bytes);
    int64_t size = (int64_t)kvl_dtype_bytes(to), n = (int64_t)bytes / size, compared = 0;
    assert_int_equal(n, n_source);
    float *x = malloc(sizeof *x * (size_t)n);
    uint8_t *got = malloc(bytes);
    kvl_decode(from, source, n, 1.0f, x);
    kvl_encode(to, x, n, 1.0f, got);
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(x[i]) > limit) continue; /* torch has infinity where kvlab saturates */
        unsigned w = 0, g = 0;
        memcpy(&w, want + i * size, (size_t)size);
        memcpy(&g, got + i * size, (size_t)size);
        if (isnan(x[i]) ? !isnan(decode_one(to, g)) : w != g)
            fail_msg("%s[%lld]: %a -> %#x, not %#x", name, (long long)i, x[i], g, w);
        compared++;
    }
    assert_true(compared > n / 8);
    free(x);
    free(got);
}

static void matches_torch(void **state) {
    static uint16_t wide[65536];
    for (unsigned i = 0; i < 65536; i++) wide[i] = (uint16_t)i;
    golden_file golden = golden_open("fp8");
    int64_t n;
    float *f32 = golden_copy(&golden, "f32", 4, &n);
    const float any = INFINITY, in_range = 57344.0f;
    for (size_t k = 0; k < N_ISAS; k++) {
        if (kvl_isa_force(isas[k]) != KVL_OK) continue;
        compare_torch(&golden, "bfloat16_to_float8_e4m3fn", KVL_BF16, wide, 65536, KVL_FP8_E4M3,
                      any);
        compare_torch(&golden, "bfloat16_to_float8_e5m2", KVL_BF16, wide, 65536, KVL_FP8_E5M2,
                      in_range);
        compare_torch(&golden, "float16_to_float8_e4m3fn", KVL_F16, wide, 65536, KVL_FP8_E4M3, any);
        compare_torch(&golden, "float16_to_float8_e5m2", KVL_F16, wide, 65536, KVL_FP8_E5M2,
                      in_range);
        compare_torch(&golden, "f32_to_e4m3fn", KVL_F32, f32, n, KVL_FP8_E4M3, any);
        compare_torch(&golden, "f32_to_e5m2", KVL_F32, f32, n, KVL_FP8_E5M2, in_range);
        compare_torch(&golden, "f32_to_bf16", KVL_F32, f32, n, KVL_BF16, any);
        compare_torch(&golden, "f32_to_f16", KVL_F32, f32, n, KVL_F16, any);
    }
    free(f32);
    const char *names[] = {"float8_e4m3fn_to_f32", "float8_e5m2_to_f32"};
    for (int f = 0; f < 2; f++) {
        float *want = golden_copy(&golden, names[f], 4, &n);
        assert_int_equal(n, 256);
        for (unsigned i = 0; i < 256; i++)
            assert_true(same_value(want[i], decode_one(f ? KVL_FP8_E5M2 : KVL_FP8_E4M3, i)));
        free(want);
    }
    golden_close(&golden);
}

/* ---- bulk ----------------------------------------------------------------------------------- */

enum { N = 1 << 18 };

/* Bulk and definition agree to the bit, NaN payloads and counts included, for every isa and scale.
 */
static void bulk_is_the_definition(void **state) {
    static float x[N], y[N], z[N];
    static uint8_t a[4 * N], b[4 * N];
    kvl_rng rng = kvl_rng_make(12, 0);
    for (int i = 0; i < N; i++) {
        uint32_t bits = (uint32_t)kvl_rng_u64(&rng);
        memcpy(&x[i], &bits, 4);
        if (i & 1) x[i] = kvl_rng_normal(&rng) * 100.0f;
    }
    const float scales[] = {1.0f, 0.25f, 0.0123f, 3.7f};
    for (size_t k = 0; k < N_ISAS; k++) {
        if (kvl_isa_force(isas[k]) != KVL_OK) {
            print_message("[  SKIPPED ] %s: not on this CPU\n", kvl_isa_name(isas[k]));
            continue;
        }
        for (size_t f = 0; f < kvl_kv_format_count(); f++) {
            const kvl_kv_format *format = kvl_kv_format_at(f);
            for (int s = 0; s < 4; s++) {
                int64_t want = format->encode(x, N, scales[s], a);
                assert_int_equal(kvl_encode(format->dtype, x, N, scales[s], b), want);
                assert_memory_equal(a, b, N * kvl_dtype_bytes(format->dtype));
                format->decode(a, N, scales[s], y);
                kvl_decode(format->dtype, a, N, scales[s], z);
                assert_memory_equal(y, z, sizeof y);
            }
        }
    }
}

/* All codes of a format in bulk, and every length up to 70 with nothing written past the end. */
static void lengths_and_codes(void **state) {
    static uint16_t codes[65536];
    static uint8_t bytes[65536];
    static float y[65536], z[65536];
    for (unsigned i = 0; i < 65536; i++) codes[i] = (uint16_t)i, bytes[i] = (uint8_t)i;
    for (size_t k = 0; k < N_ISAS; k++) {
        if (kvl_isa_force(isas[k]) != KVL_OK) continue;
        for (kvl_dtype d = KVL_F16; d <= KVL_KV_DTYPE_LAST; d++) {
            const void *src = kvl_dtype_bytes(d) == 2 ? (void *)codes : (void *)bytes;
            kvl_decode(d, src, 65536, 1.0f, y);
            kvl_kv_format_of(d)->decode(src, 65536, 1.0f, z);
            assert_memory_equal(y, z, sizeof y);
            for (int n = 0; n <= 70; n++) {
                uint8_t out[2 * 71], want[2 * 71];
                memset(out, 0xa5, sizeof out);
                memset(want, 0xa5, sizeof want);
                kvl_encode(d, y + 256, n, 1.0f, out);
                kvl_kv_format_of(d)->encode(y + 256, n, 1.0f, want);
                assert_memory_equal(out, want, sizeof out);
            }
        }
    }
}

/* Stored codes are those of x / scale, values codes * scale; the error stays in declared bounds. */
static void scales_and_error_bounds(void **state) {
    kvl_rng rng = kvl_rng_make(13, 0);
    for (size_t f = 0; f < kvl_kv_format_count(); f++) {
        const kvl_kv_format *format = kvl_kv_format_at(f);
        for (int i = 0; i < 20000; i++) {
            float scale = ldexpf(1.0f, (int)kvl_rng_below(&rng, 9) - 4), value;
            float x = ldexpf(kvl_rng_normal(&rng), (int)kvl_rng_below(&rng, 24) - 18);
            uint32_t code = 0;
            if (format->encode(&x, 1, scale, &code)) continue;
            format->decode(&code, 1, scale, &value);
            double allowed = fmax(format->half_ulp * fabs((double)x), format->abs_error * scale);
            assert_true(fabs((double)value - x) <= allowed);
        }
        float most = format->max_finite, back;
        uint32_t code = 0;
        assert_int_equal(format->encode(&most, 1, 1.0f, &code), 0);
        format->decode(&code, 1, 1.0f, &back);
        assert_true(back == most);
    }
}

static void registry(void **state) {
    const kvl_kv_format *format;
    assert_int_equal(kvl_kv_format_count(), 6);
    for (size_t i = 0; i < 6; i++) {
        const kvl_kv_format *at = kvl_kv_format_at(i);
        assert_string_equal(at->name, kvl_dtype_name(at->dtype));
        assert_ok(kvl_kv_format_find(at->name, &format));
        assert_ptr_equal(format, at);
        assert_ptr_equal(kvl_kv_format_of(at->dtype), at);
    }
    assert_null(kvl_kv_format_at(6));
    assert_null(kvl_kv_format_of(KVL_F64));
    assert_refused(kvl_kv_format_find("fp8_e4m", &format), KVL_ERR_INPUT, "fp8_e4m3");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_code_decodes_and_returns),
                                       cmocka_unit_test(ties_go_to_even),
                                       cmocka_unit_test(random_patterns),
                                       cmocka_unit_test(int8_is_the_nearest_integer),
                                       cmocka_unit_test(matches_torch),
                                       cmocka_unit_test(bulk_is_the_definition),
                                       cmocka_unit_test(lengths_and_codes),
                                       cmocka_unit_test(scales_and_error_bounds),
                                       cmocka_unit_test(registry)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
