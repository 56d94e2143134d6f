/* The engine: one decoder, one configuration, many sequences in ragged batches.
 *
 * A step takes new tokens for some sequences (a whole prompt, a chunk, one token; mixed freely),
 * appends their K and V, and returns logits for the rows asked for. Sequences come and go; slots
 * belong to the allocator.
 *
 * Arithmetic: the residual stream, norms, RoPE and softmax are float32. compute_dtype bf16 rounds
 * (nearest even) what enters each linear layer, and Q and O of attention. K and V are rounded to
 * kv_dtype when stored. See decoder/README.md.
 */
#ifndef KVL_DECODER_ENGINE_H
#define KVL_DECODER_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "allocators/allocator.h"
#include "attention/attention.h"
#include "core/device.h"
#include "decoder/model.h"
#include "quant/linear.h"

typedef struct kvl_engine kvl_engine;

typedef struct kvl_engine_options {
    const char *device, *allocator, *attention, *kv_dtype, *weights, *compute_dtype; /* names */
    const char *kv_scale; /* kvl_kv_scale's names; NULL = auto */
    int64_t page_tokens;
    int32_t max_seqs;         /* sequences alive at once */
    int64_t max_seq_tokens;   /* longest sequence; at most config.max_position */
    int64_t pool_tokens;      /* 0 = all that max_seqs * max_seq_tokens can need */
    const char *reserve;      /* contiguous, buddy: max, pow2 or oracle; NULL = max */
    int64_t map_bytes;        /* virtual: a physical page; 0 = 64 KiB */
    bool populate;            /* KV pools take all their memory now: no step waits for the system */
    bool prefix_cache;        /* paged: K and V of equal prefixes are kept and found again */
    int32_t max_batch_tokens; /* largest step; longer prompts go in chunks. 0 = 512 */
    bool deterministic;       /* own kernels, fixed shapes: bit-exact whatever the batch */
    int64_t nf4_block;        /* weights nf4, nf4_dq, fp4: of a block, 0 = the file's own or 64 */
    const char *nf4_skip;     /* modules left unquantised (decoder/weights.h); NULL = lm_head */
    bool allow_nonfinite;     /* NaN and infinities in weights are loaded, not refused */
} kvl_engine_options;

/* Defaults of the design: cpu, paged 16, flash, bf16, bf16, bf16. kv_dtype takes one name for both
 * or K:V. */
kvl_engine_options kvl_engine_defaults(void);

/* Loads the weights (progress on `progress`, called with 0..1, may be NULL). The model must outlive
 * the engine. Impossible combinations are refused before anything is loaded. */
kvl_status kvl_engine_create(const kvl_model *model, const kvl_engine_options *options,
                             void (*progress)(void *user, double share), void *user,
                             kvl_engine **out);
void kvl_engine_destroy(kvl_engine *engine);

/* Admits a sequence of up to n_prompt + max_new tokens. */
kvl_status kvl_engine_add(kvl_engine *engine, int64_t n_prompt, int64_t max_new, kvl_seq *seq);
/* The same with the prompt's ids [n_prompt], which a prefix cache finds it by. *n_cached tokens are
 * there already (at most n_prompt - 1: logits need a token): the steps take those behind them.
 * Generated tokens are learned as they are stepped. `readmitted`: after preemption; what is found
 * then is no hit of the ledger. */
kvl_status kvl_engine_admit(kvl_engine *engine, const int32_t *ids, int64_t n_prompt,
                            int64_t max_new, bool readmitted, kvl_seq *seq, int64_t *n_cached);
kvl_status kvl_engine_fork(kvl_engine *engine, kvl_seq seq, kvl_seq *child);
kvl_status kvl_engine_truncate(kvl_engine *engine, kvl_seq seq, int64_t n_tokens);
kvl_status kvl_engine_remove(kvl_engine *engine, kvl_seq seq);
int64_t kvl_engine_length(const kvl_engine *engine, kvl_seq seq);

/* One sequence's share of a step. */
typedef struct kvl_step_item {
    kvl_seq seq;
    const int32_t *ids; /* [n_ids] new tokens */
    int32_t n_ids;
    int32_t n_logits; /* logits for the last n_logits of them (0 .. n_ids) */
} kvl_step_item;

/* Runs the step; logits of all items end to end, [sum n_logits][vocab_size] float32 host. Steps
 * with more than max_batch_tokens tokens are run in chunks. All or nothing on refusal (pool
 * exhausted, id out of range): lengths and cached tokens are as before; a copy-on-write that an
 * earlier item of the refused step caused is not undone (the fork has its own page from then on).
 */
kvl_status kvl_engine_step(kvl_engine *engine, const kvl_step_item *items, int32_t n_items,
                           float *logits);

/* Fills the cache of `seq` with seeded K/V instead of a prefill (`fill: synthetic` in rows). */
kvl_status kvl_engine_fill_synthetic(kvl_engine *engine, kvl_seq seq, int64_t n_tokens,
                                     uint64_t seed);

/* K and V (either may be NULL) of tokens first .. first + n of `seq` in one layer, decoded to
 * float32 [n][n_kv_heads * head_dim] host; K stands after RoPE. KVL_ERR_INPUT: out of range. */
kvl_status kvl_engine_read_kv(kvl_engine *engine, kvl_seq seq, int32_t layer, int64_t first,
                              int64_t n, float *k, float *v);

/* What really runs, for effective{}: kernel and dtype names and reasons of fallbacks. */
typedef struct kvl_engine_effective {
    char attention[48], attention_reason[160];
    char matmul_prefill[32], matmul_decode[32];
    char isa[16], kv_dtype[24], weights[16], compute_dtype[16], device[16], allocator[16];
    char kv_scale[16]; /* of K, or of K:V where they differ */
    char casts[200];   /* what is rounded to another dtype, and what widened, in a step */
    int64_t page_tokens;
    int64_t map_bytes; /* of a physical page; 0: memory is not mapped on demand */
    char reserve[8];   /* the policy, or none: the allocator sets no slabs aside */
    bool prefix_cache;
    bool by_token;          /* K and V of a slot lie together, all heads: slabs that vary */
    char weights_other[16]; /* format of matrices left unquantised, the embedding among them */
    int64_t nf4_block;      /* weights of a block; 0: another format */
} kvl_engine_effective;
/* For a prefill of n_prompt tokens in one step and decode steps of n_seqs sequences. */
void kvl_engine_effective_get(const kvl_engine *engine, int64_t n_prompt, int32_t n_seqs,
                              kvl_engine_effective *out);

/* Counters since create or the last reset. Times are a thread's, the mean over the team, and sum up
 * to the wall time of the steps. */
typedef struct kvl_engine_stats {
    uint64_t attention_ns, matmul_ns, other_ns; /* other: norms, RoPE, append, embed, ... */
    uint64_t idle_ns;                           /* waiting for other threads of the team */
    uint64_t steps, tokens;
    double read_bytes, flops;   /* unique work of the steps, by the models of work() */
    int64_t kv_saturated;       /* K and V values that saturated or overflowed when stored */
    int32_t kv_saturated_layer; /* the first layer where one did, -1 = none */
    double cast_elements;       /* activations, K and V rounded to another dtype */
    double widened_elements;    /* weights, K and V widened from what is stored, in registers */
} kvl_engine_stats;
void kvl_engine_stats_get(const kvl_engine *engine, kvl_engine_stats *out);
void kvl_engine_stats_reset(kvl_engine *engine);
/* Values that saturated (fp8, int8) or overflowed to infinity (f16, bf16) since then, by place:
 * [n_layers][2][n_kv_heads], of K and of V. */
const int64_t *kvl_engine_saturated(const kvl_engine *engine);
/* "layer 3 K head 1: 12, ...": where most of such counts lie, or "" when all are 0. */
void kvl_saturated_text(const kvl_config *config, const int64_t *counts, char *out,
                        size_t out_bytes);

typedef struct kvl_engine_memory {
    uint64_t weight_bytes;
    uint64_t kv_pool_bytes, kv_live_bytes,
        kv_allocated_bytes; /* pool; live slots; slots handed out */
    uint64_t kv_bytes_per_token;
    uint64_t workspace_bytes;
    kvl_ledger ledger;
} kvl_engine_memory;
void kvl_engine_memory_get(const kvl_engine *engine, kvl_engine_memory *out);

const kvl_config *kvl_engine_config(const kvl_engine *engine);

#endif
