#include "core/clock.h"

#include <time.h>

uint64_t kvl_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void format_utc(char *out, size_t out_bytes, const char *format) {
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    if (strftime(out, out_bytes, format, &utc) == 0 && out_bytes) out[0] = '\0';
}

void kvl_utc_compact(char *out, size_t out_bytes) {
    format_utc(out, out_bytes, "%Y%m%dT%H%M%SZ");
}

void kvl_utc_iso(char *out, size_t out_bytes) {
    format_utc(out, out_bytes, "%Y-%m-%dT%H:%M:%SZ");
}
