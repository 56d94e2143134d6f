/* An experiment: axes x workload x policy, expanded into the trials of a sweep.
 *
 * Law: every point of the product is either one trial, or refused with a reason, or equal to an
 * earlier trial because the axis in which they differ plays no part in them (page_tokens with the
 * contiguous allocator, prompt when --context fills the cache): n_points = n_trials + n_duplicates,
 * refused ones included in n_trials.
 */
#ifndef KVL_HARNESS_EXPERIMENT_H
#define KVL_HARNESS_EXPERIMENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "harness/sweep/axis.h"
#include "harness/sweep/workload.h"

/* What goes beside the axes and is equal for all trials of a sweep. */
typedef struct kvl_workload {
    const kvl_workload_kind *kind; /* &kvl_workload_decode */
    uint64_t seed;                 /* of prompts, weights, K/V and the order of trials */
    int64_t chunk;                 /* prompt tokens in one engine step; 0 = the engine's default */
    const char *text;              /* file that prompts are taken from; NULL = seeded random ids */
    char text_digest[17];
    bool deterministic;
    int64_t nf4_block;    /* of formats in blocks; 0 = the model's own, or 64 */
    const char *nf4_skip; /* modules left unquantised; NULL = the model's own, or lm_head */
    bool allow_nonfinite; /* weights that are NaN or infinite are loaded */
    const json_t *extra;  /* options of one workload alone that were given, by their name in rows:
                             part of key, spec and repro line; NULL: none */
} kvl_workload;

/* One model of the sweep, looked at once by the parent. */
typedef struct kvl_model_facts {
    char digest[17];
    char kv_scales_digest[17]; /* of its calibrated scales, which lie beside it; "" = none */
    int64_t max_position;
    int64_t text_tokens; /* tokens of workload.text under this model's tokenizer; -1 = no text */
    uint64_t parameters, embedding_parameters; /* embedding: rows read one a token, when untied */
    uint64_t kv_values_per_token;              /* 2 * n_layers * n_kv_heads * head_dim */
} kvl_model_facts;

/* One trace of the sweep, read once by the parent so that a fault in it ends the command. */
typedef struct kvl_trace_facts {
    char digest[17];
    int64_t longest; /* prompt + output */
    bool shares;     /* it says what its prompts hold */
} kvl_trace_facts;

typedef struct kvl_experiment {
    kvl_workload workload;
    kvl_axis_values axes[KVL_N_AXES]; /* empty where the workload does not use the axis */
    kvl_model_facts *models; /* [axes[KVL_AXIS_MODEL].n], by index; NULL without that axis */
    kvl_trace_facts *traces; /* [axes[KVL_AXIS_TRACE].n], the same */
} kvl_experiment;

/* One configuration. Names are borrowed from the experiment; unused numbers are 0, names NULL. */
typedef struct kvl_trial {
    const kvl_workload_kind *kind;
    const char *names[KVL_N_AXES];
    int64_t numbers[KVL_N_AXES];
    const kvl_model_facts *model; /* NULL: the workload has none */
    const kvl_trace_facts *trace; /* NULL: the same */
    char key[17];                 /* 64-bit xxhash in hex; see kvl_trial_key */
    char refused[256];            /* why it cannot run, "" when it can */
} kvl_trial;

typedef struct kvl_trials {
    kvl_trial *items;
    size_t n, n_duplicates, n_refused;
} kvl_trials;

/* Fills axes from the texts given on the command line (NULL = default) and the registries' names.
 * Opens each model for its facts. (catalogue.c) */
kvl_status kvl_experiment_init(kvl_experiment *experiment, const kvl_workload *workload,
                               const char *const texts[KVL_N_AXES]);
void kvl_experiment_free(kvl_experiment *experiment);

/* The values of one axis as kvl_experiment_init would take them, for those who check a text before.
 * The workload must use the axis. Free with kvl_axis_values_free. (catalogue.c) */
kvl_status kvl_experiment_parse_axis(const kvl_workload_kind *kind, kvl_axis_id id,
                                     const char *text, kvl_axis_values *out);

/* Expands the product in the workload's order of axes (the last runs fastest), makes equal what
 * cannot differ, drops duplicates and says why a point is impossible. At most 100,000 points.
 * `refuse` (may be NULL) adds the checks that need registries: it writes a reason into
 * trial->refused. */
kvl_status kvl_experiment_expand(const kvl_experiment *experiment,
                                 void (*refuse)(const kvl_experiment *experiment, kvl_trial *trial),
                                 const char *build_id, kvl_trials *out);
void kvl_trials_free(kvl_trials *trials);

/* The registries' checks for `refuse`: instruction set and device. */
void kvl_experiment_refuse(const kvl_experiment *experiment, kvl_trial *trial);

/* axes{} of a row, those that the workload uses: a new reference. */
json_t *kvl_trial_axes(const kvl_trial *trial);

/* Everything that decides a result, as JSON (workload, axes, model digest, schema, build, host);
 * its sorted compact text is what the key hashes. A new reference. The model's path is left out:
 * a moved file is the same model. */
json_t *kvl_trial_canonical(const kvl_workload *workload, const kvl_trial *trial,
                            const char *build_id);

/* `kvlab bench NAME ...` that measures this one trial again, quoted for a shell; malloc'ed. */
char *kvl_trial_repro(const kvl_workload *workload, const kvl_trial *trial);

/* What the trial's workload reads in one go; decode: weights once and K/V once. */
uint64_t kvl_trial_step_bytes(const kvl_trial *trial);

#endif
