/* Axes: the dimensions of a sweep, their names as rows spell them, and the grammar of their values.
 *
 *   512,1024        a list          512-8192*2   512, 1024, ... up to 8192 (factor 2 or more)
 *   eager,flash     names           1-9+4        1, 5, 9 (step 1 or more)
 *
 * Lists and ranges mix; a value given twice counts once; the order is kept. Texts may have a
 * grammar of their own (shapes of kernels): they are kept in its canonical spelling.
 */
#ifndef KVL_HARNESS_AXIS_H
#define KVL_HARNESS_AXIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef enum kvl_axis_id {
    KVL_AXIS_MODEL = 0,
    KVL_AXIS_ALLOCATOR,
    KVL_AXIS_ATTENTION,
    KVL_AXIS_KV_DTYPE,
    KVL_AXIS_KV_SCALE,
    KVL_AXIS_WEIGHTS,
    KVL_AXIS_COMPUTE_DTYPE,
    KVL_AXIS_PROMPT,
    KVL_AXIS_OUTPUT,
    KVL_AXIS_CONTEXT,
    KVL_AXIS_BATCH,
    KVL_AXIS_PAGE_TOKENS,
    KVL_AXIS_THREADS,
    KVL_AXIS_ISA,
    KVL_AXIS_DEVICE,
    KVL_AXIS_HEADS,
    KVL_AXIS_HEAD_DIM,
    KVL_AXIS_SHAPE,
    KVL_AXIS_WINDOW,
    KVL_AXIS_SOFTCAP,
    KVL_AXIS_CAUSAL,
    KVL_AXIS_CACHE,
    KVL_AXIS_KERNEL,
    KVL_AXIS_DATA,
    KVL_AXIS_FORMAT,
    KVL_AXIS_BLOCK,
    KVL_AXIS_TRACE,
    KVL_AXIS_ARRIVAL,
    KVL_AXIS_RESERVE,
    KVL_AXIS_SHARE,
    KVL_AXIS_POOL_TOKENS,
    KVL_AXIS_MAX_MODEL_LEN,
    KVL_AXIS_MAX_SEQS,
    KVL_AXIS_OPERATIONS,
    KVL_AXIS_MEMORY_UTILIZATION,
    KVL_AXIS_MAX_BATCHED_TOKENS,
    KVL_AXIS_SCHEDULE,
    KVL_AXIS_CHUNKED_PREFILL,
    KVL_AXIS_PREEMPT,
    KVL_AXIS_QUEUE_LIMIT,
    KVL_AXIS_RETRY,
    KVL_AXIS_MAP_KIB,
    KVL_AXIS_PREFIX_CACHE,
    KVL_N_AXES
} kvl_axis_id;

/* Canonical texts stay below this, so that tables and figures show them whole. */
enum { KVL_AXIS_TEXT_BYTES = 128 };

/* Writes the canonical spelling of text[length] (not NUL-terminated). KVL_ERR_INPUT names the
 * position of the fault and the form allowed. */
typedef kvl_status (*kvl_axis_grammar)(const char *text, size_t length,
                                       char canonical[KVL_AXIS_TEXT_BYTES]);

typedef struct kvl_axis {
    const char *name;   /* in rows: "kv_dtype" */
    const char *option; /* on the command line: "kv-dtype" */
    bool numeric;
    int64_t min, max;         /* numeric values allowed */
    kvl_axis_grammar grammar; /* of a text; NULL: any */
} kvl_axis;

const kvl_axis *kvl_axis_of(kvl_axis_id id);
/* The axis of a row's name, or KVL_N_AXES. */
kvl_axis_id kvl_axis_find(const char *name);

/* Values of one axis: numbers[n], or names[n] (malloc'ed strings), by axis->numeric. */
typedef struct kvl_axis_values {
    size_t n;
    int64_t *numbers;
    char **names;
} kvl_axis_values;

enum { KVL_AXIS_MAX_VALUES = 4096 };

/* Parses `text` for `axis`. `known` [n_known] are the names allowed, NULL for any. KVL_ERR_INPUT
 * names option, part and limit; an unknown name is answered with the nearest one. */
kvl_status kvl_axis_parse(const kvl_axis *axis, const char *text, const char *const *known,
                          size_t n_known, kvl_axis_values *out);
void kvl_axis_values_free(kvl_axis_values *values);

#endif
