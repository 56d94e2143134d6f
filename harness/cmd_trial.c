/* kvlab trial SPEC: one trial, or one calibration, in a process of its own. Started by sweeps; the
 * answer goes to descriptor 3 where the sweep opened it, else to stdout. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/threads.h"
#include "harness/allocators/subject.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "harness/kernels/attention.h"
#include "harness/kernels/matmul.h"
#include "harness/quality/format_error.h"
#include "harness/quality/quality.h"
#include "harness/replay/trial.h"
#include "harness/serve/trial.h"
#include "harness/sweep/child.h"
#include "harness/trial/ceiling.h"
#include "harness/trial/trial.h"

static kvl_status send_answer(const json_t *answer) {
    char *text = json_dumps(answer, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!text) return kvl_fail(KVL_ERR_INTERNAL, "the answer cannot be written as JSON");
    int fd = fcntl(KVL_CHILD_ANSWER_FD, F_GETFD) >= 0 ? KVL_CHILD_ANSWER_FD : STDOUT_FILENO;
    size_t length = strlen(text);
    text[length++] = '\n'; /* in place of the terminating NUL */
    kvl_status status = KVL_OK;
    for (size_t at = 0; status == KVL_OK && at < length;) {
        ssize_t n = write(fd, text + at, length - at);
        if (n < 0 && errno != EINTR)
            status = kvl_fail(KVL_ERR_IO, "cannot write the answer: %s", strerror(errno));
        if (n > 0) at += (size_t)n;
    }
    free(text);
    return status;
}

static kvl_status calibrate(const json_t *what, json_t **answer) {
    int64_t threads = json_integer_value(json_object_get(what, "threads"));
    int64_t bytes = json_integer_value(json_object_get(what, "bytes"));
    if (threads < 1 || threads > 1024 || bytes < 1 << 20)
        return kvl_fail(KVL_ERR_INPUT, "trial spec: calibrate needs threads and bytes");
    KVL_TRY(kvl_threads_set((int)threads, 1));
    *answer = kvl_ceiling_measure((uint64_t)bytes);
    return *answer ? KVL_OK : KVL_ERR_OOM;
}

static kvl_status attention(const json_t *spec, json_t **answer) {
    return kvl_attention_trial_run(NULL, spec, answer);
}

/* The child's side of each workload (harness/sweep/workload.h). */
static const struct {
    const char *workload;
    kvl_status (*run)(const json_t *spec, json_t **answer);
} trials[] = {{"decode", kvl_trial_run},
              {"attention", attention},
              {"matmul", kvl_matmul_trial_run},
              {"allocator", kvl_allocator_trial_run},
              {"soak", kvl_soak_trial_run},
              {"quality", kvl_quality_trial_run},
              {"format_error", kvl_format_error_trial_run},
              {"replay", kvl_replay_trial_run},
              {"serve", kvl_serve_trial_run}};

static kvl_status run_trial(const json_t *spec, json_t **answer) {
    const json_t *workload = json_object_get(spec, "workload");
    const char *name = json_string_value(json_object_get(workload, "name"));
    for (size_t i = 0; name && i < sizeof trials / sizeof *trials; i++) {
        if (strcmp(trials[i].workload, name) == 0) return trials[i].run(spec, answer);
    }
    return kvl_fail(KVL_ERR_INPUT, "trial spec: unknown workload '%.60s'", name ? name : "");
}

static int run(const kvl_command *self, int argc, char **argv) {
    (void)self;
    json_error_t error;
    json_t *spec = argc == 2 ? json_loads(argv[1], JSON_REJECT_DUPLICATES, &error) : NULL;
    json_t *answer = NULL;
    if (!json_is_object(spec)) {
        json_decref(spec);
        return kvl_exit_report(kvl_fail(KVL_ERR_INPUT, "trial: one JSON object is needed (sweeps "
                                                       "start this command)"));
    }
    const json_t *calibration = json_object_get(spec, "calibrate");
    kvl_status status = calibration ? calibrate(calibration, &answer) : run_trial(spec, &answer);
    if (status == KVL_OK) status = send_answer(answer);
    json_decref(answer);
    json_decref(spec);
    return status == KVL_OK ? KVL_EXIT_OK : kvl_exit_report(status);
}

const kvl_command kvl_command_trial = {
    "trial", "one trial of a sweep (internal)", "SPEC", NULL, NULL, 0, run};
