/* Runs attention cases and placed problems against the oracle. */
#ifndef KVL_HARNESS_VERIFY_ATTENTION_H
#define KVL_HARNESS_VERIFY_ATTENTION_H

#include "harness/verify/call.h"
#include "harness/verify/case.h"
#include "harness/verify/family.h"
#include "harness/verify/verify.h"

/* Runs one case on `module` (c->kernel is only a name here), with the case's instruction set forced
 * for the time of the call. Fills *result, id included; what cannot run is a skip with its reason,
 * what the module refuses or breaks is a failure. */
void kvl_verify_attention_case(const kvl_attention *module, const kvl_verify_case *c,
                               kvl_verify_result *result);

/* The module's output on `p` in the given layout, against `truth` (whose naive pass is replaced).
 * result->state and reason say how it went; the id is the caller's. Golden bounds: flat. */
void kvl_verify_attention_problem(const kvl_attention *module, const kvl_verify_problem *p,
                                  const kvl_verify_layout *layout, uint64_t seed, kvl_dtype o_dtype,
                                  bool flat_bound, kvl_verify_truth *truth,
                                  kvl_verify_result *result);

/* A kernel on an instruction set where it has a variant of its own. */
typedef struct kvl_verify_engine {
    const kvl_attention *module;
    kvl_isa isa;
} kvl_verify_engine;

enum { KVL_VERIFY_MAX_ENGINES = KVL_VERIFY_MAX_MODULES * KVL_N_ISAS };

/* The engines of the scope's modules and instruction sets; returns how many. A kernel without a
 * variant for a level runs its next lower one: listed once, for the lower level where that is in
 * the scope. */
int kvl_verify_engines(const kvl_verify_scope *scope,
                       kvl_verify_engine engines[KVL_VERIFY_MAX_ENGINES]);

#endif
