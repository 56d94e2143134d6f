#!/usr/bin/env python3
"""The same work on kvlab and on the systems people would use instead, in one run.

    run.py --kvlab build/release/kvlab --model M.gguf --converted DIR --python VENV/bin/python \\
           --rounds 5 --out results/peers.jsonl

Every round measures every work item on every system, items and systems in seeded random order, each
in a process of its own. Finished (trial, round) pairs are in --out already and are not run again, so
an interrupted run goes on with the same command. See README.md.
"""
import argparse
import difflib
import json
import os
import random
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time

import child
import kvlab_command
import rows
import works


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--kvlab", default="build/release/kvlab", help="the executable (%(default)s)")
    add("--model", required=True, help="GGUF file that kvlab reads")
    add("--converted", help="folder that convert.py made from it; without it no peer gets a model")
    add("--python", action="append", default=[], metavar="[SYSTEM,...=]PATH",
        help="interpreter of all peers, or of those named; repeatable (this one)")
    add("--work", help="work items, comma list (all); --list shows them")
    add("--system", help="systems, comma list (all)")
    add("--rounds", type=int, default=5)
    add("--threads", type=int, help="threads of every system (physical cores)")
    add("--seed", type=int, default=1, help="of prompts, data and order (%(default)s)")
    add("--min-s", type=float, default=1.0, help="passes are repeated for so long (%(default)s)")
    add("--timeout-s", type=float, default=600, help="one work item, one system (%(default)s)")
    add("--memory-limit-mib", type=int, help="the same (90 %% of what is free)")
    add("--retry-failed", action="store_true", help="run again what did not end ok")
    add("--out", default="results/peers.jsonl", help="rows are appended here (%(default)s)")
    add("--table", action="store_true", help="print the table of --out at the end")
    add("--list", action="store_true", help="list work items and systems, run nothing")
    add("--systems-file", help="other systems than systems.json")
    return parser.parse_args(argv)


def choose(option, text, names):
    if text is None:
        return list(names)
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise ValueError("--%s: unknown name '%s'%s (known: %s)" % (
                option, name, "; did you mean '%s'?" % near[0] if near else "", ", ".join(names)))
    return chosen


def interpreters(texts, systems):
    chosen = {name: sys.executable for name in systems}
    for text in sorted(texts, key=lambda text: "=" in text):  # those for all first
        names, _, path = text.rpartition("=")
        for name in choose("python", names or None, list(systems)):
            chosen[name] = path
    return chosen


def memory_available():
    with open("/proc/meminfo") as file:
        return int(re.search(r"MemAvailable:\s+(\d+)", file.read()).group(1)) * 1024


class Run:
    def __init__(self, options):
        self.options = options
        self.systems = works.load_systems(options.systems_file)
        all_works = {work["name"]: work for work in works.WORKS}
        self.works = [all_works[name] for name in choose("work", options.work, list(all_works))]
        self.names = choose("system", options.system, list(self.systems))
        self.python = interpreters(options.python, self.systems)
        cpus = child.physical_cpus()
        self.threads = options.threads or len(cpus)
        self.cpus = cpus[:self.threads] if self.threads <= len(cpus) else None
        self.memory_limit = (options.memory_limit_mib << 20 if options.memory_limit_mib
                             else memory_available() // 10 * 9)
        self.run = "%s-%s" % (time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), secrets.token_hex(4))
        self.model = None
        self.fingerprints = {}

    def prepare(self):
        """What holds for the whole run: the machine, the model, which peers are here."""
        self.env, self.ceilings = kvlab_command.environment(self.options.kvlab, self.threads)
        if self.options.converted:
            self.model = works.load_model(self.options.model, self.options.converted)
        for name in self.names:
            self.fingerprints[name] = (kvlab_command.fingerprint(self.options.kvlab)
                                       if self.is_kvlab(name) else self.probe(name))

    def is_kvlab(self, name):
        return self.systems[name]["adapter"] is None

    def child_environment(self):
        env = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1",
                   TOKENIZERS_PARALLELISM="false", PYTHONDONTWRITEBYTECODE="1")
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            env[name] = str(self.threads)
        return env

    def call_adapter(self, name, task):
        """(how the child ended, its answer or None)."""
        with tempfile.TemporaryDirectory(prefix="kvlab-peers-") as folder:
            asked, answered = (os.path.join(folder, part) for part in ("task.json", "answer.json"))
            with open(asked, "w", encoding="utf-8") as file:
                json.dump(task, file)
            command = [self.python[name], self.systems[name]["adapter"], asked, answered]
            ended = child.run(command, self.child_environment(), self.options.timeout_s,
                              self.memory_limit, self.cpus)
            try:
                with open(answered, encoding="utf-8") as file:
                    answer = json.load(file)
            except (OSError, ValueError):
                answer = None
        return ended, answer

    def probe(self, name):
        """{"versions": {...}} or {"missing": reason}."""
        try:
            ended, answer = self.call_adapter(name, {"kind": "probe", "system": name})
        except OSError as error:
            return {"missing": "%s: %s" % (self.python[name], error.strerror)}
        if isinstance(answer, dict) and ("versions" in answer or "missing" in answer):
            return answer
        return {"missing": "the adapter did not start: %s" % (ended.last_words or ended.kind)}

    # ---- one measurement -------------------------------------------------------------------------

    def axes(self, name, work):
        axes = {"system": name, "work": work["name"], "compute_dtype": "bf16",
                "threads": self.threads, "device": "cpu"}
        if work["kind"] in works.MODEL_KINDS:
            axes.update(model=os.path.basename(self.options.model), weights="bf16",
                        kv_dtype="bf16", prompt=work["prompt"], output=work["output"], context=0,
                        batch=work["batch"])
        elif work["kind"] not in works.MATMUL_KINDS:
            axes["kv_dtype"] = "bf16"
        axes.update(work.get("axes", {}))
        axes.update(self.systems[name]["axes"])
        return axes

    def key(self, name, work):
        return rows.trial_key(work, name, self.axes(name, work), self.fingerprints[name],
                              self.env.get("host"), self.options.seed)

    def measure(self, name, work):
        """An answer: outcome, reason, metrics, samples, effective."""
        fingerprint = self.fingerprints[name]
        if self.is_kvlab(name):
            command = kvlab_command.command(self.options, self.systems[name], work, self.threads)
            ended = child.run(command, dict(os.environ), self.options.timeout_s, self.memory_limit)
            return kvlab_command.answer(ended, work)
        if "missing" in fingerprint:
            return {"outcome": "skipped", "reason": "not installed: " + fingerprint["missing"]}
        task = dict(work, system=name, threads=self.threads,
                    seed=self.options.seed, min_s=self.options.min_s,
                    cold_bytes=max(1 << 28, 4 * (self.env.get("llc_bytes") or 0)),
                    axes=self.systems[name]["axes"],
                    arguments=self.systems[name].get("arguments", {}))
        reference = None
        if work["kind"] in works.MODEL_KINDS:
            if not self.model:
                return {"outcome": "skipped", "reason": "no converted model (--converted)"}
            task["model"] = self.model
            task["prompts"] = works.work_prompts(work, self.model, self.options.seed)
            if work["kind"] != "nf4-decode":
                reference = works.reference_ids(
                    self.options.kvlab, self.options.model, work, task["prompts"], self.threads,
                    self.options.converted)
        ended, answer = self.call_adapter(name, task)
        answer = self.checked(ended, answer)
        ids = answer.pop("ids", None)
        if work["kind"] in works.MODEL_KINDS and answer["outcome"] == "ok":
            answer["effective"].update(works.compare_ids(ids, reference))
            impossible = works.impossible_prefill(work, self.model, answer["metrics"], self.ceilings)
            if impossible:
                answer.update(outcome="mismatch", reason=impossible)
        answer["effective"]["versions"] = fingerprint["versions"]
        answer["metrics"].setdefault("rss_peak_bytes", ended.rss_peak_bytes or None)
        answer["metrics"]["wall_s"] = ended.wall_s
        return answer

    def checked(self, ended, answer):
        """The child's answer when it is whole, else what became of the child."""
        said = "; it said: " + ended.last_words if ended.last_words else ""
        whole = (ended.kind == "exit" and ended.code == 0 and isinstance(answer, dict) and
                 answer.get("outcome") in rows.OUTCOMES and
                 all(isinstance(answer.setdefault(part, {}), dict)
                     for part in ("metrics", "samples", "effective")))
        if whole:
            return answer
        outcome, reason = {
            "timeout": ("timeout", "still running after %g s" % self.options.timeout_s),
            "memory": ("oom", "resident size passed the limit of %d MiB" %
                       (self.memory_limit >> 20)),
            "signal": ("crash", "signal %d%s" % (ended.code, said)),
            "exit": ("crash", "exit code %d without a valid answer%s" % (ended.code, said)),
        }[ended.kind]
        return {"outcome": outcome, "reason": reason, "metrics": {}, "samples": {},
                "effective": {}}

    def repro(self, name, work):
        python = self.python[name]
        parts = [sys.executable, os.path.abspath(__file__), "--kvlab",
                 os.path.abspath(self.options.kvlab), "--model",
                 os.path.abspath(self.options.model)]
        if self.options.converted:
            parts += ["--converted", os.path.abspath(self.options.converted)]
        parts += ["--python", "%s=%s" % (name, os.path.abspath(python)), "--system", name, "--work",
                  work["name"], "--threads", str(self.threads), "--seed", str(self.options.seed),
                  "--rounds", "1", "--out", "peers-repro.jsonl"]
        return " ".join(shlex.quote(part) for part in parts)

    def row(self, name, work, round_, answer):
        axes = self.axes(name, work)
        env = dict(self.env, utc=rows.utc(), load_1min=os.getloadavg()[0])
        inner = answer.pop("row", None)
        if inner:  # kvlab's own row keeps what it says of itself
            axes = dict(axes, **inner["axes"])
            axes.update(system=name, work=work["name"])
            env = dict(inner["env"], load_1min=env["load_1min"])
        elif not self.is_kvlab(name):
            versions = self.fingerprints[name].get("versions", {})
            env.update(build=rows.trial_key({}, name, {}, versions, "", 0), compiler="",
                       version=", ".join("%s %s" % item for item in sorted(versions.items())))
        answer.setdefault("effective", {}).update(
            compared_metric=work["metric"],
            compared_better="lower" if work["metric"] == "time_us" else "higher")
        return rows.make_row(self.run, self.key(name, work), round_, work, axes, answer, env,
                             self.options.seed, self.repro(name, work))

    # ---- the schedule ----------------------------------------------------------------------------

    def schedule(self):
        """(round, work, system) in order: systems of one item run one after the other."""
        order = random.Random(self.options.seed)
        for round_ in range(self.options.rounds):
            items = list(self.works)
            order.shuffle(items)
            for work in items:
                names = [n for n in self.names if work["kind"] in self.systems[n]["kinds"]]
                order.shuffle(names)
                for name in names:
                    yield round_, work, name

    def measure_all(self, file):
        todo = list(self.schedule())
        finished = file.finished(self.options.retry_failed)
        counts = {}
        for number, (round_, work, name) in enumerate(todo, 1):
            missing = "missing" in self.fingerprints[name]
            if (self.key(name, work), round_) in finished or (missing and round_ > 0):
                continue
            answer = self.measure(name, work)
            row = self.row(name, work, round_, answer)
            file.append(row)
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
            value = row["metrics"].get(work["metric"])
            print("%3d/%d round %d %-36s %-18s %s" % (
                number, len(todo), round_, work["name"], name,
                "%.4g %s" % (value, work["metric"]) if value is not None
                else row["outcome"] + ": " + row["reason"]), file=sys.stderr, flush=True)
        return counts


def interrupted(signum, frame):
    raise KeyboardInterrupt(signum)


def show_lists(run):
    for work in run.works:
        systems = [n for n in run.names if work["kind"] in run.systems[n]["kinds"]]
        print("%-38s %s" % (work["name"], ", ".join(systems)))


def main(argv=None):
    options = parse_arguments(argv)
    signal.signal(signal.SIGTERM, interrupted)
    try:
        run = Run(options)
        if options.list:
            show_lists(run)
            return 0
        run.prepare()
        counts = run.measure_all(rows.RowFile(options.out))
    except (ValueError, OSError) as error:
        print("run.py: %s" % error, file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("run.py: interrupted; the same command goes on", file=sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
    print("%s: %s" % (options.out, ", ".join("%d %s" % (n, outcome) for outcome, n in
                                             sorted(counts.items())) or "nothing left to run"),
          file=sys.stderr)
    if options.table:
        return subprocess.call([options.kvlab, "export", options.out, "--table"])
    return 4 if set(counts) & {"oom", "timeout", "crash", "mismatch"} else 0


if __name__ == "__main__":
    sys.exit(main())
