/* Allocators and modes that the model is run on. Pools are tight: a few sequences fill them. */
#ifndef KVL_TESTS_ALLOCATORS_MODEL_CASES_H
#define KVL_TESTS_ALLOCATORS_MODEL_CASES_H

#include "allocators/allocator.h"

typedef struct model_case {
    const char *name, *mode;
    kvl_allocator_config config;
} model_case;

#define SIZES(pool, page, longest) \
    .pool_tokens = (pool), .page_tokens = (page), .max_seq_tokens = (longest)

static const model_case model_cases[] = {
    {"contiguous", "max", {SIZES(6 * 90 - 17, 1, 90)}},
    {"contiguous", "pow2", {SIZES(300, 1, 150), .reserve = KVL_RESERVE_POW2}},
    {"contiguous", "oracle", {SIZES(300, 1, 150), .reserve = KVL_RESERVE_ORACLE}},
    {"contiguous",
     "oracle, first fit",
     {SIZES(300, 1, 150), .reserve = KVL_RESERVE_ORACLE, .fit = KVL_FIT_FIRST}},
    {"contiguous",
     "oracle, unlimited",
     {SIZES(6000, 1, 150), .reserve = KVL_RESERVE_ORACLE, .unlimited = true}},
    {"buddy", "max", {SIZES(500, 1, 100)}},
    {"buddy", "pow2", {SIZES(461, 1, 150), .reserve = KVL_RESERVE_POW2}},
    {"buddy", "oracle", {SIZES(461, 1, 150), .reserve = KVL_RESERVE_ORACLE}},
    {"growing", "best fit", {SIZES(400, 1, 150)}},
    {"growing", "first fit", {SIZES(400, 1, 150), .fit = KVL_FIT_FIRST}},
    {"paged", "pages of 1", {SIZES(300, 1, 150)}},
    {"paged", "pages of 16", {SIZES(16 * 20 + 5, 16, 150)}},
    {"paged", "pages of 256", {SIZES(256 * 5 + 1, 256, 380)}},
    {"paged", "unlimited", {SIZES(16 * 90, 16, 150), .unlimited = true}},
    {"paged", "tokens", {SIZES(4 * 80, 4, 150), .prefix = KVL_PREFIX_TOKENS}},
    {"paged", "tokens, pages of 1", {SIZES(300, 1, 150), .prefix = KVL_PREFIX_TOKENS}},
    {"paged", "keys", {SIZES(5 * 60, 5, 150), .prefix = KVL_PREFIX_KEYS}},
    {"paged",
     "keys, unlimited",
     {SIZES(5 * 6000, 5, 150), .prefix = KVL_PREFIX_KEYS, .unlimited = true}},
    {"paged", "window", {SIZES(4 * 40, 4, 150), .window_tokens = 10}},
    {"paged", "window of 1", {SIZES(4 * 40, 4, 150), .window_tokens = 1}},
    {"paged",
     "window, tokens",
     {SIZES(4 * 50, 4, 150), .window_tokens = 13, .prefix = KVL_PREFIX_TOKENS}},
    {"virtual", "pages of 16 tokens", {SIZES(16 * 22 + 3, 16, 150)}},
    {"virtual", "pages of 100 bytes", {SIZES(350, 1, 150), .slot_bytes = 6, .map_bytes = 100}},
    {"virtual", "page above slab", {SIZES(900, 1, 50), .slot_bytes = 3, .map_bytes = 512}},
};
enum { N_MODEL_CASES = sizeof model_cases / sizeof *model_cases };

#endif
