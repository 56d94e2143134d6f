#include "harness/input.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "decoder/json.h"

enum { MAX_STDIN_BYTES = 256 << 20 };

static kvl_status read_stdin(const char *what, kvl_buffer *out) {
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0) {
        kvl_buffer_add(out, block, n);
        if (out->bytes > MAX_STDIN_BYTES)
            return kvl_fail(KVL_ERR_INPUT, "standard input: %s of more than %d MiB", what,
                            MAX_STDIN_BYTES >> 20);
    }
    if (ferror(stdin)) return kvl_fail(KVL_ERR_IO, "standard input: %s", strerror(errno));
    return out->failed ? kvl_fail(KVL_ERR_OOM, "out of memory") : KVL_OK;
}

kvl_status kvl_read_input(const char *argument, const char *file, const char *what,
                          kvl_buffer *out) {
    if (!argument == !file)
        return kvl_fail(KVL_ERR_INPUT, "give the %s once: as an argument or from a file", what);
    kvl_status status = KVL_OK;
    if (file) {
        kvl_file mapped;
        KVL_TRY(kvl_file_open(file, &mapped));
        kvl_buffer_add(out, mapped.data, mapped.bytes);
        kvl_file_close(&mapped);
    } else if (strcmp(argument, "-") == 0) {
        status = read_stdin(what, out);
    } else {
        kvl_buffer_text(out, argument);
    }
    if (status == KVL_OK && out->failed) status = kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status != KVL_OK) kvl_buffer_free(out);
    return status;
}

kvl_status kvl_parse_ids(const char *label, const char *text, uint64_t bytes, int32_t **ids,
                         int64_t *n_ids) {
    json_t *array = NULL;
    KVL_TRY(kvl_json_parse(label, text ? text : "", bytes, &array));
    kvl_status status = KVL_OK;
    size_t n = json_array_size(array);
    int32_t *out = malloc((n ? n : 1) * sizeof *out);
    if (!json_is_array(array)) {
        status = kvl_fail(KVL_ERR_INPUT, "%s: a JSON array of token ids is needed", label);
    } else if (!out) {
        status = kvl_fail(KVL_ERR_OOM, "%s: out of memory", label);
    }
    for (size_t i = 0; status == KVL_OK && i < n; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id > INT32_MAX)
            status = kvl_fail(KVL_ERR_INPUT, "%s: element %zu is not a token id", label, i);
        else
            out[i] = (int32_t)id;
    }
    json_decref(array);
    if (status != KVL_OK) {
        free(out);
        return status;
    }
    *ids = out;
    *n_ids = (int64_t)n;
    return KVL_OK;
}

void kvl_print_ids(const int32_t *ids, int64_t n_ids) {
    putchar('[');
    for (int64_t i = 0; i < n_ids; i++) printf("%s%d", i ? ", " : "", ids[i]);
    printf("]\n");
}
