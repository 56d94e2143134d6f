/* Families of cases: attention kernels, KV formats, linear layers, allocators. A family lists its
 * ids for a scope and runs any valid id, listed or not. */
#ifndef KVL_HARNESS_VERIFY_FAMILY_H
#define KVL_HARNESS_VERIFY_FAMILY_H

#include "core/isa.h"
#include "harness/verify/verify.h"

enum { KVL_VERIFY_MAX_MODULES = 64, KVL_VERIFY_MAX_DTYPES = 5 };

/* What the options select, names resolved. */
typedef struct kvl_verify_scope {
    kvl_verify_level level;
    const kvl_attention *modules[KVL_VERIFY_MAX_MODULES]; /* selected */
    size_t n_modules;
    const kvl_attention *known[KVL_VERIFY_MAX_MODULES]; /* all: an id may name any */
    size_t n_known;
    kvl_dtype kv_dtypes[KVL_VERIFY_MAX_DTYPES];
    size_t n_kv_dtypes;
    kvl_isa isas[KVL_N_ISAS];
    size_t n_isas;
    bool by_attention, by_kv_dtype, by_isa; /* the option was given: other families are left out */
} kvl_verify_scope;

/* Called with each listed id; false ends the listing. */
typedef bool (*kvl_verify_visit)(void *user, const char *id);

typedef struct kvl_verify_family {
    const char *prefix; /* ids begin with it: "attn", "kv/" */
    /* False when `visit` ended it. */
    bool (*list)(const kvl_verify_scope *scope, kvl_verify_visit visit, void *user);
    /* Runs one id. KVL_ERR_INPUT: malformed, or an unknown name; anything else is in *result. */
    kvl_status (*run)(const kvl_verify_scope *scope, const char *id, kvl_verify_result *result);
} kvl_verify_family;

extern const kvl_verify_family kvl_verify_family_attention; /* verify_list.c */
extern const kvl_verify_family kvl_verify_family_kv;        /* verify_kv.c */
extern const kvl_verify_family kvl_verify_family_linear;    /* verify_linear.c */
extern const kvl_verify_family kvl_verify_family_allocator; /* verify_allocator.c */

/* Resolves the names of `options`. KVL_ERR_INPUT with the nearest name. */
kvl_status kvl_verify_scope_make(const kvl_verify_options *options, kvl_verify_scope *scope);

/* A result with no metric measured. */
void kvl_verify_result_clear(kvl_verify_result *result, const char *id);
void kvl_verify_skipped(kvl_verify_result *result, const char *reason);

#endif
