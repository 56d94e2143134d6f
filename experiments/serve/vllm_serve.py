#!/usr/bin/env python3
"""vLLM's CPU build on the requests that `kvlab bench serve --real --series DIR` kept: the same prompts, output
lengths and arrival times, engine steps in this process; idle time between arrivals is skipped, as kvlab does.

    PYTHON vllm_serve.py REQUESTS.jsonl MODEL_HF_DIR OUT.json [--threads 2] [--max-seqs N] [--max-batched-tokens N]
        [--lock FILE]

OUT.json: metrics with kvlab's names, and how far the greedy tokens are kvlab's: at the first token that differs,
kvlab's margin to the next best logit says whether rounding explains it. --lock: a file that is held (flock) while
requests run, where several measure on one machine."""
import argparse
import contextlib
import fcntl
import importlib.metadata
import json
import os
import time

p = argparse.ArgumentParser()
p.add_argument("requests")
p.add_argument("model")
p.add_argument("out")
p.add_argument("--threads", type=int, default=2)
p.add_argument("--max-seqs", type=int, default=256)
p.add_argument("--max-batched-tokens", type=int, default=512)
p.add_argument("--pool-gib", default="2")
p.add_argument("--lock")
a = p.parse_args()

cpus = sorted(os.sched_getaffinity(0))[:a.threads]
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR",
                  VLLM_CPU_KVCACHE_SPACE=a.pool_gib, VLLM_NO_USAGE_STATS="1",
                  VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cpus)))
import vllm

requests = [json.loads(line) for line in open(a.requests, encoding="utf-8")]
requests.sort(key=lambda r: (r["arrival_s"], r["request"]))
longest = max(len(r["prompt"]) + len(r["output"]) for r in requests)
engine = vllm.LLM(model=a.model, dtype="bfloat16", max_model_len=longest + 16, max_num_seqs=a.max_seqs,
                  max_num_batched_tokens=a.max_batched_tokens, enable_prefix_caching=False, skip_tokenizer_init=True,
                  async_scheduling=False, seed=1).llm_engine


def add(name, ids, n_output):
    engine.add_request(name, {"prompt_token_ids": ids},
                       vllm.SamplingParams(temperature=0, max_tokens=n_output, ignore_eos=True, detokenize=False))


def serve(todo):
    """Times of tokens by request, and the time of the last; the clock jumps over idle time."""
    times, ids, at, skipped, start = {}, {}, 0, 0.0, time.perf_counter()
    while at < len(todo) or engine.has_unfinished_requests():
        now = time.perf_counter() - start + skipped
        if not engine.has_unfinished_requests() and at < len(todo) and todo[at]["arrival_s"] > now:
            skipped += todo[at]["arrival_s"] - now
            continue
        while at < len(todo) and todo[at]["arrival_s"] <= now:
            add(str(todo[at]["request"]), todo[at]["prompt"], len(todo[at]["output"]))
            at += 1
        outputs = engine.step()
        now = time.perf_counter() - start + skipped
        for o in outputs:
            got = list(o.outputs[0].token_ids)
            times.setdefault(o.request_id, []).extend([now] * (len(got) - len(ids.get(o.request_id, []))))
            ids[o.request_id] = got
    return times, ids, time.perf_counter() - start + skipped


def quantile(values, q):
    v = sorted(values)
    i = q * (len(v) - 1)
    low = int(i)
    high = min(low + 1, len(v) - 1)
    return v[low] + (i - low) * (v[high] - v[low])


# Every shape class is compiled and touched: a burst of the first requests, not timed.
serve([dict(r, arrival_s=0.0, request="w%d" % i) for i, r in enumerate(requests[:a.max_seqs // 2 or 1])])
with contextlib.ExitStack() as stack:
    if a.lock:
        fcntl.flock(stack.enter_context(open(a.lock)), fcntl.LOCK_EX)
    times, ids, end = serve(requests)

ttft, tpot, itl, parted, equal, total = [], [], [], [], 0, 0
for r in requests:
    name = str(r["request"])
    t = times[name]
    ttft.append(t[0] - r["arrival_s"])
    if len(t) > 1:
        tpot.append((t[-1] - t[0]) / (len(t) - 1))
        itl += [y - x for x, y in zip(t, t[1:])]
    total += len(r["output"])
    first = next((k for k, (x, y) in enumerate(zip(ids[name], r["output"])) if x != y), None)
    equal += len(r["output"]) if first is None else first
    if first is not None:
        parted.append(r["margins"][first])
out = {"system": "vllm", "version": importlib.metadata.version("vllm-cpu"), "requests": len(requests),
       "output_tokens": total, "output_tok_s": total / end, "virtual_s": end,
       "ttft_p50_ms": 1e3 * quantile(ttft, 0.5), "ttft_p99_ms": 1e3 * quantile(ttft, 0.99),
       "tpot_p50_ms": 1e3 * quantile(tpot, 0.5), "itl_p99_ms": 1e3 * quantile(itl, 0.99),
       "greedy_equal_before_parting": equal, "greedy_requests_parted": len(parted),
       "greedy_margin_at_parting_median": quantile(parted, 0.5) if parted else None,
       "greedy_margin_at_parting_most": max(parted, default=None)}
with open(a.out, "w", encoding="utf-8") as f:
    json.dump(out, f, indent=1)
print(json.dumps(out))
