#include "harness/exit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int kvl_exit_of(kvl_status status) {
    switch (status) {
    case KVL_OK:
        return KVL_EXIT_OK;
    case KVL_ERR_INTERNAL:
        return KVL_EXIT_DEFECT;
    default:
        return KVL_EXIT_INPUT;
    }
}

int kvl_exit_report(kvl_status status) {
    if (status == KVL_OK) return KVL_EXIT_OK;
    fflush(stdout);
    fprintf(stderr, "kvlab: %s\n", kvl_message());
    return kvl_exit_of(status);
}

int kvl_exit_flush(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    int reason = errno;
    clearerr(stdout);
    /* A reader that went away (`kvlab ... | head`) has what it wanted. */
    if (reason == EPIPE) return code;
    fprintf(stderr, "kvlab: cannot write to stdout: %s\n", strerror(reason));
    return KVL_EXIT_INPUT;
}
