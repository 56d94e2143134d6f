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

typedef struct claims {
    _Atomic int times[7][N]; /* [round][unit] */
    _Atomic int n_pieces;
} claims;

static void claim_all(kvl_worker *worker, void *context) {
    static const int64_t sizes[7] = {N, 0, 1, 2, 36, 7, N - 1};
    claims *c = context;
    int64_t first, last;
    for (int r = 0; r < 7; r++) {
        while (kvl_team_claim(worker, sizes[r], 6, &first, &last)) {
            assert_true(first < last && last <= sizes[r]);
            atomic_fetch_add(&c->n_pieces, 1);
            for (int64_t i = first; i < last; i++) atomic_fetch_add(&c->times[r][i], 1);
        }
        kvl_team_barrier(worker);
    }
}

static void claims_hand_out_all_once(void **state) {
    static const int64_t sizes[7] = {N, 0, 1, 2, 36, 7, N - 1};
    static claims c;
    for (int n = 1; n <= 5; n++) {
        memset(&c, 0, sizeof c);
        kvl_team_run(n, claim_all, &c, NULL);
        for (int r = 0; r < 7; r++) {
            for (int64_t i = 0; i < N; i++) assert_int_equal(c.times[r][i], i < sizes[r]);
        }
        /* Alone in one piece each; together in pieces that a late worker can share. */
        assert_in_range(c.n_pieces, n == 1 ? 6 : 30, n == 1 ? 6 : 400);
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
        cmocka_unit_test(claims_hand_out_all_once),
        cmocka_unit_test(waiting_is_counted),
    };
    kvl_threads_set(0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
