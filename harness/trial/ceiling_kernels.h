/* The loops behind the ceilings, one variant an instruction set. Internal to ceiling.c. */
#ifndef KVL_HARNESS_CEILING_KERNELS_H
#define KVL_HARNESS_CEILING_KERNELS_H

#include <stdint.h>

/* Sum of x[n] (n a multiple of 256): reads every element once. */
float kvl_ceiling_sum_scalar(const float *x, int64_t n);
float kvl_ceiling_sum_avx2(const float *x, int64_t n);
float kvl_ceiling_sum_avx512(const float *x, int64_t n);
/* The same from eight places at once. */
float kvl_ceiling_sum_streams_scalar(const float *x, int64_t n);
float kvl_ceiling_sum_streams_avx2(const float *x, int64_t n);
float kvl_ceiling_sum_streams_avx512(const float *x, int64_t n);

/* `n` rounds of independent multiply-adds in registers; *flops = how many flops they were. */
float kvl_ceiling_fma_scalar(int64_t n, double *flops);
float kvl_ceiling_fma_avx2(int64_t n, double *flops);
float kvl_ceiling_fma_avx512(int64_t n, double *flops);

#endif
