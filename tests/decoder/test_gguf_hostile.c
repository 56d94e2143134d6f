/* Broken GGUF files, each refused with its field, byte offset, value and limit. Every case is built
 * so that the checks after the one it aims at would pass. */
#include "tests/test.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "decoder/gguf.h"
#include "tests/decoder/tiny_gguf.h"

/* The file made of `b`, extended by a hole to `bytes` when that is more, is refused with `code` and
 * a message that holds the path, `part` and "(byte <at>)". */
static void refuse_sized(const kvl_buffer *b, uint64_t bytes, kvl_status code, const char *part,
                         uint64_t at) {
    char path[] = "/tmp/kvl_hostile_XXXXXX", place[40];
    write_temporary(path, b->data ? b->data : "", b->bytes);
    if (bytes > b->bytes && truncate(path, (off_t)bytes) != 0) abort();
    kvl_gguf *gguf = NULL;
    kvl_status status = kvl_gguf_open(path, &gguf);
    unlink(path);
    if (status == KVL_OK) kvl_gguf_close(gguf);
    assert_true(strlen(kvl_message()) < 500);
    assert_refused(status, code, part);
    snprintf(place, sizeof place, "(byte %llu)", (unsigned long long)at);
    assert_non_null(strstr(kvl_message(), place));
    assert_ptr_equal(strstr(kvl_message(), path), kvl_message());
    assert_null(gguf);
}

static void refuse(kvl_buffer *b, const char *part, uint64_t at) {
    refuse_sized(b, 0, KVL_ERR_INPUT, part, at);
    kvl_buffer_clear(b);
}

static void opens(kvl_buffer *b, uint64_t bytes) {
    char path[] = "/tmp/kvl_hostile_XXXXXX";
    write_temporary(path, b->data, b->bytes);
    if (bytes > b->bytes && truncate(path, (off_t)bytes) != 0) abort();
    kvl_gguf *gguf;
    kvl_status status = kvl_gguf_open(path, &gguf);
    unlink(path);
    assert_ok(status);
    kvl_gguf_close(gguf);
    kvl_buffer_clear(b);
}

/* ---- prefixes ---- */

static void every_prefix_is_refused(void **state) {
    tiny_gguf t = tiny_make();
    tiny_set(&t, "general.alignment", T_U32, 32, NULL);
    kvl_buffer b = {0};
    tiny_write(&t, &b);
    char path[] = "/tmp/kvl_prefix_XXXXXX";
    write_temporary(path, b.data, b.bytes);
    kvl_gguf *gguf;
    assert_ok(kvl_gguf_open(path, &gguf));
    kvl_gguf_close(gguf);
    for (size_t n = b.bytes; n-- > 0;) {
        if (truncate(path, (off_t)n) != 0) abort();
        kvl_status status = kvl_gguf_open(path, &gguf);
        assert_refused(status, KVL_ERR_INPUT, "(byte ");
    }
    unlink(path);
    kvl_buffer_free(&b);
}

/* ---- header ---- */

static void magic_and_version(void **state) {
    kvl_buffer b = {0};
    refuse(&b, "magic", 0);
    kvl_buffer_text(&b, "GGUF");
    refuse(&b, "version", 4);
    kvl_buffer_text(&b, "GGML\3\0\0\0");
    refuse(&b, "0x4c4d4747", 0);
    kvl_buffer_add(&b, "FUGG\0\0\0\3", 8);
    put_zeros(&b, 16);
    refuse(&b, "bytes swapped: a big-endian file", 0);
    static const struct {
        uint32_t version;
        const char *part;
    } versions[] = {{0, "version (byte 4) 0: 2 and 3"},
                    {1, "version (byte 4) 1: 2 and 3"},
                    {4, "version (byte 4) 4: 2 and 3"},
                    {UINT32_MAX, "version (byte 4)"},
                    {0x03000000, "version 3 with its bytes swapped: big-endian"},
                    {0x02000000, "version 2 with its bytes swapped: big-endian"}};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        put_magic(&b, versions[i].version, 0, 0);
        refuse_sized(&b, 0, KVL_ERR_UNSUPPORTED, versions[i].part, 4);
        kvl_buffer_clear(&b);
    }
    for (uint32_t version = 2; version <= 3; version++) {
        put_magic(&b, version, 0, 0);
        opens(&b, 0);
    }
    kvl_buffer_free(&b);
}

/* Counts that wrap when multiplied by any record size, in a small file and in a large one. */
static void record_counts(void **state) {
    kvl_buffer b = {0};
    for (int field = 0; field < 2; field++) {
        const char *part = field ? "n_kv" : "n_tensors";
        uint64_t at = field ? 16 : 8;
        for (uint64_t size = 1; size <= 512; size++) {
            uint64_t count = size == 1 ? UINT64_MAX : UINT64_MAX / size + 2;
            put_magic(&b, 3, field ? 0 : count, field ? count : 0);
            put_zeros(&b, 4096);
            refuse(&b, part, at);
        }
        static const uint64_t counts[] = {1, 5, 1u << 20, (1u << 20) + 1, 1ull << 32, 1ull << 63};
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            put_magic(&b, 3, field ? 0 : counts[i], field ? counts[i] : 0);
            refuse(&b, part, at);
        }
        put_magic(&b, 3, field ? 0 : (1u << 20) + 1, field ? (1u << 20) + 1 : 0);
        refuse_sized(&b, 1ull << 30, KVL_ERR_INPUT, part, at);
        kvl_buffer_clear(&b);
    }
    kvl_buffer_free(&b);
}

/* ---- strings and arrays ---- */

static const uint64_t wild_lengths[] = {UINT64_MAX, UINT64_MAX - 7, 1ull << 63, INT64_MAX,
                                        1ull << 32, 1u << 31,       1u << 30};
enum { N_WILD = sizeof wild_lengths / sizeof *wild_lengths };

static void string_lengths(void **state) {
    kvl_buffer b = {0};
    for (int i = 0; i < N_WILD; i++) {
        uint64_t length = wild_lengths[i];
        put_magic(&b, 3, 0, 1);
        put_u64(&b, length); /* a key */
        put_zeros(&b, 17);   /* 49 bytes in all */
        refuse(&b, "key (byte 24): length", 24);

        put_magic(&b, 3, 0, 1);
        put_key(&b, "k", T_STRING);
        put_u64(&b, length);
        put_zeros(&b, 12);
        refuse(&b, "key 'k'", 37);

        put_magic(&b, 3, 0, 1);
        put_key_array(&b, "k", T_STRING, 2);
        put_string(&b, "fine");
        uint64_t at = b.bytes;
        put_u64(&b, length);
        put_zeros(&b, 100);
        refuse(&b, "array string", at);

        put_magic(&b, 3, 1, 0);
        put_u64(&b, length);
        put_zeros(&b, 100);
        refuse(&b, "tensor name", 24);
    }
    kvl_buffer_free(&b);
}

static void string_lengths_near_the_end(void **state) {
    kvl_buffer b = {0};
    /* One byte more than is left, and lengths that only the end of the file forbids. */
    static const uint64_t near[] = {21, 22, 40, 63};
    for (int i = 0; i < 4; i++) {
        for (int kind = 0; kind < 4; kind++) {
            put_magic(&b, 3, kind == 3, kind != 3);
            if (kind == 1) put_key(&b, "k", T_STRING);
            if (kind == 2) put_key_array(&b, "k", T_STRING, 1);
            uint64_t at = b.bytes;
            put_u64(&b, near[i]);
            put_zeros(&b, 20);
            char part[64];
            snprintf(part, sizeof part, "length %d", (int)near[i]);
            refuse(&b, part, at);
        }
    }
    kvl_buffer_free(&b);
}

static void string_lengths_past_the_caps(void **state) {
    kvl_buffer b = {0};
    /* Lengths that the file could hold and no reader should take: a key, a token, a value. */
    put_magic(&b, 3, 0, 1);
    put_u64(&b, 65536);
    refuse_sized(&b, 1 << 20, KVL_ERR_INPUT, "key (byte 24): length 65536: 1 to 65535", 24);
    kvl_buffer_clear(&b);
    put_magic(&b, 3, 0, 1);
    put_key_array(&b, "k", T_STRING, 1);
    uint64_t at = b.bytes;
    put_u64(&b, 1ull << 31);
    refuse_sized(&b, (1ull << 31) + 4096, KVL_ERR_INPUT, "length 2147483648", at);
    kvl_buffer_clear(&b);
    put_magic(&b, 3, 0, 1);
    put_key(&b, "k", T_STRING);
    at = b.bytes;
    put_u64(&b, (1u << 24) + 1);
    refuse_sized(&b, 1u << 25, KVL_ERR_INPUT, "length 16777217", at);
    kvl_buffer_clear(&b);
    put_magic(&b, 3, 0, 1);
    put_u64(&b, 0); /* key of length 0 */
    put_u32(&b, T_U8);
    put_zeros(&b, 8);
    refuse(&b, "key (byte 24): length 0", 24);
    put_magic(&b, 3, 0, 1);
    put_u64(&b, 3);
    kvl_buffer_add(&b, "a\0b", 3);
    put_u32(&b, T_U8);
    put_zeros(&b, 8);
    refuse(&b, "NUL", 24);
    kvl_buffer_free(&b);
}

static void array_counts(void **state) {
    static const int widths[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
    kvl_buffer b = {0};
    for (uint32_t type = 0; type <= T_F64; type++) {
        if (type == T_ARRAY) continue;
        uint64_t width = (uint64_t)widths[type];
        uint64_t counts[] = {1u << 20,       UINT64_MAX,           UINT64_MAX / width + 1,
                             UINT64_MAX / 2, 1ull << 61,           (1ull << 62) + 1,
                             1ull << 32,     (1ull << 32) / width, 40 / width + 1};
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            if (!counts[i]) continue;
            put_magic(&b, 3, 0, 1);
            put_key(&b, "k", T_ARRAY);
            put_u32(&b, type);
            uint64_t at = b.bytes;
            put_u64(&b, counts[i]);
            put_zeros(&b, 40);
            refuse(&b, "key 'k': ", at);
        }
    }
    /* More strings than any vocabulary, in one array or in two, in a file that could hold them. */
    put_magic(&b, 3, 0, 1);
    put_key_array(&b, "k", T_STRING, (1u << 24) + 1);
    refuse_sized(&b, 1u << 28, KVL_ERR_INPUT, "array count", b.bytes - 8);
    kvl_buffer_clear(&b);
    put_magic(&b, 3, 0, 2);
    put_key_array(&b, "a", T_STRING, 100);
    put_zeros(&b, 800);
    put_key_array(&b, "k", T_STRING, (1u << 24) - 99);
    refuse_sized(&b, 1u << 28, KVL_ERR_INPUT, "16777216 in all", b.bytes - 8);
    kvl_buffer_free(&b);
}

static void nested_arrays(void **state) {
    static const int depths[] = {1, 2, 3000, 200000};
    kvl_buffer b = {0};
    for (int d = 0; d < 4; d++) {
        put_magic(&b, 3, 0, 1);
        put_key(&b, "k", T_ARRAY);
        uint64_t at = b.bytes;
        for (int i = 0; i < depths[d]; i++) {
            put_u32(&b, T_ARRAY);
            put_u64(&b, 1);
        }
        put_u32(&b, T_U8);
        put_u64(&b, 1);
        put_u8(&b, 0);
        refuse(&b, "arrays of arrays", at);
    }
    kvl_buffer_free(&b);
}

static void value_types(void **state) {
    static const uint32_t types[] = {13, 14, 255, 1u << 31, UINT32_MAX};
    kvl_buffer b = {0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        put_magic(&b, 3, 0, 1);
        put_string(&b, "k");
        put_u32(&b, types[i]);
        put_zeros(&b, 64);
        refuse(&b, "key 'k': ", 33);
        put_magic(&b, 3, 0, 1);
        put_key_array(&b, "k", types[i], 1);
        put_zeros(&b, 64);
        refuse(&b, "array element type", 37);
    }
    /* The second value is an array, and the file ends after its element type. */
    put_magic(&b, 3, 0, 2);
    put_key_array(&b, "first", T_STRING, 2);
    put_string(&b, "a");
    put_string(&b, "b");
    put_key(&b, "second", T_ARRAY);
    put_u32(&b, T_STRING);
    refuse(&b, "key 'second': ", b.bytes);
    put_magic(&b, 3, 0, 2);
    put_key_u32(&b, "same", 1);
    uint64_t at = b.bytes;
    put_key_u32(&b, "same", 1);
    refuse(&b, "key 'same'", at);
    kvl_buffer_free(&b);
}

static void alignments(void **state) {
    static const uint32_t values[] = {0, 1, 4, 7, 13, 24, 33, 1u << 21, 1u << 31, UINT32_MAX};
    static const uint32_t types[] = {T_I32, T_U8, T_U64, T_F32, T_BOOL};
    kvl_buffer b = {0};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        put_magic(&b, 3, 1, 1);
        put_key_u32(&b, "general.alignment", values[i]);
        put_tensor(&b, "t", 1, (uint64_t[]){1}, 0, 0);
        put_zeros(&b, 256);
        refuse(&b, "general.alignment", 53);
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        put_magic(&b, 3, 1, 1);
        put_key(&b, "general.alignment", types[i]);
        put_u32(&b, 32);
        if (types[i] == T_U64) put_u32(&b, 0);
        if (types[i] == T_U8 || types[i] == T_BOOL) b.bytes -= 3;
        put_tensor(&b, "t", 1, (uint64_t[]){1}, 0, 0);
        put_zeros(&b, 256);
        refuse(&b, "u32 is needed", 53);
    }
    put_magic(&b, 3, 1, 1);
    put_key_string(&b, "general.alignment", "32");
    put_tensor(&b, "t", 1, (uint64_t[]){1}, 0, 0);
    put_zeros(&b, 256);
    refuse(&b, "is string: u32", 61);
    put_magic(&b, 3, 0, 1);
    put_key_array(&b, "general.alignment", T_U32, 1);
    put_u32(&b, 32);
    refuse(&b, "is array: u32", 65);
    kvl_buffer_free(&b);
}

/* ---- tensors ---- */

/* One tensor "t", whose record begins at 24; its n_dims at 33, its dims at 37. */
static void put_one(kvl_buffer *b, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                    uint64_t offset, size_t data) {
    put_magic(b, 3, 1, 0);
    put_tensor(b, "t", n_dims, dims, type, offset);
    put_padding(b, 32);
    put_zeros(b, data);
}

static void dimensions(void **state) {
    static const uint32_t counts[] = {0, 5, 20, 64, 1u << 31, UINT32_MAX};
    kvl_buffer b = {0};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        put_magic(&b, 3, 1, 0);
        put_string(&b, "t");
        put_u32(&b, counts[i]);
        for (int d = 0; d < 64; d++) put_u64(&b, 1);
        put_zeros(&b, 512);
        refuse(&b, "tensor 't': ", 33);
    }
    for (uint32_t d = 0; d < 4; d++) {
        static const uint64_t bad[] = {0, UINT64_MAX, 1ull << 63, INT64_MIN + 5};
        for (int i = 0; i < 4; i++) {
            uint64_t dims[4] = {1, 1, 1, 1};
            dims[d] = bad[i];
            put_one(&b, 4, dims, 0, 0, 4096);
            refuse(&b, "dim[", 37 + 8 * d);
        }
    }
    static const uint64_t products[][4] = {
        {1ull << 32, 1ull << 32, 1, 1},       {1ull << 62, 2, 1, 1},
        {1ull << 40, 1ull << 23, 1, 1},       {3, 0x5555555555555556, 1, 1},
        {1 << 16, 1 << 16, 1 << 16, 1 << 16}, {1ull << 62, 1, 1, 4}};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        put_one(&b, 4, products[i], 0, 0, 4096);
        kvl_gguf *gguf = NULL;
        char path[] = "/tmp/kvl_hostile_XXXXXX";
        write_temporary(path, b.data, b.bytes);
        kvl_status status = kvl_gguf_open(path, &gguf);
        unlink(path);
        assert_refused(status, KVL_ERR_INPUT, "fewer than 2^63 elements");
        kvl_buffer_clear(&b);
    }
    kvl_buffer_free(&b);
}

static void sizes_that_wrap(void **state) {
    kvl_buffer b = {0};
    /* 2^20 x (2^42 + 1) floats: 2^64 + 2^22 bytes, and the file has the 4 MiB that are left. */
    put_one(&b, 2, (uint64_t[]){1 << 20, (1ull << 42) + 1}, 0, 0, 0);
    refuse_sized(&b, (4 << 20) + 96, KVL_ERR_INPUT, "pass 2^64 bytes", 53);
    kvl_buffer_clear(&b);
    /* The same made of a real model's embedding. */
    tiny_gguf t = tiny_make();
    tiny_find(&t, "token_embd.weight")->dims[1] = (1ull << 42) + 1;
    tiny_find(&t, "token_embd.weight")->dims[0] = 1 << 20;
    tiny_gguf only = t;
    only.n_tensors = 0;
    tiny_write(&only, &b);
    b.bytes = 0;
    put_magic(&b, 3, 1, 0);
    put_tensor(&b, "token_embd.weight", 2, tiny_find(&t, "token_embd.weight")->dims, 0, 0);
    refuse_sized(&b, 5 << 20, KVL_ERR_INPUT, "tensor 'token_embd.weight': ", 69);
    kvl_buffer_clear(&b);
    /* 2^64 - 4 bytes, which round up to 0. */
    put_one(&b, 1, (uint64_t[]){UINT64_MAX / 4}, 0, 0, 4096);
    refuse(&b, "18446744073709551612 bytes", 24);
    put_one(&b, 1, (uint64_t[]){UINT64_MAX / 4 + 1}, 0, 0, 4096);
    refuse(&b, "pass 2^64 bytes", 45);
    /* Two of 2^63 - 64 bytes: each fits, the sum fits, the sum and the header do not. */
    put_magic(&b, 3, 2, 0);
    put_tensor(&b, "a", 1, (uint64_t[]){0x7FFFFFFFFFFFFFC0}, 24, 0);
    put_tensor(&b, "b", 1, (uint64_t[]){0x7FFFFFFFFFFFFFC0}, 24, 0x7FFFFFFFFFFFFFC0);
    put_zeros(&b, 4096);
    refuse(&b, "tensor 'a'", 24);
    /* A quantised tensor of more than 2^32 values: 65,536 in 32 bits, and those are there. */
    put_one(&b, 2, (uint64_t[]){65536, 65537}, 2, 0, 65536 / 32 * 18);
    refuse(&b, "tensor 't'", 24);
    put_one(&b, 2, (uint64_t[]){65536, 65537}, 2, 0, 0);
    opens(&b, 96 + 65536ull * 65537 / 32 * 18); /* a real one of this size is read */
    kvl_buffer_free(&b);
}

static void types(void **state) {
    static const uint32_t bad[] = {4,  5,  9,  15, 31, 32,  33,       36,
                                   37, 38, 42, 43, 64, 255, 1u << 31, UINT32_MAX};
    kvl_buffer b = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_one(&b, 1, (uint64_t[]){256}, bad[i], 0, 4096);
        refuse(&b, "type (byte 45)", 45);
    }
    put_one(&b, 1, (uint64_t[]){256}, 4, 0, 4096);
    refuse(&b, "q4_2 (retired)", 45);
    static const uint32_t blocked[] = {2, 3, 6, 7, 8, 20, 10, 14, 16, 23};
    for (size_t i = 0; i < sizeof blocked / sizeof *blocked; i++) {
        static const uint64_t rows[] = {1, 16, 31, 33, 255, 257};
        for (int r = 0; r < 6; r++) {
            /* 32 rows, so that the count of all values is a multiple. */
            put_one(&b, 2, (uint64_t[]){rows[r], 256}, blocked[i], 0, 1 << 18);
            refuse(&b, "no multiple of its block", 53);
        }
    }
    kvl_buffer_free(&b);
}

static void places(void **state) {
    kvl_buffer b = {0};
    const uint64_t eight[] = {8}; /* 32 bytes of F32 */
    put_one(&b, 1, eight, 0, 0, 32);
    opens(&b, 0);
    put_one(&b, 1, eight, 0, 0, 31);
    refuse(&b, "offset 0 + 32 bytes: the file has 31", 24);
    put_one(&b, 1, (uint64_t[]){9}, 0, 0, 35);
    refuse(&b, "the file has 35", 24);
    put_one(&b, 1, eight, 0, 32, 32);
    refuse(&b, "offset 32 + 32 bytes: the file has 32", 24);
    put_one(&b, 1, eight, 0, 1 << 30, 32);
    refuse(&b, "offset 1073741824", 24);
    put_one(&b, 1, eight, 0, UINT64_MAX, 64);
    refuse(&b, "offset 18446744073709551615", 24);
    put_one(&b, 1, eight, 0, UINT64_MAX - 31, 64); /* aligned; offset + 32 = 0 */
    refuse(&b, "offset 18446744073709551584", 24);
    static const uint64_t crooked[] = {1, 4, 16, 31, 33};
    for (size_t i = 0; i < sizeof crooked / sizeof *crooked; i++) {
        put_one(&b, 1, eight, 0, crooked[i], 128);
        refuse(&b, "no multiple of the alignment 32", 24);
    }
    /* The records end the file: the data's place is behind its end. */
    put_magic(&b, 3, 1, 0);
    put_tensor(&b, "t", 1, eight, 0, 0);
    refuse(&b, "the file has 0 bytes of data", 24);
    put_magic(&b, 3, 2, 0);
    put_tensor(&b, "a", 1, (uint64_t[]){16}, 0, 0); /* [0, 64) */
    uint64_t at = b.bytes;
    put_tensor(&b, "b", 1, eight, 0, 32);
    put_padding(&b, 32);
    put_zeros(&b, 128);
    refuse(&b, "tensor 'b' (byte 57): its data overlap those of 'a'", at);
    /* On one place either may be the one that is named. */
    put_magic(&b, 3, 2, 0);
    put_tensor(&b, "a", 1, eight, 0, 0);
    put_tensor(&b, "b", 1, eight, 0, 0);
    put_padding(&b, 32);
    put_zeros(&b, 128);
    char path[] = "/tmp/kvl_hostile_XXXXXX";
    write_temporary(path, b.data, b.bytes);
    kvl_gguf *gguf;
    assert_refused(kvl_gguf_open(path, &gguf), KVL_ERR_INPUT, "its data overlap those of");
    unlink(path);
    kvl_buffer_free(&b);
}

static void names(void **state) {
    kvl_buffer b = {0};
    static const size_t lengths[] = {0, 64, 65, 200, 70000};
    static char name[70001];
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memset(name, 'n', lengths[i]);
        name[lengths[i]] = 0;
        put_magic(&b, 3, 1, 0);
        put_tensor(&b, name, 1, (uint64_t[]){8}, 0, 0);
        put_zeros(&b, 128);
        refuse(&b, "tensor name (byte 24): length", 24);
    }
    memset(name, 'n', 63);
    name[63] = 0;
    put_magic(&b, 3, 1, 0);
    put_tensor(&b, name, 1, (uint64_t[]){8}, 0, 0);
    put_zeros(&b, 128);
    opens(&b, 0);
    put_magic(&b, 3, 1, 0);
    put_u64(&b, 3);
    kvl_buffer_add(&b, "t\0t", 3);
    put_u32(&b, 1);
    put_u64(&b, 8);
    put_u32(&b, 0);
    put_u64(&b, 0);
    put_zeros(&b, 128);
    refuse(&b, "NUL", 24);
    put_magic(&b, 3, 2, 0);
    put_tensor(&b, "t", 1, (uint64_t[]){8}, 0, 0);
    uint64_t at = b.bytes;
    put_tensor(&b, "t", 1, (uint64_t[]){8}, 0, 32);
    put_padding(&b, 32);
    put_zeros(&b, 128);
    refuse(&b, "tensor 't'", at);
    kvl_buffer_free(&b);
}

/* Hostile names reach messages: they stay one printable line. */
static void messages_stay_printable(void **state) {
    kvl_buffer b = {0};
    put_magic(&b, 3, 0, 1);
    put_string(&b, "k\n\x1b[2J\xff");
    put_u32(&b, 99);
    put_zeros(&b, 16);
    refuse(&b, "key 'k?\?[2J?'", 39);
    kvl_buffer_free(&b);
}

static void what_is_no_file(void **state) {
    kvl_gguf *gguf;
    assert_refused(kvl_gguf_open("/nonexistent.gguf", &gguf), KVL_ERR_IO, "/nonexistent.gguf");
    assert_refused(kvl_gguf_open("/tmp", &gguf), KVL_ERR_IO, "folder");
    assert_refused(kvl_gguf_open("/dev/zero", &gguf), KVL_ERR_IO, "device");
    char path[64];
    snprintf(path, sizeof path, "/tmp/kvl_fifo_%d", (int)getpid());
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(kvl_gguf_open(path, &gguf), KVL_ERR_IO, "FIFO");
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_prefix_is_refused),
        cmocka_unit_test(magic_and_version),
        cmocka_unit_test(record_counts),
        cmocka_unit_test(string_lengths),
        cmocka_unit_test(string_lengths_near_the_end),
        cmocka_unit_test(string_lengths_past_the_caps),
        cmocka_unit_test(array_counts),
        cmocka_unit_test(nested_arrays),
        cmocka_unit_test(value_types),
        cmocka_unit_test(alignments),
        cmocka_unit_test(dimensions),
        cmocka_unit_test(sizes_that_wrap),
        cmocka_unit_test(types),
        cmocka_unit_test(places),
        cmocka_unit_test(names),
        cmocka_unit_test(messages_stay_printable),
        cmocka_unit_test(what_is_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
