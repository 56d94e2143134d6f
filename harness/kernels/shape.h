/* Shapes of kernels as one word, and back.
 *
 *   batch    [N]qLEN[sLEN] groups joined by _: N sequences (1 when left out) of q query tokens each
 *            against s keys in all (as many as queries when left out). Queries are the last tokens.
 *              8q1s4096              decode, 8 sequences with 4,096 keys
 *              q2k                   prefill of 2,048 tokens
 *              2q512s512_32q1s4096   two prefills beside 32 decodes
 *   product  ROWSxINxOUT             1x4096x4096: one row of activations, 4,096 in, 4,096 out
 *   heads    QUERY/KV                32/8
 *
 * LEN, ROWS, IN and OUT are digits, or digits and k for times 1,024.
 */
#ifndef KVL_HARNESS_KERNELS_SHAPE_H
#define KVL_HARNESS_KERNELS_SHAPE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "harness/sweep/axis.h"

enum { KVL_BATCH_MAX_GROUPS = 32, KVL_BATCH_MAX_SEQS = 65536 };

typedef struct kvl_batch_group {
    int64_t n_seqs, q_tokens, kv_tokens; /* tokens of each sequence; q_tokens <= kv_tokens */
} kvl_batch_group;

typedef struct kvl_batch_shape {
    kvl_batch_group groups[KVL_BATCH_MAX_GROUPS]; /* neighbours differ */
    int n_groups;
    int64_t n_seqs, q_tokens; /* of the batch; at most 65,536 and 2^30 */
    int64_t kv_longest;       /* keys of the longest sequence; at most 2^30 */
} kvl_batch_shape;

typedef struct kvl_product_shape {
    int64_t n_rows, n_in, n_out; /* 1 to 2^24 each */
} kvl_product_shape;

typedef struct kvl_heads {
    int32_t n_q, n_kv; /* n_q a multiple of n_kv; 1 to 4,096 */
} kvl_heads;

/* Text [length], not NUL-terminated. KVL_ERR_INPUT: "character 4: ...", with the form allowed. */
kvl_status kvl_batch_shape_parse(const char *text, size_t length, kvl_batch_shape *out);
kvl_status kvl_product_shape_parse(const char *text, size_t length, kvl_product_shape *out);
kvl_status kvl_heads_parse(const char *text, size_t length, kvl_heads *out);

/* The same as grammars of axes: the canonical spelling has every number in digits. */
kvl_status kvl_batch_shape_canonical(const char *text, size_t length,
                                     char canonical[KVL_AXIS_TEXT_BYTES]);
kvl_status kvl_product_shape_canonical(const char *text, size_t length,
                                       char canonical[KVL_AXIS_TEXT_BYTES]);
kvl_status kvl_heads_canonical(const char *text, size_t length,
                               char canonical[KVL_AXIS_TEXT_BYTES]);

#endif
