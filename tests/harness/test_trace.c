/* Traces: every format, every kind of bad line with its place, arrival laws. */
#include "tests/test.h"

#include <math.h>
#include <unistd.h>

#include "harness/traces/arrivals.h"
#include "harness/traces/trace.h"

static char path[64];

static const char *file_of(const char *text, size_t bytes) {
    snprintf(path, sizeof path, "/tmp/kvlab-trace-%ld", (long)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
    return path;
}

static const kvl_trace_options all = {0};

static void read_text(const char *text, kvl_trace *trace) {
    assert_ok(kvl_trace_read(file_of(text, strlen(text)), &all, trace));
}

/* `where` begins with ":LINE:COLUMN: ". */
static void refuse_bytes(const char *text, size_t bytes, const char *where) {
    kvl_trace trace;
    char wanted[256];
    file_of(text, bytes);
    snprintf(wanted, sizeof wanted, "%s%s", path, where);
    assert_refused(kvl_trace_read(path, &all, &trace), KVL_ERR_INPUT, wanted);
    assert_null(trace.requests);
}

static void refuse(const char *text, const char *where) {
    refuse_bytes(text, strlen(text), where);
}

#define AZURE "TIMESTAMP,ContextTokens,GeneratedTokens\n"
#define OURS "arrival_s,prompt,output\n"

static void azure(void **state) {
    (void)state;
    kvl_trace t;
    /* 2023: seven decimals and CRLF; 2024: a zone. */
    read_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
              "2023-11-16 18:15:46.6805900,374,44\r\n"
              "2023-11-16 18:15:50.9951690,396,109\r\n",
              &t);
    assert_string_equal(t.format, "azure");
    assert_int_equal(t.n, 2);
    assert_int_equal(t.requests[0].arrival_ns, 0);
    assert_int_equal(t.requests[1].arrival_ns, 4314579000);
    assert_int_equal(t.requests[1].prompt, 396);
    assert_int_equal(t.requests[1].output, 109);
    assert_int_equal(t.longest, 505);
    assert_int_equal(t.longest_output, 109);
    assert_int_equal(t.sum_prompt, 770);
    assert_int_equal(t.sum_output, 153);
    kvl_trace_free(&t);
    read_text(AZURE "2024-05-10 00:00:00.009930+00:00,2162,5\n"
                    "2024-05-10T01:30:00.009930001+01:00,2399,6", /* no newline at the end */
              &t);
    assert_int_equal(t.requests[1].arrival_ns, INT64_C(1800000000001));
    kvl_trace_free(&t);
    read_text(AZURE "2024-02-28 23:59:59,1,1\n2024-03-01 00:00:00,1,1\n", &t); /* a leap year */
    assert_int_equal(t.requests[1].arrival_ns, INT64_C(86401000000000));
    kvl_trace_free(&t);
}

static void burstgpt(void **state) {
    (void)state;
    kvl_trace t;
    read_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
              "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,230,1317,API log\n",
              &t);
    assert_string_equal(t.format, "burstgpt");
    assert_int_equal(t.requests[1].arrival_ns, INT64_C(40500000000));
    assert_int_equal(t.requests[1].prompt, 1087);
    assert_int_equal(t.requests[1].output, 230);
    kvl_trace_free(&t);
}

static void mooncake(void **state) {
    (void)state;
    kvl_trace t;
    read_text("{\"timestamp\": 27000, \"input_length\": 1024, \"output_length\": 52, "
              "\"hash_ids\": [46, 47]}\n"
              "{\"timestamp\": 30000, \"input_length\": 1025, \"output_length\": 5, "
              "\"hash_ids\": [46, 47, 2354]}\n"
              "{\"timestamp\": 30000, \"input_length\": 7, \"output_length\": 5}\n\n",
              &t);
    assert_string_equal(t.format, "mooncake");
    assert_int_equal(t.block_tokens, 512);
    assert_int_equal(t.n_blocks, 5);
    assert_int_equal(t.requests[1].arrival_ns, 3000000000);
    assert_int_equal(t.requests[1].first_block, 2);
    assert_int_equal(t.requests[1].n_blocks, 3);
    assert_int_equal(t.blocks[4], 2354);
    assert_int_equal(t.requests[2].n_blocks, 0);
    kvl_trace_free(&t);
}

static void own(void **state) {
    (void)state;
    kvl_trace t;
    read_text("\xEF\xBB\xBFoutput,class,arrival_s,prompt\n8,batch,0.000000001,16\n"
              "9,interactive,2147483647,17\n",
              &t);
    assert_string_equal(t.format, "kvlab");
    assert_int_equal(t.requests[0].class, KVL_CLASS_BATCH);
    assert_int_equal(t.requests[1].class, KVL_CLASS_INTERACTIVE);
    assert_int_equal(t.requests[1].prompt, 17);
    assert_int_equal(t.requests[1].arrival_ns, INT64_C(2147483647) * 1000000000 - 1);
    kvl_trace_free(&t);
}

/* Parsed, sorted, counted; requests of one moment stay in the file's order. */
static void out_of_order(void **state) {
    (void)state;
    kvl_trace t;
    read_text(OURS "9,1,1\n3,2,1\n9,3,1\n3,4,1\n1,5,1\n", &t);
    const int prompts[] = {5, 2, 4, 1, 3};
    for (int i = 0; i < 5; i++) assert_int_equal(t.requests[i].prompt, prompts[i]);
    assert_int_equal(t.n_out_of_order, 3);
    assert_int_equal(t.requests[0].arrival_ns, 0);
    assert_int_equal(t.requests[4].arrival_ns, 8000000000);
    kvl_trace_free(&t);
}

static void zero_tokens(void **state) {
    (void)state;
    kvl_trace t;
    const kvl_trace_options skip = {.skip_zero = true}, two = {.max_requests = 2};
    refuse(OURS "0,5,5\n1,0,5\n", ":3:3: a request with 0 prompt tokens (--skip-zero");
    refuse(OURS "0,5,0\n", ":2:5: a request with 0 output tokens");
    assert_ok(kvl_trace_read(file_of(OURS "0,5,5\n1,0,5\n2,5,0\n3,1,1\n", 48), &skip, &t));
    assert_int_equal(t.n, 2);
    assert_int_equal(t.n_skipped, 2);
    kvl_trace_free(&t);
    assert_refused(kvl_trace_read(file_of(OURS "1,0,5\n", 30), &skip, &t), KVL_ERR_INPUT,
                   "no request that has tokens");
    /* The lines after the first ones are looked at all the same. */
    const char *good = OURS "0,1,1\n1,1,1\n2,1,1\n", *bad = OURS "0,1,1\n1,1,1\n2,1,x\n";
    assert_ok(kvl_trace_read(file_of(good, strlen(good)), &two, &t));
    assert_int_equal(t.n, 2);
    assert_int_equal(t.n_beyond, 1);
    kvl_trace_free(&t);
    assert_refused(kvl_trace_read(file_of(bad, strlen(bad)), &two, &t), KVL_ERR_INPUT, ":4:5: ");
}

static void bad_csv(void **state) {
    (void)state;
    refuse("", ":1:1: empty");
    refuse("\n" OURS "0,1,1\n", ":1:1: empty");
    refuse("0,1,1\n", ":1:1: not a trace: a header is needed");
    refuse("timestamp,contexttokens,generatedtokens\n", ":1:1: not a trace");
    refuse(OURS, ": no request");
    refuse(OURS "0,1,1\n\n1,1,1\n", ":3:1: an empty line");
    refuse(OURS "0,1\n", ":2:3: 2 fields, the header has 3");
    refuse(OURS "0,1,1,1\n", ":2:7: 4 fields, the header has 3");
    refuse(OURS "0,1,1\n1,1,", ":3:5: output is empty"); /* cut in the middle of a line */
    refuse(OURS "0,,1\n", ":2:3: prompt is empty");
    refuse(OURS "0,-1,1\n", ":2:3: prompt '-1'");
    refuse(OURS "0,1.0,1\n", ":2:4: prompt '1.0'");
    refuse(OURS "0, 1,1\n", ":2:3: prompt ' 1'");
    refuse(OURS "0,1e3,1\n", ":2:4: prompt '1e3'");
    refuse(OURS "0,2147483648,1\n", ":2:3: prompt '2147483648': at most 2147483647");
    refuse(OURS "0,99999999999999999999999999,1\n", ":2:3: prompt '9999");
    refuse(OURS "0,2147483647,1\n", ":2:14: prompt of 2147483647 and output of 1 tokens");
    refuse(OURS "0,\"1\",1\n", ":2:3: a quote");
    refuse_bytes(OURS "0,1\0,1\n", strlen(OURS) + 7, ":2:4: a NUL byte");
    refuse("arrival_s,prompt,output,class\n0,1,1,urgent\n", ":2:7: class 'urgent'");
    refuse("Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,472,-\n", ":2:15: Response");
}

static void bad_times(void **state) {
    (void)state;
    refuse(OURS "x,1,1\n", ":2:1: arrival_s 'x': not a number of seconds");
    refuse(OURS ",1,1\n", ":2:1: arrival_s ''");
    refuse(OURS "-1,1,1\n", ":2:1: arrival_s '-1'");
    refuse(OURS "1e3,1,1\n", ":2:2: arrival_s '1e3'");
    refuse(OURS "1.,1,1\n", ":2:3: arrival_s '1.': a digit must follow");
    refuse(OURS "2147483648,1,1\n", ":2:10: arrival_s '2147483648': more than 2147483647 seconds");
    refuse(OURS "99999999999999999999,1,1\n",
           ":2:10: arrival_s '99999999999999999999': more than 2147483647 seconds");
    refuse(OURS "0.0000000001,1,1\n", ":2:12: arrival_s '0.0000000001': more than nine decimals");
    refuse(AZURE "2023-11-16,1,1\n", ":2:11: TIMESTAMP");
    refuse(AZURE "2023-13-16 18:15:46,1,1\n", ":2:6: TIMESTAMP");
    refuse(AZURE "2023-02-29 18:15:46,1,1\n", ":2:9: TIMESTAMP");
    refuse(AZURE "2023-11-16 24:15:46,1,1\n", ":2:12: TIMESTAMP");
    refuse(AZURE "2023-11-16 18:15:46.68Q,1,1\n", ":2:23: TIMESTAMP");
    refuse(AZURE "2023-11-16 18:15:46+25:00,1,1\n", ":2:21: TIMESTAMP");
    refuse(AZURE "0000-11-16 18:15:46,1,1\n", ":2:1: TIMESTAMP");
    refuse(AZURE "1970-01-01 00:00:00,1,1\n2200-01-01 00:00:00,1,1\n",
           ": first and last request lie more than 73 years apart");
}

static void bad_jsonl(void **state) {
    (void)state;
    refuse("{\"timestamp\": 1, \"input_length\": 5\n", ":1:");
    refuse("{\"timestamp\": 1, \"input_length\": 5}\n", ":1:1: 'output_length' is missing");
    refuse("{\"timestamp\": 1.5, \"input_length\": 5, \"output_length\": 1}\n",
           ":1:2: 'timestamp' is not a whole number");
    refuse("{\"timestamp\": 1, \"input_length\": -5, \"output_length\": 1}\n",
           ":1:18: 'input_length' is -5");
    refuse("{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 99999999999}\n",
           ":1:37: 'output_length' is 99999999999: 0 to 2147483647");
    refuse("{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 0}\n",
           ":1:37: a request with 0 output");
    refuse("{\"timestamp\": 1, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [1]}\n",
           ":1:59: 'hash_ids' has 1 ids: a prompt of 513 tokens has 2 blocks of 512");
    refuse("{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [-1]}\n",
           ":1:57: 'hash_ids'[0] is not a whole number from 0");
    refuse("{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": 3}\n",
           ":1:57: 'hash_ids' is not an array");
    refuse("{\"timestamp\": 1, \"timestamp\": 2, \"input_length\": 5, \"output_length\": 1}\n",
           ":1:");
    refuse("{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1}\n[1]\n",
           ":2:1: not a JSON object");
    refuse("{\"timestamp\": 1e999, \"input_length\": 5, \"output_length\": 1}\n", ":1:");
    kvl_trace t;
    assert_refused(kvl_trace_read("/tmp", &all, &t), KVL_ERR_IO, "/tmp");
    assert_refused(kvl_trace_read("/nonexistent.csv", &all, &t), KVL_ERR_IO, "/nonexistent.csv");
    char deep[200001];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    refuse_bytes(deep, sizeof deep, ":1:");
}

static void canonical(const char *text, const char *wanted) {
    char out[KVL_AXIS_TEXT_BYTES];
    if (!wanted) {
        assert_refused(kvl_arrival_canonical(text, strlen(text), out), KVL_ERR_INPUT, "recorded");
        return;
    }
    assert_ok(kvl_arrival_canonical(text, strlen(text), out));
    assert_string_equal(out, wanted);
    assert_ok(kvl_arrival_canonical(out, strlen(out), out)); /* reads its own spelling */
}

static void laws(void **state) {
    (void)state;
    canonical("recorded", "recorded");
    canonical("together", "together");
    canonical("x2.50", "x2.5");
    canonical("x0.000001", "x0.000001");
    canonical("x1000000", "x1000000");
    canonical("poisson:010", "poisson:10");
    canonical("gamma:4:2.0", "gamma:4:2");
    const char *const bad[] = {"",        "x",         "x0",      "x-1",     "x1e3",
                               "poisson", "poisson:",  "xx",      "gamma:1", "gamma:1:",
                               "record",  "recorded ", "x2000000"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) canonical(bad[i], NULL);
}

enum { N_DRAWS = 20000 };

/* Mean and coefficient of variation of the gaps. */
static void gaps_of(const char *law, uint64_t seed, double *mean_s, double *cv, int64_t *last) {
    kvl_trace_request *requests = calloc(N_DRAWS, sizeof *requests);
    assert_non_null(requests);
    kvl_trace t = {.requests = requests, .n = N_DRAWS};
    double sum = 0, squares = 0;
    assert_ok(kvl_arrivals_apply(law, seed, &t));
    assert_int_equal(requests[0].arrival_ns, 0);
    for (int i = 1; i < N_DRAWS; i++) {
        double gap = (double)(requests[i].arrival_ns - requests[i - 1].arrival_ns) * 1e-9;
        assert_true(gap >= 0);
        sum += gap;
        squares += gap * gap;
    }
    *mean_s = sum / (N_DRAWS - 1);
    *cv = sqrt(squares / (N_DRAWS - 1) - *mean_s * *mean_s) / *mean_s;
    *last = requests[N_DRAWS - 1].arrival_ns;
    free(requests);
}

/* 20,000 draws: five standard errors of the mean are 3.5 % x CV; of the CV, generously 10 %. */
static void random_arrivals(void **state) {
    (void)state;
    double mean, cv;
    int64_t last, again, other;
    gaps_of("poisson:4", 1, &mean, &cv, &last);
    assert_true(fabs(mean / 0.25 - 1) < 0.035 && fabs(cv - 1) < 0.05);
    gaps_of("poisson:4", 1, &mean, &cv, &again);
    gaps_of("poisson:4", 2, &mean, &cv, &other);
    assert_int_equal(last, again);
    assert_int_not_equal(last, other);
    gaps_of("gamma:4:3", 1, &mean, &cv, &last);
    assert_true(fabs(mean / 0.25 - 1) < 0.105 && fabs(cv / 3 - 1) < 0.1);
    gaps_of("gamma:10:0.5", 1, &mean, &cv, &last);
    assert_true(fabs(mean / 0.1 - 1) < 0.018 && fabs(cv / 0.5 - 1) < 0.1);
}

static void scaled_arrivals(void **state) {
    (void)state;
    kvl_trace_request r[2] = {{.arrival_ns = 0}, {.arrival_ns = 9000000000}};
    kvl_trace t = {.requests = r, .n = 2};
    assert_ok(kvl_arrivals_apply("x3", 1, &t));
    assert_int_equal(r[1].arrival_ns, 3000000000);
    assert_ok(kvl_arrivals_apply("recorded", 1, &t));
    assert_int_equal(r[1].arrival_ns, 3000000000);
    assert_ok(kvl_arrivals_apply("together", 1, &t));
    assert_int_equal(r[1].arrival_ns, 0);
    r[1].arrival_ns = INT64_C(2000000000000000000);
    assert_refused(kvl_arrivals_apply("x0.5", 1, &t), KVL_ERR_INPUT, "after 73 years");
}

/* Every prefix of a valid file is read or refused, with a place in it; nothing is lost in silence:
 * the requests are those whose lines are whole. */
static void prefixes(void **state) {
    (void)state;
    const char text[] =
        AZURE "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.99,396,109\n";
    for (size_t n = 0; n < sizeof text; n++) {
        kvl_trace t;
        int lines = 0;
        for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
        if (kvl_trace_read(file_of(text, n), &all, &t) != KVL_OK) continue;
        assert_in_range(t.n, lines - 1, lines);
        kvl_trace_free(&t);
    }
}

static int clean(void **state) {
    (void)state;
    unlink(path);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(azure),          cmocka_unit_test(burstgpt),
        cmocka_unit_test(mooncake),       cmocka_unit_test(own),
        cmocka_unit_test(out_of_order),   cmocka_unit_test(zero_tokens),
        cmocka_unit_test(bad_csv),        cmocka_unit_test(bad_times),
        cmocka_unit_test(bad_jsonl),      cmocka_unit_test(laws),
        cmocka_unit_test(prefixes),       cmocka_unit_test(random_arrivals),
        cmocka_unit_test(scaled_arrivals)};
    return cmocka_run_group_tests(tests, NULL, clean);
}
