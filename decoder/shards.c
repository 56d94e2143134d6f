#define _GNU_SOURCE
#include "decoder/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decoder/json.h"

enum { MAX_SHARDS = 4096 };

void kvl_shards_close(kvl_shards *shards) {
    for (size_t i = 0; i < shards->n_files; i++) {
        kvl_st_close(shards->files[i]);
        free(shards->paths[i]);
    }
    free(shards->files);
    free(shards->paths);
    free(shards->found);
    kvl_name_index_free(&shards->names);
    *shards = (kvl_shards){0};
}

const kvl_st_tensor *kvl_shards_find(const kvl_shards *shards, const char *name) {
    int64_t number = kvl_name_index_find(&shards->names, name, strlen(name));
    return number < 0 ? NULL : shards->found[number];
}

/* Opens one more file; takes `path`. */
static kvl_status add_file(kvl_shards *shards, char *path) {
    size_t n = shards->n_files;
    kvl_safetensors **files = realloc(shards->files, (n + 1) * sizeof *files);
    if (files) shards->files = files;
    char **paths = realloc(shards->paths, (n + 1) * sizeof *paths);
    if (paths) shards->paths = paths;
    kvl_status status = files && paths ? kvl_st_open(path, &shards->files[n])
                                       : kvl_fail(KVL_ERR_OOM, "%s: out of memory", path);
    if (status != KVL_OK) {
        free(path);
        return status;
    }
    shards->paths[n] = path;
    shards->n_files++;
    return KVL_OK;
}

/* One index over the tensors of all files; a name in two of them is refused. */
static kvl_status index_names(kvl_shards *shards, const char *dir) {
    size_t total = 0;
    for (size_t s = 0; s < shards->n_files; s++) total += kvl_st_count(shards->files[s]);
    shards->found = calloc(total + 1, sizeof *shards->found);
    if (!shards->found || !kvl_name_index_init(&shards->names, total))
        return kvl_fail(KVL_ERR_OOM, "%s: out of memory", dir);
    for (size_t s = 0; s < shards->n_files; s++) {
        for (size_t i = 0; i < kvl_st_count(shards->files[s]); i++) {
            const kvl_st_tensor *tensor = kvl_st_at(shards->files[s], i);
            size_t number = shards->names.n_names;
            if (!kvl_name_index_add(&shards->names, tensor->name, strlen(tensor->name)))
                return kvl_fail(KVL_ERR_INPUT, "%s: tensor '%.80s' stands in two shards",
                                shards->paths[s], tensor->name);
            shards->found[number] = tensor;
        }
    }
    return KVL_OK;
}

/* Where a shard lies. Files stay under the folder, with one exception: the download cache of the
 * hub keeps models--X/snapshots/<revision>/ as links into models--X/blobs/, so that below a folder
 * named snapshots the model's cache folder is the root. */
static kvl_status shard_path(const char *dir, const char *name, char **out) {
    kvl_status status = kvl_path_under(dir, name, out);
    if (status != KVL_ERR_INPUT || strchr(name, '/')) return status;
    char *real = realpath(dir, NULL);
    char *revision = real ? strrchr(real, '/') : NULL;
    if (revision && revision > real) {
        *revision++ = 0;
        char *snapshots = strrchr(real, '/');
        if (snapshots && snapshots > real && strcmp(snapshots + 1, "snapshots") == 0) {
            char *relative = NULL;
            *snapshots = 0;
            if (asprintf(&relative, "snapshots/%s/%s", revision, name) >= 0) {
                status = kvl_path_under(real, relative, out);
                free(relative);
            }
        }
    }
    free(real);
    return status;
}

/* Opens the shard called `name` unless it is open; its number in *shard. */
static kvl_status open_shard(kvl_shards *shards, const char *dir, const char *index_path,
                             const char *name, kvl_name_index *opened, size_t *shard) {
    int64_t number = kvl_name_index_find(opened, name, strlen(name));
    *shard = (size_t)number;
    if (number >= 0) return KVL_OK;
    if (shards->n_files == MAX_SHARDS)
        return kvl_fail(KVL_ERR_INPUT, "%s: weight_map names more than %d files", index_path,
                        MAX_SHARDS);
    char *path = NULL;
    kvl_status status = shard_path(dir, name, &path);
    if (status != KVL_OK) return kvl_fail_prefix(status, "%s: weight_map", index_path);
    *shard = shards->n_files;
    kvl_name_index_add(opened, name, strlen(name));
    return add_file(shards, path);
}

static kvl_status open_map(kvl_shards *shards, const char *dir, const char *index_path,
                           const json_t *map, kvl_name_index *opened) {
    const char *tensor;
    json_t *file;
    json_object_foreach((json_t *)map, tensor, file) {
        const char *name = json_string_value(file);
        size_t shard;
        if (!name)
            return kvl_fail(KVL_ERR_INPUT, "%s: weight_map '%.80s' is no file name", index_path,
                            tensor);
        KVL_TRY(open_shard(shards, dir, index_path, name, opened, &shard));
        if (!kvl_st_find(shards->files[shard], tensor))
            return kvl_fail(KVL_ERR_INPUT, "%s: weight_map '%.80s': not in %.80s", index_path,
                            tensor, name);
    }
    return KVL_OK;
}

static kvl_status open_index(kvl_shards *shards, const char *dir, const char *index_path) {
    json_t *root;
    KVL_TRY(kvl_json_load(index_path, &root));
    const json_t *map = json_object_get(root, "weight_map");
    kvl_name_index opened = {0};
    kvl_status status;
    if (!json_is_object(map) || !json_object_size(map))
        status = kvl_fail(KVL_ERR_INPUT, "%s: weight_map: an object of file names is needed",
                          index_path);
    else if (!kvl_name_index_init(&opened, MAX_SHARDS))
        status = kvl_fail(KVL_ERR_OOM, "%s: out of memory", index_path);
    else
        status = open_map(shards, dir, index_path, map, &opened);
    kvl_name_index_free(&opened);
    json_decref(root);
    return status;
}

static kvl_status open_all(kvl_shards *shards, const char *dir) {
    char *single = NULL, *index_path = NULL;
    if (asprintf(&single, "%s/model.safetensors", dir) < 0 ||
        asprintf(&index_path, "%s/model.safetensors.index.json", dir) < 0) {
        free(single);
        return kvl_fail(KVL_ERR_OOM, "%s: out of memory", dir);
    }
    kvl_status status;
    if (access(single, F_OK) == 0) {
        status = add_file(shards, single);
        single = NULL;
    } else if (access(index_path, F_OK) == 0) {
        status = open_index(shards, dir, index_path);
    } else {
        status = kvl_fail(KVL_ERR_IO,
                          "%s: neither model.safetensors nor model.safetensors.index.json is there",
                          dir);
    }
    free(single);
    free(index_path);
    return status == KVL_OK ? index_names(shards, dir) : status;
}

kvl_status kvl_shards_open(const char *dir, kvl_shards *out) {
    *out = (kvl_shards){0};
    kvl_status status = open_all(out, dir);
    if (status != KVL_OK) kvl_shards_close(out);
    return status;
}
