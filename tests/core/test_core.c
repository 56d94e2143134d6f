#define _GNU_SOURCE
#include "tests/test.h"

#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buffer.h"
#include "core/checked.h"
#include "core/dtype.h"
#include "core/file.h"
#include "core/isa.h"
#include "core/memory.h"
#include "core/names.h"
#include "core/rng.h"
#include "core/threads.h"

static void messages_are_one_printable_line(void **state) {
    assert_int_equal(kvl_fail(KVL_ERR_INPUT, "bad\n\x1b[31m '%s'", "\xff\xfe"), KVL_ERR_INPUT);
    assert_string_equal(kvl_message(), "bad?\?[31m '?\?'");
    kvl_fail(KVL_ERR_INPUT, "é %d", 3);
    kvl_fail_prefix(KVL_ERR_INPUT, "file %s", "x");
    assert_string_equal(kvl_message(), "file x: é 3");
    kvl_fail(KVL_ERR_INPUT, "again: %s", kvl_message());
    assert_string_equal(kvl_message(), "again: file x: é 3");
}

static void checked_arithmetic_catches_wraps(void **state) {
    uint64_t u = 7;
    assert_false(kvl_mul_u64(UINT64_MAX / 2 + 1, 2, &u));
    assert_false(kvl_add_u64(UINT64_MAX, 1, &u));
    assert_false(kvl_align_u64(UINT64_MAX - 2, 64, &u));
    assert_int_equal(u, 7);
    assert_true(kvl_align_u64(65, 64, &u));
    assert_int_equal(u, 128);
}

static void nearest_names(void **state) {
    const char *const names[] = {"contiguous", "paged"};
    assert_string_equal(kvl_names_nearest("pagde", names, 2), "paged");
    assert_string_equal(kvl_names_nearest("CONTIGOUS", names, 2), "contiguous");
    assert_null(kvl_names_nearest("zebra", names, 2));
    assert_string_equal(kvl_names_nearest("cont", names, 2), "contiguous");
    char line[200];
    kvl_names_unknown(line, sizeof line, "allocator", "pagd", names, 2);
    assert_string_equal(
        line, "unknown allocator 'pagd'; did you mean 'paged'? (known: contiguous, paged)");
    kvl_dtype dtype;
    assert_refused(kvl_dtype_parse("bf61", &dtype), KVL_ERR_INPUT, "did you mean 'bf16'");
}

static void memory_is_aligned_zeroed_and_counted(void **state) {
    uint64_t before = kvl_mem_live_bytes();
    uint64_t sizes[] = {0, 1, 4096, 5 << 20, 33 << 20};
    for (size_t i = 0; i < 5; i++) {
        uint8_t *p;
        assert_ok(kvl_mem_alloc(sizes[i], (void **)&p));
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_true(kvl_mem_live_bytes() >= before + sizes[i]);
        for (uint64_t b = 0; b < sizes[i]; b += 997) assert_int_equal(p[b], 0);
        if (sizes[i]) p[sizes[i] - 1] = 1;
        kvl_mem_free(p, sizes[i]);
    }
    assert_int_equal(kvl_mem_live_bytes(), before);
    void *p;
    assert_int_equal(kvl_mem_alloc(UINT64_MAX - 5, &p), KVL_ERR_OOM);
    assert_int_equal(kvl_mem_alloc(1ull << 60, &p), KVL_ERR_OOM);
}

static int64_t resident_pages(void *at, uint64_t bytes) {
    unsigned char *in = malloc(bytes / 4096);
    int64_t n = 0;
    assert_int_equal(mincore(at, bytes, in), 0);
    for (uint64_t i = 0; i < bytes / 4096; i++) n += in[i] & 1;
    free(in);
    return n;
}

static void populated_memory_is_resident_and_zero(void **state) {
    enum { BYTES = 6 << 20 };
    void *p;
    assert_ok(kvl_mem_alloc(BYTES, &p));
    assert_int_equal(resident_pages(p, BYTES), 0);
    assert_ok(kvl_mem_populate(p, BYTES));
    assert_int_equal(resident_pages(p, BYTES), BYTES / 4096);
    for (int i = 0; i < BYTES; i += 511) assert_int_equal(((char *)p)[i], 0);
    kvl_mem_free(p, BYTES);
    assert_refused(kvl_mem_populate((void *)4096, 4096), KVL_ERR_OOM, "4096 bytes");
    assert_ok(kvl_mem_populate(NULL, 0));
}

static void files_are_opened_with_distrust(void **state) {
    char dir[] = "/tmp/kvl_core_XXXXXX", path[64], out[64];
    assert_non_null(mkdtemp(dir));
    kvl_file file;
    assert_refused(kvl_file_open(dir, &file), KVL_ERR_IO, "a folder");
    snprintf(path, sizeof path, "%s/fifo", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(kvl_file_open(path, &file), KVL_ERR_IO, "a FIFO");
    assert_refused(kvl_file_open("/dev/zero", &file), KVL_ERR_IO, "a character device");
    unlink(path);
    snprintf(path, sizeof path, "%s/x", dir);
    assert_ok(kvl_file_write_all(path, "hello", 5));
    assert_ok(kvl_file_open(path, &file));
    assert_int_equal(file.bytes, 5);
    assert_memory_equal(file.data, "hello", 5);
    kvl_file_close(&file);

    char *joined;
    assert_ok(kvl_path_under(dir, "x", &joined));
    free(joined);
    const char *const bad[] = {"../x", "/etc/passwd", "a/../../x", "", "x/.."};
    for (size_t i = 0; i < 5; i++)
        assert_refused(kvl_path_under(dir, bad[i], &joined), KVL_ERR_INPUT, "must be relative");
    snprintf(out, sizeof out, "%s/link", dir);
    assert_int_equal(symlink("/etc/passwd", out), 0);
    assert_refused(kvl_path_under(dir, "link", &joined), KVL_ERR_INPUT, "leads out of");
    unlink(out);
    unlink(path);
    rmdir(dir);
    assert_int_equal(kvl_file_write_all("/proc/nowhere", "x", 1), KVL_ERR_IO);
    assert_refused(kvl_file_write_all("/dev/full", "x", 1), KVL_ERR_IO, "/dev/full");
}

static void utf8_validity(void **state) {
    assert_true(kvl_utf8_valid("aé漢🙂", strlen("aé漢🙂")));
    const char *const bad[] = {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                               "\xe2\x82", "\x80",         "\xf0\x80\x80\x80"};
    for (size_t i = 0; i < 6; i++) assert_false(kvl_utf8_valid(bad[i], strlen(bad[i])));
}

static void random_numbers_are_counter_based(void **state) {
    float a[1000], b[1000];
    kvl_rng_fill_normal(7, 3, 1.0f, a, 1000);
    kvl_rng rng = kvl_rng_make(7, 3);
    double sum = 0, squares = 0;
    for (int i = 0; i < 1000; i++) {
        b[i] = kvl_rng_normal(&rng);
        sum += b[i];
        squares += (double)b[i] * b[i];
    }
    assert_memory_equal(a, b, sizeof a);
    assert_true(fabs(sum / 1000) < 0.15 && fabs(squares / 1000 - 1) < 0.2);
    kvl_rng_fill_normal(8, 3, 1.0f, b, 1000);
    assert_memory_not_equal(a, b, sizeof a);
    int seen[7] = {0};
    for (int i = 0; i < 7000; i++) seen[kvl_rng_below(&rng, 7)]++;
    for (int i = 0; i < 7; i++) assert_in_range(seen[i], 850, 1150);
}

static void instruction_sets_are_refused_not_lowered(void **state) {
    assert_ok(kvl_isa_init());
    assert_true(kvl_isa_has(KVL_ISA_SCALAR));
    for (int i = 0; i < KVL_N_ISAS; i++) {
        if (kvl_isa_has((kvl_isa)i)) {
            assert_ok(kvl_isa_force((kvl_isa)i));
            assert_int_equal(kvl_isa_current(), i);
        } else {
            assert_refused(kvl_isa_force((kvl_isa)i), KVL_ERR_INPUT, "this CPU has up to");
        }
    }
    setenv("KVLAB_ISA", "avx3", 1);
    assert_refused(kvl_isa_init(), KVL_ERR_INPUT, "did you mean 'avx2'");
    unsetenv("KVLAB_ISA");
}

static void thread_counts(void **state) {
    assert_true(kvl_physical_cores() >= 1);
    assert_ok(kvl_threads_set(0, 0));
    assert_int_equal(kvl_threads(), kvl_physical_cores());
    assert_refused(kvl_threads_set(-1, 0), KVL_ERR_INPUT, "threads -1");
}

static void buffers_grow(void **state) {
    kvl_buffer buffer = {0};
    for (int i = 0; i < 1000; i++) kvl_buffer_printf(&buffer, "%d,", i);
    assert_int_equal(buffer.bytes, 3890);
    assert_false(buffer.failed);
    kvl_buffer_free(&buffer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_one_printable_line),
        cmocka_unit_test(checked_arithmetic_catches_wraps),
        cmocka_unit_test(nearest_names),
        cmocka_unit_test(memory_is_aligned_zeroed_and_counted),
        cmocka_unit_test(populated_memory_is_resident_and_zero),
        cmocka_unit_test(files_are_opened_with_distrust),
        cmocka_unit_test(utf8_validity),
        cmocka_unit_test(random_numbers_are_counter_based),
        cmocka_unit_test(instruction_sets_are_refused_not_lowered),
        cmocka_unit_test(thread_counts),
        cmocka_unit_test(buffers_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
