/* A case of attention as one line of text, and back.
 *
 *   attn/flash/avx2/bf16kv.f32q.f32o/hd64.h9:3/page16.shuf/1q513+7q40/causal.w33.cap30.sinks/seed7/normal
 *   |    |     |    |                |         |           |          |                      | data
 *   kind kernel isa dtypes           heads     layout      lengths    mask                   seed
 *
 *   kind    attn            compared with the oracle, nothing more
 *           attn-threads    and bit-identical for 1, 2, 3 and 8 threads
 *           attn-batch      and each sequence alone gives the bits it has in the batch
 *           attn-chunk      and queries in chunks of 1, 7 and 64 give the bits of the whole
 *           attn-paged      and pages of 1, 15, 16, 17, 64, 256 and contiguous, in either order,
 *                           give the same bits
 *           attn-merge      and merge(O, LSE) over two or three parts of the keys is the whole
 *   dtypes  KV cache (<dtype>kv, or <dtype>k.<dtype>v), Q and (f32 when left out) O
 *   heads   hd<head_dim>.h<n_q_heads>:<n_kv_heads>
 *   layout  contig or page<page_tokens>, then .shuf (page or slab order), .shared (equal prefixes
 *           lie in shared pages), .far (offsets past 2^31 elements), .tok (token-major strides)
 *   lengths <q_len>q<kv_len> a sequence, joined by +; <q_len>q<kv_len>x<n> repeats it
 *   mask    causal or full, then .w<window> .cap<softcap> .sinks .scaled (K and V scales per head)
 *           or .scaled<n> (per n tokens and head) .scale<softmax scale> (1 / sqrt(head_dim) when
 *           left out)
 *   data    normal, flat, vmax, onehot, rising, alt, big: see harness/verify/problem.c
 */
#ifndef KVL_HARNESS_VERIFY_CASE_H
#define KVL_HARNESS_VERIFY_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/isa.h"
#include "core/status.h"

enum { KVL_VERIFY_MAX_SEQS = 32 };

typedef enum kvl_verify_kind {
    KVL_VERIFY_GATES = 0,
    KVL_VERIFY_THREADS,
    KVL_VERIFY_BATCH,
    KVL_VERIFY_CHUNK,
    KVL_VERIFY_PAGED,
    KVL_VERIFY_MERGE,
    KVL_VERIFY_N_KINDS
} kvl_verify_kind;

typedef enum kvl_verify_pattern {
    KVL_PATTERN_NORMAL = 0, /* all N(0, 1) */
    KVL_PATTERN_FLAT,       /* Q = K = 0, V = 1: O is exactly 1 */
    KVL_PATTERN_VMAX,       /* |V| near the largest finite value of the KV dtype */
    KVL_PATTERN_ONEHOT,     /* one key takes the whole softmax: O is its V row */
    KVL_PATTERN_RISING,     /* scores rise with the key: every tile has a new maximum */
    KVL_PATTERN_ALT,        /* V rows alternate between +40 and -40 */
    KVL_PATTERN_BIG,        /* scores of a hundred and more */
    KVL_N_PATTERNS
} kvl_verify_pattern;

/* Where tokens lie in the pools. */
typedef struct kvl_verify_layout {
    int64_t page_tokens; /* 0 = contiguous */
    bool shuffled, shared, far, token_major;
} kvl_verify_layout;

struct kvl_verify_case {
    kvl_verify_kind kind;
    char kernel[32];
    kvl_isa isa;
    kvl_dtype k_dtype, v_dtype, q_dtype, o_dtype;
    int32_t head_dim, n_q_heads, n_kv_heads;
    kvl_verify_layout layout;
    int32_t n_seqs;
    int32_t q_lens[KVL_VERIFY_MAX_SEQS], kv_lens[KVL_VERIFY_MAX_SEQS];
    bool causal;
    int32_t window;
    float softcap;
    bool sinks, scaled;
    int64_t scale_tokens; /* scaled: one for so many tokens; 0 = one a head */
    float scale;          /* 0 = 1 / sqrt(head_dim) */
    uint64_t seed;
    kvl_verify_pattern pattern;
};
typedef struct kvl_verify_case kvl_verify_case;

/* Writes the id of `c` to `out` (KVL_VERIFY_ID_BYTES of harness/verify/verify.h suffice for what
 * the generator makes). */
void kvl_verify_case_format(const kvl_verify_case *c, char *out, size_t out_bytes);

/* Parses an id. KVL_ERR_INPUT names the part that is wrong, what was seen and what is allowed;
 * kernel names are looked up later. */
kvl_status kvl_verify_case_parse(const char *id, kvl_verify_case *out);

/* Parses "1q513+7q40" or "1q64x8" into q_lens, kv_lens and n_seqs. */
kvl_status kvl_verify_case_lengths(const char *text, kvl_verify_case *out);

/* Parses "contig", "page16.shuf.far" and the like. */
kvl_status kvl_verify_layout_parse(const char *text, kvl_verify_layout *out);

#endif
