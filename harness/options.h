/* One option table a command: it parses the command line (getopt_long), prints --help and
 * `help --json`, and names the nearest option for a misspelt one. */
#ifndef KVL_HARNESS_OPTIONS_H
#define KVL_HARNESS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef enum kvl_option_kind {
    KVL_OPT_FLAG = 0, /* bool: set to true; --no-NAME sets it to false */
    KVL_OPT_TEXT,     /* const char *: borrowed from argv */
    KVL_OPT_INT,      /* int64_t in [min, max] */
    KVL_OPT_REAL,     /* double in [min, max] */
} kvl_option_kind;

typedef struct kvl_option {
    const char *name; /* "max-tokens", given as --max-tokens N or --max-tokens=N */
    kvl_option_kind kind;
    size_t offset;        /* of the field in the command's values struct */
    const char *argument; /* "N", "FILE", "NAME,..."; NULL for flags */
    const char *help;     /* one line, default included: "tokens to generate (64)" */
    double min, max;      /* for INT and REAL; min == max: no limit */
} kvl_option;

typedef struct kvl_command {
    const char *name;    /* "generate", or "bench decode" */
    const char *summary; /* one line for `kvlab help` */
    const char *usage;   /* "--model M --prompt TEXT [options]" */
    const char *details; /* text after the options in --help: examples, exit codes; may be NULL */
    const kvl_option *options;
    size_t n_options;
    /* argv[0] is the command's last word. Returns the exit code (harness/exit.h). */
    int (*run)(const struct kvl_command *command, int argc, char **argv);
} kvl_command;

/* Parses argv[1..argc) into `values` (a struct that holds defaults). Positional arguments are moved
 * to positional[0..*n_positional) (at most max_positional; one more is refused). `--help` prints
 * help to stdout and sets *help_shown; the caller then returns 0. KVL_ERR_INPUT: unknown option
 * (with the nearest), missing or malformed value, out of range, text that is not UTF-8. */
kvl_status kvl_options_parse(const kvl_command *command, int argc, char **argv, void *values,
                             const char **positional, int max_positional, int *n_positional,
                             bool *help_shown);

/* Prints --help of a command to stdout. */
void kvl_options_help(const kvl_command *command);

/* All commands, in the order of `kvlab help` (harness/main.c). */
size_t kvl_command_count(void);
const kvl_command *kvl_command_at(size_t index);

#endif
