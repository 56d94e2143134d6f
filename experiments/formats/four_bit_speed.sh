#!/bin/sh
# Does 4 bit make it faster? Decode of a model of Llama-3.2-1B's shapes (seeded weights, seeded cache) with bf16 and
# nf4 weights, by batch and context. Claim: at least 1.5 times as fast at batch 1 and 512 tokens; less at batch 16,
# where weights are read once for all sequences, and less at 4,096 tokens, where K and V are read besides. About 3
# minutes, 6 GB of memory.
. "$(dirname "$0")/../common.sh"
rows=four-bit.jsonl
"$KVLAB" bench decode --model synthetic:Llama-3.2-1B --weights bf16,nf4 --batch 1,4,16 --context 512,4096 --output 16 --out $rows
"$KVLAB" plot $rows --x batch --y decode_tok_s --by weights,context --name four-bit --title "Does 4 bit make it faster? Llama-3.2-1B shapes"
"$KVLAB" export $rows --csv --columns weights,batch,context,decode_tok_s,attention_share,matmul_share > four-bit-figures.csv
awk -F, 'NR > 1 { speed[$1 "/" $2 "/" $3] = $4 } END {
    for (c = 512; c <= 4096; c *= 8) for (b = 1; b <= 16; b *= 4) {
        ratio[b "/" c] = speed["nf4/" b "/" c] / speed["bf16/" b "/" c]
        printf "batch %2d, %4d tokens: nf4 %.2f times as fast\n", b, c, ratio[b "/" c] }
    exit !(ratio["1/512"] >= 1.5 && ratio["16/512"] < ratio["1/512"] && ratio["1/4096"] < ratio["1/512"]) }' four-bit-figures.csv
