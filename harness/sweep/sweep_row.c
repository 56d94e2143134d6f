#define _GNU_SOURCE
#include "harness/sweep/sweep_row.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/sweep/row.h"

static const char *const outcomes[KVL_N_OUTCOMES] = {[KVL_OUTCOME_OK] = "ok",
                                                     [KVL_OUTCOME_UNSUPPORTED] = "unsupported",
                                                     [KVL_OUTCOME_SKIPPED] = "skipped",
                                                     [KVL_OUTCOME_OOM] = "oom",
                                                     [KVL_OUTCOME_TIMEOUT] = "timeout",
                                                     [KVL_OUTCOME_CRASH] = "crash",
                                                     [KVL_OUTCOME_MISMATCH] = "mismatch"};

const char *kvl_outcome_name(kvl_outcome outcome) {
    return (unsigned)outcome < KVL_N_OUTCOMES ? outcomes[outcome] : "?";
}

kvl_outcome kvl_outcome_find(const char *name) {
    int i = 0;
    while (i < KVL_N_OUTCOMES && (!name || strcmp(outcomes[i], name) != 0)) i++;
    return (kvl_outcome)i;
}

char *kvl_trial_spec(const kvl_row_context *context) {
    const kvl_workload *workload = context->options->workload;
    json_t *spec = kvl_trial_canonical(workload, context->trial, context->options->build_id);
    json_t *inner = json_object_get(spec, "workload");
    json_object_set_new(inner, "text", workload->text ? json_string(workload->text) : json_null());
    json_object_set_new(spec, "axes", kvl_trial_axes(context->trial));
    json_object_set_new(spec, "round", json_integer(context->round));
    json_object_set(spec, "ceilings", (json_t *)context->ceilings);
    if (context->options->side_dir) {
        char side[4096];
        snprintf(side, sizeof side, "%.4000s/%s-%lld", context->options->side_dir,
                 context->trial->key, (long long)context->round);
        json_object_set_new(spec, "side", json_string(side));
    }
    char *text = json_dumps(spec, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(spec);
    return text;
}

/* metrics{}: numbers or null only; a NaN cannot be written in JSON and would be a defect. */
static bool are_metrics(const json_t *metrics) {
    const char *name;
    const json_t *value;
    if (!json_is_object(metrics)) return false;
    json_object_foreach((json_t *)metrics, name, value) {
        if (!json_is_number(value) && !json_is_null(value)) return false;
    }
    return true;
}

/* The child's answer when it is whole and well-formed, else NULL. A new reference. */
static json_t *parse_answer(const kvl_child_result *child) {
    json_error_t error;
    if (child->end != KVL_CHILD_EXITED || child->code != 0 || child->answer.failed) return NULL;
    json_t *answer = json_loadb(child->answer.data ? child->answer.data : "", child->answer.bytes,
                                JSON_REJECT_DUPLICATES, &error);
    bool whole =
        json_is_object(answer) &&
        kvl_outcome_find(json_string_value(json_object_get(answer, "outcome"))) < KVL_N_OUTCOMES &&
        json_is_string(json_object_get(answer, "reason")) &&
        json_is_object(json_object_get(answer, "effective")) &&
        json_is_object(json_object_get(answer, "samples")) &&
        are_metrics(json_object_get(answer, "metrics"));
    if (whole) return answer;
    json_decref(answer);
    return NULL;
}

static void describe_memory(const kvl_row_context *context, const kvl_child_result *child,
                            char *reason, size_t bytes) {
    const double mib = 1 << 20;
    if (context->options->memory_limit_bytes &&
        child->rss_peak_bytes > context->options->memory_limit_bytes)
        snprintf(reason, bytes, "resident size %.0f MiB passed the limit of %.0f MiB",
                 (double)child->rss_peak_bytes / mib,
                 (double)context->options->memory_limit_bytes / mib);
    else
        snprintf(reason, bytes, "ended by the kernel's out-of-memory killer at about %.0f MiB",
                 (double)child->rss_peak_bytes / mib);
}

/* Outcome and reason of a child that gave no usable answer. */
static kvl_outcome describe_end(const kvl_row_context *context, const kvl_child_result *child,
                                char *reason, size_t bytes) {
    const char *said = child->last_words[0] ? "; it said: " : "";
    switch (child->end) {
    case KVL_CHILD_TIMEOUT:
        snprintf(reason, bytes, "still running after %.6g s", context->options->timeout_s);
        return KVL_OUTCOME_TIMEOUT;
    case KVL_CHILD_MEMORY:
        describe_memory(context, child, reason, bytes);
        return KVL_OUTCOME_OOM;
    case KVL_CHILD_SIGNALLED:
        snprintf(reason, bytes, "signal %d (SIG%s)%s%s", child->code,
                 sigabbrev_np(child->code) ? sigabbrev_np(child->code) : "?", said,
                 child->last_words);
        return KVL_OUTCOME_CRASH;
    default:
        if (child->code == 0)
            snprintf(reason, bytes, "ended without a valid answer%s%s", said, child->last_words);
        else
            snprintf(reason, bytes, "exit code %d%s%s", child->code, said, child->last_words);
        return KVL_OUTCOME_CRASH;
    }
}

static json_t *clean_text(const char *text) {
    kvl_fail(KVL_OK, "%s", text); /* replaces what JSON cannot hold */
    return json_string(kvl_message());
}

static void add_model(const kvl_row_context *context, json_t *effective) {
    const kvl_workload *workload = context->options->workload;
    json_object_set_new(effective, "model_digest", json_string(context->trial->model->digest));
    json_object_set_new(
        effective, "fill",
        json_string(context->trial->numbers[KVL_AXIS_CONTEXT] ? "synthetic" : "prefill"));
    json_object_set_new(effective, "chunk_tokens", json_integer(workload->chunk));
    json_object_set_new(effective, "deterministic", json_boolean(workload->deterministic));
    json_object_set_new(effective, "text",
                        workload->text ? json_string(workload->text_digest) : json_null());
}

/* What holds for the trial whether its child answered or not. */
static void add_effective(const kvl_row_context *context, json_t *effective) {
    const kvl_sweep_options *options = context->options;
    if (context->trial->model) add_model(context, effective);
    json_object_set_new(effective, "timeout_s", json_real(options->timeout_s));
    json_object_set_new(effective, "memory_limit_bytes",
                        json_integer((json_int_t)options->memory_limit_bytes));
}

static json_t *member_or_empty(const json_t *answer, const char *name) {
    json_t *member = json_object_get(answer, name);
    return member ? json_incref(member) : json_object();
}

json_t *kvl_sweep_row(const kvl_row_context *context, const kvl_child_result *child,
                      kvl_outcome outcome, const char *reason) {
    char text[768];
    const kvl_sweep_options *options = context->options;
    json_t *answer = child ? parse_answer(child) : NULL;
    if (answer) {
        outcome = kvl_outcome_find(json_string_value(json_object_get(answer, "outcome")));
        reason = json_string_value(json_object_get(answer, "reason"));
    } else if (child) {
        outcome = describe_end(context, child, text, sizeof text);
        reason = text;
    }
    json_t *effective = json_object(), *metrics = member_or_empty(answer, "metrics");
    add_effective(context, effective);
    json_object_update(effective, json_object_get(answer, "effective"));
    if (child) json_object_set_new(metrics, "wall_s", json_real(child->wall_s));
    char *repro = kvl_trial_repro(options->workload, context->trial);
    json_t *row = json_object();
    json_object_set_new(row, "schema", json_integer(KVL_ROW_SCHEMA));
    json_object_set_new(row, "run", json_string(context->run));
    json_object_set_new(row, "trial", json_string(context->trial->key));
    json_object_set_new(row, "round", json_integer(context->round));
    json_object_set_new(row, "workload", json_string(options->workload->kind->name));
    json_object_set_new(row, "axes", kvl_trial_axes(context->trial));
    json_object_set_new(row, "effective", effective);
    json_object_set_new(row, "outcome", json_string(kvl_outcome_name(outcome)));
    json_object_set_new(row, "reason", clean_text(reason));
    json_object_set_new(row, "metrics", metrics);
    json_object_set_new(row, "samples", member_or_empty(answer, "samples"));
    json_object_set(row, "ceilings", (json_t *)context->ceilings);
    json_object_set(row, "env", (json_t *)context->env);
    json_object_set_new(row, "seed", json_integer((json_int_t)options->workload->seed));
    json_object_set_new(row, "repro", json_string(repro ? repro : ""));
    free(repro);
    json_decref(answer);
    return row;
}
