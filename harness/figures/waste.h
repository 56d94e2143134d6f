/* Waste by kind: one bar a trial of `bench replay`, what the slots of its pool are. */
#ifndef KVL_HARNESS_WASTE_H
#define KVL_HARNESS_WASTE_H

#include <stdbool.h>

#include "core/buffer.h"
#include "core/status.h"
#include "harness/figures/group.h"

typedef struct kvl_waste {
    kvl_buffer csv; /* place (from 1, least live first), label, live, reserved, internal, cached,
                       padding, external, free: per cent of the pool, free without external */
    int n_places;
    bool full; /* over the steps in which requests wait, where every trial has such steps */
    char insight[512];
} kvl_waste;

/* KVL_ERR_INPUT: no trial that ended ok has the shares, or more than 16 do. */
kvl_status kvl_waste_make(const kvl_groups *groups, const char *where, kvl_waste *out);
void kvl_waste_free(kvl_waste *waste);

#endif
