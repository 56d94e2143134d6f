#include "harness/replay/map.h"

#include <string.h>

static const char *const state_names[] = {"free", "cached", "unwritten", "live"};

void kvl_map_start(kvl_map *map, int64_t slots) {
    memset(map, 0, sizeof *map);
    map->slots = slots;
    map->n_cells = slots < KVL_MAP_CELLS ? slots : KVL_MAP_CELLS;
    map->every = 1;
}

typedef struct painter {
    kvl_map *map;
    const int64_t *requests;
    kvl_map_cell *row;
    int64_t widest[KVL_MAP_CELLS]; /* slots of the run that decided the cell so far */
} painter;

static int64_t first_slot(const kvl_map *map, int64_t cell) {
    return map->slots / map->n_cells * cell + map->slots % map->n_cells * cell / map->n_cells;
}

static int64_t cell_of(const kvl_map *map, int64_t slot) {
    int64_t cell = (int64_t)((double)slot / (double)map->slots * (double)map->n_cells);
    if (cell >= map->n_cells) cell = map->n_cells - 1;
    while (cell + 1 < map->n_cells && first_slot(map, cell + 1) <= slot) cell++;
    while (cell > 0 && first_slot(map, cell) > slot) cell--;
    return cell;
}

/* Slots [from, to) are of one kind: each cell goes to the run that covers most of it. */
static void paint(painter *p, int64_t from, int64_t to, kvl_map_cell cell) {
    if (to > p->map->slots) to = p->map->slots;
    while (from < to) {
        int64_t c = cell_of(p->map, from);
        int64_t end = c + 1 < p->map->n_cells ? first_slot(p->map, c + 1) : p->map->slots;
        int64_t n = (to < end ? to : end) - from;
        if (n > p->widest[c]) {
            p->widest[c] = n;
            p->row[c] = cell;
        }
        from += n;
    }
}

static void visit(void *user, const kvl_slot_run *run) {
    painter *p = user;
    int64_t live_end = run->slot + run->n_live, end = run->slot + run->n_slots;
    if (run->refs == 0) {
        paint(p, run->slot, end, (kvl_map_cell){run->cached ? KVL_MAP_CACHED : KVL_MAP_FREE, -1});
        return;
    }
    int64_t owner = run->owner >= 0 ? p->requests[run->owner] : -1;
    paint(p, run->slot, live_end, (kvl_map_cell){KVL_MAP_LIVE, owner});
    paint(p, live_end, end, (kvl_map_cell){KVL_MAP_UNWRITTEN, owner});
}

static void drop_every_other(kvl_map *map) {
    for (int i = 1; 2 * i < map->n_rows; i++) {
        map->steps[i] = map->steps[2 * i];
        memcpy(map->cells[i], map->cells[2 * i], sizeof map->cells[i]);
    }
    map->n_rows = (map->n_rows + 1) / 2;
    map->every *= 2;
}

static void snapshot(kvl_map *map, const kvl_pool *pool, const int64_t *requests) {
    if (map->n_rows == KVL_MAP_ROWS) drop_every_other(map);
    painter p = {.map = map, .requests = requests, .row = map->cells[map->n_rows]};
    for (int c = 0; c < KVL_MAP_CELLS; c++) p.row[c] = (kvl_map_cell){KVL_MAP_FREE, -1};
    pool->module->walk(pool->state, visit, &p);
    map->steps[map->n_rows++] = map->next_step;
    map->next_step += map->every;
}

void kvl_map_take(kvl_map *map, int64_t next, const kvl_pool *pool, const int64_t *requests) {
    while (map->next_step < next) snapshot(map, pool, requests);
}

void kvl_map_csv(const kvl_map *map, double step_s, kvl_buffer *out) {
    kvl_buffer_text(out, "row,time_s,cell,slot,state,owner\n");
    for (int r = 0; r < map->n_rows; r++) {
        for (int64_t c = 0; c < map->n_cells; c++) {
            const kvl_map_cell *cell = &map->cells[r][c];
            if (cell->state == KVL_MAP_FREE) continue;
            kvl_buffer_printf(out, "%d,%.9g,%lld,%lld,%s,%lld\n", r, (double)map->steps[r] * step_s,
                              (long long)c, (long long)first_slot(map, c), state_names[cell->state],
                              (long long)cell->owner);
        }
    }
}
