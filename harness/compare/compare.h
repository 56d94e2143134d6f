/* kvlab compare: is B faster than A, slower, the same, or can these rows not tell?
 *
 *   rows of A and B -> pairs (pair.h) -> metrics of each pair -> change (interval.h) -> verdict
 *
 * A verdict of a pair's metric holds its 99.5 % interval against the smallest effect that counts;
 * the verdict of all is the gravest: a regression anywhere (crossed, when something else gained),
 * else what cannot be told, else a gain, else the same.
 */
#ifndef KVL_HARNESS_COMPARE_H
#define KVL_HARNESS_COMPARE_H

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/buffer.h"
#include "harness/compare/interval.h"
#include "harness/compare/pair.h"
#include "harness/figures/dictionary.h"

typedef enum kvl_verdict {
    KVL_VERDICT_SAME = 0,
    KVL_VERDICT_FASTER, /* or better, where the metric is no speed */
    KVL_VERDICT_SLOWER,
    KVL_VERDICT_UNSURE,
    KVL_VERDICT_MISSING, /* a trial of A that B lacks or refuses */
    KVL_VERDICT_FAILED,  /* B ended oom, timeout, crash or mismatch */
    KVL_VERDICT_NEW,     /* B has or does what A lacks or failed at: nothing to compare, no fault */
    KVL_VERDICT_CROSSED, /* of all: a gain and a regression */
    KVL_N_VERDICTS
} kvl_verdict;

const char *kvl_verdict_name(kvl_verdict verdict); /* "faster" */

typedef struct kvl_compare_options {
    const char *by, *across;
    const char *metrics;    /* comma list NAME, NAME:lower or NAME:higher; NULL: the workload's */
    const char *thresholds; /* comma list NAME=PCT; NULL: none */
    double effect_pct;      /* smallest change that counts, where no threshold says otherwise */
    const char *fail_on;    /* comma list of verdict names or "none"; NULL: see kvl_compare_exit */
    const volatile sig_atomic_t *stop; /* ends the work between two pairs; may be NULL */
} kvl_compare_options;

/* One metric of one pair; or a pair without any: metric "" and verdict missing, failed or new. */
typedef struct kvl_comparison {
    const kvl_pair *pair;
    char metric[64];
    kvl_better better;
    double effect;             /* 0.01 */
    double a_median, b_median; /* of all ok rounds, paired or not */
    kvl_change change;
    kvl_verdict verdict;
    long more_rounds; /* unsure: KVL_ROUNDS_UNKNOWN, or how many would settle it */
    char reason[160]; /* of missing, failed and new, and of unsure where it is not noise */
} kvl_comparison;

typedef struct kvl_compare_result {
    kvl_pairs pairs;
    kvl_comparison *items;
    size_t n;
    size_t counts[KVL_N_VERDICTS];
    kvl_verdict verdict; /* of all */
    bool other_run;      /* of some pair: drift between the runs is in no interval */
    int signal;          /* that ended it early; items are incomplete then */
} kvl_compare_result;

/* KVL_ERR_INPUT: what kvl_pairs_make refuses, an unknown metric, threshold or verdict, a metric
 * that no pair has. */
kvl_status kvl_compare_run(const kvl_side *a, const kvl_side *b, const kvl_compare_options *options,
                           kvl_compare_result *out);
void kvl_compare_free(kvl_compare_result *result);

/* Exit code. Without `fail_on`: 4 something failed, 1 something is slower, 3 something is unsure or
 * missing, 5 nothing was compared, else 0. With it: 1 when a listed verdict occurs, else 0.
 * KVL_ERR_INPUT names an unknown word. */
kvl_status kvl_compare_exit(const kvl_compare_result *result, const char *fail_on, int *code);

/* One line a comparison and a last line for all. */
void kvl_compare_text(const kvl_compare_result *result, kvl_buffer *out);
/* {schema_version, command, verdict, exit_code, interval_pct, counts{}, comparisons[]}. */
json_t *kvl_compare_json(const kvl_compare_result *result, int exit_code);

#define KVL_COMPARE_CONFIDENCE 0.995
enum { KVL_COMPARE_SCHEMA = 1 };

#endif
