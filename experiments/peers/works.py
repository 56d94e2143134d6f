"""What is measured: work items, the systems that can do them, and the prompts."""
import hashlib
import json
import os
import subprocess

FOLDER = os.path.dirname(os.path.abspath(__file__))
MASK = (1 << 64) - 1


def model_work(name, kind, metric, batch, prompt, output):
    return {"name": name, "kind": kind, "metric": metric, "batch": batch, "prompt": prompt,
            "output": output}


def attention_work(name, kind, batch, heads, kv_heads, head_dim, queries, keys):
    return {"name": name, "kind": kind, "metric": "time_us", "batch": batch, "heads": heads,
            "kv_heads": kv_heads, "head_dim": head_dim, "queries": queries, "keys": keys,
            "axes": {"shape": "%dq%ds%d" % (batch, queries, keys), "cache": "cold",
                     "heads": "%d/%d" % (heads, kv_heads), "head_dim": head_dim, "causal": "on"}}


def matmul_work(rows, columns, outputs):
    shape = "%dx%dx%d" % (rows, columns, outputs)
    return {"name": "matmul " + shape, "kind": "matmul", "metric": "time_us", "rows": rows,
            "columns": columns, "outputs": outputs,
            "axes": {"shape": shape, "cache": "cold", "weights": "bf16"}}


WORKS = [
    model_work("decode b1 c16", "decode", "decode_tok_s", 1, 16, 33),
    model_work("decode b1 c2048", "decode", "decode_tok_s", 1, 2048, 33),
    model_work("decode b1 c4096", "decode", "decode_tok_s", 1, 4096, 33),
    model_work("decode b8 c512", "decode", "decode_tok_s", 8, 512, 33),
    model_work("decode b32 c512", "decode", "decode_tok_s", 32, 512, 33),
    model_work("prefill 512", "prefill", "prefill_tok_s", 1, 512, 1),
    model_work("prefill 2048", "prefill", "prefill_tok_s", 1, 2048, 1),
    attention_work("attention decode b8 32/8 d128 k4096", "attention", 8, 32, 8, 128, 1, 4096),
    attention_work("attention decode b8 9/3 d64 k4096", "attention", 8, 9, 3, 64, 1, 4096),
    attention_work("attention prefill 16 heads d64 2048", "attention", 1, 16, 16, 64, 2048, 2048),
    attention_work("attention prefill 16 heads d128 2048", "attention", 1, 16, 16, 128, 2048, 2048),
    attention_work("eager attention 16 heads d64 4096", "eager-attention", 1, 16, 16, 64, 4096,
                   4096),
    matmul_work(1, 576, 3072),
    matmul_work(32, 576, 3072),
    matmul_work(512, 576, 3072),
    matmul_work(512, 4096, 4096),
    {"name": "nf4 matmul 1x4096x4096", "kind": "nf4-matmul", "metric": "time_us", "rows": 1,
     "columns": 4096, "outputs": 4096,
     "axes": {"shape": "1x4096x4096", "cache": "cold", "weights": "nf4"}},
    model_work("nf4 decode b1 c16", "nf4-decode", "decode_tok_s", 1, 16, 33),
]

MATMUL_KINDS = ("matmul", "nf4-matmul")
MODEL_KINDS = ("decode", "prefill", "nf4-decode")


def load_systems(path=None):
    """Systems in the order of the file: name -> {adapter (null: kvlab), kinds of work, axes of its
    rows, arguments: for a peer an object that its adapter reads, for kvlab more options}."""
    path = path or os.path.join(FOLDER, "systems.json")
    with open(path, encoding="utf-8") as file:
        systems = json.load(file)
    for name, system in systems.items():
        adapter = system["adapter"]
        if adapter and not os.path.isabs(adapter):
            folder = os.path.join(os.path.dirname(os.path.abspath(path)), "adapters")
            system["adapter"] = os.path.join(folder, adapter)
        system.setdefault("axes", {})
    return systems


# ---- prompts: kvlab's own random ids, so that all systems read the same tokens -------------------

def _mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def prompt_ids(seed, sequence, n_tokens, vocab_size, special):
    """Token ids of one sequence as `kvlab bench decode --seed` draws them (core/rng.h): uniform
    over the vocabulary without the control tokens in `special`."""
    stream = 0x70726F6D70740000 + sequence
    key = _mix((seed + 0x9E3779B97F4A7C15) & MASK) ^ _mix((_mix(stream) + 1) & MASK)
    limit = MASK - MASK % vocab_size
    counter, ids = 0, []
    for _ in range(n_tokens):
        for _ in range(64):
            while True:
                counter += 1
                value = _mix((key + counter * 0x9E3779B97F4A7C15) & MASK)
                if value < limit:
                    break
            if value % vocab_size not in special:
                break
        ids.append(value % vocab_size)
    return ids


def work_prompts(work, model, seed):
    special = set(model["special_ids"])
    return [prompt_ids(seed, s, work["prompt"], model["vocab_size"], special)
            for s in range(work["batch"])]


def load_model(source, converted):
    """model.json of `converted` with the paths of its files; ValueError when it was not made from
    `source`."""
    with open(os.path.join(converted, "model.json"), encoding="utf-8") as file:
        model = json.load(file)
    with open(source, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    if digest != model["source_sha256"]:
        raise ValueError("%s was not converted from %s: run convert.py again" % (converted, source))
    converted = os.path.abspath(converted)
    model["hf"] = os.path.join(converted, "hf")
    for kind in ("bf16", "f16"):
        model["gguf_" + kind] = os.path.join(converted, "model-%s.gguf" % kind)
    return model


COMPARED_SEQUENCES = 4


def reference_ids(kvlab, source, work, prompts, threads, folder):
    """Greedy ids of kvlab for the first sequences of a work item: what peers are compared with.
    Kept in `folder`, by what they depend on. None when kvlab cannot generate them."""
    shown = prompts[:COMPARED_SEQUENCES]
    with open(kvlab, "rb") as file:
        executable = hashlib.sha256(file.read()).hexdigest()
    key = hashlib.sha256(json.dumps([shown, work["output"], executable]).encode()).hexdigest()[:16]
    path = os.path.join(folder, "ids-%s.json" % key)
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        pass
    answers = []
    for ids in shown:
        prompt = os.path.join(folder, "prompt-%d.json" % os.getpid())
        with open(prompt, "w", encoding="utf-8") as file:
            json.dump(ids, file)
        command = [kvlab, "generate", "--model", source, "--ids-in", prompt, "--ids",
                   "--ignore-eos", "--max-tokens", str(work["output"]), "--threads", str(threads)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        os.unlink(prompt)
        if ended.returncode != 0:
            return None
        answers.append(json.loads(ended.stdout))
    partial = "%s.%d" % (path, os.getpid())
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(answers, file)
    os.rename(partial, path)
    return answers


def impossible_prefill(work, model, metrics, ceilings):
    """Why the time to the first token cannot be that of a prefill, or None: it would take more than
    1.5 times the arithmetic that this machine was measured to do. A prompt that was in a cache
    looks so."""
    limit = max(ceilings.get("f32_flops_per_s") or 0, ceilings.get("bf16_flops_per_s") or 0)
    ttft_ms = metrics.get("ttft_ms")
    if not limit or not ttft_ms:
        return None
    rate = 2e3 * model["parameters"] * work["batch"] * work["prompt"] / ttft_ms
    if rate <= 1.5 * limit:
        return None
    return ("a prefill in %.4g ms would be %.4g GFLOP/s where the ceiling is %.4g: a prompt was cached" %
            (ttft_ms, rate / 1e9, limit / 1e9))


def compare_ids(ids, reference):
    """effective{} members that say how far a peer's greedy ids follow kvlab's."""
    if not ids or not reference:
        return {"greedy_ids": "not compared"}
    for s, (got, want) in enumerate(zip(ids, reference)):
        n = min(len(got), len(want))
        for i in range(n):
            if got[i] != want[i]:
                return {"greedy_ids": "sequence %d differs from kvlab's at token %d of %d" %
                                      (s, i + 1, n)}
    return {"greedy_ids": "equal to kvlab's"}
