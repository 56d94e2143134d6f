/* Runs a command of kvlab inside the test, as a shell would, and keeps what it says. */
#ifndef KVL_TESTS_COMMAND_H
#define KVL_TESTS_COMMAND_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness/options.h"

static char said[1 << 16]; /* stdout and stderr of the last command, as they were written */

/* ARGUMENTS (at most 14, NULL-terminated) come after the command's name. Returns the exit code. */
static int run_command(const kvl_command *command, const char *const *arguments) {
    char *argv[16] = {(char *)command->name};
    int argc = 1, saved[2] = {dup(1), dup(2)};
    while (arguments[argc - 1]) argv[argc] = (char *)arguments[argc - 1], argc++;
    FILE *all = tmpfile();
    fflush(stdout);
    dup2(fileno(all), 1);
    dup2(fileno(all), 2);
    int code = command->run(command, argc, argv);
    fflush(stdout);
    fflush(stderr);
    dup2(saved[0], 1);
    dup2(saved[1], 2);
    close(saved[0]);
    close(saved[1]);
    rewind(all);
    said[fread(said, 1, sizeof said - 1, all)] = '\0';
    fclose(all);
    return code;
}

static void expect(int code, int expected, const char *part) {
    if (code != expected) fail_msg("exit code %d, not %d: %s", code, expected, said);
    if (!strstr(said, part)) fail_msg("'%s' is not in: %s", part, said);
}

#endif
