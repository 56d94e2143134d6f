/* kvlab help [COMMAND] [--json] */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "core/names.h"
#include "harness/commands.h"
#include "harness/exit.h"

enum { MAX_COMMANDS = 32, MAX_WORDS = 4 };

static void print_overview(void) {
    printf(
        "kvlab: KV-cache allocators, attention kernels and number formats, isolated, verified and "
        "measured.\n\nUsage: kvlab COMMAND [options]\n\nCommands:\n");
    for (size_t i = 0; i < kvl_command_count(); i++) {
        const kvl_command *command = kvl_command_at(i);
        printf("  %-14s %s\n", command->name, command->summary);
    }
    printf(
        "\n`kvlab COMMAND --help` tells each one's options; `kvlab --version` the version.\n"
        "Models: a GGUF file, a Hugging Face directory, or synthetic:NAME (kvlab info models).\n"
        "Data goes to stdout, progress and warnings to stderr.\n"
        "Exit codes: 0 good; 1 finished and negative; 2 bad input or unwritable output; 3 cannot "
        "tell;\n4 a trial ended oom, timeout, crash or mismatch; 5 nothing selected or run; 70 own "
        "defect; 130/143 interrupted.\n");
}

static json_t *describe(const kvl_command *command) {
    static const char *const kinds[] = {"flag", "text", "integer", "number"};
    json_t *options = json_array();
    for (size_t i = 0; i < command->n_options; i++) {
        const kvl_option *option = &command->options[i];
        json_t *entry = json_pack("{s:s, s:s, s:s}", "name", option->name, "kind",
                                  kinds[option->kind], "help", option->help);
        if (option->argument) json_object_set_new(entry, "argument", json_string(option->argument));
        if (option->min != option->max) {
            json_object_set_new(entry, "min", json_real(option->min));
            json_object_set_new(entry, "max", json_real(option->max));
        }
        json_array_append_new(options, entry);
    }
    return json_pack("{s:s, s:s, s:s, s:o}", "name", command->name, "summary", command->summary,
                     "usage", command->usage, "options", options);
}

static int print_json(void) {
    json_t *commands = json_array();
    for (size_t i = 0; i < kvl_command_count(); i++)
        json_array_append_new(commands, describe(kvl_command_at(i)));
    json_t *root = json_pack("{s:i, s:s, s:o}", "schema_version", 1, "version", KVL_VERSION,
                             "commands", commands);
    if (!root) return kvl_exit_report(kvl_fail(KVL_ERR_OOM, "out of memory"));
    json_dumpf(root, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(root);
    return kvl_exit_flush(KVL_EXIT_OK);
}

typedef struct values {
    bool json;
} values;

static const kvl_option options[] = {
    {"json", KVL_OPT_FLAG, offsetof(values, json), NULL, "every command and option as JSON", 0, 0},
};

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {0};
    const char *words[MAX_WORDS];
    int n_words;
    bool help_shown;
    kvl_status status =
        kvl_options_parse(self, argc, argv, &v, words, MAX_WORDS, &n_words, &help_shown);
    if (status != KVL_OK) return kvl_exit_report(status);
    if (help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (v.json) return print_json();
    if (n_words == 0) {
        print_overview();
        return kvl_exit_flush(KVL_EXIT_OK);
    }
    char name[64];
    snprintf(name, sizeof name, "%.30s%s%.30s", words[0], n_words > 1 ? " " : "",
             n_words > 1 ? words[1] : "");
    const char *names[MAX_COMMANDS];
    for (size_t i = 0; i < kvl_command_count(); i++) {
        names[i] = kvl_command_at(i)->name;
        if (strcmp(names[i], name) == 0) {
            kvl_options_help(kvl_command_at(i));
            return kvl_exit_flush(KVL_EXIT_OK);
        }
    }
    char line[512];
    kvl_names_unknown(line, sizeof line, "command", name, names, kvl_command_count());
    return kvl_exit_report(kvl_fail(KVL_ERR_INPUT, "%s", line));
}

const kvl_command kvl_command_help = {
    "help", "this overview, or the help of one command", "[COMMAND] [--json]", NULL, options, 1,
    run};
