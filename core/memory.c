#define _GNU_SOURCE
#include "core/memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "core/checked.h"

enum { HUGE_FROM = 4 << 20, HUGE_PAGE = 2 << 20, PAGE = 4096 };

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; headers may be older than the kernel */
#endif

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

kvl_status kvl_mem_reserve(uint64_t bytes, void **out) {
    uint64_t size;
    if (!kvl_align_u64(bytes ? bytes : 1, HUGE_PAGE, &size) || size > INT64_MAX - HUGE_PAGE)
        return kvl_fail(KVL_ERR_OOM, "address space of %llu bytes overflows",
                        (unsigned long long)bytes);
    uint8_t *base =
        mmap(NULL, size + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return kvl_fail(KVL_ERR_OOM, "address space of %llu bytes (%.1f GiB): %s",
                        (unsigned long long)bytes, (double)bytes / (1 << 30), strerror(errno));
    uint64_t head = (HUGE_PAGE - ((uintptr_t)base & (HUGE_PAGE - 1))) & (HUGE_PAGE - 1);
    if (head) munmap(base, head);
    if (HUGE_PAGE - head) munmap(base + head + size, HUGE_PAGE - head);
    *out = base + head;
    return KVL_OK;
}

void kvl_mem_unreserve(void *pointer, uint64_t bytes, uint64_t mapped_bytes) {
    uint64_t size;
    if (!pointer || !kvl_align_u64(bytes ? bytes : 1, HUGE_PAGE, &size)) return;
    munmap(pointer, size);
    atomic_fetch_sub(&live_bytes, mapped_bytes);
}

kvl_status kvl_mem_populate(void *at, uint64_t bytes) {
    /* Kernels before 5.14 do not know it (EINVAL): pages then come at the first touch. */
    if (bytes && madvise(at, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)
        return kvl_fail(KVL_ERR_OOM, "%llu bytes of memory: %s", (unsigned long long)bytes,
                        strerror(errno));
    return KVL_OK;
}

kvl_status kvl_mem_map(void *at, uint64_t bytes, bool huge) {
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0)
        return kvl_fail(KVL_ERR_OOM, "mapping %llu bytes: %s", (unsigned long long)bytes,
                        strerror(errno));
    if (huge) madvise(at, bytes, MADV_HUGEPAGE); /* advice: refusal costs speed only */
    kvl_status status = kvl_mem_populate(at, bytes);
    if (status != KVL_OK) return kvl_fail_prefix(status, "mapping");
    atomic_fetch_add(&live_bytes, bytes);
    return KVL_OK;
}

kvl_status kvl_mem_unmap(void *at, uint64_t bytes) {
    if (madvise(at, bytes, MADV_DONTNEED) != 0 || mprotect(at, bytes, PROT_NONE) != 0)
        return kvl_fail(KVL_ERR_OOM, "unmapping %llu bytes: %s", (unsigned long long)bytes,
                        strerror(errno));
    atomic_fetch_sub(&live_bytes, bytes);
    return KVL_OK;
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
