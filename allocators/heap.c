/* A heap of slots: blocks in the order of their addresses, each used or a hole, no two holes side
 * by side. Holes are also in bins by length (16 bins an octave, as in TLSF: Masmano et al., 2004),
 * so that the best fit is found without looking at shorter holes: it is the shortest in the bin of
 * the length asked for that is long enough, else the shortest of the next bin that is not empty.
 * Giving back joins a block with the holes beside it, in constant time. First fit visits holes by
 * address instead.
 */
#include <stdio.h>

#include "allocators/space.h"

enum { NONE = -1, N_BINS = 16 * 61, N_WORDS = (N_BINS + 63) / 64 };

typedef struct block {
    int64_t slot, n;
    int32_t before, after; /* by address; after also links unused records */
    int32_t prev, next;    /* holes: of the same bin */
    int32_t used;
} block;

/* Law: the blocks from `first` cover [0, n_slots) without gap or overlap. */
typedef struct heap {
    int64_t n_slots, max_records;
    int32_t first, spare, n_touched; /* block at slot 0; unused records; records ever used */
    kvl_fit fit;
    int32_t bins[N_BINS];
    uint64_t filled[N_WORDS]; /* bit of each bin that is not empty */
    block blocks[];           /* [max_records] */
} heap;

/* Slabs, one hole beside each, and one more. */
static int64_t records_for(int64_t max_blocks) {
    return 2 * max_blocks + 2;
}

static bool bytes(int64_t n_slots, int64_t max_blocks, uint64_t *out) {
    uint64_t blocks;
    return records_for(max_blocks) <= INT32_MAX &&
           kvl_mul_u64((uint64_t)records_for(max_blocks), sizeof(block), &blocks) &&
           kvl_add_u64(sizeof(heap), blocks, out);
}

static int bin_of(int64_t n) {
    if (n < 16) return (int)n;
    int log2 = 63 - __builtin_clzll((unsigned long long)n);
    return 16 * (log2 - 3) + (int)(n >> (log2 - 4) & 15);
}

/* ---- bins ----------------------------------------------------------------------------------- */

static void put_hole(heap *h, int32_t id) {
    block *b = &h->blocks[id];
    int bin = bin_of(b->n);
    b->used = 0;
    b->prev = NONE;
    b->next = h->bins[bin];
    if (b->next != NONE) h->blocks[b->next].prev = id;
    h->bins[bin] = id;
    h->filled[bin / 64] |= 1ull << bin % 64;
}

static void take_hole(heap *h, int32_t id) {
    block *b = &h->blocks[id];
    int bin = bin_of(b->n);
    if (b->prev != NONE)
        h->blocks[b->prev].next = b->next;
    else
        h->bins[bin] = b->next;
    if (b->next != NONE) h->blocks[b->next].prev = b->prev;
    if (h->bins[bin] == NONE) h->filled[bin / 64] &= ~(1ull << bin % 64);
}

/* First bin from `bin` on that is not empty, N_BINS for none. */
static int next_bin(const heap *h, int bin) {
    for (int word = bin / 64; word < N_WORDS; word++) {
        uint64_t bits = h->filled[word];
        if (word == bin / 64) bits &= ~0ull << bin % 64;
        if (bits) return word * 64 + __builtin_ctzll(bits);
    }
    return N_BINS;
}

static int32_t shortest_in(const heap *h, int bin, int64_t n) {
    int32_t best = NONE;
    for (int32_t i = h->bins[bin]; i != NONE; i = h->blocks[i].next) {
        if (h->blocks[i].n < n || (best != NONE && h->blocks[i].n >= h->blocks[best].n)) continue;
        best = i;
        if (h->blocks[i].n == n) break;
    }
    return best;
}

static int32_t find_best(const heap *h, int64_t n) {
    int bin = bin_of(n);
    int32_t id = shortest_in(h, bin, n);
    if (id != NONE) return id;
    bin = next_bin(h, bin + 1);
    return bin < N_BINS ? shortest_in(h, bin, n) : NONE;
}

static int32_t find_first(const heap *h, int64_t n) {
    int32_t id = h->first;
    while (id != NONE && (h->blocks[id].used || h->blocks[id].n < n)) id = h->blocks[id].after;
    return id;
}

/* ---- blocks --------------------------------------------------------------------------------- */

static int32_t new_record(heap *h) {
    int32_t id = h->spare;
    if (id == NONE) return h->n_touched++;
    h->spare = h->blocks[id].after;
    return id;
}

static void init(void *space, int64_t n_slots, int64_t max_blocks, kvl_fit fit) {
    heap *h = space;
    *h = (heap){.n_slots = n_slots,
                .max_records = records_for(max_blocks),
                .first = 0,
                .spare = NONE,
                .n_touched = 1,
                .fit = fit};
    for (int i = 0; i < N_BINS; i++) h->bins[i] = NONE;
    h->blocks[0] = (block){.n = n_slots, .before = NONE, .after = NONE};
    put_hole(h, 0);
}

static int64_t rounded(int64_t n) {
    return n;
}

static bool take(void *space, int64_t n, int64_t *slot, int32_t *out) {
    heap *h = space;
    int32_t id = h->fit == KVL_FIT_FIRST ? find_first(h, n) : find_best(h, n);
    if (id == NONE) return false;
    block *b = &h->blocks[id];
    take_hole(h, id);
    b->used = 1;
    if (b->n > n) { /* the rest stays a hole, behind */
        int32_t rest = new_record(h);
        h->blocks[rest] =
            (block){.slot = b->slot + n, .n = b->n - n, .before = id, .after = b->after};
        if (b->after != NONE) h->blocks[b->after].before = rest;
        b->after = rest;
        b->n = n;
        put_hole(h, rest);
    }
    *slot = b->slot;
    *out = id;
    return true;
}

/* Joins `id` with the hole behind it. */
static void join(heap *h, int32_t id) {
    block *b = &h->blocks[id], *gone = &h->blocks[b->after];
    int32_t gone_id = b->after;
    b->n += gone->n;
    b->after = gone->after;
    if (b->after != NONE) h->blocks[b->after].before = id;
    gone->after = h->spare;
    h->spare = gone_id;
}

static void give(void *space, int64_t slot, int64_t n, int32_t id) {
    heap *h = space;
    int32_t before = h->blocks[id].before, after = h->blocks[id].after;
    if (after != NONE && !h->blocks[after].used) {
        take_hole(h, after);
        join(h, id);
    }
    if (before != NONE && !h->blocks[before].used) {
        take_hole(h, before);
        join(h, before);
        id = before;
    }
    put_hole(h, id);
}

/* ---- questions ------------------------------------------------------------------------------ */

static int64_t largest(const void *space) {
    const heap *h = space;
    for (int word = N_WORDS - 1; word >= 0; word--) {
        if (!h->filled[word]) continue;
        int64_t most = 0;
        int bin = word * 64 + 63 - __builtin_clzll(h->filled[word]);
        for (int32_t i = h->bins[bin]; i != NONE; i = h->blocks[i].next)
            if (h->blocks[i].n > most) most = h->blocks[i].n;
        return most;
    }
    return 0;
}

static int64_t holes_below(const void *space, int64_t n) {
    const heap *h = space;
    int64_t slots = 0;
    for (int bin = next_bin(h, 0); bin <= bin_of(n) && bin < N_BINS; bin = next_bin(h, bin + 1)) {
        for (int32_t i = h->bins[bin]; i != NONE; i = h->blocks[i].next)
            if (h->blocks[i].n < n) slots += h->blocks[i].n;
    }
    return slots;
}

static void holes(const void *space, void (*visit)(void *user, int64_t slot, int64_t n),
                  void *user) {
    const heap *h = space;
    for (int32_t i = h->first; i != NONE; i = h->blocks[i].after)
        if (!h->blocks[i].used) visit(user, h->blocks[i].slot, h->blocks[i].n);
}

static bool invalid(char *why, size_t why_bytes, const char *what, int64_t at, int64_t value,
                    int64_t want) {
    snprintf(why, why_bytes, "heap: %s (%lld) is %lld, not %lld", what, (long long)at,
             (long long)value, (long long)want);
    return false;
}

static bool bins_valid(const heap *h, int64_t n_holes, char *why, size_t why_bytes) {
    int64_t n = 0;
    for (int bin = 0; bin < N_BINS; bin++) {
        int32_t prev = NONE;
        if ((h->filled[bin / 64] >> bin % 64 & 1) != (h->bins[bin] != NONE))
            return invalid(why, why_bytes, "bit of bin", bin, h->bins[bin] == NONE, NONE);
        for (int32_t i = h->bins[bin]; i != NONE; prev = i, i = h->blocks[i].next) {
            if (i < 0 || i >= h->n_touched || h->blocks[i].used || ++n > n_holes)
                return invalid(why, why_bytes, "entry of bin", bin, i, NONE);
            if (bin_of(h->blocks[i].n) != bin || h->blocks[i].prev != prev)
                return invalid(why, why_bytes, "length in bin", bin, h->blocks[i].n, prev);
        }
    }
    return n == n_holes || invalid(why, why_bytes, "holes in bins", 0, n, n_holes);
}

static bool is_valid(const void *space, int64_t n_free, char *why, size_t why_bytes) {
    const heap *h = space;
    int64_t at = 0, free = 0, n_holes = 0, n_blocks = 0;
    int32_t before = NONE;
    for (int32_t i = h->first; i != NONE; before = i, i = h->blocks[i].after) {
        if (i < 0 || i >= h->n_touched || ++n_blocks > h->n_touched)
            return invalid(why, why_bytes, "block", n_blocks, i, h->n_touched);
        const block *b = &h->blocks[i];
        if (b->slot != at || b->n < 1 || b->before != before)
            return invalid(why, why_bytes, "start of block", i, b->slot, at);
        if (!b->used && before != NONE && !h->blocks[before].used)
            return invalid(why, why_bytes, "holes side by side at slot", at, i, before);
        at += b->n;
        if (b->used) continue;
        n_holes++;
        free += b->n;
    }
    if (at != h->n_slots) return invalid(why, why_bytes, "slots covered", 0, at, h->n_slots);
    if (free != n_free) return invalid(why, why_bytes, "free slots", 0, free, n_free);
    return bins_valid(h, n_holes, why, why_bytes);
}

const kvl_space_ops kvl_space_heap = {bytes,   init,        rounded, take,    give,
                                      largest, holes_below, holes,   is_valid};
