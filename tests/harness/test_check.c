/* The grammar of checks, each fault with its place, and findings on rows whose answer is known. */
#define _GNU_SOURCE
#include "tests/test.h"

#include <jansson.h>
#include <math.h>

#include "harness/claims/check.h"

/* ---- a sweep's names ----------------------------------------------------------------------------
 */

static const char *const axes[] = {"attention", "kv_dtype", "prompt", "batch", "allocator"};
static const bool numeric[] = {false, false, true, true, false};
static const char *const attention[] = {"eager", "flash", "sdpa"};
static const char *const kv_dtype[] = {"bf16", "fp8_e4m3"};
static const char *const prompt[] = {"512", "4096"};
static const char *const batch[] = {"1", "4", "512"};
static const char *const allocator[] = {"contiguous", "paged"};
static const char *const *const values[] = {attention, kv_dtype, prompt, batch, allocator};
static const size_t n_values[] = {3, 2, 2, 3, 2};
static const kvl_check_names names = {"decode_tok_s", axes, numeric, (const char *const **)values,
                                      n_values,       5};

static kvl_check check;

static void parses(const char *text) {
    int position;
    assert_ok(kvl_check_parse(text, &names, &check, &position));
    assert_string_equal(check.text, text);
}

/* Refused at the character that `mark` shows ('^' below it), with `part` in the message. */
static void refused(const char *text, const char *mark, const char *part) {
    int position;
    assert_refused(kvl_check_parse(text, &names, &check, &position), KVL_ERR_INPUT, part);
    if (position != (int)strlen(mark) - 1)
        fail_msg("'%s': position %d, not %d (%s)", text, position, (int)strlen(mark) - 1,
                 kvl_message());
}

static void the_grammar(void **state) {
    (void)state;
    parses("ratio(flash, eager) > 1.5 where prompt >= 4096");
    assert_string_equal(check.axis, "attention");
    assert_string_equal(check.nodes[check.left].value_a, "flash");
    assert_string_equal(check.nodes[check.left].value_b, "eager");
    assert_string_equal(check.nodes[check.left].name, "decode_tok_s");
    assert_int_equal(check.relation, KVL_REL_GREATER);
    assert_true(check.nodes[check.right].number == 1.5);
    assert_int_equal(check.n_conditions, 1);
    assert_string_equal(check.conditions[0].axis, "prompt");
    assert_int_equal(check.conditions[0].relation, KVL_REL_GREATER_EQUAL);
    parses("speedup(kv_dtype=fp8_e4m3, bf16, ttft_ms)*2 in -1.5..50% where attention==flash and "
           "prompt = 512");
    assert_true(check.low == -1.5 && check.high == 0.5);
    assert_int_equal(check.n_conditions, 2);
    assert_string_equal(check.nodes[0].name, "ttft_ms");
    parses("kv_bytes_live / (batch * prompt) <= -(2 - 1e3) + 80%");
    parses("decode_bound == memory");
    assert_int_equal(check.nodes[check.left].kind, KVL_EXPR_TEXT);
    parses("outcome != 'oom' where allocator == \"paged\"");
    parses("ratio(batch=4, batch=1) == 4");
    parses("1 < 2");
}

static void each_fault_has_its_place(void **state) {
    (void)state;
    refused("", "^", "a number, a name or '('");
    refused("ratio(flsh, eager) > 1", "      ^", "did you mean 'flash'");
    refused("ratio(flash eager) > 1", "            ^", "',' is needed");
    refused("ratio(flash, eager > 1", "                   ^", "')' is needed");
    refused("ratio(512, 4096) > 1", "      ^", "512 is a value of prompt and of batch");
    refused("ratio(promt=512, 4096) > 1", "      ^", "did you mean 'prompt'");
    refused("ratio(prompt=511, 4096) > 1", "             ^", "unknown value");
    refused("ratio(flash, bf16) > 1", "             ^", "one axis");
    refused("ratio(flash, eager, decod_tok_s) > 1", "                    ^", "'decode_tok_s'");
    refused("speedup(flash, eager, attention_share) > 1", "                                     ^",
            "use ratio");
    refused("decode_tok_z > 1", "^", "did you mean 'decode_tok_s'");
    refused("decode_tok_s = 1", "             ^", "'==' compares");
    refused("decode_tok_s", "            ^", "one of > >= <");
    refused("decode_tok_s > ", "               ^", "a number, a name");
    refused("decode_tok_s > 1 1", "                 ^", "should end here");
    refused("decode_tok_s > $", "               ^", "a sign that checks do not have");
    refused("decode_tok_s > 'a", "               ^", "not closed");
    refused("decode_tok_s in 2..1", "             ^", "empty");
    refused("decode_tok_s in 2", "                 ^", "'..' is needed");
    refused("attention > 1", "^", "behind `where`");
    refused("decode_tok_s > 1 where promt > 1", "                       ^", "'prompt'");
    refused("decode_tok_s > 1 where attention > flash", "                                 ^",
            "has names");
    refused("decode_tok_s > 1 where prompt > flash", "                                ^",
            "has numbers");
    refused("decode_tok_s > 1 where prompt == 513", "                                 ^",
            "known: 512, 4096");
    refused("ratio(flash, eager) > 1 where attention == sdpa", "                              ^",
            "what ratio() compares");
    refused("ratio(flash, eager) > ttft_ms", "                      ^", "ratio(A, B, METRIC)");
    refused("decode_bound > memory", "             ^", "NAME == WORD");
    refused("decode_tok_s == memory", "                ^", "unknown metric or axis");
}

/* Neither depth nor length reaches the stack's or an array's end. */
static void hostile_checks(void **state) {
    char text[600];
    int position;
    (void)state;
    memset(text, '(', 400);
    text[400] = '\0';
    assert_refused(kvl_check_parse(text, &names, &check, &position), KVL_ERR_INPUT, "nested");
    memset(text, '-', 400);
    assert_refused(kvl_check_parse(text, &names, &check, &position), KVL_ERR_INPUT, "nested");
    for (int i = 0; i < 200; i++) memcpy(text + 2 * i, "1+", 2);
    memcpy(text + 400, "1>0", 4);
    assert_refused(kvl_check_parse(text, &names, &check, &position), KVL_ERR_INPUT, "longer than");
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_refused(kvl_check_parse(text, &names, &check, &position), KVL_ERR_INPUT, "at most");
    text[300] = '\0';
    assert_refused(kvl_check_parse(text, &names, &check, &position), KVL_ERR_INPUT, "127 bytes");
    strcpy(text, "decode_tok_s > 1 where prompt == 512");
    for (int i = 0; i < 8; i++) strcat(text, " and prompt == 512");
    assert_refused(kvl_check_parse(text, &names, &check, &position), KVL_ERR_INPUT, "conditions");
}

/* ---- findings -----------------------------------------------------------------------------------
 */

static json_t *rows;

/* A trial: attention, prompt, rounds of decode_tok_s around a median by `spread` (alternating). */
static void add(const char *kernel, int n_prompt, int n_rounds, double tok_s, double spread,
                const char *outcome) {
    char trial[64];
    snprintf(trial, sizeof trial, "%s-%d", kernel, n_prompt);
    for (int r = 0; r < n_rounds; r++) {
        double value = tok_s * (1 + spread * ((r % 3) - 1));
        json_t *row =
            json_pack("{s:s,s:i,s:s,s:s,s:{s:s,s:i,s:i},s:{s:s},s:{}}", "trial", trial, "round", r,
                      "outcome", outcome, "reason", "so it is", "axes", "attention", kernel,
                      "prompt", n_prompt, "batch", 1, "effective", "decode_bound",
                      r == 1 && n_prompt == 7 ? "compute" : "memory", "metrics");
        if (strcmp(outcome, "ok") == 0) {
            json_t *metrics = json_object_get(row, "metrics");
            json_object_set_new(metrics, "decode_tok_s", json_real(value));
            json_object_set_new(metrics, "tpot_ms", json_real(1000 / value));
            json_object_set_new(metrics, "kv_bytes_live", json_integer(100 * n_prompt));
            json_object_set_new(metrics, "kv_saturated", json_integer(r % 2));
        }
        json_array_append_new(rows, row);
    }
}

static kvl_evidence first; /* of the last evaluation */

static kvl_finding find(const char *text, size_t n_places) {
    kvl_groups groups;
    kvl_check_result result;
    parses(text);
    assert_ok(kvl_groups_make(rows, &groups));
    assert_ok(kvl_check_evaluate(&check, &groups, &result));
    if (result.n != n_places) fail_msg("%s: %zu places, not %zu", text, result.n, n_places);
    kvl_finding finding = result.finding;
    first = result.items[0];
    kvl_check_result_free(&result);
    kvl_groups_free(&groups);
    return finding;
}

static int start(void **state) {
    (void)state;
    rows = json_array();
    return 0;
}

static int end(void **state) {
    (void)state;
    json_decref(rows);
    return 0;
}

static void ratios_over_rounds(void **state) {
    (void)state;
    add("flash", 512, 6, 100, 0.01, "ok");
    add("eager", 512, 6, 80, 0.01, "ok");
    add("flash", 4096, 6, 90, 0.01, "ok");
    add("eager", 4096, 6, 30, 0.01, "ok");
    assert_int_equal(find("ratio(flash, eager) > 1.5 where prompt >= 4096", 1), KVL_HOLDS);
    assert_string_equal(first.place, "prompt 4096");
    assert_true(fabs(first.left - 3) < 1e-9 && first.right == 1.5);
    assert_true(fabs(first.ratio - 2) < 1e-9);
    assert_int_equal(first.n_rounds, 6);
    assert_int_equal(find("ratio(flash, eager) > 1.5", 2), KVL_HOLDS_NOT);
    assert_int_equal(find("ratio(flash, eager) < 1.5 where prompt == 512", 1), KVL_HOLDS);
    assert_int_equal(find("ratio(flash, eager) in 1.2..1.3 where prompt == 512", 1), KVL_HOLDS);
    assert_int_equal(find("ratio(flash, eager) in 1.3..9 where prompt == 512", 1), KVL_HOLDS_NOT);
    /* speedup knows which way a metric counts. */
    assert_int_equal(find("speedup(flash, eager, tpot_ms) > 1.2", 2), KVL_HOLDS);
    assert_int_equal(find("ratio(flash, eager, tpot_ms) < 0.84", 2), KVL_HOLDS);
    assert_int_equal(find("ratio(eager, flash) < 0.84", 2), KVL_HOLDS);
    /* A kernel that the sweep names and rows lack is no evidence. */
    assert_int_equal(find("ratio(sdpa, eager) > 1", 2), KVL_CANNOT_TELL);
}

static void noise_is_not_a_finding(void **state) {
    (void)state;
    add("flash", 512, 6, 100, 0.2, "ok");
    add("flash", 4096, 1, 100, 0, "ok");
    assert_int_equal(find("decode_tok_s > 95 where prompt == 512", 1), KVL_CANNOT_TELL);
    assert_non_null(strstr(first.reason, "noise"));
    assert_int_equal(find("decode_tok_s > 10 where prompt == 512", 1), KVL_HOLDS);
    assert_int_equal(find("decode_tok_s < 10 where prompt == 512", 1), KVL_HOLDS_NOT);
    assert_int_equal(find("decode_tok_s > 50 where prompt == 4096", 1), KVL_CANNOT_TELL);
    assert_non_null(strstr(first.reason, "one round"));
    /* Bytes have no noise: a round is enough, and equal means equal. */
    assert_int_equal(find("kv_bytes_live == 100 * prompt", 2), KVL_HOLDS);
    assert_int_equal(find("kv_bytes_live == 100 * prompt + 1", 2), KVL_HOLDS_NOT);
    assert_int_equal(find("kv_bytes_live != 100 * prompt", 2), KVL_HOLDS_NOT);
    assert_int_equal(find("kv_bytes_live >= 100 * prompt", 2), KVL_HOLDS);
    assert_int_equal(find("kv_bytes_live > 100 * prompt", 2), KVL_HOLDS_NOT);
    /* Noisy numbers are never proved equal. */
    assert_int_equal(find("decode_tok_s == 100 where prompt == 512", 1), KVL_CANNOT_TELL);
    assert_int_equal(find("decode_tok_s == 10 where prompt == 512", 1), KVL_HOLDS_NOT);
}

static void numbers_without_a_ratio(void **state) {
    (void)state;
    add("flash", 512, 6, 100, 0.01, "ok");
    add("flash", 4096, 12, 100, 0.01, "ok");
    assert_int_equal(find("kv_saturated < 5 where prompt == 512", 1), KVL_CANNOT_TELL);
    assert_int_equal(find("kv_saturated < 5 where prompt == 4096", 1), KVL_HOLDS);
    assert_int_equal(find("kv_saturated > 5 where prompt == 4096", 1), KVL_HOLDS_NOT);
    assert_int_equal(find("0 - decode_tok_s < 0 where prompt == 4096", 1), KVL_HOLDS);
}

static void texts_of_rows(void **state) {
    (void)state;
    add("flash", 512, 3, 100, 0, "ok");
    add("flash", 4096, 3, 100, 0, "oom");
    assert_int_equal(find("decode_bound == memory where prompt == 512", 1), KVL_HOLDS);
    assert_int_equal(find("decode_bound == compute where prompt == 512", 1), KVL_HOLDS_NOT);
    assert_int_equal(find("decode_bound != compute where prompt == 512", 1), KVL_HOLDS);
    assert_int_equal(find("decode_bound == memory", 2),
                     KVL_CANNOT_TELL); /* one ran out of memory */
    assert_int_equal(find("outcome == oom where prompt == 4096", 1), KVL_HOLDS);
    assert_int_equal(find("outcome == ok", 2), KVL_HOLDS_NOT);
    json_array_clear(rows);
    add("flash", 7, 3, 100, 0, "ok"); /* one round of three says otherwise */
    assert_int_equal(find("decode_bound == memory", 1), KVL_CANNOT_TELL);
}

static void what_failed_cannot_tell(void **state) {
    (void)state;
    add("flash", 512, 3, 100, 0.01, "ok");
    add("eager", 512, 1, 0, 0, "unsupported");
    assert_int_equal(find("ratio(flash, eager) > 1", 1), KVL_CANNOT_TELL);
    assert_string_equal(first.reason, "unsupported: so it is");
    kvl_groups groups;
    kvl_check_result result;
    assert_ok(kvl_groups_make(rows, &groups));
    parses("decode_tok_s > 1 where prompt == 4096");
    assert_refused(kvl_check_evaluate(&check, &groups, &result), KVL_ERR_INPUT, "no point");
    kvl_groups_free(&groups);
}

/* Only rounds that both sides have are compared. */
static void rounds_are_matched(void **state) {
    (void)state;
    add("flash", 512, 9, 100, 0.01, "ok");
    add("eager", 512, 5, 50, 0.01, "ok");
    assert_int_equal(find("ratio(flash, eager) > 1.5", 1), KVL_HOLDS);
    assert_int_equal(first.n_rounds, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_grammar),
        cmocka_unit_test(each_fault_has_its_place),
        cmocka_unit_test(hostile_checks),
        cmocka_unit_test_setup_teardown(ratios_over_rounds, start, end),
        cmocka_unit_test_setup_teardown(noise_is_not_a_finding, start, end),
        cmocka_unit_test_setup_teardown(numbers_without_a_ratio, start, end),
        cmocka_unit_test_setup_teardown(texts_of_rows, start, end),
        cmocka_unit_test_setup_teardown(what_failed_cannot_tell, start, end),
        cmocka_unit_test_setup_teardown(rounds_are_matched, start, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
