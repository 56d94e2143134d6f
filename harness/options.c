#include "harness/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/names.h"

enum { HELP = 1, OPTION = 1000, NEGATED = 2000, MAX_OPTIONS = 64 };

/* getopt_long's table: every option, --no-NAME for flags, and --help. Names of negations live in
 * `negated`. */
typedef struct long_table {
    struct option entries[2 * MAX_OPTIONS + 2];
    char negated[MAX_OPTIONS][48];
    const char *names[MAX_OPTIONS + 1];
} long_table;

static void fill_table(const kvl_command *command, long_table *table) {
    size_t n = 0;
    for (size_t i = 0; i < command->n_options && i < MAX_OPTIONS; i++) {
        const kvl_option *option = &command->options[i];
        bool flag = option->kind == KVL_OPT_FLAG;
        table->entries[n++] = (struct option){option->name, flag ? no_argument : required_argument,
                                              NULL, OPTION + (int)i};
        if (flag) {
            snprintf(table->negated[i], sizeof table->negated[i], "no-%s", option->name);
            table->entries[n++] =
                (struct option){table->negated[i], no_argument, NULL, NEGATED + (int)i};
        }
        table->names[i] = option->name;
    }
    table->names[command->n_options] = "help";
    table->entries[n++] = (struct option){"help", no_argument, NULL, HELP};
    table->entries[n] = (struct option){0};
}

static kvl_status out_of_range(const kvl_option *option, const char *text) {
    return kvl_fail(KVL_ERR_INPUT, "--%s %s: must lie in %.15g to %.15g", option->name, text,
                    option->min, option->max);
}

static kvl_status set_value(const kvl_option *option, const char *text, void *values) {
    void *field = (char *)values + option->offset;
    bool limited = option->min != option->max;
    char *end;
    errno = 0;
    switch (option->kind) {
    case KVL_OPT_FLAG:
        *(bool *)field = true;
        return KVL_OK;
    case KVL_OPT_TEXT:
        if (!kvl_utf8_valid(text, strlen(text)))
            return kvl_fail(KVL_ERR_INPUT, "--%s '%s': not valid UTF-8", option->name, text);
        *(const char **)field = text;
        return KVL_OK;
    case KVL_OPT_INT: {
        long long value = strtoll(text, &end, 10);
        if (end == text || *end || errno == ERANGE)
            return kvl_fail(KVL_ERR_INPUT, "--%s '%s': not a whole number", option->name, text);
        if (limited && ((double)value < option->min || (double)value > option->max))
            return out_of_range(option, text);
        *(int64_t *)field = value;
        return KVL_OK;
    }
    default: {
        double value = strtod(text, &end);
        if (end == text || *end || !isfinite(value))
            return kvl_fail(KVL_ERR_INPUT, "--%s '%s': not a finite number", option->name, text);
        if (limited && (value < option->min || value > option->max))
            return out_of_range(option, text);
        *(double *)field = value;
        return KVL_OK;
    }
    }
}

static kvl_status unknown_option(const kvl_command *command, const long_table *table,
                                 const char *argument) {
    char name[64];
    snprintf(name, sizeof name, "%.63s", argument + strspn(argument, "-"));
    name[strcspn(name, "=")] = '\0';
    const char *near = kvl_names_nearest(name, table->names, command->n_options + 1);
    return kvl_fail(KVL_ERR_INPUT, "unknown option '%.80s'%s%s%s (see kvlab %s --help)", argument,
                    near ? "; did you mean '--" : "", near ? near : "", near ? "'?" : "",
                    command->name);
}

static kvl_status take_positional(const char *text, const char **positional, int max_positional,
                                  int *n_positional) {
    if (*n_positional >= max_positional)
        return kvl_fail(KVL_ERR_INPUT, "unexpected argument '%.80s'", text);
    positional[(*n_positional)++] = text;
    return KVL_OK;
}

kvl_status kvl_options_parse(const kvl_command *command, int argc, char **argv, void *values,
                             const char **positional, int max_positional, int *n_positional,
                             bool *help_shown) {
    long_table table;
    fill_table(command, &table);
    *n_positional = 0;
    *help_shown = false;
    optind = 0; /* glibc: start over, so that several parses can happen in one process */
    opterr = 0;
    bool seen[MAX_OPTIONS] = {false};
    int code;
    /* "-": positional arguments come as option 1 of their own, in order; abbreviations stay exact.
     */
    while ((code = getopt_long(argc, argv, "-:", table.entries, NULL)) != -1) {
        if (code == 1 && optarg) {
            KVL_TRY(take_positional(optarg, positional, max_positional, n_positional));
        } else if (code == HELP) {
            kvl_options_help(command);
            *help_shown = true;
            return KVL_OK;
        } else if (code == ':') {
            return kvl_fail(KVL_ERR_INPUT, "option '%.80s' needs a value", argv[optind - 1]);
        } else if (code >= NEGATED) {
            *(bool *)((char *)values + command->options[code - NEGATED].offset) = false;
        } else if (code >= OPTION) {
            /* The last of two values would win in silence. */
            if (seen[code - OPTION] && optarg)
                return kvl_fail(KVL_ERR_INPUT, "--%s is given twice",
                                command->options[code - OPTION].name);
            seen[code - OPTION] = true;
            KVL_TRY(set_value(&command->options[code - OPTION], optarg, values));
        } else {
            return unknown_option(command, &table, argv[optind - 1]);
        }
    }
    for (; optind < argc; optind++) /* after "--" */
        KVL_TRY(take_positional(argv[optind], positional, max_positional, n_positional));
    return KVL_OK;
}

void kvl_options_help(const kvl_command *command) {
    printf("%s\n\nUsage: kvlab %s %s\n", command->summary, command->name, command->usage);
    if (command->n_options) printf("\nOptions:\n");
    for (size_t i = 0; i < command->n_options; i++) {
        const kvl_option *option = &command->options[i];
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", option->name, option->argument ? " " : "",
                 option->argument ? option->argument : "");
        printf("  %-28s %s\n", left, option->help);
    }
    printf("  %-28s %s\n", "--help", "this text");
    if (command->details) printf("\n%s", command->details);
}
