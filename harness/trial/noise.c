#include "harness/trial/noise.h"

#include <stdint.h>

#include "core/clock.h"
#include "harness/figures/stats.h"

enum { MAX_PIECES = 2048, OPERATIONS = 20000 };
static const uint64_t BUDGET_NS = 30000000;

/* A chain of multiplications: its time is the clock's alone, whatever caches and memory do. */
static uint64_t one_piece(uint64_t x) {
    for (int i = 0; i < OPERATIONS; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    return x;
}

double kvl_noise_of(double *ns, size_t n) {
    double sum = 0;
    if (n == 0) return 0;
    for (size_t i = 0; i < n; i++) sum += ns[i];
    double fast = kvl_quantile(ns, n, 0.1);
    return fast > 0 ? 100 * (sum / (double)n / fast - 1) : 0;
}

double kvl_noise_measure(void) {
    double ns[MAX_PIECES];
    size_t n = 0;
    volatile uint64_t sink = 1; /* so that the work is done */
    uint64_t start = kvl_now_ns(), now = start;
    while (n < MAX_PIECES && now - start < BUDGET_NS) {
        sink = one_piece(sink);
        uint64_t then = now;
        now = kvl_now_ns();
        ns[n++] = (double)(now - then);
    }
    return kvl_noise_of(ns, n);
}

const char *kvl_noise_grade(double pct) {
    return pct <= 1 ? "quiet" : pct <= 3 ? "fair" : pct <= 10 ? "noisy" : "loud";
}
