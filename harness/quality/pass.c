#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/clock.h"
#include "core/memory.h"
#include "harness/quality/quality.h"

enum { DECODE_STEPS = 32, WARMUP_TOKENS = 128 };

typedef struct buffers {
    float *measured, *reference; /* [chunk][vocab] logits */
    int64_t vocab;
} buffers;

kvl_status kvl_quality_reference(const kvl_model *model, int64_t n_tokens, int64_t chunk,
                                 kvl_engine **out) {
    kvl_engine_options options = kvl_engine_defaults();
    options.kv_dtype = options.weights = options.compute_dtype = "f32";
    options.max_seq_tokens = n_tokens;
    options.max_batch_tokens = (int32_t)chunk;
    options.deterministic = true;
    kvl_status status = kvl_engine_create(model, &options, NULL, NULL, out);
    return status == KVL_OK ? KVL_OK : kvl_fail_prefix(status, "the float32 reference");
}

static double ns_since(uint64_t start) {
    return (double)(kvl_now_ns() - start);
}

static kvl_status step(kvl_engine *engine, kvl_seq seq, const int32_t *ids, int64_t n,
                       float *logits) {
    kvl_step_item item = {.seq = seq, .ids = ids, .n_ids = (int32_t)n, .n_logits = (int32_t)n};
    return kvl_engine_step(engine, &item, 1, logits);
}

/* Touches weights, workspace and kernels, so that the first chunk is not slower than the others. */
static kvl_status warm_up(kvl_quality_pass *p, const buffers *b) {
    int64_t n = p->n_tokens - 1 < WARMUP_TOKENS ? p->n_tokens - 1 : WARMUP_TOKENS;
    if (n > p->chunk) n = p->chunk;
    kvl_seq seq;
    uint64_t start = kvl_now_ns();
    KVL_TRY(kvl_engine_add(p->measured, n, 0, &seq));
    kvl_status status = step(p->measured, seq, p->ids, n, b->measured);
    kvl_engine_remove(p->measured, seq);
    p->times.warmup_ns = ns_since(start);
    return status;
}

static kvl_status score_text(kvl_quality_pass *p, const buffers *b, kvl_seq measured,
                             kvl_seq reference) {
    double spent_ns = 0;
    kvl_engine_stats_reset(p->measured);
    for (int64_t at = 0; at < p->n_tokens - 1;) {
        int64_t n = p->n_tokens - 1 - at < p->chunk ? p->n_tokens - 1 - at : p->chunk;
        uint64_t start = kvl_now_ns();
        KVL_TRY(step(p->measured, measured, p->ids + at, n, b->measured));
        spent_ns += ns_since(start);
        KVL_TRY(step(p->reference, reference, p->ids + at, n, b->reference));
        kvl_quality_score(b->measured, b->reference, n, (int32_t)b->vocab, p->ids + at + 1,
                          p->tokens + at);
        at += n;
    }
    p->times.ttft_ns[0] = p->times.prefill_ns_sum = spent_ns;
    kvl_engine_stats_get(p->measured, &p->times.prefill);
    return kvl_trial_add_saturated(p->measured, &p->times);
}

/* Speed of decode at the text's full length: its end is taken off the cache and put back. */
static kvl_status decode(kvl_quality_pass *p, const buffers *b, kvl_seq seq) {
    kvl_trial_times *times = &p->times;
    kvl_engine_memory memory;
    int64_t length = p->n_tokens - 1, n = length < DECODE_STEPS ? length : DECODE_STEPS;
    kvl_engine_memory_get(p->measured, &memory);
    KVL_TRY(kvl_engine_truncate(p->measured, seq, length - n));
    kvl_engine_stats_reset(p->measured);
    uint64_t start = kvl_now_ns(), previous = start;
    for (int64_t i = length - n; i < length; i++) {
        KVL_TRY(step(p->measured, seq, p->ids + i, 1, b->measured));
        uint64_t now = kvl_now_ns();
        times->step_ns[times->n_steps++] = (double)(now - previous);
        int32_t window = kvl_engine_config(p->measured)->sliding_window;
        double seen = (double)(window && i + 1 > window ? window : i + 1);
        times->kv_bytes_scanned += seen * (double)memory.kv_bytes_per_token / (double)n;
        previous = now;
    }
    times->decode_ns[0] = times->decode_ns_sum = (double)(previous - start);
    kvl_engine_stats_get(p->measured, &times->decode);
    times->decode.kv_saturated = 0; /* these tokens were counted when the text was scored */
    return KVL_OK;
}

static kvl_status run(kvl_quality_pass *p, const buffers *b) {
    kvl_seq measured, reference;
    KVL_TRY(warm_up(p, b));
    KVL_TRY(kvl_engine_add(p->measured, p->n_tokens - 1, 0, &measured));
    kvl_status status = kvl_engine_add(p->reference, p->n_tokens - 1, 0, &reference);
    if (status == KVL_OK) {
        status = score_text(p, b, measured, reference);
        kvl_engine_remove(p->reference, reference);
    }
    if (status == KVL_OK) status = decode(p, b, measured);
    kvl_engine_memory_get(p->measured, &p->times.memory);
    kvl_engine_remove(p->measured, measured);
    p->times.n_passes = 1;
    for (int64_t i = 0; status == KVL_OK && i < p->n_tokens - 1; i++)
        p->times.nonfinite += !isfinite(p->tokens[i].nll) || !isfinite(p->tokens[i].nll_f32) ||
                              !isfinite(p->tokens[i].kld);
    return status;
}

kvl_status kvl_quality_pass_run(kvl_quality_pass *p) {
    buffers b = {.vocab = kvl_engine_config(p->measured)->vocab_size};
    uint64_t bytes = sizeof(float);
    memset(&p->times, 0, sizeof p->times);
    if (p->n_tokens < 2 || p->chunk < 1 || p->chunk > INT32_MAX || p->n_tokens > INT32_MAX)
        return kvl_fail(KVL_ERR_INPUT, "quality of %lld tokens in chunks of %lld: at least 2 and 1",
                        (long long)p->n_tokens, (long long)p->chunk);
    if (kvl_engine_config(p->reference)->vocab_size != b.vocab)
        return kvl_fail(KVL_ERR_INPUT, "measured and reference model differ in vocabulary");
    int64_t rows = p->chunk < p->n_tokens ? p->chunk : p->n_tokens;
    if (!kvl_mul_u64(bytes, (uint64_t)rows, &bytes) ||
        !kvl_mul_u64(bytes, (uint64_t)b.vocab, &bytes) || bytes > SIZE_MAX / 2)
        return kvl_fail(KVL_ERR_INPUT, "logits of %lld tokens overflow", (long long)rows);
    b.measured = malloc(bytes);
    b.reference = malloc(bytes);
    p->times.ttft_ns = calloc(1, sizeof(double));
    p->times.decode_ns = calloc(1, sizeof(double));
    p->times.step_ns = calloc(DECODE_STEPS, sizeof(double));
    kvl_status status = KVL_OK;
    if (!b.measured || !b.reference || !p->times.ttft_ns || !p->times.decode_ns ||
        !p->times.step_ns)
        status =
            kvl_fail(KVL_ERR_OOM, "out of memory for the logits of %lld tokens", (long long)rows);
    if (status == KVL_OK) status = run(p, &b);
    free(b.measured);
    free(b.reference);
    return status;
}
