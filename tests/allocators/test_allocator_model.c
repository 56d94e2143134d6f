/* Every allocator, in every mode, against the model: a hundred thousand random operations each,
 * with and without refusals injected. The list of cases is also the fuzzer's. */
#include "tests/test.h"

#define MODEL_FAIL(...) fail_msg(__VA_ARGS__)
#include "tests/allocators/model.h"
#include "tests/allocators/model_cases.h"

static void run_case(const model_case *c, int deny_in_16, uint64_t seed) {
    static model m;
    memset(&m, 0, sizeof m);
    assert_ok(kvl_allocator_find(c->name, &m.a));
    m.config = c->config;
    m.deny_in_16 = deny_in_16;
    m.rng = kvl_rng_make(seed, 11);
    print_message("%s, %s\n", c->name, c->mode);
    model_open(&m);
    for (int i = 0; i < 40000; i++) model_step(&m);
    /* A walk that refuses everything, or nothing, proves little. */
    assert_true(m.n_ok > 10000);
    assert_true(c->config.unlimited || m.n_refused > 100);
    assert_int_equal(m.n_denied > 100, deny_in_16 > 0);
    assert_int_equal(m.n_found > 100, c->config.prefix != KVL_PREFIX_OFF);
    model_close(&m);
}

static void plain(void **unused) {
    for (size_t i = 0; i < N_MODEL_CASES; i++) run_case(&model_cases[i], 0, i + 1);
}

static void with_refusals(void **unused) {
    for (size_t i = 0; i < N_MODEL_CASES; i++) run_case(&model_cases[i], 3, i + 101);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),
        cmocka_unit_test(with_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
