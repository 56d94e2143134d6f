#!/bin/sh
# The same 200 requests (Azure 2023 conversation, lengths times 0.2 for a small model, Poisson arrivals) through
# kvlab's engine, through its virtual time, and through vLLM's CPU build. Usage:
#   real.sh AZURE.csv MODEL.gguf [VLLM_PYTHON MODEL_HF_DIR]     (experiments/peers/README.md: how to install and convert)
# MEASURE (a command prefix, such as a lock) goes before what is timed. Claims: virtual time predicts the engine's
# output tokens a second within 15 %; with vLLM: at least twice its output tokens a second, p99 TTFT no worse.
azure=$(realpath "${1:?an Azure trace}")
model=$(realpath "${2:?a GGUF file}")
python=${3:-}
hf=${4:+$(realpath "$4")}
. "$(dirname "$0")/../common.sh"
cp -f "$azure" azure.csv
ln -sf "$model" model.gguf
R="--trace azure.csv --requests 200 --length-scale 0.2 --arrival poisson:${RATE:-40} --pool-tokens 65536 --max-seqs ${SEQS:-64}
   --max-batched-tokens ${STEP:-512}"
if [ ! -s cost.jsonl ]; then
    ${MEASURE:-} "$KVLAB" bench decode --model model.gguf --prompt 64,256 --batch 1,4,16,64 --output 24 --rounds 1 --out cost.jsonl
fi
${MEASURE:-} "$KVLAB" bench serve --real --model model.gguf $R --text "$root/tests/text/us-constitution.txt" --series series --out real.jsonl
"$KVLAB" bench serve --cost cost.jsonl $R --out real.jsonl
requests=$(ls -t series/*-requests.jsonl | head -1)
if [ "$python" ]; then
    "$python" "$root/experiments/serve/vllm_serve.py" "$requests" "$hf" vllm.json --max-seqs "${SEQS:-64}" \
        --max-batched-tokens "${STEP:-512}" ${LOCK:+--lock "$LOCK"}
fi
python3 - <<'P'
import json, os, sys
rows = [json.loads(line) for line in open("real.jsonl")]
real = [r["metrics"] for r in rows if r["effective"].get("clock") == "wall" and r["outcome"] == "ok"][-1]
virtual = [r["metrics"] for r in rows if r["effective"].get("clock") == "virtual" and r["outcome"] == "ok"][-1]
off = 100 * (virtual["output_tok_s"] / real["output_tok_s"] - 1)
print(f"output tok/s: engine {real['output_tok_s']:.1f}, virtual {virtual['output_tok_s']:.1f} ({off:+.1f} %)")
good = abs(off) <= 15
if os.path.exists("vllm.json"):
    vllm = json.load(open("vllm.json"))
    ratio = real["output_tok_s"] / vllm["output_tok_s"]
    print(f"vLLM {vllm['output_tok_s']:.1f} tok/s: kvlab is {ratio:.2f} x; p99 TTFT {real['ttft_p99_ms']:.0f} against {vllm['ttft_p99_ms']:.0f} ms")
    good = good and ratio >= 2 and real["ttft_p99_ms"] <= vllm["ttft_p99_ms"]
sys.exit(not good)
P
