/* Folders and files in /tmp for tests. */
#ifndef KVL_TESTS_TEMPORARY_H
#define KVL_TESTS_TEMPORARY_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A fresh folder; `path` is a template ending in XXXXXX. */
static inline void make_folder(char *path) {
    if (!mkdtemp(path)) abort();
}

static inline void write_file(const char *dir, const char *name, const void *data, size_t bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) abort();
}

static inline void write_text(const char *dir, const char *name, const char *text) {
    write_file(dir, name, text, strlen(text));
}

static inline void copy_file(const char *from_dir, const char *dir, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", from_dir, name);
    FILE *f = fopen(path, "rb");
    if (!f) abort();
    static char data[4 << 20];
    size_t bytes = fread(data, 1, sizeof data, f);
    fclose(f);
    write_file(dir, name, data, bytes);
}

/* Removes the folder with the files (not folders) in it. */
static inline void remove_folder(const char *dir) {
    DIR *d = opendir(dir);
    char path[768];
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}

#endif
