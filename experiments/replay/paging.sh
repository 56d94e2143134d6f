#!/bin/sh
# Paging against fragmentation: an output-heavy mix through one pool of 12 GiB of OPT-13B's K and V (15,707
# slots), as in figure 2 of the PagedAttention paper (Kwon et al. 2023): Orca's reservation of the longest
# request, of a power of two, of the exact need (buddy allocation), a heap of exact slabs, a growing tensor,
# and pages. Claim: live slots Max < Pow2 < Oracle < paged. About 5 s.
. "$(dirname "$0")/../common.sh"
python3 "$root/experiments/replay/make_mix.py" > mix.csv
rows=paging.jsonl
run() { "$KVLAB" bench replay --trace mix.csv --arrival poisson:10 --max-model-len 2048 --pool-tokens 15707 \
    --series series --out $rows "$@"; }
run --allocator buddy,paged --reserve max,pow2,oracle
run --allocator growing
run --allocator contiguous --reserve oracle
"$KVLAB" plot $rows --kind waste --name paging
"$KVLAB" plot $rows --kind ledger --name paging
"$KVLAB" plot $rows --kind map --where allocator=paged --name paging-pages
"$KVLAB" plot $rows --kind map --where allocator=buddy,reserve=oracle --name paging-buddy
"$KVLAB" export $rows --csv --columns allocator,reserve,full_live_pct,largest_batch,preempted,virtual_s > paging-figures.csv
awk -F, 'NR > 1 { live[$1 "/" $2] = $3 } END {
    a = live["buddy/max"]; b = live["buddy/pow2"]; c = live["buddy/oracle"]; d = live["paged/none"]
    printf "live slots: max %.1f, pow2 %.1f, oracle %.1f, paged %.1f %%\n", a, b, c, d
    exit !(a < b && b < c && c < d) }' paging-figures.csv
