/* y = x W^T: which kernel, over which threads.
 *
 * Few rows (as many as the registers hold) stream the panels past them. More rows take one panel
 * after another, widen a piece of it to float32 in the L1 cache and run all their rows over it.
 * Either way a sum runs over k = 0, 1, 2, ... with one fused multiply-add each, so neither the
 * path nor the split over threads changes a bit. */
#include <omp.h>
#include <pthread.h>
#include <string.h>

#include "core/checked.h"
#include "core/memory.h"
#include "core/threads.h"
#include "quant/linear_internal.h"

enum {
    ROWS_AT_ONCE = KVL_ONEDNN_MAX_ROWS, /* bounds the scratch; weights are read once for each */
    BLOCK_ROWS = 192,                   /* x 256 floats: under half of a 512 KiB L2 */
    GROUP_PANELS = 8,                   /* sums of a block x 8 panels: another quarter of it */
    ALONE_BELOW = 1 << 15,              /* multiply-adds that do not pay for waking threads */
    COPY_ALONE_BELOW = 1 << 14,         /* values of x that one thread rounds sooner than a team */
};

/* ---- scratch: one block for each thread that calls kvl_linear_run, grown and kept ----------- */

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

typedef struct plan {
    const kvl_linear *layer;
    const float *x;   /* [n_rows][x_stride] as the caller gave it */
    int64_t x_stride; /* elements */
    int64_t n_rows;   /* 1 .. ROWS_AT_ONCE */
    kvl_linear_sink sink;
    bool few, library, copies_x;
    int n_threads, row_shares; /* a grid of row_shares x (n_threads / row_shares) threads */
    int64_t row_unit;          /* shares are whole units of rows */
    uint64_t library_scratch_bytes, thread_bytes;
    /* x as the kernels read it: the caller's, or [n_rows][kernel_x_stride] rounded to bf16 in
     * scratch; for oneDNN [n_rows rounded up][n_in] of the weights' type. */
    const float *kernel_x;
    int64_t kernel_x_stride;
    void *copy;
    uint8_t *thread_areas; /* [n_threads][thread_bytes] */
    kvl_status status;     /* of oneDNN's products */
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

static range row_share(const plan *p, int share) {
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
    if (p->few) return 1;
    for (int shares = 1; shares <= p->n_threads && shares <= n_units; shares++) {
        int64_t cost = parts(n_units, shares) * parts(p->layer->n_panels, p->n_threads / shares);
        if (cost < best_cost) {
            best_cost = cost;
            best = shares;
        }
    }
    return best;
}

/* True when oneDNN has a primitive for every share; p->library_scratch_bytes is then the largest
 * need. */
static bool library_ready(plan *p) {
    p->library_scratch_bytes = 0;
    for (int i = 0; i < p->row_shares; i++) {
        range r = row_share(p, i);
        uint64_t bytes;
        if (kvl_onednn_prepare(p->layer->onednn, r.end - r.from, &bytes) != KVL_OK) return false;
        if (bytes > p->library_scratch_bytes) p->library_scratch_bytes = bytes;
    }
    return true;
}

static void choose_path(plan *p) {
    const kvl_linear *layer = p->layer;
    double macs = (double)p->n_rows * (double)layer->n_out * (double)layer->n_in;
    p->n_threads = macs < ALONE_BELOW ? 1 : kvl_threads();
    if (layer->onednn && p->n_rows >= KVL_LINEAR_ONEDNN_FROM) {
        p->row_unit = KVL_ONEDNN_ROWS;
        p->row_shares = choose_row_shares(p);
        p->library = library_ready(p);
        p->copies_x = true;
        if (p->library) return;
    }
    p->few = layer->codec->stream && p->n_rows <= KVL_STREAM_ROWS;
    p->row_unit = layer->isa->tile_rows;
    p->row_shares = choose_row_shares(p);
    /* Rows a multiple of 1 KiB apart crowd into a few sets of the caches. */
    p->copies_x = layer->bf16_x || (!p->few && p->x_stride % (1024 / (int)sizeof *p->x) == 0);
}

static uint64_t align64(uint64_t bytes) {
    return (bytes + 63) & ~(uint64_t)63;
}

/* Sizes are bounded: at most ROWS_AT_ONCE rows of a layer whose own bytes fitted 64 bits. */
static kvl_status reserve_scratch(plan *p) {
    const kvl_linear *layer = p->layer;
    uint64_t panel = (uint64_t)layer->isa->panel, copy_bytes = 0;
    uint64_t rows = (uint64_t)parts(p->n_rows, KVL_ONEDNN_ROWS) * KVL_ONEDNN_ROWS;
    p->kernel_x = p->x;
    p->kernel_x_stride = p->x_stride;
    p->thread_bytes =
        (p->library ? rows : (uint64_t)BLOCK_ROWS * GROUP_PANELS) * panel * sizeof(float);
    if (p->library) {
        copy_bytes = rows * (uint64_t)layer->n_in * kvl_dtype_bytes(layer->codec->format.dtype);
        p->thread_bytes += align64(p->library_scratch_bytes);
    } else if (p->copies_x) {
        p->kernel_x_stride = parts(layer->n_in, 16) * 16 + 16;
        copy_bytes = (uint64_t)p->n_rows * (uint64_t)p->kernel_x_stride * sizeof(float);
    }
    p->thread_bytes += (uint64_t)layer->isa->tile_k * panel * sizeof(float);
    /* A page apart, so that threads share no cache line nor page. */
    p->thread_bytes = (p->thread_bytes + 4095) & ~(uint64_t)4095;
    void *base;
    uint64_t total;
    if (!kvl_mul_u64(p->thread_bytes, (uint64_t)p->n_threads, &total) ||
        !kvl_add_u64(total, align64(copy_bytes), &total))
        return kvl_fail(KVL_ERR_OOM, "linear layer: scratch overflows");
    KVL_TRY(arena_reserve(total, &base));
    p->thread_areas = base;
    p->copy = p->thread_areas + p->thread_bytes * (uint64_t)p->n_threads;
    if (copy_bytes && !p->library) p->kernel_x = p->copy;
    return KVL_OK;
}

/* ---- what a thread does --------------------------------------------------------------------- */

static void copy_rows(const plan *p, range rows) {
    const kvl_linear *layer = p->layer;
    size_t n_in = (size_t)layer->n_in;
    for (int64_t r = rows.from; r < rows.end; r++) {
        const float *x = p->x + r * p->x_stride;
        if (!p->library && !layer->bf16_x) {
            memcpy((float *)p->copy + r * p->kernel_x_stride, x, n_in * sizeof *x);
        } else if (!p->library) {
            layer->isa->round_bf16(x, layer->n_in, (float *)p->copy + r * p->kernel_x_stride);
        } else if (layer->codec->format.dtype == KVL_BF16) {
            layer->isa->to_bf16(x, layer->n_in, (uint16_t *)p->copy + (size_t)r * n_in);
        } else {
            memcpy((float *)p->copy + (size_t)r * n_in, x, n_in * sizeof *x);
        }
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

/* Stored weights k .. k + n_k of a panel, as bytes to prefetch. */
static void look_ahead(const kvl_linear *layer, int64_t panel, int64_t k, int64_t n_k,
                       kvl_tile_job *job) {
    int64_t bytes = (int64_t)layer->panel_bytes, n_in = layer->n_in;
    job->ahead = (const char *)layer->panels + panel * bytes + bytes / n_in * k;
    job->ahead_bytes = bytes / n_in * n_k;
}

/* Equal pieces of at most tile_k weights, in fours: a short last one would cost as many loads and
 * stores of sums as a long one. */
static int64_t piece_of(int64_t n_in, int64_t tile_k) {
    return parts(parts(n_in, parts(n_in, tile_k)), 4) * 4;
}

/* Some rows against a group of panels: pieces of n_k weights outermost, so that the piece of x
 * stays in the L2 cache while the panels of the group pass it. sums [panels of the group][n_rows]
 * [panel]. */
static void group_of_panels(const plan *p, kvl_tile_job job, range panels, float *widened,
                            float *sums, const kvl_linear_sink *sink) {
    const kvl_linear *layer = p->layer;
    const kvl_linear_isa *isa = layer->isa;
    const float *x = job.x;
    int64_t n_in = layer->n_in, group_floats = job.n_rows * isa->panel;
    int64_t step = piece_of(n_in, isa->tile_k);
    for (int64_t k = 0; k < n_in; k += step) {
        job.n_k = n_in - k < step ? n_in - k : step;
        job.sink = k + job.n_k == n_in ? sink : NULL;
        job.resume = k > 0;
        job.x = x + k;
        for (int64_t i = panels.from; i < panels.end; i++) {
            const void *panel = layer->panels + (uint64_t)i * layer->panel_bytes;
            job.weights = layer->codec->decode_tile(panel, n_in, k, job.n_k, widened);
            job.o = i * isa->panel;
            job.sums = sums + (i - panels.from) * group_floats;
            bool last = i + 1 == panels.end;
            look_ahead(layer, last ? panels.from : i + 1, last ? k + job.n_k : k, job.n_k, &job);
            isa->tile(&job);
        }
    }
}

static void many_rows(const plan *p, range rows, range panels, float *area) {
    const kvl_linear_isa *isa = p->layer->isa;
    float *widened = area, *sums = area + (int64_t)isa->tile_k * isa->panel;
    int64_t n_rows = rows.end - rows.from, n_blocks = parts(n_rows, BLOCK_ROWS);
    int64_t n_panels = panels.end - panels.from, n_groups = parts(n_panels, GROUP_PANELS);
    for (int64_t b = 0; b < n_blocks; b++) {
        range block = share_of(n_rows, b, n_blocks);
        int64_t first = rows.from + block.from;
        kvl_tile_job job = {.x = p->kernel_x + first * p->kernel_x_stride,
                            .x_stride = p->kernel_x_stride,
                            .n_rows = block.end - block.from};
        kvl_linear_sink sink = p->sink;
        sink.y += first * sink.y_stride;
        for (int64_t g = 0; g < n_groups; g++) {
            range group = share_of(n_panels, g, n_groups);
            group.from += panels.from;
            group.end += panels.from;
            group_of_panels(p, job, group, widened, sums, &sink);
        }
    }
}

static kvl_status library_rows(const plan *p, range rows, range panels, uint8_t *area) {
    const kvl_linear *layer = p->layer;
    uint64_t row_bytes = (uint64_t)layer->n_in * kvl_dtype_bytes(layer->codec->format.dtype);
    const uint8_t *x = (const uint8_t *)p->copy + (uint64_t)rows.from * row_bytes;
    float *sums = (float *)(area + align64(p->library_scratch_bytes));
    kvl_linear_sink sink = p->sink;
    sink.y += rows.from * sink.y_stride;
    for (int64_t i = panels.from; i < panels.end; i++) {
        KVL_TRY(kvl_onednn_run(layer->onednn, rows.end - rows.from, x,
                               layer->panels + (uint64_t)i * layer->panel_bytes, sums, area));
        layer->isa->store(sums, layer->isa->panel, rows.end - rows.from, i * layer->isa->panel,
                          &sink);
    }
    return KVL_OK;
}

static void thread_share(plan *p, int thread) {
    int panel_shares = p->n_threads / p->row_shares;
    if (thread >= panel_shares * p->row_shares) return;
    range rows = row_share(p, thread / panel_shares);
    range panels = share_of(p->layer->n_panels, thread % panel_shares, panel_shares);
    uint8_t *area = p->thread_areas + (uint64_t)thread * p->thread_bytes;
    if (p->library) {
        kvl_status status = library_rows(p, rows, panels, area);
        if (status != KVL_OK) {
#pragma omp atomic write
            p->status = status;
        }
    } else if (p->few) {
        few_rows(p, panels);
    } else {
        many_rows(p, rows, panels, (float *)area);
    }
}

static kvl_status run_rows(plan *p) {
    choose_path(p);
    KVL_TRY(reserve_scratch(p));
    bool together = p->copies_x && p->n_rows * p->layer->n_in >= COPY_ALONE_BELOW;
    if (p->copies_x && !together) copy_rows(p, (range){0, p->n_rows});
#pragma omp parallel num_threads(p->n_threads)
    {
        /* Fewer threads than asked for (a nested call) take several shares each. */
        int thread = omp_get_thread_num(), n = omp_get_num_threads();
        if (together) {
            copy_rows(p, share_of(p->n_rows, thread, n));
#pragma omp barrier
        }
        for (int i = thread; i < p->n_threads; i += n) thread_share(p, i);
    }
    if (p->status != KVL_OK) return kvl_fail(p->status, "linear layer: oneDNN failed in a product");
    return KVL_OK;
}

kvl_status kvl_linear_run(const kvl_linear *layer, const float *x, int64_t x_stride, int64_t n_rows,
                          float *y, int64_t y_stride, bool accumulate) {
    if (layer->is_set) return kvl_fail(KVL_ERR_INTERNAL, "linear layer: run before finish");
    if (n_rows < 0 || (n_rows > 1 && (x_stride < layer->n_in || y_stride < layer->n_out)))
        return kvl_fail(KVL_ERR_INTERNAL,
                        "linear layer %lld x %lld: %lld rows with strides %lld and %lld",
                        (long long)layer->n_out, (long long)layer->n_in, (long long)n_rows,
                        (long long)x_stride, (long long)y_stride);
    for (int64_t r = 0; r < n_rows; r += ROWS_AT_ONCE) {
        plan p = {.layer = layer,
                  .x = x + r * x_stride,
                  .x_stride = x_stride,
                  .n_rows = n_rows - r < ROWS_AT_ONCE ? n_rows - r : ROWS_AT_ONCE,
                  .sink = {.y = y + r * y_stride,
                           .y_stride = y_stride,
                           .n_out = layer->n_out,
                           .bias = layer->bias,
                           .accumulate = accumulate}};
        KVL_TRY(run_rows(&p));
    }
    return KVL_OK;
}
