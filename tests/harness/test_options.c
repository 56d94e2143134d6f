#include "tests/test.h"

#include <unistd.h>

#include "harness/exit.h"
#include "harness/input.h"
#include "harness/options.h"

/* The real table lives in main.c, which is not part of the library. */
size_t kvl_command_count(void) {
    return 0;
}
const kvl_command *kvl_command_at(size_t index) {
    (void)index;
    return NULL;
}

typedef struct values {
    bool flag;
    const char *text;
    int64_t count;
    double real;
} values;

static const kvl_option options[] = {
    {"flag", KVL_OPT_FLAG, offsetof(values, flag), NULL, "a flag", 0, 0},
    {"text", KVL_OPT_TEXT, offsetof(values, text), "T", "a text", 0, 0},
    {"max-tokens", KVL_OPT_INT, offsetof(values, count), "N", "a count", 1, 100},
    {"real", KVL_OPT_REAL, offsetof(values, real), "X", "a number", 0, 2},
};
static const kvl_command command = {"probe", "a probe", "", NULL, options, 4, NULL};

static kvl_status parse(values *v, const char *const *words, const char **positional, int *n) {
    char *argv[16] = {"probe"};
    int argc = 1;
    for (; words[argc - 1]; argc++) argv[argc] = (char *)words[argc - 1];
    bool help;
    return kvl_options_parse(&command, argc, argv, v, positional, 2, n, &help);
}
#define PARSE(v, ...) parse(&(v), (const char *const[]){__VA_ARGS__, NULL}, positional, &n)

static void values_arrive(void **state) {
    values v = {.count = 7};
    const char *positional[2];
    int n;
    assert_ok(PARSE(v, "--flag", "a", "--text", "x y", "--max-tokens=42", "--real", "0.5", "b"));
    assert_true(v.flag);
    assert_string_equal(v.text, "x y");
    assert_int_equal(v.count, 42);
    assert_true(v.real == 0.5);
    assert_int_equal(n, 2);
    assert_string_equal(positional[0], "a");
    assert_string_equal(positional[1], "b");
    assert_ok(PARSE(v, "--no-flag", "--", "--text"));
    assert_false(v.flag);
    assert_string_equal(positional[0], "--text");
    assert_ok(PARSE(v, "--text", "-"));
    assert_string_equal(v.text, "-");
}

static void mistakes_are_named(void **state) {
    values v = {0};
    const char *positional[2];
    int n;
    assert_refused(PARSE(v, "--max-token", "3", "--txet", "x"), KVL_ERR_INPUT,
                   "did you mean '--text'");
    assert_refused(PARSE(v, "--max-tokens"), KVL_ERR_INPUT, "'--max-tokens' needs a value");
    assert_refused(PARSE(v, "--max-tokens", "0"), KVL_ERR_INPUT, "must lie in 1 to 100");
    assert_refused(PARSE(v, "--max-tokens", "7x"), KVL_ERR_INPUT, "not a whole number");
    assert_refused(PARSE(v, "--max-tokens", "99999999999999999999"), KVL_ERR_INPUT,
                   "not a whole number");
    assert_refused(PARSE(v, "--real", "nan"), KVL_ERR_INPUT, "not a finite number");
    assert_refused(PARSE(v, "--real", "2.5"), KVL_ERR_INPUT, "must lie in 0 to 2");
    assert_refused(PARSE(v, "--text", "\xff"), KVL_ERR_INPUT, "not valid UTF-8");
    assert_refused(PARSE(v, "--text", "a", "--text", "b"), KVL_ERR_INPUT, "--text is given twice");
    assert_refused(PARSE(v, "a", "b", "c"), KVL_ERR_INPUT, "unexpected argument 'c'");
    assert_refused(PARSE(v, "--flag=1"), KVL_ERR_INPUT, "--flag");
}

static void inputs_are_read_once(void **state) {
    kvl_buffer text = {0};
    assert_ok(kvl_read_input("hello", NULL, "prompt", &text));
    assert_string_equal(text.data, "hello");
    kvl_buffer_free(&text);
    assert_refused(kvl_read_input("a", "b", "prompt", &text), KVL_ERR_INPUT,
                   "give the prompt once");
    assert_refused(kvl_read_input(NULL, NULL, "prompt", &text), KVL_ERR_INPUT, "prompt once");
    assert_int_equal(kvl_read_input(NULL, "/dev/zero", "prompt", &text), KVL_ERR_IO);
    int32_t *ids;
    int64_t n;
    assert_ok(kvl_parse_ids("x", "[1, 2, 3]", 9, &ids, &n));
    assert_int_equal(n, 3);
    assert_int_equal(ids[2], 3);
    free(ids);
    assert_refused(kvl_parse_ids("x", "[1, -2]", 7, &ids, &n), KVL_ERR_INPUT, "element 1");
    assert_refused(kvl_parse_ids("x", "[1, 2147483648]", 15, &ids, &n), KVL_ERR_INPUT, "element 1");
    assert_refused(kvl_parse_ids("x", "[1.5]", 5, &ids, &n), KVL_ERR_INPUT, "element 0");
    assert_refused(kvl_parse_ids("x", "{}", 2, &ids, &n), KVL_ERR_INPUT, "a JSON array");
    assert_int_equal(kvl_parse_ids("x", "[1", 2, &ids, &n), KVL_ERR_INPUT);
}

static void statuses_map_to_exit_codes(void **state) {
    assert_int_equal(kvl_exit_of(KVL_OK), 0);
    assert_int_equal(kvl_exit_of(KVL_ERR_INPUT), 2);
    assert_int_equal(kvl_exit_of(KVL_ERR_IO), 2);
    assert_int_equal(kvl_exit_of(KVL_ERR_INTERNAL), 70);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(inputs_are_read_once),
        cmocka_unit_test(statuses_map_to_exit_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
