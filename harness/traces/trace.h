/* A trace: requests with arrival times and lengths, read from public formats. No text, no model.
 *
 *   azure     CSV  TIMESTAMP,ContextTokens,GeneratedTokens        (Azure LLM inference 2023, 2024)
 *   burstgpt  CSV  Timestamp,...,Request tokens,Response tokens,...            (BurstGPT)
 *   mooncake  JSONL {"timestamp", "input_length", "output_length", "hash_ids"} (Mooncake, FAST '25)
 *   kvlab     CSV  arrival_s,prompt,output[,class]                              (our own)
 *
 * The format is told by the first line; columns may stand in any order. A line that cannot be
 * understood is refused as FILE:LINE:COLUMN, never skipped or shortened; what a caller lets be left
 * out (requests without tokens) is counted.
 *
 * Law: n_lines = n + n_skipped + n_beyond; arrivals rise, the first is 0.
 */
#ifndef KVL_HARNESS_TRACE_H
#define KVL_HARNESS_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef enum kvl_request_class { KVL_CLASS_INTERACTIVE = 0, KVL_CLASS_BATCH } kvl_request_class;

typedef struct kvl_trace_request {
    int64_t arrival_ns;     /* since the first request */
    int32_t prompt, output; /* tokens, each >= 1; their sum fits int32 */
    int32_t n_blocks;       /* of the prompt, with a known content; 0: nothing is shared */
    kvl_request_class class;
    int64_t first_block; /* in trace.blocks */
} kvl_trace_request;

typedef struct kvl_trace {
    const char *format;          /* "azure" */
    kvl_trace_request *requests; /* [n], in order of arrival */
    int64_t n;
    uint64_t *blocks; /* [n_blocks] content of prompts: equal ids are equal prefixes */
    int64_t n_blocks;
    int32_t block_tokens;   /* tokens of a block, the last of a prompt may be shorter; 0: none */
    int64_t n_skipped;      /* without tokens, left out by options */
    int64_t n_beyond;       /* after options.max_requests */
    int64_t n_out_of_order; /* lines that arrived before the line above them; sorted, stably */
    int32_t longest;        /* prompt + output */
    int32_t longest_output; /* of a request */
    int64_t sum_prompt, sum_output; /* tokens of all requests */
    char digest[17];                /* xxhash of the file's bytes */
} kvl_trace;

typedef struct kvl_trace_options {
    bool skip_zero;       /* leave requests without prompt or output out instead of refusing */
    int64_t max_requests; /* the first ones, by line; 0 = all (every line is checked still) */
} kvl_trace_options;

/* Reads a regular file. KVL_ERR_INPUT "FILE:LINE:COLUMN: what, value and limit". */
kvl_status kvl_trace_read(const char *path, const kvl_trace_options *options, kvl_trace *out);
void kvl_trace_free(kvl_trace *trace);

#endif
