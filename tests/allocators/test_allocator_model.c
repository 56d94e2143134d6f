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

/* A short walk in which the k-th reservation fails, and no other: the sequence it hit and all
 * others must go on as if it had never been asked. Returns how many the walk made. */
static int64_t walk_denied(const model_case *c, int64_t k, uint64_t seed) {
    static model m;
    memset(&m, 0, sizeof m);
    assert_ok(kvl_allocator_find(c->name, &m.a));
    m.config = c->config;
    m.deny_at = k;
    m.rng = kvl_rng_make(seed, 12);
    model_open(&m);
    for (int i = 0; i < 250; i++) model_step(&m);
    /* Denied once, and never passed over (model_done): the call that asked was refused. */
    assert_int_equal(m.n_denied, k <= m.n_asked);
    int64_t n_asked = m.n_asked;
    model_close(&m);
    return n_asked;
}

static void every_reservation_may_fail(void **unused) {
    for (size_t i = 0; i < N_MODEL_CASES; i++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            /* Until the walk ends before the k-th: then each has failed once. */
            int64_t k = 1;
            while (walk_denied(&model_cases[i], k, seed) >= k) k++;
            if (k <= 10)
                fail_msg("%s, %s: only %lld reservations", model_cases[i].name, model_cases[i].mode,
                         (long long)k - 1);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),
        cmocka_unit_test(with_refusals),
        cmocka_unit_test(every_reservation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
