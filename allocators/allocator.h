/* The allocator seam: who owns which KV slot. Host C only; touches no tensor.
 *
 * A slot holds K and V of one token in every layer of a layer group. An allocator hands slots of a
 * pool of `pool_tokens` slots to sequences, and says what must happen to memory as a list of orders
 * (copy, map, unmap) that the engine runs before anything is written to the new slots. The caller
 * owns the state memory: nothing is allocated after init.
 *
 * Conservation law, exact after every call (kvl_ledger):
 *
 *   pool = live + reserved + internal + cached + padding + free
 *
 *   live      slots that hold a token of a sequence (a slot shared by several counts once)
 *   reserved  handed out, not yet written, within the sequence's declared need (prompt + max_new)
 *   internal  handed out, not written, beyond the declared need
 *   cached    held by nobody, kept for the next request with the same prefix, reclaimed when needed
 *   padding   lost to alignment, never usable
 *   free      the rest
 *
 * Every call is all or nothing: after a refusal the state is what it was.
 */
#ifndef KVL_ALLOCATORS_ALLOCATOR_H
#define KVL_ALLOCATORS_ALLOCATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* ---- configuration -------------------------------------------------------------------------- */

/* How much an allocator that cannot grow a sequence sets aside at admission: the three variants of
 * Orca in the PagedAttention paper (Kwon et al., 2023, section 6.1). */
typedef enum kvl_reserve_policy {
    KVL_RESERVE_MAX,   /* max_seq_tokens, whatever was asked */
    KVL_RESERVE_POW2,  /* n_prompt + max_new rounded up to a power of two */
    KVL_RESERVE_ORACLE /* n_prompt + max_new: the caller knows the output's length */
} kvl_reserve_policy;

/* Which hole of a heap a slab goes into. */
typedef enum kvl_fit {
    KVL_FIT_BEST, /* the shortest that is long enough; of equal ones, any */
    KVL_FIT_FIRST /* the one with the lowest address; visits holes in turn */
} kvl_fit;

/* What a page of the prefix cache is known by. */
typedef enum kvl_prefix_mode {
    KVL_PREFIX_OFF,
    KVL_PREFIX_TOKENS, /* by its tokens and all before them: chained 64-bit xxhash, and the tokens
                          themselves are compared on a hit */
    KVL_PREFIX_KEYS    /* by the caller's 64-bit keys, which are taken at their word (traces) */
} kvl_prefix_mode;

/* Fields that play no part in an allocator are ignored; zeros are the defaults. */
typedef struct kvl_allocator_config {
    int64_t pool_tokens;    /* slots in the pool, >= 1 */
    int64_t page_tokens;    /* paged: slots in a page, >= 1 */
    int64_t max_seq_tokens; /* longest sequence allowed; the slab under KVL_RESERVE_MAX */
    int32_t max_seqs;       /* sequences alive at once, >= 1 */

    kvl_reserve_policy reserve; /* contiguous, buddy */
    kvl_fit fit;                /* contiguous, growing */
    kvl_prefix_mode prefix;     /* paged */
    int64_t window_tokens;      /* paged: > 0 = pages that no later query sees are returned; a query
                                   sees itself and the window_tokens - 1 before it */
    /* virtual: bytes of a token in one pool (K or V of one layer), and of a physical page. Both 0:
     * a physical page holds page_tokens tokens. */
    int64_t slot_bytes, map_bytes;

    /* The ledger's pool is what is handed out (and cached), free is 0: for "how much would it
     * take". pool_tokens then only bounds slot numbers; make it large, metadata is touched as it is
     * used. */
    bool unlimited;

    /* Fault injection: asked before slots are taken; true refuses with KVL_ERR_OOM. NULL: never. */
    bool (*deny)(void *user);
    void *deny_user;
} kvl_allocator_config;

/* ---- what goes in and out ------------------------------------------------------------------- */

/* A sequence's handle: small, dense, 0 .. max_seqs - 1, reused after release. */
typedef int32_t kvl_seq;

/* A request with what its prompt may be found by in the prefix cache. */
typedef struct kvl_request {
    int64_t n_prompt, max_new; /* tokens; the declared need is their sum */

    const int32_t *tokens; /* KVL_PREFIX_TOKENS: [n_prompt] ids; NULL: shares nothing */

    /* KVL_PREFIX_KEYS: key i stands for tokens 0 .. (i + 1) * page_tokens of the prompt, or 0 ..
     * n_prompt for a last page that is partly filled; equal keys mean equal prefixes. At most
     * ceil(n_prompt / page_tokens) keys; a shorter list leaves the rest unshared. */
    const uint64_t *keys;
    int64_t n_keys;

    /* Most tokens to take from the cache. A decoder gives n_prompt - 1, as logits need a token that
     * is run; 0 takes none, but what is written is still kept for others. */
    int64_t max_cached;
    /* Admitted again after preemption: what it finds is no hit of the ledger (recompute_tokens). */
    bool readmitted;
} kvl_request;

typedef struct kvl_admission {
    kvl_seq seq;
    int64_t n_cached; /* tokens found in the cache: the sequence has them already, its length is
                         n_cached, and the caller appends the other n_prompt - n_cached */
} kvl_admission;

typedef struct kvl_ledger {
    int64_t pool, live, reserved, internal, cached, padding, free; /* slots; the law above */
    int64_t external; /* part of free that cannot serve a request of largest_wanted: holes shorter
                         than its slab; paged: all when the whole does not suffice, else 0 */
    int64_t largest_admissible; /* longest new request, all of it prompt, accepted now */
    int64_t shared_saved; /* slots saved by sharing: sum over sequences of held tokens - live */
    int64_t live_peak, used_peak; /* high-water marks: live; pool - free - cached */
    int64_t copied_slots;         /* slots copied by orders since init */
    int64_t metadata_bytes;       /* state memory */

    /* Prefix cache, since init. Hits exclude re-admissions: recomputing is not sharing. */
    int64_t asked_tokens, hit_tokens; /* prompt tokens of admitted requests; of them, found */
    int64_t asked_pages, hit_pages;   /* the same in pages with a key */
    int64_t recompute_tokens;         /* found by requests admitted again */
    int64_t evicted_pages;            /* cached pages given up for others */

    int64_t windowed_pages;               /* returned since no later query sees them */
    int64_t mapped_pages, unmapped_pages; /* virtual: physical pages, since init */
} kvl_ledger;

typedef enum kvl_order_kind {
    KVL_ORDER_COPY_SLOTS, /* copy n_slots slots from src_slot to dst_slot (copy-on-write, growth) */
    KVL_ORDER_MAP,   /* back [src_slot, src_slot + n_slots) of every pool with memory; counted in
                        bytes of a pool, where a slot has slot_bytes (1 when that is 0) */
    KVL_ORDER_UNMAP, /* give that memory back to the system */
} kvl_order_kind;

/* Memory work for the engine. Slots are pool-wide: page * page_tokens + slot, or slab start + slot.
 * Run them one after another, in the order given: a later one may write what an earlier one read.
 */
typedef struct kvl_order {
    kvl_order_kind kind;
    int64_t src_slot, dst_slot, n_slots;
} kvl_order;

/* What the KV view and the pools need to know; fixed from init on. */
typedef struct kvl_placement {
    int64_t page_tokens;   /* slots a page has; without pages: the longest slab */
    int64_t address_slots; /* slot numbers are below it: pool_tokens, or more where slabs are
                              address space that memory is mapped into */
    bool slabs_vary; /* slabs differ in length or move: the order inside a slab must not depend
                        on its length, so it is (token, kv_head, head_dim) */
    bool mapped;     /* only what KVL_ORDER_MAP named may be touched */
} kvl_placement;

/* A run of slots with one owner, for maps of the pool. */
typedef struct kvl_slot_run {
    int64_t slot, n_slots, n_live; /* first slot; slots; of them, from the start, written */
    int32_t refs;                  /* sequences that hold it; 0: free or cached */
    kvl_seq owner;                 /* one of them; -1: none */
    bool cached;
} kvl_slot_run;
typedef void (*kvl_slot_visit)(void *user, const kvl_slot_run *run);

/* ---- the module ----------------------------------------------------------------------------- */

typedef struct kvl_allocator {
    const char *name;    /* "paged" */
    const char *summary; /* one line for `kvlab info` */
    /* Which fields of the configuration play a part. */
    bool uses_pages;   /* the KV view has a page table; without it page_tokens plays no part */
    bool uses_reserve; /* slabs are set aside at admission, by the reserve policy */
    bool maps_memory;  /* memory is mapped on demand, in pages of map_bytes */

    /* Pool that holds max_seqs sequences of max_seq_tokens whatever comes before: pool_tokens plays
     * no part. False on overflow. */
    bool (*full_pool)(const kvl_allocator_config *config, int64_t *pool_tokens);
    /* Bytes of state for `config`, or an error that names the value (page_tokens 0, overflow ...).
     */
    kvl_status (*state_bytes)(const kvl_allocator_config *config, uint64_t *bytes);
    /* Lays the state out in `state` (state_bytes bytes, 64-byte aligned; it must not be moved). */
    kvl_status (*init)(void *state, const kvl_allocator_config *config);

    /* Admits a sequence that will hold up to n_prompt + max_new tokens. Slabs are taken here; paged
     * takes what the prompt needs. KVL_ERR_OOM says "needs N pages, pool has M free of K, longest
     * that fits is L tokens"; KVL_ERR_INPUT when the empty pool could not hold it. */
    kvl_status (*reserve)(void *state, int64_t n_prompt, int64_t max_new, kvl_seq *seq);
    /* The same with a prefix; NULL: the allocator shares none (call kvl_allocator_admit). */
    kvl_status (*admit)(void *state, const kvl_request *request, kvl_admission *out);
    /* Tokens that `request` would find in the cache now; changes nothing. NULL as above. */
    int64_t (*match_prefix)(const void *state, const kvl_request *request);
    /* Ids (KVL_PREFIX_TOKENS) of generated tokens: those after the ones known so far, the prompt's
     * first. So a follow-up turn finds the answer's pages too. NULL as above. */
    kvl_status (*learn)(void *state, kvl_seq seq, const int32_t *tokens, int64_t n_tokens);

    /* n_tokens more tokens are about to be written at the sequence's end. May add orders. With a
     * prefix cache, filled pages can be found from here on: write them before the next admit. */
    kvl_status (*append)(void *state, kvl_seq seq, int64_t n_tokens);
    /* A child that shares every token of `seq`; KVL_ERR_UNSUPPORTED where sharing is impossible. */
    kvl_status (*fork)(void *state, kvl_seq seq, kvl_seq *child);
    /* Drops tokens past n_tokens. Refused where a window has already let go what the next query
     * would see. */
    kvl_status (*truncate)(void *state, kvl_seq seq, int64_t n_tokens);
    /* Swapping out is the engine's: it saves the slots, releases, and reserves and appends again.
     */
    kvl_status (*release)(void *state, kvl_seq seq);

    /* Tokens of the sequence (those before a window included); -1 for a handle not alive. */
    int64_t (*length)(const void *state, kvl_seq seq);

    /* Placement, for the KV view. Paged: page ids of `seq` ([ceil(len / page_tokens)] valid
     * entries, -1 for pages before the window), *slab_slot -1. Slabs: NULL, and *slab_slot = first
     * slot of the slab, which an append may change where slabs move. */
    const int32_t *(*pages)(const void *state, kvl_seq seq, int64_t *slab_slot);
    void (*placement)(const void *state, kvl_placement *out);

    /* Orders collected since the last call: at most `capacity` are written, the count is returned;
     * call until 0, at the latest after one append for each sequence. */
    int32_t (*take_orders)(void *state, kvl_order *orders, int32_t capacity);

    /* `largest_wanted`: declared need of the largest waiting request, 0 for none (external = 0). */
    void (*stats)(const void *state, int64_t largest_wanted, kvl_ledger *ledger);
    /* Visits every slot of the pool once, in runs of any order: handed out, cached, free, padding.
     * (virtual: what is mapped; unlimited: nothing beyond what is handed out.) For maps, not for
     * every step: the cost is that of all pages and tables. */
    void (*walk)(const void *state, kvl_slot_visit visit, void *user);
    /* Walks every invariant; false with one line in `why`. */
    bool (*is_valid)(const void *state, char *why, size_t why_bytes);
} kvl_allocator;

size_t kvl_allocator_count(void);
const kvl_allocator *kvl_allocator_at(size_t index);
kvl_status kvl_allocator_find(const char *name, const kvl_allocator **out);

/* admit() where there is one, else reserve() with nothing found. */
kvl_status kvl_allocator_admit(const kvl_allocator *allocator, void *state,
                               const kvl_request *request, kvl_admission *out);

/* "max", "pow2", "oracle". An unknown name is refused with the list. */
kvl_status kvl_reserve_policy_parse(const char *name, kvl_reserve_policy *out);
const char *kvl_reserve_policy_name(kvl_reserve_policy policy);

/* Slots that `policy` sets aside for a request (no more than max_seq_tokens). */
int64_t kvl_reserve_slots(const kvl_allocator_config *config, int64_t n_prompt, int64_t max_new);

#endif
