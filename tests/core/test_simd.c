#include "tests/test.h"

#include <math.h>

#include "core/isa.h"
#include "tests/core/simd_probe.h"

typedef struct probe {
    kvl_isa isa;
    int (*width)(void);
    void (*decode[5])(const void *codes, int n, float *out); /* f32 f16 bf16 e4m3 e5m2 */
    void (*encode_bf16)(const float *x, int n, uint16_t *out);
    void (*exp)(const float *x, int n, float *out);
    void (*basics)(const float *x, float *out);
    void (*encode_f16)(const float *x, int n, uint16_t *out);
    void (*tanh)(const float *x, int n, float *out);
    void (*hsum4)(const float *x, float *one, float *four);
    void (*select_below)(const float *x, float limit, float *out);
} probe;

#define PROBE(id, isa) \
    { \
        id, simd_width_##isa, \
            {simd_decode_f32_##isa, simd_decode_f16_##isa, simd_decode_bf16_##isa, \
             simd_decode_e4m3_##isa, simd_decode_e5m2_##isa}, \
            simd_encode_bf16_##isa, simd_exp_##isa, simd_basics_##isa, simd_encode_f16_##isa, \
            simd_tanh_##isa, simd_hsum4_##isa, simd_select_below_##isa \
    }
static const probe probes[] = {PROBE(KVL_ISA_SCALAR, scalar), PROBE(KVL_ISA_AVX2, avx2),
                               PROBE(KVL_ISA_AVX512, avx512)};

/* Value of a small float by its definition: sign, exponent with bias, mantissa. */
static double value_of(unsigned code, int exponent_bits, int mantissa_bits, bool finite_only) {
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    int e = (int)(code >> mantissa_bits) & top, m = (int)code & ((1 << mantissa_bits) - 1);
    double sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
    if (finite_only ? e == top && m == (1 << mantissa_bits) - 1 : e == top && m) return NAN;
    if (!finite_only && e == top) return sign * INFINITY;
    return sign * (e ? ldexp((1 << mantissa_bits) + m, e - bias - mantissa_bits)
                     : ldexp(m, 1 - bias - mantissa_bits));
}

static void same(double want, float got, unsigned code) {
    if (isnan(want) ? !isnan(got) : want != got || !signbit(want) != !signbit(got))
        fail_msg("code %#x: %g, not %g", code, got, want);
}

static void decodes_every_code(const probe *p) {
    static uint16_t wide[65536];
    static uint8_t narrow[256];
    static float out[65536];
    for (unsigned i = 0; i < 65536; i++) wide[i] = (uint16_t)i;
    for (unsigned i = 0; i < 256; i++) narrow[i] = (uint8_t)i;
    p->decode[1](wide, 65536, out);
    for (unsigned i = 0; i < 65536; i++) same(value_of(i, 5, 10, false), out[i], i);
    p->decode[2](wide, 65536, out);
    for (unsigned i = 0; i < 65536; i++) same(value_of(i, 8, 7, false), out[i], i);
    p->decode[3](narrow, 256, out);
    for (unsigned i = 0; i < 256; i++) same(value_of(i, 4, 3, true), out[i], i);
    p->decode[4](narrow, 256, out);
    for (unsigned i = 0; i < 256; i++) same(value_of(i, 5, 2, false), out[i], i);
    for (int n = 0; n < 40; n++) { /* partial vectors: nothing written past n */
        for (int i = 0; i < 41; i++) out[i] = -7;
        p->decode[3](narrow + 40, n, out);
        for (int i = 0; i < n; i++) same(value_of(40u + (unsigned)i, 4, 3, true), out[i], 0);
        assert_true(out[n] == -7);
    }
}

static void rounds_to_bf16(const probe *p) {
    static uint32_t bits[65536 * 4];
    static uint16_t out[65536 * 4];
    const uint32_t low[4] = {0x0001, 0x7fff, 0x8000, 0x8001};
    for (uint32_t i = 0; i < 65536 * 4; i++) bits[i] = (i >> 2) << 16 | low[i & 3];
    p->encode_bf16((const float *)bits, 65536 * 4, out);
    for (uint32_t i = 0; i < 65536 * 4; i++) {
        uint32_t high = i >> 2, want = high;
        if ((high & 0x7f80) == 0x7f80) { /* low bits set: always NaN */
            assert_true((out[i] & 0x7f80) == 0x7f80 && (out[i] & 0x7f));
            continue;
        }
        if ((i & 3) == 3 || ((i & 3) == 2 && (high & 1))) want++;
        if (out[i] != want) fail_msg("%#x -> %#x, not %#x", bits[i], out[i], want);
    }
}

/* Between any two neighbouring f16 values: below, at and above the middle. */
static void rounds_to_f16(const probe *p) {
    for (unsigned code = 0; code < 0x7c00; code++) {
        double low = value_of(code, 5, 10, false);
        double high = code == 0x7bff ? 65536 : value_of(code + 1, 5, 10, false);
        float middle = (float)((low + high) / 2), x[16] = {0};
        uint16_t out[16];
        x[0] = (float)low, x[1] = nextafterf(middle, 0), x[2] = middle;
        x[3] = nextafterf(middle, INFINITY);
        for (int i = 0; i < 4; i++) x[4 + i] = -x[i];
        p->encode_f16(x, 16, out);
        unsigned want[4] = {code, code, code + (code & 1), code + 1};
        for (unsigned i = 0; i < 8; i++) {
            if (out[i] != (want[i & 3] | (i < 4 ? 0 : 0x8000)))
                fail_msg("%g -> %#x, not %#x", (double)x[i], out[i], want[i & 3]);
        }
    }
    float x[16] = {INFINITY, -INFINITY, NAN, 1e30f};
    uint16_t out[16];
    p->encode_f16(x, 16, out);
    assert_true(out[0] == 0x7c00 && out[1] == 0xfc00 && out[3] == 0x7c00);
    assert_true((out[2] & 0x7c00) == 0x7c00 && (out[2] & 0x3ff));
}

static void hyperbolic_tangents(const probe *p) {
    enum { N = 16 * 4096 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = (float)(i - N / 2) * (12.0f / N);
    x[0] = -INFINITY, x[1] = INFINITY, x[2] = NAN, x[3] = 1e-30f;
    p->tanh(x, N, y);
    assert_true(y[0] == -1 && y[1] == 1 && isnan(y[2]) && y[3] == 1e-30f);
    for (int i = 4; i < N; i++) {
        double want = tanh((double)x[i]);
        if (!(fabs(y[i] - want) <= 3e-7 * fabs(want)))
            fail_msg("tanh(%g) = %.9g, not %.9g", (double)x[i], (double)y[i], want);
    }
}

static void sums_and_selects(const probe *p) {
    float x[20], one[4], four[4], out[16];
    for (int i = 0; i < 20; i++) x[i] = 1.0f / (float)(3 + i * i) - 0.07f * (float)i;
    p->hsum4(x, one, four);
    assert_memory_equal(one, four, sizeof one);
    x[1] = NAN;
    p->select_below(x, -0.1f, out);
    for (int i = 0; i < p->width(); i++) assert_true(out[i] == (x[i] < -0.1f ? 1 : 2));
}

static void exponentials(const probe *p) {
    enum { N = 16 * 4096 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = -90.0f + 178.0f * (float)i / N;
    x[0] = -INFINITY;
    x[1] = NAN;
    x[2] = 0.0f;
    p->exp(x, N, y);
    assert_true(y[0] == 0.0f && isnan(y[1]) && y[2] == 1.0f);
    for (int i = 3; i < N; i++) {
        double want = exp((double)x[i]);
        if (x[i] < -87.33654f ? y[i] != 0 : fabs(y[i] - want) > 3e-7 * want)
            fail_msg("exp(%g) = %g, not %g", x[i], y[i], want);
    }
}

static void arithmetic(const probe *p) {
    float x[17] = {1.5f, -2.5f, 3.5f, 0.25f, -7, 8, 9, -10, 2, 4, 6, 8, -1, -3, -5, -7, 2};
    float out[9];
    double want[9] = {0, -INFINITY};
    for (int i = 0; i < p->width(); i++) {
        double a = x[i], b = x[i + 1];
        want[0] += a;
        want[1] = fmax(want[1], a);
        want[2] += a * a + 1;
        want[3] += fmax(a, b);
        want[4] += fmin(a, b);
        want[5] += a - b;
        want[6] += a / b;
        want[7] += nearbyint(a);
        want[8] += a * b;
    }
    p->basics(x, out);
    for (int i = 0; i < 9; i++) assert_true(fabs(out[i] - want[i]) < 1e-4);
}

static void every_set_this_cpu_has(void **state) {
    int n = 0;
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        if (!kvl_isa_has(probes[i].isa)) {
            print_message("[  SKIPPED ] %s: not on this CPU\n", kvl_isa_name(probes[i].isa));
            continue;
        }
        decodes_every_code(&probes[i]);
        rounds_to_bf16(&probes[i]);
        exponentials(&probes[i]);
        arithmetic(&probes[i]);
        rounds_to_f16(&probes[i]);
        hyperbolic_tangents(&probes[i]);
        sums_and_selects(&probes[i]);
        n++;
    }
    assert_true(n >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_set_this_cpu_has)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
