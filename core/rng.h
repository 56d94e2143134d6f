/* Counter-based random numbers: the i-th value of a (seed, stream) pair is a pure function of i, so
 * data made in parallel or in part is the same data. SplitMix64 finaliser (Steele et al. 2014) over
 * a Weyl sequence; normals by Box-Muller. */
#ifndef KVL_CORE_RNG_H
#define KVL_CORE_RNG_H

#include <stdint.h>

typedef struct kvl_rng {
    uint64_t key;     /* from seed and stream */
    uint64_t counter; /* next index */
} kvl_rng;

kvl_rng kvl_rng_make(uint64_t seed, uint64_t stream);
uint64_t kvl_rng_at(const kvl_rng *rng, uint64_t index); /* the index-th 64 bits, stateless */
uint64_t kvl_rng_u64(kvl_rng *rng);
uint64_t kvl_rng_below(kvl_rng *rng,
                       uint64_t bound); /* uniform in [0, bound), unbiased; bound > 0 */
double kvl_rng_unit(kvl_rng *rng);      /* [0, 1), 53 bits */
float kvl_rng_normal(kvl_rng *rng);     /* N(0, 1) */

/* Fills out[0..n) with N(0, sigma), element i from index i: order and threads play no part. */
void kvl_rng_fill_normal(uint64_t seed, uint64_t stream, float sigma, float *out, int64_t n);

#endif
