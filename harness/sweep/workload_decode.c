/* decode: prefill of a batch of prompts, then tokens one step after another. */
#include <stdio.h>

#include "allocators/allocator.h"
#include "harness/sweep/workload_common.h"

/* Defaults that are the engine's, or depend on the machine, come from catalogue.c. */
static const kvl_axis_use axes[] = {
    {.id = KVL_AXIS_MODEL},
    {.id = KVL_AXIS_ALLOCATOR},
    {.id = KVL_AXIS_ATTENTION},
    {.id = KVL_AXIS_KV_DTYPE},
    {.id = KVL_AXIS_KV_SCALE},
    {.id = KVL_AXIS_WEIGHTS},
    {.id = KVL_AXIS_COMPUTE_DTYPE},
    {.id = KVL_AXIS_PROMPT},
    {.id = KVL_AXIS_OUTPUT, .fallback = "64"},
    {.id = KVL_AXIS_CONTEXT},
    {.id = KVL_AXIS_BATCH, .fallback = "1"},
    {.id = KVL_AXIS_PAGE_TOKENS},
    {.id = KVL_AXIS_RESERVE, .names = kvl_workload_policies, .fallback = "max"},
    {.id = KVL_AXIS_MAP_KIB, .fallback = "64"},
    {.id = KVL_AXIS_PREFIX_CACHE, .names = kvl_workload_switches, .fallback = "off"},
    {.id = KVL_AXIS_THREADS},
    {.id = KVL_AXIS_ISA},
    {.id = KVL_AXIS_DEVICE},
};

static const kvl_summary_column columns[] = {{"prefill_tok_s", "prefill tok/s"},
                                             {"decode_tok_s", "decode tok/s"},
                                             {"read_ceiling_pct", "ceiling %"}};

static kvl_status check(const char *const texts[KVL_N_AXES]) {
    if (texts[KVL_AXIS_CONTEXT] && texts[KVL_AXIS_PROMPT])
        return kvl_fail(KVL_ERR_INPUT, "--context fills the cache instead of a prompt: give "
                                       "--prompt or --context, not both");
    return KVL_OK;
}

static void normalise(kvl_trial *trial) {
    const kvl_allocator *allocator;
    kvl_workload_drop_pages(trial);
    kvl_workload_drop_reserve(trial);
    if (kvl_allocator_find(trial->names[KVL_AXIS_ALLOCATOR], &allocator) == KVL_OK) {
        if (!allocator->maps_memory) trial->numbers[KVL_AXIS_MAP_KIB] = 0;
        if (!allocator->admit) trial->names[KVL_AXIS_PREFIX_CACHE] = "off";
    }
    if (trial->numbers[KVL_AXIS_CONTEXT] > 0) { /* and no prompt could be found */
        trial->numbers[KVL_AXIS_PROMPT] = 0;
        trial->names[KVL_AXIS_PREFIX_CACHE] = "off";
    }
}

/* What the point's allocator cannot do with it; NULL: nothing. */
static const char *refuse_allocator(const kvl_trial *trial) {
    const char *why = kvl_workload_why_no_reserve(trial);
    if (!why && trial->numbers[KVL_AXIS_MAP_KIB] % 4)
        why = "--map-kib must be a multiple of 4, the page of the system";
    return why;
}

static void refuse(const kvl_experiment *experiment, kvl_trial *trial) {
    int64_t context = trial->numbers[KVL_AXIS_CONTEXT], prompt = trial->numbers[KVL_AXIS_PROMPT];
    int64_t start = context ? context : prompt, output = trial->numbers[KVL_AXIS_OUTPUT];
    const char *why = refuse_allocator(trial);
    if (why)
        kvl_workload_refuse_allocator(trial, why);
    else if (start + output > trial->model->max_position)
        snprintf(trial->refused, sizeof trial->refused,
                 "%s %lld + output %lld = %lld tokens: the model allows %lld",
                 context ? "context" : "prompt", (long long)start, (long long)output,
                 (long long)(start + output), (long long)trial->model->max_position);
    else if (trial->model->text_tokens >= 0 && prompt > trial->model->text_tokens)
        snprintf(trial->refused, sizeof trial->refused, "prompt %lld: %.120s has %lld tokens",
                 (long long)prompt, experiment->workload.text,
                 (long long)trial->model->text_tokens);
}

static uint64_t working_set_bytes(const kvl_trial *trial) {
    const kvl_model_facts *model = trial->model;
    uint64_t start = (uint64_t)(trial->numbers[KVL_AXIS_CONTEXT] + trial->numbers[KVL_AXIS_PROMPT]);
    uint64_t tokens = (uint64_t)trial->numbers[KVL_AXIS_BATCH] *
                      (start + (uint64_t)trial->numbers[KVL_AXIS_OUTPUT]);
    return kvl_workload_dtype_bytes(trial->names[KVL_AXIS_WEIGHTS],
                                    model->parameters - model->embedding_parameters) +
           kvl_workload_dtype_bytes(trial->names[KVL_AXIS_KV_DTYPE],
                                    tokens * model->kv_values_per_token);
}

const kvl_workload_kind kvl_workload_decode = {.name = "decode",
                                               .axes = axes,
                                               .n_axes = sizeof axes / sizeof *axes,
                                               .columns = columns,
                                               .n_columns = sizeof columns / sizeof *columns,
                                               .check = check,
                                               .normalise = normalise,
                                               .refuse = refuse,
                                               .working_set_bytes = working_set_bytes,
                                               .note = kvl_workload_note_saturated};
