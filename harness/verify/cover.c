#include "harness/verify/cover.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

enum { CANDIDATES = 8 };

typedef struct state {
    const int *sizes;
    int n_axes;
    int first[KVL_COVER_MAX_AXES]; /* values of all axes numbered through: axis a from first[a] */
    int n_values;
    uint8_t *open; /* [n_values][n_values]: the pair is not covered yet */
    int64_t n_open;
    kvl_rng rng;
} state;

static int value_id(const state *s, int axis, int value) {
    return s->first[axis] + value;
}

static bool is_open(const state *s, int a, int b) {
    return s->open[(int64_t)a * s->n_values + b];
}

/* Open pairs that `value` of `axis` makes with the axes set so far (-1: not set). */
static int gain(const state *s, const int *row, int axis, int value) {
    int n = 0, id = value_id(s, axis, value);
    for (int a = 0; a < s->n_axes; a++)
        if (a != axis && row[a] >= 0) n += is_open(s, id, value_id(s, a, row[a]));
    return n;
}

/* A random open pair opens the row, so that every row covers something. */
static void seed_row(state *s, int *row) {
    int64_t skip = (int64_t)kvl_rng_below(&s->rng, (uint64_t)s->n_open);
    for (int a = 0; a < s->n_axes; a++) row[a] = -1;
    for (int a = 0; a < s->n_axes; a++) {
        for (int b = a + 1; b < s->n_axes; b++) {
            for (int x = 0; x < s->sizes[a]; x++) {
                for (int y = 0; y < s->sizes[b]; y++) {
                    if (!is_open(s, value_id(s, a, x), value_id(s, b, y)) || skip-- > 0) continue;
                    row[a] = x, row[b] = y;
                    return;
                }
            }
        }
    }
}

static int best_value(state *s, const int *row, int axis) {
    int best = -1, best_gain = -1, ties = 0;
    for (int v = 0; v < s->sizes[axis]; v++) {
        int g = gain(s, row, axis, v);
        if (g > best_gain) {
            best = v, best_gain = g, ties = 1;
        } else if (g == best_gain && kvl_rng_below(&s->rng, (uint64_t)++ties) == 0) {
            best = v;
        }
    }
    return best;
}

/* Fills the rest of a row, axes in random order; returns the pairs it covers. */
static int complete_row(state *s, int *row) {
    int order[KVL_COVER_MAX_AXES], total = 0;
    for (int a = 0; a < s->n_axes; a++) order[a] = a;
    for (int a = s->n_axes - 1; a > 0; a--) {
        int b = (int)kvl_rng_below(&s->rng, (uint64_t)a + 1), t = order[a];
        order[a] = order[b], order[b] = t;
    }
    for (int i = 0; i < s->n_axes; i++)
        if (row[order[i]] < 0) row[order[i]] = best_value(s, row, order[i]);
    for (int a = 0; a < s->n_axes; a++) total += gain(s, row, a, row[a]);
    return total;
}

static void close_row(state *s, const int *row) {
    for (int a = 0; a < s->n_axes; a++) {
        for (int b = 0; b < s->n_axes; b++) {
            if (a == b) continue;
            int64_t at = (int64_t)value_id(s, a, row[a]) * s->n_values + value_id(s, b, row[b]);
            if (a < b) s->n_open -= s->open[at];
            s->open[at] = 0;
        }
    }
}

static kvl_status append_row(kvl_cover *cover, const int *row, int64_t *capacity) {
    if (cover->n_rows == *capacity) {
        int64_t more = *capacity ? 2 * *capacity : 256;
        uint16_t *rows =
            realloc(cover->rows, (size_t)more * (size_t)cover->n_axes * sizeof *cover->rows);
        if (!rows) return kvl_fail(KVL_ERR_OOM, "out of memory for a covering array");
        cover->rows = rows, *capacity = more;
    }
    for (int a = 0; a < cover->n_axes; a++)
        cover->rows[cover->n_rows * cover->n_axes + a] = (uint16_t)row[a];
    cover->n_rows++;
    return KVL_OK;
}

static kvl_status fill(state *s, kvl_cover *cover) {
    int64_t capacity = 0;
    while (s->n_open > 0) {
        int best[KVL_COVER_MAX_AXES], row[KVL_COVER_MAX_AXES], best_gain = -1;
        for (int i = 0; i < CANDIDATES; i++) {
            seed_row(s, row);
            int g = complete_row(s, row);
            if (g <= best_gain) continue;
            best_gain = g;
            memcpy(best, row, sizeof best);
        }
        close_row(s, best);
        KVL_TRY(append_row(cover, best, &capacity));
    }
    return KVL_OK;
}

kvl_status kvl_cover_make(const int *sizes, int n_axes, uint64_t seed, kvl_cover *out) {
    state s = {.sizes = sizes, .n_axes = n_axes, .rng = kvl_rng_make(seed, 0)};
    memset(out, 0, sizeof *out);
    out->n_axes = n_axes;
    for (int a = 0; a < n_axes; a++) {
        s.first[a] = s.n_values;
        s.n_values += sizes[a];
        out->sizes[a] = sizes[a];
    }
    s.open = calloc((size_t)s.n_values * (size_t)s.n_values, 1);
    if (!s.open) return kvl_fail(KVL_ERR_OOM, "out of memory for a covering array");
    for (int a = 0; a < n_axes; a++) {
        for (int b = 0; b < n_axes; b++) {
            if (a == b) continue;
            for (int x = 0; x < sizes[a]; x++)
                memset(s.open + (int64_t)value_id(&s, a, x) * s.n_values + s.first[b], 1,
                       (size_t)sizes[b]);
            if (a < b) s.n_open += (int64_t)sizes[a] * sizes[b];
        }
    }
    kvl_status status = fill(&s, out);
    free(s.open);
    if (status != KVL_OK) free(out->rows);
    return status;
}
