/* One child process: started, watched and ended by the sweep.
 *
 * The child leads a process group of its own (an interrupt at the terminal reaches the parent
 * alone), dies with its parent, writes its answer to file descriptor 3 and talks on the others.
 */
#ifndef KVL_HARNESS_CHILD_H
#define KVL_HARNESS_CHILD_H

#include <signal.h>
#include <stdint.h>

#include "core/buffer.h"
#include "core/status.h"

enum { KVL_CHILD_ANSWER_FD = 3 };

typedef struct kvl_child_options {
    const char *executable;
    const char *const *argv;           /* NULL-terminated */
    const char *isa;                   /* KVLAB_ISA of the child; NULL: as the parent's */
    double timeout_s;                  /* 0 = none */
    uint64_t memory_limit_bytes;       /* of its resident size; 0 = none */
    const volatile sig_atomic_t *stop; /* the child is ended as soon as it is not 0; may be NULL */
} kvl_child_options;

typedef enum kvl_child_end {
    KVL_CHILD_EXITED = 0, /* code = exit code */
    KVL_CHILD_SIGNALLED,  /* code = signal */
    KVL_CHILD_TIMEOUT,
    KVL_CHILD_MEMORY, /* passed memory_limit_bytes, or ended by the kernel's out-of-memory killer */
    KVL_CHILD_STOPPED /* options->stop was raised */
} kvl_child_end;

typedef struct kvl_child_result {
    kvl_child_end end;
    int code;
    kvl_buffer answer;    /* what came through KVL_CHILD_ANSWER_FD, 16 MiB at most */
    char last_words[512]; /* last line of its stdout and stderr */
    double wall_s;
    uint64_t rss_peak_bytes; /* highest resident size seen, sampled every 20 ms */
} kvl_child_result;

/* Runs the child to its end, whichever that is. Fails only when it cannot be started. */
kvl_status kvl_child_run(const kvl_child_options *options, kvl_child_result *result);
void kvl_child_result_free(kvl_child_result *result);

#endif
