/* experiments/peers/run.py with a fake kvlab and fake peers: order, resume, what becomes of missing
 * and dying peers, prompts, and whether kvlab reads the rows and their ratios. */
#define _GNU_SOURCE
#include "tests/test.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"
#include "harness/figures/group.h"
#include "harness/figures/plot.h"
#include "harness/figures/ratio.h"
#include "harness/trial/trial.h"

#define PEERS KVL_SOURCE_DIR "/experiments/peers"
#define FAKES KVL_SOURCE_DIR "/tests/experiments"

static char folder[] = "/tmp/kvlab-peers-XXXXXX";

static void write_text(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(kvl_file_write_all(path, text, strlen(text)));
}

static char *read_text(const char *name) {
    char path[512];
    kvl_file file;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (access(path, R_OK) != 0) return strdup("");
    assert_ok(kvl_file_open(path, &file));
    char *text = strndup((const char *)file.data, file.bytes);
    kvl_file_close(&file);
    return text;
}

/* Six peers, each with its own way to behave. */
static int make_folder(void **state) {
    (void)state;
    static const char *const names[] = {"fast", "slow", "absent",  "crash",
                                        "exit", "hang", "nonsense"};
    char systems[4096] = "{\"kvlab\": {\"adapter\": null, \"kinds\": [\"decode\", \"prefill\", "
                         "\"attention\", \"nf4-decode\"]}";
    if (!mkdtemp(folder)) return -1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(systems);
        snprintf(systems + n, sizeof systems - n,
                 ",\n\"%s\": {\"adapter\": \"" FAKES "/fake_adapter.py\", \"kinds\": [\"decode\", "
                 "\"prefill\", \"attention\", \"nf4-decode\"]}",
                 names[i]);
    }
    strcat(systems, "}\n");
    write_text("systems.json", systems);
    write_text("model.gguf", "weights");
    /* SHA-256 of "weights" */
    write_text("model.json",
               "{\"source_sha256\": "
               "\"9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c\", "
               "\"parameters\": 100000000, \"vocab_size\": 49152, \"special_ids\": [1, 2]}");
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* Runs run.py in the folder with what every test needs and `more`; returns its exit code. */
static int run_peers(const char *more) {
    char command[2048];
    snprintf(command, sizeof command,
             "cd '%s' && FAKE_LOG=log PYTHONDONTWRITEBYTECODE=1 python3 " PEERS
             "/run.py --kvlab " FAKES
             "/fake_kvlab.py --model model.gguf --systems-file systems.json --threads 1 "
             "%s 2>> errors",
             folder, more);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static json_t *rows_of(const char *name) {
    char path[512];
    json_t *rows;
    int n_torn;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const char *paths[] = {path};
    assert_ok(kvl_rows_load_all(paths, 1, &rows, &n_torn));
    assert_int_equal(n_torn, 0);
    return rows;
}

static const char *member(const json_t *row, const char *object, const char *name) {
    const json_t *from = object ? json_object_get(row, object) : row;
    const char *text = json_string_value(json_object_get(from, name));
    return text ? text : "";
}

static const json_t *row_of(const json_t *rows, const char *system, int round) {
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) {
        if (strcmp(member(row, "axes", "system"), system) == 0 &&
            json_integer_value(json_object_get(row, "round")) == round)
            return row;
    }
    fail_msg("no row of %s in round %d", system, round);
    return NULL;
}

static void rounds_are_interleaved_and_seeded(void **state) {
    (void)state;
    assert_int_equal(run_peers("--system kvlab,slow,fast --work 'attention prefill 16 heads d64 "
                               "2048,attention decode b8 9/3 d64 k4096' --rounds 4 --out a.jsonl"),
                     0);
    assert_int_equal(run_peers("--system kvlab,slow,fast --work 'attention prefill 16 heads d64 "
                               "2048,attention decode b8 9/3 d64 k4096' --rounds 4 --out b.jsonl"),
                     0);
    json_t *a = rows_of("a.jsonl"), *b = rows_of("b.jsonl");
    assert_int_equal(json_array_size(a), 4 * 2 * 3);
    bool orders_differ = false;
    for (size_t i = 0; i < json_array_size(a); i++) {
        const json_t *row = json_array_get(a, i), *same = json_array_get(b, i);
        /* Six rows a round, three in a row of one work item. */
        assert_int_equal(json_integer_value(json_object_get(row, "round")), i / 6);
        assert_string_equal(member(row, "axes", "work"),
                            member(json_array_get(a, i / 3 * 3), "axes", "work"));
        assert_string_equal(member(row, "axes", "system"), member(same, "axes", "system"));
        assert_string_equal(member(row, NULL, "trial"), member(same, NULL, "trial"));
        orders_differ |= strcmp(member(row, "axes", "system"),
                                member(json_array_get(a, i % 3), "axes", "system")) != 0;
    }
    assert_true(orders_differ);
    json_decref(a);
    json_decref(b);
}

static void finished_rounds_are_not_run_again(void **state) {
    (void)state;
    const char *work =
        "--work 'attention decode b8 9/3 d64 k4096' --system slow,crash --out c.jsonl";
    char command[512];
    snprintf(command, sizeof command, "%s --rounds 1", work);
    assert_int_equal(run_peers(command), 4);
    json_t *rows = rows_of("c.jsonl");
    assert_int_equal(json_array_size(rows), 2);
    json_decref(rows);
    /* A torn line, as a killed run leaves it, is cut; two rounds more are measured. */
    char *whole = read_text("c.jsonl"), *torn;
    assert_true(asprintf(&torn, "%s{\"schema\":1,\"run\":\"2026", whole) > 0);
    write_text("c.jsonl", torn);
    write_text("log", "");
    snprintf(command, sizeof command, "%s --rounds 3", work);
    assert_int_equal(run_peers(command), 4);
    char *log = read_text("log");
    assert_int_equal(strlen(log), 2 * strlen("slow/attention decode b8 9/3 d64 k4096\n") +
                                      2 * strlen("crash/attention decode b8 9/3 d64 k4096\n"));
    rows = rows_of("c.jsonl");
    assert_int_equal(json_array_size(rows), 6);
    json_decref(rows);
    /* Nothing is left; another version of the peer is another trial. */
    assert_int_equal(run_peers(command), 0);
    setenv("FAKE_VERSION", "2.0", 1);
    assert_int_equal(
        run_peers("--work 'attention decode b8 9/3 d64 k4096' --system slow --rounds 1 "
                  "--out c.jsonl"),
        0);
    unsetenv("FAKE_VERSION");
    rows = rows_of("c.jsonl");
    assert_int_equal(json_array_size(rows), 7);
    json_decref(rows);
    free(whole);
    free(torn);
    free(log);
}

static void missing_and_dying_peers_are_rows(void **state) {
    (void)state;
    assert_int_equal(
        run_peers("--work 'attention decode b8 9/3 d64 k4096' --rounds 2 --timeout-s 2 "
                  "--out d.jsonl"),
        4);
    json_t *rows = rows_of("d.jsonl");
    const struct {
        const char *system, *outcome, *reason;
    } expected[] = {{"kvlab", "ok", ""},
                    {"slow", "ok", ""},
                    {"absent", "skipped", "not installed: no Python package absent"},
                    {"crash", "crash", "signal 6; it said: last words"},
                    {"exit", "crash", "exit code 1 without a valid answer; it said: went wrong"},
                    {"hang", "timeout", "still running after 2 s"},
                    {"nonsense", "crash", "exit code 0 without a valid answer"}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const json_t *row = row_of(rows, expected[i].system, 0);
        assert_string_equal(member(row, NULL, "outcome"), expected[i].outcome);
        assert_string_equal(member(row, NULL, "reason"), expected[i].reason);
        assert_string_equal(member(row, "effective", "compared_metric"), "time_us");
    }
    /* A missing peer is said once, not once a round. */
    assert_int_equal(json_array_size(rows), 7 * 2 + 1);
    json_decref(rows);
    assert_int_equal(
        run_peers("--python slow=/nowhere/python --system slow --rounds 1 --out e.jsonl "
                  "--work 'attention decode b8 9/3 d64 k4096'"),
        0);
    rows = rows_of("e.jsonl");
    assert_string_equal(member(json_array_get(rows, 0), NULL, "outcome"), "skipped");
    json_decref(rows);
}

/* 512 tokens through 10^8 parameters in 37 ms are 2,768 GFLOP/s; the ceiling is 100. */
static void a_cached_prompt_is_no_prefill(void **state) {
    (void)state;
    write_text("cached.json",
               "{\"cached\": {\"adapter\": \"" FAKES "/fake_adapter.py\", \"kinds\": "
               "[\"prefill\"]}, \"slow\": {\"adapter\": \"" FAKES
               "/fake_adapter.py\", \"kinds\": [\"prefill\"]}}");
    assert_int_equal(run_peers("--systems-file cached.json --converted . --work 'prefill 512' "
                               "--rounds 1 --out h.jsonl"),
                     4);
    json_t *rows = rows_of("h.jsonl");
    assert_string_equal(member(row_of(rows, "slow", 0), NULL, "outcome"), "ok");
    const json_t *row = row_of(rows, "cached", 0);
    assert_string_equal(member(row, NULL, "outcome"), "mismatch");
    assert_non_null(strstr(member(row, NULL, "reason"), "a prompt was cached"));
    json_decref(rows);
}

static void bad_input_is_refused(void **state) {
    (void)state;
    assert_int_equal(run_peers("--work nothing --out f.jsonl"), 2);
    assert_int_equal(run_peers("--system lama --out f.jsonl"), 2);
    write_text("notes.txt", "not rows\n");
    assert_int_equal(run_peers("--system slow --rounds 1 --out notes.txt"), 2);
    char *text = read_text("notes.txt");
    assert_string_equal(text, "not rows\n");
    free(text);
}

/* The prompts that a peer is given are those that `kvlab bench decode` draws. */
static void prompts_and_ids_are_those_of_kvlab(void **state) {
    (void)state;
    assert_int_equal(run_peers("--converted . --seed 7 --work 'decode b8 c512,nf4 decode b1 c16' "
                               "--system kvlab,slow,fast --rounds 1 --out g.jsonl"),
                     0);
    json_t *rows = rows_of("g.jsonl");
    kvl_model model = {0};
    model.config.vocab_size = 49152;
    model.config.bos_id = 1;
    model.config.pad_id = model.config.eos_ids[0] = 2;
    model.config.n_eos = 1;
    kvl_trial_spec_values spec = {.prompt = 512, .batch = 8, .seed = 7};
    int32_t *ids;
    assert_ok(kvl_trial_prompts(&model, &spec, &ids));
    size_t i;
    json_t *row;
    int n_compared = 0, n_refused = 0;
    json_array_foreach(rows, i, row) {
        const char *system = member(row, "axes", "system"), *work = member(row, "axes", "work");
        n_refused += strcmp(member(row, NULL, "outcome"), "unsupported") == 0;
        if (strcmp(work, "decode b8 c512") != 0 || strcmp(system, "kvlab") == 0) continue;
        const json_t *first = json_object_get(json_object_get(row, "effective"), "first_ids");
        for (size_t k = 0; k < 4; k++)
            assert_int_equal(json_integer_value(json_array_get(first, k)), ids[k]);
        assert_string_equal(member(row, "effective", "greedy_ids"),
                            strcmp(system, "slow") == 0
                                ? "equal to kvlab's"
                                : "sequence 0 differs from kvlab's at token 2 of 3");
        n_compared++;
    }
    assert_int_equal(n_compared, 2);
    assert_int_equal(n_refused, 1); /* kvlab's nf4, as it says itself */
    free(ids);
    json_decref(rows);
}

/* A row of `system` with `value`; a null metric when it is negative. */
static json_t *small_row(const char *system, const char *trial, int round, double value) {
    return json_pack("{s:s,s:i,s:s,s:{s:s,s:s},s:{s:s,s:s},s:{s:o},s:{},s:s}", "trial", trial,
                     "round", round, "outcome", value < 0 ? "crash" : "ok", "axes", "system",
                     system, "work", "w", "effective", "compared_metric", "decode_tok_s",
                     "compared_better", "higher", "metrics", "decode_tok_s",
                     value < 0 ? json_null() : json_real(value), "env", "reason", "died");
}

/* Ratios are taken within rounds: one that drifts with kvlab gives the same ratio in each, and a
 * round that only one of them has does not count. */
static void ratios_are_taken_within_rounds(void **state) {
    (void)state;
    const double own[4] = {100, 50, 10, 30}, other[4] = {50, 25, 5, -1};
    kvl_groups groups;
    kvl_ratios ratios;
    kvl_buffer csv = {0};
    char insight[512];
    json_t *rows = json_array();
    for (int r = 0; r < 4; r++) {
        json_array_append_new(rows, small_row("peer", "0b", r, other[r]));
        json_array_append_new(rows, small_row("kvlab", "0a", 3 - r, own[3 - r]));
    }
    json_array_append_new(rows, small_row("peer", "0c", 0, -1)); /* as it was before it worked */
    assert_ok(kvl_groups_make(rows, &groups));
    assert_ok(kvl_ratios_make(&groups, NULL, true, &ratios));
    assert_int_equal(ratios.n, 2);
    assert_string_equal(ratios.items[0].system, "kvlab");
    assert_float_equal(ratios.items[0].median, 40, 1e-9);
    assert_true(isnan(ratios.items[0].ratio));
    assert_int_equal(ratios.items[1].n_pairs, 3);
    assert_float_equal(ratios.items[1].median, 25, 1e-9);
    assert_float_equal(ratios.items[1].ratio, 2, 1e-9);
    assert_float_equal(ratios.items[1].lo, 2, 1e-9);
    assert_float_equal(ratios.items[1].hi, 2, 1e-9);
    assert_ok(kvl_ratios_csv(&ratios, &csv));
    assert_string_equal(csv.data, "place,kind,label,ratio,lo,hi,rounds,outcome,value,metric\n"
                                  "1,work,w (tok/s),,,,,,,\n"
                                  "2,base,kvlab 40.0,,,,4,ok,40,decode_tok_s\n"
                                  "3,system,peer 25.0,2,2,2,3,ok,25,decode_tok_s\n");
    kvl_ratios_insight(&ratios, insight, sizeof insight);
    assert_non_null(strstr(insight, "ahead of the best peer in 1 of 1"));
    kvl_ratios_free(&ratios);
    kvl_groups_free(&groups);
    /* Two trials of one system that both ended ok are not one. */
    json_array_append_new(rows, small_row("kvlab", "0d", 0, 70));
    assert_ok(kvl_groups_make(rows, &groups));
    assert_refused(kvl_ratios_make(&groups, NULL, true, &ratios), KVL_ERR_INPUT, "0d");
    kvl_groups_free(&groups);
    kvl_buffer_free(&csv);
    json_decref(rows);
}

static const kvl_ratio_entry *entry_of(const kvl_ratios *ratios, const char *system) {
    for (size_t i = 0; i < ratios->n; i++)
        if (strcmp(ratios->items[i].system, system) == 0) return &ratios->items[i];
    fail_msg("no ratio of %s", system);
    return NULL;
}

static void draw_and_read(const kvl_ratios *ratios) {
    char base[512];
    snprintf(base, sizeof base, "%s/figure", folder);
    kvl_plot_options plot = {.base = base, .scripts = KVL_SOURCE_DIR "/plots"};
    assert_ok(kvl_plot_ratios(ratios, &plot));
    char *svg = read_text("figure.svg"), *csv = read_text("figure.csv");
    assert_non_null(strstr(svg, ">slow 50.0<"));
    assert_non_null(strstr(svg, ">0.50<"));
    assert_non_null(strstr(csv, "skipped"));
    free(svg);
    free(csv);
}

/* Times: 100 us of kvlab, 50 and 200 of the peers; the faster one is the best. */
static void rows_become_ratios(void **state) {
    (void)state;
    json_t *rows = rows_of("d.jsonl");
    kvl_groups groups;
    kvl_ratios ratios;
    kvl_buffer table = {0};
    assert_ok(kvl_groups_make(rows, &groups));
    assert_ok(kvl_ratios_make(&groups, NULL, true, &ratios));
    assert_int_equal(ratios.n, 8);
    assert_true(ratios.items[0].is_base);
    assert_string_equal(ratios.items[1].system, "slow"); /* 50 us: the fake's names are rates */
    assert_true(ratios.items[1].is_best_peer);
    assert_float_equal(entry_of(&ratios, "slow")->ratio, 0.5, 1e-9);
    assert_float_equal(entry_of(&ratios, "fast")->ratio, 2, 1e-9);
    assert_int_equal(entry_of(&ratios, "fast")->n_pairs, 2);
    assert_ok(kvl_ratios_markdown(&ratios, &table));
    assert_non_null(strstr(table.data, "| **slow** | 50.0 "));
    assert_non_null(strstr(table.data, "| **0.500** (0.500 to 0.500) |"));
    assert_non_null(strstr(table.data, "| absent | skipped | 0 | not installed: no Python"));
    if (system("gnuplot --version >/dev/null 2>&1") == 0) draw_and_read(&ratios);
    kvl_buffer_free(&table);
    kvl_ratios_free(&ratios);
    kvl_groups_free(&groups);
    json_decref(rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_are_interleaved_and_seeded),
        cmocka_unit_test(finished_rounds_are_not_run_again),
        cmocka_unit_test(missing_and_dying_peers_are_rows),
        cmocka_unit_test(a_cached_prompt_is_no_prefill),
        cmocka_unit_test(bad_input_is_refused),
        cmocka_unit_test(prompts_and_ids_are_those_of_kvlab),
        cmocka_unit_test(rows_become_ratios),
        cmocka_unit_test(ratios_are_taken_within_rounds),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
