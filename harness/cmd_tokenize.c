/* kvlab tokenize --model M TEXT|- : ids as one JSON array; --decode for the way back. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder/model.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "harness/input.h"

typedef struct values {
    const char *model, *file;
    bool add_special, decode, skip_special;
} values;

static const kvl_option options[] = {
    {"model", KVL_OPT_TEXT, offsetof(values, model), "M", "GGUF file or Hugging Face directory", 0,
     0},
    {"file", KVL_OPT_TEXT, offsetof(values, file), "FILE", "read the text (or ids) from a file", 0,
     0},
    {"add-special", KVL_OPT_FLAG, offsetof(values, add_special), NULL,
     "add BOS/EOS where the model's file says so", 0, 0},
    {"decode", KVL_OPT_FLAG, offsetof(values, decode), NULL,
     "the argument is a JSON array of ids; print their text", 0, 0},
    {"skip-special", KVL_OPT_FLAG, offsetof(values, skip_special), NULL,
     "with --decode: leave special tokens out", 0, 0},
};

static kvl_status encode(const kvl_tokenizer *tokenizer, const values *v, const kvl_buffer *text) {
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    KVL_TRY(kvl_tokenizer_encode_alloc(tokenizer, text->data ? text->data : "", text->bytes,
                                       v->add_special, &ids, &n_ids));
    kvl_print_ids(ids, n_ids);
    free(ids);
    return KVL_OK;
}

static kvl_status decode(const kvl_tokenizer *tokenizer, const values *v, const kvl_buffer *text) {
    int32_t *ids = NULL;
    int64_t n_ids = 0;
    KVL_TRY(kvl_parse_ids("ids", text->data, text->bytes, &ids, &n_ids));
    kvl_buffer out = {0};
    kvl_status status = kvl_tokenizer_decode(tokenizer, ids, n_ids, v->skip_special, &out);
    if (status == KVL_OK && out.failed) status = kvl_fail(KVL_ERR_OOM, "out of memory");
    if (status == KVL_OK && out.bytes) fwrite(out.data, 1, out.bytes, stdout);
    kvl_buffer_free(&out);
    free(ids);
    return status;
}

static kvl_status tokenize(const values *v, const char *argument) {
    kvl_buffer text = {0};
    KVL_TRY(kvl_read_input(argument, v->file, "text", &text));
    kvl_model *model = NULL;
    kvl_status status = kvl_model_open(v->model, 0, &model);
    if (status == KVL_OK && !model->tokenizer)
        status = kvl_fail(KVL_ERR_INPUT, "%s: %s", v->model,
                          model->tokenizer_why ? model->tokenizer_why : "has no tokenizer");
    if (status == KVL_OK)
        status =
            v->decode ? decode(model->tokenizer, v, &text) : encode(model->tokenizer, v, &text);
    kvl_model_close(model);
    kvl_buffer_free(&text);
    return status;
}

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {0};
    const char *argument = NULL;
    int n_arguments;
    bool help_shown;
    kvl_status status =
        kvl_options_parse(self, argc, argv, &v, &argument, 1, &n_arguments, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (status == KVL_OK && !v.model)
        status = kvl_fail(KVL_ERR_INPUT, "tokenize needs --model (see kvlab tokenize --help)");
    if (status == KVL_OK) status = tokenize(&v, n_arguments ? argument : NULL);
    return status == KVL_OK ? kvl_exit_flush(KVL_EXIT_OK) : kvl_exit_report(status);
}

const kvl_command kvl_command_tokenize = {
    "tokenize",
    "text to token ids, or back",
    "--model M TEXT|- [--add-special] [--decode]",
    "Example: kvlab tokenize --model M \"Hello\" prints [19556]; \"-\" reads standard input.\n",
    options,
    sizeof options / sizeof *options,
    run};
