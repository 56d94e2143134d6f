/* format_error: the rounding error of number formats, on normals or on a model's own values. Two
 * tables under one name: without a model there are normals only. */
#include <stdio.h>
#include <string.h>

#include "harness/quality/format_error.h"
#include "harness/sweep/workload_common.h"

static const char *const all_data[] = {"normal", "k", "v", "weights", NULL};
static const char *const normals_only[] = {"normal", NULL};
static const char *const formats[] = {"f16", "bf16",   "fp8_e4m3", "fp8_e5m2", "int8",
                                      "nf4", "nf4_dq", "fp4",      NULL};
#define ALL_FORMATS "f16,bf16,fp8_e4m3,fp8_e5m2,int8,nf4,nf4_dq,fp4"
#define BLOCKS "32,64,128,256"

static const kvl_axis_use axes[] = {
    {.id = KVL_AXIS_DATA, .names = normals_only, .fallback = "normal"},
    {.id = KVL_AXIS_FORMAT, .names = formats, .fallback = ALL_FORMATS},
    {.id = KVL_AXIS_BLOCK, .fallback = BLOCKS},
    {.id = KVL_AXIS_THREADS},
    {.id = KVL_AXIS_ISA},
    {.id = KVL_AXIS_DEVICE},
};

static const kvl_axis_use model_axes[] = {
    {.id = KVL_AXIS_MODEL},
    {.id = KVL_AXIS_DATA, .names = all_data, .fallback = "normal,k,v,weights"},
    {.id = KVL_AXIS_FORMAT, .names = formats, .fallback = ALL_FORMATS},
    {.id = KVL_AXIS_BLOCK, .fallback = BLOCKS},
    {.id = KVL_AXIS_PROMPT, .option = "tokens", .fallback = "512"},
    {.id = KVL_AXIS_THREADS},
    {.id = KVL_AXIS_ISA},
    {.id = KVL_AXIS_DEVICE},
};

static const kvl_summary_column columns[] = {
    {"bits_per_value", "bits/value"}, {"mean_abs_err", "mean abs"},
    {"mean_rel_err", "mean rel"},     {"nrmse", "NRMSE"},
    {"sqnr_db", "SQNR dB"},           {"saturated", "saturated"}};

static bool reads_text(const kvl_trial *trial) {
    const char *data = trial->names[KVL_AXIS_DATA];
    return strcmp(data, "k") == 0 || strcmp(data, "v") == 0;
}

static void normalise(kvl_trial *trial) {
    const kvl_error_format *format;
    if (kvl_error_format_find(trial->names[KVL_AXIS_FORMAT], &format) == KVL_OK &&
        !format->in_blocks)
        trial->numbers[KVL_AXIS_BLOCK] = 0;
    if (!reads_text(trial)) trial->numbers[KVL_AXIS_PROMPT] = 0;
}

static void refuse(const kvl_experiment *experiment, kvl_trial *trial) {
    int64_t n = trial->numbers[KVL_AXIS_PROMPT];
    kvl_status status = KVL_OK;
    if (trial->numbers[KVL_AXIS_BLOCK])
        status = kvl_nf4_check_block("--block", trial->numbers[KVL_AXIS_BLOCK]);
    if (status == KVL_OK && n && n > trial->model->max_position)
        status = kvl_fail(KVL_ERR_INPUT, "tokens %lld: the model allows %lld", (long long)n,
                          (long long)trial->model->max_position);
    if (status == KVL_OK && n && n > trial->model->text_tokens)
        status = kvl_fail(KVL_ERR_INPUT, "tokens %lld: %.120s has %lld tokens", (long long)n,
                          experiment->workload.text, (long long)trial->model->text_tokens);
    if (status != KVL_OK) snprintf(trial->refused, sizeof trial->refused, "%.250s", kvl_message());
}

const kvl_workload_kind kvl_workload_format_error = {
    .name = "format_error",
    .command = "quality --format-error",
    .axes = axes,
    .n_axes = sizeof axes / sizeof *axes,
    .columns = columns,
    .n_columns = sizeof columns / sizeof *columns,
    .normalise = normalise,
    .refuse = refuse,
    .working_set_bytes = kvl_workload_no_working_set,
};

const kvl_workload_kind kvl_workload_format_error_model = {
    .name = "format_error",
    .command = "quality --format-error",
    .axes = model_axes,
    .n_axes = sizeof model_axes / sizeof *model_axes,
    .columns = columns,
    .n_columns = sizeof columns / sizeof *columns,
    .normalise = normalise,
    .refuse = refuse,
    .working_set_bytes = kvl_workload_no_working_set,
    .note = kvl_workload_note_source,
};
