"""Rows and their file, as results/README.md defines them.

The file is append-only, one write a row; a lock keeps a second writer out, and a torn last line
(a killed run, a full disk) is cut when it is opened again.
"""
import fcntl
import hashlib
import json
import os
import time

SCHEMA = 1
OUTCOMES = ("ok", "unsupported", "skipped", "oom", "timeout", "crash", "mismatch")


class RowFile:
    def __init__(self, path):
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError("%s: another process is writing to it" % path)
        self.rows = self._load()

    def _load(self):
        with open(self.path, "rb") as file:
            data = file.read()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            if not data[end:].startswith(b'{"schema":'[:len(data) - end]):
                raise ValueError("%s: its last line is not a row; nothing is appended" % self.path)
            os.ftruncate(self.fd, end)
        rows = []
        for number, line in enumerate(data[:end].splitlines(), 1):
            try:
                row = json.loads(line)
                known = row["schema"] == SCHEMA and row["outcome"] in OUTCOMES and row["trial"]
            except (ValueError, KeyError, TypeError):
                known = False
            if not known:
                raise ValueError("%s:%d: not a row; nothing is appended" % (self.path, number))
            rows.append(row)
        self.end = end
        return rows

    def append(self, row):
        data = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            written = os.write(self.fd, data)
            if written != len(data):
                raise OSError("disk full")
            os.fdatasync(self.fd)
        except OSError:
            os.ftruncate(self.fd, self.end)
            raise
        self.end += len(data)
        self.rows.append(row)

    def finished(self, retry_failed):
        """{(trial, round)} that need not run again."""
        last = {(row["trial"], row["round"]): row["outcome"] for row in self.rows}
        return {key for key, outcome in last.items() if outcome == "ok" or not retry_failed}


def trial_key(work, system, axes, fingerprint, host, seed):
    text = json.dumps([SCHEMA, work, system, axes, fingerprint, host, seed], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def utc():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def numbers_only(metrics):
    """Numbers and nulls; anything else a peer put there is dropped."""
    def is_number(value):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return {name: value if is_number(value) and abs(value) < float("inf") else None
            for name, value in metrics.items() if value is None or is_number(value)}


def clean(text):
    """One line, printable, of bounded length."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())[:600]


def make_row(run, trial, round_, work, axes, answer, env, seed, repro):
    """`answer`: outcome, reason, metrics, samples, effective, and ceilings where known."""
    return {
        "schema": SCHEMA, "run": run, "trial": trial, "round": round_, "workload": work["kind"],
        "axes": axes, "effective": answer.get("effective", {}), "outcome": answer["outcome"],
        "reason": clean(answer.get("reason", "")),
        "metrics": numbers_only(answer.get("metrics", {})), "samples": answer.get("samples", {}),
        "ceilings": answer.get("ceilings", {}), "env": env, "seed": seed, "repro": repro,
    }
