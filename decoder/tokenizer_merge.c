/* Byte-pair merging: of all adjacent pairs the one of lowest rank is merged, the leftmost of equal
 * ones, until none is left. Short pieces scan for it; long ones keep a heap of (rank, position), so
 * that 131,072 equal letters cost n log n. Both give the same tokens. */
#include <stdlib.h>
#include <string.h>

#include "decoder/tokenizer_internal.h"

enum { SHORT_PIECE = 24 };

kvl_status kvl_ids_add(kvl_ids *ids, int32_t id) {
    if (ids->n == ids->capacity) {
        int64_t capacity = ids->capacity ? ids->capacity * 2 : 256;
        int32_t *data = realloc(ids->data, (size_t)capacity * sizeof *data);
        if (!data) return kvl_fail(KVL_ERR_OOM, "tokenizer: list of %lld ids", (long long)capacity);
        ids->data = data;
        ids->capacity = capacity;
    }
    ids->data[ids->n++] = id;
    return KVL_OK;
}

void kvl_bpe_scratch_free(kvl_bpe_scratch *scratch) {
    free(scratch->ids);
    free(scratch->heap);
    kvl_buffer_free(&scratch->mapped);
    *scratch = (kvl_bpe_scratch){0};
}

/* Room for `n` symbols. One block holds the three lists. The heap takes one entry for each pair at
 * the start and two for each merge. */
static kvl_status scratch_reserve(kvl_bpe_scratch *scratch, size_t n) {
    if (n <= scratch->capacity) return KVL_OK;
    size_t capacity = n < 256 ? 256 : n + n / 2;
    free(scratch->ids);
    free(scratch->heap);
    scratch->ids = malloc(capacity * 3 * sizeof *scratch->ids);
    scratch->heap = malloc(capacity * 3 * sizeof *scratch->heap);
    scratch->capacity = scratch->ids && scratch->heap ? capacity : 0;
    if (!scratch->capacity) return kvl_fail(KVL_ERR_OOM, "tokenizer: a piece of %zu bytes", n);
    scratch->prev = scratch->ids + capacity;
    scratch->next = scratch->prev + capacity;
    return KVL_OK;
}

static const kvl_map64_slot *pair(const kvl_tokenizer *tok, int32_t left, int32_t right) {
    return kvl_map64_find(&tok->merges, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

/* ---- short pieces: scan ------------------------------------------------------------------------
 */

static size_t merge_short(const kvl_tokenizer *tok, int32_t *ids, size_t n) {
    const kvl_map64_slot *pairs[SHORT_PIECE];
    for (size_t i = 0; i + 1 < n; i++) pairs[i] = pair(tok, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (pairs[i] && (best == n || pairs[i]->first < pairs[best]->first)) best = i;
        if (best == n) break;
        ids[best] = (int32_t)pairs[best]->second;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (n - best > 1)
            memmove(pairs + best + 1, pairs + best + 2, (n - best - 2) * sizeof *pairs);
        if (best > 0) pairs[best - 1] = pair(tok, ids[best - 1], ids[best]);
        if (best + 1 < n) pairs[best] = pair(tok, ids[best], ids[best + 1]);
    }
    return n;
}

/* ---- long pieces: heap -------------------------------------------------------------------------
 */

static void heap_push(kvl_bpe_scratch *s, uint64_t entry) {
    size_t i = s->n_heap++;
    while (i > 0 && s->heap[(i - 1) / 2] > entry) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = entry;
}

static uint64_t heap_pop(kvl_bpe_scratch *s) {
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_heap) break;
        if (child + 1 < s->n_heap && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= last) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static void push_pair(const kvl_tokenizer *tok, kvl_bpe_scratch *s, int32_t left) {
    if (left < 0 || s->next[left] < 0) return;
    const kvl_map64_slot *found = pair(tok, s->ids[left], s->ids[s->next[left]]);
    if (found) heap_push(s, (uint64_t)found->first << 32 | (uint32_t)left);
}

static void merge_long(const kvl_tokenizer *tok, kvl_bpe_scratch *s, size_t n) {
    s->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        s->prev[i] = (int32_t)i - 1;
        s->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < n; i++) push_pair(tok, s, (int32_t)i);
    while (s->n_heap) {
        uint64_t entry = heap_pop(s);
        int32_t at = (int32_t)(uint32_t)entry;
        int32_t right = s->ids[at] < 0 ? -1 : s->next[at];
        if (right < 0) continue;
        /* Stale when a neighbour has been merged since: the pair now here has another rank. */
        const kvl_map64_slot *found = pair(tok, s->ids[at], s->ids[right]);
        if (!found || found->first != (uint32_t)(entry >> 32)) continue;
        s->ids[at] = (int32_t)found->second;
        s->ids[right] = -1; /* dead */
        s->next[at] = s->next[right];
        if (s->next[at] >= 0) s->prev[s->next[at]] = at;
        push_pair(tok, s, s->prev[at]);
        push_pair(tok, s, at);
    }
}

/* ---- a pre-token -------------------------------------------------------------------------------
 */

/* The whole piece as one token, or -1: its text is the piece in the byte-level alphabet. */
static int32_t whole_piece(const kvl_tokenizer *tok, const uint8_t *text, size_t bytes,
                           kvl_buffer *mapped) {
    if (bytes > KVL_TOKEN_MAX_BYTES) return -1;
    kvl_buffer_clear(mapped);
    for (size_t i = 0; i < bytes; i++) {
        uint32_t code = kvl_byte_code(text[i]);
        char two[2] = {(char)(0xc0 | code >> 6), (char)(0x80 | (code & 0x3f))};
        char one = (char)code;
        if (code < 0x80)
            kvl_buffer_add(mapped, &one, 1);
        else
            kvl_buffer_add(mapped, two, 2);
    }
    return mapped->failed ? -1 : kvl_tok_find(tok, mapped->data, mapped->bytes);
}

kvl_status kvl_bpe_encode(const kvl_tokenizer *tok, const uint8_t *text, size_t bytes,
                          size_t offset, kvl_bpe_scratch *scratch, kvl_ids *ids) {
    if (tok->ignore_merges) {
        int32_t id = whole_piece(tok, text, bytes, &scratch->mapped);
        if (scratch->mapped.failed) return kvl_fail(KVL_ERR_OOM, "tokenizer: out of memory");
        if (id >= 0) return kvl_ids_add(ids, id);
    }
    KVL_TRY(scratch_reserve(scratch, bytes));
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = tok->byte_ids[text[i]] >= 0 ? tok->byte_ids[text[i]] : tok->unknown_id;
        if (id < 0)
            return kvl_fail(KVL_ERR_INPUT,
                            "text byte 0x%02x at offset %zu: the vocabulary of %s has no symbol "
                            "for it",
                            text[i], offset + i, tok->label);
        scratch->ids[i] = id;
    }
    size_t n = bytes;
    if (n <= SHORT_PIECE)
        n = merge_short(tok, scratch->ids, n);
    else
        merge_long(tok, scratch, n);
    for (size_t i = 0; i < n; i++)
        if (scratch->ids[i] >= 0) KVL_TRY(kvl_ids_add(ids, scratch->ids[i]));
    return KVL_OK;
}
