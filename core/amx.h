/* AMX tile registers, for sources built through kvl_isa_source at the level amx.
 *
 * Kernels use all eight registers as 16 rows of 64 bytes, between kvl_amx_begin and kvl_amx_end.
 * Compilers do not see everything that the tile instructions read (GCC before 14: neither all of
 * LDTILECFG's operand, PR 114098, nor what TILELOADD loads): the configuration is constant memory,
 * and kvl_amx_written stands between ordinary stores and the tile loads of what they wrote. */
#ifndef KVL_CORE_AMX_H
#define KVL_CORE_AMX_H

#include <immintrin.h>
#include <stdint.h>

/* As LDTILECFG takes it. */
typedef struct kvl_amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} kvl_amx_config;

static inline void kvl_amx_begin(void) {
    static const kvl_amx_config config = {.palette = 1,
                                          .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                          .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
}

static inline void kvl_amx_end(void) {
    _tile_release();
}

static inline void kvl_amx_written(void) {
    __asm__ volatile("" ::: "memory");
}

#endif
