#include "tests/golden_file.h"

#include <ctype.h>

#include "core/rng.h"
#include "quant/gguf_blocks.h"
#include "quant/kv_format.h"

/* Every block format against the gguf package's values, bit for bit, from unaligned memory and with
 * nothing read or written outside. */
static void matches_the_gguf_package(void **state) {
    static const char *const types[] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
                                        "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"};
    golden_file golden = golden_open("gguf_blocks");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        char key[32], name[16];
        snprintf(key, sizeof key, "%s.raw", types[t]);
        uint64_t raw_bytes;
        const uint8_t *raw = golden_bytes(&golden, key, &raw_bytes);
        snprintf(key, sizeof key, "%s.f32", types[t]);
        int64_t n;
        float *want = golden_copy(&golden, key, sizeof *want, &n);
        snprintf(name, sizeof name, "%s", types[t]);
        for (char *c = name; *c; c++) *c = (char)tolower((unsigned char)*c);

        const kvl_gguf_block *block = NULL;
        for (size_t i = 0; i < kvl_gguf_block_count(); i++) {
            if (strcmp(kvl_gguf_block_at(i)->name, name) == 0) block = kvl_gguf_block_at(i);
        }
        assert_non_null(block);
        assert_int_equal(n / block->block_elems * block->block_bytes, (int64_t)raw_bytes);
        uint8_t *shifted = malloc(raw_bytes + 1); /* ends where the blocks end, starts odd */
        float *got = malloc(sizeof *got * (size_t)(n + 1));
        memcpy(shifted + 1, raw, raw_bytes);
        got[n] = -7.0f;
        block->decode(shifted + 1, n, got);
        assert_true(got[n] == -7.0f);
        for (int64_t i = 0; i < n; i++) {
            if (memcmp(&got[i], &want[i], 4) != 0)
                fail_msg("%s[%lld] = %a, not %a", types[t], (long long)i, got[i], want[i]);
        }
        free(shifted);
        free(got);
        free(want);
    }
    golden_close(&golden);
}

static void plain_floats(void **state) {
    enum { N = 65536 };
    static uint8_t raw[2 * N + 1];
    static float got[N];
    for (int i = 0; i < N; i++) raw[1 + 2 * i] = (uint8_t)i, raw[2 + 2 * i] = (uint8_t)(i >> 8);
    kvl_gguf_block_of(1)->decode(raw + 1, N, got);
    for (int i = 0; i < N; i++) {
        float want = kvl_f16_to_f32((uint16_t)i);
        assert_true(want != want ? got[i] != got[i] : got[i] == want);
    }
    kvl_gguf_block_of(30)->decode(raw + 1, N, got);
    for (int i = 0; i < N; i++) {
        uint32_t bits;
        memcpy(&bits, &got[i], 4);
        assert_int_equal(bits, (uint32_t)i << 16);
    }
    float value = -1.25f, back = 0;
    memcpy(raw + 1, &value, 4);
    kvl_gguf_block_of(0)->decode(raw + 1, 1, &back);
    assert_true(back == value);
}

/* Blocks from a hostile file: any bytes decode to something, without reading past the block. */
static void any_bytes_decode(void **state) {
    kvl_rng rng = kvl_rng_make(5, 0);
    for (size_t t = 0; t < kvl_gguf_block_count(); t++) {
        const kvl_gguf_block *block = kvl_gguf_block_at(t);
        uint8_t *raw = malloc((size_t)block->block_bytes);
        float *out = malloc(sizeof *out * (size_t)block->block_elems);
        for (int round = 0; round < 200; round++) {
            for (int i = 0; i < block->block_bytes; i++) raw[i] = (uint8_t)kvl_rng_u64(&rng);
            block->decode(raw, block->block_elems, out);
            block->decode(raw, 0, out);
        }
        free(raw);
        free(out);
    }
}

static void names_of_types(void **state) {
    for (uint32_t id = 0; id < 42; id++) assert_non_null(kvl_ggml_type_name(id));
    assert_null(kvl_ggml_type_name(42));
    assert_null(kvl_ggml_type_name(UINT32_MAX));
    const uint32_t retired[] = {4, 5, 31, 32, 33, 36, 37, 38};
    for (size_t i = 0; i < sizeof retired / sizeof *retired; i++) {
        assert_non_null(strstr(kvl_ggml_type_name(retired[i]), "(retired)"));
        assert_null(kvl_gguf_block_of(retired[i]));
    }
    assert_string_equal(kvl_ggml_type_name(17), "iq2_xs");
    assert_string_equal(kvl_ggml_type_name(28), "f64");
    assert_string_equal(kvl_ggml_type_name(30), "bf16");
    assert_string_equal(kvl_ggml_type_name(39), "mxfp4");
    for (size_t i = 0; i < kvl_gguf_block_count(); i++) {
        const kvl_gguf_block *block = kvl_gguf_block_at(i);
        assert_string_equal(block->name, kvl_ggml_type_name(block->ggml_type));
        assert_ptr_equal(kvl_gguf_block_of(block->ggml_type), block);
    }
    assert_null(kvl_gguf_block_at(kvl_gguf_block_count()));
    assert_null(kvl_gguf_block_of(UINT32_MAX));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_the_gguf_package), cmocka_unit_test(plain_floats),
        cmocka_unit_test(any_bytes_decode), cmocka_unit_test(names_of_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
