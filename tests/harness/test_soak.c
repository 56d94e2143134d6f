/* bench allocator and bench soak: what they count is right and repeats; nothing here is timed. */
#include "tests/test.h"

#include <jansson.h>

#include "harness/allocators/subject.h"

static json_t *run(kvl_status (*trial)(const json_t *, json_t **), const char *allocator,
                   int page_tokens, int operations) {
    json_t *answer = NULL;
    json_t *spec =
        json_pack("{s:{s:s,s:i,s:i},s:{s:i}}", "axes", "allocator", allocator, "page_tokens",
                  page_tokens, "operations", operations, "workload", "seed", 3);
    assert_ok(trial(spec, &answer));
    json_decref(spec);
    if (strcmp(json_string_value(json_object_get(answer, "outcome")), "ok") != 0)
        fail_msg("%s: %s", allocator, json_string_value(json_object_get(answer, "reason")));
    return answer;
}

static double metric(const json_t *answer, const char *name) {
    const json_t *value = json_object_get(json_object_get(answer, "metrics"), name);
    if (!json_is_number(value)) fail_msg("metric %s is missing", name);
    return json_number_value(value);
}

static void soak_repeats(void **unused) {
    static const char *const counted[] = {
        "admissible_pct", "admissible_least_tokens", "free_pct",  "slots_live_pct",
        "refused",        "refused_with_room",       "preempted", "completed"};
    for (size_t a = 0; a < kvl_allocator_count(); a++) {
        const char *name = kvl_allocator_at(a)->name;
        json_t *first = run(kvl_soak_trial_run, name, 16, 300000);
        json_t *second = run(kvl_soak_trial_run, name, 16, 300000);
        for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
            assert_true(metric(first, counted[i]) == metric(second, counted[i]));
        assert_true(metric(first, "completed") > 100);
        json_t *series = json_object_get(json_object_get(first, "samples"), "operation_ns");
        assert_int_equal(json_array_size(series), 3);
        json_decref(first);
        json_decref(second);
    }
}

/* Holes are what slabs suffer from, and pages do not. */
static void holes_are_seen(void **unused) {
    json_t *slabs = run(kvl_soak_trial_run, "contiguous", 0, 2000000);
    json_t *pages = run(kvl_soak_trial_run, "paged", 16, 2000000);
    assert_true(metric(slabs, "refused_with_room") > 0);
    assert_true(metric(slabs, "admissible_pct") < 50);
    assert_true(metric(slabs, "external_pct") > 0);
    assert_true(metric(pages, "refused_with_room") == 0);
    assert_true(metric(pages, "admissible_pct") > 90);
    json_decref(slabs);
    json_decref(pages);
}

static void bench_counts(void **unused) {
    json_t *paged = run(kvl_allocator_trial_run, "paged", 16, 0);
    json_t *buddy = run(kvl_allocator_trial_run, "buddy", 0, 0);
    assert_true(metric(paged, "prefix_token_ns") > 0);
    assert_true(
        json_is_null(json_object_get(json_object_get(buddy, "metrics"), "prefix_token_ns")));
    /* An operation is a page: 256 to a sequence of 4,096 tokens, taken and given back. */
    assert_float_equal(metric(paged, "page_op_m_s") * metric(paged, "admit_ns"), 2e3 * 256, 1);
    assert_float_equal(metric(buddy, "page_op_m_s") * metric(buddy, "admit_ns"), 2e3, 0.01);
    json_decref(paged);
    json_decref(buddy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(soak_repeats),
        cmocka_unit_test(holes_are_seen),
        cmocka_unit_test(bench_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
