#include "core/device_kernels.h"
#include "core/names.h"

static const kvl_device *const devices[] = {
    &kvl_device_cpu,
};
enum { N_DEVICES = sizeof devices / sizeof *devices };

size_t kvl_device_count(void) {
    return N_DEVICES;
}

const kvl_device *kvl_device_at(size_t index) {
    return index < N_DEVICES ? devices[index] : NULL;
}

kvl_status kvl_device_find(const char *name, const kvl_device **out) {
    const char *names[N_DEVICES];
    for (size_t i = 0; i < N_DEVICES; i++) names[i] = devices[i]->name;
    int index = kvl_names_find(name, names, N_DEVICES);
    if (index < 0) {
        char line[512];
        kvl_names_unknown(line, sizeof line, "device", name, names, N_DEVICES);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = devices[index];
    return KVL_OK;
}
