#define _GNU_SOURCE
#include "harness/sweep/row.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"

struct kvl_row_file {
    int fd;
    uint64_t bytes; /* end of the last whole row; the file is never left longer or shorter */
    bool created;   /* an empty file that this process made is removed again at close */
    char *path;
};

static const char *const row_members[] = {"schema",  "run",       "trial",   "round",  "workload",
                                          "axes",    "effective", "outcome", "reason", "metrics",
                                          "samples", "ceilings",  "env",     "seed",   "repro"};

/* NULL when `row` has every member of a row with its type; else what is wrong with it. */
static const char *row_fault(const json_t *row) {
    if (!json_is_object(row)) return "not a JSON object";
    for (size_t i = 0; i < sizeof row_members / sizeof *row_members; i++) {
        if (!json_object_get(row, row_members[i])) return row_members[i];
    }
    static const char *const objects[] = {"axes",    "effective", "metrics",
                                          "samples", "ceilings",  "env"};
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        if (!json_is_object(json_object_get(row, objects[i]))) return objects[i];
    }
    static const char *const strings[] = {"run", "trial", "workload", "outcome", "reason", "repro"};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        if (!json_is_string(json_object_get(row, strings[i]))) return strings[i];
    }
    if (!json_is_integer(json_object_get(row, "schema"))) return "schema";
    return json_is_integer(json_object_get(row, "round")) ? NULL : "round";
}

static kvl_status io_error(const char *path, const char *what) {
    return kvl_fail(KVL_ERR_IO, "%s: %s: %s", path, what, strerror(errno));
}

/* Offset just behind the last newline; the file is read backwards in blocks. */
static kvl_status end_of_rows(const char *path, int fd, uint64_t bytes, uint64_t *end) {
    char block[65536];
    for (uint64_t at = bytes; at > 0;) {
        size_t n = at < sizeof block ? (size_t)at : sizeof block;
        at -= n;
        if (pread(fd, block, n, (off_t)at) != (ssize_t)n) return io_error(path, "cannot read");
        char *newline = memrchr(block, '\n', n);
        if (newline) {
            *end = at + (uint64_t)(newline - block) + 1;
            return KVL_OK;
        }
    }
    *end = 0;
    return KVL_OK;
}

/* A file that holds something else than rows is left alone, its unfinished last line included. */
static kvl_status check_is_rows(const char *path, int fd, uint64_t bytes, uint64_t end) {
    char first;
    if (bytes == 0) return KVL_OK;
    if (pread(fd, &first, 1, 0) != 1) return io_error(path, "cannot read");
    if (first != '{')
        return kvl_fail(KVL_ERR_INPUT, "%s: line 1: not a kvlab row; nothing is appended to it",
                        path);
    if (end == 0) return KVL_OK; /* the first row of all was torn */
    json_error_t error;
    if (lseek(fd, 0, SEEK_SET) < 0) return io_error(path, "cannot read");
    json_t *row = json_loadfd(fd, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &error);
    const char *fault = row ? row_fault(row) : error.text;
    kvl_status status =
        fault ? kvl_fail(KVL_ERR_INPUT,
                         "%s: line 1: not a kvlab row (%s); nothing is appended to it", path, fault)
              : KVL_OK;
    json_decref(row);
    return status;
}

static kvl_status open_fd(const char *path, int *fd, bool *created) {
    int flags = O_RDWR | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    *created = false;
    *fd = open(path, flags);
    if (*fd < 0 && errno == ENOENT) {
        *fd = open(path, flags | O_CREAT | O_EXCL, 0644);
        *created = *fd >= 0;
    }
    return *fd < 0 ? io_error(path, "cannot open for appending") : KVL_OK;
}

/* A killed sweep's last child may hold the lock for a moment, until it has died too. */
static kvl_status lock(kvl_row_file *file) {
    enum { TRIES = 20, PAUSE_US = 25000 };
    for (int i = 0; i < TRIES; i++) {
        if (flock(file->fd, LOCK_EX | LOCK_NB) == 0) return KVL_OK;
        if (errno != EWOULDBLOCK && errno != EINTR) return io_error(file->path, "cannot lock");
        usleep(PAUSE_US);
    }
    return kvl_fail(KVL_ERR_IO, "%s: another kvlab is writing to it", file->path);
}

static kvl_status prepare(kvl_row_file *file, uint64_t *cut_bytes) {
    struct stat info;
    if (fstat(file->fd, &info) != 0) return io_error(file->path, "cannot stat");
    if (!S_ISREG(info.st_mode))
        return kvl_fail(KVL_ERR_IO, "%s: not a regular file; rows are kept in one", file->path);
    KVL_TRY(lock(file));
    /* Again: the size may have changed before the lock was ours. */
    if (fstat(file->fd, &info) != 0) return io_error(file->path, "cannot stat");
    uint64_t bytes = (uint64_t)info.st_size, end = 0;
    KVL_TRY(end_of_rows(file->path, file->fd, bytes, &end));
    KVL_TRY(check_is_rows(file->path, file->fd, bytes, end));
    if (end < bytes && ftruncate(file->fd, (off_t)end) != 0)
        return io_error(file->path, "cannot cut its torn last line");
    file->bytes = end;
    if (cut_bytes) *cut_bytes = bytes - end;
    return KVL_OK;
}

kvl_status kvl_row_file_open(const char *path, kvl_row_file **out, uint64_t *cut_bytes) {
    *out = NULL;
    if (cut_bytes) *cut_bytes = 0;
    int fd;
    bool created;
    KVL_TRY(open_fd(path, &fd, &created));
    kvl_row_file *file = calloc(1, sizeof *file);
    char *copy = strdup(path);
    if (!file || !copy) {
        free(file);
        free(copy);
        close(fd);
        return kvl_fail(KVL_ERR_OOM, "out of memory");
    }
    *file = (kvl_row_file){fd, 0, created, copy};
    kvl_status status = prepare(file, cut_bytes);
    if (status == KVL_OK)
        *out = file;
    else
        kvl_row_file_close(file);
    return status;
}

/* Takes back what a failed write left, so that the file ends with a whole row. */
static kvl_status take_back(kvl_row_file *file, int reason) {
    errno = reason;
    kvl_status status = io_error(file->path, "cannot append a row (the file keeps its former end)");
    if (ftruncate(file->fd, (off_t)file->bytes) != 0)
        return kvl_fail(KVL_ERR_IO, "%s: cannot append a row: %s; nor cut the torn line: %s",
                        file->path, strerror(reason), strerror(errno));
    return status;
}

kvl_status kvl_row_file_append(kvl_row_file *file, const json_t *row) {
    const char *fault = row_fault(row);
    if (fault) return kvl_fail(KVL_ERR_INTERNAL, "row without a valid '%s'", fault);
    char *text = json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!text) return kvl_fail(KVL_ERR_OOM, "out of memory");
    size_t length = strlen(text);
    text[length] = '\n'; /* the terminating NUL gives its place: one write for row and newline */
    ssize_t written;
    do {
        written = write(file->fd, text, length + 1);
    } while (written < 0 && errno == EINTR);
    int reason = written < 0 ? errno : ENOSPC;
    free(text);
    if (written != (ssize_t)(length + 1)) return take_back(file, reason);
    /* File systems that allocate late report a full disk only now. */
    if (fdatasync(file->fd) != 0 && errno != EINVAL && errno != EINTR)
        return take_back(file, errno);
    file->bytes += length + 1;
    return KVL_OK;
}

kvl_status kvl_row_file_close(kvl_row_file *file) {
    if (!file) return KVL_OK;
    kvl_status status = KVL_OK;
    if (file->created && file->bytes == 0) unlink(file->path);
    if (close(file->fd) != 0 && errno != EINTR) status = io_error(file->path, "cannot close");
    free(file->path);
    free(file);
    return status;
}

static kvl_status load_line(const char *path, size_t line, const char *text, size_t length,
                            json_t *rows) {
    json_error_t error;
    json_t *row = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!row) return kvl_fail(KVL_ERR_INPUT, "%s:%zu:%d: %s", path, line, error.column, error.text);
    const char *fault = row_fault(row);
    if (fault) {
        json_decref(row);
        return kvl_fail(KVL_ERR_INPUT, "%s:%zu: not a row: '%s' is missing or of the wrong type",
                        path, line, fault);
    }
    json_int_t schema = json_integer_value(json_object_get(row, "schema"));
    if (schema != KVL_ROW_SCHEMA) {
        json_decref(row);
        return kvl_fail(KVL_ERR_INPUT, "%s:%zu: schema %lld: this kvlab reads schema %d", path,
                        line, (long long)schema, KVL_ROW_SCHEMA);
    }
    return json_array_append_new(rows, row) == 0 ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
}

kvl_status kvl_rows_load(const char *path, json_t **rows, int *n_torn) {
    kvl_file file;
    *rows = NULL;
    if (n_torn) *n_torn = 0;
    KVL_TRY(kvl_file_open(path, &file));
    json_t *all = json_array();
    kvl_status status = all ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
    size_t line = 1;
    for (uint64_t at = 0; status == KVL_OK && at < file.bytes; line++) {
        const char *text = (const char *)file.data + at;
        const char *newline = memchr(text, '\n', file.bytes - at);
        if (!newline) {
            if (n_torn) ++*n_torn;
            break;
        }
        status = load_line(path, line, text, (size_t)(newline - text), all);
        at += (uint64_t)(newline - text) + 1;
    }
    kvl_file_close(&file);
    if (status != KVL_OK) {
        json_decref(all);
        return status;
    }
    *rows = all;
    return KVL_OK;
}
