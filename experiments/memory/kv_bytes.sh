#!/bin/sh
# Context x2 and batch x2 each double the bytes of K and V: the engine's own count of what is stored, against the
# formula. Usage: kv_bytes.sh MODEL. Exact, so the machine plays no part. About 20 s.
model=${1:?a GGUF file, a folder or synthetic:NAME}
case $model in synthetic:*) ;; *) model=$(realpath "$model") ;; esac
. "$(dirname "$0")/../common.sh"
case $model in synthetic:*) ;; *) ln -sf "$model" "$(basename "$model")"; model=$(basename "$model") ;; esac
# One token is generated: what is stored then is the context, no more.
"$KVLAB" bench decode --model "$model" --context 512-4096*2 --batch 1,2,4 --output 2 --rounds 1 --out kv-bytes.jsonl
"$KVLAB" plot kv-bytes.jsonl --x context --y kv_bytes_formula --by batch --logx
python3 - <<'P'
import json
at = {(r["axes"]["context"], r["axes"]["batch"]): r["metrics"] for r in map(json.loads, open("kv-bytes.jsonl")) if r["outcome"] == "ok"}
per = {k: m["kv_bytes_live"] for k, m in at.items()}
token = min(m["kv_bytes_formula"] / (c + 2) / b for (c, b), m in at.items())
for (c, b), live in sorted(per.items()):
    stored = live / token / b  # tokens a sequence
    assert stored in (c + 1, c + 2), (c, b, stored)
    if (c, 2 * b) in per: assert per[c, 2 * b] == 2 * live, (c, b)
    if (2 * c, b) in per: assert at[2 * c, b]["kv_bytes_formula"] - 2 * token * b == 2 * (at[c, b]["kv_bytes_formula"] - 2 * token * b)
print("%d bytes a token; %d pairs of contexts and batches: exactly double" % (token, len(per)))
P
