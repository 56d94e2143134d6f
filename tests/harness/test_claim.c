/* Experiment files: what is read, every fault with line and column, hostile YAML, and the command
 * on stored rows. */
#define _GNU_SOURCE
#include "tests/test.h"

#include <dirent.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "harness/claims/claim.h"
#include "harness/claims/report.h"
#include "harness/commands.h"
#include "harness/exit.h"
#include "tests/harness/command.h"

static const char good[] = "claim: Flash gains.\n"
                           "source: a paper\n"
                           "workload: attention\n"
                           "axes:\n"
                           "  attention: [eager, flash]\n"
                           "  shape: 1q64s64, 1q128s128\n"
                           "metric: time_us\n"
                           "rounds: 5\n"
                           "deterministic: true\n"
                           "checks:\n"
                           "  - speedup(flash, eager) > 1.5 where shape == 1q128s128\n"
                           "plot: {x: shape, by: [attention], kind: bars}\n";

static void the_members(void **state) {
    kvl_claim claim;
    (void)state;
    assert_ok(kvl_claim_parse("dir/gain.yaml", good, sizeof good - 1, &claim));
    assert_string_equal(claim.name, "gain");
    assert_string_equal(claim.claim, "Flash gains.");
    assert_string_equal(claim.values.axes[KVL_AXIS_ATTENTION], "eager,flash");
    assert_int_equal(claim.axis_values[KVL_AXIS_SHAPE].n, 2);
    assert_int_equal(claim.values.rounds, 5);
    assert_true(claim.values.deterministic);
    assert_int_equal(claim.n_checks, 1);
    assert_string_equal(claim.checks[0].axis, "attention");
    assert_string_equal(claim.plot_by, "attention");
    kvl_claim_free(&claim);
}

/* `good` with `line` (from 1) replaced; refused at line:column with `part`, and the caret there. */
static void refused(int line, const char *text, int at_line, int column, const char *part) {
    kvl_buffer all = {0}, excerpt = {0};
    char place[64];
    kvl_claim claim;
    const char *from = good;
    for (int i = 1; *from; i++) {
        size_t length = strcspn(from, "\n") + 1;
        if (i == line)
            kvl_buffer_printf(&all, "%s\n", text);
        else
            kvl_buffer_add(&all, from, length);
        from += length;
    }
    snprintf(place, sizeof place, "x.yaml:%d:%d: ", at_line, column);
    assert_refused(kvl_claim_parse("x.yaml", all.data, all.bytes, &claim), KVL_ERR_INPUT, part);
    if (strncmp(kvl_message(), place, strlen(place)) != 0)
        fail_msg("%s: not at %s", kvl_message(), place);
    kvl_yaml_excerpt(&claim.yaml, &excerpt);
    const char *caret = strchr(excerpt.data, '^'), *below = strchr(excerpt.data, '\n') + 1;
    assert_int_equal(caret - below, 2 + column - 1);
    kvl_claim_free(&claim);
    kvl_buffer_free(&all);
    kvl_buffer_free(&excerpt);
}

static void each_fault_has_its_place(void **state) {
    (void)state;
    refused(1, "clam: Flash gains.", 1, 1, "unknown member 'clam'; did you mean 'claim'?");
    refused(1, "", 2, 1, "'claim' is missing");
    refused(3, "workload: atention", 3, 11, "did you mean 'attention'?");
    refused(5, "  atention: flash", 5, 3, "did you mean 'attention'?");
    refused(5, "  attention: [eager, flsh]", 5, 14, "flash");
    refused(5, "  attention: {a: b}", 5, 14, "a value or a list");
    refused(6, "  shape: 1q64s64x", 6, 10, "shape");
    refused(6, "  prompt: 12", 6, 3, "unknown axis of this workload 'prompt'");
    refused(7, "metric: time_ms", 7, 9, "did you mean 'time_us'?");
    refused(8, "rounds: 0", 8, 9, "must lie in 1 to 10000");
    refused(8, "rounds: 2.5", 8, 9, "not a whole number");
    refused(8, "rounds: many", 8, 9, "not a whole number");
    refused(8, "rounds: [3]", 8, 9, "one value is needed");
    refused(8, "rounds:", 8, 1, "it is empty");
    refused(5, "  attention:", 5, 3, "it has no value");
    refused(5, "  attention: []", 5, 3, "it has no value");
    refused(8, "max_time_s: nan", 8, 13, "not a number");
    refused(9, "deterministic: yes", 9, 16, "true or false");
    refused(10, "checks: none", 10, 9, "list of comparisons");
    refused(11, "  - speedup(flash, eagr) > 1.5", 11, 20, "did you mean 'eager'?");
    refused(11, "  - {a: b}", 11, 5, "one text");
    refused(12, "plot: {z: shape}", 12, 8, "unknown member of plot 'z'");
    refused(12, "plot: {kind: lines}", 12, 14, "did you mean 'line'?");
    refused(12, "plot: {y: time_ms}", 12, 11, "did you mean 'time_us'?");
    refused(2, "claim: again", 2, 1, "'claim' is given twice; first in line 1");
}

static void hostile(const char *text, size_t bytes, const char *part) {
    kvl_claim claim;
    assert_refused(kvl_claim_parse("h.yaml", text, bytes, &claim), KVL_ERR_INPUT, part);
    kvl_buffer excerpt = {0};
    kvl_yaml_excerpt(&claim.yaml, &excerpt);
    kvl_buffer_free(&excerpt);
    kvl_claim_free(&claim);
}

static void hostile_text(const char *text, const char *part) {
    hostile(text, strlen(text), part);
}

static void hostile_yaml(void **state) {
    kvl_buffer text = {0};
    (void)state;
    /* A billion laughs: refused at the first anchor. */
    hostile_text("a: &a [x, x]\nb: &b [*a, *a]\nclaim: *b\n", "anchors and aliases");
    hostile_text("claim: *nothing\n", "anchors and aliases");
    hostile_text("<<: *base\n", "anchors and aliases");
    hostile_text("claim: !!python/object/apply:os.system [id]\n", "tags");
    hostile_text("claim: a\n---\nclaim: b\n", "second document");
    hostile_text("", "a map of its members");
    hostile_text("- a\n- b\n", "a map of its members");
    hostile_text("just text", "a map of its members");
    hostile_text("[a]: b\n", "a key must be a plain word");
    hostile_text("claim: 'open\n", "h.yaml:");
    hostile_text("claim: a\n\tsource: b\n", "h.yaml:");
    hostile_text("claim: {a: b\n", "h.yaml:");
    hostile("claim: a\0b\n", 11, "NUL");
    hostile("claim: \xff\xfe\n", 10, "UTF-8");
    hostile_text("claim: \"a\\0b\"\n", "NUL");
    for (int i = 0; i < 100000; i++) kvl_buffer_text(&text, "[");
    hostile(text.data, text.bytes, ":"); /* by depth, or by libfyaml's own limit */
    kvl_buffer_clear(&text);
    for (int i = 0; i < 30; i++) kvl_buffer_printf(&text, "%*sk%d:\n", i, "", i);
    hostile(text.data, text.bytes, "nested more deeply");
    kvl_buffer_clear(&text);
    kvl_buffer_text(&text, "claim: ");
    for (int i = 0; i < 5000; i++) kvl_buffer_text(&text, "x");
    hostile(text.data, text.bytes, "above 4096 bytes");
    kvl_buffer_clear(&text);
    kvl_buffer_text(&text, "claim: [");
    for (int i = 0; i < 20000; i++) kvl_buffer_text(&text, "x,");
    kvl_buffer_text(&text, "]\n");
    hostile(text.data, text.bytes, "more than 10000 values");
    kvl_buffer_clear(&text);
    for (int i = 0; i < 300000; i++) kvl_buffer_text(&text, "#");
    hostile(text.data, text.bytes, "at most 262144");
    kvl_buffer_free(&text);
}

/* Every prefix of a file is a file, or an error with its place; none is a crash. */
static void every_prefix(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof good - 1; n++) {
        kvl_claim claim;
        kvl_status status = kvl_claim_parse("p.yaml", good, n, &claim);
        assert_true(status == KVL_OK || status == KVL_ERR_INPUT);
        kvl_claim_free(&claim);
    }
}

/* What is published: each file parses, and the schema says what the table says. Axes come and go
 * with workloads: those that the schema names must exist. */
static void published_files(void **state) {
    char path[512];
    int n = 0;
    (void)state;
    DIR *folder = opendir(KVL_SOURCE_DIR "/experiments");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        kvl_claim claim;
        if (!strstr(entry->d_name, ".yaml")) continue;
        snprintf(path, sizeof path, KVL_SOURCE_DIR "/experiments/%s", entry->d_name);
        assert_ok(kvl_claim_open(path, &claim));
        kvl_claim_free(&claim);
        n++;
    }
    closedir(folder);
    assert_true(n >= 10);
    json_t *published = json_load_file(KVL_SOURCE_DIR "/experiments/schema.json", 0, NULL);
    json_t *made = kvl_claim_schema();
    assert_non_null(published);
    json_t *axes = json_object_get(json_object_get(published, "properties"), "axes");
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(axes, "properties"), name, value)
        assert_true(kvl_axis_find(name) < KVL_N_AXES);
    json_t *both[2] = {published, made};
    for (int i = 0; i < 2; i++) {
        json_t *properties = json_object_get(both[i], "properties");
        json_object_del(json_object_get(properties, "axes"), "properties");
        json_object_del(json_object_get(properties, "workload"), "enum");
    }
    if (!json_equal(published, made))
        fail_msg("experiments/schema.json is old: kvlab run --schema > experiments/schema.json");
    json_decref(published);
    json_decref(made);
}

/* ---- the command on stored rows -----------------------------------------------------------------
 */

static char folder[] = "/tmp/kvl_claim_XXXXXX";

static void in_folder(const char *name, char out[128]) {
    snprintf(out, 128, "%s/%s", folder, name);
}

static void write_file(const char *name, const char *text) {
    char path[128];
    in_folder(name, path);
    assert_ok(kvl_file_write_all(path, text, strlen(text)));
}

/* Rows of the good sweep: eager takes 100 us, flash `flash_us`, in 6 rounds. */
static void write_rows(const char *name, double flash_us, const char *outcome) {
    kvl_buffer all = {0};
    for (int t = 0; t < 4; t++) {
        for (int r = 0; r < 6; r++) {
            bool flash = t % 2 != 0, ok = !flash || strcmp(outcome, "ok") == 0;
            double time = (flash ? flash_us : 100) * (1 + 0.002 * (flash ? r % 3 : r % 2));
            char trial[20];
            snprintf(trial, sizeof trial, "%016x", t);
            json_t *row = json_pack(
                "{s:i,s:s,s:s,s:i,s:s,s:{s:s,s:s},s:{},s:s,s:s,s:o,s:{},s:{},s:{s:s},s:i,s:s}",
                "schema", 1, "run", "r", "trial", trial, "round", r, "workload", "attention",
                "axes", "attention", flash ? "flash" : "eager", "shape",
                t / 2 ? "1q128s128" : "1q64s64", "effective", "outcome", ok ? "ok" : outcome,
                "reason", ok ? "" : "no such device", "metrics",
                ok ? json_pack("{s:f}", "time_us", time) : json_object(), "samples", "ceilings",
                "env", "cpu", "a <cpu> & \"more\"", "seed", 1, "repro", "kvlab");
            char *text = json_dumps(row, JSON_COMPACT);
            kvl_buffer_printf(&all, "%s\n", text);
            free(text);
            json_decref(row);
        }
    }
    write_file(name, all.data);
    kvl_buffer_free(&all);
}

#define RUN(...) run_command(&kvl_command_run, (const char *const[]){__VA_ARGS__, NULL})

static void findings_and_codes(void **state) {
    char yaml[128], from[128], page[128];
    (void)state;
    in_folder("gain.yaml", yaml);
    in_folder("rows.jsonl", from);
    in_folder("page.html", page);
    write_file("gain.yaml", good);
    write_rows("rows.jsonl", 50, "ok");
    expect(RUN(yaml, "--from", from), 0, "gain: holds: Flash gains.");
    write_rows("rows.jsonl", 80, "ok");
    expect(RUN(yaml, "--from", from), 1, "gain: does not hold: Flash gains.");
    write_rows("rows.jsonl", 66.7, "ok");
    expect(RUN(yaml, "--from", from), 3, "cannot tell here (0 of 1 places)");
    write_rows("rows.jsonl", 50, "unsupported");
    expect(RUN(yaml, "--from", from), 3, "unsupported: no such device");
    expect(RUN(yaml, "--from", from, "--json"), 3, "\"finding\": \"cannot tell here\"");
    json_t *all = json_loads(said, JSON_DISABLE_EOF_CHECK, NULL);
    assert_int_equal(json_integer_value(json_object_get(all, "schema_version")), 1);
    json_decref(all);
    write_rows("rows.jsonl", 50, "ok");
    expect(RUN(yaml, "--from", from, "--report", page), 0, "page.html");
    kvl_file file;
    assert_ok(kvl_file_open(page, &file));
    char *text = strndup((const char *)file.data, file.bytes);
    kvl_file_close(&file);
    assert_non_null(strstr(text, "<span class=\"f f0\">holds</span>"));
    assert_non_null(strstr(text, "speedup(flash, eager) &gt; 1.5 where shape == 1q128s128"));
    assert_non_null(strstr(text, "a &lt;cpu&gt; &amp; &quot;more&quot;"));
    assert_non_null(strstr(text, "kvlab bench attention --attention 'eager,flash'"));
    /* Self-contained: nothing is fetched. */
    assert_null(strstr(text, "src="));
    assert_null(strstr(text, "http"));
    free(text);
    /* Rows of another workload answer nothing. */
    write_file("other.yaml", "claim: x\nsource: y\nworkload: matmul\naxes: {weights: bf16}\n"
                             "metric: time_us\nchecks: [time_us > 0]\n");
    in_folder("other.yaml", yaml);
    expect(RUN(yaml, "--from", from), 2, "no row that answers");
}

static void bad_files_end_before_anything_runs(void **state) {
    char yaml[128], from[128], page[128];
    (void)state;
    in_folder("rows.jsonl", from);
    in_folder("zbad.yaml", yaml);
    in_folder("page2.html", page);
    write_rows("rows.jsonl", 50, "ok");
    write_file("zbad.yaml", "claim: a\nsorce: b\n");
    expect(RUN(folder, "--from", from, "--report", page), 2,
           "did you mean 'source'?\n  sorce: b\n"
           "  ^\n");
    if (strstr(said, "holds")) fail_msg("something ran: %s", said);
    assert_int_equal(access(page, F_OK), -1);
    unlink(yaml);
    /* In a folder, one that has no rows does not keep the others from their findings. */
    expect(RUN(folder, "--from", from, "--report", page), 2, "gain: holds");
    assert_int_equal(access(page, F_OK), 0);
    expect(RUN("/tmp/no/such.yaml"), 2, "No such file");
    expect(RUN("--from", from), 2, "needs an experiment");
    expect(RUN("--schema"), 0, "\"additionalProperties\": false");
}

static int start(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int finish(void **state) {
    static const char *const made[] = {"gain.yaml", "other.yaml", "rows.jsonl", "page.html",
                                       "page2.html"};
    char path[128];
    (void)state;
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        in_folder(made[i], path);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_members),
        cmocka_unit_test(each_fault_has_its_place),
        cmocka_unit_test(hostile_yaml),
        cmocka_unit_test(every_prefix),
        cmocka_unit_test(published_files),
        cmocka_unit_test(findings_and_codes),
        cmocka_unit_test(bad_files_end_before_anything_runs),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
