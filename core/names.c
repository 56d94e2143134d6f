#include "core/names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_NAME = 64 };

int kvl_names_find(const char *name, const char *const *names, size_t n_names) {
    for (size_t i = 0; i < n_names; i++) {
        if (strcmp(name, names[i]) == 0) return (int)i;
    }
    return -1;
}

static int min2(int a, int b) {
    return a < b ? a : b;
}

/* Optimal string alignment distance (Levenshtein plus adjacent transpositions), case ignored. */
static int distance(const char *a, const char *b) {
    size_t len_a = strnlen(a, MAX_NAME), len_b = strnlen(b, MAX_NAME);
    int rows[3][MAX_NAME + 1]; /* rows i - 2, i - 1 and i of the table, in rotation */
    for (size_t j = 0; j <= len_b; j++) rows[0][j] = (int)j;
    for (size_t i = 1; i <= len_a; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = (int)i;
        for (size_t j = 1; j <= len_b; j++) {
            int ca = tolower((unsigned char)a[i - 1]), cb = tolower((unsigned char)b[j - 1]);
            row[j] = min2(min2(above[j] + 1, row[j - 1] + 1), above[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) &&
                cb == tolower((unsigned char)a[i - 2]))
                row[j] = min2(row[j], above2[j - 2] + 1);
        }
    }
    return rows[len_a % 3][len_b];
}

const char *kvl_names_nearest(const char *name, const char *const *names, size_t n_names) {
    const char *best = NULL;
    int best_distance = 0;
    for (size_t i = 0; i < n_names; i++) {
        int d = distance(name, names[i]);
        if (!best || d < best_distance) best = names[i], best_distance = d;
    }
    size_t length = strnlen(name, MAX_NAME);
    if (best && (best_distance <= 1 || best_distance <= (int)length / 3)) return best;
    /* An abbreviation: "fp8" means the first of the fp8 names. */
    for (size_t i = 0; i < n_names && length >= 2; i++) {
        if (strncasecmp(name, names[i], length) == 0) return names[i];
    }
    return NULL;
}

void kvl_names_unknown(char *out, size_t out_bytes, const char *what, const char *name,
                       const char *const *names, size_t n_names) {
    const char *near = kvl_names_nearest(name, names, n_names);
    int n = snprintf(out, out_bytes, "unknown %s '%.*s'", what, MAX_NAME, name);
    if (near && n >= 0 && (size_t)n < out_bytes)
        n += snprintf(out + n, out_bytes - (size_t)n, "; did you mean '%s'?", near);
    for (size_t i = 0; i < n_names && n >= 0 && (size_t)n < out_bytes; i++)
        n += snprintf(out + n, out_bytes - (size_t)n, "%s%s%s", i ? ", " : " (known: ", names[i],
                      i + 1 == n_names ? ")" : "");
}
