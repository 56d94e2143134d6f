#!/bin/sh
# Quality against bytes: every KV format with every weight format, on one plane. KL divergence against the float32
# run of the same model over 512 tokens of the text in the repository, activations in float32; memory is that of
# the weights and of a KV cache of 8,192 tokens, scales included. MODEL=path picks another model. Claim: of eight
# bits, int8 with a scale a token is nearer to float32 than e4m3, which is nearer than e5m2. About 2 minutes.
. "$(dirname "$0")/../common.sh"
MODEL=${MODEL:-$root/models/SmolLM2-135M-Instruct.Q4_1.gguf}
rows=quality.jsonl
"$KVLAB" bench quality --model "$MODEL" --tokens 512 --out $rows \
    --kv-dtype f32,f16,bf16,fp8_e4m3,fp8_e5m2,int8 --weights f32,f16,bf16,nf4,nf4_dq,fp4
"$KVLAB" export $rows --csv --columns weights,kv_dtype,weight_bytes,kv_bytes_per_token,mean_kld,ppl,same_top1 > quality-figures.csv
awk -F, -v OFS=, 'NR == 1 { print "weights", "kv_dtype", "mib", "mean_kld"; next }
    $5 > 0 { print $1, $2, ($3 + 8192 * $4) / 1048576, $5 }' quality-figures.csv > quality-plane.csv
source=$("$KVLAB" export $rows --csv --columns effective.source_weights | sed -n 2p)
gnuplot -e "base='quality-plane'; x_label='weights and 8,192 tokens of K and V, MiB'; \
y_label='mean KL divergence from float32, nats'; title='Quality against bytes, $(basename "$MODEL" .gguf) (the file holds $source)'" "$root/plots/plane.gp"
awk -F, '$1 == "f32" { kld[$2] = $5 } END {
    printf "mean KL divergence, weights f32: int8 %.4f, e4m3 %.4f, e5m2 %.4f\n", kld["int8"], kld["fp8_e4m3"], kld["fp8_e5m2"]
    exit !(kld["int8"] < kld["fp8_e4m3"] && kld["fp8_e4m3"] < kld["fp8_e5m2"]) }' quality-figures.csv
