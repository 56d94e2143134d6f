/* Teams: every worker does its share once, barriers order what they write, waiting is counted. */
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/team.h"
#include "core/threads.h"

enum { N = 1013, ROUNDS = 2000 };

typedef struct prefix {
    int64_t a[N], b[N];
    int times[N];
    _Atomic int n_runs;
    int wrong;
} prefix;

/* Each round reads what all workers wrote in the round before: a barrier that lets one worker
 * through early, or does not publish, gives another sum. */
static void rounds(kvl_worker *worker, void *context) {
    prefix *p = context;
    int64_t first, last;
    atomic_fetch_add(&p->n_runs, 1);
    kvl_worker_share(worker, N, &first, &last);
    for (int64_t i = first; i < last; i++) p->times[i]++;
    int64_t *from = p->a, *to = p->b;
    for (int r = 0; r < ROUNDS; r++) {
        for (int64_t i = first; i < last; i++) to[i] = from[(i + 7) % N] + from[N - 1 - i] % 3;
        kvl_team_barrier(worker);
        int64_t *swap = from;
        from = to;
        to = swap;
    }
}

static void barriers_order_writes(void **state) {
    static prefix p, want;
    for (int64_t i = 0; i < N; i++) want.a[i] = i;
    kvl_worker alone = kvl_worker_alone();
    rounds(&alone, &want);
    for (int n = 1; n <= 5; n++) {
        memset(&p, 0, sizeof p);
        for (int64_t i = 0; i < N; i++) p.a[i] = i;
        kvl_team_run(n, rounds, &p, NULL);
        assert_int_equal(p.n_runs, n);
        assert_memory_equal(p.a, want.a, sizeof p.a);
        assert_memory_equal(p.b, want.b, sizeof p.b);
        for (int64_t i = 0; i < N; i++) assert_int_equal(p.times[i], 1);
    }
}

static void shares_cover_all_once(void **state) {
    for (int n = 1; n <= 9; n++) {
        for (int64_t units = 0; units < 30; units++) {
            int64_t next = 0;
            for (int i = 0; i < n; i++) {
                int64_t first, last;
                const kvl_worker worker = {.index = i, .n = n};
                kvl_worker_share(&worker, units, &first, &last);
                assert_int_equal(first, next);
                assert_in_range(last - first, units / n, (units + n - 1) / n);
                next = last;
            }
            assert_int_equal(next, units);
        }
    }
}

static void late_worker(kvl_worker *worker, void *context) {
    uint64_t start_ns = kvl_now_ns();
    if (worker->index == 0) {
        while (kvl_now_ns() - start_ns < 20000000) continue;
    }
    kvl_team_barrier(worker);
    kvl_team_barrier(worker);
}

static void waiting_is_counted(void **state) {
    uint64_t wait_ns = 5;
    kvl_team_run(1, late_worker, NULL, &wait_ns);
    assert_int_equal(wait_ns, 5); /* nobody to wait for */
    kvl_team_run(3, late_worker, NULL, &wait_ns);
    /* Two workers wait for 20 ms, less what it took to start them. */
    assert_true(wait_ns > 15000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_order_writes),
        cmocka_unit_test(shares_cover_all_once),
        cmocka_unit_test(waiting_is_counted),
    };
    kvl_threads_set(0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
