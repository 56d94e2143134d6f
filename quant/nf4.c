#include "quant/nf4.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/isa.h"
#include "quant/nf4_kernels.h"

/* ---- the maps ------------------------------------------------------------------------------- */

/* Quantiles of N(0, 1) between equal shares of probability, zero included, scaled to [-1, 1];
 * printed as bitsandbytes publishes them: the last bits are part of the format. */
static const float nf4_values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

/* FP4: a sign, and 0, 1/16, 8, 12, 4, 6, 2, 3 of 12. */
static const float fp4_twelfths[8] = {0.0f, 0.0625f, 8.0f, 12.0f, 4.0f, 6.0f, 2.0f, 3.0f};

static kvl_nf4_rule rules[2];
static float dynamic_map[256], dynamic_bounds[255];
static pthread_once_t maps_once = PTHREAD_ONCE_INIT;

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The codes by value; of equal values (the two zeros of FP4) the lower code first. */
static void finish_rule(kvl_nf4_rule *rule) {
    float sorted[16];
    for (int code = 0; code < 16; code++) {
        int rank = 0;
        for (int other = 0; other < 16; other++)
            rank += rule->values[other] < rule->values[code] ||
                    (rule->values[other] == rule->values[code] && other < code);
        rule->order[rank] = (uint8_t)code;
        sorted[rank] = rule->values[code];
    }
    rule->ranks_are_codes = true;
    for (int rank = 0; rank < 16; rank++) {
        if (rank < 15) rule->bounds[rank] = (sorted[rank] + sorted[rank + 1]) / 2;
        if (rule->order[rank] != rank) rule->ranks_are_codes = false;
    }
}

/* Seven decades below 1, each with twice the values of the one below: the middles of 2^i equal
 * parts of [0.1, 1], both signs; 0 and 1 besides. Points run from the nearer end, each with one
 * fused rounding, as torch.linspace has them. */
static void make_dynamic_map(void) {
    int n = 0;
    for (int i = 0; i < 7; i++) {
        int parts = 1 << i;
        float step = (1.0f - 0.1f) / (float)parts, decade = (float)pow(10, i - 6), points[65];
        for (int k = 0; k <= parts; k++)
            points[k] = k < (parts + 1) / 2 ? fmaf(step, (float)k, 0.1f)
                                            : fmaf(-step, (float)(parts - k), 1.0f);
        for (int k = 0; k < parts; k++) {
            float value = decade * ((points[k] + points[k + 1]) / 2);
            dynamic_map[n++] = value;
            dynamic_map[n++] = -value;
        }
    }
    dynamic_map[n++] = 0.0f;
    dynamic_map[n++] = 1.0f;
    qsort(dynamic_map, 256, sizeof *dynamic_map, by_value);
    for (int i = 0; i < 255; i++) dynamic_bounds[i] = (dynamic_map[i] + dynamic_map[i + 1]) / 2;
}

static void make_maps(void) {
    memcpy(rules[KVL_NF4].values, nf4_values, sizeof nf4_values);
    for (int code = 0; code < 16; code++) {
        float value = fp4_twelfths[code & 7] / 12.0f;
        rules[KVL_FP4].values[code] = code & 8 ? 0.0f - value : value; /* both zeros are +0 */
    }
    finish_rule(&rules[KVL_NF4]);
    finish_rule(&rules[KVL_FP4]);
    make_dynamic_map();
}

static const kvl_nf4_rule *rule_of(kvl_nf4_type type) {
    pthread_once(&maps_once, make_maps);
    return &rules[type];
}

const char *kvl_nf4_type_name(kvl_nf4_type type) {
    return type == KVL_NF4 ? "nf4" : "fp4";
}

const float *kvl_nf4_map(kvl_nf4_type type) {
    return rule_of(type)->values;
}

const float *kvl_nf4_dynamic_map(void) {
    pthread_once(&maps_once, make_maps);
    return dynamic_map;
}

/* ---- 4-bit blocks --------------------------------------------------------------------------- */

kvl_status kvl_nf4_check_block(const char *what, int64_t block) {
    if (block >= KVL_NF4_MIN_BLOCK && block <= KVL_NF4_MAX_BLOCK && (block & (block - 1)) == 0)
        return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT, "%s %lld: a power of two from %d to %d", what, (long long)block,
                    KVL_NF4_MIN_BLOCK, KVL_NF4_MAX_BLOCK);
}

int64_t kvl_nf4_blocks(int64_t n, int64_t block) {
    return n / block + (n % block != 0);
}

static const kvl_nf4_kernels *kernels_now(void) {
    kvl_isa isa = kvl_isa_current();
    return isa >= KVL_ISA_AVX512 ? &kvl_nf4_kernels_avx512
           : isa == KVL_ISA_AVX2 ? &kvl_nf4_kernels_avx2
                                 : &kvl_nf4_kernels_scalar;
}

int64_t kvl_nf4_encode(kvl_nf4_type type, int64_t block, const float *w, int64_t n, uint8_t *codes,
                       float *absmax) {
    const kvl_nf4_rule *rule = rule_of(type);
    const kvl_nf4_kernels *kernels = kernels_now();
    int64_t n_blocks = kvl_nf4_blocks(n, block), bad = -1;
    for (int64_t b = 0; b < n_blocks; b++) {
        int64_t from = b * block, size = n - from < block ? n - from : block;
        kernels->encode(rule, w + from, size, size < block, codes + from, &absmax[b]);
        if (bad < 0 && !isfinite(absmax[b])) bad = b;
    }
    return bad;
}

int64_t kvl_nf4_find_nonfinite(const float *x, int64_t n) {
    enum { CHUNK = 1024 };
    for (int64_t from = 0; from < n; from += CHUNK) {
        int64_t end = n - from < CHUNK ? n : from + CHUNK;
        int32_t found = 0;
        for (int64_t i = from; i < end; i++) found |= !(fabsf(x[i]) <= FLT_MAX);
        if (!found) continue;
        for (int64_t i = from; i < end; i++)
            if (!isfinite(x[i])) return i;
    }
    return -1;
}

void kvl_nf4_pack(kvl_nf4_type type, const uint8_t *codes, int64_t n, uint8_t *packed) {
    for (int64_t i = 0; i + 2 <= n; i += 2) packed[i / 2] = (uint8_t)(codes[i] << 4 | codes[i + 1]);
    if (n % 2) packed[n / 2] = (uint8_t)(codes[n - 1] << 4 | (type == KVL_NF4 ? 7 : 0));
}

void kvl_nf4_unpack(const uint8_t *packed, int64_t first, int64_t n, uint8_t *codes) {
    int64_t i = 0;
    if (first % 2 && n > 0) codes[i++] = packed[first / 2] & 15;
    for (; i + 2 <= n; i += 2) {
        uint8_t pair = packed[(first + i) / 2];
        codes[i] = pair >> 4;
        codes[i + 1] = pair & 15;
    }
    if (i < n) codes[i] = packed[(first + i) / 2] >> 4;
}

void kvl_nf4_decode(kvl_nf4_type type, int64_t block, const uint8_t *packed, const float *absmax,
                    int64_t first, int64_t n, float *out) {
    const float *values = kvl_nf4_map(type);
    for (int64_t i = first, end = first + n; i < end;) {
        float scale = absmax[i / block];
        int64_t stop = (i / block + 1) * block;
        for (stop = stop < end ? stop : end; i < stop; i++) {
            uint8_t pair = packed[i / 2];
            out[i - first] = values[i % 2 ? pair & 15 : pair >> 4] * scale;
        }
    }
}

/* ---- double quantisation -------------------------------------------------------------------- */

enum { SUM_LANES = 8, SUM_PARTS = 4, SUM_LEVELS = 4 };

/* Sums of x[size][width][lanes] over size. Partial sums of level 0 move up a level every
 * 2^power terms, those of level 1 every 2^(2 power), and so on. */
static void cascade(const float *x, int64_t size, int width, float *sums) {
    float level[SUM_LEVELS][SUM_PARTS * SUM_LANES] = {{0}};
    int bits = 0;
    while (size > 1 && (int64_t)1 << bits < size) bits++;
    int power = bits / SUM_LEVELS > 4 ? bits / SUM_LEVELS : 4;
    int64_t step = (int64_t)1 << power, i = 0;
    while (i + step <= size) {
        for (int64_t end = i + step; i < end; i++)
            for (int k = 0; k < width; k++) level[0][k] += x[i * width + k];
        for (int up = 1; up < SUM_LEVELS; up++) {
            for (int k = 0; k < width; k++) {
                level[up][k] += level[up - 1][k];
                level[up - 1][k] = 0;
            }
            if (i & (step - 1) << (up * power)) break;
        }
    }
    for (; i < size; i++)
        for (int k = 0; k < width; k++) level[0][k] += x[i * width + k];
    for (int k = 0; k < width; k++) {
        sums[k] = level[0][k];
        for (int up = 1; up < SUM_LEVELS; up++) sums[k] += level[up][k];
    }
}

/* The float32 sum of x[n] in torch's order: vectors of eight (single values when there are fewer),
 * four of them in flight. */
static float ordered_sum(const float *x, int64_t n) {
    int lanes = n >= SUM_LANES ? SUM_LANES : 1;
    int64_t vectors = n / lanes, rounds = vectors / SUM_PARTS;
    float sums[SUM_PARTS * SUM_LANES], total = 0;
    cascade(x, rounds, SUM_PARTS * lanes, sums);
    for (int64_t v = rounds * SUM_PARTS; v < vectors; v++)
        for (int k = 0; k < lanes; k++) sums[k] += x[v * lanes + k];
    for (int part = 1; part < SUM_PARTS; part++)
        for (int k = 0; k < lanes; k++) sums[k] += sums[part * lanes + k];
    for (int64_t i = vectors * lanes; i < n; i++) total += x[i];
    for (int k = 0; k < lanes; k++) total += sums[k];
    return total;
}

/* The place of s in [-1, 1] is first cut into 65,536 steps; the code follows from the step. Where
 * all differences are 0, s is 0 / 0 and has the lowest code. */
static uint8_t dynamic_code(float s) {
    if (isnan(s)) return 0;
    float clamped = s < -1.0f ? -1.0f : s > 1.0f ? 1.0f : s;
    int step = (int)((clamped + 1.0f) * 0.5f * 65535.0f + 0.5f), low = 0, high = 255;
    float x = -1.0f + 2.0f * (float)step / 65535.0f;
    while (low < high) {
        int middle = (low + high) / 2;
        if (dynamic_bounds[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint8_t)low;
}

void kvl_nf4_nest(const float *absmax, int64_t n, uint8_t *codes, float *scales, float *offset) {
    enum { BLOCK = KVL_NF4_NESTED_BLOCK };
    pthread_once(&maps_once, make_maps);
    *offset = ordered_sum(absmax, n) / (float)n;
    for (int64_t from = 0; from < n; from += BLOCK) {
        int64_t size = n - from < BLOCK ? n - from : BLOCK;
        float difference[BLOCK], most = 0;
        for (int64_t i = 0; i < size; i++) {
            difference[i] = absmax[from + i] - *offset;
            if (fabsf(difference[i]) > most) most = fabsf(difference[i]);
        }
        float factor = 1.0f / most;
        for (int64_t i = 0; i < size; i++) codes[from + i] = dynamic_code(difference[i] * factor);
        scales[from / BLOCK] = most;
    }
}

void kvl_nf4_unnest(const uint8_t *codes, int64_t n, const float *scales, int64_t nested_block,
                    float offset, const float *map, float *absmax) {
    for (int64_t i = 0; i < n; i++) {
        float scaled = map[codes[i]] * scales[i / nested_block];
        absmax[i] = scaled + offset;
    }
}
