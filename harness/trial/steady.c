#include "harness/trial/steady.h"

#include <math.h>
#include <string.h>

#include "harness/figures/stats.h"

static const double SIGNIFICANT = 4, RELEVANT = 0.01, LEAST_SPREAD = 0.002, CLIP = 5;

static double median(const double *x, size_t n) {
    double copy[KVL_STEADY_WINDOW];
    memcpy(copy, x, n * sizeof *copy);
    return kvl_quantile(copy, n, 0.5);
}

/* Standard deviation of a step from the differences of neighbours: robust, and blind to level. */
static double spread_of(const double *x, size_t n, double level) {
    double steps[KVL_STEADY_WINDOW];
    for (size_t i = 0; i + 1 < n; i++) steps[i] = fabs(x[i + 1] - x[i]);
    double spread = 1.4826 * kvl_quantile(steps, n - 1, 0.5) / sqrt(2);
    return spread > LEAST_SPREAD * level ? spread : LEAST_SPREAD * level;
}

/* First step of the other level where the change is most significant; 0: there is none. */
static size_t change_point(const double *x, size_t n) {
    if (n < 2) return 0;
    double level = median(x, n), spread = spread_of(x, n, level), clipped[KVL_STEADY_WINDOW];
    double sum = 0, left = 0, most = SIGNIFICANT;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        double low = level - CLIP * spread, high = level + CLIP * spread;
        clipped[i] = x[i] < low ? low : x[i] > high ? high : x[i];
        sum += clipped[i];
    }
    for (size_t k = 1; k < n; k++) {
        left += clipped[k - 1];
        double n_left = (double)k, n_right = (double)(n - k);
        double jump = fabs(left / n_left - (sum - left) / n_right);
        double errors = jump / (spread * sqrt(1 / n_left + 1 / n_right));
        /* Clipping must not hide that a change is relevant: medians say by how much. */
        if (errors <= most || fabs(median(x, k) - median(x + k, n - k)) <= RELEVANT * level)
            continue;
        most = errors;
        at = k;
    }
    return at;
}

size_t kvl_steady_from(const double *x, size_t n) {
    size_t start = 0, change;
    while ((change = change_point(x + start, n - start)) != 0) start += change;
    return start;
}

bool kvl_is_steady(const double *x, size_t n) {
    if (n < KVL_STEADY_STEPS) return false;
    size_t seen = n < KVL_STEADY_WINDOW ? n : KVL_STEADY_WINDOW;
    return seen - kvl_steady_from(x + (n - seen), seen) >= KVL_STEADY_STEPS;
}
