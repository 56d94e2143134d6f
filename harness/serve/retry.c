#include "harness/serve/retry.h"

#include <stdio.h>
#include <string.h>

#include "core/rng.h"
#include "harness/traces/trace_internal.h"

static const char *const words[] = {"none", "fixed", "backoff", "jitter"};

static kvl_status bad(const char *text, size_t length) {
    return kvl_fail(KVL_ERR_INPUT,
                    "'%.*s': none, fixed:S:N, backoff:S:N or jitter:S:N (S seconds in 0.001 to "
                    "3600, N retries in 1 to 100)",
                    (int)(length < 60 ? length : 60), text);
}

kvl_status kvl_retry_parse(const char *text, size_t length, kvl_retry *out) {
    const char *first = memchr(text, ':', length), *end = text + length;
    size_t word = first ? (size_t)(first - text) : length, fault;
    const char *why;
    *out = (kvl_retry){0};
    int kind = 0;
    while (kind < 4 && (strlen(words[kind]) != word || memcmp(words[kind], text, word) != 0))
        kind++;
    if (kind == 4 || (kind == 0) != !first) return bad(text, length);
    out->kind = (kvl_retry_kind)kind;
    if (kind == 0) return KVL_OK;
    const char *second = memchr(first + 1, ':', (size_t)(end - first - 1));
    if (!second || second + 1 == end || end - second > 4 ||
        !kvl_parse_seconds(first + 1, (size_t)(second - first - 1), &out->base_ns, &fault, &why))
        return bad(text, length);
    for (const char *c = second + 1; c < end; c++) {
        if (*c < '0' || *c > '9') return bad(text, length);
        out->tries = out->tries * 10 + (*c - '0');
    }
    bool good = out->base_ns >= 1000000 && out->base_ns <= INT64_C(3600000000000) &&
                out->tries >= 1 && out->tries <= 100;
    return good ? KVL_OK : bad(text, length);
}

kvl_status kvl_retry_canonical(const char *text, size_t length,
                               char canonical[KVL_AXIS_TEXT_BYTES]) {
    kvl_retry r;
    KVL_TRY(kvl_retry_parse(text, length, &r));
    if (r.kind == KVL_RETRY_NONE)
        snprintf(canonical, KVL_AXIS_TEXT_BYTES, "none");
    else
        snprintf(canonical, KVL_AXIS_TEXT_BYTES, "%s:%.10g:%d", words[r.kind],
                 (double)r.base_ns * 1e-9, r.tries);
    return KVL_OK;
}

int64_t kvl_retry_wait_ns(const kvl_retry *retry, uint64_t seed, int64_t request, int32_t attempt) {
    enum { MOST_DOUBLINGS = 6 };
    if (retry->kind == KVL_RETRY_NONE || attempt > retry->tries) return -1;
    if (retry->kind == KVL_RETRY_FIXED) return retry->base_ns;
    int64_t wait = retry->base_ns << (attempt - 1 < MOST_DOUBLINGS ? attempt - 1 : MOST_DOUBLINGS);
    if (retry->kind == KVL_RETRY_BACKOFF) return wait;
    kvl_rng rng = kvl_rng_make(seed, (uint64_t)request);
    uint64_t draw = kvl_rng_at(&rng, (uint64_t)attempt) >> 11; /* 53 bits */
    return 1 + (int64_t)((double)draw * 0x1p-53 * (double)wait);
}
