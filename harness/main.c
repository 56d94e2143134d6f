/* kvlab: picks the command. One line a command; words of a command's name are separate arguments.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/isa.h"
#include "core/names.h"
#include "harness/commands.h"
#include "harness/exit.h"

static const kvl_command *const commands[] = {
    &kvl_command_info,         &kvl_command_generate,        &kvl_command_tokenize,
    &kvl_command_verify,       &kvl_command_bench_decode,    &kvl_command_bench_attention,
    &kvl_command_bench_matmul, &kvl_command_bench_quality,   &kvl_command_bench_replay,
    &kvl_command_bench_serve,  &kvl_command_bench_allocator, &kvl_command_bench_soak,
    &kvl_command_plot,         &kvl_command_export,          &kvl_command_run,
    &kvl_command_compare,      &kvl_command_quantize,        &kvl_command_help,
};

size_t kvl_command_count(void) {
    return sizeof commands / sizeof *commands;
}

const kvl_command *kvl_command_at(size_t index) {
    return commands[index];
}

/* How many of argv's words are the name of `command`; 0 when it does not match. */
static int words_matched(const kvl_command *command, int argc, char **argv) {
    const char *name = command->name;
    int words = 0;
    while (*name) {
        size_t length = strcspn(name, " ");
        if (words + 1 >= argc || strlen(argv[words + 1]) != length ||
            strncmp(argv[words + 1], name, length) != 0)
            return 0;
        words++;
        name += length + (name[length] == ' ');
    }
    return words;
}

static int unknown_command(int argc, char **argv) {
    /* `bench` alone, or `bench decoed`: compare both words with two-word names. */
    char typed[64];
    const char *names[sizeof commands / sizeof *commands];
    size_t n_names = kvl_command_count();
    for (size_t i = 0; i < n_names; i++) names[i] = commands[i]->name;
    bool two = strcmp(argv[1], "bench") == 0 && argc > 2 && argv[2][0] != '-';
    snprintf(typed, sizeof typed, "%.30s%s%.30s", argv[1], two ? " " : "", two ? argv[2] : "");
    char line[512];
    kvl_names_unknown(line, sizeof line, "command", typed, names, n_names);
    return kvl_exit_report(kvl_fail(KVL_ERR_INPUT, "%s", line));
}

/* A descriptor below 3 that is closed at the start would be given to the next file opened, and
 * messages would go into it. /dev/null takes its place, the wrong way round: use is still an error.
 */
static bool fill_standard_descriptors(void) {
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return false;
    }
    return true;
}

/* Async-signal-safe calls only. Nothing can be taken back here: the page is gone. */
static void on_bus_error(int signal) {
    static const char text[] = "kvlab: a mapped file shrank while it was read\n";
    (void)signal;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(KVL_EXIT_INPUT);
    _exit(KVL_EXIT_INPUT);
}

int main(int argc, char **argv) {
    if (!fill_standard_descriptors()) return KVL_EXIT_INPUT;
    /* A reader that closes the pipe, or a file past its size limit, is an error code, not a death.
     */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGBUS, on_bus_error);
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        char *help[] = {"help", NULL};
        int code = kvl_command_help.run(&kvl_command_help, 1, help);
        return argc < 2 ? KVL_EXIT_INPUT : code;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("kvlab %s\n", KVL_VERSION);
        return kvl_exit_flush(KVL_EXIT_OK);
    }
    kvl_status status = kvl_isa_init();
    if (status != KVL_OK) return kvl_exit_report(status);
    if (strcmp(argv[1], kvl_command_trial.name) == 0)
        return kvl_command_trial.run(&kvl_command_trial, argc - 1, argv + 1);
    for (size_t i = 0; i < kvl_command_count(); i++) {
        int words = words_matched(commands[i], argc, argv);
        if (words) return commands[i]->run(commands[i], argc - words, argv + words);
    }
    return unknown_command(argc, argv);
}
