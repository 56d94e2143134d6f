#include "attention/modules.h"
#include "core/names.h"

/* A module is one line here. */
static const kvl_attention *const modules[] = {
    &kvl_attention_reference,
    &kvl_attention_eager,
    &kvl_attention_sdpa,
    &kvl_attention_flash,
};
enum { N_MODULES = sizeof modules / sizeof *modules };

size_t kvl_attention_count(void) {
    return N_MODULES;
}

const kvl_attention *kvl_attention_at(size_t index) {
    return index < N_MODULES ? modules[index] : NULL;
}

kvl_status kvl_attention_find(const char *name, const kvl_attention **out) {
    const char *names[N_MODULES];
    for (size_t i = 0; i < N_MODULES; i++) names[i] = modules[i]->name;
    int index = kvl_names_find(name, names, N_MODULES);
    if (index < 0) {
        char line[512];
        kvl_names_unknown(line, sizeof line, "attention", name, names, N_MODULES);
        return kvl_fail(KVL_ERR_INPUT, "%s", line);
    }
    *out = modules[index];
    return KVL_OK;
}
