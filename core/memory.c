#include "core/memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "core/checked.h"

enum { HUGE_FROM = 4 << 20, HUGE_PAGE = 2 << 20, PAGE = 4096 };

static _Atomic uint64_t live_bytes;

/* Everything comes from mmap: zeroed lazily, returned to the system at once, and a size that the
 * system refuses is an error here instead of a kill later. */
static bool mapped_size(uint64_t bytes, uint64_t *out) {
    uint64_t page = bytes >= HUGE_FROM ? HUGE_PAGE : PAGE;
    return kvl_align_u64(bytes ? bytes : 1, page, out) && *out <= INT64_MAX;
}

kvl_status kvl_mem_alloc(uint64_t bytes, void **out) {
    uint64_t size;
    if (!mapped_size(bytes, &size))
        return kvl_fail(KVL_ERR_OOM, "allocation of %llu bytes overflows",
                        (unsigned long long)bytes);
    /* Map one huge page more than needed to align the start; trim the rest. */
    uint64_t slack = bytes >= HUGE_FROM ? HUGE_PAGE : 0;
    uint8_t *base =
        mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return kvl_fail(KVL_ERR_OOM, "out of memory: %llu bytes (%.1f GiB) asked for",
                        (unsigned long long)bytes, (double)bytes / (1 << 30));
    if (slack) {
        uint64_t head = (HUGE_PAGE - ((uintptr_t)base & (HUGE_PAGE - 1))) & (HUGE_PAGE - 1);
        if (head) munmap(base, head);
        if (slack - head) munmap(base + head + size, slack - head);
        base += head;
        madvise(base, size, MADV_HUGEPAGE); /* advice only: refusal costs speed, not correctness */
    }
    atomic_fetch_add(&live_bytes, size);
    *out = base;
    return KVL_OK;
}

void kvl_mem_free(void *pointer, uint64_t bytes) {
    uint64_t size;
    if (!pointer || !mapped_size(bytes, &size)) return;
    munmap(pointer, size);
    atomic_fetch_sub(&live_bytes, size);
}

uint64_t kvl_mem_live_bytes(void) {
    return atomic_load(&live_bytes);
}

static uint64_t status_field(const char *field) {
    FILE *file = fopen("/proc/self/status", "re");
    if (!file) return 0;
    char line[256];
    unsigned long long kib = 0;
    size_t length = strlen(field);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, field, length) == 0 && sscanf(line + length, ": %llu kB", &kib) == 1)
            break;
    }
    fclose(file);
    return kib * 1024;
}

uint64_t kvl_rss_bytes(void) {
    return status_field("VmRSS");
}

uint64_t kvl_rss_peak_bytes(void) {
    return status_field("VmHWM");
}
