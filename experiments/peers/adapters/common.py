"""What the adapters share: the task in, the answer out, and one way to measure.

An adapter is run as `PYTHON adapter.py TASK.json ANSWER.json` with the interpreter of its system. A
task of kind `probe` asks for versions; any other is one work item (works.py) to be measured once.
The answer goes to a file, since libraries print what they like. An exception or a death is answered
for by run.py.
"""
import importlib.metadata
import json
import sys
import time


class Unsupported(Exception):
    """The system cannot do this work; the text says why."""


def versions(*packages):
    """{"versions": ...} of installed packages, or {"missing": which}."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return {"missing": "no Python package %s in this environment" % package}
    return {"versions": found}


def main(packages, measure):
    """Runs `measure(task) -> answer` for the task named on the command line."""
    with open(sys.argv[1], encoding="utf-8") as file:
        task = json.load(file)
    if task["kind"] == "probe":
        answer = packages() if callable(packages) else versions(*packages)
    else:
        try:
            answer = measure(task)
        except Unsupported as reason:
            answer = {"outcome": "unsupported", "reason": str(reason)}
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(answer, file)


def now():
    return time.perf_counter()


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def quantile(values, q):
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def model_answer(task, passes, ids, effective, load_s=None, warmup_s=None):
    """passes: (seconds to the first token, [seconds of each decode step]). Names as in
    results/README.md."""
    batch, prompt, output = task["batch"], task["prompt"], task["output"]
    ttft = [first for first, _ in passes]
    metrics = {"ttft_ms": 1e3 * median(ttft), "prefill_tok_s": batch * prompt / median(ttft),
               "passes": len(passes)}
    samples = {"ttft_ms": [round(1e3 * t, 3) for t in ttft]}
    if output > 1:
        decode = [sum(steps) for _, steps in passes]
        steps = [step for _, steps in passes for step in steps]
        metrics.update(decode_tok_s=batch * (output - 1) / median(decode),
                       tpot_ms=1e3 * median(decode) / (output - 1),
                       itl_p50_ms=1e3 * median(steps), itl_p99_ms=1e3 * quantile(steps, 0.99))
        samples["decode_ms"] = [round(1e3 * t, 3) for t in decode]
        samples["itl_ms"] = [round(1e3 * t, 3) for t in steps]
    metrics["e2e_ms"] = 1e3 * median([first + sum(steps) for first, steps in passes])
    if load_s is not None:
        metrics["load_s"] = load_s
    if warmup_s is not None:
        metrics["warmup_ms"] = 1e3 * warmup_s
    return {"outcome": "ok", "reason": "", "metrics": metrics, "samples": samples,
            "effective": effective, "ids": ids}


def measure_model(task, prefill, step, effective, load_s):
    """Greedy generation in steps: `prefill(prompts) -> first ids`, `step(ids) -> next ids`, lists of
    one id a sequence; prefill starts over with empty caches. As kvlab does it, warm-up comes first
    (of a decode work a short prompt and a few steps, of a prefill work the whole prompt), and passes
    repeat for task["min_s"]."""
    prompts = task["prompts"]
    start = now()
    tokens = prefill(prompts if task["output"] == 1 else [ids[:16] for ids in prompts])
    for _ in range(4 if task["output"] > 1 else 0):
        tokens = step(tokens)
    warmup_s = now() - start
    passes, ids, spent = [], None, 0.0
    while spent < task["min_s"]:
        start = now()
        tokens = prefill(prompts)
        first, steps = now() - start, []
        columns = [tokens]
        for _ in range(task["output"] - 1):
            start = now()
            tokens = step(tokens)
            steps.append(now() - start)
            columns.append(tokens)
        passes.append((first, steps))
        spent += first + sum(steps)
        ids = [list(sequence) for sequence in zip(*columns)][:4]
    return model_answer(task, passes, ids, effective, load_s, warmup_s)


def n_copies(task, bytes_each):
    """Copies of operands that together get past the caches, so that each call reads from memory."""
    return max(1, -(-int(task["cold_bytes"]) // bytes_each))


def measure_calls(task, call, effective, bytes_name, bytes_read, flops):
    """`call(i)` is the i-th call of a kernel; warm-up of 3 calls, then calls for task["min_s"], 5 at
    least. `bytes_name`: metric for the bytes that one call must read, per second."""
    for i in range(3):
        call(i)
    times, spent, i = [], 0.0, 3
    while spent < task["min_s"] or len(times) < 5:
        start = now()
        call(i)
        times.append(now() - start)
        spent += times[-1]
        i += 1
    middle = median(times)
    metrics = {"time_us": 1e6 * middle, "calls": len(times), bytes_name: bytes_read / middle / 1e9,
               "gflop_s": flops / middle / 1e9}
    return {"outcome": "ok", "reason": "", "metrics": metrics,
            "samples": {"time_us": [round(1e6 * t, 2) for t in times[:1000]]},
            "effective": effective}
