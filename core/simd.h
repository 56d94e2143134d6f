/* A thin float vector, one definition an instruction set. Kernels are written once against these
 * names and compiled once per set (kvl_isa_source in CMakeLists.txt); KVL_ISA_FN(f) gives f its
 * suffix.
 *
 *   vf      KVL_VL floats               vf_load_<dtype>(p)      widen KVL_VL stored elements
 *   vf_fma(a, b, c) = a * b + c         vf_load_<dtype>_n(p, n) the first n (0..KVL_VL), rest 0.0:
 *   vf_hsum: fixed tree of sums                                 reads nothing past p[n - 1]
 *   vf_fma_to(&sum, a, b): sum += a * b vf_load_bf16_even(p), _odd(p): p[0], p[2], ... or
 *                                                               p[1], p[3], ... of 2 KVL_VL
 *
 *   vf_part_<dtype>(p, which)  a vector of the elements at p, in the order that costs least:
 *     bf16        0 and 1: the even and the odd of 2 * KVL_VL elements (a shift, a mask)
 *     e4m3, e5m2  of 4 * KVL_VL codes, 0 and 1: the lower and the upper half of the even ones, 2
 *                 and 3: of the odd ones. e4m3 gives value / 256 (its bits as an f16) and takes
 *                 NaN codes for numbers: ask vf_nan_e4m3 first.
 *   vf_fma_from(&sum, a, p): sum += a * the vector at p
 *   vf_transpose(in, ldi, out, ldo)  out[c * ldo + r] = in[r * ldi + c], r, c < KVL_VL
 *
 * scalar is plain C with compiler vectors of 4 floats (any CPU); its fma rounds twice. Everything
 * decodes stored values exactly, NaN, infinities and subnormals included.
 */
#ifndef KVL_CORE_SIMD_H
#define KVL_CORE_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef KVL_ISA_SUFFIX
#error "core/simd.h is for sources built through kvl_isa_source"
#endif

#define KVL_ISA_PASTE2(name, suffix) name##_##suffix
#define KVL_ISA_PASTE(name, suffix) KVL_ISA_PASTE2(name, suffix)
#define KVL_ISA_FN(name) KVL_ISA_PASTE(name, KVL_ISA_SUFFIX)

#if defined(KVL_ISA_IS_avx512)
#include "core/simd_avx512.h"
#elif defined(KVL_ISA_IS_avx2)
#include "core/simd_avx2.h"
#else
#include "core/simd_scalar.h"
#endif

/* ---- built from the primitives, the same for every set
 * --------------------------------------------- */

#define KVL_DEFINE_PARTIAL(name, type) \
    static inline vf vf_load_##name##_n(const type *p, int n) { \
        type full[KVL_VL] = {0}; \
        memcpy(full, p, (size_t)n * sizeof(type)); \
        return vf_load_##name(full); \
    }
KVL_DEFINE_PARTIAL(f32, float)
KVL_DEFINE_PARTIAL(f16, uint16_t)
KVL_DEFINE_PARTIAL(bf16, uint16_t)
KVL_DEFINE_PARTIAL(e4m3, uint8_t)
KVL_DEFINE_PARTIAL(e5m2, uint8_t)
#undef KVL_DEFINE_PARTIAL

static inline void vf_store_n(float *p, vf x, int n) {
    float full[KVL_VL];
    vf_store(full, x);
    memcpy(p, full, (size_t)n * sizeof(float));
}

/* e^x, about 1.5 ulp for x in [-87, 88]; 0 below (-inf included), so masked scores vanish; NaN
 * stays. Cephes: n = round(x / ln 2), polynomial on the rest, exponent added. */
static inline vf vf_exp(vf x) {
    const vf lowest = vf_set1(-87.33654f);
    vf clamped = vf_min(vf_max(x, lowest), vf_set1(88.3762f));
    vf n = vf_round(vf_mul(clamped, vf_set1(1.44269504088896341f)));
    vf r = vf_fma(n, vf_set1(-0.693359375f), clamped);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(p, vf_mul(r, r), vf_add(r, vf_set1(1.0f)));
    return vf_keep_nan(x, vf_zero_below(vf_mul(p, vf_pow2(n)), x, lowest));
}

/* tanh x, about 2 ulp. Cephes: odd polynomial below 0.625, 1 - 2 / (e^2x + 1) above; NaN stays. */
static inline vf vf_tanh(vf x) {
    vf size = vf_max(vf_sub(vf_zero(), x), x), z = vf_mul(x, x), one = vf_set1(1.0f);
    vf p = vf_fma(vf_set1(-5.70498872745e-3f), z, vf_set1(2.06390887954e-2f));
    p = vf_fma(p, z, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, z, vf_set1(-3.33332819422e-1f));
    vf near = vf_fma(vf_mul(p, z), x, x);
    vf far = vf_sub(one, vf_div(vf_set1(2.0f), vf_add(vf_exp(vf_add(size, size)), one)));
    far = vf_select_below(x, vf_zero(), vf_sub(vf_zero(), far), far);
    return vf_select_below(size, vf_set1(0.625f), near, far);
}

#endif
