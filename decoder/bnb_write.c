#define _GNU_SOURCE
#include "decoder/bnb_write.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/threads.h"
#include "decoder/safetensors.h"
#include "decoder/tensor_spec.h"
#include "quant/kv_format.h"

/* The state's text is padded with spaces to this, so that sizes are known before offsets are. */
enum { STATE_BYTES = 256, NAME_BYTES = 128, CHUNK_ELEMS = 1 << 18 };

/* The tensors that a quantised one becomes, in this order; nested ones only when nested. */
enum { PACKED, ABSMAX, QUANT_MAP, STATE, NESTED_ABSMAX, NESTED_MAP, N_PARTS };

typedef struct item {
    kvl_tensor_spec spec;
    bool is_quantised;
    size_t first; /* of its tensors in the file */
} item;

typedef struct writer {
    const kvl_model *model;
    const kvl_bnb_write_options *options;
    item *items; /* [n_items] */
    size_t n_items, n_tensors, first_scale;
    kvl_st_tensor *tensors; /* [n_tensors] */
    char (*names)[NAME_BYTES];
    kvl_st_stream *stream;
    void (*progress)(void *user, double share);
    void *user;
    double total_elems;
    _Atomic int64_t done_elems;
} writer;

/* ---- what the file holds -------------------------------------------------------------------- */

static void add_tensor(writer *w, const char *name, const char *part, kvl_dtype dtype, int64_t rows,
                       int64_t cols) {
    kvl_st_tensor *tensor = &w->tensors[w->n_tensors];
    char *own = w->names[w->n_tensors++];
    snprintf(own, NAME_BYTES, "%s%s", name, part);
    int64_t n_elems = rows * (cols ? cols : 1);
    *tensor = (kvl_st_tensor){.name = own,
                              .dtype = dtype,
                              .n_dims = cols ? 2 : 1,
                              .dims = {rows, cols},
                              .n_elems = n_elems,
                              .bytes = (uint64_t)n_elems * kvl_dtype_bytes(dtype)};
}

static void add_quantised(writer *w, const kvl_tensor_spec *spec) {
    const kvl_bnb_write_options *o = w->options;
    int64_t n = spec->rows * spec->cols, n_blocks = kvl_nf4_blocks(n, o->block);
    char state[64];
    snprintf(state, sizeof state, ".quant_state.bitsandbytes__%s", kvl_nf4_type_name(o->type));
    add_tensor(w, spec->name, "", KVL_U8, (n + 1) / 2, 1);
    add_tensor(w, spec->name, ".absmax", o->nested ? KVL_U8 : KVL_F32, n_blocks, 0);
    add_tensor(w, spec->name, ".quant_map", KVL_F32, 16, 0);
    add_tensor(w, spec->name, state, KVL_U8, STATE_BYTES, 0);
    if (!o->nested) return;
    int64_t n_scales = kvl_nf4_blocks(n_blocks, KVL_NF4_NESTED_BLOCK);
    add_tensor(w, spec->name, ".nested_absmax", KVL_F32, n_scales, 0);
    add_tensor(w, spec->name, ".nested_quant_map", KVL_F32, 256, 0);
}

static kvl_status plan(writer *w) {
    const kvl_config *c = &w->model->config;
    if (w->options->skip) KVL_TRY(kvl_tensor_list_check("nf4-skip", c, w->options->skip));
    w->n_items = kvl_tensor_spec_count(c);
    w->items = calloc(w->n_items, sizeof *w->items);
    const size_t n = w->n_items * N_PARTS + 2 * (size_t)c->n_layers;
    w->tensors = calloc(n, sizeof *w->tensors);
    w->names = calloc(n, sizeof *w->names);
    if (!w->items || !w->tensors || !w->names)
        return kvl_fail(KVL_ERR_OOM, "out of memory: list of tensors");
    for (size_t i = 0; i < w->n_items; i++) {
        item *it = &w->items[i];
        kvl_tensor_spec_at(c, i, &it->spec);
        const char *skip = w->options->skip ? w->options->skip : "lm_head";
        it->is_quantised =
            it->spec.kind == KVL_TENSOR_MATRIX && i > 0 && !kvl_tensor_listed(skip, it->spec.name);
        it->first = w->n_tensors;
        w->total_elems += (double)it->spec.rows * (double)it->spec.cols;
        if (it->is_quantised)
            add_quantised(w, &it->spec);
        else
            add_tensor(w, it->spec.name, "", w->options->other_dtype, it->spec.rows,
                       it->spec.kind == KVL_TENSOR_MATRIX ? it->spec.cols : 0);
    }
    w->first_scale = w->n_tensors;
    for (int32_t i = 0; w->options->kv_scales && i < 2 * c->n_layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.", i / 2);
        add_tensor(w, name, i % 2 ? "v_scale" : "k_scale", KVL_F32, 1, 0);
    }
    return KVL_OK;
}

/* ---- a piece of a tensor -------------------------------------------------------------------- */

/* Room of one thread: values, and as many bytes of codes. */
typedef struct room {
    float *values;
    uint8_t *codes;
    int64_t n_elems;
} room;

static kvl_status read_piece(writer *w, const kvl_tensor_spec *spec, int64_t row, int64_t n_rows,
                             float *out) {
    const kvl_source *source = &w->model->source;
    KVL_TRY(source->read_rows(source, spec->name, row, n_rows, out));
    if (w->options->allow_nonfinite) return KVL_OK;
    int64_t bad = kvl_nf4_find_nonfinite(out, n_rows * spec->cols);
    if (bad < 0) return KVL_OK;
    return kvl_fail(KVL_ERR_INPUT,
                    "model %s: tensor %s: element [%lld][%lld] is %g: --allow-nonfinite takes it",
                    w->model->config.name, spec->name, (long long)(row + bad / spec->cols),
                    (long long)(bad % spec->cols), (double)out[bad]);
}

/* Whole blocks and whole bytes, but for the tensor's last rows. */
static kvl_status quantise_piece(writer *w, const item *it, int64_t row, int64_t n_rows, room *r,
                                 float *absmax) {
    const kvl_bnb_write_options *o = w->options;
    int64_t n = n_rows * it->spec.cols, from = row * it->spec.cols;
    kvl_nf4_encode(o->type, o->block, r->values, n, r->codes, absmax + from / o->block);
    uint8_t *packed = (uint8_t *)r->values;
    kvl_nf4_pack(o->type, r->codes, n, packed);
    return kvl_st_stream_write(w->stream, it->first + PACKED, (uint64_t)from / 2, packed,
                               ((uint64_t)n + 1) / 2);
}

static kvl_status convert_piece(writer *w, const item *it, int64_t row, int64_t n_rows, room *r) {
    int64_t n = n_rows * it->spec.cols, width = (int64_t)kvl_dtype_bytes(w->options->other_dtype);
    int64_t lost = kvl_encode(w->options->other_dtype, r->values, n, 1.0f, r->codes);
    if (lost && !w->options->allow_nonfinite)
        return kvl_fail(KVL_ERR_INPUT, "tensor %s: %lld values are too large for %s", it->spec.name,
                        (long long)lost, kvl_dtype_name(w->options->other_dtype));
    return kvl_st_stream_write(w->stream, it->first, (uint64_t)(row * it->spec.cols * width),
                               r->codes, (uint64_t)(n * width));
}

/* Rows of a piece: about CHUNK_ELEMS elements, and whole blocks and bytes. */
static int64_t piece_rows(const writer *w, const kvl_tensor_spec *spec) {
    int64_t unit = 1, block = w->options->block;
    while (unit * spec->cols % block) unit *= 2;
    int64_t rows = CHUNK_ELEMS / spec->cols / unit * unit;
    return rows ? rows : unit;
}

/* ---- a tensor ------------------------------------------------------------------------------- */

typedef struct failure {
    kvl_status status;
    char message[1024];
} failure;

static void note_failure(failure *first, kvl_status status) {
#pragma omp critical(kvl_bnb_write_failure)
    if (first->status == KVL_OK) {
        first->status = status;
        snprintf(first->message, sizeof first->message, "%s", kvl_message());
    }
}

static bool make_room(room *r, int64_t n_elems) {
    r->n_elems = n_elems;
    r->values = malloc((size_t)n_elems * sizeof *r->values);
    r->codes = malloc((size_t)n_elems * sizeof(float));
    return r->values && r->codes;
}

/* All pieces with all threads. absmax: [blocks], or NULL for a tensor that stays. */
static kvl_status write_pieces(writer *w, const item *it, float *absmax) {
    const kvl_tensor_spec *spec = &it->spec;
    int64_t step = piece_rows(w, spec), n_pieces = (spec->rows + step - 1) / step;
    failure first = {.status = KVL_OK};
    atomic_int stop = 0;
    int n_threads = n_pieces < kvl_threads() ? (int)n_pieces : kvl_threads();
#pragma omp parallel num_threads(n_threads)
    {
        room r = {0};
        int64_t most = step < spec->rows ? step : spec->rows;
        kvl_status status = make_room(&r, most * spec->cols)
                                ? KVL_OK
                                : kvl_fail(KVL_ERR_OOM, "out of memory: %s", spec->name);
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < n_pieces; piece++) {
            int64_t row = piece * step, n = spec->rows - row < step ? spec->rows - row : step;
            if (status == KVL_OK && !stop && w->options->stop && *w->options->stop)
                status = kvl_fail(KVL_ERR_IO, "interrupted: nothing is left");
            if (status == KVL_OK && !stop) status = read_piece(w, spec, row, n, r.values);
            if (status == KVL_OK && !stop)
                status = absmax ? quantise_piece(w, it, row, n, &r, absmax)
                                : convert_piece(w, it, row, n, &r);
            if (status != KVL_OK && !stop) {
                stop = 1;
                note_failure(&first, status);
            }
            w->done_elems += n * spec->cols;
            if (w->progress && omp_get_thread_num() == 0)
                w->progress(w->user, (double)w->done_elems / w->total_elems);
        }
        free(r.values);
        free(r.codes);
    }
    return first.status == KVL_OK ? KVL_OK : kvl_fail(first.status, "%s", first.message);
}

static kvl_status write_state(writer *w, const item *it, float offset) {
    const kvl_bnb_write_options *o = w->options;
    char text[STATE_BYTES + 1], nested[128] = "";
    if (o->nested)
        snprintf(nested, sizeof nested,
                 ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": "
                 "%.17g",
                 KVL_NF4_NESTED_BLOCK, (double)offset);
    int n = snprintf(text, sizeof text,
                     "{\"quant_type\": \"%s\", \"blocksize\": %lld, \"dtype\": \"%s\", "
                     "\"shape\": [%lld, %lld]%s}",
                     kvl_nf4_type_name(o->type), (long long)o->block,
                     o->other_dtype == KVL_F32   ? "float32"
                     : o->other_dtype == KVL_F16 ? "float16"
                                                 : "bfloat16",
                     (long long)it->spec.rows, (long long)it->spec.cols, nested);
    memset(text + n, ' ', (size_t)(STATE_BYTES - n));
    return kvl_st_stream_write(w->stream, it->first + STATE, 0, text, STATE_BYTES);
}

static kvl_status write_whole(writer *w, size_t index, const void *data) {
    return kvl_st_stream_write(w->stream, index, 0, data, w->tensors[index].bytes);
}

/* absmax as it is, or in 8 bits. */
static kvl_status write_absmax(writer *w, const item *it, const float *absmax, int64_t n) {
    float offset = 0;
    if (!w->options->nested) {
        KVL_TRY(write_whole(w, it->first + ABSMAX, absmax));
        return write_state(w, it, offset);
    }
    int64_t n_scales = kvl_nf4_blocks(n, KVL_NF4_NESTED_BLOCK);
    uint8_t *codes = malloc((size_t)n);
    float *scales = malloc((size_t)n_scales * sizeof *scales);
    kvl_status status = KVL_OK;
    if (!codes || !scales)
        status = kvl_fail(KVL_ERR_OOM, "out of memory: %s", it->spec.name);
    else
        kvl_nf4_nest(absmax, n, codes, scales, &offset);
    if (status == KVL_OK) status = write_whole(w, it->first + ABSMAX, codes);
    if (status == KVL_OK) status = write_whole(w, it->first + NESTED_ABSMAX, scales);
    if (status == KVL_OK) status = write_whole(w, it->first + NESTED_MAP, kvl_nf4_dynamic_map());
    free(codes);
    free(scales);
    return status == KVL_OK ? write_state(w, it, offset) : status;
}

static kvl_status write_item(writer *w, const item *it) {
    if (!it->is_quantised) return write_pieces(w, it, NULL);
    int64_t n_blocks = kvl_nf4_blocks(it->spec.rows * it->spec.cols, w->options->block);
    float *absmax = malloc((size_t)n_blocks * sizeof *absmax);
    if (!absmax) return kvl_fail(KVL_ERR_OOM, "out of memory: %s", it->spec.name);
    kvl_status status = write_pieces(w, it, absmax);
    if (status == KVL_OK) status = write_absmax(w, it, absmax, n_blocks);
    if (status == KVL_OK)
        status = write_whole(w, it->first + QUANT_MAP, kvl_nf4_map(w->options->type));
    free(absmax);
    return status;
}

/* ---- the folder ----------------------------------------------------------------------------- */

/* Scales of e4m3 a tensor for other systems, and of each head in a file beside. */
static kvl_status write_scales(writer *w, const char *dir) {
    const kvl_kv_scales *s = w->options->kv_scales;
    char path[4200];
    float *scales = malloc((size_t)s->n_layers * (size_t)s->n_kv_heads * sizeof *scales);
    if (!scales) return kvl_fail(KVL_ERR_OOM, "out of memory: KV scales");
    kvl_status status = KVL_OK;
    for (int is_v = 0; is_v < 2; is_v++) {
        kvl_kv_scales_of(s, KVL_FP8_E4M3, is_v, false, scales);
        for (int32_t i = 0; status == KVL_OK && i < s->n_layers; i++)
            status = write_whole(w, w->first_scale + 2 * (size_t)i + (size_t)is_v,
                                 scales + i * s->n_kv_heads);
    }
    free(scales);
    snprintf(path, sizeof path, "%s/kv_scales.json", dir);
    if (status == KVL_OK)
        status = kvl_kv_scales_write(path, s, w->options->kv_text, w->options->kv_tokens);
    return status;
}

static kvl_status write_tensors(writer *w, const char *dir) {
    char path[4200];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    KVL_TRY(kvl_st_stream_create(path, w->tensors, w->n_tensors, &w->stream));
    kvl_status status = KVL_OK;
    for (size_t i = 0; i < w->n_items && status == KVL_OK; i++)
        status = write_item(w, &w->items[i]);
    if (status == KVL_OK && w->options->kv_scales) status = write_scales(w, dir);
    return kvl_st_stream_close(w->stream, status);
}

/* Files that say how text becomes tokens and where it ends. */
static kvl_status copy_files(const char *source, const char *dir) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "added_tokens.json",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "generation_config.json"};
    struct stat info;
    if (stat(source, &info) != 0 || !S_ISDIR(info.st_mode)) return KVL_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[4200], to[4200];
        snprintf(from, sizeof from, "%s/%s", source, names[i]);
        snprintf(to, sizeof to, "%s/%s", dir, names[i]);
        if (access(from, F_OK) != 0) continue;
        kvl_file file;
        KVL_TRY(kvl_file_open(from, &file));
        kvl_status status = kvl_file_write_all(to, file.data, file.bytes);
        kvl_file_close(&file);
        KVL_TRY(status);
    }
    return KVL_OK;
}

static kvl_status write_config(const writer *w, const char *source, const char *dir) {
    char path[4200], *text = NULL;
    snprintf(path, sizeof path, "%s/config.json", dir);
    KVL_TRY(kvl_bnb_config(w->model, source, w->options, &text));
    kvl_status status = kvl_file_write_all(path, text, strlen(text));
    free(text);
    return status;
}

/* The temporary folder holds plain files only. */
static void remove_folder(const char *dir) {
    DIR *stream = opendir(dir);
    const struct dirent *entry;
    while (stream && (entry = readdir(stream))) {
        char path[4500];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        unlink(path);
    }
    if (stream) closedir(stream);
    rmdir(dir);
}

static kvl_status write_folder(writer *w, const char *source, const char *out) {
    char temporary[4096];
    struct stat info;
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/') length--;
    if (length == 0 || length > 4000)
        return kvl_fail(KVL_ERR_INPUT, "--out: a path of 1 to 4000 bytes is needed");
    if (lstat(out, &info) == 0) return kvl_fail(KVL_ERR_INPUT, "%s: exists already", out);
    snprintf(temporary, sizeof temporary, "%.*s.XXXXXX", (int)length, out);
    if (!mkdtemp(temporary))
        return kvl_fail(KVL_ERR_IO, "%s: cannot write: %s", out, strerror(errno));
    chmod(temporary, 0755);
    kvl_status status = plan(w);
    if (status == KVL_OK) status = write_config(w, source, temporary);
    if (status == KVL_OK) status = copy_files(source, temporary);
    if (status == KVL_OK) status = write_tensors(w, temporary);
    if (status == KVL_OK && renameat2(AT_FDCWD, temporary, AT_FDCWD, out, RENAME_NOREPLACE) != 0)
        status = kvl_fail(KVL_ERR_IO, "%s: cannot be made: %s", out, strerror(errno));
    if (status != KVL_OK) remove_folder(temporary);
    return status;
}

kvl_status kvl_bnb_write(const kvl_model *model, const char *source,
                         const kvl_bnb_write_options *options, const char *out,
                         void (*progress)(void *user, double share), void *user) {
    KVL_TRY(kvl_nf4_check_block("nf4 block", options->block));
    writer w = {.model = model, .options = options, .progress = progress, .user = user};
    kvl_status status = write_folder(&w, source, out);
    free(w.items);
    free(w.tensors);
    free(w.names);
    return status;
}
