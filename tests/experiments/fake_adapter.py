"""A peer for test_peers.c: how it behaves hangs on its system's name. Every measurement adds a line
to the file that FAKE_LOG names."""
import json
import os
import signal
import sys
import time

with open(sys.argv[1], encoding="utf-8") as file:
    task = json.load(file)


def answer(value):
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(value, file)
    sys.exit(0)


system = task["system"]
if task["kind"] == "probe":
    answer({"missing": "no Python package absent"} if system == "absent"
           else {"versions": {"fake": os.environ.get("FAKE_VERSION", "1.0")}})
with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
    log.write("%s/%s\n" % (system, task["name"]))
print("noise on stdout")
if system == "crash":
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGABRT)
if system == "exit":
    sys.exit("went wrong")
if system == "hang":
    time.sleep(100)
if system == "nonsense":
    answer({"outcome": "splendid"})
value = {"slow": 50.0, "fast": 200.0, "cached": 9999.0}[system]
ids = [[5, 6, 7]] if system == "slow" else [[5, 9, 7]]
answer({"outcome": "ok", "reason": "", "ids": ids if "prompts" in task else None,
        "metrics": {task["metric"]: value, "odd": "text",
                    "ttft_ms": 37.0 if system == "cached" else 30000.0}, "samples": {"x": [1]},
        "effective": {"first_ids": task.get("prompts", [[]])[0][:4]}})
