#!/bin/sh
# What three limits of a server do: --max-model-len (slabs are cut for it, pages are not), --memory-utilization and
# --max-batched-tokens. 400 requests of the Azure trace in virtual time; the time of a step is fitted to measured rows
# (COST=F.jsonl, else the published ones). Claims: a longer max-model-len costs slabs throughput and pages nothing; more
# memory means fewer preemptions; larger steps give a shorter p99 TTFT and a longer p99 time between tokens. About 5 s.
. "$(dirname "$0")/../common.sh"
COST=${COST:-$root/results/published/2026-11-zen5-2core-serve/cost.jsonl}
cp -f "$COST" cost.jsonl
cp -f "$root/tests/harness/traces/azure_llm_2023_conv_400.csv" azure.csv
serve() { "$KVLAB" bench serve --trace azure.csv --cost cost.jsonl "$@"; }
serve --arrival together --pool-tokens 65536 --max-model-len 8192-65536*2 --allocator contiguous,paged --out model-len.jsonl
serve --arrival poisson:2 --memory-mib 1024 --memory-utilization 35,40,50,60,70,80,90 --out memory.jsonl
serve --arrival poisson:1 --pool-tokens 65536 --max-seqs 32 --max-batched-tokens 32-4096*2 --out batched.jsonl
"$KVLAB" plot model-len.jsonl --x max_model_len --y output_tok_s --by allocator
"$KVLAB" plot memory.jsonl --x memory_utilization --y output_tok_s
"$KVLAB" plot memory.jsonl --x memory_utilization --y preempted
"$KVLAB" plot batched.jsonl --x max_batched_tokens --y ttft_p99_ms
"$KVLAB" plot batched.jsonl --x max_batched_tokens --y itl_p99_ms
python3 - <<'P'
import json
def rows(name):
    return [(r["axes"], r["metrics"]) for r in map(json.loads, open(name)) if r["outcome"] == "ok"]
slab, pages, memory, batched = {}, {}, {}, {}
for a, m in rows("model-len.jsonl"):
    (pages if a["allocator"] == "paged" else slab)[a["max_model_len"]] = m["output_tok_s"]
for a, m in rows("memory.jsonl"):
    memory[a["memory_utilization"]] = m["preempted"]
for a, m in rows("batched.jsonl"):
    batched[a["max_batched_tokens"]] = (m["ttft_p99_ms"], m["itl_p99_ms"])
print("slabs", slab, "pages", pages)
print("preemptions by memory", memory)
print("p99 TTFT and ITL by step", batched)
assert slab[65536] < 0.7 * slab[8192] and abs(pages[65536] / pages[8192] - 1) < 0.01
assert memory[90] < memory[min(memory)]
assert batched[4096][0] < batched[32][0] and batched[4096][1] > batched[32][1]
P
