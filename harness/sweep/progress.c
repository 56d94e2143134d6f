#include "harness/sweep/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

void kvl_progress_start(kvl_progress *progress, size_t n_total, bool quiet) {
    *progress = (kvl_progress){quiet, isatty(STDERR_FILENO) == 1, n_total, 0, kvl_now_ns()};
}

/* "1h02m", "3m20s", "12s". */
static void duration(double seconds, char *out, size_t out_bytes) {
    long s = (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, out_bytes, "%ldh%02ldm", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        snprintf(out, out_bytes, "%ldm%02lds", s / 60, s % 60);
    else
        snprintf(out, out_bytes, "%lds", s);
}

/* The time left, from the mean of those that ran. */
static void remaining(const kvl_progress *progress, char *out, size_t out_bytes) {
    char text[32];
    snprintf(out, out_bytes, "%s", "");
    if (progress->n_done == 0 || progress->n_done >= progress->n_total) return;
    double spent = (double)(kvl_now_ns() - progress->start_ns) * 1e-9;
    duration(spent / (double)progress->n_done * (double)(progress->n_total - progress->n_done),
             text, sizeof text);
    snprintf(out, out_bytes, ", %s left", text);
}

void kvl_progress_running(const kvl_progress *progress, const char *label) {
    char left[48];
    if (progress->quiet || !progress->terminal) return;
    remaining(progress, left, sizeof left);
    fprintf(stderr, "\r\033[K[%zu/%zu%s] %.100s", progress->n_done + 1, progress->n_total, left,
            label);
    fflush(stderr);
}

void kvl_progress_done(kvl_progress *progress, const char *label, const char *outcome,
                       const char *reason, double seconds) {
    char left[48];
    progress->n_done++;
    if (progress->quiet) return;
    bool ok = strcmp(outcome, "ok") == 0;
    if (progress->terminal && ok) return; /* the next line takes its place */
    remaining(progress, left, sizeof left);
    kvl_progress_clear(progress);
    fprintf(stderr, "[%zu/%zu%s] %s: %s", progress->n_done, progress->n_total, left, label,
            outcome);
    if (seconds > 0) fprintf(stderr, ", %.1f s", seconds);
    fprintf(stderr, "%s%s%s\n", reason[0] ? " (" : "", reason, reason[0] ? ")" : "");
}

void kvl_progress_clear(const kvl_progress *progress) {
    if (!progress->quiet && progress->terminal) fprintf(stderr, "\r\033[K");
}
