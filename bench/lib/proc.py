# SPDX-License-Identifier: Apache-2.0
"""Programs that are measured: run, timed, their processor time counted, and who else was at work."""
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT_S = 120  # for one program: far above what any takes
LISTEN_S = 10  # a server that was just started listens after this
END_S = 5  # ... and ends after its client
TICK = os.sysconf("SC_CLK_TCK")
UNITS = {"K": 10, "M": 20, "G": 30}


class Failed(Exception):
    """A program did not do what was asked of it."""


def parse_size(text):
    shift = UNITS.get(text[-1:].upper(), 0)
    return int(text[:-1] if shift else text) << shift


def format_size(size):
    for unit, shift in reversed(UNITS.items()):
        if size >> shift and size >> shift << shift == size:
            return f"{size >> shift} {unit}iB"
    return f"{size} B"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def machine_busy_s():
    """Processor seconds that this machine has worked (or was kept from working), in all."""
    with open("/proc/stat", encoding="ascii") as f:
        user, nice, system, _, _, irq, softirq, steal = map(int, f.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


class Child:
    """A program under way; end() gives its output and the processor seconds it took."""

    def __init__(self, command, env=None, **options):
        self.command = command
        self.out = tempfile.TemporaryFile("w+")
        self.err = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, env={**os.environ, **(env or {})},
                                        stdout=self.out, stderr=self.err, **options)
        self.cpu_s = 0.0

    def poll(self):
        """Has it ended? Its status and processor time are taken in one go."""
        if self.process.returncode is None:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu_s = usage.ru_utime + usage.ru_stime
        return self.process.returncode is not None

    def wait(self, seconds):
        deadline = time.monotonic() + seconds
        while not self.poll() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.poll()

    def kill(self):
        if not self.poll():
            self.process.kill()
            self.wait(END_S)

    @staticmethod
    def text(file):
        """All so far. The program's place in the file is its own: it is opened anew."""
        with open(f"/proc/self/fd/{file.fileno()}", encoding="utf-8", errors="replace") as f:
            return f.read()

    def end(self, seconds=LIMIT_S):
        """Standard output; it must succeed in time."""
        ended = self.wait(seconds)
        self.kill()
        if not ended or self.process.returncode:
            why = f"gave {self.process.returncode}" if ended else f"took more than {seconds} s"
            said = (self.text(self.err).strip() or self.text(self.out).strip())[-500:]
            raise Failed(f"'{' '.join(self.command)}' {why}: {said}")
        return self.text(self.out)


def cpu_of(pid):
    """Processor seconds that a process has taken so far."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
        words = f.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / TICK


def listens(port):
    """Is there a listener at the port, in this network namespace?"""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as f:
            if re.search(rf":{port:04X} [0-9A-F:]+ 0A ", f.read()):
                return True
    return False


@contextlib.contextmanager
def server(command, port, env=None, ready=listens):
    child = Child(command, env)
    try:
        deadline = time.monotonic() + LISTEN_S
        while not ready(port) and not child.poll():
            if time.monotonic() > deadline:
                raise Failed(f"'{' '.join(command)}' does not listen")
            time.sleep(0.02)
        yield child
        child.wait(END_S)
    finally:
        child.kill()


def output(command, env=None):
    return Child(command, env).end()


class Meter:
    """What was at work on this machine besides the programs measured: a share of all processors."""

    def __init__(self):
        self.start = time.monotonic()
        self.busy = machine_busy_s()
        self.own = self.own_s()

    @staticmethod
    def own_s():
        t = os.times()
        return t.user + t.system + t.children_user + t.children_system

    def others(self):
        wall = (time.monotonic() - self.start) * os.cpu_count()
        foreign = machine_busy_s() - self.busy - (self.own_s() - self.own)
        return max(0.0, foreign) / wall


def fail(text):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {text}")
