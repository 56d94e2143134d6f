#!/bin/sh
# How near to the machine's limits are the kernels? Attention alone (decode in every layout and 8-bit format, causal
# prefill, flash beside eager), linear layers alone, whole decode steps by context, and a long context doubled from
# 1,024 to 65,536 tokens: each beside the read bandwidth and the multiply-add peak of the same run.
#   limits.sh MODEL.gguf      about 12 minutes and 5 GB of memory, on a machine that does nothing else; ROUNDS=5
# MEASURE (a command prefix) goes before what is timed.
model=$(realpath "${1:?a GGUF file}")
. "$(dirname "$0")/../common.sh"
ln -sf "$model" model.gguf
R="--rounds ${ROUNDS:-5}"
for heads in 32/8:128 9/3:64; do
    ${MEASURE:-} "$KVLAB" bench attention --heads ${heads%:*} --head-dim ${heads#*:} --shape 8q1s4096 \
        --allocator contiguous,paged --kv-dtype bf16,fp8_e4m3,fp8_e5m2,int8 $R --out attention-decode.jsonl
done
for dim in 64 128; do
    ${MEASURE:-} "$KVLAB" bench attention --heads 16/16 --head-dim $dim --shape q2048,q4096 --attention eager,flash \
        --allocator contiguous $R --out attention-prefill.jsonl
done
${MEASURE:-} "$KVLAB" bench matmul --shape 1x576x3072,8x576x3072,32x576x3072,512x576x3072,1x4096x4096,32x4096x4096,512x4096x4096 \
    --weights bf16,nf4 $R --out matmul.jsonl
${MEASURE:-} "$KVLAB" bench decode --model model.gguf --context 16,512,2048,4096 --batch 1,8,32 --output 32 $R --out decode.jsonl
${MEASURE:-} "$KVLAB" bench decode --model synthetic:Llama-3.2-1B --context 1024-65536*2 --output 8 $R --out context.jsonl
"$KVLAB" plot decode.jsonl --x context --y read_ceiling_pct --by batch --name limits --title "Decode against the read ceiling, SmolLM2-135M bf16"
python3 "$root/experiments/kernels/limits.py" .
