/* Pairwise covering arrays: rows of axis values in which every pair of values of every two axes
 * occurs. Greedy, after Cohen, Dalal, Fredman and Patton, "The AETG System" (1997); seeded, so the
 * same array each time. */
#ifndef KVL_HARNESS_VERIFY_COVER_H
#define KVL_HARNESS_VERIFY_COVER_H

#include <stdint.h>

#include "core/status.h"

enum { KVL_COVER_MAX_AXES = 16 };

typedef struct kvl_cover {
    int n_axes, sizes[KVL_COVER_MAX_AXES];
    int64_t n_rows;
    uint16_t *rows; /* [n_rows][n_axes]; free() it */
} kvl_cover;

/* sizes[n_axes], each 1 or more. */
kvl_status kvl_cover_make(const int *sizes, int n_axes, uint64_t seed, kvl_cover *out);

#endif
