/* Verification: every kernel, format and allocator against an independent float64 oracle.
 *
 * A case is one line of text, its id, which alone reproduces it: shapes, dtypes, layout, mask, data
 * pattern and seed are all in it (grammar: harness/verify/case.h). Kernel error is measured on the
 * same stored bits; format error (against the unrounded values) is a number of its own.
 *
 * Gates per row and head: max abs, max rel with a floor, NMSE, non-finite values; a metric that is
 * NaN fails. The bound of a row is 2 x the error of the naive pass (float32 scores, P rounded to
 * the kernel's p_dtype, float32 sums, O rounded to o_dtype) + 1e-5, see harness/verify/gate.c.
 */
#ifndef KVL_HARNESS_VERIFY_H
#define KVL_HARNESS_VERIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/attention.h"
#include "core/dtype.h"
#include "core/status.h"

typedef enum kvl_verify_state {
    KVL_VERIFY_PASS = 0,
    KVL_VERIFY_FAIL,
    KVL_VERIFY_SKIP, /* not run; `reason` says why */
} kvl_verify_state;

enum { KVL_VERIFY_ID_BYTES = 256 };

/* One case. A metric below 0 was not measured (it does not apply); NaN was measured and fails. */
typedef struct kvl_verify_result {
    kvl_verify_state state;
    char id[KVL_VERIFY_ID_BYTES];
    char reason[256]; /* of a failure or a skip; "" for a pass */

    double max_abs, bound; /* of the row that comes nearest to its bound, or is furthest past */
    double max_rel, nmse;  /* worst over rows */
    double lse_error, lse_bound; /* as max_abs and bound */
    double format_error;         /* max abs against unrounded K and V: never part of a gate */
    int64_t n_nonfinite, n_rows; /* rows: (query token, head) pairs, or what the case counts */
    char kernel[48];             /* effective kernel, "" where none applies */
    double ms;                   /* wall time of the case */
} kvl_verify_result;

/* Verifies an attention module in the exact configuration that is about to be timed: a handful of
 * cases (decode at lengths around the page and the window, a prefill, a chunk, a ragged batch) with
 * the kernel, heads, dtypes, scales, page size (0 = contiguous), token-major order and window (0 =
 * none) that `config` names (its other fields play no part), on the current instruction set with
 * kvl_threads() threads; well under 100 ms. *out is the worst case: its id reproduces it with
 * `kvlab verify --case`. A combination the module does not support gives KVL_VERIFY_SKIP with its
 * reason. KVL_ERR_INPUT: unknown module, impossible shape. */
typedef struct kvl_verify_case kvl_verify_case; /* harness/verify/case.h */
kvl_status kvl_verify_attention_config(const kvl_verify_case *config, kvl_verify_result *out);

typedef enum kvl_verify_level {
    KVL_VERIFY_QUICK = 0, /* 20 s: one pairwise covering array over all axes + adversarial list */
    KVL_VERIFY_DEFAULT,   /* 3 min: one covering array for each kernel and instruction set */
    KVL_VERIFY_FULL,      /* hours: the product of the shape axes */
} kvl_verify_level;

/* What to run. Zero-initialise; NULL names mean all. */
typedef struct kvl_verify_options {
    kvl_verify_level level;
    const char *case_id;   /* an id (any valid one, listed or not), or a glob over listed ids */
    const char *filter;    /* comma list: ids that contain one of these texts */
    const char *attention; /* comma list of module names */
    const char *kv_dtype;  /* comma list of KV formats */
    const char *isa;       /* comma list of instruction sets; NULL: KVLAB_ISA or all of this CPU */
    const char *device;    /* "cpu" */
    const char *model;     /* goldens: the file for smollm2/ */
    bool list;             /* report ids (state SKIP, reason "listed") and run nothing */

    /* Modules under test; NULL: the registry. Plugins and tests bring their own. */
    const kvl_attention *const *modules;
    size_t n_modules;

    /* Called once for each case, in order; must not keep the pointer. */
    void (*on_result)(void *user, const kvl_verify_result *result);
    void *user;
} kvl_verify_options;

typedef struct kvl_verify_totals {
    int64_t passed, failed, skipped;
    int64_t expected; /* cases selected, known before the first runs: for progress */
} kvl_verify_totals;

/* Runs the selected cases. KVL_ERR_INPUT: unknown name (the nearest is named) or malformed id.
 * Nothing selected: KVL_OK with all totals 0. *totals is kept current during the run. */
kvl_status kvl_verify_run(const kvl_verify_options *options, kvl_verify_totals *totals);

/* Runs every part found in `dir`, a folder in the form of tests/golden/README.md. A malformed part
 * is KVL_ERR_INPUT with file and field, after the other parts ran. */
kvl_status kvl_verify_golden(const char *dir, const kvl_verify_options *options,
                             kvl_verify_totals *totals);

/* Parses a level's name. KVL_ERR_INPUT with the nearest name. */
kvl_status kvl_verify_level_parse(const char *name, kvl_verify_level *out);

#endif
