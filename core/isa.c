#include "core/isa.h"

#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/names.h"

static const char *const names[KVL_N_ISAS] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
static kvl_isa current = KVL_ISA_SCALAR;

const char *kvl_isa_name(kvl_isa isa) {
    return (unsigned)isa < KVL_N_ISAS ? names[isa] : "?";
}

kvl_status kvl_isa_parse(const char *name, kvl_isa *out) {
    int index = kvl_names_find(name, names, KVL_N_ISAS);
    if (index < 0) {
        char line[512];
        kvl_names_unknown(line, sizeof line, "instruction set", name, names, KVL_N_ISAS);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = (kvl_isa)index;
    return KVL_OK;
}

/* Linux grants AMX tile state to a process on request only (arch_prctl, kernel 5.16 and later). */
static bool amx_permitted(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static bool cpuid7(unsigned subleaf, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    return __get_cpuid_count(7, subleaf, a, b, c, d) != 0;
}

bool kvl_isa_has(kvl_isa isa) {
    __builtin_cpu_init();
    unsigned a = 0, b = 0, c = 0, d = 0;
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                __builtin_cpu_supports("bmi2") && __get_cpuid(1, &a, &b, &c, &d) &&
                (c & bit_F16C) != 0;
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    switch (isa) {
    case KVL_ISA_SCALAR:
        return true;
    case KVL_ISA_AVX2:
        return avx2;
    case KVL_ISA_AVX512:
        return avx512;
    case KVL_ISA_AVX512_BF16: /* leaf 7.1, EAX bit 5 */
        return avx512 && __builtin_cpu_supports("avx512vbmi") && cpuid7(1, &a, &b, &c, &d) &&
               (a >> 5 & 1);
    case KVL_ISA_AMX: /* leaf 7.0, EDX bits 22 (AMX-BF16) and 24 (AMX-TILE) */
        return kvl_isa_has(KVL_ISA_AVX512_BF16) && cpuid7(0, &a, &b, &c, &d) && (d >> 22 & 1) &&
               (d >> 24 & 1) && amx_permitted();
    default:
        return false;
    }
}

kvl_status kvl_isa_init(void) {
    const char *asked = getenv("KVLAB_ISA");
    kvl_isa isa = KVL_ISA_SCALAR;
    if (asked && *asked) {
        if (kvl_isa_parse(asked, &isa) != KVL_OK)
            return kvl_fail_prefix(KVL_ERR_INPUT, "KVLAB_ISA");
        return kvl_isa_force(isa);
    }
    for (int i = KVL_N_ISAS - 1; i > 0 && isa == KVL_ISA_SCALAR; i--) {
        if (kvl_isa_has((kvl_isa)i)) isa = (kvl_isa)i;
    }
    current = isa;
    return KVL_OK;
}

kvl_isa kvl_isa_current(void) {
    return current;
}

kvl_status kvl_isa_force(kvl_isa isa) {
    if (!kvl_isa_has(isa)) {
        kvl_isa best = KVL_ISA_SCALAR;
        for (int i = 0; i < KVL_N_ISAS; i++) {
            if (kvl_isa_has((kvl_isa)i)) best = (kvl_isa)i;
        }
        return kvl_fail(KVL_ERR_INPUT, "instruction set '%s': this CPU has up to '%s'",
                        kvl_isa_name(isa), kvl_isa_name(best));
    }
    current = isa;
    return KVL_OK;
}

const char *kvl_cpu_model(void) {
    static char model[128];
    if (model[0]) return model;
    snprintf(model, sizeof model, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file) return model;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            colon += colon[1] == ' ' ? 2 : 1;
            colon[strcspn(colon, "\n")] = '\0';
            snprintf(model, sizeof model, "%s", colon);
            break;
        }
    }
    fclose(file);
    return model;
}
