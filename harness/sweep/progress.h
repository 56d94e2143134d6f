/* Progress of a sweep on stderr: one line rewritten on a terminal, else one line a trial. */
#ifndef KVL_HARNESS_PROGRESS_H
#define KVL_HARNESS_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kvl_progress {
    bool quiet, terminal;
    size_t n_total, n_done;
    uint64_t start_ns;
} kvl_progress;

void kvl_progress_start(kvl_progress *progress, size_t n_total, bool quiet);
/* What runs now (terminals only). */
void kvl_progress_running(const kvl_progress *progress, const char *label);
/* One more is done; `reason` may be "". */
void kvl_progress_done(kvl_progress *progress, const char *label, const char *outcome,
                       const char *reason, double seconds);
/* Clears the terminal's line, so that other text can follow. */
void kvl_progress_clear(const kvl_progress *progress);

#endif
