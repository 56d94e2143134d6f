/* The weight formats there are, and the kernels of the instruction set in use. */
#include "core/names.h"
#include "quant/linear_internal.h"

enum { SCALAR, AVX2, AVX512, N_LEVELS };

/* Kernels exist at three levels; the two above AVX-512 use its kernels. */
static int level_now(void) {
    kvl_isa isa = kvl_isa_current();
    return isa >= KVL_ISA_AVX512 ? AVX512 : isa == KVL_ISA_AVX2 ? AVX2 : SCALAR;
}

extern const kvl_linear_isa kvl_linear_isa_scalar, kvl_linear_isa_avx2, kvl_linear_isa_avx512;

const kvl_linear_isa *kvl_linear_isa_now(void) {
    static const kvl_linear_isa *const kernels[N_LEVELS] = {
        &kvl_linear_isa_scalar, &kvl_linear_isa_avx2, &kvl_linear_isa_avx512};
    return kernels[level_now()];
}

#define DECLARE(name) \
    extern const kvl_weight_codec kvl_weights_##name##_scalar, kvl_weights_##name##_avx2, \
        kvl_weights_##name##_avx512
#define ENTRY(name) \
    { &kvl_weights_##name##_scalar, &kvl_weights_##name##_avx2, &kvl_weights_##name##_avx512 }

DECLARE(f32);
DECLARE(f16);
DECLARE(bf16);
DECLARE(nf4);
DECLARE(nf4_dq);
DECLARE(fp4);
static const kvl_weight_codec *const formats[][N_LEVELS] = {ENTRY(f32), ENTRY(f16),    ENTRY(bf16),
                                                        ENTRY(nf4), ENTRY(nf4_dq), ENTRY(fp4)};
enum { N_FORMATS = sizeof formats / sizeof *formats };

size_t kvl_weight_format_count(void) {
    return N_FORMATS;
}

const kvl_weight_format *kvl_weight_format_at(size_t index) {
    return index < N_FORMATS ? &formats[index][SCALAR]->format : NULL;
}

kvl_status kvl_weight_format_find(const char *name, const kvl_weight_format **out) {
    const char *names[N_FORMATS];
    for (size_t i = 0; i < N_FORMATS; i++) names[i] = formats[i][SCALAR]->format.name;
    int index = kvl_names_find(name, names, N_FORMATS);
    if (index < 0) {
        char line[512];
        kvl_names_unknown(line, sizeof line, "weight format", name, names, N_FORMATS);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = kvl_weight_format_at((size_t)index);
    return KVL_OK;
}

const kvl_weight_codec *kvl_weight_codec_now(const kvl_weight_format *format) {
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (&formats[i][SCALAR]->format == format) return formats[i][level_now()];
    }
    return NULL;
}
