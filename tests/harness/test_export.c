/* Rows as CSV: values, quoting, medians and intervals; the dictionary is complete. */
#include "tests/test.h"

#include "harness/figures/dictionary.h"
#include "harness/figures/export.h"
#include "harness/figures/group.h"
#include "harness/figures/stats.h"
#include "harness/sweep/axis.h"

static json_t *make_row(const char *trial, int round, const char *outcome, double value) {
    json_t *metrics = strcmp(outcome, "ok") == 0
                          ? json_pack("{s:f,s:n,s:i}", "decode_tok_s", value, "tpot_ms", "zeta", 7)
                          : json_object();
    return json_pack(
        "{s:i,s:s,s:s,s:i,s:s,s:{s:s,s:i},s:{s:s,s:b},s:s,s:s,s:o,s:{},s:{s:f},s:{s:s},s:i,s:s}",
        "schema", 1, "run", "r", "trial", trial, "round", round, "workload", "decode", "axes",
        "attention", "flash", "prompt", 512, "effective", "isa", "avx2", "deterministic", 1,
        "outcome", outcome, "reason", strcmp(outcome, "ok") == 0 ? "" : "said \"no\", twice",
        "metrics", metrics, "samples", "ceilings", "read_bytes_per_s", 2.5e10, "env", "cpu", "A, B",
        "seed", 1, "repro", "kvlab");
}

static json_t *make_rows(void) {
    json_t *rows = json_array();
    const double values[5] = {10, 30, 20, 50, 40};
    for (int i = 0; i < 5; i++) json_array_append_new(rows, make_row("a", i, "ok", values[i]));
    json_array_append_new(rows, make_row("b", 0, "crash", 0));
    return rows;
}

static void expect(const json_t *rows, const kvl_export_options *options, const char *csv) {
    kvl_buffer out = {0};
    assert_ok(kvl_export_csv(rows, options, &out));
    assert_string_equal(out.data, csv);
    kvl_buffer_free(&out);
}

static void chosen_columns(void **state) {
    (void)state;
    json_t *rows = make_rows();
    kvl_export_options options = {.columns = "round,outcome,reason,prompt,decode_tok_s,tpot_ms,"
                                             "effective.deterministic,env.cpu,"
                                             "ceilings.read_bytes_per_s"};
    expect(rows, &options,
           "round,outcome,reason,prompt,decode_tok_s,tpot_ms,effective.deterministic,env.cpu,"
           "ceilings.read_bytes_per_s\n"
           "0,ok,,512,10,,true,\"A, B\",2.5e+10\n"
           "1,ok,,512,30,,true,\"A, B\",2.5e+10\n"
           "2,ok,,512,20,,true,\"A, B\",2.5e+10\n"
           "3,ok,,512,50,,true,\"A, B\",2.5e+10\n"
           "4,ok,,512,40,,true,\"A, B\",2.5e+10\n"
           "0,crash,\"said \"\"no\"\", twice\",512,,,true,\"A, B\",2.5e+10\n");
    options.columns = "decode_tok_ss";
    kvl_buffer out = {0};
    assert_refused(kvl_export_csv(rows, &options, &out), KVL_ERR_INPUT,
                   "unknown column 'decode_tok_ss'; did you mean 'decode_tok_s'?");
    kvl_buffer_free(&out);
    json_decref(rows);
}

static void medians_and_intervals(void **state) {
    (void)state;
    json_t *rows = make_rows();
    kvl_export_options options = {.columns = "trial,round,outcome,decode_tok_s,zeta",
                                  .median = true};
    expect(rows, &options, "trial,rounds,outcome,decode_tok_s,zeta\na,5,ok,30,7\nb,0,crash,,\n");
    options.interval = true;
    /* With 5 values the 2.5 and 97.5 % points of the bootstrap median are the extremes or nearly.
     */
    expect(
        rows, &options,
        "trial,rounds,outcome,decode_tok_s,decode_tok_s_lo,decode_tok_s_hi,zeta,zeta_lo,zeta_hi\n"
        "a,5,ok,30,10,50,7,7,7\nb,0,crash,,,,,,\n");
    json_decref(rows);
}

static void all_columns_in_a_stable_order(void **state) {
    (void)state;
    json_t *rows = make_rows();
    kvl_buffer out = {0};
    kvl_export_options options = {0};
    assert_ok(kvl_export_csv(rows, &options, &out));
    static const char first[] =
        "run,trial,round,workload,outcome,reason,seed,system,model,allocator,"
        "attention,kv_dtype,kv_scale,weights,compute_dtype,prompt,output,context,batch,"
        "page_tokens,threads,isa,device,heads,head_dim,shape,window,"
        "softcap,causal,cache,kernel,data,format,block,trace,";
    assert_memory_equal(out.data, first, sizeof first - 1);
    /* Metrics follow the axes. */
    char last_axis[64];
    snprintf(last_axis, sizeof last_axis, ",%s,prefill_tok_s,decode_tok_s,",
             kvl_axis_of(KVL_N_AXES - 1)->name);
    assert_non_null(strstr(out.data, last_axis));
    const char *end = strchr(out.data, '\n');
    assert_memory_equal(end - 44, &"wall_s,zeta,effective.deterministic,effective.isa"[5], 44);
    size_t n_columns = 1;
    for (const char *p = out.data; p < end; p++) n_columns += *p == ',';
    assert_int_equal(n_columns, 7 + 1 + KVL_N_AXES + kvl_metric_count() + 1 + 2);
    kvl_buffer_free(&out);
    json_decref(rows);
}

static void quoting(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"plain", "plain"},   {"", ""},
                                           {"a,b", "\"a,b\""},   {"a\"b", "\"a\"\"b\""},
                                           {"a\nb", "\"a\nb\""}, {"\"", "\"\"\"\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvl_buffer out = {0};
        kvl_buffer_text(&out, "");
        kvl_csv_field(&out, cases[i][0]);
        assert_string_equal(out.data ? out.data : "", cases[i][1]);
        kvl_buffer_free(&out);
    }
}

static void statistics(void **state) {
    (void)state;
    double x[4] = {4, 1, 3, 2}, lo, hi;
    assert_true(kvl_quantile(x, 4, 0.5) == 2.5);
    assert_true(kvl_quantile(x, 4, 0.25) == 1.75); /* numpy.quantile([1, 2, 3, 4], 0.25) */
    assert_true(kvl_quantile(x, 4, 1) == 4);
    kvl_median_interval(x, 2, &lo, &hi);
    assert_true(lo == 1 && hi == 2);
    double y[31];
    for (int i = 0; i < 31; i++) y[i] = i;
    kvl_median_interval(y, 31, &lo, &hi);
    /* Binomial: ranks 10 to 22 of 31 hold the median at 97 %, so about 9 and 21 here. */
    assert_true(lo >= 8 && lo <= 11 && hi >= 19 && hi <= 22);
}

static void later_rows_of_a_round_count(void **state) {
    (void)state;
    json_t *rows = json_array();
    json_array_append_new(rows, make_row("a", 0, "timeout", 0));
    json_array_append_new(rows, make_row("a", 0, "ok", 5));
    json_array_append_new(rows, make_row("a", 1, "skipped", 0));
    kvl_groups groups;
    assert_ok(kvl_groups_make(rows, &groups));
    assert_int_equal(groups.n, 1);
    assert_int_equal(groups.items[0].n_rows, 2);
    assert_string_equal(kvl_group_outcome(&groups.items[0]), "ok");
    assert_true(kvl_group_median(&groups.items[0], "decode_tok_s") == 5);
    kvl_groups_free(&groups);
    json_decref(rows);
}

/* results/README.md defines every metric and axis with the dictionary's unit. */
static void readme_defines_every_name(void **state) {
    (void)state;
    FILE *file = fopen(KVL_SOURCE_DIR "/results/README.md", "re");
    assert_non_null(file);
    static char text[200000];
    size_t n = fread(text, 1, sizeof text - 1, file);
    text[n] = '\0';
    fclose(file);
    for (size_t i = 0; i < kvl_metric_count(); i++) {
        const kvl_name *name = kvl_metric_at(i);
        char row[160];
        snprintf(row, sizeof row, "| `%s` | %s |", name->name,
                 name->unit[0] ? name->unit : "count");
        if (!strstr(text, row)) fail_msg("results/README.md lacks: %s", row);
    }
    for (int i = 0; i < KVL_N_AXES; i++) {
        char row[80];
        snprintf(row, sizeof row, "| `%s` |", kvl_axis_of((kvl_axis_id)i)->name);
        if (!strstr(text, row)) fail_msg("results/README.md lacks: %s", row);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_columns),
        cmocka_unit_test(medians_and_intervals),
        cmocka_unit_test(all_columns_in_a_stable_order),
        cmocka_unit_test(quoting),
        cmocka_unit_test(statistics),
        cmocka_unit_test(later_rows_of_a_round_count),
        cmocka_unit_test(readme_defines_every_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
