#define _GNU_SOURCE
#include "harness/sweep/axis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/file.h"
#include "core/names.h"
#include "quant/kv_format.h"

/* One format for both or K:V, in its shortest spelling. */
static kvl_status kv_pair(const char *text, size_t length, char canonical[KVL_AXIS_TEXT_BYTES]) {
    kvl_dtype k, v;
    char copy[KVL_AXIS_TEXT_BYTES];
    snprintf(copy, sizeof copy, "%.*s", (int)(length < sizeof copy ? length : sizeof copy - 1),
             text);
    KVL_TRY(kvl_kv_pair_parse(copy, &k, &v));
    kvl_kv_pair_name(k, v, canonical);
    return KVL_OK;
}

/* Limits keep products of sizes far from 2^63; what a model allows is checked per point. */
static const kvl_axis axes[KVL_N_AXES] = {
    [KVL_AXIS_MODEL] = {"model", "model", false, 0, 0, NULL},
    [KVL_AXIS_ALLOCATOR] = {"allocator", "allocator", false, 0, 0, NULL},
    [KVL_AXIS_ATTENTION] = {"attention", "attention", false, 0, 0, NULL},
    [KVL_AXIS_KV_DTYPE] = {"kv_dtype", "kv-dtype", false, 0, 0, kv_pair},
    [KVL_AXIS_KV_SCALE] = {"kv_scale", "kv-scale", false, 0, 0, NULL},
    [KVL_AXIS_WEIGHTS] = {"weights", "weights", false, 0, 0, NULL},
    [KVL_AXIS_COMPUTE_DTYPE] = {"compute_dtype", "compute-dtype", false, 0, 0, NULL},
    [KVL_AXIS_PROMPT] = {"prompt", "prompt", true, 1, 1 << 30, NULL},
    [KVL_AXIS_OUTPUT] = {"output", "output", true, 1, 1 << 30, NULL},
    [KVL_AXIS_CONTEXT] = {"context", "context", true, 1, 1 << 30, NULL},
    [KVL_AXIS_BATCH] = {"batch", "batch", true, 1, 65536, NULL},
    [KVL_AXIS_PAGE_TOKENS] = {"page_tokens", "page-tokens", true, 1, 1 << 30, NULL},
    [KVL_AXIS_THREADS] = {"threads", "threads", true, 1, 1024, NULL},
    [KVL_AXIS_ISA] = {"isa", "isa", false, 0, 0, NULL},
    [KVL_AXIS_DEVICE] = {"device", "device", false, 0, 0, NULL},
    [KVL_AXIS_HEADS] = {"heads", "heads", false, 0, 0, NULL},
    [KVL_AXIS_HEAD_DIM] = {"head_dim", "head-dim", true, 1, 4096, NULL},
    [KVL_AXIS_SHAPE] = {"shape", "shape", false, 0, 0, NULL},
    [KVL_AXIS_WINDOW] = {"window", "window", true, 0, 1 << 30, NULL},
    [KVL_AXIS_SOFTCAP] = {"softcap", "softcap", true, 0, 1 << 20, NULL},
    [KVL_AXIS_CAUSAL] = {"causal", "causal", false, 0, 0, NULL},
    [KVL_AXIS_CACHE] = {"cache", "cache", false, 0, 0, NULL},
    [KVL_AXIS_KERNEL] = {"kernel", "kernel", false, 0, 0, NULL},
    [KVL_AXIS_DATA] = {"data", "data", false, 0, 0, NULL},
    [KVL_AXIS_FORMAT] = {"format", "format", false, 0, 0, NULL},
    [KVL_AXIS_BLOCK] = {"block", "block", true, 32, 4096, NULL},
    [KVL_AXIS_TRACE] = {"trace", "trace", false, 0, 0, NULL},
    [KVL_AXIS_ARRIVAL] = {"arrival", "arrival", false, 0, 0, NULL},
    [KVL_AXIS_RESERVE] = {"reserve", "reserve", false, 0, 0, NULL},
    [KVL_AXIS_SHARE] = {"share", "share", false, 0, 0, NULL},
    [KVL_AXIS_POOL_TOKENS] = {"pool_tokens", "pool-tokens", true, 0, INT64_C(1) << 40, NULL},
    [KVL_AXIS_MAX_MODEL_LEN] = {"max_model_len", "max-model-len", true, 0, INT32_MAX, NULL},
    [KVL_AXIS_OPERATIONS] = {"operations", "operations", true, 100000, 1 << 30, NULL},
    [KVL_AXIS_MAX_SEQS] = {"max_seqs", "max-seqs", true, 0, 1 << 20, NULL},
    [KVL_AXIS_MEMORY_UTILIZATION] = {"memory_utilization", "memory-utilization", true, 1, 100,
                                     NULL},
    [KVL_AXIS_MAX_BATCHED_TOKENS] = {"max_batched_tokens", "max-batched-tokens", true, 1, 1 << 24,
                                     NULL},
    [KVL_AXIS_SCHEDULE] = {"schedule", "schedule", false, 0, 0, NULL},
    [KVL_AXIS_CHUNKED_PREFILL] = {"chunked_prefill", "chunked-prefill", false, 0, 0, NULL},
    [KVL_AXIS_PREEMPT] = {"preempt", "preempt", false, 0, 0, NULL},
    [KVL_AXIS_QUEUE_LIMIT] = {"queue_limit", "queue-limit", true, 0, INT64_C(1) << 40, NULL},
    [KVL_AXIS_RETRY] = {"retry", "retry", false, 0, 0, NULL},
    [KVL_AXIS_MAP_KIB] = {"map_kib", "map-kib", true, 4, 1 << 20, NULL},
    [KVL_AXIS_PREFIX_CACHE] = {"prefix_cache", "prefix-cache", false, 0, 0, NULL},
};

const kvl_axis *kvl_axis_of(kvl_axis_id id) {
    return &axes[id];
}

kvl_axis_id kvl_axis_find(const char *name) {
    for (int i = 0; i < KVL_N_AXES; i++) {
        if (strcmp(axes[i].name, name) == 0) return (kvl_axis_id)i;
    }
    return KVL_N_AXES;
}

/* Digits only, so that "1e3", "0x10", "+5" and " 5" are errors rather than surprises. */
static bool parse_digits(const char *text, size_t length, int64_t *out) {
    int64_t value = 0;
    if (length == 0 || length > 18) return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10 + (text[i] - '0');
    }
    *out = value;
    return true;
}

static kvl_status add_number(const kvl_axis *axis, int64_t value, kvl_axis_values *out) {
    if (value < axis->min || value > axis->max)
        return kvl_fail(KVL_ERR_INPUT, "--%s %lld: must lie in %lld to %lld", axis->option,
                        (long long)value, (long long)axis->min, (long long)axis->max);
    for (size_t i = 0; i < out->n; i++) {
        if (out->numbers[i] == value) return KVL_OK;
    }
    if (out->n == KVL_AXIS_MAX_VALUES)
        return kvl_fail(KVL_ERR_INPUT, "--%s: more than %d values", axis->option,
                        KVL_AXIS_MAX_VALUES);
    out->numbers[out->n++] = value;
    return KVL_OK;
}

/* first-last*factor or first-last+step; `part` is not NUL-terminated. */
static kvl_status add_range(const kvl_axis *axis, const char *part, size_t length,
                            kvl_axis_values *out) {
    const char *dash = memchr(part, '-', length);
    size_t n_first = (size_t)(dash - part), rest = length - n_first - 1;
    size_t n_last = 0;
    while (n_last < rest && dash[1 + n_last] != '*' && dash[1 + n_last] != '+') n_last++;
    int64_t first, last, by;
    if (!parse_digits(part, n_first, &first) || !parse_digits(dash + 1, n_last, &last))
        return kvl_fail(KVL_ERR_INPUT,
                        "--%s '%.*s': a range is FIRST-LAST*FACTOR or "
                        "FIRST-LAST+STEP",
                        axis->option, (int)length, part);
    if (n_last == rest || !parse_digits(dash + 2 + n_last, rest - n_last - 1, &by))
        return kvl_fail(KVL_ERR_INPUT, "--%s '%.*s': the range needs *FACTOR or +STEP at its end",
                        axis->option, (int)length, part);
    bool factor = dash[1 + n_last] == '*';
    if (first > last)
        return kvl_fail(KVL_ERR_INPUT, "--%s '%.*s': the range runs downwards", axis->option,
                        (int)length, part);
    if (by < (factor ? 2 : 1) || (factor && first == 0))
        return kvl_fail(KVL_ERR_INPUT, "--%s '%.*s': a factor is 2 or more, a step 1 or more",
                        axis->option, (int)length, part);
    for (int64_t value = first; value <= last;) {
        KVL_TRY(add_number(axis, value, out));
        /* Both ends are below 10^18, so a step cannot wrap; a factor can. */
        if (!factor)
            value += by;
        else if (!kvl_mul_i64(value, by, &value))
            break;
    }
    return KVL_OK;
}

static kvl_status add_name(const kvl_axis *axis, const char *part, size_t length,
                           const char *const *known, size_t n_known, kvl_axis_values *out) {
    char canonical[KVL_AXIS_TEXT_BYTES];
    if (axis->grammar) {
        kvl_status status = axis->grammar(part, length, canonical);
        if (status != KVL_OK)
            return kvl_fail_prefix(status, "--%s '%.*s'", axis->option,
                                   (int)(length < 160 ? length : 160), part);
        part = canonical;
        length = strlen(canonical);
    }
    char *name = strndup(part, length);
    if (!name) return kvl_fail(KVL_ERR_OOM, "out of memory");
    if (known && kvl_names_find(name, known, n_known) < 0) {
        char line[768];
        kvl_names_unknown(line, sizeof line, axis->name, name, known, n_known);
        free(name);
        return kvl_fail(KVL_ERR_INPUT, "--%s: %s", axis->option, line);
    }
    if (kvl_names_find(name, (const char *const *)out->names, out->n) >= 0) {
        free(name);
        return KVL_OK;
    }
    if (out->n == KVL_AXIS_MAX_VALUES) {
        free(name);
        return kvl_fail(KVL_ERR_INPUT, "--%s: more than %d values", axis->option,
                        KVL_AXIS_MAX_VALUES);
    }
    out->names[out->n++] = name;
    return KVL_OK;
}

static kvl_status add_part(const kvl_axis *axis, const char *part, size_t length,
                           const char *const *known, size_t n_known, kvl_axis_values *out) {
    if (length == 0)
        return kvl_fail(KVL_ERR_INPUT, "--%s: an empty value in the list", axis->option);
    if (!axis->numeric) return add_name(axis, part, length, known, n_known, out);
    if (memchr(part, '-', length) && part[0] != '-') return add_range(axis, part, length, out);
    int64_t value;
    if (!parse_digits(part, length, &value))
        return kvl_fail(KVL_ERR_INPUT, "--%s '%.*s': not a whole number", axis->option,
                        (int)(length < 80 ? length : 80), part);
    return add_number(axis, value, out);
}

kvl_status kvl_axis_parse(const kvl_axis *axis, const char *text, const char *const *known,
                          size_t n_known, kvl_axis_values *out) {
    memset(out, 0, sizeof *out);
    if (!kvl_utf8_valid(text, strlen(text)))
        return kvl_fail(KVL_ERR_INPUT, "--%s: not valid UTF-8", axis->option);
    if (axis->numeric)
        out->numbers = calloc(KVL_AXIS_MAX_VALUES, sizeof *out->numbers);
    else
        out->names = calloc(KVL_AXIS_MAX_VALUES, sizeof *out->names);
    if (!out->numbers && !out->names) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_status status = KVL_OK;
    for (const char *part = text; status == KVL_OK; part += strcspn(part, ",") + 1) {
        size_t length = strcspn(part, ",");
        status = add_part(axis, part, length, known, n_known, out);
        if (part[length] == '\0') break;
    }
    if (status != KVL_OK) kvl_axis_values_free(out);
    return status;
}

void kvl_axis_values_free(kvl_axis_values *values) {
    for (size_t i = 0; values->names && i < values->n; i++) free(values->names[i]);
    free(values->names);
    free(values->numbers);
    memset(values, 0, sizeof *values);
}
