#!/bin/sh
# Free memory and still out of memory: requests wait although slots are free, since no hole is long enough.
# The same bursts through a heap of exact slabs, buddy chunks and pages, pool of 16,384 slots. Claim: while
# requests wait, a share of the pool is free and cannot serve; with pages nearly none is. About 3 s.
. "$(dirname "$0")/../common.sh"
python3 "$root/experiments/replay/make_mix.py" --requests 1500 --prompt 400 --output 200 > mix.csv
rows=free.jsonl
"$KVLAB" bench replay --trace mix.csv --arrival gamma:4:3 --pool-tokens 16384 --series series --out $rows \
    --allocator contiguous,buddy,paged --reserve oracle
"$KVLAB" plot $rows --kind ledger --name free
"$KVLAB" plot $rows --kind waste --name free
"$KVLAB" plot $rows --kind map --where allocator=contiguous --name free-slabs
"$KVLAB" export $rows --csv --columns allocator,reserve,full_external_pct,full_live_pct,full_steps_pct,virtual_s > free-figures.csv
awk -F, 'NR > 1 { e[$1] = $3 } END {
    printf "free and of no use while requests wait: heap %.1f, buddy %.1f, pages %.1f %% of the pool\n", e["contiguous"], e["buddy"], e["paged"]
    exit !(e["contiguous"] > 2 * e["paged"] && e["buddy"] > 2 * e["paged"]) }' free-figures.csv
