"""Tables of limits.sh's rows, in Markdown: medians over rounds; a ratio is taken within a round. Says
which of the aims are met on this machine; exits 1 when one is missed.   limits.py FOLDER"""
import collections
import json
import statistics
import sys

folder = sys.argv[1] if len(sys.argv) > 1 else "."
missed = 0


def rows_of(name, *axes):
    """{values of axes: {round: metrics}} of the rows that ended ok."""
    found = collections.defaultdict(dict)
    with open("%s/%s.jsonl" % (folder, name), encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if row["outcome"] == "ok":
                key = tuple(row["axes"][axis] for axis in axes)
                found[key][row["round"]] = row["metrics"]
    return found


def median(trial, metric):
    return statistics.median(metrics[metric] for metrics in trial.values())


def ratio(trial, base, metric):
    """Median over common rounds of trial / base."""
    return statistics.median(trial[n][metric] / base[n][metric] for n in trial.keys() & base.keys())


def aim(met, text):
    global missed
    missed += not met
    return "%s: %s" % (text, "met" if met else "missed")


def table(*columns):
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))


def attention_decode():
    trials = rows_of("attention-decode", "heads", "head_dim", "allocator", "kv_dtype")
    table("heads, head_dim", "KV", "contiguous GB/s", "of read ceiling", "time / bf16", "paged / contiguous")
    notes = []
    for heads, dim in sorted({key[:2] for key in trials}):
        base = trials[heads, dim, "contiguous", "bf16"]
        for dtype in ("bf16", "fp8_e4m3", "fp8_e5m2", "int8"):
            one, paged = trials[heads, dim, "contiguous", dtype], trials[heads, dim, "paged", dtype]
            ceiling, narrow = median(one, "read_ceiling_pct"), ratio(one, base, "time_us")
            pages = ratio(paged, one, "time_us")
            print("| %s, %s | %s | %.1f | %.0f %% | %.2f | %.2f |" % (
                heads, dim, dtype, median(one, "kv_gb_s"), ceiling, narrow, pages))
            if dtype == "bf16":
                notes.append(aim(ceiling >= 85, "%s d%s at 85 %% of the ceiling" % (heads, dim)))
                notes.append(aim(pages <= 1.05, "%s d%s pages within 1.05" % (heads, dim)))
            if dtype.startswith("fp8"):
                notes.append(aim(narrow <= 0.7, "%s d%s %s in 0.7 of bf16's time" % (heads, dim, dtype)))
    print("\n" + "; ".join(notes))


def attention_prefill():
    trials = rows_of("attention-prefill", "head_dim", "shape", "attention")
    table("head_dim", "shape", "flash GFLOP/s", "of multiply-add peak", "eager / flash time", "workspace flash, eager MiB")
    notes = []
    for dim, shape in sorted({key[:2] for key in trials}):
        flash, eager = trials[dim, shape, "flash"], trials[dim, shape, "eager"]
        gain = ratio(eager, flash, "time_us")
        print("| %s | %s | %.0f | %.0f %% | %.2f | %.2f, %.1f |" % (
            dim, shape, median(flash, "gflop_s"), median(flash, "flops_ceiling_pct"), gain,
            median(flash, "workspace_bytes") / 2**20, median(eager, "workspace_bytes") / 2**20))
        if "4096" in shape:
            notes.append(aim(gain >= 3, "d%s flash 3 times eager" % dim))
    print("\n" + "; ".join(notes))


def matmul():
    trials = rows_of("matmul", "shape", "weights")
    table("rows x in x out", "weights", "time us", "of read ceiling", "of multiply-add peak", "bf16 / this time")
    for shape, weights in sorted(trials, key=lambda key: (key[1], [int(n) for n in key[0].split("x")])):
        one = trials[shape, weights]
        print("| %s | %s | %.0f | %.0f %% | %.0f %% | %.2f |" % (
            shape, weights, median(one, "time_us"), median(one, "read_ceiling_pct"),
            median(one, "flops_ceiling_pct"), ratio(trials[shape, "bf16"], one, "time_us")))


def decode():
    trials = rows_of("decode", "batch", "context")
    table("batch", "context", "tok/s", "of read ceiling", "attention", "matmul", "other", "idle", "step ms", "predicted ms")
    notes = []
    for batch, context in sorted(trials):
        one = trials[batch, context]
        ceiling = median(one, "read_ceiling_pct")
        shares = " | ".join("%.0f %%" % (100 * median(one, part + "_share"))
                            for part in ("attention", "matmul", "other", "idle"))
        print("| %d | %d | %.1f | %.0f %% | %s | %.2f | %.2f |" % (
            batch, context, median(one, "decode_tok_s"), ceiling, shares, median(one, "tpot_ms"),
            median(one, "predicted_tpot_ms")))
        if batch == 1 and context != 512:
            notes.append(aim(ceiling >= 80, "context %d at 80 %% of the ceiling" % context))
    print("\n" + "; ".join(notes))


def context():
    trials = rows_of("context", "context")
    seconds, scanned = {}, {}
    for (length,), trial in trials.items():
        seconds[length] = statistics.median(m["attention_share"] * m["tpot_ms"] for m in trial.values()) / 1000
        scanned[length] = median(trial, "kv_bytes_scanned")
    long = [n for n in seconds if n >= 4096]
    speed = statistics.median(scanned[n] / seconds[n] for n in long)
    table("context", "attention ms a step", "GB/s", "against bytes at %.1f GB/s" % (speed / 1e9))
    for n in sorted(seconds):
        print("| %d | %.2f | %.1f | %+.1f %% |" % (
            n, 1000 * seconds[n], scanned[n] / seconds[n] / 1e9, 100 * (seconds[n] * speed / scanned[n] - 1)))
    worst = max(abs(seconds[n] * speed / scanned[n] - 1) for n in seconds)
    print("\n" + aim(worst <= 0.1, "linear within 10 %"))


for part in (attention_decode, attention_prefill, matmul, decode, context):
    part()
sys.exit(1 if missed else 0)
