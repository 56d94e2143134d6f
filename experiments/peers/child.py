"""One child process with a time and a memory limit, its own session, and its last words kept."""
import os
import signal
import subprocess
import tempfile
import time

POLL_S = 0.5


class Ended:
    """How a child ended: kind is exit, signal, timeout or memory."""

    def __init__(self, kind, code, wall_s, rss_peak_bytes, stdout, last_words):
        self.kind, self.code, self.wall_s = kind, code, wall_s
        self.rss_peak_bytes, self.stdout, self.last_words = rss_peak_bytes, stdout, last_words


def physical_cpus():
    """The first hardware thread of every core that this process may use."""
    allowed, seen, cpus = sorted(os.sched_getaffinity(0)), set(), []
    for cpu in allowed:
        path = "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % cpu
        try:
            with open(path) as file:
                core = file.read().strip()
        except OSError:
            core = str(cpu)
        if core not in seen:
            seen.add(core)
            cpus.append(cpu)
    return cpus


def session_rss_bytes(session):
    """Resident bytes of all processes of a session."""
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name) as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            total += int(fields[21]) * page
    return total


def _kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _last_words(file):
    file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
    lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line]
    return lines[-1] if lines else ""


def run(command, env, timeout_s, memory_limit_bytes, cpus=None):
    """Runs `command` on `cpus` until it ends or passes a limit; nothing of its session survives."""
    def pin():
        if cpus:
            os.sched_setaffinity(0, cpus)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   env=env, start_new_session=True, preexec_fn=pin)
        kind, peak = "exit", 0
        try:
            while True:
                try:
                    process.wait(timeout=POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    pass
                rss = session_rss_bytes(process.pid)
                peak = max(peak, rss)
                if memory_limit_bytes and rss > memory_limit_bytes:
                    kind = "memory"
                elif time.monotonic() - start > timeout_s:
                    kind = "timeout"
                if kind != "exit":
                    break
        finally:
            _kill(process)
        wall_s = time.monotonic() - start
        if kind == "exit" and process.returncode < 0:
            kind = "signal"
        out.seek(0)
        return Ended(kind, abs(process.returncode), wall_s, peak, out.read(), _last_words(err))
