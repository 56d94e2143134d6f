/* An experiment file: a claim in one sentence, the sweep that tests it, and what must show.
 *
 *   claim: Flash attention gains over eager as prompts grow.
 *   source: Dao et al. 2022
 *   workload: decode
 *   axes:
 *     model: synthetic:SmolLM2-135M
 *     attention: [eager, flash]
 *     prompt: 512-4096*2
 *   metric: prefill_tok_s
 *   checks:
 *     - ratio(flash, eager) > 1.5 where prompt >= 4096
 *   plot: {x: prompt, by: attention}
 *
 * Axes are written as on the command line, under the names that rows have. Members, types and
 * which are needed: kvl_claim_members; experiments/schema.json says the same to editors.
 */
#ifndef KVL_HARNESS_CLAIM_H
#define KVL_HARNESS_CLAIM_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "harness/claims/check.h"
#include "harness/claims/yaml.h"
#include "harness/cmd_bench.h"
#include "harness/figures/figure.h"

typedef enum kvl_member_type {
    KVL_MEMBER_TEXT = 0,
    KVL_MEMBER_INT,
    KVL_MEMBER_REAL,
    KVL_MEMBER_FLAG,
    KVL_MEMBER_AXES,   /* map of axis: value or list */
    KVL_MEMBER_CHECKS, /* list of texts */
    KVL_MEMBER_PLOT    /* map of texts */
} kvl_member_type;

typedef struct kvl_member {
    const char *name;
    kvl_member_type type;
    bool needed;
    size_t offset;   /* in kvl_claim, of what TEXT, INT, REAL and FLAG fill */
    double min, max; /* of numbers */
    const char *help;
} kvl_member;

const kvl_member *kvl_claim_members(size_t *n);
/* Those of `plot`, all texts: x, y, by, where, kind. */
const kvl_member *kvl_claim_plot_members(size_t *n);

enum { KVL_CLAIM_MAX_CHECKS = 32 };

typedef struct kvl_claim {
    kvl_yaml yaml;
    char name[128]; /* the file's, without folder and ".yaml" */
    const char *claim, *source, *note, *workload, *metric;
    const kvl_workload_kind *kind;
    kvl_bench_values values;      /* axes and policy; `out` is the caller's */
    char *axis_texts[KVL_N_AXES]; /* behind values.axes */
    kvl_axis_values axis_values[KVL_N_AXES];
    kvl_check *checks;
    size_t n_checks;
    const char *plot_x, *plot_y, *plot_by, *plot_where, *plot_kind;
    char *plot_by_text;
} kvl_claim;

/* KVL_ERR_INPUT with file, line, column and the nearest valid name (kvl_yaml_excerpt of
 * claim->yaml shows the line). To be freed in any case. */
kvl_status kvl_claim_open(const char *path, kvl_claim *claim);
kvl_status kvl_claim_parse(const char *path, const char *text, size_t bytes, kvl_claim *claim);
void kvl_claim_free(kvl_claim *claim);

/* Rows of `rows` that answer the claim's sweep: its workload, and each of its axes at one of its
 * values. A new reference. For rows of other runs and builds. */
json_t *kvl_claim_select(const kvl_claim *claim, const json_t *rows);

typedef struct kvl_claim_result {
    kvl_check_result *checks; /* [claim->n_checks] */
    size_t n_checks;
    kvl_finding finding; /* of all: holds, or the gravest */
    kvl_groups groups;   /* borrow the rows given */
} kvl_claim_result;

/* Evaluates all checks. KVL_ERR_INPUT where a check's `where` leaves nothing. */
kvl_status kvl_claim_evaluate(const kvl_claim *claim, const json_t *rows, kvl_claim_result *out);
void kvl_claim_result_free(kvl_claim_result *result);

/* The JSON schema of experiment files, for editors: a new reference. */
json_t *kvl_claim_schema(void);

#endif
