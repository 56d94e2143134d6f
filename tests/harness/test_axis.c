/* The grammar of axis values. */
#include "tests/test.h"

#include "harness/sweep/axis.h"

static void numbers(const char *text, size_t n, const int64_t *expected) {
    kvl_axis_values values;
    assert_ok(kvl_axis_parse(kvl_axis_of(KVL_AXIS_PROMPT), text, NULL, 0, &values));
    assert_int_equal(values.n, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(values.numbers[i], expected[i]);
    kvl_axis_values_free(&values);
}

#define NUMBERS(text, ...) \
    numbers(text, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

static void lists_and_ranges(void **state) {
    (void)state;
    NUMBERS("7", 7);
    NUMBERS("4,1,2", 4, 1, 2);
    NUMBERS("512-8192*2", 512, 1024, 2048, 4096, 8192);
    NUMBERS("1-10*3", 1, 3, 9);
    NUMBERS("1-9+4", 1, 5, 9);
    NUMBERS("1-8+4", 1, 5);
    NUMBERS("5-5*2", 5);
    NUMBERS("1,512-2048*2,2048,3", 1, 512, 1024, 2048, 3);
    NUMBERS("8,8,8-16*2", 8, 16);
}

static void refused(const char *text, const char *part) {
    kvl_axis_values values;
    assert_refused(kvl_axis_parse(kvl_axis_of(KVL_AXIS_PROMPT), text, NULL, 0, &values),
                   KVL_ERR_INPUT, part);
    assert_null(values.numbers);
}

static void malformed_values_are_named(void **state) {
    (void)state;
    refused("", "empty value");
    refused("1,,2", "empty value");
    refused("1,", "empty value");
    refused("0", "--prompt 0: must lie in 1 to");
    refused("-5", "'-5': not a whole number");
    refused("1e3", "'1e3': not a whole number");
    refused("0x10", "not a whole number");
    refused(" 5", "not a whole number");
    refused("512-8192", "needs *FACTOR or +STEP");
    refused("512-8192*", "needs *FACTOR or +STEP");
    refused("512-*2", "a range is FIRST-LAST");
    refused("8192-512*2", "runs downwards");
    refused("1-8*1", "a factor is 2 or more");
    refused("1-8+0", "a step 1 or more");
    refused("0-8*2", "a factor is 2 or more");
    refused("99999999999999999999", "not a whole number");
    refused("1-999999999999999999*2", "must lie in");
    refused("1-1000000+1", "more than 4096 values");
    refused("\xff", "not valid UTF-8");
}

static void names_are_checked(void **state) {
    (void)state;
    static const char *const known[] = {"eager", "sdpa", "flash"};
    const kvl_axis *axis = kvl_axis_of(KVL_AXIS_ATTENTION);
    kvl_axis_values values;
    assert_ok(kvl_axis_parse(axis, "flash,eager,flash", known, 3, &values));
    assert_int_equal(values.n, 2);
    assert_string_equal(values.names[0], "flash");
    assert_string_equal(values.names[1], "eager");
    kvl_axis_values_free(&values);
    assert_refused(kvl_axis_parse(axis, "flahs", known, 3, &values), KVL_ERR_INPUT,
                   "--attention: unknown attention 'flahs'; did you mean 'flash'?");
    assert_refused(kvl_axis_parse(axis, "", known, 3, &values), KVL_ERR_INPUT, "empty value");
    assert_ok(
        kvl_axis_parse(kvl_axis_of(KVL_AXIS_MODEL), "a-b*2.gguf,synthetic:tiny", NULL, 0, &values));
    assert_string_equal(values.names[0], "a-b*2.gguf");
    kvl_axis_values_free(&values);
}

static void axes_are_found_by_name(void **state) {
    (void)state;
    assert_int_equal(kvl_axis_find("kv_dtype"), KVL_AXIS_KV_DTYPE);
    assert_string_equal(kvl_axis_of(KVL_AXIS_KV_DTYPE)->option, "kv-dtype");
    assert_int_equal(kvl_axis_find("nothing"), KVL_N_AXES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_and_ranges),
        cmocka_unit_test(malformed_values_are_named),
        cmocka_unit_test(names_are_checked),
        cmocka_unit_test(axes_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
