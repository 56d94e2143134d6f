/* Workloads: what a sweep can measure, each one table of the axes it uses. Everything that runs
 * over axes (command lines, keys, rows, the table at the end) runs over these tables, so that a new
 * workload is one more of them and its child's side (harness/cmd_trial.c). */
#ifndef KVL_HARNESS_WORKLOAD_H
#define KVL_HARNESS_WORKLOAD_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/status.h"
#include "harness/sweep/axis.h"

struct kvl_experiment;
struct kvl_trial;

/* How a workload uses an axis. */
typedef struct kvl_axis_use {
    kvl_axis_id id;
    const char *fallback; /* values when none are given; NULL: catalogue.c asks the registries */
    const char *option;   /* on the command line; NULL: as the axis says */
    const char *const
        *names; /* names allowed, NULL at the end; NULL: the axis's registry, or any */
    kvl_axis_grammar grammar; /* of a text value; NULL: any text */
} kvl_axis_use;

/* A column of the table at the end of a sweep. */
typedef struct kvl_summary_column {
    const char *metric, *title;
} kvl_summary_column;

typedef struct kvl_workload_kind {
    const char *name;    /* in rows, and `kvlab bench NAME` */
    const char *command; /* words after `kvlab bench` that run it; NULL: the name */
    const kvl_axis_use *axes;
    size_t n_axes;
    const kvl_summary_column *columns;
    size_t n_columns;
    /* Refuses texts that contradict each other, by axis id (NULL = not given); may be NULL. */
    kvl_status (*check)(const char *const texts[KVL_N_AXES]);
    /* Sets to 0 what plays no part in a trial; may be NULL. */
    void (*normalise)(struct kvl_trial *trial);
    /* Writes into trial->refused why this point is impossible, when it is; may be NULL. */
    void (*refuse)(const struct kvl_experiment *experiment, struct kvl_trial *trial);
    /* Bytes that one step or call reads before it reads one of them again: the size class of the
     * trial's read ceiling. NULL: nothing is timed, and nothing calibrated. */
    uint64_t (*working_set_bytes)(const struct kvl_trial *trial);
    /* What must be said below the table of these rows; may be NULL. */
    void (*note)(FILE *out, const json_t *rows);
} kvl_workload_kind;

extern const kvl_workload_kind kvl_workload_decode;    /* workload_decode.c */
extern const kvl_workload_kind kvl_workload_attention; /* workload_kernels.c */
extern const kvl_workload_kind kvl_workload_matmul;
extern const kvl_workload_kind kvl_workload_allocator; /* workload_allocators.c */
extern const kvl_workload_kind kvl_workload_soak;
extern const kvl_workload_kind kvl_workload_quality;      /* workload_quality.c */
extern const kvl_workload_kind kvl_workload_format_error; /* workload_format_error.c: normals */
extern const kvl_workload_kind kvl_workload_format_error_model; /* and a model's values */

extern const kvl_workload_kind kvl_workload_replay; /* workload_replay.c */
extern const kvl_workload_kind kvl_workload_serve;  /* workload_serve.c: virtual time */
extern const kvl_workload_kind kvl_workload_serve_real;

/* A note: how the files of the rows' models stored their weights, which decides what "float32"
 * means. */
void kvl_workload_note_source(FILE *out, const json_t *rows);
/* Rows whose K or V passed the range of their format: how often, and where most. */
void kvl_workload_note_saturated(FILE *out, const json_t *rows);

/* How the workload uses the axis; NULL when it does not. */
const kvl_axis_use *kvl_workload_use(const kvl_workload_kind *kind, kvl_axis_id id);

#endif
