# SPDX-License-Identifier: Apache-2.0
"""What is measured between two GPUs of one host, of whom, and what is asked of Weft."""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

from . import proc
from .programs import Sample, Weft, beside
from .table import Goal, Row

KIB, MIB = 1 << 10, 1 << 20
BULK = {MIB: 16, 16 * MIB: 16, 64 * MIB: 4}  # size: under way
PIECES, PIECE, PIECES_DEPTHS = 128, 32 * KIB, (16, 1)
TINY = 8
SIDES = {256: 256, 64: 64}  # MiB of a side: operations of 1 MiB under way
THREADS = (0, 1, 2, 4)  # progress threads; 0: the caller's; 1: the default of the library
WEFT, DRIVER, NCCL, NCCL_GROUP = "Weft", "driver's copy", "NCCL", "NCCL, in groups"
HOST_MEMORY = "Weft, memory of the host"
AWAY = "Weft, the target's program elsewhere"  # its progress threads are alone
SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
# sockets and threads of each of its connections
NCCL_SOCKETS = {"NCCL's sockets": {},
                "NCCL's sockets, 2 threads": {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "2"},
                "NCCL's sockets, 4 threads": {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}}
# as many threads a side, beside that of the program, which waits; with none there is only this one
NCCL_OF = dict(zip(THREADS, ["NCCL's sockets", *NCCL_SOCKETS]))


class Driver:
    """bench/bare_cuda, of the build of weft_perf: the same copies by NVIDIA's driver alone."""

    def __init__(self, notes, perf):
        self.notes, self.program = notes, beside(perf, "bare_cuda", "bench")

    def run(self, size, depth, source, target, *options):
        command = [self.program, "-s", str(size), "-d", str(depth), "-f", source, "-t", target, *options]
        self.notes.add(command)
        result = json.loads(proc.output(command))
        if result["verified"] is not True:
            raise proc.Failed(f"'{' '.join(command)}': bytes arrived wrong")
        return result

    def bandwidth(self, *what):
        result = self.run(*what)
        return Sample(result["GBps"], result["cpu_s_per_GB"])

    def latency(self, *what):
        return Sample(self.run(*what)["p50_us"], None)


class Nccl:
    """lib/nccl.py, in this Python."""

    def __init__(self, notes, seconds):
        self.notes, self.seconds, self.version = notes, seconds, "unknown"

    def run(self, size, depth, *options, env=None):
        script = os.path.join(proc.TOP, "bench", "lib", "nccl.py")
        command = [sys.executable, script, str(size), str(depth), str(self.seconds), *options]
        self.notes.add(["python3", *command[1:]], env)
        result = json.loads(proc.output(command, env).splitlines()[-1])
        if result["verified"] is not True:
            raise proc.Failed("NCCL: bytes arrived wrong")
        self.version = result["version"]
        return result

    def bandwidth(self, *what, env=None):
        result = self.run(*what, env=env)
        return Sample(result["GBps"], result["cpu_s_per_GB"])

    def latency(self, *what):
        return Sample(self.run(*what)["p50_us"], None)


class Tools:
    """The programs that are measured."""

    def __init__(self, notes, perf, seconds):
        self.local, self.tcp = Weft(notes, perf, "local"), Weft(notes, perf, "tcp")
        self.driver, self.nccl = Driver(notes, perf), Nccl(notes, seconds)


def check(perf, sockets_too):
    """Ends the program where there is no use in beginning."""
    info = json.loads(proc.output([beside(perf, "weft_info", "tools"), "--json"]))
    backends = {b["name"]: b for b in info["gpus"]}
    cuda = backends.get("cuda")
    if not cuda or not cuda["usable"]:
        proc.fail("it needs GPUs of NVIDIA's: " + (cuda["reason"] if cuda else "this build has no backend cuda"))
    if len(cuda["devices"]) < 2:
        proc.fail("it needs two GPUs, and there is one")
    if importlib.util.find_spec("torch") is None and sockets_too:
        proc.fail(f"it needs torch, for NCCL, which {sys.executable} has not")


def cards():
    """In words."""
    if not shutil.which("nvidia-smi"):
        return "GPUs: no nvidia-smi to name them"
    text = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                          capture_output=True, text=True, check=False).stdout
    return "GPUs: " + "; driver ".join(re.split(r",\s*", ", ".join(dict.fromkeys(text.strip().splitlines())))) \
        + f" ({len(text.strip().splitlines())} of them)"


def ends(op):
    """From where to where the driver copies."""
    return ("gpu0", "gpu1") if op == "write" else ("gpu1", "gpu0")


GPUS = ("--mem", "gpu", "--gpu", "0,1")
HOST_GPU = ("--mem", "host,gpu", "--gpu", "0,1", "--gpu-backend", "cuda")


def local_row(op, size):
    return f"local {op} {proc.format_size(size)}, {BULK[size]} under way"


def pieces_row(op, depth):
    return f"local {op}, {PIECES} regions of {proc.format_size(PIECE)} in a call, {depth} under way"


def tiny_row(op):
    return f"local {op} {TINY} B, one at a time"


def both_ways(t, size, depth, memory, places):
    """Half of the operations each way, from one process."""
    return {WEFT: lambda: t.local.bandwidth("rw", size, *memory, "--depth", str(depth)),
            DRIVER: lambda: t.driver.bandwidth(size, depth, *places, "-b")}


def local_rows(t):
    for size, depth in BULK.items():
        for op in ("write", "read"):
            programs = {WEFT: lambda o=op, s=size, d=depth: t.local.bandwidth(o, s, *GPUS, "--depth", str(d)),
                        DRIVER: lambda o=op, s=size, d=depth: t.driver.bandwidth(s, d, *ends(o))}
            if op == "write":
                programs[NCCL] = lambda s=size, d=depth: t.nccl.bandwidth(s, d)
                programs[NCCL_GROUP] = lambda s=size, d=depth: t.nccl.bandwidth(s, d, "--group")
            yield Row(local_row(op, size), "GB/s", programs, digits=1)
        yield Row(local_row("write and read", size), "GB/s", both_ways(t, size, depth, GPUS, ends("write")), digits=1)
    for depth in PIECES_DEPTHS:
        for op in ("write", "read"):
            yield Row(pieces_row(op, depth), "GB/s", {
                WEFT: lambda o=op, d=depth: pieces(t, o, d),
                DRIVER: lambda o=op, d=depth: whole(t, o, d)}, digits=1)
    for op in ("write", "read"):
        programs = {WEFT: lambda o=op: t.local.latency(o, TINY, *GPUS, "--depth", "1"),
                    DRIVER: lambda o=op: t.driver.latency(TINY, 1, *ends(o))}
        if op == "write":
            programs[NCCL] = lambda: t.nccl.latency(TINY, 1)
        yield Row(tiny_row(op), "us", programs, digits=1)


def median_speed(size, p50_us):
    """One at a time: of the median, since the mean has what the scheduler does in it."""
    return Sample(size / p50_us / 1e3, None)


def pieces(t, op, depth):
    options = (*GPUS, "--iovs", str(PIECES), "--depth", str(depth))
    if depth > 1:
        return t.local.bandwidth(op, PIECE, *options)
    return median_speed(PIECE * PIECES, t.local.latency(op, PIECE, *options).value)


def whole(t, op, depth):
    """As many bytes, in one copy."""
    size = PIECE * PIECES
    if depth > 1:
        return t.driver.bandwidth(size, depth, *ends(op))
    return median_speed(size, t.driver.latency(size, 1, *ends(op)).value)


def host_row(op, size):
    return f"{'host to GPU' if op == 'write' else 'GPU to host'}, {proc.format_size(size)}, {BULK[size]} under way"


def host_rows(t):
    for size, depth in BULK.items():
        for op in ("write", "read"):
            places = ("host", "gpu1") if op == "write" else ("gpu1", "host")
            yield Row(host_row(op, size), "GB/s", {
                WEFT: lambda o=op, s=size, d=depth: t.local.bandwidth(o, s, *HOST_GPU, "--depth", str(d)),
                DRIVER: lambda s=size, d=depth, p=places: t.driver.bandwidth(s, d, *p)}, digits=1)
        yield Row(f"host and GPU both ways, {proc.format_size(size)}, {depth} under way", "GB/s",
                  both_ways(t, size, depth, HOST_GPU, ("host", "gpu1")), digits=1)


def tcp_row(op, side, threads):
    who = f"{threads} progress thread{'s' if threads > 1 else ''}" if threads else "the caller's thread"
    return f"tcp {op} 1 MiB, {side} MiB a side, {who}"


def tcp_options(side, threads):
    return ("--depth", str(SIDES[side]), *(("--progress-threads", str(threads)) if threads else ()))


def tcp_rows(t):
    for threads in THREADS:
        for side in SIDES:
            for op in ("write", "read"):
                options = tcp_options(side, threads)
                programs = {WEFT: lambda o=op, a=options: t.tcp.bandwidth(o, MIB, *GPUS, *a),
                            HOST_MEMORY: lambda o=op, a=options: t.tcp.bandwidth(o, MIB, *a)}
                if threads and op == "write":
                    programs[AWAY] = lambda o=op, a=options: t.tcp.bandwidth(o, MIB, *GPUS, *a, "--away")
                yield Row(tcp_row(op, side, threads), "GB/s", programs, digits=1)
    for side in SIDES:
        programs = {who: lambda s=side, e=env: t.nccl.bandwidth(MIB, s, env={**SOCKETS, **e})
                    for who, env in NCCL_SOCKETS.items()}
        programs.update({grouped(who): lambda s=side, e=env: t.nccl.bandwidth(MIB, s, "--group", env={**SOCKETS, **e})
                         for who, env in NCCL_SOCKETS.items()})
        yield Row(sockets_row(side), "GB/s", programs, digits=1)


def grouped(who):
    return f"{who}, in groups"


def sockets_row(side):
    return f"NCCL over sockets, 1 MiB, {side} MiB a side"


GROUPS = {"local": local_rows, "host": host_rows, "tcp": tcp_rows}


def goals():
    for size in BULK:
        for op in ("write", "read"):
            row = local_row(op, size)
            if size == MIB:
                yield Goal(f"{row} >= 100 GB/s", (row, WEFT), ">=", 100)
            else:
                yield Goal(f"{row} >= 0.98 x the driver's copy", (row, WEFT), ">=", 0.98, [(row, DRIVER)])
    for depth in PIECES_DEPTHS:
        for op in ("write", "read"):
            row = pieces_row(op, depth)
            yield Goal(f"{row} >= 0.8 x one copy of as many bytes", (row, WEFT), ">=", 0.8, [(row, DRIVER)])
    for op in ("write", "read"):
        yield Goal(f"{tiny_row(op)} <= 12 us", (tiny_row(op), WEFT), "<=", 12)
    for size in BULK:
        for op in ("write", "read"):
            row = host_row(op, size)
            yield Goal(f"{row} >= 0.95 x the pinned copy", (row, WEFT), ">=", 0.95, [(row, DRIVER)])
    for threads in THREADS:
        for side in SIDES:
            for op in ("write", "read"):
                row = tcp_row(op, side, threads)
                yield Goal(f"{row} >= 0.9 x memory of the host", (row, WEFT), ">=", 0.9, [(row, HOST_MEMORY)])
            row, peers, like = tcp_row("write", side, threads), sockets_row(side), NCCL_OF[threads]
            yield Goal(f"{row} >= 2 x {like}", (row, WEFT), ">=", 2, [(peers, like), (peers, grouped(like))])
            if threads:
                yield Goal(f"{row}, the target's program elsewhere >= 2 x {like}", (row, AWAY), ">=", 2,
                           [(peers, like), (peers, grouped(like))])
    for side in SIDES:
        best, peers = tcp_row("write", side, THREADS[-1]), sockets_row(side)
        yield Goal(f"{best} >= 2 x the best of NCCL's", (best, WEFT), ">=", 2,
                   [(peers, name) for who in NCCL_SOCKETS for name in (who, grouped(who))])
