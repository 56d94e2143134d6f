/* Parts of a golden folder (tests/golden/README.md describes the form). */
#ifndef KVL_HARNESS_VERIFY_GOLDEN_H
#define KVL_HARNESS_VERIFY_GOLDEN_H

#include <jansson.h>

#include "decoder/safetensors.h"
#include "harness/verify/family.h"

typedef struct kvl_verify_golden_run {
    const kvl_verify_options *options;
    kvl_verify_totals *totals;
    kvl_verify_scope scope;
    const char *dir;
} kvl_verify_golden_run;

/* Opens a case: false when the options leave it out, or only list it. */
bool kvl_verify_golden_wants(kvl_verify_golden_run *run, kvl_verify_result *result,
                             const char *format, ...) __attribute__((format(printf, 3, 4)));
void kvl_verify_golden_report(kvl_verify_golden_run *run, const kvl_verify_result *result);

/* "<dir>/<name>" in `out`; true when it exists. */
bool kvl_verify_golden_path(const char *dir, const char *name, char *out, size_t out_bytes);

/* A tensor by name, of this dtype and count (-1: any). KVL_ERR_INPUT with file and name. */
kvl_status kvl_verify_golden_tensor(const kvl_safetensors *st, const char *path, const char *name,
                                    kvl_dtype dtype, int64_t n_elems, const kvl_st_tensor **out);

/* The parts; each is left out when its files are not there. KVL_ERR_INPUT: malformed. */
kvl_status kvl_verify_golden_attention(kvl_verify_golden_run *run);
kvl_status kvl_verify_golden_formats(kvl_verify_golden_run *run); /* fp8, gguf_blocks */
kvl_status kvl_verify_golden_nf4(kvl_verify_golden_run *run);
kvl_status kvl_verify_golden_models(kvl_verify_golden_run *run);
kvl_status kvl_verify_golden_smollm2(kvl_verify_golden_run *run);

#endif
