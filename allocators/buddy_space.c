/* Power-of-two chunks: a chunk of order o starts at a multiple of 2^o; its buddy differs from it in
 * bit o of the address alone. Taking splits a larger chunk in halves, giving joins buddies that are
 * both free (Knowlton, 1965). The pool need not be a power of two: it starts as the chunks of its
 * binary digits, the largest first, whose buddies never exist.
 *
 * Only free chunks have records. They are found by address through a hash table, so metadata hangs
 * on how many slabs there can be, not on the number of slots.
 */
#include <stdio.h>

#include "allocators/space.h"

enum { NONE = -1, N_ORDERS = 63, MAX_BUCKETS = 1 << 20 };

typedef struct chunk {
    int64_t slot;
    int32_t order;
    int32_t prev, next; /* free chunks of the same order; next also links unused records */
    int32_t chain;      /* of the same bucket */
} chunk;

/* Law: free chunks overlap nothing, and no two of them are buddies. */
typedef struct buddy {
    int64_t n_slots, max_records, n_buckets; /* n_buckets: a power of two */
    int32_t spare, n_touched;
    uint64_t filled;          /* bit of each order with a free chunk */
    int32_t lists[N_ORDERS];  /* first free chunk of each order */
    int64_t n_free[N_ORDERS]; /* free chunks of each order */
    int32_t *buckets;         /* [n_buckets] */
    chunk chunks[];           /* [max_records] */
} buddy;

/* A free chunk of order o has a buddy that is in use at least in part (or is a chunk of the start):
 * no more of them than slabs, and no more than the pool has room for. */
static int64_t records_for(int64_t n_slots, int64_t max_blocks) {
    int64_t n = 1;
    for (int o = 0; o < N_ORDERS && n_slots >> o; o++) {
        int64_t fit = n_slots >> o;
        n += fit < max_blocks + 1 ? fit : max_blocks + 1;
    }
    return n;
}

static int64_t buckets_for(int64_t n_records) {
    int64_t n = 1;
    while (n < n_records && n < MAX_BUCKETS) n *= 2;
    return n;
}

static bool bytes(int64_t n_slots, int64_t max_blocks, uint64_t *out) {
    int64_t n = records_for(n_slots, max_blocks);
    uint64_t offset;
    *out = sizeof(buddy);
    return n <= INT32_MAX && kvl_place(out, (uint64_t)n, sizeof(chunk), &offset) &&
           kvl_place(out, (uint64_t)buckets_for(n), sizeof(int32_t), &offset);
}

/* ---- free chunks ---------------------------------------------------------------------------- */

static int32_t *bucket_of(const buddy *b, int64_t slot, int32_t order) {
    uint64_t hash = ((uint64_t)slot >> order) * 0x9e3779b97f4a7c15u + (uint64_t)order;
    return &b->buckets[(hash ^ hash >> 32) & (uint64_t)(b->n_buckets - 1)];
}

static int32_t find(const buddy *b, int64_t slot, int32_t order) {
    int32_t id = *bucket_of(b, slot, order);
    while (id != NONE && (b->chunks[id].slot != slot || b->chunks[id].order != order))
        id = b->chunks[id].chain;
    return id;
}

static void put_chunk(buddy *b, int64_t slot, int32_t order) {
    int32_t id = b->spare, *bucket = bucket_of(b, slot, order);
    if (id != NONE)
        b->spare = b->chunks[id].next;
    else
        id = b->n_touched++;
    b->chunks[id] = (chunk){slot, order, NONE, b->lists[order], *bucket};
    if (b->lists[order] != NONE) b->chunks[b->lists[order]].prev = id;
    b->lists[order] = id;
    *bucket = id;
    b->filled |= 1ull << order;
    b->n_free[order]++;
}

static void take_chunk(buddy *b, int32_t id) {
    chunk *c = &b->chunks[id];
    int32_t *link = bucket_of(b, c->slot, c->order);
    while (*link != id) link = &b->chunks[*link].chain;
    *link = c->chain;
    if (c->prev != NONE)
        b->chunks[c->prev].next = c->next;
    else
        b->lists[c->order] = c->next;
    if (c->next != NONE) b->chunks[c->next].prev = c->prev;
    if (--b->n_free[c->order] == 0) b->filled &= ~(1ull << c->order);
    c->next = b->spare;
    b->spare = id;
}

/* ---- space ---------------------------------------------------------------------------------- */

static int32_t order_of(int64_t n) {
    return n <= 1 ? 0 : 64 - __builtin_clzll((unsigned long long)n - 1);
}

static int64_t rounded(int64_t n) {
    return 1ll << order_of(n);
}

static void init(void *space, int64_t n_slots, int64_t max_blocks, kvl_fit fit) {
    buddy *b = space;
    int64_t n = records_for(n_slots, max_blocks), at = 0;
    uint64_t end = sizeof(buddy), offset;
    *b = (buddy){.n_slots = n_slots, .max_records = n, .n_buckets = buckets_for(n), .spare = NONE};
    kvl_place(&end, (uint64_t)n, sizeof(chunk), &offset);
    kvl_place(&end, (uint64_t)b->n_buckets, sizeof(int32_t), &offset);
    b->buckets = (int32_t *)((uint8_t *)space + offset);
    for (int64_t i = 0; i < b->n_buckets; i++) b->buckets[i] = NONE;
    for (int o = N_ORDERS - 1; o >= 0; o--) b->lists[o] = NONE;
    for (int o = N_ORDERS - 1; o >= 0; o--) {
        if (!(n_slots >> o & 1)) continue;
        put_chunk(b, at, o);
        at += 1ll << o;
    }
}

static bool take(void *space, int64_t n, int64_t *slot, int32_t *block) {
    buddy *b = space;
    int32_t order = order_of(n);
    uint64_t fit = b->filled & ~0ull << order;
    if (!fit) return false;
    int32_t from = __builtin_ctzll(fit), id = b->lists[from];
    *slot = b->chunks[id].slot;
    *block = order;
    take_chunk(b, id);
    while (from-- > order) put_chunk(b, *slot + (1ll << from), from);
    return true;
}

static void give(void *space, int64_t slot, int64_t n, int32_t order) {
    buddy *b = space;
    for (int32_t id; (id = find(b, slot ^ 1ll << order, order)) != NONE; order++) {
        take_chunk(b, id);
        slot &= ~(1ll << order);
    }
    put_chunk(b, slot, order);
}

static int64_t largest(const void *space) {
    const buddy *b = space;
    return b->filled ? 1ll << (63 - __builtin_clzll(b->filled)) : 0;
}

static int64_t holes_below(const void *space, int64_t n) {
    const buddy *b = space;
    int64_t slots = 0;
    for (int32_t o = 0; o < N_ORDERS && (1ll << o) < n; o++) slots += b->n_free[o] << o;
    return slots;
}

static void holes(const void *space, void (*visit)(void *user, int64_t slot, int64_t n),
                  void *user) {
    const buddy *b = space;
    for (int32_t o = 0; o < N_ORDERS; o++) {
        for (int32_t i = b->lists[o]; i != NONE; i = b->chunks[i].next)
            visit(user, b->chunks[i].slot, 1ll << o);
    }
}

static bool invalid(char *why, size_t why_bytes, const char *what, int64_t at, int64_t value) {
    snprintf(why, why_bytes, "buddy: %s (%lld) is wrong: %lld", what, (long long)at,
             (long long)value);
    return false;
}

static bool is_valid(const void *space, int64_t n_free, char *why, size_t why_bytes) {
    const buddy *b = space;
    int64_t free = 0;
    for (int32_t o = 0; o < N_ORDERS; o++) {
        int64_t n = 0;
        int32_t prev = NONE;
        for (int32_t i = b->lists[o]; i != NONE; prev = i, i = b->chunks[i].next, n++) {
            if (i < 0 || i >= b->n_touched || n >= b->n_free[o])
                return invalid(why, why_bytes, "free chunk of order", o, i);
            const chunk *c = &b->chunks[i];
            if (c->order != o || c->prev != prev || c->slot & ((1ll << o) - 1) || c->slot < 0 ||
                c->slot > b->n_slots - (1ll << o))
                return invalid(why, why_bytes, "chunk at slot", c->slot, c->order);
            if (find(b, c->slot, o) != i)
                return invalid(why, why_bytes, "bucket of slot", c->slot, i);
            if (find(b, c->slot ^ 1ll << o, o) != NONE)
                return invalid(why, why_bytes, "two free buddies at slot", c->slot, o);
            free += 1ll << o;
        }
        if (n != b->n_free[o] || (n > 0) != (b->filled >> o & 1))
            return invalid(why, why_bytes, "free chunks of order", o, n);
    }
    return free == n_free || invalid(why, why_bytes, "free slots", n_free, free);
}

const kvl_space_ops kvl_space_buddy = {bytes,   init,        rounded, take,    give,
                                       largest, holes_below, holes,   is_valid};
