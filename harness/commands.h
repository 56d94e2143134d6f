/* The commands, one source file each; harness/main.c lists them. */
#ifndef KVL_HARNESS_COMMANDS_H
#define KVL_HARNESS_COMMANDS_H

#include "harness/options.h"

extern const kvl_command kvl_command_info;            /* cmd_info.c */
extern const kvl_command kvl_command_generate;        /* cmd_generate.c */
extern const kvl_command kvl_command_tokenize;        /* cmd_tokenize.c */
extern const kvl_command kvl_command_verify;          /* cmd_verify.c */
extern const kvl_command kvl_command_bench_decode;    /* cmd_bench_decode.c */
extern const kvl_command kvl_command_bench_attention; /* cmd_bench_attention.c */
extern const kvl_command kvl_command_bench_matmul;    /* cmd_bench_matmul.c */
extern const kvl_command kvl_command_bench_quality;   /* cmd_bench_quality.c */
extern const kvl_command kvl_command_bench_replay;    /* cmd_bench_replay.c */
extern const kvl_command kvl_command_bench_serve;     /* cmd_bench_serve.c */
extern const kvl_command kvl_command_bench_allocator; /* cmd_bench_allocator.c */
extern const kvl_command kvl_command_bench_soak;
extern const kvl_command kvl_command_plot;     /* cmd_plot.c */
extern const kvl_command kvl_command_export;   /* cmd_export.c */
extern const kvl_command kvl_command_run;      /* cmd_run.c */
extern const kvl_command kvl_command_compare;  /* cmd_compare.c */
extern const kvl_command kvl_command_quantize; /* cmd_quantize.c */
extern const kvl_command kvl_command_help;     /* cmd_help.c */
/* Internal: one trial in a child process, started by the sweep engine; not listed in help. */
extern const kvl_command kvl_command_trial; /* cmd_trial.c */

#endif
