/* quality: one text through a configuration and through the float32 run of the same model. */
#include <stdio.h>
#include <string.h>

#include "harness/sweep/workload_common.h"

/* compute_dtype f32 shows what the stored formats cost alone. */
static const kvl_axis_use axes[] = {
    {.id = KVL_AXIS_MODEL},
    {.id = KVL_AXIS_ALLOCATOR},
    {.id = KVL_AXIS_ATTENTION},
    {.id = KVL_AXIS_KV_DTYPE},
    {.id = KVL_AXIS_KV_SCALE},
    {.id = KVL_AXIS_WEIGHTS},
    {.id = KVL_AXIS_COMPUTE_DTYPE, .fallback = "f32"},
    {.id = KVL_AXIS_PROMPT, .option = "tokens", .fallback = "2048"},
    {.id = KVL_AXIS_PAGE_TOKENS},
    {.id = KVL_AXIS_THREADS},
    {.id = KVL_AXIS_ISA},
    {.id = KVL_AXIS_DEVICE},
};

static const kvl_summary_column columns[] = {
    {"ppl", "ppl"},
    {"mean_kld", "mean KLD"},
    {"p99_kld", "p99 KLD"},
    {"same_top1", "same top-1"},
    {"bits_per_weight", "bits/weight"},
    {"kv_bytes_per_token", "KV B/token"},
    {"prefill_tok_s", "prefill tok/s"},
    {"decode_tok_s", "decode tok/s"},
};

static void refuse(const kvl_experiment *experiment, kvl_trial *trial) {
    int64_t n = trial->numbers[KVL_AXIS_PROMPT];
    if (n < 2)
        snprintf(trial->refused, sizeof trial->refused,
                 "tokens %lld: 2 at least, each but the first is predicted", (long long)n);
    else if (n > trial->model->max_position)
        snprintf(trial->refused, sizeof trial->refused, "tokens %lld: the model allows %lld",
                 (long long)n, (long long)trial->model->max_position);
    else if (n > trial->model->text_tokens)
        snprintf(trial->refused, sizeof trial->refused, "tokens %lld: %.120s has %lld tokens",
                 (long long)n, experiment->workload.text, (long long)trial->model->text_tokens);
}

static uint64_t working_set_bytes(const kvl_trial *trial) {
    const kvl_model_facts *model = trial->model;
    return kvl_workload_dtype_bytes(trial->names[KVL_AXIS_WEIGHTS],
                                    model->parameters - model->embedding_parameters) +
           kvl_workload_dtype_bytes(trial->names[KVL_AXIS_KV_DTYPE],
                                    (uint64_t)trial->numbers[KVL_AXIS_PROMPT] *
                                        model->kv_values_per_token);
}

/* Said once for each way. */
void kvl_workload_note_source(FILE *out, const json_t *rows) {
    char said[256] = " ";
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row) {
        char name[40];
        const json_t *effective = json_object_get(row, "effective");
        const char *source = json_string_value(json_object_get(effective, "source_weights"));
        if (!source) continue;
        snprintf(name, sizeof name, " %.36s ", source);
        if (strstr(said, name) || strlen(said) + strlen(name) >= sizeof said) continue;
        strcat(said, name + 1);
        fprintf(out,
                "The model's file holds %.36s weights: float32 means those, decoded, not the model "
                "before it was stored so.\n",
                source);
    }
}

void kvl_workload_note_saturated(FILE *out, const json_t *rows) {
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row) {
        const json_t *axes = json_object_get(row, "axes");
        const json_t *effective = json_object_get(row, "effective");
        const char *where = json_string_value(json_object_get(effective, "saturated"));
        json_int_t n =
            json_integer_value(json_object_get(json_object_get(row, "metrics"), "kv_saturated"));
        if (!where || n == 0) continue;
        fprintf(out, "KV %s, scale %s: %lld values past its range (%s).\n",
                json_string_value(json_object_get(axes, "kv_dtype")),
                json_string_value(json_object_get(effective, "kv_scale")), (long long)n, where);
    }
}

static void note(FILE *out, const json_t *rows) {
    kvl_workload_note_source(out, rows);
    kvl_workload_note_saturated(out, rows);
}

const kvl_workload_kind kvl_workload_quality = {.name = "quality",
                                                .axes = axes,
                                                .n_axes = sizeof axes / sizeof *axes,
                                                .columns = columns,
                                                .n_columns = sizeof columns / sizeof *columns,
                                                .normalise = kvl_workload_drop_pages,
                                                .refuse = refuse,
                                                .working_set_bytes = working_set_bytes,
                                                .note = note};
