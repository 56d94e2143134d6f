/* How a weight format of one plain element per weight lies in a panel; included by sources built
 * through kvl_isa_source, after they have defined
 *   W_NAME   bf16, ...: vf_load_<W_NAME> widens KVL_VL of them
 *   W_TYPE   the stored type
 *   W_DTYPE  its kvl_dtype
 *   W_PAIRS  1: a panel is W_TYPE [n_in / 2, rounded up][KVL_PANEL][2], two k of an output side by
 *            side and a k from n_in on zero; 0: W_TYPE [n_in][KVL_PANEL]
 * Pairs of 16 bits fill the 32 bits of a lane: a whole load, a shift and a mask widen two vectors,
 * and the bf16 matrix instructions take them as they lie. */
#include "quant/linear_sink.h"

#define W_PASTE2(a, b) a##b
#define W_PASTE(a, b) W_PASTE2(a, b)

/* Stored bytes of a k of a panel: 32 to 128, so a line of 64 holds 2 k, 1 or a half. */
enum { W_K_BYTES = KVL_PANEL * sizeof(W_TYPE) };

/* Where weight k of a lane is. */
static inline int64_t weight_at(int64_t k, int64_t lane) {
    return W_PAIRS ? (k / 2 * KVL_PANEL + lane) * 2 + k % 2 : k * KVL_PANEL + lane;
}

/* Weight k, even, of KVL_VL lanes; lane is a multiple of KVL_VL. */
static inline vf load_even(const W_TYPE *w, int64_t k, int64_t lane) {
#if W_PAIRS
    return W_PASTE(W_PASTE(vf_load_, W_NAME), _even)(w + (k * KVL_PANEL + lane * 2));
#else
    return W_PASTE(vf_load_, W_NAME)(w + (k * KVL_PANEL + lane));
#endif
}

/* Weight k + 1 of the same; k is even. */
static inline vf load_odd(const W_TYPE *w, int64_t k, int64_t lane) {
#if W_PAIRS
    return W_PASTE(W_PASTE(vf_load_, W_NAME), _odd)(w + (k * KVL_PANEL + lane * 2));
#else
    return W_PASTE(vf_load_, W_NAME)(w + ((k + 1) * KVL_PANEL + lane));
#endif
}

/* Weights are loaded again for the odd k: kept, they would take the registers of two sums. */
#define W_RELOAD() __asm__ volatile("" ::: "memory")
