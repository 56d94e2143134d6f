#include "core/device_kernels.h"

#include "core/simd.h"

/* Sum of squares of n floats: four running vectors, then a fixed tree. */
static float sum_of_squares(const float *x, int64_t n) {
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * KVL_VL <= n; i += 4 * KVL_VL) {
        for (int k = 0; k < 4; k++) {
            vf a = vf_load_f32(x + i + k * KVL_VL);
            sum[k] = vf_fma(a, a, sum[k]);
        }
    }
    for (; i + KVL_VL <= n; i += KVL_VL) {
        vf a = vf_load_f32(x + i);
        sum[0] = vf_fma(a, a, sum[0]);
    }
    vf rest = vf_load_f32_n(x + i, (int)(n - i));
    sum[1] = vf_fma(rest, rest, sum[1]);
    return vf_hsum(vf_add(vf_add(sum[0], sum[2]), vf_add(sum[1], sum[3])));
}

static void normalise(const float *x, const float *weight, float eps, int64_t dim, float *out) {
    double mean = (double)sum_of_squares(x, dim) / (double)dim;
    vf factor = vf_set1((float)(1.0 / sqrt(mean + (double)eps)));
    int64_t i = 0;
    for (; i + KVL_VL <= dim; i += KVL_VL)
        vf_store(out + i, vf_mul(vf_mul(vf_load_f32(x + i), factor), vf_load_f32(weight + i)));
    int n = (int)(dim - i);
    vf rest = vf_mul(vf_load_f32_n(x + i, n), factor);
    vf_store_n(out + i, vf_mul(rest, vf_load_f32_n(weight + i, n)), n);
}

static void rmsnorm(const void *args, int64_t first, int64_t last) {
    const kvl_rmsnorm_args *a = args;
    for (int64_t row = first; row < last; row++) {
        for (int64_t g = 0; g < a->groups; g++)
            normalise(a->x + row * a->x_stride + g * a->dim, a->weight, a->eps, a->dim,
                      a->out + row * a->out_stride + g * a->dim);
    }
}

/* ---- rope ----------------------------------------------------------------------------------- */

static int64_t as_i64(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double as_f64(int64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* cos and sin of float32 angles, right to the last float32 bit but for near ties, |angle| < 2^24:
 * the quadrant is subtracted in double, where Taylor terms up to r^12 leave 1e-11. Branch-free, so
 * that it becomes vectors: a call into libm for each angle was the slowest part of a long prefill.
 */
static void cos_sin(const float *angles, int n, float *restrict cos_out, float *restrict sin_out) {
    const double two_over_pi = 0x1.45f306dc9c883p-1, magic = 0x1.8p52; /* rounds to an integer */
    const double half_pi_high = 0x1.921fb544p0, half_pi_low = 0x1.0b4611a626331p-34;
    for (int i = 0; i < n; i++) {
        double x = (double)angles[i], shifted = x * two_over_pi + magic, turns = shifted - magic;
        double r = (x - turns * half_pi_high) - turns * half_pi_low, z = r * r;
        double s =
            r + r * z *
                    (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 +
                                                      z * (1.0 / 362880 + z * (-1.0 / 39916800)))));
        double c =
            1.0 + z * (-1.0 / 2 +
                       z * (1.0 / 24 +
                            z * (-1.0 / 720 + z * (1.0 / 40320 +
                                                   z * (-1.0 / 3628800 + z * (1.0 / 479001600))))));
        /* Quadrant q: sin is s, c, -s, -c and cos is c, -s, -c, s. */
        int64_t q = as_i64(shifted), swap = -(q & 1);
        int64_t sin_bits = (as_i64(s) & ~swap) | (as_i64(c) & swap);
        int64_t cos_bits = (as_i64(c) & ~swap) | (as_i64(s) & swap);
        sin_out[i] = (float)as_f64(sin_bits ^ (int64_t)((uint64_t)(q & 2) << 62));
        cos_out[i] = (float)as_f64(cos_bits ^ (int64_t)((uint64_t)((q + 1) & 2) << 62));
    }
}

/* Rounds as x * cos + rotated(x) * sin does in float32: two products, one sum. */
static void rotate(float *restrict low, float *restrict high, const float *restrict c,
                   const float *restrict s, int n) {
    for (int i = 0; i < n; i++) {
        float a = low[i], b = high[i];
        low[i] = a * c[i] - b * s[i];
        high[i] = b * c[i] + a * s[i];
    }
}

static void rope(const void *args, int64_t first, int64_t last) {
    enum { BLOCK = 128 };
    const kvl_rope_args *a = args;
    int half = a->head_dim / 2;
    float angles[BLOCK], c[BLOCK], s[BLOCK];
    for (int64_t row = first; row < last; row++) {
        float position = (float)a->positions[row];
        for (int i = 0; i < half; i += BLOCK) {
            int n = half - i < BLOCK ? half - i : BLOCK;
            for (int k = 0; k < n; k++) angles[k] = position * a->inv_freq[i + k];
            cos_sin(angles, n, c, s);
            for (int h = 0; h < a->n_heads; h++) {
                float *head = a->x + row * a->x_stride + (int64_t)h * a->head_dim + i;
                rotate(head, head + half, c, s, n);
            }
        }
    }
}

/* ---- elementwise ---------------------------------------------------------------------------- */

static vf silu_times(vf gate, vf up) {
    vf one = vf_set1(1.0f);
    vf denominator = vf_add(one, vf_exp(vf_sub(vf_zero(), gate)));
    return vf_mul(vf_div(gate, denominator), up);
}

static void swiglu(const void *args, int64_t first, int64_t last) {
    const kvl_swiglu_args *a = args;
    int64_t n_pieces = (a->dim + KVL_SWIGLU_PIECE - 1) / KVL_SWIGLU_PIECE;
    for (int64_t piece = first; piece < last; piece++) {
        int64_t row = piece / n_pieces, i = piece % n_pieces * KVL_SWIGLU_PIECE;
        int64_t end = i + KVL_SWIGLU_PIECE < a->dim ? i + KVL_SWIGLU_PIECE : a->dim;
        const float *gate = a->gate + row * a->in_stride, *up = a->up + row * a->in_stride;
        float *out = a->out + row * a->out_stride;
        for (; i + KVL_VL <= end; i += KVL_VL)
            vf_store(out + i, silu_times(vf_load_f32(gate + i), vf_load_f32(up + i)));
        int n = (int)(end - i);
        if (n == 0) continue;
        vf rest = silu_times(vf_load_f32_n(gate + i, n), vf_load_f32_n(up + i, n));
        vf_store_n(out + i, rest, n);
    }
}

const kvl_device_kernels KVL_ISA_FN(kvl_device_kernels) = {rmsnorm, rope, swiglu};
