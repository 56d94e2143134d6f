/* Checked 64-bit arithmetic for every size that comes from a file, a flag or a product of dims.
 * Each returns true when the result fits; the result is untouched otherwise. */
#ifndef KVL_CORE_CHECKED_H
#define KVL_CORE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool kvl_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

static inline bool kvl_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/* Rounds up to a multiple of `align` (a power of two). */
static inline bool kvl_align_u64(uint64_t a, uint64_t align, uint64_t *out) {
    uint64_t r;
    if (__builtin_add_overflow(a, align - 1, &r)) return false;
    *out = r & ~(align - 1);
    return true;
}

static inline bool kvl_mul_i64(int64_t a, int64_t b, int64_t *out) {
    int64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

#endif
