/* Files from outside, opened with distrust: only regular files (a FIFO, device or folder is refused
 * without blocking), the size taken from the open descriptor, mapped read-only. */
#ifndef KVL_CORE_FILE_H
#define KVL_CORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct kvl_file {
    const uint8_t *data; /* host, read-only mapping; valid pointer even when bytes == 0 */
    uint64_t bytes;
    char *path; /* as given, for messages */
} kvl_file;

/* Maps `path`. KVL_ERR_IO "path: reason" when it is missing, unreadable or not a regular file. */
kvl_status kvl_file_open(const char *path, kvl_file *out);
void kvl_file_close(kvl_file *file);

/* Joins `root` and the relative `name` from an untrusted index. Refuses absolute names, ".." parts,
 * empty names, NUL bytes, and a result whose real path leaves the real path of root (symlinks).
 * *out is malloc'ed. */
kvl_status kvl_path_under(const char *root, const char *name, char **out);

/* True for valid UTF-8 (no surrogates, no overlong forms, at most U+10FFFF). */
bool kvl_utf8_valid(const void *text, size_t bytes);

/* Writes the whole file or leaves none: temporary name in the same folder, fsync, rename.
 * KVL_ERR_IO with the path and reason; the temporary file is gone then. */
kvl_status kvl_file_write_all(const char *path, const void *data, uint64_t bytes);

#endif
