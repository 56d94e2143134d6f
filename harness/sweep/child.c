#define _GNU_SOURCE
#include "harness/sweep/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"

enum { SAMPLE_MS = 20, TALK_BYTES = 4096, MAX_ANSWER_BYTES = 16 << 20 };

typedef struct watch {
    pid_t pid;
    int answer_fd, talk_fd; /* -1 once at their end */
    char talk[TALK_BYTES + 1];
    size_t n_talk;
} watch;

/* The environment with KVLAB_ISA replaced; the strings are the parent's but the last. */
static char **child_environment(const char *isa, char *line, size_t line_bytes) {
    extern char **environ;
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **copy = calloc(n + 2, sizeof *copy);
    if (!copy) return NULL;
    for (size_t i = 0; i < n; i++) {
        if (!isa || strncmp(environ[i], "KVLAB_ISA=", 10) != 0) copy[kept++] = environ[i];
    }
    if (isa) {
        snprintf(line, line_bytes, "KVLAB_ISA=%s", isa);
        copy[kept] = line;
    }
    return copy;
}

/* Runs in the child between fork and exec: async-signal-safe calls only. */
static void become(const kvl_child_options *options, char **environment, pid_t parent, int answer,
                   int talk) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126); /* the parent died before the line above */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(talk, STDOUT_FILENO);
    dup2(talk, STDERR_FILENO);
    if (answer == KVL_CHILD_ANSWER_FD)
        fcntl(answer, F_SETFD, 0);
    else
        dup2(answer, KVL_CHILD_ANSWER_FD);
    execve(options->executable, (char *const *)options->argv, environment);
    _exit(127);
}

static kvl_status start(const kvl_child_options *options, watch *child) {
    int answer[2], talk[2];
    if (pipe2(answer, O_CLOEXEC) != 0)
        return kvl_fail(KVL_ERR_IO, "cannot make a pipe: %s", strerror(errno));
    if (pipe2(talk, O_CLOEXEC) != 0) {
        close(answer[0]);
        close(answer[1]);
        return kvl_fail(KVL_ERR_IO, "cannot make a pipe: %s", strerror(errno));
    }
    char line[64];
    char **environment = child_environment(options->isa, line, sizeof line);
    pid_t parent = getpid();
    /* The talk pipe is lifted out of the way: descriptor 3 must not be overwritten by dup2. */
    int talk_write = fcntl(talk[1], F_DUPFD_CLOEXEC, 10);
    child->pid = environment && talk_write >= 0 ? fork() : -1;
    if (child->pid == 0) become(options, environment, parent, answer[1], talk_write);
    int reason = errno;
    free(environment);
    close(answer[1]);
    close(talk[1]);
    if (talk_write >= 0) close(talk_write);
    if (child->pid < 0) {
        close(answer[0]);
        close(talk[0]);
        return kvl_fail(KVL_ERR_IO, "cannot start a child process: %s", strerror(reason));
    }
    setpgid(child->pid, child->pid); /* also here: whichever of the two comes first */
    fcntl(answer[0], F_SETFL, O_NONBLOCK);
    fcntl(talk[0], F_SETFL, O_NONBLOCK);
    child->answer_fd = answer[0];
    child->talk_fd = talk[0];
    return KVL_OK;
}

/* Keeps the end of what the child says. */
static void keep_talk(watch *child, const char *data, size_t n) {
    if (n > TALK_BYTES) {
        data += n - TALK_BYTES;
        n = TALK_BYTES;
    }
    if (child->n_talk + n > TALK_BYTES) {
        size_t drop = child->n_talk + n - TALK_BYTES;
        memmove(child->talk, child->talk + drop, child->n_talk - drop);
        child->n_talk -= drop;
    }
    memcpy(child->talk + child->n_talk, data, n);
    child->n_talk += n;
}

/* Reads what is there; closes a pipe at its end. */
static void drain(watch *child, kvl_child_result *result) {
    char block[16384];
    ssize_t n;
    while (child->answer_fd >= 0 && (n = read(child->answer_fd, block, sizeof block)) != -1) {
        if (n == 0) {
            close(child->answer_fd);
            child->answer_fd = -1;
        } else if (result->answer.bytes < MAX_ANSWER_BYTES) {
            kvl_buffer_add(&result->answer, block, (size_t)n);
        }
    }
    while (child->talk_fd >= 0 && (n = read(child->talk_fd, block, sizeof block)) != -1) {
        if (n == 0) {
            close(child->talk_fd);
            child->talk_fd = -1;
        } else {
            keep_talk(child, block, (size_t)n);
        }
    }
}

static uint64_t resident_bytes(pid_t pid) {
    char path[64];
    unsigned long long total, resident = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    if (fscanf(file, "%llu %llu", &total, &resident) != 2) resident = 0;
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Processes that the kernel killed for want of memory, in this cgroup or on this machine. */
static uint64_t kernel_oom_kills(void) {
    static const char *const paths[] = {"/sys/fs/cgroup/memory.events", "/proc/vmstat"};
    uint64_t kills = 0;
    for (int i = 0; i < 2; i++) {
        char line[128];
        FILE *file = fopen(paths[i], "re");
        while (file && fgets(line, sizeof line, file)) {
            if (strncmp(line, "oom_kill ", 9) == 0) kills += strtoull(line + 9, NULL, 10);
        }
        if (file) fclose(file);
    }
    return kills;
}

static void last_line(watch *child, char *out, size_t out_bytes) {
    size_t n = child->n_talk;
    while (n > 0 && strchr("\r\n ", child->talk[n - 1])) n--;
    child->talk[n] = '\0';
    char *newline = strrchr(child->talk, '\n');
    snprintf(out, out_bytes, "%.500s", newline ? newline + 1 : child->talk);
}

/* True when the child must be ended now; says why in result->end. */
static bool must_end(const kvl_child_options *options, const watch *child, uint64_t start_ns,
                     kvl_child_result *result) {
    uint64_t resident = resident_bytes(child->pid);
    if (resident > result->rss_peak_bytes) result->rss_peak_bytes = resident;
    double seconds = (double)(kvl_now_ns() - start_ns) * 1e-9;
    if (options->stop && *options->stop)
        result->end = KVL_CHILD_STOPPED;
    else if (options->timeout_s > 0 && seconds > options->timeout_s)
        result->end = KVL_CHILD_TIMEOUT;
    else if (options->memory_limit_bytes && resident > options->memory_limit_bytes)
        result->end = KVL_CHILD_MEMORY;
    else
        return false;
    return true;
}

kvl_status kvl_child_run(const kvl_child_options *options, kvl_child_result *result) {
    watch child = {.answer_fd = -1, .talk_fd = -1};
    memset(result, 0, sizeof *result);
    uint64_t oom_kills = kernel_oom_kills(), start_ns = kvl_now_ns();
    KVL_TRY(start(options, &child));
    int status = 0;
    bool ended_by_us = false;
    for (;;) {
        struct pollfd fds[2] = {{child.answer_fd, POLLIN, 0}, {child.talk_fd, POLLIN, 0}};
        bool closed = child.answer_fd < 0 && child.talk_fd < 0;
        poll(fds, 2, closed ? 1 : SAMPLE_MS);
        drain(&child, result);
        pid_t waited = waitpid(child.pid, &status, WNOHANG);
        if (waited == child.pid || (waited < 0 && errno == ECHILD)) break;
        if (!ended_by_us && must_end(options, &child, start_ns, result)) {
            kill(-child.pid, SIGKILL);
            ended_by_us = true;
        }
    }
    kill(-child.pid, SIGKILL); /* whatever it left behind in its group */
    drain(&child, result);
    if (child.answer_fd >= 0) close(child.answer_fd);
    if (child.talk_fd >= 0) close(child.talk_fd);
    result->wall_s = (double)(kvl_now_ns() - start_ns) * 1e-9;
    last_line(&child, result->last_words, sizeof result->last_words);
    if (ended_by_us) return KVL_OK;
    result->end = WIFSIGNALED(status) ? KVL_CHILD_SIGNALLED : KVL_CHILD_EXITED;
    result->code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    if (result->end == KVL_CHILD_SIGNALLED && result->code == SIGKILL &&
        kernel_oom_kills() > oom_kills)
        result->end = KVL_CHILD_MEMORY;
    return KVL_OK;
}

void kvl_child_result_free(kvl_child_result *result) {
    kvl_buffer_free(&result->answer);
}
