#define _GNU_SOURCE
#include "harness/sweep/row.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "harness/sweep/sweep.h"

struct kvl_row_file {
    int fd;
    uint64_t bytes; /* end of the last whole row; the file is never left longer or shorter */
    bool created;   /* an empty file that this process made is removed again at close */
    char *path;
};

static const char *const row_members[] = {"schema",  "run",       "trial",   "round",  "workload",
                                          "axes",    "effective", "outcome", "reason", "metrics",
                                          "samples", "ceilings",  "env",     "seed",   "repro"};

enum { FAULT_BYTES = 160 };

/* The values that decide how a row is read. */
static bool has_bad_value(const json_t *row, char why[FAULT_BYTES]) {
    json_int_t schema = json_integer_value(json_object_get(row, "schema"));
    json_int_t round = json_integer_value(json_object_get(row, "round"));
    const char *outcome = json_string_value(json_object_get(row, "outcome")), *name;
    const json_t *value;
    why[0] = '\0';
    json_object_foreach(json_object_get(row, "metrics"), name, value) {
        if (!json_is_number(value) && !json_is_null(value))
            snprintf(why, FAULT_BYTES, "metrics.%.60s is neither a number nor null", name);
    }
    if (round < 0) snprintf(why, FAULT_BYTES, "round %lld is negative", (long long)round);
    if (kvl_outcome_find(outcome) == KVL_N_OUTCOMES)
        snprintf(why, FAULT_BYTES, "outcome '%.60s' is not one of a row's", outcome);
    if (schema != KVL_ROW_SCHEMA) /* the last word: another schema explains all else */
        snprintf(why, FAULT_BYTES, "schema %lld: this kvlab reads schema %d", (long long)schema,
                 KVL_ROW_SCHEMA);
    return why[0] != '\0';
}

/* False when `row` has every member of a row with its type and a value that can be; else `why`. */
static bool row_fault(const json_t *row, char why[FAULT_BYTES]) {
    static const char *const objects[] = {"axes",    "effective", "metrics",
                                          "samples", "ceilings",  "env"};
    static const char *const strings[] = {"run", "trial", "workload", "outcome", "reason", "repro"};
    static const char *const integers[] = {"schema", "round"};
    const char *bad = NULL;
    if (!json_is_object(row)) {
        snprintf(why, FAULT_BYTES, "not a JSON object");
        return true;
    }
    for (size_t i = sizeof integers / sizeof *integers; i-- > 0;)
        if (!json_is_integer(json_object_get(row, integers[i]))) bad = integers[i];
    for (size_t i = sizeof strings / sizeof *strings; i-- > 0;)
        if (!json_is_string(json_object_get(row, strings[i]))) bad = strings[i];
    for (size_t i = sizeof objects / sizeof *objects; i-- > 0;)
        if (!json_is_object(json_object_get(row, objects[i]))) bad = objects[i];
    for (size_t i = sizeof row_members / sizeof *row_members; i-- > 0;)
        if (!json_object_get(row, row_members[i])) bad = row_members[i];
    if (!bad) return has_bad_value(row, why);
    snprintf(why, FAULT_BYTES, "'%s' is missing or of the wrong type", bad);
    return true;
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

static kvl_status not_rows(const char *path, const char *where, const char *fault) {
    return kvl_fail(KVL_ERR_INPUT, "%s: %s: not a kvlab row (%s); nothing is appended to it", path,
                    where, fault);
}

/* A file that holds something else than rows is left alone, its unfinished last line included. */
static kvl_status check_first_line(const char *path, int fd) {
    json_error_t error;
    char why[FAULT_BYTES];
    if (lseek(fd, 0, SEEK_SET) < 0) return io_error(path, "cannot read");
    json_t *row = json_loadfd(fd, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &error);
    kvl_status status = !row                  ? not_rows(path, "line 1", error.text)
                        : row_fault(row, why) ? not_rows(path, "line 1", why)
                                              : KVL_OK;
    json_decref(row);
    return status;
}

/* True when `text` is the beginning of a row as append writes it. Behind other rows a few bytes
 * that fit will do; the only line of a file must show the first two members. */
static bool begins_as_row(const char *text, size_t bytes, bool alone) {
    static const char head[] = "{\"schema\":", next[] = ",\"run\":\"";
    size_t n = bytes < sizeof head - 1 ? bytes : sizeof head - 1;
    if (memcmp(text, head, n) != 0) return false;
    while (n < bytes && text[n] >= '0' && text[n] <= '9') n++;
    size_t left = bytes - n;
    if (left >= sizeof next - 1) return memcmp(text + n, next, sizeof next - 1) == 0;
    return !alone && memcmp(text + n, next, left) == 0;
}

/* What is behind the last newline: a whole row (only its newline is missing), a torn one that may
 * be cut, or something else that is refused. */
static kvl_status check_tail(const char *path, int fd, uint64_t end, uint64_t bytes, bool *whole) {
    json_error_t error;
    char why[FAULT_BYTES];
    size_t n = (size_t)(bytes - end);
    char *text = malloc(n);
    if (!text) return kvl_fail(KVL_ERR_OOM, "%s: last line: out of memory", path);
    kvl_status status = KVL_OK;
    if (pread(fd, text, n, (off_t)end) != (ssize_t)n) {
        status = io_error(path, "cannot read");
    } else if (!begins_as_row(text, n, end == 0)) {
        status = not_rows(path, end ? "last line" : "line 1", "it begins otherwise");
    } else {
        json_t *row = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
        *whole = row != NULL;
        if (row && row_fault(row, why)) status = not_rows(path, end ? "last line" : "line 1", why);
        json_decref(row);
    }
    free(text);
    return status;
}

/* Looks at all of a file that rows are to be appended to; changes nothing. *end is that of its last
 * finished line; *whole: what comes behind is a row. */
static kvl_status check_is_rows(const char *path, int fd, uint64_t bytes, uint64_t *end,
                                bool *whole) {
    *whole = false;
    KVL_TRY(end_of_rows(path, fd, bytes, end));
    if (*end) KVL_TRY(check_first_line(path, fd));
    return *end < bytes ? check_tail(path, fd, *end, bytes, whole) : KVL_OK;
}

static kvl_status check_is_regular(const char *path, int fd, struct stat *info) {
    if (fstat(fd, info) != 0) return io_error(path, "cannot stat");
    if (S_ISREG(info->st_mode)) return KVL_OK;
    return kvl_fail(KVL_ERR_IO, "%s: not a regular file; rows are kept in one", path);
}

enum { OPEN_FLAGS = O_RDWR | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY };

/* A link that leads nowhere: its target is not created, which is rarely what was meant. */
static kvl_status check_no_dead_link(const char *path) {
    struct stat info;
    if (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode)) return KVL_OK;
    return kvl_fail(KVL_ERR_IO, "%s: a symbolic link to a file that does not exist", path);
}

static kvl_status open_fd(const char *path, int *fd, bool *created) {
    *created = false;
    *fd = open(path, OPEN_FLAGS);
    if (*fd < 0 && errno == ENOENT) {
        KVL_TRY(check_no_dead_link(path));
        *fd = open(path, OPEN_FLAGS | O_CREAT | O_EXCL, 0644);
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
    KVL_TRY(check_is_regular(file->path, file->fd, &info));
    KVL_TRY(lock(file));
    /* Again: the size may have changed before the lock was ours. */
    KVL_TRY(check_is_regular(file->path, file->fd, &info));
    uint64_t bytes = (uint64_t)info.st_size, end;
    bool whole;
    KVL_TRY(check_is_rows(file->path, file->fd, bytes, &end, &whole));
    if (whole) {
        if (write(file->fd, "\n", 1) != 1) return io_error(file->path, "cannot end its last line");
        end = bytes + 1;
    } else if (end < bytes) {
        if (ftruncate(file->fd, (off_t)end) != 0)
            return io_error(file->path, "cannot cut its torn last line");
        if (cut_bytes) *cut_bytes = bytes - end;
    }
    file->bytes = end;
    return KVL_OK;
}

/* The folder that a new file would be made in. */
static kvl_status check_parent(const char *path) {
    char *parent = strdup(path);
    if (!parent) return kvl_fail(KVL_ERR_OOM, "out of memory");
    char *slash = strrchr(parent, '/');
    if (slash) slash[slash == parent] = '\0';
    bool good = access(slash ? parent : ".", W_OK | X_OK) == 0;
    free(parent);
    return good ? KVL_OK : io_error(path, "cannot open for appending");
}

kvl_status kvl_row_file_check(const char *path) {
    struct stat info;
    uint64_t end;
    bool whole;
    int fd = open(path, OPEN_FLAGS);
    if (fd < 0 && errno == ENOENT) {
        KVL_TRY(check_no_dead_link(path));
        return check_parent(path);
    }
    if (fd < 0) return io_error(path, "cannot open for appending");
    kvl_status status = check_is_regular(path, fd, &info);
    if (status == KVL_OK) status = check_is_rows(path, fd, (uint64_t)info.st_size, &end, &whole);
    close(fd);
    return status;
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

/* Rows written to a file that has no name any more, or another one, would be lost unnoticed. */
static kvl_status check_in_place(const kvl_row_file *file) {
    struct stat named, opened;
    if (fstat(file->fd, &opened) == 0 && stat(file->path, &named) == 0 &&
        named.st_dev == opened.st_dev && named.st_ino == opened.st_ino)
        return KVL_OK;
    return kvl_fail(KVL_ERR_IO, "%s: rows file was removed while running", file->path);
}

kvl_status kvl_row_file_append(kvl_row_file *file, const json_t *row) {
    char why[FAULT_BYTES];
    if (row_fault(row, why)) return kvl_fail(KVL_ERR_INTERNAL, "not a row: %s", why);
    KVL_TRY(check_in_place(file));
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
    kvl_status status = check_in_place(file);
    if (status == KVL_OK && file->created && file->bytes == 0) unlink(file->path);
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
    char why[FAULT_BYTES];
    if (row_fault(row, why)) {
        json_decref(row);
        return kvl_fail(KVL_ERR_INPUT, "%s:%zu: not a row: %s", path, line, why);
    }
    return json_array_append_new(rows, row) == 0 ? KVL_OK : kvl_fail(KVL_ERR_OOM, "out of memory");
}

static bool parses(const char *text, size_t length) {
    json_error_t error;
    json_t *value = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    json_decref(value);
    return value != NULL;
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
        size_t length = newline ? (size_t)(newline - text) : (size_t)(file.bytes - at);
        /* A last row whose newline alone is missing is a row. */
        if (!newline && !parses(text, length)) {
            if (n_torn) ++*n_torn;
            break;
        }
        status = load_line(path, line, text, length, all);
        at += length + (newline != NULL);
    }
    kvl_file_close(&file);
    if (status != KVL_OK) {
        json_decref(all);
        return status;
    }
    *rows = all;
    return KVL_OK;
}
