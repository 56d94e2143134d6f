/* Internal to quant/: what quant/nf4_kernels.c defines once an instruction set. */
#ifndef KVL_QUANT_NF4_KERNELS_H
#define KVL_QUANT_NF4_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

/* Between two neighbours a weight belongs to the lower one up to their midpoint: its rank is the
 * count of midpoints below it. */
typedef struct kvl_nf4_rule {
    float values[16];  /* by code */
    float bounds[15];  /* midpoints, ascending */
    uint8_t order[16]; /* the code of each rank */
    bool ranks_are_codes;
} kvl_nf4_rule;

typedef struct kvl_nf4_kernels {
    /* Codes of one block w[n] and its absmax (NaN when a weight is one). */
    void (*encode)(const kvl_nf4_rule *rule, const float *w, int64_t n, bool is_short,
                   uint8_t *codes, float *absmax);
} kvl_nf4_kernels;

extern const kvl_nf4_kernels kvl_nf4_kernels_scalar, kvl_nf4_kernels_avx2, kvl_nf4_kernels_avx512;

#endif
