/* The weight formats there are, and the kernels of the instruction set in use. */
#include "core/names.h"
#include "quant/linear_internal.h"

extern const kvl_linear_isa kvl_linear_isa_scalar, kvl_linear_isa_avx2, kvl_linear_isa_avx512;

const kvl_linear_isa *kvl_linear_isa_now(void) {
    static const kvl_linear_isa *const kernels[KVL_N_ISAS] = {
        &kvl_linear_isa_scalar, &kvl_linear_isa_avx2, &kvl_linear_isa_avx512,
        &kvl_linear_isa_avx512, &kvl_linear_isa_avx512};
    return kernels[kvl_isa_current()];
}

#define DECLARE(name) \
    extern const kvl_weight_codec kvl_weights_##name##_scalar, kvl_weights_##name##_avx2, \
        kvl_weights_##name##_avx512
/* The two levels above AVX-512 use its kernels... */
#define ENTRY(name) \
    { \
        &kvl_weights_##name##_scalar, &kvl_weights_##name##_avx2, &kvl_weights_##name##_avx512, \
            &kvl_weights_##name##_avx512, &kvl_weights_##name##_avx512 \
    }
/* ... unless the format has matrix kernels there. */
#define MATRIX_ENTRY(name) \
    { \
        &kvl_weights_##name##_scalar, &kvl_weights_##name##_avx2, &kvl_weights_##name##_avx512, \
            &kvl_weights_##name##_avx512_bf16, &kvl_weights_##name##_amx \
    }

DECLARE(f32);
DECLARE(f16);
DECLARE(bf16);
DECLARE(nf4);
DECLARE(nf4_dq);
DECLARE(fp4);
/* 4-bit weights are unpacked for AVX512_BF16, which every CPU with AMX has. */
#define UNPACKED_ENTRY(name) \
    { \
        &kvl_weights_##name##_scalar, &kvl_weights_##name##_avx2, &kvl_weights_##name##_avx512, \
            &kvl_weights_##name##_avx512_bf16, &kvl_weights_##name##_avx512_bf16 \
    }
extern const kvl_weight_codec kvl_weights_nf4_avx512_bf16, kvl_weights_nf4_dq_avx512_bf16,
    kvl_weights_fp4_avx512_bf16;
extern const kvl_weight_codec kvl_weights_bf16_avx512_bf16, kvl_weights_bf16_amx;
static const kvl_weight_codec *const formats[][KVL_N_ISAS] = {
    ENTRY(f32),         ENTRY(f16), MATRIX_ENTRY(bf16), UNPACKED_ENTRY(nf4), UNPACKED_ENTRY(nf4_dq),
    UNPACKED_ENTRY(fp4)};
enum { N_FORMATS = sizeof formats / sizeof *formats };

size_t kvl_weight_format_count(void) {
    return N_FORMATS;
}

const kvl_weight_format *kvl_weight_format_at(size_t index) {
    return index < N_FORMATS ? &formats[index][KVL_ISA_SCALAR]->format : NULL;
}

kvl_status kvl_weight_format_find(const char *name, const kvl_weight_format **out) {
    const char *names[N_FORMATS];
    for (size_t i = 0; i < N_FORMATS; i++) names[i] = formats[i][KVL_ISA_SCALAR]->format.name;
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
        if (&formats[i][KVL_ISA_SCALAR]->format == format) return formats[i][kvl_isa_current()];
    }
    return NULL;
}
