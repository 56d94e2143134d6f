/* Figures: which trials share a place, the CSV's values, the insight, and the files drawn. */
#define _GNU_SOURCE
#include "tests/test.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "harness/figures/figure.h"
#include "harness/figures/plot.h"

static json_t *rows;
static kvl_groups groups;
static int next_trial;

static void add_row(const char *attention, const char *allocator, int prompt, int round,
                    const char *build, const char *outcome, double tok_s) {
    char key[24];
    snprintf(key, sizeof key, "%016x", next_trial);
    json_t *metrics = NULL;
    if (strcmp(outcome, "ok") != 0)
        metrics = json_object();
    else
        metrics = json_pack("{s:f,s:f,s:f,s:f,s:f}", "decode_tok_s", tok_s, "tpot_ms", 1000 / tok_s,
                            "attention_share", 0.25, "matmul_share", 0.5, "other_share", 0.25);
    json_array_append_new(
        rows, json_pack("{s:s,s:i,s:s,s:{s:s,s:s,s:i,s:i,s:s},s:{},s:o,s:{s:s},s:i}", "trial", key,
                        "round", round, "outcome", outcome, "axes", "attention", attention,
                        "allocator", allocator, "prompt", prompt, "page_tokens",
                        strcmp(allocator, "paged") == 0 ? 16 : 0, "weights", "bf16", "effective",
                        "metrics", metrics, "env", "build", build, "seed", 1));
}

static void add_trial(const char *attention, const char *allocator, int prompt, const char *build,
                      double tok_s) {
    const double noise[3] = {-1, 0, 1.5};
    next_trial++;
    for (int r = 0; r < 3; r++)
        add_row(attention, allocator, prompt, r, build, "ok", tok_s + noise[r]);
}

static void start(void) {
    rows = json_array();
    next_trial = 0;
}

static void finish(void) {
    assert_ok(kvl_groups_make(rows, &groups));
}

static void end(void) {
    kvl_groups_free(&groups);
    json_decref(rows);
}

static void csv_holds_medians_and_extremes(void **state) {
    (void)state;
    start();
    add_trial("flash", "paged", 1024, "b", 80);
    add_trial("eager", "paged", 1024, "b", 40);
    add_trial("eager", "paged", 512, "b", 50);
    next_trial++;
    add_row("flash", "paged", 512, 0, "b", "timeout", 0);
    finish();
    kvl_figure figure;
    kvl_figure_options options = {0};
    char line[768];
    assert_ok(kvl_figure_make(&groups, &options, &figure));
    assert_int_equal(figure.kind, KVL_FIGURE_LINE);
    assert_string_equal(figure.x, "prompt");
    assert_string_equal(figure.y, "decode_tok_s");
    assert_int_equal(figure.n_by, 1);
    kvl_buffer csv = {0};
    assert_ok(kvl_figure_csv(&figure, &csv));
    assert_string_equal(csv.data,
                        "panel_id,series_id,x_id,panel,series,x,y,y_lo,y_hi,rounds,outcome\n"
                        "1,1,1,,eager,512,50,49,51.5,3,ok\n"
                        "1,1,2,,eager,1024,40,39,41.5,3,ok\n"
                        "1,2,1,,flash,512,,,,0,timeout\n"
                        "1,2,2,,flash,1024,80,79,81.5,3,ok\n");
    kvl_buffer_free(&csv);
    kvl_figure_insight(&figure, line, sizeof line);
    assert_string_equal(line,
                        "flash is 2x eager at prompt 1024 (decode_tok_s, paged, weights bf16)");
    kvl_figure_free(&figure);
    end();
}

static void differing_axes_are_never_averaged(void **state) {
    (void)state;
    start();
    add_trial("flash", "paged", 512, "b1", 80);
    add_trial("flash", "contiguous", 512, "b1", 82);
    add_trial("eager", "paged", 512, "b1", 40);
    add_trial("eager", "paged", 1024, "b1", 30);
    finish();
    kvl_figure figure;
    kvl_figure_options options = {.by = "attention"};
    assert_refused(kvl_figure_make(&groups, &options, &figure), KVL_ERR_INPUT,
                   "trials differ in allocator too");
    options.where = "allocator=paged";
    assert_ok(kvl_figure_make(&groups, &options, &figure));
    assert_int_equal(figure.n_points, 3);
    kvl_figure_free(&figure);
    /* By default the allocator is named; its page size follows from it and is not. */
    options = (kvl_figure_options){0};
    assert_ok(kvl_figure_make(&groups, &options, &figure));
    assert_int_equal(figure.n_by, 2);
    assert_string_equal(figure.by[1], "allocator");
    kvl_figure_free(&figure);
    end();
    start();
    add_trial("flash", "paged", 512, "b1", 80);
    add_trial("flash", "paged", 512, "b2", 80);
    finish();
    options = (kvl_figure_options){.x = "prompt", .by = "attention"};
    assert_refused(kvl_figure_make(&groups, &options, &figure), KVL_ERR_INPUT, "differ in build");
    end();
}

/* Sets axes.model of the trial added last. */
static void set_model(const char *model) {
    size_t n = json_array_size(rows);
    for (size_t i = n - 3; i < n; i++)
        json_object_set_new(json_object_get(json_array_get(rows, i), "axes"), "model",
                            json_string(model));
}

/* Two models that no x has both of must not become one line. */
static void models_are_not_joined_over_x(void **state) {
    (void)state;
    kvl_figure figure;
    kvl_figure_options options = {.x = "prompt", .by = "attention"};
    start();
    add_trial("flash", "paged", 512, "b", 80);
    set_model("a/one.gguf");
    add_trial("flash", "paged", 1024, "b", 20);
    set_model("a/two.gguf");
    finish();
    assert_refused(kvl_figure_make(&groups, &options, &figure), KVL_ERR_INPUT,
                   "trials differ in model too: name it with --by");
    options.where = "model=a/one.gguf";
    assert_ok(kvl_figure_make(&groups, &options, &figure));
    assert_int_equal(figure.n_points, 1);
    kvl_figure_free(&figure);
    options = (kvl_figure_options){.x = "prompt"};
    assert_ok(kvl_figure_make(&groups, &options, &figure));
    assert_int_equal(figure.n_series, 2);
    assert_string_equal(figure.series[0], "one.gguf");
    assert_int_equal(figure.n_by, 1);
    kvl_figure_free(&figure);
    end();
}

/* Labels hold a model's file name only. */
static void no_two_trials_share_a_place(void **state) {
    (void)state;
    kvl_figure figure;
    kvl_figure_options options = {.x = "prompt"};
    start();
    add_trial("flash", "paged", 512, "b", 80);
    set_model("a/one.gguf");
    add_trial("flash", "paged", 512, "b", 20);
    set_model("b/one.gguf");
    finish();
    assert_refused(kvl_figure_make(&groups, &options, &figure), KVL_ERR_INPUT, "both stand at");
    end();
}

static void page_sizes_follow_the_allocator(void **state) {
    (void)state;
    kvl_figure figure;
    kvl_figure_options options = {.x = "prompt", .by = "allocator"};
    start();
    add_trial("flash", "paged", 512, "b", 80);
    add_trial("flash", "contiguous", 512, "b", 81);
    add_trial("flash", "paged", 1024, "b", 60);
    finish();
    assert_ok(kvl_figure_make(&groups, &options, &figure));
    assert_int_equal(figure.n_series, 2);
    kvl_figure_free(&figure);
    /* Two sizes of one allocator are an axis, though no prompt has both. */
    size_t n = json_array_size(rows);
    for (size_t i = n - 3; i < n; i++)
        json_object_set_new(json_object_get(json_array_get(rows, i), "axes"), "page_tokens",
                            json_integer(32));
    assert_refused(kvl_figure_make(&groups, &options, &figure), KVL_ERR_INPUT,
                   "trials differ in page_tokens too");
    end();
}

static void assert_insight(kvl_figure_options options, const char *expected) {
    kvl_figure figure;
    char line[768];
    assert_ok(kvl_figure_make(&groups, &options, &figure));
    kvl_figure_insight(&figure, line, sizeof line);
    assert_string_equal(line, expected);
    kvl_figure_free(&figure);
}

/* Medians are 1000, 960 and 959, each with -1 and +1.5 around it. */
static void insights_are_honest_about_small_ratios(void **state) {
    (void)state;
    start();
    add_trial("flash", "paged", 512, "b", 1000);
    add_trial("eager", "paged", 512, "b", 960);
    add_trial("sdpa", "contiguous", 512, "b", 960);
    add_trial("eager", "contiguous", 512, "b", 959);
    add_trial("flash", "slow", 512, "b", 1000);
    add_trial("eager", "slow", 512, "b", 8);
    finish();
    assert_insight((kvl_figure_options){.x = "prompt", .where = "allocator=paged"},
                   "flash is 1.04x eager at prompt 512 (decode_tok_s, paged, weights bf16)");
    assert_insight((kvl_figure_options){.x = "prompt", .where = "allocator=contiguous"},
                   "sdpa and eager differ by less than 0.5 % at prompt 512 (decode_tok_s, "
                   "contiguous, weights bf16; within the spread of rounds)");
    assert_insight((kvl_figure_options){.x = "prompt", .where = "allocator=slow"},
                   "flash is 125x eager at prompt 512 (decode_tok_s, slow, weights bf16)");
    assert_insight((kvl_figure_options){.x = "prompt", .y = "tpot_ms", .where = "allocator=paged"},
                   "flash takes 0.96x the tpot_ms of eager at prompt 512 (paged, weights bf16)");
    /* A name that is in `by` and does not vary is told once. */
    assert_insight((kvl_figure_options){.x = "prompt",
                                        .by = "attention,allocator",
                                        .where = "allocator=paged"},
                   "flash is 1.04x eager at prompt 512 (decode_tok_s, weights bf16, paged)");
    end();
}

/* Shares of attention of the trial added last. */
static void set_attention_share(double share) {
    size_t n = json_array_size(rows);
    for (size_t i = n - 3; i < n; i++)
        json_object_set_new(json_object_get(json_array_get(rows, i), "metrics"), "attention_share",
                            json_real(share));
}

static void stack_insights_tell_points_apart(void **state) {
    (void)state;
    static const char *const kernels[] = {"a", "b", "c", "d"}, *const caches[] = {"paged", "plain"};
    start();
    for (int k = 0; k < 4; k++) {
        for (int c = 0; c < 2; c++) {
            add_trial(kernels[k], caches[c], 512, "b", 50);
            set_attention_share(k ? 0.3 : c ? 0.1 : 0.6);
        }
    }
    finish();
    kvl_figure_options options = {.x = "prompt", .y = "tpot_ms", .kind = KVL_FIGURE_STACK};
    assert_insight(options, "attention takes 60 % of tpot_ms with a, paged at prompt 512, "
                            "10 % with a, plain at prompt 512");
    options.where = "attention=a,allocator=paged";
    assert_insight(options, "attention takes 60 % of tpot_ms at prompt 512");
    end();
}

static void wrong_names_are_answered(void **state) {
    (void)state;
    start();
    add_trial("flash", "paged", 512, "b", 80);
    finish();
    kvl_figure figure;
    kvl_figure_options options = {.y = "decod_tok_s"};
    assert_refused(kvl_figure_make(&groups, &options, &figure), KVL_ERR_INPUT,
                   "did you mean 'decode_tok_s'");
    options = (kvl_figure_options){.x = "promt"};
    assert_refused(kvl_figure_make(&groups, &options, &figure), KVL_ERR_INPUT,
                   "did you mean 'prompt'");
    options = (kvl_figure_options){.y = "ttft_ms"};
    assert_refused(kvl_figure_make(&groups, &options, &figure), KVL_ERR_INPUT,
                   "no trial that ended ok has it");
    options = (kvl_figure_options){.where = "prompt=7"};
    assert_refused(kvl_figure_make(&groups, &options, &figure), KVL_ERR_INPUT, "no trial has it");
    options = (kvl_figure_options){.x = "attention", .kind = KVL_FIGURE_LINE};
    assert_refused(kvl_figure_make(&groups, &options, &figure), KVL_ERR_INPUT, "no numbers");
    end();
}

static void read_file(const char *base, const char *suffix, kvl_buffer *out) {
    char path[128];
    kvl_file file;
    snprintf(path, sizeof path, "%s%s", base, suffix);
    assert_ok(kvl_file_open(path, &file));
    kvl_buffer_clear(out);
    kvl_buffer_add(out, file.data, file.bytes);
    kvl_file_close(&file);
    unlink(path);
}

/* Each kind twice: the files begin as they should and are the same bytes. */
static void drawing_repeats_byte_for_byte(void **state) {
    (void)state;
    if (system("gnuplot --version >/dev/null 2>&1") != 0) skip();
    char base[] = "/tmp/kvlab-figure-XXXXXX";
    int fd = mkstemp(base);
    assert_true(fd >= 0);
    close(fd);
    unlink(base);
    start();
    const char *const kernels[] = {"eager", "it's \"quoted\" & <odd>"};
    for (int k = 0; k < 2; k++) {
        for (int p = 512; p <= 4096; p *= 2) add_trial(kernels[k], "paged", p, "b", 9000.0 / p);
    }
    finish();
    for (int kind = KVL_FIGURE_LINE; kind <= KVL_FIGURE_STACK; kind++) {
        kvl_figure figure;
        kvl_figure_options options = {.kind = (kvl_figure_kind)kind, .y = "tpot_ms"};
        kvl_plot_options plot = {.base = base, .scripts = KVL_SOURCE_DIR "/plots"};
        kvl_buffer svg[2] = {{0}}, png[2] = {{0}}, csv[2] = {{0}};
        assert_ok(kvl_figure_make(&groups, &options, &figure));
        for (int i = 0; i < 2; i++) {
            assert_ok(kvl_plot_figure(&figure, &plot));
            read_file(base, ".svg", &svg[i]);
            read_file(base, ".png", &png[i]);
            read_file(base, ".csv", &csv[i]);
        }
        assert_memory_equal(svg[0].data, "<?xml", 5);
        assert_memory_equal(png[0].data, "\x89PNG", 4);
        assert_non_null(strstr(svg[0].data, "&amp; &lt;odd"));
        assert_int_equal(svg[0].bytes, svg[1].bytes);
        assert_memory_equal(svg[0].data, svg[1].data, svg[0].bytes);
        assert_int_equal(png[0].bytes, png[1].bytes);
        assert_memory_equal(png[0].data, png[1].data, png[0].bytes);
        assert_string_equal(csv[0].data, csv[1].data);
        for (int i = 0; i < 2; i++) {
            kvl_buffer_free(&svg[i]);
            kvl_buffer_free(&png[i]);
            kvl_buffer_free(&csv[i]);
        }
        kvl_figure_free(&figure);
    }
    end();
}

static void missing_gnuplot_names_the_package(void **state) {
    (void)state;
    start();
    add_trial("flash", "paged", 512, "b", 80);
    finish();
    kvl_figure figure;
    kvl_figure_options options = {0};
    kvl_plot_options plot = {.base = "/tmp/kvlab-never", .scripts = KVL_SOURCE_DIR "/plots"};
    assert_ok(kvl_figure_make(&groups, &options, &figure));
    char *path = strdup(getenv("PATH"));
    setenv("PATH", "/nowhere", 1);
    assert_refused(kvl_plot_figure(&figure, &plot), KVL_ERR_INPUT, "gnuplot-nox");
    setenv("PATH", path, 1);
    free(path);
    assert_int_equal(access("/tmp/kvlab-never.csv", F_OK), -1);
    kvl_figure_free(&figure);
    end();
}

/* A program named gnuplot in `folder` that runs `body` with $base set as the figure sets it. */
static void fake_gnuplot(const char *folder, const char *body) {
    char path[128], text[512];
    snprintf(path, sizeof path, "%s/gnuplot", folder);
    snprintf(text, sizeof text, "#!/bin/sh\neval \"${2%%%%;*}\"\n%s\n", body);
    assert_ok(kvl_file_write_all(path, text, strlen(text)));
    assert_int_equal(chmod(path, 0755), 0);
}

static int count_entries(const char *folder) {
    DIR *dir = opendir(folder);
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* Whatever gnuplot does, the figure that was there stays whole and nothing lies beside it. */
static void failed_drawings_leave_nothing(void **state) {
    (void)state;
    static const struct {
        const char *body, *message;
    } cases[] = {
        {"exit 0", "ended without an error but wrote nothing"},
        {": >$base.svg; : >$base.png", "ended without an error but wrote nothing"},
        {"echo '<svg></svg>' >$base.svg", "ended without an error but wrote nothing"},
        {"echo '<svg>' >$base.svg; echo IEND >$base.png", "cannot be written whole"},
        {"echo '<svg></svg>' >$base.svg; echo no font >&2; exit 3", "no font"},
    };
    char folder[] = "/tmp/kvlab-figure-XXXXXX", base[64], path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(base, sizeof base, "%s/f", folder);
    snprintf(path, sizeof path, "%s/f.csv", folder);
    assert_ok(kvl_file_write_all(path, "old", 3));
    start();
    add_trial("flash", "paged", 512, "b", 80);
    finish();
    kvl_figure figure;
    kvl_figure_options options = {0};
    kvl_plot_options plot = {.base = base, .scripts = KVL_SOURCE_DIR "/plots"};
    assert_ok(kvl_figure_make(&groups, &options, &figure));
    char *old_path = strdup(getenv("PATH"));
    setenv("PATH", folder, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_gnuplot(folder, cases[i].body);
        assert_refused(kvl_plot_figure(&figure, &plot), KVL_ERR_IO, cases[i].message);
        assert_int_equal(count_entries(folder), 2); /* gnuplot and f.csv */
        kvl_buffer csv = {0};
        read_file(base, ".csv", &csv);
        assert_int_equal(csv.bytes, 3);
        kvl_buffer_free(&csv);
        assert_ok(kvl_file_write_all(path, "old", 3));
    }
    fake_gnuplot(folder, "echo '<svg></svg>' >$base.svg; echo IEND >$base.png");
    assert_ok(kvl_plot_figure(&figure, &plot));
    assert_int_equal(count_entries(folder), 4);
    setenv("PATH", old_path, 1);
    free(old_path);
    static const char *const names[] = {"gnuplot", "f.csv", "f.svg", "f.png"};
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
    kvl_figure_free(&figure);
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv_holds_medians_and_extremes),
        cmocka_unit_test(differing_axes_are_never_averaged),
        cmocka_unit_test(models_are_not_joined_over_x),
        cmocka_unit_test(no_two_trials_share_a_place),
        cmocka_unit_test(page_sizes_follow_the_allocator),
        cmocka_unit_test(insights_are_honest_about_small_ratios),
        cmocka_unit_test(stack_insights_tell_points_apart),
        cmocka_unit_test(wrong_names_are_answered),
        cmocka_unit_test(drawing_repeats_byte_for_byte),
        cmocka_unit_test(missing_gnuplot_names_the_package),
        cmocka_unit_test(failed_drawings_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
