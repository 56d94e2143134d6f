/* A step: checked as a whole, appended as a whole, then run in chunks of max_batch_tokens rows. */
#include <string.h>

#include "core/clock.h"
#include "decoder/engine_internal.h"

/* ---- refusal before anything is written ---------------------------------------------------- */

static kvl_status check_ids(const kvl_engine *engine, const kvl_step_item *item) {
    int32_t vocab = engine->model->config.vocab_size;
    for (int32_t i = 0; i < item->n_ids; i++) {
        if (item->ids[i] < 0 || item->ids[i] >= vocab)
            return kvl_fail(KVL_ERR_INPUT, "token %d of sequence %d: id %d, the vocabulary has %d",
                            i, item->seq, item->ids[i], vocab);
    }
    return KVL_OK;
}

static kvl_status check_item(kvl_engine *engine, const kvl_step_item *item) {
    int64_t length = kvl_engine_length(engine, item->seq);
    int64_t limit = engine->cache.config.max_seq_tokens;
    if (length < 0) return kvl_fail(KVL_ERR_INPUT, "sequence %d is not alive", item->seq);
    if (engine->seen[item->seq])
        return kvl_fail(KVL_ERR_INPUT, "sequence %d stands twice in one step", item->seq);
    engine->seen[item->seq] = 1;
    if (item->n_ids < 1 || !item->ids)
        return kvl_fail(KVL_ERR_INPUT, "sequence %d: %d new tokens: at least 1", item->seq,
                        item->n_ids);
    if (item->n_logits < 0 || item->n_logits > item->n_ids)
        return kvl_fail(KVL_ERR_INPUT, "sequence %d: logits of %d of %d new tokens", item->seq,
                        item->n_logits, item->n_ids);
    if (item->n_ids > limit - length)
        return kvl_fail(KVL_ERR_INPUT, "sequence %d: %lld tokens + %d new: at most %lld", item->seq,
                        (long long)length, item->n_ids, (long long)limit);
    return check_ids(engine, item);
}

static kvl_status check_items(kvl_engine *engine, const kvl_step_item *items, int32_t n_items,
                              const float *logits) {
    int32_t max_seqs = engine->cache.config.max_seqs;
    if (n_items < 0 || n_items > max_seqs)
        return kvl_fail(KVL_ERR_INPUT, "step of %d sequences: at most %d", n_items, max_seqs);
    memset(engine->seen, 0, (size_t)max_seqs);
    int64_t tokens = 0;
    for (int32_t i = 0; i < n_items; i++) {
        KVL_TRY(check_item(engine, &items[i]));
        tokens += items[i].n_ids;
        if (tokens > INT32_MAX)
            return kvl_fail(KVL_ERR_INPUT, "step of more than %d tokens", INT32_MAX);
        if (items[i].n_logits && !logits)
            return kvl_fail(KVL_ERR_INPUT, "logits asked for, but no place for them given");
    }
    return KVL_OK;
}

/* ---- slots --------------------------------------------------------------------------------- */

/* Cuts the first n_items items back to their lengths before the step. The first failure is the one
 * to tell, so its message is not touched unless a cut fails too, which would be a defect. */
static void roll_back(kvl_engine *engine, const kvl_step_item *items, int32_t n_items) {
    kvl_kv_cache *cache = &engine->cache;
    for (int32_t i = 0; i < n_items; i++) {
        if (kvl_engine_length(engine, items[i].seq) <= engine->old_lens[i]) continue;
        cache->allocator->truncate(cache->state, items[i].seq, engine->old_lens[i]);
        kvl_engine_forget(engine, items[i].seq);
    }
}

static kvl_status append_items(kvl_engine *engine, const kvl_step_item *items, int32_t n_items) {
    for (int32_t i = 0; i < n_items; i++) {
        engine->old_lens[i] = kvl_engine_length(engine, items[i].seq);
        kvl_status status = kvl_kv_cache_append(&engine->cache, items[i].seq, items[i].n_ids);
        if (status != KVL_OK) {
            roll_back(engine, items, i + 1);
            return status;
        }
    }
    return KVL_OK;
}

/* Tells the prefix cache the ids of tokens that lie past the prompt. */
static kvl_status learn(kvl_engine *engine, const kvl_step_item *item) {
    const kvl_kv_cache *cache = &engine->cache;
    int64_t length = kvl_engine_length(engine, item->seq), known = engine->known[item->seq];
    /* Ids that were never given (kvl_engine_add, a synthetic fill) leave a gap for good. */
    if (cache->config.prefix == KVL_PREFIX_OFF || known >= length || known < length - item->n_ids)
        return KVL_OK;
    const int32_t *ids = item->ids + (item->n_ids - (length - known));
    KVL_TRY(cache->allocator->learn(cache->state, item->seq, ids, length - known));
    engine->known[item->seq] = length;
    return KVL_OK;
}

/* ---- chunks -------------------------------------------------------------------------------- */

/* Where the next chunk starts. */
typedef struct cursor {
    int32_t item, done; /* tokens of that item already run */
} cursor;

/* Adds tokens done .. done + n of item i to the chunk. */
static void chunk_add(kvl_engine *engine, const kvl_step_item *item, int64_t old_len, int32_t done,
                      int32_t n) {
    kvl_chunk *chunk = &engine->chunk;
    int32_t first_logit = item->n_ids - item->n_logits;
    for (int32_t i = 0; i < n; i++) {
        int32_t row = chunk->n_rows + i, token = done + i;
        chunk->ids[row] = item->ids[token];
        chunk->positions[row] = (int32_t)old_len + token;
        if (token >= first_logit) chunk->logit_rows[chunk->n_logits++] = row;
    }
    chunk->seqs[chunk->n_seqs] = item->seq;
    chunk->kv_lens[chunk->n_seqs] = (int32_t)old_len + done + n;
    chunk->n_rows += n;
    chunk->q_start[++chunk->n_seqs] = chunk->n_rows;
}

/* Fills the chunk with as many of the next tokens as fit; false when none are left. */
static bool chunk_next(kvl_engine *engine, const kvl_step_item *items, int32_t n_items,
                       cursor *at) {
    kvl_chunk *chunk = &engine->chunk;
    chunk->n_seqs = chunk->n_rows = chunk->n_logits = 0;
    chunk->q_start[0] = 0;
    while (at->item < n_items && chunk->n_rows < engine->max_batch_tokens) {
        const kvl_step_item *item = &items[at->item];
        int32_t room = engine->max_batch_tokens - chunk->n_rows, left = item->n_ids - at->done;
        int32_t n = left < room ? left : room;
        chunk_add(engine, item, engine->old_lens[at->item], at->done, n);
        at->done += n;
        if (at->done == item->n_ids) *at = (cursor){.item = at->item + 1};
    }
    return chunk->n_rows > 0;
}

static kvl_status run_chunks(kvl_engine *engine, const kvl_step_item *items, int32_t n_items,
                             float *logits) {
    cursor at = {0, 0};
    while (chunk_next(engine, items, n_items, &at)) {
        KVL_TRY(kvl_engine_forward(engine, logits));
        if (logits) logits += (int64_t)engine->chunk.n_logits * engine->model->config.vocab_size;
    }
    return KVL_OK;
}

/* ---- accounting ---------------------------------------------------------------------------- */

/* Keys that some query of the step sees, of all sequences: K and V rows of a head that are read. */
static double attention_keys(const kvl_attention_args *args) {
    double keys = 0;
    for (int32_t s = 0; s < args->kv->n_seqs; s++) {
        int64_t kv_len = args->kv->kv_lens[s], q_len = args->q_start[s + 1] - args->q_start[s];
        int64_t first, last;
        if (q_len == 0) continue;
        kvl_attention_range(kv_len - q_len, kv_len, true, args->window, &first, &last);
        keys += (double)(kv_len - first);
    }
    return keys;
}

/* Rounded: what enters linear layers and Q, where compute_dtype is not float32; K and V as stored.
 * Widened: each weight and each K and V value once a step, where they are not float32; kernels for
 * many rows that multiply bf16 as it is (matmul_prefill names them) widen none. */
static void count_casts(kvl_engine *engine, int64_t tokens, int64_t n_logits, double keys,
                        double layer_macs, double head_macs) {
    const kvl_config *c = &engine->model->config;
    const kvl_kv_cache *cache = &engine->cache;
    const double kv_width = (double)kvl_engine_kv_width(c), layers = c->n_layers;
    const int halves = (cache->k_dtype != KVL_F32) + (cache->v_dtype != KVL_F32);
    kvl_engine_stats *stats = &engine->stats;
    if (engine->compute_dtype != KVL_F32) {
        double inputs = 2.0 * c->hidden_size + 2.0 * (double)kvl_engine_q_width(c) +
                        (double)c->intermediate_size;
        stats->cast_elements +=
            inputs * layers * (double)tokens + (double)c->hidden_size * (double)n_logits;
    }
    stats->cast_elements += halves * kv_width * layers * (double)tokens;
    stats->widened_elements += halves * kv_width * layers * keys;
    const kvl_linear *layer = engine->weights.layers[0].qkv;
    const bool as_it_is =
        strcmp(engine->linear.format->name, "bf16") == 0 &&
        strcmp(kvl_linear_kernel(layer, tokens), kvl_linear_kernel(layer, 1)) != 0;
    if (strcmp(engine->linear.format->name, "f32") != 0 && !as_it_is)
        stats->widened_elements += layer_macs * layers;
    if (n_logits && engine->weights.skipped_format->dtype != KVL_F32)
        stats->widened_elements += head_macs;
}

/* Unique work of the whole step, however it was cut: the weights once, K and V of what the step's
 * queries see once. */
static void count_work(kvl_engine *engine, const kvl_step_item *items, int32_t n_items) {
    const kvl_config *c = &engine->model->config;
    const kvl_weights *weights = &engine->weights;
    kvl_chunk *chunk = &engine->chunk;
    int64_t tokens = 0, n_logits = 0;
    for (int32_t i = 0; i < n_items; i++) {
        chunk->seqs[i] = items[i].seq;
        chunk->kv_lens[i] = (int32_t)engine->old_lens[i] + items[i].n_ids;
        chunk->q_start[i] = (int32_t)tokens;
        tokens += items[i].n_ids;
        n_logits += items[i].n_logits;
    }
    chunk->q_start[n_items] = (int32_t)tokens;
    kvl_kv_view view;
    kvl_kv_cache_view(&engine->cache, chunk->seqs, chunk->kv_lens, n_items, &view);
    kvl_attention_args args = kvl_engine_attention_args(engine, &view, chunk->q_start);
    kvl_work attention = kvl_attention_work(&args);
    double macs = 0.0;
    macs += (double)kvl_engine_qkv_width(c) * c->hidden_size;
    macs += (double)kvl_engine_q_width(c) * c->hidden_size;
    macs += 3.0 * (double)c->intermediate_size * c->hidden_size;
    double head_macs = (double)c->vocab_size * c->hidden_size;

    kvl_engine_stats *stats = &engine->stats;
    stats->steps++;
    stats->tokens += (uint64_t)tokens;
    stats->read_bytes += (double)kvl_weights_layer_bytes(weights) +
                         (n_logits ? (double)kvl_linear_bytes(weights->lm_head) : 0.0) +
                         attention.read_bytes * c->n_layers;
    count_casts(engine, tokens, n_logits, attention_keys(&args), macs, head_macs);
    stats->flops += attention.flops * c->n_layers + 2.0 * macs * c->n_layers * (double)tokens +
                    2.0 * head_macs * (double)n_logits;
}

kvl_status kvl_engine_step(kvl_engine *engine, const kvl_step_item *items, int32_t n_items,
                           float *logits) {
    KVL_TRY(check_items(engine, items, n_items, logits));
    if (n_items == 0) return KVL_OK;
    uint64_t start_ns = kvl_now_ns();
    uint64_t timed_ns = kvl_engine_timed_ns(&engine->stats);
    KVL_TRY(append_items(engine, items, n_items));
    kvl_status status = run_chunks(engine, items, n_items, logits);
    if (status != KVL_OK) {
        roll_back(engine, items, n_items);
        return status;
    }
    for (int32_t i = 0; i < n_items; i++) KVL_TRY(learn(engine, &items[i]));
    uint64_t step_ns = kvl_now_ns() - start_ns;
    timed_ns = kvl_engine_timed_ns(&engine->stats) - timed_ns;
    engine->stats.other_ns += step_ns > timed_ns ? step_ns - timed_ns : 0;
    count_work(engine, items, n_items);
    return KVL_OK;
}
