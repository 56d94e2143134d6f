/* Which attention cases there are: covering arrays over the axes, the adversarial list, the exact
 * properties, and at level full the product. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/names.h"
#include "core/rng.h"
#include "harness/verify/attention.h"
#include "harness/verify/cover.h"
#include "harness/verify/family.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* ---- the axes ---------------------------------------------------------------------------------
 */

static const int32_t head_dims[] = {64,  128, 40,  48,  72, 80, 96,  112, 120,
                                    160, 192, 224, 256, 8,  33, 100, 1};
static const int32_t head_counts[][2] = {{9, 3},  {1, 1}, {2, 1},  {3, 1},  {4, 1},
                                         {5, 1},  {6, 1}, {7, 1},  {8, 1},  {16, 1},
                                         {32, 1}, {4, 4}, {10, 2}, {14, 2}, {16, 8}};
static const char *const layouts[] = {
    "contig",      "page1.shuf", "page15",  "page16.shuf",     "page16.shuf.shared",
    "page17.shuf", "page64.tok", "page256", "contig.shuf.tok", "page16.tok.shuf"};
static const char *const lengths[] = {"1q1",
                                      "1q15",
                                      "1q16",
                                      "1q17",
                                      "1q31",
                                      "1q32",
                                      "1q33",
                                      "1q63",
                                      "1q64",
                                      "1q65",
                                      "1q127",
                                      "1q129",
                                      "1q257",
                                      "1q513",
                                      "7q7",
                                      "16q16",
                                      "17q17",
                                      "33q33",
                                      "65q65",
                                      "3q203",
                                      "16q216",
                                      "31q78",
                                      "1q5+1q0+9q77+1q1+17q17",
                                      "5q3",
                                      "0q9",
                                      "1q300x3+2q64"};
static const int32_t windows[] = {0, 1, 2, 15, 16, 17, 33, 64, 1000};
static const float softcaps[] = {0, 30, 2};
static const kvl_dtype q_dtypes[] = {KVL_F32, KVL_BF16, KVL_F16};

/* V is stored as K is, or as one of the next two formats; scales are none, static, of a token each
 * or of a group of tokens. */
enum { N_MASKS = 2, N_OUTPUTS = 2, N_SWITCH = 2, N_V = 3, N_SCALES = 4, GROUP_OF_SLABS = 16 };

/* The order in which axes stand in a covering array. */
typedef enum axis {
    AXIS_ENGINE,
    AXIS_KV,
    AXIS_V,
    AXIS_Q,
    AXIS_O,
    AXIS_DIM,
    AXIS_HEADS,
    AXIS_LAYOUT,
    AXIS_LENGTHS,
    AXIS_MASK,
    AXIS_WINDOW,
    AXIS_CAP,
    AXIS_SINKS,
    AXIS_SCALED,
    AXIS_PATTERN,
    N_AXES
} axis;

typedef struct lister {
    const kvl_verify_scope *scope;
    kvl_verify_visit visit;
    void *user;
    kvl_verify_engine engines[KVL_VERIFY_MAX_ENGINES];
    int n_engines;
} lister;

static bool emit(const lister *l, const kvl_verify_engine *e, kvl_verify_case *c) {
    char id[KVL_VERIFY_ID_BYTES];
    snprintf(c->kernel, sizeof c->kernel, "%s", e->module->name);
    c->isa = e->isa;
    kvl_verify_case_format(c, id, sizeof id);
    return l->visit(l->user, id);
}

/* ---- covering arrays --------------------------------------------------------------------------
 */

static void axis_sizes(const lister *l, int n_engines, int *sizes) {
    sizes[AXIS_ENGINE] = n_engines;
    sizes[AXIS_KV] = (int)l->scope->n_kv_dtypes;
    sizes[AXIS_V] = l->scope->n_kv_dtypes < N_V ? (int)l->scope->n_kv_dtypes : N_V;
    sizes[AXIS_Q] = COUNT(q_dtypes);
    sizes[AXIS_O] = N_OUTPUTS;
    sizes[AXIS_DIM] = COUNT(head_dims);
    sizes[AXIS_HEADS] = COUNT(head_counts);
    sizes[AXIS_LAYOUT] = COUNT(layouts);
    sizes[AXIS_LENGTHS] = COUNT(lengths);
    sizes[AXIS_MASK] = N_MASKS;
    sizes[AXIS_WINDOW] = COUNT(windows);
    sizes[AXIS_CAP] = COUNT(softcaps);
    sizes[AXIS_SINKS] = N_SWITCH;
    sizes[AXIS_SCALED] = N_SCALES;
    sizes[AXIS_PATTERN] = KVL_N_PATTERNS;
}

/* Every text here is a constant of this file that parses; `row` holds one value an axis. */
static void case_of(const lister *l, const uint16_t *row, uint64_t seed, kvl_verify_case *c) {
    memset(c, 0, sizeof *c);
    c->k_dtype = l->scope->kv_dtypes[row[AXIS_KV]];
    c->v_dtype = l->scope->kv_dtypes[(row[AXIS_KV] + row[AXIS_V]) % l->scope->n_kv_dtypes];
    c->q_dtype = q_dtypes[row[AXIS_Q]];
    c->o_dtype = row[AXIS_O] ? c->q_dtype : KVL_F32;
    c->head_dim = head_dims[row[AXIS_DIM]];
    c->n_q_heads = head_counts[row[AXIS_HEADS]][0];
    c->n_kv_heads = head_counts[row[AXIS_HEADS]][1];
    kvl_verify_layout_parse(layouts[row[AXIS_LAYOUT]], &c->layout);
    kvl_verify_case_lengths(lengths[row[AXIS_LENGTHS]], c);
    c->causal = row[AXIS_MASK] == 0;
    c->window = windows[row[AXIS_WINDOW]];
    c->softcap = softcaps[row[AXIS_CAP]];
    c->sinks = row[AXIS_SINKS] == 1;
    c->scaled = row[AXIS_SCALED] > 0;
    if (row[AXIS_SCALED] == 2) c->scale_tokens = 1;
    if (row[AXIS_SCALED] == 3)
        c->scale_tokens = c->layout.page_tokens ? c->layout.page_tokens : GROUP_OF_SLABS;
    c->pattern = (kvl_verify_pattern)row[AXIS_PATTERN];
    c->seed = seed;
    /* |V| of 1e30 has no f16 output. */
    if (c->pattern == KVL_PATTERN_VMAX && c->o_dtype == KVL_F16) c->o_dtype = KVL_F32;
}

static bool list_cover(const lister *l, const kvl_verify_engine *engines, int n_engines,
                       uint64_t seed) {
    int sizes[N_AXES];
    kvl_cover cover;
    axis_sizes(l, n_engines, sizes);
    if (kvl_cover_make(sizes, N_AXES, seed, &cover) != KVL_OK) return false;
    bool go_on = true;
    for (int64_t r = 0; go_on && r < cover.n_rows; r++) {
        kvl_verify_case c;
        const uint16_t *row = cover.rows + r * N_AXES;
        case_of(l, row, (uint64_t)r + 1, &c);
        go_on = emit(l, &engines[row[AXIS_ENGINE]], &c);
    }
    free(cover.rows);
    return go_on;
}

/* Level full: the product of the axes that change code paths; mask, output, scale and data rotate
 * through pseudo-random rows, since their product alone is over 10,000. */
static bool list_product(const lister *l, const kvl_verify_engine *e) {
    int sizes[N_AXES];
    uint64_t index = 0;
    axis_sizes(l, 1, sizes);
    uint16_t row[N_AXES] = {0};
    kvl_rng rng = kvl_rng_make(1, 2);
    for (;;) {
        kvl_verify_case c;
        for (int a = AXIS_MASK; a < N_AXES; a++)
            row[a] = (uint16_t)kvl_rng_below(&rng, (uint64_t)sizes[a]);
        row[AXIS_O] = (uint16_t)kvl_rng_below(&rng, N_OUTPUTS);
        case_of(l, row, ++index, &c);
        if (!emit(l, e, &c)) return false;
        int a = AXIS_LENGTHS;
        for (; a >= AXIS_KV; a--) {
            if (a == AXIS_O) continue;
            if (++row[a] < sizes[a]) break;
            row[a] = 0;
        }
        if (a < AXIS_KV) return true;
    }
}

/* ---- hand-picked cases ------------------------------------------------------------------------
 */

/* Everything but kernel, isa and dtypes, as it stands in an id. `first`: run for every KV dtype at
 * level quick too; the others rotate through the dtypes there. */
typedef struct hand {
    const char *kind, *tail;
    bool every_dtype;
} hand;

static const hand hands[] = {
    /* Sums that must not stall or overflow in 16 bits. */
    {"attn", "hd64.h2:1/contig/1q4096/causal/seed1/flat", true},
    {"attn", "hd40.h1:1/page16.shuf/1q16384/causal/seed2/flat", false},
    {"attn", "hd64.h1:1/contig/1q32768/causal/seed3/flat", false},
    {"attn", "hd64.h4:2/page64/1q2048+7q77/causal/seed4/vmax", true},
    {"attn", "hd64.h2:1/contig/1q2048/causal/seed5/alt", true},
    {"attn", "hd64.h4:2/page17.shuf/1q513+33q333/causal.cap30/seed6/alt", true},
    {"attn", "hd80.h5:1/page15/31q78/causal.w33.cap30.sinks/seed7/alt", false},
    {"attn", "hd64.h6:2/page16.shuf/33q129+1q257/causal/seed8/onehot", true},
    {"attn", "hd256.h1:1/contig/1q2049/full/seed9/onehot", false},
    {"attn", "hd64.h2:2/page16/1q4097/causal/seed10/rising", false},
    {"attn", "hd112.h8:2/page17/33q333/causal/seed11/rising", true},
    {"attn", "hd128.h4:1/page64/33q129/causal.sinks/seed12/big", true},
    /* Windows of W beside lengths W-1, W, W+1, as decode, chunk and prefill. */
    {"attn", "hd64.h4:2/page16/1q15+1q16+1q17+15q15+16q16+17q17/causal.w16/seed13/normal", true},
    {"attn", "hd64.h4:2/page16.shuf/1q15+1q16+1q17+7q17+3q40/causal.w1/seed14/alt", false},
    {"attn", "hd96.h6:1/page15.shuf/1q63+1q64+1q65+9q200+64q130/causal.w64/seed15/normal", false},
    {"attn", "hd72.h5:1/contig/1q33+17q70/full.w33/seed16/normal", false},
    {"attn", "hd64.h2:1/page16.shuf/1q300+40q300/causal.w17.cap30.sinks/seed17/alt", false},
    /* Nothing to see, and the edges of pages and tiles. */
    {"attn", "hd64.h4:2/page16/1q0+1q1+1q15+1q16+1q17+0q5+3q1/causal/seed18/normal", true},
    {"attn", "hd64.h4:2/page16/1q0+4q2/causal.sinks/seed19/normal", false},
    {"attn", "hd64.h9:3/contig/1q31+1q32+1q33+1q63+1q64+1q65+1q127+1q128+1q129/causal/seed20/alt",
     false},
    {"attn", "hd128.h8:2/page64/1q255+1q256+1q257+1q511+1q512+1q513/causal/seed21/normal", false},
    {"attn", "hd64.h4:2/page1.shuf/1q1+2q2+3q3+63q63+64q64+65q65/causal/seed22/normal", false},
    {"attn", "hd64.h4:2/page16.shuf.shared/1q33+7q40+1q64+16q48/causal/seed23/alt", true},
    {"attn", "hd64.h4:2/page16.shuf.shared.tok/1q33+7q40/causal.w20.scaled/seed24/normal", false},
    /* Scales that go with tokens: of one, of a page, of half a page; few rows and many. */
    {"attn", "hd64.h9:3/page16.shuf/1q129+1q0+7q40/causal.scaled1/seed27/normal", true},
    {"attn", "hd64.h6:2/page16.shuf.shared/1q70+40q300/causal.scaled16/seed28/alt", true},
    {"attn", "hd80.h4:2/contig/1q700+33q90/causal.w40.sinks.scaled16/seed29/normal", true},
    {"attn", "hd64.h4:2/page64.tok/1q513+20q129/causal.cap30.scaled32/seed30/normal", false},
    /* Slabs whose tokens lie one behind the other, all heads together: the order of allocators
     * whose slabs differ in length (buddy, growing, virtual). As decode, prefill, chunk; scaled;
     * far. */
    {"attn", "hd64.h9:3/contig.shuf.tok/1q513+33q33+1q0+7q140/causal/seed46/normal", true},
    {"attn", "hd64.h6:2/contig.shuf.tok/1q70+40q300/causal.scaled16/seed47/alt", true},
    {"attn", "hd96.h5:5/contig.tok/1q129+17q17/causal.w40.cap30.sinks.scaled1/seed48/normal",
     false},
    {"attn", "hd128.h4:2/contig.far.tok/1q300+9q50/causal/seed49/normal", false},
    {"attn", "hd128.h4:2/page16.shuf.far/1q300+9q50/causal/seed25/normal", false},
    {"attn", "hd128.h4:2/contig.far/1q300+9q50/causal/seed26/normal", false},
    /* Bits. */
    {"attn-threads", "hd64.h9:3/page16.shuf/1q513+33q129+7q40/causal/seed31/normal", false},
    {"attn-threads", "hd80.h7:1/page17/64q64+1q1200/causal.w40.sinks/seed32/normal", false},
    {"attn-batch", "hd64.h9:3/page16.shuf/1q513+33q129+1q0+7q40+1q17/causal/seed33/normal", false},
    {"attn-batch", "hd96.h6:2/contig/1q64+1q1200+65q65/full.cap30/seed34/normal", false},
    {"attn-chunk", "hd64.h9:3/page16.shuf/70q129+1q17/causal/seed35/normal", false},
    {"attn-chunk", "hd112.h10:2/page15/80q80/causal.w33.cap30.sinks/seed36/normal", false},
    {"attn-paged", "hd64.h9:3/page16/1q513+33q129+1q0/causal/seed37/normal", true},
    {"attn-paged", "hd72.h5:1/contig/17q300+1q64/causal.w50.sinks/seed38/normal", false},
    {"attn-paged", "hd64.h4:2/page16/17q300+1q64/causal.scaled1/seed43/normal", false},
    {"attn-paged", "hd64.h4:2/page16/17q300+1q64/causal.scaled16/seed44/normal", false},
    {"attn-chunk", "hd64.h9:3/page16.shuf/70q129+1q17/causal.scaled16/seed45/normal", false},
    {"attn-merge", "hd64.h9:3/contig/1q513+1q2+1q0+3q64/full/seed39/normal", true},
    {"attn-merge", "hd128.h4:1/contig/1q1200/full.cap30.sinks/seed40/big", false},
};

/* Groups and head dims one by one, as decode and chunk. */
static const int32_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 32};
static const int32_t dims[] = {40, 48, 56, 64, 72, 80, 88, 96, 112, 128, 160, 192, 224, 256};

static bool emit_hand(const lister *l, const kvl_verify_engine *e, const hand *h, int turn) {
    int n_kv = (int)l->scope->n_kv_dtypes;
    bool all = h->every_dtype || l->scope->level != KVL_VERIFY_QUICK;
    for (int i = 0; i < (all ? n_kv : 1); i++) {
        char id[KVL_VERIFY_ID_BYTES];
        kvl_dtype kv = l->scope->kv_dtypes[(turn + i) % n_kv];
        snprintf(id, sizeof id, "%s/%s/%s/%skv.%sq/%s", h->kind, e->module->name,
                 kvl_isa_name(e->isa), kvl_dtype_name(kv),
                 kvl_dtype_name(q_dtypes[(turn + i) % COUNT(q_dtypes)]), h->tail);
        if (!l->visit(l->user, id)) return false;
    }
    return true;
}

static bool list_hands(const lister *l, const kvl_verify_engine *e, int first_turn) {
    for (int i = 0; i < COUNT(hands); i++)
        if (!emit_hand(l, e, &hands[i], first_turn + i)) return false;
    for (int i = 0; i < COUNT(groups); i++) {
        char tail[96];
        snprintf(tail, sizeof tail, "hd64.h%d:2/page16.shuf/1q65+5q70/causal/seed41/normal",
                 2 * groups[i]);
        hand h = {"attn", tail, false};
        if (!emit_hand(l, e, &h, first_turn + i)) return false;
    }
    for (int i = 0; i < COUNT(dims); i++) {
        char tail[96];
        snprintf(tail, sizeof tail, "hd%d.h6:2/page17.shuf/1q65+5q70/causal/seed42/normal",
                 dims[i]);
        hand h = {"attn", tail, false};
        if (!emit_hand(l, e, &h, first_turn + i)) return false;
    }
    return true;
}

/* ---- the family -------------------------------------------------------------------------------
 */

static bool list(const kvl_verify_scope *scope, kvl_verify_visit visit, void *user) {
    lister l = {.scope = scope, .visit = visit, .user = user};
    l.n_engines = kvl_verify_engines(scope, l.engines);
    if (l.n_engines == 0 || scope->n_kv_dtypes == 0) return true;
    for (int i = 0; i < l.n_engines; i++)
        if (!list_hands(&l, &l.engines[i], i)) return false;
    if (scope->level == KVL_VERIFY_QUICK) return list_cover(&l, l.engines, l.n_engines, 1);
    for (int i = 0; i < l.n_engines; i++)
        if (!list_cover(&l, &l.engines[i], 1, 2 + (uint64_t)i)) return false;
    for (int i = 0; scope->level == KVL_VERIFY_FULL && i < l.n_engines; i++)
        if (!list_product(&l, &l.engines[i])) return false;
    return true;
}

static kvl_status run(const kvl_verify_scope *scope, const char *id, kvl_verify_result *result) {
    kvl_verify_case c;
    const char *names[KVL_VERIFY_MAX_MODULES];
    KVL_TRY(kvl_verify_case_parse(id, &c));
    for (size_t i = 0; i < scope->n_known; i++) names[i] = scope->known[i]->name;
    int index = kvl_names_find(c.kernel, names, scope->n_known);
    if (index < 0) {
        char line[512];
        kvl_names_unknown(line, sizeof line, "attention", c.kernel, names, scope->n_known);
        return kvl_fail(KVL_ERR_INPUT, "case id: %s", line);
    }
    kvl_verify_attention_case(scope->known[index], &c, result);
    return KVL_OK;
}

const kvl_verify_family kvl_verify_family_attention = {"attn", list, run};
