#!/usr/bin/env python3
"""Figures of allocators on a trace by their definition: each request alone, step by step.

At step s = 1..G of a request with context C the sequence holds C + s tokens and its allocator A slots;
waste is 1 - sum(tokens) / sum(A) over all requests and steps. Usage: slice_figures.py [AZURE MOONCAKE]"""
import csv
import json
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
azure_path, mooncake_path = sys.argv[1:] or (
    os.path.join(here, "azure_llm_2023_conv_400.csv"),
    os.path.join(here, "mooncake_conversation_160.jsonl"))

with open(azure_path, newline="") as f:
    requests = [(int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in csv.DictReader(f)]
longest = max(c + g for c, g in requests)


def power_of_two(n):
    p = 1
    while p < n:
        p *= 2
    return p


def walk(slots_at):
    """Tokens and slots summed over steps, and at the last step of each request."""
    tokens = slots = end_tokens = end_slots = 0
    for c, g in requests:
        for s in range(1, g + 1):
            tokens += c + s
            slots += slots_at(c, g, s)
        end_tokens += c + g
        end_slots += slots_at(c, g, g)
    return tokens, slots, end_tokens, end_slots


def figures(slots_at):
    tokens, slots, end_tokens, end_slots = walk(slots_at)
    return {"tail_waste_pct": 100 * (1 - tokens / slots), "slots_live_pct": 100 * tokens / slots,
            "tail_waste_end_pct": 100 * (1 - end_tokens / end_slots)}


out = {"requests": len(requests), "longest": longest, "paged": {}, "slab": {}}
for page in (16, 64, 128, 256, 1024, 2048):
    out["paged"][str(page)] = figures(lambda c, g, s: (c + s + page - 1) // page * page)
out["slab"]["max"] = figures(lambda c, g, s: longest)
out["slab"]["pow2"] = figures(lambda c, g, s: min(c + power_of_two(g), longest))
out["slab"]["oracle"] = figures(lambda c, g, s: c + g)

seen, blocks = set(), 0
with open(mooncake_path) as f:
    for line in f:
        ids = json.loads(line)["hash_ids"]
        blocks += len(ids)
        seen.update(ids)
out["prefix"] = {"blocks": blocks, "distinct": len(seen), "hit_pct": 100 * (1 - len(seen) / blocks)}
print(json.dumps(out, indent=1))
