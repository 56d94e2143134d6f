#define _GNU_SOURCE
#include "harness/trial/env.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/clock.h"
#include "core/isa.h"
#include "core/threads.h"
#include "harness/trial/noise.h"

kvl_status kvl_build_id(char out[17]) {
    static char known[17]; /* the executable does not change while it runs */
    if (!known[0]) {
        int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        XXH64_state_t *state = XXH64_createState();
        char block[65536];
        ssize_t n = -1;
        if (state) XXH64_reset(state, 0);
        while (fd >= 0 && state && (n = read(fd, block, sizeof block)) > 0)
            XXH64_update(state, block, (size_t)n);
        if (n == 0)
            snprintf(known, sizeof known, "%016llx", (unsigned long long)XXH64_digest(state));
        if (fd >= 0) close(fd);
        XXH64_freeState(state);
        if (n != 0) return kvl_fail(KVL_ERR_IO, "/proc/self/exe: cannot read: %s", strerror(errno));
    }
    memcpy(out, known, sizeof known);
    return KVL_OK;
}

void kvl_host_id(char out[17]) {
    char text[256];
    int n = snprintf(text, sizeof text, "%s|%d", kvl_cpu_model(), kvl_physical_cores());
    snprintf(out, 17, "%016llx", (unsigned long long)XXH64(text, (size_t)n, 0));
}

/* The number behind "name" at a line's start in a /proc file, in bytes when it says kB. */
static uint64_t proc_number(const char *path, const char *name) {
    FILE *file = fopen(path, "re");
    char line[256];
    uint64_t value = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, strlen(name)) == 0) {
            value = strtoull(line + strlen(name), NULL, 10);
            if (strstr(line, "kB")) value *= 1024;
            break;
        }
    }
    if (file) fclose(file);
    return value;
}

/* The largest cache that the first CPU sees: what the kernel says (virtual machines report odd
 * sizes through cpuid), else what the C library derives. */
uint64_t kvl_llc_bytes(void) {
    uint64_t largest = 0;
    for (int i = 0; i < 5; i++) {
        char path[80];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *file = fopen(path, "re");
        unsigned long long size = 0;
        char unit = 0;
        if (file && fscanf(file, "%llu%c", &size, &unit) == 2)
            size <<= unit == 'M' ? 20 : unit == 'K' ? 10 : 0;
        if (file) fclose(file);
        if (size > largest) largest = size;
    }
    if (largest) return largest;
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return l3 > 0 ? (uint64_t)l3 : l2 > 0 ? (uint64_t)l2 : 0;
}

uint64_t kvl_memory_available(void) {
    uint64_t available = proc_number("/proc/meminfo", "MemAvailable:");
    uint64_t limit = proc_number("/sys/fs/cgroup/memory.max", ""); /* "max" reads as 0 */
    uint64_t used = proc_number("/sys/fs/cgroup/memory.current", "");
    uint64_t cached = proc_number("/sys/fs/cgroup/memory.stat", "inactive_file ");
    if (limit) {
        uint64_t taken = used > cached ? used - cached : 0;
        uint64_t left = limit > taken ? limit - taken : 0;
        if (left < available || !available) available = left;
    }
    return available;
}

static json_t *isa_list(void) {
    json_t *list = json_array();
    for (int i = 0; list && i < KVL_N_ISAS; i++) {
        if (kvl_isa_has((kvl_isa)i))
            json_array_append_new(list, json_string(kvl_isa_name((kvl_isa)i)));
    }
    return list;
}

static void set_text(json_t *object, const char *name, const char *text) {
    json_object_set_new(object, name, json_string(text));
}

json_t *kvl_env_static(const char *build_id) {
    struct utsname system;
    char host[17], release[128] = "unknown";
    json_t *env = json_object();
    if (!env) return NULL;
    if (uname(&system) == 0)
        snprintf(release, sizeof release, "%.32s %.90s", system.sysname, system.release);
    kvl_host_id(host);
    set_text(env, "cpu", kvl_cpu_model());
    json_object_set_new(env, "cores", json_integer(kvl_physical_cores()));
    json_object_set_new(env, "hardware_threads", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(env, "isa_available", isa_list());
    json_object_set_new(env, "llc_bytes", json_integer((json_int_t)kvl_llc_bytes()));
    json_object_set_new(env, "memory_bytes",
                        json_integer((json_int_t)proc_number("/proc/meminfo", "MemTotal:")));
    set_text(env, "kernel", release);
    set_text(env, "compiler", KVL_COMPILER);
    set_text(env, "version", KVL_VERSION);
    set_text(env, "build", build_id);
    set_text(env, "host", host);
    return env;
}

json_t *kvl_env_now(const json_t *env) {
    char utc[32];
    double load[1];
    json_t *copy = json_copy((json_t *)env); /* shallow: the members never change */
    if (!copy) return NULL;
    kvl_utc_iso(utc, sizeof utc);
    double noise = kvl_noise_measure();
    set_text(copy, "utc", utc);
    json_object_set_new(copy, "noise_pct", json_real(noise));
    set_text(copy, "noise_grade", kvl_noise_grade(noise));
    json_object_set_new(copy, "load_1min",
                        getloadavg(load, 1) == 1 ? json_real(load[0]) : json_null());
    return copy;
}
