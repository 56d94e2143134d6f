/* kvlab compare: which trials meet, each verdict and its exit code, and what is refused. Rows are
 * written to files and the command is run on them, as a CI would. */
#define _GNU_SOURCE
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "core/rng.h"
#include "harness/commands.h"
#include "harness/compare/compare.h"
#include "harness/exit.h"
#include "tests/harness/command.h"

static char folder[] = "/tmp/kvl_compare_XXXXXX";
static char path_a[64], path_b[64];
static FILE *file; /* of rows being written */
static int next_trial;

typedef struct kind {
    const char *attention, *outcome, *host, *build, *run;
    int prompt, rounds, step_ms; /* step_ms: 0 = none */
    double decode, prefill;      /* medians; below 0: null */
    double spread;
} kind;

/* What a test does not say: flash at prompt 512, 8 quiet rounds. */
static kind filled(kind k) {
    if (!k.attention) k.attention = "flash";
    if (!k.outcome) k.outcome = "ok";
    if (!k.host) k.host = "aaaa0001";
    if (!k.build) k.build = "bbbb0001";
    if (!k.run) k.run = "run1";
    if (!k.prompt) k.prompt = 512;
    if (!k.rounds) k.rounds = 8;
    if (k.decode == 0) k.decode = 40;
    if (k.prefill == 0) k.prefill = 800;
    if (k.spread == 0) k.spread = 0.002;
    return k;
}

static json_t *value(kvl_rng *rng, double median, double spread) {
    if (median < 0) return json_null();
    return json_real(median * (1 + spread * (double)kvl_rng_normal(rng)));
}

static void add(kind k) {
    char trial[20];
    k = filled(k);
    snprintf(trial, sizeof trial, "%016x", ++next_trial);
    kvl_rng rng = kvl_rng_make(11, (uint64_t)next_trial);
    for (int r = 0; r < k.rounds; r++) {
        bool ok = strcmp(k.outcome, "ok") == 0;
        json_t *metrics = json_object();
        if (ok) {
            json_object_set_new(metrics, "decode_tok_s", value(&rng, k.decode, k.spread));
            json_object_set_new(metrics, "prefill_tok_s", value(&rng, k.prefill, k.spread));
            json_object_set_new(metrics, "kv_bytes_live", json_integer(k.prompt * 1000));
            json_object_set_new(metrics, "attention_share", json_real(0.25));
        }
        json_t *row = json_pack(
            "{s:i,s:s,s:s,s:i,s:s,s:{s:s,s:s,s:s,s:i,s:i},s:{s:s,s:i},s:s,s:s,s:o,s:{},s:{},"
            "s:{s:s,s:s},s:i,s:s}",
            "schema", 1, "run", k.run, "trial", trial, "round", r, "workload", "decode", "axes",
            "model", "m.gguf", "allocator", "paged", "attention", k.attention, "prompt", k.prompt,
            "page_tokens", 16, "effective", "model_digest", "dddd", "chunk_tokens", 0, "outcome",
            k.outcome, "reason", ok ? "" : "it said so", "metrics", metrics, "samples", "ceilings",
            "env", "host", k.host, "build", k.build, "seed", 1, "repro", "kvlab bench decode");
        assert_non_null(row);
        if (k.step_ms)
            json_object_set_new(json_object_get(row, "effective"), "step_ms",
                                json_integer(k.step_ms));
        char *text = json_dumps(row, JSON_COMPACT);
        fprintf(file, "%s\n", text);
        free(text);
        json_decref(row);
    }
}

static void open_rows(const char *path) {
    if (file) fclose(file);
    file = fopen(path, "w");
    assert_non_null(file);
}

static void close_rows(void) {
    if (file) fclose(file);
    file = NULL;
}

#define RUN(...) run_command(&kvl_command_compare, (const char *const[]){__VA_ARGS__, NULL})

/* A as by default, B as given. */
static int against(kind b) {
    open_rows(path_a);
    add((kind){0});
    open_rows(path_b);
    add(b);
    close_rows();
    return RUN(path_a, path_b);
}

static void each_verdict_has_its_code(void **state) {
    (void)state;
    expect(against((kind){.decode = 42, .prefill = 840}), 0, "faster: 2 faster");
    expect(against((kind){0}), 0, "same: 2 same");
    expect(against((kind){.decode = 38, .prefill = 800}), 1, "decode_tok_s 40");
    expect(against((kind){.decode = 38}), 1, "slower: 1 same, 1 slower");
    expect(against((kind){.decode = 38, .prefill = 840}), 1, "crossed: 1 faster, 1 slower");
    expect(against((kind){.decode = 41, .spread = 0.03}), 3, "more rounds would settle it");
    expect(against((kind){.rounds = 1}), 3, "one round does not show the spread");
    expect(against((kind){.prompt = 512, .outcome = "oom"}), 4, "B ended oom: it said so");
    expect(against((kind){.outcome = "unsupported"}), 3, "missing: B ended unsupported");
    expect(against((kind){.decode = -1}), 3, "B has no value");
}

static void a_failure_that_ended_is_no_fault(void **state) {
    (void)state;
    open_rows(path_a);
    add((kind){.outcome = "crash"});
    add((kind){.prompt = 1024});
    open_rows(path_b);
    add((kind){0});
    add((kind){.prompt = 1024});
    close_rows();
    expect(RUN(path_a, path_b), 0, "prompt 512: new: A ended crash, B ok");
    /* The other way round it is a failure, even beside a gain. */
    expect(RUN(path_b, path_a), 4, "failed");
    /* Nothing but failures of A: nothing was compared. */
    open_rows(path_a);
    add((kind){.outcome = "crash"});
    close_rows();
    expect(RUN(path_a, path_a), 4, "failed");
    open_rows(path_b);
    add((kind){0});
    close_rows();
    expect(RUN(path_a, path_b), 5, "no trial of A has a partner");
}

static void a_row_that_vanished_is_not_a_pass(void **state) {
    (void)state;
    open_rows(path_a);
    add((kind){0});
    add((kind){.prompt = 1024});
    open_rows(path_b);
    add((kind){0});
    close_rows();
    expect(RUN(path_a, path_b), 3, "prompt 1024: missing: B has no such trial");
    expect(RUN(path_b, path_a), 0, "prompt 1024: new: A has no such trial, B ok");
    expect(RUN(path_a, path_b, "--fail-on", "slower"), 0, "missing");
    expect(RUN(path_a, path_b, "--fail-on", "slower,missing"), 1, "missing");
}

static void fail_on_gates(void **state) {
    (void)state;
    assert_int_equal(against((kind){.decode = 38, .prefill = 840}), 1);
    expect(RUN(path_a, path_b, "--fail-on", "none"), 0, "crossed");
    expect(RUN(path_a, path_b, "--fail-on", "crossed"), 1, "crossed");
    expect(RUN(path_a, path_b, "--fail-on", "unsure,failed"), 0, "crossed");
    expect(RUN(path_a, path_b, "--fail-on", "slowr"), 2, "did you mean 'slower'");
}

static void thresholds_are_a_metrics_own(void **state) {
    (void)state;
    assert_int_equal(against((kind){.decode = 38.4}), 1); /* 4 % */
    expect(RUN(path_a, path_b, "--threshold", "decode_tok_s=8"), 0, "same: 2 same");
    expect(RUN(path_a, path_b, "--threshold", "prefill_tok_s=8"), 1, "slower");
    expect(RUN(path_a, path_b, "--min-effect", "8"), 0, "same: 2 same");
    expect(RUN(path_a, path_b, "--threshold", "ttft_ms=8"), 2, "add it to --metric");
    expect(RUN(path_a, path_b, "--threshold", "decode_tok=8"), 2, "did you mean 'decode_tok_s'");
    expect(RUN(path_a, path_b, "--threshold", "decode_tok_s"), 2, "METRIC=PCT is needed");
    expect(RUN(path_a, path_b, "--threshold", "decode_tok_s=-3"), 2, "PCT from 0 on");
}

static void metrics_have_their_direction(void **state) {
    (void)state;
    open_rows(path_a);
    add((kind){0});
    open_rows(path_b);
    add((kind){.prompt = 1024});
    close_rows();
    expect(RUN(path_a, path_b, "--across", "prompt", "--metric", "kv_bytes_live"), 1,
           "kv_bytes_live 5.12e+05 -> 1.024e+06 bytes, x2.000 (2.000 to 2.000), worse");
    expect(RUN(path_a, path_b, "--across", "prompt", "--metric", "kv_bytes_live:higher"), 0,
           "better");
    expect(RUN(path_a, path_b, "--metric", "attention_share"), 2, "attention_share:lower");
    expect(RUN(path_a, path_a, "--metric", "attention_share:lower"), 0, "same");
    expect(RUN(path_a, path_a, "--metric", "attention_share:up"), 2, "'lower' or 'higher'");
    expect(RUN(path_a, path_a, "--metric", "time_us"), 2, "no trial has it");
    expect(RUN(path_a, path_a, "--metric", "tmie_us"), 2, "did you mean 'time_us'");
}

static void axes_that_differ_must_be_named(void **state) {
    (void)state;
    expect(against((kind){.attention = "eager"}), 2,
           "A and B differ in attention (flash and "
           "eager)");
    expect(RUN(path_a, path_b, "--across", "attention"), 0, "same");
    expect(RUN(path_a, path_b, "--across", "atention"), 2, "did you mean 'attention'");
    expect(against((kind){.step_ms = 50}), 2, "differ in step_ms (none and 50)");
    expect(RUN(path_a, path_b, "--across", "step_ms"), 0, "step_ms none -> 50");
    assert_int_equal(against((kind){.attention = "eager"}), 2);
    expect(RUN(path_a, path_b, "--by", "prompt"), 2, "differ in attention");
    expect(RUN(path_a, path_b, "--by", "prompt", "--across", "attention"), 0, "same");
    expect(RUN(path_a, path_b, "--by", "attention", "--across", "attention"), 2, "--by attention");
    open_rows(path_a);
    add((kind){0});
    add((kind){.prompt = 1024});
    close_rows();
    expect(RUN(path_a, path_a, "--by", "attention"), 2,
           "trials of A differ in prompt (512 and "
           "1024)");
    expect(RUN(path_a, path_a, "--by", "attention,prompt"), 0, "same: 4 same");
}

static void one_file_holds_both_sides(void **state) {
    char eager[96], flash[96];
    (void)state;
    open_rows(path_a);
    add((kind){.attention = "eager", .decode = 30});
    add((kind){.attention = "flash"});
    add((kind){.attention = "eager", .prompt = 1024, .decode = 20});
    add((kind){.attention = "flash", .prompt = 1024});
    close_rows();
    snprintf(eager, sizeof eager, "%s:attention=eager", path_a);
    snprintf(flash, sizeof flash, "%s:attention=flash", path_a);
    expect(RUN(path_a, path_a, "--across", "attention"), 2,
           "holds two trials of one place (prompt "
           "512)");
    expect(RUN(eager, flash), 0, "attention eager -> flash, prompt 1024: decode_tok_s ");
    expect(RUN(eager, flash), 0, "faster: 2 same, 2 faster");
    if (strstr(said, "not measured in one run")) fail_msg("rounds of one run: %s", said);
    snprintf(flash, sizeof flash, "%s:attention=flash,prompt=1024", path_a);
    expect(RUN(eager, flash, "--fail-on", "slower"), 0, "prompt 512: missing");
    snprintf(flash, sizeof flash, "%s:attention=sdpa", path_a);
    expect(RUN(eager, flash), 2, "attention=sdpa: no trial has it");
    snprintf(flash, sizeof flash, "%s:atention=sdpa", path_a);
    expect(RUN(eager, flash), 2, "did you mean 'attention'");
    snprintf(flash, sizeof flash, "%s:attention=flash,1024", path_a);
    expect(RUN(eager, flash), 2, "AXIS=VALUE is needed");
}

static void builds_may_differ_and_hosts_must_not(void **state) {
    char first[96];
    (void)state;
    expect(against((kind){.build = "bbbb0002", .run = "run2"}), 0, "not measured in one run");
    expect(against((kind){.host = "aaaa0002"}), 2, "two machines");
    expect(RUN(path_a, path_b, "--across", "host"), 0, "same");
    /* Two builds in one file are two answers to one question. */
    open_rows(path_a);
    add((kind){0});
    add((kind){.build = "bbbb0002"});
    close_rows();
    expect(RUN(path_a, path_b, "--across", "host"), 2, "differ in build (bbbb0001 and bbbb0002)");
    snprintf(first, sizeof first, "%s:build=bbbb0002", path_a);
    expect(RUN(first, path_b, "--across", "host"), 0, "same");
}

/* Rounds of one run that a neighbour slowed together: only pairing them sees the 5 %. */
static void rounds_of_one_run_are_paired(void **state) {
    kvl_rng rng = kvl_rng_make(5, 5);
    json_t *rows[2] = {json_array(), json_array()};
    (void)state;
    for (int r = 0; r < 10; r++) {
        double drift = exp(0.2 * (double)kvl_rng_normal(&rng));
        for (int s = 0; s < 2; s++)
            json_array_append_new(
                rows[s],
                json_pack("{s:s,s:i,s:s,s:s,s:{},s:{},s:{s:f}}", "trial", "t", "round", r + s,
                          "run", "one", "outcome", "ok", "axes", "effective", "metrics",
                          "decode_tok_s",
                          drift * (s ? 105 : 100) * (1 + 0.002 * (double)kvl_rng_normal(&rng))));
    }
    for (int shifted = 0; shifted < 2; shifted++) {
        /* First the rounds' numbers do not agree by one: nine pairs that are no pairs of drift. */
        for (size_t r = 0; shifted && r < 10; r++)
            json_object_set_new(json_array_get(rows[1], r), "round", json_integer((json_int_t)r));
        kvl_groups groups[2];
        for (int s = 0; s < 2; s++) assert_ok(kvl_groups_make(rows[s], &groups[s]));
        kvl_side a = {"A", NULL, &groups[0]}, b = {"B", NULL, &groups[1]};
        kvl_compare_options options = {.effect_pct = 1};
        kvl_compare_result result;
        assert_ok(kvl_compare_run(&a, &b, &options, &result));
        assert_int_equal(result.n, 1);
        assert_true(result.items[0].change.paired);
        assert_int_equal(result.items[0].change.n_a, shifted ? 10 : 9);
        assert_int_equal(result.verdict, shifted ? KVL_VERDICT_FASTER : KVL_VERDICT_UNSURE);
        kvl_compare_free(&result);
        for (int s = 0; s < 2; s++) kvl_groups_free(&groups[s]);
    }
    for (int s = 0; s < 2; s++) json_decref(rows[s]);
}

static void bad_files_and_no_rows(void **state) {
    (void)state;
    assert_int_equal(against((kind){0}), 0);
    expect(RUN(path_a), 2, "two files of rows");
    expect(RUN(path_a, "/tmp/no/such/file.jsonl"), 2, "No such file");
    expect(RUN(path_a, "/tmp"), 2, "/tmp");
    open_rows(path_b);
    fprintf(file, "{\"schema\":1}\n");
    close_rows();
    expect(RUN(path_a, path_b), 2, "not a row");
    open_rows(path_b);
    close_rows();
    expect(RUN(path_a, path_b), 5, "holds no rows");
    expect(RUN(path_b, path_a, "--json"), 5, "\"exit_code\": 5");
}

/* What a killed sweep leaves: a torn last line, and rounds that one trial has more of. */
static void rows_of_an_interrupted_sweep(void **state) {
    (void)state;
    open_rows(path_a);
    add((kind){0});
    open_rows(path_b);
    add((kind){.rounds = 6});
    fprintf(file, "{\"schema\":1,\"run\":\"ru");
    close_rows();
    expect(RUN(path_a, path_b), 0, "torn last line");
    expect(RUN(path_a, path_b), 0, "same: 2 same");
}

static void an_interrupt_gives_no_verdict(void **state) {
    json_t *rows = NULL;
    int n_torn, code;
    (void)state;
    assert_int_equal(against((kind){0}), 0);
    const char *path = path_a;
    assert_ok(kvl_rows_load_all(&path, 1, &rows, &n_torn));
    kvl_groups groups;
    assert_ok(kvl_groups_make(rows, &groups));
    kvl_side side = {"A", NULL, &groups};
    const int signals[] = {SIGINT, SIGTERM}, codes[] = {130, 143};
    for (int i = 0; i < 2; i++) {
        volatile sig_atomic_t stop = signals[i];
        kvl_compare_options options = {.effect_pct = 1, .stop = &stop};
        kvl_compare_result result;
        assert_ok(kvl_compare_run(&side, &side, &options, &result));
        assert_int_equal(result.n, 0);
        assert_ok(kvl_compare_exit(&result, "none", &code));
        assert_int_equal(code, codes[i]);
        kvl_buffer text = {0};
        kvl_compare_text(&result, &text);
        assert_null(text.data);
        kvl_compare_free(&result);
    }
    kvl_groups_free(&groups);
    json_decref(rows);
}

static void json_says_the_same(void **state) {
    (void)state;
    assert_int_equal(against((kind){.decode = 38}), 1);
    assert_int_equal(RUN(path_a, path_b, "--json"), 1);
    json_t *all = json_loads(said, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(all);
    assert_int_equal(json_integer_value(json_object_get(all, "schema_version")), 1);
    assert_int_equal(json_integer_value(json_object_get(all, "exit_code")), 1);
    assert_string_equal(json_string_value(json_object_get(all, "verdict")), "slower");
    const json_t *item = json_array_get(json_object_get(all, "comparisons"), 1);
    assert_string_equal(json_string_value(json_object_get(item, "metric")), "decode_tok_s");
    assert_string_equal(json_string_value(json_object_get(item, "better")), "higher");
    assert_string_equal(json_string_value(json_object_get(item, "verdict")), "slower");
    double ratio = json_number_value(json_object_get(item, "ratio"));
    assert_true(ratio > 0.94 && ratio < 0.96);
    json_decref(all);
    /* Errors are an object too. */
    expect(RUN(path_a, "/tmp/no/such/file.jsonl", "--json"), 2, "\"error\": ");
    expect(RUN(path_a, path_b, "--jsn"), 2, "did you mean '--json'");
}

static int start(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path_a, sizeof path_a, "%s/a.jsonl", folder);
    snprintf(path_b, sizeof path_b, "%s/b.jsonl", folder);
    return 0;
}

static int finish(void **state) {
    (void)state;
    unlink(path_a);
    unlink(path_b);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_verdict_has_its_code),
        cmocka_unit_test(a_failure_that_ended_is_no_fault),
        cmocka_unit_test(a_row_that_vanished_is_not_a_pass),
        cmocka_unit_test(fail_on_gates),
        cmocka_unit_test(thresholds_are_a_metrics_own),
        cmocka_unit_test(metrics_have_their_direction),
        cmocka_unit_test(axes_that_differ_must_be_named),
        cmocka_unit_test(one_file_holds_both_sides),
        cmocka_unit_test(builds_may_differ_and_hosts_must_not),
        cmocka_unit_test(rounds_of_one_run_are_paired),
        cmocka_unit_test(bad_files_and_no_rows),
        cmocka_unit_test(rows_of_an_interrupted_sweep),
        cmocka_unit_test(an_interrupt_gives_no_verdict),
        cmocka_unit_test(json_says_the_same),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
