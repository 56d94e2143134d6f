/* Instruction sets of this CPU and the one that kernels use.
 *
 * Kernels are compiled once per level and picked at run time. KVLAB_ISA=scalar|avx2|avx512|... caps
 * the level. A level this CPU lacks is refused, never silently lowered. */
#ifndef KVL_CORE_ISA_H
#define KVL_CORE_ISA_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

typedef enum kvl_isa {
    KVL_ISA_SCALAR = 0,  /* plain C, right on any CPU */
    KVL_ISA_AVX2,        /* AVX2 + FMA + F16C */
    KVL_ISA_AVX512,      /* + AVX-512 F, BW, VL, DQ */
    KVL_ISA_AVX512_BF16, /* + AVX512_BF16 and VBMI (Zen 4, Sapphire Rapids; not Cooper Lake) */
    KVL_ISA_AMX,         /* + AMX-TILE, AMX-BF16, tile permission granted to this process */
    KVL_N_ISAS
} kvl_isa;

const char *kvl_isa_name(kvl_isa isa);
kvl_status kvl_isa_parse(const char *name, kvl_isa *out);

/* True when this CPU (and the operating system) can run `isa`. */
bool kvl_isa_has(kvl_isa isa);

/* Reads KVLAB_ISA once and settles the level: the best one of this CPU, or the cap. Must be called
 * by main() (tests: by the test) before any kernel. KVL_ERR_INPUT for an unknown or unavailable
 * name. */
kvl_status kvl_isa_init(void);

/* The settled level. A kernel that has no variant for it uses the next lower one it has and reports
 * that name in `effective`. Tests may force another available level with kvl_isa_force. */
kvl_isa kvl_isa_current(void);
kvl_status kvl_isa_force(kvl_isa isa);

/* CPU model name as /proc/cpuinfo gives it, for env{} in rows. */
const char *kvl_cpu_model(void);

#endif
