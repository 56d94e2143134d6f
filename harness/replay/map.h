/* A fragmentation map: who owns which part of the pool, over time. Snapshots of the pool in cells
 * of equal width; when there are too many, every other one is dropped and they are taken half as
 * often.
 */
#ifndef KVL_HARNESS_MAP_H
#define KVL_HARNESS_MAP_H

#include <stdint.h>

#include "core/buffer.h"
#include "harness/replay/pool.h"

enum { KVL_MAP_ROWS = 128, KVL_MAP_CELLS = 128 };

/* What most slots of a cell are. */
typedef enum kvl_map_state {
    KVL_MAP_FREE = 0,
    KVL_MAP_CACHED,
    KVL_MAP_UNWRITTEN, /* handed out, no token yet */
    KVL_MAP_LIVE
} kvl_map_state;

typedef struct kvl_map_cell {
    kvl_map_state state;
    int64_t owner; /* request, from 0, in unwritten and live cells; -1 else */
} kvl_map_cell;

typedef struct kvl_map {
    int64_t slots;            /* of the pool: a row's width */
    int64_t n_cells;          /* KVL_MAP_CELLS, or one a slot in a pool that has fewer */
    int64_t next_step, every; /* the next snapshot; steps between two */
    int n_rows;
    int64_t steps[KVL_MAP_ROWS];
    kvl_map_cell cells[KVL_MAP_ROWS][KVL_MAP_CELLS];
} kvl_map;

void kvl_map_start(kvl_map *map, int64_t slots);

/* Takes the snapshots that are due before step `next`, until when nobody comes or goes; `requests`
 * [max_seqs] tells whose request a handle is. Row i is of step i * every. */
void kvl_map_take(kvl_map *map, int64_t next, const kvl_pool *pool, const int64_t *requests);

/* CSV: row, time_s, cell, slot (first of the cell), state (free, cached, unwritten, live), owner;
 * free cells are left out. */
void kvl_map_csv(const kvl_map *map, double step_s, kvl_buffer *out);

#endif
