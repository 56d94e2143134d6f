#!/bin/sh
# Queue limits and clients that try again: bursts of requests against a server that holds 16 at once. Without a limit
# all wait; with one, many are turned away (429), and what then happens depends on how clients come back: all after the
# same pause (a herd), with exponential backoff, or with jitter. Virtual time, costs as in limits.sh. Claims: a limit
# shortens the waits in the queue; jitter causes fewer 429s than a fixed pause as long as its first on average. About 3 s.
. "$(dirname "$0")/../common.sh"
COST=${COST:-$root/results/published/2026-11-zen5-2core-serve/cost.jsonl}
cp -f "$COST" cost.jsonl
cp -f "$root/tests/harness/traces/azure_llm_2023_conv_400.csv" azure.csv
serve() { "$KVLAB" bench serve --trace azure.csv --cost cost.jsonl --length-scale 0.25 --pool-tokens 32768 --max-seqs 16 "$@"; }
serve --arrival gamma:8:4 --queue-limit 0,4,8,16,32,64,128 --out limit.jsonl
serve --arrival together --queue-limit 16 --retry fixed:2:100,backoff:2:100,jitter:4:100 --series series --out herd.jsonl
"$KVLAB" plot limit.jsonl --x queue_limit --y ttft_p99_ms
"$KVLAB" plot limit.jsonl --x queue_limit --y gave_up
"$KVLAB" plot herd.jsonl --kind ledger
"$KVLAB" plot herd.jsonl --x retry --y turned_away --kind bars
"$KVLAB" plot herd.jsonl --x retry --y ttft_p99_ms --kind bars
python3 - <<'P'
import json
limit = {r["axes"]["queue_limit"]: r["metrics"] for r in map(json.loads, open("limit.jsonl"))}
herd = {r["axes"]["retry"].split(":")[0]: r["metrics"] for r in map(json.loads, open("herd.jsonl"))}
for n in sorted(limit):
    print("limit", n, "p99 TTFT %.0f ms, gave up %d, goodput %.2f/s" % tuple(limit[n][k] for k in ("ttft_p99_ms", "gave_up", "goodput_req_s")))
for n in herd:
    print(n, "429s %d, finished %d, gave up %d, %.1f s, p99 TTFT %.0f ms" % tuple(herd[n][k] for k in ("turned_away", "finished", "gave_up", "virtual_s", "ttft_p99_ms")))
assert limit[4]["ttft_p99_ms"] < limit[0]["ttft_p99_ms"]
assert herd["jitter"]["turned_away"] < herd["fixed"]["turned_away"]
P
