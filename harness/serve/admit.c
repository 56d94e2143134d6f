/* Who runs: queues, admission by the pool, preemption. */
#include <string.h>

#include "harness/serve/serve_internal.h"

/* ---- queues --------------------------------------------------------------------------------- */

void kvl_queue_back(kvl_queue *q, int64_t request) {
    q->ring[(q->head + q->n++) % q->capacity] = request;
}

static void queue_front(kvl_queue *q, int64_t request) {
    q->head = (q->head + q->capacity - 1) % q->capacity;
    q->ring[q->head] = request;
    q->n++;
}

static int64_t queue_pop(kvl_queue *q) {
    int64_t request = q->ring[q->head];
    q->head = (q->head + 1) % q->capacity;
    q->n--;
    return request;
}

static const kvl_trace_request *of(const kvl_server *s, int64_t request) {
    return &s->trace->requests[request];
}

static bool has_aged(const kvl_server *s, const kvl_queue *q) {
    return q->n && s->now_ns - s->serving[q->ring[q->head]].queued_ns >= s->options->aging_ns;
}

/* Interactive before batch, but for a batch request that has waited too long. */
static kvl_queue *next_queue(kvl_server *s) {
    kvl_queue *interactive = &s->queues[KVL_CLASS_INTERACTIVE],
              *batch = &s->queues[KVL_CLASS_BATCH];
    if (!interactive->n) return batch->n ? batch : NULL;
    if (!has_aged(s, batch)) return interactive;
    bool older = s->serving[batch->ring[batch->head]].queued_ns <=
                 s->serving[interactive->ring[interactive->head]].queued_ns;
    return older ? batch : interactive;
}

/* Nobody is overtaken who has waited aging_ns: queues are in order, so their heads are enough. */
static kvl_status check_order(const kvl_server *s, int64_t request) {
    for (int c = 0; c < 2; c++) {
        const kvl_queue *q = &s->queues[c];
        if (!has_aged(s, q)) continue;
        int64_t other = q->ring[q->head];
        if (other != request && s->serving[other].queued_ns < s->serving[request].queued_ns)
            return kvl_fail(
                KVL_ERR_INTERNAL, "request %lld has waited %.3f s and is overtaken by %lld",
                (long long)other, (double)(s->now_ns - s->serving[other].queued_ns) * 1e-9,
                (long long)request);
    }
    return KVL_OK;
}

/* ---- leaving -------------------------------------------------------------------------------- */

kvl_status kvl_serve_leave(kvl_server *s, int64_t request) {
    int32_t at = 0;
    while (at < s->n_running && s->running[at] != request) at++;
    if (at == s->n_running)
        return kvl_fail(KVL_ERR_INTERNAL, "request %lld leaves and does not run",
                        (long long)request);
    memmove(&s->running[at], &s->running[at + 1],
            (size_t)(--s->n_running - at) * sizeof *s->running);
    s->blocked = false;
    if (s->backend->release)
        KVL_TRY(s->backend->release(s->backend->user, s->serving[request].seq));
    return s->pool.module->release(s->pool.state, s->serving[request].seq);
}

/* Whatever it has in the step being made is taken back. */
static void drop_item(kvl_server *s, int64_t request) {
    for (int32_t i = 0; i < s->n_items; i++) {
        if (s->items[i].request != request) continue;
        s->budget += s->items[i].n_tokens;
        memmove(&s->items[i], &s->items[i + 1], (size_t)(--s->n_items - i) * sizeof *s->items);
        return;
    }
}

static kvl_status preempt(kvl_server *s, int64_t request) {
    kvl_serving *r = &s->serving[request];
    kvl_served *out = &s->result->requests[request];
    if (r->in_step) drop_item(s, request);
    KVL_TRY(kvl_serve_leave(s, request));
    s->result->preempted++;
    s->result->preempted_requests += out->preemptions == 0;
    if (++out->preemptions > s->result->preempted_most)
        s->result->preempted_most = out->preemptions;
    if (out->preemptions > KVL_SERVE_MAX_PREEMPTIONS)
        return kvl_fail(KVL_ERR_INTERNAL, "request %lld is preempted %d times", (long long)request,
                        out->preemptions);
    /* A prompt that is half in is cheaper to begin again than to keep. */
    if (s->options->swap && r->generated && r->computed == r->target - 1) {
        r->swapped = r->computed;
        s->swap_tokens += r->computed;
        s->result->swapped_tokens += r->computed;
    } else {
        r->lost += r->computed;
    }
    r->computed = 0;
    r->in_step = false;
    queue_front(&s->queues[of(s, request)->class], request);
    return KVL_OK;
}

/* The last one admitted, of the batch class if there is one; not one that has everything. */
static int64_t victim(const kvl_server *s) {
    int64_t found = -1;
    for (int32_t i = s->n_running; i-- > 0;) {
        int64_t request = s->running[i];
        if (s->serving[request].whole) continue;
        if (of(s, request)->class == KVL_CLASS_BATCH) return request;
        if (found < 0) found = request;
    }
    return found;
}

kvl_status kvl_serve_grow(kvl_server *s, int64_t request, int64_t n, bool *stays) {
    *stays = true;
    for (;;) {
        kvl_status status = kvl_pool_append(&s->pool, s->serving[request].seq, n);
        if (status != KVL_ERR_OOM) return status;
        int64_t other = victim(s);
        if (other < 0)
            return kvl_fail(KVL_ERR_INTERNAL, "a sequence with everything set aside was refused");
        KVL_TRY(preempt(s, other));
        if (other == request) {
            *stays = false;
            return KVL_OK;
        }
    }
}

/* ---- coming in ------------------------------------------------------------------------------ */

/* Tokens to hold before the next one comes out: prompt and what was given out. One less for K and V
 * that come back from outside: the last one given out was never computed. */
static int64_t tokens_to_hold(const kvl_server *s, int64_t request) {
    const kvl_serving *r = &s->serving[request];
    return r->swapped ? r->swapped : (int64_t)of(s, request)->prompt + r->generated;
}

/* As in replay: one slot in a hundred stays free, and who was preempted before waits until a third,
 * two thirds of what it still needs are free. Not when nothing runs. */
static bool has_headroom(const kvl_server *s, int64_t request) {
    int64_t preempted = s->result->requests[request].preemptions;
    if (!s->grows || s->n_running == 0 || preempted >= KVL_SERVE_MAX_PREEMPTIONS) return true;
    int64_t to_come = of(s, request)->output - s->serving[request].generated;
    int64_t head = s->pool.config.pool_tokens / 100;
    int64_t share = to_come * preempted / KVL_SERVE_MAX_PREEMPTIONS;
    kvl_ledger ledger;
    s->pool.module->stats(s->pool.state, 0, &ledger);
    return ledger.free + ledger.cached >=
           tokens_to_hold(s, request) + (share > head ? share : head);
}

static kvl_status admit(kvl_server *s, int64_t request, bool *admitted) {
    kvl_serving *r = &s->serving[request];
    kvl_served *out = &s->result->requests[request];
    int64_t hold = tokens_to_hold(s, request);
    kvl_admission got;
    /* Of the last token logits are needed, so it is run; what was swapped needs nothing else. */
    kvl_pool_request in = {.index = request,
                           .n_tokens = hold,
                           .max_new = of(s, request)->prompt + of(s, request)->output - hold,
                           .max_cached = r->swapped ? 0 : hold - 1,
                           .readmitted = out->preemptions > 0,
                           .whole = out->preemptions >= KVL_SERVE_MAX_PREEMPTIONS};
    *admitted = false;
    if (!has_headroom(s, request)) return KVL_OK; /* an impossible one is found when it is alone */
    kvl_status status = kvl_pool_admit(&s->pool, &in, &got);
    if (status != KVL_OK) return status == KVL_ERR_OOM ? KVL_OK : status;
    r->seq = got.seq;
    r->whole = in.whole;
    r->target = r->swapped ? r->swapped + 1 : hold;
    r->computed = r->swapped ? r->swapped : got.n_cached;
    if (r->swapped) {
        KVL_TRY(kvl_pool_append(&s->pool, r->seq, r->swapped));
        s->swap_tokens += r->swapped;
        s->result->swapped_tokens += r->swapped;
    }
    int64_t again = r->lost < hold ? r->lost : hold;
    if (again > got.n_cached && !r->swapped) s->result->recomputed_tokens += again - got.n_cached;
    r->lost = r->swapped = 0;
    if (out->admitted_ns < 0) out->admitted_ns = s->now_ns;
    s->running[s->n_running++] = request;
    if (s->n_running > s->result->largest_batch) s->result->largest_batch = s->n_running;
    *admitted = true;
    if (!s->backend->admit) return KVL_OK;
    return s->backend->admit(s->backend->user, r->seq, request, hold, in.max_new, in.whole);
}

kvl_status kvl_serve_admit(kvl_server *s) {
    while (!s->blocked && s->n_running < s->options->max_seqs && s->budget > 0) {
        kvl_queue *queue = next_queue(s);
        if (!queue) return KVL_OK;
        int64_t request = queue->ring[queue->head];
        if (!s->options->chunked && tokens_to_hold(s, request) > s->budget && s->n_items)
            return KVL_OK; /* a step of its own */
        bool admitted;
        kvl_status status = admit(s, request, &admitted);
        if (status == KVL_ERR_INPUT) { /* the empty pool could not hold it */
            queue_pop(queue);
            s->result->requests[request].end = KVL_SERVED_REFUSED;
            s->result->refused++;
            continue;
        }
        KVL_TRY(status);
        if (!admitted) {
            s->blocked = true;
            return KVL_OK;
        }
        KVL_TRY(check_order(s, request));
        queue_pop(queue);
        KVL_TRY(kvl_serve_add_chunk(s, request));
    }
    return KVL_OK;
}
