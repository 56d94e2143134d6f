/* attention and matmul: kernels alone, by shape. Sizes come from the same code that the child runs,
 * so that what is too large is refused before a process is started for it. */
#include <stdio.h>

#include "harness/kernels/attention.h"
#include "harness/kernels/axes.h"
#include "harness/kernels/matmul.h"
#include "harness/sweep/workload_common.h"

static const char *const q_dtypes[] = {"f32", "bf16", "f16", NULL};
static const char *const caches[] = {"cold", "warm", NULL};
static const char *const matmul_kernels[] = {"auto", "own", NULL};

static const kvl_axis_use attention_axes[] = {
    {.id = KVL_AXIS_ALLOCATOR},
    {.id = KVL_AXIS_ATTENTION},
    {.id = KVL_AXIS_KV_DTYPE},
    {.id = KVL_AXIS_COMPUTE_DTYPE, .option = "q-dtype", .names = q_dtypes, .fallback = "bf16"},
    {.id = KVL_AXIS_HEADS, .grammar = kvl_heads_canonical, .fallback = "32/8"},
    {.id = KVL_AXIS_HEAD_DIM, .fallback = "128"},
    {.id = KVL_AXIS_SHAPE, .grammar = kvl_batch_shape_canonical, .fallback = "8q1s4096"},
    {.id = KVL_AXIS_WINDOW, .fallback = "0"},
    {.id = KVL_AXIS_SOFTCAP, .fallback = "0"},
    {.id = KVL_AXIS_CAUSAL, .names = kvl_workload_switches, .fallback = "on"},
    {.id = KVL_AXIS_CACHE, .names = caches, .fallback = "cold"},
    {.id = KVL_AXIS_PAGE_TOKENS},
    {.id = KVL_AXIS_THREADS},
    {.id = KVL_AXIS_ISA},
    {.id = KVL_AXIS_DEVICE},
};

static const kvl_axis_use matmul_axes[] = {
    {.id = KVL_AXIS_WEIGHTS},
    {.id = KVL_AXIS_COMPUTE_DTYPE},
    {.id = KVL_AXIS_KERNEL, .names = matmul_kernels, .fallback = "auto"},
    {.id = KVL_AXIS_SHAPE, .grammar = kvl_product_shape_canonical, .fallback = "1x4096x4096"},
    {.id = KVL_AXIS_CACHE, .names = caches, .fallback = "cold"},
    {.id = KVL_AXIS_THREADS},
    {.id = KVL_AXIS_ISA},
    {.id = KVL_AXIS_DEVICE},
};

static const kvl_summary_column attention_columns[] = {
    {"time_us", "time us"},           {"kv_gb_s", "KV GB/s"},
    {"gflop_s", "GFLOP/s"},           {"read_ceiling_pct", "read %"},
    {"flops_ceiling_pct", "flops %"}, {"roofline_pct", "roofline %"}};

static const kvl_summary_column matmul_columns[] = {
    {"time_us", "time us"},           {"weights_gb_s", "weight GB/s"},
    {"gflop_s", "GFLOP/s"},           {"read_ceiling_pct", "read %"},
    {"flops_ceiling_pct", "flops %"}, {"roofline_pct", "roofline %"}};

static kvl_status attention_setup(const kvl_trial *trial, kvl_attention_setup *setup) {
    json_t *axes = kvl_trial_axes(trial);
    kvl_status status = kvl_attention_setup_make(axes, setup);
    json_decref(axes); /* the setup's names are not looked at from here on */
    return status;
}

static kvl_status matmul_setup(const kvl_trial *trial, kvl_matmul_setup *setup) {
    json_t *axes = kvl_trial_axes(trial);
    kvl_status status = kvl_matmul_setup_make(axes, setup);
    json_decref(axes);
    return status;
}

static void keep_reason(kvl_trial *trial, kvl_status status) {
    if (status != KVL_OK) snprintf(trial->refused, sizeof trial->refused, "%.250s", kvl_message());
}

static void refuse_attention(const kvl_experiment *experiment, kvl_trial *trial) {
    kvl_attention_setup setup;
    (void)experiment;
    kvl_status status = attention_setup(trial, &setup);
    keep_reason(trial, status == KVL_OK ? kvl_memory_suffices(setup.sum_bytes) : status);
}

static void refuse_matmul(const kvl_experiment *experiment, kvl_trial *trial) {
    kvl_matmul_setup setup;
    (void)experiment;
    kvl_status status = matmul_setup(trial, &setup);
    keep_reason(trial, status == KVL_OK ? kvl_memory_suffices(setup.sum_bytes) : status);
}

/* A trial without a setup is refused and never calibrated. */
static uint64_t attention_working_set(const kvl_trial *trial) {
    kvl_attention_setup setup;
    return attention_setup(trial, &setup) == KVL_OK ? setup.working_set_bytes : 0;
}

static uint64_t matmul_working_set(const kvl_trial *trial) {
    kvl_matmul_setup setup;
    return matmul_setup(trial, &setup) == KVL_OK ? setup.working_set_bytes : 0;
}

const kvl_workload_kind kvl_workload_attention = {
    .name = "attention",
    .axes = attention_axes,
    .n_axes = sizeof attention_axes / sizeof *attention_axes,
    .columns = attention_columns,
    .n_columns = sizeof attention_columns / sizeof *attention_columns,
    .normalise = kvl_workload_drop_pages,
    .refuse = refuse_attention,
    .working_set_bytes = attention_working_set};

const kvl_workload_kind kvl_workload_matmul = {.name = "matmul",
                                               .axes = matmul_axes,
                                               .n_axes = sizeof matmul_axes / sizeof *matmul_axes,
                                               .columns = matmul_columns,
                                               .n_columns =
                                                   sizeof matmul_columns / sizeof *matmul_columns,
                                               .refuse = refuse_matmul,
                                               .working_set_bytes = matmul_working_set};
