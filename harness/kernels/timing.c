#include "harness/kernels/timing.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "harness/trial/steady.h"

enum { MIN_CALLS = 5, MAX_CALLS = 4096 };
static const double MEASURE_NS = 0.5e9, WARMUP_NS = 1e9;

static kvl_status one_call(const kvl_timed *timed, int64_t index, kvl_timings *out, double *ns) {
    if (timed->prepare) timed->prepare(timed->context, index);
    uint64_t start = kvl_now_ns();
    KVL_TRY(timed->call(timed->context));
    *ns = (double)(kvl_now_ns() - start);
    if (timed->is_right && !timed->is_right(timed->context)) out->wrong = true;
    return KVL_OK;
}

/* The array of the measured calls holds those of the warm-up first. */
static kvl_status warm_up(const kvl_timed *timed, kvl_timings *out) {
    uint64_t start = kvl_now_ns();
    do {
        KVL_TRY(one_call(timed, (int64_t)out->n_warmup, out, &out->ns[out->n_warmup]));
        out->n_warmup++;
        out->warmup_ns = (double)(kvl_now_ns() - start);
    } while (!out->wrong && !kvl_is_steady(out->ns, out->n_warmup) && out->n_warmup < MAX_CALLS &&
             out->warmup_ns < WARMUP_NS);
    return KVL_OK;
}

kvl_status kvl_time_calls(const kvl_timed *timed, kvl_timings *out) {
    memset(out, 0, sizeof *out);
    out->ns = calloc(MAX_CALLS, sizeof *out->ns);
    if (!out->ns) return kvl_fail(KVL_ERR_OOM, "out of memory");
    kvl_status status = warm_up(timed, out);
    double sum = 0;
    while (status == KVL_OK && !out->wrong && out->n < MAX_CALLS &&
           (out->n < MIN_CALLS || sum < MEASURE_NS)) {
        status = one_call(timed, (int64_t)(out->n_warmup + out->n), out, &out->ns[out->n]);
        sum += out->ns[out->n++];
    }
    if (status != KVL_OK) kvl_timings_free(out);
    return status;
}

void kvl_timings_free(kvl_timings *timings) {
    free(timings->ns);
    memset(timings, 0, sizeof *timings);
}
