/* Which axes a figure's trials differ in. Internal to the figure. */
#ifndef KVL_HARNESS_FIGURE_AXES_H
#define KVL_HARNESS_FIGURE_AXES_H

#include "harness/figures/figure.h"

/* Axes in the order in which a figure prefers them for series. */
size_t kvl_figure_axis_count(void);
const char *kvl_figure_axis_at(size_t index);
bool kvl_figure_axis_is_numeric(const char *name);

/* The value of an axis as a phrase: "flash", "KV bf16", "batch 4"; "" when a trial lacks it. Builds
 * and hosts by their first six digits, models by file name. */
void kvl_figure_phrase(const kvl_group *group, const char *name, char *out, size_t out_bytes);

/* Distinct values of `name` over groups[n], sorted (numbers by value); malloc'ed texts. */
kvl_status kvl_figure_values(const kvl_group *const *groups, size_t n, const char *name,
                             char ***values, int *n_values);
void kvl_figure_values_free(char **values, int n_values);

/* True when `name` takes two values or more over groups[n]. A page size or a model digest counts as
 * part of its allocator or model: only where two trials with the same one differ. */
bool kvl_figure_differs(const kvl_group *const *groups, size_t n, const char *name);

/* The axis that a value belongs to: pages are no axis of a contiguous cache, and a digest says
 * which file stood at a model's path. NULL for an axis of its own. */
const char *kvl_figure_axis_owner(const char *name);

#endif
