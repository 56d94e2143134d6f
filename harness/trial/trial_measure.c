#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/threads.h"
#include "decoder/sampler.h"
#include "harness/trial/steady.h"
#include "harness/trial/trial.h"

/* A trial repeats prefill and decode until it has measured for a second, so that short ones are not
 * a single sample; long ones run once and rounds repeat them. */
enum { MAX_PASSES = 5, MAX_WARMUP_STEPS = 64 };
static const double MEASURE_NS = 1e9, WARMUP_NS = 3e9;

typedef struct bench {
    kvl_engine *engine;
    const kvl_trial_spec_values *spec;
    const int32_t *prompts; /* [batch][n_prompt] */
    int64_t n_prompt;       /* tokens of a prompt; 1 with a synthetic fill */
    int64_t vocab;
    kvl_seq *seqs;        /* [batch] */
    int64_t *found;       /* [batch] tokens of the prompt that are in the prefix cache */
    int32_t *next;        /* [batch] tokens to feed */
    kvl_step_item *items; /* [batch] */
    float *logits;        /* [batch][vocab] */
    kvl_trial_times *times;
} bench;

static double ns_since(uint64_t start) {
    return (double)(kvl_now_ns() - start);
}

static void pick_tokens(bench *b) {
    const int64_t n = b->spec->batch;
#pragma omp parallel for num_threads(kvl_threads()) schedule(static) if (n > 1)
    for (int64_t s = 0; s < n; s++) {
        int32_t best = kvl_argmax(b->logits + s * b->vocab, (int32_t)b->vocab);
        b->next[s] = best < 0 ? 0 : best; /* NaN: the trial ends as a mismatch */
    }
}

static void check_logits(bench *b) {
    for (int64_t i = 0; i < b->spec->batch * b->vocab; i++)
        b->times->nonfinite += !isfinite(b->logits[i]);
}

static kvl_status add_sequences(bench *b) {
    int64_t start = b->spec->context ? b->spec->context : b->spec->prompt;
    for (int64_t s = 0; s < b->spec->batch; s++) {
        if (b->spec->prefix_cache)
            KVL_TRY(kvl_engine_admit(b->engine, b->prompts + s * b->n_prompt, start,
                                     b->spec->output, false, &b->seqs[s], &b->found[s]));
        else
            KVL_TRY(kvl_engine_add(b->engine, start, b->spec->output, &b->seqs[s]));
    }
    return KVL_OK;
}

static kvl_status remove_sequences(bench *b) {
    for (int64_t s = 0; s < b->spec->batch; s++) KVL_TRY(kvl_engine_remove(b->engine, b->seqs[s]));
    return KVL_OK;
}

/* The first n tokens of every prompt in one step, without those found in the prefix cache (fewer
 * than n: it is only asked with the whole prompt); the first tokens after it are picked. */
static kvl_status prefill(bench *b, int64_t n) {
    for (int64_t s = 0; s < b->spec->batch; s++)
        b->items[s] = (kvl_step_item){b->seqs[s], b->prompts + s * b->n_prompt + b->found[s],
                                      (int32_t)(n - b->found[s]), 1};
    KVL_TRY(kvl_engine_step(b->engine, b->items, (int32_t)b->spec->batch, b->logits));
    pick_tokens(b);
    return KVL_OK;
}

static kvl_status decode_step(bench *b) {
    for (int64_t s = 0; s < b->spec->batch; s++)
        b->items[s] = (kvl_step_item){b->seqs[s], &b->next[s], 1, 1};
    KVL_TRY(kvl_engine_step(b->engine, b->items, (int32_t)b->spec->batch, b->logits));
    pick_tokens(b);
    return KVL_OK;
}

/* Touches weights, workspace and kernels at the shapes of the trial: the prompt, or one engine step
 * of it when it is long, then decode steps until they are steady. With a prefix cache the whole
 * prompt, so that every pass finds the same. */
static kvl_status warm_up(bench *b) {
    kvl_trial_times *times = b->times;
    int64_t chunk = b->spec->chunk ? b->spec->chunk : kvl_engine_defaults().max_batch_tokens;
    int64_t n = b->n_prompt;
    if (!b->spec->prefix_cache && n * b->spec->batch > chunk)
        n = (chunk + b->spec->batch - 1) / b->spec->batch;
    if (n > b->n_prompt) n = b->n_prompt;
    uint64_t start = kvl_now_ns();
    KVL_TRY(add_sequences(b));
    KVL_TRY(prefill(b, n));
    times->warmup_prefill_ns = ns_since(start);
    uint64_t steps_start = kvl_now_ns();
    int64_t most = b->spec->output - 1 < MAX_WARMUP_STEPS ? b->spec->output - 1 : MAX_WARMUP_STEPS;
    while ((int64_t)times->n_warmup_steps < most && ns_since(steps_start) < WARMUP_NS &&
           !times->warmup_steady) {
        uint64_t step = kvl_now_ns();
        KVL_TRY(decode_step(b));
        times->warmup_step_ns[times->n_warmup_steps++] = ns_since(step);
        times->warmup_steady = kvl_is_steady(times->warmup_step_ns, times->n_warmup_steps);
    }
    KVL_TRY(remove_sequences(b));
    times->warmup_ns = ns_since(start);
    return KVL_OK;
}

kvl_status kvl_trial_add_saturated(const kvl_engine *engine, kvl_trial_times *times) {
    const kvl_config *c = kvl_engine_config(engine);
    const size_t n = (size_t)c->n_layers * 2 * (size_t)c->n_kv_heads;
    if (!times->saturated) times->saturated = calloc(n, sizeof *times->saturated);
    if (!times->saturated) return kvl_fail(KVL_ERR_OOM, "out of memory");
    for (size_t i = 0; i < n; i++) times->saturated[i] += kvl_engine_saturated(engine)[i];
    return KVL_OK;
}

static kvl_status add_stats(kvl_engine *engine, kvl_trial_times *times, kvl_engine_stats *sum) {
    kvl_engine_stats s;
    kvl_engine_stats_get(engine, &s);
    KVL_TRY(kvl_trial_add_saturated(engine, times));
    sum->cast_elements += s.cast_elements;
    sum->widened_elements += s.widened_elements;
    sum->attention_ns += s.attention_ns;
    sum->matmul_ns += s.matmul_ns;
    sum->other_ns += s.other_ns;
    sum->idle_ns += s.idle_ns;
    sum->steps += s.steps;
    sum->tokens += s.tokens;
    sum->read_bytes += s.read_bytes;
    sum->flops += s.flops;
    sum->kv_saturated += s.kv_saturated;
    kvl_engine_stats_reset(engine);
    return KVL_OK;
}

/* K and V bytes that attention reads in the step that is about to run. */
static double bytes_scanned(const bench *b) {
    const kvl_config *config = kvl_engine_config(b->engine);
    kvl_engine_memory memory;
    kvl_engine_memory_get(b->engine, &memory);
    int64_t length = kvl_engine_length(b->engine, b->seqs[0]) + 1;
    if (config->sliding_window && length > config->sliding_window) length = config->sliding_window;
    return (double)b->spec->batch * (double)length * (double)memory.kv_bytes_per_token;
}

static kvl_status decode(bench *b, int64_t n_steps) {
    kvl_trial_times *times = b->times;
    double scanned = 0;
    kvl_engine_stats_reset(b->engine);
    uint64_t start = kvl_now_ns(), previous = start;
    for (int64_t i = 0; i < n_steps; i++) {
        scanned += bytes_scanned(b);
        KVL_TRY(decode_step(b));
        uint64_t now = kvl_now_ns();
        times->step_ns[times->n_steps++] = (double)(now - previous);
        previous = now;
    }
    double spent = (double)(previous - start);
    times->decode_ns[times->n_passes] = spent;
    times->decode_ns_sum += spent;
    if (n_steps) times->kv_bytes_scanned = scanned / (double)n_steps;
    KVL_TRY(add_stats(b->engine, times, &times->decode));
    check_logits(b);
    return KVL_OK;
}

static kvl_status one_pass(bench *b) {
    kvl_trial_times *times = b->times;
    const kvl_trial_spec_values *spec = b->spec;
    KVL_TRY(add_sequences(b));
    kvl_engine_stats_reset(b->engine);
    if (spec->context) {
        for (int64_t s = 0; s < spec->batch; s++) {
            KVL_TRY(kvl_engine_fill_synthetic(b->engine, b->seqs[s], spec->context,
                                              spec->seed + (uint64_t)s));
            b->next[s] = b->prompts[s];
        }
        KVL_TRY(decode(b, spec->output));
    } else {
        for (int64_t s = 0; s < spec->batch; s++) times->found_tokens += b->found[s];
        uint64_t start = kvl_now_ns();
        KVL_TRY(prefill(b, spec->prompt));
        times->ttft_ns[times->n_passes] = ns_since(start);
        times->prefill_ns_sum += times->ttft_ns[times->n_passes];
        KVL_TRY(add_stats(b->engine, times, &times->prefill));
        check_logits(b);
        KVL_TRY(decode(b, spec->output - 1));
    }
    kvl_engine_memory_get(b->engine, &times->memory);
    times->rss_steady_bytes = kvl_rss_bytes();
    times->n_passes++;
    return remove_sequences(b);
}

static kvl_status make_bench(bench *b) {
    const kvl_trial_spec_values *spec = b->spec;
    size_t n = (size_t)spec->batch, steps = (size_t)spec->output * MAX_PASSES;
    kvl_trial_times *times = b->times;
    b->seqs = calloc(n, sizeof *b->seqs);
    b->found = calloc(n, sizeof *b->found);
    b->next = calloc(n, sizeof *b->next);
    b->items = calloc(n, sizeof *b->items);
    b->logits = malloc(n * (size_t)b->vocab * sizeof *b->logits);
    times->ttft_ns = calloc(MAX_PASSES, sizeof *times->ttft_ns);
    times->decode_ns = calloc(MAX_PASSES, sizeof *times->decode_ns);
    times->step_ns = calloc(steps, sizeof *times->step_ns);
    times->warmup_step_ns = calloc(MAX_WARMUP_STEPS, sizeof *times->warmup_step_ns);
    if (!b->seqs || !b->found || !b->next || !b->items || !b->logits || !times->ttft_ns ||
        !times->decode_ns || !times->step_ns || !times->warmup_step_ns)
        return kvl_fail(KVL_ERR_OOM, "out of memory for the logits of %zu sequences", n);
    return KVL_OK;
}

kvl_status kvl_trial_measure(kvl_engine *engine, const kvl_trial_spec_values *spec,
                             const int32_t *prompts, kvl_trial_times *times) {
    memset(times, 0, sizeof *times);
    bench b = {.engine = engine,
               .spec = spec,
               .prompts = prompts,
               .n_prompt = spec->context ? 1 : spec->prompt,
               .vocab = kvl_engine_config(engine)->vocab_size,
               .times = times};
    kvl_status status = make_bench(&b);
    if (status == KVL_OK) status = warm_up(&b);
    uint64_t start = kvl_now_ns();
    /* A synthetic fill costs more than the steps it serves: one pass. */
    size_t most = spec->context ? 1 : MAX_PASSES;
    do {
        if (status == KVL_OK) status = one_pass(&b);
    } while (status == KVL_OK && times->n_passes < most && ns_since(start) < MEASURE_NS);
    free(b.seqs);
    free(b.found);
    free(b.next);
    free(b.items);
    free(b.logits);
    return status;
}

void kvl_trial_times_free(kvl_trial_times *times) {
    free(times->ttft_ns);
    free(times->decode_ns);
    free(times->step_ns);
    free(times->warmup_step_ns);
    free(times->saturated);
    memset(times, 0, sizeof *times);
}
