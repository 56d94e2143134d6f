#!/usr/bin/env python3
"""Stands in for kvlab in test_peers.c: one row a call, throughput 100, nf4 refused."""
import json
import sys

arguments = sys.argv[1:]
if "generate" in arguments:
    print("[5, 6, 7]")
    sys.exit(0)
if "nf4" in arguments:
    print("kvlab: --weights: unknown weights 'nf4'", file=sys.stderr)
    sys.exit(2)
print(json.dumps({
    "schema": 1, "run": "inner", "trial": "00000000000000ff", "round": 0, "workload": "decode",
    "axes": {"system": "kvlab", "model": "m", "attention": "flash"}, "effective": {"isa": "avx2"},
    "outcome": "ok", "reason": "",
    "metrics": {"decode_tok_s": 100.0, "prefill_tok_s": 100.0, "time_us": 100.0},
    "samples": {}, "ceilings": {"threads": 1, "f32_flops_per_s": 1e11}, "env": {"host": "h", "llc_bytes": 1, "build": "b"},
    "seed": 1, "repro": "kvlab bench decode"}))
