"""kvlab as one of the systems: its command line for a work item, and its row as an answer."""
import hashlib
import json
import subprocess

import works


def fingerprint(kvlab):
    with open(kvlab, "rb") as file:
        return {"versions": {"kvlab": hashlib.sha256(file.read()).hexdigest()[:16]}}


def environment(kvlab, threads):
    """env{} and ceilings{} of a row, as kvlab describes this machine."""
    command = [kvlab, "bench", "decode", "--model", "synthetic:tiny", "--prompt", "8", "--output",
               "2", "--rounds", "1", "--threads", str(threads), "--out", "-"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lines = ended.stdout.splitlines()
    if ended.returncode != 0 or not lines:
        raise ValueError("%s does not measure: %s" % (kvlab, ended.stderr.decode("utf-8", "replace")))
    row = json.loads(lines[-1])
    return row["env"], row["ceilings"]


def command(options, system, work, threads):
    """Measures one work item once and prints one row."""
    common = ["--threads", str(threads), "--seed", str(options.seed), "--rounds", "1", "--out", "-",
              "--timeout-s", str(options.timeout_s)] + system.get("arguments", [])
    if work["kind"] in works.MODEL_KINDS:
        weights = "nf4" if work["kind"] == "nf4-decode" else "bf16"
        return [options.kvlab, "bench", "decode", "--model", options.model, "--weights", weights,
                "--batch", str(work["batch"]), "--prompt", str(work["prompt"]), "--output",
                str(work["output"])] + common
    if work["kind"] in works.MATMUL_KINDS:
        return [options.kvlab, "bench", "matmul", "--weights", work["axes"]["weights"], "--shape",
                work["axes"]["shape"]] + common
    kernel = "eager" if work["kind"] == "eager-attention" else "flash"
    return [options.kvlab, "bench", "attention", "--attention", kernel, "--shape",
            work["axes"]["shape"], "--heads", work["axes"]["heads"], "--head-dim",
            str(work["head_dim"])] + common


def answer(ended, work):
    """kvlab's row as an answer; without a row, what it said."""
    lines = ended.stdout.splitlines()
    row = None
    if lines and ended.kind == "exit":
        try:
            row = json.loads(lines[-1])
        except ValueError:
            pass
    if isinstance(row, dict) and "outcome" in row:
        effective = dict(row["effective"], kvlab_trial=row["trial"], kvlab_repro=row["repro"])
        return {"outcome": row["outcome"], "reason": row["reason"], "metrics": row["metrics"],
                "samples": row["samples"], "ceilings": row["ceilings"], "effective": effective,
                "row": row}
    outcome = {"exit": "crash", "signal": "crash", "timeout": "timeout", "memory": "oom"}[ended.kind]
    if ended.kind == "exit" and ended.code == 2:
        outcome = "unsupported"
    return {"outcome": outcome, "reason": ended.last_words or "%s %d" % (ended.kind, ended.code),
            "metrics": {"wall_s": ended.wall_s}}
