#include "harness/verify/codec.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef struct float_format {
    int exp_bits, man_bits, bias;
    bool finite_only; /* e4m3: the top exponent holds numbers; only all ones is NaN */
    bool saturates;
} float_format;

static const float_format formats[] = {
    [KVL_F32] = {8, 23, 127, false, false},   [KVL_F16] = {5, 10, 15, false, false},
    [KVL_BF16] = {8, 7, 127, false, false},   [KVL_FP8_E4M3] = {4, 3, 7, true, true},
    [KVL_FP8_E5M2] = {5, 2, 15, false, true}, [KVL_I8] = {0}, /* an integer: see below */
};

/* Shared by every code of NaN or beyond: exponent and mantissa bits all ones. */
static uint32_t all_ones(const float_format *f) {
    return (1u << (f->exp_bits + f->man_bits)) - 1;
}

static uint32_t max_code(const float_format *f) {
    return f->finite_only ? all_ones(f) - 1 : all_ones(f) - (1u << f->man_bits);
}

/* The CPU's own float32 is IEEE 754 binary32; the general way is 20 times slower. */
static float float_of(uint32_t code) {
    float x;
    memcpy(&x, &code, sizeof x);
    return x;
}

/* 2^n by its bits, for n in the range of normal numbers; ldexp is a slow call. */
static double pow2(int n) {
    uint64_t bits = (uint64_t)(1023 + n) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

double kvl_verify_value(kvl_dtype dtype, uint32_t code) {
    const float_format *f = &formats[dtype];
    if (dtype == KVL_F32) return float_of(code);
    if (dtype == KVL_I8) return (double)(int8_t)(uint8_t)code;
    uint32_t magnitude = code & all_ones(f), mantissa = magnitude & ((1u << f->man_bits) - 1);
    int exponent = (int)(magnitude >> f->man_bits);
    double sign = code >> (f->exp_bits + f->man_bits) & 1 ? -1.0 : 1.0;
    if (magnitude > max_code(f)) {
        bool infinity = !f->finite_only && mantissa == 0;
        return sign * (infinity ? (double)INFINITY : (double)NAN);
    }
    if (exponent == 0) return sign * mantissa * pow2(1 - f->bias - f->man_bits);
    return sign * ((double)mantissa + (1u << f->man_bits)) * pow2(exponent - f->bias - f->man_bits);
}

double kvl_verify_max_finite(kvl_dtype dtype) {
    if (dtype == KVL_I8) return INT8_MAX;
    return kvl_verify_value(dtype, max_code(&formats[dtype]));
}

/* -127 to 127, ties to even; -128 is no code, and NaN, which has none, becomes 0. */
static uint32_t integer_code(double x) {
    double n = isnan(x) ? 0 : rint(fmin(fmax(x, -INT8_MAX), INT8_MAX));
    return (uint8_t)(int8_t)n;
}

uint32_t kvl_verify_code(kvl_dtype dtype, double x) {
    if (dtype == KVL_I8) return integer_code(x);
    const float_format *f = &formats[dtype];
    uint32_t sign = signbit(x) ? 1u << (f->exp_bits + f->man_bits) : 0;
    double magnitude = fabs(x);
    if (isnan(x))
        return sign | (f->finite_only ? all_ones(f) : max_code(f) + 1) | 1u << (f->man_bits - 1);
    if (magnitude == 0) return sign;
    uint32_t over = f->saturates ? max_code(f) : max_code(f) + 1;
    if (isinf(x) || (f->saturates && magnitude > kvl_verify_max_finite(dtype))) return sign | over;
    if (dtype == KVL_F32) {
        float single = (float)x;
        uint32_t bits;
        memcpy(&bits, &single, sizeof bits);
        return bits;
    }
    uint64_t bits;
    memcpy(&bits, &magnitude, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023, lowest = 1 - f->bias; /* subnormal: far below lowest */
    if (exponent < lowest) exponent = lowest;
    /* In units of the last place; rint rounds to nearest even, and a carry into the next binade is
     * a carry of the code. */
    double units = rint(magnitude * pow2(f->man_bits - exponent));
    double top = pow2(f->man_bits);
    if (units < top) return sign | (uint32_t)units;
    if (exponent + f->bias > (int)(max_code(f) >> f->man_bits)) return sign | over;
    uint32_t code = ((uint32_t)(exponent + f->bias) << f->man_bits) + (uint32_t)(units - top);
    return sign | (code > max_code(f) ? over : code);
}

double kvl_verify_round(kvl_dtype dtype, double x) {
    if (dtype == KVL_F64) return x;
    if (dtype == KVL_F32) return (double)(float)x;
    return kvl_verify_value(dtype, kvl_verify_code(dtype, x));
}

uint32_t kvl_verify_code_at(kvl_dtype dtype, const void *codes, int64_t index) {
    uint32_t code = 0;
    size_t bytes = kvl_dtype_bytes(dtype);
    memcpy(&code, (const uint8_t *)codes + (size_t)index * bytes, bytes);
    return code;
}

void kvl_verify_code_put(kvl_dtype dtype, void *codes, int64_t index, uint32_t code) {
    size_t bytes = kvl_dtype_bytes(dtype);
    memcpy((uint8_t *)codes + (size_t)index * bytes, &code, bytes);
}
