/* The names of rows with their units: what axis labels say, and the order of columns in exports.
 * results/README.md says the same in words; a test holds the two together. */
#ifndef KVL_HARNESS_DICTIONARY_H
#define KVL_HARNESS_DICTIONARY_H

#include <stddef.h>

typedef enum kvl_better { KVL_BETTER_NONE = 0, KVL_BETTER_HIGHER, KVL_BETTER_LOWER } kvl_better;

typedef struct kvl_name {
    const char *name;  /* "decode_tok_s" */
    const char *unit;  /* "tok/s", "" for names and plain counts */
    const char *label; /* "decode throughput, whole batch" */
    kvl_better better;
} kvl_name;

/* Metrics, in export order. */
size_t kvl_metric_count(void);
const kvl_name *kvl_metric_at(size_t index);
/* A metric or axis by name; NULL for an unknown one. */
const kvl_name *kvl_name_find(const char *name);

/* "label (unit)", or the bare name of an unknown one. */
void kvl_name_label(const char *name, char *out, size_t out_bytes);

#endif
