/* flash on AMX, for bf16 Q, K and V; between flash.c and flash_amx.c. */
#ifndef KVL_ATTENTION_FLASH_AMX_H
#define KVL_ATTENTION_FLASH_AMX_H

#include "attention/flash.h"

/* Whether this call runs on AMX: bf16 Q, K and V without scales of tokens. Dtypes decide, never the
 * number of rows: prefill, chunks and decode give a row the same bits. */
static inline bool kvl_flash_fits_amx(const kvl_attention_args *args) {
    const kvl_kv_view *kv = args->kv;
    return args->q_dtype == KVL_BF16 && kv->k_dtype == KVL_BF16 && kv->v_dtype == KVL_BF16 &&
           !kv->k_scale_tokens && !kv->v_scale_tokens;
}
static inline bool kvl_flash_uses_amx(const kvl_attention_args *args) {
    return kvl_isa_current() == KVL_ISA_AMX && kvl_flash_fits_amx(args);
}

enum { KVL_AMX_ROWS = 16, KVL_AMX_Q_TILES = (KVL_BLOCK_ROWS + KVL_AMX_ROWS - 1) / KVL_AMX_ROWS };

/* head_dim in whole steps of the score product. */
static inline int64_t kvl_amx_dims(const kvl_attention_args *args) {
    return ((int64_t)args->kv->head_dim + 31) & ~(int64_t)31;
}

/* Floats of scratch: Q and K as bf16, V as bf16 pairs; scores, P in two layouts; a state's O and
 * one tile of O. */
static inline int64_t kvl_flash_amx_scratch(const kvl_attention_args *args) {
    return (KVL_AMX_Q_TILES * KVL_AMX_ROWS + KVL_TILE_KEYS) * kvl_amx_dims(args) / 2 +
           KVL_TILE_KEYS * kvl_amx_dims(args) / 2 + 3 * KVL_TILE_KEYS * KVL_AMX_ROWS +
           (KVL_AMX_Q_TILES + 1) * KVL_AMX_ROWS * kvl_tile_stride(args);
}

/* As kvl_flash_block_<isa>; the states it keeps are those of kvl_flash_merge_avx512_bf16. */
void kvl_flash_block_amx(const kvl_flash_task *task, float *scratch);

#endif
