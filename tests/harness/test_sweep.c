/* The sweep with fake trials: this binary, started as `trial SPEC`, plays them. What a fake does
 * hangs on the attention axis of its spec. */
#define _GNU_SOURCE
#include "tests/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/exit.h"
#include "harness/sweep/row.h"
#include "harness/sweep/sweep.h"

/* ---- the fake trial ----------------------------------------------------------------------------
 */

static void answer(const char *text) {
    if (write(3, text, strlen(text)) != (ssize_t)strlen(text)) _exit(99);
}

static void answer_outcome(const char *outcome, const char *reason, double value) {
    char text[512];
    snprintf(
        text, sizeof text,
        "{\"outcome\":\"%s\",\"reason\":\"%s\",\"effective\":{\"attention\":\"ran\"},"
        "\"metrics\":{\"decode_tok_s\":%.17g,\"tpot_ms\":null},\"samples\":{\"itl_ms\":[1,2]}}",
        outcome, reason, value);
    answer(text);
}

/* Appends a byte to a file beside the rows, so that tests count starts. */
static void count_start(void) {
    const char *log = getenv("FAKE_LOG");
    int fd = log ? open(log, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (fd >= 0) {
        if (write(fd, "x", 1) != 1) _exit(98);
        close(fd);
    }
}

static int fake_trial(const char *text) {
    json_error_t error;
    json_t *spec = json_loads(text, 0, &error);
    if (!spec) return 97;
    if (json_object_get(spec, "calibrate")) {
        answer("{\"read_bytes_per_s\":1e10,\"threads\":1}");
        return 0;
    }
    count_start();
    json_t *axes = json_object_get(spec, "axes");
    const char *what = json_string_value(json_object_get(axes, "attention"));
    double prompt = (double)json_integer_value(json_object_get(axes, "prompt"));
    printf("noise on stdout\n");
    fflush(stdout);
    if (strcmp(what, "crash") == 0) {
        fprintf(stderr, "first line\nlast words \xff\n");
        raise(SIGABRT); /* a signal that sanitizers leave alone */
    } else if (strcmp(what, "remove") == 0) {
        unlink(getenv("FAKE_ROWS"));
        answer_outcome("ok", "", 1);
    } else if (strcmp(what, "exit7") == 0) {
        return 7;
    } else if (strcmp(what, "hang") == 0) {
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    } else if (strcmp(what, "eat") == 0) {
        for (size_t i = 0; i < 64; i++) {
            /* Volatile: stores that nobody reads would be left out, and no page taken. */
            volatile char *block = malloc(16 << 20);
            for (size_t b = 0; b < 16 << 20; b += 4096) block[b] = 1;
        }
        for (;;) pause();
    } else if (strcmp(what, "silent") == 0) {
        return 0;
    } else if (strcmp(what, "nonsense") == 0) {
        answer("{\"outcome\":\"ok\",\"reason\":\"\",\"effective\":{},\"metrics\":{\"a\":\"text\"},"
               "\"samples\":{}}");
    } else if (strcmp(what, "wrong") == 0) {
        answer_outcome("mismatch", "max abs 0.5, bound 0.1", 0);
    } else if (strcmp(what, "cannot") == 0) {
        answer_outcome("unsupported", "not here", 0);
    } else {
        if (strcmp(what, "slow") == 0) usleep(20000);
        json_int_t round = json_integer_value(json_object_get(spec, "round"));
        bool high = strcmp(what, "wander") == 0 && round % 2;
        answer_outcome("ok", "", prompt * (high ? 3 : 2));
    }
    json_decref(spec);
    return 0;
}

/* ---- helpers -----------------------------------------------------------------------------------
 */

static char folder[] = "/tmp/kvlab-sweep-XXXXXX";
static char path[64], log_path[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/rows.jsonl", folder);
    snprintf(log_path, sizeof log_path, "%s/starts", folder);
    setenv("FAKE_LOG", log_path, 1);
    setenv("FAKE_ROWS", path, 1);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    unlink(log_path);
    return rmdir(folder);
}

static void fresh(void) {
    unlink(path);
    unlink(log_path);
}

static size_t n_starts(void) {
    struct stat info;
    return stat(log_path, &info) == 0 ? (size_t)info.st_size : 0;
}

enum { MAX_KINDS = 16 };
static kvl_model_facts facts = {.digest = "00000000deadbeef",
                                .max_position = 1 << 20,
                                .text_tokens = -1,
                                .parameters = 1000,
                                .kv_values_per_token = 8};
static kvl_trial trial_items[MAX_KINDS];
static kvl_trials trials = {.items = trial_items};
static kvl_workload workload = {.kind = &kvl_workload_decode, .seed = 1};

static void set_trials(const char *const *kinds, size_t n) {
    memset(trial_items, 0, sizeof trial_items);
    for (size_t i = 0; i < n; i++) {
        kvl_trial *trial = &trial_items[i];
        trial->kind = &kvl_workload_decode;
        for (int a = 0; a < KVL_N_AXES; a++) trial->names[a] = "x";
        trial->names[KVL_AXIS_ATTENTION] = kinds[i];
        trial->names[KVL_AXIS_ISA] = "scalar";
        trial->names[KVL_AXIS_MODEL] = "synthetic:tiny";
        trial->names[KVL_AXIS_KV_DTYPE] = trial->names[KVL_AXIS_WEIGHTS] = "bf16";
        trial->numbers[KVL_AXIS_PROMPT] = 100 + (int64_t)i;
        trial->numbers[KVL_AXIS_OUTPUT] = trial->numbers[KVL_AXIS_BATCH] = 1;
        trial->numbers[KVL_AXIS_THREADS] = 1;
        trial->model = &facts;
        snprintf(trial->key, sizeof trial->key, "%016zx", i);
    }
    trials.n = n;
}

#define TRIALS(...) \
    set_trials((const char *const[]){__VA_ARGS__}, \
               sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *))

static kvl_sweep_options make_options(int64_t rounds) {
    return (kvl_sweep_options){.workload = &workload,
                               .trials = &trials,
                               .rounds = rounds,
                               .out = path,
                               .timeout_s = 20,
                               .executable = "/proc/self/exe",
                               .build_id = "b",
                               .quiet = true};
}

static const char *text_at(const json_t *row, const char *member) {
    return json_string_value(json_object_get(row, member));
}

/* The row of a trial and round; NULL when there is none, a failure when there are two. */
static const json_t *row_of(const json_t *rows, size_t trial, int round) {
    const json_t *found = NULL;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (strcmp(text_at(row, "trial"), trial_items[trial].key) == 0 &&
            json_integer_value(json_object_get(row, "round")) == round) {
            assert_null(found);
            found = row;
        }
    }
    return found;
}

static json_t *load_rows(void) {
    json_t *rows;
    int torn;
    assert_ok(kvl_rows_load(path, &rows, &torn));
    assert_int_equal(torn, 0);
    return rows;
}

/* ---- tests -------------------------------------------------------------------------------------
 */

static void ok_rows_hold_what_the_child_said(void **state) {
    (void)state;
    fresh();
    TRIALS("good", "good");
    kvl_sweep_options options = make_options(3);
    kvl_sweep_summary summary;
    assert_ok(kvl_sweep_run(&options, &summary));
    assert_int_equal(summary.n_rows[KVL_OUTCOME_OK], 6);
    assert_int_equal(summary.n_scheduled, 6);
    assert_int_equal(kvl_sweep_exit(&summary), KVL_EXIT_OK);
    kvl_sweep_summary_free(&summary);
    json_t *rows = load_rows();
    assert_int_equal(json_array_size(rows), 6);
    for (size_t t = 0; t < 2; t++) {
        for (int r = 0; r < 3; r++) {
            const json_t *row = row_of(rows, t, r);
            assert_non_null(row);
            json_t *metrics = json_object_get(row, "metrics");
            assert_true(json_number_value(json_object_get(metrics, "decode_tok_s")) ==
                        2.0 * (100 + (double)t));
            assert_true(json_is_null(json_object_get(metrics, "tpot_ms")));
            assert_true(json_number_value(json_object_get(metrics, "wall_s")) > 0);
            json_t *ceilings = json_object_get(row, "ceilings");
            assert_true(json_number_value(json_object_get(ceilings, "read_bytes_per_s")) == 1e10);
            assert_string_equal(text_at(json_object_get(row, "effective"), "attention"), "ran");
            assert_string_equal(text_at(json_object_get(row, "axes"), "attention"), "good");
            assert_string_equal(text_at(row, "workload"), "decode");
            assert_non_null(strstr(text_at(row, "repro"), "--model synthetic:tiny --allocator x"));
            assert_non_null(text_at(json_object_get(row, "env"), "utc"));
        }
    }
    /* Rounds are the outer loop. */
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(rows, i), "round")),
                         i / 2);
    json_decref(rows);
}

static void every_end_is_a_row(void **state) {
    (void)state;
    fresh();
    TRIALS("good", "crash", "exit7", "hang", "eat", "silent", "nonsense", "wrong", "cannot");
    kvl_sweep_options options = make_options(2);
    options.timeout_s = 5;
    options.memory_limit_bytes = 300 << 20;
    kvl_sweep_summary summary;
    assert_ok(kvl_sweep_run(&options, &summary));
    assert_int_equal(kvl_sweep_exit(&summary), KVL_EXIT_TRIALS);
    assert_int_equal(summary.n_rows[KVL_OUTCOME_OK], 2);
    assert_int_equal(summary.n_rows[KVL_OUTCOME_SKIPPED], 8);
    kvl_sweep_summary_free(&summary);
    json_t *rows = load_rows();
    static const struct {
        const char *outcome, *reason;
    } expected[] = {{"ok", ""},
                    {"crash", "SIGABRT); it said: last words ?"},
                    {"crash", "exit code 7"},
                    {"timeout", "still running after 5 s"},
                    {"oom", "passed the limit of 300 MiB"},
                    {"crash", "without a valid answer; it said: noise on stdout"},
                    {"crash", "without a valid answer"},
                    {"mismatch", "max abs 0.5, bound 0.1"},
                    {"unsupported", "not here"}};
    for (size_t t = 0; t < 9; t++) {
        const json_t *row = row_of(rows, t, 0);
        assert_non_null(row);
        assert_string_equal(text_at(row, "outcome"), expected[t].outcome);
        assert_non_null(strstr(text_at(row, "reason"), expected[t].reason));
        const json_t *later = row_of(rows, t, 1);
        assert_string_equal(text_at(later, "outcome"), t ? "skipped" : "ok");
        if (t) assert_non_null(strstr(text_at(later, "reason"), expected[t].outcome));
    }
    json_decref(rows);
}

static void refused_trials_are_rows_and_start_nothing(void **state) {
    (void)state;
    fresh();
    TRIALS("good", "good");
    for (int i = 0; i < 2; i++)
        snprintf(trial_items[i].refused, sizeof trial_items[i].refused, "prompt too long");
    kvl_sweep_options options = make_options(3);
    kvl_sweep_summary summary;
    assert_ok(kvl_sweep_run(&options, &summary));
    assert_int_equal(summary.n_rows[KVL_OUTCOME_UNSUPPORTED], 2);
    assert_int_equal(kvl_sweep_exit(&summary), KVL_EXIT_NOTHING);
    kvl_sweep_summary_free(&summary);
    assert_int_equal(n_starts(), 0);
    json_t *rows = load_rows();
    assert_string_equal(text_at(row_of(rows, 1, 0), "reason"), "prompt too long");
    json_decref(rows);
}

static void finished_rows_are_not_run_again(void **state) {
    (void)state;
    fresh();
    TRIALS("good", "exit7");
    kvl_sweep_options options = make_options(2);
    kvl_sweep_summary summary;
    assert_ok(kvl_sweep_run(&options, &summary));
    kvl_sweep_summary_free(&summary);
    assert_int_equal(n_starts(), 3);
    assert_ok(kvl_sweep_run(&options, &summary));
    assert_int_equal(summary.n_resumed, 4);
    assert_int_equal(summary.n_written, 0);
    assert_int_equal(kvl_sweep_exit(&summary), KVL_EXIT_TRIALS);
    kvl_sweep_summary_free(&summary);
    assert_int_equal(n_starts(), 3);
    /* More rounds: only the new ones. */
    options.rounds = 3;
    assert_ok(kvl_sweep_run(&options, &summary));
    assert_int_equal(summary.n_written, 2);
    kvl_sweep_summary_free(&summary);
    assert_int_equal(n_starts(), 4);
    /* A retry runs what failed, and only that. */
    options.retry_failed = true;
    assert_ok(kvl_sweep_run(&options, &summary));
    assert_int_equal(summary.n_written, 3);
    assert_int_equal(summary.n_rows[KVL_OUTCOME_OK], 3);
    kvl_sweep_summary_free(&summary);
    assert_int_equal(n_starts(), 5);
}

/* The sweep's own process is killed at random moments; in the end each round has one row. */
static void killed_sweep_resumes(void **state) {
    (void)state;
    fresh();
    TRIALS("slow", "good", "slow", "good");
    kvl_sweep_options options = make_options(5);
    srand(3);
    int n_killed = 0;
    for (int attempt = 0; attempt < 200; attempt++) {
        pid_t pid = fork();
        if (pid == 0) {
            kvl_sweep_summary summary;
            _exit(kvl_sweep_run(&options, &summary) == KVL_OK ? 0 : 1);
        }
        /* Some while after it has started another trial, so that each attempt gets on. */
        size_t before = n_starts();
        int status;
        pid_t ended;
        while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && n_starts() == before) usleep(1000);
        if (ended == 0) {
            usleep((useconds_t)(rand() % 60000));
            kill(pid, SIGKILL);
            assert_int_equal(waitpid(pid, &status, 0), pid);
        }
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            break;
        }
        n_killed++;
    }
    assert_true(n_killed > 0);
    json_t *rows = load_rows();
    assert_int_equal(json_array_size(rows), 20);
    for (size_t t = 0; t < 4; t++) {
        for (int r = 0; r < 5; r++) assert_non_null(row_of(rows, t, r));
    }
    json_decref(rows);
}

static void interrupt_keeps_rows_and_ends_children(void **state) {
    (void)state;
    static const int signals[2] = {SIGINT, SIGTERM}, codes[2] = {130, 143};
    for (int i = 0; i < 2; i++) {
        fresh();
        kvl_sweep_options options = make_options(1);
        kvl_sweep_summary summary;
        TRIALS("good");
        assert_ok(kvl_sweep_run(&options, &summary));
        kvl_sweep_summary_free(&summary);
        TRIALS("good", "hang");
        pid_t pid = fork();
        if (pid == 0) {
            options.timeout_s = 60;
            if (kvl_sweep_run(&options, &summary) != KVL_OK) _exit(1);
            _exit(kvl_sweep_exit(&summary));
        }
        while (n_starts() < 2) usleep(10000);
        usleep(50000);
        kill(pid, signals[i]);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), codes[i]);
        json_t *rows = load_rows();
        assert_int_equal(json_array_size(rows), 1);
        assert_null(row_of(rows, 1, 0));
        json_decref(rows);
    }
}

static void full_disk_ends_the_sweep(void **state) {
    (void)state;
    fresh();
    TRIALS("good");
    kvl_sweep_options options = make_options(1);
    kvl_sweep_summary summary;
    assert_ok(kvl_sweep_run(&options, &summary));
    kvl_sweep_summary_free(&summary);
    struct stat one_row;
    assert_int_equal(stat(path, &one_row), 0);
    fresh();
    TRIALS("good", "good", "good");
    struct rlimit old, small;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = (rlim_t)one_row.st_size * 3 / 2;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    kvl_status status = kvl_sweep_run(&options, &summary);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, KVL_ERR_IO);
    assert_non_null(strstr(kvl_message(), path));
    kvl_sweep_summary_free(&summary);
    json_t *rows = load_rows();
    assert_int_equal(json_array_size(rows), 1);
    json_decref(rows);
    options.out = "/no/such/folder/x.jsonl";
    unlink(log_path);
    assert_refused(kvl_sweep_run(&options, &summary), KVL_ERR_IO, "/no/such/folder/x.jsonl");
    kvl_sweep_summary_free(&summary);
    assert_int_equal(n_starts(), 0);
}

static void removed_rows_end_the_sweep(void **state) {
    (void)state;
    fresh();
    TRIALS("remove");
    kvl_sweep_options options = make_options(3);
    kvl_sweep_summary summary;
    assert_refused(kvl_sweep_run(&options, &summary), KVL_ERR_IO, "removed while running");
    kvl_sweep_summary_free(&summary);
    assert_int_equal(n_starts(), 1);
    assert_int_equal(access(path, F_OK), -1);
}

static void narrow_intervals_end_a_trial(void **state) {
    (void)state;
    fresh();
    TRIALS("good", "wander", "crash");
    kvl_sweep_options options = make_options(2);
    options.until_ci_pct = 5;
    options.max_rounds = 9;
    kvl_sweep_summary summary;
    assert_ok(kvl_sweep_run(&options, &summary));
    json_t *rows = load_rows();
    size_t n[3] = {0};
    for (size_t t = 0; t < 3; t++)
        for (int r = 0; r < 9; r++) n[t] += row_of(rows, t, r) != NULL;
    assert_int_equal(n[0], 6); /* settled as soon as an interval can be */
    assert_int_equal(n[1], 9); /* never */
    assert_int_equal(n[2], 9); /* crashed once, then skipped */
    assert_int_equal(summary.n_settled, 3);
    assert_int_equal(summary.n_late, 0);
    kvl_sweep_summary_free(&summary);
    json_decref(rows);
    /* The same command again finds nothing left to do, and does not count what is settled. */
    unlink(log_path);
    assert_ok(kvl_sweep_run(&options, &summary));
    assert_int_equal(summary.n_written, 0);
    assert_int_equal(summary.n_resumed, 24);
    assert_int_equal(access(log_path, F_OK), -1);
    kvl_sweep_summary_free(&summary);
}

static void no_trial_starts_after_the_time_is_up(void **state) {
    (void)state;
    fresh();
    TRIALS("slow", "slow");
    kvl_sweep_options options = make_options(200);
    options.max_time_s = 0.1; /* each takes 20 ms */
    kvl_sweep_summary summary;
    assert_ok(kvl_sweep_run(&options, &summary));
    assert_true(summary.n_written >= 1);
    assert_true(summary.n_late > 0);
    assert_int_equal(summary.n_written + summary.n_late, 400);
    assert_int_equal(kvl_sweep_exit(&summary), KVL_EXIT_OK);
    kvl_sweep_summary_free(&summary);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "trial") == 0) _exit(fake_trial(argv[2]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ok_rows_hold_what_the_child_said),
        cmocka_unit_test(every_end_is_a_row),
        cmocka_unit_test(refused_trials_are_rows_and_start_nothing),
        cmocka_unit_test(finished_rows_are_not_run_again),
        cmocka_unit_test(killed_sweep_resumes),
        cmocka_unit_test(interrupt_keeps_rows_and_ends_children),
        cmocka_unit_test(full_disk_ends_the_sweep),
        cmocka_unit_test(removed_rows_end_the_sweep),
        cmocka_unit_test(narrow_intervals_end_a_trial),
        cmocka_unit_test(no_trial_starts_after_the_time_is_up),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
