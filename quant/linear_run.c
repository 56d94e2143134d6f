/* y = x W^T: which kernel, over which threads.
 *
 * Few rows (as many as the registers hold) stream the panels past them. More rows are packed in
 * tiles of as many, and every tile runs over a piece of a panel while that is in the L1 cache.
 * Either way a sum runs over k = 0, 1, 2, ... with one fused multiply-add each, so neither the
 * path nor the split over threads changes a bit. */
#include <pthread.h>
#include <string.h>

#include "core/checked.h"
#include "core/memory.h"
#include "core/team.h"
#include "core/threads.h"
#include "quant/linear_internal.h"

enum {
    MATRIX_ROWS = 32,      /* rows of x in the matrix path come in units of these */
    ROWS_AT_ONCE = 512,    /* bounds the scratch; weights are read once for each */
    BLOCK_ROWS = 96,       /* x a piece of 576 floats: under half of a 512 KiB L2 */
    GROUP_PANELS = 8,      /* sums of a block x 8 panels: another eighth of it */
    ALONE_BELOW = 1 << 15, /* multiply-adds that do not pay for sharing */
};

/* ---- scratch of kvl_linear_run: one block for each thread that calls it, grown and kept
 * ----------- */

typedef struct arena {
    void *base;
    uint64_t bytes;
} arena;

static pthread_key_t arena_key;
static pthread_once_t arena_once = PTHREAD_ONCE_INIT;
static _Thread_local arena my_arena;

static void arena_drop(void *pointer) {
    arena *a = pointer;
    kvl_mem_free(a->base, a->bytes);
    *a = (arena){0};
}

static void arena_key_make(void) {
    pthread_key_create(&arena_key, arena_drop);
}

static kvl_status arena_reserve(uint64_t bytes, void **out) {
    if (my_arena.bytes < bytes) {
        pthread_once(&arena_once, arena_key_make);
        arena_drop(&my_arena);
        KVL_TRY(kvl_mem_alloc(bytes, &my_arena.base));
        my_arena.bytes = bytes;
        pthread_setspecific(arena_key, &my_arena);
    }
    *out = my_arena.base;
    return KVL_OK;
}

/* ---- the plan of one call ------------------------------------------------------------------- */

/* How the rows of a call are computed. */
typedef enum path {
    PATH_FEW,   /* the codec's stream: each worker reads its panels once */
    PATH_TILE,  /* pieces of a panel stay in L1, register tiles over packed rows */
    PATH_MATRIX /* the codec's matrix kernel on bf16 x */
} path;

typedef struct plan {
    const kvl_linear *layer;
    const float *x;   /* [n_rows][x_stride] as the caller gave it */
    int64_t x_stride; /* elements */
    int64_t n_rows;   /* 1 .. ROWS_AT_ONCE */
    kvl_linear_sink sink;
    path path;
    bool copies_x;
    int n_workers, row_shares; /* a grid of row_shares x (n_workers / row_shares) workers */
    int64_t row_unit;          /* shares are whole units of rows, or, of PATH_TILE, whole tiles */
    kvl_tiling tiling;
    uint64_t copy_bytes, worker_bytes;
    /* x as the kernels read it: the caller's, or rounded in scratch: float32 [n_rows]
     * [kernel_x_stride], or packed in tiles; for the matrix path bf16 [n_rows rounded
     * up][kernel_x_stride]. */
    const float *kernel_x;
    int64_t kernel_x_stride;
    uint8_t *copy, *area; /* the team's copy of x, this worker's own scratch */
} plan;

typedef struct range {
    int64_t from, end;
} range;

static range share_of(int64_t n, int64_t share, int64_t n_shares) {
    return (range){n * share / n_shares, n * (share + 1) / n_shares};
}

static int64_t parts(int64_t n, int64_t part) {
    return (n + part - 1) / part;
}

/* Rows, or tiles of PATH_TILE. */
static range row_share(const plan *p, int share) {
    if (p->path == PATH_TILE) return share_of(p->tiling.n_tiles, share, p->row_shares);
    range r = share_of(parts(p->n_rows, p->row_unit), share, p->row_shares);
    r.from *= p->row_unit;
    r.end *= p->row_unit;
    if (r.end > p->n_rows) r.end = p->n_rows;
    return r;
}

/* The grid whose largest share is smallest; among equals the fewest row shares, since each of them
 * widens the weights again. */
static int choose_row_shares(const plan *p) {
    int64_t n_units = parts(p->n_rows, p->row_unit), best_cost = INT64_MAX;
    int best = 1;
    if (p->path == PATH_FEW) return 1;
    for (int shares = 1; shares <= p->n_workers && shares <= n_units; shares++) {
        int64_t cost = parts(n_units, shares) * parts(p->layer->n_panels, p->n_workers / shares);
        if (cost < best_cost) {
            best_cost = cost;
            best = shares;
        }
    }
    return best;
}

static void choose_path(plan *p) {
    const kvl_linear *layer = p->layer;
    p->copies_x = true;
    if (kvl_linear_uses_matrix(layer, p->n_rows)) {
        p->path = PATH_MATRIX;
        p->row_unit = MATRIX_ROWS;
    } else {
        p->path = layer->codec->stream && p->n_rows <= KVL_STREAM_ROWS ? PATH_FEW : PATH_TILE;
        p->row_unit = layer->isa->tile_rows;
        p->tiling = (kvl_tiling){p->n_rows, parts(p->n_rows, p->row_unit), layer->n_in};
        p->copies_x = layer->bf16_x || p->path == PATH_TILE;
    }
    p->row_shares = choose_row_shares(p);
}

static uint64_t align_to(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* Bytes of the copy of x and of each worker's scratch. Sizes are bounded: at most ROWS_AT_ONCE rows
 * of a layer whose own bytes fitted 64 bits. */
static void size_scratch(plan *p) {
    const kvl_linear *layer = p->layer;
    uint64_t panel = (uint64_t)layer->isa->panel, n_in = (uint64_t)layer->n_in;
    uint64_t rows = align_to((uint64_t)p->n_rows, MATRIX_ROWS);
    p->kernel_x_stride = p->x_stride;
    if (p->path == PATH_MATRIX) {
        /* Rows a multiple of 1 KiB apart would crowd into a few sets of the caches. */
        p->kernel_x_stride = (int64_t)align_to(n_in, 32) + 32;
        p->copy_bytes = rows * (uint64_t)p->kernel_x_stride * sizeof(uint16_t);
        p->worker_bytes = layer->codec->matrix_scratch_bytes;
    } else if (p->path == PATH_TILE) {
        p->copy_bytes = (uint64_t)p->n_rows * n_in * sizeof(float);
        p->worker_bytes =
            (BLOCK_ROWS * GROUP_PANELS + (uint64_t)layer->isa->tile_k) * panel * sizeof(float);
    } else {
        /* Each worker has a copy of its own, which is sooner made than waited for. */
        if (p->copies_x) {
            p->kernel_x_stride = (int64_t)align_to(n_in, 16) + 16;
            p->worker_bytes = (uint64_t)p->n_rows * (uint64_t)p->kernel_x_stride * sizeof(float);
        }
    }
    /* A page apart, so that workers share no cache line nor page. */
    p->copy_bytes = align_to(p->copy_bytes, 4096);
    p->worker_bytes = align_to(p->worker_bytes, 4096);
}

static plan make_plan(const kvl_linear *layer, const kvl_linear_call *call, int64_t first,
                      int n_workers) {
    int64_t left = call->n_rows - first;
    plan p = {.layer = layer,
              .x = call->x + first * call->x_stride,
              .x_stride = call->x_stride,
              .n_rows = left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE,
              .sink = {.y = call->y + first * call->y_stride,
                       .y_stride = call->y_stride,
                       .n_out = layer->n_out,
                       .bias = layer->bias,
                       .accumulate = call->accumulate},
              .n_workers = n_workers};
    if ((double)p.n_rows * (double)layer->n_out * (double)layer->n_in < ALONE_BELOW)
        p.n_workers = 1;
    choose_path(&p);
    size_scratch(&p);
    return p;
}

/* ---- what a worker does --------------------------------------------------------------------- */

static void copy_float_rows(const plan *p, range rows, float *copy) {
    const kvl_linear *layer = p->layer;
    for (int64_t r = rows.from; r < rows.end; r++) {
        float *to = copy + r * p->kernel_x_stride;
        if (layer->bf16_x) {
            layer->isa->round_bf16(p->x + r * p->x_stride, layer->n_in, to);
        } else {
            memcpy(to, p->x + r * p->x_stride, (size_t)layer->n_in * sizeof *to);
        }
    }
}

/* Rows past the last up to a whole unit are zeros, and so is a row from n_in on. */
static void copy_matrix_rows(const plan *p, range rows) {
    const kvl_linear *layer = p->layer;
    size_t row_bytes = (size_t)p->kernel_x_stride * sizeof(uint16_t);
    size_t used_bytes = (size_t)layer->n_in * sizeof(uint16_t);
    for (int64_t r = rows.from; r < rows.end; r++) {
        uint8_t *to = p->copy + (size_t)r * row_bytes;
        if (r >= p->n_rows) {
            memset(to, 0, row_bytes);
            continue;
        }
        layer->isa->to_bf16(p->x + r * p->x_stride, layer->n_in, (uint16_t *)to);
        memset(to + used_bytes, 0, row_bytes - used_bytes);
    }
}

static void few_rows(const plan *p, range panels) {
    const kvl_linear *layer = p->layer;
    kvl_stream_job job = {.panels = layer->panels,
                          .panel_bytes = layer->panel_bytes,
                          .first_panel = panels.from,
                          .end_panel = panels.end,
                          .x = p->kernel_x,
                          .x_stride = p->kernel_x_stride,
                          .n_in = layer->n_in,
                          .n_rows = (int)p->n_rows,
                          .sink = p->sink};
    layer->codec->stream(&job);
}

/* The stored weights of a panel from k on. Where a k has no bytes of its own, about there. */
static const uint8_t *stored_at(const kvl_linear *layer, int64_t panel, int64_t k) {
    int64_t k_bytes = layer->codec->k_bytes;
    if (!k_bytes) k_bytes = (int64_t)layer->panel_bytes / layer->n_in;
    return layer->panels + (uint64_t)panel * layer->panel_bytes + (uint64_t)(k_bytes * k);
}

/* Equal pieces of at most tile_k weights, or twice as many where they stay as stored, in fours: a
 * short last one would cost as many loads and stores of sums as a long one. */
static int64_t piece_of(const kvl_linear *layer) {
    int64_t most = layer->isa->tile_k * (layer->codec->tile ? 2 : 1);
    return parts(parts(layer->n_in, parts(layer->n_in, most)), 4) * 4;
}

/* Some tiles against a group of panels: pieces of n_k weights outermost, so that the piece of x
 * stays in the L2 cache while the panels of the group pass it. sums [panels of the group][rows]
 * [panel]. `after` is the panel that comes after the group. */
static void group_of_panels(const plan *p, kvl_tile_job job, range panels, int64_t after,
                            float *widened, float *sums, const kvl_linear_sink *sink) {
    const kvl_linear *layer = p->layer;
    const kvl_linear_isa *isa = layer->isa;
    int64_t n_in = layer->n_in, step = piece_of(layer);
    int64_t n_rows =
        kvl_tile_row(p->tiling, job.end_tile) - kvl_tile_row(p->tiling, job.first_tile);
    for (; job.k < n_in; job.k += job.n_k) {
        job.n_k = n_in - job.k < step ? n_in - job.k : step;
        bool last_piece = job.k + job.n_k == n_in;
        job.sink = last_piece ? sink : NULL;
        job.resume = job.k > 0;
        for (int64_t i = panels.from; i < panels.end; i++) {
            bool last = i + 1 == panels.end;
            job.o = i * isa->panel;
            job.sums = sums + (i - panels.from) * n_rows * isa->panel;
            int64_t next = !last ? i + 1 : last_piece ? after : panels.from;
            int64_t next_k = !last ? job.k : last_piece ? 0 : job.k + job.n_k;
            job.ahead = (const char *)stored_at(layer, next, next_k);
            job.ahead_bytes = stored_at(layer, 0, job.n_k) - layer->panels;
            if (layer->codec->tile) {
                job.weights = stored_at(layer, i, job.k);
                layer->codec->tile(&job);
            } else {
                job.weights = layer->codec->decode_tile(stored_at(layer, i, 0), n_in, job.k,
                                                        job.n_k, widened);
                isa->tile(&job);
            }
        }
    }
}

static void many_rows(const plan *p, range tiles, range panels) {
    const kvl_linear_isa *isa = p->layer->isa;
    float *widened = (float *)p->area, *sums = widened + (int64_t)isa->tile_k * isa->panel;
    int64_t n_tiles = tiles.end - tiles.from;
    int64_t n_blocks = parts(n_tiles, BLOCK_ROWS / isa->tile_rows);
    int64_t n_panels = panels.end - panels.from, n_groups = parts(n_panels, GROUP_PANELS);
    for (int64_t b = 0; b < n_blocks; b++) {
        range block = share_of(n_tiles, b, n_blocks);
        kvl_tile_job job = {.x = p->kernel_x,
                            .tiling = p->tiling,
                            .first_tile = tiles.from + block.from,
                            .end_tile = tiles.from + block.end};
        kvl_linear_sink sink = p->sink;
        sink.y += kvl_tile_row(p->tiling, job.first_tile) * sink.y_stride;
        for (int64_t g = 0; g < n_groups; g++) {
            range group = share_of(n_panels, g, n_groups);
            group.from += panels.from;
            group.end += panels.from;
            int64_t after = g + 1 < n_groups ? group.end : panels.from;
            group_of_panels(p, job, group, after, widened, sums, &sink);
        }
    }
}

static void matrix_rows(const plan *p, range rows, range panels) {
    const kvl_linear *layer = p->layer;
    kvl_matrix_job job = {.panels = layer->panels,
                          .panel_bytes = layer->panel_bytes,
                          .first_panel = panels.from,
                          .end_panel = panels.end,
                          .x = (const uint16_t *)p->copy + rows.from * p->kernel_x_stride,
                          .x_stride = p->kernel_x_stride,
                          .n_rows = rows.end - rows.from,
                          .n_in = layer->n_in,
                          .sink = p->sink,
                          .scratch = p->area};
    job.sink.y += rows.from * job.sink.y_stride;
    layer->codec->matrix(&job);
}

/* The x that every worker reads, made together. */
static void share_copy(plan *p, kvl_worker *worker) {
    int64_t first, last;
    if (p->path == PATH_TILE) {
        const kvl_linear *layer = p->layer;
        kvl_worker_share(worker, p->tiling.n_tiles, &first, &last);
        layer->isa->pack(p->x, p->x_stride, p->tiling, first, last, layer->bf16_x,
                         (float *)p->copy);
        p->kernel_x = (const float *)p->copy;
    } else {
        kvl_worker_share(worker, (int64_t)align_to((uint64_t)p->n_rows, MATRIX_ROWS), &first,
                         &last);
        copy_matrix_rows(p, (range){first, last});
    }
    kvl_team_barrier(worker);
}

static void own_rows(const plan *p, range rows, range panels) {
    if (p->path == PATH_FEW) {
        few_rows(p, panels);
    } else {
        many_rows(p, rows, panels);
    }
}

/* Panels as they are claimed: two equal shares seldom take equal time, and all wait for the last.
 */
static void claimed_rows(const plan *p, kvl_worker *worker) {
    const int64_t unit = p->path == PATH_FEW ? KVL_STREAM_ROWS : GROUP_PANELS;
    range rows = row_share(p, 0), panels;
    while (kvl_team_claim(worker, p->layer->n_panels, unit, &panels.from, &panels.end))
        own_rows(p, rows, panels);
}

static void run_share(plan *p, kvl_worker *worker) {
    int panel_shares = p->n_workers / p->row_shares, share = worker->index;
    p->kernel_x = p->x;
    if (p->copies_x && p->path != PATH_FEW) share_copy(p, worker);
    bool is_own = p->path == PATH_FEW || p->path == PATH_TILE;
    if (p->path == PATH_FEW && p->copies_x) {
        copy_float_rows(p, (range){0, p->n_rows}, (float *)p->area);
        p->kernel_x = (const float *)p->area;
    }
    if (is_own && p->n_workers > 1 && p->row_shares == 1) {
        claimed_rows(p, worker);
        return;
    }
    if (share >= panel_shares * p->row_shares) return;
    range rows = row_share(p, share / panel_shares);
    range panels = share_of(p->layer->n_panels, share % panel_shares, panel_shares);
    if (is_own) {
        own_rows(p, rows, panels);
    } else {
        matrix_rows(p, rows, panels);
    }
}

/* ---- calls ---------------------------------------------------------------------------------- */

uint64_t kvl_linear_workspace_bytes(const kvl_linear *layer, int64_t n_rows, int n_workers) {
    /* Which path a row count takes is no rising function of it: the largest need of each counts. */
    const int64_t steps[] = {n_rows, KVL_STREAM_ROWS, layer->codec->matrix_rows, ROWS_AT_ONCE};
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        for (int64_t rows = steps[i] - 1; rows <= steps[i]; rows++) {
            if (rows < 1 || rows > n_rows) continue;
            kvl_linear_call call = {.n_rows = rows, .x_stride = 1024};
            plan p = make_plan(layer, &call, 0, n_workers);
            uint64_t bytes;
            if (!kvl_mul_u64(p.worker_bytes, (uint64_t)n_workers, &bytes) ||
                !kvl_add_u64(bytes, p.copy_bytes, &bytes))
                return UINT64_MAX;
            if (bytes > most) most = bytes;
        }
    }
    return most;
}

static kvl_status check_call(const kvl_linear *layer, const kvl_linear_call *call) {
    if (layer->is_set) return kvl_fail(KVL_ERR_INTERNAL, "linear layer: run before finish");
    if (call->n_rows < 0 ||
        (call->n_rows > 1 && (call->x_stride < layer->n_in || call->y_stride < layer->n_out)))
        return kvl_fail(KVL_ERR_INTERNAL,
                        "linear layer %lld x %lld: %lld rows with strides %lld and %lld",
                        (long long)layer->n_out, (long long)layer->n_in, (long long)call->n_rows,
                        (long long)call->x_stride, (long long)call->y_stride);
    return KVL_OK;
}

kvl_status kvl_linear_part(const kvl_linear *layer, const kvl_linear_call *call,
                           kvl_worker *worker) {
    KVL_TRY(check_call(layer, call));
    for (int64_t first = 0; first < call->n_rows; first += ROWS_AT_ONCE) {
        plan p = make_plan(layer, call, first, worker->n);
        if (p.copy_bytes + p.worker_bytes * (uint64_t)worker->n > call->workspace_bytes)
            return kvl_fail(KVL_ERR_INTERNAL, "linear layer: workspace of %llu bytes is too small",
                            (unsigned long long)call->workspace_bytes);
        p.copy = call->workspace;
        p.area = p.copy + p.copy_bytes + p.worker_bytes * (uint64_t)worker->index;
        /* The next rows reuse the copy that others may still read. */
        if (first) kvl_team_barrier(worker);
        run_share(&p, worker);
    }
    return KVL_OK;
}

typedef struct run_context {
    const kvl_linear *layer;
    const kvl_linear_call *call;
    _Atomic int status;
} run_context;

static void run_part(kvl_worker *worker, void *context) {
    run_context *c = context;
    kvl_status status = kvl_linear_part(c->layer, c->call, worker);
    if (status != KVL_OK) atomic_store(&c->status, (int)status);
}

kvl_status kvl_linear_run(const kvl_linear *layer, const float *x, int64_t x_stride, int64_t n_rows,
                          float *y, int64_t y_stride, bool accumulate) {
    kvl_linear_call call = {.x = x,
                            .x_stride = x_stride,
                            .n_rows = n_rows,
                            .y = y,
                            .y_stride = y_stride,
                            .accumulate = accumulate};
    KVL_TRY(check_call(layer, &call));
    int n_workers = kvl_threads();
    if (n_rows == 0) return KVL_OK;
    call.workspace_bytes = kvl_linear_workspace_bytes(layer, n_rows, n_workers);
    if (call.workspace_bytes == UINT64_MAX)
        return kvl_fail(KVL_ERR_OOM, "linear layer: scratch overflows");
    KVL_TRY(arena_reserve(call.workspace_bytes, &call.workspace));
    run_context context = {.layer = layer, .call = &call};
    kvl_team_run(n_workers, run_part, &context, NULL);
    if (context.status != KVL_OK)
        return kvl_fail((kvl_status)context.status, "linear layer: a product failed");
    return KVL_OK;
}
