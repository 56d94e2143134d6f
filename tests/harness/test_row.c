/* The row file: appends are all or nothing, whatever happens to the disk or the writer. */
#define _GNU_SOURCE
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/sweep/row.h"

static char folder[] = "/tmp/kvlab-row-XXXXXX";
static char path[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/rows.jsonl", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static json_t *make_row(int round, size_t padding) {
    char *text = malloc(padding + 1);
    memset(text, 'x', padding);
    text[padding] = '\0';
    json_t *row = json_pack(
        "{s:i,s:s,s:s,s:i,s:s,s:{s:s},s:{},s:s,s:s,s:{s:f},s:{},s:{},s:{},s:i,s:s}", "schema",
        KVL_ROW_SCHEMA, "run", "r", "trial", "0123456789abcdef", "round", round, "workload",
        "decode", "axes", "attention", "flash", "effective", "outcome", "ok", "reason", text,
        "metrics", "decode_tok_s", 12.5, "samples", "ceilings", "env", "seed", 1, "repro", "kvlab");
    free(text);
    assert_non_null(row);
    return row;
}

static void append(kvl_row_file *file, int round) {
    json_t *row = make_row(round, 10);
    assert_ok(kvl_row_file_append(file, row));
    json_decref(row);
}

static void write_rows(int n) {
    kvl_row_file *file;
    assert_ok(kvl_row_file_open(path, &file, NULL));
    for (int i = 0; i < n; i++) append(file, i);
    assert_ok(kvl_row_file_close(file));
}

static void check_rows(size_t n, int torn) {
    json_t *rows;
    int n_torn;
    assert_ok(kvl_rows_load(path, &rows, &n_torn));
    assert_int_equal(n_torn, torn);
    assert_int_equal(json_array_size(rows), n);
    for (size_t i = 0; i < n; i++) {
        json_t *row = json_array_get(rows, i);
        assert_int_equal(json_integer_value(json_object_get(row, "round")), i);
        json_t *metrics = json_object_get(row, "metrics");
        assert_true(json_real_value(json_object_get(metrics, "decode_tok_s")) == 12.5);
    }
    json_decref(rows);
}

static void put(const char *text) {
    FILE *file = fopen(path, "ae");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static off_t size_now(void) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_size;
}

static void rows_come_back(void **state) {
    (void)state;
    unlink(path);
    write_rows(3);
    check_rows(3, 0);
    kvl_row_file *file;
    uint64_t cut = 1;
    assert_ok(kvl_row_file_open(path, &file, &cut));
    assert_int_equal(cut, 0);
    append(file, 3);
    assert_ok(kvl_row_file_close(file));
    check_rows(4, 0);
}

static void torn_line_is_cut(void **state) {
    (void)state;
    unlink(path);
    write_rows(2);
    off_t whole = size_now();
    put("{\"schema\":1,\"run\":\"hal");
    check_rows(2, 1);
    kvl_row_file *file;
    uint64_t cut;
    assert_ok(kvl_row_file_open(path, &file, &cut));
    assert_int_equal(cut, 22);
    assert_int_equal(size_now(), whole);
    append(file, 2);
    assert_ok(kvl_row_file_close(file));
    check_rows(3, 0);
    /* The only line of all can be torn, too. */
    assert_int_equal(truncate(path, 30), 0);
    assert_ok(kvl_row_file_open(path, &file, &cut));
    assert_int_equal(cut, 30);
    append(file, 0);
    assert_ok(kvl_row_file_close(file));
    check_rows(1, 0);
}

static void other_files_are_left_alone(void **state) {
    (void)state;
    kvl_row_file *file;
    unlink(path);
    put("my notes\nunfinished");
    assert_refused(kvl_row_file_open(path, &file, NULL), KVL_ERR_INPUT, "line 1: not a kvlab row");
    assert_int_equal(size_now(), 19);
    unlink(path);
    put("{\"a\":1}\n{\"unfinished");
    assert_refused(kvl_row_file_open(path, &file, NULL), KVL_ERR_INPUT, "line 1: not a kvlab row");
    assert_int_equal(size_now(), 20);
    static const char *const unfinished[] = {"{",
                                             "{\"notes\": \"mine\"",
                                             "{\"schema\":1}",
                                             "{\"schema\":1,\"run\":\"x\"}",
                                             "{\"schema\":1,\"r",
                                             "{\"schema\":x,\"run\":\"x"};
    for (size_t i = 0; i < sizeof unfinished / sizeof *unfinished; i++) {
        unlink(path);
        put(unfinished[i]);
        assert_refused(kvl_row_file_open(path, &file, NULL), KVL_ERR_INPUT, "line 1: not a kvlab");
        assert_refused(kvl_row_file_check(path), KVL_ERR_INPUT, "line 1: not a kvlab row");
        assert_int_equal(size_now(), strlen(unfinished[i]));
    }
    unlink(path);
    write_rows(1);
    off_t whole = size_now();
    put("{\"notes");
    assert_refused(kvl_row_file_open(path, &file, NULL), KVL_ERR_INPUT, "last line: not a kvlab");
    assert_int_equal(size_now(), whole + 7);
    unlink(path);
    assert_refused(kvl_row_file_open("/dev/full", &file, NULL), KVL_ERR_IO, "not a regular file");
    assert_refused(kvl_row_file_open(folder, &file, NULL), KVL_ERR_IO, folder);
    assert_refused(kvl_row_file_open("/no/such/folder/x.jsonl", &file, NULL), KVL_ERR_IO,
                   "/no/such/folder/x.jsonl");
    assert_refused(kvl_row_file_open("/proc/x.jsonl", &file, NULL), KVL_ERR_IO, "/proc/x.jsonl");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(kvl_row_file_open(path, &file, NULL), KVL_ERR_IO, "not a regular file");
    unlink(path);
}

static void last_row_without_newline_is_kept(void **state) {
    (void)state;
    for (int n = 1; n <= 2; n++) {
        kvl_row_file *file;
        uint64_t cut = 1;
        unlink(path);
        write_rows(n);
        off_t whole = size_now();
        assert_int_equal(truncate(path, whole - 1), 0);
        check_rows((size_t)n, 0);
        assert_ok(kvl_row_file_check(path));
        assert_int_equal(size_now(), whole - 1);
        assert_ok(kvl_row_file_open(path, &file, &cut));
        assert_int_equal(cut, 0);
        assert_int_equal(size_now(), whole);
        append(file, n);
        assert_ok(kvl_row_file_close(file));
        check_rows((size_t)n + 1, 0);
    }
    unlink(path);
    write_rows(1);
    off_t whole = size_now();
    put("{\"sch"); /* behind other rows a few bytes are a torn row, too */
    kvl_row_file *file;
    assert_ok(kvl_row_file_open(path, &file, NULL));
    assert_int_equal(size_now(), whole);
    assert_ok(kvl_row_file_close(file));
}

static void checking_creates_nothing(void **state) {
    (void)state;
    unlink(path);
    assert_ok(kvl_row_file_check(path));
    assert_int_equal(access(path, F_OK), -1);
    assert_refused(kvl_row_file_check(folder), KVL_ERR_IO, folder);
    assert_refused(kvl_row_file_check("/no/such/folder/x.jsonl"), KVL_ERR_IO, "/no/such/folder");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(kvl_row_file_check(path), KVL_ERR_IO, "not a regular file");
    unlink(path);
    kvl_row_file *file;
    assert_int_equal(symlink("/no/such/target", path), 0);
    assert_refused(kvl_row_file_check(path), KVL_ERR_IO, "symbolic link");
    assert_refused(kvl_row_file_open(path, &file, NULL), KVL_ERR_IO, "symbolic link");
    unlink(path);
}

static void removed_file_is_noticed(void **state) {
    (void)state;
    for (int replaced = 0; replaced < 2; replaced++) {
        kvl_row_file *file;
        unlink(path);
        assert_ok(kvl_row_file_open(path, &file, NULL));
        append(file, 0);
        unlink(path);
        if (replaced) put("mine");
        json_t *row = make_row(1, 1);
        assert_refused(kvl_row_file_append(file, row), KVL_ERR_IO, "removed while running");
        json_decref(row);
        assert_refused(kvl_row_file_close(file), KVL_ERR_IO, "removed while running");
        assert_int_equal(access(path, F_OK), replaced ? 0 : -1);
    }
}

static void empty_file_is_not_left_behind(void **state) {
    (void)state;
    kvl_row_file *file;
    unlink(path);
    assert_ok(kvl_row_file_open(path, &file, NULL));
    assert_ok(kvl_row_file_close(file));
    assert_int_equal(access(path, F_OK), -1);
}

static void full_disk_takes_the_row_back(void **state) {
    (void)state;
    struct rlimit old, small;
    kvl_row_file *file;
    unlink(path);
    write_rows(2);
    off_t whole = size_now();
    assert_ok(kvl_row_file_open(path, &file, NULL));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = (rlim_t)whole + 100; /* a short write first, then EFBIG */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    json_t *row = make_row(2, 5000);
    for (int i = 0; i < 2; i++) {
        kvl_status status = kvl_row_file_append(file, row);
        assert_int_equal(status, KVL_ERR_IO);
        assert_non_null(strstr(kvl_message(), path));
        assert_int_equal(size_now(), whole);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    append(file, 2); /* room again: the file goes on */
    assert_ok(kvl_row_file_close(file));
    json_decref(row);
    check_rows(3, 0);
}

static void second_writer_is_refused(void **state) {
    (void)state;
    kvl_row_file *first, *second;
    unlink(path);
    assert_ok(kvl_row_file_open(path, &first, NULL));
    append(first, 0);
    assert_refused(kvl_row_file_open(path, &second, NULL), KVL_ERR_IO, "another kvlab");
    check_rows(1, 0);
    assert_ok(kvl_row_file_close(first));
    assert_ok(kvl_row_file_open(path, &second, NULL));
    assert_ok(kvl_row_file_close(second));
}

/* A writer is killed at a random moment; rows that it reported as kept are all there, in order. */
static void killed_writer_loses_no_row(void **state) {
    (void)state;
    unlink(path);
    /* The first writer may die before it has made the file. */
    FILE *empty = fopen(path, "w");
    assert_non_null(empty);
    fclose(empty);
    size_t kept = 0;
    srand(7);
    for (int attempt = 0; attempt < 40; attempt++) {
        int done[2];
        assert_int_equal(pipe(done), 0);
        pid_t pid = fork();
        if (pid == 0) {
            kvl_row_file *file;
            if (kvl_row_file_open(path, &file, NULL) != KVL_OK) _exit(1);
            for (int i = (int)kept;; i++) {
                json_t *row = make_row(i, 3000);
                if (kvl_row_file_append(file, row) != KVL_OK) _exit(2);
                if (write(done[1], "x", 1) != 1) _exit(3);
                json_decref(row);
            }
        }
        close(done[1]);
        /* Once it is at work, at any moment; now and then while it still starts. */
        char first;
        if (attempt % 8) assert_int_equal(read(done[0], &first, 1), 1);
        usleep((useconds_t)(rand() % 8000));
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        char block[4096];
        size_t reported = kept + (attempt % 8 != 0);
        for (ssize_t n; (n = read(done[0], block, sizeof block)) > 0;) reported += (size_t)n;
        close(done[0]);
        /* The system may cut a write of a process that it kills: that line is torn, was reported by
         * nobody, and the next writer cuts it off. */
        json_t *rows;
        int n_torn;
        assert_ok(kvl_rows_load(path, &rows, &n_torn));
        kept = json_array_size(rows);
        json_decref(rows);
        assert_true(kept >= reported);
        assert_in_range(n_torn, 0, 1);
        check_rows(kept, n_torn);
    }
    assert_true(kept >= 35);
}

static void broken_rows_are_refused_with_their_line(void **state) {
    (void)state;
    json_t *rows;
    unlink(path);
    write_rows(1);
    put("{\"schema\":1}\n");
    assert_refused(kvl_rows_load(path, &rows, NULL), KVL_ERR_INPUT,
                   "rows.jsonl:2: not a row: 'run'");
    unlink(path);
    write_rows(1);
    put("{broken\n");
    assert_refused(kvl_rows_load(path, &rows, NULL), KVL_ERR_INPUT, "rows.jsonl:2:");
    assert_refused(kvl_rows_load("/no/such.jsonl", &rows, NULL), KVL_ERR_IO, "/no/such.jsonl");
    kvl_row_file *file;
    unlink(path);
    assert_ok(kvl_row_file_open(path, &file, NULL));
    json_t *row = make_row(0, 1);
    json_object_del(row, "env");
    assert_refused(kvl_row_file_append(file, row), KVL_ERR_INTERNAL, "env");
    json_decref(row);
    row = make_row(0, 1);
    assert_ok(kvl_row_file_append(file, row));
    json_decref(row);
    assert_ok(kvl_row_file_close(file));
    unlink(path);
    put("[1]\n");
    assert_refused(kvl_rows_load(path, &rows, NULL), KVL_ERR_INPUT, "not a row: not a JSON object");
}

static void impossible_values_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *member, *value, *part;
    } cases[] = {{"schema", "99", "schema 99"},
                 {"schema", "1.0", "'schema'"},
                 {"round", "-1", "round -1"},
                 {"round", "0.5", "'round'"},
                 {"outcome", "\"fine\"", "outcome 'fine'"},
                 {"metrics", "{\"decode_tok_s\":\"12\"}", "metrics.decode_tok_s"},
                 {"metrics", "{\"a\":null,\"b\":true}", "metrics.b"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *row = make_row(0, 1), *rows;
        json_object_set_new(row, cases[i].member,
                            json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        char *text = json_dumps(row, JSON_COMPACT);
        unlink(path);
        put(text);
        put("\n");
        assert_refused(kvl_rows_load(path, &rows, NULL), KVL_ERR_INPUT, cases[i].part);
        free(text);
        json_decref(row);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back),
        cmocka_unit_test(torn_line_is_cut),
        cmocka_unit_test(other_files_are_left_alone),
        cmocka_unit_test(last_row_without_newline_is_kept),
        cmocka_unit_test(checking_creates_nothing),
        cmocka_unit_test(removed_file_is_noticed),
        cmocka_unit_test(impossible_values_are_refused),
        cmocka_unit_test(empty_file_is_not_left_behind),
        cmocka_unit_test(full_disk_takes_the_row_back),
        cmocka_unit_test(second_writer_is_refused),
        cmocka_unit_test(killed_writer_loses_no_row),
        cmocka_unit_test(broken_rows_are_refused_with_their_line),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
