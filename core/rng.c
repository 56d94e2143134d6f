#include "core/rng.h"

#include <math.h>

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

kvl_rng kvl_rng_make(uint64_t seed, uint64_t stream) {
    return (kvl_rng){.key = mix(seed + 0x9e3779b97f4a7c15u) ^ mix(mix(stream) + 1), .counter = 0};
}

uint64_t kvl_rng_at(const kvl_rng *rng, uint64_t index) {
    return mix(rng->key + (index + 1) * 0x9e3779b97f4a7c15u);
}

uint64_t kvl_rng_u64(kvl_rng *rng) {
    return kvl_rng_at(rng, rng->counter++);
}

uint64_t kvl_rng_below(kvl_rng *rng, uint64_t bound) {
    /* Rejects the short last run of values, so that every result is equally likely. */
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound, value;
    do value = kvl_rng_u64(rng);
    while (value >= limit);
    return value % bound;
}

static double unit_of(uint64_t bits) {
    return (double)(bits >> 11) * 0x1p-53;
}

double kvl_rng_unit(kvl_rng *rng) {
    return unit_of(kvl_rng_u64(rng));
}

/* One normal from one 64-bit value: Box-Muller, radius from the upper half, angle from the lower.
 */
static float normal_of(uint64_t bits) {
    float u = ((float)(bits >> 40) + 0.5f) * 0x1p-24f;
    float angle = (float)(bits & 0xffffff) * (6.28318530717958647692f * 0x1p-24f);
    return sqrtf(-2.0f * logf(u)) * cosf(angle);
}

float kvl_rng_normal(kvl_rng *rng) {
    return normal_of(kvl_rng_u64(rng));
}

void kvl_rng_fill_normal(uint64_t seed, uint64_t stream, float sigma, float *out, int64_t n) {
    kvl_rng rng = kvl_rng_make(seed, stream);
#pragma omp parallel for schedule(static) if (n > 65536)
    for (int64_t i = 0; i < n; i++) out[i] = sigma * normal_of(kvl_rng_at(&rng, (uint64_t)i));
}
