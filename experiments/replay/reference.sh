#!/bin/sh
# The whole public traces against the figures worked out without kvlab by tests/harness/traces/slice_figures.py:
# waste by page size, slabs by reservation, and prefix hits of an endless cache. Usage:
#   reference.sh azure_llm_2023_conv.csv mooncake_conversation.jsonl
# (github.com/Azure/AzurePublicDataset, github.com/kvcache-ai/Mooncake). About 15 s, most of it the script.
azure=$(realpath "${1:?the Azure conversation trace of 2023}")
mooncake=$(realpath "${2:?the Mooncake conversation trace}")
. "$(dirname "$0")/../common.sh"
cp -f "$azure" azure_llm_2023_conv.csv; cp -f "$mooncake" mooncake_conversation.jsonl
azure=azure_llm_2023_conv.csv mooncake=mooncake_conversation.jsonl
rows=reference.jsonl
python3 "$root/tests/harness/traces/slice_figures.py" "$azure" "$mooncake" > expected.json
"$KVLAB" bench replay --trace "$azure" --page-tokens 16,64,128,256,1024,2048 --series series --out $rows
"$KVLAB" bench replay --trace "$azure" --allocator contiguous --reserve max,pow2,oracle --series series --out $rows
"$KVLAB" bench replay --trace "$mooncake" --page-tokens 512 --share on --series series --out $rows
"$KVLAB" plot $rows --x page_tokens --y tail_waste_pct --where allocator=paged,share=off --kind line --logx \
    --title "Slots handed out that hold no token, pages, Azure 2023 conversation"
"$KVLAB" plot $rows --kind ledger --where allocator=contiguous --name reference-slabs
"$KVLAB" export $rows --csv --columns trace,allocator,reserve,page_tokens,share,tail_waste_pct,tail_waste_end_pct,slots_live_pct,prefix_asked_pages,prefix_hit_pages,prefix_hit_pct,wall_s > reference-figures.csv
python3 - <<'P'
import csv, json
wanted, worst = json.load(open("expected.json")), 0
for row in csv.DictReader(open("reference-figures.csv")):
    if row["share"] == "on":
        assert int(row["prefix_asked_pages"]) == wanted["prefix"]["blocks"], row
        pairs = [("prefix_hit_pct", wanted["prefix"]["hit_pct"])]
    elif row["allocator"] == "paged":
        pairs = wanted["paged"][row["page_tokens"]].items()
    else:
        pairs = wanted["slab"][row["reserve"]].items()
    for name, value in pairs:
        off = abs(float(row[name]) - value)
        worst = max(worst, off)
        assert off < 1e-6, (name, row, value)
print(f"all figures as worked out without kvlab; largest difference {worst:.1e} percentage points")
P
