/* What goes into a step and what comes out of it. */
#include "harness/serve/serve_internal.h"

static bool decodes(const kvl_serving *r) {
    return r->generated > 0 && r->computed == r->target - 1;
}

static void add_item(kvl_server *s, int64_t request, int64_t n) {
    kvl_serving *r = &s->serving[request];
    s->items[s->n_items++] = (kvl_serve_item){.seq = r->seq,
                                              .request = request,
                                              .start = r->computed,
                                              .n_tokens = (int32_t)n,
                                              .decodes = decodes(r),
                                              .emits = r->computed + n == r->target};
    s->budget -= n;
    r->in_step = true;
}

/* The pool set the prompt's slots aside at admission, so this cannot be refused. */
kvl_status kvl_serve_add_chunk(kvl_server *s, int64_t request) {
    kvl_serving *r = &s->serving[request];
    int64_t n = r->target - r->computed;
    if (n > s->budget && s->options->chunked) n = s->budget;
    if (n <= 0) return KVL_OK;
    bool stays;
    KVL_TRY(kvl_serve_grow(s, request, n, &stays));
    if (stays) add_item(s, request, n);
    return KVL_OK;
}

/* One token for each that decodes, the oldest first; those may take slots of others. */
static kvl_status add_decodes(kvl_server *s) {
    for (int32_t i = 0; i < s->n_running && s->budget > 0;) {
        int64_t request = s->running[i];
        kvl_serving *r = &s->serving[request];
        bool stays = true;
        if (!r->in_step && decodes(r)) {
            KVL_TRY(kvl_serve_grow(s, request, 1, &stays));
            if (stays) add_item(s, request, 1);
        }
        /* Whoever was preempted is off the list; the one looked at may have moved up. */
        if (i < s->n_running && s->running[i] == request)
            i++;
        else if (stays)
            for (i = 0; s->running[i] != request; i++) {
            }
    }
    return KVL_OK;
}

static kvl_status add_prompts(kvl_server *s) {
    for (int32_t i = 0; i < s->n_running && s->budget > 0; i++) {
        const kvl_serving *r = &s->serving[s->running[i]];
        int64_t rest = r->target - r->computed;
        if (r->in_step || decodes(r)) continue;
        if (!s->options->chunked && rest > s->budget && s->n_items) return KVL_OK;
        KVL_TRY(kvl_serve_add_chunk(s, s->running[i]));
    }
    return KVL_OK;
}

kvl_status kvl_serve_fill_step(kvl_server *s) {
    kvl_serve_schedule schedule = s->options->schedule;
    s->n_items = 0;
    s->blocked = false;
    s->budget = s->options->max_batched_tokens;
    for (int32_t i = 0; i < s->n_running; i++) s->serving[s->running[i]].in_step = false;
    if (s->n_running == 0) s->batch_open = true;
    if (schedule == KVL_DECODE_FIRST) KVL_TRY(add_decodes(s));
    KVL_TRY(add_prompts(s));
    if (schedule != KVL_STATIC || s->batch_open) KVL_TRY(kvl_serve_admit(s));
    /* A static batch is closed as soon as nobody waits or nobody else fits. */
    if (schedule == KVL_STATIC && s->budget > 0) s->batch_open = false;
    if (schedule != KVL_DECODE_FIRST && s->n_items == 0) {
        s->batch_open = false;
        KVL_TRY(add_decodes(s));
        /* Those that had to give way leave room. */
        if (s->n_items == 0 && (schedule != KVL_STATIC || s->n_running == 0))
            KVL_TRY(kvl_serve_admit(s));
    }
    return KVL_OK;
}

static void note_token(kvl_server *s, int64_t request) {
    kvl_served *out = &s->result->requests[request];
    if (out->first_ns < 0) {
        out->first_ns = s->now_ns;
    } else {
        int64_t gap = s->now_ns - out->last_ns;
        s->result->gaps[kvl_gap_bucket(gap)]++;
        if (gap > out->longest_gap_ns) out->longest_gap_ns = gap;
    }
    out->last_ns = s->now_ns;
    s->result->output_tokens++;
}

kvl_status kvl_serve_take_tokens(kvl_server *s) {
    for (int32_t i = 0; i < s->n_items; i++) {
        const kvl_serve_item *it = &s->items[i];
        kvl_serving *r = &s->serving[it->request];
        r->computed += it->n_tokens;
        s->result->computed_tokens += it->n_tokens;
        if (!it->emits) continue;
        r->generated++;
        r->target = r->computed + 1;
        note_token(s, it->request);
        if (r->generated < s->trace->requests[it->request].output) continue;
        KVL_TRY(kvl_serve_leave(s, it->request));
        s->result->requests[it->request].end = KVL_SERVED;
        s->result->finished++;
    }
    return KVL_OK;
}
