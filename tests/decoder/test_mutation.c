/* 20,000 seeded changes of small valid files, of each format: bits and bytes changed, cuts, repeats
 * and insertions. Whatever comes of it is opened or refused; nothing crashes (the sanitizers watch)
 * or hangs (the test has a time limit). A round can be run again by its number. */
#define _GNU_SOURCE
#include "tests/test.h"

#include <sys/mman.h>

#include "core/buffer.h"
#include "core/rng.h"
#include "decoder/config.h"
#include "decoder/gguf.h"
#include "decoder/json.h"
#include "decoder/safetensors.h"
#include "decoder/source.h"
#include "tests/decoder/tiny_gguf.h"

enum { ROUNDS = 20000 };

/* Values that break readers, for a random place. */
static const uint64_t wild[] = {0,          1,         UINT64_MAX, 1ull << 63,        INT64_MAX,
                                UINT32_MAX, INT32_MAX, 1u << 31,   0x7fffffffffffffc0};

/* A place within the first `head` bytes nine times of ten: that is where the structure is. */
static size_t place(kvl_rng *rng, size_t bytes, size_t head) {
    bool in_head = kvl_rng_below(rng, 10) != 0 && head < bytes;
    return (size_t)kvl_rng_below(rng, in_head ? head : bytes);
}

/* One change of data[0..*bytes), which has room for 64 more. */
static void change(kvl_rng *rng, uint8_t *data, size_t *bytes, size_t head) {
    if (*bytes < 16) return;
    size_t at = place(rng, *bytes - 8, head), n = 1 + (size_t)kvl_rng_below(rng, 32);
    switch (kvl_rng_below(rng, 7)) {
    case 0:
        data[at] ^= (uint8_t)(1u << kvl_rng_below(rng, 8));
        break;
    case 1:
        data[at] = (uint8_t)kvl_rng_u64(rng);
        break;
    case 2:
        memcpy(data + at, &wild[kvl_rng_below(rng, sizeof wild / sizeof *wild)], 8);
        break;
    case 3:
        *bytes = place(rng, *bytes, head);
        break;
    case 4: /* insertion of random bytes */
        memmove(data + at + n, data + at, *bytes - at);
        for (size_t i = 0; i < n; i++) data[at + i] = (uint8_t)kvl_rng_u64(rng);
        *bytes += n;
        break;
    case 5: /* removal */
        if (n > *bytes - at) n = *bytes - at;
        memmove(data + at, data + at + n, *bytes - at - n);
        *bytes -= n;
        break;
    default: /* a piece of the file stands once more elsewhere */
        if (n > *bytes - at) n = *bytes - at;
        memmove(data + place(rng, *bytes - n + 1, head), data + at, n);
    }
}

static void put_file(int fd, const void *data, size_t bytes) {
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 || pwrite(fd, data, bytes, 0) != (ssize_t)bytes)
        abort();
}

/* Runs all rounds of one format; `use` opens and reads the file at the path. Returns how many files
 * were still good. */
static int mutate(const kvl_buffer *good, size_t head, uint64_t stream,
                  kvl_status (*use)(const char *path)) {
    /* A file in memory: 60,000 rewrites of one on a disk take minutes where the disk is busy. */
    char path[32];
    int fd = memfd_create("mutation", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    put_file(fd, good->data, good->bytes);
    assert_ok(use(path));
    uint8_t *data = malloc(good->bytes + 512);
    int opened = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        kvl_rng rng = kvl_rng_make(stream, round);
        size_t bytes = good->bytes;
        memcpy(data, good->data, bytes);
        int changes = 1 + (int)kvl_rng_below(&rng, 3);
        for (int i = 0; i < changes; i++) change(&rng, data, &bytes, head);
        put_file(fd, data, bytes);
        kvl_status status = use(path);
        if (status == KVL_OK)
            opened++;
        else if (status == KVL_ERR_INTERNAL || status == KVL_ERR_OOM || !kvl_message()[0])
            fail_msg("round %d: %s: %s", (int)round, kvl_status_name(status), kvl_message());
    }
    free(data);
    close(fd);
    return opened;
}

static kvl_status use_gguf(const char *path) {
    kvl_gguf *gguf;
    kvl_config config;
    kvl_source source;
    KVL_TRY(kvl_gguf_open(path, &gguf));
    kvl_status status = kvl_config_from_gguf(gguf, &config);
    if (status == KVL_OK) status = kvl_source_from_gguf(gguf, &config, &source);
    if (status != KVL_OK) {
        kvl_gguf_close(gguf);
        return status;
    }
    float row[TINY_INTER];
    status = source.read_rows(&source, "model.layers.1.self_attn.q_proj.weight", 15, 1, row);
    if (status == KVL_OK)
        status = source.read_rows(&source, "model.layers.1.mlp.down_proj.weight", 15, 1, row);
    source.close(&source);
    return status;
}

static void gguf_survives(void **state) {
    tiny_gguf t = tiny_make();
    tiny_set(&t, "general.alignment", T_U32, 32, NULL);
    kvl_buffer b = {0};
    tiny_write(&t, &b);
    int opened = mutate(&b, 1800, 1, use_gguf);
    /* Changes of the data open, changes of the head mostly do not. */
    assert_in_range(opened, ROUNDS / 1000, ROUNDS / 2);
    kvl_buffer_free(&b);
}

static kvl_status use_safetensors(const char *path) {
    kvl_safetensors *st;
    KVL_TRY(kvl_st_open(path, &st));
    kvl_status status = KVL_OK;
    for (size_t i = 0; i < kvl_st_count(st) && status == KVL_OK; i++) {
        const kvl_st_tensor *tensor = kvl_st_at(st, i);
        float last;
        if (tensor->n_elems) status = kvl_st_read_f32(tensor, tensor->n_elems - 1, 1, &last);
    }
    kvl_st_close(st);
    return status;
}

static void safetensors_survive(void **state) {
    const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[2,8],\"data_offsets\":[0,64]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[16],\"data_offsets\":[64,96]},"
        "\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[96,104]},"
        "\"d\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,2,3],\"data_offsets\":[104,110]}}";
    kvl_buffer b = {0};
    put_u64(&b, strlen(header));
    kvl_buffer_text(&b, header);
    put_zeros(&b, 110);
    int opened = mutate(&b, 8 + strlen(header), 2, use_safetensors);
    assert_in_range(opened, ROUNDS / 1000, ROUNDS / 2);
    kvl_buffer_free(&b);
}

static kvl_status use_json(const char *path) {
    json_t *root;
    KVL_TRY(kvl_json_load(path, &root));
    json_decref(root);
    return KVL_OK;
}

static void json_survives(void **state) {
    kvl_buffer b = {0};
    kvl_buffer_text(&b, "{\"a\":[1,2.5e3,true,null,\"\\u00e9\\ud83d\\ude00\"],\"b\":{\"c\":{}},"
                        "\"d\":-0.5,\"e\":\"\xc3\xa9\"}");
    int opened = mutate(&b, b.bytes, 3, use_json);
    assert_in_range(opened, ROUNDS / 1000, ROUNDS / 2);
    kvl_buffer_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_survives),
        cmocka_unit_test(safetensors_survive),
        cmocka_unit_test(json_survives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
