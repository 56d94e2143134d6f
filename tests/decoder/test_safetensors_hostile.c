/* Broken safetensors files, shard indexes and JSON, each refused by file and field. */
#include "tests/test.h"

#include <sys/stat.h>

#include "core/buffer.h"
#include "decoder/json.h"
#include "decoder/safetensors.h"
#include "decoder/shards.h"
#include "tests/decoder/gguf_maker.h"
#include "tests/decoder/temporary.h"

/* ---- one file ---- */

static kvl_status open_bytes(const void *data, size_t bytes, uint64_t sparse_bytes) {
    char path[] = "/tmp/kvl_sth_XXXXXX";
    write_temporary(path, data, bytes);
    if (sparse_bytes > bytes && truncate(path, (off_t)sparse_bytes) != 0) abort();
    kvl_safetensors *st = NULL;
    kvl_status status = kvl_st_open(path, &st);
    unlink(path);
    if (status == KVL_OK)
        kvl_st_close(st);
    else
        assert_ptr_equal(strstr(kvl_message(), path), kvl_message());
    return status;
}

/* A file of `header_bytes` as written, the header text and zeros of data. */
static kvl_status open_with(uint64_t header_bytes, const char *header, size_t data_bytes) {
    kvl_buffer b = {0};
    put_u64(&b, header_bytes);
    kvl_buffer_text(&b, header);
    put_zeros(&b, data_bytes);
    kvl_status status = open_bytes(b.data, b.bytes, 0);
    kvl_buffer_free(&b);
    return status;
}

static kvl_status open_header(const char *header, size_t data_bytes) {
    return open_with(strlen(header), header, data_bytes);
}

#define T(dtype, shape, offsets) \
    "\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define U(dtype, shape, offsets) \
    "\"u\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void header_lengths(void **state) {
    const char good[] = "{" T("F32", "[2]", "[0,8]") "}";
    assert_ok(open_header(good, 8));
    static const uint64_t lengths[] = {
        0,          1,          1000,           100000001, 1u << 31, 1ull << 32, UINT64_MAX - 7,
        UINT64_MAX, 1ull << 63, UINT64_MAX - 15};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        assert_refused(open_with(lengths[i], good, 8), KVL_ERR_INPUT, "byte ");
    assert_refused(open_with(1000, good, 8), KVL_ERR_INPUT, "header length (byte 0) 1000");
    assert_refused(open_with(strlen(good) + 9, good, 8), KVL_ERR_INPUT, "header length");
    /* A file that is long enough for the length that the format forbids. */
    uint8_t prefix[8 + sizeof good];
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)(100000001ull >> 8 * i);
    memcpy(prefix + 8, good, sizeof good);
    assert_refused(open_bytes(prefix, sizeof prefix, 200000000), KVL_ERR_INPUT,
                   "100000001: at most 100000000");
    for (size_t n = 0; n < 8; n++)
        assert_refused(open_bytes(prefix, n, 0), KVL_ERR_INPUT, "header length (byte 0)");
}

static void every_prefix_is_refused(void **state) {
    const char header[] = "{\"__metadata__\":{\"format\":\"pt\"}," T(
        "F32", "[2,2]", "[0,16]") "," U("BF16", "[3]", "[16,22]") "}   ";
    kvl_buffer b = {0};
    put_u64(&b, strlen(header));
    kvl_buffer_text(&b, header);
    put_zeros(&b, 22);
    assert_ok(open_bytes(b.data, b.bytes, 0));
    for (size_t n = 0; n < b.bytes; n++)
        assert_refused(open_bytes(b.data, n, 0), KVL_ERR_INPUT, "byte ");
    kvl_buffer_free(&b);
}

static void header_text(void **state) {
    const struct {
        const char *header, *part;
    } cases[] = {
        {"[" T("F32", "[2]", "[0,8]") "]", "does not start with '{'"},
        {" {" T("F32", "[2]", "[0,8]") "}", "does not start with '{'"},
        {"\xef\xbb\xbf{" T("F32", "[2]", "[0,8]") "}", "does not start with '{'"},
        {"{" T("F32", "[2]", "[0,8]"), "end of file"},
        {"{" T("F32", "[2]", "[0,8]") "}x", "end of file expected"},
        {"{\"a\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "byte 0xff"},
        {"{\"a\xed\xa0\x80\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         "decode byte"},
        {"{" T("F32", "[2]", "[0,8]") "," T("F32", "[2]", "[0,8]") "}", "duplicate"},
        {"{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
         "duplicate"},
        {"{\"__metadata__\":{\"n\":7}," T("F32", "[2]", "[0,8]") "}", "__metadata__ 'n'"},
        {"{\"__metadata__\":{\"n\":null}," T("F32", "[2]", "[0,8]") "}", "__metadata__ 'n'"},
        {"{\"__metadata__\":[\"n\"]," T("F32", "[2]", "[0,8]") "}", "__metadata__"},
        {"{\"t\":7}", "tensor 't' (byte 9)"},
        {"{\"t\":{\"shape\":[2],\"data_offsets\":[0,8]}}", "dtype"},
        {"{\"t\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", "dtype"},
        {"{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", "shape"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2]}}", "data_offsets"},
        {"{" T("F32", "2", "[0,8]") "}", "shape"},
        {"{" T("F32", "[-2]", "[0,8]") "}", "shape[0]"},
        {"{" T("F32", "[2.0]", "[0,8]") "}", "shape[0]"},
        {"{" T("F32", "[\"2\"]", "[0,8]") "}", "shape[0]"},
        {"{" T("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", "9 dimensions"},
        {"{" T("F32", "[2]", "8") "}", "data_offsets"},
        {"{" T("F32", "[2]", "[8]") "}", "data_offsets: 1 values"},
        {"{" T("F32", "[2]", "[0,4,8]") "}", "data_offsets: 3 values"},
        {"{" T("F32", "[2]", "[]") "}", "data_offsets: 0 values"},
        {"{" T("F32", "[2]", "[8,0]") "}", "data_offsets [8, 0]"},
        {"{" T("F32", "[2]", "[-8,0]") "}", "data_offsets [-8, 0]"},
        {"{" T("F32", "[2]", "[0.0,8.0]") "}", "data_offsets"},
        {"{" T("F32", "[2]", "[0,\"8\"]") "}", "data_offsets"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(open_header(cases[i].header, 8), KVL_ERR_INPUT, cases[i].part);
    assert_refused(open_header("{" T("BOOL", "[8]", "[0,8]") "}", 8), KVL_ERR_UNSUPPORTED,
                   "dtype BOOL");
    assert_refused(open_header("{" T("f32", "[2]", "[0,8]") "}", 8), KVL_ERR_UNSUPPORTED,
                   "dtype f32");
    assert_ok(open_header("{" T("F32", "[2,0]", "[0,0]") "}", 0));
    assert_ok(open_header("{" T("F32", "[0,9223372036854775807]", "[0,0]") "}", 0));
    assert_ok(open_header("{" T("F32", "[]", "[0,4]") "}", 4));
    assert_ok(open_header("{}", 0));
}

/* Ranges tile the data, and each is as long as dtype and shape say. */
static void ranges(void **state) {
    const struct {
        const char *header;
        size_t data;
        const char *part;
    } cases[] = {
        {"{" T("F32", "[2]", "[0,8]") "}", 9, "1 bytes after the last tensor"},
        {"{" T("F32", "[2]", "[0,8]") "}", 4096, "4088 bytes after the last tensor"},
        {"{}", 1, "1 bytes after the last tensor"},
        {"{" T("F32", "[2]", "[8,16]") "}", 16, "hole"},
        {"{" T("F32", "[2]", "[0,8]") "," U("F32", "[2]", "[16,24]") "}", 24, "'u'"},
        {"{" T("F32", "[2]", "[0,8]") "," U("F32", "[2]", "[16,24]") "}", 24, "a hole"},
        {"{" T("F32", "[2]", "[0,8]") "," U("F32", "[2]", "[0,8]") "}", 8, "overlap"},
        {"{" T("F32", "[2]", "[0,8]") "," U("F32", "[2]", "[4,12]") "}", 12, "overlap"},
        {"{" T("F32", "[4]", "[0,16]") "," U("F32", "[1]", "[4,8]") "}", 16, "overlap"},
        {"{" T("F32", "[2]", "[0,8]") "," U("F32", "[0]", "[4,4]") "}", 8, "overlap"},
        {"{" T("F32", "[32,8]", "[0,65536]") "}", 65536,
         "65536 bytes, its dtype and shape make 1024"},
        {"{" T("F32", "[1000,1000]", "[0,4]") "}", 4, "make 4000000"},
        {"{" T("F32", "[2]", "[0,8]") "}", 7, "the file has 7 bytes of data"},
        {"{" T("F32", "[1000]", "[0,4000]") "}", 3999, "the file has 3999"},
        {"{" T("F32", "[2]", "[9223372036854775800,9223372036854775807]") "}", 8, "the file has 8"},
        {"{" T("I32", "[2,18446744073709551614]", "[0,8]") "}", 8, "in 'shape'"},
        {"{" T("I32", "[2,9223372036854775807]", "[0,8]") "}", 8, "shape[1] 9223372036854775807"},
        {"{" T("I32", "[2,4611686018427387904]", "[0,0]") "}", 0, "shape[1] 4611686018427387904"},
        {"{" T("I32", "[4611686018427387904,1]", "[0,0]") "}", 0, "bytes pass 2^64"},
        {"{" T("I32", "[4294967296,4294967296]", "[0,0]") "}", 0, "shape[1] 4294967296"},
        {"{" T("F32", "[2]", "[0,18446744073709551624]") "}", 8, "in 'data_offsets'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(open_header(cases[i].header, cases[i].data), KVL_ERR_INPUT, cases[i].part);
}

/* ---- JSON ---- */

static void json_values(void **state) {
    static const char *const bad[][2] = {
        {"", "'[' or '{'"},
        {"{\"a\":1e999}", "in 'a'"},
        {"{\"a\":-1e999}", "in 'a'"},
        {"{\"a\":NaN}", "in 'a'"},
        {"{\"a\":Infinity}", "in 'a'"},
        {"{\"a\":9223372036854775808}", "in 'a'"},
        {"{\"a\":01}", "in 'a'"},
        {"{\"a\":\"\\ud800\"}", "in 'a'"},
        {"{\"a\":\"\\udc00\"}", "in 'a'"},
        {"{\"a\":\"\\ud800\\u0041\"}", "in 'a'"},
        {"{\"a\":\"\\u0000\"}", "in 'a'"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"{\"a\":1}{}", "end of file expected"},
        {"{\"a\":1,}", "in 'a'"},
        {"{\"a\":'x'}", "in 'a'"},
        {"{\"a\":\"\n\"}", "in 'a'"},
        {"7", "'[' or '{'"},
    };
    json_t *root;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_refused(kvl_json_parse("f.json", bad[i][0], strlen(bad[i][0]), &root), KVL_ERR_INPUT,
                       bad[i][1]);
        assert_ptr_equal(strstr(kvl_message(), "f.json:"), kvl_message());
        assert_null(root);
    }
    /* Whole numbers are exact where doubles are not. */
    const char good[] = "{\"a\":9007199254740993,\"b\":\"\\ud83d\\ude00\"}";
    assert_ok(kvl_json_parse("f.json", good, strlen(good), &root));
    int64_t number = 0;
    const char *text = NULL;
    assert_ok(kvl_json_int("f.json", root, "a", true, 0, INT64_MAX, &number));
    assert_int_equal(number, 9007199254740993);
    assert_ok(kvl_json_string("f.json", root, "b", true, &text));
    assert_string_equal(text, "\xf0\x9f\x98\x80");
    assert_refused(kvl_json_string("f.json", root, "a", true, &text), KVL_ERR_INPUT,
                   "a 9007199254740993: a string");
    assert_refused(kvl_json_int("f.json", root, "b", true, 0, 1, &number), KVL_ERR_INPUT, "b \"");
    assert_refused(kvl_json_int("f.json", root, "c", true, 0, 1, &number), KVL_ERR_INPUT,
                   "f.json: c is missing");
    assert_ok(kvl_json_int("f.json", root, "c", false, 0, 1, &number));
    json_decref(root);
}

static void deep_json(void **state) {
    static const char *const opens[] = {"[", "{\"a\":", "[{\"a\":"};
    for (int k = 0; k < 3; k++) {
        kvl_buffer b = {0};
        for (int i = 0; i < 100000; i++) kvl_buffer_text(&b, opens[k]);
        json_t *root;
        assert_refused(kvl_json_parse("f.json", b.data, b.bytes, &root), KVL_ERR_INPUT, "depth");
        kvl_buffer_free(&b);
    }
    kvl_buffer b = {0};
    kvl_buffer_text(&b, "{\"t\":");
    for (int i = 0; i < 100000; i++) kvl_buffer_text(&b, "[");
    assert_refused(open_header(b.data, 0), KVL_ERR_INPUT, "depth");
    kvl_buffer_free(&b);
}

/* ---- shards ---- */

typedef struct folder {
    char dir[32];
} folder;

/* Path of a name in the folder; valid until the next call. */
static const char *path_in(const folder *f, const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    return path;
}

/* Two shards: t in one.safetensors, u in two.safetensors. */
static folder make_shards(void) {
    folder f = {"/tmp/kvl_shards_XXXXXX"};
    make_folder(f.dir);
    const float values[2] = {1, 2};
    kvl_st_tensor tensor = {"t", KVL_F32, 1, {2}, 2, values, 8};
    assert_ok(kvl_st_write(path_in(&f, "one.safetensors"), &tensor, 1));
    tensor.name = "u";
    assert_ok(kvl_st_write(path_in(&f, "two.safetensors"), &tensor, 1));
    return f;
}

static kvl_status open_index(const folder *f, const char *text) {
    write_text(f->dir, "model.safetensors.index.json", text);
    kvl_shards shards;
    kvl_status status = kvl_shards_open(f->dir, &shards);
    if (status == KVL_OK) kvl_shards_close(&shards);
    return status;
}

static void shard_indexes(void **state) {
    folder f = make_shards();
    const char good[] = "{\"weight_map\":{\"t\":\"one.safetensors\",\"u\":\"./two.safetensors\"}}";
    assert_ok(open_index(&f, good));
    for (size_t n = 0; n < strlen(good); n++) {
        char text[sizeof good];
        memcpy(text, good, n);
        text[n] = 0;
        assert_refused(open_index(&f, text), KVL_ERR_INPUT, "model.safetensors.index.json:1:");
    }
    assert_int_equal(symlink("/dev/zero", path_in(&f, "zero")), 0);
    assert_int_equal(symlink("/etc/passwd", path_in(&f, "outside")), 0);
    assert_int_equal(symlink("one.safetensors", path_in(&f, "inside")), 0);
    assert_int_equal(mkfifo(path_in(&f, "fifo"), 0600), 0);
    assert_int_equal(mkdir(path_in(&f, "folder"), 0700), 0);
    const struct {
        const char *text;
        kvl_status code;
        const char *part;
    } cases[] = {
        {"[]", KVL_ERR_INPUT, "weight_map"},
        {"{}", KVL_ERR_INPUT, "weight_map"},
        {"{\"weight_map\":{}}", KVL_ERR_INPUT, "weight_map"},
        {"{\"weight_map\":[\"one.safetensors\"]}", KVL_ERR_INPUT, "weight_map"},
        {"{\"weight_map\":{\"t\":7}}", KVL_ERR_INPUT, "weight_map 't'"},
        {"{\"weight_map\":{\"t\":\"\"}}", KVL_ERR_INPUT, "weight_map"},
        {"{\"weight_map\":{\"t\":\"../../x\"}}", KVL_ERR_INPUT, "'../../x'"},
        {"{\"weight_map\":{\"t\":\"a/../../x\"}}", KVL_ERR_INPUT, "must be relative"},
        {"{\"weight_map\":{\"t\":\"/etc/passwd\"}}", KVL_ERR_INPUT, "must be relative"},
        {"{\"weight_map\":{\"t\":\"outside\"}}", KVL_ERR_INPUT, "leads out of"},
        {"{\"weight_map\":{\"t\":\"zero\"}}", KVL_ERR_INPUT, "leads out of"},
        {"{\"weight_map\":{\"t\":\"fifo\"}}", KVL_ERR_IO, "FIFO"},
        {"{\"weight_map\":{\"t\":\".\"}}", KVL_ERR_INPUT, "leads out of"},
        {"{\"weight_map\":{\"t\":\"folder\"}}", KVL_ERR_IO, "a folder"},
        {"{\"weight_map\":{\"t\":\"three.safetensors\"}}", KVL_ERR_IO, "three.safetensors"},
        {"{\"weight_map\":{\"t\":\"two.safetensors\"}}", KVL_ERR_INPUT, "'t': not in two"},
        {"{\"weight_map\":{\"t\":\"one.safetensors\",\"v\":\"one.safetensors\"}}", KVL_ERR_INPUT,
         "'v': not in one"},
        {"{\"weight_map\":{\"t\":\"model.safetensors.index.json\"}}", KVL_ERR_INPUT, "header"},
        {"{\"weight_map\":{\"t\":\"one.safetensors\",\"t\":\"one.safetensors\"}}", KVL_ERR_INPUT,
         "duplicate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_refused(open_index(&f, cases[i].text), cases[i].code, cases[i].part);
        assert_non_null(strstr(kvl_message(), f.dir));
    }
    assert_ok(open_index(&f, "{\"weight_map\":{\"t\":\"inside\",\"u\":\"two.safetensors\"}}"));
    /* One tensor in two files, under two names of files. */
    assert_refused(open_index(&f, "{\"weight_map\":{\"t\":\"one.safetensors\",\"u\":"
                                  "\"two.safetensors\",\"w\":\"inside\"}}"),
                   KVL_ERR_INPUT, "'w': not in inside");
    const float more[4] = {1, 2, 3, 4};
    const kvl_st_tensor both[] = {{"t", KVL_F32, 1, {2}, 2, more, 8},
                                  {"v", KVL_F32, 1, {2}, 2, more + 2, 8}};
    assert_ok(kvl_st_write(path_in(&f, "both.safetensors"), both, 2));
    assert_refused(open_index(&f, "{\"weight_map\":{\"t\":\"one.safetensors\",\"v\":"
                                  "\"both.safetensors\"}}"),
                   KVL_ERR_INPUT, "tensor 't' stands in two shards");
    rmdir(path_in(&f, "folder"));
    remove_folder(f.dir);
}

/* The hub's cache: snapshots/<revision>/ holds links into ../../blobs/. */
static void the_hub_cache_may_link_to_its_blobs(void **state) {
    folder f = make_shards();
    char text[256], path[128], snapshot[80];
    snprintf(path, sizeof path, "%s/snapshots", f.dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(snapshot, sizeof snapshot, "%s/snapshots/abc", f.dir);
    assert_int_equal(mkdir(snapshot, 0700), 0);
    static const char *const links[][2] = {{"../../one.safetensors", "one.safetensors"},
                                           {"../../two.safetensors", "two.safetensors"},
                                           {"/etc/passwd", "out.safetensors"}};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", snapshot, links[i][1]);
        assert_int_equal(symlink(links[i][0], path), 0);
    }
    static const char *const maps[] = {"\"t\":\"one.safetensors\",\"u\":\"two.safetensors\"",
                                       "\"t\":\"out.safetensors\""};
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "{\"weight_map\":{%s}}", maps[i]);
        write_text(snapshot, "model.safetensors.index.json", text);
        kvl_shards shards;
        if (i == 0) {
            assert_ok(kvl_shards_open(snapshot, &shards));
            assert_non_null(kvl_shards_find(&shards, "u"));
            kvl_shards_close(&shards);
        } else {
            assert_refused(kvl_shards_open(snapshot, &shards), KVL_ERR_INPUT, "leads out of");
        }
    }
    remove_folder(snapshot);
    snprintf(path, sizeof path, "%s/snapshots", f.dir);
    rmdir(path);
    remove_folder(f.dir);
}

static void what_is_no_file(void **state) {
    char dir[] = "/tmp/kvl_shards_XXXXXX", path[64];
    make_folder(dir);
    kvl_shards shards;
    assert_refused(kvl_shards_open(dir, &shards), KVL_ERR_IO, "neither model.safetensors nor");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(kvl_shards_open(dir, &shards), KVL_ERR_IO, "FIFO");
    json_t *root;
    assert_refused(kvl_json_load(path, &root), KVL_ERR_IO, "FIFO");
    assert_refused(kvl_json_load("/dev/zero", &root), KVL_ERR_IO, "device");
    assert_refused(kvl_json_load(dir, &root), KVL_ERR_IO, "folder");
    remove_folder(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_lengths),  cmocka_unit_test(every_prefix_is_refused),
        cmocka_unit_test(header_text),     cmocka_unit_test(ranges),
        cmocka_unit_test(json_values),     cmocka_unit_test(deep_json),
        cmocka_unit_test(shard_indexes),   cmocka_unit_test(the_hub_cache_may_link_to_its_blobs),
        cmocka_unit_test(what_is_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
