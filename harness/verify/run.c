/* Selects cases of all families and runs them in order. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/device.h"
#include "core/names.h"
#include "core/threads.h"
#include "harness/verify/attention.h"
#include "harness/verify/family.h"
#include "quant/kv_format.h"

static const kvl_verify_family *const families[] = {
    &kvl_verify_family_kv,
    &kvl_verify_family_linear,
    &kvl_verify_family_allocator,
    &kvl_verify_family_attention,
};
enum { N_FAMILIES = sizeof families / sizeof *families };

kvl_status kvl_verify_level_parse(const char *name, kvl_verify_level *out) {
    static const char *const names[] = {"quick", "default", "full"};
    int index = kvl_names_find(name, names, 3);
    if (index < 0) {
        char line[256];
        kvl_names_unknown(line, sizeof line, "level", name, names, 3);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = (kvl_verify_level)index;
    return KVL_OK;
}

void kvl_verify_result_clear(kvl_verify_result *result, const char *id) {
    memset(result, 0, sizeof *result);
    snprintf(result->id, sizeof result->id, "%s", id);
    result->max_abs = result->bound = result->max_rel = result->nmse = -1;
    result->lse_error = result->lse_bound = result->format_error = -1;
}

void kvl_verify_skipped(kvl_verify_result *result, const char *reason) {
    result->state = KVL_VERIFY_SKIP;
    snprintf(result->reason, sizeof result->reason, "%s", reason);
}

/* ---- names ------------------------------------------------------------------------------------
 */

/* Calls one(index) for each word of a comma list, looked up in names. */
static kvl_status each_name(const char *list, const char *what, const char *const *names,
                            size_t n_names, bool *chosen) {
    char copy[512], *save = NULL, line[512];
    if (strlen(list) >= sizeof copy) return kvl_fail(KVL_ERR_INPUT, "%s: list too long", what);
    snprintf(copy, sizeof copy, "%s", list);
    char *word = strtok_r(copy, ",", &save);
    if (!word) return kvl_fail(KVL_ERR_INPUT, "%s: an empty list", what);
    for (; word; word = strtok_r(NULL, ",", &save)) {
        int index = kvl_names_find(word, names, n_names);
        if (index < 0) {
            kvl_names_unknown(line, sizeof line, what, word, names, n_names);
            return kvl_fail(KVL_ERR_INPUT, "%s", line);
        }
        chosen[index] = true;
    }
    return KVL_OK;
}

static kvl_status choose_modules(const kvl_verify_options *options, kvl_verify_scope *scope) {
    const char *names[KVL_VERIFY_MAX_MODULES];
    bool chosen[KVL_VERIFY_MAX_MODULES] = {0};
    scope->n_known = options->modules ? options->n_modules : kvl_attention_count();
    if (scope->n_known > KVL_VERIFY_MAX_MODULES)
        return kvl_fail(KVL_ERR_INPUT, "%zu attention modules: at most %d", scope->n_known,
                        KVL_VERIFY_MAX_MODULES);
    for (size_t i = 0; i < scope->n_known; i++) {
        scope->known[i] = options->modules ? options->modules[i] : kvl_attention_at(i);
        names[i] = scope->known[i]->name;
        chosen[i] = !options->attention;
    }
    if (options->attention)
        KVL_TRY(each_name(options->attention, "attention", names, scope->n_known, chosen));
    for (size_t i = 0; i < scope->n_known; i++)
        if (chosen[i]) scope->modules[scope->n_modules++] = scope->known[i];
    return KVL_OK;
}

static kvl_status choose_kv_dtypes(const kvl_verify_options *options, kvl_verify_scope *scope) {
    const char *names[KVL_VERIFY_MAX_DTYPES];
    bool chosen[KVL_VERIFY_MAX_DTYPES] = {0};
    size_t n = kvl_kv_format_count();
    if (n > KVL_VERIFY_MAX_DTYPES) n = KVL_VERIFY_MAX_DTYPES;
    for (size_t i = 0; i < n; i++) {
        names[i] = kvl_kv_format_at(i)->name;
        chosen[i] = !options->kv_dtype;
    }
    if (options->kv_dtype) KVL_TRY(each_name(options->kv_dtype, "KV dtype", names, n, chosen));
    for (size_t i = 0; i < n; i++)
        if (chosen[i]) scope->kv_dtypes[scope->n_kv_dtypes++] = kvl_kv_format_at(i)->dtype;
    return KVL_OK;
}

/* KVLAB_ISA pins the level; otherwise every level is listed, and those this CPU lacks come out as
 * skipped with the reason. */
static kvl_status choose_isas(const kvl_verify_options *options, kvl_verify_scope *scope) {
    const char *names[KVL_N_ISAS], *pinned = getenv("KVLAB_ISA");
    bool chosen[KVL_N_ISAS] = {0};
    for (int i = 0; i < KVL_N_ISAS; i++) {
        names[i] = kvl_isa_name((kvl_isa)i);
        chosen[i] = !options->isa;
    }
    if (options->isa)
        KVL_TRY(each_name(options->isa, "instruction set", names, KVL_N_ISAS, chosen));
    bool is_pinned = !options->isa && pinned && *pinned;
    for (int i = 0; i < KVL_N_ISAS; i++) {
        if (is_pinned) chosen[i] = (kvl_isa)i == kvl_isa_current();
        if (chosen[i]) scope->isas[scope->n_isas++] = (kvl_isa)i;
    }
    return KVL_OK;
}

static kvl_status check_device(const char *name) {
    const kvl_device *device;
    char why[160] = "";
    if (!name) return KVL_OK;
    KVL_TRY(kvl_device_find(name, &device));
    if (!device->available(why, sizeof why))
        return kvl_fail(KVL_ERR_INPUT, "device '%s': %s", name, why);
    return KVL_OK;
}

kvl_status kvl_verify_scope_make(const kvl_verify_options *options, kvl_verify_scope *scope) {
    memset(scope, 0, sizeof *scope);
    scope->level = options->level;
    scope->by_attention = options->attention != NULL;
    scope->by_kv_dtype = options->kv_dtype != NULL;
    scope->by_isa = options->isa != NULL;
    KVL_TRY(check_device(options->device));
    KVL_TRY(choose_modules(options, scope));
    KVL_TRY(choose_kv_dtypes(options, scope));
    return choose_isas(options, scope);
}

/* ---- selection --------------------------------------------------------------------------------
 */

typedef struct runner {
    const kvl_verify_options *options;
    kvl_verify_scope scope;
    kvl_verify_totals *totals;
    const kvl_verify_family *family;
    bool counting;
    kvl_status status;
} runner;

/* True when the id contains one of the filter's texts. */
static bool passes_filter(const char *filter, const char *id) {
    size_t id_bytes = strlen(id);
    if (!filter) return true;
    while (*filter) {
        size_t n = strcspn(filter, ",");
        for (size_t i = 0; n && i + n <= id_bytes; i++)
            if (strncmp(id + i, filter, n) == 0) return true;
        filter += n + (filter[n] == ',');
    }
    return false;
}

static bool is_glob(const char *text) {
    return strpbrk(text, "*?[") != NULL;
}

static bool selected(const runner *r, const char *id) {
    const char *glob = r->options->case_id;
    return (!glob || fnmatch(glob, id, 0) == 0) && passes_filter(r->options->filter, id);
}

static void report(runner *r, const kvl_verify_result *result) {
    int64_t *totals[] = {&r->totals->passed, &r->totals->failed, &r->totals->skipped};
    ++*totals[result->state];
    if (r->options->on_result) r->options->on_result(r->options->user, result);
}

static bool visit(void *user, const char *id) {
    runner *r = user;
    kvl_verify_result result;
    if (!selected(r, id)) return true;
    if (r->counting) {
        r->totals->expected++;
        return true;
    }
    kvl_verify_result_clear(&result, id);
    if (r->options->list)
        kvl_verify_skipped(&result, "listed");
    else
        r->status = r->family->run(&r->scope, id, &result);
    if (r->status == KVL_OK) report(r, &result);
    return r->status == KVL_OK;
}

/* Levels that this CPU lacks, one line each, so that nothing is left out silently. */
static void report_missing(runner *r) {
    for (size_t i = 0; i < r->scope.n_isas; i++) {
        char id[64];
        kvl_isa before = kvl_isa_current(), isa = r->scope.isas[i];
        snprintf(id, sizeof id, "isa/%s", kvl_isa_name(isa));
        if (kvl_isa_has(isa) || !selected(r, id)) continue;
        kvl_verify_result result;
        kvl_verify_result_clear(&result, id);
        if (kvl_isa_force(isa) == KVL_OK) kvl_isa_force(before);
        kvl_verify_skipped(&result, kvl_message());
        if (r->counting)
            r->totals->expected++;
        else if (!r->options->list)
            report(r, &result);
    }
}

static void walk(runner *r) {
    const kvl_verify_scope *scope = &r->scope;
    kvl_verify_scope usable = *scope;
    report_missing(r);
    usable.n_isas = 0;
    for (size_t i = 0; i < scope->n_isas; i++)
        if (kvl_isa_has(scope->isas[i])) usable.isas[usable.n_isas++] = scope->isas[i];
    for (int f = 0; f < N_FAMILIES && r->status == KVL_OK; f++) {
        bool attention = families[f] == &kvl_verify_family_attention;
        bool kv = families[f] == &kvl_verify_family_kv;
        bool allocator = families[f] == &kvl_verify_family_allocator;
        if (scope->by_attention && !attention) continue;
        if (scope->by_kv_dtype && !attention && !kv) continue;
        if (scope->by_isa && allocator) continue;
        r->family = families[f];
        families[f]->list(&usable, visit, r);
    }
}

/* True when no other option leaves out the attention case of this id; any other family's id is only
 * held against the filter. A malformed one is left to its family to refuse. */
static bool is_within(const runner *r, const char *id) {
    const kvl_verify_scope *scope = &r->scope;
    kvl_verify_case c;
    if (!passes_filter(r->options->filter, id)) return false;
    if (strncmp(id, "attn", 4) != 0)
        return !scope->by_attention && !(scope->by_kv_dtype && strncmp(id, "kv/", 3) != 0) &&
               !(scope->by_isa && strncmp(id, "alloc/", 6) == 0);
    if (kvl_verify_case_parse(id, &c) != KVL_OK) return true;
    bool module = !scope->by_attention, k = !scope->by_kv_dtype, v = k, isa = !scope->by_isa;
    for (size_t i = 0; i < scope->n_modules; i++)
        module = module || strcmp(scope->modules[i]->name, c.kernel) == 0;
    for (size_t i = 0; i < scope->n_kv_dtypes; i++) {
        k = k || scope->kv_dtypes[i] == c.k_dtype;
        v = v || scope->kv_dtypes[i] == c.v_dtype;
    }
    for (size_t i = 0; i < scope->n_isas; i++) isa = isa || scope->isas[i] == c.isa;
    return module && k && v && isa;
}

/* An id that is no glob: run it whether it is listed or not. */
static kvl_status run_one(runner *r) {
    const char *id = r->options->case_id;
    for (int f = 0; f < N_FAMILIES; f++) {
        if (strncmp(id, families[f]->prefix, strlen(families[f]->prefix)) != 0) continue;
        kvl_verify_result result;
        kvl_verify_result_clear(&result, id);
        if (!is_within(r, id)) return KVL_OK;
        KVL_TRY(families[f]->run(&r->scope, id, &result));
        r->totals->expected = 1;
        report(r, &result);
        return KVL_OK;
    }
    return kvl_fail(KVL_ERR_INPUT,
                    "case '%s': must begin with attn, kv/, linear/ or alloc/, or be a pattern of "
                    "listed ids; see 'kvlab verify --list'",
                    id);
}

kvl_status kvl_verify_run(const kvl_verify_options *options, kvl_verify_totals *totals) {
    runner r = {.options = options, .totals = totals};
    memset(totals, 0, sizeof *totals);
    KVL_TRY(kvl_verify_scope_make(options, &r.scope));
    if (options->case_id && !is_glob(options->case_id) && !options->list) return run_one(&r);
    r.counting = true;
    walk(&r);
    r.counting = false;
    if (r.status == KVL_OK) walk(&r);
    return r.status;
}

/* ---- one configuration ------------------------------------------------------------------------
 */

/* How much of its bound a passing result uses; failures are above all passes. */
static double severity(const kvl_verify_result *r) {
    if (r->state == KVL_VERIFY_FAIL) return 1e9;
    return r->bound > 0 ? r->max_abs / r->bound : 0;
}

static kvl_status check_config(const kvl_verify_case *c) {
    if (c->n_kv_heads >= 1 && c->n_q_heads >= 1 && c->n_q_heads % c->n_kv_heads == 0 &&
        c->head_dim >= 1 && c->head_dim <= 4096 && c->layout.page_tokens >= 0 && c->window >= 0 &&
        kvl_kv_format_of(c->k_dtype) && kvl_kv_format_of(c->v_dtype) && c->q_dtype <= KVL_BF16)
        return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT,
                    "verify: heads %d:%d, head_dim %d, page_tokens %lld, window %d, dtypes %s, %s, "
                    "%s",
                    c->n_q_heads, c->n_kv_heads, c->head_dim, (long long)c->layout.page_tokens,
                    c->window, kvl_dtype_name(c->k_dtype), kvl_dtype_name(c->v_dtype),
                    kvl_dtype_name(c->q_dtype));
}

kvl_status kvl_verify_attention_config(const kvl_verify_case *config, kvl_verify_result *out) {
    /* Lengths around pages and windows of common sizes, as decode, prefill, chunk and mixed. */
    static const char *const lengths[] = {"1q1+1q15+1q16+1q17+1q0", "1q257", "17q17", "7q77+1q64"};
    static const kvl_verify_pattern patterns[] = {KVL_PATTERN_NORMAL, KVL_PATTERN_ALT,
                                                  KVL_PATTERN_NORMAL, KVL_PATTERN_ALT};
    enum { PAGE_PAST_ALL = 512 }; /* above the 257 tokens of the longest */
    const kvl_attention *module;
    KVL_TRY(kvl_attention_find(config->kernel, &module));
    KVL_TRY(check_config(config));
    uint64_t start_ns = kvl_now_ns();
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        kvl_verify_case c = *config;
        kvl_verify_result result;
        c.kind = KVL_VERIFY_GATES;
        c.isa = kvl_isa_current();
        c.o_dtype = i % 2 ? c.q_dtype : KVL_F32;
        c.causal = true;
        c.softcap = c.scale = 0;
        c.sinks = false;
        c.seed = 100 + i;
        c.pattern = patterns[i];
        KVL_TRY(kvl_verify_case_lengths(lengths[i], &c));
        /* Every page past the longest sequence holds the sequence whole, whatever its size: 512
         * stands for all of them, so that a page of a million tokens costs no pool of gigabytes. */
        int64_t page = config->layout.page_tokens;
        bool per_page = page && c.scale_tokens == page;
        if (page > PAGE_PAST_ALL) page = PAGE_PAST_ALL;
        if (per_page) c.scale_tokens = page;
        c.layout = (kvl_verify_layout){
            .page_tokens = page, .shuffled = true, .token_major = config->layout.token_major};
        kvl_verify_attention_case(module, &c, &result);
        if (i == 0 || severity(&result) > severity(out)) *out = result;
        if (result.state != KVL_VERIFY_PASS) break;
    }
    out->ms = (double)(kvl_now_ns() - start_ns) / 1e6;
    return KVL_OK;
}
