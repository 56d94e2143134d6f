#!/bin/sh
# What a batch costs and gives: 1 to 64 sequences at once under full load, in a static batch, with prompts first and
# with decodes first. Virtual time, costs as in limits.sh. Claims: tokens a second and time per token both rise with the
# batch; continuous batching gives more than a static batch of the same size. About 5 s.
. "$(dirname "$0")/../common.sh"
COST=${COST:-$root/results/published/2026-11-zen5-2core-serve/cost.jsonl}
cp -f "$COST" cost.jsonl
cp -f "$root/tests/harness/traces/azure_llm_2023_conv_400.csv" azure.csv
"$KVLAB" bench serve --trace azure.csv --cost cost.jsonl --arrival together --pool-tokens 131072 --max-seqs 1-64*2 \
    --schedule static,prefill_first,decode_first --out batching.jsonl
"$KVLAB" plot batching.jsonl --x max_seqs --y output_tok_s --by schedule
"$KVLAB" plot batching.jsonl --x max_seqs --y tpot_p50_ms --by schedule
"$KVLAB" plot batching.jsonl --x max_seqs --y itl_p99_ms --by schedule
python3 - <<'P'
import json
at = {(r["axes"]["schedule"], r["axes"]["max_seqs"]): r["metrics"] for r in map(json.loads, open("batching.jsonl"))}
for key in sorted(at):
    print(*key, "%.1f tok/s, TPOT p50 %.1f ms, ITL p99 %.1f ms" % tuple(at[key][n] for n in ("output_tok_s", "tpot_p50_ms", "itl_p99_ms")))
first = "decode_first"
assert at[first, 64]["output_tok_s"] > 1.5 * at[first, 1]["output_tok_s"]
assert at[first, 64]["tpot_p50_ms"] > 2 * at[first, 1]["tpot_p50_ms"]
for n in (4, 8, 16, 32, 64):
    assert at[first, n]["output_tok_s"] > at["static", n]["output_tok_s"], n
P
