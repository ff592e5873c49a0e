# SPDX-License-Identifier: Apache-2.0
"""Weft and its peers, each as functions that measure one thing once and return a Sample."""
import collections
import filecmp
import json
import os
import platform
import random
import re
import shutil
import tempfile
import time

from . import proc

# value in the row's unit; processor seconds of both sides per GB, or None
Sample = collections.namedtuple("Sample", "value cpu")

PACKAGES = {"iperf3": "iperf3", "ucx_perftest": "ucx-utils (Debian, Ubuntu) or ucx (Fedora)",
            "ip": "iproute2", "tc": "iproute2"}
# memory in huge pages, as that of weft_perf
UCX = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo",
       "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
UCX_LATENCY_ITERS = 50000
UCX_WARMUP = 1000  # operations; its default of 10 000 would be most of a run
UCX_WARMUP_BYTES = 64 << 20
IPERF3_BLOCK = 1 << 20
PYTHON_PACKAGES = (["torch==2.13.0", "numpy"],
                   ["--no-deps", "nixl==1.5.1", "nixl-cu12==1.5.1",
                    "mooncake-transfer-engine-non-cuda==0.3.13.post1"])
VERSIONS = """
import importlib.metadata
for d in importlib.metadata.distributions():
    if d.name == "torch" or d.name.split("-")[0] in ("nixl", "mooncake"):
        print(d.name + " " + d.version)
"""
PIP_LIMIT_S = 1200
# bare_file.c writes as many; the depth is that of weights pull.
WEIGHTS_FILES, WEIGHTS_FILE, WEIGHTS_BLOCK = 8, 256 << 20, 16 << 20
WEIGHTS_DEPTH = 16
WEIGHTS_PIECE = 4 << 20  # what it reads at a time


def find(name, folder, given=None):
    """A program of this project's build."""
    builds = [os.path.join(proc.TOP, "build", preset) for preset in ("release", "default", "")]
    places = [given] if given else [os.path.join(build, folder, name) for build in builds]
    for place in places:
        if os.access(place, os.X_OK):
            return place
    proc.fail(f"{given or name} not found: build Weft (bench/README.md)")


def beside(perf, name, folder):
    """Another program of the build that weft_perf is from."""
    return find(name, folder, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(perf))), folder, name))


def check_installed(*programs):
    missing = [f"{p} not found: install {PACKAGES[p]}" for p in programs if not shutil.which(p)]
    if missing:
        proc.fail("; ".join(missing))


class Notes:
    """Each command once, for the report."""

    def __init__(self):
        self.commands = []

    def add(self, command, env=None):
        words = [f"{k}={v}" for k, v in (env or {}).items()]
        words += [os.path.basename(command[0])] + command[1:]
        line = re.sub(r"(-p) \d+", r"\1 PORT", " ".join(words)).replace(proc.TOP + os.sep, "")
        line = re.sub(r"\bweft-\d+-(h[01])\b", r"\1", line)  # namespaces of a run
        if command[0] == "ip":  # their number follows the speed
            line = re.sub(r"(--iters) \d+", r"\1 N", line)
        if line not in self.commands:
            self.commands.append(line)


class Weft:
    def __init__(self, notes, program, transport):
        self.notes, self.program, self.transport = notes, program, transport

    def run_all(self, test, *options, env=None):
        command = [self.program, test, "--local", "--transport", self.transport, *options,
                   "--json", "-"]
        self.notes.add(command, env)
        everything = json.loads(proc.output(command, env))
        if everything["results"][0]["verified"] is not True:
            raise proc.Failed(f"'{' '.join(command)}': bytes arrived wrong")
        return everything

    def run(self, test, *options, env=None):
        return self.run_all(test, *options, env=env)["results"][0]

    def bandwidth(self, test, size, *options, env=None):
        result = self.run(test, "--sizes", str(size), *options, env=env)
        return Sample(result["GBps"], result["cpu_s_per_GB"])

    def rate(self, test, size, *options):
        result = self.run(test, "--sizes", str(size), *options)
        return Sample(result["Mops"], result["cpu_s_per_GB"])

    def latency(self, test, size, *options, key="p50_us"):
        return Sample(self.run(test, "--sizes", str(size), *options)[key], None)

    def idle(self, conns, seconds, env=None):
        """One write on each conn, after all have done nothing for a while."""
        n = str(conns)
        return self.run_all("write", "--sizes", "8", "--conns", n, "--depth", n, "--iters", n,
                            "--idle", str(seconds), env=env)["idle"]

    def idle_memory(self, conns):
        idle = self.idle(conns, 1)
        return Sample(max(idle["KiB_per_conn"], idle["KiB_per_conn_target"]), None)

    def idle_cpu(self, conns, seconds, env=None):
        idle = self.idle(conns, seconds, env)
        return Sample(idle["cpu_ms"] - idle["cpu_ms_without"], None)


class Bare:
    """bench/bare_tcp: the same work on plain sockets."""

    def __init__(self, notes, program):
        self.notes, self.program = notes, program

    def run(self, test, size, *options):
        command = [self.program, test, "-s", str(size), *options]
        self.notes.add(command)
        result = json.loads(proc.output(command))
        if result["verified"] is not True:
            raise proc.Failed(f"'{' '.join(command)}': bytes arrived wrong")
        return result

    def bandwidth(self, size, *options):
        result = self.run("write", size, *options)
        return Sample(result["GBps"], result["cpu_s_per_GB"])

    def rate(self, size, *options):
        result = self.run("write", size, *options)
        return Sample(result["Mops"], result["cpu_s_per_GB"])

    def latency(self, size):
        return Sample(self.run("pingpong", size)["p50_us"], None)

    def state(self):
        """Of the machine, in a tenth of a second: half a round trip of 64 B (table.ALIKE)."""
        command = [self.program, "pingpong", "-s", "64", "-n", "8000"]
        return json.loads(proc.output(command))["p50_us"]


class Paired:
    """bench/paired: what is compared, in turns by blocks, in one pair of processes. Each run gives a sample of each."""

    def __init__(self, notes, program, perf):
        self.notes, self.program, self.perf = notes, program, perf

    def library(self):
        """That of weft_perf: of its build, or installed with it."""
        top = os.path.dirname(os.path.dirname(os.path.abspath(self.perf)))
        for place in ("", "lib", "lib64", f"lib/{platform.machine()}-linux-gnu"):
            path = os.path.join(top, place, "libweft.so")
            if os.path.exists(path):
                return path
        raise proc.Failed(f"no libweft.so beside {self.perf}")

    def nanoseconds(self, test, *options):
        command = [self.program, test, *options, self.library()]
        self.notes.add(command)
        found = re.findall(r"^.*?([\d.]+) ns   x the first", proc.output(command), re.MULTILINE)
        return [float(ns) for ns in found]

    def latencies(self, test, *options):
        return [Sample(ns / 1000, None) for ns in self.nanoseconds(test, *options)]

    def bandwidths(self, size, test, *options):
        return [Sample(size / ns, None) for ns in self.nanoseconds(test, *options)]


class Copy:
    """bench/bare_copy: memcpy from one ring of slots to another."""

    def __init__(self, notes, program):
        self.notes, self.program = notes, program

    def bandwidth(self, size):
        command = [self.program, "-s", str(size)]
        self.notes.add(command)
        result = json.loads(proc.output(command))
        if result["verified"] is not True:
            raise proc.Failed("memcpy copied wrong")
        return Sample(result["GBps"], result["cpu_s_per_GB"])


def received_by_iperf3(text):
    """Of its JSON; it says what failed there, with status 0."""
    said = json.loads(text)
    if "sum_received" not in said.get("end", {}):
        raise proc.Failed(f"iperf3: {said.get('error', 'nothing was received')}")
    return said["end"]["sum_received"]


class Iperf3:
    def __init__(self, notes, seconds):
        self.notes, self.seconds = notes, seconds

    def bandwidth(self, *options):
        port = proc.free_port()
        base = ["iperf3", "-c", "127.0.0.1", "-p", str(port)]
        client = base + ["-l", str(IPERF3_BLOCK), "-t", str(self.seconds), "-J", *options]
        listener = ["iperf3", "-s", "-1", "-p", str(port)]
        self.notes.add(listener)
        self.notes.add(client)
        with proc.server(listener, port) as target:
            initiator = proc.Child(client)
            received = received_by_iperf3(initiator.end())
        cpu = initiator.cpu_s + target.cpu_s
        return Sample(received["bits_per_second"] / 8e9, cpu / (received["bytes"] / 1e9))


class Ucx:
    def __init__(self, notes, seconds):
        self.notes, self.seconds = notes, seconds

    def run(self, test, size, iters, warmup, more=None):
        port = proc.free_port()
        env = {**UCX, **(more or {})}
        listener = ["ucx_perftest", "-t", test, "-s", str(size), "-n", str(iters), "-w",
                    str(warmup), "-p", str(port)]
        client = ["ucx_perftest", "127.0.0.1"] + listener[1:]
        self.notes.add(listener, env)
        self.notes.add(client, env)
        with proc.server(listener, port, env) as target:
            initiator = proc.Child(client, env)
            text = initiator.end()
        final = [line.split() for line in text.splitlines() if line.startswith("Final:")]
        if not final:
            raise proc.Failed(f"ucx_perftest -t {test} has no result")
        return final[0], initiator.cpu_s + target.cpu_s

    def latency(self, size):
        # Final: iterations p50 average overall ...
        return Sample(float(self.run("tag_lat", size, UCX_LATENCY_ITERS, UCX_WARMUP)[0][2]), None)

    def bandwidth(self, test, size, more=None):
        """As many operations as take about the time, by a short run before."""
        warmup = max(1, (UCX_WARMUP_BYTES // size))
        probe = self.rate(self.run(test, size, warmup, 1, more)[0])
        iters = max(4, int(self.seconds * probe * 1e9 / size))
        final, cpu = self.run(test, size, iters, warmup, more)
        return Sample(self.rate(final), cpu / ((iters + warmup) * size / 1e9))

    @staticmethod
    def rate(final):
        # Final: iterations p50 average overall MB/s(average) MB/s(overall) ...; MB are 2^20
        return float(final[6]) * (1 << 20) / 1e9


class PythonPeer:
    """NIXL and Mooncake, in a virtual environment that prepare() makes."""

    def __init__(self, notes, seconds):
        self.notes, self.seconds = notes, seconds
        self.dir = os.path.join(proc.TOP, "build", "bench-python")
        self.python = os.path.join(self.dir, "bin", "python")

    def prepare(self, wanted):
        if not wanted or os.path.exists(os.path.join(self.dir, "ready")):
            return
        proc.output(["/usr/bin/python3", "-m", "venv", self.dir])
        pip = [self.python, "-m", "pip", "install", "-q"]
        for words in PYTHON_PACKAGES:
            proc.Child(pip + words).end(PIP_LIMIT_S)
        with open(os.path.join(self.dir, "ready"), "w", encoding="ascii"):
            pass

    def versions(self):
        """Of what is there, which need not be what prepare() would take."""
        found = proc.output([self.python, "-c", VERSIONS]) if os.path.exists(self.python) else ""
        return found.splitlines()

    def bandwidth(self, kind, test, size, *depth):
        script = os.path.join(proc.TOP, "bench", "lib", "peer.py")
        command = [self.python, script, kind, test, str(size), str(self.seconds), *depth]
        self.notes.add(command)
        result = json.loads(proc.output(command).splitlines()[-1])
        if result["verified"] is not True:
            raise proc.Failed(f"{kind}: bytes arrived wrong")
        return Sample(result["GBps"], result["cpu_s_per_GB"])


def weights_threads():
    """What weights takes by itself."""
    n = len(os.sched_getaffinity(0))
    return min(8, n // 2) if n > 4 else min(2, n)


class Weights:
    """examples/weights, of the build of weft_perf: files made once, served by one process and pulled by another. serve_words, pull_words: what goes
    before their commands, if they run elsewhere; listen: where."""

    def __init__(self, notes, perf, place, serve_words=(), pull_words=(), listen=None):
        self.notes, self.perf, self.place = notes, perf, place
        self.serve_words, self.pull_words = list(serve_words), list(pull_words)
        self.listen = ["--listen", listen] if listen else []
        self.cpu = {}  # of what a pull into files is made of: s/GB, and the read's speed

    def read(self, weft, size, *options):
        """weft_perf read with as many bytes under way as a pull has."""
        sample = weft.bandwidth("read", size, "--depth", str(WEIGHTS_DEPTH), *options)
        self.cpu[weft.transport] = sample
        return sample

    def warm(self):
        """Write as many files as are pulled. Memory that a virtual machine uses for the first time
        has to come from its host, which takes longer than to write it: afterwards it is there."""
        command = [find("bare_file", "bench"), self.place]
        self.notes.add(command)
        return json.loads(proc.output(command))

    def write(self):
        """The files written by themselves."""
        self.warm()
        result = self.warm()
        if result["verified"] is not True:
            raise proc.Failed("bare_file wrote wrong")
        self.cpu["file"] = Sample(result["GBps"], result["cpu_s_per_GB"])
        return self.cpu["file"]

    def floor(self, transport):
        """The speed of what was measured last, read and write, if all processors do nothing else:
        no pull into files on one host is faster, whatever it does at the same time."""
        read, write = self.cpu.get(transport), self.cpu.get("file")
        if not read or not write:
            raise proc.Failed("needs what it is made of")
        cpu = read.cpu + write.cpu
        return Sample(min(read.value, os.cpu_count() / cpu), cpu)

    def pull(self, transport, *options):
        """Until the last byte is in its place; options as of weights pull."""
        program = beside(self.perf, "weights", "examples")
        with tempfile.TemporaryDirectory(dir=self.place) as work:
            files, dest = os.path.join(work, "files"), os.path.join(work, "dest")
            make_files(files)
            serve = [program, "serve", files, "--transport", transport, *self.listen]
            to = [] if "--memory" in options else [dest]
            server = proc.Child(self.serve_words + serve)
            try:
                address = wait_for_address(server)
                if to:
                    self.warm()
                before = proc.cpu_of(server.process.pid)
                command = [program, "pull", address, *to, "--transport", transport, "--no-compare",
                           *options]
                self.notes.add(self.serve_words + serve[:2] + ["DIR"] + serve[3:])
                self.notes.add(self.pull_words + command[:2] + ["HOST:PORT", *("DEST" for _ in to)] +
                               command[3 + len(to):])
                client = proc.Child(self.pull_words + command)
                text = client.end()
                serving = proc.cpu_of(server.process.pid) - before
            finally:
                server.process.terminate()
                server.wait(proc.END_S)
                server.kill()
            for name in os.listdir(files) if to else ():
                if not filecmp.cmp(os.path.join(files, name), os.path.join(dest, name), False):
                    raise proc.Failed(f"weights: {name} arrived wrong")
        moved = float(re.search(r"^moved .*: ([0-9.]+) GB/s", text, re.M).group(1))
        return Sample(moved, (client.cpu_s + serving) / (WEIGHTS_FILES * WEIGHTS_FILE / 1e9))


def make_files(folder):
    """Files of pseudo-random bytes, each different."""
    os.mkdir(folder)
    block = random.Random(1).randbytes(WEIGHTS_BLOCK)
    for i in range(WEIGHTS_FILES):
        with open(os.path.join(folder, f"file{i}"), "wb") as f:
            for k in range(WEIGHTS_FILE // WEIGHTS_BLOCK):
                f.write(bytes([i, k]) + block[2:])


def wait_for_address(server):
    deadline = time.monotonic() + proc.LIMIT_S
    while time.monotonic() < deadline and not server.poll():
        found = re.search(r"^serving .* at (\S+)$", server.text(server.out), re.M)
        if found:
            return found.group(1)
        time.sleep(0.05)
    raise proc.Failed("weights serve does not start")
