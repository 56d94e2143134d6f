/* The safetensors files of a Hugging Face folder as one set of tensors: model.safetensors, or the
 * shards that model.safetensors.index.json lists.
 * Law: each tensor name stands in one file only, the one that the index says. */
#ifndef KVL_DECODER_SHARDS_H
#define KVL_DECODER_SHARDS_H

#include <stddef.h>

#include "decoder/name_index.h"
#include "decoder/safetensors.h"

typedef struct kvl_shards {
    kvl_safetensors **files; /* [n_files] */
    char **paths;            /* [n_files] */
    size_t n_files;
    kvl_name_index names;        /* every tensor of every file */
    const kvl_st_tensor **found; /* [names.n_names] */
} kvl_shards;

/* On failure nothing is left open. */
kvl_status kvl_shards_open(const char *dir, kvl_shards *out);
void kvl_shards_close(kvl_shards *shards);
/* NULL when absent. */
const kvl_st_tensor *kvl_shards_find(const kvl_shards *shards, const char *name);

#endif
