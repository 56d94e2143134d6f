/* Lists of names: membership, and "did you mean". Used for flags, modules, dtypes and models. */
#ifndef KVL_CORE_NAMES_H
#define KVL_CORE_NAMES_H

#include <stddef.h>

/* Index of `name` in names[0..n_names), or -1. */
int kvl_names_find(const char *name, const char *const *names, size_t n_names);

/* The entry nearest to `name` by edit distance (transpositions count one, case ignored); NULL if
 * n_names == 0 or nothing is near (distance above 1 and above a third of the length, and `name`
 * begins none). */
const char *kvl_names_nearest(const char *name, const char *const *names, size_t n_names);

/* Writes "unknown <what> '<name>'; did you mean '<nearest>'? (known: a, b, c)" to `out`. */
void kvl_names_unknown(char *out, size_t out_bytes, const char *what, const char *name,
                       const char *const *names, size_t n_names);

#endif
