/* Exit codes. Where several apply: 70, 130/143, 2, 5, 4, 1, 3 in this order. */
#ifndef KVL_HARNESS_EXIT_H
#define KVL_HARNESS_EXIT_H

#include "core/status.h"

enum {
    KVL_EXIT_OK = 0,
    KVL_EXIT_NEGATIVE = 1, /* finished and negative: a failed verify, slower, a claim that fails */
    KVL_EXIT_INPUT = 2,    /* bad input, unwritable path, full disk */
    KVL_EXIT_CANNOT_TELL = 3, /* noise, missing device */
    KVL_EXIT_TRIALS = 4,      /* at least one trial ended oom, timeout, crash or mismatch */
    KVL_EXIT_NOTHING = 5,     /* nothing selected, or nothing ran */
    KVL_EXIT_DEFECT = 70,     /* own defect */
    KVL_EXIT_SIGINT = 130,
    KVL_EXIT_SIGTERM = 143
};

/* Exit code of a failed call. Unsupported, oom and io count as input when they end a command. */
int kvl_exit_of(kvl_status status);

/* Prints "kvlab: <kvl_message()>" to stderr and returns kvl_exit_of(status). */
int kvl_exit_report(kvl_status status);

/* Flushes stdout and turns a write error (full disk, closed pipe) into exit code 2 with a message;
 * otherwise returns `code`. Every command that prints data ends with it. */
int kvl_exit_flush(int code);

#endif
