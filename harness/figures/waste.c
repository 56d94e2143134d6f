#include "harness/figures/waste.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/figures/export.h"
#include "harness/figures/figure.h"
#include "harness/figures/side.h"

enum { MAX_PLACES = 16, N_KINDS = 7, LIVE = 0, EXTERNAL = 5, FREE = 6 };
static const char *const kinds[N_KINDS] = {"live",    "reserved", "internal", "cached",
                                           "padding", "external", "free"};

typedef struct place {
    char label[KVL_SIDE_LABEL_BYTES];
    double shares[N_KINDS];
} place;

static double share_of(const kvl_group *group, const char *kind, bool full) {
    char name[64];
    snprintf(name, sizeof name, "%s%s_pct", full ? "full_" : "", kind);
    return kvl_group_median(group, name);
}

static int by_live(const void *a, const void *b) {
    const place *x = a, *y = b;
    return (x->shares[LIVE] > y->shares[LIVE]) - (x->shares[LIVE] < y->shares[LIVE]);
}

static void write_csv(kvl_waste *waste, const place *places) {
    kvl_buffer_text(&waste->csv, "place,label");
    for (int k = 0; k < N_KINDS; k++) kvl_buffer_printf(&waste->csv, ",%s", kinds[k]);
    kvl_buffer_text(&waste->csv, "\n");
    for (int i = 0; i < waste->n_places; i++) {
        kvl_buffer_printf(&waste->csv, "%d,", i + 1);
        kvl_csv_field(&waste->csv, places[i].label);
        for (int k = 0; k < N_KINDS; k++)
            kvl_buffer_printf(&waste->csv, ",%.9g", places[i].shares[k]);
        kvl_buffer_text(&waste->csv, "\n");
        size_t used = strlen(waste->insight);
        snprintf(waste->insight + used, sizeof waste->insight - used, "%s%s %.1f %%",
                 i ? " < " : "slots that hold tokens: ", places[i].label, places[i].shares[LIVE]);
    }
}

static kvl_status collect(const kvl_group **chosen, size_t n, kvl_waste *waste, place *places) {
    size_t n_with = 0;
    for (size_t i = 0; i < n; i++) {
        if (isfinite(share_of(chosen[i], "live", false))) chosen[n_with++] = chosen[i];
    }
    if (n_with == 0 || n_with > MAX_PLACES)
        return kvl_fail(KVL_ERR_INPUT,
                        "%zu trials of bench replay that ended ok: 1 to %d (--where)", n_with,
                        MAX_PLACES);
    waste->full = true;
    for (size_t i = 0; i < n_with; i++)
        waste->full = waste->full && isfinite(share_of(chosen[i], "live", true));
    for (size_t i = 0; i < n_with; i++) {
        kvl_side_label(chosen, n_with, i, places[i].label);
        /* gnuplot takes a comma for the field's end, quoted or not. */
        for (char *c = places[i].label; (c = strchr(c, ','));) *c = ' ';
        for (int k = 0; k < N_KINDS; k++)
            places[i].shares[k] = share_of(chosen[i], kinds[k], waste->full);
        places[i].shares[FREE] -= places[i].shares[EXTERNAL];
    }
    waste->n_places = (int)n_with;
    return KVL_OK;
}

kvl_status kvl_waste_make(const kvl_groups *groups, const char *where, kvl_waste *out) {
    const kvl_group **chosen;
    size_t n;
    place places[MAX_PLACES];
    *out = (kvl_waste){0};
    KVL_TRY(kvl_figure_select(groups, where, &chosen, &n));
    kvl_status status = collect(chosen, n, out, places);
    free(chosen);
    if (status != KVL_OK) return status;
    qsort(places, (size_t)out->n_places, sizeof *places, by_live);
    write_csv(out, places);
    return out->csv.failed ? kvl_fail(KVL_ERR_OOM, "out of memory") : KVL_OK;
}

void kvl_waste_free(kvl_waste *waste) {
    kvl_buffer_free(&waste->csv);
}
