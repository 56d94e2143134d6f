#define _GNU_SOURCE
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
           : S_ISSOCK(mode) ? "a socket"
                            : "not a regular file";
}

kvl_status kvl_file_open(const char *path, kvl_file *out) {
    *out = (kvl_file){0};
    /* O_NONBLOCK: opening a FIFO that nobody writes must not hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return kvl_fail(KVL_ERR_IO, "%s: %s", path, strerror(errno));
    struct stat info;
    kvl_status status = KVL_OK;
    void *data = (void *)"";
    if (fstat(fd, &info) != 0) {
        status = kvl_fail(KVL_ERR_IO, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status =
            kvl_fail(KVL_ERR_IO, "%s: %s, a regular file is needed", path, kind_of(info.st_mode));
    } else if (info.st_size > 0) {
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = kvl_fail(KVL_ERR_IO, "%s: cannot map: %s", path, strerror(errno));
    }
    close(fd);
    if (status != KVL_OK) return status;
    out->data = data;
    out->bytes = (uint64_t)info.st_size;
    out->path = strdup(path);
    if (!out->path) {
        kvl_file_close(out);
        return kvl_fail(KVL_ERR_OOM, "%s: out of memory", path);
    }
    return KVL_OK;
}

void kvl_file_close(kvl_file *file) {
    if (file->bytes) munmap((void *)file->data, file->bytes);
    free(file->path);
    *file = (kvl_file){0};
}

/* True when a part of the path is "..". */
static bool climbs(const char *name) {
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += part != name || *part == '/';
        size_t length = strcspn(part, "/");
        if (length == 2 && part[0] == '.' && part[1] == '.') return true;
        if (!part[length]) break;
        part += length;
    }
    return false;
}

kvl_status kvl_path_under(const char *root, const char *name, char **out) {
    *out = NULL;
    if (!name[0] || name[0] == '/' || climbs(name))
        return kvl_fail(KVL_ERR_INPUT, "file name '%s' must be relative and stay under %s", name,
                        root);
    char *joined = NULL;
    if (asprintf(&joined, "%s/%s", root, name) < 0)
        return kvl_fail(KVL_ERR_OOM, "%s: out of memory", name);
    char *real_root = realpath(root, NULL), *real = realpath(joined, NULL);
    kvl_status status = KVL_OK;
    if (!real_root || !real) {
        status = kvl_fail(KVL_ERR_IO, "%s: %s", joined, strerror(errno));
    } else {
        size_t length = strlen(real_root);
        bool inside = strncmp(real, real_root, length) == 0 &&
                      (real[length] == '/' || strcmp(real_root, "/") == 0);
        if (!inside)
            status =
                kvl_fail(KVL_ERR_INPUT, "%s: leads out of %s (to %s)", joined, real_root, real);
    }
    free(real_root);
    free(real);
    if (status == KVL_OK)
        *out = joined;
    else
        free(joined);
    return status;
}

bool kvl_utf8_valid(const void *text, size_t bytes) {
    const uint8_t *s = text, *end = s + bytes;
    while (s < end) {
        if (*s < 0x80) {
            s++;
            continue;
        }
        int extra = *s >= 0xf0 ? 3 : *s >= 0xe0 ? 2 : 1;
        if (*s < 0xc2 || *s > 0xf4 || end - s <= extra) return false;
        uint32_t point = *s & (0x3fu >> extra);
        for (int i = 1; i <= extra; i++) {
            if ((s[i] & 0xc0) != 0x80) return false;
            point = point << 6 | (s[i] & 0x3fu);
        }
        static const uint32_t least[4] = {0, 0x80, 0x800, 0x10000};
        if (point < least[extra] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
            return false;
        s += extra + 1;
    }
    return true;
}

static bool write_fully(int fd, const uint8_t *data, uint64_t bytes) {
    while (bytes) {
        ssize_t n = write(fd, data, bytes < (1u << 30) ? bytes : (1u << 30));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        data += n;
        bytes -= (uint64_t)n;
    }
    return true;
}

kvl_status kvl_file_write_all(const char *path, const void *data, uint64_t bytes) {
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return kvl_fail(KVL_ERR_IO, "%s: %s, cannot be replaced by a file", path,
                        kind_of(info.st_mode));
    char *temporary = NULL;
    if (asprintf(&temporary, "%s.XXXXXX", path) < 0)
        return kvl_fail(KVL_ERR_OOM, "%s: out of memory", path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    kvl_status status = KVL_OK;
    if (fd < 0) {
        status = kvl_fail(KVL_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
    } else {
        fchmod(fd, 0644);
        bool good = write_fully(fd, data, bytes) && fsync(fd) == 0;
        int reason = errno;
        if (close(fd) != 0 && good) good = false, reason = errno;
        if (good && rename(temporary, path) != 0) good = false, reason = errno;
        if (!good) {
            unlink(temporary);
            status = kvl_fail(KVL_ERR_IO, "%s: cannot write: %s", path, strerror(reason));
        }
    }
    free(temporary);
    return status;
}
