/* A row: one JSON line for one trial and round. results/README.md defines every name and unit.
 *
 *   schema, run, trial, round, workload, axes{}, effective{}, outcome, reason, metrics{},
 * samples{}, ceilings{}, env{}, seed, repro
 *
 * A file of rows is append-only. Opening cuts a torn last line, when it begins as a row does (a
 * whole row gets its newline; any other text is refused and left alone); one row is one write(2);
 * when that write fails or is short (full disk), the file is truncated back to its former end and
 * the error is returned: no finished row is ever lost, and the file always parses. An flock keeps
 * two writers apart. */
#ifndef KVL_HARNESS_ROW_H
#define KVL_HARNESS_ROW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

enum { KVL_ROW_SCHEMA = 1 };

typedef struct kvl_row_file kvl_row_file;

/* Opens (creates) `path` for appending: regular files only, parent folder must exist. Reports a cut
 * torn line through *cut_bytes (may be NULL). */
kvl_status kvl_row_file_open(const char *path, kvl_row_file **out, uint64_t *cut_bytes);
/* Refuses what kvl_row_file_open would refuse, but changes and creates nothing (and takes no lock).
 */
kvl_status kvl_row_file_check(const char *path);
/* KVL_ERR_IO when the row cannot be kept, or the path names another file or none by now; so does
 * close. */
kvl_status kvl_row_file_append(kvl_row_file *file, const json_t *row);
kvl_status kvl_row_file_close(kvl_row_file *file);

/* Reads all rows of a .jsonl file into a JSON array. A line that does not parse or lacks the row's
 * members is refused with file, line and reason; a torn last line is left out and counted.
 */
kvl_status kvl_rows_load(const char *path, json_t **rows, int *n_torn);

#endif
