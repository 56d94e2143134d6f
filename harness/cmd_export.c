/* kvlab export F.jsonl --csv: rows as CSV on stdout. */
#include <stdio.h>
#include <string.h>

#include "harness/commands.h"
#include "harness/exit.h"
#include "harness/figures/export.h"
#include "harness/figures/group.h"
#include "harness/figures/ratio.h"

enum { MAX_FILES = 64 };

typedef struct values {
    const char *columns;
    bool csv, median, interval, table;
} values;

static const kvl_option options[] = {
    {"csv", KVL_OPT_FLAG, offsetof(values, csv), NULL,
     "write CSV (what is written without --table)", 0, 0},
    {"columns", KVL_OPT_TEXT, offsetof(values, columns), "NAME,...",
     "these columns in this order, also env.NAME, ceilings.NAME, repro (all but those)", 0, 0},
    {"median", KVL_OPT_FLAG, offsetof(values, median), NULL,
     "one line a trial: medians over its rounds", 0, 0},
    {"interval", KVL_OPT_FLAG, offsetof(values, interval), NULL,
     "with --median: <metric>_lo and <metric>_hi, 95 % bootstrap (extremes below 3 rounds)", 0, 0},
    {"table", KVL_OPT_FLAG, offsetof(values, table), NULL,
     "Markdown instead: kvlab to other systems on the same work (rows of experiments/peers)", 0, 0},
};

static kvl_status write_rows(const values *v, const json_t *rows, kvl_buffer *out) {
    kvl_export_options export_options = {v->columns, v->median || v->interval, v->interval};
    return kvl_export_csv(rows, &export_options, out);
}

static kvl_status write_table(const values *v, const json_t *rows, kvl_buffer *out) {
    kvl_groups groups = {0};
    kvl_ratios ratios = {0};
    if (v->csv || v->median || v->interval || v->columns)
        return kvl_fail(KVL_ERR_INPUT, "--table stands alone");
    kvl_status status = kvl_groups_make(rows, &groups);
    if (status == KVL_OK) status = kvl_ratios_make(&groups, NULL, true, &ratios);
    if (status == KVL_OK) status = kvl_ratios_markdown(&ratios, out);
    kvl_ratios_free(&ratios);
    kvl_groups_free(&groups);
    return status;
}

static kvl_status export(const values *v, const char *const *paths, int n_paths, int *code) {
    json_t *rows = NULL;
    int n_torn = 0;
    kvl_buffer out = {0};
    kvl_status status = kvl_rows_load_all(paths, n_paths, &rows, &n_torn);
    if (n_torn) fprintf(stderr, "kvlab: %d torn last line(s) left out\n", n_torn);
    if (status == KVL_OK)
        status = v->table ? write_table(v, rows, &out) : write_rows(v, rows, &out);
    if (status == KVL_OK) {
        fwrite(out.data, 1, out.bytes, stdout);
        *code = json_array_size(rows) ? KVL_EXIT_OK : KVL_EXIT_NOTHING;
        if (*code) fprintf(stderr, "kvlab: no rows\n");
    }
    kvl_buffer_free(&out);
    json_decref(rows);
    return status;
}

static int run(const kvl_command *self, int argc, char **argv) {
    values v = {0};
    const char *paths[MAX_FILES];
    int n_paths, code = KVL_EXIT_OK;
    bool help_shown;
    kvl_status status =
        kvl_options_parse(self, argc, argv, &v, paths, MAX_FILES, &n_paths, &help_shown);
    if (status == KVL_OK && help_shown) return kvl_exit_flush(KVL_EXIT_OK);
    if (status == KVL_OK && n_paths == 0)
        status = kvl_fail(KVL_ERR_INPUT, "export needs a .jsonl file (see kvlab export --help)");
    if (status == KVL_OK) status = export(&v, paths, n_paths, &code);
    return status == KVL_OK ? kvl_exit_flush(code) : kvl_exit_report(status);
}

const kvl_command kvl_command_export = {
    "export",
    "rows as CSV, or a table of ratios, on stdout",
    "F.jsonl... --csv [--columns NAME,...] [--median [--interval]] | --table",
    "Fields are quoted as RFC 4180 asks; a missing value or null is an empty field.\n"
    "What the columns mean stands in results/README.md.\n",
    options,
    sizeof options / sizeof *options,
    run};
