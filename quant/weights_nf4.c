/* Weights as NF4 or FP4 (quant/nf4.h): codes stay packed and become values in registers.
 *
 * A panel is a header, then absmax float32 [segments][KVL_PANEL], then codes [groups of 4 k]
 * [2 * KVL_PANEL bytes]. Blocks run over the flattened tensor, so a row may begin inside one: the
 * header has each lane's phase, the place of its first weight in its block, and segment s of a lane
 * is the s-th block that the row touches. Where rows are whole blocks, all phases are 0 and the
 * absmax of a k are two vectors.
 *
 * A weight is value * absmax, rounded, everywhere, and sums run over k = 0, 1, 2, ... with one
 * fused multiply-add each: few and many rows give equal bits. That costs a multiplication a weight
 * that scaling sums by block would save.
 *
 * Where the CPU multiplies bf16 and x is bf16, many rows go another way (quant/matrix_bf16.h): a
 * panel is unpacked to the bf16 pairs that a bf16 layer would store, value * absmax rounded once
 * more, in scratch that stays in L2 while the rows pass it. */
#include <string.h>

#include "core/checked.h"
#include "quant/matrix_bf16.h"
#include "quant/nf4.h"
#include "quant/nf4_simd.h"

enum {
    STREAM_PANELS = 2, /* at a time: the chain of adds of one panel would wait for itself */
    PREFETCH_BYTES = 2048,
    AHEAD_BLOCKS = 4, /* whose absmax is asked for */
    TILE = 128,       /* k that a row not a multiple of 4 wide takes through memory */
};

typedef struct nf4_header {
    int32_t type;  /* kvl_nf4_type */
    int32_t block; /* weights */
    /* Every k where some lane's block ends is a multiple of this. */
    int32_t step;
    int32_t is_aligned; /* all phases are 0 */
    int32_t phase[KVL_PANEL];
} nf4_header;

enum { HEADER_BYTES = (sizeof(nf4_header) + 63) / 64 * 64 };

typedef struct nf4_panel {
    const nf4_header *header;
    const float *absmax;  /* [segments][KVL_PANEL] */
    const uint8_t *codes; /* [groups][NF4_GROUP_BYTES] */
} nf4_panel;

/* Blocks that a row may touch, whatever its phase. */
static int64_t segments_of(int64_t n_in, int64_t block) {
    return n_in / block + (n_in % block ? 2 : 0);
}

static bool panel_bytes(int64_t n_in, int64_t block, uint64_t *out) {
    uint64_t groups = (uint64_t)n_in / NF4_GROUP_K + (n_in % NF4_GROUP_K != 0), codes;
    uint64_t absmax = (uint64_t)segments_of(n_in, block);
    return kvl_mul_u64(groups, NF4_GROUP_BYTES, &codes) &&
           kvl_mul_u64(absmax, KVL_PANEL * sizeof(float), &absmax) &&
           kvl_add_u64(codes, absmax, out) && kvl_add_u64(*out, HEADER_BYTES, out);
}

static nf4_panel view_of(const void *panel, int64_t n_in) {
    const nf4_header *header = panel;
    const float *absmax = (const float *)((const char *)panel + HEADER_BYTES);
    int64_t n = segments_of(n_in, header->block) * KVL_PANEL;
    return (nf4_panel){header, absmax, (const uint8_t *)(absmax + n)};
}

/* ---- filling -------------------------------------------------------------------------------- */

static void start_panel(void *panel, kvl_nf4_type type, int64_t n_in, int64_t block) {
    int64_t step = block;
    while (n_in % step) step /= 2;
    *(nf4_header *)panel = (nf4_header){
        .type = type, .block = (int32_t)block, .step = (int32_t)step, .is_aligned = step == block};
}

static void set_phase(void *panel, int64_t lane, int64_t phase) {
    ((nf4_header *)panel)->phase[lane] = (int32_t)phase;
}

static void set_codes(void *panel, int64_t n_in, int64_t lane, const uint8_t *codes) {
    uint8_t *to = (uint8_t *)view_of(panel, n_in).codes;
    nf4_place place[NF4_GROUP_K];
    for (int k = 0; k < NF4_GROUP_K; k++) place[k] = nf4_place_of((int)lane, k);
    int64_t k = 0;
    for (; k + NF4_GROUP_K <= n_in; k += NF4_GROUP_K, to += NF4_GROUP_BYTES) {
        for (int i = 0; i < NF4_GROUP_K; i++) {
            uint8_t *byte = to + place[i].byte;
            *byte = (uint8_t)((*byte & ~(15 << place[i].shift)) | codes[k + i] << place[i].shift);
        }
    }
    for (int i = 0; k + i < n_in; i++) {
        uint8_t *byte = to + place[i].byte;
        *byte = (uint8_t)((*byte & ~(15 << place[i].shift)) | codes[k + i] << place[i].shift);
    }
}

static void set_absmax(void *panel, int64_t n_in, int64_t lane, const float *absmax) {
    nf4_panel p = view_of(panel, n_in);
    float *to = (float *)p.absmax + lane;
    int64_t n = (p.header->phase[lane] + n_in - 1) / p.header->block + 1;
    for (int64_t s = 0; s < n; s++) to[s * KVL_PANEL] = absmax[s];
}

/* ---- reading -------------------------------------------------------------------------------- */

/* absmax of all lanes from k on, k a multiple of the header's step. */
static inline void absmax_at(const nf4_panel *p, int64_t k, vf absmax[2]) {
    const nf4_header *h = p->header;
    if (h->is_aligned) {
        const float *from = p->absmax + k / h->block * KVL_PANEL;
        absmax[0] = vf_load_f32(from);
        absmax[1] = vf_load_f32(from + KVL_VL);
        return;
    }
    float lanes[KVL_PANEL];
    for (int lane = 0; lane < KVL_PANEL; lane++)
        lanes[lane] = p->absmax[(h->phase[lane] + k) / h->block * KVL_PANEL + lane];
    absmax[0] = vf_load_f32(lanes);
    absmax[1] = vf_load_f32(lanes + KVL_VL);
}

static void decode_row(const void *panel, int64_t n_in, int64_t lane, float *out) {
    nf4_panel p = view_of(panel, n_in);
    const float *values = kvl_nf4_map((kvl_nf4_type)p.header->type);
    const float *absmax = p.absmax + lane;
    int64_t block = p.header->block, phase = p.header->phase[lane];
    for (int64_t k = 0; k < n_in; k++) {
        nf4_place place = nf4_place_of((int)lane, (int)(k % NF4_GROUP_K));
        uint8_t byte = p.codes[k / NF4_GROUP_K * NF4_GROUP_BYTES + place.byte];
        out[k] = values[byte >> place.shift & 15] * absmax[(phase + k) / block * KVL_PANEL];
    }
}

/* Any k0 and n_k; blocks may end inside a group. */
static const float *decode_tile(const void *panel, int64_t n_in, int64_t k0, int64_t n_k,
                                float *scratch) {
    nf4_panel p = view_of(panel, n_in);
    nf4_table table = nf4_table_make(kvl_nf4_map((kvl_nf4_type)p.header->type));
    int64_t step = p.header->step, next = k0 - k0 % step + step;
    vf absmax[2], w[NF4_GROUP_K][2];
    absmax_at(&p, next - step, absmax);
    nf4_group(&table, p.codes + k0 / NF4_GROUP_K * NF4_GROUP_BYTES, w);
    for (int64_t k = k0; k < k0 + n_k; k++, scratch += KVL_PANEL) {
        if (k == next) {
            absmax_at(&p, k, absmax);
            next += step;
        }
        int64_t i = k % NF4_GROUP_K;
        if (i == 0) nf4_group(&table, p.codes + k / NF4_GROUP_K * NF4_GROUP_BYTES, w);
        vf_store(scratch, vf_mul(w[i][0], absmax[0]));
        vf_store(scratch + KVL_VL, vf_mul(w[i][1], absmax[1]));
    }
    return scratch - n_k * KVL_PANEL;
}

/* ---- few rows ------------------------------------------------------------------------------- */

/* Four k of one panel against R rows. */
static inline __attribute__((always_inline)) void stream_group(const nf4_table *table,
                                                               const uint8_t *codes, float *absmax,
                                                               const float *x, int64_t x_stride,
                                                               vf (*sum)[2], const int R) {
    vf w[NF4_GROUP_K][2];
    nf4_group(table, codes, w);
    /* Registers are for sums and tables: absmax stays an operand in memory. */
    __asm__ volatile("" : "+m"(*(float(*)[KVL_PANEL])absmax));
#pragma GCC unroll 4
    for (int k = 0; k < NF4_GROUP_K; k++) {
        vf w0 = vf_mul(w[k][0], vf_load_f32(absmax));
        vf w1 = vf_mul(w[k][1], vf_load_f32(absmax + KVL_VL));
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            vf a = vf_set1(x[r * x_stride + k]);
            sum[r][0] = vf_fma(a, w0, sum[r][0]);
            sum[r][1] = vf_fma(a, w1, sum[r][1]);
        }
    }
}

/* Rows of a multiple of 4 weights: a group has one absmax a lane. R and P are constants at every
 * call. */
static inline __attribute__((always_inline)) void stream_panels(const kvl_stream_job *job,
                                                                const nf4_table *table,
                                                                int64_t first, const int R,
                                                                const int P) {
    nf4_panel p[STREAM_PANELS];
    vf sum[STREAM_PANELS][KVL_STREAM_ROWS][2];
#pragma GCC unroll 2
    for (int i = 0; i < P; i++) {
        p[i] = view_of(job->panels + (uint64_t)(first + i) * job->panel_bytes, job->n_in);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) sum[i][r][0] = sum[i][r][1] = vf_zero();
    }
    int64_t step = p[0].header->step;
    for (int64_t k = 0; k < job->n_in; k += step) {
        float absmax[STREAM_PANELS][KVL_PANEL];
#pragma GCC unroll 2
        for (int i = 0; i < P; i++) {
            vf lanes[2];
            absmax_at(&p[i], k, lanes);
            __builtin_prefetch(p[i].absmax + (k / p[i].header->block + AHEAD_BLOCKS) * KVL_PANEL);
            vf_store(absmax[i], lanes[0]);
            vf_store(absmax[i] + KVL_VL, lanes[1]);
        }
        for (int64_t g = k / NF4_GROUP_K; g < (k + step) / NF4_GROUP_K; g++) {
#pragma GCC unroll 2
            for (int i = 0; i < P; i++) {
                const uint8_t *codes = p[i].codes + g * NF4_GROUP_BYTES;
                __builtin_prefetch(codes + PREFETCH_BYTES);
                stream_group(table, codes, absmax[i], job->x + g * NF4_GROUP_K, job->x_stride,
                             sum[i], R);
            }
        }
    }
#pragma GCC unroll 2
    for (int i = 0; i < P; i++) {
        int64_t o = (first + i) * KVL_PANEL;
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            kvl_sink_vector(&job->sink, r, o, sum[i][r][0]);
            kvl_sink_vector(&job->sink, r, o + KVL_VL, sum[i][r][1]);
        }
    }
}

/* Any width: weights go through memory. */
static void stream_odd(const kvl_stream_job *job, int64_t panel) {
    vf sum[KVL_STREAM_ROWS][2];
    for (int r = 0; r < job->n_rows; r++) sum[r][0] = sum[r][1] = vf_zero();
    float tile[TILE * KVL_PANEL];
    for (int64_t k0 = 0; k0 < job->n_in; k0 += TILE) {
        int64_t n_k = job->n_in - k0 < TILE ? job->n_in - k0 : TILE;
        decode_tile(job->panels + (uint64_t)panel * job->panel_bytes, job->n_in, k0, n_k, tile);
        for (int64_t k = 0; k < n_k; k++) {
            for (int r = 0; r < job->n_rows; r++) {
                vf a = vf_set1(job->x[r * job->x_stride + k0 + k]);
                sum[r][0] = vf_fma(a, vf_load_f32(tile + k * KVL_PANEL), sum[r][0]);
                sum[r][1] = vf_fma(a, vf_load_f32(tile + k * KVL_PANEL + KVL_VL), sum[r][1]);
            }
        }
    }
    for (int r = 0; r < job->n_rows; r++) {
        kvl_sink_vector(&job->sink, r, panel * KVL_PANEL, sum[r][0]);
        kvl_sink_vector(&job->sink, r, panel * KVL_PANEL + KVL_VL, sum[r][1]);
    }
}

static void stream(const kvl_stream_job *job) {
    static const int most[KVL_STREAM_ROWS + 1] = {0, 2, 1, 1, 1, 1, 1};
    if (job->first_panel == job->end_panel) return;
    if (job->n_in % NF4_GROUP_K) {
        for (int64_t i = job->first_panel; i < job->end_panel; i++) stream_odd(job, i);
        return;
    }
    const nf4_header *header =
        (const nf4_header *)(job->panels + (uint64_t)job->first_panel * job->panel_bytes);
    nf4_table table = nf4_table_make(kvl_nf4_map((kvl_nf4_type)header->type));
    int64_t n = job->end_panel - job->first_panel;
    int64_t n_steps = (n + most[job->n_rows] - 1) / most[job->n_rows];
    for (int64_t i = 0; i < n_steps; i++) {
        int64_t from = job->first_panel + n * i / n_steps;
        int64_t to = job->first_panel + n * (i + 1) / n_steps;
        switch (job->n_rows * 8 + (to - from)) {
#define CASE(rows, count) \
    case (rows)*8 + (count): \
        stream_panels(job, &table, from, rows, count); \
        break
            CASE(1, 1);
            CASE(1, 2);
            CASE(2, 1);
            CASE(3, 1);
            CASE(4, 1);
            CASE(5, 1);
            CASE(6, 1);
#undef CASE
        }
    }
}

/* ---- many rows on bf16 instructions -----------------------------------------------------------
 */

#if defined(KVL_ISA_IS_avx512_bf16)

enum {
    MATRIX_K = 4096, /* k of a panel unpacked at a time: a quarter of a 1 MiB L2 */
    MATRIX_BYTES = MATRIX_K * KVL_PANEL * 2
};

/* Two k of 16 lanes as pairs: the narrowing puts one k behind the other, a permute of words side by
 * side. */
static inline void store_pairs(uint16_t *to, vf even, vf odd) {
    static const uint16_t side_by_side[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                              21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                              11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_loadu_si512(side_by_side), both));
}

/* k0 .. k0 + n_k of a row of a multiple of 4 weights, k0 a multiple of the header's step. */
static void unpack_groups(const nf4_panel *p, const nf4_table *table, int64_t k0, int64_t n_k,
                          uint16_t *to) {
    int64_t step = p->header->step;
    for (int64_t k = k0; k < k0 + n_k; k += step) {
        vf absmax[2], w[NF4_GROUP_K][2];
        absmax_at(p, k, absmax);
        for (int64_t g = k / NF4_GROUP_K; g < (k + step) / NF4_GROUP_K; g++) {
            const uint8_t *codes = p->codes + g * NF4_GROUP_BYTES;
            __builtin_prefetch(codes + PREFETCH_BYTES);
            nf4_group(table, codes, w);
            for (int i = 0; i < NF4_GROUP_K; i += 2, to += 2 * KVL_PANEL) {
                for (int half = 0; half < 2; half++)
                    store_pairs(to + half * 2 * KVL_VL, vf_mul(w[i][half], absmax[half]),
                                vf_mul(w[i + 1][half], absmax[half]));
            }
        }
    }
}

/* Any width: weights go through memory; a last k without a partner gets zeros. */
static void unpack_odd(const void *panel, int64_t n_in, int64_t k0, int64_t n_k, uint16_t *to) {
    float tile[(TILE + 1) * KVL_PANEL];
    for (int64_t k = k0; k < k0 + n_k; k += TILE) {
        int64_t n = k0 + n_k - k < TILE ? k0 + n_k - k : TILE;
        decode_tile(panel, n_in, k, n, tile);
        memset(tile + n * KVL_PANEL, 0, KVL_PANEL * sizeof *tile);
        for (int64_t i = 0; i < n; i += 2, to += 2 * KVL_PANEL) {
            const float *even = tile + i * KVL_PANEL, *odd = even + KVL_PANEL;
            store_pairs(to, vf_load_f32(even), vf_load_f32(odd));
            store_pairs(to + 2 * KVL_VL, vf_load_f32(even + KVL_VL), vf_load_f32(odd + KVL_VL));
        }
    }
}

/* A piece of k after another, each adding to y what it has. */
static void matrix_panel(const kvl_matrix_job *job, const nf4_table *table, int64_t panel) {
    const uint8_t *stored = job->panels + (uint64_t)panel * job->panel_bytes;
    nf4_panel p = view_of(stored, job->n_in);
    int64_t step = p.header->step, piece = MATRIX_K - MATRIX_K % step;
    bool whole = job->n_in % NF4_GROUP_K == 0 && step % NF4_GROUP_K == 0;
    kvl_matrix_job part = *job;
    part.panels = job->scratch - (uint64_t)panel * MATRIX_BYTES; /* where `panel` is then */
    part.panel_bytes = MATRIX_BYTES;
    part.first_panel = panel, part.end_panel = panel + 1;
    for (int64_t k = 0; k < job->n_in; k += piece) {
        part.x = job->x + k;
        part.n_in = job->n_in - k < piece ? job->n_in - k : piece;
        if (whole)
            unpack_groups(&p, table, k, part.n_in, (uint16_t *)job->scratch);
        else
            unpack_odd(stored, job->n_in, k, part.n_in, (uint16_t *)job->scratch);
        KVL_ISA_FN(kvl_matrix_bf16)(&part);
        part.sink.accumulate = true;
        part.sink.bias = NULL;
    }
}

static void matrix(const kvl_matrix_job *job) {
    if (job->first_panel == job->end_panel) return;
    const nf4_header *header =
        (const nf4_header *)(job->panels + (uint64_t)job->first_panel * job->panel_bytes);
    nf4_table table = nf4_table_make(kvl_nf4_map((kvl_nf4_type)header->type));
    for (int64_t i = job->first_panel; i < job->end_panel; i++) matrix_panel(job, &table, i);
}

#define NF4_MATRIX \
    .matrix = matrix, .matrix_kernel = "matrix/avx512_bf16", .matrix_rows = KVL_MATRIX_BF16_ROWS, \
    .matrix_scratch_bytes = MATRIX_BYTES
#else
#define NF4_MATRIX .matrix = NULL
#endif

/* ---- the three formats ---------------------------------------------------------------------- */

#define BLOCKS(name, its_type, is_nested) \
    static const kvl_block_codec name = {.type = its_type, \
                                         .nested = is_nested, \
                                         .panel_bytes = panel_bytes, \
                                         .start_panel = start_panel, \
                                         .set_phase = set_phase, \
                                         .set_codes = set_codes, \
                                         .set_absmax = set_absmax}
BLOCKS(nf4_blocks, KVL_NF4, false);
BLOCKS(nf4_dq_blocks, KVL_NF4, true);
BLOCKS(fp4_blocks, KVL_FP4, false);

#define CODEC(its_name, its_blocks, its_summary) \
    { \
        .format = {.name = its_name, \
                   .summary = its_summary, \
                   .dtype = KVL_U8, \
                   .bits_per_weight = 4.5, \
                   .in_blocks = true}, \
        .panel = KVL_PANEL, .decode_row = decode_row, .decode_tile = decode_tile, \
        .stream = stream, .blocks = &its_blocks, NF4_MATRIX \
    }
const kvl_weight_codec KVL_ISA_FN(kvl_weights_nf4) =
    CODEC("nf4", nf4_blocks, "4-bit normal quantiles, a float32 absmax for each 64");
const kvl_weight_codec KVL_ISA_FN(kvl_weights_nf4_dq) =
    CODEC("nf4_dq", nf4_dq_blocks, "nf4 with absmax rounded to 8 bits (double quantisation)");
const kvl_weight_codec KVL_ISA_FN(kvl_weights_fp4) =
    CODEC("fp4", fp4_blocks, "4-bit floats of bitsandbytes, a float32 absmax for each 64");
