#define _GNU_SOURCE
#include "harness/trial/ceiling.h"

#include <stdio.h>
#include <string.h>

#include "harness/sweep/child.h"
#include "harness/trial/env.h"

static const uint64_t MIB = 1 << 20;

uint64_t kvl_ceiling_class(uint64_t bytes) {
    uint64_t most = 256 * MIB, size = MIB;
    if (4 * kvl_llc_bytes() > most) most = 4 * kvl_llc_bytes();
    while (size < bytes && size < most) size *= 2;
    return size < most ? size : most;
}

static void kind_of(const kvl_trial *trial, char out[64]) {
    snprintf(out, 64, "%lld/%.16s/%llu", (long long)trial->numbers[KVL_AXIS_THREADS],
             trial->names[KVL_AXIS_ISA],
             (unsigned long long)kvl_ceiling_class(kvl_trial_step_bytes(trial)));
}

bool kvl_ceilings_known(const kvl_ceilings *ceilings, const kvl_trial *trial) {
    char kind[64];
    if (!trial->kind->working_set_bytes) return true; /* nothing is timed: none are needed */
    kind_of(trial, kind);
    return json_object_get(ceilings->by_kind, kind) != NULL;
}

const json_t *kvl_ceilings_of(kvl_ceilings *ceilings, const kvl_trial *trial) {
    char kind[64];
    json_t *known = NULL;
    if (trial->kind->working_set_bytes) {
        kind_of(trial, kind);
        known = json_object_get(ceilings->by_kind, kind);
    }
    if (!ceilings->none) ceilings->none = json_object();
    return known ? known : ceilings->none;
}

void kvl_ceilings_free(kvl_ceilings *ceilings) {
    json_decref(ceilings->by_kind);
    json_decref(ceilings->none);
    memset(ceilings, 0, sizeof *ceilings);
}

kvl_status kvl_ceilings_calibrate(kvl_ceilings *ceilings, const kvl_trial *trial,
                                  const char *executable, const volatile sig_atomic_t *stop) {
    char kind[64], spec[160];
    json_error_t error;
    kvl_child_result result = {0};
    kind_of(trial, kind);
    snprintf(spec, sizeof spec, "{\"calibrate\":{\"threads\":%lld,\"bytes\":%llu}}",
             (long long)trial->numbers[KVL_AXIS_THREADS],
             (unsigned long long)kvl_ceiling_class(kvl_trial_step_bytes(trial)));
    const char *argv[] = {"kvlab", "trial", spec, NULL};
    kvl_child_options child = {.executable = executable,
                               .argv = argv,
                               .isa = trial->names[KVL_AXIS_ISA],
                               .timeout_s = 120,
                               .stop = stop};
    KVL_TRY(kvl_child_run(&child, &result));
    json_t *answer =
        json_loadb(result.answer.data ? result.answer.data : "", result.answer.bytes, 0, &error);
    kvl_status status = KVL_OK;
    if (!ceilings->by_kind) ceilings->by_kind = json_object();
    if (result.end == KVL_CHILD_EXITED && result.code == 0 && json_is_object(answer)) {
        json_object_set(ceilings->by_kind, kind, answer);
    } else if (result.end != KVL_CHILD_STOPPED) {
        json_object_set_new(ceilings->by_kind, kind, json_object());
        status = kvl_fail(KVL_ERR_INTERNAL, "calibrating the ceilings failed (%d threads, %s): %s",
                          (int)trial->numbers[KVL_AXIS_THREADS], trial->names[KVL_AXIS_ISA],
                          result.last_words[0] ? result.last_words : "no answer");
    }
    json_decref(answer);
    kvl_child_result_free(&result);
    return status;
}
